# covers: launcher/hosts launcher/rounds worker/run
"""`train` on an elastic job: a host that is asked to stop saves with all others, leaves with 75, and they go on with the same samples; a person's INT, or
too few left, stops the whole job.
run: waits
run: timeout 300
"""

import os
import re
import shutil
import signal

import pytest

import hosts
import training
from hosts import PORT, Rounds
from support import children, wait_until

STEPS = 500


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A job, and its losses when nothing happens, by number of ranks."""
    folder = tmp_path_factory.mktemp("leave")
    job = training.make_job(folder, steps=STEPS, checkpointing={"save_every_n_steps": 100, "keep_last_n": 1000}, logging={"log_every_n_steps": 1})
    assert training.train(job, folder / "three", ranks=3).code == 0
    return folder, job, training.metrics(folder / "three")


def start(host, job, out, nnodes="1:3"):
    return host.job([f"--nnodes={nnodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}", "--rdzv_id=leave", "--rdzv_conf=last_call_timeout=1", "train",
                     job, "--output_dir", out])


def wait_step(job, step, world=0):
    """Until a worker of this host has come so far (in a round of so many ranks)."""

    def there():
        for pid in children(job.agent):
            try:
                page = training.Page(pid)
                with open(f"/proc/{pid}/environ", "rb") as f:
                    size = int(dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)[b"WORLD_SIZE"])
            except (OSError, KeyError, ValueError):
                continue
            if page.step() >= step and world in (0, size):
                return page
        return None

    return wait_until(there, f"step {step}", step_s=0.002)


def resumed_at(out):
    """Where each round but the first one began."""
    with open(os.path.join(out, "events.jsonl")) as f:
        return [int(x) for x in re.findall(r'"event": ?"resume"[^}]*?"step": ?(\d+)', f.read())]


def losses_from(out, step, job, ranks, other):
    """Losses of a run on one host that goes on from a checkpoint of another one."""
    shutil.copytree(out, other)
    for name in os.listdir(other / "checkpoints"):
        if name.startswith("step-") and int(name[5:]) > step:
            shutil.rmtree(other / "checkpoints" / name)
    result = training.train(job, other, ranks=ranks)
    assert result.code == 0, result
    return training.metrics(other)


@pytest.mark.parametrize("leaver", "ca")
def test_a_host_leaves_and_the_others_go_on(place, leaver):
    folder, job, undisturbed = place
    out = folder / f"without-{leaver}"
    with hosts.network(3) as net:
        jobs = {h.name: start(h, job, out) for h in net.hosts}
        with Rounds(*jobs.values()):
            wait_step(jobs["b"], 30, world=3)
            jobs[leaver].signal(signal.SIGTERM)
            results = dict(zip(jobs, hosts.finish(*jobs.values())))
    stay = "abc".replace(leaver, "")
    assert results[leaver].code == 75 and [results[n].code for n in stay] == [0, 0], results
    assert "left because of TERM: state saved; the others go on" in results[leaver].err, results
    for n in stay:
        said = re.findall(rf"host {leaver} \(pid \d+\): was asked to stop: all save, then it leaves; going on with 2 of 3 hosts \(minimum 1\)", results[n].err)
        assert len(said) == 1 and "left; going on" not in results[n].err, results  # said once
        assert "restarting" not in results[n].err and "killed" not in results[n].err, results
    steps = resumed_at(out)
    assert len(steps) == 1 and 30 <= steps[0] < STEPS, (steps, results)
    losses = training.metrics(out)
    later = losses_from(out, steps[0], job, 2, folder / f"again-{leaver}")
    assert sorted(losses) == list(range(1, steps[0] + -(-(STEPS - steps[0]) * 3 // 2) + 1))  # the samples of two thirds of the ranks
    assert {s: x for s, x in losses.items() if s <= steps[0]} == {s: x for s, x in undisturbed.items() if s <= steps[0]}
    assert losses == later
    assert training.hash_of(out) == training.hash_of(folder / f"again-{leaver}")


def test_who_left_comes_back(place):
    folder, job, _ = place
    out = folder / "back"
    with hosts.network(2) as net:
        a, b = (start(h, job, out, "1:2") for h in net.hosts)
        wait_step(a, 10, world=2)
        b.signal(signal.SIGTERM)
        left = hosts.finish(b)[0]
        wait_step(a, 11, world=1)
        again = start(net.hosts[1], job, out, "1:2")
        wait_step(again, 12, world=2)
        results = hosts.finish(a, again)
    assert left.code == 75 and [r.code for r in results] == [0, 0], (left, results)
    assert sorted(training.metrics(out)) == list(range(1, training.last_step(out, STEPS) + 1))


@pytest.mark.parametrize("name", ["all", "one after the other", "INT", "minimum"])
def test_the_whole_job_stops(place, name):
    folder, job, _ = place
    out = folder / f"stop-{name}".replace(" ", "-")
    with hosts.network(2 if name == "minimum" else 3) as net:
        jobs = [start(h, job, out, "2:3" if name == "minimum" else "1:3") for h in net.hosts]
        wait_step(jobs[-1], 20, world=len(jobs))
        if name == "all":
            for j in jobs:
                j.signal(signal.SIGTERM)
        elif name == "one after the other":  # the last one is alone when it is asked
            for j in jobs:
                j.signal(signal.SIGTERM)
                if j is not jobs[-1]:
                    j.process.wait(30)
        else:
            jobs[-1].signal(signal.SIGINT if name == "INT" else signal.SIGTERM)
        results = hosts.finish(*jobs)
    assert [r.code for r in results] == [75] * len(jobs), results
    saved = max(int(n[5:]) for n in os.listdir(out / "checkpoints") if re.fullmatch(r"step-\d+", n))
    assert 20 <= saved < STEPS, (saved, results)
