# covers: launcher/workers
# run: waits
"""What workers have started and leave behind when they end: it may end by itself, is told to end once and in time, and nothing of it stays.
run: timeout 200
"""

import os
import re
import signal

import pytest
from support import DTRUN, PYTHON, Job, run, script, wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")

SAVES = """import signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(0.5)
    open(sys.argv[1], "a").write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1], "w").write("up\\n")
time.sleep(60)
"""


def text_of(path):
    return path.read_text() if path.exists() else ""


def test_a_program_under_a_shell_has_the_grace(tmp_path):
    """TERM goes to the group: the shell is gone at once, what it waited for saves, and hears TERM once."""
    saver, state = script(tmp_path, "save.py", SAVES), tmp_path / "state"
    with Job(["-t1", "--no_python", "sh", "-c", f"{PYTHON} {saver} {state}; true"]) as job:
        wait_until(lambda: text_of(state) == "up\n", "the program")
        job.signal(signal.SIGTERM)
        result = job.finish()
        job.wait_gone()
    assert result.code == 143 and text_of(state) == "up\nsaved\n" and result.out.count("saving") == 1, result


def test_it_has_the_grace_before_a_restart_too(tmp_path):
    """Rank 1 fails; what rank 0 and rank 1 have started saves before the next round begins. What left its worker's group is told as well."""
    saver = script(tmp_path, "save.py", SAVES)
    text = f"""[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0
setsid {PYTHON} {saver} {tmp_path}/$RANK &
[ $RANK = 0 ] && wait
until [ -s {tmp_path}/0 ] && [ -s {tmp_path}/1 ]; do sleep 0.02; done
exit 7"""
    with Job(["--nproc_per_node=2", "--max_restarts=1", "--no_python", "sh", "-c", text]) as job:
        result = job.finish()
        job.wait_gone()
    assert result.code == 0 and [text_of(tmp_path / r) for r in "01"] == ["up\nsaved\n"] * 2, result


@pytest.mark.parametrize("options", [[], ["-t3"], ["-r3"]])
def test_filters_of_the_output_come_to_their_end(tmp_path, options):
    """As `exec > >(tee log)` and slower ones: the worker is gone before they have written all."""
    text = f"""exec > {tmp_path}/pipe
seq 1 20000"""
    os.mkfifo(tmp_path / "pipe")
    slow = f"(while read -r line; do echo $line; done < {tmp_path}/pipe; sleep 0.5; echo end) &"
    result = run([*options, f"--log_dir={tmp_path}/logs", "--no_python", "bash", "-c", f"{slow}\n{text}"])
    out = next((tmp_path / "logs").rglob("stdout.log")).read_text() if options == ["-r3"] else result.out
    lines = [x.removeprefix("[default0]:") for x in out.splitlines()]
    assert result.code == 0 and lines == [*map(str, range(1, 20001)), "end"], (result, len(lines))


def test_a_worker_that_ends_first_takes_nothing_from_what_it_started(tmp_path):
    """Its pipes stay open while the round goes on."""
    text = f"""[ $RANK = 1 ] && {{ until [ -e {tmp_path}/done ]; do sleep 0.02; done; exit 0; }}
(for i in 1 2 3 4 5; do sleep 0.1; echo line $i; done; : > {tmp_path}/done) &"""
    result = run(["--nproc_per_node=2", "-r3", f"--log_dir={tmp_path}/logs", "--no_python", "sh", "-c", text])
    assert result.code == 0, result
    logs = {p.parent.name: p.read_text() for p in (tmp_path / "logs").rglob("stdout.log")}
    assert logs == {"0": "".join(f"line {i}\n" for i in range(1, 6)), "1": ""}


def test_background_work_may_end_after_the_job(tmp_path):
    result = run(["--no_python", "sh", "-c", f"(sleep 1; echo there > {tmp_path}/uploaded) & echo done"])
    assert result.code == 0 and result.out == "done\n" and result.err == "" and text_of(tmp_path / "uploaded") == "there\n", result


@pytest.mark.parametrize("deaf", [False, True])
def test_what_does_not_end_is_named_and_ended(deaf):
    """After --shutdown_timeout by TERM, and by KILL when it does not hear that."""
    left = "(trap '' TERM; exec sleep 600) &" if deaf else "sleep 600 &"
    with Job(["--shutdown_timeout=1", "--no_python", "sh", "-c", f"{left} echo done"]) as job:
        result = job.finish(timeout_s=30)
        job.wait_gone()
    assert result.code == 0, result
    assert re.search(r"^dtrun: host \S+: what the workers had started still runs 1 s after they ended, and is ended with TERM \(--shutdown_timeout\): "
                     r"pid \d+ \(sleep\)$", result.err, re.M), result


def test_after_a_failure_it_is_told_at_once_and_killed_after_the_grace(tmp_path):
    with Job(["--shutdown_timeout=3", "--no_python", "sh", "-c", "(trap '' TERM; exec sleep 600) & exit 3"]) as job:
        result = job.finish(timeout_s=30)
        job.wait_gone()
    assert result.code == 1 and "rank 0 (local 0, pid " in result.err and "exit code 3" in result.err, result
    assert re.search(r"waiting 2 s for what the workers had started, pid \d+ \(sleep\), to end; 1 s left, then KILL \(--shutdown_timeout\)$", result.err, re.M), result
    assert re.search(r"what the workers had started is still there after 3 s \(--shutdown_timeout\), and is killed: pid \d+ \(sleep\)$", result.err, re.M), result


def test_ctrl_c_ends_the_wait(tmp_path):
    with Job(["--no_python", "sh", "-c", f"sleep 600 & touch {tmp_path}/done"]) as job:
        wait_until(lambda: (tmp_path / "done").exists(), "the worker's end")
        job.signal(signal.SIGINT)
        result = job.finish(timeout_s=20)
        job.wait_gone()
    assert result.code == 130, result
