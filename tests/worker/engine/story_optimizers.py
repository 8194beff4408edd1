# covers: worker/engine/optimizer.c worker/engine/optimizer_ratios.c worker/engine/optimizer_matrices.c worker/engine/optimizers worker/job/job_groups.c worker/job/job_compare.c
"""Each optimizer from the command line: the same bits under every strategy on 1, 2 and 3 ranks, gradients clipped; checkpoints that go on
on other numbers of ranks; what a plan counts; what a resume refuses.
run: timeout 300
"""

import json
import subprocess

import pytest
import support
import training

OPTIMIZERS = {
    "adamw": [],
    "sgd": ["optimizer.name=sgd", "training.learning_rate=0.3"],
    "momentum": ["optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true", "training.learning_rate=0.03"],
    "lion": ["optimizer.name=lion", "training.learning_rate=1e-3"],
    "adam": ["optimizer.name=adam", "training.weight_decay=0.1"],
    "adagrad": ["optimizer.name=adagrad", "optimizer.lr_decay=0.01", "optimizer.initial_accumulator_value=0.1", "training.weight_decay=0.1",
                "training.learning_rate=0.03"],
    "lamb": ["optimizer.name=lamb", "training.weight_decay=0.1", "training.learning_rate=0.02"],
    "muon": ["optimizer.name=muon", "optimizer.adjust_lr_fn=match_rms_adamw", "training.weight_decay=0.1", "optimizer.adamw_learning_rate=2e-3"],
    "amsgrad": ["training.adam_amsgrad=true", "training.adam_bias_correction=false"],
    "groups": ["training.weight_decay=0.1", 'optimizer.groups=[{"params": ["*.bias", "*1.weight"], "lr_scale": 0.5}, '
               '{"params": "*0.*", "learning_rate": 0.004, "weight_decay": 0.3, "betas": [0.8, 0.9]}]'],
    "value": ["training.gradient_clip_algorithm=value", "training.gradient_clip_value=0.001", "training.max_grad_norm=0"],
}
HALF = "training.optimizer_state_dtype=bf16"
STATES = {"adamw": {"exp_avg", "exp_avg_sq"}, "sgd": set(), "momentum": {"momentum_buffer"}, "lion": {"exp_avg"},
          "adam": {"exp_avg", "exp_avg_sq"}, "adagrad": {"sum"}, "lamb": {"exp_avg", "exp_avg_sq"}, "muon": {"exp_avg", "exp_avg_sq", "momentum_buffer"},
          "amsgrad": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, "groups": {"exp_avg", "exp_avg_sq"}, "value": {"exp_avg", "exp_avg_sq"}}
ROWS = ["ddp", "zero1", "zero2", "zero3", "full_shard"]
STEPS = 8
IMAGES = f"{support.ROOT}/tests/golden/models/mlp/train.safetensors"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optimizers")
    return folder, training.make_job(folder, steps=STEPS, training={"max_grad_norm": 0.5, "warmup_steps": 1}, logging={"log_every_n_steps": 1},
                                     checkpointing={"save_every_n_steps": 4})


def finished(job, out, ranks, row, sets):
    result = training.train(job, out, ranks=ranks, strategy=row, sets=sets)
    assert result.code == 0, result
    return training.hash_of(out), training.metrics(out)


