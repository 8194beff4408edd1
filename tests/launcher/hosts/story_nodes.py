# covers: launcher/hosts launcher/rounds launcher/job
"""Jobs on several hosts, each played by an agent of this machine: they meet, number their ranks, lose each other and end alike.
run: waits
run: timeout 400
"""

import json
import os
import re
import signal
import socket
import threading
import time

import pytest

from nodes import NUMBERS, STAY, c10d, finish, free_port, listens, static
from support import DEADLINE_S, DTRUN, Job, alive, children, fill_stderr, lines_of, run, script, wait_lines, wait_until


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_hosts_number_their_ranks(order):
    port = free_port()
    jobs = {}
    for rank in order:
        jobs[rank] = Job(static(port, rank, 2, f"--nproc_per_node={rank + 1}", "sh", "-c", NUMBERS))
    with jobs[0], jobs[1]:
        first, second = finish(jobs[0], jobs[1])
    assert first.code == 0 and second.code == 0, (first, second)
    assert first.out == f"0 3 0 1 0 2 127.0.0.1 {port}\n"
    assert sorted(second.out.splitlines()) == [f"1 3 0 2 1 2 127.0.0.1 {port}", f"2 3 1 2 1 2 127.0.0.1 {port}"]


def test_every_worker_knows_the_host_of_each_rank():
    port = free_port()
    show = ["sh", "-c", 'echo "$RANK $DTRUN_HOST_OF_RANK"']
    jobs = [Job(static(port, i, 4, f"--nproc_per_node={n}", *show)) for i, n in enumerate((1, 2, 2, 1))]
    results = finish(*jobs)
    assert [r.code for r in results] == [0] * 4, results
    assert sorted(line for r in results for line in r.out.splitlines()) == [f"{r} 0,1(x2),2(x2),3" for r in range(6)], results
    alone = run(["--nproc_per_node=2", *show])
    assert sorted(alone.out.splitlines()) == ["0 0(x2)", "1 0(x2)"], alone


def test_three_hosts_meet_as_they_come():
    port = free_port()
    with Job(c10d(port, 3, "sh", "-c", NUMBERS)) as a, Job(c10d(port, 3, "sh", "-c", NUMBERS)) as b, Job(c10d(port, 3, "sh", "-c", NUMBERS)) as c:
        results = finish(a, b, c)
    assert [r.code for r in results] == [0, 0, 0], results
    assert sorted(r.out for r in results) == [f"{i} 3 0 1 {i} 3 127.0.0.1 {port}\n" for i in range(3)]


def test_hosts_that_meet_as_they_come_stand_where_they_would_like_to():
    """Behind the one with the endpoint, where the workers' store is. The others come in the wrong order."""
    port = free_port()
    with Job(c10d(port, 4, "sh", "-c", NUMBERS)) as a:
        wait_until(lambda: listens(port), "the endpoint")
        with Job(c10d(port, 4, "sh", "-c", NUMBERS)) as none, Job(c10d(port, 4, "--node_rank=2", "sh", "-c", NUMBERS)) as second, \
             Job(c10d(port, 4, "sh", "-c", NUMBERS), env={"PET_NODE_RANK": "1"}) as first:
            results = finish(a, first, second, none)
    assert [r.code for r in results] == [0, 0, 0, 0], results
    assert [r.out for r in results] == [f"{i} 4 0 1 {i} 4 127.0.0.1 {port}\n" for i in range(4)], results


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_worker_restarts_all_hosts_and_ends_all_alike(tmp_path, rank):
    port = free_port()
    program = script(tmp_path, "fail", f"""echo $TORCHELASTIC_RESTART_COUNT >> {tmp_path}/rounds$GROUP_RANK
[ $GROUP_RANK != {rank} ] && exec sleep 600
until grep -qx $TORCHELASTIC_RESTART_COUNT {tmp_path}/rounds{1 - rank}; do sleep 0.05; done
exit 3
""")
    with Job(static(port, 0, 2, "--max_restarts=1", program)) as a, Job(static(port, 1, 2, "--max_restarts=1", program)) as b:
        first, second = finish(a, b)
    assert first.code == 1 and second.code == 1, (first, second)
    assert lines_of(tmp_path / "rounds0") == lines_of(tmp_path / "rounds1") == ["0", "1"], (first, second)
    for said in (first.err, second.err):
        assert said.count("; restarting (1 of 1 used)\n") == said.count("; no restart left (1 of 1 used)\n") == 1, (first, second)
        assert "takes no more nodes" not in said, (first, second)


