# covers: scripts/run_tests.py
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


def test_every_source_file_is_covered_and_every_covered_path_exists():
    result = subprocess.run([sys.executable, f"{ROOT}/scripts/run_tests.py", "--check"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.returncode == 0, result.stdout


def chosen(tree, *names):
    """Names of the tests that the runner of a small tree runs for these words."""
    said = subprocess.run([sys.executable, tree / "scripts/run_tests.py", *names], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)
    return said.returncode, sorted(line.split()[1] for line in said.stdout.splitlines() if line.startswith("ok ")), said.stdout + said.stderr


def test_rooms_files_and_names_choose_tests(tmp_path):
    for folder in ("scripts", "launcher/workers", "tests/launcher/workers", "tests/lib"):
        os.makedirs(tmp_path / folder)
    shutil.copy(f"{ROOT}/scripts/run_tests.py", tmp_path / "scripts")
    (tmp_path / "launcher/workers/guard.c").write_text("")
    (tmp_path / "launcher/main.c").write_text("")
    (tmp_path / "tests/lib/places.py").write_text("")
    (tmp_path / "tests/launcher/story_whole.py").write_text("# covers: launcher\n" + QUICK)
    (tmp_path / "tests/launcher/workers/story_guard.py").write_text("# covers: launcher/workers/guard.c\n" + QUICK.replace("pass", "import places"))
    (tmp_path / "tests/pytest.ini").write_text("[pytest]\npython_files = story_*.py\npythonpath = lib\n")
    both = ["story_guard", "story_whole"]
    for words, found in ((["guard"], both[:1]), (["story_whole"], both[1:]), (["launcher"], both), (["launcher/workers"], both[:1]), (["tests/launcher/workers"], both[:1]),
                         (["launcher/workers/guard.c"], both), (["--of", "launcher/workers/guard.c"], both), (["--of", "launcher/main.c"], both[1:])):
        assert chosen(tmp_path, *words)[1] == found, (words, chosen(tmp_path, *words))
    code, found, said = chosen(tmp_path, "--of", "launcher/none.c")
    assert code == 1 and not found and "launcher/none.c: no such file" in said, said
    code, found, said = chosen(tmp_path, "--check")
    assert code == 0, said
    (tmp_path / "launcher/workers/guard.c").unlink()
    (tmp_path / "tests/launcher/story_whole.py").unlink()
    code, found, said = chosen(tmp_path, "--check")
    assert code == 1 and "covers launcher/workers/guard.c, which does not exist" in said and "launcher/main.c: no test covers it" in said, said
