# covers: worker/data/sampler.c worker/data/data.c worker/data/labelled.c worker/model/batch.c worker/engine/trainer_open.c worker/engine/trainer_step.c
"""Batches of labelled rows: padding that is left out changes no loss, rows of like length come together in the order that the seed says, and
a run that goes on at another number of ranks takes each row once."""

import json
import struct

import numpy as np
import pytest
import training

N, LENGTH, SEED, WINDOW = 23, 40, 5, 50
ROWS = [[5 + (i * 31 + k * k * 7) % 50 for k in range(1 + i * 11 % LENGTH)] for i in range(N)]
LABELS = [i * 7 % 3 for i in range(N)]


def write_rows(path):
    starts = [sum(map(len, ROWS[:i])) for i in range(N + 1)]
    parts = {"ids": ("I32", "i", sum(ROWS, [])), "starts": ("I64", "q", starts), "labels": ("I64", "q", LABELS)}
    facts = {"format": "pt", "tokenizer": "words", "vocabulary": "64", "pad_id": "4", "label_names": json.dumps(["a", "b", "c"])}
    head, body = {"__metadata__": facts}, b""
    for name, (kind, code, numbers) in parts.items():
        data = struct.pack(f"<{len(numbers)}{code}", *numbers)
        head[name] = {"dtype": kind, "shape": [len(numbers)], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(path)


def make_job(folder, **training_keys):
    data, path = write_rows(folder / "rows.safetensors"), folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "bert", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64,
                  "max_position_embeddings": LENGTH, "num_labels": 3, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
        "data": {"train": data, "val": data, "sequence_length": LENGTH},
        "training": {"threads": 1, "batch_size_per_gpu": 2, "max_steps": 6, "eval_every_n_steps": 3, "seed": SEED, **training_keys},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def run(job, out, ranks, *sets, strategy=None):
    result = training.train(job, str(out), ranks=ranks, sets=sets, strategy=strategy)
    assert result.code == 0, result
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def values(lines, key):
    return [line[key] for line in lines if key in line]


def test_padding_changes_no_loss(tmp_path):
    """Up to the longest row of a batch, up to a multiple, or up to data.sequence_length."""
    job, runs = make_job(tmp_path, learning_rate=1e-2), {}
    for multiple in (1, 8, LENGTH):
        for ranks in (1, 3):
            runs[multiple, ranks] = run(job, tmp_path / f"{multiple}-{ranks}", ranks, f"data.pad_to_multiple_of={multiple}")
    for (_, ranks), lines in runs.items():
        whole = runs[LENGTH, ranks]
        for key in ("loss", "val_loss", "grad_norm"):
            assert values(lines, key) == pytest.approx(values(whole, key), rel=2e-5), key
        assert values(lines, "val_accuracy") == values(whole, "val_accuracy")


def test_strategies_agree(tmp_path):
    """Ranks of different lengths: bits are those of ddp."""
    job = make_job(tmp_path, learning_rate=1e-2)
    hashes = set()
    for strategy in ("ddp", "zero2", "full_shard"):
        run(job, tmp_path / strategy, 3, "data.pad_to_multiple_of=1", strategy=strategy)
        hashes.add(training.hash_of(tmp_path / strategy))
    assert len(hashes) == 1


def randperm(draws, count):
    """torch.randperm, whose numbers RandomState has, too."""
    order = list(range(count))
    for i in range(count - 1):
        k = i + int(draws.randint(0, 1 << 32, dtype=np.uint32)) % (count - i)
        order[i], order[k] = order[k], order[i]
    return order


def grouped(epoch, group):
    draws = np.random.RandomState(SEED + epoch)
    order, window, result = randperm(draws, N), WINDOW * group, []
    for first in range(0, N, window):
        result += sorted(order[first:first + window], key=lambda i: -len(ROWS[i]))
    whole = N // group
    return sum((result[i * group:(i + 1) * group] for i in randperm(draws, whole)), []) + result[whole * group:]


def test_each_row_once(tmp_path):
    """No step moves a weight, so a step's loss tells its rows. Two ranks, then one, then three: the groups stay those of the first start."""
    job = make_job(tmp_path, learning_rate=0, weight_decay=0)
    no_val = ("data.val=null", "training.eval_every_n_steps=0")
    alone = values(run(job, tmp_path / "alone", 1, "data.shuffle=false", "training.batch_size_per_gpu=1", f"training.max_steps={N}", *no_val), "loss")
    order, next_order, expected, position = grouped(0, 4), grouped(1, 4), [], 0
    for steps, ranks in ((2, 2), (4, 1), (6, 3)):
        lines = run(job, tmp_path / "out", ranks, f"training.max_steps={steps}", *no_val)
        for _ in range(2):
            if position + 2 * ranks > N:
                order, position = next_order, 0
            expected.append(sum(alone[i] for i in order[position:position + 2 * ranks]) / (2 * ranks))
            position += 2 * ranks
    assert values(lines, "loss") == pytest.approx(expected, rel=1e-5)


def test_what_has_no_lengths(tmp_path):
    """A wish that cannot be met is refused; without a wish the order is the sampler's."""
    job, source = make_job(tmp_path), {"path": f"{tmp_path}/rows.safetensors", "weight": 1}
    for sets, said in ((["data.shuffle=false"], "data.shuffle is false"),
                       (["training.overfit_batches=2"], "training.overfit_batches takes the first samples in their order"),
                       ([f"data.train={json.dumps([source, source])}"], "data.train is several sources")):
        refused = training.train(job, str(tmp_path / "out"), ranks=1, sets=["data.group_by_length=true", *sets])
        assert refused.code != 0 and f"data.group_by_length: {said}" in refused.err, refused
        run(job, tmp_path / said.replace(" ", "-"), 1, *sets, "training.max_steps=2")
    text = training.make_job(tmp_path, name="text.json")
    refused = training.train(text, str(tmp_path / "out"), ranks=1, sets=["data.group_by_length=true"])
    assert refused.code != 0 and "data.group_by_length: samples of this format have one length" in refused.err, refused
