# covers: worker/engine kernels/cuda
# run: computes
"""Memory of GPUs, on the software GPU: what is planned is what is held, within a hundredth; what does not fit is said before anything is computed, with what
to change, and that then fits; memory that others hold is theirs.
run: nosan: figures of memory are the same in all builds
run: timeout 300
"""

import functools
import json
import os
import re
import time

import pytest
import support
import training
from support import TOOLS

TRAIN = os.path.join(support.BUILD, "softgpu", "train")
NVML = os.path.join(TOOLS, "nvml")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN) or not os.path.exists(NVML), reason="built without the CUDA toolkit's headers, or without tools")
MODEL = {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 256}
WIDE = ["model.n_layer=2", "model.n_embd=192", "model.n_head=2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpumemory")
    return training.software_gpu_place(folder, steps=4, model=MODEL, data={"sequence_length": 16},
                                       training={"device": "cuda", "warmup_steps": 0, "batch_size_per_gpu": 2, "eval_every_n_steps": 0, "eval_batches": 1},
                                       logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 100000})


def begin(place, out, nvml=None, ranks=1, sets=(), **env):
    folder, job = place
    if nvml is not None:
        said = folder / f"{out}.nvml"
        said.write_text("\n".join([*nvml, "count 2"]) + "\n")
        env = {"LD_LIBRARY_PATH": NVML, "SOFTGPU_NVML": str(said), **env}
    args = [f"--nproc_per_node={ranks}", "--max_restarts=0", "train", job, "--output_dir", folder / out, *[x for s in ["training.collectives=peer", *sets] for x in ("--set", s)]]
    return support.Job(args, env={"COLUMNS": "600", "SOFTGPU_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None, **env}, executable=str(folder / "bin" / "dtrun"))


def run(*args, **rest):
    with begin(*args, **rest) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    return result


@pytest.mark.parametrize("ranks, sets", [
    (1, []), (1, WIDE), (1, [*WIDE, "training.precision=bf16-mixed", "activation_checkpointing.enabled=true"]), (2, WIDE),
    (2, [*WIDE, "training.strategy=full_shard"]),
    (1, [*WIDE, "model.n_layer=6", "training.batch_size_per_gpu=16", "offload.activations=cpu", "activation_checkpointing.level=none", "activation_checkpointing.enabled=true"]),
    (2, [*WIDE, "training.strategy=full_shard", "offload.optimizer=cpu", "offload.parameters=cpu", "offload.portion=65536"]),
])
def test_what_is_planned_is_held(place, ranks, sets):
    out = "held-" + re.sub(r"\W+", "-", f"{ranks}{sets}")
    result = run(place, out, ranks=ranks, sets=sets)
    assert result.code == 0, result
    events = [json.loads(line) for line in open(place[0] / out / "events.jsonl")]
    memory = [e for e in events if e["event"] == "memory"]
    assert len(memory) == 1 and abs(memory[0]["planned_bytes"] / memory[0]["measured_bytes"] - 1) < 0.01, memory
    last = [m for m in map(json.loads, open(place[0] / out / "metrics.jsonl")) if "memory_bytes" in m][-1]
    assert last["memory_bytes"] == memory[0]["measured_bytes"] > 2**25, (last, memory)  # a stream's work memory alone is 32 MiB


LEVELS = ["none", "cheap", "mlp", "block"]
TALL = ["model.n_layer=2", "model.n_embd=64", "training.batch_size_per_gpu=32", "training.max_steps=1"]


def plan(place, name, sets, total_bytes):
    """(JSON, text) of the plan for a GPU of that size."""
    folder, job = place
    said = folder / f"{name}.nvml"
    said.write_text(f"count 1\n0.total {total_bytes}\n")
    options = [x for s in sets for x in ("--set", s)]
    seen = [support.run([job, "--plan", *form, *options], executable=str(folder / "bin" / "train"), env={"LD_LIBRARY_PATH": NVML, "SOFTGPU_NVML": str(said)})
            for form in (["--json"], [])]
    assert all(s.code == 0 for s in seen), seen
    return json.loads(seen[0].out), seen[1].out


@pytest.fixture(scope="module")
def just_fits(place):
    """MiB of a GPU on which each level is just chosen: 90 % of it, less 512 MiB, are more than its plan."""
    least = {}
    for level in LEVELS:
        planned, text = plan(place, "sizes", [*TALL, "activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}"], 2**33)
        assert planned["activation_checkpointing"] == level and "level" not in text, text
        least[level] = -int(-((sum(planned["bytes"].values()) - planned["bytes"]["staging"] + 2**29) / 0.9) // 2**20)
    assert sorted(least, key=least.get, reverse=True) == LEVELS and len(set(least.values())) == len(LEVELS), least
    return least


@functools.cache
def at_a_given_level(place, ranks):
    out = f"given-{ranks}"
    result = run(place, out, ranks=ranks, sets=[*TALL, "training.share_gpu=true", "activation_checkpointing.enabled=true", "activation_checkpointing.level=cheap"])
    assert result.code == 0 and "activation_checkpointing: level" not in result.err, result
    return training.hash_of(place[0] / out)


@pytest.mark.parametrize("wish, fits, less, ranks, expected", [
    ([], "none", 0, 1, "none"),
    ([], "none", 1, 1, "cheap"),
    ([], "block", 1, 1, "cheap"),
    (["activation_checkpointing.level=auto"], "cheap", 0, 1, "cheap"),
    (["activation_checkpointing.enabled=true", "activation_checkpointing.level=auto"], "cheap", 1, 1, "mlp"),
    (["activation_checkpointing.level=auto"], "block", 1, 1, "block"),
    (["training.share_gpu=true"], "none", 0, 2, "none"),
    (["training.share_gpu=true"], "none", 1, 2, "cheap"),
])
def test_the_level_follows_from_the_gpus_memory(place, just_fits, wish, fits, less, ranks, expected):
    """The run and --plan say which, why, and that the plan is that of the level; in fp32 the bits are those of any level."""
    mib, out = just_fits[fits] - less, f"level-{'-'.join(wish)}-{fits}-{less}-{ranks}".replace("=", "-")
    result = run(place, out, ranks=ranks, sets=[*TALL, *wish], SOFTGPU_DEVICES="1", SOFTGPU_MEMORY_MB=str(mib * ranks))
    assert result.code == 0, result
    events = [e for e in map(json.loads, open(place[0] / out / "events.jsonl")) if e["event"] == "activation_checkpointing"]
    assert len(events) == 1 and events[0]["level"] == expected and events[0]["memory_bytes"] == mib * 2**20, events
    assert result.err.count(f"activation_checkpointing: level {expected}: the plan takes ") == 1, result
    assert training.hash_of(place[0] / out) == at_a_given_level(place, ranks)
    if ranks == 1:
        planned, text = plan(place, out, [*TALL, *wish], mib * 2**20)
        assert planned["activation_checkpointing"] == expected and f"level {expected}: the plan takes " in text, text
        in_json = sum(planned["bytes"].values()) - planned["bytes"]["staging"]  # without gaps
        assert 0.99 < in_json / events[0]["planned_bytes"] <= 1, (planned, events)


def test_a_cpu_keeps_its_level(place):
    folder, job = place
    for wish in ([], ["activation_checkpointing.level=auto"]):
        sets = [*TALL, *wish, "training.device=cpu"]
        result = support.run([job, "--plan", "--json", *[x for s in sets for x in ("--set", s)]], executable=str(folder / "bin" / "train"))
        assert json.loads(result.out)["activation_checkpointing"] == "cheap", result


def test_what_does_not_fit_is_said_and_the_advice_fits(place):
    big = ["model.n_layer=2", "model.n_embd=128", "training.batch_size_per_gpu=64", "training.max_steps=1"]
    result = run(place, "small", sets=big, SOFTGPU_MEMORY_MB="56")
    said = [line for line in result.err.splitlines() if "exit code 100: plan: 1 rank on this GPU needs " in line and line.startswith("dtrun: host")]
    assert result.code == 100 and len(said) == 1 and "activations " in said[0] and "memory of the GPU is " in said[0], result
    assert not (place[0] / "small" / "checkpoints").exists(), result
    advice = re.search(r"fits with (training\.batch_size_per_gpu=\d+), (training\.gradient_accumulation_steps=\d+) \(", said[0])
    assert advice, said[0]
    result = run(place, "advised", sets=[*big, *advice.groups()], SOFTGPU_MEMORY_MB="56")
    assert result.code == 0, result


def test_what_can_never_fit_is_said_before_the_start(place):
    result = run(place, "never", nvml=["0.total 9000000", "1.total 9000000"], sets=[*WIDE, "training.batch_size_per_gpu=64"])
    lines = result.err.splitlines()
    assert result.code == 2 and len(lines) == 1 and lines[0].startswith("train: plan: 1 rank on this GPU needs ") and "memory of the GPU is 8.6 MiB" in lines[0], result


def test_the_hosts_memory_does_not_bound_a_gpu(place):
    sets = ["model.n_embd=16384", "model.n_layer=96", "model.n_head=128"]  # terabytes
    result = run(place, "host", sets=[*sets, "training.device=cpu"])
    assert result.code == 2 and "on this host needs" in result.err, result
    folder, job = place
    said = folder / "host.nvml"
    said.write_text(f"count 1\n0.total {2**45}\n")
    args = [job, "--plan", *[x for s in sets for x in ("--set", s)]]
    result = support.run(args, executable=str(folder / "bin" / "train"), env={"LD_LIBRARY_PATH": NVML, "SOFTGPU_NVML": str(said)})
    assert result.code == 0 and "a GPU holds all but staging" in result.out, result


def test_memory_that_a_program_holds(place, tmp_path):
    held = tmp_path / "held"
    held.write_text("8150")
    result = run(place, "taken", nvml=["0.processes 1:8545894400"], sets=WIDE, SOFTGPU_HELD=str(held))
    said = [line for line in result.err.splitlines() if "exit code 111: " in line and line.startswith("dtrun: host")]
    assert result.code == 1 and len(said) == 1, result
    assert re.search(r"memory: GPU 0 \(software GPU, bus 0000:01:00.0\): the plan needs .* MiB, free are .*, the rest is held by others; it is used by pid 1 8.0 GiB",
                     said[0]), result


@pytest.mark.parametrize("more_mib, code", [(30, 1), (80, 0)])
def test_room_for_what_libraries_take_later(place, tmp_path, more_mib, code):
    """A 128th of the GPU, 64 MiB of 8 GiB, beyond what the job and CUDA hold by then."""
    out, held = f"room-{more_mib}", tmp_path / "held"
    held.write_text("0")
    assert run(place, out, sets=WIDE, SOFTGPU_HELD=str(held)).code == 0
    events = [json.loads(line) for line in open(place[0] / out / "events.jsonl")]
    used = next(e["measured_bytes"] for e in events if e["event"] == "memory")
    held.write_text(str(8192 - more_mib - int(used) // 2**20 - 1))
    result = run(place, out + "-held", nvml=["0.processes 1:1000000000"], sets=WIDE, SOFTGPU_HELD=str(held))
    assert result.code == code and (code == 0 or "the rest is held by others; it is used by pid 1 " in result.err), result


def test_memory_of_an_ended_program_is_waited_for(place, tmp_path):
    held = tmp_path / "held"
    held.write_text("8150")
    with begin(place, "ended", nvml=[], sets=[*WIDE, "training.max_steps=1"], SOFTGPU_HELD=str(held)) as started:
        time.sleep(3)
        assert started.process.poll() is None
        assert not (place[0] / "ended" / "metrics.jsonl").exists()
        held.unlink()
        result = started.finish(timeout_s=60)
        started.wait_gone()
    assert result.code == 0, result
