# covers: worker/engine/outliers.c worker/engine/trainer_outliers.c worker/run/trainer_rollback.c
"""Steps that stand out are skipped, end the run, or take it back to a checkpoint, on all ranks alike.
run: timeout 200
"""

import json
import random
import subprocess

import pytest
import random_jobs
import support
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


@pytest.mark.parametrize("factor", [0.9999, 0.9])
def test_a_run_that_goes_on_judges_as_before(place, factor):
    """The window is in checkpoints: with 0.9 all steps after the third are skipped, of which a window that began anew would pass three. So is the
    number of those that were skipped."""
    folder, job = place
    whole, cut = folder / f"whole-{factor}", folder / f"cut-{factor}"
    sets = [*GUARD, f"training.loss_guard_factor={factor}", "training.learning_rate=1e-5", "training.lr_scheduler_type=constant", "training.warmup_steps=0"]
    assert training.train(job, whole, ranks=2, sets=sets).code == 0
    for steps in (5, STEPS):
        assert training.train(job, cut, ranks=2, strategy="zero2", sets=[*sets, f"training.max_steps={steps}"]).code == 0
    seen = [(training.hash_of(out), training.metrics(out), [m.get("outlier_steps") for m in lines(out / "metrics.jsonl") if "loss" in m], [e["step"] for e in lines(out / "events.jsonl") if e["event"] == "step_skipped"])
            for out in (whole, cut)]
    assert seen[0] == seen[1] and (factor > 0.9 or seen[0][3] == list(range(4, STEPS + 1))), seen


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


def weights(checkpoint):
    return subprocess.run([support.program("dtckpt"), "hash", checkpoint], check=True, capture_output=True, text=True).stdout.split()[0]


ROLLBACK = ["training.loss_guard_action=rollback", "training.learning_rate=1e-3"]


def test_the_run_goes_back_and_on(place):
    """Every step from the sixth on stands out, and what they changed is undone: what is saved later is what step 4 had, whatever the strategy
    and wherever state rests, and the last step is the one that was wanted. The line says how many samples are left out. The losses are those of
    a run that skips the fifth step and all behind it, so each step has data of its own."""
    folder, job = place
    sets = ["training.loss_guard_factor=1e-9", "training.loss_guard_window=5", "training.loss_guard_rollbacks=100", *ROLLBACK]
    seen = {}
    for row, more in (("ddp", []), ("zero1", ["training.precision=bf16-mixed"]), ("zero3", []), ("zero3", ["offload.optimizer=nvme", "offload.parameters=nvme", f"offload.nvme_path={folder}"]),
                      ("zero2", ["checkpointing.asynchronous=true"])):
        out = folder / f"back-{row}-{len(more)}{'a' if 'zero2' in row else ''}"
        result = training.train(job, out, ranks=2, strategy=row, sets=[*sets, *more])
        assert result.code == 0, result
        said = [line for line in result.err.splitlines() if ": goes back to " in line]
        batch = json.loads((out / "job.json").read_text())["training"]["batch_size_per_gpu"] * 2
        assert len(said) == STEPS - 5 and "step 6: goes back to " in said[0] and "step-00000004: what steps 5 to 6 changed is undone" in said[0], said
        assert f"and their {2 * batch} samples are left out (1 of 100 rollbacks)" in said[0], said
        events = [e for e in lines(out / "events.jsonl") if e["event"] == "rollback"]
        assert [(e["step"], e["to"]) for e in events] == [(6, 4), (7, 4), (8, 4), (9, 8), (10, 8), (11, 8), (12, 8)], events
        hashes = {weights(out / "checkpoints" / f"step-{s:08}") for s in (4, 8, 12)}
        assert len(hashes) == 1, hashes
        manifest = json.loads((out / "checkpoints" / f"step-{STEPS:08}" / "manifest.json").read_text())
        assert manifest["step"] == STEPS and manifest["optimizer_steps"] == 4 and manifest["blank_steps"] == 0, manifest
        seen[row, *more] = hashes.pop(), *[training.metrics(out)[s] for s in range(7, STEPS + 1)]
    assert len({v for k, v in seen.items() if "bf16-mixed" not in str(k)}) == 1 and len(set(seen.values())) == 2, seen
    skips = ["training.loss_guard_factor=1e-9", "training.loss_guard_window=4", "training.learning_rate=1e-3"]
    assert training.train(job, folder / "skips", ranks=2, sets=skips).code == 0
    assert list(seen["ddp",][1:]) == [training.metrics(folder / "skips")[s] for s in range(7, STEPS + 1)]
    assert len(set(seen["ddp",])) == STEPS - 5, seen


def test_the_run_ends_after_so_many_rollbacks(place):
    folder, job = place
    sets = ["training.loss_guard_factor=1e-9", "training.loss_guard_window=5", *ROLLBACK]
    result = training.train(job, folder / "once", ranks=2, sets=[*sets, "training.loss_guard_rollbacks=1"])
    assert result.code != 0 and "step 7: the loss" in result.err and "after 1 rollbacks (training.loss_guard_rollbacks)" in result.err, result
    assert result.err.count(": goes back to ") == 1, result.err


def test_there_is_no_checkpoint_yet(place):
    folder, job = place
    sets = ["training.loss_guard_factor=1e-9", "training.loss_guard_window=2", "training.max_steps=3", "training.warmup_steps=0", *ROLLBACK]
    result = training.train(job, folder / "early", ranks=2, sets=sets)
    assert result.code == 0 and "step 3: there is no checkpoint yet to go back to: it is skipped alone" in result.err, result