def test_a_lost_follower_leaves_the_leader_alone(tmp_path):
    port = free_port()
    with Job(c10d(port, "1:2", "sh", "-c", STAY, "x", tmp_path, "a")) as a:
        wait_until(lambda: len(lines_of(tmp_path / "a")) >= 1, "a round of one")
        with Job(c10d(port, "1:2", "sh", "-c", STAY, "x", tmp_path, "b")) as b:
            wait_lines(tmp_path / "b", 1)
            wait_until(lambda: lines_of(tmp_path / "a")[-1].split()[1] == "2", "a round of two")
            os.kill(b.agent, signal.SIGKILL)
            wait_until(lambda: lines_of(tmp_path / "a")[-1].split()[1] == "1", "a round of one again")
            b.wait_gone()
        (tmp_path / "go").touch()
        assert finish(a)[0].code == 0


def test_survivors_of_a_lost_leader_go_on(tmp_path):
    port = free_port()
    with Job(static(port, 0, "2:3", "--last_call=1", "sh", "-c", STAY, "x", tmp_path, "a")) as a:
        with Job(static(port, 1, "2:3", "--last_call=1", "sh", "-c", STAY, "x", tmp_path, "b")) as b, \
             Job(static(port, 2, "2:3", "--last_call=1", "sh", "-c", STAY, "x", tmp_path, "c")) as c:
            wait_until(lambda: all(lines_of(tmp_path / f) and lines_of(tmp_path / f)[-1].split()[1] == "3" for f in "abc"), "a round of three")
            os.kill(a.agent, signal.SIGKILL)
            wait_until(lambda: all(lines_of(tmp_path / f)[-1].split()[1] == "2" for f in "bc"), "a round of two", timeout_s=150)
            assert lines_of(tmp_path / "b")[-1].split()[2] != str(port)
            a.wait_gone()
            (tmp_path / "go").touch()
            results = finish(b, c)
            assert [r.code for r in results] == [0, 0], results


def test_hosts_may_run_different_programs(tmp_path):
    """As under torchrun, where roles are for: a parameter server and its trainers."""
    port, words = free_port(), "$ROLE_NAME $RANK $WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE"
    with Job(static(port, 0, 2, "--role=ps", script(tmp_path, "ps.sh", f"#!/bin/sh\necho {words}"))) as a, \
         Job(static(port, 1, 2, "--role=trainer", "--nproc_per_node=2", "sh", "-c", f"echo {words}")) as b:
        results = finish(a, b)
    assert [r.code for r in results] == [0, 0], results
    assert results[0].out == "ps 0 3 0 1\n" and sorted(results[1].out.splitlines()) == ["trainer 1 3 0 2", "trainer 2 3 1 2"], results


def test_different_numbers_of_hosts_are_refused():
    port = free_port()
    with Job(static(port, 0, 2, "sleep", "600")) as a, Job(static(port, 1, 3, "sleep", "600")) as b:
        refused = finish(b)[0]
        assert refused.code == 2 and "started differently from host" in refused.err, refused
        assert "--nnodes 3:3 here, --nnodes 2:2 there; start all alike" in refused.err, refused
        told = finish(a)[0]
        assert told.code == 2 and told.err.count("--nnodes 2:2 here, --nnodes 3:3 there") == 1, told


