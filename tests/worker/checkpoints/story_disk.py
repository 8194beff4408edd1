# covers: worker/checkpoints
"""A disk that refuses: full, over quota, too large a file, an error of one call, on one rank or on all. A save that fails costs a line and nothing
else; a run that cannot save its end says so once and keeps the checkpoint before.
run: nosan: the leak checker cannot work under strace
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import places
import support
import training

STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    job = training.make_job(folder, steps=STEPS)
    result = training.train(job, folder / "plain", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "plain")


def lines(text, start="train: "):
    return [x for x in text.splitlines() if x.startswith(start)]


def refused(err):
    """The one line, train's or the launcher's, that says that the end is not saved; in the block below it each rank that failed by itself has its words, and before
    it a line may have it that says how long the other rank takes to end."""
    found = [x for x in lines(err, ("train: ", "dtrun: ")) if "put that right" in x and "(first seen); waiting" not in x]
    assert len(found) == 1 and "restarting" not in err, err
    return found[0]


def test_full(place):
    """Room for one checkpoint of four: warnings with numbers, training goes on, and with more room the same command continues."""
    folder, job, expected = place
    mount = places.mount_point(folder, "small")
    support.program("train")
    go = f"'{support.DTRUN}' --nproc_per_node=2 train '{job}' --output_dir '{mount}/run'"
    line = (f"mount -t tmpfs -o size=700k none '{mount}'; {go}; echo code $? >&2; ls '{mount}/run/checkpoints'; tail -n 1 '{mount}/run/metrics.jsonl'; "
            f"mount -o remount,size=64m '{mount}'; {go}; echo code $? >&2; '{support.program('dtckpt')}' hash '{mount}/run'")
    p = places.in_mounts(line)
    first, second = re.split(r"^code \d+$", p.stderr, flags=re.M)[:2]
    assert re.findall(r"^code (\d+)$", p.stderr, re.M) == ["100", "0"], p
    warned = lines(first, "train: warning: ")
    assert "4 more checkpoints of" in warned[0] and "free, but" in warned[0] and "keep_last_n" in warned[0], p
    tries = [x for x in warned if "No space left on device; needs " in x and "free there; training goes on" in x]
    assert [x.split("checkpoint of step ")[1].split(":")[0] for x in tries] == ["20", "30"], p
    last = refused(first)
    assert "checkpoint of step 40" in last and "needs " in last and "put that right, and the same command continues at step 10; " in last, p
    listing = p.stdout.split("{")[0].split()
    assert "step-00000010" in listing and not [x for x in listing if ".tmp" in x or x in ("step-00000020", "step-00000040")], p
    assert json.loads("{" + p.stdout.split("{")[1].split("}")[0] + "}")["step"] == STEPS, p
    assert "(step 10)" in second and p.stdout.split()[-1] == expected, p


def test_room_before_the_second_try(place):
    """The last save fails, somebody makes room, and the second try is a save like any other: every rank ends, and nothing is left to do."""
    folder, job, expected = place
    mount = places.mount_point(folder, "second")
    support.program("train")
    go = (f"timeout {support.DEADLINE_S / 2} '{support.DTRUN}' --nproc_per_node=2 train '{job}' --output_dir '{mount}/run' "
          "--set checkpointing.save_every_n_steps=1000")
    line = (f"mount -t tmpfs -o size=300k none '{mount}'; {go} & until grep -qs 'trying once more' '{mount}'/run/logs/*; do kill -0 $! || exit 9; sleep 0.05; "
            f"done; mount -o remount,size=64m '{mount}'; wait $!; echo code $? >&2; '{support.program('dtckpt')}' hash '{mount}/run'; ls '{mount}/run/model'")
    p = places.in_mounts(line)
    assert re.findall(r"^code (\d+)$", p.stderr, re.M) == ["0"] and "put that right" not in p.stderr, p
    assert f"done at step {STEPS}" in p.stderr and p.stdout.split()[0] == expected and "model.safetensors" in p.stdout, p


def aside(err):
    """(folders, bytes as people read them, command) of the line about what is set aside; None without one."""
    found = [re.search(r"checkpoints: (\d+) folders? of earlier courses (?:is|are) set aside and takes? (.+?); what you do not need goes with: (rm .*)", x)
             for x in lines(err)]
    found = [x for x in found if x]
    assert len(found) <= 1, err
    return found[0].groups() if found else None


def test_what_is_set_aside(place):
    """It stays, each start says how much it is, and the command that is told removes it and nothing else."""
    folder, job, expected = place
    out = folder / "it's aside"
    points = out / "checkpoints"
    assert aside(training.train(job, out).err) is None
    fresh = aside(training.train(job, out, sets=["checkpointing.resume=never"]).err)
    assert fresh and fresh[0] == "2" and (out / "checkpoints.old-1" / "step-00000040").exists() and (out / "model.old-1" / "config.json").exists(), fresh
    named = training.train(job, out, sets=["checkpointing.resume=step-30"])
    assert "checkpoints: 1 checkpoint, of step 40, is newer than what this course goes on from" in named.err, named
    count, size, command = aside(named.err)
    assert count == "3" and (points / "step-00000040.old-1").exists(), named
    kib = subprocess.run(["du", "-sk", "-c", out / "checkpoints.old-1", out / "model.old-1", points / "step-00000040.old-1"], capture_output=True, text=True, check=True)
    number, unit = size.split()
    told = float(number) * {"KiB": 1, "MiB": 1024}[unit]
    assert abs(told / int(kib.stdout.split()[-2]) - 1) < 0.02, (size, kib.stdout)
    (out / "checkpoints.old-mine").mkdir()
    (points / "step-00000040.old-1" / "manifest.json").write_text("")  # set aside because it is damaged, say
    code, text, err = training.dtckpt("verify", out)
    assert code == 0 and "damaged: " in err and "step-00000040.old-1" in err, (code, text, err)
    states = dict(x.split(None, 1) for x in training.dtckpt("list", out)[1].splitlines()[1:])
    assert "damaged, set aside: " in states["step-00000040.old-1"] and states["step-00000040"].endswith("  complete"), states
    before = sorted(os.listdir(points))
    subprocess.run(["sh", "-c", command], check=True)
    assert sorted(os.listdir(points)) == [x for x in before if ".old" not in x]
    assert sorted(x for x in os.listdir(out) if ".old-" in x) == ["checkpoints.old-mine", "metrics.jsonl.old-1"]
    assert aside(training.train(job, out).err) is None
    assert training.hash_of(out) == expected


def test_what_is_set_aside_takes_room(place):
    """The warning of a disk that is too small says how much of it that is."""
    folder, job, _ = place
    mount = places.mount_point(folder, "aside")
    go = f"'{support.program('train')}' '{job}' --output_dir '{mount}/run' --set checkpointing.keep_last_n=1"
    line = f"mount -t tmpfs -o size=1200k none '{mount}'; {go} 2>/dev/null; {go} --fresh --set training.max_steps=20"
    p = places.in_mounts(line)
    told = aside(p.stderr)
    warned = [x for x in lines(p.stderr, "train: warning: ") if f" free ({told[1]} set aside), but " in x]
    assert len(warned) == 1 and "make room, or lower checkpointing.keep_last_n" in warned[0], p


def test_a_limit_of_file_size(place):
    folder, job, _ = place
    out = folder / "limit"
    p = subprocess.run(["sh", "-c", f"ulimit -f 60; exec '{support.program('train')}' '{job}' --output_dir '{out}'"], env=support.clean_env(),
                       capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode == 100, p
    said = "File too large; files may have 30.0 KiB here: raise the limit with ulimit -f"
    assert said + "; put that right" in refused(p.stderr) and "continues from the beginning" in p.stderr, p
    assert not [x for x in os.listdir(out / "checkpoints") if x.startswith("step-")]
    line = f"ulimit -f 60; exec '{support.program('dtckpt')}' export '{folder}/plain' '{folder}/exported'"
    p = subprocess.run(["sh", "-c", line], env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode in (1, 2) and said in p.stderr, p


def traced(folder, inject, rank=1, paths=()):
    """A program for dtrun: train, with calls of one rank that fail; only those on `paths`, where $$ is the rank's pid."""
    if not shutil.which("strace") or subprocess.run(["strace", "-f", "-qq", "-e", "trace=fsync", "true"], capture_output=True).returncode != 0:
        pytest.skip("strace cannot trace here")
    calls, only = inject.split(":")[0], " ".join(f'-P "{p}"' for p in paths)
    text = f"""#!/bin/sh
[ "$RANK" = {rank} ] || exec '{support.program("train")}' "$@"
exec strace -D -f -qq -o /dev/null -e trace={calls} -e inject={inject} {only} '{support.program("train")}' "$@"
"""
    return support.script(folder, "traced.sh", text)


