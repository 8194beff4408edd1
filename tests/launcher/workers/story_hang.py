# covers: launcher/workers
# run: waits
# run: timeout 240
"""Workers that hang: named with what they do instead, their peers not blamed; and torchrun's watchdog variables."""

import os
import re
import shutil
import signal
import socket
import time

import pytest
import training
from nodes import free_port
from support import DEADLINE_S, DTRUN, PYTHON, Job, as_nobody, lines_of, run, script, state_of, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")


def test_a_stopped_rank_of_train_is_named_and_replaced(tmp_path):
    job_file = training.make_job(tmp_path, steps=60, training={"step_timeout": 4})
    plain = training.train(job_file, tmp_path / "plain")
    assert plain.code == 0, plain
    slow = {"eval_every_n_steps": 5, "eval_batches": 100}
    job_file = training.make_job(tmp_path, steps=60, training={"step_timeout": 4, **slow}, checkpointing={"save_every_n_steps": 2})
    with Job(["--nproc_per_node=2", "--max_restarts=20", "train", job_file, "--output_dir", tmp_path / "out"]) as job:
        pages = training.wait_pages(job, 2, 3)
        while True:
            os.kill(pages[1].pid, signal.SIGSTOP)
            wait_until(lambda: state_of(pages[1].pid) == "T", "the stop")
            if pages[1].phase() not in ("save", "exit"):  # those may take long
                break
            os.kill(pages[1].pid, signal.SIGCONT)
            time.sleep(0.002)
        result = job.finish(120)
        job.wait_gone()
    assert result.code == 0, result
    assert re.search(rf"^dtrun: host \S+ rank 1 \(local 1, pid {pages[1].pid}\): no pulse for \d+\.\d s at step \d+, phase \w+, (in|last) collective \d+ .*; "
                     r"in the last \d+\.\d s: 0\.0 s user, 0\.0 s system time: stopped by somebody \(state T\); 1 other rank stopped because of it; "
                     r"restarting \(\d+ of 20 used\) from step \d+$", result.err, re.M), result
    assert training.hash_of(tmp_path / "out") == training.hash_of(tmp_path / "plain")


def test_a_stopped_program_and_one_that_waits(tmp_path):
    text = f"echo $$$$ >> {tmp_path}/pid; while :; do echo alive; sleep 0.05; done"
    with Job(["--hang_timeout=2", "-t1", f"--log_dir={tmp_path}/logs", "--nproc_per_node=2", "sh", "-c", text]) as job:
        pid = int(wait_lines(tmp_path / "pid", 2)[0])
        os.kill(pid, signal.SIGSTOP)
        result = job.finish()
    assert result.code == 1, result
    assert re.search(rf"pid {pid}\): no output and (no|0\.\d+ ms of) CPU time for \d+\.\d s \(--hang_timeout=2\); in the last \d+\.\d s: 0\.\d s user, 0\.\d s system time: "
                     r"stopped by somebody \(state T\)", result.err), result
    result = run(["--hang_timeout=1", PYTHON, "-c", "import os; os.read(os.pipe()[0], 1)"])
    assert result.code == 1 and re.search(r"\(--hang_timeout=1\); in the last \d+\.\d s: 0\.\d s user, 0\.\d s system time: it waits \(state S\)", result.err), result


def test_computing_and_writing_are_signs_of_life(tmp_path):
    spin = "import time; end = time.monotonic() + 4.5\nwhile time.monotonic() < end: pass"
    assert run(["--hang_timeout=2", PYTHON, "-c", spin]).code == 0
    write = "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.1)"
    assert run(["--hang_timeout=2", "-r1", f"--log_dir={tmp_path}/logs", PYTHON, "-c", write]).code == 0


