# covers: launcher/hosts launcher/rounds
"""Whoever holds the endpoint and begins anew, and the survivors of its run before: one run, or one of two is given up as soon as they hear of each other.
run: waits
run: timeout 300
"""

import os
import re
import signal
import time

import pytest

import hosts
from hosts import PORT, Rounds, Stayers
from support import wait_until


def kill(job):
    """As a machine's out-of-memory killer, or somebody in a hurry: agent and guard."""
    for pid in (job.agent, job.pid):
        os.kill(pid, signal.SIGKILL)
    hosts.finish(job)


def test_a_restarted_holder_of_the_endpoint_finds_the_survivors(tmp_path):
    """Its last call is over before its predecessor's survivors would call it by themselves, if they called seldom."""
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "1:3")
        first = run.wait_round("abc")
        kill(run.jobs.pop("a"))
        second = run.wait_round("bc", first)
        run.jobs["a"] = run.start(net.hosts[0])
        with Rounds(*run.jobs.values()):
            third = run.wait_round("abc", second)
            time.sleep(2)
            assert run.newest("b")[2] == third
            results = run.go()
    assert all(r.code == 0 for r in results.values()), results
    assert not any("another run of this name" in r.err for r in results.values()), results


@pytest.mark.parametrize("alone", "ab")
def test_of_two_runs_the_smaller_one_ends(tmp_path, alone):
    """The host that is alone is cut off when the endpoint's holder comes back: with survivors on the other side, or with another one that comes back."""
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "1:3")
        others = "abc".replace(alone, "")
        newest = run.wait_round("abc")
        kill(run.jobs.pop("a"))
        newest = run.wait_round("bc", newest)
        if alone == "b":
            kill(run.jobs.pop("c"))
            newest = run.wait_round("b", newest)
        net.down(net.hosts["abc".index(alone)])
        for host in net.hosts:
            if host.name not in run.jobs:
                run.jobs[host.name] = run.start(host)
        wait_until(lambda: run.newest("a") == (0, 1, 1) if alone == "a" else run.newest("a")[1:] == (2, 1), "a run of its own")
        wait_until(lambda: run.newest("b")[2] == newest, "the survivors' run")
        net.up(net.hosts["abc".index(alone)])
        begin_s = time.monotonic()
        wait_until(lambda: all(run.newest(n)[1] == 3 and run.newest(n)[2] == run.newest("a")[2] for n in "abc"), "one run of all")
        took_s = time.monotonic() - begin_s
        results = run.go()
    assert all(r.code == 0 for r in results.values()), results
    assert took_s < 10, took_s
    said = [r.err for n, r in results.items() if n != alone]
    assert re.search(r"leads another run of this name, with 2 hosts in round \d+; this one, with 1 host in round \d+, ends and joins it", results[alone].err), results
    assert len(re.findall(rf"host {alone} \(pid \d+\): led another run of this name, with 1 host in round \d+; it ends and joins this one", "".join(said))) == 1, (
        others, results)


def test_the_leader_is_lost_and_nobody_waits_for_a_last_call(tmp_path):
    """All defaults: a last call is 30 s, and who was in the round before needs none."""
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path, "1:3", scale=1, meet=["--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}"])
        first = run.wait_round("abc")
        kill(run.jobs.pop("a"))
        run.wait_round("bc", first, timeout_s=5)
        results = run.go()
    assert all(r.code == 0 for r in results.values()), results
