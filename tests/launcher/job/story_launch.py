# covers: launcher/job launcher/workers launcher/output cmd/dtrun.c
"""dtrun on one host: exit codes, the workers' surroundings, rounds, signals, and that nothing is ever left behind."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import places
import pytest
from nodes import free_port, listens
from support import DEADLINE_S, DTRUN, PYTHON, Job, alive, as_nobody, children, clean_env, lines_of, marked, run, script, state_of, wait_lines, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")


def shell(text, *options, **more):
    return run([*options, "sh", "-c", text], **more)


# ---- exit codes ----


def left_in(tmp_path, *options, failed=False):
    """Files below TMPDIR after a run, and its folders when there are no files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = run(list(options), {"TMPDIR": str(temporary)})
    assert (result.code != 0) == failed, result
    found = sorted(temporary.rglob("*"))
    return [x.name for x in found if x.is_file()] or [x.name for x in found]


def test_nothing_stays_where_no_log_was_asked_for(tmp_path):
    assert left_in(tmp_path, "--nproc_per_node=2", "/bin/true") == []


def test_logs_stay_when_asked_for(tmp_path):
    assert left_in(tmp_path, "--redirects=3", "/bin/true") == ["stderr.log", "stdout.log", "events.jsonl"]


def test_a_failure_stays_on_record(tmp_path):
    assert left_in(tmp_path, "/bin/false", failed=True) == ["events.jsonl"]
    (path,) = (tmp_path / "temporary").rglob("events.jsonl")
    result = run(["/bin/false"], {"TMPDIR": str(tmp_path / "temporary")})
    named = re.findall(r"^dtrun: the record of the failure is (\S+/events\.jsonl)$", result.err, re.M)
    assert len(named) == 1 and os.path.exists(named[0]) and named[0] != str(path), result


def test_a_record_that_cannot_be_written_is_not_named(tmp_path):
    mount = places.mount_point(tmp_path, "small")
    file = f"{mount}/t*/*/events.jsonl"
    fill = f"until [ -s {file} ]; do sleep 0.01; done; rm {file}; head -c 9000000 /dev/zero >{mount}/x; exit 1"
    # room also for what the thread sanitizer keeps in TMPDIR
    p = places.in_mounts(f"mount -t tmpfs -o size=4m none '{mount}'; TMPDIR='{mount}' '{DTRUN}' sh -c '{fill}'")
    assert re.findall(r"^dtrun: the record of the failure .*$", p.stderr, re.M) == [x for x in p.stderr.splitlines() if re.fullmatch(
        rf"dtrun: the record of the failure could not be written: {mount}/\S+/events\.jsonl: No space left on device", x)] != [], p


def test_success_and_failure_codes():
    assert run(["--nproc_per_node=2", "/bin/true"]).code == 0
    assert run(["--nproc_per_node=2", "/bin/false"]).code == 1
    assert shell("exit 17").code == 1
    assert shell("exit 17", "--exit_code=worker").code == 17
    assert shell("exit 100").code == 1  # only our own programs mean something by it


@pytest.mark.parametrize("name", ["no-such-program-anywhere", "./no-such-file", "/nonexistent/dir/program"])
def test_unknown_program_is_2(name):
    result = run([name])
    assert result.code == 2
    assert re.match(rf"dtrun: {re.escape(name)}: .+\n", result.err), result


def test_not_executable_is_2(tmp_path):
    path = script(tmp_path, "plain", "exit 0\n")
    os.chmod(path, 0o644)
    result = run([path])
    assert result.code == 2 and path in result.err, result


def test_wrong_option_is_2():
    result = run(["--nproc_per_nodes=2", "/bin/true"])
    assert result.code == 2 and "nproc_per_node" in result.err


def test_one_failure_ends_the_others(tmp_path):
    mark = tmp_path / "others"
    result = shell(f'if [ "$RANK" = 1 ]; then exit 3; fi; sleep 1000; echo survived >> {mark}', "--nproc_per_node=3")
    assert result.code == 1 and not mark.exists()
    assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): exit code 3; 2 other ranks stopped because of it", result.err, re.M), result
    assert result.err.count("exit code 3;") == 1  # one cause line


def test_those_who_finish_early_do_not_end_the_others(tmp_path):
    mark = tmp_path / "late"
    result = shell(f'[ "$RANK" = 0 ] && exit 0; sleep 0.3; echo done >> {mark}', "--nproc_per_node=2")
    assert result.code == 0 and lines_of(mark) == ["done"]


def test_those_who_finish_early_are_said_once(tmp_path):
    """Legal for any program, as under torchrun; but whoever wonders what it waits for is told."""
    text = f'[ "$RANK" = 2 ] || exit 0; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done'
    with Job(["--nproc_per_node=3", "--exit_barrier=200ms", "sh", "-c", text]) as job:
        line = job.process.stderr.readline()
        (tmp_path / "go").touch()
        result = job.finish()
    assert re.fullmatch(r"dtrun: host \S+: 2 of 3 workers ended with exit code 0, the first 0.2 s ago; waiting for rank 2\n", line), line
    assert (result.code, result.err) == (0, ""), result


# ---- what a worker sees ----


def test_environment(tmp_path):
    names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME TORCHELASTIC_RESTART_COUNT "
             "TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE MASTER_ADDR")
    line = " ".join(f"${{{n}}}" for n in names.split())
    path = script(tmp_path, "show", f'echo {line} > {tmp_path}/$RANK\nkill -0 $PPID && [ -w "$DTRUN_PAGE" ] && [ "$MASTER_PORT" -gt 0 ]\n')
    result = run(["--nproc_per_node=2", "--role=trainer", "--max_restarts=2", path], env={"RANK": "77", "WORLD_SIZE": "99"})
    assert result.code == 0, result
    for i in range(2):
        assert lines_of(tmp_path / str(i)) == [f"{i} {i} 2 2 0 1 {i} 2 trainer 0 2 True 127.0.0.1"]


