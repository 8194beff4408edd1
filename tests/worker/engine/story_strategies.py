# covers: worker/engine
"""Every strategy from the command line: the same bits per number of ranks, with accumulation and recomputing; checkpoints that go on
under another strategy on another number of ranks; and what a run leaves in its folder.
DTRUN_ALL=1 tries all rows on all numbers of ranks.
run: timeout 300
"""

import glob
import itertools
import json
import os
import shutil
import struct

import pytest
import support
import training

ALL = bool(os.environ.get("DTRUN_ALL"))
ROWS = ["ddp", "no_shard", "zero1", "zero2", "zero3", "shard_grad_op", "full_shard"]
HYBRID = ("hybrid_shard", ["fsdp.device_mesh=[2,2]"])
STEPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return folder, training.make_job(folder, steps=STEPS, training={"eval_every_n_steps": 6}, logging={"log_every_n_steps": 4},
                                     checkpointing={"save_every_n_steps": 6})


def finished(job, out, ranks, row, sets=(), options=()):
    result = training.train(job, out, ranks=ranks, strategy=row, sets=sets, options=options)
    assert result.code == 0, result
    return training.hash_of(out), training.metrics(out), training.metrics(out, "val_loss")


def rows_of(ranks):
    rows = [(row, []) for row in ROWS]
    if ranks == 1:
        rows.insert(0, ("single_device", []))
    if ranks == 4:
        rows.append(HYBRID)
    return rows if ALL or ranks == 4 else rows[:1] + rows[-2:]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_strategies_are_the_same_bits(place, ranks):
    folder, job = place
    seen = {row: finished(job, folder / f"{row}-{ranks}", ranks, row, sets) for row, sets in rows_of(ranks)}
    first = next(iter(seen))
    for row in seen:
        assert seen[row] == seen[first], f"{row} differs from {first} on {ranks} ranks: {seen}"
    assert sorted(seen[first][1]) == [4, 8, 12] and sorted(seen[first][2]) == [6, 12]


def test_recomputing_changes_nothing(place):
    folder, job = place
    plain = finished(job, folder / "recompute-no", 2, "full_shard")
    for every, level in ((1, "block"), (2, "block"), (1, "none"), (2, "none"), (1, "cheap"), (1, "mlp")):
        sets = ["activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}",
                f"activation_checkpointing.checkpoint_every_n_layers={every}"]
        assert finished(job, folder / f"recompute-{every}-{level}", 2, "full_shard", sets) == plain


def test_accumulation(place):
    """Two families (reduced at the boundary, reduced every micro-step), each the same bits; both close to the whole batch in one."""
    folder, job = place
    sets = ["training.gradient_accumulation_steps=2", "training.batch_size_per_gpu=1"]
    boundary = {row: finished(job, folder / f"accumulate-{row}", 2, row, sets) for row in ("ddp", "zero1", "no_shard")}
    every = {row: finished(job, folder / f"accumulate-{row}", 2, row, sets) for row in ("zero2", "zero3", "full_shard")}
    whole = finished(job, folder / "accumulate-whole", 2, "ddp")
    assert len({b[0] for b in boundary.values()}) == 1, boundary
    assert len({e[0] for e in every.values()}) == 1, every
    for family in (boundary, every):
        for step, loss in next(iter(family.values()))[1].items():
            assert abs(loss - whole[1][step]) < 1e-3, (family, whole)


PAIRS = [("ddp", 1, "zero3", 3), ("full_shard", 4, "single_device", 1), ("zero1", 3, "hybrid_shard", 4), ("shard_grad_op", 2, "zero2", 4)]


def test_errors_of_power_sgd_at_another_accumulation(place):
    """They are of sums over micro-steps: where the same samples are in fewer of them, the run goes on as if it had not been cut."""
    folder, job = place
    hook = ["ddp.comm_hook=power_sgd", "power_sgd.start_powerSGD_iter=2", "power_sgd.min_compression_rate=0.5", "power_sgd.matrix_approximation_rank=1",
            "training.lr_scheduler_type=constant", "training.warmup_steps=0", "training.learning_rate=1e-2", "training.max_grad_norm=0", "training.eval_every_n_steps=0",
            "logging.log_every_n_steps=1"]

    def batch(micro_steps):
        return [f"training.gradient_accumulation_steps={micro_steps}", f"training.batch_size_per_gpu={4 // micro_steps}"]

    _, whole, _ = finished(job, folder / "errors", 2, "ddp", [*hook, *batch(4), "training.max_steps=8"])
    finished(job, folder / "errors-cut", 2, "ddp", [*hook, *batch(4), "training.max_steps=5"])
    _, cut, _ = finished(job, folder / "errors-cut", 2, "ddp", [*hook, *batch(1), "training.max_steps=8"])
    assert whole == pytest.approx(cut, abs=1e-5)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: "-".join(map(str, p)))
