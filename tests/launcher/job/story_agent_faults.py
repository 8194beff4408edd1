# covers: launcher/job launcher/workers
"""Every kind of system call that the launcher makes fails once, at each of its moments: the run ends in time, with a code of the table, with a
line that says why, without a crash and without a process left behind. DTRUN_ALL=1 takes all moments, otherwise a sample of a printed seed.
run: timeout 300
run: nosan: the leak checker cannot work under strace
"""

import concurrent.futures
import os
import random
import re
import shutil
import signal
import subprocess

import pytest
import support

ALL = bool(os.environ.get("DTRUN_ALL"))
SEED = int(os.environ.get("DTRUN_SEED", random.randrange(1 << 30)))
AT_ONCE = 4
SAMPLE = 60
TIME_S = 40  # for a run that takes 0.1 s: a fault may cost the grace time of its workers, which is set to 2 s, and a round more
CODES = (0, 1, 2, 100, 111)
LIBUV_ABORTS = ("epoll_ctl", "pipe2", "write")  # libuv calls abort() when it cannot watch a descriptor, watch signals or wake its loop
ERRORS = {  # what the kernel may answer, by call; a call that is not here is not made to fail
    "accept4": ("EMFILE", "ECONNABORTED", "ENOMEM"),
    "bind": ("EADDRINUSE", "EACCES"),
    "chmod": ("EPERM",),
    "clone": ("EAGAIN", "ENOMEM"),
    "clone3": ("EAGAIN", "ENOMEM"),
    "connect": ("ECONNREFUSED", "ENETUNREACH"),
    "dup2": ("EMFILE",),
    "dup3": ("EMFILE",),
    "epoll_create1": ("EMFILE",),
    "epoll_ctl": ("ENOMEM",),
    "epoll_pwait": ("EINTR",),
    "epoll_wait": ("EINTR",),
    "eventfd2": ("EMFILE",),
    "fallocate": ("ENOSPC",),
    "fchmod": ("EPERM",),
    "fcntl": ("EMFILE",),
    "flock": ("EINTR", "ENOLCK"),
    "fork": ("EAGAIN",),
    "fstat": ("ENOMEM",),
    "fsync": ("EIO",),
    "ftruncate": ("ENOSPC", "EIO"),
    "getdents64": ("EIO",),
    "getsockname": ("ENOBUFS",),
    "ioctl": ("ENOTTY",),
    "kill": ("EPERM",),
    "listen": ("EADDRINUSE",),
    "lseek": ("EINVAL",),
    "memfd_create": ("EMFILE", "ENOMEM"),
    "mkdir": ("ENOSPC", "EACCES"),
    "mkdirat": ("ENOSPC",),
    "mmap": ("ENOMEM",),
    "newfstatat": ("EACCES", "ENOENT"),
    "openat": ("EMFILE", "EACCES", "ENOENT", "ENOSPC"),
    "pidfd_open": ("EMFILE",),
    "pipe2": ("EMFILE",),
    "poll": ("EINTR",),
    "ppoll": ("EINTR",),
    "prctl": ("EINVAL",),
    "prlimit64": ("EPERM",),
    "pwrite64": ("ENOSPC",),
    "read": ("EIO", "EINTR"),
    "readlink": ("EACCES",),
    "readlinkat": ("EACCES",),
    "recvfrom": ("ECONNRESET", "EINTR"),
    "recvmsg": ("ECONNRESET",),
    "rename": ("EIO",),
    "renameat": ("EIO",),
    "sched_getaffinity": ("EINVAL",),
    "sendmsg": ("EPIPE", "ENOBUFS"),
    "sendto": ("EPIPE",),
    "setpgid": ("EPERM",),
    "setpriority": ("EACCES",),
    "setsid": ("EPERM",),
    "setsockopt": ("ENOPROTOOPT",),
    "signalfd4": ("EMFILE",),
    "socket": ("EMFILE", "EAFNOSUPPORT"),
    "socketpair": ("EMFILE",),
    "statx": ("EACCES",),
    "symlinkat": ("EEXIST",),
    "timerfd_create": ("EMFILE",),
    "unlink": ("EIO",),
    "unlinkat": ("EIO",),
    "vfork": ("EAGAIN",),
    "wait4": ("EINTR",),
    "waitid": ("EINTR",),
    "write": ("ENOSPC", "EIO", "EINTR"),
    "writev": ("ENOSPC", "EIO", "EINTR"),
}
REASON = support.cannot_trace()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

JOBS = {
    "plain": ["--nproc_per_node=2", "--shutdown_timeout=2", "/bin/sh", "-c", "echo hello from $RANK"],
    "logs": ["--nproc_per_node=2", "--shutdown_timeout=2", "-t", "3", "--log_dir=LOGS", "/bin/sh", "-c", "echo hello; echo there >&2"],
    "restart": ["--nproc_per_node=2", "--shutdown_timeout=2", "--max_restarts=1", "/bin/sh", "-c", "exit $((1 - TORCHELASTIC_RESTART_COUNT))"],
    "fails": ["--nproc_per_node=2", "--shutdown_timeout=2", "-r", "3", "--log_dir=LOGS", "/bin/sh", "-c", "echo why >&2; exit 3"],
}
ENDS = {"plain": 0, "logs": 0, "restart": 0, "fails": 1}


