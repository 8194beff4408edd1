# covers: launcher/store
"""Who may use the worker store: of this host its own user and those that --store_users names, of other hosts those of the job while they are of it.
run: alone
"""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess

import pytest

import hosts
import support
from hosts import PORT, Stayers
from nodes import c10d, free_port
from support import wait_until

HELLO = bytes.fromhex("00cef7853c")
NOBODY = 65534
another_user = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root and setpriv")
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
# Sets a key and gets it; exits 0 when the store answered with its value.
CLIENT = r"""exec 3<>/dev/tcp/$0/$1 || exit 1
printf "\0\xce\xf7\x85\x3c\1\1\0\0\0\0\0\0\0k\1\0\0\0\0\0\0\0v\3\1\0\0\0\0\0\0\0k" >&3
[ "$(head -c 9 <&3 | tail -c 1)" = v ]"""


def text(s):
    return struct.pack("<Q", len(s)) + s


def is_served(address, port):
    """Whether a store at that address lets this process set a key, and gives its value back."""
    try:
        with socket.create_connection((address, port), support.DEADLINE_S) as s:
            s.sendall(HELLO + b"\x01" + text(b"k") + text(b"v") + b"\x03" + text(b"k"))
            return s.recv(9, socket.MSG_WAITALL) == text(b"v")
    except OSError:
        return False


def nobody_is_served(address, port):
    return subprocess.run([*AS_NOBODY, "bash", "-c", CLIENT, address, str(port)], stderr=subprocess.DEVNULL, timeout=support.DEADLINE_S).returncode == 0


def port_of(folder):
    return int(wait_until(lambda: (folder / "port").exists() and (folder / "port").read_text(), "the worker"))


STAY = "echo $MASTER_PORT > port.new; mv port.new port; while [ ! -e go ]; do sleep 0.05; done"


@another_user
@pytest.mark.parametrize("options", [["--standalone"], ["--nnodes=1", "--master_addr=::1", "--master_port=0"], "c10d", ["--standalone", "--store_users=nobody,7"]])
def test_another_user_of_the_host(tmp_path, options):
    address = "::1" if "--master_addr=::1" in options else "127.0.0.1"
    named = any(str(x).startswith("--store_users") for x in options)
    options = c10d(free_port(), "1:2") if options == "c10d" else options
    with support.Job([*options, "--nproc_per_node=1", "/bin/sh", "-c", STAY], cwd=tmp_path) as job:
        port = port_of(tmp_path)
        assert is_served(address, port)
        assert nobody_is_served(address, port) == named
        (tmp_path / "go").touch()
        result = job.finish()
    assert result.code == 0, result
    said = re.findall(rf"dropped: it belongs to user {NOBODY} of this host, .* --store_users={NOBODY}$", result.err, re.M)
    assert len(said) == (0 if named else 1), result


@another_user
@pytest.mark.parametrize("options, code", [([f"--store_users={NOBODY}"], 0), ([], 1)])
def test_a_worker_that_runs_as_another_user(options, code):
    client = CLIENT.replace("$0", "$MASTER_ADDR").replace("$1", "$MASTER_PORT")
    result = support.run(["--standalone", *options, *AS_NOBODY, "bash", "-c", client])
    assert result.code == code, result


@pytest.mark.parametrize("options", [["--master_addr=10.77.0.1", f"--master_port={PORT}"], [f"--rdzv_endpoint=10.77.0.1:{PORT}"],
                                     ["--local_addr=10.77.0.1", f"--port_range={PORT}-{PORT}"], ["--master_addr=fd77::1", f"--master_port={PORT}"]])
def test_a_job_on_one_host_serves_no_other(tmp_path, options):
    address = "fd77::1" if "--master_addr=fd77::1" in options else "10.77.0.1"
    with hosts.network(2) as net:
        a, b = net.hosts
        with a.job(["--nnodes=1", *options, "sh", "-c", STAY], cwd=tmp_path) as job:
            port_of(tmp_path)
            with a.inside():
                assert is_served(address, PORT)
            with b.inside():
                assert not is_served(address, PORT)
            (tmp_path / "go").touch()
            result = job.finish()
    assert result.code == 0 and result.err.count("it comes from another host, and this job has one host") == 1, result


