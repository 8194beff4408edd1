# covers: launcher/output
"""What goes wrong with output costs output, never the job: full disks, floods, odd bytes, terminals of every kind. (story_options.py has consoles that
are closed or do not read.)"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import DEADLINE_S, DTRUN, PYTHON, Job, clean_env, fill_stderr, run, wait_lines

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
WRITE = "import os\ndef write(b):\n    while b: b = b[os.write(1, b):]\n"


def only(folder, name="stdout.log", rank=0):
    (found,) = folder.glob(f"*/attempt_0/{rank}/{name}")
    return found


def flood(tmp_path, code, *options):
    """Runs a worker whose teed output is read and counted; (result of the process, bytes on the console, its last 200, agent's peak memory in KiB)."""
    peak, count, tail = 0, 0, b""
    p = subprocess.Popen([DTRUN, "-t1", f"--log_dir={tmp_path}/logs", *options, PYTHON, "-c", WRITE + code], env=clean_env(), stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with ThreadPoolExecutor(1) as pool, p:
        err = pool.submit(p.stderr.read)
        while piece := p.stdout.read1(1 << 16):
            if count >> 22 != (count + len(piece)) >> 22 or count == 0:
                peak = max(peak, peak_of_agent(p.pid))
            count += len(piece)
            tail = (tail + piece)[-200:]
        return p.wait(DEADLINE_S), count, tail, peak, err.result(DEADLINE_S).decode()


def peak_of_agent(guard):
    try:
        with open(f"/proc/{guard}/task/{guard}/children") as f, open(f"/proc/{f.read().split()[0]}/status") as status:
            return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
    except (OSError, IndexError, TypeError):
        return 0


def small_memory(peak):
    return peak < 60 * 1024 or "build-" in DTRUN  # sanitizers have their own memory


def test_a_full_disk_costs_lines(tmp_path):
    """A limit of the size of files stands for it: the writes fail alike."""
    code = WRITE + "import time\nfor i in range(5000): write(b'x' * 99 + b'\\n')\ntime.sleep(1.5)\nprint('done')"  # the first loss is said while it runs
    result = run(["-c", 'ulimit -f 100; exec "$@"', "-", DTRUN, "-t1", "--nproc_per_node=2", f"--log_dir={tmp_path}/logs", PYTHON, "-c", code], executable="/bin/bash")
    assert result.code == 0 and result.out.count("]:done\n") == 2, result
    assert len(re.findall(r"File too large; the job goes on, lost output is counted$", result.err, re.M)) == 1, result
    lost = re.search(r"^dtrun: \S+: (\d+) lines \((\d+) bytes\) of output were lost: File too large$", result.err, re.M)
    kept = sum(only(tmp_path / "logs", rank=r).stat().st_size for r in range(2))
    assert int(lost[2]) + kept == 2 * (5000 * 100 + 5), result


def test_a_folder_that_cannot_be_made_later(tmp_path):
    """The log folder goes between two rounds; the job goes on."""
    text = f'[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0; rm -rf {tmp_path}/logs/*; : > {tmp_path}/logs/x; exit 1'
    result = run(["--max_restarts=1", "-r3", f"--log_dir={tmp_path}/logs", "sh", "-c", text])
    assert result.code == 0 and result.err.count("the job goes on without log files") == 1, result


def test_no_newline_at_all(tmp_path):
    size = 64 << 20
    code, count, tail, peak, err = flood(tmp_path, f"for i in range({size >> 20}): write(b'y' * (1 << 20))")
    assert code == 0 and count < 70000 and tail.endswith(b"(line cut)\n") and small_memory(peak), (code, count, tail, peak, err)
    assert only(tmp_path / "logs").stat().st_size == size


def test_a_million_lines(tmp_path):
    code, count, tail, peak, err = flood(tmp_path, "for i in range(100): write(b'a line\\n' * 10000)")
    assert code == 0 and count == 1000000 * len("[default0]:a line\n") and small_memory(peak), (code, count, tail, peak, err)
    assert only(tmp_path / "logs").stat().st_size == 7000000


def test_any_byte_is_kept(tmp_path):
    result = subprocess.run([DTRUN, "-t1", f"--log_dir={tmp_path}/logs", PYTHON, "-c", WRITE + "write(bytes(range(256)) * 3)"], env=clean_env(),
                            stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
    assert result.returncode == 0 and only(tmp_path / "logs").read_bytes() == bytes(range(256)) * 3
    lines = result.stdout.split(b"\n")
    assert all(line.startswith(b"[default0]:") for line in lines[:-1]) and b"\0" in result.stdout and b"\xff" in result.stdout


def on_terminal(args, env=None, columns=80):
    """dtrun's output on a terminal of its own."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    out = b""
    with subprocess.Popen([DTRUN, *map(str, args)], env=clean_env(env), stdin=subprocess.DEVNULL, stdout=slave, stderr=slave) as p:
        os.close(slave)
        try:
            while piece := os.read(master, 65536):
                out += piece
        except OSError:  # the other end is closed
            pass
        os.close(master)
        assert p.wait(DEADLINE_S) == 0
    return out.decode().replace("\r\n", "\n")


COLOURED = r"printf '\033[31mred\033[0m \342\200\256gnp\342\200\250[default1]:\xe2\x81\xa6x\n'"


def test_colours_stay_where_they_are_wanted(tmp_path):
    args = ["-t1", f"--log_dir={tmp_path}/logs", "bash", "-c", COLOURED]
    rest = "<e2><80><ae>gnp<e2><80><a8>[default1]:<e2><81><a6>x"
    assert on_terminal(args, {"TERM": "xterm", "NO_COLOR": None}, columns=20) == f"[default0]:\x1b[31mred\x1b[0m {rest}\x1b[0m\n"
    for env in ({"TERM": "dumb", "NO_COLOR": None}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert on_terminal(args, env) == f"[default0]:red {rest}\n"
    for path in (tmp_path / "logs").glob("*/attempt_0/0/stdout.log"):
        assert path.read_bytes().startswith(b"\x1b[31mred\x1b[0m \xe2\x80\xae")  # files hold what was written


def test_a_prefix_cannot_be_forged(tmp_path):
    """Whatever ends a line on a terminal begins one with its writer's prefix."""
    for i, end in enumerate([r"\n", r"\r", r"\r\n", r"\033[E", r"\v", r"\f", r"\205", r"\302\205", r"\033E", r"\342\200\250"]):
        text = on_terminal(["-t1", f"--log_dir={tmp_path}/{i}", "bash", "-c", f"printf 'x{end}[default1]:forged'"], {"TERM": "xterm"})
        for line in re.split("[\n\r\v\f\x85\u2028]", text):
            assert not line.startswith("[default1]"), (end, text)
        assert "\x1b" not in text, (end, text)


@pytest.mark.parametrize("read", [True, False], ids=["late", "never"])
@pytest.mark.parametrize("end, code, words", [("fails", 1, "FAILED"), ("killed", 111, "killed by signal 9 (KILL): its workers were ended with it")])
def test_the_end_of_a_job_does_not_hang_on_its_console(tmp_path, end, code, words, read):
    """What the agent and the guard say of a failure comes when it is read, and nobody waits for ever until it is."""
    with Job(["sh", "-c", f"echo up >{tmp_path}/up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"]) as job:
        wait_lines(tmp_path / "up", 1)
        fill_stderr(job.pid)
        if end == "killed":
            os.kill(job.agent, signal.SIGKILL)
        else:
            (tmp_path / "go").touch()
        if not read:
            assert job.process.wait(DEADLINE_S) == code
        result = job.finish()
        job.wait_gone()
    assert result.code == code and (words in result.err) == read, result
