# covers: worker/run/trainer_stopping.c worker/engine/stopping.c worker/job/job_stopping.c worker/run/observers/time.c
"""Runs that end early (early_stopping, max_time), checkpoints that are kept for their value (save_top_k), evaluations by epochs, trials."""

import datetime
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess

import pytest
import support
import training

STEPS = 60
EVALUATED = ["training.eval_every_n_steps=5"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopping")
    # a rate that is too high for a while, so that the loss goes up and down
    return folder, training.make_job(folder, steps=STEPS, training={"learning_rate": 3e-2, "lr_scheduler_type": "constant_with_warmup"})


def events(out, name):
    with open(out / "events.jsonl") as f:
        return [x for x in map(json.loads, f) if x["event"] == name]


def saved_steps(out):
    return sorted(int(x[5:]) for x in os.listdir(out / "checkpoints") if re.fullmatch(r"step-\d+", x))


def manifest(out, step):
    with open(out / "checkpoints" / f"step-{step:08}" / "manifest.json") as f:
        return json.load(f)


def best_of(losses, k):
    """What ModelCheckpoint keeps of values in their order: a tie does not replace."""
    kept = []
    for step, value in losses.items():
        if len(kept) < k:
            kept.append((step, value))
        else:
            worst = max(kept, key=lambda x: x[1])
            if value < worst[1]:
                kept.remove(worst)
                kept.append((step, value))
    return {s for s, _ in kept}


def early_stop(losses, patience, min_delta=0.0):
    """EarlyStopping: the step that it stops at, None if at none."""
    best, bad = float("inf"), 0
    for step, value in losses.items():
        best, bad = (value, 0) if value + min_delta < best else (best, bad + 1)
        if bad >= patience:
            return step
    return None


@pytest.mark.parametrize("asynchronous", [[], ["checkpointing.asynchronous=true"]])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_best_are_kept(place, ranks, asynchronous):
    folder, job = place
    out = folder / f"best-{ranks}-{len(asynchronous)}"
    result = training.train(job, out, ranks=ranks, sets=[*EVALUATED, *asynchronous, "checkpointing.save_top_k=3", "checkpointing.keep_last_n=1",
                                                        "checkpointing.save_every_n_steps=7"])
    assert result.code == 0, result
    losses = training.metrics(out, "val_loss")
    assert len(losses) == STEPS // 5
    best = best_of(losses, 3)
    assert set(saved_steps(out)) == best | {STEPS}, (losses, saved_steps(out))
    kept = {x["step"]: x["value"] for x in manifest(out, STEPS)["best"]["list"]}
    assert kept == pytest.approx({s: losses[s] for s in kept}) and set(kept) >= best


def test_the_list_is_kept_over_a_stop(place):
    """Stopped, killed and gone on: the same checkpoints are left, and the exported model is the best one: by mode max, an early one."""
    folder, job = place
    out, plain = folder / "parts", folder / "whole"
    sets = [*EVALUATED, "checkpointing.save_top_k=2", "checkpointing.mode=max", "checkpointing.keep_last_n=1", "checkpointing.load_best_model_at_end=true"]
    assert training.train(job, plain, sets=sets).code == 0
    assert training.train(job, out, sets=[*sets, "training.max_steps=22"]).code == 0
    with support.Job(["--nproc_per_node=2", "--max_restarts=2", "train", job, "--output_dir", out, *(y for x in sets for y in ("--set", x))]) as running:
        os.kill(training.wait_pages(running, 2, 38)[1].pid, signal.SIGKILL)
        result = running.finish()
    assert result.code == 0, result
    assert training.metrics(out, "val_loss") == {**training.metrics(plain, "val_loss"), 22: training.metrics(out, "val_loss")[22]}
    losses = {s: x for s, x in training.metrics(out, "val_loss").items() if s > 0}
    best = set(sorted(losses, key=lambda s: losses[s])[-2:])
    assert set(saved_steps(out)) == best | {STEPS}
    first = max(best, key=lambda s: losses[s])
    hashes = []
    for path in (out / "checkpoints" / f"step-{first:08}", out / "checkpoints" / f"step-{STEPS:08}"):
        code, text, err = training.dtckpt("export", path, folder / "exported")
        assert code == 0, err
        hashes.append((folder / "exported" / "model.safetensors").read_bytes())
        shutil.rmtree(folder / "exported")
    assert (out / "model" / "model.safetensors").read_bytes() == hashes[0] != hashes[1]


def exported(folder, path):
    """The weights that an export of a checkpoint has."""
    code, text, err = training.dtckpt("export", path, folder / "one")
    assert code == 0, err
    data = (folder / "one" / "model.safetensors").read_bytes()
    shutil.rmtree(folder / "one")
    return data


BEST = [*EVALUATED, "checkpointing.save_top_k=1", "checkpointing.keep_last_n=1", "checkpointing.load_best_model_at_end=true"]


@pytest.mark.parametrize("ranks, more", [(1, []), (3, ["checkpointing.asynchronous=true"])])
def test_the_best_of_another_folder_begin_anew(place, ranks, more):
    """A run that goes on from another's checkpoint keeps its own: the first is where it began, if an evaluation there is the best."""
    folder, job = place
    first, out = folder / f"first-{ranks}", folder / f"second-{ranks}"
    assert training.train(job, first, ranks=ranks, sets=[*BEST, "training.max_steps=20"]).code == 0
    start = first / "checkpoints" / "step-00000020"
    sets = [*BEST, *more, f"checkpointing.resume={start}", "training.max_steps=40", "checkpointing.accept=learning_rate,warmup_steps"]
    result = training.train(job, out, ranks=ranks, sets=[*sets, "training.learning_rate=3", "training.warmup_steps=0"])
    losses = training.metrics(out, "val_loss")
    assert result.code == 0 and min(losses, key=losses.get) == 20, (result, losses)
    assert saved_steps(out) == [20, 40] and [x["step"] for x in manifest(out, 40)["best"]["list"]] == [20]
    assert (out / "model" / "model.safetensors").read_bytes() == exported(folder, start)


def test_a_best_checkpoint_that_is_gone_is_none(place):
    """The newest is damaged, and the best that the one before it lists has made way meanwhile: the run goes on without it."""
    folder, job = place
    out = folder / "gone"
    sets = [*BEST, "checkpointing.mode=max", "checkpointing.keep_last_n=2", "checkpointing.save_every_n_steps=10"]
    assert training.train(job, out, sets=[*sets, "training.max_steps=30"]).code == 0
    best = [x["step"] for x in manifest(out, 30)["best"]["list"]]
    assert len(best) == 1 and best == [x["step"] for x in manifest(out, 20)["best"]["list"]] and best[0] < 20
    shutil.rmtree(out / "checkpoints" / f"step-{best[0]:08}")
    for part in (out / "checkpoints" / "step-00000030").glob("slices*"):
        with open(part, "r+b") as f:
            f.seek(3000)
            f.write(b"x")
    result = training.train(job, out, sets=[*sets, "training.max_steps=20"])
    assert result.code == 0 and "the one before is tried" in result.err, result
    assert (out / "model" / "model.safetensors").read_bytes() == exported(folder, out / "checkpoints" / "step-00000020")
    assert training.train(job, out, sets=[*sets, "training.max_steps=40"]).code == 0
    assert {x["step"] for x in manifest(out, 40)["best"]["list"]} <= set(saved_steps(out))


def test_a_best_checkpoint_that_is_removed_while_the_run_goes_on(place):
    """The model is that of the last checkpoint, with a line."""
    folder, _ = place
    data = training.make_data(folder)
    job = training.make_job(folder, name="removed.json", data={"val": f"{data}/train-*.bin"})
    out, sets = folder / "removed", [*BEST, "checkpointing.mode=max", "training.learning_rate=1e-4", "training.max_steps=1000000", "training.max_time=4"]  # the loss falls without a peak
    first = out / "checkpoints" / "step-00000005"
    with support.Job(["--nproc_per_node=1", "train", job, "--output_dir", out, *(y for x in sets for y in ("--set", x))]) as running:
        support.wait_until(lambda: (first / "manifest.json").exists(), "the best checkpoint")
        shutil.rmtree(first)
        result = running.finish()
    last = out / "checkpoints" / f"step-{saved_steps(out)[-1]:08}"
    assert result.code == 0 and f"train: {first}: the best checkpoint is gone; the model is that of {last}" in result.err, result
    assert (out / "model" / "model.safetensors").read_bytes() == exported(folder, last)


@pytest.mark.parametrize("ranks, sets, patience, delta", [(1, ["early_stopping.min_delta=0.03"], 2, 0.03), (3, ["early_stopping.min_delta=0.05"], 2, 0.05)])
def test_early_stopping(place, ranks, sets, patience, delta):
    folder, job = place
    plain, out = folder / f"long-{ranks}", folder / f"early-{ranks}"
    assert training.train(job, plain, ranks=ranks, sets=EVALUATED).code == 0
    losses = training.metrics(plain, "val_loss")
    ends = early_stop(losses, patience, delta)
    assert ends and ends < STEPS, losses
    more = [*EVALUATED, *sets, "early_stopping.monitor=val_loss", f"early_stopping.patience={patience}"]
    result = training.train(job, out, ranks=ranks, sets=more)
    assert result.code == 0 and f"step {ends}: early stopping: val_loss" in result.err, result
    assert training.metrics(out, "val_loss") == {s: losses[s] for s in losses if s <= ends}
    assert saved_steps(out)[-1] == ends and (out / "model" / "config.json").exists()
    assert [x["step"] for x in events(out, "early_stopping")] == [ends]
    again = training.train(job, out, ranks=ranks, sets=more)  # it has ended
    assert again.code == 0 and f"ended early at step {ends} by early_stopping.patience; another value of it goes on" in again.err, again
    longer = training.train(job, out, ranks=ranks, sets=[*EVALUATED])  # nothing ends it now
    assert longer.code == 0 and training.metrics(out, "val_loss") == losses, longer
    assert training.hash_of(out) == training.hash_of(plain)


def test_early_stopping_counts_over_a_stop(place):
    folder, job = place
    out = folder / "early-1"
    parts = folder / "early-parts"
    more = [*EVALUATED, "early_stopping.monitor=val_loss", "early_stopping.patience=2", "early_stopping.min_delta=0.03"]
    ends = [x["step"] for x in events(out, "early_stopping")][0]
    assert training.train(job, parts, ranks=1, sets=[*more, f"training.max_steps={ends - 2}"]).code == 0
    result = training.train(job, parts, ranks=1, sets=more)
    seen = training.metrics(parts, "val_loss")  # also the one at the first end
    assert result.code == 0 and ends - 2 in seen, result
    assert [x["step"] for x in events(parts, "early_stopping")] == [early_stop(seen, 2, 0.03)], (seen, result)


def test_thresholds_and_minimum(place):
    folder, job = place
    losses = training.metrics(folder / "long-1", "val_loss")
    middle = len(losses) // 2
    goal = sum(sorted(losses.values())[middle - 1 : middle + 1]) / 2  # none is as near to it as a file rounds
    reached = min(s for s in losses if losses[s] < goal)
    stop = [*EVALUATED, "early_stopping.monitor=val_loss", f"early_stopping.stopping_threshold={goal!r}", "early_stopping.patience=1000"]
    for name, more, step in (("reached", [], reached), ("least", [f"training.min_steps={reached + 2}"], reached + 2)):
        out = folder / name
        result = training.train(job, out, ranks=1, sets=[*stop, *more])
        assert result.code == 0 and saved_steps(out)[-1] == step, result
        assert f"step {reached}: early stopping: val_loss" in result.err and "better than early_stopping.stopping_threshold" in result.err
    sets = [*EVALUATED, "early_stopping.monitor=val_loss", "early_stopping.patience=1000"]
    again = training.train(job, folder / "reached", ranks=1, sets=[*sets, f"early_stopping.stopping_threshold={goal!r}"])
    assert again.code == 0 and f"ended early at step {reached} by early_stopping.stopping_threshold" in again.err, again
    again = training.train(job, folder / "reached", ranks=1, sets=[*sets, "early_stopping.stopping_threshold=0.001"])  # a goal that is not reached yet
    assert again.code == 0 and saved_steps(folder / "reached")[-1] == STEPS, again
    out = folder / "diverged"
    result = training.train(job, out, ranks=1, sets=[*EVALUATED, "early_stopping.monitor=val_loss", "early_stopping.divergence_threshold=0.01"])
    assert result.code == 0 and saved_steps(out)[-1] == 5 and "worse than early_stopping.divergence_threshold" in result.err, result


def test_a_named_set(place):
    """A set by name ends the run, and the first one, as val_loss, says what is kept."""
    folder, _ = place
    data = training.make_data(folder)
    job = training.make_job(folder, name="named.json", steps=STEPS, training={"learning_rate": 3e-2, "lr_scheduler_type": "constant_with_warmup"},
                            data={"val": {"same": f"{data}/val-*.bin", "own": f"{data}/train-*.bin"}})
    out = folder / "named"
    result = training.train(job, out, sets=[*EVALUATED, "early_stopping.monitor=val_own_loss", "early_stopping.patience=2", "early_stopping.min_delta=0.05",
                                            "checkpointing.save_top_k=1", "checkpointing.keep_last_n=1"])
    assert result.code == 0, result
    own, same = training.metrics(out, "val_own_loss"), training.metrics(out, "val_same_loss")
    assert max(own) == early_stop(own, 2, 0.05) and max(own) < STEPS, own
    assert set(saved_steps(out)) == best_of(same, 1) | {max(own)}


def test_max_time(place):
    """Rank 0's clock ends the run on all ranks after the same step, with an evaluation, a checkpoint and a model; it counts over all starts."""
    folder, job = place
    out = folder / "time"
    sets = ["training.max_steps=1000000", "training.max_time=00:00:00:02", "training.eval_every_n_steps=0"]
    result = training.train(job, out, ranks=3, sets=sets)
    assert result.code == 0 and "training.max_time 00:00:00:02 is over" in result.err, result
    step = saved_steps(out)[-1]
    assert list(training.metrics(out, "val_loss")) == [step] and (out / "model").exists()
    assert 2 <= manifest(out, step)["trained_s"] < 60
    again = training.train(job, out, ranks=3, sets=sets)
    assert again.code == 0 and f"ended early at step {step} by training.max_time" in again.err, again
    more = training.train(job, out, ranks=3, sets=[*sets[:1], f"training.max_steps={step + 3}", "training.max_time=1:00:00"])
    assert more.code == 0 and saved_steps(out)[-1] == step + 3, more


def test_saves_by_time(place):
    """All ranks save after the same steps, as often as rank 0's clock says, and steps do not count unless they are given, too."""
    folder, _ = place
    out, job = folder / "clock", training.make_job(folder, name="clock.json")
    with open(job) as f:
        text = f.read()
    with open(job, "w") as f:
        f.write(text.replace('"save_every_n_steps": 10, ', ""))
    sets = ["training.max_steps=1000000", "training.max_time=2", "training.eval_every_n_steps=0", "checkpointing.keep_last_n=0"]
    result = training.train(job, out, ranks=3, strategy="zero1", sets=[*sets, "checkpointing.save_every_n_seconds=0.5"])
    assert result.code == 0, result
    with open(out / "events.jsonl") as f:
        saves = [e for e in map(json.loads, f) if e["event"] == "save"]
    assert [e["step"] for e in saves] == saved_steps(out) and 3 <= len(saves) <= 5, saves
    begun = [datetime.datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp() - e["seconds"] for e in saves]
    assert all(b - a >= 0.45 for a, b in zip(begun[:-2], begun[1:-1])), saves
    assert any(e["step"] % 1000 for e in saves[:-1])


def write_images(path, samples):
    pixels = [[(i * 7 + j * 3) % 11 / 11 - 0.5 for j in range(16)] for i in range(samples)]
    data = struct.pack(f"<{samples}q", *(i % 3 for i in range(samples))) + b"".join(struct.pack("<16f", *p) for p in pixels)
    header = {"labels": {"dtype": "I64", "shape": [samples], "data_offsets": [0, 8 * samples]},
              "pixel_values": {"dtype": "F32", "shape": [samples, 1, 4, 4], "data_offsets": [8 * samples, len(data)]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("every", [0.25, 0.5, 1, 2])
def test_evaluations_by_epochs(tmp_path, ranks, every):
    """97 samples by 6 for each step: an epoch is 16 steps, and one sample is left over. An evaluation follows the epoch's last step,
    and where epochs say it a checkpoint."""
    write_images(tmp_path / "train.safetensors", 97)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "mlp", "num_channels": 1, "image_size": 4, "hidden_size": 8, "last_hidden_size": 8, "num_labels": 3},
        "data": {"train": str(tmp_path / "train.safetensors"), "val": str(tmp_path / "train.safetensors")},
        "training": {"batch_size_per_gpu": 6 // ranks, "num_epochs": 4, "learning_rate": 1e-3, "threads": 1, "eval_every_n_epochs": every},
        "checkpointing": {"save_every_n_epochs": every, "keep_last_n": 0}, "logging": {"log_every_n_steps": 1}}))
    result = training.train(job, tmp_path / "out", ranks=ranks)
    assert result.code == 0, result
    at = {s: math.ceil(e) if (math.ceil(e) - e) * 97 < 5.5 else e for s, e in training.metrics(tmp_path / "out", "epoch").items()}
    evaluated = set(training.metrics(tmp_path / "out", "val_loss"))
    steps = sorted(at)
    expected = {s for before, s in zip([0, *steps], steps) if at[s] // every > (at[before] if before else 0) // every} | {steps[-1]}
    assert evaluated == expected and len(expected) == max(1, int(4 / every)), (evaluated, expected, at)
    assert set(saved_steps(tmp_path / "out")) == expected
    if every == 0.5:  # stopped and gone on with in the middle of an epoch: the same steps are saved; steps save beside epochs
        sets = ["checkpointing.save_every_n_steps=21"]
        assert training.train(job, tmp_path / "parts", ranks=ranks, sets=[*sets, "training.max_steps=20"]).code == 0
        assert training.train(job, tmp_path / "parts", ranks=ranks, sets=sets).code == 0
        assert set(saved_steps(tmp_path / "parts")) == expected | {20, 21, 42, 63}
    # in parts: the same evaluations
    assert training.train(job, tmp_path / "parts", ranks=ranks, sets=["training.num_epochs=2"]).code == 0
    assert training.train(job, tmp_path / "parts", ranks=ranks).code == 0
    assert set(training.metrics(tmp_path / "parts", "val_loss")) >= expected


def image_job(tmp_path, **more):
    write_images(tmp_path / "train.safetensors", 97)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "mlp", "num_channels": 1, "image_size": 4, "hidden_size": 8, "last_hidden_size": 8, "num_labels": 3},
        "data": {"train": str(tmp_path / "train.safetensors"), "val": str(tmp_path / "train.safetensors")},
        "training": {"learning_rate": 1e-3, "threads": 1, **more}, "logging": {"log_every_n_steps": 1}}))
    return job


