# covers: launcher/options launcher/output
"""The command line, the workers' environment and their output, as people and scripts see them."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import places
from support import DEADLINE_S, DTRUN, PYTHON, Job, as_nobody, clean_env, run, script, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")


def raw(args, env=None, **more):
    """dtrun with its output as bytes."""
    return subprocess.run([DTRUN, *map(str, args)], env=clean_env(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=DEADLINE_S, **more)


def tree(folder):
    """The only run folder under a --log_dir."""
    found = [f for f in folder.iterdir() if f.is_dir()]
    assert len(found) == 1, found
    return found[0]


# ---- help and errors ----


@pytest.mark.parametrize("option, lines", [("--help", 24), ("-h", 24), ("--help=all", 400)])
def test_help_fits(option, lines):
    result = run([option])
    assert result.code == 0 and result.err == ""
    shown = result.out.splitlines()
    assert len(shown) <= lines and max(map(len, shown)) <= 80
    assert "--nproc_per_node=N|gpu|cpu|auto" in result.out


def test_version_and_completion():
    assert re.fullmatch(r"dtrun \d+\.\d+\.\d+\n", run(["--version"]).out)
    text = run(["--print-completion", "bash"]).out
    assert "--nproc_per_node=" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


@pytest.mark.parametrize("args, env, said", [
    (["--nproc_per_node=0"], {}, "--nproc_per_node: 0: must be a number from 1 to 4096, or gpu, cpu, auto; example: --nproc_per_node=4"),
    (["--nproc-per-node=gpu"], {"CUDA_VISIBLE_DEVICES": ""}, "--nproc_per_node: gpu: no GPU here (CUDA_VISIBLE_DEVICES, NVML, /dev/nvidia*); "
                                                             "use a number, cpu or auto"),
    ([], {"PET_MAX_RESTARTS": "many"}, "PET_MAX_RESTARTS: many: must be a whole number from 0 to 1000000; example: --max_restarts=1"),
    (["--nproc-per-nod3", "2"], {}, "--nproc-per-nod3: unknown option; did you mean --nproc_per_node?"),
    (["--nnodes=2", "--standalone"], {}, "--standalone: is for one host; leave it out, or use --nnodes=1"),
    (["--tee", "4"], {}, "--tee: 4: must be 0, 1, 2 or 3 (1: stdout, 2: stderr), or local ranks (0 to 4095) with masks; examples: --tee=3, --tee=0:1,1:3"),
    (["--log_dir=/dev/null/x", "-r3"], {}, None),
])
def test_a_wrong_value_is_one_line_and_2(args, env, said):
    result = run([*args, "/bin/true"], env=env)
    assert result.out == "" and result.err.count("\n") == 1, result
    if said is not None:
        assert result.code == 2 and result.err == f"dtrun: {said}\n", result
    else:
        assert result.code != 0 and result.err.startswith("dtrun: --log_dir: "), result


def test_dry_run_starts_nothing_and_says_where_values_come_from(tmp_path):
    result = run(["--dry_run", "sh", "-c", f"touch {tmp_path}/started"], env={"PET_NPROC_PER_NODE": "3"})
    assert result.code == 0 and not (tmp_path / "started").exists()
    assert "workers   3 (PET_NPROC_PER_NODE)" in result.out


def test_dry_run_refuses_what_the_run_would_refuse(tmp_path):
    """A job file that is not there or not right: with the run's own words and code."""
    (tmp_path / "odd.json").write_text('{"nosuch": 1}')
    for name in ("nosuch.json", "odd.json"):
        real, dry = (run([*options, "train", name], cwd=tmp_path) for options in ([], ["--dry_run"]))
        assert real.code == dry.code == 2 and dry.out == "" and dry.err == real.err and name in dry.err, (real, dry)
    assert os.listdir(tmp_path) == ["odd.json"]
    assert run(["--dry_run", "train", "--help"]).code == 0


def test_a_script_that_may_not_be_read_is_refused(tmp_path):
    with as_nobody() as (folder, words):
        path = script(folder, "mine.py", "print(1)")
        os.chmod(path, 0o600)
        result = run([*words, path], executable="setpriv", env={"PYTHON_EXEC": PYTHON})
        assert result.code == 2 and result.out == "" and result.err == f"dtrun: {path}: cannot be read: Permission denied\n", result


