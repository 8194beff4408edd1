"""A save cut at each of its system calls, by kill -9 or by an error: the next start finds the old or the new checkpoint, whole, and ends
with the bits of an undisturbed run. DTRUN_ALL=1 takes every call, otherwise a sample.
run: timeout 900
run: nosan: the leak checker cannot work under strace
"""

import json
import os
import re
import shutil
import subprocess

import pytest
import support
import training

ALL = bool(os.environ.get("DTRUN_ALL"))
CALLS = ["write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "ftruncate", "rename", "renameat2", "unlink", "unlinkat", "rmdir",
         "mkdir", "mkdirat", "openat", "close"]
STEPS = 6


def can_trace():
    strace = shutil.which("strace")
    if not strace:
        return "strace is not installed"
    p = subprocess.run([strace, "-f", "-e", "trace=openat", "-e", "inject=openat:error=ENOSPC:when=60000", "true"], capture_output=True, text=True)
    return None if p.returncode == 0 else "strace cannot trace here: " + p.stderr.strip()[-200:]


REASON = can_trace()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A job, its hash, and a run that got to step 2 of 6, which each test copies: every save after it removes an older one."""
    folder = tmp_path_factory.mktemp("cuts")
    job = training.make_job(folder, steps=STEPS, checkpointing={"save_every_n_steps": 2, "keep_last_n": 1},
                            training={"eval_every_n_steps": 0, "eval_batches": 1, "warmup_steps": 2}, logging={"log_every_n_steps": 1})
    assert train(job, folder / "plain").returncode == 0
    assert train(job, folder / "begun", "--set", "checkpointing.keep_last_n=9").returncode == 0
    for step in (4, 6):
        shutil.rmtree(folder / "begun" / "checkpoints" / f"step-{step:08}")
    (folder / "begun" / "checkpoints" / "latest").write_text("step-00000002\n")
    shutil.rmtree(folder / "begun" / "model")
    return folder, job, training.hash_of(folder / "plain")


def train(job, out, *options, trace=()):
    args = [*trace, support.program("train"), job, "--output_dir", out, *options]
    return subprocess.run(list(map(str, args)), env=support.clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=2 * support.DEADLINE_S)


def count_calls(place):
    """How often each call happens in an undisturbed run that goes on from step 2, and where the first of them concerns checkpoints."""
    folder, job, _ = place
    out = folder / "counted"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(folder / "begun", out)
    log = folder / "calls.txt"
    p = train(job, out, trace=["strace", "-f", "-qq", "-y", "-o", log, "-e", "trace=" + ",".join(f"?{c}" for c in CALLS)])
    assert p.returncode == 0, p.stderr
    counts, first, last = {}, {}, {}
    for line in log.read_text(errors="replace").splitlines():
        m = re.match(r"\d+ +(\w+)\(", line)
        if not m or m[1] not in CALLS:
            continue
        counts[m[1]] = counts.get(m[1], 0) + 1
        if "/checkpoints" in line or "/model" in line or "/metrics" in line:
            first.setdefault(m[1], counts[m[1]])
            last[m[1]] = counts[m[1]]
    return {c: (first[c], last[c]) for c in first}


def moments(place):
    places = [(c, n) for c, (a, b) in sorted(count_calls(place).items()) for n in range(a, b + 1) if c != "close" or ALL]
    if ALL:
        return places
    few = places[:: max(1, len(places) // 24)]
    rare = [(c, n) for c, n in places if c in ("rename", "renameat2")]
    return sorted(set(few + rare[:3] + rare[-3:]))


def check(place, out, where):
    """The same command goes on to the same bits, and leaves nothing of the cut."""
    folder, job, expected = place
    result = train(job, out)
    assert result.returncode == 0, f"{where}\n{result.stderr}"
    assert training.hash_of(out) == expected, f"{where}: other bits\n{result.stderr}"
    code, text, err = training.dtckpt("verify", out)
    assert code == 0, f"{where}\n{text}{err}"
    steps = [json.loads(x)["step"] for x in (out / "metrics.jsonl").read_text().splitlines() if '"loss"' in x]
    assert steps == sorted(set(steps)), f"{where}: {steps}"
    left = [n for n in os.listdir(out / "checkpoints") if ".tmp" in n]
    assert not left or "finished" in result.stderr, f"{where}: {left}"


def test_killed_at_every_call(place):
    folder, job, _ = place
    taken = moments(place)
    assert len(taken) >= 10
    for call, when in taken:
        out = folder / "cut"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "begun", out)
        p = train(job, out, trace=["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"])
        assert p.returncode in (0, -9, 137), (call, when, p.returncode, p.stderr)
        check(place, out, f"killed at {call} {when}")


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_error_at_calls(place, error):
    """A call that fails costs at most a checkpoint and a line; what is loaded later is whole."""
    folder, job, _ = place
    taken = [(c, n) for c, n in moments(place) if c not in ("close", "unlink", "unlinkat", "rmdir")]
    for call, when in taken if ALL else taken[:: 3 if error == "EIO" else 2]:
        out = folder / "failed"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "begun", out)
        p = train(job, out, trace=["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"])
        where = f"{error} at {call} {when}"
        assert p.returncode in (0, 100, 111), (where, p.returncode, p.stderr)
        assert p.returncode == 0 or p.stderr.splitlines()[-1].startswith("train: "), (where, p.stderr)
        check(place, out, where)