@pytest.mark.parametrize("first, second, words", [
    (["--key_file={d}/one"], ["--key_file={d}/two"], "the key files differ"),
    (["--key_file={d}/one"], [], "has a key, this agent has none: give --key_file to all hosts or to none"),
    ([], ["--key_file={d}/one"], "has no key, this agent has one: give --key_file to all hosts or to none"),
    (["--rdzv_id=one"], ["--rdzv_id=two"], "belongs to another job: its run id (--rdzv_id) differs from ours"),
])
def test_who_comes_with_another_key_or_run_says_so_at_once(tmp_path, first, second, words):
    """Not with the first line about the wait, ten seconds later."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name * 20)
        (tmp_path / name).chmod(0o600)
    port, begin = free_port(), time.monotonic()
    with Job(c10d(port, 2, *(x.format(d=tmp_path) for x in first), "sleep", "600")) as a:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the endpoint")
        with Job(c10d(port, 2, *(x.format(d=tmp_path) for x in second), "sleep", "600")) as b:
            said = b.process.stderr.readline()
            assert words in said and "waiting" not in said and time.monotonic() - begin < 9, said
            b.signal(signal.SIGTERM)
            a.signal(signal.SIGTERM)
            told = finish(a, b)[0]
    assert "refused: has " in told.err or "refused: belongs to another job" in told.err, told
    assert "since the last line 0 more" not in told.err, told


def test_a_missing_node_rank_0_is_named():
    port = free_port()
    result = run(static(port, 1, 2, "--join_timeout=2", "true"))
    assert result.code == 111 and result.err.splitlines()[-2:] == [
        "dtrun: no host that leads this run was found within 2 s",
        f"dtrun: endpoint 127.0.0.1 port {port}, of node rank 0: connect: connection refused; nobody listens there"], result


def test_a_wrong_key_is_a_wrong_option(tmp_path):
    """A scheduler would start a job that ends with 111 again for ever. Its agent has taken the endpoint over by then."""
    port = free_port()
    for name in ("one", "two"):
        (tmp_path / name).write_text(name * 20)
        (tmp_path / name).chmod(0o600)
    with Job(c10d(port, 2, "--join_timeout=4", f"--key_file={tmp_path}/one", "/bin/true")) as a:
        wait_until(lambda: listens(port), "the endpoint")
        with Job(c10d(port, 2, "--join_timeout=4", f"--key_file={tmp_path}/two", "/bin/true")) as b:
            first, second = finish(a, b)
    assert first.code == 111 and re.search(r"^dtrun: 1 of 2 hosts came within 4 s \(--join_timeout\)", first.err, re.M), first
    assert second.code == 2 and re.search(r"(has another|refused our proof).*: the key files differ", second.err.splitlines()[-1]), second
    assert "within 8 s" not in second.err, second


def test_a_key_file_that_is_not_there_is_a_wrong_option(tmp_path):
    """A scheduler would start a job that ends with 111 again for ever."""
    result = run(c10d(free_port(), 2, f"--key_file={tmp_path}/none", "/bin/true"))
    assert result.code == 2 and f"--key_file: {tmp_path}/none: no such file; make one with (umask 077; " in result.err, result


def test_a_second_host_of_the_same_rank_is_refused(tmp_path):
    port = free_port()
    with Job(static(port, 0, 2, "sh", "-c", STAY, "x", tmp_path, "a")) as a, Job(static(port, 1, 2, "sh", "-c", STAY, "x", tmp_path, "b")) as b:
        wait_lines(tmp_path / "b", 1)
        with Job(static(port, 1, 2, "sh", "-c", STAY, "x", tmp_path, "c")) as c:
            refused = finish(c)[0]
        assert refused.code == 2 and re.search(r"^dtrun: --node_rank=1: host \S+, pid \d+, has this node rank already; give each host its own, 0 to 1$", refused.err, re.M), refused
        (tmp_path / "go").touch()
        assert [r.code for r in finish(a, b)] == [0, 0]


def test_two_hosts_without_a_node_rank(tmp_path):
    """Both are node rank 0: the second one on a machine says so in one line, one elsewhere warns before it waits for nobody."""
    port = free_port()
    words = ["--nnodes=2", "--master_addr=127.0.0.1", f"--master_port={port}", "/bin/true"]
    with Job(words) as a:
        wait_until(lambda: listens(port), "the endpoint")
        second = run(words)
        assert second.code == 111, second
        assert re.fullmatch(rf"dtrun: --node_rank: port {port} is held by another agent of dtrun, pid \d+, so node rank 0 \(the default\) is there twice; "
                            r"give each host its own rank \(0 to 1\), or another job another --master_port\n", second.err), second
        a.signal(signal.SIGTERM)
        a.finish()
    with Job(["--nnodes=2", "--master_addr=192.0.2.1", f"--master_port={port}", "/bin/true"]) as a:  # of nobody
        wait_until(lambda: listens(port), "the endpoint")
        a.signal(signal.SIGTERM)
        result = a.finish()
    assert "dtrun: warning: --node_rank is not given, so this host takes itself for node rank 0, but 192.0.2.1 is no address of it; " in result.err, result
    with Job(["--nnodes=2", "--node_rank=0", "--master_addr=192.0.2.1", f"--master_port={port}", "/bin/true"]) as a:  # said before it waits
        said = a.process.stderr.readline()
        a.signal(signal.SIGTERM)
        a.finish()
    assert said == ("dtrun: warning: --node_rank: is 0 right here? The others come to 192.0.2.1, which is no address of this host; going on, as it may be "
                    "a translated one\n"), said


@pytest.mark.parametrize("said, heard", [(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n", r'does not speak the agents\' protocol, it said "HTTP/1\.1 400 Bad Request"'),
                                         (b"\x15\x03\x03\x00\x02\x02\n", r'does not speak the agents\' protocol, it said "\\x15\\x03\\x03\\x00\\x02\\x02"'),
                                         (b"", r"took the connection and said nothing for 3 s, so no agent of dtrun is there, or a stopped one")])
def test_another_program_at_the_endpoint(said, heard):
    taken = []

    def serve(server):
        while True:
            try:
                taken.append(server.accept()[0])
                taken[-1].sendall(said)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            result = run(static(port, 1, 2, "--time_scale=10", f"--join_timeout={8 if said else 45}", "/bin/true"))
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in taken:
                connection.close()
    assert result.code == 111 and re.search(rf"^dtrun: 127\.0\.0\.1:{port}: {heard}; end the program that has this port, or give all hosts another port$",
                                            result.err, re.M), result


def test_a_silent_program_at_an_endpoint_of_this_host_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run(c10d(port, 2, "--join_timeout=3", "/bin/true"))
    own = lines_of("/proc/self/comm")[0]
    assert result.code == 111, result
    assert result.err.splitlines()[-1] == f"dtrun: endpoint 127.0.0.1 port {port}: no answer; the port is held by pid {os.getpid()} ({own})", result


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_at_one_host_stops_all(tmp_path, rank):
    port = free_port()
    with Job(static(port, 0, 2, "sh", "-c", STAY, "x", tmp_path, "a")) as a, Job(static(port, 1, 2, "sh", "-c", STAY, "x", tmp_path, "b")) as b:
        wait_lines(tmp_path / "a", 1)
        wait_lines(tmp_path / "b", 1)
        (a, b)[rank].signal(signal.SIGINT)
        results = finish(a, b)
    assert [r.code for r in results] == [130, 130], results


def test_a_second_job_of_the_same_id_is_told_what_it_is(tmp_path):
    """Its agent cannot be told from a spare of the first job, and says so; what it would have run does not run."""
    port, go = free_port(), tmp_path / "go"
    first = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"]
    with Job(c10d(port, 2, "--time_scale=20", *first)) as a, Job(c10d(port, 2, "--time_scale=20", *first)) as b:
        wait_until(lambda: a.agent and children(a.agent) and children(b.agent), "the first job")
        with Job(c10d(port, 2, "--time_scale=20", "sh", "-c", f"touch {tmp_path}/second")) as c:
            said = ""
            while "\n" not in said.partition("spare")[2]:
                said += os.read(c.process.stderr.fileno(), 4096).decode()
            go.touch()
            results = finish(a, b, c)
    assert re.search(r"is a spare for \d+ s: the job of run id story runs with as many hosts as may be, ", said), said
    assert "; a job of its own needs another --rdzv_id" in said, said
    assert [r.code for r in results] == [0, 0, 0] and not (tmp_path / "second").exists(), results
    assert "the job of run id story is done; this host was a spare all the time and ran nothing" in results[2].err, results
    assert "spare" not in results[0].err + results[1].err, results


@pytest.mark.parametrize("victim", ["b", "a"])
def test_a_lost_host_is_said_before_the_workers_here_have_ended(tmp_path, victim):
    """They do not listen to TERM. The line comes when the host is known to be lost (`a` leads), then for whom we wait, with a countdown, and nothing twice."""
    port, stays = free_port(), "ab".replace(victim, "")
    said = tmp_path / f"said-{stays}"

    def start(name):
        words = c10d(port, "1:2", "--time_scale=10", "sh", "-c", f"trap '' TERM; {STAY}", "-", tmp_path, name)
        return Job(["-c", 'exec "$@" 2> "$0"', tmp_path / f"said-{name}", DTRUN, *words], executable="/bin/sh")

    def wait_size(names, size):
        wait_until(lambda: all(lines_of(tmp_path / n)[-1:] and lines_of(tmp_path / n)[-1].split()[1] == size for n in names), f"a round of {names}")

    with start("a") as a:
        wait_size("a", "1")
        with start("b") as b:
            wait_size("ab", "2")
            jobs = {"a": a, "b": b}
            workers = children(jobs[stays].agent)
            os.kill(jobs[victim].agent, signal.SIGKILL)
            news = r".* is gone; going on with 1 of 2 hosts \(minimum 1\)" if victim == "b" else ", the coordinator, is gone; looking for another one"
            pattern = rf"^dtrun: host \S+ \(pid \d+\){news}; because of it 1 worker ends at host \S+$"
            wait_until(lambda: re.search(pattern, said.read_text(), re.M), "the line about the lost host")
            assert all(map(alive, workers))
            wait_until(lambda: re.search(r"^dtrun: host \S+: waiting \d+ s for rank \d to end; \d+ s left, then KILL", said.read_text(), re.M), "a countdown")
            wait_size(stays, "1")
            (tmp_path / "go").touch()
            assert jobs[stays].finish().code == 0
    text = said.read_text()
    assert len(re.findall("is gone", text)) == 1 and "because of it 1 worker stopped" not in text, text


def test_who_waited_in_vain_for_a_lost_host_says_which(tmp_path):
    words = ["--join_timeout=2", "sh", "-c", f"touch {tmp_path}/$RANK; exec sleep 600"]
    port = free_port()
    with Job(static(port, 0, 2, *words)) as a, Job(static(port, 1, 2, *words)) as b:
        wait_until(lambda: len(os.listdir(tmp_path)) == 2, "the workers")
        os.kill(b.agent, signal.SIGKILL)
        result = a.finish()
    assert result.code == 111, result
    last = r"dtrun: 1 of 2 hosts came within \d+ s \(--join_timeout\); first cause: round 1 ended: host \S+ \(pid \d+\): its dtrun is gone"
    assert re.fullmatch(last, result.err.splitlines()[-1]), result


def test_who_takes_an_endpoint_over_has_no_trouble_with_it_any_more():
    """Another run held it, and said so: its last word names that as past, since the hosts that are missing may have gone there."""
    port = free_port()
    words = ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}"]
    with Job([*words, "--rdzv_id=one", "--join_timeout=3", "/bin/true"]) as a:
        wait_until(lambda: listens(port), "the endpoint")
        with Job([*words, "--rdzv_id=two", "--join_timeout=6", "/bin/true"]) as b:
            first, second = finish(a, b)
    assert (first.code, second.code) == (111, 111), (first, second)
    assert "belongs to another job" in second.err and "held by this host now" in second.err, second
    last = rf"dtrun: 1 of 2 hosts came within \d+ s \(--join_timeout\); refused before: 127\.0\.0\.1:{port}: belongs to another job: " \
        r"its run id \(--rdzv_id\) differs from ours"
    assert re.fullmatch(last, second.err.splitlines()[-1]), second


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when, here", [("trap 'exit 0' TERM; sleep 600 & wait", "because of it 1 worker stopped at host"),
                                        ("exit 0", r"the worker at host \S+ had ended with exit code 0")])
def test_a_host_whose_workers_all_ended_with_0_says_why_the_round_ended(tmp_path, rank, when, here):
    """They listened to TERM, or had ended before: neither is a failure of this host, which restarts, and ends with 1, because of another one."""
    port = free_port()
    other = f"touch {tmp_path}/$TORCHELASTIC_RESTART_COUNT; {when}"
    fails = f"until [ -e {tmp_path}/$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.05; done; sleep 0.5; exit 5"
    words = ["--max_restarts=1", f"--log_dir={tmp_path}/logs", "-r3", "sh", "-c", f"[ $RANK = {rank} ] && {{ {fails}; }}; {other}"]
    with Job(static(port, 0, 2, *words)) as a, Job(static(port, 1, 2, *words)) as b:
        results = finish(a, b)
    told = results[1 - rank]
    assert [r.code for r in results] == [1, 1], results
    said = [x for x in told.err.splitlines() if "exit code 5" in x]
    assert len(said) == 2 and re.fullmatch(rf"dtrun: host \S+ rank {rank} \(local 0, pid \d+\): exit code 5; {here}.*; restarting \(1 of 1 used\)", said[0]), told
    assert re.search(here, said[1]) and "restarting" not in said[1], told
    events = [json.loads(x) for path in (tmp_path / "logs").glob("**/events.jsonl") for x in lines_of(path)]
    causes = [e for e in events if e["event"] == "ended_elsewhere"]
    assert [e["round"] for e in causes] == [1, 2] and all(f"rank {rank} " in e["cause"] for e in causes), events


@pytest.mark.parametrize("program", ["touch {}/$RANK; sleep 600", "trap 'exit 0' TERM; (touch {}/$RANK; exec sleep 600) & wait"])
def test_a_host_that_ends_because_another_one_was_stopped_says_so(tmp_path, program):
    """The second program writes its file where the shell's trap holds no more: a TERM before that would be lost in the child."""
    port = free_port()
    words = ["sh", "-c", program.format(tmp_path)]
    with Job(static(port, 0, 2, *words)) as a, Job(static(port, 1, 2, *words)) as b:
        wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "both workers")
        b.signal(signal.SIGTERM)
        results = finish(a, b)
    assert [r.code for r in results] == [143, 143], results
    assert [x for x in results[0].err.splitlines() if "warning" not in x] == ["dtrun: stopped by TERM at another host: all workers have ended"], results
    assert "dtrun: stopped by TERM: all workers have ended\n" in results[1].err, results


