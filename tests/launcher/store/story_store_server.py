# covers: launcher/store collectives/wire.c
"""The store server alone, as a process, with clients of plain sockets: new rounds, strangers, statistics."""

import json
import os
import signal
import socket
import struct
import subprocess
import time

import pytest
import support

SERVE = os.path.join(support.TOOLS, "serve_store")
SANITIZED = os.environ.get("SAN", "") != ""
HELLO = bytes.fromhex("00cef7853c")
pytestmark = pytest.mark.skipif(not os.path.exists(SERVE), reason="tools are not built: make tools")


def text(s):
    return struct.pack("<Q", len(s)) + s


def put(key, value):
    return b"\x01" + text(key) + text(value)


class Server:
    def __init__(self, prefix=()):
        self.prefix = prefix

    def __enter__(self):
        self.process = subprocess.Popen([*self.prefix, SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=support.clean_env())
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.close()
            self.process.wait(support.DEADLINE_S)
        self.process.stdout.close()
        self.process.stderr.close()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line):
        self.say(line)
        return self.process.stdout.readline()

    def connect(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=support.DEADLINE_S)
        s.sendall(data)
        return s


def key_count(server):
    with server.connect(HELLO + b"\x07") as s:
        return struct.unpack("<q", s.recv(8, socket.MSG_WAITALL))[0]


def is_closed(s):
    try:
        return s.recv(1) == b""
    except ConnectionError:
        return True


def test_what_the_old_round_sent_does_not_reach_the_new_one():
    """Clients of a round that is over, some not even accepted yet, with requests under way when the new round begins."""
    with Server() as server:
        old = server.connect(HELLO + put(b"a", b"1") + b"\x07")
        assert struct.unpack("<q", old.recv(8, socket.MSG_WAITALL))[0] == 1
        server.process.send_signal(signal.SIGSTOP)
        support.wait_until(lambda: support.state_of(server.process.pid) == "T", "the server's stop")
        late = [server.connect(HELLO + put(b"late", b"1")) for _ in range(5)]
        old.sendall(put(b"b", b"2"))
        time.sleep(1)  # what was sent lies in the server's queues now
        server.say("reset")
        server.process.send_signal(signal.SIGCONT)
        assert server.process.stdout.readline() == "reset\n"
        for s in [old, *late]:
            assert is_closed(s)
            s.close()
        assert key_count(server) == 0


def test_strangers_get_one_line():
    with Server() as server:
        with server.connect(b"GET / HTTP/1.0\r\n\r\n") as s:
            assert is_closed(s)
            port = s.getsockname()[1]
        line = server.process.stderr.readline()
        assert line.endswith(f" connection from 127.0.0.1:{port} dropped: does not speak the store's protocol\n"), line
        stats = json.loads(server.ask("stats"))
        assert stats["dropped"] == 1 and stats["clients"] == 0


def test_clients_that_greet_and_send_nonsense_get_one_line():
    """The greeting is no secret."""
    with Server() as server:
        for _ in range(200):
            with server.connect(HELLO + b"\xff") as s:
                assert is_closed(s)
        assert json.loads(server.ask("stats"))["dropped"] == 200
        server.process.terminate()
        lines = server.process.stderr.read().splitlines()
        assert len(lines) == 1 and "dropped: unknown query code 255" in lines[0], lines


def test_statistics_say_who_waits_for_what():
    with Server() as server:
        with server.connect(HELLO + b"\x06" + struct.pack("<Q", 1) + text(b'rank"7')) as s:
            stats = support.wait_until(lambda: (lambda x: x["waits"] and x)(json.loads(server.ask("stats"))), "a wait in the statistics")
            assert stats["waits"][0]["key"] == 'rank"7'
            assert stats["waits"][0]["peer"] == f"127.0.0.1:{s.getsockname()[1]}"
            assert stats["requests"] == {"VALIDATE": 1, "WAIT": 1}
        support.wait_until(lambda: not json.loads(server.ask("stats"))["waits"], "the end of the wait with its connection")


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def test_a_client_that_never_reads_is_dropped_and_one_that_reads_slowly_is_not():
    value = os.urandom(1 << 20)
    with Server() as server:
        with server.connect(HELLO + put(b"k", value)) as s:
            s.sendall((b"\x03" + text(b"k")) * 400)
            support.wait_until(lambda: json.loads(server.ask("stats"))["dropped"] == 1, "the end of a client that asks for 400 MiB")
            assert SANITIZED or resident_kib(server.process.pid) < 128 << 10
        assert "does not read" in server.process.stderr.readline()
        with server.connect(HELLO) as s:  # one answer may be larger than what may be unread otherwise
            s.sendall(b"\x0a" + struct.pack("<Q", 40) + text(b"k") * 40)
            time.sleep(0.2)
            got = bytearray()
            while len(got) < 40 * (8 + len(value)):
                got += s.recv(1 << 20)
            assert got == text(value) * 40
            s.sendall(b"\x07")
            assert struct.unpack("<q", s.recv(8, socket.MSG_WAITALL))[0] == 1