@pytest.mark.parametrize("where", ["inherited", "file"])
def test_a_line_now_and_then_past_the_launcher_is_a_sign_of_life(tmp_path, where):
    """It costs microseconds, less than the kernel's ticks show; that a program which writes wrote nothing must not be said of it."""
    to = {"inherited": 1, "file": f'os.open("{tmp_path}/lines", os.O_CREAT | os.O_WRONLY)'}[where]
    result = run(["--hang_timeout=1.5", PYTHON, "-c", f"import os, time\nto = {to}\nfor i in range(9): os.write(to, b'x\\n'); time.sleep(0.6)"])
    assert result.code == 0, result


def test_threads_that_look_around_are_no_sign_of_life():
    """As Gloo's does a hundred times a second for as long as the worker hangs: 0.4 % of a core, which are milliseconds at once."""
    looks = "import threading, time\ndef look():\n    while True: time.sleep(0.01)\nthreading.Thread(target=look, daemon=True).start()\ntime.sleep(600)"
    begin_s = time.monotonic()
    result = run(["--hang_timeout=3", PYTHON, "-c", looks])
    assert result.code == 1 and time.monotonic() - begin_s < DEADLINE_S / 3, result
    assert re.search(r"no output and \d+\.\d\d ms of CPU time for \d+\.\d s \(--hang_timeout=3\)", result.err), result


def test_of_several_silent_programs_the_odd_one_is_named():
    """Those that wait for it do so in one and the same place, as ranks of PyTorch do in a collective."""
    waits = "import os, time\ntime.sleep(600) if os.environ['RANK'] == '1' else os.read(os.pipe()[0], 1)"
    result = run(["--hang_timeout=6", "--nproc_per_node=4", PYTHON, "-c", waits])
    assert result.code == 1, result
    assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): no output and .* (it waits \(state S\) in \S*nanosleep|system call).*"
                     r"; silent, too: local ranks 0, 2, 3 in \S*(pipe|system call)\S*; 3 other ranks stopped because of it$", result.err, re.M), result
    result = run(["--hang_timeout=4", "--nproc_per_node=2", PYTHON, "-c", waits])  # no telling which: both are named
    assert re.search(r"rank [01] .*\(--hang_timeout=4\).*; silent, too: local rank [01] in \S*(nanosleep|pipe|system call)\S*; ", result.err), result


def test_bursts_of_work_are_signs_of_life():
    burst = "import time\nfor i in range(3):\n    end = time.monotonic() + 0.2\n    while time.monotonic() < end: pass\n    time.sleep(2)"
    result = run(["--hang_timeout=3", PYTHON, "-c", burst])
    assert result.code == 0, result


def test_output_that_cannot_be_seen_is_not_said_to_be_none():
    with as_nobody() as (folder, words):
        sleeper = os.path.join(folder, "sleeper")
        shutil.copy("/bin/sleep", sleeper)
        os.chmod(sleeper, 0o4755)  # its counters are root's to read
        result = run([*words, "--hang_timeout=1", sleeper, "600"], executable=shutil.which("setpriv"), cwd=folder, env={"TMPDIR": None})
    assert result.code == 1, result
    assert re.search(r"pid \d+\): (no|\d+\.\d\d ms of) CPU time for \d\.\d s, and what it writes cannot be seen \(--hang_timeout=1\); ", result.err), result


# ---- what NCCL says ----