def test_a_host_whose_workers_are_done_says_that_another_one_was_lost(tmp_path):
    port = free_port()
    words = ["--time_scale=10", "sh", "-c", f"echo $GROUP_WORLD_SIZE > {tmp_path}/$RANK; [ $GROUP_WORLD_SIZE = 1 ] || [ $RANK = 0 ] || sleep 600"]
    with Job(c10d(port, "1:2", *words)) as a:
        wait_until(lambda: listens(port), "the endpoint")
        with Job(c10d(port, "1:2", *words)) as b:
            wait_until(lambda: lines_of(tmp_path / "0") == ["2"] and lines_of(tmp_path / "1") == ["2"] and not children(a.agent), "the end of rank 0")
            os.kill(b.agent, signal.SIGKILL)
            result = a.finish()
            b.finish()
    lost = r"^dtrun: host \S+ \(pid \d+\): its dtrun is gone; going on with 1 of 2 hosts \(minimum 1\); the worker at host \S+ had ended with exit code 0$"
    assert result.code == 0 and len(re.findall(lost, result.err, re.M)) == 1, result


def test_who_did_not_come_is_named():
    """A job with node ranks knows who is missing."""
    result = run(static(free_port(), 0, 3, "--join_timeout=1", "/bin/true"))
    assert result.code == 111, result
    assert re.fullmatch(r"dtrun: 1 of 3 hosts came within \d+ s \(--join_timeout\); not heard from: node 1, node 2", result.err.splitlines()[-1]), result


