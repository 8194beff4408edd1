# covers: worker/run worker/checkpoints launcher/job
"""kill -9 of a worker at any moment: the job goes on by itself and ends with the hash of an undisturbed run.
DTRUN_KILLS=N kills (default 30, 1000 in the full tier); the moments come from DTRUN_SEED, which a failure prints.
run: timeout 900
"""

import collections
import concurrent.futures
import contextlib
import os
import random
import re
import shutil
import signal
import time

import pytest

import support
import training

KILLS = int(os.environ.get("DTRUN_KILLS", "30"))
SEED = int(os.environ.get("DTRUN_SEED", str(random.randrange(10**6))))
MOMENTS = ["start", "forward", "backward", "collective", "evaluation", "save", "exit"]
PER_JOB = 6
JOBS_AT_ONCE = 2
STEPS = 150


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    job = training.make_job(folder, steps=STEPS)
    result = training.train(job, folder / "plain", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "plain"), training.metrics(folder / "plain")


def kill_at(job, moment, rng, done, best):
    """Waits until some worker is at the moment, kills it, and returns its step; None when the job ended before. Each kill comes at a later step than
    those before (`best`), except at the start of a round: three restarts without progress would rightly end the job."""
    deadline = time.monotonic() + support.DEADLINE_S
    wanted = best + 1 + rng.randrange(max(1, (STEPS - best) // 4))
    pages = None
    while time.monotonic() < deadline:
        if job.process.poll() is not None:
            return None
        pages = pages or training.pages(job, 2)
        if not pages:
            continue
        if not all(support.alive(p.pid) for p in pages.values()):
            pages = None
            continue
        for page in rng.sample(list(pages.values()), 2):
            step = page.step()
            hit = page.in_collective() if moment == "collective" else page.phase() == moment
            if hit and (moment == "start" or step >= wanted):
                with contextlib.suppress(OSError):
                    os.kill(page.pid, signal.SIGKILL)
                    done[moment] = done.get(moment, 0) + 1
                    return max(best, step)
        time.sleep(0.0001)  # a moment lasts longer, and without a core of its own for this loop more jobs run
    raise AssertionError(f"no worker came to {moment}")


def check_words(said):
    """What dtrun says of a restart, against where rank 0 then goes on: exactly there, unless it says "or later". A start that is killed says nothing."""
    for part in said.split("; restarting (")[1:]:
        claim, real = re.match(r"\d+ of 100 used\)(?: from step (\d+)( or later)?)?$", part.split("\n")[0]), re.search(r"^train: continues .* \(step (\d+)\)", part, re.M)
        assert claim, part
        if real and claim[1]:
            assert int(real[1]) == int(claim[1]) or (claim[2] and int(real[1]) > int(claim[1])), part


def one_job(place, number, wishes):
    """A job that is killed at these moments, or some of them, and then checked; how often at which."""
    folder, path, expected, losses = place
    rng = random.Random(f"{SEED} {number}")
    where, out, done = f"seed {SEED} job {number} {wishes}", folder / f"killed-{number}", {}
    snapshots = ["--set", f"checkpointing.snapshot_every_n_steps={number % 2}"]  # every other job goes on from memory
    with support.Job(["--nproc_per_node=2", "--max_restarts=100", "train", path, "--output_dir", out, *snapshots]) as job:
        job.agent_pid = job.agent
        best = 0
        for moment in wishes:
            best = kill_at(job, moment, rng, done, best)
            if best is None:
                break
        result = job.finish()
        job.wait_gone()
    assert result.code == 0, f"{where}\n{result}"
    assert training.hash_of(out) == expected, f"{where}: another hash\n{result}"
    check_words(result.err)
    after = training.metrics(out)
    assert {s: after[s] for s in losses} == losses, f"{where}: other losses"
    shutil.rmtree(out)
    return done


def missing(total):
    return [m for m in MOMENTS if not total[m]]


def test_kills(place):
    print(f"seed {SEED}")
    total, number = collections.Counter(), 0
    with concurrent.futures.ThreadPoolExecutor(JOBS_AT_ONCE) as pool:
        while total.total() < KILLS or missing(total):
            # Each moment comes first in some job; at last come those that no job was killed at, for some are short.
            number += 1
            wishes = [MOMENTS[(number * PER_JOB + i) % len(MOMENTS)] for i in range(PER_JOB)] if total.total() < KILLS else missing(total)
            wishes.sort(key=lambda m: m == "exit")
            batch = [pool.submit(one_job, place, number * JOBS_AT_ONCE + i, wishes) for i in range(JOBS_AT_ONCE)]
            for job in batch:
                total.update(job.result())
            assert number < KILLS + 20, f"seed {SEED}: only {total} after {number} times {JOBS_AT_ONCE} jobs"
    print(dict(total))
