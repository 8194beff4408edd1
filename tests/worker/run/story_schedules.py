# covers: worker/run/trainer_continue.c worker/run/trainer.c worker/engine/horizon.c worker/job/job_batch.c worker/job/job_scheduler.c worker/engine/schedules/plateau.c worker/checkpoints/manifest.c
"""Schedules, batches and lengths of a run that stops and goes on, on other ranks too."""

import json

import pytest
import training

TRAINING = {"batch_size_per_gpu": 6, "learning_rate": 0.003, "lr_scheduler_type": "linear", "warmup_steps": 0, "max_grad_norm": 0.5,
            "eval_every_n_steps": 0, "threads": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schedules")
    return folder, training.make_job(folder, steps=12, training=TRAINING, logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 5})


def rows(out):
    """step: row of metrics.jsonl, of training steps."""
    with open(out / "metrics.jsonl") as f:
        return {r["step"]: r for r in map(json.loads, f) if "loss" in r}


def manifest(out):
    newest = sorted((out / "checkpoints").glob("step-????????"))[-1]
    with open(newest / "manifest.json") as f:
        return json.load(f)


def done(job, out, ranks, sets=(), strategy=None):
    result = training.train(job, out, ranks=ranks, strategy=strategy, sets=sets)
    assert result.code == 0, result
    return result


def refusal(job, out, ranks, *sets):
    result = training.train(job, out, ranks=ranks, sets=sets)
    assert result.code != 0, result
    return result.err + result.out


ACCUMULATION = ["training.max_steps=-1", "training.num_epochs=3", "training.batch_size_per_gpu=96", 'training.gradient_accumulation_steps={"1": 2, "2": 3}']


