# covers: launcher/hosts launcher/rounds
"""Faults between hosts with networks of their own: cables, firewalls, lossy and slow links, agents that die, return too often or too late.
run: full
run: alone
run: timeout 900
"""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

import hosts
import training
from hosts import PORT, Rounds, Stayers, train_on
from support import alive, children, lines_of, wait_until
from nodes import c10d


def codes(results):
    return [r.code for r in results.values()]


def tool_on(host, *words):
    return hosts.tool("ip", "netns", "exec", host.namespace, *words)


# ---- cables and partitions ----


def test_a_fixed_job_waits_for_its_host_and_ends(tmp_path):
    with hosts.network(2) as net:
        run = Stayers(net, tmp_path, "2", options=["--join_timeout=30"])
        with Rounds(*run.jobs.values()):
            run.wait_round("ab")
            net.down(net.hosts[1])
            a, b = hosts.finish(*run.jobs.values())
    assert (a.code, b.code) == (111, 111), (a, b)
    assert re.search(r"host b \(pid \d+\): no heartbeat for \d+\.\d s, last seen at 10\.77\.0\.2; 1 of at least 2 hosts are here", a.err), a
    assert re.search(r"dtrun: 1 of 2 hosts came within \d+ s \(--join_timeout\); first cause: round 1 ended: host b", a.err), a
    assert re.search(r"dtrun: .*first cause: round 1 ended: host a: no answer from this coordinator", b.err), b


def test_a_short_cut_is_a_warning(tmp_path):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2:3", scale=1)
        with Rounds(*run.jobs.values()):
            run.wait_round("abc")
            net.down(net.hosts[1])
            time.sleep(5.5)
            net.up(net.hosts[1])
            time.sleep(6)
            assert run.newest("a")[2] == 1
            results = run.go()
    assert codes(results) == [0, 0, 0], results
    assert re.search(r"host b: suspect for \d+\.\d s, back", results["a"].err), results
    assert not any("because of it" in r.err for r in results.values()), results


@pytest.mark.parametrize("lost", "ac")
def test_a_host_that_was_away_is_taken_in_again(tmp_path, lost):
    with hosts.network(3) as net:
        host = net.hosts["abc".index(lost)]
        stay = "abc".replace(lost, "")
        run = Stayers(net, tmp_path, "2:3")
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            net.down(host)
            second = run.wait_round(stay, first, timeout_s=40)
            run.wait_idle(lost, timeout_s=0.1)
            time.sleep(5)
            net.up(host)
            run.wait_round("abc", second)
            results = run.go()
    assert codes(results) == [0, 0, 0], results


def test_a_split_leaves_one_side_training(tmp_path):
    with hosts.network(4) as net:
        a, b, c, d = net.hosts
        run = Stayers(net, tmp_path, "2:4")
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abcd")
            net.cut((a, c), (a, d), (b, c), (b, d))
            second = run.wait_round("ab", first)
            run.wait_idle("c", timeout_s=0.1)
            run.wait_idle("d", timeout_s=0.1)
            time.sleep(10)
            assert run.newest("c")[2] == run.newest("d")[2] == first
            net.heal()
            run.wait_round("abcd", second)
            results = run.go()
    assert codes(results) == [0] * 4, results


def test_a_fixed_job_whose_hosts_cannot_reach_each_other(tmp_path):
    with hosts.network(3) as net:
        net.cut(tuple(net.hosts[1:]))
        run = Stayers(net, tmp_path, "3", options=["--join_timeout=36"])
        with Rounds(*run.jobs.values()):
            results = dict(zip(run.jobs, hosts.finish(*run.jobs.values())))
    assert codes(results) == [111] * 3, results
    assert all(re.search(r"hosts (b and c|c and b) cannot reach each other", r.err) for r in results.values()), results


def test_a_host_that_vanishes_without_a_word(tmp_path):
    with hosts.network(3) as net:
        a, b, c = net.hosts
        run = Stayers(net, tmp_path, "2:3")
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            net.cut((a, b), (b, c))
            gone = run.jobs.pop("b")
            os.kill(gone.agent, signal.SIGKILL)
            hosts.finish(gone)
            run.wait_round("ac", first)
            results = run.go()
    assert codes(results) == [0, 0], results
    assert all(re.search(r"host b \(pid \d+\): no heartbeat for", r.err) for r in results.values()), results


def test_connections_that_are_reset_cost_no_restart(tmp_path):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2:3", scale=1)
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            tool_on(net.hosts[0], "ss", "-K", "state", "established")
            run.wait_round("abc", first)
            results = run.go()
    assert codes(results) == [0, 0, 0], results


