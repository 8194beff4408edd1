# covers: launcher/job launcher/options
"""What dtrun does for the bundled `train`, shown with a stand-in of a few lines that follows the same agreement: `--plan --json`, the page,
the exit codes. It lies next to a copy of dtrun, where bundled programs are looked for."""

import json
import os
import re
import shutil
import signal
import time

import pytest
import training
from places import little_memory
from nodes import c10d, finish, free_port, listens
from support import DTRUN, PYTHON, Job, lines_of, program, run, script, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")

STAND_IN = r'''#!%s
import mmap, os, struct, sys, time

class Page:
    places = {"order": (16, "I"), "pulse_limit_ms": (20, "I"), "pulse": (24, "q"), "step": (40, "q"), "phase": (48, "I"), "in_collective": (52, "I"), "count": (56, "q"), "saved": (72, "q")}
    def __init__(self):
        with open(os.environ["DTRUN_PAGE"], "r+b") as f:
            self.m = mmap.mmap(f.fileno(), 4096)
        assert self.m[:5] == b"DTPG1"
    def __getitem__(self, k):
        at, kind = self.places[k]
        return struct.unpack_from(kind, self.m, at)[0]
    def __setitem__(self, k, v):
        at, kind = self.places[k]
        struct.pack_into(kind, self.m, at, v)
    def note(self, text):
        self.m[152:152 + len(text) + 1] = text.encode() + b"\0"

def tell(name, text):
    with open(os.path.join(here, name), "a") as f:
        f.write(text + "\n")

here = os.environ["STORY_DIR"]
if "--plan" in sys.argv:
    tell("plans", " ".join(sys.argv[1:]) + " " + os.environ["WORLD_SIZE"])
    if "bad.json" in sys.argv:
        print("train: bad.json:1:1: x: unknown key", file=sys.stderr)
        sys.exit(2)
    print('{"output_dir": "%%s/out"}' %% here)
    sys.exit(0)
if "--help" in sys.argv:
    print("usage: train job.json")
    sys.exit(0)
page = Page()
rank, restart = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
tell("starts", f"{restart} {rank} {os.getpid()}")
mode = sys.argv[-1]

def until_ordered():
    tell("ready", rank)
    while page["order"] == 0:
        page["pulse"] += 1
        time.sleep(0.01)
    order = page["order"]
    tell("orders", f"{rank} {order}")
    while mode == "slow" and not os.path.exists(os.path.join(here, "go")):
        time.sleep(0.01)
    if order == 1:
        page["saved"] = page["step"] = 7
        sys.exit(75)
    sys.exit(111)

if mode in ("wait", "slow"):
    until_ordered()
elif mode == "code":
    sys.exit(int(sys.argv[-2]))
elif mode == "note":
    if rank == "0":
        page["step"] = 12
        page.note("loss is not finite at step 12; lower optimizer.lr")
        sys.exit(100)
    until_ordered()
elif mode == "forward":
    page["step"] = 10 + restart
    sys.exit(1)
elif mode == "stuck":
    sys.exit(1)
elif mode == "memory":
    page["step"] = 5 if restart > 0 else 4
    if rank == "1":
        os.execvp("tail", ["tail", "/dev/zero"])
    until_ordered()
elif mode == "peer":
    if rank == "0":
        os.kill(os.getpid(), 9)
    gone = lambda pid: not os.path.exists(f"/proc/{pid}")  # taken note of, too
    while not [x for x in open(os.path.join(here, "starts")) if x.split()[1] == "0" and gone(x.split()[2])]:
        time.sleep(0.01)
    sys.exit(111)
elif mode == "silent":
    if restart == 0:
        page["pulse_limit_ms"], page["step"], page["in_collective"], page["count"] = 300, 310, rank != "1", 17
        page.m[88:99] = b"all_reduce\0"
        page["pulse"] += 1
        time.sleep(1000)
    sys.exit(0)
elif mode == "early":
    page["step"] = 90 if rank == "2" else 120
    if rank != "2":
        until_ordered()
elif mode == "late":
    page["phase"], page["step"] = 7, 120
    tell("done", rank)
    while len(open(os.path.join(here, "done")).readlines()) < 3:
        time.sleep(0.01)
    time.sleep(2 if rank == "0" else 0)
elif mode in ("nosave", "saving", "saved"):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    page["saved"] = page["step"] = 3
    tell("ready", rank)
    while page["order"] == 0:
        time.sleep(0.01)
    if mode != "nosave":
        page["phase"], page["step"] = 6, 7
    if mode == "saved" and rank == "0":
        page["saved"] = 7
    tell("orders", f"{rank} {page['order']}")
    time.sleep(1000)
'''


