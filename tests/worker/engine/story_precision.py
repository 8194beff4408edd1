# covers: worker/engine/trainer_scale.c worker/engine/trainer_finite.c worker/engine/precision.c worker/engine/scaler.c worker/checkpoints/manifest.c
"""Precisions from the command line: fp16 with a loss scale that overflows at first, on one rank alone, and for ever; a run that goes on in the
middle of it; 16 bits without masters.
run: timeout 300
"""

import json
import re
import struct
import subprocess

import pytest
import support
import training

FP16 = "training.precision=16-mixed"
STEPS = 10
# Gradients of these models are near 1: the first steps overflow, and then the scale is below 2^17.
HIGH = [FP16, "loss_scaling.initial_scale_power=21", "loss_scaling.growth_interval=4", "training.warmup_steps=3",
        "training.learning_rate=3e-3"]
DEEPSPEED = ["loss_scaling.algorithm=deepspeed", "loss_scaling.hysteresis=1", "loss_scaling.loss_scale_window=3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    return folder, training.make_job(folder, steps=STEPS, training={"max_grad_norm": 0.5}, logging={"log_every_n_steps": 1},
                                     checkpointing={"save_every_n_steps": 5})


def run(job, out, ranks, row, sets):
    result = training.train(job, out, ranks=ranks, strategy=row, sets=sets)
    assert result.code == 0, result
    return training.hash_of(out)


def manifest(out, step):
    with open(out / "checkpoints" / f"step-{step:08}" / "manifest.json") as f:
        return json.load(f)


@pytest.mark.parametrize("scaler", [[], DEEPSPEED])
def test_overflows_are_skipped_by_all(place, scaler):
    """The scale falls by half at each overflow and grows later; the rate stands still meanwhile; every strategy has the same bits."""
    folder, job = place
    for ranks in (1, 2, 3):
        seen = {}
        for row in ("ddp", "full_shard", "zero2")[: max(ranks, 2)]:
            out = folder / f"skip-{len(scaler)}-{row}-{ranks}"
            seen[row] = run(job, out, ranks, row, [*HIGH, *(scaler or ["loss_scaling.algorithm=torch"])])
            scale, rate, norm = (training.metrics(out, key) for key in ("loss_scale", "lr", "grad_norm"))
            skipped = [s for s in range(1, STEPS + 1) if norm[s] is None]
            assert skipped[:2] == [1, 2] and len(skipped) < STEPS - 3, (norm, scale)
            assert scale[1] == 2.0**21 and scale[2] == 2.0**20 and scale[3] == 2.0**19
            assert rate[1] == rate[2] == rate[3], rate  # no step was made
            for s in range(1, STEPS):
                assert scale[s + 1] == scale[s] / 2 if s in skipped else scale[s + 1] in (scale[s], scale[s] * 2), (s, scale)
            assert training.metrics(out, "steps_skipped")[STEPS] == len(skipped)
            kept = manifest(out, STEPS)
            assert kept["loss_scale"]["skipped"] == len(skipped) and kept["optimizer_steps"] == STEPS - len(skipped)
        assert len(set(seen.values())) == 1, seen