# ---- slow and lossy ----


@pytest.mark.parametrize("what", ["loss", "rate", "delay"])
def test_a_bad_link_only_costs_time(tmp_path, what):
    job = training.make_job(tmp_path, steps=20)
    one = training.train(job, tmp_path / "one", ranks=2)
    assert one.code == 0, one
    with hosts.network(2) as net, contextlib.ExitStack() as stack:
        a, b = net.hosts
        if what == "loss":
            tool_on(b, "iptables", "-A", "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.2", "-j", "DROP")
        elif what == "rate":
            tool_on(b, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "32kbit", "latency", "400ms")
        else:
            for host in (a, b):
                stack.enter_context(net.delay(host, 100))
            begin_s = time.monotonic()
            tool_on(a, "bash", "-c", f"! echo > /dev/tcp/{b.address}/9")  # an answer, and be it a refusal, takes both ways
            assert 0.2 <= time.monotonic() - begin_s < 2
        jobs = train_on(net, job, tmp_path / "out", (1, 1))
        results = hosts.finish(*jobs, timeout_s=300)
    assert [r.code for r in results] == [0, 0], results
    assert training.hash_of(tmp_path / "out") == training.hash_of(tmp_path / "one")
    assert not any("because of it" in r.err or (what == "delay" and "suspect" in r.err) for r in results), results


@pytest.mark.parametrize("how, words", [("reject", "connection refused"), ("drop", "no answer")])
def test_a_firewall_is_told_from_silence(tmp_path, how, words):
    with hosts.network(2) as net:
        rule = ["-j", "DROP"] if how == "drop" else ["-j", "REJECT", "--reject-with", "tcp-reset"]
        tool_on(net.hosts[1], "iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", str(PORT), *rule)
        run = Stayers(net, tmp_path, "2", options=["--join_timeout=30"])
        a, b = hosts.finish(*run.jobs.values())
    assert (a.code, b.code) == (111, 111), (a, b)
    assert words in b.err and "10.77.0.1" in b.err, b
    assert re.search(r"waiting \d+ s for hosts: 1 of 2 here \(a\); \d+ s left", a.err), a


# ---- agents ----


@contextlib.contextmanager
def tracing(pid, *expressions):
    """strace holds the process until the block ends, and does what the expressions say."""
    words = [w for e in expressions for w in ("-e", e)]
    tracer = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-e", "trace=write", *words, "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: f"TracerPid:\t{tracer.pid}\n" in open(f"/proc/{pid}/status").read(), "strace at the agent")
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)


@pytest.mark.parametrize("victim", "ab")
@pytest.mark.parametrize("process", ["agent", "guard"])
def test_a_killed_launcher_leaves_nothing(tmp_path, victim, process):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2:3")
        stay = "abc".replace(victim, "")
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            job = run.jobs.pop(victim)
            workers = children(job.agent)
            os.kill(job.agent if process == "agent" else job.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(alive, workers)), "the end of its workers", 10)
            hosts.finish(job)
            run.wait_round(stay, first)
            results = run.go()
    assert codes(results) == [0, 0], results
    assert all(f"host {victim} (pid " in r.err for r in results.values()), results


def test_a_coordinator_dies_at_each_word_of_a_round_s_beginning(tmp_path):
    """C-3: the agent that leads is killed before its first, second, ... write from the moment the others come until all workers run; another takes its
    place. Nobody runs workers of a round that others do not know, and the job goes on."""
    killed, between = 0, 0
    for k in range(1, 40):
        folder = tmp_path / str(k)
        os.mkdir(folder)
        with hosts.network(3) as net:
            a, b, c = net.hosts
            run = Stayers(net, folder, "2:3", options=["--last_call=30"], on=[a])
            lost = run.jobs["a"]
            wait_until(lambda: tool_on(a, "ss", "-Hltn", f"sport = :{PORT}"), "the endpoint")
            with tracing(lost.agent, f"inject=write:signal=KILL:when={k}"):
                run.jobs.update({h.name: run.start(h) for h in (b, c)})
                wait_until(lambda: not alive(lost.agent) or all(run.newest(n)[1] == 3 for n in "abc"), "a round, or the end of its coordinator")
                early = alive(lost.agent)
            if early:
                run.go()
                break
            killed += 1
            between += any(run.newest(n)[1] == 3 for n in "abc")
            hosts.finish(run.jobs.pop("a"))
            begun = max(run.newest(n)[2] for n in "abc") if any(run.newest(n)[1] == 3 for n in "bc") else 0  # before it is back: the next round may be there at once
            run.jobs["a"] = run.start(a)
            with Rounds(*run.jobs.values()):
                run.wait_round("abc", begun)
                results = run.go()
        assert codes(results) == [0, 0, 0], (k, results)
        for n in "abc":
            rounds = [int(line.split()[2]) for line in lines_of(folder / n)]
            assert rounds == sorted(set(rounds)), (k, n, rounds)
        sizes = {}
        for line in sum((lines_of(folder / n) for n in "abc"), []):
            rank, size, number = map(int, line.split())
            assert sizes.setdefault(number, size) == size, (k, line)
    assert killed >= 4 and k < 39, (killed, k)
    print(f"killed before {killed} writes, after {between} of them some workers ran")