RAS = """
import os, socket, sys, threading, time
kind, folder, rank = sys.argv[1], sys.argv[2], int(os.environ["RANK"])
host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
def line(one):
    text = b""
    while not text.endswith(b"\\n"):
        text += one.recv(1)
    return text.strip().lower()
def answer(one):
    if not line(one).startswith(b"client protocol "):
        return one.close()
    one.sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n" if kind == "is none" else b"SERVER PROTOCOL 2\\n")
    assert line(one).startswith(b"timeout ")
    one.sendall(b"OK\\n")
    assert line(one) == b"verbose status"
    open(folder + "/asked", "a").write("x")
    one.sendall(b"NCCL version 2.28.9 compiled with CUDA 13.0\\n\\nErrors\\n======\\n\\n#0-0 (27a079b828ff1a75) INCOMPLETE\\n")
    while kind == "floods":
        one.sendall(b"one more line\\n" * 1000)
    one.sendall(b"  Process 7 on node a\\x1b[2J managing GPU 1\\n" + b"x" * 5000 + b"\\n")
    one.close()
def serve():
    ears = socket.socket(socket.AF_INET6 if host == "[::1]" else socket.AF_INET)
    ears.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as NCCL: each process of it listens
    ears.bind(("::1" if host == "[::1]" else "127.0.0.1", int(port)))
    ears.listen(8)
    open(f"{folder}/listens{rank}", "w").close()
    while True:
        one = ears.accept()[0]
        keep.append(one)
        if kind != "says nothing" and (kind != "half do" or rank == 1):
            threading.Thread(target=answer, args=(one,), daemon=True).start()
keep = []
threading.Thread(target=serve, daemon=True).start()
time.sleep(600)
"""
SAID = r"^dtrun: host \S+: what NCCL's ranks say of themselves \(RAS\):\n((?:  .*\n)*)"


@pytest.mark.parametrize("kind, ranks, host", [("answers", 1, "localhost"), ("answers", 2, "[::1]"), ("half do", 2, "localhost"), ("floods", 2, "127.0.0.1"),
                                               ("says nothing", 1, "127.0.0.1"), ("is none", 1, "127.0.0.1")])
def test_nccl_is_asked_what_its_ranks_do_when_one_hangs(tmp_path, kind, ranks, host):
    """RAS, a thread of NCCL in each worker, tells which ranks are behind. One that does not answer holds nothing up for long."""
    for _ in range(3):  # "half do": the kernel may give all 8 connections to the one that does not
        path, begin_s, address = script(tmp_path, "w.py", RAS), time.monotonic(), f"{host}:{free_port()}"
        result = run(["--hang_timeout=4", f"--nproc_per_node={ranks}", f"--log_dir={tmp_path}/logs", PYTHON, path, kind, tmp_path], env={"NCCL_RAS_ADDR": address})
        assert result.code == 1 and time.monotonic() - begin_s < DEADLINE_S / 3, result
        if kind != "half do" or "RAS" in result.err:
            break
        shutil.rmtree(tmp_path / "logs")
    assert re.search(r"no output and (no|\d+\.\d\d ms of) CPU time for \d+\.\d s \(--hang_timeout=4\)", result.err), result
    said, events = re.search(SAID, result.err, re.M), (tmp_path / "logs" / os.listdir(tmp_path / "logs")[0] / "events.jsonl").read_text()
    assert ("nccl_status" in events) == (said is not None), events
    head = "  NCCL version 2.28.9 compiled with CUDA 13.0\n  Errors\n  #0-0 (27a079b828ff1a75) INCOMPLETE\n"
    if kind in ("answers", "half do"):
        assert said.group(1) == head + "    Process 7 on node a?[2J managing GPU 1\n  " + "x" * 200 + "\n", result
        assert (tmp_path / "asked").read_text() == "x" and "x" * 5000 in events, result
    elif kind == "floods":
        assert re.match(re.escape(head + "  one more line\n" * 7) + r"  \.\.\. \d+ more lines\n(  one more line\n){49}  on?.*\n", said.group(1)), result
    else:
        assert said is None, result