def test_a_run_goes_on_with_its_scale(place):
    """Stopped in the middle of what the scale counts: the rest is the same bits, whatever the first scale would be now."""
    folder, job = place
    sets = [*HIGH, "training.lr_scheduler_type=constant_with_warmup"]
    whole = run(job, folder / "whole", 2, "zero2", sets)
    out = folder / "parts"
    run(job, out, 2, "zero2", [*sets, f"training.max_steps={STEPS // 2}"])
    state = manifest(out, STEPS // 2)["loss_scale"]
    assert state["skipped"] > 0 and state["skipped_samples"] > 0 and state["scale"] < 2.0**21
    assert run(job, out, 2, "zero2", [*sets, "loss_scaling.initial_scale_power=3"]) == whole
    assert training.metrics(out, "loss_scale") == training.metrics(folder / "whole", "loss_scale")


def test_the_least_scale_ends_the_run(place):
    folder, job = place
    out = folder / "least"
    result = training.train(job, out, ranks=2, strategy="zero3",
                            sets=[FP16, *DEEPSPEED, "loss_scaling.initial_scale_power=40", "loss_scaling.min_loss_scale=549755813888"],
                            options=["--max_restarts=0"], restarts=None)
    assert result.code != 0
    words = str(result)
    assert re.search(r"step 2: a gradient is not finite, and the loss scale is at its least, 549755813888; lower training\.learning_rate", words), words
    assert re.search(r"not finite: (transformer\.)?(wte|wpe|h\.\d|ln_f)", words), words
    assert training.metrics(out, "loss_scale")[1] == 2.0**40, "all digits"


def test_a_scale_that_stays_too_high(place):
    """Each step is skipped, and no scale falls: the end says so."""
    folder, job = place
    result = training.train(job, folder / "fixed", ranks=2, sets=[FP16, "loss_scaling.loss_scale=1e30"])
    assert result.code == 0 and f"train: {STEPS} of {STEPS} steps changed no weight: a gradient was beyond fp16" in result.err, result


def write_images(path, samples, huge):
    """Images of 2 x 4 x 4 in three classes; one of them has a pixel beyond fp16."""
    pixels = [[(i * 7 + j * 3) % 11 / 11 - 0.5 for j in range(32)] for i in range(samples)]
    pixels[huge][5] = 3e5
    labels = [i % 3 for i in range(samples)]
    data = struct.pack(f"<{samples}q", *labels) + b"".join(struct.pack("<32f", *p) for p in pixels)
    header = {"labels": {"dtype": "I64", "shape": [samples], "data_offsets": [0, 8 * samples]},
              "pixel_values": {"dtype": "F32", "shape": [samples, 2, 4, 4], "data_offsets": [8 * samples, len(data)]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_an_overflow_of_one_rank(tmp_path):
    """One rank's batch holds a pixel of infinity in fp16: nobody makes that step, and later ones go on; in order, so all know which."""
    write_images(tmp_path / "train.safetensors", 36, huge=13)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "mlp", "num_channels": 2, "image_size": 4, "hidden_size": 8, "last_hidden_size": 8, "num_labels": 3},
        "data": {"train": str(tmp_path / "train.safetensors"), "shuffle": False},
        "training": {"batch_size_per_gpu": 2, "max_steps": 6, "learning_rate": 1e-2, "threads": 1},
        "checkpointing": {"save_every_n_steps": 6}, "logging": {"log_every_n_steps": 1}}))
    for ranks, step in ((2, 4), (3, 3)):
        seen = set()
        for row in ("ddp", "full_shard", "zero1"):
            out = tmp_path / f"{row}-{ranks}"
            seen.add(run(job, out, ranks, row, [FP16, "loss_scaling.algorithm=torch"]))
            loss, scale = training.metrics(out), training.metrics(out, "loss_scale")
            assert [s for s in loss if loss[s] is None] == [step], loss
            assert all(scale[s] == (65536 if s <= step else 32768) for s in scale), scale
        assert len(seen) == 1


@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_an_overflow_moves_no_running_statistics(tmp_path, precision):
    """They would be infinite from then on, and so would each evaluation."""
    write_images(tmp_path / "train.safetensors", 36, huge=13)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "resnet", "num_channels": 2, "image_size": 4, "num_labels": 3, "embedding_size": 5, "hidden_sizes": [8], "depths": [1], "layer_type": "basic",
                  "stem": "small"},
        "data": {"train": str(tmp_path / "train.safetensors"), "shuffle": False},
        "training": {"batch_size_per_gpu": 2, "max_steps": 6, "learning_rate": 1e-2, "threads": 1, "precision": precision},
        "checkpointing": {"save_every_n_steps": 1, "keep_last_n": 0}, "logging": {"log_every_n_steps": 1}}))
    out = tmp_path / "out"
    assert training.train(job, out, ranks=2).code == 0
    loss = training.metrics(out)
    assert [s for s in loss if loss[s] is None] == [4], loss
    assert training.hash_of(out / "checkpoints/step-00000003") == training.hash_of(out / "checkpoints/step-00000004")
    header, data = training.read_tensors(out / "model/model.safetensors")
    for name in (n for n in header if "running_" in n):
        begin, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "F32" and all(abs(x) < 1e3 for x in struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])), name