def test_an_address_without_an_interface_is_this_host(tmp_path):
    with hosts.network(1) as net:
        a = net.hosts[0]
        hosts.tool("ip", "-n", a.namespace, "route", "add", "local", "10.99.1.0/24", "dev", "lo")
        with a.job(["--nnodes=1", "--master_addr=10.99.1.5", f"--master_port={PORT}", "sh", "-c", STAY], cwd=tmp_path) as job:
            port_of(tmp_path)
            with a.inside():
                assert is_served("10.99.1.5", PORT)
            (tmp_path / "go").touch()
            result = job.finish()
    assert result.code == 0 and result.err == "", result


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_host_is_served_while_it_is_of_the_job(tmp_path, end):
    """The second host leaves, or is lost: after its dead_after (here 5 s) at the latest its address is a stranger's, as the third host's is all the time."""
    with hosts.network(3) as net:
        a, b, c = net.hosts

        def served(host):
            with host.inside():
                return is_served(a.address, PORT)

        run = Stayers(net, tmp_path, "1:2", on=[a, b])
        run.wait_round("ab")
        assert served(a) and served(b) and not served(c)
        os.kill(run.jobs["b"].agent if end == signal.SIGKILL else run.jobs["b"].pid, end)
        wait_until(lambda: not served(b), "the end of what a host that left may do")
        run.wait_round("a")
        assert served(a) and not served(b)
        run.jobs["b2"] = run.start(b)
        wait_until(lambda: served(b), "a host that came again")
        run.wait_round("ab", newer_than=1)
        run.go()


HOLD = """
import resource, socket, struct, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
held = []
for i in range(1040):  # a job of one rank has 1028 places
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    s.sendall(bytes.fromhex("00cef7853c") + b"\\x0d" + struct.pack("<I", 1 + i % 3))  # as if of several processes
    assert len(s.recv(4)) == 4
    held.append(s)
print("held", flush=True)
sys.stdin.read()
"""


@another_user
def test_who_holds_all_connections_shuts_nobody_out(tmp_path):
    """A user who is served takes as many connections as there may be: the job's own worker takes the place of one of these."""
    with support.Job(["--standalone", f"--store_users={NOBODY}", "--nproc_per_node=1", "/bin/sh", "-c", STAY], cwd=tmp_path) as job:
        port = port_of(tmp_path)
        with socket.create_connection(("127.0.0.1", port), support.DEADLINE_S) as early:
            early.sendall(HELLO + b"\x07")
            assert early.recv(8, socket.MSG_WAITALL) == bytes(8)
            hog = subprocess.Popen([*AS_NOBODY, "/usr/bin/python3", "-c", HOLD, "127.0.0.1", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                assert hog.stdout.readline() == "held\n"
                assert all(is_served("127.0.0.1", port) for _ in range(3))
                early.sendall(b"\x07")
                assert early.recv(8, socket.MSG_WAITALL) == struct.pack("<q", 1)
            finally:
                hog.communicate()
        (tmp_path / "go").touch()
        result = job.finish()
    assert result.code == 0 and result.err.count("more than 1028 connections: 1 closed, newest first of whoever has most: ") == 1, result


@another_user
def test_a_store_that_is_served_alone(tmp_path):
    """At a loopback address as any other; elsewhere for everybody, which is said."""
    with hosts.network(2) as net:
        a, b = net.hosts
        for address in ("127.0.0.1", a.address):
            with a.job([f"--serve_store={address}:{PORT}"]) as job:
                assert job.process.stdout.readline() == f"{address}:{PORT}\n"
                with a.inside():
                    assert is_served(address, PORT)
                    assert nobody_is_served(address, PORT) == (address == a.address)
                with b.inside():
                    assert is_served(a.address, PORT) == (address == a.address)
                job.signal(signal.SIGTERM)
                result = job.finish()
            assert result.code == 0 and result.err.count("everybody who reaches it") == (1 if address == a.address else 0), result
