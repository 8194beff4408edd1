# covers: worker/run/trainer_peers.c worker/run/trainer_snapshot.c worker/checkpoints/snapshot.c worker/checkpoints/snapshot_choice.c
"""Snapshots of a job on several hosts (agents of this machine): a killed worker's job goes on from the last step with the bits of an undisturbed
run, whatever host the worker was on; a host that is lost takes its memory along, and its ranks then have the state of others, or all a checkpoint's.
run: waits
run: timeout 400
"""

import json
import os
import random
import re
import signal
import struct
import time

import pytest

import nodes
import support
import training

STEPS = 60
SNAPSHOTS = ["checkpointing.snapshot_every_n_steps=1", "checkpointing.save_every_n_steps=0"]
SEED = int(os.environ.get("DTRUN_SEED", str(random.randrange(10**6))))
MESH = ["fsdp.device_mesh=[2,2]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshot-hosts")
    return folder, training.make_job(folder, steps=STEPS, training={"eval_every_n_steps": 0})


@pytest.fixture(scope="module")
def images(place):
    """A job of a ResNet, whose ranks' running statistics differ after each step; runs long enough to be disturbed well before its end, and not
    so long that running statistics forget where they began."""
    folder, _ = place
    r, count, side = random.Random(5), 48, 12
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, side, side) + r.randbytes(count * side * side))
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + bytes(i % 3 for i in range(count)))
    job = {"model": {"name": "resnet", "num_channels": 1, "image_size": side, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                     "layer_type": "basic", "stem": "small", "num_labels": 3},
           "data": {"train": str(folder / "train-*-ubyte")},
           "training": {"batch_size_per_gpu": 4, "max_steps": 120, "learning_rate": 0.01, "threads": 1},
           "optimizer": {"name": "sgd", "momentum": 0.9},
           "logging": {"log_every_n_steps": 10}}
    (folder / "images.json").write_text(json.dumps(job))
    return folder, str(folder / "images.json")


@pytest.fixture(scope="module")
def plain(place):
    """Hash and losses of undisturbed runs on one host, which are made once each."""
    folder, text_job = place
    known = {}

    def get(ranks, strategy, sets, job=text_job):
        key = (ranks, strategy, tuple(sets), job)
        if key not in known:
            out = folder / f"plain-{len(known)}"
            assert training.train(job, out, ranks=ranks, strategy=strategy, sets=[*SNAPSHOTS, *sets]).code == 0
            known[key] = training.hash_of(out), training.metrics(out)
        return known[key]

    return get


def start(place, out, port, nnodes, local, strategy, sets, *options):
    _, job = place
    return support.Job(nodes.c10d(port, nnodes, f"--nproc_per_node={local}", "--max_restarts=9", *options, "train", job, "--output_dir", out,
                                  "--mode", strategy, *(x for s in [*SNAPSHOTS, *sets] for x in ("--set", s))))


def resumed(out):
    try:
        with open(out / "events.jsonl") as f:
            return [x for x in map(json.loads, f.read().rpartition("\n")[0].splitlines()) if x["event"] == "resume"]
    except FileNotFoundError:
        return []


def workers(jobs):
    """Processes of the workers that run now."""
    found = []
    for pid in (pid for job in jobs for agent in support.children(job.pid) for pid in support.children(agent)):
        try:
            found.append(training.Page(pid).pid)
        except (OSError, KeyError, ValueError):  # a helper, or it has ended
            continue
    return found


def wait_resumed(out, count):
    support.wait_until(lambda: len(resumed(out)) >= count, f"round {count + 1} to begin")


def kill_at(jobs, step, rng, count=1):
    """kill -9 of workers when one has come to the step: of `count` of them, of any host. Returns where the run was, as near as
    the page says: from the step before the kill to the step behind it, which lie apart where this process waits for a core."""
    page = training.worker_at(jobs, step)
    pids = workers(jobs)
    before = page.step()
    time.sleep(rng.random() * 0.01)  # in a step, in the copy, or between the two
    killed = 0
    for pid in rng.sample(pids, count):
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:  # of a round that is over
            continue
    if killed == 0:
        return kill_at(jobs, step, rng, count)
    return before, page.step()


