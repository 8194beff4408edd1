# covers: worker/engine worker/run
"""The memory that `train --plan --json` says is the memory a run takes: by the kernel's figures for its private and shared pages; flat over
the steps; and less by what the plan says when activations are computed again. DTRUN_ALL=1 measures 500 MB of states, too.
run: timeout 300
run: nosan: sanitizers take memory of their own
"""

import json
import os
import subprocess

import pytest
import support
import training

ALL = bool(os.environ.get("DTRUN_ALL"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    return folder, training.make_job(folder, steps=100000, training={"eval_every_n_steps": 0}, checkpointing={"save_every_n_steps": 0})


def sets_of(options):
    return [x for o in options for x in ("--set", o)]


def plan(job, options):
    p = subprocess.run([support.program("train"), "--plan", "--json", *sets_of(options), job], env=support.clean_env(), capture_output=True, text=True,
                       timeout=support.DEADLINE_S)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def resident(pid):
    """Bytes that are this process's alone or written by it: anonymous and shared memory, not files it reads."""
    values = {}
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                values[words[0][:-1]] = int(words[1]) * 1024
    with open(f"/proc/{pid}/status") as f:
        shared = next(int(x.split()[1]) * 1024 for x in f if x.startswith("RssShmem"))
    return values["Anonymous"] + shared


class Run:
    """train alone, watched while it makes steps."""

    def __init__(self, job, out, options):
        self.env = support.clean_env()
        self.metrics = os.path.join(str(out), "metrics.jsonl")
        self.process = subprocess.Popen([support.program("train"), *sets_of([*options, "logging.log_every_n_steps=1"]), "--output_dir", str(out), job],
                                        env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def at(self, step):
        """Resident bytes once so many steps are done."""
        support.wait_until(lambda: self.process.poll() is not None or len(support.lines_of(self.metrics)) >= step, f"step {step}", 4 * support.DEADLINE_S)
        assert self.process.poll() is None, "it ended by itself"
        return resident(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def measured(place, name, options, step=3):
    with Run(place[1], place[0] / name, options) as run:
        return run.at(step)


SMALL = ["model.n_embd=384", "model.n_layer=4", "model.n_head=6"]
LARGE = ["model.n_embd=1024", "model.n_layer=4", "model.n_head=8"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("size", ["small"] + (["large"] if ALL else []))
def test_the_plan_is_what_the_kernel_counts(place, size, precision):
    """What the process has without the plan's memory is measured with a model of next to nothing."""
    options = [*(SMALL if size == "small" else LARGE), f"training.precision={precision}"]
    none = [o.replace("384", "48").replace("1024", "48") for o in options]
    expected = plan(place[1], options)
    before = measured(place, f"{size}-{precision}-none", none) - plan(place[1], none)["total"]
    got = measured(place, f"{size}-{precision}", options) - before
    states = sum(expected["bytes"][x] for x in ("weights", "gradients", "optimizer"))
    assert states > (100e6 if size == "small" else 500e6), expected
    assert abs(got - expected["total"]) < (0.10 if size == "small" else 0.05) * expected["total"], (got, before, expected)


def test_memory_stays_flat(place):
    steps = 1000
    with Run(place[1], place[0] / "flat", []) as run:
        early, late = run.at(steps // 10), run.at(steps + steps // 10)
    assert late - early < 1 << 20, (early, late)


def test_recomputing_lowers_the_peak(place):
    """A long batch, so that activations are most of it: each level takes as much less than the one before as the plans say."""
    options = ["model.n_embd=128", "model.n_layer=6", "training.batch_size_per_gpu=128"]
    levels = {level: [*options, "activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}"] for level in ("none", "cheap", "mlp", "block")}
    plans = {level: plan(place[1], sets)["total"] for level, sets in levels.items()}
    assert plans["cheap"] == plan(place[1], options)["total"]
    peaks = {level: measured(place, level, sets) for level, sets in levels.items()}
    for more, less in (("none", "cheap"), ("cheap", "mlp"), ("mlp", "block")):
        planned, saved = plans[more] - plans[less], peaks[more] - peaks[less]
        assert planned > 15e6, (more, less, plans)
        assert abs(saved - planned) < 0.15 * planned, (more, less, saved, planned)


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers reserve more address space than any limit")
def test_what_is_advised_fits(place):
    """Each change that a plan advises makes the job fit under the same limit; the line says where the bytes go, and what nothing helps is said too."""
    job = training.make_job(place[0], "advice.json", training={"batch_size_per_gpu": 96}, model={"n_embd": 256, "n_layer": 6, "n_positions": 64},
                            data={"sequence_length": 64})
    kinds, fit = set(), 0
    for ranks, limit in ((1, 700000), (1, 350000), (2, 350000), (2, 250000), (1, 120000)):
        def planned(*sets):
            line = f"ulimit -v {limit}; exec '{support.program('train')}' --plan --nproc {ranks} '{job}' " + " ".join(f"--set {s}" for s in sets)
            return subprocess.run(["sh", "-c", line], env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)

        p = planned()
        if p.returncode == 0:
            continue
        assert p.returncode == 2 and "limit of address space" in p.stderr and "activations " in p.stderr.split("(")[1], p
        if "; fits with " not in p.stderr:
            assert "it is " in p.stderr and "use a smaller model" in p.stderr, p
            if "; a new run fits with " in p.stderr:
                sets = p.stderr.split("; a new run fits with ")[1].split(" (")[0].split(", ")
                assert "training.optimizer_state_dtype=bf16" in sets and planned(*sets).returncode == 0, (sets, p)
            kinds.add("nothing")
            continue
        for way in p.stderr.strip().split("; fits with ")[1].split(" or "):
            sets = way.split(" (")[0].split(", ")
            again = planned(*sets)
            assert again.returncode == 0, (sets, again)
            kinds.update(s.split("=")[0] for s in sets)
            fit += 1
    assert fit >= 2 and {"training.batch_size_per_gpu", "activation_checkpointing.enabled"} <= kinds, kinds
