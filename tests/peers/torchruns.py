"""Runs torchrun many times for the price of one import: each case in a fork of this process, after torch was imported.

    torchruns.py CASES.json      [{"args": [...], "env": {...}, "cwd": "...", "out": "FILE", "err": "FILE"}, ...]

Prints one JSON object: {"version", "options": [[spelling, ...], ...], "codes": [exit code of each case]}; a case that takes longer than LIMIT_S is
killed with all that it started, and its code is null.
"""

import json
import os
import signal
import sys
import time

LIMIT_S = 120


def child(case):
    os.setsid()
    for name, fd, flags in (("out", 1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), ("err", 2, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(case[name], flags, 0o644), fd)
    os.chdir(case["cwd"])
    os.environ.clear()
    os.environ.update(case["env"])
    sys.argv = ["torchrun", *case["args"]]
    code = 1
    try:
        run.main()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_case(case):
    pid = os.fork()
    if pid == 0:
        child(case)
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":  # workers of --run_path are spawned, and load this file again
    with open(sys.argv[1]) as f:
        cases = json.load(f)
    import torch
    import torch.distributed.run as run

    options = [a.option_strings for a in run.get_args_parser()._actions if a.option_strings]
    print(json.dumps({"version": torch.__version__, "options": options, "codes": [run_case(c) for c in cases]}))