def test_a_checkpoint_continues_under_another_strategy(place, pair):
    """Saved under A on N ranks, continued under B on M: the weights are the same bits before the first new step, and the run ends."""
    row, ranks, other, others = pair
    folder, job = place
    out = folder / f"pair-{row}-{ranks}"
    first = finished(job, out, ranks, row)
    sets = list(HYBRID[1]) if other == "hybrid_shard" else []
    again = training.train(job, out, ranks=others, strategy=other, sets=sets)
    assert again.code == 0 and f"finished at step {STEPS}" in again.err, again
    assert training.hash_of(out) == first[0]
    result = training.train(job, out, ranks=others, strategy=other, sets=[*sets, f"training.max_steps={STEPS + 8}"])
    assert result.code == 0 and f"(step {STEPS})" in result.err and f"done at step {STEPS + 8}" in result.err, result
    losses = training.metrics(out)
    assert losses[STEPS + 8] < losses[4] and all(losses[s] == first[1][s] for s in first[1])


def test_the_same_ranks_under_another_strategy_end_with_the_same_bits(place):
    """Half of the way under one strategy, the rest under another: as if nothing had happened."""
    folder, job = place
    out, step = folder / "half", STEPS // 2
    plain = finished(job, folder / "half-not", 3, "ddp")
    finished(job, out, 3, "zero3")
    for path in glob.glob(str(out / "checkpoints" / f"step-{STEPS:08}" / "manifest.json")):
        os.unlink(path)
    result = training.train(job, out, ranks=3, strategy="zero1")
    assert result.code == 0 and f"(step {step})" in result.err, result
    assert (training.hash_of(out), training.metrics(out), training.metrics(out, "val_loss")) == plain
    steps = [json.loads(line).get("step") for line in (out / "metrics.jsonl").read_text().splitlines() if "val_loss" not in line]
    assert steps == sorted(set(steps)), steps


def test_finished_fresh_and_refused(place):
    folder, job = place
    out = folder / "life"
    first = finished(job, out, 2, "ddp")
    again = training.train(job, out, ranks=2, strategy="ddp")
    assert again.code == 0 and f"finished at step {STEPS}; --fresh begins anew" in again.err, again
    for key, value, before in (("model.n_embd", "64", "32"), ("training.learning_rate", "0.5", "0.003"), ("training.seed", "7", "42")):
        refused = training.train(job, out, ranks=2, strategy="ddp", sets=[f"{key}={value}"])
        assert refused.code in (2, 100), refused
        line = [x for x in refused.err.splitlines() if key.split(".")[1] in x]
        assert line and value in line[0] and before in line[0] and "--fresh" in refused.err, refused
    assert training.hash_of(out) == first[0]
    p = support.run(["--nproc_per_node=2", "train", job, "--output_dir", out, "--fresh"])
    assert p.code == 0 and f"done at step {STEPS}" in p.err, p
    assert training.hash_of(out) == first[0] and (out / "checkpoints.old-1").exists()


def test_the_model_is_of_this_course(place):
    """A kill between the last save and the export leaves the model of the course before: the same command makes it anew."""
    folder, job = place
    out, kept = folder / "courses", folder / "kept"
    sets = ["training.max_steps=10", "training.eval_every_n_steps=0"]
    assert training.train(job, out, sets=sets).code == 0
    shutil.copytree(out / "model", kept)
    again = ["--nproc_per_node=1", "train", job, "--output_dir", out, *(x for s in [*sets, "training.seed=7"] for x in ("--set", s))]
    p = support.run([*again, "--fresh"])
    assert p.code == 0 and (out / "model.old-1" / "config.json").exists(), p
    first, second = ((f / "model.safetensors").read_bytes() for f in (kept, out / "model"))
    assert first != second
    shutil.rmtree(out / "model")
    shutil.copytree(kept, out / "model")
    p = support.run(again)
    assert p.code == 0 and "finished at step 10" in p.err, p
    assert (out / "model" / "model.safetensors").read_bytes() == second
    written = os.stat(out / "model" / "model.safetensors").st_mtime_ns
    assert support.run(again).code == 0 and os.stat(out / "model" / "model.safetensors").st_mtime_ns == written