def test_a_host_that_was_started_differently_is_said_once(tmp_path):
    port = free_port()
    with Job(c10d(port, "1:2", "sh", "-c", f"touch {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")) as a:
        wait_until(lambda: (tmp_path / "up").exists(), "the worker")
        for _ in range(2):
            other = run(c10d(port, "1:2", "--max_restarts=4", "/bin/true"))
            assert other.code == 2 and "started differently from host" in other.err, other
        (tmp_path / "go").touch()
        result = a.finish()
    assert result.code == 0 and len(re.findall(r"^dtrun: host \S+: refused: --max_restarts 0 here, --max_restarts 4 there", result.err, re.M)) == 2, result


def test_hosts_that_count_each_other_lost_at_other_times_are_refused():
    """One would let its workers live when the other begins without it."""
    port = free_port()
    with Job(c10d(port, 2, "--dead_after=6", "sleep", "600")) as a, \
         Job(["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=story", "sleep", "600"],
             env={"PET_RDZV_CONF": "keep_alive_interval=2,keep_alive_max_attempt=4"}) as b:
        results = finish(a, b)
    assert [r.code for r in results] == [2, 2], results
    said = "".join(r.err for r in results)
    assert said.count("--dead_after 6 here, --dead_after 8 there") == said.count("--dead_after 8 here, --dead_after 6 there") == 1, results