def test_what_happens_while_nccl_is_asked_changes_no_cause(tmp_path):
    """The worker that hangs ends by itself meanwhile, or another one does: it stays the cause. RAS says nothing, so there is a second."""
    text = RAS.replace("time.sleep(600)", """
end = time.monotonic() + float(sys.argv[3 + rank])
while time.monotonic() < end:
    time.sleep(0.2)
sys.exit(7)
""")
    for times in (("3.6", "600"), ("600", "3.6")):
        path = script(tmp_path, "w.py", text)
        result = run(["--hang_timeout=3", "--nproc_per_node=2", PYTHON, path, "says nothing", tmp_path, *times], env={"NCCL_RAS_ADDR": f"127.0.0.1:{free_port()}"})
        assert result.code == 1, result
        assert re.search(r"^dtrun: host \S+ rank [01] \(local [01], pid \d+\): (no output and .*\(--hang_timeout=3\)|exit code 7)", result.err, re.M), result
        assert "Root Cause" in result.err and "SIGTERM" not in result.err.partition("Root Cause")[2], result


def test_nobody_else_is_asked(tmp_path):
    """A stranger's port, or one that a worker has with him, as two jobs of one user have theirs. And addresses that are none."""
    with socket.socket() as ears:
        ears.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ears.bind(("127.0.0.1", 0))
        ears.listen()
        ears.settimeout(0.1)
        address = f"127.0.0.1:{ears.getsockname()[1]}"
        for program in ([PYTHON, "-c", "import time; time.sleep(600)"], [PYTHON, script(tmp_path, "w.py", RAS), "answers", tmp_path]):
            result = run(["--hang_timeout=3", *program], env={"NCCL_RAS_ADDR": address})
            with pytest.raises(TimeoutError):
                ears.accept()
            assert result.code == 1 and "RAS" not in result.err and not os.path.exists(tmp_path / "asked"), result
        assert os.path.exists(tmp_path / "listens0")  # beside the stranger
    for address in ("localhost:", "[::1]:70000", "x" * 5000 + ":1"):
        assert run(["--hang_timeout=1", PYTHON, "-c", "import time; time.sleep(600)"], env={"NCCL_RAS_ADDR": address}).code == 1


# ---- torchrun's variables ----

CLIENT = """
import json, os, sys, time
def send(text):
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, text.encode() + b"\\n")
    os.close(fd)
def timer(scope, after, number=9, pid=0):
    send(json.dumps({"version": 1, "pid": pid or os.getpid(), "scope_id": scope, "expiration_time": time.time() + after if after >= 0 else -1, "signal": number}))
"""


def test_a_watchdog_timer_ends_a_worker_and_the_job_goes_on(tmp_path):
    path = script(tmp_path, "w.py", CLIENT + """
timer("released", 0.2)
timer("released", -1)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    timer("later", 600)
    timer("step 7", 0.3)
    time.sleep(600)
time.sleep(0.8)
""")
    result = run(["--nproc_per_node=2", "--max_restarts=1", path], env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "PYTHON_EXEC": PYTHON, "TMPDIR": str(tmp_path)})
    assert result.code == 0, result
    assert re.search(r"rank 1 \(local 1, pid \d+\): watchdog timer step 7 is over: SIGKILL; ", result.err), result
    assert not [x for x in os.listdir(tmp_path) if x.startswith("watchdog_timer_")]


def test_requests_that_are_none_and_timers_of_others(tmp_path):
    path = script(tmp_path, "w.py", CLIENT + f"""
for text in ("", "{{", "[]", '{{"pid": "1"}}', "x" * 10000, '{{"pid": 1, "scope_id": "init", "expiration_time": 1, "signal": 9}}',
             '{{"pid": -1, "scope_id": "all", "expiration_time": 1, "signal": 9}}', '{{"pid": 1e300, "scope_id": "x", "expiration_time": 1e999, "signal": 9}}'):
    send(text)
timer("launcher", 0, pid=os.getppid())
timer("stranger", 0, pid={os.getpid()})
timer("only \\033[2J said", 0, number=0)
time.sleep(1)
""")
    file = tmp_path / "timer"
    os.mkfifo(file)  # left by a run that was killed
    result = run([path], env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(file), "PYTHON_EXEC": PYTHON})
    assert result.code == 0 and "\033" not in result.err, result
    assert re.search(r"rank 0 \(local 0, pid \d+\): watchdog timer only \?\[2J said is over: no signal was wanted$", result.err, re.M), result
    assert not file.exists()
    file.write_text("precious")
    result = run([path], env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(file)})
    assert result.code == 2 and "is there and is no FIFO" in result.err and file.read_text() == "precious", result