def test_stdin_directory_and_arguments(tmp_path):
    result = run(["sh", "-c", 'cat; pwd; echo "$@"', "sh", "--nproc_per_node=5", "a b", "r${local_rank}"], input="hello\n", cwd=tmp_path)
    assert result.code == 0
    assert result.out.splitlines() == ["hello", str(tmp_path), "--nproc_per_node=5 a b r0"]


@pytest.mark.parametrize("background", [False, True])
def test_a_job_in_the_background_leaves_what_is_typed_to_the_shell(tmp_path, background):
    pid, terminal = pty.fork()
    if pid == 0:  # the shell
        def become_a_job():
            os.setpgid(0, 0)
            if not background:
                os.tcsetpgrp(0, os.getpgrp())

        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = subprocess.Popen([DTRUN, "sh", "-c", f"read -r line; echo got ${{line:-nothing}} > {tmp_path}/log"], env=clean_env(), preexec_fn=become_a_job)
        code = job.wait(DEADLINE_S)
        os.tcsetpgrp(0, os.getpgrp())
        for_shell = select.select([0], [], [], 1 if not background else DEADLINE_S)[0] != []
        os._exit(code if for_shell == background else 9)
    os.write(terminal, b"ls\n")
    with contextlib.suppress(OSError):  # its other end is closed
        while os.read(terminal, 1000):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert lines_of(tmp_path / "log") == ["got nothing" if background else "got ls"]