@pytest.mark.parametrize("sets,expected", [
    (["eval_every_n_steps=10", "eval_delay=25"], {30, 40, 48}), (["eval_every_n_steps=10", "eval_delay=30"], {30, 40, 48}),
    (["eval_every_n_epochs=0.5", "eval_delay=1.5"], {25, 32, 41, 48}), (["eval_every_n_epochs=1", "eval_delay=2"], {32, 48}),
    (["eval_every_n_epochs=1", "eval_delay=9"], {48})])
def test_evaluations_that_begin_late(tmp_path, sets, expected):
    """As Hugging Face's eval_delay; 16 steps are an epoch."""
    job = image_job(tmp_path, batch_size_per_gpu=3, num_epochs=3)
    assert training.train(job, tmp_path / "out", ranks=2, sets=["training." + s for s in sets]).code == 0
    assert set(training.metrics(tmp_path / "out", "val_loss")) == expected


def test_the_first_of_steps_and_epochs(tmp_path):
    """As Lightning's max_steps beside max_epochs: the same run as of the one that comes first alone, on other ranks, too."""
    job = image_job(tmp_path, batch_size_per_gpu=6)
    for name, sets, last in (("both", ["max_steps=100", "epoch_limit=2"], 32), ("epochs", ["num_epochs=2"], 32),
                             ("first", ["max_steps=20", "epoch_limit=2"], 20), ("steps", ["max_steps=20"], 20),
                             ("batches", ["max_steps=100", "epoch_limit=2", 'gradient_accumulation_steps={"0": 1, "1": 2}'], 24)):
        result = training.train(job, tmp_path / name, ranks=1, sets=["training." + s for s in sets])
        assert result.code == 0 and max(training.metrics(tmp_path / name, "loss")) == last, result
    assert training.hash_of(tmp_path / "both") == training.hash_of(tmp_path / "epochs")
    assert training.hash_of(tmp_path / "first") == training.hash_of(tmp_path / "steps")
    sets = ["training.max_steps=100", "training.epoch_limit=2"]
    assert training.train(job, tmp_path / "parts", ranks=1, sets=["training.max_steps=10"]).code == 0
    assert training.train(job, tmp_path / "parts", ranks=2, sets=[*sets, "training.batch_size_per_gpu=3"]).code == 0
    assert max(training.metrics(tmp_path / "parts", "loss")) == 32
    assert training.train(job, tmp_path / "parts", ranks=3, sets=["training.max_steps=100", "training.epoch_limit=3", "training.batch_size_per_gpu=2"]).code == 0
    assert max(training.metrics(tmp_path / "parts", "loss")) == 48


