# covers: launcher/hosts/etcd
"""The rows of faults that need a real etcd: members of it die, all of it dies, an agent sleeps, a disk is full, certificates, hosts that all died.

run: full
run: alone
run: timeout 900
"""

import os
import signal
import subprocess
import sys
import time

import pytest

import etcd
from support import Job, alive, children, lines_of, wait_lines, wait_until
from story_etcd import at, size_of
from nodes import STAY, finish

pytestmark = pytest.mark.skipif(etcd.missing() is not None, reason=str(etcd.missing()))


def rounds_of(path):
    return len(lines_of(path))


def test_members_of_etcd_die(tmp_path):
    """One of three, then the one that leads the other two comes and goes: the job starts, and begins rounds, all the same."""
    with etcd.Etcd(tmp_path, members=3) as store:
        store.kill(0)
        args = at(store.endpoints, 2, "--max_restarts=1", "sh", "-c", STAY, "x", tmp_path)
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "b") == 2, "a round of two")
            store.start(0)
            wait_until(lambda: all(store.health(i) for i in range(3)), "three members")
            leader = store.leader()
            before = rounds_of(tmp_path / "a")
            store.kill(leader)
            os.kill(children(b.agent)[0], signal.SIGKILL)  # a worker: a new round is needed
            wait_until(lambda: rounds_of(tmp_path / "a") > before, "another round")
            (tmp_path / "go").touch()
            results = finish(a, b)
            assert [r.code for r in results] == [0, 0], results


def test_all_of_etcd_is_away_for_half_a_minute(tmp_path):
    with etcd.Etcd(tmp_path) as store:
        args = at(store.endpoints, 2, "--max_restarts=1", "sh", "-c", STAY, "x", tmp_path)
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_lines(tmp_path / "a", 1)
            wait_lines(tmp_path / "b", 1)
            store.kill()
            time.sleep(30)  # longer than an agent may be silent
            assert rounds_of(tmp_path / "a") == rounds_of(tmp_path / "b") == 1
            worker = children(b.agent)[0]
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: not alive(worker), "the worker's end")
            time.sleep(5)
            assert rounds_of(tmp_path / "a") == 1  # the next round waits for etcd
            store.start()
            wait_until(lambda: rounds_of(tmp_path / "a") == rounds_of(tmp_path / "b") == 2, "the second round")
            (tmp_path / "go").touch()
            results = finish(a, b)
            assert [r.code for r in results] == [0, 0], results
            assert any("workers go on, a new round waits for it" in r.err and "etcd answers again" in r.err for r in results), results


def test_an_agent_that_slept_notices_before_it_acts(tmp_path):
    with etcd.Etcd(tmp_path) as store:
        args = at(store.endpoints, "1:2", "sh", "-c", STAY, "x", tmp_path)
        with Job([*args, "a"]) as a:
            wait_until(lambda: size_of(tmp_path / "a") == 1, "a round of one")
            with Job([*args, "b"]) as b:
                wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "b") == 2, "a round of two")
                agent = a.agent  # it leads
                workers = children(agent)
                os.kill(agent, signal.SIGSTOP)
                wait_until(lambda: size_of(tmp_path / "b") == 1, "a round without it")
                assert not any(alive(w) for w in workers)  # they were gone before
                seen = rounds_of(tmp_path / "a")
                os.kill(agent, signal.SIGCONT)
                wait_until(lambda: rounds_of(tmp_path / "a") > seen and size_of(tmp_path / "b") == 2, "a round of two again")
                assert rounds_of(tmp_path / "a") == seen + 1 and size_of(tmp_path / "a") == 2  # none of its own in between
                (tmp_path / "go").touch()
                results = finish(a, b)
                assert [r.code for r in results] == [0, 0], results


def test_hosts_that_all_died_begin_again(tmp_path):
    with etcd.Etcd(tmp_path) as store:
        args = at(store.endpoints, 2, "--dead_after=2", "sh", "-c", STAY, "x", tmp_path, run_id="again")
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_lines(tmp_path / "a", 1)
            wait_lines(tmp_path / "b", 1)
            for job in (a, b):
                job.kill()
                job.wait_gone()
        begun = time.monotonic()
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_lines(tmp_path / "a", 2, timeout_s=120)
            # A host of this machine, where the killed leader ran, sees that it is gone: two --dead_after of silence are enough.
            assert 4 < time.monotonic() - begun < 20
            (tmp_path / "go").touch()
            results = finish(a, b)
            assert [r.code for r in results] == [0, 0], results
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:  # after an end in order there is nothing to wait for
            results = finish(a, b)
            assert [r.code for r in results] == [0, 0], results