def slices_of(out, rank=1):
    """What a rank writes in each save, under its passing name."""
    return [f"{out}/checkpoints/step-{s:08}.tmp-1-$DTRUN_LAUNCH/slices-{rank:05}-of-00002.safetensors.tmp-$$" for s in range(10, STEPS + 1, 10)]


@pytest.mark.parametrize("call, error, words", [("fsync", "EIO", "Input/output error"), ("write", "EDQUOT", "Disk quota exceeded"),
                                                ("rename", "EACCES", "Permission denied"), ("mkdir", "EROFS", "Read-only file system"),
                                                ("write", "EIO", "Input/output error"), ("close", "EIO", "Input/output error"),
                                                ("rename", "EIO", "Input/output error")])
def test_one_rank_cannot_save(place, call, error, words):
    """All ranks agree that there is no checkpoint; nothing of the tries stays."""
    folder, job, _ = place
    out = folder / f"rank-{call}-{error}"
    paths = slices_of(out) if call == "close" else ()  # the loader of programs closes files, too
    result = support.run(["--nproc_per_node=2", "--max_restarts=0", "--no_python", traced(folder, f"{call}:error={error}", paths=paths), job,
                          "--output_dir", out])
    assert result.code == 1 and "exit code 100" in result.err, result  # of a program that dtrun does not know
    tries = [x for x in lines(result.err, "train: warning: rank 1: ") if words in x]
    assert len(tries) == 3 and all(("; needs " in x) == (error == "EDQUOT") for x in tries), result
    assert words in refused(result.err) and re.search(r"\brank 1( \(local 1, pid \d+\))?: ", refused(result.err)), result
    assert not [x for x in os.listdir(out / "checkpoints") if x.startswith("step-")], result
    assert max(training.metrics(out)) == STEPS


