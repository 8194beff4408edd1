# covers: worker/engine/horizon.c worker/engine/trainer_loader.c worker/engine/trainer_checks.c worker/engine/trainer_evaluate.c worker/data/sampler.c worker/job/job_batch.c worker/run/trainer.c cmd/train/plan.c
"""training.limit_train_batches and overfit_batches: which samples an epoch has, in a run that stops and goes on too, on other ranks.
run: timeout 300
"""

import json
import subprocess

import pytest

import support
import training

TRAINING = {"batch_size_per_gpu": 12, "max_steps": -1, "num_epochs": 3, "learning_rate": 0.003, "lr_scheduler_type": "linear", "warmup_steps": 0,
            "eval_every_n_steps": 0, "eval_batches": 0, "threads": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    return folder, training.make_job(folder, training=TRAINING, logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 2})


def rows(out):
    with open(out / "metrics.jsonl") as f:
        return {r["step"]: r for r in map(json.loads, f) if "loss" in r}


def done(job, out, ranks, *sets):
    result = training.train(job, out, ranks=ranks, sets=[s if "." in s.split("=")[0] else f"training.{s}" for s in sets])
    assert result.code == 0, result
    return result.out + result.err


def plan(job, *sets):
    args = [support.program("train"), "--plan", "--output_dir", "nowhere", job]
    for s in sets:
        args += ["--set", s]
    p = subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S)
    return p.returncode, p.stdout + p.stderr


STILL = ["learning_rate=0", "lr_scheduler_type=constant"]


@pytest.mark.parametrize("more", [[], ["data.sampler=distributed", "sync_batch_norm=true"], ["accumulate_sync=boundary", "gradient_accumulation_steps=2", "batch_size_per_gpu=6"]])
def test_an_epoch_is_the_first_batches_of_its_order(place, more):
    folder, job = place
    out, whole = folder / f"first{len(more)}{more[0][:6] if more else ''}", folder / f"whole{len(more)}{more[0][:6] if more else ''}"
    batches = 6 if len(more) > 2 else 3
    said = done(job, out, 1, f"limit_train_batches={batches}", *STILL, *more)
    done(job, whole, 1, *STILL, *more)
    limited, all_of = rows(out), rows(whole)
    epoch = len(all_of) // 3
    assert not more or "sync" not in more[-1] or "no effect: training.sync_batch_norm (gpt2 has no batch norms)" in said, said
    assert "an epoch is 36 of " in said and "(training.limit_train_batches)" in said, said
    assert len(limited) == 9 and epoch > 3
    for i in range(3):
        assert [limited[3 * i + k]["loss"] for k in (1, 2, 3)] == [all_of[epoch * i + k]["loss"] for k in (1, 2, 3)]
    assert limited[9]["epoch"] == 3


def test_a_run_goes_on_where_it_stopped(place):
    """Bits of a run in one piece on the same ranks; on others the same samples of each epoch and the same rate over them."""
    folder, job = place
    whole, parts, spread = folder / "whole", folder / "parts", folder / "spread"
    sets = ["limit_train_batches=4", "num_epochs=4", "accumulation_schedule=[0, 1, 2, 2]", "partial_accumulation=step"]
    done(job, whole, 1, *sets)
    for epochs in ("0.5", "1.75", "3"):
        done(job, parts, 1, sets[0], f"num_epochs={epochs}", *sets[2:], "lr_scheduler_type=constant")
    constant = folder / "constant"
    done(job, constant, 1, *sets, "lr_scheduler_type=constant")
    done(job, parts, 1, *sets, "lr_scheduler_type=constant")
    assert training.hash_of(parts) == training.hash_of(constant)
    assert len(rows(whole)) == 4 + 4 + 2 + 2
    done(job, spread, 1, sets[0], "num_epochs=1", "lr_scheduler_type=constant")
    for ranks, epochs, micro in ((3, 2, 4), (2, 3, 12), (4, 4, 12)):  # batches of 12, 24 and 48 samples in epochs of 48
        done(job, spread, ranks, sets[0], f"num_epochs={epochs}", f"batch_size_per_gpu={micro}", "lr_scheduler_type=constant")
    assert [r["epoch"] for r in rows(spread).values()] == [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4], rows(spread)
    for ranks, micro in ((8, 12), (2, 25)):  # a batch beyond the epoch
        result = training.train(job, spread, ranks=ranks, sets=["training.limit_train_batches=4", "training.num_epochs=5", f"training.batch_size_per_gpu={micro}", "training.lr_scheduler_type=constant"])
        words = f"training.limit_train_batches: an epoch is 48 samples, as the first start fixed it, and {ranks} ranks * {micro} take {ranks * micro} at once"
        assert result.code != 0 and words in result.out + result.err, result


