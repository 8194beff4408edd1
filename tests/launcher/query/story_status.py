# covers: launcher/query
# run: waits
"""dtrun --status: what a running job does, asked from elsewhere, without disturbing it."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import time

import pytest
from nodes import free_port
from support import DEADLINE_S, DTRUN, PYTHON, Job, clean_env, lines_of, run, script, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")


@pytest.fixture
def place(tmp_path):
    """A folder for sockets and what workers need: they wait for the file `go`."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    return tmp_path


def env(place):
    return {"DTRUN_RUNTIME_DIR": str(place / "runtime"), "XDG_RUNTIME_DIR": None, "PYTHON_EXEC": PYTHON}


def ask(place, *args):
    return subprocess.run([DTRUN, "--status", *args], env=clean_env(env(place)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)


def ask_json(place, *args):
    return [json.loads(x) for x in ask(place, "--json", *args).stdout.splitlines()]


def start(place, run_id, text="", options=(), workers=2):
    path = script(place, f"{run_id}.py", f"""
import os, time
{text}
with open({str(place / run_id)!r}, "a") as f:
    f.write(os.environ["RANK"] + "\\n")
while not os.path.exists({str(place / "go")!r}):
    time.sleep(0.05)
""")
    return Job([f"--nproc_per_node={workers}", "--rdzv_backend=c10d", f"--rdzv_id={run_id}", *options, path], env=env(place))


def test_a_job_is_shown_and_goes_on(place):
    with start(place, "mine", options=["--max_restarts=2"]) as job, start(place, "other", workers=1) as other:
        wait_lines(place / "mine", 2)
        wait_lines(place / "other", 1)
        (mine,) = ask_json(place, "mine")
        assert mine["run_id"] == "mine" and mine["state"] == "running" and mine["round"] == 1 and mine["pid"] == job.agent
        assert (mine["world_size"], mine["restarts"], mine["max_restarts"], mine["role"]) == (2, 0, 2, "alone")
        assert [(r["rank"], r["local_rank"], r["running"]) for r in mine["ranks"]] == [(0, 0, True), (1, 1, True)]
        assert {r["state"] for r in mine["ranks"]} <= set("RSD")
        both = ask(place)
        assert both.returncode == 0 and both.stderr == "", both
        assert re.search(r"^run mine: running, round 1, 0 of 2 restarts used$", both.stdout, re.M) and "\nrun other: " in "\n" + both.stdout, both
        assert max(map(len, both.stdout.splitlines())) <= 80
        one = ask(place, "mine")
        assert one.stdout.startswith("run mine: ") and "run other" not in one.stdout
        nobody = ask(place, "nobody")
        there = ", ".join(name for _, name in sorted([(job.agent, "mine"), (other.agent, "other")]))  # by process id
        assert nobody.returncode == 1 and nobody.stderr == f"dtrun: --status: nobody: no such run on this host; there are: {there}\n", nobody
        (place / "go").touch()
        for j in (job, other):
            result = j.finish()
            assert result.code == 0 and result.err.count("\n") <= 1, result
    after = ask(place)
    assert after.returncode == 0 and after.stderr == "dtrun: --status: no job of this user runs on this host\n"
    assert os.listdir(place / "runtime") == []


def test_who_waits_in_the_store_is_shown(place):
    text = f"""
import socket, struct
if os.environ["RANK"] != "0":
    s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    key = b"from rank 0"
    s.sendall(b"\\x00" + struct.pack("<I", 0x3C85F7CE) + b"\\x06" + struct.pack("<Q", 1) + struct.pack("<Q", len(key)) + key)
"""
    with start(place, "waits", text, workers=4) as job:
        store = wait_until(lambda: next((j["store"] for j in ask_json(place) if [w["count"] for w in j["store"]["waits"]] == [3]), None), "three waits")
        assert [(w["key"], w["missing"]) for w in store["waits"]] == [("from rank 0", 1)] and store["waits"][0]["age_s"] >= 0
        assert re.search(r"^    \d+\.\d s: 3 wait for from rank 0$", ask(place).stdout, re.M)
        (place / "go").touch()
        assert job.finish().code == 0


PAGE = """
import mmap, struct
with open(os.environ["DTRUN_PAGE"], "r+b") as f:
    page = mmap.mmap(f.fileno(), 4096)
now = time.clock_gettime(time.CLOCK_MONOTONIC)
struct.pack_into("qdqIIqd", page, 24, 9, now - 30, 310, 3, 1, 77, now - 29)
page[88:105] = b"all_reduce grads\\0"
struct.pack_into("ddd", page, 680, 0.01, 0.05, 0.04)
"""


def test_steps_and_pulses_of_ranks(place):
    with start(place, "steps", PAGE, workers=1) as job:
        wait_lines(place / "steps", 1)
        (rank,) = ask_json(place)[0]["ranks"]
        assert (rank["step"], rank["phase"], rank["in_collective"], rank["collective_count"], rank["collective"]) == \
            (310, "backward", True, 77, "all_reduce grads"), rank
        assert (rank["data_s"], rank["compute_s"], rank["communication_s"]) == (0.01, 0.05, 0.04), rank
        assert 30 <= rank["pulse_s"] < 30 + DEADLINE_S
        assert re.search(r"^ +0 +\d+ [RSD] .* 310  60% backward, pulse \d+\.\d s ago, in", ask(place).stdout, re.M)
        (place / "go").touch()
        assert job.finish().code == 0


def strict(text):
    """JSON as RFC 8259 has it: Python would take NaN."""
    return json.loads(text, parse_constant=lambda x: pytest.fail(f"{x} is no JSON"))


@pytest.mark.parametrize("pattern", ["ffffffffffffff7f", "ffffffffffffffff", "0000000000000040", "00000000000000c0", "000000000000f07f", "9b1b5b324ac29be2", "01"])
def test_whatever_stands_on_a_page_the_job_is_shown(place, pattern):
    """Beyond what the agent writes: NaN, 2^62, infinity, negative numbers, control codes, or nothing that is UTF-8."""
    text = f"""
with open(os.environ["DTRUN_PAGE"], "r+b") as f:
    f.seek(20)
    f.write((bytes.fromhex({pattern!r}) * 4096)[4:4080])
"""
    with start(place, "page", text, workers=1, options=["--metrics_endpoint=0"]) as job:
        wait_lines(place / "page", 1)
        answer = ask(place, "--json", "page")
        (rank,) = strict(answer.stdout)["ranks"]
        assert rank["running"] and -1 <= rank.get("step", 0) <= 2**53 and -1 <= rank.get("saved_step", 0) <= 2**53, rank
        assert rank.get("pulse_s", 0) >= 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", answer.stdout)
        assert "run page: running" in ask(place).stdout
        (place / "go").touch()
        assert job.finish().code == 0


def test_a_page_cannot_be_cut_off(place):
    """A worker that opens it as a new file, or makes it shorter, is refused; the agent would have ended by SIGBUS, and all workers with it."""
    text = """
import sys
for cut in (lambda: open(os.environ["DTRUN_PAGE"], "w"), lambda: os.truncate(os.environ["DTRUN_PAGE"], 0), lambda: os.truncate(os.environ["DTRUN_PAGE"], 9999)):
    try:
        cut()
        print("cut", flush=True)
    except PermissionError:
        print("refused", flush=True)
"""
    with start(place, "cut", text) as job:
        wait_lines(place / "cut", 2)
        assert [r["running"] for r in ask_json(place)[0]["ranks"]] == [True, True]
        (place / "go").touch()
        result = job.finish()
        assert result.code == 0 and result.out.count("refused") == 6 and "cut" not in result.out, result


def test_what_workers_choose_is_harmless_on_a_terminal(place):
    with Job(["--rdzv_backend=c10d", "--rdzv_id=x", "sh", "-c", f": '\033[2J\n\007' {'y' * 5000}; echo > {place}/up; while [ ! -e {place}/go ]; do sleep 0.05; done"],
             env=env(place)) as job:
        wait_lines(place / "up", 1)
        text = ask(place).stdout
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text) and max(map(len, text.splitlines())) <= 80
        (place / "go").touch()
        assert job.finish().code == 0