def images(path, samples):
    """Images of 3 x 6 x 6 in three classes."""
    r = random.Random(4)
    random_jobs.write_tensors(path, labels=("I64", [samples], [r.randrange(3) for _ in range(samples)]),
                              pixel_values=("F32", [samples, 3, 6, 6], [r.gauss(0, 1) for _ in range(samples * 108)]))


def test_running_statistics_are_those_of_steps_that_were_made(tmp_path):
    """Forward moves them before the loss is judged; a step that is skipped puts them back."""
    images(tmp_path / "train.safetensors", 61)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "resnet", "num_channels": 3, "image_size": 6, "num_labels": 3, "embedding_size": 5, "hidden_sizes": [8], "depths": [1], "layer_type": "basic",
                  "stem": "small"},
        "data": {"train": str(tmp_path / "train.safetensors")},
        "training": {"batch_size_per_gpu": 4, "max_steps": 8, "learning_rate": 1e-2, "threads": 1, "lr_scheduler_type": "constant"},
        "checkpointing": {"save_every_n_steps": 2, "keep_last_n": 0}}))
    for i, more in enumerate(([], ["training.sync_batch_norm=true"], ["training.precision=bf16-mixed"])):
        out, made = tmp_path / f"out{i}", tmp_path / f"made{i}"
        assert training.train(job, out, ranks=2, sets=["training.loss_guard_factor=1e-4", "training.loss_guard_window=2", *more]).code == 0
        assert training.train(job, made, ranks=2, sets=["training.max_steps=2", *more]).code == 0
        assert weights(out / "checkpoints/step-00000002") == weights(out / "checkpoints/step-00000008") == weights(made / "checkpoints/step-00000002")


POWER = ["power_sgd.start_powerSGD_iter=2", "power_sgd.matrix_approximation_rank=1", "power_sgd.min_compression_rate=1"]


def encoder_job(folder, labels, **model):
    """BERT over 61 rows of 9 tokens, in their order, four of them a step."""
    r = random.Random(8)
    mask = [int(j < n) for n in (r.randint(3, 9) for _ in range(61)) for j in range(9)]
    random_jobs.write_tensors(folder / "train.safetensors", labels=labels, input_ids=("I64", [61, 9], [m * r.randrange(1, 40) for m in mask]),
                              attention_mask=("I64", [61, 9], mask))
    job = folder / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "bert", "vocab_size": 41, "max_position_embeddings": 9, "initializer_range": 0.1, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                  "num_attention_heads": 2, **model},
        "data": {"train": str(folder / "train.safetensors"), "sequence_length": 9, "shuffle": False},
        "optimizer": {"name": "sgd"}, "logging": {"log_every_n_steps": 1},
        "training": {"strategy": "ddp", "batch_size_per_gpu": 2, "max_steps": 14, "learning_rate": 0.01, "max_grad_norm": 0, "threads": 1, "lr_scheduler_type": "constant",
                     "weight_decay": 0}}))
    return job


@pytest.mark.parametrize("hook", ["power_sgd", "batched_power_sgd"])
def test_a_hook_does_not_apply_a_skipped_step_later(tmp_path, hook):
    """One label of step 10 is 300. What PowerSGD left out of that gradient would come back with the next ones."""
    r = random.Random(9)
    values = [r.gauss(0, 1) for _ in range(61)]
    values[37] = 300
    job = encoder_job(tmp_path, ("F32", [61], values), task="sequence_classification", num_labels=1)
    guard = ["training.loss_guard_factor=100", "training.loss_guard_window=4"]
    result = training.train(job, tmp_path / "out", ranks=2, sets=[*guard, f"ddp.comm_hook={hook}", *POWER])
    assert result.code == 0 and "step 10: skipped" in result.err, result
    norm = training.metrics(tmp_path / "out", "grad_norm")
    others = [norm[s] for s in range(3, 10)]
    assert norm[10] > 20 * max(others) and max(norm[s] for s in range(11, 15)) < 3 * max(others), norm


def slices(checkpoint):
    return [training.read_tensors(path) for path in sorted(checkpoint.glob("slices-*.safetensors"))]


def test_errors_of_a_hook_wait_in_a_step_without_targets(tmp_path):
    """Nothing in a checkpoint of PowerSGD changes in step 6, whose rows have no target."""
    r = random.Random(9)
    labels = [-100 if 20 <= i // 9 < 24 else r.randrange(3) for i in range(61 * 9)]
    job = encoder_job(tmp_path, ("I64", [61, 9], labels), task="token_classification", num_labels=3)
    result = training.train(job, tmp_path / "out", ranks=2, sets=["ddp.comm_hook=power_sgd", *POWER, "checkpointing.save_every_n_steps=1", "checkpointing.keep_last_n=0", "training.max_steps=7"])
    assert result.code == 0 and "step 6: no row of its batch has a target" in result.err, result
    five, six, seven = (slices(tmp_path / f"out/checkpoints/step-{s:08}") for s in (5, 6, 7))
    assert any("comm_error_1" in name for header, _ in five for name in header), five[0][0].keys()
    assert [data for _, data in five] == [data for _, data in six] != [data for _, data in seven]


def test_what_does_not_fit_is_refused(place):
    folder, job = place
    cases = {
        ("training.gradient_clip_algorithm=value",): "value needs training.gradient_clip_value",
        ("training.gradient_clip_value=1",): "counts with training.gradient_clip_algorithm value",
        ("training.gradient_clip_algorithm=value", "training.gradient_clip_value=1", "training.max_grad_norm=1"): "remove one",
        ("training.loss_guard_action=rollback", "checkpointing.save_every_n_steps=0"): "rollback needs a checkpoint to go back to",
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
