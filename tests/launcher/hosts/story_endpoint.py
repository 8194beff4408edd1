# covers: launcher/hosts launcher/net
"""The endpoint of a job outlives whoever held it: its port is taken over, late hosts find the job there, and no other port is opened than was allowed.
run: waits
run: timeout 300
"""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import time

import pytest
import training
from support import Job, as_nobody, lines_of, marked, run, wait_lines, wait_until
from nodes import STAY, c10d, finish, free_port, listens


def world_of(path):
    lines = lines_of(path)
    return lines[-1].split()[1] if lines else None


def wait_world(folder, names, size):
    wait_until(lambda: all(world_of(folder / name) == str(size) for name in names), f"a round of {size}", timeout_s=150)


def test_the_endpoint_of_a_lost_host_is_taken_over(tmp_path):
    port = free_port()

    def host(name):
        return Job(c10d(port, "2:3", "sh", "-c", STAY, "x", tmp_path, name))

    with host("a") as a:
        wait_until(lambda: listens(port), "the endpoint")
        with host("b") as b, host("c") as c:
            wait_world(tmp_path, "abc", 3)
            os.kill(a.agent, signal.SIGKILL)
            wait_world(tmp_path, "bc", 2)
            a.wait_gone()
            wait_until(lambda: listens(port), "the endpoint at another host")  # or d, which looks at once, would get it
            with host("d") as d:  # knows the endpoint alone
                wait_world(tmp_path, "bcd", 3)
                (tmp_path / "go").touch()
                results = finish(b, c, d)
    assert [r.code for r in results] == [0, 0, 0], results
    assert sum("held by this host now" in r.err for r in results) == 1, results


def test_a_port_that_an_outgoing_connection_has_is_waited_for(tmp_path):
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", port))
        outgoing.connect(server.getsockname())
        taken, _ = server.accept()
        with Job(c10d(port, "1:2", "sh", "-c", STAY, "x", tmp_path, "a")) as a:
            time.sleep(0.5)  # it has found the port taken, or will; either way it must get it
            assert not lines_of(tmp_path / "a")
            outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            outgoing.close()
            taken.close()
            wait_lines(tmp_path / "a", 1)
            (tmp_path / "go").touch()
            assert finish(a)[0].code == 0


LISTEN, ESTABLISHED = "0A", "01"


def sockets(job, state):
    """(own port, other port) of the TCP sockets of a job's processes that are in this state."""
    inodes = set()
    for pid in marked(job.marker):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(path) as f:
            for fields in (line.split() for line in list(f)[1:]):
                if fields[3] == state and f"socket:[{fields[9]}]" in inodes:
                    found.add(tuple(int(fields[i].rpartition(":")[2], 16) for i in (1, 2)))
    return found


def free_ports(count):
    """The first of `count` free ports in a row."""
    while True:
        first = random.randrange(15000, 30000 - count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def test_all_ports_are_in_the_range(tmp_path):
    count = 12
    first = free_ports(count)
    work = training.make_job(tmp_path, steps=200000)
    allowed = range(first, first + count)
    listening, agreed = set(), set()

    def host():
        return Job(c10d(first, 2, f"--port_range={first}-{first + count - 1}", "train", work, "--output_dir", tmp_path / "out"))

    def workers_are_linked():
        """The endpoint, the other agent, and their workers. Workers listen for a moment only, but the accepted end keeps the port."""
        listening.update(own for job in (a, b) for own, _ in sockets(job, LISTEN))
        agreed.update(min(end, key=lambda port: port not in allowed) for job in (a, b) for end in sockets(job, ESTABLISHED))
        return first in listening and len(listening) >= 2 and len(listening | agreed) >= 3  # not every look shows all: the kernel's list changes under it

    with host() as a, host() as b:
        wait_until(workers_are_linked, "a connection between workers")
        a.signal(signal.SIGINT)
        results = finish(a, b)
    assert [r.code for r in results] == [75, 75], results
    assert (listening | agreed) <= set(allowed), (listening, agreed)


def test_one_open_port_is_enough_for_agents_and_store(tmp_path):
    port = free_port()
    with Job(c10d(port, 2, "sh", "-c", STAY, "x", tmp_path, "a")) as a, Job(c10d(port, 2, "sh", "-c", STAY, "x", tmp_path, "b")) as b:
        wait_lines(tmp_path / "a", 1)
        wait_lines(tmp_path / "b", 1)
        assert lines_of(tmp_path / "b")[0].split()[2] == str(port)  # the worker store
        ends = sockets(a, ESTABLISHED) | sockets(b, ESTABLISHED)
        assert len(ends) == 2 and all(port in end for end in ends), ends  # one link, seen from both ends
        (tmp_path / "go").touch()
        assert [r.code for r in finish(a, b)] == [0, 0]


@pytest.mark.parametrize("words, env, who", [
    (["--master_addr=192.0.2.1", "--master_port=0"], {}, "--master_addr"),  # of nobody
    (["--rdzv_endpoint=192.0.2.1:29500", "--master_addr=127.0.0.1"], {}, "--rdzv_endpoint"),
    (["--local_addr=192.0.2.1", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:29500"], {}, "--local_addr"),
    (["--local_addr=a..b"], {}, "--local_addr"),
    ([], {"PET_MASTER_ADDR": "192.0.2.1", "PET_MASTER_PORT": "0"}, "PET_MASTER_ADDR"),
])
def test_a_job_of_one_host_that_is_told_another_ones_address(words, env, who):
    result = run([*words, "/bin/true"], env=env)
    assert result.code == 2, result
    assert re.search(rf"^dtrun: {who}: (192\.0\.2\.1: is no address|a\.\.b: [^:;]*; must be a name or an address) of this host$", result.err, re.M), result


@pytest.mark.parametrize("words", [["--nnodes=2", "--node_rank=0", "--master_addr=127.0.0.1", "--master_port=80", "/bin/true"],
                                   ["--master_addr=127.0.0.1", "--master_port=80", "/bin/true"], ["--serve_store=127.0.0.1:80"]])
def test_a_port_that_one_may_not_have_is_a_wrong_option(words):
    """Another try is denied, too: a scheduler that starts a job again after 111 would do so for ever."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as f:
        if int(f.read()) <= 80:
            pytest.skip("port 80 is everybody's here")
    with as_nobody() as (folder, nobody):
        result = run([*nobody, *words], executable=shutil.which("setpriv"), cwd=folder, env={"TMPDIR": None})
    assert result.code == 2, result
    assert re.search(r"^dtrun: (--serve_store: )?(port 80|127\.0\.0\.1:80): listen: permission denied: ports below 1024 .*; choose another port$", result.err, re.M), result
