# covers: worker/engine/outliers.c worker/engine/trainer_outliers.c
"""Steps that stand out are skipped, or end the run, on all ranks alike.
run: timeout 200
"""

import json

import pytest
import training

STEPS = 12
GUARD = ["training.loss_guard_factor=0.9999", "training.loss_guard_window=3"]  # about every step stands out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outliers")
    return folder, training.make_job(folder, steps=STEPS, training={"learning_rate": 1e-9}, logging={"log_every_n_steps": 1},
                                     checkpointing={"save_every_n_steps": 4})


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_skipped_on_all_ranks(place):
    """The steps that the console, events.jsonl and metrics.jsonl name are the same under every strategy, and so are the weights."""
    folder, job = place
    seen = {}
    for row in ("ddp", "zero3"):
        out = folder / f"skip-{row}"
        result = training.train(job, out, ranks=2, strategy=row, sets=[*GUARD, "training.learning_rate=1e-5"])
        assert result.code == 0, result
        events = [e for e in lines(out / "events.jsonl") if e["event"] == "step_skipped"]
        said = [line for line in result.err.splitlines() if ": skipped: the loss" in line]
        assert len(events) == len(said) > 0, (events, result.err)
        assert all(e["key"] == "training.loss_guard_factor" and e["step"] > 3 for e in events), events
        last = [m for m in lines(out / "metrics.jsonl") if m.get("step") == STEPS and "loss" in m][-1]
        assert last["outlier_steps"] == len(events), last
        manifest = json.loads((out / "checkpoints" / f"step-{STEPS:08}" / "manifest.json").read_text())
        assert manifest["step"] == STEPS and manifest["optimizer_steps"] == STEPS - len(events), manifest
        seen[row] = training.hash_of(out), training.metrics(out), [e["step"] for e in events]
    assert seen["ddp"] == seen["zero3"]


def test_all_steps_after_the_first_are_skipped(place):
    """Nothing but counters changes in skipped steps: the checkpoints of step 4 and of the end hold the same weights."""
    folder, job = place
    out = folder / "all"
    result = training.train(job, out, ranks=2, strategy="zero2",
                            sets=["training.loss_guard_factor=1e-9", "training.loss_guard_window=3", "training.learning_rate=1e-3"])
    assert result.code == 0, result
    manifest = json.loads((out / "checkpoints" / f"step-{STEPS:08}" / "manifest.json").read_text())
    assert manifest["optimizer_steps"] == 3, manifest


def test_the_run_stops(place):
    folder, job = place
    out = folder / "stop"
    result = training.train(job, out, ranks=2, sets=["training.loss_guard_factor=1e-9", "training.loss_guard_window=5",
                                                     "training.loss_guard_action=stop"])
    assert result.code != 0 and "step 6: the loss" in result.err and "times the median of the last 5 steps" in result.err, result
    assert (out / "checkpoints" / "step-00000004").is_dir()


def test_what_does_not_fit_is_refused(place):
    folder, job = place
    cases = {
        ("training.gradient_clip_algorithm=value",): "value needs training.gradient_clip_value",
        ("training.gradient_clip_value=1",): "counts with training.gradient_clip_algorithm value",
        ("training.gradient_clip_algorithm=value", "training.gradient_clip_value=1", "training.max_grad_norm=1"): "remove one",
        ("training.loss_guard_action=rollback",): "not there yet",
        ('optimizer.groups=[{"params": "h.0.attn.c_attn.weigth"}]',): "h.0.attn.c_attn.weight",
        ('optimizer.groups=[{"lr_scale": 1}]',): "give params",
        ('optimizer.groups=[{"params": "*", "beta": 1}]',): "beta is no key of a group",
        ('optimizer.groups=[{"params": "*", "lr_scale": -1}]',): "lr_scale is no number from 0 on",
        ('optimizer.groups=[{"params": "*", "lr_scale": 1, "learning_rate": 1}]',): "two rates",
        ("optimizer.groups=[3]",): "give a list of objects",
    }
    for sets, words in cases.items():
        result = training.train(job, folder / "refused", ranks=1, sets=list(sets))
        assert result.code != 0 and words in result.err, (sets, result)
