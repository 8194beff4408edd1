"""`train` over several hosts (agents of this machine): the bits of one host, also after a worker is killed.
run: alone
run: timeout 400
"""

import os
import random
import re
import signal
import socket

import pytest

import training
from support import Job, children, wait_until
from test_nodes import c10d, finish, free_port

STEPS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    return folder, training.make_job(folder, steps=STEPS)


@pytest.fixture(scope="module")
def one_host(place):
    """Hashes of one host, by number of ranks."""
    folder, job = place
    hashes = {}
    for ranks in (2, 3, 4):
        out = folder / f"one-{ranks}"
        result = training.train(job, out, ranks=ranks)
        assert result.code == 0, result
        hashes[ranks] = training.hash_of(out)
    return hashes


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
    assert training.hash_of(out) == one_host[sum(layout)]


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


def is_taken(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def worker_at(job, step):
    """Pid of a worker that came so far, once there is one."""

    def there():
        for pid in children(job.agent_pid):
            try:
                page = training.Page(pid)
            except (OSError, KeyError, ValueError):
                continue
            if page.step() >= step:
                return pid
        return None

    job.agent_pid = job.agent
    return wait_until(there, f"step {step}", step_s=0.001)


def test_a_lost_host_costs_no_restart_whoever_notices_first(place):
    """A worker loses its peer some time before its host is known to be lost: that is the same loss, and no restart is needed for it."""
    folder, job = place
    port, out = free_port(), folder / "lost"
    args = c10d(port, "1:2", "--max_restarts=0", "--nproc_per_node=1", "train", job, "--output_dir", out, "--set", "training.max_steps=500")
    with Job(args) as a:
        wait_until(lambda: is_taken(port), "the endpoint")
        with Job(args) as b:
            here, there = worker_at(a, 20), worker_at(b, 20)
            os.kill(b.agent_pid, signal.SIGSTOP)  # it cannot say what becomes of its worker
            os.kill(there, signal.SIGKILL)
            wait_until(lambda: not os.path.exists(f"/proc/{here}"), "the end of the round")
            b.kill()
            result = a.finish()
            a.wait_gone()
    assert result.code == 0 and result.err.count("going on with 1 of 2 hosts") == 1, result
    assert "continues from" in result.err and "restarting" not in result.err and "no restart left" not in result.err, result
    assert max(training.metrics(out)) == 500


def test_a_killed_worker_costs_a_round(place, one_host):
    folder, _ = place
    port, out = free_port(), folder / "killed"
    rng = random.Random(7)
    with start(place, out, port, 2, 1) as a, start(place, out, port, 2, 1) as b:
        victim = rng.choice([a, b])
        victim.agent_pid = victim.agent

        def page_at_20():
            for pid in children(victim.agent_pid):
                try:
                    page = training.Page(pid)
                except (OSError, KeyError, ValueError):
                    continue
                if page.step() >= 20:
                    return page
            return None

        os.kill(wait_until(page_at_20, "step 20", step_s=0.001).pid, signal.SIGKILL)
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    assert training.hash_of(out) == one_host[2]
