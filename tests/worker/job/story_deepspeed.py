# covers: worker/job/dialects worker/job worker/engine/schedule.c
"""A configuration of DeepSpeed trains as the same job in our own keys does, bit by bit."""

import json
import os

import pytest
import support
import training

CONFIG = os.path.join(os.path.dirname(__file__), "../../../configs/deepspeed.json")
# The same in our keys, for two ranks.
OURS = {
    "batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "max_grad_norm": 1.0, "learning_rate": 2e-3, "adam_beta1": 0.9, "adam_beta2": 0.99,
    "adam_epsilon": 1e-8, "weight_decay": 0.1, "lr_scheduler_type": "warmupdecaylr_linear", "warmup_steps": 20, "max_steps": 60,
    "precision": "bf16-mixed", "strategy": "zero2", "threads": 1}
BITS = {"DTRUN_BF16": "f32"}  # otherwise a measurement chooses how products of bf16 are computed
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(support.BIN, "train")), reason="train is not built")


def keys(value):
    """How many values a configuration has."""
    return sum(map(keys, value.values())) if isinstance(value, dict) else 1


def make_jobs(folder):
    """(in DeepSpeed's keys, in ours): two job files."""
    plain = training.make_job(folder, "job.json")
    job = json.load(open(plain))
    both = []
    for name, sections in (("theirs", {"training": {"threads": 1}, "deepspeed": CONFIG}), ("ours", {"training": OURS, "logging": {"log_every_n_steps": 10}})):
        path = os.path.join(folder, name + ".json")
        with open(path, "w") as f:
            json.dump({"model": job["model"], "data": job["data"], **sections}, f)
        both.append(path)
    return both


def saved(out):
    """What the run's job.json says, without the places of things."""
    job = json.load(open(os.path.join(out, "job.json")))
    job.pop("output_dir")
    job["checkpointing"].pop("checkpoint_dir")
    return job


def test_deepspeed_trains_as_ours(tmp_path):
    assert keys(json.load(open(CONFIG))) >= 20
    theirs, ours = make_jobs(str(tmp_path))
    results = []
    for job in (theirs, ours):
        out = job[:-len(".json")]
        done = training.train(job, out, ranks=2, sets=["deepspeed.scheduler.params.total_num_steps=60", "deepspeed.steps_per_print=10"] if job == theirs else [], env=BITS)
        assert done.code == 0, done
        results.append((training.hash_of(out), training.metrics(out), training.metrics(out, "val_loss"), training.metrics(out, "lr"), saved(out)))
        told = [line for line in (done.out + done.err).splitlines() if "no effect: " in line]
        assert len(told) == (1 if job == theirs else 0), done  # once, in one line
        assert all("zero_optimization.reduce_bucket_size, " in line and "zero_allow_untested_optimizer" in line and "bf16" not in line for line in told)
    assert results[0] == results[1]
    assert len(results[0][1]) >= 4 and len(set(results[0][1].values())) > 1  # there were losses, and they changed


def test_batch_for_any_ranks(tmp_path):
    """train_batch_size holds on any number of ranks that divides it; another number is refused before anything is started."""
    theirs, _ = make_jobs(str(tmp_path))
    for ranks, micro_steps in ((1, 4), (2, 2), (4, 1)):
        printed = support.run(["--print-config", theirs], env={"WORLD_SIZE": ranks}, executable=support.program("train"))
        words = next(line.split() for line in printed.out.splitlines() if line.startswith("training.gradient_accumulation_steps"))
        assert words[1] == str(micro_steps), printed
    fixed = json.load(open(CONFIG)) | {"gradient_accumulation_steps": 2}  # fits 2 ranks alone
    two = tmp_path / "two.json"
    two.write_text(json.dumps({"model": json.load(open(theirs))["model"], "data": json.load(open(theirs))["data"], "deepspeed": fixed}))
    for ranks, code in ((1, 2), (2, 0)):
        dry = support.run(["--dry_run", f"--nproc_per_node={ranks}", "train", two])
        assert dry.code == code, dry
    plain = tmp_path / "plain.json"
    job = json.load(open(theirs))
    plain.write_text(json.dumps({"model": job["model"], "data": job["data"]}))
    printed = support.run(["--print-config", "--deepspeed", CONFIG, plain], env={"WORLD_SIZE": 2}, executable=support.program("train"))
    words = next(line.split() for line in printed.out.splitlines() if line.startswith("training.learning_rate"))
    assert words[1] == "0.002", printed
    refused = training.train(theirs, str(tmp_path / "out"), ranks=3, restarts=None)
    assert refused.code == 2 and "train_batch_size: 32 != 8 * 1 * 3: " in refused.out + refused.err, refused
    assert not (tmp_path / "out").exists()
