"""Places that stories make to run in: control groups with little of something."""

import contextlib
import os

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