@pytest.mark.skipif(SANITIZED, reason="sanitizers take memory of their own")
def test_answers_that_nobody_reads_cost_nothing():
    """Ten clients ask for 248 MiB each, with 280 bytes, and read nothing; who comes late and reads has it all."""
    value = os.urandom(8 << 20)
    with Server() as server:
        server.connect(HELLO + put(b"k", value) + b"\x07").recv(8, socket.MSG_WAITALL)
        before_kib = resident_kib(server.process.pid)
        ask = HELLO + b"\x0a" + struct.pack("<Q", 31) + text(b"k") * 31
        clients = [server.connect(ask) for _ in range(10)]
        support.wait_until(lambda: json.loads(server.ask("stats"))["requests"].get("MULTI_GET") == 10, "the questions")
        assert resident_kib(server.process.pid) - before_kib < 16 << 10
        assert json.loads(server.ask("stats"))["dropped"] == 0
        for s in clients[:2]:
            with s.makefile("rb") as answer:
                assert all(answer.read(8) == struct.pack("<Q", len(value)) and answer.read(len(value)) == value for _ in range(31))
        for s in clients:
            s.close()


@pytest.mark.skipif(SANITIZED, reason="sanitizers take memory of their own")
def test_idle_connections_cost_little():
    count = 1500
    with Server() as server:
        assert key_count(server) == 0
        before_kib = resident_kib(server.process.pid)
        crowd = [server.connect(HELLO + b"\x07") for _ in range(count)]
        for s in crowd:
            assert struct.unpack("<q", s.recv(8, socket.MSG_WAITALL))[0] == 0
        assert (resident_kib(server.process.pid) - before_kib) / count <= 8
        assert key_count(server) == 0
        for s in crowd:
            s.close()


def test_when_files_run_out_those_who_come_are_refused_and_the_others_served():
    with Server(["sh", "-c", 'ulimit -n 64; exec "$0"']) as server:
        good = server.connect(HELLO + put(b"k", b"v"))
        crowd = [server.connect(HELLO) for _ in range(100)]
        assert is_closed(crowd[-1])
        good.sendall(b"\x03" + text(b"k"))
        assert good.recv(9, socket.MSG_WAITALL) == text(b"v")
        assert "accept: Too many open files" in server.process.stderr.readline()
        for s in crowd:
            s.close()
        assert support.wait_until(lambda: json.loads(server.ask("stats"))["clients"] == 1, "the end of the crowd")
        assert key_count(server) == 1
        good.close()


@pytest.mark.skipif(not os.path.exists(support.DTRUN), reason="dtrun is not built")
def test_a_silent_crowd_larger_than_a_job_may_have_leaves_room_for_its_ranks(tmp_path):
    """One rank: 4 + 1024 connections. What comes beyond takes the place of the newest silent one; one line in all."""
    script = "echo $MASTER_PORT > port; read line < go"
    os.mkfifo(tmp_path / "go")
    with support.Job(["--nproc_per_node=1", "/bin/sh", "-c", script], cwd=tmp_path) as job:
        port = int(support.wait_until(lambda: (tmp_path / "port").exists() and (tmp_path / "port").read_text(), "the worker"))
        crowd = [socket.create_connection(("127.0.0.1", port), support.DEADLINE_S) for _ in range(1100)]
        with socket.create_connection(("127.0.0.1", port), support.DEADLINE_S) as s:
            s.sendall(HELLO + b"\x07")
            assert struct.unpack("<q", s.recv(8, socket.MSG_WAITALL))[0] == 0
            closed = 0
            for c in crowd:
                c.setblocking(False)
                try:
                    closed += c.recv(1) == b""
                except BlockingIOError:
                    pass
                except ConnectionError:
                    closed += 1
            assert closed == len(crowd) + 1 - 1028
        for c in crowd:
            c.close()
        (tmp_path / "go").write_text("\n")
        result = job.finish()
    assert result.code == 0 and result.err.count("more than 1028 connections") == 1, result