def test_uninterruptible_sleep_ends_the_job_without_restart(tmp_path):
    """The parent of a vfork sleeps so until the child has executed its program; here that waits for a writer of a FIFO."""
    os.mkfifo(tmp_path / "fifo")
    path = script(tmp_path, "w.py", f"""
import os
with open({str(tmp_path / "pid")!r}, "a") as f:
    f.write(f"{{os.getpid()}}\\n")
os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, {str(tmp_path / "fifo")!r}, os.O_RDONLY, 0)])
""")
    with Job(["--max_restarts=3", path], env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "2", "PYTHON_EXEC": PYTHON}) as job:
        pid = int(wait_lines(tmp_path / "pid", 1)[0])
        if wait_until(lambda: state_of(pid) in ("D", "S") and state_of(pid), "the sleep") != "D":
            pytest.skip("this kernel or C library does not sleep so")
        result = job.finish()
        job.wait_gone()
    assert result.code == 1 and len(lines_of(tmp_path / "pid")) == 1, result
    assert re.search(r"in uninterruptible sleep for \d+\.\d s \(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=2\)", result.err), result


def test_what_has_no_effect_is_said():
    result = run(["/bin/true"], env={"TORCHELASTIC_HEALTH_CHECK_PORT": "8080"})
    assert result.code == 0 and result.err == "dtrun: TORCHELASTIC_HEALTH_CHECK_PORT: has no effect, as in torchrun's public version; ask with dtrun --status\n"
    result = run(["/bin/true"], env={"LOGLEVEL": "INFO"})
    assert result.code == 0 and re.search(r" info agent: round 1 ", result.err), result
    assert run(["/bin/true"], env={"LOGLEVEL": "ERROR"}).err == ""
    result = run(["/bin/true"], env={"LOGLEVEL": "loud"})
    assert result.code == 0 and result.err == "dtrun: LOGLEVEL: loud: unknown level; must be DEBUG, INFO, WARNING, ERROR or CRITICAL\n", result
    result = run(["/bin/true"], env={"DTRUN_LOG": "loud"})
    assert result.code == 0 and result.err == "dtrun: DTRUN_LOG: loud: unknown level; must be error, warn, info or debug\n", result


# ---- crashes ----


@pytest.mark.skipif("build-" in DTRUN, reason="sanitizers have a handler of their own")
@pytest.mark.parametrize("name", ["SEGV", "ABRT", "FPE"])
def test_a_crash_of_train_leaves_its_calls(tmp_path, name):
    job_file = training.make_job(tmp_path, steps=100000, checkpointing={"save_every_n_steps": 100000})
    with Job(["--nproc_per_node=2", "--max_restarts=0", "train", job_file, "--output_dir", tmp_path / "out"]) as job:
        pages = training.wait_pages(job, 2, 3)
        os.kill(pages[1].pid, getattr(signal, "SIG" + name))
        result = job.finish()
        job.wait_gone()
    assert result.code == 1, result
    assert re.search(rf"rank 1 \(local 1, pid {pages[1].pid}\): killed by signal \d+ \(SIG{name}\) at step \d+; ", result.err), result
    log = (tmp_path / "out" / "logs" / "rank-1.log").read_text()
    for text in (re.sub(r"^step .*\n", "", result.err, flags=re.M), log):  # rank 0's step may come between two lines
        assert "trainer_" in text, text  # whose step it was
        assert re.search(rf"^train: rank 1: crashed: SIG{name}, sent by a process; the calls that led there:\n(from code that cannot be followed back; .*:\n|.*\[0x[0-9a-f]+\]\n){{2,}}", text, re.M), text