def test_a_file_where_checkpoints_were(place):
    """Somebody moves the folder away and puts a file there: saves are refused, and training goes on until it would end without one."""
    folder, _, _ = place
    job, out = training.make_job(folder, name="moved.json", steps=400), folder / "moved"
    with support.Job(["--nproc_per_node=2", "train", job, "--output_dir", out]) as running:
        running.agent_pid = running.agent
        support.wait_until(lambda: os.path.exists(out / "checkpoints" / "latest"), "a checkpoint")
        os.rename(out / "checkpoints", out / "elsewhere")
        (out / "checkpoints").write_text("x")
        result = running.finish()
        running.wait_gone()
    tries = [x for x in lines(result.err, "train: warning: ") if "checkpoints: is not a folder" in x and "training goes on" in x]
    assert tries and not [x for x in tries if "needs " in x], result
    assert result.code == 100 and max(training.metrics(out)) == 400, result


def test_one_error_costs_one_checkpoint(place):
    """The first save of rank 1 fails at its fsync; the next ones do not."""
    folder, job, expected = place
    out = folder / "once"
    result = support.run(["--nproc_per_node=2", "--no_python", traced(folder, "fsync:error=EIO:when=1"), job, "--output_dir", out])
    assert result.code == 0, result
    assert len([x for x in lines(result.err, "train: warning: ") if "step 10" in x and "Input/output error" in x]) == 1, result
    assert sorted(x for x in os.listdir(out / "checkpoints") if x.startswith("step-")) == [f"step-{s:08}" for s in (20, 30, 40)]
    assert training.hash_of(out) == expected


