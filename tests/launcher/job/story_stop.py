# covers: launcher/job launcher/workers worker/run base/signals.c
# run: waits
"""INT, TERM and USR1 to dtrun at any moment, twice, in a save, in an evaluation; kill -9 of the agent and of the guard: what was saved
stays, nothing runs on, and the same command goes on to the bits of an undisturbed run.
DTRUN_STOPS=N stops at random moments (default 4, 100 in the full tier); the moments come from DTRUN_SEED, which a failure prints.
run: timeout 300
"""

import os
import random
import re
import signal
import time

import pytest
import support
import training
from nodes import free_port

STOPS = int(os.environ.get("DTRUN_STOPS", "100" if os.environ.get("DTRUN_ALL") else "4"))
SEED = int(os.environ.get("DTRUN_SEED", str(random.randrange(10**6))))
STEPS = 120
MANY = 100000  # steps of a run that has to be stopped


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stop")
    job = training.make_job(folder, steps=STEPS)
    result = training.train(job, folder / "plain", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "plain"), training.metrics(folder / "plain")


def start(job, out, sets=(), options=()):
    args = [*options, "--nproc_per_node=2", "train", job, "--output_dir", out]
    for s in sets:
        args += ["--set", s]
    return support.Job(args)


def wait_for(job, condition, what):
    """The first page for which condition(page) holds while the job runs; None when it ended before."""
    job.agent_pid = getattr(job, "agent_pid", None) or job.agent
    deadline = time.monotonic() + support.DEADLINE_S
    found = None
    while time.monotonic() < deadline:
        if job.process.poll() is not None:
            return None
        if found is None or not all(support.alive(p.pid) for p in found.values()):
            found = training.pages(job, 2)
        hit = next((p for p in (found or {}).values() if condition(p)), None)
        if hit is not None:
            return hit
    raise AssertionError(f"{what}: not within {support.DEADLINE_S} s")


def to_the_end(place, out, options=()):
    """The same command, until it is done."""
    folder, job, expected, losses = place
    result = training.train(job, out, ranks=2, options=options)
    assert result.code == 0, result
    assert training.hash_of(out) == expected, result
    after = training.metrics(out)
    assert {s: after[s] for s in losses} == losses
    return result


def test_stops_at_random_moments(place):
    folder, job, expected, _ = place
    rng = random.Random(SEED)
    for i in range(STOPS):
        out, name = folder / f"random-{i}", ["INT", "TERM", "USR1"][i % 3]
        with start(job, out) as running:
            wait_for(running, lambda p: True, "two workers") if i % 4 else None
            time.sleep(rng.random() * 0.3)
            running.signal(getattr(signal, "SIG" + name))
            result = running.finish()
            running.wait_gone()
        where = f"seed {SEED} stop {i} {name}\n{result}"
        saved = os.path.exists(out / "checkpoints" / "latest")
        # 0: the signal came too late; a signal during the start, with nothing to save, is that signal's code.
        assert result.code in ((75, 0) if saved else (75, 130, 143, 138, -getattr(signal, "SIG" + name))), where
        assert result.code != 75 or saved, where
        to_the_end(place, out)


@pytest.mark.parametrize("name", ["INT", "TERM", "USR1"])
def test_a_stop_is_75_and_continues(place, name):
    folder, job, _, _ = place
    out = folder / f"once-{name}"
    with start(job, out) as running:
        assert wait_for(running, lambda p: p.step() >= 3, "step 3")
        running.signal(getattr(signal, "SIG" + name))
        result = running.finish()
        running.wait_gone()
    assert result.code == 75 and "the same command continues" in result.err, result
    saved = int((out / "checkpoints" / "latest").read_text().split("-")[1])
    assert saved >= 3 and f"stopped at step {saved}, saved" in result.err, result
    assert f"(step {saved})" in to_the_end(place, out).err


