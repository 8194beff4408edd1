# covers: launcher
# run: waits
"""What people suffered from with launchers before, one behaviour each: output, names of what failed, choices that are said."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
import training
from nodes import free_port
from support import DEADLINE_S, DTRUN, PYTHON, Job, clean_env, lines_of, run, script, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")


def test_a_success_says_nothing():
    """No signal is sent when all end by themselves, however close together."""
    for i in range(20):
        result = run(["--nproc_per_node=4", "sh", "-c", 'trap "echo signalled >&2" TERM INT; exit 0'])
        assert (result.code, result.out, result.err) == (0, "", ""), (i, result)


def test_a_line_is_shown_at_once(tmp_path):
    """Teed or not: while the worker goes on, its line is there."""
    for options in ([], ["-t1", f"--log_dir={tmp_path}/logs"]):
        with Job([*options, PYTHON, "-c", "import sys, time; print('hello', flush=True); time.sleep(600)"]) as job:
            line = job.process.stdout.readline()
            assert line.endswith("hello\n") and job.process.poll() is None
    best = 1e9
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with Job(["-t1", f"--log_dir={tmp_path}/echo", PYTHON, "-c", code], stdin=-1) as job:
        for _ in range(20):
            begin = time.monotonic()
            job.process.stdin.write("x\n")
            job.process.stdin.flush()
            assert job.process.stdout.readline() == "[default0]:x\n"
            best = min(best, time.monotonic() - begin)
        job.process.stdin.close()
        job.process.stdin = None
        assert job.finish().code == 0
    assert best < 0.5  # a poll of once a second would show


def test_only_one_rank_of_the_whole_job_is_shown(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    args = ["--nnodes=2", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}", "--ranks_filter=3", "-t1", f"--log_dir={tmp_path}/logs",
            "sh", "-c", "echo I am $RANK"]
    with Job(["--node_rank=0", *args]) as a, Job(["--node_rank=1", *args]) as b:
        outs = [j.finish() for j in (a, b)]
    assert [x.code for x in outs] == [0, 0], outs
    assert [x.out for x in outs] == ["", "[default1]:I am 3\n"], outs
    assert sorted(p.read_text() for p in (tmp_path / "logs").glob("*/attempt_0/*/stdout.log")) == [f"I am {r}\n" for r in range(4)]
    assert run(["--nproc_per_node=3", "--ranks_filter=0,2", "sh", "-c", "echo $RANK"]).out.split() in (["0", "2"], ["2", "0"])


def test_a_missing_module_names_the_interpreter(tmp_path):
    path = script(tmp_path, "w.py", "import no_such_module_anywhere\n")
    result = run(["-r2", f"--log_dir={tmp_path}/logs", path], env={"PYTHON_EXEC": PYTHON})
    assert result.code == 1 and "ModuleNotFoundError" in result.err, result
    assert f"dtrun: the interpreter was {PYTHON}; PYTHON_EXEC names another\n" in result.err, result
    environment = tmp_path / "venv" / "bin"
    environment.mkdir(parents=True)
    (environment / "python3").symlink_to(sys.executable)
    result = run(["--dry_run", path], env={"PYTHON_EXEC": None, "VIRTUAL_ENV": str(tmp_path / "venv")})
    assert result.code == 0
    result = run([path], env={"PYTHON_EXEC": None, "VIRTUAL_ENV": str(tmp_path / "venv"), "LOGLEVEL": "INFO"})
    assert f"program {environment}/python3" in result.err, result


def test_prefixes_with_places_in_the_whole_job():
    result = run(["--nproc_per_node=2", "-t1", "--log_dir=/dev/null", "--log_line_prefix_template=${hostname}/${group_rank}/${rank} of ${world_size}: ", "echo", "x"])
    host = socket.gethostname().split(".")[0]
    assert result.code == 0 and sorted(result.out.splitlines()) == [f"{host}/0/{r} of 2: x" for r in range(2)], result


def test_ten_clients_of_the_first_moment_find_the_store():
    """The listener is there before its address is told to anybody."""
    code = "import os, socket\nfor _ in range(10): socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()"
    result = run(["--nproc_per_node=10", PYTHON, "-c", code])
    assert (result.code, result.err) == (0, ""), result


def test_names_that_could_leave_their_place_are_refused():
    for name in ("a/b", "..", ".hidden", "a\nb", "%s", "$(id)", "x" * 129, "x" * 10000, "a b", "", "../"):
        result = run(["--rdzv_backend=c10d", f"--rdzv_id={name}", "-r3", "/bin/true"])
        assert result.code == 2 and result.err.count("\n") == 1 and result.err.startswith("dtrun: --rdzv_id: ") and len(result.err) < 300, result
    for role in ("a\nb", "\033[2J", "r" * 64):
        assert run([f"--role={role}", "/bin/true"]).code == 2


@pytest.mark.parametrize("options, env, line", [
    (["--nproc_per_node=1"], {}, ""),
    (["--nproc_per_node=2"], {"OMP_NUM_THREADS": "1"}, ""),
    ([], {"PET_NPROC_PER_NODE": "2"}, "dtrun: hosts 1 (default), workers per host 2 (PET_NPROC_PER_NODE)\n"),
    ([], {"PET_NNODES": "1"}, "dtrun: hosts 1 (PET_NNODES), workers per host 1 (default)\n"),  # what was meant for eight GPUs starts one worker
    (["--nproc_per_node=1"], {"PET_NPROC_PER_NODE": "2"}, ""),
    (["--nproc_per_node=auto"], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "dtrun: hosts 1 (default), workers per host 3, auto (--nproc_per_node)\n"),
    (["--nproc_per_node=1"], {"PET_NNODES": "1:1"}, ""),
    (["--rdzv_id=x"], {"PET_NPROC_PER_NODE": "1"}, "dtrun: hosts 1 (default), workers per host 1 (PET_NPROC_PER_NODE), run id x (--rdzv_id)\n"),
    ([], {"PET_NNODES": "1:2", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:%d", "PET_RDZV_CONF": "last_call_timeout=0.1"},
     "dtrun: hosts 1 to 2 (PET_NNODES), workers per host 1 (default), meeting at localhost port %d by c10d (PET_RDZV_ENDPOINT)\n"),
])
def test_sizes_that_were_not_typed_are_said_with_their_source(options, env, line):
    port = free_port()
    env = {"OMP_NUM_THREADS": "1", **{k: v.replace("%d", str(port)) for k, v in env.items()}}
    result = run([*options, "/bin/true"], env=env)
    said = "".join(x for x in result.err.splitlines(keepends=True) if x.startswith("dtrun: hosts"))
    assert (result.code, said) == (0, line.replace("%d", str(port))), result
    assert line or result.err == "", result


def test_an_endpoint_that_is_not_given_is_said_at_once():
    begin = time.monotonic()
    result = run(["--nnodes=2", "--rdzv-backend=c10d", "/bin/true"])
    assert result.code == 2 and result.err.startswith("dtrun: --rdzv_endpoint: not given"), result
    assert time.monotonic() - begin < 10


def test_a_spare_host_ends_with_the_job(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    (tmp_path / "runtime").mkdir(mode=0o700)
    env = {"DTRUN_RUNTIME_DIR": str(tmp_path / "runtime")}
    text = f'echo >> {tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done'
    args = ["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=spare", "--last_call=1", "sh", "-c", text]

    def hosts():
        asked = run(["--status", "--json"], env=env)
        return max((len(json.loads(x)["members"]) for x in asked.out.splitlines()), default=0)

    with Job(args, env=env) as a:
        wait_until(lambda: os.path.exists(tmp_path / "up"), "the first")
        with Job(args, env=env) as b:
            wait_until(lambda: len(open(tmp_path / "up").readlines()) >= 3, "a round of two")
            with Job(args, env=env) as c:
                wait_until(lambda: hosts() == 3, "the third")
                (tmp_path / "go").touch()
                assert [j.finish().code for j in (a, b, c)] == [0, 0, 0]
    assert len((tmp_path / "up").read_text().splitlines()) == 3


READ = 'read -r line || line=nothing; echo "$RANK $line" >> "$1"'


def test_standard_input_is_of_one_rank(tmp_path):
    for i, (options, expected) in enumerate([([], ["0 first", "1 nothing", "2 nothing"]), (["--stdin=2"], ["0 nothing", "1 nothing", "2 first"]),
                                             (["--stdin=none"], ["0 nothing", "1 nothing", "2 nothing"])]):
        result = run(["--nproc_per_node=3", *options, "sh", "-c", READ, "x", tmp_path / str(i)], input="first\nsecond\nthird\n")
        assert result.code == 0 and sorted(lines_of(tmp_path / str(i))) == expected, (options, result)
    whole = run(["--nproc_per_node=2", "--stdin=all", "sh", "-c", '[ "$RANK" = 1 ] || sleep 0.3; cat'], input="for all\n")  # shared: whoever comes first has it
    assert whole.code == 0 and whole.out == "for all\n", whole
    again = run(["--max_restarts=1", "sh", "-c", 'read -r line; echo "$TORCHELASTIC_RESTART_COUNT $line"; [ "$line" = second ]'], input="first\nsecond\n")
    assert again.code == 0 and again.out == "0 first\n1 second\n", again


def test_a_debugger_has_the_terminal_alone(tmp_path):
    """rank 0's breakpoint() talks with the terminal; the other rank asks it first, and gets nothing."""
    path = script(tmp_path, "debugged.py", f"""
import os, sys, time
there = {str(tmp_path / "one")!r}
rank = os.environ["RANK"]
if rank == "1":
    line = sys.stdin.readline()
    with open(there + ".new", "w") as f:
        f.write(repr(line))
    os.rename(there + ".new", there)
else:
    secret = 6 * 7
    while not os.path.exists(there):
        time.sleep(0.01)
    breakpoint()
    print("went on, terminal", os.isatty(0))
""")
    env = clean_env({"PYTHON_EXEC": PYTHON, "TERM": "dumb"})
    with subprocess.Popen(["script", "-qec", f"{DTRUN} --nproc_per_node=2 {path}", "/dev/null"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=env, text=True) as p:
        out = ""
        try:
            p.stdin.write("print('the answer is', secret)\n")  # rank 1 would take this one
            p.stdin.flush()
            wait_until((tmp_path / "one").exists, "rank 1's look at its input")
            p.stdin.write("c\n")
            p.stdin.flush()
            out, _ = p.communicate(timeout=DEADLINE_S)
        finally:
            p.kill()
    assert (tmp_path / "one").read_text() == "''"
    assert p.returncode == 0 and "the answer is 42" in out and "went on, terminal True" in out, out


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers open files of their own")
def test_few_files_are_opened_before_the_first_worker(tmp_path):
    """On a big machine each of them may be on a file system that thousands of launchers ask at once."""
    log = tmp_path / "trace"
    result = run(["-f", "-qq", "-e", "trace=open,openat,execve,clone,clone3,?fork,?vfork", "-o", log, DTRUN, "--nproc_per_node=2", "/bin/true"], executable=shutil.which("strace"))
    if "ptrace" in result.err:
        pytest.skip("strace cannot trace here")
    assert result.code == 0, result
    lines = log.read_text().splitlines()
    first = next(i for i, x in enumerate(lines) if 'execve("/bin/true"' in x)
    worker = lines[first].split()[0]
    made = next(i for i, x in enumerate(lines) if x.startswith(worker + " ") or re.search(rf"(clone3?|fork)\b.*= {worker}$", x))
    opened = [x for x in lines[:made] + [y for y in lines[made:first] if y.startswith(worker + " ")] if re.search(r" open(at)?\(", x) and not re.search(r'"/(dev|proc|sys)/', x)]
    assert 0 < len(opened) < 15, "\n".join(opened)


CLIENT = """
import os, socket, struct, time
rank = int(os.environ["RANK"])
if rank < 2:
    time.sleep(rank)
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as s:
        s.sendall(b"\\x00" + struct.pack("<I", 0x3C85F7CE) + b"\\x0d" + struct.pack("<I", os.getpid()))
        s.recv(4)
"""


def test_from_start_to_init(tmp_path):
    """Of any program, in the log and in events.jsonl; nothing of it is on the console of a job that goes well."""
    path = script(tmp_path, "w.py", CLIENT)
    args = ["--nproc_per_node=3", f"--log_dir={tmp_path}/logs", "-r3", path]
    result = run(args, env={"PYTHON_EXEC": PYTHON, "DTRUN_LOG": "info"})
    said = re.search(r" info agent: round 1 from start to init: rank 0 (\d+\.\d+) s, rank 1 (\d+\.\d+) s, rank 2 never, slowest rank 1$", result.err, re.M)
    assert result.code == 0 and said, result
    assert 0 < float(said[1]) and 1 <= float(said[2]) < DEADLINE_S
    (path,) = (tmp_path / "logs").glob("**/events.jsonl")
    (event,) = [e for e in map(json.loads, path.read_text().splitlines()) if e["event"] == "start_to_init"]
    assert (event["round"], event["first_rank"]) == (1, 0) and event["seconds"] == [float(said[1]), float(said[2]), None], event
    assert run(args, env={"PYTHON_EXEC": PYTHON}).err == ""


def test_from_start_to_init_of_train(tmp_path):
    job = training.make_job(tmp_path, steps=10)
    result = training.train(job, tmp_path / "out", 2, env={"DTRUN_LOG": "info"})
    assert result.code == 0 and re.search(r" agent: round 1 from start to init: rank 0 \d+\.\d+ s, rank 1 \d+\.\d+ s, slowest rank [01]$", result.err, re.M), result
    events = [json.loads(x) for x in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    (event,) = [e for e in events if e["event"] == "start_to_init"]
    assert len(event["seconds"]) == 2 and min(event["seconds"]) > 0, event