def test_a_trial(place):
    """fast_dev_run: steps and an evaluation, and nothing is written or read."""
    folder, job = place
    out = folder / "trial"
    for said, steps in (("true", 1), ("false", None)):
        p = subprocess.run([support.program("train"), job, "--plan", "--set", f"training.fast_dev_run={said}", "--set", "training.max_time=90"],
                           capture_output=True, text=True)
        assert p.returncode == 0 and f"\nsteps      {steps or STEPS} of " in p.stdout, p
    result = training.train(job, out, ranks=2, sets=["training.fast_dev_run=2", "checkpointing.save_top_k=1"], restarts=None)
    assert result.code == 0 and "step 2/2" in result.err and "val loss" in result.err, result
    assert not out.exists()


def test_a_new_run_tries_its_evaluation(place):
    folder, job = place
    out = folder / "sanity"
    sets = ["training.num_sanity_val_steps=2", "training.max_steps=10"]
    assert training.train(job, out, ranks=2, sets=sets).code == 0
    assert training.hash_of(out) == training.hash_of(_plain(place))
    logs = "".join(p.read_text() for p in (out / "logs").rglob("*rank-0*") if p.is_file())
    assert logs.count("2 batches tried") == 1, logs


def _plain(place):
    folder, job = place
    if not (folder / "plain-10").exists():
        assert training.train(job, folder / "plain-10", ranks=2, sets=["training.max_steps=10"]).code == 0
    return folder / "plain-10"


