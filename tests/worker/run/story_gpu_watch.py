# covers: worker/run base/gpu launcher/query
"""What a job says of its GPUs: on the software GPU, with a driver's library that says what a test wants (tests/softgpu/nvml.c). What is wrong is one line with
the right code before or in the middle of a run, errors that the driver tells end a rank that would wait, and --status and the metrics show how GPUs are.
run: nosan: what a job says is the same in all builds
run: timeout 300
"""

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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpuwatch")
    return training.software_gpu_place(folder, steps=3, model=MODEL, data={"sequence_length": 16},
                                       training={"device": "cuda", "warmup_steps": 0, "batch_size_per_gpu": 1, "eval_every_n_steps": 0, "eval_batches": 1},
                                       logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 100000})


def begin(place, out, nvml=(), ranks=2, sets=(), options=("--max_restarts=0",), **env):
    folder, job = place
    said = folder / f"{out}.nvml"
    said.write_text("\n".join([*nvml, "count 2"]) + "\n")
    args = [f"--nproc_per_node={ranks}", *options, "train", job, "--output_dir", folder / out, *[x for s in ["training.collectives=peer", *sets] for x in ("--set", s)]]
    env = {"COLUMNS": "400", "LD_LIBRARY_PATH": NVML, "SOFTGPU_NVML": str(said), "SOFTGPU_DEVICES": "2", "CUDA_VISIBLE_DEVICES": None, **env}
    return support.Job(args, env=env, executable=str(folder / "bin" / "dtrun")), said


def finish(started):
    result = started.finish(timeout_s=120)
    started.wait_gone()
    return result


def cause(result):
    """The line that says why, in the report or, where nothing was started, alone."""
    lines = [line for line in result.err.splitlines() if line.startswith(("dtrun: host ", "train: ")) and "(first seen)" not in line]
    lines = [line for line in lines if "exit code" in line or line.startswith("train: training.") or line.startswith("train: plan")]
    assert len(lines) == 1, result
    return lines[0]