# ---- environment ----

TORCHRUN = {
    "LOCAL_RANK": r"[01]", "RANK": r"[01]", "GROUP_RANK": "0", "ROLE_RANK": r"[01]", "ROLE_NAME": "trainer", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": r"127\.0\.0\.1", "MASTER_PORT": r"\d+", "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": r"[0-9a-f-]{36}", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCHELASTIC_ERROR_FILE": r"/.*/attempt_0/[01]/error\.json", "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
}


def test_the_environment_is_torchruns(tmp_path):
    given = {"OMP_NUM_THREADS": None, "MINE": "a b\n=c", "RANK": "9", "MASTER_PORT": "9", "DTRUN_PAGE": "stale", "TMPDIR": str(tmp_path)}
    before = clean_env(given)
    path = script(tmp_path, "show", f"env -0 > {tmp_path}/$LOCAL_RANK\n")
    result = run(["--nproc_per_node=2", "--standalone", "--role=trainer", path], env=given)
    assert result.code == 0, result
    assert result.err.count("OMP_NUM_THREADS") == 1 and result.err.count("\n") == 1, result
    for rank in range(2):
        env = dict(x.split("=", 1) for x in (tmp_path / str(rank)).read_text().split("\0") if x)
        for name, pattern in TORCHRUN.items():
            assert re.fullmatch(pattern, env[name]), (name, env[name])
        assert env["RANK"] == env["LOCAL_RANK"] == env["ROLE_RANK"] == str(rank)
        assert env["MINE"] == "a b\n=c" and env["DTRUN_PAGE"] != "stale"
        ours = {n for n in env if n.startswith("DTRUN_")}
        assert set(env) - ours - set(before) - set(TORCHRUN) <= {"_", "PWD", "OLDPWD", "SHLVL"}
        assert set(before) <= set(env)


def test_omp_threads_of_the_user_stay():
    result = run(["--nproc_per_node=2", "sh", "-c", 'test "$OMP_NUM_THREADS" = 7'], env={"OMP_NUM_THREADS": 7})
    assert result.code == 0 and result.err == ""
    result = run(["sh", "-c", 'test -z "$OMP_NUM_THREADS"'], env={"OMP_NUM_THREADS": None})
    assert result.code == 0 and result.err == ""


# ---- programs ----


def test_a_folder_that_python_runs(tmp_path):
    """By a name with a slash: one of a plain name may be that of a program."""
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "__main__.py").write_text("import sys; print('main of', sys.argv[1:])")
    for name in (folder, "./train", "train/"):
        result = run([name, "a b"], cwd=tmp_path, env={"PYTHON_EXEC": PYTHON})
        assert result.code == 0 and result.out == "main of ['a b']\n", result
    result = run(["train", "--version"], cwd=tmp_path)
    assert result.code == 0 and result.out.startswith("train "), result
    result = run(["--no_python", "./train"], cwd=tmp_path)
    assert result.code == 2 and result.err == "dtrun: ./train: is a directory; give a program in it\n", result


@pytest.mark.parametrize("text, said", [
    ("#!/bin/sh\r\nexit 0\r\n", r"its first line ends in CR LF, as on Windows; remove the CRs with sed -i 's/\\r\$//'"),
    ("#!/none/sh\nexit 0\r\n", "the interpreter named in its first line, or the loader, is missing")])
def test_a_script_without_its_interpreter(tmp_path, text, said):
    path = tmp_path / "script"
    path.write_bytes(text.encode())
    path.chmod(0o755)
    result = run([path])
    assert result.code == 2 and re.fullmatch(rf"dtrun: {path}: cannot be executed: No such file or directory; {said}\n", result.err), result


