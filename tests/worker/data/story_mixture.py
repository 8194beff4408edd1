# covers: worker/data/mixture.c worker/data/sampler.c base/config_value.c
"""data.train as a list with weights: shares are said, a run that goes on has the samples of one that was not stopped, and other weights are refused."""

import json
import random
import struct

import training

LENGTH = 8


def shard(path, first, samples):
    ids = [first + i % 20 for i in range(samples * LENGTH + 1)]
    path.write_bytes(struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012) + struct.pack(f"<{len(ids)}H", *ids))
    return str(path)


def make_job(folder, weights=(3, 1)):
    a, b = shard(folder / "a.bin", 0, 30), shard(folder / "b.bin", 30, 500)
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": 64},
        "data": {"train": [{"path": a, "weight": weights[0]}, {"path": b, "weight": weights[1]}], "sequence_length": LENGTH},
        "training": {"threads": 1, "batch_size_per_gpu": 4, "max_steps": 8},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path), a, b


def run(job, out, steps, ranks, *sets, code=0):
    result = training.train(job, str(out), ranks=ranks, sets=[f"training.max_steps={steps}", *sets])
    assert (result.code == 0) == (code == 0), result
    return result


def test_shares_and_going_on(tmp_path):
    job, a, b = make_job(tmp_path)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said = run(job, whole, 8, 1).err
    assert f"train: data.train: 75 % of the samples are from {a}, which has 30\n" in said, said
    assert f"train: data.train: 25 % of the samples are from {b}, which has 500\n" in said, said
    run(job, parts, 3, 1, "training.lr_scheduler_type=constant")
    run(job, parts, 8, 1, "training.lr_scheduler_type=constant")
    run(job, tmp_path / "constant", 8, 1, "training.lr_scheduler_type=constant")
    assert training.hash_of(parts) == training.hash_of(tmp_path / "constant")
    saved = json.loads((whole / "job.json").read_text())["data"]["train"]
    assert saved == [{"path": a, "weight": 3}, {"path": b, "weight": 1}]


def test_other_weights(tmp_path):
    job, _, _ = make_job(tmp_path)
    out = tmp_path / "out"
    run(job, out, 2, 1)
    make_job(tmp_path, (1, 1))
    refused = run(job, out, 4, 1, code=1)
    assert "data.train: the mixture 50 %, 50 % stands where the mixture 75 %, 25 % was; bring the old data back" in refused.err, refused
    run(job, out, 4, 1, 'checkpointing.accept=["data.train"]')


def test_lists_that_are_none(tmp_path):
    job, a, _ = make_job(tmp_path)
    good = '{"path": "g.bin", "weight": 1}'
    for value, fault in (('[{"path": "a.bin"}]', "entry 1 (a.bin): has no weight"), (f'[{good}, {{"path": "a.bin", "weight": 0}}]', "entry 2 (a.bin): weight is 0"),
                         (f'[{good}, {good}, {{"path": "a.bin", "weight": "2"}}, {{"path": "b", "weight": -1}}]', 'entry 3 (a.bin): weight is "2"'),
                         ('[{"path": "a.bin", "weight": 2e9}]', "entry 1 (a.bin): weight is 2000000000"), ('[{"weight": 1}]', "entry 1: has no path"),
                         ('[{"path": "", "weight": 1}]', 'entry 1: path is ""'), (f'[{good}, "a.bin"]', 'entry 2: is "a.bin"'), ("[]", "is []"),
                         ('[{"path": "a.bin", "weight": 1, "name": "x"}]', 'entry 1 (a.bin): has "name", which is neither path nor weight'),
                         ("[" + ", ".join([good] * 65) + "]", "has 65 entries, and 64 are the most")):
        refused = run(job, tmp_path / "out", 2, 1, f"data.train={value}", code=1)
        assert f'data.train: {fault}; give a path, or a list of {{"path": PATH, "weight": NUMBER}} with weights above 0, up to 1e9' in refused.err, refused
    for value, fault in (('["a", 5]', "entry 2 is 5"), ('{"x y": "a"}', '"x y" is no name of a set'), ('{"x": ["a", ""]}', 'x: entry 2 is ""'), ('{"x": null, "y": 3}', "y: is 3"),
                         ("{}", "has 0 sets; 1 to 16 are right")):
        refused = run(job, tmp_path / "out", 2, 1, f"data.val={value}", code=1)
        assert f"data.val: {fault}; give a path, a list of paths, or " in refused.err, (value, refused)
    alone = run(job, tmp_path / "alone", 2, 1, f'data.train=[{{"path": "{a}", "weight": 7}}]')
    assert "% of the samples" not in alone.err
    assert json.loads((tmp_path / "alone" / "job.json").read_text())["data"]["train"] == a


def test_images_are_cropped_anew_at_each_pass(tmp_path):
    """A source of two images in a mixture with a larger one: each time that they come they are cropped and turned in another way."""
    r = random.Random(1)
    for name, count in (("a", 2), ("b", 40)):
        for i in range(count):
            folder = tmp_path / name / str(i % 2)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.pgm").write_bytes(b"P5 16 16 255\n" + (bytes(r.randrange(256) for _ in range(256)) if name == "a" else bytes(256)))
    job = tmp_path / "images.json"
    job.write_text(json.dumps({
        "model": {"name": "resnet", "image_size": 16, "num_channels": 1, "num_labels": 2, "embedding_size": 4, "hidden_sizes": [4], "depths": [1],
                  "layer_type": "basic"},
        "data": {"train": [{"path": str(tmp_path / x), "weight": 1} for x in "ab"]},
        "transforms": {"random_crop": 16, "padding": 4, "random_horizontal_flip": 0.5},
        "training": {"num_epochs": 2, "batch_size_per_gpu": 1, "learning_rate": 1e-12, "threads": 1}, "logging": {"log_every_n_steps": 1}}))
    assert training.train(str(job), str(tmp_path / "out"), ranks=1).code == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "out" / "metrics.jsonl").open() if '"loss"' in line]
    assert len(losses) == 84 and len(set(losses)) > 30
