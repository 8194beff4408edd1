# covers: launcher/hosts launcher/rounds
"""Wall clocks decide nothing (U-9, U-10, promise P10): a host whose clock is an hour off is only noted, and an hour's jump, forth and back, while a job runs
fires no timeout and postpones none. libfaketime plays the clocks; time that only grows is left alone.
run: alone
run: timeout 200
run: nosan: libfaketime and a sanitizer both want to be the first library
"""

import glob
import os
import re
import signal
import time

import pytest

import hosts
import training
from hosts import PORT, Rounds, Stayers
from nodes import NUMBERS, c10d

LIBRARY = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), "")
pytestmark = pytest.mark.skipif(not LIBRARY, reason="no libfaketime: scripts/setup.sh installs it")
HOUR_S = 3600


class Clock:
    """The wall clock of whatever is started with its environment. NO_FAKE_STAT: libfaketime holds a lock that agent and workers share while it changes a
    file's times; a worker that is killed there would stop them all."""

    def __init__(self, folder, offset_s=0):
        self.path = os.path.join(str(folder), "clock")
        self.set(offset_s)
        self.env = {"LD_PRELOAD": LIBRARY, "FAKETIME_TIMESTAMP_FILE": self.path, "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}

    def set(self, offset_s):
        with open(self.path + ".new", "w") as f:
            f.write(f"{offset_s:+d}\n")
        os.rename(self.path + ".new", self.path)


@pytest.mark.parametrize("offset_s, words", [(HOUR_S, "ahead of"), (-HOUR_S, "behind")])
def test_a_host_whose_clock_is_off_is_noted(tmp_path, offset_s, words):
    clock = Clock(tmp_path, offset_s)
    with hosts.network(2) as net:
        jobs = [h.job(c10d(PORT, 2, "sh", "-c", f"{NUMBERS}; date +%s", host="a"), env=clock.env if h.name == "b" else None) for h in net.hosts]
        results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    a_s, b_s = (int(r.out.split()[-1]) for r in results)
    assert abs(b_s - a_s - offset_s) < 60, results  # it was off
    assert len(re.findall(rf"dtrun: host b: its clock is \d+ s {words} that of host a; ", results[0].err)) == 1, results
    assert abs(int(re.search(r"its clock is (\d+) s", results[0].err).group(1)) - HOUR_S) < 30, results


def test_equal_clocks_are_no_news(tmp_path):
    with hosts.network(2) as net:
        results = hosts.finish(*[h.job(c10d(PORT, 2, "true", host="a")) for h in net.hosts])
    assert [r.code for r in results] == [0, 0] and not any("clock" in r.err for r in results), results


def test_jumps_of_an_hour_change_nothing(tmp_path):
    """Rounds of programs that stay: nobody is suspected when the clocks of all jump; who is really silent is lost in the usual time."""
    clock = Clock(tmp_path)
    os.mkdir(tmp_path / "said")
    with hosts.network(3) as net:
        run = Stayers(net, tmp_path / "said", "2:3", env=clock.env)
        with Rounds(*run.jobs.values()):
            first = run.wait_round("abc")
            for offset_s in (HOUR_S, -HOUR_S, 0):
                clock.set(offset_s)
                time.sleep(2)  # more than a beat, and than a third of the time after which a silent host is suspect
            assert run.newest("a")[2] == first
            clock.set(-HOUR_S)
            cut_s = time.monotonic()
            net.down(net.hosts[2])
            clock.set(HOUR_S)
            second = run.wait_round("ab", first)
            took_s = time.monotonic() - cut_s
            clock.set(0)
            net.up(net.hosts[2])
            run.wait_round("abc", second)
            results = run.go()
    assert [r.code for r in results.values()] == [0, 0, 0], results
    assert 3 < took_s < 30, took_s  # dead after 5 s at this scale
    assert results["a"].err.count("host c: suspect") == 1 and "host b: suspect" not in results["a"].err, results
    assert not any("its clock is" in r.err for r in results.values()), results


def test_training_through_jumps(tmp_path):
    """Ranks train and save while the clock jumps; one is killed after it went back: the bits are those of an undisturbed run."""
    job = training.make_job(tmp_path, steps=400, training={"step_timeout": 60})
    assert training.train(job, tmp_path / "one", ranks=2).code == 0
    clock, out = Clock(tmp_path), tmp_path / "out"
    with hosts.network(2) as net:
        jobs = [h.job(c10d(PORT, 2, "train", job, "--output_dir", out, host="a"), env=clock.env) for h in net.hosts]
        with Rounds(*jobs):
            for i, offset_s in enumerate((HOUR_S, -HOUR_S, 0, HOUR_S)):
                page = training.worker_at(jobs, 20 * (i + 1))
                clock.set(offset_s)
            os.kill(page.pid, signal.SIGKILL)
            clock.set(-HOUR_S)
            results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    assert all(r.err.count("restarting (1 of 3 used)") == 1 for r in results), results
    assert training.hash_of(out) == training.hash_of(tmp_path / "one")
