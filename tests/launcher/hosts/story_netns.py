# covers: launcher/hosts launcher/rounds collectives/tcp.c
"""Jobs on hosts with networks of their own (namespaces): they find each other by name, train the bits of one host, and meet faults of wires.
run: waits
run: timeout 300
"""

import os
import re
import signal
import time

import pytest

import hosts
import training
from hosts import PORT, Rounds, Stayers, train_on
from support import alive, children, wait_until
from nodes import NUMBERS, c10d, static

STEPS = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("netns")
    return folder, training.make_job(folder, steps=STEPS)


@pytest.fixture(scope="module")
def long_job(place):
    """Long enough for a fault to come in time, and its hash on one host of three ranks."""
    folder, _ = place
    job = training.make_job(folder, name="long.json", steps=800)
    result = training.train(job, folder / "long", ranks=3)
    assert result.code == 0, result
    return job, training.hash_of(folder / "long")


@pytest.fixture(scope="module")
def one_host(place):
    return training.one_host(*place)


@pytest.mark.parametrize("layout, strategy", [((2, 1), "full_shard"), ((1, 2, 3), "ddp"), ((2, 2), "zero2")])
def test_the_bits_of_one_host(place, one_host, layout, strategy):
    folder, job = place
    out = folder / ("hosts-" + "-".join(map(str, layout)))
    with hosts.network(len(layout)) as net:
        jobs = train_on(net, job, out, layout, "--mode", strategy)
        with Rounds(*jobs):
            results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), results
    assert (training.hash_of(out), training.metrics(out)) == one_host(sum(layout))


@pytest.mark.parametrize("backend, family", [("static", 4), ("c10d", 6)])
def test_hosts_find_each_other_by_name(backend, family):
    with hosts.network(3) as net:
        net.name_hosts(family)
        jobs = []
        for i, h in enumerate(net.hosts):
            if family == 6:
                h.run("ip", "addr", "del", f"{h.address}/24", "dev", "eth0")
            args = static(PORT, i, 3, "sh", "-c", NUMBERS, host="a") if backend == "static" else c10d(PORT, 3, "sh", "-c", NUMBERS, host="a")
            jobs.append(h.job(args))
        results = hosts.finish(*jobs)
        where = "a" if backend == "static" else net.hosts[0].address6  # as written, as with torchrun; else an address
    assert [r.code for r in results] == [0, 0, 0], results
    out = [r.out for r in results]
    assert (out if backend == "static" else sorted(out)) == [f"{i} 3 0 1 {i} 3 {where} {PORT}\n" for i in range(3)], results


@pytest.mark.parametrize("late_s", [0, 2])
def test_every_host_names_the_worker_that_failed_first(tmp_path, long_job, late_s):
    """Also when its host takes its time to say so: the ranks of the others notice before that they lost it."""
    job, undisturbed = long_job
    out = tmp_path / "named"
    with hosts.network(3) as net:
        jobs = train_on(net, job, out, (1, 1, 1))
        with Rounds(*jobs):
            page = training.worker_at(jobs[1:2], 15)
            if late_s > 0:
                os.kill(jobs[1].agent, signal.SIGSTOP)
            os.kill(page.pid, signal.SIGKILL)
            time.sleep(late_s)
            os.kill(jobs[1].agent, signal.SIGCONT)
            results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0, 0, 0], results
    assert training.hash_of(out) == undisturbed
    cause = re.compile(rf"dtrun: host b rank {page.rank} \(local 0, pid {page.pid}\): killed by signal 9 \(SIGKILL\) at step \d+.*; restarting \(1 of 3 used\)")
    for r in results:
        assert len(cause.findall(r.err)) == 1 and r.err.count("restarting") == 1, results