def test_a_folder_is_run_by_its_dot(tmp_path):
    (tmp_path / "__main__.py").write_text("print('main')")
    result = run(["."], cwd=tmp_path)
    assert result.code == 0 and result.out == "main\n", result


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta/history"])
def test_the_python_of_the_environment_that_dtrun_is_in(tmp_path, mark):
    """Called by its path, as from cron, with nothing of the environment active; one that is active counts more."""
    (tmp_path / "bin").mkdir()
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).write_text("")
    shutil.copy2(DTRUN, tmp_path / "bin" / "dtrun")
    script(tmp_path / "bin", "python3", "#!/bin/sh\necho beside")
    (tmp_path / "x.py").write_text("print('another')")
    plain = {"PYTHON_EXEC": None, "VIRTUAL_ENV": None, "CONDA_PREFIX": None}
    result = run([tmp_path / "x.py"], env=plain, executable=str(tmp_path / "bin" / "dtrun"))
    assert result.code == 0 and result.out == "beside\n", result
    assert run([tmp_path / "x.py"], env={**plain, "PYTHON_EXEC": PYTHON}, executable=str(tmp_path / "bin" / "dtrun")).out == "another\n"
    (tmp_path / mark.split("/")[0]).rename(tmp_path / "gone")
    assert run([tmp_path / "x.py"], env=plain, executable=str(tmp_path / "bin" / "dtrun")).out == "another\n"


# ---- streams ----


def test_ctrl_c_on_a_terminal_says_how_to_end_at_once(tmp_path):
    text = f"trap '' INT; touch {tmp_path}/$RANK; while :; do sleep 0.05; done"
    pid, master = pty.fork()
    if pid == 0:
        os.execve(DTRUN, [DTRUN, "--nproc_per_node=2", "sh", "-c", text], clean_env())
    try:
        wait_until(lambda: len(os.listdir(tmp_path)) == 2, "the workers")
        os.write(master, b"\x03")
        said = b""
        while b"kills now" not in said:
            said += os.read(master, 4096)
        os.write(master, b"\x03")
        assert re.search(rb"dtrun: host \S+: waiting \d+ s for ranks 0, 1 to end; \d\d s left, then KILL \(--shutdown_timeout\); Ctrl-C again kills now", said), said
    finally:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(master)
    assert code == 130


def test_a_signal_is_answered_before_the_grace_is_over(tmp_path):
    """Without a terminal, too: whom it waits for, and how long at most; the line comes long before that of every ten seconds."""
    text = f"trap '' TERM; touch {tmp_path}/$RANK; while :; do sleep 0.05; done"
    with Job(["--nproc_per_node=2", "--shutdown_timeout=4", "sh", "-c", text]) as running:
        wait_until(lambda: len(os.listdir(tmp_path)) == 2, "the workers")
        running.signal(signal.SIGTERM)
        result = running.finish()
        running.wait_gone()
    assert result.code == 143, result
    assert re.search(r"^dtrun: host \S+: waiting [23] s for ranks 0, 1 to end; [12] s left, then KILL \(--shutdown_timeout\)$", result.err, re.M), result


def test_inherited_streams_are_untouched(tmp_path):
    result = raw(["sh", "-c", r"printf 'a\000b\377\r'; printf 'e\033' >&2"])
    assert result.returncode == 0 and result.stdout == b"a\0b\xff\r" and result.stderr == b"e\x1b"
    master, slave = pty.openpty()
    try:
        done = subprocess.run([DTRUN, "sh", "-c", "test -t 1 && test -t 2"], env=clean_env(), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                              timeout=DEADLINE_S)
        assert done.returncode == 0
    finally:
        os.close(master)
        os.close(slave)


def test_redirects_make_torchruns_tree(tmp_path):
    logs = tmp_path / "logs"
    path = script(tmp_path, "say", r"""printf 'out %s \000\377\n' $RANK; echo err $RANK $TORCHELASTIC_RESTART_COUNT >&2
[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 0 ] || exit 5
""")
    result = raw(["--nproc_per_node=2", "--max_restarts=1", "--rdzv_backend=c10d", "--rdzv_id=my-run", "-r", "0:1,1:3", "--log-dir", logs, path])
    assert result.returncode == 0, result
    folder = tree(logs)
    assert re.fullmatch(r"my-run_\w{8}", folder.name) and folder.stat().st_mode & 0o777 == 0o700
    for attempt in range(2):
        assert (folder / f"attempt_{attempt}/1/stdout.log").read_bytes() == b"out 1 \0\xff\n"
        assert (folder / f"attempt_{attempt}/1/stderr.log").read_text() == f"err 1 {attempt}\n"
        assert not (folder / f"attempt_{attempt}/0/stderr.log").exists()
    assert (folder / "attempt_1/0/stdout.log").read_bytes() == b"out 0 \0\xff\n"
    assert result.stdout == b"" and b"err 0 1\n" in result.stderr and b"err 1" not in result.stderr


