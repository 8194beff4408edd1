# covers: launcher/hosts launcher/rounds
"""Elastic jobs of programs that are not ours: who is asked to stop leaves alone, the others go on without using up a restart, and who left may return.
run: waits
run: timeout 300
"""

import os
import signal
import time

import pytest
from support import DTRUN, Job, children, lines_of, wait_until
from nodes import free_port

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
# Says how many hosts there are, once per round, and stays until the file `go` is there.
STAY = 'echo "$2 $GROUP_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >> "$1/said"; while [ ! -e "$1/go" ]; do sleep 0.05; done'


def start(port, folder, name, nnodes="1:2"):
    return Job([f"--nnodes={nnodes}", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=leave", "--last_call=1", "sh", "-c", STAY, "-",
                folder, name])


def wait_said(folder, line, count=1):
    wait_until(lambda: lines_of(folder / "said").count(line) >= count, f"{count} times: {line}")


def leave(job):
    job.signal(signal.SIGTERM)
    result = job.finish()
    job.wait_gone()
    assert result.code == 143, result
    return result


def test_a_host_leaves_and_returns(tmp_path):
    port = free_port()
    with start(port, tmp_path, "stays") as stays:
        wait_said(tmp_path, "stays 1 0")
        for i in range(2):
            with start(port, tmp_path, "comes") as comes:
                wait_said(tmp_path, "comes 2 0", i + 1)
                wait_said(tmp_path, "stays 2 0", i + 1)
                leave(comes)
            wait_said(tmp_path, "stays 1 0", i + 2)
        (tmp_path / "go").touch()
        result = stays.finish()
    assert result.code == 0 and "closed" not in result.err, result
    assert result.err.count("left; going on with 1 of 2 hosts (minimum 1)") == 2, result  # once for each time


def test_the_first_host_leaves(tmp_path):
    port = free_port()
    with start(port, tmp_path, "a", "1:3") as a:
        wait_said(tmp_path, "a 1 0")
        with start(port, tmp_path, "b", "1:3") as b, start(port, tmp_path, "c", "1:3") as c:
            for name in "abc":
                wait_said(tmp_path, f"{name} 3 0")
            leave(a)
            for name in "bc":
                wait_said(tmp_path, f"{name} 2 0", lines_of(tmp_path / "said").count(f"{name} 2 0") or 1)
            wait_until(lambda: lines_of(tmp_path / "said")[-1].split()[1:] == ["2", "0"], "a round of the two others")
            (tmp_path / "go").touch()
            assert [x.finish().code for x in (b, c)] == [0, 0]


def test_who_is_left_alone_does_not_say_that_others_go_on(tmp_path):
    """Two of three hosts are killed, one of which led: the third leads, and waits for others when it is asked to stop."""
    port = free_port()
    with start(port, tmp_path, "a", "2:3") as a, start(port, tmp_path, "b", "2:3") as b:
        wait_said(tmp_path, "a 2 0")
        wait_said(tmp_path, "b 2 0")
        with start(port, tmp_path, "c", "2:3") as c:
            wait_said(tmp_path, "c 3 0")
            for job in (a, b):
                os.kill(job.agent, signal.SIGKILL)
            wait_until(lambda: not children(c.agent), "the end of its workers")
            time.sleep(2)  # until it leads
            result = leave(c)
    assert "go on" not in result.err.splitlines()[-1] and "dtrun: stopped by TERM: all workers have ended" in result.err, result


def test_all_are_asked(tmp_path):
    port = free_port()
    with start(port, tmp_path, "a") as a:
        wait_said(tmp_path, "a 1 0")
        with start(port, tmp_path, "b") as b:
            wait_said(tmp_path, "a 2 0")
            wait_said(tmp_path, "b 2 0")
            for job in (a, b):
                job.signal(signal.SIGTERM)
            assert [x.finish().code for x in (a, b)] == [143, 143]
            a.wait_gone()
            b.wait_gone()