@pytest.fixture(scope="module")
def steep(place):
    """A folder of many layers whose embedding is 0: its loss is finite, and each norm multiplies the gradient by 1e9."""
    folder, job = place
    sizes = {"name": "llama", "num_hidden_layers": 12, "rms_norm_eps": 1e-18, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16, "vocab_size": 256,
             "max_position_embeddings": 16, "tie_word_embeddings": False}
    first = training.make_job(folder, name="steep.json", steps=1, training={"warmup_steps": 0})
    with open(first) as f:
        values = json.load(f)
    values["model"] = sizes
    with open(first, "w") as f:
        json.dump(values, f)
    run(first, folder / "steep", 1, "auto", [])
    path = folder / "steep" / "model" / "model.safetensors"
    header, data = training.read_tensors(path)
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[:begin] + bytes(end - begin) + data[end:])
    values["model"] = {"load": str(folder / "steep" / "model")}
    with open(first, "w") as f:
        json.dump(values, f)
    return first


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("ranks, row", [(1, "auto"), (2, "ddp"), (3, "full_shard"), (3, "zero1")])
def test_a_gradient_is_named(tmp_path, steep, precision, ranks, row):
    """All ranks name the same tensors, and the first rank that holds one."""
    result = training.train(steep, tmp_path / "out", ranks=ranks, strategy=row, sets=[f"training.precision={precision}"], restarts=None)
    assert result.code == 100, result
    said = re.search(r"rank (\d) .*: step 1: a gradient is not finite; lower training\.learning_rate or look at the data; not finite: (\S+)", result.err)
    assert said and said[2].startswith("model.embed_tokens.weight"), result
    assert " more; " in result.err or ranks == 1 and " more" in result.err, result


def test_64_true(place):
    """The same mathematics in fp64, on a CPU."""
    folder, job = place
    for ranks in (1, 2):
        run(job, folder / f"32-{ranks}", ranks, "zero2", [])
        run(job, folder / f"64-{ranks}", ranks, "zero2", ["training.precision=64"])
        single, double = (training.metrics(folder / f"{bits}-{ranks}") for bits in (32, 64))
        assert single != double and all(abs(single[s] - double[s]) < 1e-5 * double[s] for s in single), (single, double)


def test_a_gpu_refuses_fp64(place):
    _, job = place
    words = "64-true is computed on a CPU alone; write 32-true, or training.device"
    args = [support.program("train"), job, "--plan", "--set", "training.precision=64-true", "--set", "training.device=cuda"]
    p = subprocess.run(args, capture_output=True, text=True)
    assert p.returncode == 2 and p.stderr.count("\n") == 1 and words in p.stderr, p


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-true", "16-true"])
def test_16_bits_learn(place, precision):
    """Near fp32 at first, and the plan knows what is not there: without masters, a weight and its state take 2 and 4 bytes."""
    folder, job = place
    run(job, folder / f"exact-{precision}", 2, "zero1", [])
    exact = training.metrics(folder / f"exact-{precision}")
    out = folder / f"learn-{precision}"
    run(job, out, 2, "zero1", [f"training.precision={precision}", "training.gradient_accumulation_steps=1"])
    loss = training.metrics(out)
    assert all(abs(loss[s] - exact[s]) < 0.02 * exact[s] for s in exact), (loss, exact)
    assert loss[STEPS] < loss[1]


def test_a_plan_without_masters(place):
    _, job = place

    def bytes_of(*sets):
        args = [support.program("train"), job, "--plan", "--json", *(x for s in sets for x in ("--set", s))]
        return json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)["bytes"]

    full, mixed, low = (bytes_of(f"training.precision={p}") for p in ("32-true", "16-mixed", "16-true"))
    assert mixed["weights"] * 2 == full["weights"] == low["weights"] * 2
    assert mixed["optimizer"] * 2 == full["optimizer"] * 3  # masters, and two moments
    assert low["optimizer"] * 2 == full["optimizer"]