def test_who_comes_first_leaves_the_endpoints_port_alone():
    """It is the first one of the range, and node rank 0 begins later on the same machine."""
    port = free_port()
    extra = [f"--port_range={port}-{port + 10}", "true"]
    with Job(static(port, 1, 2, *extra)) as second:
        wait_until(lambda: any(listens(p) for p in range(port, port + 11)), "a port of node rank 1")
        with Job(static(port, 0, 2, *extra)) as first:
            results = finish(first, second)
    assert [r.code for r in results] == [0, 0], results


def test_an_address_in_a_variable_that_is_not_read_is_said():
    result = run(["--nnodes=2", f"--master_port={free_port()}", "--dry_run", "/bin/true"], env={"MASTER_ADDR": "n1"})
    assert result.code == 0 and result.err == ("dtrun: --master_addr: not given, and MASTER_ADDR is not read: each host looks for the others on itself; "
                                               "add --master_addr=n1\n"), result


def test_hosts_that_are_told_no_address_hear_so_once():
    with Job(["--nnodes=2", f"--master_port={free_port()}", "/bin/true"]) as a:
        said = a.process.stderr.readline()
        wait_until(lambda: a.agent, "the agent")
        a.signal(signal.SIGTERM)
        result = a.finish()
    assert said == "dtrun: --master_addr: not given: each host looks for the others on itself\n" and "loopback" not in result.err, result


