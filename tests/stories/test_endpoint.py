"""The endpoint of a job outlives whoever held it: its port is taken over, late hosts find the job there, and no other port is opened than was allowed.
run: alone
run: timeout 300
"""

import os
import signal
import socket
import time

from support import Job, lines_of, wait_lines, wait_until
from test_nodes import STAY, c10d, finish, free_port


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
        wait_until(lambda: connects(port), "the endpoint")
        with host("b") as b, host("c") as c:
            wait_world(tmp_path, "abc", 3)
            os.kill(a.agent, signal.SIGKILL)
            wait_world(tmp_path, "bc", 2)
            a.wait_gone()
            with host("d") as d:  # knows the endpoint alone
                wait_world(tmp_path, "bcd", 3)
                (tmp_path / "go").touch()
                results = finish(b, c, d)
    assert [r.code for r in results] == [0, 0, 0], results
    assert sum("held by this host now" in r.err for r in results) == 1, results


def connects(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


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