def test_a_stop_whose_grace_is_too_short_for_a_save(place):
    """The disk hangs in the save that a stop asks for: the step saved before stays, 143, and the line says how long a save takes here."""
    folder, _, _ = place
    job, out = training.make_job(folder, name="long.json", steps=100000), folder / "grace"
    gate, library = training.slow_disk(folder)
    command = ["sh", "-c", f'LD_PRELOAD={library} SLOW_DISK={gate} exec "$0" "$@"', support.DTRUN]
    with support.Job(["-c", *command[2:], "--nproc_per_node=2", "--shutdown_timeout=4", "train", job, "--output_dir", out], executable="/bin/sh") as running:
        running.agent_pid = running.agent
        support.wait_until(lambda: os.path.exists(out / "checkpoints" / "latest"), "a checkpoint")
        gate.touch()
        support.wait_until(lambda: any(p.phase() == "save" for p in (training.pages(running, 2) or {}).values()), "a save", step_s=0.001)
        time.sleep(0.5)  # a save that was already beyond its syncs is over by now, and the next one hangs
        running.signal(signal.SIGTERM)
        result = running.finish()
        running.wait_gone()
    latest = (out / "checkpoints" / "latest").read_text().strip()
    step = int(latest.split("-")[1])
    assert result.code == 143, result
    said = re.search(r"dtrun: host \S+: the save of step (\d+), \d+\.\d s old, was not done 3\.0 s after the stop: it is dropped, step (\d+) stays; "
                     r"the one before took \d+\.\d s here; make --shutdown_timeout \(4 s\)", result.err)
    assert said, result
    dropped = int(said[1])
    assert int(said[2]) == dropped - 10, result
    assert step in (dropped - 10, dropped), (step, result)  # `latest` may name it before its folder is synced for the last time
    code, text, err = training.dtckpt("verify", out)
    assert code == 0, (text, err)
    newest = max(int(x.split("-")[1]) for x in os.listdir(out / "checkpoints") if re.fullmatch(r"step-\d+", x))
    assert newest in (dropped - 10, dropped)  # cut at its very last sync it has its name already, and is whole
    again = training.train(job, out, ranks=2, sets=[f"training.max_steps={step + 15}"])
    assert again.code == 0 and f"(step {newest})" in again.err and not [x for x in os.listdir(out / "checkpoints") if ".tmp" in x], again


@pytest.mark.parametrize("call", ["close", "fsync", "write"])
def test_the_manifest_fails(place, call):
    """Rank 0 alone writes it, after the slices of all."""
    folder, job, _ = place
    out = folder / f"manifest-{call}"
    paths = [f"{out}/checkpoints/step-{s:08}.tmp-1-$DTRUN_LAUNCH/manifest.json.tmp-$$" for s in range(10, STEPS + 1, 10)]
    program = traced(folder, f"{call}:error=EIO", rank=0, paths=paths)
    result = support.run(["--nproc_per_node=2", "--max_restarts=0", "--no_python", program, job, "--output_dir", out])
    assert result.code == 1 and "exit code 100" in result.err, result
    tries = [x for x in lines(result.err, "train: warning: checkpoint of step ") if "manifest.json" in x and "Input/output error; training goes on" in x]
    assert len(tries) == 3 and "manifest.json" in refused(result.err), result
    assert not [x for x in os.listdir(out / "checkpoints") if x.startswith("step-")], os.listdir(out / "checkpoints")


def test_a_folder_that_cannot_be_synced(place):
    """The last call of a save, after the new name is there: the save has failed, so nothing is listed that a power loss might take away."""
    folder, job, _ = place
    out = folder / "unsynced"
    program = traced(folder, "fsync:error=EIO:when=3+", rank=0, paths=[out / "checkpoints"])  # 1, 2: owner.json and course.json, at the start
    result = support.run(["--nproc_per_node=2", "--max_restarts=0", "--no_python", program, job, "--output_dir", out])
    assert result.code == 1 and "exit code 100" in result.err, result
    tries = [x for x in lines(result.err, "train: warning: checkpoint of step ") if "Input/output error; training goes on" in x]
    assert len(tries) == 3 and "continues from the beginning" in refused(result.err), result
    assert not [x for x in os.listdir(out / "checkpoints") if x.startswith("step-")], os.listdir(out / "checkpoints")
    assert max(training.metrics(out)) == STEPS