def test_the_rate_follows_the_limited_epochs(place):
    folder, job = place
    a, b = folder / "rate1", folder / "rate3"
    for out, ranks, micro in ((a, 1, 12), (b, 3, 4)):
        done(job, out, ranks, "limit_train_batches=0.2", f"batch_size_per_gpu={micro}")
    assert [r["lr"] for r in rows(a).values()] == [r["lr"] for r in rows(b).values()]
    steps = len(rows(a))
    assert rows(a)[1]["lr"] == pytest.approx(0.003) and rows(a)[steps]["lr"] == pytest.approx(0.003 / steps), rows(a)


@pytest.mark.parametrize("mixed", [False, True])
def test_overfit_batches_are_the_same_ones(place, mixed):
    folder, _ = place
    data = training.make_data(folder)
    train = [{"path": f"{data}/train-*.bin", "weight": 2}, {"path": f"{data}/val-*.bin", "weight": 1}] if mixed else f"{data}/train-*.bin"
    job = training.make_job(folder, f"over{mixed}.json", training=TRAINING, data={"train": train, "val": f"{data}/train-*.bin"}, logging={"log_every_n_steps": 1})
    out, two, learns = folder / f"over{mixed}", folder / f"two{mixed}", folder / f"learns{mixed}"
    said = done(job, out, 1, "overfit_batches=3", *STILL)
    assert "an epoch is the same 36 of " in said and "(training.overfit_batches)" in said, said
    losses = [r["loss"] for r in rows(out).values()]
    assert len(set(losses)) == 3 and losses == losses[:3] * 3, losses
    val = [json.loads(line)["val_loss"] for line in open(out / "metrics.jsonl") if "val_loss" in line]
    if not mixed:  # the same samples
        assert val == [pytest.approx(sum(losses[:3]) / 3, rel=1e-5)]
    done(job, two, 2, "overfit_batches=3", "batch_size_per_gpu=6", *STILL)
    assert [r["loss"] for r in rows(two).values()] == pytest.approx(losses, rel=1e-5)
    if not mixed:  # 36 samples are evaluated, whatever fills a batch
        done(job, two, 2, "overfit_batches=3", "batch_size_per_gpu=10", "num_epochs=4", *STILL)
        assert [json.loads(line)["val_loss"] for line in open(two / "metrics.jsonl") if "val_loss" in line][-1] == pytest.approx(val[0], rel=1e-5)
    done(job, learns, 1, "overfit_batches=1", "num_epochs=40", "learning_rate=0.01")
    assert rows(learns)[40]["loss"] < 0.7 * rows(learns)[1]["loss"]


def test_what_cannot_be(place):
    _, job = place
    for sets, words in (
        (["training.limit_train_batches=0.001"], "training.limit_train_batches: 0.001 of the "),
        (["training.limit_train_batches=2.5"], "training.limit_train_batches: is 2.5; give a whole number of batches, or a share below 1"),
        (["training.overfit_batches=1.0"], "training.overfit_batches: 1.0 trains on all batches, in one order; write data.shuffle false instead"),
        (["training.limit_train_batches=0"], "training.limit_train_batches: "),
        (["training.limit_train_batches=3", "training.gradient_accumulation_steps=4", "training.partial_accumulation=drop"],
         "leaves 3 batches of an epoch, and a step takes 4"),
    ):
        code, said = plan(job, *sets)
        assert code != 0 and words in said, (sets, said)
    code, said = plan(job, "training.limit_train_batches=3", "training.overfit_batches=2", "training.eval_batches=3")
    assert code == 0 and "training.limit_train_batches, training.eval_batches (goes with training.overfit_batches 0" in said.replace("eval_batches, training.limit_train_batches", "limit_train_batches, training.eval_batches"), said
    code, said = plan(job, "training.limit_train_batches=1000000000")
    assert code == 0 and said.count("\nsteps ") == 1, said
    assert plan(job)[1].split("\nsteps")[1].split("\n")[0] == said.split("\nsteps")[1].split("\n")[0]


def test_another_limit_begins_the_data_anew(place):
    folder, job = place
    out = folder / "other"
    done(job, out, 1, "limit_train_batches=3", "num_epochs=1")
    result = training.train(job, out, ranks=1, sets=["training.limit_train_batches=2"])
    assert result.code != 0 and "training.limit_train_batches: was 3, is now 2" in result.out + result.err, result
    said = done(job, out, 1, "limit_train_batches=2", "checkpointing.accept=limit_train_batches")
    assert "training.limit_train_batches 3 -> 2 from step 3, with the first sample" in said, said
    assert len(rows(out)) == 3 + 6