@pytest.mark.parametrize("where", ["one host", "c10d"])
def test_a_launch_of_the_same_name_continues(place, where):
    """Each launch counts its rounds from 1: those of one before, with the same run id, are none of its own."""
    folder, job, _, _ = place
    out = folder / f"again-{where}".replace(" ", "-")
    options = ["--rdzv_id=demo"] if where == "one host" else ["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--last_call=1"]
    with start(job, out, options=options) as running:
        for step in (12, 24, 36):  # a save lies between each two: restarts without progress would rightly end the job
            found = wait_for(running, lambda p: p.step() >= step and support.alive(p.pid), f"step {step}")
            assert found, running.finish()
            os.kill(found.pid, signal.SIGKILL)
            support.wait_until(lambda: not support.alive(found.pid), "its end")
        assert wait_for(running, lambda p: p.step() >= 48 and support.alive(p.pid), "step 48")
        running.signal(signal.SIGINT)
        result = running.finish()
        running.wait_gone()
    assert result.code == 75 and "the same command continues" in result.err and "(3 of 3 used)" in result.err, result
    again = to_the_end(place, out, options)
    assert "continues from" in again.err and "restarting" not in again.err and "has begun" not in again.err, again


@pytest.mark.parametrize("phase", ["save", "evaluation"])
def test_a_stop_in_a_save_or_an_evaluation(place, phase):
    folder, job, _, _ = place
    out = folder / f"in-{phase}"
    with start(job, out, [f"training.max_steps={STEPS}"]) as running:
        hit = wait_for(running, lambda p: p.phase() == phase and p.step() < STEPS - 20, phase)
        running.signal(signal.SIGTERM)
        result = running.finish()
        running.wait_gone()
    assert result.code in ((75,) if hit else (75, 0)), result
    to_the_end(place, out)


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_rank_that_stands_still_saves_with_the_others(place, name):
    """Somebody has stopped a rank (a debugger, a freezer of its own making): a wish to stop wakes it."""
    folder, job, _, _ = place
    out = folder / f"still-{name}"
    with start(job, out, [f"training.max_steps={MANY}"], ["--shutdown_timeout=600"]) as running:
        assert wait_for(running, lambda p: p.step() >= 15, "step 15")
        still = next(p.pid for p in training.pages(running, 2).values() if p.rank == 1)
        os.kill(still, signal.SIGSTOP)
        support.wait_until(lambda: support.state_of(still) == "T", "the stop")
        running.signal(getattr(signal, "SIG" + name))
        result = running.finish()
        running.wait_gone()
    assert result.code == 75, result
    saved = int((out / "checkpoints" / "latest").read_text().split("-")[1])
    assert saved >= 15 and f"stopped at step {saved}, saved" in result.err, result


def test_a_stop_before_anything_could_be_saved(place):
    """TERM in the start, before a worker can listen: no 75, since nothing would continue."""
    folder, job, _, _ = place
    out = folder / "early"
    with start(job, out, options=["--shutdown_timeout=20"]) as running:
        running.agent_pid = running.agent
        running.signal(signal.SIGTERM)
        result = running.finish()
        running.wait_gone()
    saved = os.path.exists(out / "checkpoints" / "latest")
    assert (result.code == 75) if saved else (result.code in (143, -15)), result
    to_the_end(place, out)


@pytest.mark.parametrize("who", ["agent", "guard", "both"])
def test_kill_9_of_the_launcher_leaves_nothing(place, who):
    folder, job, _, _ = place
    out = folder / f"killed-{who}"
    shm = set(os.listdir("/dev/shm"))
    with start(job, out) as running:
        assert wait_for(running, lambda p: p.step() >= 12, "step 12")
        victims = {"agent": [running.agent_pid], "guard": [running.pid], "both": [running.pid, running.agent_pid]}[who]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        result = running.finish()
        running.wait_gone()
    assert result.code != 0, result
    if who == "agent":
        assert re.search(r"dtrun: agent \(pid \d+\): killed by signal 9", result.err), result
    again = to_the_end(place, out)
    assert "continues from" in again.err, again
    mine = {n for n in set(os.listdir("/dev/shm")) - shm if any(str(p) in n for p in (running.pid, running.agent_pid))}
    assert not mine, mine


def test_the_guard_gives_its_code_though_nobody_reads_its_console():
    with support.Job(["sleep", "600"]) as job:
        support.wait_until(lambda: support.children(job.agent), "a worker")
        agent = job.agent
        job.process.stderr.close()
        os.kill(agent, signal.SIGKILL)
        assert job.process.wait(30) == 111
        job.wait_gone()
