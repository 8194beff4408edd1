"""Whoever interrupts `make test` gets the results line, and nothing of the test that ran is left."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from support import DEADLINE_S, ROOT, alive, lines_of, wait_lines, wait_until

QUICK = "def test_quick():\n    pass\n"
# What it starts in a session of its own is not in its process group, and its own end does not end it.
LONG = """
import os, subprocess, time
def test_long():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open({pids!r}, "a") as f:
        f.write(f"{{os.getpid()}}\\n{{child.pid}}\\n")
    try:
        time.sleep(1000)
    finally:
        open({cleared!r}, "w").close()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mark", ["run: alone", "beside others"])
def test_an_interrupt_ends_what_the_test_started(tmp_path, mark, number):
    for folder in ("scripts", "tests/room"):
        os.makedirs(tmp_path / folder)
    shutil.copy(f"{ROOT}/scripts/run_tests.py", tmp_path / "scripts")
    (tmp_path / "tests/room/story_a.py").write_text(QUICK)
    (tmp_path / "tests/room/story_b.py").write_text(f"# {mark}\n" + LONG.format(pids=str(tmp_path / "pids"), cleared=str(tmp_path / "cleared")))
    (tmp_path / "tests/room/story_c.py").write_text("# run: alone\n" + QUICK)
    with open(tmp_path / "out", "w") as out:
        runner = subprocess.Popen([sys.executable, tmp_path / "scripts" / "run_tests.py"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                  start_new_session=True)
    try:
        pids = [int(x) for x in wait_lines(tmp_path / "pids", 2)]
        wait_until(lambda: any("story_a" in x for x in lines_of(tmp_path / "out")), "the end of the first test")
        runner.send_signal(number)
        code = runner.wait(DEADLINE_S)
        said = lines_of(tmp_path / "out")
        wait_until(lambda: not any(map(alive, pids)), "the end of what the test started", 5)
    finally:
        for pid in [runner.pid, *(int(x) for x in lines_of(tmp_path / "pids"))]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
    assert code == 128 + number and said[-1] == f"1 passed, 0 failed, 0 skipped; ended by {number.name}", said
    assert (tmp_path / "cleared").exists() and any(x.startswith("ended: ") and "story_b" in x for x in said) and "story_c" not in "\n".join(said), said


def test_an_option_that_is_none_runs_nothing():
    for args, code, said in ((["--help"], 0, "[NAME ...]"), (["--retyr", "tree"], 1, "--retyr: unknown option")):
        result = subprocess.run([sys.executable, f"{ROOT}/scripts/run_tests.py", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S, env={**os.environ, "B": "nowhere"})
        assert result.returncode == code and said in result.stdout and "passed" not in result.stdout.splitlines()[-1], result