def test_a_lost_coordinator_comes_back(tmp_path, long_job):
    """Its cable is out until the workers of all hosts have ended; then the job goes on from the newest checkpoint, with the bits of an undisturbed one."""
    job, undisturbed = long_job
    out = tmp_path / "coordinator"
    with hosts.network(3) as net:
        jobs = train_on(net, job, out, (1, 1, 1), options=("--time_scale=3",))
        with Rounds(*jobs) as rounds:
            training.worker_at(jobs, 15)
            net.down(net.hosts[0])
            wait_until(lambda: not any(map(alive, rounds.workers)), "the end of the round")
            net.up(net.hosts[0])
            results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0, 0, 0], results
    assert training.hash_of(out) == undisturbed
    assert all("host a: no answer from this coordinator" in r.err for r in results[1:]), results
    assert "restarting" not in "".join(r.err for r in results), results  # no worker is blamed


@pytest.mark.parametrize("towards", [False, True])
def test_one_direction_is_enough_to_be_lost(tmp_path, towards):
    with hosts.network(3) as net:
        a, b, c = net.hosts
        run = Stayers(net, tmp_path, "2:3")
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            net.cut(*([(a, b), (c, b)] if towards else [(b, a), (b, c)]), both=False)
            second = run.wait_round("ac", first)
            run.wait_idle("b")
            net.heal()
            run.wait_round("abc", second)
            results = run.go()
    assert [r.code for r in results.values()] == [0, 0, 0], results
    assert all("host b (pid " in results[n].err and "going on with 2 of 3 hosts (minimum 2)" in results[n].err for n in "ac"), results


@pytest.mark.parametrize("nnodes, at, away, stay", [("1:2", "b", "a", "a"), ("2:3", "a", "bc", "bc")])
def test_a_filter_that_resets_links_for_a_host_does_not_end_it(tmp_path, nnodes, at, away, stay):
    """Links of a host are reset and its port refuses, as if it were gone, but it knows nothing of it and trains on."""
    with hosts.network(len(away) + 1) as net:
        by_name = {h.name: h for h in net.hosts}
        run = Stayers(net, tmp_path, nnodes)
        with Rounds(*run.jobs.values()):
            first = run.wait_round(by_name)
            rules = [["INPUT", "-p", "tcp", "-s", by_name[x].address, "-j", "REJECT", "--reject-with", "tcp-reset"] for x in away]
            for rule in rules:
                by_name[at].run("iptables", "-A", *rule)
            second = run.wait_round(stay, first)
            run.wait_idle(at, timeout_s=0.1)
            for rule in rules:
                by_name[at].run("iptables", "-D", *rule)
            run.wait_round(by_name, second)
            results = run.go()
    assert all(r.code == 0 for r in results.values()), results
    assert not any("is gone" in r.err for r in results.values()), results


def test_a_stopped_agent_has_no_workers_when_others_go_on(tmp_path):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2:3", scale=2)
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            os.kill(run.jobs["b"].agent, signal.SIGSTOP)
            second = run.wait_round("ac", first)
            run.wait_idle("b", timeout_s=0.1)
            os.kill(run.jobs["b"].agent, signal.SIGCONT)
            run.wait_round("abc", second)
            results = run.go()
    assert [r.code for r in results.values()] == [0, 0, 0], results
    assert "no word from the other hosts for so long" in results["b"].err, results


@pytest.mark.parametrize("victim", "ab")
def test_an_agent_killed_with_words_unread_is_gone_at_once(tmp_path, victim):
    """Its kernel would reset the connections, and a reset from another machine proves nothing: the others would wait for --dead_after."""
    with hosts.network(3) as net:
        host = net.hosts["abc".index(victim)]
        run = Stayers(net, tmp_path, "2:3", scale=1)
        others = {n: job for n, job in run.jobs.items() if n != victim}
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            gone = run.jobs.pop(victim)
            workers = children(gone.agent)
            os.kill(gone.agent, signal.SIGSTOP)
            if victim == "a":  # nobody tells its leader anything unasked but the end of a worker
                os.kill(children(others["c"].agent)[0], signal.SIGKILL)
            wait_until(lambda: any(int(x.split()[0]) > 0 for x in host.run("ss", "-Htn", "state", "established").splitlines()), "words unread")
            os.kill(gone.agent, signal.SIGKILL)
            wait_until(lambda: not any(map(alive, workers)), "the end of its workers")
            run.wait_round("".join(others), first, timeout_s=8)  # 15 s are --dead_after
            results = run.go()
        hosts.finish(gone)
    assert [r.code for r in results.values()] == [0, 0], results
    assert all(re.search(rf"host {victim} \(pid \d+\)[,:].* is gone", r.err) for r in results.values()), results