@pytest.mark.parametrize("nvml, env, code, words", [
    ([], {"CUDA_VISIBLE_DEVICES": ""}, 2, ["0 GPUs visible (CUDA_VISIBLE_DEVICES=)", "use training.device=cpu"]),
    ([], {"CUDA_VISIBLE_DEVICES": "0,0"}, 2, ["(CUDA_VISIBLE_DEVICES=0,0: 0 is named twice, then none is seen); correct or unset that, or use training.device=cpu"]),
    ([], {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, 2, ["1 GPU visible (CUDA_VISIBLE_DEVICES=MIG-1,MIG-2); a process sees one part of a GPU: give each rank its own with"]),
    ([], {"CUDA_VISIBLE_DEVICES": "1"}, 2, ["2 ranks on this host and 1 GPU visible (CUDA_VISIBLE_DEVICES=1); start fewer (--nproc_per_node=1)"]),
    ([], {"CUDA_VISIBLE_DEVICES": "0,7"}, 100, ["2 ranks on this host and 1 GPU visible (CUDA_VISIBLE_DEVICES=0,7)"]),
    (["1.late 15"], {"SOFTGPU_DEVICES": "1"}, 100, ["2 ranks on this host and 1 GPU;", "GPU 1 of this host (nvidia-smi's number) is lost: it fell off the bus"]),
    (["1.processes 1:5000000000"], {"SOFTGPU_FAIL": "cudaSetDevice:46:0:1"}, 111,
     ["GPU 1 (software GPU, bus 0000:02:00.0)", "cudaErrorDevicesUnavailable", "another program has it for itself", "it is used by pid 1 "]),
    ([], {"SOFTGPU_FAIL": "cudaSetDevice:2:0:1"}, 111, ["GPU 1", "others hold so much of its memory that nothing can start there"]),
    ([], {"SOFTGPU_FAIL": "cudaGetDeviceCount:803"}, 100, ["cudaErrorSystemDriverMismatch", "reboot, or reload the driver's module"]),
])
def test_what_is_wrong_is_one_line(place, nvml, env, code, words):
    started, _ = begin(place, "wrong", nvml, options=("--max_restarts=0", "--permanent_exit_codes=100") if code == 100 else ("--max_restarts=0",), **env)
    with started:
        result = finish(started)
    line = cause(result)
    assert all(word in line for word in words), result
    assert result.code == (1 if code == 111 else code) and (code == 2 or f"exit code {code}" in line), result


def wait_for_step(started, said, ranks, step, then):
    training.wait_pages(started, ranks, step)
    with open(said, "a") as f:
        f.write(then + "\n")


@pytest.mark.parametrize("event, words", [
    ("event 1.79", "Xid 79 (fell off the bus)"),
    ("event 1.0", "double-bit error of memory (ECC)"),
])
def test_an_error_that_ends_a_gpu_ends_its_rank(place, event, words):
    started, said = begin(place, "lost", ["1.serial 1650124"], sets=["training.max_steps=1000000"])
    with started:
        wait_for_step(started, said, 2, 1, event)
        result = finish(started)
    line = cause(result)
    assert "rank 1 " in line and "exit code 111: GPU 1 (software GPU, bus 0000:02:00.0): " + words in line and "serial number 1650124" in line, result
    assert result.code == 1, result


@pytest.mark.parametrize("events", ["", "1.events 0"])
def test_a_gpu_that_is_lost_without_an_event_ends_its_rank(place, events):
    started, said = begin(place, "gone" + events[:1], [events], sets=["training.max_steps=1000000"])
    with started:
        wait_for_step(started, said, 2, 1, "1.late 15")
        result = finish(started)
    line = cause(result)
    assert "rank 1 " in line and "exit code 111: GPU 1 (software GPU, bus 0000:02:00.0): lost: it fell off the bus; reboot the host" in line, result
    assert result.code == 1, result


PART = "0.uuid1 MIG-736f6674-6770-7500-0000-000000000000"  # of the software GPU: it is what rank 0 computes on


@pytest.mark.parametrize("event, ends", [("0.48.7", False), ("0.0", False), ("0.95.7", False), ("0.95.8", True), ("0.119", True)])
def test_errors_of_a_part_that_mig_cut(place, event, ends):
    """Rank 0 has part 1, which is GPU instance 8."""
    started, said = begin(place, "part" + event, ["0.mig 1", "0.parts 2", PART], ranks=1, sets=["training.max_steps=1000000" if ends else "training.max_steps=60"])
    with started:
        wait_for_step(started, said, 1, 1, "event " + event)
        result = finish(started)
    assert result.code == ends, result
    assert not ends or "exit code 111: GPU 0 (software GPU, bus 0000:01:00.0): Xid " in cause(result), result
    assert ends or ".7" not in event or "Xid" not in result.err, result


def test_errors_of_programs_are_said_and_end_nothing(place):
    started, said = begin(place, "told", sets=["training.max_steps=60"])
    with started:
        wait_for_step(started, said, 2, 1, "event 0.31")
        result = finish(started)
    assert result.code == 0 and "Xid 31 (a kernel used an address that is not there (MMU fault))" in result.err, result


def test_the_driver_says_why_a_call_failed(place):
    started, said = begin(place, "why", ["0.serial 77", "event 0.74"], ranks=1, sets=["training.max_steps=1000000"], SOFTGPU_FAIL="cudaEventQuery:719:3000")
    with started:
        result = finish(started)
    line = cause(result)
    assert re.search(r"exit code 111: (products: )?(device|copy|compute): GPU 0 \(software GPU, bus 0000:01:00\.0\): .*a kernel failed", line), line
    assert "; serial number 77; the driver says: Xid 74 (NVLink error)" in line, result


def test_who_waits_for_the_drivers_word_is_still_the_cause(place):
    """The driver says nothing, and the other rank has noticed by then and is gone."""
    started, _ = begin(place, "waits", sets=["training.max_steps=1000000"], SOFTGPU_FAIL="cudaEventQuery:719:3000:1")
    with started:
        result = finish(started)
    assert re.search(r"rank 1 .*exit code 111: .*GPU 1 \(software GPU, bus 0000:02:00\.0\): .*a kernel failed", cause(result)), result


def test_status_and_metrics_show_gpus(place):
    nvml = ["0.busy 87", "0.used 4294967296", "0.throttle 0x24", "0.clock 1200", "1.busy 5", "1.temperature 81", "1.mig 999"]
    started, said = begin(place, "shown", nvml, sets=["training.max_steps=1000000"])
    run_id = None
    with started:
        wait_for_step(started, said, 2, 3, "")
        deadline = time.monotonic() + support.DEADLINE_S
        while True:
            shown = support.run(["--status", "--json"])
            jobs = [j for j in map(json.loads, shown.out.splitlines()) if str(place[0] / "shown") in json.dumps(j)]
            gpus = {r["rank"]: r.get("gpu") for j in jobs for r in j["ranks"]}
            if len(gpus) == 2 and all(gpus.values()):
                break
            assert time.monotonic() < deadline and started.process.poll() is None, shown
            time.sleep(0.1)
        run_id = jobs[0]["run_id"]
        text = support.run(["--status", run_id])
        metrics = [json.loads(line) for line in open(place[0] / "shown" / "metrics.jsonl")]
    assert gpus[0] == {"bus": "0000:01:00.0", "busy": 0.87, "memory_bytes": 2**32, "memory_total_bytes": 2**33, "clock_mhz": 1200, "clock_max_mhz": 1980,
                       "temperature": 40, "power_w": 120, "slowed_by": "power limit, heat"}, shown
    assert gpus[1]["bus"] == "0000:02:00.0" and gpus[1]["temperature"] == 81 and gpus[1]["slowed_by"] == "", shown
    row = [line.split() for line in text.out.splitlines() if "0000:01:00.0" in line]
    assert len(row) == 1 and row[0][:6] == ["0", "0000:01:00.0", "87%", "4.0", "GiB", "of"] and max(map(len, text.out.splitlines())) <= 80, text
    flops = 6 * (256 * 32 + 12 * 32**2 + 13 * 32 + 2 * 32) + 6 * 32 * 16  # of a token, as docs/gpu.md counts
    peak = 2 * 4 * 256 * 1.98e9  # two software GPUs of 4 multiprocessors each
    assert all(abs(m["mfu"] / (m["tokens_per_s"] * flops / peak) - 1) < 0.01 for m in metrics if m.get("tokens_per_s")), metrics[-1]
    assert any(m.get("gpu_busy") == 0.87 and m["gpu_clock_mhz"] == 1200 and m["gpu_slowed_by"] == "power limit, heat" for m in metrics), metrics[-1]


def test_a_driver_that_hangs_holds_nobody_up(place):
    started, _ = begin(place, "hangs", ["hang 1"])
    with started:
        result = finish(started)
    assert result.code == 0, result


def test_cpus_near_the_gpu(place):
    started, _ = begin(place, "near", options=("--max_restarts=0", "--numa_binding=node"))
    with started:
        result = finish(started)
    assert result.code == 2 and "--numa_binding: GPU 0: " in result.err and "0000:01:00.0" in result.err, result  # no such card in this machine's /sys
    started, _ = begin(place, "far", sets=["training.device=cpu"], options=("--max_restarts=0", "--numa_binding=node"))
    with started:
        result = finish(started)
    assert result.code == 0, result