def test_tee_shows_whole_lines_with_prefixes(tmp_path):
    count = 3000
    path = script(tmp_path, "many", f"i=0; while [ $i -lt {count} ]; do echo rank $RANK line $i of many; i=$((i + 1)); done; echo oops $RANK >&2\n")
    result = run(["--nproc_per_node=3", "--tee=3", "--role=w", f"--log_dir={tmp_path}/logs", path])
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert len(lines) == 3 * count
    for rank in range(3):
        own = [f"rank {rank} line {i} of many" for i in range(count)]
        assert [line.removeprefix(f"[w{rank}]:") for line in lines if line.startswith(f"[w{rank}]:")] == own
        assert (tree(tmp_path / "logs") / f"attempt_0/{rank}/stdout.log").read_text().splitlines() == own
    assert sorted(result.err.splitlines()) == [f"[w{rank}]:oops {rank}" for rank in range(3)]


def test_prefixes_and_odd_lines(tmp_path):
    text = r"printf '10%%\r20%%\r\nno end'"
    assert run(["-t1", f"--log_dir={tmp_path}/a", "sh", "-c", text]).out == "[default0]:10%\n[default0]:20%\n[default0]:no end\n"
    variable = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}-${rank}> "}
    assert run(["-t1", f"--log_dir={tmp_path}/b", "echo", "x"], env=variable).out == "default-0> x\n"
    assert run(["-t1", f"--log_dir={tmp_path}/c", "--log-line-prefix-template=", "echo", "x"], env=variable).out == "x\n"
    long = run(["-t1", f"--log_dir={tmp_path}/d", PYTHON, "-c", "print('x' * 1000000)"])
    assert len(long.out) < 70000 and long.out.endswith("(line cut)\n")
    assert (tree(tmp_path / "d") / "attempt_0/0/stdout.log").stat().st_size == 1000001


def test_control_codes_do_nothing_on_a_terminal(tmp_path):
    master, slave = pty.openpty()

    def read_all():
        out = b""
        try:
            while b"end\r\n" not in out:
                out += os.read(master, 65536)
        except OSError:
            pass
        return out

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read_all)
        done = subprocess.run([DTRUN, "-t1", f"--log_dir={tmp_path}/logs", "sh", "-c", r"printf '\033[31mred\033[2J\007x\r[default7]:forged\nend\n'"],
                              env=clean_env(), stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, timeout=DEADLINE_S)
        out = reader.result(DEADLINE_S)
    os.close(master)
    os.close(slave)
    assert done.returncode == 0
    assert out.replace(b"\r\n", b"\n") == b"[default0]:\x1b[31mred^[[2J^Gx\x1b[0m\n[default0]:[default7]:forged\n[default0]:end\n"


def test_a_filtered_rank_is_silent_but_not_forgotten(tmp_path):
    path = script(tmp_path, "fail", "echo hello $RANK; echo reason $RANK >&2; [ $RANK = 0 ] && sleep 600; exit 3\n")
    result = run(["--nproc_per_node=2", "--local_ranks_filter=0", path])
    assert result.code == 1 and "hello 1" not in result.out
    assert re.search(r"^last lines of rank 1:\nreason 1$", result.err, re.M), result


def test_a_closed_console_costs_nothing(tmp_path):
    path = script(tmp_path, "many", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i + 1)); done\n")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([DTRUN, "-t1", f"--log_dir={tmp_path}/logs", path], env=clean_env(), stdin=subprocess.DEVNULL, stdout=write,
                          stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    os.close(write)
    assert done.returncode == 0 and done.stderr == ""
    assert len((tree(tmp_path / "logs") / "attempt_0/0/stdout.log").read_text().splitlines()) == 20000