@pytest.mark.parametrize("first, second, words", [
    ("one", "two", "(refused our proof: the key files differ, or it is ending|has another key: the key files differ)"),
    ("one", None, "has a key, this agent has none: give --key_file to all hosts or to none"),
    (None, "one", "has no key, this agent has one: give --key_file to all hosts or to none"),
])
def test_a_key_that_stays_wrong_ends_within_seconds(tmp_path, first, second, words):
    """Not with the end of the join time: said at once, and as the end, with the address once each."""
    options = []
    for name in (first, second):
        if name:
            (tmp_path / name).write_text(name * 20)
            (tmp_path / name).chmod(0o600)
        options.append([f"--key_file={tmp_path / name}"] if name else [])
    port = free_port()
    with Job(static(port, 0, 2, *options[0], "/bin/true")) as a:
        wait_until(lambda: listens(port), "the endpoint")
        begin = time.monotonic()
        with Job(static(port, 1, 2, *options[1], "/bin/true")) as b:
            result = finish(b)[0]
        took_s = time.monotonic() - begin
        a.signal(signal.SIGTERM)
        finish(a)
    said = [x for x in result.err.splitlines() if "waiting" not in x]
    assert result.code == 2 and 15 <= took_s < 90, (took_s, result)
    assert len(said) == 2 and re.fullmatch(f"dtrun: 127.0.0.1:{port}: {words}", said[0]), result
    assert re.fullmatch(f"dtrun: endpoint 127.0.0.1 port {port}, of node rank 0: {words}", said[1]), result


