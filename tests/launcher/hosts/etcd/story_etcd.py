# covers: launcher/hosts/etcd
"""Hosts that meet at a real etcd (agents of this machine): they train the bits of one host, lose each other, and say what etcd said.
run: waits
run: timeout 300
"""

import http.server
import os
import signal
import threading
import uuid

import pytest

import etcd
import training
from support import Job, children, lines_of, wait_lines, wait_until
from nodes import STAY, finish

pytestmark = pytest.mark.skipif(etcd.missing() is not None, reason=str(etcd.missing()))
STEPS = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with etcd.Etcd(tmp_path_factory.mktemp("etcd")) as e:
        yield e


def at(endpoints, nnodes, *rest, run_id=None):
    return [f"--nnodes={nnodes}", "--rdzv_backend=etcd-v3", f"--rdzv_endpoint={endpoints}", f"--rdzv_id={run_id or uuid.uuid4().hex}",
            "--last_call=1", *map(str, rest)]


def size_of(path):
    """Hosts of the newest round that the worker of STAY saw."""
    lines = lines_of(path)
    return int(lines[-1].split()[1]) if lines else 0


def test_two_hosts_meet_and_train_the_bits_of_one(tmp_path, store):
    job = training.make_job(tmp_path, steps=STEPS)
    alone = training.train(job, tmp_path / "one", ranks=3)
    assert alone.code == 0, alone
    # The first endpoint is none: the next one is asked.
    args = at(f"127.0.0.1:1,{store.endpoints}", 2, run_id="two-hosts.meet")
    with Job([*args, "--nproc_per_node=2", "train", job, "--output_dir", tmp_path / "two", "--mode", "full_shard"]) as a, \
         Job([*args, "--nproc_per_node=1", "train", job, "--output_dir", tmp_path / "two", "--mode", "full_shard"]) as b:
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    assert training.hash_of(tmp_path / "two") == training.hash_of(tmp_path / "one")
    left = store.keys("/dtrun/two-hosts.meet/")
    assert all("lease" in kv for kv in left.values()), left  # what is left of the run goes by itself


def test_the_other_host_goes_on_when_the_leaders_agent_is_killed(tmp_path, store):
    args = at(store.endpoints, "1:2", "sh", "-c", STAY, "x", tmp_path)
    with Job([*args, "a"]) as a:
        wait_until(lambda: size_of(tmp_path / "a") == 1, "a round of one")
        with Job([*args, "b"]) as b:
            wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "b") == 2, "a round of two")
            os.kill(a.agent, signal.SIGKILL)
            wait_until(lambda: size_of(tmp_path / "b") == 1, "a round of one again")
            a.wait_gone()
            with Job([*args, "c"]) as c:  # whoever comes late finds the job
                wait_until(lambda: size_of(tmp_path / "b") == size_of(tmp_path / "c") == 2, "a round of two again")
                (tmp_path / "go").touch()
                results = finish(b, c)
                assert [r.code for r in results] == [0, 0], results


def test_a_job_ends_well_without_etcd(tmp_path):
    with etcd.Etcd(tmp_path) as own:
        args = at(own.endpoints, 2, "sh", "-c", STAY, "x", tmp_path)
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_lines(tmp_path / "a", 1)
            wait_lines(tmp_path / "b", 1)
            own.kill()
            (tmp_path / "go").touch()
            results = finish(a, b)
            assert [r.code for r in results] == [0, 0], results
            assert len(lines_of(tmp_path / "a")) == len(lines_of(tmp_path / "b")) == 1


def test_an_etcd_that_lost_its_data_is_written_anew(tmp_path):
    with etcd.Etcd(tmp_path) as own:
        args = at(own.endpoints, "1:3", "--max_restarts=1", "--dead_after=5", "sh", "-c", STAY, "x", tmp_path, run_id="wiped")
        with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
            wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "b") == 2, "a round of two")
            before = len(lines_of(tmp_path / "b"))
            own.kill()
            own.wipe()
            own.start()
            wait_until(lambda: "/dtrun/wiped/witness" in own.keys(), "what the job keeps there")
            assert len(lines_of(tmp_path / "b")) == before  # nobody noticed
            os.kill(children(b.agent)[0], signal.SIGKILL)  # the next round needs etcd
            wait_until(lambda: len(lines_of(tmp_path / "b")) > before and size_of(tmp_path / "a") == 2, "another round of two")
            with Job([*args, "c"]) as c:  # who comes finds the job there, and no new one
                wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "c") == 3, "a round of three")
                (tmp_path / "go").touch()
                results = finish(a, b, c)
    assert [r.code for r in results] == [0, 0, 0], results
    assert any("etcd had lost what it kept of this run: written anew, the job goes on" in r.err for r in results), results


def test_nobody_there(tmp_path):
    port = etcd.free_ports(1)[0]
    with Job(at(f"127.0.0.1:{port}", 2, "--join_timeout=2", "true")) as job:
        result = finish(job)[0]
    assert result.code == 111 and f"etcd 127.0.0.1 port {port}: " in result.err and "connect" in result.err, result


