# covers: launcher/store
"""dtrun --serve_store: the worker store alone, its address on stdout, until INT or TERM."""

import contextlib
import os
import re
import signal
import socket
import struct

import pytest
from support import DEADLINE_S, DTRUN, Job, run, serve

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
HELLO = bytes.fromhex("00cef7853c")


def text(s):
    return struct.pack("<Q", len(s)) + s


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_clients_share_keys_until_a_signal(number):
    job, host, port = serve("127.0.0.1:0")
    with job:
        assert host == "127.0.0.1"
        with socket.create_connection((host, port), DEADLINE_S) as a, socket.create_connection((host, port), DEADLINE_S) as b:
            a.sendall(HELLO + b"\x01" + text(b"k") + text(b"v") + b"\x07")  # set, then the number of keys
            assert struct.unpack("<q", a.recv(8, socket.MSG_WAITALL))[0] == 1
            b.sendall(HELLO + b"\x03" + text(b"k"))  # get
            assert b.recv(9, socket.MSG_WAITALL) == text(b"v")
            job.signal(number)
            result = job.finish()
            assert result.code == 0 and result.err == "", result
            assert a.recv(1) == b""


def test_an_int_that_was_ignored_at_the_start_ends_nothing():
    job = Job(["-c", 'trap "" INT; exec "$0" --serve_store=127.0.0.1', DTRUN], executable="/bin/sh")
    with job:
        match = re.fullmatch(r"127.0.0.1:(\d+)\n", job.process.stdout.readline())
        job.signal(signal.SIGINT)
        with socket.create_connection(("127.0.0.1", int(match.group(1))), DEADLINE_S) as a:
            a.sendall(HELLO + b"\x01" + text(b"k") + text(b"v") + b"\x07")
            assert struct.unpack("<q", a.recv(8, socket.MSG_WAITALL))[0] == 1
        job.signal(signal.SIGTERM)
        assert job.finish().code == 0


def test_a_console_that_nobody_reads_ends_nobody():
    """A stranger is warned of on stderr; that its reader has gone is no end of those who use the store."""
    job, host, port = serve("127.0.0.1:0")
    with job:
        job.process.stderr.close()
        with socket.create_connection((host, port), DEADLINE_S) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        with socket.create_connection((host, port), DEADLINE_S) as a:
            a.sendall(HELLO + b"\x01" + text(b"k") + text(b"v") + b"\x07")
            assert struct.unpack("<q", a.recv(8, socket.MSG_WAITALL))[0] == 1
        job.signal(signal.SIGTERM)
        assert job.process.wait(DEADLINE_S) == 0


def test_strangers_of_many_addresses_cause_few_lines():
    """Each of 300 addresses would have a line of its own: some have, the last of them says that no other follows."""
    job, host, port = serve("127.0.0.1:0")
    with job:
        for i in range(300):
            with socket.socket() as stranger:
                stranger.bind((f"127.1.{i // 200}.{1 + i % 200}", 0))
                stranger.settimeout(DEADLINE_S)
                stranger.connect((host, port))
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        job.signal(signal.SIGTERM)
        lines = job.finish().err.splitlines()
        assert len(lines) == 20 and all("does not speak the store's protocol" in line for line in lines), lines
        assert "127.1.0.20" in lines[19] and lines[19].endswith("; for 60 s no other host is named")


def test_the_address_may_lack_the_port():
    job, _, port = serve("localhost")
    with job:
        assert port > 0
        job.signal(signal.SIGTERM)
        assert job.finish().code == 0


def test_a_taken_port_and_a_wrong_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        result = run([f"--serve_store=127.0.0.1:{port}"])
        assert result.code == 111 and result.out == "" and str(port) in result.err and result.err.count("\n") == 1, result
    result = run(["--serve_store=[::1"])
    assert result.code == 2 and result.err.startswith("dtrun: --serve_store: [::1: "), result


def test_the_port_is_one_of_the_range():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lo = taken.getsockname()[1]
        job, _, port = serve("127.0.0.1:0", env={"DTRUN_PORT_RANGE": f"{lo}-{lo + 20}"})
        with job:
            assert lo < port <= lo + 20
            job.signal(signal.SIGTERM)
            assert job.finish().code == 0
        result = run(["--serve_store=127.0.0.1", f"--port_range={lo}-{lo}"])
        assert result.code == 111 and f"no free port in {lo}-{lo}: port {lo}: already in use" in result.err, result


@pytest.mark.parametrize("words, said", [
    (["--serve_store=127.0.0.1:300", "--port_range=20000-20001"], "dtrun: --serve_store: port 300 is not in --port_range=20000-20001; "
                                                                  "give a port of that range, or 0 for any free one in it\n"),
    (["--serve_store=192.0.2.1", "--port_range=20000-20001"], "dtrun: --serve_store: 192.0.2.1: is no address of this host\n"),
    (["--serve_store=127.0.0.1:0", "/bin/true"], "dtrun: --serve_store: serves the store and runs no program; leave out /bin/true\n"),
    (["--serve_store=192.0.2.1:0"], "dtrun: --serve_store: 192.0.2.1: is no address of this host\n"),
    (["--serve_store=a..b:0"], r"dtrun: --serve_store: a\.\.b: [^:;]*; must be a name or an address of this host\n"),
])
def test_what_is_no_server_is_a_wrong_option(words, said):
    result = run(words)
    assert result.code == 2 and re.fullmatch(said, result.err) and result.out == "", result
