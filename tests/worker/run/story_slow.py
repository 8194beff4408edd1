# covers: worker/run
"""The straggler report: a rank or host that holds the others up is named within 50 steps, and nobody is where all are alike.
DTRUN_ALL=1: steps of twice the length, and more of them.
run: alone
run: timeout 900
"""

import json
import os
import random
import re
import signal
import threading

import pytest

import hosts
import support
import training
from hosts import train_on
from places import control_group

pytestmark = pytest.mark.skipif(not os.path.exists(support.DTRUN), reason="dtrun is not built")

STEPS = 50  # in which it must be named
ALL = bool(os.environ.get("DTRUN_ALL"))
STEPS_S = 5 * support.DEADLINE_S  # for that many steps, also by a tenth of one core


def make_job(folder, steps):
    """Steps of some 25 ms: long beside the scheduler's slices, short beside a pause, and nearly all of it computing."""
    return training.make_job(folder, steps=steps, model={"n_embd": 128, "n_positions": 128}, data={"sequence_length": 128},
                             training={"batch_size_per_gpu": 8 if ALL else 4, "eval_every_n_steps": 0}, checkpointing={"save_every_n_steps": 100})


def events(out, *names):
    return [e for e in map(json.loads, support.lines_of(f"{out}/events.jsonl")) if e["event"] in names]


class Pauser(threading.Thread):
    """Stops a process again and again for 0.5 s, after random times that a seed decides."""

    def __init__(self, pid, seed):
        super().__init__()
        self.pid, self.random, self.over = pid, random.Random(seed), threading.Event()

    def run(self):
        while not self.over.wait(self.random.uniform(0.02, 0.3)) and support.alive(self.pid):
            os.kill(self.pid, signal.SIGSTOP)
            self.over.wait(0.5)
            os.kill(self.pid, signal.SIGCONT)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def test_a_rank_that_pauses_is_named(tmp_path):
    job, out = make_job(tmp_path, 100000), tmp_path / "out"
    with support.Job(["--nproc_per_node=3", "train", job, "--output_dir", out]) as run:
        pages = training.wait_pages(run, 3, 55)
        assert not events(out, "slow")
        begin = pages[1].step()
        with Pauser(pages[1].pid, seed=1):
            (slow,) = support.wait_until(lambda: events(out, "slow"), "a report")
        support.wait_until(lambda: events(out, "slow_over"), "the end of it")
        run.signal(signal.SIGTERM)
        result = run.finish()
    assert result.code == 75, result
    assert (slow["rank"], slow["pid"], slow["phase"]) == (1, pages[1].pid, "compute"), slow
    assert slow["step"] - begin <= STEPS, (begin, slow)
    assert slow["compute_s"] > 1.5 * slow["compute_median_s"] and slow["communication_s"] < slow["communication_median_s"], slow
    said = [x for x in result.err.splitlines() if x.startswith("train: host ")]
    where = rf"train: host {slow['host']} rank 1 \(local 1, pid {pages[1].pid}\): "
    pair = r"[\d.e+-]+ of [\d.e+-]+ ms"
    assert len(said) == 2 and re.match(rf"{where}slow: compute \d+\.\d times the median \({pair} a step; data {pair}, communication {pair}\) "
                                       "over the last 50 steps; the others wait for it: look at ", said[0]), said
    assert re.match(rf"{where}no longer slow: \d+\.\d times the median \({pair} a step\) over the last 50 steps$", said[1]), said
    assert not events(out, "failure") and {e["round"] for e in events(out, "round")} == {1}


def test_a_slow_host_is_named(tmp_path):
    """Two ranks of four have a tenth of one core."""
    job, out = make_job(tmp_path, 100000), tmp_path / "out"
    with control_group("cpu", {"cpu.cfs_period_us": 100000, "cpu.cfs_quota_us": 10000}, {"cpu.max": "10000 100000"}) as group, hosts.network(2) as net:
        a, b = train_on(net, job, out, (2, 2))
        with a, b:
            begin = min(p.step() for p in training.wait_pages(a, 2, 55).values())
            for page in training.wait_pages(b, 2, begin).values():
                with open(f"{group}/cgroup.procs", "w") as f:
                    f.write(str(page.pid))
            slow = support.wait_until(lambda: events(out, "slow"), "a report", STEPS_S)
            a.signal(signal.SIGTERM)
            results = [j.finish(120) for j in (a, b)]
    assert [r.code for r in results] == [75, 75], results
    assert {e["rank"] for e in slow} <= {2, 3} and {e["host"] for e in slow} == {"b"} and slow[0]["phase"] == "compute", slow
    assert slow[0]["step"] - begin <= STEPS, (begin, slow)
    assert re.search(r"^train: host b rank(s 2-3| [23] \(local [01], pid \d+\)): slow: compute \d+\.\d times the median \(", results[0].err, re.M), results
    assert ": slow" not in results[1].err  # rank 0 says it, once
    assert not events(out, "failure") and {e["round"] for e in events(out, "round")} == {1}


@pytest.mark.parametrize("ranks, steps", [(2, 120), (8, 80)] if ALL else [(2, 80), (8, 60)])
def test_nobody_is_slow_where_all_are_alike(tmp_path, ranks, steps):
    job = make_job(tmp_path, steps)
    result = training.train(job, tmp_path / "out", ranks, timeout_s=STEPS_S)
    assert result.code == 0 and ": slow" not in result.err and not events(tmp_path / "out", "slow", "slow_over"), result
