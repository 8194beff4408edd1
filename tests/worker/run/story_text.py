# covers: worker/engine/text_bytes.c worker/data/data.c worker/checkpoints/origin.c worker/run/trainer_origin.c worker/run/model_source.c worker/run/prompt.c
"""From text to text: a tokenizer makes shards, a model trains on them, is judged per byte of text, writes samples, and leaves a folder with its tokenizer."""

import json
import math
import os
import shutil
import subprocess

import pytest

import models
import support

TOKENIZERS = os.path.join(support.ROOT, "tests/golden/tokenizers")
LENGTH = 32


def run(program, *args, code=0, **keys):
    r = subprocess.run([support.program(program), *map(str, args)], capture_output=True, text=True, timeout=120, **keys)
    assert r.returncode == code, r
    return r


@pytest.fixture(scope="module", params=["gpt2", "llama2"])
def place(request, tmp_path_factory):
    """(folder, job as a dict): gpt2 has a ByteLevel decoder, llama2 byte tokens and a mark for spaces."""
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(f"{TOKENIZERS}/{request.param}", folder / "tok")
    docs = sorted(os.path.join(support.ROOT, "docs", f) for f in os.listdir(os.path.join(support.ROOT, "docs")) if f.endswith(".md"))
    end = {"gpt2": "<|endoftext|>", "llama2": "</s>"}[request.param]
    run("dtdata", "tokenize", "--tokenizer", folder / "tok", "--end", end, "--val", 0.1, "-o", folder / "shards", *docs[:6])
    return folder, {
        "model": {"name": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": LENGTH, "vocab_size": 768},
        "data": {"train": f"{folder}/shards/train-*.bin", "val": f"{folder}/shards/val-*.bin", "sequence_length": LENGTH, "tokenizer": str(folder / "tok")},
        "training": {"batch_size_per_gpu": 4, "max_steps": 6, "learning_rate": 1e-3, "threads": 1},
        "logging": {"sample_every_n_steps": 6}, "generation": {"prompt": ["The launcher"], "max_new_tokens": 8},
        "output_dir": str(folder / "run")}


def write(path, job):
    path.write_text(json.dumps(job))
    return path


def text_bytes(folder):
    """Bytes of the texts in the shards of val that are targets: all but the first id, in whole samples."""
    ids = []
    for path in sorted((folder / "shards").glob("val-*.bin")):
        raw = path.read_bytes()[1024:]
        ids += [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]
    count = (len(ids) - 1) // LENGTH * LENGTH
    with open(folder / "tok/tokenizer.json") as f:
        file = json.load(f)
    special = {t["id"] for t in file["added_tokens"] if t["special"]}
    tokens = {i: t for t, i in file["model"]["vocab"].items()}
    gpt2 = file["decoder"]["type"] == "ByteLevel"

    def size(i):
        t = tokens[i]
        return 0 if i in special else len(t) if gpt2 else 1 if t.startswith("<0x") and len(t) == 6 else len(t.replace("▁", " ").encode())
    return sum(size(i) for i in ids[1 : count + 1]), count


def test_bits_per_byte(place):
    """The loss per byte of text, on any number of ranks; another tokenizer of the same name is refused."""
    folder, job = place
    path = write(folder / "job.json", job)
    run("train", path)
    size, targets = text_bytes(folder)
    for ranks in (1, 3):
        got = json.loads(run("dtrun", f"--nproc_per_node={ranks}", "train", "--evaluate", folder / "run", path).stdout)
        assert math.isclose(got["val_bits_per_byte"], got["val_loss"] / math.log(2) * targets / size, rel_tol=1e-6), (got, size, targets)
    last = [m for m in models.metrics(folder / "run") if "val_loss" in m][-1]
    assert math.isclose(last["val_bits_per_byte"], got["val_bits_per_byte"], rel_tol=1e-6)
    shutil.copytree(folder / "tok", folder / "other")
    text = (folder / "other/tokenizer.json").read_text()
    (folder / "other/tokenizer.json").write_text(text + "\n")
    other = write(folder / "other.json", {**job, "data": {**job["data"], "tokenizer": str(folder / "other")}, "output_dir": str(folder / "none")})
    assert f"data.tokenizer: {folder}/other is another one than tok of " in run("train", other, code=2).stderr


def test_samples_and_the_folder(place):
    """Samples are text. The exported folder, the run and the checkpoint have the tokenizer, wherever the run's folder is then."""
    folder, job = place
    path = write(folder / "job2.json", {**job, "output_dir": str(folder / "run2")})
    run("train", path)
    [sample] = [m["samples"][0] for m in models.metrics(folder / "run2") if "samples" in m]
    assert sample["text"].startswith("The launcher"), sample
    assert (folder / "run2/model/tokenizer.json").read_bytes() == (folder / "tok/tokenizer.json").read_bytes()
    moved = folder / "moved"
    shutil.move(folder / "run2", moved)
    shutil.move(folder / "tok", folder / "away")
    try:
        rows = [json.loads(run("train", "--generate", where, "--prompt", "The launcher", "--max_new_tokens", 8, "--json").stdout)
                for where in (moved, moved / "checkpoints", moved / "model")]
    finally:
        shutil.move(folder / "away", folder / "tok")
    assert all(r["text"] == sample["text"] and r["ids"] == sample["ids"] for r in rows), (rows, sample)