def test_hosts_that_cannot_reach_each_other_are_named(tmp_path):
    with hosts.network(3) as net:
        _, b, c = net.hosts
        net.cut((b, c))
        run = Stayers(net, tmp_path, "2:3")
        with Rounds(*run.jobs.values()):
            found = wait_until(lambda: any(run.newest(n)[1] == 2 for n in "abc") and run.newest("a"), "a round without the later one")
            net.heal()
            run.wait_round("abc", found[2])
            results = run.go()
    assert [r.code for r in results.values()] == [0, 0, 0], results
    assert re.search(r"hosts (b and c|c and b) cannot reach each other; going on without [bc], with 2 of 3 hosts", results["a"].err), results


def close_ports(host):
    """It takes no connections from other hosts; its own go out."""
    host.run("nft", "add table inet closed")
    host.run("nft", "add chain inet closed in { type filter hook input priority 0; }")
    host.run("nft", 'add rule inet closed in iifname "eth0" tcp flags & (syn | ack) == syn reject with tcp reset')


@pytest.mark.parametrize("nnodes", ["3", "2:3"])
def test_one_open_port_is_enough_for_a_program_that_needs_no_more(tmp_path, nnodes):
    """Only the endpoint's host takes connections: agents and workers reach it, and it says what that costs."""
    with hosts.network(3) as net:
        for h in net.hosts[1:]:
            close_ports(h)
        run = Stayers(net, tmp_path, nnodes)
        with Rounds(*run.jobs.values()):
            run.wait_round("abc")
            results = run.go()
    assert [r.code for r in results.values()] == [0, 0, 0], results
    cost = re.findall(r"dtrun: host [bc]: takes no connections from other hosts; going on, but this job would not survive the loss of host a", results["a"].err)
    assert len(cost) == 1 and "cannot reach each other" not in results["a"].err, results
    assert not any("survive" in results[n].err for n in "bc"), results


def test_closed_ports_do_not_keep_a_round_from_following(tmp_path):
    """A worker fails: the next round begins on the same three hosts."""
    script = 'echo "$GROUP_RANK $GROUP_WORLD_SIZE $DTRUN_ROUND"; [ "$DTRUN_ROUND.$RANK" != 1.2 ]'
    with hosts.network(3) as net:
        for h in net.hosts[1:]:
            close_ports(h)
        results = hosts.finish(*[h.job(static(PORT, i, 3, "--max_restarts=1", "sh", "-c", script, host="a"))
                                 for i, h in enumerate(net.hosts)])
    assert [r.code for r in results] == [0, 0, 0], results
    assert [r.out.splitlines()[-1] for r in results] == [f"{i} 3 2" for i in range(3)], results


def test_train_needs_connections_between_its_hosts(place, tmp_path):
    """Its collectives go from host to host: closed ports are named before a round, and it ends when nobody opens them."""
    _, job = place
    with hosts.network(3) as net:
        for h in net.hosts[1:]:
            close_ports(h)
        results = hosts.finish(*train_on(net, job, tmp_path / "out", (1, 1, 1), options=("--time_scale=10", "--rdzv_conf=join_timeout=60")))
    assert [r.code for r in results] == [111, 111, 111], results
    assert re.search(r"hosts (b and c|c and b) cannot reach each other", results[0].err), results