@pytest.mark.parametrize("sets, words", [
    (["early_stopping.monitor=loss"], "early_stopping.monitor: loss is no value of an evaluation"),
    (["early_stopping.monitor=val_loss", "training.eval_every_n_steps=0"], "looks at evaluations; give training.eval_every_n_steps"),
    (["checkpointing.save_top_k=2", "data.val=null", "training.eval_every_n_steps=0"], "looks at evaluations; give data.val"),
    (["checkpointing.monitor=val_loss"], "nothing looks at it; give checkpointing.save_top_k"),
    (["checkpointing.load_best_model_at_end=true"], "no best checkpoint is kept"),
    (["early_stopping.monitor=val_accuracy"], "early_stopping.monitor: an evaluation of gpt2 has no val_accuracy; write val_loss"),
    (["checkpointing.save_top_k=2", "checkpointing.monitor=val_pearson"], "checkpointing.monitor: an evaluation of gpt2 has no val_pearson"),
    (["training.max_time=1h"], "training.max_time: 1h is no time"),
    (["training.max_time=0:0"], "is no time"),
    (["training.max_time=1.5"], "training.max_time: 1.5 is no time; write \"DD:HH:MM:SS\", or fewer numbers of its end"),
    (["training.fast_dev_run=-1"], "training.fast_dev_run: is -1; give a whole number from 0"),
    (["training.max_time=1:2:3:4:5"], "is no time"),
    (["training.eval_every_n_epochs=1"], "training.eval_every_n_steps says the same"),
])
def test_refusals(place, sets, words):
    _, job = place
    p = subprocess.run([support.program("train"), job, "--plan", *(y for x in sets for y in ("--set", x))], capture_output=True, text=True)
    assert p.returncode == 2 and words in p.stderr, p


def test_a_share_of_evaluation(place):
    """eval_batches 0.5 is half of the batches on all ranks, 1.0 all of them, and never none; num_sanity_val_steps -1 tries all."""
    folder, job = place
    losses = {}
    counts = {"all": 0, "written": "1.0", "half": 0.5, "few": 1e-9, "one": 1}
    for name, count in counts.items():
        out = folder / f"share-{name}"
        sets = ["training.max_steps=2", "training.warmup_steps=0", "training.eval_every_n_steps=0", f"training.eval_batches={count}", "training.num_sanity_val_steps=-1"]
        result = training.train(job, out, ranks=2, sets=sets)
        assert result.code == 0, result
        losses[name] = training.metrics(out, "val_loss")[2]
    assert losses["written"] == losses["all"] and losses["few"] == losses["one"]
    assert len(set(losses.values())) == 3
    rows = training.metrics(folder / "share-all", "val_loss")
    assert list(rows) == [2]  # a trial is no evaluation
    wrong = training.train(job, folder / "wrong", sets=["training.eval_batches=2.5"])
    assert wrong.code == 2 and "training.eval_batches: is 2.5; give a whole number of batches, or a share below 1" in wrong.err, wrong