def states(out):
    """Purposes of the slices in the newest checkpoint, but for the weights."""
    with open(out / "checkpoints" / f"step-{STEPS:08}" / "manifest.json") as f:
        manifest = json.load(f)
    return {s["purpose"] for file in manifest["files"] for s in file["slices"]} - {"weight"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_strategy_is_the_same_bits(place, name):
    folder, job = place
    losses = {}
    for ranks in (1, 2, 3):
        seen = {}
        for row in ROWS if ranks == 3 else ["ddp", "zero3"][:ranks]:
            out = folder / f"{name}-{row}-{ranks}"
            seen[row] = finished(job, out, ranks, row, OPTIMIZERS[name])
            assert states(out) == STATES[name], (row, ranks)
        assert len({s[0] for s in seen.values()}) == 1, seen
        losses[ranks] = seen["ddp"][1]
        assert losses[ranks][STEPS] < losses[ranks][1], losses
    assert len({l[1] for l in losses.values()}) == 3  # other batches: nobody compared a run with itself


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_goes_on_on_other_ranks(place, name):
    """Half of the way sliced on 3 ranks, the rest whole on one: the state came along, so the losses are those of a run of one kind."""
    folder, job = place
    out, sets = folder / f"goes-on-{name}", [*OPTIMIZERS[name], "training.lr_scheduler_type=constant_with_warmup"]
    half = [*sets, f"training.max_steps={STEPS // 2}"]
    batch = ["training.batch_size_per_gpu=6", "data.shuffle=false"]
    spread = ["training.batch_size_per_gpu=2", "data.shuffle=false"]
    _, whole = finished(job, folder / f"stays-{name}", 1, "ddp", [*sets, *batch])
    finished(job, out, 3, "zero3", [*half, *spread])
    _, parts = finished(job, out, 1, "ddp", [*sets, *batch])
    assert sorted(parts) == sorted(whole)
    for step, loss in whole.items():
        assert abs(parts[step] - loss) < 2e-4, (step, parts, whole)


@pytest.mark.parametrize("name", ["adam", "adagrad", "lamb"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_state_in_bf16_is_the_same_bits(place, name, precision):
    folder, job = place
    for ranks in (2, 3):
        outs = [folder / f"half-{name}-{precision}-{row}-{ranks}" for row in ("zero2", "full_shard")]
        a, b = (finished(job, out, ranks, out.name.split("-")[-2], [*OPTIMIZERS[name], HALF, f"training.precision={precision}"]) for out in outs)
        assert a == b and a[1][STEPS] < a[1][1]


def test_a_tensor_of_one_element(tmp_path):
    """A layer of one unit, on 3 ranks: its bias is one element, of which two ranks own nothing."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "mlp", "num_channels": 2, "image_size": 6, "hidden_size": 1, "last_hidden_size": 12, "num_labels": 5},
        "data": {"train": IMAGES}, "training": {"batch_size_per_gpu": 2, "max_steps": 4, "weight_decay": 0.1, "threads": 1},
        "checkpointing": {"save_every_n_steps": 4}, "logging": {"log_every_n_steps": 1}}))
    for name, sets in OPTIMIZERS.items():
        whole, sliced = (finished(job, tmp_path / f"{name}-{row}", 3, row, sets) for row in ("ddp", "zero3"))
        assert whole == sliced, name


def plan_of(job, *sets):
    args = [support.program("train"), job, "--plan", "--json", *(x for s in sets for x in ("--set", s))]
    return json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)["bytes"]["optimizer"]


def test_the_plan_counts_the_states(place):
    _, job = place
    adamw = plan_of(job)
    assert plan_of(job, *OPTIMIZERS["sgd"]) == 0
    assert adamw < plan_of(job, *OPTIMIZERS["amsgrad"]) == adamw * 3 // 2
    muon = plan_of(job, *OPTIMIZERS["muon"])
    assert adamw // 2 < muon < adamw, (muon, adamw)  # the matrices of layers have one state
    assert plan_of(job, *OPTIMIZERS["adam"]) == adamw == plan_of(job, *OPTIMIZERS["adagrad"]) * 2
    assert plan_of(job, *OPTIMIZERS["momentum"]) * 2 == plan_of(job, *OPTIMIZERS["lion"]) * 2 == adamw > 0


def refusal(job, out, *sets):
    result = training.train(job, out, ranks=1, sets=sets)
    assert result.code in (2, 100), result
    return " ".join(line for line in result.err.splitlines() if "optimizer." in line)


def test_a_run_keeps_its_optimizer(place):
    """Another optimizer, or momentum where there was none, is refused with a way on, accepted or not; another momentum may be accepted."""
    folder, job = place
    out = folder / "keeps"
    finished(job, out, 1, "ddp", OPTIMIZERS["momentum"])
    for sets in (["optimizer.name=lion"], ["optimizer.name=lion", "checkpointing.accept=optimizer.name"]):
        said = refusal(job, out, *sets)
        assert 'optimizer.name: was "sgd", is now "lion" (all that differ: ' in said and "begin anew" in said and "dtckpt export" in said, said
        assert "--accept" not in said, said
    plain = [s for s in OPTIMIZERS["momentum"] if "momentum" not in s and "nesterov" not in s]
    said = refusal(job, out, *plain, "checkpointing.accept=momentum,nesterov")
    assert "optimizer.momentum: was 0.9, is now 0; go back" in said and "cannot be accepted" in said, said
    other = ["optimizer.name=sgd", "optimizer.momentum=0.5", "optimizer.nesterov=true", "training.learning_rate=0.03"]
    assert "--accept optimizer.momentum" in refusal(job, out, *other)
    result = training.train(job, out, ranks=1, sets=[*other, "checkpointing.accept=momentum", f"training.max_steps={STEPS + 2}"])
    assert result.code == 0 and f"done at step {STEPS + 2}" in result.err, result


def test_a_group_keeps_its_optimizer(place):
    """Groups may be accepted as long as the saved state of each tensor is that of its optimizer."""
    folder, job = place
    out = folder / "groups"
    one, other = ("optimizer.groups=" + json.dumps([{"params": name, "optimizer": "adamw", **more}]) for name, more in (("*attn*", {}), ("*mlp*", {})))
    slow = "optimizer.groups=" + json.dumps([{"params": "*attn*", "optimizer": "adamw", "lr_scale": 0.5}])
    sets = ["optimizer.name=muon", "training.warmup_steps=0"]
    assert training.train(job, out, ranks=1, sets=[*sets, one, "training.max_steps=3"]).code == 0
    said = refusal(job, out, *sets, other, "checkpointing.accept=groups", "training.max_steps=5")
    assert "optimizer.groups: transformer.h.0.attn.c_attn.weight goes by muon now, and the saved state is of another optimizer" in said, said
    result = training.train(job, out, ranks=1, sets=[*sets, slow, "checkpointing.accept=groups", "training.max_steps=5"])
    assert result.code == 0 and "optimizer.groups" in result.err, result
