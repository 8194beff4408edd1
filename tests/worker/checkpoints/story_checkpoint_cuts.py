# covers: worker/checkpoints
"""A save cut at each of its system calls, by kill -9 or by an error: the next start finds the old or the new checkpoint, whole, and ends
with the bits of an undisturbed run. DTRUN_ALL=1 takes every call on a file of the run, in every thread, otherwise a sample.
run: timeout 900
run: nosan: the leak checker cannot work under strace
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess

import pytest
import support
import training

ALL = bool(os.environ.get("DTRUN_ALL"))
CALLS = ["openat", "creat", "write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "sync_file_range", "ftruncate", "fallocate", "rename",
         "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "chmod", "fchmod", "close"]
CUTS_AT_ONCE = 4  # each waits for the disk and for the tracer most of its time
BEGUN, STEPS = 2, 4  # where a cut run begins and ends: one save, which removes the one before, and the export


REASON = support.cannot_trace()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A job, its hash, and a run that got to step BEGUN, which each cut copies."""
    folder = tmp_path_factory.mktemp("cuts")
    job = training.make_job(folder, steps=STEPS, checkpointing={"save_every_n_steps": 2, "keep_last_n": 1}, model={"n_layer": 1},
                            training={"eval_every_n_steps": 0, "eval_batches": 1, "warmup_steps": 2}, logging={"log_every_n_steps": 1})
    assert train(job, folder / "plain").returncode == 0
    assert train(job, folder / "begun", "--set", "checkpointing.keep_last_n=9").returncode == 0
    shutil.rmtree(folder / "begun" / "checkpoints" / f"step-{STEPS:08}")
    (folder / "begun" / "checkpoints" / "latest").write_text(f"step-{BEGUN:08}\n")
    shutil.rmtree(folder / "begun" / "model")
    return folder, job, training.hash_of(folder / "plain")


def train(job, out, *options, trace=()):
    args = [*trace, support.program("train"), job, "--output_dir", out, *options]
    return subprocess.run(list(map(str, args)), env=support.clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=2 * support.DEADLINE_S)


def begun(place, name):
    """A copy of its own of the run that begins at step BEGUN."""
    folder = place[0]
    shutil.rmtree(folder / name, ignore_errors=True)
    return shutil.copytree(folder / "begun", folder / name)


def counting(log):
    return ["strace", "-f", "-qq", "-y", "-o", log, "-e", "trace=" + ",".join(f"?{c}" for c in CALLS)]


def calls_on(path, log):
    """(call, number) of the calls in a log of strace whose line names the path. Numbers count per kind of call and thread, as strace's `when` does."""
    counts, found = {}, set()
    for line in log.read_text(errors="replace").splitlines():
        m = re.match(r"(\d+) +(\w+)\(", line)
        if m:
            counts[m.groups()] = counts.get(m.groups(), 0) + 1
            if str(path) in line:
                found.add((m[2], counts[m.groups()]))
    return sorted(found)


def fault(call, when, what):
    """strace's words that put a fault into one call."""
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{what}:when={when}"]


@pytest.fixture(scope="module")
def moments(place):
    """Every call on a file of the run, of one rank."""
    folder, job, _ = place
    out, log = begun(place, "counted"), folder / "calls.txt"
    p = train(job, out, trace=counting(log))
    assert p.returncode == 0, p.stderr
    found = calls_on(out, log)
    assert {"openat", "write", "fsync", "rename", "unlink", "mkdir", "close"} <= {c for c, _ in found}, found
    return found


