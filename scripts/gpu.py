#!/usr/bin/env python3
"""Tests and figures that need a real GPU.   scripts/gpu.py test [--tool memcheck]   scripts/gpu.py bench [--seconds N]

Needs the tree, nvcc and the libraries that are found at run time. Results are JSON lines in build/gpu/results.jsonl ($OUT/results.jsonl where OUT is set),
each with the device; `bench` leaves out what is there already, so a run that was cut short goes on, and begins nothing new after N seconds (default 450).
Exit code 77: no GPU.
"""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
OUT = os.environ.get("OUT") or os.path.join(BUILD, "gpu")
RESULTS = os.path.join(OUT, "results.jsonl")
UNIT = ["test_cuda_kernels", "test_cuda_attention", "test_cuda_dnn", "test_cuda_graph", "test_cuda_train"]
# name, layers, heads, channels, micro-batch: GPT-2 at 1024 tokens, the batches of the twin (tests/peers/models.py)
STEPS = [("124M", 12, 12, 768, 64), ("350M", 24, 16, 1024, 32), ("774M", 36, 20, 1280, 32), ("1558M", 48, 25, 1600, 24)]
MEMORY_GIB = {"124M": 40, "350M": 60, "774M": 100, "1558M": 120}


def device():
    try:
        p = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if p.returncode != 0 or not p.stdout.strip():
        return None
    name, driver, memory = [x.strip() for x in p.stdout.splitlines()[0].split(",")]
    return {"device": name, "driver": driver, "memory_mib": int(memory)}


class Results:
    def __init__(self, gpu):
        os.makedirs(OUT, exist_ok=True)
        self.gpu, self.known = gpu, {}
        if os.path.exists(RESULTS):
            for line in open(RESULTS):
                row = json.loads(line)
                if row.get("device") == gpu["device"]:
                    self.known[row["case"]] = row

    def add(self, case, **values):
        row = {"case": case, "date": time.strftime("%Y-%m-%d"), **self.gpu, **values}
        print(json.dumps(row), flush=True)
        with open(RESULTS, "a") as f:
            f.write(json.dumps(row) + "\n")
        self.known[case] = row


def make(*targets):
    p = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", *targets], cwd=ROOT, capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"gpu: the build failed:\n{p.stderr[-4000:]}")