def test_a_console_that_does_not_read_holds_nobody_up(tmp_path):
    size = 8 << 20
    read, write = os.pipe()
    done = subprocess.run([DTRUN, "-t1", "--time_scale=20", f"--log_dir={tmp_path}/logs", PYTHON, "-c", f"print('x' * 99 + '\\n', end='', flush=True)\n"
                           f"import sys\nfor i in range({size // 100 - 1}): sys.stdout.write('x' * 99 + '\\n')"],
                          env=clean_env(), stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    os.close(write)
    os.close(read)
    assert done.returncode == 0
    assert (tree(tmp_path / "logs") / "attempt_0/0/stdout.log").stat().st_size == size // 100 * 100
    assert re.search(r"^dtrun: \d+ lines were not shown; the console did not read; they are in /", done.stderr, re.M), done


def test_a_console_that_takes_nothing_is_said_with_the_reason(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([DTRUN, "-t1", f"--log_dir={tmp_path}/logs", "/bin/echo", "one"], env=clean_env(), stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done
    assert re.fullmatch(rf"dtrun: 1 line was not shown: No space left on device; it is in {tmp_path}/logs/\S+\n", done.stderr), done


def test_the_temporary_folder_is_found_as_python_finds_it(tmp_path):
    (tmp_path / "there").mkdir()
    text = "[ -d $(dirname $TORCHELASTIC_ERROR_FILE) ] && echo $TORCHELASTIC_ERROR_FILE"
    for env, found in (({"TMPDIR": tmp_path / "none", "TEMP": tmp_path / "there"}, tmp_path / "there"),
                       ({"TMPDIR": "/proc", "TEMP": "", "TMP": tmp_path / "there"}, tmp_path / "there"),
                       ({"TMPDIR": tmp_path / "none", "TEMP": None, "TMP": None}, "/tmp")):
        result = run(["sh", "-c", text], env={"OMP_NUM_THREADS": "1", **env})
        assert result.code == 0 and result.err == "" and result.out.startswith(f"{found}/torchelastic_"), result
    assert os.listdir(tmp_path / "there") == []


# What stands in the way of a folder, what it says, and the exit code where logs are wanted.
NO_FOLDER = {"read-only": ("mount -t tmpfs -o ro none", "cannot make the folder: Read-only file system", 2),
             "no room for a folder": ("mount -t tmpfs -o size=64k,nr_inodes=1 none", "cannot make the folder: No space left on device", 111),
             "no room for a file": ("full", "room: No space left on device", 111)}


@pytest.mark.parametrize("way", NO_FOLDER)
def test_no_temporary_folder_at_all(tmp_path, way):
    """It costs a job that logs nothing one line, and one that wants logs its start."""
    places.mount_point(tmp_path, "try")
    make, words, code = NO_FOLDER[way]
    go = "OMP_NUM_THREADS=1 TSAN_OPTIONS= LSAN_OPTIONS= /proc/self/fd/9 --max_restarts=1"  # by its name it may lie below /tmp, as a sanitizer's file may
    line = (f"exec 9<{DTRUN}; " "full() { mount -t tmpfs -o size=64k none $1 && ! head -c 100000 /dev/zero >$1/x; }; for p in /tmp /var/tmp; do " + make + " $p 2>/dev/null; done; "
            f"cd /proc; unset TMPDIR TEMP; export TMP=/none; {go} sh -c '[ -z \"$TORCHELASTIC_ERROR_FILE\" ] && [ $TORCHELASTIC_RESTART_COUNT = 1 ]'; echo code $?; "
            f"for o in -r3 -t2 --log_dir= --duplicate_stdout_filters=x; do {go} $o echo x; echo code $?; done; ls /tmp | grep -c torchelastic")
    p = places.in_mounts(line)
    codes, said = re.findall(r"^code (\d+)$", p.stdout, re.M), p.stderr.splitlines()
    assert codes == ["0", str(code), str(code), "0", str(code)] and p.stdout.split()[-1] == "0", p
    folder = re.escape(" and no other temporary folder can be written; set TMPDIR to one that can, or give --log_dir")
    refusal = rf"dtrun: /none/torchelastic_\w{{8}}: cannot make the folder: No such file or directory,{folder}"
    assert re.fullmatch(refusal + "; the job goes on without log files and error files", said[0]), p
    assert len([x for x in said if re.fullmatch(refusal, x)]) == 3 and "the record of the failure" not in p.stderr, p
    p = places.in_mounts(line.replace("export TMP=/none", "unset TMP"))
    assert words in p.stderr.splitlines()[0], p


def test_a_default_log_folder_is_named(tmp_path):
    result = run(["-r3", "echo", "x"], env={"TMPDIR": tmp_path})
    assert result.code == 0 and result.out == ""
    where = re.fullmatch(r"dtrun: logs are in (.*)\n", result.err)[1]
    assert re.fullmatch(rf"{tmp_path}/torchelastic_\w{{8}}/[0-9a-f-]{{36}}_\w{{8}}", where)
    assert open(f"{where}/attempt_0/0/stdout.log").read() == "x\n"


# ---- reports ----

RECORD = """
import json, os, sys, time
if os.environ["RANK"] == "1":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
        json.dump({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback:\\n  here\\nValueError: boom",
                                                                          "timestamp": str(int(time.time()))}}}, f)
    sys.exit(17)
time.sleep(600)
"""


def test_the_report_has_torchruns_shape(tmp_path):
    path = script(tmp_path, "train.py", RECORD)
    above = tmp_path / "above.json"
    result = run(["--nproc_per_node=2", f"--log_dir={tmp_path}/logs", path], env={"TORCHELASTIC_ERROR_FILE": above, "PYTHON_EXEC": sys.executable})
    assert result.code == 1
    lines = result.err.splitlines()
    assert re.fullmatch(r"dtrun: host \S+ rank 1 \(local 1, pid \d+\): exit code 17: ValueError: boom; 1 other rank stopped because of it", lines[0]), result
    at = lines.index(f"{path} FAILED")
    assert set(lines[at - 1]) == {"="} and set(lines[at + 1]) == {"-"} and lines[at + 2] == "Failures:"
    root = lines.index("Root Cause (first observed failure):")
    block = "\n".join(lines[root + 1:root + 10])
    assert re.fullmatch(r"\[\d\]:\n  time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\n  host      : \S+\n  rank      : 1 \(local_rank: 1\)\n"
                        rf"  exitcode  : 17 \(pid: \d+\)\n  error_file: {tmp_path}/logs/\S+/attempt_0/1/error.json\n"
                        r"  traceback : Traceback:\n    here\n  ValueError: boom", block), result
    message = json.loads(above.read_text())["message"]
    assert message["message"] == "ValueError: boom" and message["errorCode"] == 17


def test_the_last_lines_of_a_failing_rank_are_in_the_report(tmp_path):
    result = run(["-r3", f"--log_dir={tmp_path}/logs", PYTHON, "-c", "print('out'); {}['missing']"])
    assert result.code == 1
    assert re.search(r"^last lines of rank 0:\nTraceback .*\n(.*\n)*KeyError: 'missing'$", result.err, re.M), result
    assert f"dtrun: logs are in {tree(tmp_path / 'logs')}" in result.err


@pytest.mark.parametrize("options, env, said", [
    (["--standalone", "--node_rank=1"], {}, "--node_rank: 1: not used; the job has one host"),
    (["--standalone"], {"PET_NODE_RANK": "3"}, "PET_NODE_RANK: 3: not used; the job has one host"),
    (["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29400", "--node_rank=1"], {}, "--node_rank: 1: not used; the job has one host"),
    (["--node_rank=0"], {}, None),
])
def test_the_number_of_an_only_host(options, env, said):
    """torchrun reads it with the static backend alone."""
    result = run([*options, "sh", "-c", "echo $GROUP_RANK"], env=env)
    assert (result.code, result.out) == (0, "0\n") and result.err == (f"dtrun: {said}\n" if said else ""), result


def test_values_of_other_variables_and_ranks_that_are_none():
    shown = run(["--dry_run", "/bin/true"], env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"})
    assert "stop      5 s between TERM and KILL (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)" in shown.out, shown
    result = run(["--stdin=7", "--nproc_per_node=2", "/bin/true"])
    assert (result.code, result.err) == (2, "dtrun: --stdin: 7: must be a rank of the job, 0 to 1\n")
    assert "--leash" not in run(["--l", "/bin/true"]).err and "--leash" not in run(["--leas", "/bin/true"]).err
    result = run(["/bin/true"], env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "/nonexist/x"})
    assert result.code == 2 and "TORCHELASTIC_TIMER_FILE: /nonexist/x: No such file or directory" in result.err, result


def test_a_name_that_nobody_knows_yet_keeps_no_single_host_waiting():
    result = run(["--master_addr=pod-0.invalid", "--master_port=0", "sh", "-c", "echo $MASTER_ADDR"])
    assert (result.code, result.out) == (0, "127.0.0.1\n"), result
    assert re.fullmatch(r"dtrun: warning: pod-0\.invalid: .+; the workers of this one host meet at 127\.0\.0\.1\n", result.err), result
