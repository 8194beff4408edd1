# covers: collectives launcher/hosts
"""Training on several hosts (agents of this machine) over a fake NCCL, a software GPU for each rank: the bits of one host with as many ranks, also after a worker
was killed or NCCL has failed on one host; fewer ranks when a host is lost; what is wrong with a host's NCCL or GPUs is one line that names it.
run: waits
run: nosan: story_softgpu_sanitized.py is the short form
run: timeout 400
"""

import contextlib
import os
import re
import signal
import time

import pytest
import support
import training
from fake_nccl import ROWS, STEPS, TRAIN, environment, library, make_place
from hosts import PORT, Rounds, network
from nodes import c10d, finish, free_port, listens

pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers")
ALL = bool(os.environ.get("DTRUN_ALL"))
NO_RESTART = ("--max_restarts=0",)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("nccl-nodes"))


def command(place, out, row, sets):
    return ["train", place[1], "--output_dir", out, "--set", f"training.strategy={row}", *[x for s in sets for x in ("--set", s)]]


@pytest.fixture(scope="module")
def one_host(place):
    """A function of ranks, row and further settings: hash and losses of one agent with so many ranks."""
    made = {}

    def of(ranks, row, *sets):
        if (ranks, row, sets) not in made:
            out = place[0] / f"one-{len(made)}"
            with support.Job([f"--nproc_per_node={ranks}", *NO_RESTART, *command(place, out, row, sets)], env=environment(ranks, {}),
                             executable=str(place[0] / "bin" / "dtrun")) as job:
                result, = finish(job)
            assert result.code == 0, result
            made[ranks, row, sets] = training.hash_of(out), training.metrics(out)
        return made[ranks, row, sets]

    return of


@contextlib.contextmanager
def begin(place, out, layout, row="ddp", sets=(), options=NO_RESTART, env=None, own=None, nnodes=None, net=None):
    """Agents with so many ranks each. own: what is set on one host only, {host: variables}; net: each on a host of that network, else all are this one.
    The first host is there before the others, so its ranks are the first ones. A process sees the GPUs of its host."""
    port, first = free_port(), 0
    with contextlib.ExitStack() as stack:
        jobs = []
        for i, count in enumerate(layout):
            gpus = ",".join(map(str, range(first, first + count)))
            first += count
            args = c10d(PORT if net else port, nnodes or len(layout), f"--nproc_per_node={count}", *options, host="a" if net else "127.0.0.1")
            args += command(place, out, row, sets)
            variables = environment(sum(layout), {"CUDA_VISIBLE_DEVICES": gpus, "NCCL_HOSTID": f"host-{i}", **(env or {}), **(own or {}).get(i, {})})
            program = str(place[0] / "bin" / "dtrun")
            job = net.hosts[i].job(args, dtrun=program, env=variables) if net else support.Job(args, env=variables, executable=program)
            jobs.append(stack.enter_context(job))
            job.agent_pid = job.agent
            if i == 0 and not net:
                support.wait_until(lambda: listens(port), "the endpoint")
        yield jobs


def run(place, out, layout, row="ddp", sets=(), **rest):
    with begin(place, out, layout, row, sets, **rest) as jobs:
        return finish(*jobs)


def lines(log, *words):
    """Of the fake's log: those that hold all of the words."""
    return [line for line in log.read_text().splitlines() if all(w in line for w in words)] if log.exists() else []


def said(results, words):
    """Lines of what the agents say that hold the words: the cause as each of them has it."""
    return [line for r in results for line in (r.err + r.out).splitlines() if line.startswith("dtrun: ") and words in line and "(first seen)" not in line]


SOME = [((1, 1), "ddp", "32-true"), ((1, 2), "full_shard", "bf16-mixed"), ((2, 1), "zero1", "32-true"), ((1, 1, 1), "shard_grad_op", "bf16-mixed")]
LAYOUTS = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 1, 1), (1, 2, 1), (2, 1, 2)]


@pytest.mark.parametrize("layout, row, precision", [(x, row, p) for x in LAYOUTS for row in ROWS for p in ("32-true", "bf16-mixed")] if ALL else SOME)
def test_equal_to_one_host(place, one_host, tmp_path, layout, row, precision):
    log, ranks, sets = tmp_path / "log", sum(layout), [f"training.precision={precision}"]
    results = run(place, tmp_path / "out", layout, row, sets, env={"SOFTGPU_NCCL_LOG": str(log)})
    assert [r.code for r in results] == [0] * len(layout), results
    assert (training.hash_of(tmp_path / "out"), training.metrics(tmp_path / "out")) == one_host(ranks, row, *sets)
    assert len(lines(log, "ncclCommInitRankConfig", f" of {ranks} comm world ")) == ranks
    assert len(lines(log, "ncclAllReduce", f" of {ranks} ")) >= STEPS * ranks and len(lines(log, "ncclCommWindowRegister")) >= ranks