def sample(moments):
    """All of them, or about 30: some of everything, and the renames, around which everything turns."""
    if ALL:
        return moments
    few = [m for m in moments if m[0] != "close"]
    rare = [m for m in moments if m[0].startswith("rename")]
    return sorted(set(few[:: max(1, len(few) // 24)] + rare[:3] + rare[-3:]))


def at_once(work, items):
    with concurrent.futures.ThreadPoolExecutor(CUTS_AT_ONCE) as pool:
        return list(pool.map(work, items))


def cut_all(place, taken, inject, codes):
    """One run for each (call, number), with a fault put in there, then the check that nothing was lost. `inject` is strace's word for the fault."""
    job = place[1]

    def cut(moment):
        call, when = moment
        where = f"{inject} at {call} {when}"
        out = begun(place, "cut-" + re.sub(r"\W", "-", where))
        p = train(job, out, trace=fault(call, when, inject))
        assert p.returncode in codes, (where, p.returncode, p.stderr)
        assert p.returncode <= 0 or p.stderr.splitlines()[-1].startswith("train: "), (where, p.stderr)
        check(place, out, where)
        shutil.rmtree(out)
        return p.returncode

    return at_once(cut, taken)


def check(place, out, where, ranks=1):
    """The same command goes on to the same bits, and leaves nothing of the cut."""
    folder, job, expected = place
    if ranks == 1:
        p = train(job, out)
        code, said = p.returncode, p.stderr
    else:
        result = training.train(job, out, ranks)
        code, said = result.code, result.err
    assert code == 0, f"{where}\n{said}"
    assert training.hash_of(out) == expected, f"{where}: other bits\n{said}"
    code, text, err = training.dtckpt("verify", out)
    assert code == 0, f"{where}\n{text}{err}"
    steps = [json.loads(x)["step"] for x in (out / "metrics.jsonl").read_text().splitlines() if '"loss"' in x]
    assert steps == sorted(set(steps)), f"{where}: {steps}"
    left = [n for n in os.listdir(out / "checkpoints") if ".tmp" in n]
    assert not left or "finished" in said, f"{where}: {left}"


def test_killed_at_every_call(place, moments):
    taken = sample(moments)
    codes = cut_all(place, taken, "signal=KILL", (0, -9))
    assert len(taken) >= 10 and codes.count(-9) >= len(taken) * 9 // 10, codes


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_two_ranks_killed_in_a_save(place, tmp_path, rank):
    """The save of several ranks is cut while another rank waits in it: the next round goes on by itself, from a whole checkpoint."""
    folder, job, _ = place
    expected = tmp_path / "plain"
    assert training.train(job, expected, ranks=2).code == 0
    two = (folder, job, training.hash_of(expected))

    def job_with(trace, out):
        """The rank runs under strace in the first round."""
        words = " ".join(shlex.quote(str(x)) for x in trace)
        text = f'[ "$RANK-$TORCHELASTIC_RESTART_COUNT" != {rank}-0 ] || exec {words} "$0" "$@"; exec "$0" "$@"'
        return support.run(["--nproc_per_node=2", "--max_restarts=1", "/bin/sh", "-c", text, support.program("train"), job, "--output_dir", out],
                           timeout_s=2 * support.DEADLINE_S)

    log = tmp_path / "calls.txt"
    assert job_with(counting(log), tmp_path / "counted").code == 0
    taken = calls_on(tmp_path / "counted" / "checkpoints", log)

    def cut(moment):
        out = tmp_path / "cut-{}-{}".format(*moment)
        result = job_with(fault(*moment, "signal=KILL"), out)
        assert result.code == 0, (moment, result)
        check(two, out, f"killed at {moment} of rank {rank}", ranks=2)
        shutil.rmtree(out)
        return "killed by signal 9" in result.err

    killed = at_once(cut, taken if ALL else taken[:: max(1, len(taken) // 5)])
    assert killed.count(True) >= len(killed) * 8 // 10, killed


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_error_at_calls(place, moments, error):
    """A call that fails costs at most a checkpoint and a line; what is loaded later is whole."""
    taken = [m for m in sample(moments) if ALL or m[0] not in ("unlink", "unlinkat", "rmdir")]
    cut_all(place, taken if ALL else taken[:: 3 if error == "EIO" else 2], f"error={error}", (0, 100, 111))


@pytest.fixture(scope="module")
def others(place, tmp_path_factory):
    """Another run of the same shapes, whose config.json differs in one number."""
    folder = tmp_path_factory.mktemp("others")
    out = folder / "run"
    assert train(place[1], out, "--set", "model.layer_norm_epsilon=0.5", "--set", "training.seed=7").returncode == 0
    return out


def model_in(folder):
    """What readers see: config.json and weights; null where there is no model."""
    if not (folder / "config.json").exists():
        return None
    names = ["config.json", *(["model.safetensors"] if (folder / "model.safetensors").exists() else sorted(p.name for p in folder.glob("model*")))]
    return {n: (folder / n).read_bytes() for n in names if ".tmp-" not in n}


@pytest.mark.parametrize("inject", ["signal=KILL", "error=ENOSPC"])
@pytest.mark.parametrize("sizes", [("5GB", "5GB"), ("5GB", "20KB"), ("20KB", "5GB"), ("20KB", "15KB")])
def test_an_export_over_another_model(place, others, tmp_path, inject, sizes):
    """The folder has the old model, the new one, or none, never the config.json of one and weights of the other; the same command completes it."""
    def export(run, to, size, trace=()):
        command = [*trace, support.program("dtckpt"), "export", run, to, "--max_shard_size", size]
        return subprocess.run(list(map(str, command)), env=support.clean_env(), capture_output=True, text=True, errors="replace", timeout=2 * support.DEADLINE_S)

    old, new, log = tmp_path / "old", tmp_path / "new", tmp_path / "calls.txt"
    assert export(place[0] / "plain", old, sizes[0]).returncode == export(others, new, sizes[1]).returncode == 0
    known = [model_in(old), model_in(new), None]
    shutil.copytree(old, tmp_path / "counted")
    assert export(others, tmp_path / "counted", sizes[1], trace=counting(log)).returncode == 0
    assert model_in(tmp_path / "counted") == known[1]
    moments = [m for m in calls_on(tmp_path / "counted", log) if m[0] != "close"]
    assert len([m for m in moments if m[0] == "rename"]) >= 2, moments

    def cut(moment):
        out = tmp_path / "cut-{}-{}".format(*moment)
        shutil.copytree(old, out)
        p = export(others, out, sizes[1], trace=fault(*moment, inject))
        assert p.returncode in (0, 1, 2, -9), (moment, p.stderr)
        seen = known.index(model_in(out))
        assert seen == 1 or p.returncode != 0, moment
        assert export(others, out, sizes[1]).returncode == 0
        assert model_in(out) == known[1], moment
        assert sorted(os.listdir(out)) == sorted(os.listdir(new)), moment
        return seen

    every = moments if ALL else sorted(set(moments[:: max(1, len(moments) // 10)] + [m for m in moments if m[0].startswith("rename")][-3:]))
    seen = at_once(cut, every)
    assert 0 in seen, seen
