# covers: launcher/hosts collectives/tcp.c
"""`train` over several hosts (agents of this machine): the bits of one host, also after a worker is killed.
run: waits
run: timeout 400
"""

import os
import random
import re
import signal

import pytest

import training
from support import Job, wait_until
from nodes import c10d, finish, free_port, listens, static

STEPS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    return folder, training.make_job(folder, steps=STEPS)


@pytest.fixture(scope="module")
def one_host(place):
    return training.one_host(*place)


def start(place, out, port, nnodes, local, *rest):
    _, job = place
    return Job(c10d(port, nnodes, f"--nproc_per_node={local}", "train", job, "--output_dir", out, *rest))


@pytest.mark.parametrize("layout, strategy", [((1, 1), "ddp"), ((2, 1), "full_shard"), ((1, 2), "zero1"), ((2, 2), "zero2"), ((1, 1, 1), "ddp"), ((3, 1), "full_shard")])
def test_equal_to_one_host(place, one_host, layout, strategy):
    folder, _ = place
    port, out = free_port(), folder / ("hosts-" + "-".join(map(str, layout)) + strategy)
    jobs = [start(place, out, port, len(layout), local, "--mode", strategy) for local in layout]
    results = finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), results
    assert training.hash_of(out) == one_host(sum(layout))[0]


def test_hosts_of_different_sizes_have_no_shard_group_each(place):
    """Each host by itself would make other groups: all ranks know the hosts of all, and say what is to be given."""
    folder, _ = place
    port, out = free_port(), folder / "uneven"
    jobs = [start(place, out, port, 3, local, "--mode", "hybrid_shard") for local in (2, 1, 1)]
    results = finish(*jobs)
    assert [r.code for r in results] == [100] * 3, results
    text = "fsdp.device_mesh: not given, and the hosts have "
    assert any(re.search(re.escape(text) + r"(2,1,1|1,2,1|1,1,2) ranks: a shard group per host needs as many on each; give \[replicas, shards\]", r.err)
               for r in results), results


def test_a_lost_host_costs_no_restart_whoever_notices_first(place):
    """A worker loses its peer some time before its host is known to be lost: that is the same loss, and no restart is needed for it."""
    folder, job = place
    port, out = free_port(), folder / "lost"
    args = c10d(port, "1:2", "--max_restarts=0", "--nproc_per_node=1", "train", job, "--output_dir", out, "--set", "training.max_steps=500")
    with Job(args) as a:
        wait_until(lambda: listens(port), "the endpoint")
        with Job(args) as b:
            here, there, agent = training.worker_at([a], 20).pid, training.worker_at([b], 20).pid, b.agent
            os.kill(agent, signal.SIGSTOP)  # it cannot say what becomes of its worker
            os.kill(there, signal.SIGKILL)
            wait_until(lambda: not os.path.exists(f"/proc/{here}"), "the end of the round")
            b.kill()
            result = a.finish()
            a.wait_gone()
    assert result.code == 0 and result.err.count("going on with 1 of 2 hosts") == 1, result
    assert "continues from" in result.err and "restarting" not in result.err and "no restart left" not in result.err, result
    assert max(training.metrics(out)) == training.last_step(out, 500) > 500


def test_a_killed_worker_costs_a_round(place, one_host):
    folder, _ = place
    port, out = free_port(), folder / "killed"
    rng = random.Random(7)
    with start(place, out, port, 2, 1) as a, start(place, out, port, 2, 1) as b:
        os.kill(training.worker_at([rng.choice([a, b])], 20).pid, signal.SIGKILL)
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    assert training.hash_of(out) == one_host(2)[0]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_host_that_finds_something_wrong_tells_the_others(place, failing):
    """It does not see the data, or may not write the folder: the others do not wait for it until --join_timeout, and end with its code."""
    folder, job = place
    port, out = free_port(), folder / f"failing-{failing}"
    wrong = [["--set", "data.train=/nowhere/*.bin"], ["--output_dir", "/dev/null/x"]][failing]
    jobs = [Job(static(port, rank, 2, "train", job, "--output_dir", out, *(wrong if rank == failing else []))) for rank in range(2)]
    results = finish(*jobs)
    assert [r.code for r in results] == [2, 2], results
    own, other = results[failing], results[1 - failing]
    assert re.fullmatch(r"train: .*(/nowhere/|output_dir: ).*\n(dtrun: waiting some seconds more for other hosts.*\n)?", own.err), own
    assert re.search(r"^dtrun: host \S+ cannot take part: the check of the job failed with exit code 2; its own output says why$", other.err, re.M), other


def test_an_elastic_job_goes_on_without_a_host_that_finds_something_wrong(place):
    folder, _ = place
    port, out = free_port(), folder / "failing-elastic"
    with start(place, out, port, "1:2", 1, "--set", "training.max_steps=2000") as a:
        wait_until(lambda: os.path.exists(out / "metrics.jsonl") and "\n" in (out / "metrics.jsonl").read_text(), "a step")
        with start(place, out, port, "1:2", 1, "--set", "data.train=/nowhere/*.bin") as b:
            refused = b.finish()
        result = a.finish()
        a.wait_gone()
    assert refused.code == 2 and "/nowhere/" in refused.err, refused
    assert result.code == 0 and re.search(r"^dtrun: host \S+ cannot take part: the check of the job failed with exit code 2; its own output says why$", result.err, re.M), result


def test_all_hosts_with_the_same_mistake_end_soon(place):
    folder, _ = place
    port = free_port()
    jobs = [start(place, folder / "mistake", port, 2, 1, "--set", "training.no_such_key=1") for _ in range(2)]
    results = finish(*jobs)
    assert [r.code for r in results] == [2, 2] and all("no_such_key" in r.err for r in results), results
