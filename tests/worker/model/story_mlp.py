# covers: worker/model/models/mlp.c worker/model/blocks
"""Model mlp: images in, a running mean that is a buffer, layers that may be frozen. It agrees with PyTorch's
numbers, trains to the same bits under each strategy, and goes on from its checkpoints."""

import json
import os
import shutil
import struct
import subprocess

import pytest

import support
from models import metrics, train, weights_hash

GOLDEN = os.path.join(support.ROOT, "tests/golden/models/mlp")
BUFFERS = ["layers.0.num_batches_tracked", "layers.0.running_mean"]


def tensors(path):
    """{name: values} of a safetensors file of fp32, and of counts."""
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, x in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = x["data_offsets"]
            count = x["dtype"] == "I64"
            assert count == (name in BUFFERS[:1] and path != f"{GOLDEN}/hf/model.safetensors") and (x["shape"] == []) == count
            out[name] = struct.unpack(f"<{(end - begin) // (8 if count else 4)}{'q' if count else 'f'}", raw[8 + size + begin:8 + size + end])
    return out


def make_job(folder, steps=12, **sections):
    job = {
        "model": {"load": f"{GOLDEN}/hf"},
        "data": {"train": f"{GOLDEN}/train.safetensors", "val": f"{GOLDEN}/val.safetensors", "shuffle": False},
        "training": {"batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "max_steps": steps, "learning_rate": 1e-2,
                     "lr_scheduler_type": "constant", "weight_decay": 0.1, "adam_beta2": 0.99, "max_grad_norm": 1.0, "threads": 1},
        "checkpointing": {"save_every_n_steps": 5},
        "logging": {"log_every_n_steps": 1},
    }
    for section, values in sections.items():
        job[section] = {**job.get(section, {}), **values}
    path = os.path.join(str(folder), "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def test_as_pytorch(tmp_path):
    """Losses, norms of gradients, the weights and the running mean after 12 steps of two micro-steps; the evaluation's loss."""
    with open(f"{GOLDEN}/expected.json") as f:
        expected = json.load(f)
    train(make_job(tmp_path), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    steps = [m for m in lines if "loss" in m]
    assert [m["loss"] for m in steps] == pytest.approx(expected["loss"], rel=1e-5)
    assert [m["grad_norm"] for m in steps] == pytest.approx(expected["grad_norm"], rel=1e-4)
    assert [m["val_loss"] for m in lines if "val_loss" in m] == pytest.approx([expected["val_loss"]], rel=1e-5)
    model = tensors(tmp_path / "run/model/model.safetensors")
    assert sorted(set(model) & set(BUFFERS)) == BUFFERS and len(model) == 8
    for name, values in expected["weights"].items():
        assert model[name] == pytest.approx(values, abs=2e-5), name
    assert model["layers.0.weight"][:40] == pytest.approx(expected["first_of_weight_0"], abs=2e-5)


@pytest.mark.parametrize("ranks, precision, frozen", [(2, "32-true", 0), (3, "32-true", 1), (2, "bf16-mixed", 2)])
def test_same_bits_under_each_strategy(tmp_path, ranks, precision, frozen):
    """Weights, moments and the buffer: what a run over the strategies leaves, and what it goes on from, is the same."""
    job = make_job(tmp_path, model={"load": None, "name": "mlp", "num_channels": 2, "image_size": 6, "hidden_size": 24, "last_hidden_size": 12,
                                    "num_labels": 5, "initializer_range": 0.2, "frozen_layers": frozen},
                   training={"precision": precision, "gradient_accumulation_steps": 1, "batch_size_per_gpu": 4})
    hashes, losses = set(), set()
    for strategy in ["ddp", "zero1", "zero2", "full_shard", "shard_grad_op"]:
        out = tmp_path / strategy
        train(job, out, ranks, f"training.strategy={strategy}")
        hashes.add(weights_hash(out))
        losses.add(tuple(m[k] for m in metrics(out) for k in ("loss", "val_loss") if k in m))
    assert len(hashes) == 1 and len(losses) == 1
    # half of it, and the rest under another strategy: the same
    train(job, tmp_path / "half", ranks, "training.strategy=full_shard", "training.max_steps=6")
    train(job, tmp_path / "half", ranks, "training.strategy=zero2")
    assert hashes == {weights_hash(tmp_path / "half")}
    first = tensors(tmp_path / "ddp/model/model.safetensors")
    assert first["layers.0.num_batches_tracked"] == (12.0,)
    assert any(first["layers.0.running_mean"])


def test_frozen_layers_stay(tmp_path):
    """Their weights are those that the run began with, and no optimizer has state of them."""
    begun = tensors(f"{GOLDEN}/hf/model.safetensors")
    load = tmp_path / "hf"
    os.mkdir(load)
    with open(f"{GOLDEN}/hf/config.json") as f:
        config = json.load(f)
    with open(load / "config.json", "w") as f:
        json.dump({**config, "frozen_layers": 1}, f)
    shutil.copy(f"{GOLDEN}/hf/model.safetensors", load)
    for strategy in ["ddp", "full_shard"]:
        out = tmp_path / strategy
        train(make_job(tmp_path, model={"load": str(load)}), out, 2, f"training.strategy={strategy}")
        ended = tensors(out / "model/model.safetensors")
        for name in begun:
            assert (ended[name] == begun[name]) == (name in ("layers.0.weight", "layers.0.bias")), name
        with open(out / "checkpoints/step-00000012/manifest.json") as f:
            slices = [s for x in json.load(f)["files"] for s in x["slices"]]
        roles = {s["name"]: s.get("role") for s in slices}
        assert roles["layers.0.weight"] == "frozen" and roles["layers.0.running_mean"] == "buffer" and roles["layers.1.weight"] is None
        assert {s["purpose"] for s in slices if s.get("role")} == {"weight"}
        assert {s["purpose"] for s in slices if not s.get("role")} == {"weight", "exp_avg", "exp_avg_sq"}


def test_goes_on_with_other_ranks(tmp_path):
    """The buffer is there again, whoever had saved it."""
    job = make_job(tmp_path)
    train(job, tmp_path / "run", 2, "training.max_steps=5", "training.strategy=zero2")
    saved = tensors(tmp_path / "run/model/model.safetensors")
    train(job, tmp_path / "run", 3, "training.max_steps=6", "training.strategy=full_shard")
    ended = tensors(tmp_path / "run/model/model.safetensors")
    # two batches a step, but one where the epoch has no more for three ranks
    assert saved["layers.0.num_batches_tracked"] == (10.0,) and ended["layers.0.num_batches_tracked"] == (11.0,)
    assert ended["layers.0.running_mean"] != saved["layers.0.running_mean"]


def test_a_count_leaves_as_pytorch_keeps_it(tmp_path):
    """An int64 without dimensions, whatever the type of the weights; a run that begins with the folder counts on."""
    train(make_job(tmp_path), tmp_path / "run", 1, "training.max_steps=2")
    half = str(tmp_path / "half")
    subprocess.run([support.program("dtckpt"), "export", str(tmp_path / "run"), half, "--dtype=bf16"], check=True, timeout=60)
    with open(f"{half}/model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    assert {name: x["dtype"] for name, x in header.items() if name != "__metadata__" and x["dtype"] != "BF16"} == {BUFFERS[0]: "I64"}
    train(make_job(tmp_path, model={"load": half}), tmp_path / "again", 1, "training.max_steps=1")
    assert tensors(tmp_path / "again/model/model.safetensors")[BUFFERS[0]] == (6,)


def test_a_batch_without_targets_moves_no_buffer(tmp_path):
    """A step whose samples have no class changes nothing: not the weights, and not the running mean."""
    with open(f"{GOLDEN}/train.safetensors", "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    begin, end = json.loads(raw[8:8 + size])["labels"]["data_offsets"]
    at, count = 8 + size + begin, 16  # a step of two micro-steps of 8
    none = struct.pack(f"<{count}q", *[-100] * count)
    assert end - begin == 96 * 8
    (tmp_path / "holed.safetensors").write_bytes(raw[:at + 8 * count] + none + raw[at + 16 * count:])
    job = make_job(tmp_path, data={"train": str(tmp_path / "holed.safetensors"), "val": None})
    found = []
    for steps in (1, 2):
        train(job, tmp_path / str(steps), 1, f"training.max_steps={steps}")
        found.append(tensors(tmp_path / str(steps) / "model/model.safetensors"))
    assert found[0] == found[1] and found[0]["layers.0.num_batches_tracked"] == (2.0,)


def test_evaluation_has_the_first_ranks_buffer(tmp_path):
    """Each rank has seen other batches; all evaluate with what is saved, so one rank that loads it finds the same loss."""
    train(make_job(tmp_path), tmp_path / "run", 3)
    [loss] = [m["val_loss"] for m in metrics(tmp_path / "run") if "val_loss" in m]
    config = tmp_path / "run/model/config.json"
    still = {**json.loads(config.read_text()), "momentum": 0}
    config.write_text(json.dumps(still))
    job = make_job(tmp_path, steps=1, model={"load": str(tmp_path / "run/model")}, training={"learning_rate": 0})
    train(job, tmp_path / "again")
    assert [m["val_loss"] for m in metrics(tmp_path / "again") if "val_loss" in m] == pytest.approx([loss], rel=1e-6)


def test_other_sizes_are_refused(tmp_path):
    """What a resume compares are the model's own keys; data that do not fit are named."""
    job = make_job(tmp_path, model={"load": None, "name": "mlp", "num_channels": 2, "image_size": 6, "num_labels": 5})
    train(job, tmp_path / "run", 1, "training.max_steps=2")
    r = train(job, tmp_path / "run", 1, "model.hidden_size=64", check=False)
    assert r.returncode != 0 and "model.hidden_size: was 128, is now 64" in r.stderr + r.stdout
    r = train(job, tmp_path / "new", 1, "model.num_labels=4", check=False)
    assert (f"data.train: {GOLDEN}/train.safetensors: labels: sample 5 has class 4, but the model has 4 classes; "
            "raise model.num_labels to 5 or more") in r.stderr + r.stdout
    r = train(job, tmp_path / "new", 1, "model.image_size=5", check=False)
    assert "pixel_values: shape (96, 2, 6, 6), but the model reads (n, 2, 5, 5)" in r.stderr + r.stdout
    r = train(job, tmp_path / "new", 1, "model.n_layer=2", check=False)
    assert "model.n_layer: unknown key" in r.stderr + r.stdout
    r = train(job, tmp_path / "new", 1, "data.sequence_length=8", check=False)
    assert "data.sequence_length: samples of mlp are no sequences; remove it" in r.stderr + r.stdout


def test_samples_are_no_tokens(tmp_path):
    """Where samples are no sequences, console and metrics.jsonl count samples."""
    said = train(make_job(tmp_path, steps=3), tmp_path / "run").stderr
    steps = [m for m in metrics(tmp_path / "run") if "loss" in m]
    assert [m["samples"] for m in steps] == [16, 32, 48] and all(m["samples_per_s"] > 0 for m in steps)
    assert not any("token" in key for m in steps for key in m)
    assert " samples/s" in said and "token" not in said, said
    few = train(make_job(tmp_path, training={"batch_size_per_gpu": 100}), tmp_path / "few", check=False).stderr
    assert "data.train: 96 samples: 1 ranks * batch_size_per_gpu 100 need 100" in few, few


def test_the_example(tmp_path):
    """configs/mlp.json learns what it is shown."""
    train("configs/mlp.json", tmp_path / "run", 2)
    losses = [m["val_loss"] for m in metrics(tmp_path / "run") if "val_loss" in m]
    assert losses[-1] < 0.3 < losses[0]