@pytest.mark.parametrize("quiet", [0, 1], ids=["leader", "follower"])
@pytest.mark.parametrize("env, own", [({}, "dtrun: host "), ({"DTRUN_LOG": "debug"}, " debug nodes: ")], ids=["says", "logs"])
@pytest.mark.parametrize("read", [True, False], ids=["late", "never"])
def test_a_console_that_nobody_reads_costs_lines_and_no_host(tmp_path, quiet, env, own, read):
    """What a host says itself must not keep it from saying to the others that it is there."""
    port = free_port()
    program = ["--nproc_per_node=2", "--dead_after=3", "--exit_barrier=0.5", "sh", "-c", f'[ $LOCAL_RANK = 0 ] || exit 0; {STAY}', "x", tmp_path]
    with Job(static(port, 0, 2, *program, "a"), env=env if quiet == 0 else None) as a, \
         Job(static(port, 1, 2, *program, "b"), env=env if quiet == 1 else None) as b:
        jobs = (a, b)
        fill_stderr(jobs[quiet].pid)
        wait_lines(tmp_path / "a", 1)
        wait_lines(tmp_path / "b", 1)
        time.sleep(7)
        (tmp_path / "go").touch()
        if not read:
            assert [job.process.wait(DEADLINE_S) for job in jobs] == [0, 0]
        results = finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    assert "no heartbeat" not in results[0].err + results[1].err, results
    assert lines_of(tmp_path / "a") == [f"0 2 {port}"] and lines_of(tmp_path / "b") == [f"1 2 {port}"], results
    said_later = results[quiet].err.rsplit("\n\n", 1)[-1]  # behind what filled the pipe
    assert (own in said_later) == read, results
    if read and not env:
        assert re.search(r"^dtrun: host \S+: 1 of 2 workers ended with exit code 0, the first 0.5 s ago; waiting for rank", results[quiet].err, re.M), results


@pytest.mark.parametrize("turn", range(4))
def test_hosts_that_fail_together_name_the_same_first_failure(tmp_path, turn):
    """Both workers end in the same moment with codes of their own; the job ends with one of them, and each host says whose that was."""
    port = free_port()
    worker = script(tmp_path, "fail.py", f"""
import os, time
open(f"{tmp_path}/" + os.environ["RANK"], "w").close()
while len([x for x in os.listdir("{tmp_path}") if x.isdigit()]) < 2:
    pass
os._exit(40 + int(os.environ["RANK"]))
""")
    jobs = [Job(c10d(port, 2, "--exit_code=worker", worker)) for _ in range(2)]
    with jobs[0], jobs[1]:
        results = finish(*jobs)
    code = results[0].code
    assert code in (40, 41) and results[1].code == code, results
    assert all(re.search(rf"^dtrun: (the first failure of the job: )?host \S+ rank {code - 40} \(local 0, pid \d+\): exit code {code}", r.err, re.M) for r in results), results
