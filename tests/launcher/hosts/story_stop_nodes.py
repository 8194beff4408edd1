# covers: launcher/hosts launcher/job
# run: waits
"""A stop of a job on two hosts that is disturbed: the leading host is lost, or somebody insists.
run: timeout 300
"""

import os
import signal

import pytest
from nodes import c10d, finish, free_port, listens
from support import DTRUN, Job, children, lines_of, script, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
# Says that it runs, and that it was asked to stop; then stays until the file `go` is there, or that of its host.
SAVES = ("trap 'echo $GROUP_RANK stopping >> $1/said; while [ ! -e $1/go ] && [ ! -e $1/go-$GROUP_RANK ]; do sleep 0.05; done; exit 0' INT TERM\n"
         "echo $GROUP_RANK runs >> $1/said\nwhile :; do sleep 0.05; done\n")


def start(folder, text, *options):
    """Two agents, the leading one first, whose workers run `text` and have said so."""
    port, worker = free_port(), script(folder, "worker.sh", text)
    first = Job(c10d(port, 2, *options, worker, folder))
    wait_until(lambda: listens(port), "the endpoint")
    jobs = [first, Job(c10d(port, 2, *options, worker, folder))]
    wait_said(folder, "0 runs", "1 runs")
    return port, *jobs


def wait_said(folder, *words):
    wait_until(lambda: set(words) <= set(lines_of(folder / "said")), f"{words}")


@pytest.mark.parametrize("saving", [True, False], ids=["while its workers end", "when its workers have ended"])
def test_a_stop_outlives_the_leading_host(tmp_path, saving):
    port, a, b = start(tmp_path, SAVES)
    with a, b:
        a.signal(signal.SIGTERM)
        wait_said(tmp_path, "0 stopping", "1 stopping")
        if not saving:
            (tmp_path / "go").touch()
        os.kill(a.pid, signal.SIGKILL)
        a.wait_gone()
        if saving:
            wait_until(lambda: listens(port), "the other host at the endpoint")  # by now it leads
            (tmp_path / "go").touch()
        result = b.finish()
        b.wait_gone()
    assert result.code == 143 and "stopped by TERM at another host" in result.err, result


def test_a_host_whose_workers_are_gone_ends_with_its_guard(tmp_path):
    """It waits for the others, and has no process of its own that could hang in the kernel."""
    port, a, b = start(tmp_path, SAVES)
    with a, b:
        a.signal(signal.SIGTERM)
        wait_said(tmp_path, "0 stopping", "1 stopping")
        (tmp_path / "go-1").touch()
        wait_until(lambda: not children(b.agent), "the end of its workers")
        os.kill(b.pid, signal.SIGKILL)
        lost, _ = b.finish(), b.wait_gone()
        (tmp_path / "go").touch()
        result = a.finish()
        a.wait_gone()
    assert "the guard is gone" in lost.err and "not gone" not in lost.err, lost
    assert result.code == 143, result


@pytest.mark.parametrize("at", [0, 1], ids=["the leading host", "the other one"])
def test_insisting_at_one_host_ends_the_workers_of_all(tmp_path, at):
    """They would take longer than this test may."""
    _, *jobs = start(tmp_path, SAVES, "--shutdown_timeout=3000")
    with jobs[0], jobs[1]:
        jobs[at].signal(signal.SIGINT)
        wait_said(tmp_path, "0 stopping", "1 stopping")
        jobs[at].signal(signal.SIGINT)
        results = finish(*jobs)
    assert [r.code for r in results] == [130, 130], results
    assert "stopped by INT: all" in results[at].err and "stopped by INT at another host: all" in results[1 - at].err, results