def test_an_accumulation_that_changes(place):
    """The steps are those of each epoch; a run that stops in the middle of one has the bits of one that does not, and other ranks the same curve."""
    folder, job = place
    whole, parts, spread = folder / "whole", folder / "parts", folder / "spread"
    done(job, whole, 1, ACCUMULATION)
    first = [s for s in rows(whole).values() if s["epoch"] <= 1]
    micro = len(first)
    counts = [micro, (micro + 1) // 2, (micro + 2) // 3]
    assert len(rows(whole)) == sum(counts) and micro > 5, (counts, len(rows(whole)))
    middle = micro + counts[1] // 2
    for steps in (middle, middle + 1 + counts[1] // 2):
        done(job, parts, 1, [*ACCUMULATION[2:], f"training.max_steps={steps}", "training.lr_scheduler_type=constant"])
    constant = folder / "constant"
    done(job, constant, 1, [*ACCUMULATION, "training.lr_scheduler_type=constant"])
    done(job, parts, 1, [*ACCUMULATION, "training.lr_scheduler_type=constant"])
    assert training.hash_of(parts) == training.hash_of(constant)
    half = [*ACCUMULATION, "training.batch_size_per_gpu=32"]
    done(job, spread, 3, half, "zero2")
    a, b = rows(whole), rows(spread)
    assert sorted(a) == sorted(b)
    for step in a:
        assert a[step]["lr"] == b[step]["lr"]
        assert abs(a[step]["loss"] - b[step]["loss"]) < 2e-3, (step, a[step], b[step])


def test_a_plateau_is_remembered(place):
    folder, job = place
    sets = ["training.lr_scheduler_type=reduce_lr_on_plateau", "training.eval_every_n_steps=2", "scheduler.threshold_mode=abs", "scheduler.threshold=100",
            "scheduler.patience=1", "scheduler.factor=0.5", "scheduler.cooldown=1", "training.max_steps=12"]
    whole, parts = folder / "plateau", folder / "plateau-parts"
    done(job, whole, 2, sets)
    rates = [r["lr"] for _, r in sorted(rows(whole).items())]
    # evaluations after 2, 4, ... are all too bad: two of them after the first, then one that does not count
    assert rates == pytest.approx([0.003] * 6 + [0.0015] * 6), rates
    done(job, parts, 2, [*sets, "training.max_steps=4"])
    assert manifest(parts)["plateau"]["bad"] == 1
    done(job, parts, 2, [*sets, "training.max_steps=8"])
    done(job, parts, 2, sets)
    assert manifest(parts)["plateau"] == manifest(whole)["plateau"] and manifest(whole)["plateau"]["checks"] == 6
    assert training.hash_of(parts) == training.hash_of(whole)
    assert refusal(job, folder / "no", 1, *sets, "scheduler.monitor=val_accuracy").count("scheduler.monitor: an evaluation of gpt2 has no val_accuracy") == 1


def test_momentum_moves(place):
    """The same bits under every strategy, and not those of a momentum that stays."""
    folder, job = place
    sets = ["training.lr_scheduler_type=one_cycle"]
    hashes = set()
    for row in ("ddp", "zero1", "zero3"):
        out = folder / f"cycle-{row}"
        done(job, out, 2, sets, row)
        hashes.add(training.hash_of(out))
    done(job, folder / "cycle-stays", 2, [*sets, "scheduler.cycle_momentum=false"])
    assert len(hashes) == 1 and training.hash_of(folder / "cycle-stays") not in hashes


def test_another_schedule_by_name(place):
    folder, job = place
    out = folder / "override"
    done(job, out, 1, ["training.max_steps=6"])
    other = ["training.lr_scheduler_type=step", "scheduler.step_size=4", "training.learning_rate=0.002"]
    said = refusal(job, out, 1, *other)
    assert "training.learning_rate: was 0.003, is now 0.002" in said and "scheduler.step_size" in said, said
    result = done(job, out, 1, [*other, "checkpointing.override=learning_rate,lr_scheduler_type,scheduler.step_size"])
    said = result.err + result.out
    for line in ("training.learning_rate 0.003 -> 0.002 from step 6", "training.lr_scheduler_type \"linear\" -> \"step\" from step 6",
                 "scheduler.step_size null -> 4 from step 6"):
        assert line in said, said
    assert [rows(out)[s]["lr"] for s in (7, 8, 9, 12)] == pytest.approx([2e-4, 2e-4, 2e-5, 2e-5])


def test_tokens(place):
    """The batch and the end are those of tokens on any ranks; a split that cannot be names the nearest."""
    folder, job = place
    sets = ["training.max_steps=-1", "training.train_batch_tokens=768", "training.max_tokens=7000", "training.batch_size_per_gpu=4"]
    for ranks in (1, 2, 3):
        out = folder / f"tokens-{ranks}"
        done(job, out, ranks, sets)
        assert len(rows(out)) == 10 and rows(out)[10]["tokens"] == 7680, rows(out)
    assert "train_batch_tokens: 768 != 5 * 9 * 1 * 16" in (said := refusal(job, folder / "no", 1, *sets[:3], "training.batch_size_per_gpu=5")), said
    assert "write 720 or 800" in said, said
    half = folder / "tokens-half"
    done(job, half, 2, [*sets, "training.max_tokens=3072"])
    done(job, half, 3, [*sets, "training.train_batch_tokens=192"])
    assert manifest(half)["horizon"]["samples"] == 444 and len(rows(half)) == 4 + 21  # 7000 tokens are 437.5 samples


def test_an_elastic_batch(place):
    """Ranks come and go; the batch of the trajectory stays."""
    folder, job = place
    block = {"enabled": True, "max_train_batch_size": 24, "micro_batch_sizes": [2, 3], "version": 0.1}
    sets = [f"elasticity={json.dumps(block)}"]
    plain = json.load(open(job))
    del plain["training"]["batch_size_per_gpu"]
    elastic = folder / "elastic.json"
    elastic.write_text(json.dumps(plain))
    out, whole = folder / "elastic", folder / "elastic-whole"
    done(elastic, whole, 1, sets)
    for ranks, steps in ((4, 4), (3, 8), (1, 12)):
        done(elastic, out, ranks, [*sets, f"training.max_steps={steps}", "training.lr_scheduler_type=constant"])
    assert {r["tokens"] // r["step"] for r in rows(out).values()} == {24 * 16}
    assert len(rows(out)) == len(rows(whole)) == 12
    assert "a batch of 24 samples does not run on 5 ranks; valid numbers of ranks: 1, 2, 3, 4, 6, 8, 12" in refusal(elastic, folder / "no", 5, *sets)
