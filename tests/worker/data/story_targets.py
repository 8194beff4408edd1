# covers: worker/data
"""Data whose labels say what is learned: rows, batches, ranks and whole files where nothing is."""

import json
import os
import struct
import subprocess

import pytest
import training
from support import BIN, DEADLINE_S, clean_env

TRAIN = os.path.join(BIN, "train")
LENGTH = 8
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="train is not built")


def batches(path, rows, blank=(), labels=True):
    """A file of `rows` rows, those of `blank` without targets: only the label that stands first, which nothing is judged by."""
    ids = [[1 + (r * 31 + k * k * 7) % 50 for k in range(LENGTH)] for r in rows]
    marked = [[row[0]] + [-100] * (LENGTH - 1) if r in blank else row for r, row in zip(rows, ids)]
    size = len(ids) * LENGTH * 8
    head = {"input_ids": {"dtype": "I64", "shape": [len(ids), LENGTH], "data_offsets": [0, size]}}
    if labels:
        head["labels"] = {"dtype": "I64", "shape": [len(ids), LENGTH], "data_offsets": [size, 2 * size]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(struct.pack(f"<{LENGTH}q", *row) for row in ids + (marked if labels else []))
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(path)


def make_job(folder, data, **training_keys):
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": 64},
        "data": {"train": data, "format": "tensors", "sequence_length": LENGTH, "shuffle": False},
        "training": {"threads": 1, "batch_size_per_gpu": 1, "learning_rate": 1e-2, "weight_decay": 0.1, "lr_scheduler_type": "constant",
                     **training_keys},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def train(*args, code=0):
    p = subprocess.run([TRAIN, *map(str, args)], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert p.returncode == code, p.stdout + p.stderr
    return p.stderr


def rows_of(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_nothing_to_learn_is_refused(tmp_path):
    """Before anything is started, with the file."""
    none = batches(tmp_path / "none.safetensors", range(4), blank=range(4))
    job = make_job(tmp_path, none, max_steps=2)
    for args in (("--plan",), ()):
        said = train(*args, job, "--output_dir", tmp_path / "out", code=2)
        assert f"data.train: {none}: none of the labels is a target: there is nothing to learn; give labels other than -100" in said, said
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
    batches(tmp_path / "one.safetensors", range(4, 6))
    said = train(job, "--output_dir", tmp_path / "out", "--set", f"data.train={tmp_path}/*.safetensors")
    assert f"train: data.train: 4 of 6 rows have no target and add nothing; the first is row 1 of {none}\n" in said, said


@pytest.mark.parametrize("ranks,strategy,normalization,optimizer", [
    (1, "single_device", "local_mean", "adamw"), (1, "single_device", "global_tokens", "sgd"), (2, "ddp", "local_mean", "lion"),
    (2, "zero1", "global_tokens", "adamw"), (2, "zero3", "local_mean", "sgd")])
def test_a_step_without_targets_changes_nothing(tmp_path, ranks, strategy, normalization, optimizer):
    """Not by weight decay and not by old moments: as if its rows were not there. It counts as a step, has no loss, and a resumed run knows of it."""
    blank = range(2 * ranks, 4 * ranks)  # two steps in the middle of six
    holed = batches(tmp_path / "holed.safetensors", range(6 * ranks), blank=blank)
    whole = batches(tmp_path / "whole.safetensors", [r for r in range(6 * ranks) if r not in blank])
    job = make_job(tmp_path, holed, max_steps=6, loss_normalization=normalization)
    out, other = tmp_path / "holed", tmp_path / "whole"
    said = ""
    for steps in (4, 6):
        result = training.train(job, str(out), ranks=ranks, strategy=strategy, sets=[f"training.max_steps={steps}"])
        assert result.code == 0, result
        said += result.err
    assert said.count("no row of its batch has a target: the weights stay as they are") == 1 and "train: step 3: no row" in said, said
    assert training.train(job, str(other), ranks=ranks, strategy=strategy, sets=[f"data.train={whole}", "training.max_steps=4"]).code == 0
    assert training.hash_of(out) == training.hash_of(other)
    rows = [r for r in rows_of(out) if "loss" in r]
    targets = ranks * (LENGTH - 1)
    assert [r["targets"] for r in rows] == [targets, targets, 0, 0, targets, targets]
    assert [r.get("steps_without_targets") for r in rows] == [None, None, 1, 2, 2, 2]
    assert [r["loss"] is None and r["grad_norm"] is None for r in rows] == [False, False, True, True, False, False]
    assert [r["loss"] for r in rows if r["targets"] > 0] == [r["loss"] for r in rows_of(other) if "loss" in r]
    assert "step 3/4 75% loss none lr" in said and "nan" not in said.lower()


def test_a_rank_without_targets_is_named_once(tmp_path):
    """Under local_mean it halves loss and gradient; the mean over targets needs no word."""
    odd = batches(tmp_path / "odd.safetensors", range(8), blank=range(1, 8, 2))
    job = make_job(tmp_path, odd, max_steps=4)
    for normalization, count in (("local_mean", 1), ("global_tokens", 0)):
        result = training.train(job, str(tmp_path / normalization), sets=[f"training.loss_normalization={normalization}"])
        assert result.code == 0 and result.err.count("train: step 1: rank 1 has no target in a micro-batch") == count, result
    accumulated = training.train(job, str(tmp_path / "micro"), ranks=1, sets=["training.gradient_accumulation_steps=2"])
    assert accumulated.err.count("train: step 1: rank 0 has no target in a micro-batch") == 1, accumulated


def test_evaluation_without_targets_has_no_number(tmp_path):
    data, none = batches(tmp_path / "data.safetensors", range(4)), batches(tmp_path / "none.safetensors", range(4), blank=range(4))
    job = make_job(tmp_path, data, max_steps=4, eval_every_n_steps=2)
    out = tmp_path / "none"
    said = train(job, "--output_dir", out, "--set", f"data.val={none}")
    assert said.count(f"train: data.val: {none}: none of the labels is a target, so it gives no loss\n") == 1, said
    assert [r["val_loss"] for r in rows_of(out) if "val_loss" in r] == [None, None]
    assert "step 4/4 val loss none\n" in said and "nan" not in said.lower()
    half = batches(tmp_path / "half.safetensors", range(4), blank=range(2))
    for limit, number in ((2, False), (0, True)):  # of what was looked at
        out = tmp_path / f"half-{limit}"
        train(job, "--output_dir", out, "--set", f"data.val={half}", "--set", f"training.eval_batches={limit}")
        assert all((r["val_loss"] is not None) == number for r in rows_of(out) if "val_loss" in r)


def test_rows_of_one_token_have_no_targets(tmp_path):
    path = tmp_path / "one.safetensors"
    head = json.dumps({"input_ids": {"dtype": "I32", "shape": [4, 1], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + struct.pack("<4i", 1, 2, 3, 4))
    job = make_job(tmp_path, str(path), max_steps=1)
    said = train("--plan", job, "--set", "data.sequence_length=1", code=2)
    assert "none of the labels is a target" in said
