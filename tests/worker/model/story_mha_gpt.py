# covers: worker/model/models/mha_gpt.c worker/model/blocks/encoder_layer.c worker/data/tokens.c worker/data/tensors.c worker/run/generate.c
"""mha-gpt as whole jobs: the same bits under each strategy and whatever is computed again, with mask and shift and without; in bf16;
from checkpoints and folders; and a program of PyTorch's modules (tests/peers/mha_gpt.py; scripts/setup.sh --peers) loads what a run
leaves, with the same loss and the same continuations."""

import glob
import json
import math
import os
import shutil
import struct
import subprocess

import dropin
import pytest
import training

import support
from models import metrics, text_shards, train, weights_hash

SIZES = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32}
REFERENCE = {"causal": False, "shift_labels": False}
PEER = os.path.join(support.ROOT, "tests/peers/mha_gpt.py")
GPU_TRAIN = os.path.join(support.BUILD, "softgpu", "train")
FOLDER = os.path.join(support.ROOT, "tests/golden/models/mha-gpt/hf")


def ask(*questions):
    """What the program of PyTorch's modules answers."""
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(q) + "\n" for q in questions), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return text_shards(tmp_path_factory.mktemp("data"))


def make_job(folder, shards, **model):
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "mha-gpt", **SIZES, **model},
        "data": {"train": shards, "sequence_length": 32},
        "training": {"batch_size_per_gpu": 2, "max_steps": 4, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_grad_norm": 1.0,
                     "threads": 1},
        "checkpointing": {"save_every_n_steps": 2},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def write_rows(path, **tensors):
    """Rows of integers, by name, as a safetensors file."""
    head, data = {}, b""
    for name, rows in tensors.items():
        raw = b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows)
        head[name] = {"dtype": "I32", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return str(path)


def generate(path, *options):
    return subprocess.run([support.program("train"), "--generate", str(path), *options], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("switches", [{}, REFERENCE, {"causal": False}, {"initializer_range": 0.02}], ids=["plain", "reference", "unmasked", "normal"])
def test_same_bits_under_each_strategy(tmp_path, shards, switches):
    job = make_job(tmp_path, shards, **switches)
    train(job, tmp_path / "ddp", 2, "training.strategy=ddp")
    train(job, tmp_path / "sliced", 2, "training.strategy=full_shard", "activation_checkpointing.enabled=true")
    train(job, tmp_path / "zero", 2, "training.strategy=zero1", "activation_checkpointing.enabled=true", "activation_checkpointing.level=mlp")
    losses = metrics(tmp_path / "ddp", "loss")
    for other in ("sliced", "zero"):
        assert weights_hash(tmp_path / "ddp") == weights_hash(tmp_path / other)
        assert losses == metrics(tmp_path / other, "loss")
    assert losses[3] < losses[0]
    if "initializer_range" in switches:
        assert losses[0] == pytest.approx(math.log(256), rel=0.05)


def test_the_switches_change_the_loss(tmp_path, shards):
    """From the same first weights."""
    first = []
    for causal in (True, False):
        for shift in (True, False):
            out = tmp_path / f"{causal}-{shift}"
            train(make_job(tmp_path, shards, causal=causal, shift_labels=shift), out, 1, "training.max_steps=1")
            first.append(metrics(out, "loss")[0])
    assert len({round(x, 6) for x in first}) == 4, first


def test_half_precision(tmp_path, shards):
    job = make_job(tmp_path, shards)
    train(job, tmp_path / "wide", 2)
    for strategy in ("ddp", "zero3"):
        train(job, tmp_path / strategy, 2, f"training.strategy={strategy}", "training.precision=bf16-mixed")
    assert weights_hash(tmp_path / "ddp") == weights_hash(tmp_path / "zero3")
    assert metrics(tmp_path / "ddp", "loss") == pytest.approx(metrics(tmp_path / "wide", "loss"), rel=1e-2)


def test_checkpoints_and_folders(tmp_path, shards):
    """A run that was cut, on other ranks, ends as the whole one; its folder begins another run; a folder's model keeps its switches."""
    job = make_job(tmp_path, shards, **REFERENCE)
    train(job, tmp_path / "whole", 2, "training.strategy=zero2")
    train(job, tmp_path / "cut", 2, "training.strategy=ddp", "training.max_steps=2")
    train(job, tmp_path / "cut", 2, "training.strategy=full_shard")
    assert weights_hash(tmp_path / "cut") == weights_hash(tmp_path / "whole")
    config = json.loads((tmp_path / "whole/model/config.json").read_text())
    assert config["model_type"] == "mha-gpt" and not config["causal"] and not config["shift_labels"]
    again = tmp_path / "again.json"
    again.write_text(json.dumps({"model": {"load": str(tmp_path / "whole/model")}, "data": {"train": shards, "sequence_length": 32},
                                 "training": {"batch_size_per_gpu": 2, "max_steps": 1, "learning_rate": 0.0}, "logging": {"log_every_n_steps": 1}}))
    train(str(again), tmp_path / "again", 1)
    assert metrics(tmp_path / "again", "loss")[0] < metrics(tmp_path / "whole", "loss")[0]
    done = train(str(again), tmp_path / "other", 1, "model.causal=true", check=False)
    assert done.returncode != 0 and "model.causal" in done.stderr


def test_labels_of_their_own(tmp_path):
    """Of a file of tensors, unshifted: labels that are the ids give the loss of no labels, and other labels another."""
    ids, losses = [[(b * 37 + t * t) % 256 for t in range(16)] for b in range(4)], {}
    others = [[(i + 1) % 256 for i in row] for row in ids]
    for name, tensors in (("none", {}), ("ids", {"labels": ids}), ("others", {"labels": others})):
        data = write_rows(tmp_path / f"{name}.safetensors", input_ids=ids, **tensors)
        train(make_job(tmp_path, data, **REFERENCE), tmp_path / name, 1, "training.max_steps=1", "data.sequence_length=16", "data.shuffle=false")
        losses[name] = metrics(tmp_path / name, "loss")[0]
    assert losses["none"] == losses["ids"] != losses["others"]


def test_labels_of_token_shards(tmp_path, shards):
    """Unshifted, a token is its own label: the loss of the shard's first rows as a file of tensors."""
    with open(sorted(glob.glob(shards))[0], "rb") as f:
        stream = struct.unpack("<64H", f.read()[1024:1024 + 128])
    rows = write_rows(tmp_path / "rows.safetensors", input_ids=[stream[:32], stream[32:]])
    for name, data in (("shards", shards), ("rows", rows)):
        train(make_job(tmp_path, data, **REFERENCE), tmp_path / name, 1, "training.max_steps=1", "data.shuffle=false")
    assert metrics(tmp_path / "shards", "loss") == metrics(tmp_path / "rows", "loss")


def test_who_writes(tmp_path):
    """A causal model continues prompts; others say why not."""
    done = generate(FOLDER, "--prompt_ids", "5,6,7", "--max_new_tokens", "3", "--json")
    assert done.returncode == 0, done.stderr
    for key in REFERENCE:
        folder = tmp_path / key
        folder.mkdir()
        with open(f"{FOLDER}/config.json") as f:
            (folder / "config.json").write_text(json.dumps({**json.load(f), key: False}))
        os.symlink(f"{FOLDER}/model.safetensors", folder / "model.safetensors")
        done = generate(folder, "--prompt_ids", "5,6,7")
        assert done.returncode != 0 and f"the model is a mha-gpt with {key} false, which writes no text" in done.stderr + done.stdout


@pytest.mark.skipif(not os.path.exists(GPU_TRAIN), reason="built without the CUDA toolkit's headers")
@pytest.mark.parametrize("switches", [{}, REFERENCE], ids=["plain", "reference"])
def test_on_a_gpu(tmp_path, shards, switches):
    """The software GPU: the losses of the CPU, in fp32 and near them in bf16."""
    for name, path in (("dtrun", support.program("dtrun")), ("train", GPU_TRAIN)):  # `train` is the worker that lies beside dtrun
        shutil.copy2(path, tmp_path / name)
    job, gpu = make_job(tmp_path, shards, **switches), ["training.device=cuda", "training.share_gpu=true", "training.collectives=peer"]
    train(job, tmp_path / "cpu", 2)
    for precision, near in (("fp32", 2e-5), ("bf16-mixed", 1e-2)):
        train(job, tmp_path / precision, 2, *gpu, f"training.precision={precision}", "training.strategy=full_shard", dtrun=str(tmp_path / "dtrun"))
        assert metrics(tmp_path / precision, "loss") == pytest.approx(metrics(tmp_path / "cpu", "loss"), rel=near)


@pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_pytorch_loads_the_folder(tmp_path, shards):
    """With the same loss and greedy continuations; a new model begins with the deviations that PyTorch's has."""
    ids, questions = [[(i * 29 + b * 5) % 256 for i in range(12)] for b in range(2)], []
    data = write_rows(tmp_path / "data.safetensors", input_ids=ids)
    for name, switches in (("plain", {}), ("reference", REFERENCE)):
        train(make_job(tmp_path, shards, **switches), tmp_path / name, 1, "training.max_steps=3")
        again = tmp_path / "again.json"
        again.write_text(json.dumps({"model": {"load": str(tmp_path / name / "model")}, "data": {"train": data, "sequence_length": 12, "shuffle": False},
                                     "training": {"batch_size_per_gpu": 2, "max_steps": 1, "learning_rate": 0.0}, "logging": {"log_every_n_steps": 1}}))
        train(str(again), tmp_path / f"{name}-again", 1)
        questions.append({"folder": str(tmp_path / name / "model"), "ids": ids, "new": 8 if name == "plain" else 0})
    train(make_job(tmp_path, shards), tmp_path / "begin", 1, "training.max_steps=1", "training.learning_rate=0")
    plain, reference, begin = ask(*questions, {"begin": SIZES})
    assert metrics(tmp_path / "plain-again", "loss")[0] == pytest.approx(plain["loss"], rel=1e-6)
    assert metrics(tmp_path / "reference-again", "loss")[0] == pytest.approx(reference["loss"], rel=1e-6)
    done = generate(tmp_path / "plain/model", "--prompt_ids", ",".join(map(str, ids[0])), "--max_new_tokens", "8", "--temperature", "0", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["ids"] == plain["ids"], done
    header, data = training.read_tensors(tmp_path / "begin/model/model.safetensors")
    assert set(header) - {"__metadata__"} == set(begin)
    for tensor, (_, deviation, most) in begin.items():
        first, last = header[tensor]["data_offsets"]
        values = struct.unpack(f"<{(last - first) // 4}f", data[first:last])
        mean = sum(values) / len(values)
        assert math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) == pytest.approx(deviation, rel=0.35, abs=1e-6), tensor
        assert max(map(abs, values)) == pytest.approx(most, rel=0.5, abs=1e-6), tensor
