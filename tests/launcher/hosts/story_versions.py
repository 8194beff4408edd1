# covers: launcher/hosts launcher/rounds
"""Hosts with different versions of dtrun (U-4): the one that comes ends at once with 2, both sides name both versions, the job that waits goes on waiting.
run: waits
run: timeout 120
"""

import os
import re
import socket
import subprocess
import threading

import pytest

from support import DTRUN, Job, wait_until
from nodes import NUMBERS, c10d, finish, free_port

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
HELLO_BYTES, RUN = 96, "story"


def hello(protocol, text, server):
    """A greeting of another version: what lies behind its versions may mean anything."""
    return b"DTL" + bytes([protocol, 2 * server, 0, 0, 0]) + os.urandom(8) + os.urandom(16) + os.urandom(16) + text.encode().ljust(16, b"\0") + os.urandom(32)


def own_version():
    return subprocess.run([DTRUN, "--version"], capture_output=True, text=True).stdout.split()[1]


def receive(s, count):
    got = b""
    while len(got) < count:
        piece = s.recv(count - len(got))
        assert piece, f"closed after {len(got)} bytes"
        got += piece
    return got


@pytest.mark.parametrize("protocol, text", [(3, "0.0.9"), (200, "7.1.0")])
def test_who_comes_to_another_version_ends_with_2(protocol, text):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            while True:
                try:
                    s, _ = server.accept()
                except OSError:
                    return
                with s:
                    try:
                        receive(s, HELLO_BYTES)
                        s.sendall(hello(protocol, text, True))
                        s.recv(1)
                    except (OSError, AssertionError):
                        continue

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        with Job(c10d(port, 2, "sh", "-c", NUMBERS)) as job:
            result = job.finish(20)
            job.wait_gone()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert result.code == 2 and result.out == "", result
    said = rf"dtrun: .*127\.0\.0\.1.*: runs dtrun {text} \(protocol {protocol}\), this host dtrun {own_version()} \(protocol \d+\); install the same"
    assert re.search(said, result.err), result


def test_a_job_that_waits_is_not_disturbed():
    port = free_port()
    with Job(c10d(port, 2, "sh", "-c", NUMBERS)) as a:

        def connect():
            try:
                return socket.create_connection(("127.0.0.1", port), 5)
            except OSError:
                return None

        with wait_until(connect, "the endpoint") as s:
            s.settimeout(10)
            s.sendall(hello(200, "7.1.0", False))
            answer = receive(s, HELLO_BYTES)
        assert answer[:3] == b"DTL" and answer[48:64].rstrip(b"\0").decode() == own_version()
        with Job(c10d(port, 2, "sh", "-c", NUMBERS)) as b:
            results = finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    assert re.search(rf"127\.0\.0\.1.* refused: runs dtrun 7\.1\.0 \(protocol 200\), this host dtrun {own_version()} ", results[0].err), results