@pytest.mark.parametrize("layout, strategy, sets", [
    ((1, 1), "ddp", []),
    ((2, 1), "full_shard", ["training.precision=bf16-mixed"]),
    ((2, 1), "zero3", []),
    ((1, 2), "zero2", ["training.precision=bf16-mixed"]),
    ((2, 1), "zero1", []),
    ((1, 1), "local_sgd", ["local_sgd.period=3", "local_sgd.warmup_steps=4"]),
    ((2, 2), "hybrid_shard", MESH),
    ((1, 2), "ddp", ["ddp.comm_hook=power_sgd", "power_sgd.start_powerSGD_iter=4"]),
])
def test_killed_workers(place, plain, layout, strategy, sets):
    """One, then two at once, then one again before the round has made a step."""
    folder, _ = place
    port, out, rng = nodes.free_port(), folder / f"killed-{strategy}-{len(sets)}-{sum(layout)}", random.Random(f"{SEED} {strategy} {layout}")
    jobs = [start(place, out, port, len(layout), local, strategy, sets) for local in layout]
    killed = [kill_at(jobs, 5, rng)]
    wait_resumed(out, 1)
    killed.append(kill_at(jobs, killed[0][1] + 10, rng, 2))
    wait_resumed(out, 2)
    killed.append(kill_at(jobs, killed[1][0] - 2, rng))
    results = nodes.finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), f"seed {SEED}: {results}"
    back = resumed(out)
    assert len(back) == 3 and all(x.get("snapshot") for x in back), (SEED, back, killed, results)
    assert all(first - 2 <= x["step"] <= last + 4 for (first, last), x in zip(killed, back)), (SEED, back, killed)
    assert (training.hash_of(out), training.metrics(out)) == plain(sum(layout), strategy, sets), (SEED, results)
    assert any(re.search(r"restarting \(\d of 9 used\) from about step \d+", r.err) for r in results), results


def replace_host(place, out, layout, strategy, sets, lost, at):
    """A run, of which a host, number `lost` by ranks, is killed at a step and started again; its results."""
    port, options = nodes.free_port(), ["--rdzv_conf=last_call_timeout=1,keep_alive_interval=1"]
    jobs = [start(place, out, port, len(layout), local, strategy, sets, *options) for local in layout]
    jobs.sort(key=lambda job: training.worker_at([job], at).rank)
    jobs[lost].kill()
    jobs[lost] = start(place, out, port, len(layout), layout[lost], strategy, sets, *options)
    results = nodes.finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), results
    return results, "".join(r.out + r.err for r in results)


# The host that stays may get the other rank, whose part it never had.
NONE = r"train: no snapshot is whole: (the host of rank \d lacks the newest, and no group of ranks has all of it|no host has one that serves .*); "


@pytest.mark.parametrize("layout, strategy, sets, again", [
    ((1, 1), "ddp", ["training.precision=bf16-mixed"], True),
    ((2, 2), "hybrid_shard", [*MESH, "offload.optimizer=nvme", "offload.parameters=nvme", "offload.nvme_path=FOLDER"], True),
    ((1, 1), "full_shard", [], False),
    ((1, 1), "zero1", [], False),
])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_replaced(place, plain, layout, strategy, sets, again, lost):
    """Its memory is gone. Ranks of the new host get the state of others where these have all of it; otherwise all ranks take a checkpoint."""
    folder, _ = place
    out = folder / f"replaced-{strategy}-{lost}"
    sets = [*(s.replace("FOLDER", str(folder)) for s in sets), "checkpointing.save_every_n_steps=25"]
    results, said = replace_host(place, out, layout, strategy, sets, lost, 27)
    back = resumed(out)
    assert len(back) == 1 and bool(back[0].get("snapshot")) == again, (back, results)
    # This process may have waited for a core until the second checkpoint was there.
    assert (back[0]["step"] >= 26) if again else (back[0]["step"] in (25, 50)), back
    assert ("ranks that lack the snapshot of step" in said) == again, results
    assert (re.search(NONE + "a checkpoint is gone on from", said) is None) == again, results
    assert (training.hash_of(out), training.metrics(out)) == plain(sum(layout), strategy, sets), results


@pytest.mark.parametrize("lost", [0, 1])
def test_running_statistics(images, plain, lost):
    """Those of rank 0 are the run's, also where its host is the lost one."""
    folder, job = images
    out = folder / f"statistics-{lost}"
    results, _ = replace_host(images, out, (1, 1), "ddp", [], lost, 80)
    back = resumed(out)
    assert len(back) == 1 and back[0].get("snapshot") and back[0]["step"] >= 79, (back, results)
    assert (training.hash_of(out), training.metrics(out)) == plain(2, "ddp", [], job), results