def test(results, tool):
    make("programs", "tools", *[os.path.join("build/gpu", x) for x in UNIT])
    checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"] if tool else []
    failed = 0
    commands = [(x, checker + [os.path.join(BUILD, "gpu", x)], {}) for x in UNIT]
    if not tool:
        commands.append(("test_softgpu", ["scripts/test.sh", "test_softgpu"], {"DTRUN_GPU": "1", "B": "build", "SAN": ""}))
    for name, command, env in commands:
        begin = time.time()
        p = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True)
        ok = p.returncode == 0
        failed += not ok
        results.add(f"test {name}" + (f" {tool}" if tool else ""), passed=ok, seconds=round(time.time() - begin, 1))
        if not ok:
            print((p.stdout + p.stderr)[-6000:], flush=True)
    print(f"{len(commands) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def kernels(results, dtype):
    make("programs")
    p = subprocess.run([os.path.join(BUILD, "bin", "bench"), "kernels", "--device=cuda", f"--dtype={dtype}"], capture_output=True, text=True)
    rows = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    results.add(f"kernels {dtype}", rows=rows, error=p.stderr[-500:] if p.returncode else None)


def shard(folder):
    path = os.path.join(folder, "train.bin")
    if not os.path.exists(path):
        r, count = random.Random(1), 4 << 20
        with open(path, "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            f.write(struct.pack(f"<{count}H", *[r.randrange(50257) for _ in range(count)]))
    return path


def step(results, size, precision, graphs="auto", of=""):
    name, layers, heads, channels, batch = size
    folder = os.path.join(BUILD, "gpu", f"step-{name}-{precision}{of}".replace(" ", "-"))
    os.makedirs(folder, exist_ok=True)
    job = {"model": {"name": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": channels, "n_positions": 1024, "vocab_size": 50304},
           "data": {"train": shard(os.path.join(BUILD, "gpu")), "sequence_length": 1024},
           "training": {"batch_size_per_gpu": batch, "max_steps": 60, "learning_rate": 1e-4, "weight_decay": 0.1, "device": "cuda", "precision": precision,
                        "cuda_graphs": graphs},
           "checkpointing": {"save_every_n_steps": 0}, "logging": {"log_every_n_steps": 1}}
    with open(os.path.join(folder, "job.json"), "w") as f:
        json.dump(job, f)
    out = os.path.join(folder, "run")
    begin = time.time()
    p = subprocess.run([os.path.join(BUILD, "bin", "train"), os.path.join(folder, "job.json"), "--output_dir", out, "--fresh"], capture_output=True, text=True)
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))] if os.path.exists(os.path.join(out, "metrics.jsonl")) else []
    rates = [r["tokens_per_s"] for r in rows if r.get("step", 0) > 32 and "tokens_per_s" in r]  # by then auto has chosen between graphs and none
    events = [json.loads(line) for line in open(os.path.join(out, "events.jsonl"))] if os.path.exists(os.path.join(out, "events.jsonl")) else []
    results.add(f"step gpt2 {name} {precision}{of}", tokens_per_s=statistics.median(rates) if rates else None, batch=batch, seconds=round(time.time() - begin, 1),
                memory_bytes=rows[-1].get("memory_bytes") if rows else None, graphs=[e for e in events if e["event"] == "cuda_graphs"],
                loss=rows[-1].get("loss") if rows else None, error=p.stderr[-600:] if p.returncode else None)


def twin(results, name):
    p = subprocess.run([sys.executable, os.path.join(ROOT, "tests/peers/step_gpu.py"), "--model", "gpt2", "--size", f"{name}-gpu", "--compile", "default"],
                       capture_output=True, text=True)
    line = next((x for x in reversed(p.stdout.splitlines()) if x.startswith("{")), None)
    results.add(f"twin gpt2 {name}", result=json.loads(line) if line else None, error=p.stderr[-600:] if p.returncode else None)


def bench(results, seconds):
    until, gpu_gib = time.time() + seconds, results.gpu["memory_mib"] / 1024
    cases = [(f"kernels {d}", lambda d=d: kernels(results, d)) for d in ("bf16", "fp32")]
    for s in STEPS:
        if gpu_gib < MEMORY_GIB[s[0]]:
            continue
        cases.append((f"step gpt2 {s[0]} bf16-mixed", lambda s=s: step(results, s, "bf16-mixed")))
        cases.append((f"twin gpt2 {s[0]}", lambda s=s: twin(results, s[0])))
    for batch in (1, 4):  # small enough for the host to be in the way
        for graphs in (False, True):
            of = f" batch {batch} graphs {'on' if graphs else 'off'}"
            cases.append((f"step gpt2 124M bf16-mixed{of}", lambda b=batch, g=graphs, of=of: step(results, (*STEPS[0][:4], b), "bf16-mixed", g, of)))
    make("programs")
    left = [c for c in cases if c[0] not in results.known]
    for i, (case, run) in enumerate(left):
        if time.time() > until:
            print(f"gpu: time is over; {len(left) - i} of {len(cases)} cases are left: start again to go on")
            return 0
        run()
    print(f"gpu: all {len(cases)} cases are in {RESULTS}")
    return 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["test", "bench"])
    ap.add_argument("--tool", choices=["memcheck", "racecheck", "synccheck", "initcheck"])
    ap.add_argument("--seconds", type=float, default=450)
    a = ap.parse_args()
    gpu = device()
    if gpu is None:
        print("gpu: no GPU is here (nvidia-smi names none)")
        return 77
    results = Results(gpu)
    return test(results, a.tool) if a.what == "test" else bench(results, a.seconds)


sys.exit(main())