def test_a_full_etcd(tmp_path):
    with etcd.Etcd(tmp_path, options=["--quota-backend-bytes=65536"]) as store:
        with pytest.raises(OSError):
            for i in range(100):
                store.call("kv/put", key=etcd.b64(f"k{i}"), value=etcd.b64("x" * 30000))
        with Job(at(store.endpoints, 2, "--join_timeout=3", "true")) as job:
            result = finish(job)[0]
        assert result.code == 111 and "database space exceeded; compact and defragment it" in result.err, result


def test_certificates(tmp_path):
    def sign(name, *more):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.crt", "-subj", f"/CN={name}", *more],
                       check=True, capture_output=True)

    def path(name):
        return str(tmp_path / name)

    sign("ca")
    for name in ("server", "client"):
        sign(name, "-CA", path("ca.crt"), "-CAkey", path("ca.key"), "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
    sign("stranger")
    conf = f"protocol=https,cacert={path('ca.crt')},cert={path('client.crt')},key={path('client.key')}"
    with etcd.Etcd(tmp_path, tls=(path("ca.crt"), path("server.crt"), path("server.key"))) as store:
        args = at(store.endpoints, 2, f"--rdzv_conf={conf}", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        with Job(args) as a, Job(args) as b:
            results = finish(a, b)
        assert [r.code for r in results] == [0, 0] and sorted(r.out for r in results) == ["0 of 2\n", "1 of 2\n"], results
        with Job(at(store.endpoints, 2, f"--rdzv_conf=protocol=https,cacert={path('stranger.crt')}", "true")) as job:
            result = finish(job)[0]
        assert result.code == 100 and "certificate" in result.err, result


# A worker that asks the round's store which number it is, and stays: one line per round, "GROUP_RANK GROUP_WORLD_SIZE NUMBER".
COUNTER = r"""
import os, socket, struct, sys, time
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
s.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BQ1sq", 4, 1, b"n", 1))
number = struct.unpack("<q", s.recv(8))[0]
with open(sys.argv[1] + "/" + sys.argv[2], "a") as f:
    f.write("%s %s %d\n" % (os.environ["GROUP_RANK"], os.environ["GROUP_WORLD_SIZE"], number))
while not os.path.exists(sys.argv[1] + "/go"):
    time.sleep(0.05)
"""


def test_a_round_without_its_leader_begins_with_an_empty_store(tmp_path):
    """a, then b, is stopped for so long that it is lost; both return, with the first places, and when c's worker fails, c leads a round that it is not in."""

    def together(*names):
        wait_until(lambda: all(size_of(tmp_path / n) == 2 for n in names), f"a round of {names}")

    def begun(job, name, more):
        count = len(lines_of(tmp_path / name))
        more()
        wait_until(lambda: len(lines_of(tmp_path / name)) > count, f"the next round of {name}")

    with etcd.Etcd(tmp_path) as store:
        args = at(store.endpoints, "1:2", "--max_restarts=30", "--dead_after=8", sys.executable, "-c", COUNTER, tmp_path, run_id="outside")
        with Job([*args, "a"]) as a:
            wait_until(lambda: size_of(tmp_path / "a") == 1, "a round of one")
            with Job([*args, "b"]) as b:
                together("a", "b")
                with Job([*args, "c"]) as c:
                    wait_until(lambda: children(c.pid), "the agent of c")
                    begun(c, "c", lambda: os.kill(a.agent, signal.SIGSTOP))
                    together("b", "c")
                    os.kill(a.agent, signal.SIGCONT)
                    wait_until(lambda: len(children(a.agent)) == 0, "a without workers")
                    begun(a, "a", lambda: os.kill(b.agent, signal.SIGSTOP))
                    together("a", "c")
                    os.kill(b.agent, signal.SIGCONT)
                    rounds = rounds_of(tmp_path / "b")
                    while rounds_of(tmp_path / "b") == rounds:  # b may not be back yet
                        for worker in children(c.agent):
                            os.kill(worker, signal.SIGKILL)
                        time.sleep(3)
                    together("a", "b")
                    (tmp_path / "go").touch()
                    results = finish(a, b, c)
    numbers = [lines_of(tmp_path / n)[-1].split()[2] for n in "ab"]
    assert sorted(numbers) == ["1", "2"], (numbers, results)
