# covers: launcher/job/failures.c launcher/output/cause.c launcher/output/report.c base/error.c worker/run collectives
"""Nothing is decided by a sentence: programs with every sentence reworded (tests/reworded) blame the same ranks, end with the same codes and restart as often.
run: waits
run: timeout 400
"""

import json
import os
import signal
import time

import pytest

import training
from nodes import c10d, finish, free_port
from places import little_memory
from support import BIN, DEADLINE_S, PYTHON, TOOLS, Job, lines_of, state_of, wait_until

REWORDED = os.path.join(TOOLS, "reworded")
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(REWORDED, "dtrun")), reason="the reworded programs are not built")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("reworded")


def start(programs, job, out, *options, cwd=None, sets=()):
    return Job([*options, "train", job, "--output_dir", out, *(f"--set={x}" for x in sets)], executable=os.path.join(programs, "dtrun"), cwd=cwd)


def events(out):
    return [json.loads(line) for line in lines_of(os.path.join(out, "events.jsonl"))]


def blamed(*outs):
    """Which ranks failed by themselves, and how, as the agents say; and the restarts used."""
    rows = [e for out in outs for e in events(out)]
    failures = {(e["rank"], e["exit_code"], e["stopped_by_us"]) for e in rows if e["event"] == "failure"}
    return sorted(failures), sorted({e["restarts"] for e in rows if e["event"] == "end"})


def killed(programs, folder):
    """A rank is killed while its peer waits for it."""
    job, out = training.make_job(folder, steps=400), folder / "out"
    with start(programs, job, out, "--nproc_per_node=2", "--max_restarts=3") as run:
        os.kill(training.wait_pages(run, 2, 5)[1].pid, signal.SIGKILL)
        code = run.finish(2 * DEADLINE_S).code
    return code, *blamed(out)


def not_finite(programs, folder):
    """All ranks end because of one, whichever saw it first: one is blamed, and its peer followed."""
    job, out = training.make_job(folder, steps=200, training={"learning_rate": 1e8, "max_grad_norm": 0}), folder / "out"
    with start(programs, job, out, "--nproc_per_node=2") as run:
        code = run.finish(2 * DEADLINE_S).code
    failures, restarts = blamed(out)
    return code, [what for _, *what in failures], restarts


def damaged(programs, folder):
    """A rank finds damage in its part of the checkpoint that the job names, and tells rank 0: all end with its words, and it alone is blamed."""
    job, found = training.make_job(folder, steps=20), set()
    with start(programs, job, folder / "before", "--nproc_per_node=2") as run:
        assert run.finish(2 * DEADLINE_S).code == 0
    checkpoint = max((folder / "before" / "checkpoints").glob("step-*"))
    with open(max(checkpoint.glob("slices-*")), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    for i in range(8):  # either rank may be the first to end
        out = folder / f"out-{i}"
        with start(programs, job, out, "--nproc_per_node=2", sets=[f"checkpointing.resume={checkpoint}"]) as run:
            code = run.finish(2 * DEADLINE_S).code
        found.add(str((code, *blamed(out))))
    return found


def hangs(programs, folder):
    """A rank stands still: its agent names it, and not its peer that waits."""
    job, out = training.make_job(folder, steps=200, training={"step_timeout": 3}), folder / "out"
    with start(programs, job, out, "--nproc_per_node=2", "--max_restarts=5") as run:
        page = training.wait_pages(run, 2, 3)[1]
        while True:
            os.kill(page.pid, signal.SIGSTOP)
            wait_until(lambda: state_of(page.pid) == "T", "the stop")
            if page.phase() not in ("save", "exit"):  # those may take long
                break
            os.kill(page.pid, signal.SIGCONT)
            time.sleep(0.002)
        code = run.finish(2 * DEADLINE_S).code
    return code, *blamed(out)


def killed_elsewhere(programs, folder):
    """Two hosts: a rank of the second is killed. The ranks of the first hear of it through their peers."""
    job, out, port = training.make_job(folder, steps=400), folder / "out", free_port()
    options = [*c10d(port, 2), "--nproc_per_node=2", "--max_restarts=3"]
    with start(programs, job, out, *options) as a, start(programs, job, out, *options) as b:
        page = wait_until(lambda: training.worker_at([b], 5), "step 5 of a worker of the second")
        os.kill(page.pid, signal.SIGKILL)
        codes = [x.code for x in finish(a, b)]
    failures, restarts = blamed(out)
    return codes, [(rank == page.rank, *what) for rank, *what in failures], restarts


def other_folder(programs, folder):
    """Two hosts with folders of their own: rank 1 finds it, tells rank 0, and all end with its words."""
    job, port = training.make_job(folder), free_port()
    options = [*c10d(port, 2), "--nproc_per_node=1", "--max_restarts=3"]
    for name in ("a", "b"):
        (folder / name).mkdir()
    with start(programs, job, "out", *options, cwd=folder / "a") as a, start(programs, job, "out", *options, cwd=folder / "b") as b:
        codes = [x.code for x in finish(a, b)]
    failures, restarts = blamed(folder / "a" / "out", folder / "b" / "out")
    return codes, failures, restarts


def out_of_memory(programs, folder):
    """The kernel kills a rank at its limit; of its peer, which is told to end, nothing is said."""
    eats = "import os, time\nx = []\nwhile os.environ['RANK'] == '1': x.append(bytearray(1 << 22))\ntime.sleep(600)"
    with little_memory(100) as group:
        text = f'echo $$ >"{group}/cgroup.procs"; exec "$@"'
        args = ["-c", text, "sh", os.path.join(programs, "dtrun"), "--nproc_per_node=2", "--max_restarts=1", f"--log_dir={folder}/logs", PYTHON, "-c", eats]
        with Job(args, executable="/bin/sh", env={"TMPDIR": folder}) as run:
            code = run.finish(2 * DEADLINE_S).code
            run.wait_gone()
    (found,) = folder.rglob("events.jsonl")
    return code, *blamed(found.parent)


def stopped(programs, folder):
    """Asked to stop: nobody is to blame."""
    job, out = training.make_job(folder, steps=100000), folder / "out"
    with start(programs, job, out, "--nproc_per_node=2") as run:
        training.wait_pages(run, 2, 5)
        run.signal(signal.SIGTERM)
        code = run.finish(2 * DEADLINE_S).code
    return code, *blamed(out)


@pytest.mark.parametrize("scene, expected", [
    (killed, (0, [(1, -9, False)], [1])),
    (not_finite, (100, [[100, False]], [0])),
    (damaged, {"(100, [(1, 100, False)], [0])"}),
    (hangs, (0, [(1, -9, False)], [1])),
    (killed_elsewhere, ([0, 0], [(True, -9, False)], [1])),
    (other_folder, ([2, 2], [(0, 2, False)], [0])),
    (out_of_memory, (1, [(1, -9, False)], [1])),
    (stopped, (75, [], [0])),
], ids=lambda x: x.__name__ if callable(x) else "")
def test_other_words_change_nothing(place, scene, expected):
    for name, programs in (("plain", BIN), ("reworded", REWORDED)):
        folder = place / scene.__name__ / name
        folder.mkdir(parents=True)
        assert scene(programs, folder) == expected, name