def test_a_killed_agent_leaves_nothing_that_misleads(place):
    runtime = place / "runtime"
    with start(place, "killed") as job:
        wait_lines(place / "killed", 2)
        os.kill(job.agent, signal.SIGKILL)
        assert job.finish().code == 111
    assert len(os.listdir(runtime)) == 1
    result = ask(place)
    assert result.returncode == 0 and "no job of this user runs" in result.stderr and os.listdir(runtime) == [], result


def test_an_agent_that_does_not_answer_is_named(place):
    with start(place, "stopped") as job:
        wait_lines(place / "stopped", 2)
        agent = job.agent
        os.kill(agent, signal.SIGSTOP)
        try:
            result = ask(place)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert result.returncode == 1 and result.stdout == "", result
        assert result.stderr == f"dtrun: --status: the agent with pid {agent} does not answer; it is stopped, or ends just now\n"
        (place / "go").touch()
        assert job.finish().code == 0


def test_those_who_ask_and_do_not_read_hold_nobody_up(place):
    with start(place, "slow") as job, contextlib.ExitStack() as stack:
        wait_lines(place / "slow", 2)
        (name,) = os.listdir(place / "runtime")
        path = place / "runtime" / name
        assert stat.S_ISSOCK(path.stat().st_mode)
        for _ in range(6):
            s = stack.enter_context(socket.socket(socket.AF_UNIX))
            s.connect(str(path))
            s.sendall(b"status\n")
        gone = socket.socket(socket.AF_UNIX)
        gone.connect(str(path))
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        for _ in range(3):
            assert ask_json(place)[0]["run_id"] == "slow"
        (place / "go").touch()
        assert job.finish().code == 0


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_folder_that_others_could_enter_is_not_used(place, how):
    runtime = place / "runtime"
    if how == "open":
        runtime.chmod(0o755)
    else:
        runtime.rmdir()
        (place / "elsewhere").mkdir(mode=0o700)
        runtime.symlink_to(place / "elsewhere") if how == "link" else runtime.write_text("x")
    result = run(["/bin/true"], env={**env(place), "DTRUN_LOG": "info"})
    assert result.code == 0 and "--status will not find this job: " in result.err, result
    asked = ask(place)
    assert f"dtrun: --status: {runtime}: " in asked.stderr, asked
    if how != "file":
        assert os.listdir(runtime) == []