def test_a_host_that_is_replaced_before_any_checkpoint(place, plain):
    """It is not said that a checkpoint is gone on from."""
    out = place[0] / "no-checkpoint"
    results, said = replace_host(place, out, (1, 1), "full_shard", [], 0, 20)
    assert re.search(NONE + "the run begins again", said) and "a checkpoint is gone on from" not in said, results
    assert not resumed(out) and (training.hash_of(out), training.metrics(out)) == plain(2, "full_shard", []), results


def test_a_host_without_memory(place, plain):
    """Its second snapshot fails: from then on other hosts have the only ones, from which its ranks go on, too."""
    folder, job = place
    port, out = nodes.free_port(), folder / "no-memory"
    train = support.script(folder, "limited.sh", f"""[ "$RANK" != 0 ] || ulimit -f 2000000
exec '{support.program("train")}' "$@"
""")
    jobs = [support.Job(nodes.c10d(port, 2, "--nproc_per_node=1", "--max_restarts=9", "--no_python", train, job, "--output_dir", out, "--mode", "ddp",
                                   *(x for s in SNAPSHOTS for x in ("--set", s)))) for _ in range(2)]
    at, _ = kill_at(jobs, 20, random.Random(SEED))
    results = nodes.finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    back, said = resumed(out), "".join(r.out + r.err for r in results)
    assert "; this host has no more snapshots: a lost worker goes on from those of other hosts where they have all of it" in said, results
    assert len(back) == 1 and back[0].get("snapshot") and back[0]["step"] >= at - 2, (back, at, results)
    assert (training.hash_of(out), training.metrics(out)) == plain(2, "ddp", []), results


@pytest.mark.parametrize("strategy, again", [("ddp", True), ("full_shard", False)])
def test_hosts_that_come_and_go(place, strategy, again):
    """2 hosts, then 1, then 2: the run goes on from memory where each host has all, and never loses or repeats samples."""
    folder, _ = place
    port, out = nodes.free_port(), folder / f"elastic-{strategy}"
    sets = ["training.max_steps=400", "checkpointing.save_every_n_steps=50"]
    with start(place, out, port, "1:2", 1, strategy, sets) as a:
        support.wait_until(lambda: nodes.listens(port), "the endpoint")
        with start(place, out, port, "1:2", 1, strategy, sets) as b:
            training.worker_at([b], 60)
            b.kill()
        wait_resumed(out, 1)
        training.worker_at([a], 110)
        with start(place, out, port, "1:2", 1, strategy, sets) as b:
            results = nodes.finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    back = resumed(out)
    assert len(back) >= 2 and any(x.get("snapshot") for x in back) == again, (back, results)
    assert all(x.get("snapshot") or x["step"] % 50 == 0 for x in back), back  # a checkpoint that is as new is taken, too
    assert max(training.metrics(out)) == training.last_step(out, 400), results


def test_killed_while_they_go_on(place, plain):
    """In the start, while it reads the snapshot, and in the first step: again and again from the same step."""
    folder, _ = place
    port, out, rng, sets = nodes.free_port(), folder / "again", random.Random(SEED), ["training.max_steps=500"]
    jobs = [start(place, out, port, 2, local, "zero2", sets) for local in (2, 1)]
    at = 20
    for _ in range(3):
        training.worker_at(jobs, at)
        before = workers(jobs)
        at = kill_at(jobs, at, rng)[0] + 8  # a job that comes no further is ended after a third time
        support.wait_until(lambda: len(now := workers(jobs)) == 3 and not set(now) & set(before), "the next round")
        time.sleep(rng.random() * 0.2)
        os.kill(rng.choice(workers(jobs)), signal.SIGKILL)
    results = nodes.finish(*jobs)
    assert [r.code for r in results] == [0, 0], f"seed {SEED}: {results}"
    back = resumed(out)
    assert back and all(x.get("snapshot") and x["step"] >= 19 for x in back), (SEED, back, results)
    assert (training.hash_of(out), training.metrics(out)) == plain(3, "zero2", sets), (SEED, results)