def test_python_scripts_and_modules(tmp_path):
    script(tmp_path, "job.py", "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n")
    result = run(["job.py", "x"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
    assert result.code == 0 and result.out == "0 ['x']\n", result
    result = run(["-m", "job", "x"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
    assert result.code == 0 and result.out == "0 ['x']\n", result


@pytest.mark.parametrize("spelling", ["--run_path", "--run-path"])
def test_a_script_run_by_its_path(tmp_path, spelling):
    """As torchrun's function run_script_path does: by runpy, with the script's arguments, and its exit code counts."""
    script(tmp_path, "job", "")
    (tmp_path / "job").write_text("import os, sys, __main__\n"
                                  "line = f\"{os.environ['RANK']} {sys.argv} {__name__} {__file__} {vars(__main__) is globals()}\\n\"\n"
                                  "os.write(1, line.encode())\n"
                                  "sys.exit(int(sys.argv[1]))\n")
    result = run(["--nproc_per_node=2", spelling, "job", "0", "-m", "${local_rank}"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
    assert result.code == 0 and result.err == "", result
    assert sorted(result.out.splitlines()) == [f"{rank} ['job', '0', '-m', '{rank}'] __main__ job True" for rank in range(2)], result
    result = run([spelling, "-m", "job", "3"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
    assert result.code == 1 and "exit code 3" in result.err and "dtrun: -m: not used; --run_path runs PROGRAM as a script\n" in result.err, result
    result = run([spelling, "--dry_run", "job", "0"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
    assert result.code == 0
    command = result.out.splitlines()[0].removeprefix("command   python3")
    again = subprocess.run(f"{PYTHON} {command}", shell=True, cwd=tmp_path, env=clean_env({"RANK": "7"}), capture_output=True, text=True, timeout=60)
    assert again.stdout == "7 ['job', '0'] __main__ job True\n", (result, again)


def test_exported_values_reach_the_workers_of_one_host_too():
    words = ["--nproc_per_node=2", "-x", "MY_VAR=a b", "--export=NCCL_DEBUG=WARN,NCCL_DEBUG=INFO", "sh", "-c", 'echo "$MY_VAR $NCCL_DEBUG"']
    result = run(words, env={"MY_VAR": "before", "OMP_NUM_THREADS": "1"})
    assert result.code == 0 and result.out == "a b INFO\n" * 2 and result.err == "", result


def test_only_three_descriptors_and_own_sessions(tmp_path):
    path = script(tmp_path, "look.py", f"""
import os
fds = [f for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f)]
with open({str(tmp_path / "log")!r}, "w") as f:
    f.write(f"{{sorted(map(int, fds))}}\\n{{os.getpid() == os.getpgid(0) == os.getsid(0)}}\\n")
""")
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    try:
        code = subprocess.run([DTRUN, path], env=clean_env({"PYTHON_EXEC": PYTHON}), close_fds=False, timeout=60).returncode
    finally:
        os.close(extra)
    assert code == 0
    assert lines_of(tmp_path / "log") == ["[0, 1, 2]", "True"]


def test_a_range_of_taken_ports_is_named():
    with contextlib.ExitStack() as stack:
        while True:  # two neighbours that nobody has
            one, two = (stack.enter_context(socket.socket()) for _ in range(2))
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                two.bind(("127.0.0.1", port + 1))
                break
        one.listen()
        two.listen()
        result = run([f"--port_range={port}-{port + 1}", "--standalone", "/bin/true"])
        said = rf"dtrun: --port_range: no free port in {port}-{port + 1}: port {port + 1}: already in use by .*; end it, or choose another port\n"
        assert result.code == 111 and re.fullmatch(said, result.err), result


# ---- rounds ----


def test_restarts_until_it_works(tmp_path):
    text = f'echo "$TORCHELASTIC_RESTART_COUNT $RANK" >> {tmp_path}/log; [ "$TORCHELASTIC_RESTART_COUNT" = 2 ]'
    result = shell(text, "--max_restarts=3", "--nproc_per_node=2")
    assert result.code == 0, result
    counts = {line.split()[0] for line in lines_of(tmp_path / "log")}
    assert counts == {"0", "1", "2"}
    assert "restarting (1 of 3 used)" in result.err and "restarting (2 of 3 used)" in result.err


def test_budget(tmp_path):
    result = shell(f"echo x >> {tmp_path}/log; exit 1", "--max_restarts=2")
    assert result.code == 1 and len(lines_of(tmp_path / "log")) == 3
    assert "no restart left (2 of 2 used)" in result.err


def test_a_code_that_forbids_a_restart_is_named(tmp_path):
    """Only where there would have been one, and for that code alone."""
    for code, options, tail in ((7, ["--max_restarts=3"], "; no restart after 7 (--permanent_exit_codes)"), (7, [], ""),
                                (8, ["--max_restarts=1"], "; no restart left (1 of 1 used)")):
        result = shell(f"exit {code}", "--permanent_exit_codes=5,7", *options)
        cause = [line for line in result.err.splitlines() if line.startswith("dtrun: host ") and "restarting" not in line]
        assert result.code == (7 if code == 7 else 1) and len(cause) == 1 and cause[0].endswith(f": exit code {code}{tail}"), result


@pytest.mark.parametrize("name, code", [("HUP", 129), ("INT", 130), ("QUIT", 131), ("TERM", 143)])
def test_what_a_signal_ends_with(tmp_path, name, code):
    """As the table of exit codes says."""
    with Job(["sh", "-c", f"echo > {tmp_path}/up; exec sleep 600"]) as job:
        wait_lines(tmp_path / "up", 1)
        job.process.send_signal(getattr(signal, f"SIG{name}"))
        result = job.finish()
        assert result.code == code and result.err == f"dtrun: stopped by {name}: all workers have ended\n", result


def test_a_killed_worker_is_replaced_at_once(tmp_path):
    text = f'echo "$$ $MASTER_PORT" >> {tmp_path}/pids; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exec sleep 1000'.replace("$$", "$$$$")
    with Job(["--max_restarts=1", "--nproc_per_node=2", "sh", "-c", text]) as job:
        first = wait_lines(tmp_path / "pids", 2)
        os.kill(int(first[0].split()[0]), signal.SIGKILL)
        result = job.finish()
    assert result.code == 0, result
    lines = lines_of(tmp_path / "pids")
    assert len(lines) == 4 and len({x.split()[1] for x in lines}) == 1  # same port
    assert re.search(r"killed by signal 9 \(SIGKILL\); 1 other rank stopped because of it; restarting \(1 of 1 used\)", result.err), result


def test_the_store_is_empty_in_each_round(tmp_path):
    path = script(tmp_path, "client.py", f'''
import os, socket, struct, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
key = b"seen"
s.sendall(b"\\x00" + struct.pack("<I", 0x3C85F7CE))                                     # VALIDATE
s.sendall(b"\\x05" + struct.pack("<Q", 1) + struct.pack("<Q", len(key)) + key)           # CHECK one key
found = s.recv(1)
s.sendall(b"\\x01" + struct.pack("<Q", len(key)) + key + struct.pack("<Q", 1) + b"1")    # SET
with open({str(tmp_path / "log")!r}, "a") as f:
    f.write(found.hex() + "\\n")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] != "2")
''')
    result = run(["--max_restarts=2", path], env={"PYTHON_EXEC": PYTHON})
    assert result.code == 0, result
    lines = lines_of(tmp_path / "log")
    assert len(lines) == 3 and len(set(lines)) == 1, lines


def test_many_rounds_leak_nothing(tmp_path):
    rounds = 1000 if os.environ.get("DTRUN_ALL") else 200
    counted = f'{{ [ "$n" -ge 2 ] && [ "$n" -le 6 ]; }} || [ "$n" -gt {rounds - 5} ]'  # on a busy machine what has ended may still be open in one of them
    text = f'n=$TORCHELASTIC_RESTART_COUNT; if {counted}; then ls /proc/$PPID/fd | wc -l >> {tmp_path}/fds; fi; ' \
           f'if [ "$TORCHELASTIC_RESTART_COUNT" -ge {rounds} ]; then grep VmRSS /proc/$PPID/status >> {tmp_path}/rss; exit 0; fi; exit 1'
    result = shell(text, f"--max_restarts={rounds}", "--log_dir=/dev/null", timeout_s=5 * DEADLINE_S)
    assert result.code == 0, result
    open_files = [int(x) for x in lines_of(tmp_path / "fds")]
    assert len(open_files) == 10 and min(open_files[5:]) <= min(open_files[:5]) + 1, open_files
    kib = int(lines_of(tmp_path / "rss")[0].split()[1])
    if "build-" not in DTRUN:  # sanitizers have their own memory
        assert kib < 8 * 1024


def test_64_ranks(tmp_path):
    result = shell(f"echo $RANK > {tmp_path}/$RANK", "--nproc_per_node=64")
    assert result.code == 0, result
    assert sorted(int(lines_of(p)[0]) for p in tmp_path.iterdir()) == list(range(64))


def test_two_jobs_at_once(tmp_path):
    text = "echo $MASTER_PORT >> {}; sleep 0.2"
    with Job(["--nproc_per_node=2", "sh", "-c", text.format(tmp_path / "a")]) as a, Job(["--nproc_per_node=2", "sh", "-c", text.format(tmp_path / "b")]) as b:
        assert a.finish().code == 0 and b.finish().code == 0
    assert set(lines_of(tmp_path / "a")).isdisjoint(lines_of(tmp_path / "b"))


# ---- signals ----


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_reaches_the_workers_and_ends_the_job(tmp_path, name):
    number = getattr(signal, "SIG" + name)
    text = f'trap "echo {name} >> {tmp_path}/got; exit 0" {name}; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    with Job(["--nproc_per_node=2", "--max_restarts=3", "sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(number)
        result = job.finish()
        job.wait_gone()
    assert result.code == 128 + number, result
    assert lines_of(tmp_path / "got") == [name, name]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGWINCH, signal.SIGRTMIN])
def test_any_signal_can_be_one_to_handle(tmp_path, number):
    text = f'trap "echo {number:d} >> {tmp_path}/got; exit 0" {number:d}; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    name = "SIGRTMIN" if number == signal.SIGRTMIN else number.name
    with Job(["--nproc_per_node=2", f"--signals_to_handle=SIGTERM,{name}", "sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(number)
        result = job.finish()
        job.wait_gone()
    assert result.code == 128 + number and "all workers have ended" in result.err, result
    assert lines_of(tmp_path / "got") == [f"{number:d}"] * 2, result


def test_a_worker_that_ignores_term_is_killed_after_the_grace(tmp_path):
    text = f'trap "" TERM; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    with Job(["--shutdown_timeout=1", "sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGTERM)
        result = job.finish()
        job.wait_gone()
    assert result.code == 143 and "still there after 1 s (--shutdown_timeout); killing it" in result.err, result


def test_a_second_signal_kills_at_once(tmp_path):
    text = f'trap "echo x >> {tmp_path}/got" INT TERM; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    with Job(["--shutdown_timeout=600", "--nproc_per_node=2", "sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 2)
        job.signal(signal.SIGINT)
        wait_lines(tmp_path / "got", 2)
        job.signal(signal.SIGINT)
        result = job.finish()
        job.wait_gone()
    assert result.code == 130, result


def test_usr1_is_passed_on_to_a_foreign_program(tmp_path):
    text = f'trap "echo usr1 >> {tmp_path}/got; exit 0" USR1; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    with Job(["sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGUSR1)
        result = job.finish()
    assert result.code == 0 and lines_of(tmp_path / "got") == ["usr1"], result
    assert re.search(rf"^dtrun: host \S+: USR1: passed on to 1 worker$", result.err, re.M), result


@pytest.mark.parametrize("options, name, code", [(["--signals-to-handle=SIGUSR2"], "USR2", 140), (["--signals-to-handle=SIGUSR1"], "HUP", 129),
                                                 (["--signals-to-handle=SIGTERM,SIGINT"], "QUIT", 131)])
def test_signals_that_stop_leave_workers_their_grace(tmp_path, options, name, code):
    """What is named by --signals_to_handle, and INT, TERM, HUP, QUIT always."""
    text = f'trap "echo {name} >> {tmp_path}/got" {name}; trap "echo TERM >> {tmp_path}/got" TERM; echo >> {tmp_path}/ready; while :; do sleep 0.05; done'
    with Job(["--shutdown_timeout=1", *options, "sh", "-c", text]) as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(getattr(signal, "SIG" + name))
        result = job.finish()
        job.wait_gone()
    assert result.code == code and lines_of(tmp_path / "got")[0] == name, result


def test_usr1_before_there_are_workers_ends_the_launcher():
    port = free_port()
    with Job(["--nnodes=2", f"--master_port={port}", "--node_rank=0", "true"]) as job:
        wait_until(lambda: listens(port), "the endpoint")
        job.signal(signal.SIGUSR1)
        result = job.finish()
        job.wait_gone()
    assert result.code == 138, result


def test_ctrl_z_stops_everything_and_cont_goes_on(tmp_path):
    # No shell here: while it starts a command it waits in the kernel (D) for a child that is stopped too.
    path = script(tmp_path, "wait.py", f"""
import os, time
with open({str(tmp_path / "pids")!r}, "a") as f:
    f.write(f"{{os.getpid()}}\\n")
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.05)
""")
    with Job(["--nproc_per_node=2", path], env={"PYTHON_EXEC": PYTHON}) as job:
        workers = [int(x) for x in wait_lines(tmp_path / "pids", 2)]
        everybody = [job.pid, job.agent, *workers]
        job.signal(signal.SIGTSTP)
        wait_until(lambda: all(state_of(p) == "T" for p in everybody), "all stopped")
        job.signal(signal.SIGCONT)
        wait_until(lambda: all(state_of(p) in "SRD" for p in everybody), "all running")
        (tmp_path / "go").touch()
        assert job.finish().code == 0


DEAF = ["INT", "QUIT", "HUP", "USR1", "USR2", "TSTP"]


def start_deaf(tmp_path, *options):
    """A job that a shell has started with these signals ignored, and TERM; it ends when `go` is there. Its worker says what it ignores."""
    text = f"grep SigIgn /proc/self/status > {tmp_path}/ignored; echo >> {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    words = ["-c", f'trap "" {" ".join(DEAF)} TERM; exec "$0" "$@"', DTRUN, *options, "sh", "-c", text]
    return Job(words, executable="/bin/sh", env={"DTRUN_RUNTIME_DIR": str(tmp_path / "runtime")})


def ignores(tmp_path, name):
    return int(lines_of(tmp_path / "ignored")[0].split()[1], 16) >> getattr(signal, "SIG" + name) - 1 & 1 == 1


def test_signals_that_were_ignored_at_the_start_stay_ignored(tmp_path):
    """As INT and QUIT of a shell's "&" are, HUP under nohup, and whatever a script has trapped; by the guard and by the agent."""
    with start_deaf(tmp_path) as job:
        wait_lines(tmp_path / "ready", 1)
        for name in DEAF:
            job.signal(getattr(signal, "SIG" + name))
            os.kill(job.agent, getattr(signal, "SIG" + name))
        said = run(["--status"], env={"DTRUN_RUNTIME_DIR": str(tmp_path / "runtime")})
        assert "\n  ignores HUP, INT, QUIT, USR1, USR2, TSTP, ignored at its start; TERM stops it\n" in said.out, said
        # those that would not come from a terminal to a session of its own are meant for the worker that gets one
        assert [name for name in [*DEAF, "TERM"] if ignores(tmp_path, name)] == ["HUP", "USR1", "USR2", "TSTP"]
        (tmp_path / "go").touch()
        assert job.finish().code == 0


def test_term_stops_a_job_that_had_it_ignored(tmp_path):
    with start_deaf(tmp_path) as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGTERM)
        assert job.finish().code == 143


def test_an_ignored_signal_that_is_named_is_handled(tmp_path):
    with start_deaf(tmp_path, "--signals_to_handle=SIGTERM,SIGINT") as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGQUIT)
        job.signal(signal.SIGINT)
        assert job.finish().code == 130


def test_a_lost_terminal_is_no_wish_under_nohup(tmp_path):
    text = f"echo >> {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with Job([DTRUN, "sh", "-c", text], executable="/usr/bin/nohup") as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGHUP)
        os.kill(job.agent, signal.SIGHUP)
        (tmp_path / "go").touch()
        assert job.finish().code == 0


def test_cont_alone_changes_nothing(tmp_path):
    with Job(["sh", "-c", f"echo >> {tmp_path}/ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"]) as job:
        wait_lines(tmp_path / "ready", 1)
        job.signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        assert job.finish().code == 0


# ---- nothing is left behind ----

FAMILY = "setsid sh -c 'echo $$$$ >> {0}; sleep 1000' & sh -c 'echo $$$$ >> {0}; sleep 1000' & echo $$$$ >> {0}; wait"


@pytest.mark.parametrize("victim", ["agent", "guard", "both"])
def test_killing_our_processes_leaves_nothing(tmp_path, victim):
    with Job(["--nproc_per_node=2", "sh", "-c", FAMILY.format(tmp_path / "pids")]) as job:
        pids = [int(x) for x in wait_lines(tmp_path / "pids", 6)]
        agent = job.agent
        workers = children(agent)
        if victim == "both":  # else the guard may have ended all before it is killed
            os.kill(job.pid, signal.SIGSTOP)
            wait_until(lambda: state_of(job.pid) == "T", "the guard's stop")
        if victim != "guard":
            os.kill(agent, signal.SIGKILL)
        if victim != "agent":
            os.kill(job.pid, signal.SIGKILL)
        assert len(workers) == 2
        job.wait_gone()
        assert not [p for p in pids if alive(p)]
        result = job.finish()
    assert result.code == (111 if victim == "agent" else -9), result
    if victim == "both":
        assert re.search(r"^dtrun: guard \(pid \d+\) and agent \(pid \d+\) were killed: what the workers had started was ended$", result.err, re.M), result
    if victim == "guard":
        assert "dtrun: the guard is gone" in result.err and "stopped by" not in result.err, result
    if victim == "agent":
        assert re.search(r"dtrun: agent \(pid \d+\): killed by signal 9 \(KILL\): .+; start the job again", result.err)


# A condition that does not come true ends the script, whose test then fails.
AWAIT = r"""
await() {
    tries=0
    until eval "$1"; do
        [ $((tries += 1)) -lt 2000 ] || { echo "in vain awaited: $1" >&2; exit 9; }
        sleep 0.01
    done
}
"""
# $1: dtrun, $2: a folder. A job whose guard, agent and sweeper are killed at once.
LEAVE = r"""
cd "$2"
"$1" --rdzv_id=first sh -c 'setsid sh -c "echo \$\$ > left; exec sleep 1000" & while [ ! -s left ]; do sleep 0.01; done; echo $PPID > agent; exec sleep 1000' &
await '[ -s agent ]'
kill -STOP $! && kill -9 $(cat /proc/$!/task/$!/children) $!
await '! kill -0 $(cat agent) 2> /dev/null'
"""
# Others while what it left still runs, and one when nothing is left. $3: what the file says in which jobs tell each other of a look.
NAME = r"""
mkdir -p -m 700 "$DTRUN_RUNTIME_DIR" && printf "$3\n" $(stat -L -c %i /proc/self/ns/pid) > "$DTRUN_RUNTIME_DIR/looked"
"$1" --nproc_per_node=2 sh -c 'echo >> ready; while [ ! -e go ]; do sleep 0.05; done' 2> long &
await '[ -s long ]'
touch go
wait $!
"$1" false 2> failed
kill -0 $(cat left) && kill $(cat left)
await '! kill -0 $(cat left) 2> /dev/null'
"$1" false 2> after
"""
# A job that begins while another one looks, and hears then that it began later than this one and found nothing. $3: a Python.
BELIEVE = r"""
mkdir -p -m 700 "$DTRUN_RUNTIME_DIR" && : > "$DTRUN_RUNTIME_DIR/looked"
"$3" -c '
import fcntl, os, time
f = open(os.environ["DTRUN_RUNTIME_DIR"] + "/looked", "r+")
fcntl.flock(f, fcntl.LOCK_EX)
open("looking", "w").close()
while not os.path.exists("ready"):
    time.sleep(0.01)
time.sleep(0.5)
f.write("%d %.6f\n" % (os.stat("/proc/self/ns/pid").st_ino, time.monotonic()))
' &
await '[ -e looking ]'
"$1" sh -c 'echo > ready; sleep 3' 2> long
kill $(cat left)
"""


# A worker's environment in another job, whose parent is none of the first one's processes: what a worker submits to a scheduler runs so.
SUBMITTED = r"""
cd "$2"
"$1" sh -c 'echo $PPID > agent; echo "$DTRUN_PAGE" > page; setsid sleep 1000 & echo $! > left; exec sleep 1000' 2> first &
guard=$!
await '[ -s left ]'
( DTRUN_PAGE=$(cat page) "$1" sh -c ': > begun; i=0; while [ ! -e go ] && [ $((i += 1)) -lt 2000 ]; do sleep 0.05; done; [ -e go ] && echo fine > done' 2> second; echo $? > code ) &
await '[ -e begun ]'
kill -STOP $(cat agent) && kill -9 $guard $(cat agent)  # stopped, as it would say that the guard was killed
await '! kill -0 $(cat left) 2> /dev/null'
await '[ -s first ]'
touch go
wait
"""
# Of a job that has the environment of one that was killed nobody learns that nothing is left.
UNSURE = r"""
cd "$2"
DTRUN_PAGE=/proc/4000001/fd/9 "$1" sleep 1; [ ! -s "$DTRUN_RUNTIME_DIR/looked" ] || exit 1
"$1" sh -c 'i=0; while [ ! -s "$DTRUN_RUNTIME_DIR/looked" ] && [ $((i += 1)) -lt 200 ]; do sleep 0.05; done'; [ -s "$DTRUN_RUNTIME_DIR/looked" ] || exit 2
"""


def in_a_pid_namespace(tmp_path, script, *args):
    """Processes of our own: no other story's jobs are seen, and none of these jobs by others."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespaces here")
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # a socket's path is short
        return subprocess.run([*inside, "sh", "-c", AWAIT + script, "-", DTRUN, tmp_path, *args], env=clean_env({"DTRUN_RUNTIME_DIR": runtime + "/dtrun"}),
                              capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize("looked", ["", "no numbers", "%d 1e9", "%d 0.5", "1 1e-3"])  # the third is of another boot, the fourth before the job
def test_what_a_killed_job_has_left_is_named_by_the_next(tmp_path, looked):
    """R-11: a grandchild in a session of its own, when guard and agent were killed at once."""
    p = in_a_pid_namespace(tmp_path, LEAVE + NAME, looked)
    left = (tmp_path / "left").read_text().strip()
    line = rf"^dtrun: host \S+: 1 process of an earlier job \(run id first\) outlived dtrun, which was killed with its guard: pid {left} \(sleep\); end it with: kill {left}$"
    for name in ("long", "failed"):
        assert len(re.findall(line, (tmp_path / name).read_text(), re.M)) == 1, (name, (tmp_path / name).read_text(), p.stderr)
    assert (tmp_path / "long").read_text().count("\n") == 1, (tmp_path / "long").read_text()
    assert "outlived" not in (tmp_path / "after").read_text(), (tmp_path / "after").read_text()


# What two runs leave, of one more than a line names.
TWO_RUNS = r"""
cd "$2"
for run in one two; do
    "$1" --rdzv_id=$run sh -c 'n=1; [ $TORCHELASTIC_RUN_ID = one ] || n=9; for i in $(seq $n); do setsid sleep 1000 & echo $! >> left-$TORCHELASTIC_RUN_ID; done
        : > full-$TORCHELASTIC_RUN_ID; echo $PPID > agent-$TORCHELASTIC_RUN_ID; exec sleep 1000' &
    await '[ -s agent-$run ]'
    kill -STOP $! && kill -9 $(cat /proc/$!/task/$!/children) $!
    await '! kill -0 $(cat agent-$run) 2> /dev/null'
done
"$1" sh -c 'i=0; while [ $(wc -l < said) -lt 2 ] && [ $((i += 1)) -lt 200 ]; do sleep 0.05; done' 2> said
"""


def test_each_run_that_left_something_has_a_line(tmp_path):
    p = in_a_pid_namespace(tmp_path, TWO_RUNS)
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) == 2, (said, p)
    for line, run_id, count in zip(sorted(said), ("one", "two"), (1, 9)):
        left = sorted(lines_of(tmp_path / f"left-{run_id}"), key=int)
        assert f": {count} process{'es' if count > 1 else ''} of an earlier job (run id {run_id}) outlived dtrun" in line, said
        assert sorted(line.partition("with: kill ")[2].split(), key=int) == left and line.count(" (sleep)") == min(count, 8), said


def test_jobs_that_begin_together_look_once(tmp_path):
    p = in_a_pid_namespace(tmp_path, LEAVE + BELIEVE, PYTHON)
    assert (tmp_path / "ready").exists() and p.returncode == 0, p
    assert (tmp_path / "long").read_text() == "", (tmp_path / "long").read_text()


def test_what_a_worker_submitted_goes_on_when_its_job_is_killed(tmp_path):
    p = in_a_pid_namespace(tmp_path, SUBMITTED)
    assert [(tmp_path / x).read_text() for x in ("done", "code", "second")] == ["fine\n", "0\n", ""], p
    assert "were killed: what the workers had started was ended" in (tmp_path / "first").read_text(), p


def test_who_may_have_overlooked_something_says_nothing_to_others(tmp_path):
    p = in_a_pid_namespace(tmp_path, UNSURE)
    assert p.returncode == 0, p


def test_what_a_worker_submitted_is_nothing_that_it_left():
    """As `sbatch next.sh` in a worker, whose scheduler passes the environment on: the batch script of the next job has it, too."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespaces here")
    p = subprocess.run([*inside, "sh", "-c", '"$0" false; exit $?', DTRUN], env=clean_env({"DTRUN_PAGE": "/proc/4000001/fd/9"}), capture_output=True, text=True,
                       timeout=DEADLINE_S)
    assert p.returncode == 1 and "outlived" not in p.stderr, p


FOREIGN_PROC = """
sleep 1000 & [ $! = 2 ] || exit 99
"$1" --nproc_per_node=2 sh -c 'setsid sleep 1000 & exit $RANK' && exit 98
kill -0 2 || exit 97
"$1" /bin/true || exit 96
"$1" train job.json; exit $?
"""


def test_a_silent_name_server_costs_one_look(tmp_path):
    """However many ports are allowed. 192.0.2.1 is behind an interface that swallows everything."""
    (tmp_path / "resolv").write_text("nameserver 192.0.2.1\noptions timeout:1 attempts:1\n")
    line = (f"ip link set lo up && ip link add d0 type veth peer name e0 && ip addr add 192.0.2.2/24 dev d0 && ip link set d0 up && ip link set e0 up && "
            f"ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev d0 && mount --bind {tmp_path}/resolv /etc/resolv.conf && "
            f"exec {DTRUN} --nnodes=1 --rdzv_backend=static --master_addr=pod-0.svc --master_port=0 --port_range=21000-21999 sh -c 'echo $MASTER_ADDR'")
    inside = ["unshare", "--net", "--mount"]
    if subprocess.run([*inside, "ip", "link", "add", "d0", "type", "veth", "peer", "name", "e0"], capture_output=True).returncode != 0:
        pytest.skip("no network namespaces here")
    p = subprocess.run([*inside, "sh", "-c", line], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert (p.returncode, p.stdout) == (0, "127.0.0.1\n") and "the workers of this one host meet at 127.0.0.1" in p.stderr, p


def test_a_proc_of_another_namespace(tmp_path):
    """Its numbers are those of other processes: none of ours is ended for them, the result stands, and train says what it needs."""
    inside = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no pid namespaces here")
    p = subprocess.run([*inside, "sh", "-c", FOREIGN_PROC, "-", DTRUN], env=clean_env({"TMPDIR": str(tmp_path)}), capture_output=True, text=True, timeout=DEADLINE_S)
    assert p.returncode == 2 and p.stderr.count("dtrun: warning: /proc is not that of this PID namespace: ") == 2, p
    assert p.stderr.count("guard: a process of this job does not die: without a /proc of this PID namespace it cannot be found") == 1, p  # of the first job
    assert p.stderr.count("/proc is not that of this PID namespace, and train needs it; mount it") == 1 and "outlived" not in p.stderr, p


def test_what_dtrun_was_born_with_lives_on(tmp_path):
    """A shell that becomes dtrun has children of its own, such as the tee of its output: they get the last line, and a sidecar goes on, also one that a
    subshell leaves behind while the job runs."""
    text = """sleep 1000 > /dev/null 2>&1 & echo $! > side
(sleep 0.1; sleep 1000 & echo $! > later) > /dev/null 2>&1 &
exec > >(sleep 0.5; cat > out)
exec "$0" --shutdown_timeout=0 sh -c "until [ -s later ]; do sleep 0.01; done; sleep 0.1; echo last; setsid sleep 1000 & echo \\$! > left" """
    p = subprocess.run(["bash", "-c", text, DTRUN], env=clean_env(), cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    side, later = (int((tmp_path / x).read_text()) for x in ("side", "later"))
    try:
        assert p.returncode == 0 and alive(side) and alive(later) and not alive(int((tmp_path / "left").read_text())), p
        wait_until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text() == "last\n", "the last line")
    finally:
        os.kill(side, signal.SIGKILL)
        os.kill(later, signal.SIGKILL)


def test_daemons_of_a_worker_end_with_the_round(tmp_path):
    text = f"setsid sh -c 'sleep 1000 & echo $$$$ >> {tmp_path}/pids; sleep 1000' & while [ ! -s {tmp_path}/pids ]; do sleep 0.01; done"
    result = shell(text, "--nproc_per_node=2", "--shutdown_timeout=0.5")
    assert result.code == 0
    assert not [x for x in lines_of(tmp_path / "pids") if alive(int(x))]


def test_what_belongs_to_another_user_is_no_failure():
    """As `sudo ... &` in a worker: we may not end it, so no round waits for that."""
    with as_nobody() as (folder, words):
        sudo = shutil.copy(shutil.which("setpriv"), folder)
        os.chmod(sudo, 0o4755)
        text = (f'{sudo} --reuid=0 setsid sleep 1000 >/dev/null 2>&1 & until [ "$$(cat /proc/$$!/comm)" = sleep ]; do sleep 0.01; done; echo $$!; '
                "exit $$((1 - TORCHELASTIC_RESTART_COUNT))")
        with Job([*words, "--max_restarts=1", "sh", "-c", text], executable=shutil.which("setpriv")) as job:
            result = job.finish()
            for pid in result.out.split():
                os.kill(int(pid), signal.SIGKILL)
    assert result.code == 0 and "hang in the kernel" not in result.err, result
    assert "guard: a process of this job does not die: it belongs to another user; look for it in ps" in result.err, result


def test_a_stopped_worker_does_not_hold_up_the_end(tmp_path):
    text = f'echo $$$$ >> {tmp_path}/$RANK; while [ ! -e {tmp_path}/fail ]; do sleep 0.02; done; exit 1'
    with Job(["--nproc_per_node=2", "--shutdown_timeout=600", "sh", "-c", text]) as job:
        pid = int(wait_lines(tmp_path / "1", 1)[0])
        wait_lines(tmp_path / "0", 1)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(pid) == "T", "the stop")
        (tmp_path / "fail").touch()
        assert job.finish().code == 1
        job.wait_gone()


def test_others_that_take_their_time_are_said(tmp_path):
    text = f'if [ "$RANK" = 1 ]; then while [ ! -e {tmp_path}/0 ]; do sleep 0.02; done; exit 5; fi; trap "" TERM; touch {tmp_path}/0; while :; do sleep 0.05; done'
    result = shell(text, "--nproc_per_node=2", "--shutdown_timeout=1")
    assert result.code == 1, result
    assert re.search(r"rank 1 \(local 1, pid \d+\): exit code 5 \(first seen\); waiting up to 1 s for 1 other rank to end\n"
                     r"dtrun: host \S+ rank 0 \(local 0, pid \d+\): still there after 1 s", result.err), result


def test_a_hanging_program_is_named(tmp_path):
    result = shell("exec sleep 1000", "--hang_timeout=1", "--nproc_per_node=1")
    assert result.code == 1, result
    assert re.search(r"rank 0 \(local 0, pid \d+\): no output and (no|\d+\.\d\d ms of) CPU time for \d\.\d s \(--hang_timeout=1\)", result.err), result


def test_a_taken_port_is_said(tmp_path):
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        result = run([f"--master_port={port}", "/bin/true"])
    assert result.code == 111 and str(port) in result.err, result


def test_the_limit_of_open_files(tmp_path):
    shell_line = 'ulimit -n 64; exec "$0" --nproc_per_node=64 /bin/true'
    result = run(["-c", shell_line, DTRUN], executable="/bin/sh")
    assert result.code == 2 and "limit of open files: 64, 64 workers need" in result.err, result
    shell_line = 'ulimit -n 64; exec "$0" --nnodes=100 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:29400 /bin/true'  # any host may come to lead
    result = run(["-c", shell_line, DTRUN], executable="/bin/sh")
    assert result.code == 2 and "limit of open files: 64, 1 worker and links with 99 other hosts need" in result.err, result
    shell_line = 'ulimit -Sn 64; exec "$0" --nproc_per_node=30 sh -c \'[ "$(ulimit -n)" = 64 ]\''  # ours is raised, theirs is what it was
    assert run(["-c", shell_line, DTRUN], executable="/bin/sh").code == 0


def test_the_limit_of_cpu_time_is_named(tmp_path):
    result = run(["-c", 'ulimit -t 1; exec "$0" --nproc_per_node=2 sh -c "[ \\$RANK = 0 ] && sleep 30; while :; do :; done"', DTRUN], executable="/bin/sh")
    assert result.code == 1, result
    assert re.search(r"rank 1 \(local 1, pid \d+\): killed by signal 9 \(SIGKILL\) after 1 s of CPU time, where a process may use 1 s \(ulimit -t\); 1 other",
                     result.err), result


def test_the_limit_of_file_sizes_ends_no_launcher(tmp_path):
    """Its own lines go to a file that is at the limit; workers get the signal as ever."""
    (tmp_path / "err").write_bytes(b"x" * 9000)
    line = 'ulimit -f 8; exec "$0" -t3 --nproc_per_node=2 sh -c "[ \\$RANK = 0 ] || exec head -c 100000 /dev/zero >$1/big" 2>>"$1/err"'
    result = run(["-c", line, DTRUN, tmp_path], executable="/bin/sh", env={"TMPDIR": str(tmp_path)})
    assert result.code == 1 and (tmp_path / "big").stat().st_size == 4096, result
    (events,) = tmp_path.glob("torchelastic_*/*/events.jsonl")
    assert "-25" in events.read_text(), events.read_text()


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers need more of everything")
@pytest.mark.parametrize("limit, code, said", [
    ("-f 1", 2, "a worker's page: the limit of file sizes is below its 4096 bytes; raise it with ulimit -f"),
    ("-v 20000", 111, "cannot start a thread for output: Resource temporarily unavailable; raise the limit of address space (ulimit -v)"),
    ("-s 64", 2, "limit of the stack: 64 KiB, at least 256 are needed; raise it with ulimit -s")])
def test_limits_below_what_it_needs_itself(limit, code, said):
    result = run(["-c", f'ulimit {limit}; exec "$0" -t3 /bin/true', DTRUN], executable="/bin/bash")
    assert result.code == code and [x for x in result.err.splitlines() if "logs are in" not in x] == [f"dtrun: {said}"], result


def test_a_short_queue_of_connections_is_said(tmp_path):
    """Of the network that the store listens in."""
    for most, count, warned in ((4, 5, True), (4, 4, False), (5000, 5, False)):
        line = f"ip link set lo up; sysctl -qw net.core.somaxconn={most}; TMPDIR='{tmp_path}' '{DTRUN}' --max_restarts=1 --nproc_per_node={count} "
        p = places.in_mounts(f"unshare -n true || exit 9; unshare -n sh -c \"{line} sh -c 'exit \\$((1 - TORCHELASTIC_RESTART_COUNT))'\"")
        if p.returncode == 9:
            pytest.skip("no networks of one's own here (unshare -n needs root)")
        text = f"dtrun: warning: net.core.somaxconn is {most}, and {count} workers connect to this host at once, which may take seconds: sysctl net.core.somaxconn=4096\n"
        assert p.returncode == 0 and p.stderr.count("somaxconn") == 2 * warned and p.stderr.count(text) == warned, p


def test_closed_streams(tmp_path):
    assert run(["-c", f'exec "$0" sh -c "echo x > {tmp_path}/out" <&- >&- 2>&-', DTRUN], executable="/bin/sh").code == 0
    assert lines_of(tmp_path / "out") == ["x"]


def test_workers_that_could_not_all_be_started():
    """The limit of processes is reached in the middle: that is the cause, not those that were started and ended for it."""
    with as_nobody() as (folder, words):
        words = [f"--reuid={40000 + os.getpid() % 20000}", *words[1:]]  # the limit counts what others run under a name
        result = run(["--nproc=12:12", shutil.which("setpriv"), *words, "--nproc_per_node=20", "--max_restarts=2", "sleep", "1000"], executable=shutil.which("prlimit"), env={"TMPDIR": None})
        said = [x for x in result.err.splitlines() if "OMP_NUM_THREADS" not in x]
        cause = re.fullmatch(r"dtrun: (\S+/sleep: cannot start a process: Resource temporarily unavailable)", said[0])
        assert result.code == 111 and cause and len(said) == 2, result
        path = re.fullmatch(r"dtrun: the record of the failure is (\S+/events\.jsonl)", said[1])[1]
        failures = [x for x in map(json.loads, lines_of(path)) if x["event"] == "failure"]
        shutil.rmtree(os.path.dirname(os.path.dirname(path)))
    assert [x["cause"] for x in failures] == [cause[1]], failures


def test_a_start_is_quick():
    """Nothing in a start sleeps or polls: the best of many is far below a second even on a busy machine."""
    best = 1e9
    for _ in range(10):
        start = time.monotonic()
        subprocess.run([DTRUN, "--nproc_per_node=2", "/bin/true"], env=clean_env(), check=True, timeout=60)
        best = min(best, time.monotonic() - start)
    assert best < 1.0
    assert not marked("nobody")