def test_wrong_words():
    for args in (["--status", "a", "b"], ["--status=a", "b"], ["--status", "--jsn"], ["--json", "/bin/true"]):
        result = run(args)
        assert result.code == 2 and result.err.count("\n") == 1, result


@contextlib.contextmanager
def hosts(place, count, workers=2, options=()):
    """Agents of one job; their workers wait for the file `go`."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    text = f'echo "$RANK" >> {place}/up; while [ ! -e {place}/go ]; do sleep 0.05; done'
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job([*options, f"--nnodes={count}", f"--nproc_per_node={workers}", "--rdzv_id=pair", "--master_addr=127.0.0.1",
                                         f"--master_port={port}", f"--node_rank={i}", "sh", "-c", text], env=env(place))) for i in range(count)]
        wait_lines(place / "up", count * workers)
        yield jobs


def test_two_hosts(place):
    with hosts(place, 2) as (a, b):
        answered = wait_until(lambda: (lambda found: found if all(m["answered"] for j in found.values() for m in j["members"]) else None)(
            {j["pid"]: j for j in ask_json(place, "pair")}), "answers of both hosts")
        leader, follower = answered[a.agent], answered[b.agent]
        assert leader["role"] == "leading" and follower["role"] == "following"
        for one in (leader, follower):
            assert [(m["order"], m["state"], m["workers"], m["pid"]) for m in one["members"]] == \
                [(0, "in the round", 2, a.agent), (1, "in the round", 2, b.agent)], one
            assert sorted((r["rank"], r["local_rank"], r["running"]) for r in one["ranks"]) == [(0, 0, True), (1, 1, True), (2, 0, True), (3, 1, True)], one
        assert follower["world_size"] == 4 and {r["rank"]: r["pid"] for r in follower["ranks"]} == {r["rank"]: r["pid"] for r in leader["ranks"]}
        text = ask(place).stdout
        assert re.search(r"^  2 hosts, 4 ranks; host \S+ leading, pid \d+, up ", text, re.M) and len(re.findall(r"^  host .*\(node 1\): in the round", text, re.M)) == 2, text
        assert [int(x) for x in re.findall(r"^ +(\d) \S+ +[01] +\d+ [RSD]", text, re.M)] == [0, 1, 2, 3] * 2, text
        assert max(map(len, text.splitlines())) <= 80
        nobody = ask(place, "nope")
        assert nobody.stderr == "dtrun: --status: nope: no such run on this host; there are: pair\n", nobody
        (place / "go").touch()
        assert a.finish().code == 0 and b.finish().code == 0
    assert lines_of(place / "up")


def test_a_spare_host(place):
    """It says that it is one, and shows the ranks of the others with their host; agents of one machine differ by their process id."""
    port = free_port()
    text = f'echo "$RANK" >> {place}/up; while [ ! -e {place}/go ]; do sleep 0.05; done'
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(Job(["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=three", "--last_call=60",
                                         "sh", "-c", text], env=env(place))) for _ in range(3)]
        wait_lines(place / "up", 2)
        spare = wait_until(lambda: next((j for j in ask_json(place, "three") if j["state"] == "spare"), None), "a spare host")
        assert sorted(m["pid"] for m in spare["members"]) == sorted(j.agent for j in jobs) and spare["pid"] in [j.agent for j in jobs], spare
        shown = next(x for x in re.split("^(?=run )", ask(place, "three").stdout, flags=re.M) if x.startswith("run three: spare, 0 of 0 restarts used\n"))
        assert re.search(rf"^  host \S+ following, pid {spare['pid']}, up ", shown, re.M), shown
        assert sorted(int(x) for x in re.findall(r"^  host \S+ pid (\d+) \(node \d\): ", shown, re.M)) == sorted(j.agent for j in jobs), shown
        assert "\n  rank host         local     pid S " in shown and len(re.findall(r"^ +[01] \S+ +0 +\d+ [RSD]", shown, re.M)) == 2, shown
        (place / "go").touch()
        assert [j.finish().code for j in jobs] == [0, 0, 0]


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_host_that_does_not_answer_is_shown_so(place, silent):
    """Its agent is stopped: the others' rows are there, in a second or so."""
    with hosts(place, 3, workers=1, options=["--dead_after=600"]) as jobs:
        agents = [j.agent for j in jobs]
        os.kill(agents[silent], signal.SIGSTOP)
        try:
            wait_until(lambda: open(f"/proc/{agents[silent]}/stat").read().rpartition(")")[2].split()[0] == "T", "the stop")
            begin = time.monotonic()
            result = ask(place, "--json")
            took_s = time.monotonic() - begin
            text = ask(place).stdout if silent == 1 else None  # each question waits for the stopped agent
        finally:
            os.kill(agents[silent], signal.SIGCONT)
        found = {j["pid"]: j for j in map(json.loads, result.stdout.splitlines())}
        assert result.returncode == 1 and f"the agent with pid {agents[silent]} does not answer" in result.stderr, result
        assert sorted(found) == sorted(set(agents) - {agents[silent]}) and took_s < 30, (took_s, result)
        for pid, one in found.items():
            if silent == 0:  # the leader: a follower has a link with it alone
                seen = [agents.index(pid)]
            else:
                seen = sorted({0, 1, 2} - {silent})
                assert [m["pid"] for m in one["members"] if m["answered"] is False] == [agents[silent]], one
            assert sorted(r["rank"] for r in one["ranks"]) == seen, one
        assert text is None or text.count(", no answer") == 2, text
        (place / "go").touch()
        assert [j.finish().code for j in jobs] == [0, 0, 0]