def test_a_late_agent_of_an_earlier_run_is_refused(tmp_path):
    with hosts.network(2) as net:
        run = Stayers(net, tmp_path, "1:2")
        first = run.wait_round("ab")
        late = run.jobs.pop("b")
        os.kill(late.agent, signal.SIGSTOP)
        run.wait_round("a", first)
        assert codes(run.go()) == [0]
        os.unlink(tmp_path / "go")
        with run.start(net.hosts[0]) as again:
            run.jobs = {"a": again}
            wait_until(lambda: len(lines_of(tmp_path / "a")) == 3, "the next run")
            os.kill(late.agent, signal.SIGCONT)
            refused = hosts.finish(late)[0]
            assert run.newest("a")[1:] == (1, 1)
            results = run.go()
    assert refused.code == 111 and "this run ended" in refused.err, refused
    assert codes(results) == [0], results


def test_a_spare_takes_over(tmp_path):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2", on=net.hosts[:2])
        first = run.wait_round("ab")
        run.jobs["c"] = run.start(net.hosts[2])
        wait_until(lambda: b"spare" in os.read(run.jobs["c"].process.stderr.fileno(), 4096), "its word that it is a spare")
        lost = run.jobs.pop("b")
        os.kill(lost.agent, signal.SIGKILL)
        hosts.finish(lost)
        run.wait_round("ac", first)
        results = run.go()
    assert codes(results) == [0, 0], results


def test_a_host_that_comes_and_goes_must_stay_first(tmp_path):
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "2:3", scale=1)
        newest = run.wait_round("abc")
        for i in range(4):
            lost = run.jobs.pop("c")
            os.kill(lost.agent, signal.SIGKILL)
            hosts.finish(lost)
            newest = run.wait_round("ab", newest)
            run.jobs["c"] = run.start(net.hosts[2])
            if i < 2:
                newest = run.wait_round("abc", newest)
            else:
                break
        time.sleep(5)
        assert run.newest("a")[2] == newest  # it is not taken in
        results = run.go()
    assert codes(results) == [0, 0, 0], results
    assert "host c came back 3 times within 10 minutes" in results["a"].err, results


def test_different_job_files_are_refused_on_all_hosts(tmp_path):
    os.mkdir(tmp_path / "other")
    job = training.make_job(tmp_path)
    other = training.make_job(tmp_path, name="other/job.json", training={"learning_rate": 1e-3})
    with hosts.network(2) as net:
        jobs = [h.job(c10d(PORT, 2, "train", j, "--output_dir", tmp_path / "out", host="a")) for h, j in zip(net.hosts, (job, other))]
        results = hosts.finish(*jobs)
    assert [r.code for r in results] == [2, 2], results
    assert all(re.search(r"job file \w+ here, job file \w+ there", r.err) for r in results), results
    assert not os.path.exists(tmp_path / "out" / "metrics.jsonl")


def test_a_worker_killed_beside_a_cut(tmp_path):
    """A rank dies while another host is away: both are made good, the bits are those of an undisturbed job."""
    job = training.make_job(tmp_path, steps=300)
    one = training.train(job, tmp_path / "one", ranks=3)
    assert one.code == 0, one
    with hosts.network(3) as net:
        jobs = train_on(net, job, tmp_path / "out", (1, 1, 1), options=("--time_scale=3",))
        with Rounds(*jobs):
            os.kill(training.worker_at(jobs[:1], 30).pid, signal.SIGKILL)
            net.down(net.hosts[2])
            time.sleep(6)
            net.up(net.hosts[2])
            results = hosts.finish(*jobs, timeout_s=120)
    assert [r.code for r in results] == [0, 0, 0], results
    assert training.hash_of(tmp_path / "out") == training.hash_of(tmp_path / "one")