def test_a_shard_group_for_each_host(place, one_host, tmp_path):
    """Sums within the host, then between hosts: the children of NCCL's communicator are as one host makes them by a mesh."""
    log = tmp_path / "log"
    results = run(place, tmp_path / "out", (2, 2), "hybrid_shard", env={"SOFTGPU_NCCL_LOG": str(log)})
    assert [r.code for r in results] == [0, 0], results
    assert (training.hash_of(tmp_path / "out"), training.metrics(tmp_path / "out")) == one_host(4, "hybrid_shard", "fsdp.device_mesh=[2,2]")
    assert len(lines(log, "ncclCommSplit")) == 3 * 4  # shard, replica, gather


def at_step(jobs, layout, step):
    """{rank: page}, when the workers of all hosts have come so far."""

    def there():
        pages = {r: p for job, count in zip(jobs, layout) for r, p in (training.pages(job, count) or {}).items()}
        return pages if len(pages) == sum(layout) and all(p.step() >= step for p in pages.values()) else None

    return support.wait_until(there, f"step {step} on all hosts", step_s=0.002)


KILLED = [((1, 2), "full_shard", 2, "22907"), ((2, 1), "ddp", 0, "21700"), ((1, 1, 1), "zero2", 0, "22907"), ((1, 2, 1), "zero1", 2, "22907")]


@pytest.mark.parametrize("layout, row, victim, version", KILLED if ALL else KILLED[:2])
def test_a_killed_worker_costs_a_round(place, one_host, tmp_path, layout, row, victim, version):
    """Ranks of the other hosts leave NCCL, whatever they wait for there, before any of the next round is there."""
    ranks, log = sum(layout), tmp_path / "log"
    expected = one_host(ranks, row)
    env = {"DTRUN_NCCL": library(version), "SOFTGPU_NCCL_LOG": str(log)}
    with begin(place, tmp_path / "out", layout, row, options=("--max_restarts=1",), env=env) as jobs:
        with Rounds(*jobs):
            pages = at_step(jobs, layout, 3)
            pids = [p.pid for p in pages.values()]
            os.kill(pages[victim].pid, signal.SIGKILL)
            support.wait_until(lambda: not any(map(support.alive, pids)), "the end of the round", 20)
            results = finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), results
    assert any("SIGKILL" in line and f"rank {victim} " in line for line in said(results, "SIGKILL")), results
    assert (training.hash_of(tmp_path / "out"), training.metrics(tmp_path / "out")) == expected, results
    assert len(lines(log, "ncclCommInitRankConfig")) == 2 * ranks


LOST = [((2, 1), 1, 2), ((1, 2, 1), 0, 3), ((1, 2), 1, 1), ((1, 1, 2), 1, 3)]


@pytest.mark.parametrize("layout, lost, left", LOST if ALL else LOST[:2])
def test_a_killed_agent_leaves_fewer_ranks(place, tmp_path, layout, lost, left):
    """With a range of hosts the others go on without a restart, from the last save; NCCL's communicator is one of fewer ranks."""
    log, count = tmp_path / "log", len(layout)
    with begin(place, tmp_path / "out", layout, "full_shard", ["training.max_steps=8"], env={"SOFTGPU_NCCL_LOG": str(log)}, nnodes=f"1:{count}") as jobs:
        with Rounds(*jobs):
            pids = [p.pid for p in at_step(jobs, layout, 3).values()]
            os.kill(jobs[lost].agent_pid, signal.SIGKILL)
            support.wait_until(lambda: not any(map(support.alive, pids)), "the end of the round", 20)
            results = finish(*jobs)
    others = [r for i, r in enumerate(results) if i != lost]
    assert [r.code for r in others] == [0] * (count - 1) and results[lost].code != 0, results
    words = "the coordinator, is gone" if lost == 0 else f"going on with {count - 1} of {count} hosts"
    assert any(words in r.err for r in others), results
    assert any("continues from" in r.err + r.out for r in others) and not any("restarting" in r.err for r in others), results
    assert sorted(training.metrics(tmp_path / "out")) == list(range(1, training.last_step(tmp_path / "out", 8) + 1))
    last = lines(log, "ncclCommInitRankConfig" if left > 1 else "ncclCommAbort")
    assert left == 1 or len([line for line in last if f" of {left} comm world " in line]) == left, last


def everyone(fault, number=""):
    """The fault for whichever rank finds it in its variables."""
    return ",".join(f"{fault}@{r}{number}" for r in range(8))


@pytest.mark.parametrize("fault, number, words", [
    ("error", ":7", "NCCL 2.29.7: on the device or between ranks: remote process exited or there was a network error"),
    ("init-error", "", "NCCL 2.29.7: ncclCommInitRankConfig: unhandled system error: a test wants it so"),
    ("no-memory", "", "NCCL 2.29.7: ncclMemAlloc of "),
])
def test_an_error_of_nccl_names_rank_and_host(place, tmp_path, fault, number, words):
    """On host b only: all leave, and both hosts report rank 2, whichever worker ended first."""
    own = {1: {"SOFTGPU_NCCL_FAULT": everyone(fault, number)}}
    with network(2) as net:
        begin_s = time.monotonic()
        results = run(place, tmp_path / "out", (2, 1), "ddp", own=own, net=net)
        took_s = time.monotonic() - begin_s
    assert [r.code for r in results] in ([1, 1], [100, 100]), results
    causes = said(results, words)
    assert len(causes) == 2 and all(re.search(r": host b rank 2 \(local 0, pid \d+\): exit code 1\d\d: ", c) for c in causes), results
    assert re.search(r"Root Cause .*\n\[0\]:\n.*\n  host +: b\n  rank +: 2 \(local_rank: 0\)\n", results[1].err), results
    assert took_s < 30


