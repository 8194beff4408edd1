"""Shared by stories about `train`: a little text, a tiny job, hashes, the pages of running
workers."""

import json
import mmap
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess

import support

PHASES = ["none", "start", "forward", "backward", "step", "evaluation", "save", "exit"]
with open(os.path.join(support.ROOT, "base/page.c")) as page_source:
    PAGE_VERSION = int(re.search(r"VERSION = (\d+)", page_source.read()).group(1))
PHASE_AT, STEP_AT, ORDER_AT = 48, 40, 16  # base/page.h

# fsync is slow while the file exists, so that a test can act during a save; with SLOW_DISK_ONLY only of files whose paths have that in them.
SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void wait_for(const char *name, int fd)
{
    const char *path = getenv(name), *only = getenv("SLOW_DISK_ONLY");
    char link[64], file[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (only && (readlink(link, file, sizeof file - 1) < 0 || !strstr(file, only))) {
        return;
    }
    for (int i = 0; path && i < 1200 && access(path, F_OK) == 0; i++) {
        usleep(100000);
    }
}
int fsync(int fd)
{
    wait_for("SLOW_DISK", fd);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
int fdatasync(int fd)
{
    wait_for("SLOW_DISK", fd);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"""


def slow_disk(folder):
    """(gate, library): a library for LD_PRELOAD that needs the gate's path in SLOW_DISK. fsync is
    slow while the gate exists."""
    source, library = os.path.join(str(folder), "slow.c"), os.path.join(str(folder), "slow.so")
    with open(source, "w") as f:
        f.write(SLOW_DISK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return pathlib.Path(str(folder)) / "slow", library


def make_data(folder, seed=1, files=12):
    """Shards of made-up text with held-out files; returns the folder."""
    text, out = os.path.join(str(folder), "text"), os.path.join(str(folder), "shards")
    if os.path.exists(out):
        return out
    os.makedirs(text)
    r = random.Random(seed)
    words = ["".join(r.choice("abcdefghij") for _ in range(r.randint(1, 7))) for _ in range(200)]
    for i in range(files):
        with open(os.path.join(text, f"{i}.txt"), "w") as f:
            for _ in range(120):
                f.write(" ".join(r.choice(words) for _ in range(8)) + ".\n")
    subprocess.run([support.program("dtdata"), "tokenize", "--holdout", "0.2", "-o", out, text], check=True, capture_output=True)
    return out


def read_tensors(path):
    """(header, data) of a safetensors file."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(size)), f.read()


def untie(source, target):
    """A copy of an fp32 folder whose config.json says that the head is the embedding, with another head."""
    shutil.copytree(source, target)
    header, data = read_tensors(f"{source}/model.safetensors")
    table = header["model.embed_tokens.weight"]
    begin, end = table["data_offsets"]
    assert table["dtype"] == "F32" and "lm_head.weight" not in header
    values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    header["lm_head.weight"] = {**table, "data_offsets": [len(data), len(data) + end - begin]}
    text = json.dumps(header).encode()
    with open(f"{target}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data + struct.pack(f"<{len(values)}f", *(0.5 * v for v in reversed(values))))
    return str(target)


def make_job(folder, name="job.json", steps=60, **sections):
    """A job file of a tiny model over the data in `folder`; keyword arguments add to its
    sections."""
    data = make_data(folder)
    job = {
        "model": {"name": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 256},
        "data": {"train": f"{data}/train-*.bin", "val": f"{data}/val-*.bin", "sequence_length": 16},
        "training": {"batch_size_per_gpu": 2, "max_steps": steps, "learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 5,
                     "max_grad_norm": 1.0, "weight_decay": 0.1, "eval_every_n_steps": 20, "eval_batches": 4, "threads": 1},
        "checkpointing": {"save_every_n_steps": 10, "keep_last_n": 3},
        "logging": {"log_every_n_steps": 10},
    }
    for section, values in sections.items():
        if isinstance(values, dict):
            job.setdefault(section, {}).update(values)
        else:
            job[section] = values
    path = os.path.join(str(folder), name)
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def train(job, out, ranks=2, strategy=None, sets=(), options=(), env=None, timeout_s=support.DEADLINE_S, cwd=None, restarts=0):
    """Runs a job to its end under dtrun. A job that succeeds must have used so many restarts (None:
    any). Otherwise the crash of a rank could pass unnoticed, because dtrun restarts it."""
    args = [*options, f"--nproc_per_node={ranks}", "train", job, "--output_dir", out]
    if strategy:
        args += ["--mode", strategy]
    for s in sets:
        args += ["--set", s]
    support.program("train")
    result = support.run(args, env=env, timeout_s=timeout_s, cwd=cwd)
    if result.code == 0 and restarts is not None:
        used = restarts_used(os.path.join(cwd or ".", out))
        assert used == restarts, f"{used} restarts used, {restarts} expected: {result}"
    return result


def restarts_used(out):
    """The restarts of the last launch that ended, from events.jsonl."""
    with open(os.path.join(str(out), "events.jsonl")) as f:
        ends = [json.loads(line) for line in f if '"event":"end"' in line]  # an earlier launch may have been killed in the middle of a line
    return ends[-1]["restarts"]


def dtckpt(*args):
    """(exit code, stdout, stderr) of dtckpt."""
    p = subprocess.run([support.program("dtckpt"), *map(str, args)], capture_output=True, text=True, errors="replace", timeout=support.DEADLINE_S)
    return p.returncode, p.stdout, p.stderr


def hash_of(out):
    code, text, err = dtckpt("hash", out)
    assert code == 0, err
    return text.strip()


def metrics(out, key="loss"):
    """{step: value} of all lines that have the key; a later line for a step replaces an earlier
    one."""
    values = {}
    with open(os.path.join(str(out), "metrics.jsonl")) as f:
        for line in f:
            row = json.loads(line)
            if key in row:
                values[row["step"]] = row[key]
    return values


def history(out):
    """[first step, world size] of each round that trained, in order. Rounds count from 1 again if
    hosts gave up a run that no host could continue."""
    worlds, rounds, seen = {}, [], set()
    with open(os.path.join(str(out), "events.jsonl")) as f:
        for row in map(json.loads, f):
            if row["event"] == "round":
                worlds[row["round"]] = row["world_size"]
            elif row["event"] == "resume" or (row["event"] == "save" and row["round"] not in seen):
                seen.add(row["round"])
                rounds.append([row["step"] if row["event"] == "resume" else 0, worlds[row["round"]]])
    return rounds


def last_step(out, steps):
    """The last step of a job of `steps` steps whose hosts came and went. The number of samples
    stays the same, so the remaining samples take more steps on fewer ranks."""
    left = at = ranks = 0
    for step, world in history(out):
        left = left - (step - at) * ranks if step > 0 else steps * world
        at, ranks = step, world
    return at + -(-left // ranks)


class Page:
    """Reads (never writes) the page of a running worker; `fd` is its descriptor here if the rank is
    known."""

    def __init__(self, pid, fd=None, rank=None):
        self.pid, self.rank = pid, rank
        if fd is not None:
            self.map = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
            return
        with open(f"/proc/{pid}/environ", "rb") as f:
            env = dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)
        fd = os.open(env[b"DTRUN_PAGE"], os.O_RDONLY)
        try:
            self.map = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.rank = int(env[b"RANK"])

    def phase(self):
        return PHASES[struct.unpack_from("I", self.map, PHASE_AT)[0]]

    def in_collective(self):
        return struct.unpack_from("I", self.map, PHASE_AT + 4)[0] != 0

    def collective_count(self):
        return struct.unpack_from("q", self.map, PHASE_AT + 8)[0]

    def step(self):
        return struct.unpack_from("q", self.map, STEP_AT)[0]


def worker_at(jobs, step):
    """The page of a worker of one of the jobs that has come to this step."""

    def find():
        for job in jobs:
            for pid in support.children(job.agent):
                try:
                    page = Page(pid)
                except (OSError, KeyError, ValueError):
                    continue
                if page.step() >= step:
                    return page
        return None

    return support.wait_until(find, f"step {step}", step_s=0.001)


def one_host(folder, job):
    """A function of the number of ranks: hash and losses of the job on one host, computed on first
    use."""
    made = {}

    def of(ranks):
        if ranks not in made:
            out = os.path.join(str(folder), f"one-{ranks}")
            result = train(job, out, ranks=ranks)
            assert result.code == 0, result
            made[ranks] = hash_of(out), metrics(out)
        return made[ranks]

    return of


def pages(job, ranks):
    """Pages of the workers that run now, by rank; None while the round is incomplete."""
    found = {}
    for pid in support.children(job.agent_pid):
        try:
            page = Page(pid)
        except (OSError, KeyError, ValueError):
            continue
        found[page.rank] = page
    return found if len(found) == ranks else None


def wait_pages(job, ranks, step):
    """Pages of all workers, by rank, when each of them has reached this step; fails if the job ends
    before."""
    job.agent_pid = job.agent

    def there():
        found = pages(job, ranks)
        if found and min(p.step() for p in found.values()) >= step:
            return found
        assert job.process.poll() is None, job.finish()
        return None

    return support.wait_until(there, f"step {step} of {ranks} ranks", step_s=0.005)


def software_gpu_place(folder, **job):
    """(folder, job file). The folder has a dtrun, with the train that computes on the software GPU
    beside it. Keyword arguments are those of make_job."""
    made = make_job(folder, **job)
    (folder / "bin").mkdir()
    shutil.copy2(support.program("dtrun"), folder / "bin" / "dtrun")
    shutil.copy2(os.path.join(support.BUILD, "softgpu", "train"), folder / "bin" / "train")
    return folder, made


def check_timeline(out, rank, steps, units, micro_steps=1):
    """Checks the trace of a rank under full_shard: only these steps, lanes in order, each unit
    computed and reduced as often as it should be, and no entry before its dependencies."""
    with open(os.path.join(str(out), f"timeline-rank-{rank}.json")) as f:
        events = json.load(f)["traceEvents"]
    assert [e["args"]["count"] for e in events if e["name"] == "missing"] == [0]
    assert {e["pid"] for e in events} == {rank}
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["args"]["step"] for e in spans} == set(steps)

    def before(a, b):
        return a["ts"] + a["dur"] <= b["ts"] + 1  # a microsecond, the precision of the file

    for lane in range(4):
        own = [e for e in spans if e["tid"] == lane]
        assert all(before(a, b) for a, b in zip(own, own[1:])), own
    for step in steps:
        of = [e for e in spans if e["args"]["step"] == step]
        assert [(e["tid"], e["name"]) for e in of if e["name"] in ("step sums", "optimizer")] == [(0, "step sums"), (1, "step sums"), (0, "optimizer")]
        for unit in units:
            gathers, forwards, backwards, reductions = (
                [e for e in of if e["name"] == f"{what} {unit}"] for what in ("gather weights", "forward", "backward", "reduce gradients"))
            assert len(forwards) == len(backwards) == len(reductions) == micro_steps and gathers
            assert before(gathers[0], forwards[0])
            assert all(before(computed, reduced) for computed, reduced in zip(backwards, reductions))
