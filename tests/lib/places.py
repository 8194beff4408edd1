"""Places that stories make to run in: control groups with little of something, mounts that nobody else sees."""

import contextlib
import os
import signal
import subprocess

import pytest
import support


@contextlib.contextmanager
def control_group(controller, one, two):
    """A new control group with a limit: file and value in version 1, in version 2; both may be mounted. Skips where that is not allowed."""
    for root, files in ((f"/sys/fs/cgroup/{controller}", one), ("/sys/fs/cgroup", two), ("/sys/fs/cgroup/unified", two)):
        path = f"{root}/dtrun-story-{os.getpid()}"
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            for name, value in files.items():
                with open(f"{path}/{name}", "r+") as f:
                    f.write(str(value))
        except OSError:
            os.rmdir(path)
            continue
        try:
            yield path
        finally:
            support.wait_until(lambda path=path: not open(path + "/cgroup.procs").read(), "the group's end")
            os.rmdir(path)
        return
    pytest.skip(f"control groups for {controller} cannot be made here")


def little_memory(megabytes):
    return control_group("memory", {"memory.limit_in_bytes": megabytes << 20}, {"memory.max": megabytes << 20})


def mount_point(folder, name):
    """A new folder for in_mounts to mount something at. Skips where mounts of one's own are not allowed."""
    point = folder / name
    point.mkdir()
    if in_mounts(f"mount -t tmpfs -o size=64k none '{point}'").returncode != 0:
        pytest.skip("no private mounts here (unshare -m needs root)")
    return point


def in_mounts(line):
    """Runs a shell's line in a mount namespace of its own: what it mounts is gone at its end."""
    command = ["unshare", "-m", "sh", "-c", line]
    with subprocess.Popen(command, env=support.clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as p:
        try:
            out, err = p.communicate(timeout=2 * support.DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)  # whoever has the pipe keeps us, too
            raise
    return subprocess.CompletedProcess(command, p.returncode, out, err)
