"""What stories share: where the programs are, starting dtrun, finding what it left behind, waiting for something to be true.

Programs come from the build folder, environment variable B (default build). Every process started here carries a marker variable,
so that whatever is left of it can be found and ended by its pid. Waits have generous deadlines and end as soon as they can.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("B", "build"))
BIN = os.path.join(BUILD, "bin")
TOOLS = os.path.join(BUILD, "tools")
DTRUN = os.path.join(BIN, "dtrun")
PYTHON = sys.executable
DEADLINE_S = 60 * (5 if os.environ.get("SAN") else 1)  # for whatever must happen at all; sanitizers have it happen slowly
MARKER = "STORY_MARKER"
# What the surroundings of a test could say to a launcher; where plan files lie is the test runner's to say.
FOREIGN = ("PET_", "DTRUN_", "SLURM_", "PMI", "OMPI_", "MPI_", "LSB_", "LSF_", "JSM_", "PBS_", "JOB_COMPLETION_INDEX", "TORCHELASTIC_", "TORCH_ELASTIC",
           "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "NODE_RANK", "STORY_")

for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # tests may run under nohup or in the background, but what they start does not
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def program(name):
    """Path of one of our programs; skips the test when it is not built."""
    path = os.path.join(BIN, name)
    if not os.path.exists(path):
        import pytest

        pytest.skip(f"{name} is not built")
    return path


def clean_env(extra=None, marker=None):
    """Our environment without what would steer a launcher, with a marker and `extra` (a value of None removes)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN) or k == "DTRUN_CACHE"}
    env.setdefault("OMP_NUM_THREADS", "1")
    env["DTRUN_DEVICE"] = "cpu"  # also where a GPU is
    env[MARKER] = marker or uuid.uuid4().hex
    env.update(extra or {})
    return {k: str(v) for k, v in env.items() if v is not None}


def state_of(pid):
    """The letter that ps shows, or None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def alive(pid):
    """The process exists and is no zombie."""
    return state_of(pid) not in (None, "Z", "X")


def marked(marker):
    """Pids of living processes whose environment carries the marker."""
    word = f"{MARKER}={marker}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                if word in f.read().split(b"\0") and alive(name):
                    found.append(int(name))
        except OSError:
            continue
    return found


def parent_of(pid):
    """Or None when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return int(f.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(x) for x in f.read().split()]
    except OSError:  # it is gone, or the kernel was built without these lists
        return [] if state_of(pid) is None else sorted(int(x) for x in os.listdir("/proc") if x.isdigit() and parent_of(int(x)) == pid)


def wait_until(condition, what, timeout_s=DEADLINE_S, step_s=0.01):
    """Waits for condition() to give something true, and returns it."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(step_s)


def lines_of(path):
    """Complete lines of a file that may not be there yet."""
    try:
        with open(path, errors="replace") as f:
            return f.read().split("\n")[:-1]
    except OSError:
        return []


def wait_lines(path, count, timeout_s=DEADLINE_S):
    return wait_until(lambda: len(lines_of(path)) >= count and lines_of(path), f"{count} lines in {path}", timeout_s)


class Result:
    def __init__(self, code, out, err, marker):
        self.code, self.out, self.err, self.marker = code, out, err, marker

    def __repr__(self):
        return f"code {self.code}\n--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}"


class Job:
    """A running dtrun: its process is the guard, `agent` its child. End it with finish() or by leaving the `with` block."""

    def __init__(self, args, env=None, cwd=None, stdin=subprocess.DEVNULL, start_new_session=False, executable=None):
        self.env = clean_env(env)
        self.marker = self.env[MARKER]
        self.process = subprocess.Popen([executable or DTRUN, *map(str, args)], env=self.env, cwd=cwd, stdin=stdin, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=start_new_session)

    @property
    def pid(self):
        return self.process.pid

    @property
    def agent(self):
        return wait_until(lambda: children(self.pid), "an agent under the guard")[0]

    def signal(self, number):
        self.process.send_signal(number)

    def finish(self, timeout_s=DEADLINE_S, input=None):
        """Waits for the end; what it said and its exit code."""
        try:
            out, err = self.process.communicate(input=input, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"dtrun did not end in {timeout_s} s\n{out[-4000:]}\n{err[-4000:]}") from None
        return Result(self.process.returncode, out, err, self.marker)

    def survivors(self):
        return marked(self.marker)

    def wait_gone(self, timeout_s=DEADLINE_S):
        """Waits until nothing of the job runs."""
        wait_until(lambda: not self.survivors(), "the end of all its processes", timeout_s)

    def kill(self):
        for pid in self.survivors():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        with contextlib.suppress(Exception):
            self.process.communicate(timeout=DEADLINE_S)


def fill_stderr(pid):
    """Fills the pipe that is the standard error of the process: its next line waits for a reader."""
    fd = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\n" * 4096)
    os.close(fd)


def run(args, env=None, cwd=None, timeout_s=DEADLINE_S, input=None, executable=None):
    """Runs dtrun (or `executable`) to its end; fails when something of it is left then."""
    with Job(args, env, cwd, subprocess.PIPE if input is not None else subprocess.DEVNULL, executable=executable) as job:
        result = job.finish(timeout_s, input)
        job.wait_gone()
        return result


def script(folder, name, text):
    """Writes an executable shell (or, for .py, Python) script; returns its path."""
    path = os.path.join(str(folder), name)
    with open(path, "w") as f:
        f.write(text if name.endswith(".py") else "#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


@contextlib.contextmanager
def as_nobody():
    """A folder that everybody may enter with a copy of dtrun, and the words (for `executable`, setpriv) that run it without rights; skips without root."""
    import pytest

    if os.geteuid() != 0:
        pytest.skip("needs root, to give up its rights")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        copy = os.path.join(folder, "dtrun")
        shutil.copy(DTRUN, copy)
        os.chmod(copy, 0o755)
        yield folder, ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", copy]


def cannot_trace():
    """Why strace cannot make calls fail here; None when it can."""
    strace = shutil.which("strace")
    if not strace:
        return "strace is not installed"
    p = subprocess.run([strace, "-f", "-e", "trace=openat", "-e", "inject=openat:error=ENOSPC:when=60000", "true"], capture_output=True, text=True)
    return None if p.returncode == 0 else "strace cannot trace here: " + p.stderr.strip()[-200:]


def serve(address, **more):
    """A job that serves a store, its host and its port."""
    job = Job([f"--serve_store={address}"], **more)
    line = job.process.stdout.readline()
    match = re.fullmatch(r"(\S+):(\d+)\n", line)
    assert match, (line, job.finish())
    return job, match.group(1), int(match.group(2))