def test_answers_longer_than_a_message(place):
    with hosts(place, 2, workers=60) as (a, b):
        found = wait_until(lambda: [j for j in ask_json(place, "pair") if len(j["ranks"]) == 120], "120 ranks of a host")
        assert sorted(r["rank"] for r in found[0]["ranks"]) == list(range(120))
        (place / "go").touch()
        assert a.finish().code == 0 and b.finish().code == 0


def test_a_folder_whose_name_is_too_long_for_a_socket_is_said(tmp_path):
    """By the job, and by whoever asks: it would say that no job runs."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir(0o700)
    env = {"DTRUN_RUNTIME_DIR": str(folder)}
    result = run(["/bin/true"], env=env)
    why = rf"{folder}: \d+ bytes are too many for the folder of a socket, at most \d+; set DTRUN_RUNTIME_DIR to a shorter one"
    assert result.code == 0 and re.fullmatch(f"dtrun: warning: --status will not find this job: {why}\n", result.err), result
    asked = run(["--status"], env=env)
    assert asked.code == 1 and re.fullmatch(f"dtrun: --status: {why}\n", asked.err), asked


def test_the_longest_folder_does(tmp_path):
    folder = str(tmp_path)
    folder += "/" + "x" * (76 - len(folder))
    if len(folder) != 77:
        pytest.skip("the test's own folder is too long")
    os.mkdir(folder, 0o700)
    result = run(["sh", "-c", f"{DTRUN} --status"], env={"DTRUN_RUNTIME_DIR": folder})
    assert result.code == 0 and result.err == "" and "1 rank" in result.out, result


def test_agents_that_do_not_answer_cost_their_time_once(place):
    """Three that are stopped, and one beside them that answers."""
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(start(place, f"j{i}", workers=1)) for i in range(4)]
        for i in range(4):
            wait_lines(place / f"j{i}", 1)
        agents = [job.agent for job in jobs]
        for pid in agents[:3]:
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        p = ask(place)
        took_s = time.monotonic() - begin
        for pid in agents[:3]:
            os.kill(pid, signal.SIGCONT)
        assert p.returncode == 1 and p.stderr.count("does not answer; it is stopped, or ends just now") == 3 and "run j3: running" in p.stdout, p
        assert 4.5 < took_s < 9.5, took_s  # not three times five
        (place / "go").touch()
        assert [job.finish().code for job in jobs] == [0, 0, 0, 0]