ENDS = {"all went well": "exit 0", "a worker fails": '[ "$GROUP_RANK" = 1 ] && exit 3; sleep 1000', "asked to stop": "sleep 1000"}


@pytest.mark.parametrize("how", list(ENDS))
def test_the_next_job_of_a_name_begins_at_once_after_an_end(tmp_path, store, how):
    """Else it would wait for --dead_after at least: longer than a story may last."""
    first = at(store.endpoints, "2", "--dead_after=300", "sh", "-c", f'echo >> "$0"; {ENDS[how]}', tmp_path / "begun", run_id=uuid.uuid4().hex)
    with Job(first) as a, Job(first) as b:
        if how == "asked to stop":
            wait_lines(tmp_path / "begun", 2)
            b.signal(signal.SIGINT)
        results = finish(a, b)
        assert [r.code for r in results] == [{"all went well": 0, "a worker fails": 1, "asked to stop": 130}[how]] * 2, results
    after = [*first[:first.index("sh")], "sh", "-c", "echo $RANK of $WORLD_SIZE"]
    with Job(after) as a, Job(after) as b:
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0] and sorted(r.out for r in results) == ["0 of 2\n", "1 of 2\n"], results


@pytest.mark.parametrize("whom", ["guards", "agents too"])
def test_the_next_job_of_a_name_begins_soon_after_a_kill(tmp_path, store, whom):
    """Of whose leader nobody knows that it is gone, it would be 20 times --dead_after: longer than a story may last."""
    args = at(store.endpoints, "1:2", "--dead_after=4", "sh", "-c", STAY, "x", tmp_path, run_id=uuid.uuid4().hex)
    with Job([*args, "a"]) as a, Job([*args, "b"]) as b:
        wait_until(lambda: size_of(tmp_path / "a") == size_of(tmp_path / "b") == 2, "a round of two")
        for pid in [a.pid, b.pid] + ([a.agent, b.agent] if whom == "agents too" else []):
            os.kill(pid, signal.SIGKILL)
        for job in (a, b):
            job.process.wait()
            job.wait_gone()
    (tmp_path / "go").touch()
    with Job([*args, "c"]) as c, Job([*args, "d"]) as d:
        results = finish(c, d)
    assert [r.code for r in results] == [0, 0] and size_of(tmp_path / "c") == 2, results


def test_two_jobs_without_a_name_do_not_mix(tmp_path, store):
    def args(name):
        return ["--nnodes=2", "--rdzv_backend=etcd-v3", f"--rdzv_endpoint={store.endpoints}", "sh", "-c", STAY, "x", tmp_path, name]

    with Job(args("red")) as a, Job(args("red")) as b:
        wait_until(lambda: size_of(tmp_path / "red") == 2 and len(lines_of(tmp_path / "red")) == 2, "a round of two")
        with Job(args("blue")) as c:  # another program, another folder, or another user: another job
            other = finish(c)[0]
        with Job(args("red")) as d:  # the same once more: nobody ends with 0 having run nothing
            same = finish(d)[0]
        (tmp_path / "go").touch()
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0] and len(lines_of(tmp_path / "red")) == 2, results
    assert other.code == 2 and "give each job an --rdzv_id of its own" in other.err and not os.path.exists(tmp_path / "blue"), other
    assert same.code == 111 and "a job without --rdzv_id runs at this etcd" in same.err, same


class Old(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_a_server_without_version_3(store):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Old)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    old = f"127.0.0.1:{server.server_port}"
    with server:
        args = at(f"{old},{store.endpoints}", 2, "true")  # one of two endpoints is as good as it must be
        with Job(args) as a, Job(args) as b:
            results = finish(a, b)
        assert [r.code for r in results] == [0, 0], results
        with Job(at(old, 2, "true")) as job:
            result = finish(job)[0]
        server.shutdown()
    assert result.code == 100 and "HTTP status 404" in result.err and "etcd 3.4 or newer is needed" in result.err, result


def test_passwords(tmp_path):
    def user(name, text):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return f"--rdzv_conf=user_file={path}"

    with etcd.Etcd(tmp_path) as own:
        for name, roles in (("root", ["root"]), ("guest", [])):
            own.call("auth/user/add", name=name, password="right")
            for role in roles:
                own.call("auth/role/add", name=role)
                own.call("auth/user/grant", user=name, role=role)
        own.call("auth/enable")
        for conf, said in ((user("bad", "root:wrong"), "invalid user ID or password"), (user("guest", "guest:right"), "permission denied"),
                           ("--rdzv_conf=timeout=1", "user name is empty; name and password come from --rdzv_conf=user_file=FILE")):
            with Job(at(own.endpoints, 2, conf, "true")) as job:
                result = finish(job)[0]
            assert result.code == 100 and said in result.err, (conf, result)
        args = at(own.endpoints, 2, user("good", "root:right"), "sh", "-c", "echo $RANK of $WORLD_SIZE")
        with Job(args) as a, Job(args) as b:
            results = finish(a, b)
        assert [r.code for r in results] == [0, 0] and sorted(r.out for r in results) == ["0 of 2\n", "1 of 2\n"], results
