# covers: worker/data/sampler.c worker/data/randperm.c worker/engine/trainer_batch.c worker/engine/trainer_loader.c worker/job/job_compare.c
"""data.sampler "distributed": the samples of each step are those of PyTorch's DistributedSampler, and a run that goes on takes the rest.
What the loader has read ahead changes none of it."""

import json
import struct

import training

N, LENGTH, SEED = 23, 24, 5
# torch.randperm(23), torch 2.15, of seeds 5 and 6: two epochs
ORDERS = ([3, 11, 18, 8, 22, 21, 6, 16, 1, 13, 7, 17, 15, 12, 14, 9, 20, 0, 10, 2, 19, 4, 5],
          [19, 20, 8, 15, 9, 14, 1, 17, 12, 3, 11, 2, 16, 18, 21, 7, 4, 22, 5, 13, 6, 10, 0])


def numbered(path):
    """Rows of which number i has i + 1 targets: the targets of a step tell its samples."""
    ids = [[1 + (i * 31 + k * k * 7) % 50 for k in range(LENGTH)] for i in range(N)]
    labels = [[-100] + row[1:i + 2] + [-100] * (LENGTH - i - 2) for i, row in enumerate(ids)]
    size = N * LENGTH * 4
    head = json.dumps({name: {"dtype": "I32", "shape": [N, LENGTH], "data_offsets": [i * size, (i + 1) * size]}
                       for i, name in enumerate(("input_ids", "labels"))}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(struct.pack(f"<{LENGTH}i", *row) for row in ids + labels))
    return str(path)


def make_job(folder, **data):
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": 64},
        "data": {"train": numbered(folder / "rows.safetensors"), "sequence_length": LENGTH, "sampler": "distributed", **data},
        "training": {"threads": 1, "batch_size_per_gpu": 1, "seed": SEED, "loss_normalization": "global_tokens"},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def targets(out):
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [r["targets"] for r in rows if "loss" in r]


def run(job, out, steps, ranks, *sets):
    result = training.train(job, str(out), ranks=ranks, sets=[f"training.max_steps={steps}", *sets])
    assert result.code == 0, result
    return result


def test_steps_have_the_samples_of_the_order(tmp_path):
    """With one rank, then two, then three: each sample once in an epoch; the next epoch has an order of its own."""
    job, out = make_job(tmp_path), tmp_path / "out"
    run(job, out, 5, 1)
    run(job, out, 9, 2)
    run(job, out, 12, 3)
    run(job, out, 14, 2)  # one sample is left of the first epoch, too few for two ranks
    first, second = ORDERS[0], ORDERS[1]
    cuts = [first[i:i + 1] for i in range(5)] + [first[i:i + 2] for i in range(5, 13, 2)] + [first[i:i + 3] for i in range(13, 22, 3)]
    cuts += [second[:2], second[2:4]]
    assert targets(out) == [sum(i + 1 for i in cut) for cut in cuts]
    assert sorted(sum(cuts[:12], [])) == sorted(first[:22])


def test_accumulated_and_batched_alike(tmp_path):
    job, sums = make_job(tmp_path), []
    for i, (ranks, rows, micro) in enumerate(((1, 4, 1), (2, 2, 1), (2, 1, 2), (1, 1, 4))):
        out = tmp_path / f"out-{i}"
        run(job, out, 5, ranks, f"training.batch_size_per_gpu={rows}", f"training.gradient_accumulation_steps={micro}")
        sums.append(targets(out))
    assert sums[0] == [sum(i + 1 for i in ORDERS[0][k:k + 4]) for k in range(0, 20, 4)]
    assert all(s == sums[0] for s in sums)


def test_another_order_is_refused(tmp_path):
    """Going on in another order would leave samples out; it can be accepted, from the first sample."""
    job, out = make_job(tmp_path), tmp_path / "out"
    run(job, out, 3, 1)
    refused = training.train(job, str(out), ranks=1, sets=["training.max_steps=4", "data.sampler=permutation"])
    assert refused.code != 0 and 'data.sampler: was "distributed", is now "permutation"; go back to the old value' in refused.err, refused
    run(job, out, 4, 1, "data.sampler=permutation", 'checkpointing.accept=["data.sampler"]')


def test_evaluations_between_steps(tmp_path):
    """They borrow the loader's memory: what it had read ahead is read again."""
    job, out = make_job(tmp_path), tmp_path / "out"
    val = json.loads((tmp_path / "job.json").read_text())["data"]["train"]
    run(job, out, 40, 1, f"data.val={val}", "training.eval_every_n_steps=1")
    assert targets(out) == [i + 1 for i in (ORDERS[0] + ORDERS[1])[:40]]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum("val_loss" in r for r in rows) == 40
    assert all(0 <= r["data_wait_s"] <= r["step_s"] for r in rows if "loss" in r)
