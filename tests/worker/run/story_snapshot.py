# covers: worker/run/trainer_snapshot.c worker/checkpoints/snapshot.c base/snapshots.c launcher/job/spawn.c
"""`checkpointing.snapshot_every_n_steps`: a killed worker's job goes on from the last step, with the bits of an undisturbed run, and nothing is
left in memory afterwards."""

import json
import os
import random
import re
import signal
import time

import pytest
import support
import training

STEPS = 120
SNAPSHOTS = ["checkpointing.snapshot_every_n_steps=1", "checkpointing.save_every_n_steps=0"]
SEED = int(os.environ.get("DTRUN_SEED", str(random.randrange(10**6))))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshot")
    return folder, training.make_job(folder, steps=STEPS, training={"eval_every_n_steps": 0})


def events(out, name):
    with open(out / "events.jsonl") as f:
        return [x for x in map(json.loads, f) if x["event"] == name]


def shared_memory():
    return set(os.listdir("/dev/shm"))


def start(job, out, ranks, strategy, sets, options=()):
    words = [*options, f"--nproc_per_node={ranks}", "train", job, "--output_dir", out, "--mode", strategy]
    for s in sets:
        words += ["--set", s]
    return support.Job(words)


def kill_one(running, ranks, step, rng):
    """kill -9 of a rank that has come to the step; where it was then."""
    pages = training.wait_pages(running, ranks, step)
    page = rng.choice(list(pages.values()))
    time.sleep(rng.random() * 0.01)
    at = page.step()
    os.kill(page.pid, signal.SIGKILL)
    return at


@pytest.mark.parametrize("ranks,strategy,sets", [
    (1, "auto", []),
    (2, "ddp", ["training.precision=bf16-mixed"]),
    (3, "zero2", ["training.precision=bf16-mixed", "training.optimizer_state_dtype=bf16", "training.gradient_accumulation_steps=2"]),
    (3, "full_shard", ["training.precision=16-mixed"]),
    (4, "hybrid_shard", ["fsdp.device_mesh=[2,2]"]),
])
def test_a_killed_worker(place, ranks, strategy, sets):
    folder, job = place
    plain, out = folder / f"plain-{strategy}", folder / f"killed-{strategy}"
    assert training.train(job, plain, ranks=ranks, strategy=strategy, sets=[*sets, *SNAPSHOTS]).code == 0
    rng, before, killed = random.Random(f"{SEED} {strategy}"), shared_memory(), []
    with start(job, out, ranks, strategy, [*sets, *SNAPSHOTS], ["--max_restarts=5"]) as running:
        for step in (3, 30, 31, 80):
            killed.append(kill_one(running, ranks, max(step, *killed, 0) + 1 if killed else step, rng))
        result = running.finish()
        running.wait_gone()
    assert result.code == 0, f"seed {SEED}: {result}"
    resumed = events(out, "resume")
    assert all(x["snapshot"] for x in resumed) and len(resumed) == len(killed), (SEED, resumed, killed)
    # the page shows the step before its snapshot is made; the step after it may have been complete
    assert all(at - 1 <= x["step"] <= at + 3 for at, x in zip(killed, resumed)), (SEED, resumed, killed)
    said = [int(x) for x in re.findall(r"restarting .* from step (\d+)", result.err)]
    # another rank may still complete the snapshot of the next step after that
    assert len(said) == len(resumed) and all(0 <= x["step"] - s <= 1 for x, s in zip(resumed, said)), (SEED, result)
    assert training.hash_of(out) == training.hash_of(plain), SEED
    assert training.metrics(out) == training.metrics(plain), SEED
    assert shared_memory() <= before, SEED


def test_a_checkpoint_that_is_newer(place):
    """Snapshots every 50 steps, checkpoints every 10: the newer of both is gone on from."""
    folder, job = place
    plain, out = folder / "plain-newer", folder / "newer"
    sets = ["checkpointing.snapshot_every_n_steps=50", "checkpointing.save_every_n_steps=10"]
    assert training.train(job, plain, sets=sets).code == 0
    with start(job, out, 2, "ddp", sets, ["--max_restarts=5"]) as running:
        kill_one(running, 2, 38, random.Random(SEED))
        training.wait_pages(running, 2, 53)
        kill_one(running, 2, 53, random.Random(SEED))
        result = running.finish()
    assert result.code == 0, result
    first, second = events(out, "resume")
    assert first["step"] % 10 == 0 and "snapshot" not in first, first
    assert second["step"] % 10 == 0 and ("snapshot" in second) == (second["step"] == 50), second
    assert training.hash_of(out) == training.hash_of(plain)


def test_nothing_is_left_of_a_killed_job(place):
    folder, job = place
    before = shared_memory()
    with start(job, folder / "gone", 2, "ddp", SNAPSHOTS) as running:
        training.wait_pages(running, 2, 5)
        os.kill(running.agent, signal.SIGKILL)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        support.wait_until(lambda: shared_memory() <= before, "an empty /dev/shm")


def test_memory_that_is_not_to_be_had(place):
    """A limit on file sizes counts for this memory, too: the run goes on without snapshots."""
    folder, job = place
    out = folder / "limited"
    words = ["--nproc_per_node=2", "train", job, "--output_dir", out, "--set", "training.max_steps=10", "--set", SNAPSHOTS[0]]
    result = support.run(["-c", 'ulimit -f 2000000; exec "$0" "$@"', support.DTRUN, *words], executable="/bin/sh")
    assert result.code == 0, result
    assert "no snapshots" in result.out + result.err, result


def test_a_rank_without_memory_after_a_restart(place):
    """It gets the state of another rank of its host."""
    folder, job = place
    plain, out = folder / "plain-alone", folder / "alone"
    sets = [x for s in SNAPSHOTS for x in ("--set", s)]
    assert training.train(job, plain, strategy="ddp", sets=SNAPSHOTS).code == 0
    train = support.script(folder, "forgets.sh", f"""[ "$LOCAL_RANK" = 0 ] || [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || unset DTRUN_SNAPSHOTS
exec '{support.program("train")}' "$@"
""")
    with support.Job(["--nproc_per_node=2", "--max_restarts=1", "--no_python", train, job, "--output_dir", out, "--mode", "ddp", *sets]) as running:
        at = kill_one(running, 2, 40, random.Random(SEED))
        result = running.finish()
    assert result.code == 0, f"seed {SEED}: {result}"
    resumed = events(out, "resume")
    assert len(resumed) == 1 and resumed[0].get("snapshot") and resumed[0]["step"] >= at - 1, (SEED, resumed, at)
    assert "train: ranks that lack the snapshot of step " in result.out + result.err, result
    assert (training.hash_of(out), training.metrics(out)) == (training.hash_of(plain), training.metrics(plain)), (SEED, result)


def test_before_the_first_snapshot(place):
    """Without a checkpoint, either: it is not said that one is gone on from."""
    folder, job = place
    out = folder / "early"
    sets = ["training.max_steps=800", "checkpointing.snapshot_every_n_steps=800", "checkpointing.save_every_n_steps=0"]  # it is killed long before 800
    with start(job, out, 1, "auto", sets, ["--max_restarts=1"]) as running:
        kill_one(running, 1, 5, random.Random(SEED))
        result = running.finish()
    assert result.code == 0 and not events(out, "resume"), result
    assert "train: no snapshot is whole: no host has one that serves its ranks as they are now; the run begins again" in result.err, result
