# covers: worker/run/trainer_save_beside.c worker/run/trainer_saves.c
"""`checkpointing.asynchronous`: the same checkpoints, while training goes on; a second save waits or is left out; kills, a full disk and the end of
the run meanwhile."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
import places
import support
import training

STEPS = 40
BESIDE = "checkpointing.asynchronous=true"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    return folder, training.make_job(folder, steps=STEPS, checkpointing={"keep_last_n": 0}, training={"eval_every_n_steps": 0})


def saved_steps(out):
    return sorted(int(x[5:]) for x in os.listdir(out / "checkpoints") if re.fullmatch(r"step-\d+", x))


def events(out, name):
    with open(out / "events.jsonl") as f:
        return [x for x in map(json.loads, f) if x["event"] == name]


def last_step(out):
    try:
        with open(out / "metrics.jsonl") as f:
            return max([json.loads(x).get("step", 0) for x in f if x.endswith("\n")], default=0)
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("ranks,strategy,sets", [
    (1, "auto", []),
    (2, "ddp", ["training.precision=bf16-mixed"]),
    (3, "zero2", ["training.precision=bf16-mixed", "training.optimizer_state_dtype=bf16"]),
    (4, "hybrid_shard", ["fsdp.device_mesh=[2,2]"]),
])
def test_the_same_checkpoints(place, ranks, strategy, sets):
    folder, job = place
    hashes = []
    for name, more in (("wait", []), ("beside", [BESIDE])):
        out = folder / f"{name}-{strategy}"
        result = training.train(job, out, ranks=ranks, strategy=strategy, sets=[*sets, *more])
        assert result.code == 0, result
        assert saved_steps(out) == [10, 20, 30, 40]
        code, text, err = training.dtckpt("hash", *(out / "checkpoints" / f"step-{s:08}" for s in saved_steps(out)))
        assert code == 0, err
        hashes.append([x.split()[0] for x in text.splitlines()])
        saves = events(out, "save")
        assert [x["step"] for x in saves] == [10, 20, 30, 40]
        assert all(0 <= x["pause_s"] <= x["seconds"] for x in saves)
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 4


SLOW_COPY = """
#define _GNU_SOURCE
#include <stddef.h>
#include <unistd.h>
void *memmove(void *to, const void *from, size_t size)
{
    char *a = to;
    const char *b = from;
    if (size >= 1024 && gettid() != getpid()) {
        usleep(10000);
    }
    for (size_t i = 0; i < size; i++) {
        size_t at = a < b ? i : size - 1 - i;
        a[at] = b[at];
    }
    return to;
}
"""


@pytest.mark.parametrize("ranks,strategy,sets", [
    (2, "ddp", []),
    (3, "zero1", ["training.precision=bf16-mixed"]),
    (1, "auto", ["optimizer.name=muon"]),
])
def test_an_update_waits_for_the_copy(place, tmp_path, ranks, strategy, sets):
    """Copies that threads make are slow: an update that did not wait would be in the checkpoint."""
    folder, job = place
    library = tmp_path / "slow.so"
    (tmp_path / "slow.c").write_text(SLOW_COPY)
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC", "-o", library, tmp_path / "slow.c"], check=True)
    hashes, took = [], []
    for name, more, env in (("once", [], {}), ("slowly", [BESIDE], {"LD_PRELOAD": str(library)})):
        out = tmp_path / name
        result = training.train(job, out, ranks=ranks, strategy=strategy, sets=[*sets, *more], env=env)
        assert result.code == 0, result
        hashes.append([training.dtckpt("hash", out / "checkpoints" / f"step-{s:08}")[1].split()[0] for s in (10, 20, 30, 40)])
        took.append([x["seconds"] for x in events(out, "save")][:-1])
    assert hashes[0] == hashes[1]
    if not os.environ.get("SAN"):  # whose memmove is their own
        assert min(took[1]) > 0.03


def slow_run(folder, job, out, tmp_path, *sets):
    """(running job, gate): the saves of this run are slow while the gate exists."""
    gate, library = training.slow_disk(tmp_path)
    gate.touch()
    support.program("train")
    args = ["--nproc_per_node=2", "train", job, "--output_dir", out]
    for x in [BESIDE, "logging.log_every_n_steps=1", *sets]:
        args += ["--set", x]
    return support.Job(args, env={"LD_PRELOAD": library, "SLOW_DISK": str(gate), "SLOW_DISK_ONLY": "/step-"}), gate


@pytest.mark.parametrize("skips", [False, True])
def test_training_goes_on_while_the_disk_is_slow(place, tmp_path, skips):
    folder, job = place
    out = folder / f"slow-{skips}"
    running, gate = slow_run(folder, job, out, tmp_path, f"checkpointing.skip_when_saving={str(skips).lower()}")
    with running:
        until = STEPS if skips else 20  # a save that waits for the one before holds training
        support.wait_until(lambda: last_step(out) >= until, "steps beside the save")
        assert saved_steps(out) == []
        time.sleep(0.5)
        assert last_step(out) == until
        gate.unlink()
        result = running.finish()
    assert result.code == 0, result
    assert saved_steps(out) == ([10, 40] if skips else [10, 20, 30, 40])
    left_out = re.findall(r"step (\d+) is not saved: the save before it is still being written", result.err)
    assert left_out == (["20", "30"] if skips else [])


def test_the_best_is_not_left_out(place, tmp_path):
    """One of the best waits for the save before it, whatever skip_when_saving says."""
    folder, job = place
    out = folder / "slow-best"
    running, gate = slow_run(folder, job, out, tmp_path, "checkpointing.skip_when_saving=true", "training.eval_every_n_steps=20", "checkpointing.save_top_k=2")
    with running:
        support.wait_until(lambda: last_step(out) >= 20, "steps beside the save")
        time.sleep(0.5)
        assert last_step(out) == 20
        gate.unlink()
        result = running.finish()
    assert result.code == 0 and "step 20 is not saved" not in result.err, result
    assert {10, 20, 40} <= set(saved_steps(out))
    with open(out / "checkpoints" / "step-00000040" / "manifest.json") as f:
        assert [x["step"] for x in json.load(f)["best"]["list"]] == [20, 40]


def test_a_clock_asks_once_an_interval(place, tmp_path):
    """A save that is left out is not asked for again with each step."""
    folder, job = place
    out, words = folder / "clock", "is not saved: the save before it"
    running, gate = slow_run(folder, job, out, tmp_path, "training.max_steps=1000000", "training.max_time=3", "checkpointing.save_every_n_seconds=0.4",
                             "checkpointing.save_every_n_steps=0", "checkpointing.skip_when_saving=true", "logging.log_every_n_steps=1000")
    log = out / "logs" / "rank-0.log"
    with running:
        support.wait_until(lambda: log.exists() and log.read_text().count(words) >= 2, "saves that are left out")
        gate.unlink()
        result = running.finish()
    assert result.code == 0 and log.read_text().count(words) <= 7, result
    assert len(saved_steps(out)) >= 2


def test_a_rank_dies_while_a_save_goes_on(place, tmp_path):
    """What was not complete is no checkpoint; the next round begins before it, and ends as if nothing had been."""
    folder, job = place
    plain, out = folder / "alive", folder / "killed"
    assert training.train(job, plain).code == 0
    running, gate = slow_run(folder, job, out, tmp_path)
    with running:
        running.agent_pid = running.agent
        support.wait_until(lambda: last_step(out) >= 20, "steps beside the save")
        os.kill(training.pages(running, 2)[1].pid, signal.SIGKILL)
        gate.unlink()
        result = running.finish()
    assert result.code == 0 and training.restarts_used(out) == 1, result
    assert training.hash_of(out) == training.hash_of(plain)


def test_a_full_disk_costs_a_warning(place):
    folder, job = place
    mount = places.mount_point(folder, "full")
    go = f"'{support.DTRUN}' --nproc_per_node=2 train '{job}' --output_dir '{mount}/run' --set {BESIDE}"
    support.program("train")
    p = places.in_mounts(f"mount -t tmpfs -o size=700k none '{mount}'; {go}; echo code $? >&2; ls '{mount}/run/checkpoints'")
    assert "code 100" in p.stderr, p
    warned = [x for x in p.stderr.splitlines() if "training goes on, the next try is at the next interval" in x]
    assert [x.split("checkpoint of step ")[1].split(":")[0] for x in warned] == ["20", "30"], p
    assert "continues at step 10" in p.stderr, p
    assert "step-00000010" in p.stdout and "step-00000020" not in p.stdout, p


def test_the_copy_is_planned(place):
    folder, job = place

    def staging(*sets):
        p = subprocess.run([support.program("train"), "--plan", "--json", job, "--nproc", "2", "--mode", "ddp", *sets], env=support.clean_env(),
                           capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert p.returncode == 0, p.stderr
        plan = json.loads(p.stdout)
        return plan["bytes"]["staging"], plan["parameters"]

    before, parameters = staging()
    after, _ = staging("--set", BESIDE)
    share = 12 * parameters / 2  # rank 0's half of weights and two states in fp32
    assert 0.95 * share <= after - before <= 1.05 * share + 8192