@pytest.fixture
def train(tmp_path):
    """Runs the copy of dtrun with the stand-in: train(options, arguments, wait=False)."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(DTRUN, folder / "dtrun")
    script(folder, "train.py", STAND_IN % PYTHON)
    os.rename(folder / "train.py", folder / "train")

    def start(options, arguments, job=False, path="train", **env):
        args = [*options, path, *arguments]
        env = {"STORY_DIR": str(tmp_path), **env}
        if job:
            return Job(args, env, executable=str(folder / "dtrun"))
        return run(args, env, executable=str(folder / "dtrun"))

    return start


def test_the_plan_runs_once_and_says_where_the_run_lives(train, tmp_path):
    result = train(["--nproc_per_node=2"], ["job.json", "0", "code"])
    assert result.code == 0, result
    assert lines_of(tmp_path / "plans") == ["--plan --json job.json 0 code 2"]
    events = [json.loads(x) for x in lines_of(tmp_path / "out" / "events.jsonl")]
    assert [e["event"] for e in events] == ["round", "end"] and events[1]["code"] == 0


def test_a_bad_job_ends_before_anything_starts(train, tmp_path):
    result = train(["--nproc_per_node=2"], ["bad.json"])
    assert result.code == 2 and result.err == "train: bad.json:1:1: x: unknown key\n", result
    assert not (tmp_path / "starts").exists()


def test_help_needs_no_ranks(train, tmp_path):
    result = train(["--nproc_per_node=4"], ["--help"])
    assert (result.code, result.out, result.err) == (0, "usage: train job.json\n", "")


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1", "USR2", "HUP", "QUIT"])
def test_a_stop_saves_and_ends_with_75(train, tmp_path, name):
    with train(["--nproc_per_node=2"], ["job.json", "wait"], job=True) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(getattr(signal, "SIG" + name))
        result = job.finish()
        job.wait_gone()
    assert result.code == 75, result
    assert sorted(lines_of(tmp_path / "orders")) == ["0 1", "1 1"]
    assert f"stopped by {name}: state saved; the same command continues" in result.err


def test_train_by_its_path_is_train(train, tmp_path):
    """By a path to the very file, through links, too; another file of that name is a program like any other."""
    (tmp_path / "link").symlink_to(tmp_path / "bin")
    for path in tmp_path / "bin/train", f"{tmp_path}/link/../bin/./train", tmp_path / "link/train":
        with train(["--nproc_per_node=1"], ["job.json", "wait"], job=True, path=path) as job:
            wait_lines(tmp_path / "ready", 1)
            job.signal(signal.SIGTERM)
            result = job.finish()
        assert result.code == 75 and "stopped by TERM: state saved; the same command continues" in result.err, result
        os.unlink(tmp_path / "ready")
    assert len(lines_of(tmp_path / "plans")) == 3
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "bin/train", tmp_path / "other/train")
    assert train(["--nproc_per_node=1"], ["job.json", "0", "code"], path=tmp_path / "other/train").code == 0
    assert len(lines_of(tmp_path / "plans")) == 3


@pytest.mark.parametrize("name, again", [("USR1", True), ("USR2", True), ("TERM", False), ("HUP", None)])
def test_a_warned_batch_job_asks_for_the_next_run(train, tmp_path, name, again):
    """A stand-in for scontrol writes what it was asked. HUP means nothing there: no terminal is behind it."""
    (tmp_path / "tools").mkdir()
    script(tmp_path / "tools", "scontrol", f'echo "$*" >>{tmp_path}/asked\n')
    env = {"SLURM_JOB_ID": "12", "ENVIRONMENT": "BATCH", "PATH": f"{tmp_path}/tools:{os.environ['PATH']}"}
    with train(["--nproc_per_node=2"], ["job.json", "wait"], job=True, **env) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(getattr(signal, "SIG" + name))
        if again is None:
            time.sleep(0.5)
            assert job.process.poll() is None
            job.signal(signal.SIGUSR1)
        result = job.finish()
        job.wait_gone()
    assert result.code == 75, result
    assert (tmp_path / "asked").exists() == (again is not False)
    if again is not False:
        assert lines_of(tmp_path / "asked") == ["requeue 12"]


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_warning_while_it_waits_for_hosts(train, tmp_path, name):
    (tmp_path / "tools").mkdir()
    script(tmp_path / "tools", "scontrol", f'echo "$*" >>{tmp_path}/asked\n')
    env = {"SLURM_JOB_ID": "12", "ENVIRONMENT": "BATCH", "PATH": f"{tmp_path}/tools:{os.environ['PATH']}"}
    port = free_port()
    with train(["--nnodes=2", f"--master_port={port}", "--node_rank=0"], ["job.json", "wait"], job=True, **env) as job:
        wait_until(lambda: listens(port), "the endpoint")
        job.signal(getattr(signal, "SIG" + name))
        result = job.finish()
        job.wait_gone()
    assert result.code == 75 and lines_of(tmp_path / "asked") == ["requeue 12"], result


def test_a_scheduler_that_signals_each_process_is_one_wish(train, tmp_path):
    with train(["--nproc_per_node=2"], ["job.json", "wait"], job=True) as job:
        wait_lines(tmp_path / "ready", 2)
        os.kill(job.agent, signal.SIGTERM)
        job.signal(signal.SIGTERM)
        result = job.finish()
    assert result.code == 75, result


def test_a_stop_that_cannot_save_ends_with_the_signal(train, tmp_path):
    with train(["--nproc_per_node=2", "--shutdown_timeout=1"], ["job.json", "nosave"], job=True) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(signal.SIGTERM)
        result = job.finish()
    assert result.code == 143 and "nothing new was saved" in result.err, result


@pytest.mark.parametrize("mode, stays", [("nosave", "nothing new was saved"), ("saved", "step 7 is saved"),
                                         ("saving", "the save of step 7 was cut off: dtckpt list shows whether it is complete")])
def test_a_second_signal_stops_at_once(train, tmp_path, mode, stays):
    """The first asks for a save that does not come, or not to its end; the second, of the same kind, ends everything. What is said of the save is true."""
    with train(["--nproc_per_node=2", "--shutdown_timeout=600"], ["job.json", mode], job=True) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(signal.SIGINT)
        wait_lines(tmp_path / "orders", 2)
        job.signal(signal.SIGINT)
        result = job.finish()
        job.wait_gone()
    assert result.code == 130 and f"stopped by INT: all workers have ended; {stays}\n" in result.err, result


def test_a_repeated_term_of_a_scheduler_is_no_insisting_person(train, tmp_path):
    """SLURM, for one, sends TERM more than once, with CONT; the save goes on, and the grace time runs on as it was."""
    with train(["--nproc_per_node=2", "--shutdown_timeout=600"], ["job.json", "slow"], job=True, PBS_JOBID="7") as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(signal.SIGTERM)
        wait_lines(tmp_path / "orders", 2)
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGHUP, signal.SIGTERM):
            job.signal(number)
        (tmp_path / "go").touch()
        result = job.finish()
        job.wait_gone()
    assert result.code == 75, result


def test_a_permanent_failure_is_not_restarted_and_tells_why(train, tmp_path):
    result = train(["--nproc_per_node=3"], ["job.json", "note"])
    assert result.code == 100, result
    assert re.search(r"^dtrun: host \S+ rank 0 \(local 0, pid \d+\): exit code 100: loss is not finite at step 12; lower optimizer.lr", result.err, re.M), result
    assert all(line.startswith("0 ") for line in lines_of(tmp_path / "starts"))
    failures = [e for e in map(json.loads, lines_of(tmp_path / "out" / "events.jsonl")) if e["event"] == "failure"]
    assert len(failures) == 1 and failures[0]["rank"] == 0


def test_three_restarts_by_default_and_then_no_progress(train, tmp_path):
    result = train([], ["job.json", "stuck"])
    assert result.code == 100 and "no progress: 3 restarts" in result.err, result
    assert len(lines_of(tmp_path / "starts")) == 4


def test_no_progress_of_several_hosts(train, tmp_path):
    options = [*c10d(free_port(), 2), "--nproc_per_node=1"]
    with train(options, ["job.json", "stuck"], job=True) as a, train(options, ["job.json", "stuck"], job=True) as b:
        results = finish(a, b)
    assert [r.code for r in results] == [100, 100], results
    assert any("no progress: 3 restarts came to no step at all" in r.err for r in results), results
    assert {x.split()[0] for x in lines_of(tmp_path / "starts")} == set("0123")


def test_out_of_memory_twice_in_the_same_step(train, tmp_path):
    """The first time in another step, then twice in one: the second of these is the last."""
    with little_memory(100) as path:
        inside = script(tmp_path, "inside", f'echo $$ >{path}/cgroup.procs && exec "{tmp_path}/bin/dtrun" "$@"\n')
        result = run(["--nproc_per_node=2", "--max_restarts=9", "train", "job.json", "memory"], {"STORY_DIR": str(tmp_path)}, executable=inside)
    assert result.code == 100 and len(lines_of(tmp_path / "starts")) == 6, result
    killed = r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): killed by the kernel, out of memory \(limit 100 MiB of the control group, "
    assert len(re.findall(killed, result.err, re.M)) == 3, result
    assert len(re.findall(r"; restarting \([12] of 9 used\)", result.err)) == 2, result
    assert re.search(r"^dtrun: out of memory for the second time at step 5: another try would fail the same way; lower training.batch_size_per_gpu, .*\(100 MiB\)$",
                     result.err, re.M), result


def test_with_progress_only_the_budget_counts(train, tmp_path):
    result = train(["--max_restarts=5"], ["job.json", "forward"])
    assert result.code == 1, result
    assert len(lines_of(tmp_path / "starts")) == 6


def test_a_rank_that_lost_its_peer_is_not_the_cause(train, tmp_path):
    result = train(["--nproc_per_node=4", "--max_restarts=0"], ["job.json", "peer"])
    assert result.code == 1, result
    assert re.search(r"^dtrun: host \S+ rank 0 \(local 0, pid \d+\): killed by signal 9 \(SIGKILL\); 3 other ranks stopped because of it", result.err, re.M), result


def test_a_rank_that_ends_early_is_a_failure(train, tmp_path):
    result = train(["--nproc_per_node=3", "--exit_barrier=500ms", "--max_restarts=0"], ["job.json", "early"])
    assert result.code == 1, result
    assert re.search(r"^dtrun: host \S+ rank 2 \(local 2, pid \d+\): ended with exit code 0 at step 90; \d+ s later 2 other ranks are still at step 120 "
                     r"and cannot finish without it; 2 other ranks stopped because of it", result.err, re.M), result


def test_a_rank_of_the_real_train_that_ends_early(tmp_path):
    """Rank 1 ends with 0 before it has met the others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(DTRUN, folder / "dtrun")
    script(folder, "train", f'[ "$RANK" != 1 ] || exit 0\nexec "{program("train")}" "$@"\n')
    job = training.make_job(tmp_path)
    result = run(["--nproc_per_node=2", "--exit_barrier=1", "--max_restarts=0", "train", job, "--output_dir", tmp_path / "out"], executable=str(folder / "dtrun"))
    assert result.code == 1, result
    assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): ended with exit code 0 before its first step; \d+ s later 1 other rank is still (at step 0|before its first step) "
                     r"and cannot finish without it; 1 other rank stopped because of it", result.err, re.M), result


def test_a_rank_that_writes_longest_is_none(train):
    result = train(["--nproc_per_node=3", "--exit_barrier=100ms"], ["job.json", "late"])
    assert (result.code, result.err) == (0, ""), result


def test_a_pulse_that_stands_still_is_named(train, tmp_path):
    result = train(["--nproc_per_node=3"], ["job.json", "silent"])
    assert result.code == 0, result
    assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): no pulse for \d+\.\d s at step 310, phase none, last collective 17 all_reduce.*; "
                     r"2 other ranks stopped because of it; restarting \(1 of 3 used\)", result.err, re.M), result


def test_a_check_that_does_not_end_says_where_it_is(tmp_path):
    """As on a file server that hangs: here a pipe whose writer never comes."""
    os.mkfifo(tmp_path / "job.json")
    with Job(["train", tmp_path / "job.json"], env={"DTRUN_TIME_SCALE": "10"}) as job:
        line = job.process.stderr.readline()
        job.signal(signal.SIGTERM)
        result = job.finish()
        job.wait_gone()
    assert re.match(r"dtrun: train --plan \(pid \d+\): not done after 1 s: (it waits in the kernel, in |it sleeps)", line), line
    assert result.code == 143, result
