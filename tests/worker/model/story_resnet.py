# covers: worker/model/models/resnet.c worker/model/blocks/resnet_layer.c worker/model/blocks/convolution.c worker/engine/strategy.c
"""Model resnet under the trainer: as PyTorch under DDP and with SyncBatchNorm, the same bits under each strategy, running
statistics in checkpoints and in what is exported."""

import json
import os
import shutil
import struct
import subprocess

import pytest

import support
from models import metrics, train, weights_hash

GOLDEN = os.path.join(support.ROOT, "tests/golden/resnet")
STEPS, RANKS = 10, 2
GPU_TRAIN = os.path.join(support.BUILD, "softgpu", "train")
FORMATS = {"F32": "f", "I64": "q"}


def read(path):
    """{name: (dtype, shape, values)} of a safetensors file."""
    with open(path, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, x in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = x["data_offsets"]
            letter = FORMATS[x["dtype"]]
            out[name] = x["dtype"], x["shape"], struct.unpack(f"<{(end - begin) // struct.calcsize(letter)}{letter}", raw[8 + size + begin:8 + size + end])
    return out


def write(path, tensors):
    head, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def expected(case):
    with open(f"{GOLDEN}/{case}/expected.json") as f:
        return json.load(f)


def samples(folder, case, ranks):
    """Files of training samples, in the order in which that many ranks take them, and of the first batch of rank 0."""
    batches = read(f"{GOLDEN}/{case}/batches.safetensors")
    _, shape, images = batches["images"]
    labels = batches["labels"][2]
    batch, size = shape[2], shape[3] * shape[4] * shape[5]
    order = [(s * RANKS + r) * batch + b for s in range(STEPS) for b in range(batch) for r in range(ranks)]
    for name, rows in (("train", order), ("val", range(batch))):
        write(f"{folder}/{name}.safetensors", {
            "pixel_values": ("F32", [len(rows)] + shape[3:], [x for i in rows for x in images[i * size:(i + 1) * size]]),
            "labels": ("I64", [len(rows)], [labels[i] for i in rows])})
    return batch, shape[4:]


def make_job(folder, case="basic", ranks=1, **sections):
    batch, (height, width) = samples(folder, case, ranks)
    o = expected(case)["optimizer"]
    job = {
        "model": {"load": f"{GOLDEN}/{case}/hf", "image_size": height, "image_width": width},
        "data": {"train": f"{folder}/train.safetensors", "val": f"{folder}/val.safetensors", "shuffle": False},
        "training": {"batch_size_per_gpu": batch, "max_steps": STEPS, "learning_rate": o["lr"], "lr_scheduler_type": "constant",
                     "weight_decay": o["weight_decay"], "max_grad_norm": 0, "threads": 1},
        "optimizer": {"name": "sgd", "momentum": o["momentum"]},
        "logging": {"log_every_n_steps": 1},
    }
    for section, values in sections.items():
        job[section] = {**job.get(section, {}), **values}
    path = os.path.join(str(folder), "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


@pytest.mark.parametrize("case, run, ranks, sync, strategy", [
    ("bottleneck", "one_rank", 1, "false", "single_device"), ("bottleneck", "ddp_2_ranks", 2, "false", "ddp"),
    ("basic", "sync_2_ranks", 2, "true", "ddp"), ("bottleneck", "sync_2_ranks", 2, "true", "full_shard")])
def test_as_pytorch(tmp_path, case, run, ranks, sync, strategy):
    """Losses, norms, the evaluation by running statistics; and the exported folder has PyTorch's tensors."""
    want = expected(case)["runs"][run]
    train(make_job(tmp_path, case, ranks), tmp_path / "run", ranks, f"training.sync_batch_norm={sync}", f"training.strategy={strategy}")
    lines = metrics(tmp_path / "run")
    assert [m["loss"] for m in lines if "loss" in m] == pytest.approx(want["fp64"]["loss"], rel=2e-5)
    assert [m["grad_norm"] for m in lines if "loss" in m] == pytest.approx(want["fp64"]["grad_norm"], rel=1e-3)
    assert [m["val_loss"] for m in lines if "val_loss" in m] == pytest.approx([want["fp64"]["eval_loss_rank0_step0_batch"]], rel=1e-4)
    model, begun = read(tmp_path / "run/model/model.safetensors"), read(f"{GOLDEN}/{case}/hf/model.safetensors")
    assert {n: x[:2] for n, x in model.items()} == {n: x[:2] for n, x in begun.items()}
    for name, x in want["after"]["10"].items():
        assert model[name][2][:8] == pytest.approx(x["head"], rel=1e-4, abs=1e-4), name
        if name.endswith("num_batches_tracked"):
            assert model[name][2] == (STEPS,)


def test_an_evaluation_that_is_not_finite_is_said(tmp_path):
    """A running variance below 0 gives NaN, which is no set without targets."""
    shutil.copytree(f"{GOLDEN}/basic/hf", tmp_path / "hf")
    tensors = read(tmp_path / "hf/model.safetensors")
    name = next(n for n in tensors if n.endswith("running_var"))
    dtype, shape, values = tensors[name]
    write(tmp_path / "hf/model.safetensors", {**tensors, name: (dtype, shape, [-1 - v for v in values])})
    job = make_job(tmp_path)
    r = subprocess.run([support.program("train"), "--evaluate", str(tmp_path / "hf"), job], check=False, capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and json.loads(r.stdout)["val_loss"] is None, r
    assert r.stderr.count("the loss of data.val is not finite: look at the model's weights and buffers") == 1 and "val loss none" not in r.stderr, r


def test_same_bits_under_each_strategy(tmp_path):
    """Also of a run that ends half-way and goes on under another strategy; its running statistics are there again."""
    job = make_job(tmp_path, ranks=2)
    hashes, losses = set(), set()
    for strategy in ["ddp", "zero1", "zero2", "full_shard"]:
        out = tmp_path / strategy
        train(job, out, 2, f"training.strategy={strategy}", "training.sync_batch_norm=true")
        hashes.add(weights_hash(out))
        losses.add(tuple(m[k] for m in metrics(out) for k in ("loss", "val_loss") if k in m))
    train(job, tmp_path / "half", 2, "training.strategy=full_shard", "training.sync_batch_norm=true", "training.max_steps=4")
    train(job, tmp_path / "half", 2, "training.strategy=zero2", "training.sync_batch_norm=true")
    assert len(losses) == 1 and hashes == {weights_hash(tmp_path / "half")}


@pytest.mark.parametrize("case, sync", [("basic", "true"), ("bottleneck", "false")])
def test_same_bits_at_each_level(tmp_path, case, sync):
    """What backward computes again changes memory alone: running statistics move once, and no statistic is sent again."""
    job = make_job(tmp_path, case, ranks=2, logging={"log_every_n_steps": 1, "timeline_steps": [1, 1]})
    hashes, losses, buffers, sent = set(), set(), set(), set()
    activations = {}
    for level, layers in (("none", 1), ("selective", 1), ("mlp", 1), ("block", 2), ("block", 1)):
        out = tmp_path / f"{level}-{layers}"
        train(job, out, 2, f"training.sync_batch_norm={sync}", "training.strategy=full_shard",
              "training.max_steps=3", "activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}",
              f"activation_checkpointing.checkpoint_every_n_layers={layers}")
        hashes.add(weights_hash(out))
        losses.add(tuple(m[k] for m in metrics(out) for k in ("loss", "val_loss") if k in m))
        model = read(out / "model/model.safetensors")
        buffers.add(tuple(model[n][2] for n in sorted(model) if "running" in n or "tracked" in n))
        plan = subprocess.run([support.program("train"), str(out / "job.json"), "--plan", "--json", "--nproc", "2"], check=True,
                              capture_output=True, text=True, cwd=support.ROOT)
        activations[level, layers] = json.loads(plan.stdout.splitlines()[-1])["bytes"]["activations"]
        with open(out / "timeline-rank-1.json") as f:
            sent.add(sum(e.get("name") == "moments of batch norms" for e in json.load(f)["traceEvents"]))
    assert len(hashes) == len(losses) == len(buffers) == len(sent) == 1
    assert all(x == (3,) for x in next(iter(buffers)) if len(x) == 1 and isinstance(x[0], int))
    sizes = list(activations.values())
    assert sizes[0] > sizes[1] == sizes[2] > sizes[4] and sizes[1] > sizes[3] > sizes[4], activations


def test_together_is_one_batch(tmp_path):
    """Two ranks with statistics together train as one rank with the batch of both."""
    job = make_job(tmp_path, ranks=2)
    batch = expected("basic")["batch"]
    train(job, tmp_path / "two", 2, "training.sync_batch_norm=true")
    train(job, tmp_path / "one", 1, f"training.batch_size_per_gpu={2 * batch}")
    losses = [[m["loss"] for m in metrics(tmp_path / x) if "loss" in m] for x in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)
    one, two = (read(tmp_path / x / "model/model.safetensors") for x in ("one", "two"))
    for name in (n for n in one if "running" in n):
        assert one[name][2] == pytest.approx(two[name][2], rel=1e-4, abs=1e-5), name


def test_bf16(tmp_path):
    """Losses are near those of fp32."""
    want = expected("basic")["runs"]["one_rank"]["fp64"]["loss"]
    train(make_job(tmp_path), tmp_path / "run", 1, "training.precision=bf16-mixed", "training.max_steps=3")
    assert [m["loss"] for m in metrics(tmp_path / "run") if "loss" in m] == pytest.approx(want[:3], rel=0.05)


@pytest.mark.skipif(not os.path.exists(GPU_TRAIN), reason="built without the CUDA toolkit's headers")
@pytest.mark.parametrize("ranks, run, sync", [(1, "one_rank", "false"), (2, "sync_2_ranks", "true")])
def test_on_a_gpu(tmp_path, monkeypatch, ranks, run, sync):
    """The software GPU: the same numbers, with CUDA graphs where no collective is within a layer, and convolutions by cuDNN, chosen once
    for all ranks."""
    want = expected("bottleneck")["runs"][run]["fp64"]["loss"]
    for name, path in (("dtrun", support.program("dtrun")), ("train", GPU_TRAIN)):  # `train` is the worker that lies beside dtrun
        shutil.copy2(path, tmp_path / name)
    monkeypatch.setenv("SOFTGPU_CUDNN_EXACT", "1")  # the other engine of the fake cuDNN rounds to TF32, so F32 must leave it out
    monkeypatch.setenv("DTRUN_CONVOLUTION", "cudnn")
    monkeypatch.setenv("DTRUN_CACHE", str(tmp_path / "cache"))
    job = make_job(tmp_path, "bottleneck", ranks, training={"device": "cuda", "share_gpu": True, "max_steps": 4})
    hashes = set()
    for level in ("none", "block"):
        r = train(job, tmp_path / level, ranks, f"training.sync_batch_norm={sync}", "training.cuda_graphs=true", "training.collectives=peer",
                  "activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}", dtrun=str(tmp_path / "dtrun"))
        assert ("train: 14 convolutions measured" in r.stderr) == (level == "none"), r.stderr
        assert "kernels of our own" not in r.stderr, r.stderr
        hashes.add(weights_hash(tmp_path / level))
    assert len(hashes) == 1
    assert [m["loss"] for m in metrics(tmp_path / "none") if "loss" in m] == pytest.approx(want[:4], rel=2e-5)


@pytest.mark.skipif(not os.path.exists(GPU_TRAIN), reason="built without the CUDA toolkit's headers")
def test_same_bits_on_a_gpu(tmp_path, monkeypatch):
    """The software GPU in BF16: strategies that overwrite gradients, and those that clear them and add, have the same engines of cuDNN."""
    for name, path in (("dtrun", support.program("dtrun")), ("train", GPU_TRAIN)):
        shutil.copy2(path, tmp_path / name)
    monkeypatch.setenv("DTRUN_CONVOLUTION", "cudnn")
    monkeypatch.setenv("DTRUN_CACHE", str(tmp_path / "cache"))
    job = make_job(tmp_path, "basic", 2, training={"device": "cuda", "share_gpu": True, "max_steps": 2, "precision": "bf16-mixed", "collectives": "peer"})
    hashes = set()
    for strategy in ("ddp", "full_shard"):
        r = train(job, tmp_path / strategy, 2, f"training.strategy={strategy}", dtrun=str(tmp_path / "dtrun"))
        assert ("convolutions measured" in r.stderr) == (strategy == "ddp"), r.stderr
        hashes.add(weights_hash(tmp_path / strategy))
    assert len(hashes) == 1


@pytest.mark.parametrize("choice, count", [("true", 2), ("false", 0)])
def test_broadcast_buffers(tmp_path, choice, count):
    """Rank 0's buffers go to all ranks before each step, once for its micro-steps."""
    job = make_job(tmp_path, ranks=2, logging={"timeline_steps": [1, 2]}, data={"val": None})
    train(job, tmp_path / "run", 2, f"training.broadcast_buffers={choice}", "training.max_steps=2", "training.gradient_accumulation_steps=2")
    with open(tmp_path / "run/timeline-rank-1.json") as f:
        events = json.load(f)["traceEvents"]
    assert sum(e.get("name") == "buffers" for e in events) == count


def test_from_the_exported_folder(tmp_path):
    """A run that begins with what another one exported evaluates to the same loss, and counts batches on."""
    job = make_job(tmp_path, training={"max_steps": 3})
    train(job, tmp_path / "first")
    with open(tmp_path / "first/model/config.json") as f:
        config = json.load(f)
    assert config["architectures"] == ["ResNetForImageClassification"] and len(config["id2label"]) == 5
    train(job, tmp_path / "second", 1, f"model.load={tmp_path}/first/model", "training.max_steps=1", "training.learning_rate=0")
    name = "resnet.embedder.embedder.normalization.num_batches_tracked"
    assert read(tmp_path / "second/model/model.safetensors")[name] == ("I64", [], (4,))


def test_new_model(tmp_path):
    """A small stem, random weights: the loss falls."""
    sections = {"model": {"load": None, "name": "resnet", "image_size": 24, "image_width": None, "embedding_size": 8, "hidden_sizes": [8, 16],
                          "depths": [1, 1], "layer_type": "basic", "stem": "small", "num_labels": 5},
                "training": {"num_epochs": 10, "max_steps": -1, "learning_rate": 0.02}}
    r = train(make_job(tmp_path, **sections), tmp_path / "run")
    assert (r.stdout + r.stderr).count("Transformers' ResNet has no such stem") == 1
    losses = [m["loss"] for m in metrics(tmp_path / "run") if "loss" in m]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    with open(tmp_path / "run/model/config.json") as f:
        config = json.load(f)
    assert config["depths"] == [1, 1] and config["stem"] == "small" and config["model_type"] == "resnet"


@pytest.mark.parametrize("key, value, text", [
    ("hidden_act", "gelu", 'hidden_act: is "gelu"; must be relu'),
    ("depths", [2, 2], "2 depths and 3 hidden_sizes; give one of each per stage"),
    ("depths", [2, 2, 0], "depths: is [2, 2, 0]; must be a list of 1 to 32 whole numbers from 1 to 1000"),
    ("layer_type", "bottle", 'layer_type: is "bottle"; must be one of: basic, bottleneck')])
def test_refuses(tmp_path, key, value, text):
    folder = tmp_path / "hf"
    shutil.copytree(f"{GOLDEN}/basic/hf", folder)
    with open(folder / "config.json") as f:
        config = json.load(f)
    with open(folder / "config.json", "w") as f:
        json.dump({**config, key: value}, f)
    done = train(make_job(tmp_path, model={"load": str(folder)}), tmp_path / "run", check=False)
    assert done.returncode != 0 and text in done.stderr