def arguments(job, folder):
    return [a.replace("LOGS", str(folder)) for a in JOBS[job]]


def run(job, folder, trace):
    """(code, stderr, pids left) of one run; code is None when it was not in time."""
    env = support.clean_env()
    p = subprocess.Popen(["strace", "-f", "-qq", *trace, support.DTRUN, *arguments(job, folder)], env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        _, err = p.communicate(timeout=TIME_S)
        code = p.returncode
    except subprocess.TimeoutExpired:
        code, err = None, "not in time"
    left = support.marked(env[support.MARKER])
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    if code is None:
        p.communicate()
    return code, err, left if code is not None else []


def moments(job, folder):
    """(call, number) of the calls of guard and agent after their start-up, as strace's `when` counts them: per kind and process."""
    log = folder / f"{job}.calls"
    code, err, _ = run(job, folder / "counted", ["-o", str(log)])
    assert code == ENDS[job], err
    lines = [m.groups() for m in (re.match(r"(\d+) +(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)", x) for x in log.read_text(errors="replace").splitlines()) if m]
    parent = {}
    for pid, call, _, rest in lines:
        child = re.search(r"\) += (\d+)$", rest)
        if call in ("clone", "clone3", "fork", "vfork") and child:
            parent[child[1]] = pid
    counts, ours, others, begun, found, loader = {}, set(), set(), set(), set(), set()
    for pid, call, kind, rest in lines:
        if kind != "(":
            continue
        if call == "execve":
            (ours if f'"{support.DTRUN}"' in rest else others).add(pid)
        elif parent.get(pid) in ours and pid not in others:
            ours.add(pid)
            begun.add(pid)
        counts[pid, call] = counts.get((pid, call), 0) + 1
        if call == "prlimit64":
            begun.add(pid)  # the last thing that the loader does; before it nothing is ours
        if pid in ours and pid not in others and call in ERRORS:
            (found if pid in begun else loader).add((call, counts[pid, call]))
    return sorted(found - loader)


def complaint(job, folder, call, number, error):
    """Nothing, or what was wrong with a run in which that call failed."""
    folder.mkdir(parents=True)
    code, err, left = run(job, folder, ["-o", str(folder / "trace"), "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}"])
    wrong = []
    if code is None:
        wrong.append(f"has not ended in {TIME_S} s")
    elif "error while loading shared libraries" in err:
        pass  # the fault met a loader
    elif "(SEGV)" in err or ("(ABRT)" in err and call not in LIBUV_ABORTS):
        wrong.append("crashed")
    elif code not in CODES:
        wrong.append(f"ended with {code}")
    elif code not in (0, ENDS[job]) and call != "write" and not re.search(r"^(dtrun|host |\S+: )", err, re.M):
        wrong.append(f"ended with {code} and said nothing")
    if left:
        wrong.append(f"left {len(left)} processes")
    if not wrong:
        shutil.rmtree(folder)
        return None
    return f"{job}: {call} number {number}: {error}: {', '.join(wrong)}; stderr: {err[-600:]!r}"


@pytest.mark.parametrize("args, text", [(["/bin/true"], "cannot start the agent process: Resource temporarily unavailable"),
                                        (["--hostfile=HOSTS", "--ssh=/bin/false", "/bin/true"], "cannot start a thread for output: Resource temporarily unavailable; "
                                         "look at ulimit -u and the limit of the control group")])
def test_no_process_and_no_thread_to_begin_with(tmp_path, args, text):
    (tmp_path / "hosts").write_text("a\n")
    args = [a.replace("HOSTS", f"{tmp_path}/hosts") for a in args]
    trace = ["strace", "-qq", "-o", tmp_path / "trace", "-e", "trace=clone,clone3", "-e", "inject=clone,clone3:error=EAGAIN:when=1"]
    p = subprocess.run([*trace, support.DTRUN, *args], env=support.clean_env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_S)
    assert (p.returncode, p.stdout, p.stderr) == (111, "", f"dtrun: {text}\n")


@pytest.mark.parametrize("job", JOBS)
def test_one_failing_call(job, tmp_path):
    rng = random.Random(f"{SEED} {job}")
    print(f"DTRUN_SEED={SEED}")
    found = moments(job, tmp_path)
    assert {"openat", "mmap", "epoll_ctl", "socket"} <= {c for c, _ in found}, found
    every = [(call, number, error) for call, number in found for error in ERRORS[call]]
    chosen = every if ALL else rng.sample(every, min(len(every), SAMPLE // len(JOBS)))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = pool.map(lambda x: complaint(job, tmp_path / "-".join(map(str, x)), *x), chosen)
        wrong = [w for w in wrong if w]
    print(len(every), "moments,", len(chosen), "tried")
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong)