def test_a_link_to_the_checkpoints(place):
    """Lock and courses set aside are of the folder, whatever leads to it, and the link stays one."""
    folder, job = place
    top = folder / "links"
    (top / "real").mkdir(parents=True)
    (top / "one").symlink_to("real")
    (top / "two").symlink_to(top / "one")
    sets = ["training.max_steps=10", "training.eval_every_n_steps=0"]
    assert training.train(job, top / "out", sets=[*sets, f"checkpointing.checkpoint_dir={top / 'one'}"]).code == 0
    p = training.train(job, top / "out", sets=[*sets, f"checkpointing.checkpoint_dir={top / 'two'}", "checkpointing.resume=never"])
    assert p.code == 0 and "done at step 10" in p.err, p
    assert sorted(os.listdir(top)) == ["one", "out", "real", "real.lock", "real.old-1", "two"]
    assert (top / "one").is_symlink() and (top / "two").is_symlink()
    assert all((top / name / "step-00000010" / "manifest.json").exists() for name in ("one", "two", "real", "real.old-1"))


def safetensors(path):
    """{name: (type, shape, bytes)}, with every rule of the format checked."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    header.pop("__metadata__", None)
    at, tensors = 0, {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        count = 1
        for n in t["shape"]:
            count *= n
        assert begin == at and end - begin == count * {"F32": 4, "BF16": 2}[t["dtype"]], (name, t)
        tensors[name], at = (t["dtype"], t["shape"], data[begin:end]), end
    assert at == len(data)
    return tensors


def test_the_model_has_hugging_face_names(place):
    folder, job = place
    out = folder / "names"
    finished(job, out, 2, "full_shard")
    tensors = safetensors(out / "model" / "model.safetensors")
    strip = {name[len("transformer."):] if name.startswith("transformer.") else name: t for name, t in tensors.items()}
    expected = {"wte.weight": [256, 32], "wpe.weight": [16, 32], "ln_f.weight": [32], "ln_f.bias": [32]}
    for layer, (name, shape) in itertools.product(range(2), (("ln_1.weight", [32]), ("attn.c_attn.weight", [32, 96]), ("attn.c_proj.bias", [32]),
                                                             ("mlp.c_fc.weight", [32, 128]), ("mlp.c_proj.weight", [128, 32]))):
        expected[f"h.{layer}.{name}"] = shape
    for name, shape in expected.items():
        assert strip[name][1] == shape, (name, sorted(strip))
    assert all(abs(x) < 100 for t in tensors.values() for x in struct.unpack(f"<{len(t[2]) // 4}f", t[2]))
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["model_type"] == "gpt2" and (config["n_layer"], config["n_embd"], config["vocab_size"]) == (2, 32, 256)


def test_what_a_run_leaves(place):
    folder, job = place
    out = folder / "leaves"
    finished(job, out, 2, "zero2")
    whole = json.loads((out / "job.json").read_text())
    assert whole["training"]["strategy"] == "zero2" and whole["training"]["max_steps"] == STEPS and whole["training"]["seed"] == 42
    assert whole["checkpointing"]["resume"] == "auto" and "adam_beta2" in whole["training"]  # defaults are written out
    env = json.loads((out / "env.json").read_text())
    assert env["ranks"] == 2 and env["version"] and env["host"] and env["job_hash"] and env["data_hash"] and env["device"] == "cpu"
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        assert {"step", "val_loss", "time"} <= set(row) or {"step", "epoch", "tokens", "loss", "grad_norm", "lr", "step_s", "tokens_per_s", "mfu",
                                                            "loss_scale", "memory_bytes", "round", "time"} <= set(row), row
    assert all(0 < r["mfu"] < 3 for r in rows if "loss" in r), rows  # a share of what this machine was measured to do
    assert [r["tokens"] for r in rows if "tokens" in r] == [s * 2 * 2 * 16 for s in (4, 8, 12)]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "round" and events[-1] == {**events[-1], "event": "end", "code": 0}, events
    assert [e["step"] for e in events if e["event"] == "save"] == [6, 12], events
    assert (out / "checkpoints" / "latest").read_text() == f"step-{STEPS:08}\n"
    assert sorted(os.listdir(out / "logs")) == ["rank-0.log", "rank-1.log"]
    assert f"done at step {STEPS}" in (out / "logs" / "rank-0.log").read_text()
    left = [p for p in glob.glob(str(out / "**"), recursive=True) if ".tmp" in p]
    assert not left
    # The job as it ran is a job file: it continues this run, which is finished.
    again = support.run(["--nproc_per_node=2", "train", out / "job.json"])
    assert again.code == 0 and "finished at step" in again.err, again
