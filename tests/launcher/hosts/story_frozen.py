# covers: launcher/hosts worker/checkpoints
"""A host that is frozen whole (launcher, agent and ranks, as a paused virtual machine is) in a save: the others go on, and nothing that it does when it
wakes up is seen by them (promise P1, C-8).
run: alone
run: timeout 300
"""

import contextlib
import json
import os
import signal

import hosts
import training
from hosts import PORT
from support import alive, children, marked, wait_until

STEPS = 600
EVERY = 10


def saved(out):
    """Round by step of all checkpoints that are listed."""
    found = {}
    for name in os.listdir(out / "checkpoints"):
        with contextlib.suppress(OSError, ValueError):
            if name.startswith("step-") and name[5:].isdigit():
                with open(out / "checkpoints" / name / "manifest.json") as f:
                    found[int(name[5:])] = json.load(f)["round"]
    return found


def catch_save(job):
    """Freezes all of rank 0's host in a save; returns its processes."""

    def in_save():
        for pid in children(job.agent):
            try:
                page = training.Page(pid)
            except (OSError, KeyError, ValueError):
                continue
            if page.rank == 0 and page.step() >= 3 * EVERY and page.phase() == "save":
                os.kill(pid, signal.SIGSTOP)
                if page.phase() == "save" and page.step() not in saved_now():
                    return pid
                os.kill(pid, signal.SIGCONT)
        return None

    def saved_now():
        return saved(job.out)

    wait_until(in_save, "a save", step_s=0.0005)
    pids = marked(job.marker)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def test_a_frozen_host_commits_nothing(tmp_path):
    job = training.make_job(tmp_path, steps=STEPS, model={"n_embd": 64}, training={"eval_every_n_steps": 0},
                            checkpointing={"save_every_n_steps": EVERY, "keep_last_n": 1000}, logging={"log_every_n_steps": 1})
    out = tmp_path / "out"
    with hosts.network(3) as net:
        jobs = [h.job(["--nnodes=2:3", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}", "--rdzv_id=frozen", "--rdzv_conf=last_call_timeout=1",
                       "--time_scale=3", "train", job, "--output_dir", out]) for h in net.hosts]
        jobs[0].out = out
        pids = catch_save(jobs[0])
        before = saved(out)
        assert before and set(before.values()) == {1}, before
        workers = [p for p in pids if p not in (jobs[0].pid, *children(jobs[0].pid))]
        assert len(workers) == 1, pids
        wait_until(lambda: [s for s, r in saved(out).items() if r > 1], "a save of a newer round", 100, step_s=0.1)
        assert all(map(alive, pids))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the agent wakes first, and may end its rank 0 before it is this one's turn
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not alive(workers[0]), "the end of the old rank 0")
        results = hosts.finish(*jobs, timeout_s=150)
    assert [r.code for r in results] == [0, 0, 0], results
    after = saved(out)
    assert {s: r for s, r in after.items() if r == 1} == before, (before, after)
    rounds = [after[s] for s in sorted(after)]
    assert rounds == sorted(rounds), after
    with open(out / "metrics.jsonl") as f:
        rows = [json.loads(line) for line in f]
    rounds = [row["round"] for row in rows if "loss" in row]
    assert rounds == sorted(rounds), [r for r in rows if r.get("round") == 1][-3:]
    assert sorted(training.metrics(out)) == list(range(1, training.last_step(out, STEPS) + 1))
    code, text, err = training.dtckpt("verify", out)
    assert code == 0, (text, err)


WORK = 'echo "$GROUP_RANK $GROUP_WORLD_SIZE" >> "$1/starts"; [ "$GROUP_WORLD_SIZE" = 3 ] && exec sleep 600; sleep 1'


def test_a_host_that_sleeps_through_the_end_does_not_begin_again(tmp_path):
    """All three may lead, and one alone is enough for a round: it hears from those who left that the job is over, and how."""
    with hosts.network(3) as net:
        jobs = [h.job(["--nnodes=1:3", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}", "--rdzv_id=slept", "--rdzv_conf=last_call_timeout=1",
                       "--time_scale=3", "--no-python", "sh", "-c", WORK, "sh", tmp_path]) for h in net.hosts]
        wait_until(lambda: (tmp_path / "starts").exists() and len((tmp_path / "starts").read_text().splitlines()) == 3, "three workers")
        pids = marked(jobs[2].marker)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        results = hosts.finish(*jobs[:2], timeout_s=60)
        assert [r.code for r in results] == [0, 0], results
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        slept, = hosts.finish(jobs[2], timeout_s=60)
    assert slept.code == 0 and "dtrun: the other hosts ended the job, with exit code 0\n" in slept.err, slept
    assert sorted((tmp_path / "starts").read_text().splitlines())[:2] == ["0 2", "0 3"], results
    assert len((tmp_path / "starts").read_text().splitlines()) == 5