def test_an_error_of_nccl_costs_a_round(place, one_host, tmp_path):
    own = {1: {"SOFTGPU_NCCL_FAULT": everyone("late-error", ":9"), "SOFTGPU_NCCL_FAULT_RESTART": "0"}}
    results = run(place, tmp_path / "out", (1, 2), "zero1", options=("--max_restarts=1",), own=own)
    assert [r.code for r in results] == [0, 0], results
    assert said(results, "remote process exited or there was a network error"), results
    assert (training.hash_of(tmp_path / "out"), training.metrics(tmp_path / "out")) == one_host(3, "zero1"), results


@pytest.mark.parametrize("variables, words", [
    ({"DTRUN_NCCL": library("21700")}, r"rank 0 on host a has NCCL 2\.29\.7 \(\S+/22907/libnccl\.so\.2\), "
                                       r"rank 1 on host b 2\.17\.0 \(\S+/21700/libnccl\.so\.2\); install the same version on all hosts"),
    ({"DTRUN_NCCL": library("21200")}, r"rank 1 on host b: NCCL 2\.12\.0 \(\S+/21200/libnccl\.so\.2\): too old, 2\.14 is the least"),
    ({"DTRUN_NCCL": "/nonexistent/libnccl.so.2"}, r"rank 1 on host b: NCCL: DTRUN_NCCL=/nonexistent/libnccl\.so\.2: "),
])
def test_a_host_with_another_nccl_is_named(place, tmp_path, variables, words):
    log = tmp_path / "log"
    with network(2) as net:
        results = run(place, tmp_path / "out", (1, 2), own={1: variables}, env={"SOFTGPU_NCCL_LOG": str(log)}, net=net)
    assert [r.code for r in results] == [100, 100], results
    causes = said(results, "NCCL")
    assert len(causes) == 2 and all(re.search(words, c) for c in causes), results
    assert not log.exists()  # nobody has begun


def test_what_a_hosts_nccl_lacks_nobody_uses(place, one_host, tmp_path):
    """Of one version, but built with less: the others would wait for that host's ranks in a call that these have not."""
    own, log = {1: {"DTRUN_NCCL": library("21700"), "SOFTGPU_NCCL_VERSION": "22907"}}, tmp_path / "log"
    with network(2) as net:
        results = run(place, tmp_path / "out", (2, 2), "hybrid_shard", own=own, env={"SOFTGPU_NCCL_LOG": str(log)}, net=net)
    assert [r.code for r in results] == [0, 0], results
    assert (training.hash_of(tmp_path / "out"), training.metrics(tmp_path / "out")) == one_host(4, "hybrid_shard", "fsdp.device_mesh=[2,2]")
    assert not lines(log, "ncclCommSplit") and not lines(log, "ncclCommWindowRegister") and len(lines(log, "ncclCommInitRankConfig")) == 4 + 4 + 4
    text = [line for r in results for line in (r.err + r.out).splitlines() if "NCCL 2.29.7 of rank 2 on host b (" in line]
    assert len(text) == 1 and "has no ncclCommSplit and no symmetric windows, that of another rank has; no rank uses it" in text[0], results


@pytest.mark.parametrize("sets, own, words", [
    (["training.collectives=peer"], {}, "training.collectives: peer is for GPUs of one host, and there are 2 hosts; use nccl"),
    (["training.deterministic=true"], {}, "training.deterministic: NCCL, which GPUs of several hosts use, sums in an order of its own; "
                                          "set it to false, or use GPUs of one host"),
    ([], {1: {"CUDA_VISIBLE_DEVICES": "0"}}, "training.device: ranks 0 and 1 compute on one GPU (bus 0000:01:00.0); give each its own"),
])
def test_what_hosts_cannot_do_together_is_one_line(place, tmp_path, sets, own, words):
    results = run(place, tmp_path / "out", (1, 1), sets=sets, own=own)
    assert all(r.code in (2, 100) for r in results), results
    assert 1 <= len(said(results, words)) <= 2, results  # each agent, where the line travels


def test_hosts_with_different_drivers(place, tmp_path):
    """Each computes its products by plans of its own, and that is said; sums are the same for all."""
    results = run(place, tmp_path / "out", (1, 2), "full_shard", own={1: {"SOFTGPU_DRIVER": "99000"}})
    assert [r.code for r in results] == [0, 0], results
    assert sorted(training.metrics(tmp_path / "out")) == list(range(1, STEPS + 1))
    text = "".join((tmp_path / "out" / "logs" / f"rank-{r}.log").read_text() for r in range(3))
    assert text.count("has another GPU, driver or cublasLt than rank 0: products are computed by its own plans") == 2, text
