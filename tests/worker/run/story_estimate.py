# covers: cmd/train/estimate.c worker/engine/simulation.c
"""`train --plan --gpus N`: a line per strategy for GPUs that are elsewhere, as a table of 80 columns and as JSON."""

import json
import os
import re
import subprocess

import pytest
import support
import training

STRATEGIES = ["ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2"]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return training.make_job(tmp_path_factory.mktemp("estimate"), steps=40)


def train(*options):
    return subprocess.run([support.program("train"), "--plan", *map(str, options)], env=support.clean_env(), capture_output=True, text=True,
                          timeout=support.DEADLINE_S)


def test_every_strategy_on_many_gpus(job):
    p = train(job, "--gpus", 4096, "--gpu", "h100", "--strategy", "all")
    assert p.returncode == 0, p.stderr
    lines = p.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [x.split()[0] for x in lines if x.split() and x.split()[0] in STRATEGIES] == STRATEGIES
    assert any(x.startswith("take ") for x in lines)
    assert "a micro-step of all GPUs takes" in p.stdout  # of the test's small data


def test_json_and_the_job_s_own_strategy(job):
    p = train("--json", job, "--gpus", 16, "--gpus_per_node", 4, "--gpu", "A100 40GB", "--mode", "zero3")
    assert p.returncode == 0, p.stderr
    d = json.loads(p.stdout)
    assert (d["gpu"], d["gpus"], d["gpus_per_node"], d["best"]) == ("A100 40GB", 16, 4, "zero3")
    (x,) = d["strategies"]
    assert x["strategy"] == "zero3" and x["fits"] and 0 < x["kernels_s"] and 0 < x["step_s"]
    gathered, reduced = x["messages"]["all_gather"], x["messages"]["reduce_scatter"]
    assert gathered["count"] > reduced["count"] > 0
    sums = x["messages"]["all_reduce"]  # the step's numbers
    assert sums["count"] == 1
    sent = 15 / 16 * (gathered["bytes"] + reduced["bytes"] + 2 * sums["bytes"])
    assert abs(x["sent_bytes"] - sent) < 2
    assert abs(x["sent_to_other_hosts_bytes"] - sent * 4 / 16) < 2


def test_the_plan_of_bytes_is_that_of_a_run(job):
    """Beside what levels of activation_checkpointing do, which a GPU's memory decides."""
    on = ["--set", "activation_checkpointing.enabled=true", "--set", "activation_checkpointing.level=block"]
    here = json.loads(train("--json", job, "--nproc", 4, "--mode", "zero1", *on).stdout)
    there = json.loads(train("--json", job, "--gpus", 4, "--mode", "zero1", *on).stdout)["strategies"][0]
    assert there["activation_checkpointing"] == here["activation_checkpointing"] == "block"
    bytes_of = sum(v for k, v in here["bytes"].items() if k != "staging")
    assert abs(there["bytes"] - bytes_of) < 65536 + 0.01 * bytes_of  # gaps between the plan's pieces


@pytest.mark.skipif("thread" in os.environ.get("SAN", ""), reason="the thread sanitizer leaves less address space than such a plan reserves")
def test_a_model_that_no_strategy_can_hold(job):
    big = [x for o in ("model.n_layer=96", "model.n_embd=16384", "model.n_head=128") for x in ("--set", o)]
    p = train(job, "--gpus", 8, "--gpu", "rtx 3090", "--strategy", "ddp,zero3", *big)
    assert p.returncode == 2
    assert "* does not fit" in p.stdout and "take " not in p.stdout
    assert "needs" in p.stderr and len(p.stderr.splitlines()) == 1


def test_the_advice_to_offload_fits(job):
    """Where no other change is enough for the GPU: the state rests in the host's memory."""
    big = ["--gpus", 1, "--gpu", "l4", *[x for o in ("model.n_layer=12", "model.n_embd=4096", "model.n_head=32") for x in ("--set", o)]]
    p = train(job, *big)
    advice = re.search(r"; fits with (training.strategy=full_shard, .*offload.optimizer=cpu, offload.parameters=cpu) "
                       r"\(\S+ GiB, state in the host's memory\); or use a smaller model", p.stderr)
    assert p.returncode == 2 and advice and "even with" not in p.stderr, p
    p = train(job, *big, *[x for o in advice[1].split(", ") for x in ("--set", o)])
    assert p.returncode == 0 and "of the host's memory for each GPU" in p.stdout, p


@pytest.mark.parametrize("options,words", [
    (["--gpus", 8, "--gpu", "h1000"], "--gpu h1000: there are "),
    (["--gpus", 12], "--gpus 12: not a multiple of --gpus_per_node 8; nearest is 16"),
    (["--gpus", 0], "--gpus: 0: must be a whole number"),
    (["--gpus", 8, "--strategy", "zerro2"], "did you mean zero2?"),
    (["--gpus", 8, "--nproc", 4], "--gpus: only with --plan, and without --nproc"),
    (["--gpu", "h100"], "only with --plan --gpus N"),
    (["--disk", "1GB"], "only with --plan --gpus N"),
    (["--gpus", 8, "--disk", "fast"], "--disk: fast: give bytes per second, such as 12GB"),
])
def test_wrong_options(job, options, words):
    p = train(job, *options)
    assert p.returncode == 2 and words in p.stderr, p.stderr
    assert len(p.stderr.splitlines()) == 1


def test_kinds_of_gpus(job):
    kinds = [train(*o) for o in ([job, "--gpu", "list"], [job, "--gpu", "list", "--gpus", 8], ["--gpu", "list"])]
    assert {(p.returncode, p.stdout, p.stderr) for p in kinds} == {(0, kinds[0].stdout, "")}
    names = kinds[0].stdout.splitlines()
    assert {"H100", "A100 40GB", "RTX 4090"} < set(names)
    assert all(train(job, "--gpus", 1, "--gpu", name).returncode == 0 for name in names)


LARGE = [x for o in ("model.n_layer=4", "model.n_embd=1024", "model.n_head=16") for x in ("--set", o)]


def plans(job, gpus, *options, strategies="all"):
    p = train("--json", job, "--gpus", gpus, "--strategy", strategies, *LARGE, *options)
    assert p.returncode == 0, p.stderr
    return {x["strategy"]: x for x in json.loads(p.stdout)["strategies"]}


def test_strategies_that_the_job_cannot_have_are_left_out(job):
    """What offload moves must be sliced; an optimizer that looks at whole tensors has no local_sgd."""
    lines = plans(job, 8, "--mode", "zero3", "--set", "offload.optimizer=cpu")
    assert "ddp" not in lines and "zero1" in lines and "zero3" in lines
    assert "zero1" not in plans(job, 8, "--mode", "zero3", "--set", "offload.parameters=cpu")
    assert "local_sgd" not in plans(job, 8, "--set", "optimizer.name=lamb")
    p = train(job, "--gpus", 8, "--strategy", "ddp", "--mode", "zero3", "--set", "offload.optimizer=cpu")
    assert p.returncode == 2 and "training.strategy ddp keeps everything whole on each rank; write zero1" in p.stderr
    assert len(p.stderr.splitlines()) == 1


def test_names_that_offload(job):
    lines = plans(job, 1, "--mode", "zero3", strategies="zero3,zero3_offload,deepspeed_stage_3_offload")
    assert list(lines) == ["zero3", "zero3_offload", "deepspeed_stage_3_offload"]
    own = plans(job, 1, "--mode", "zero3", "--set", "offload.optimizer=cpu", "--set", "offload.parameters=cpu", strategies="zero3")
    assert lines["zero3"]["bytes"] > own["zero3"]["bytes"] == lines["zero3_offload"]["bytes"] == lines["deepspeed_stage_3_offload"]["bytes"]
    assert lines["zero3"]["host_bytes"] == 0 < own["zero3"]["host_bytes"] == lines["zero3_offload"]["host_bytes"]
    assert lines["zero3_offload"]["step_s"] > lines["zero3"]["step_s"] + own["zero3"]["host_bytes"] / 60e9  # it comes in, at a link's rate
    table = train(job, "--gpus", 8, "--strategy", "zero3,deepspeed_stage_3_offload_nvme", "--mode", "zero3").stdout
    assert "of the host's memory for each GPU" in table


def test_offload_to_files_takes_its_time(job, tmp_path):
    """A step takes what the disks or all else take, whichever is longer, and little more; the shares of a host's GPUs add up."""
    files = ["--mode", "zero3", "--set", "offload.optimizer=nvme", "--set", f"offload.nvme_path={tmp_path}"]
    rest = plans(job, 4, *files, "--disk", "1000TB", strategies="zero3")["zero3"]
    parameters = rest["files"]["moved_bytes"] * 4 / 16  # two states in F32 come and go
    assert 40e6 < parameters < 60e6 and abs(rest["step_s"] / rest["files"]["rest_s"] - 1) < 0.01
    for rate in 2e9, 20e9, 200e9:
        x = plans(job, 4, *files, "--disk", f"{rate:.0f}", strategies="zero3")["zero3"]
        files_s = x["files"]["moved_bytes"] / (rate / 4)
        assert x["files"] == {**rest["files"], "bytes_per_s": rate / 4}
        assert max(files_s, rest["step_s"]) * 0.999 <= x["step_s"] <= 1.01 * (files_s + rest["step_s"]), (rate, x, rest)
    slow, fast, none = (train(job, "--gpus", 4, "--strategy", "zero3", *LARGE, *files[:-1], f"offload.nvme_path={p}", *d)
                        for p, d in ((tmp_path, ["--disk", "1GB"]), (tmp_path, ["--disk", "1000TB"]), (tmp_path / "missing", [])))
    assert "ms: the disks bound the step" in slow.stdout and "954 MiB/s, as --disk says" in slow.stdout, slow
    assert "ms: all else bounds the step" in fast.stdout, fast
    assert "at no\n    cost here; give --disk" in none.stdout, none
    measured = train(job, "--gpus", 4, "--strategy", "zero3", *LARGE, *files)
    assert "as a short test in offload.nvme_path gave here" in measured.stdout and max(map(len, measured.stdout.splitlines())) <= 80, measured


@pytest.mark.parametrize("names", ["", ",", "none", "ddp,none"])
def test_no_strategy(job, names):
    p = train(job, "--gpus", 8, "--strategy", names)
    assert p.returncode == 2 and ("--strategy" in p.stderr or "unknown strategy" in p.stderr)
    assert p.stdout == ""


def test_relations_between_plans(job):
    """More GPUs never take more memory each where state is sliced; a ring of n sends 2 (n - 1) / n of whole gradients."""
    before = None
    for gpus in 1, 2, 3, 4, 7, 8, 16, 64, 4096:
        lines = plans(job, gpus, "--set", "activation_checkpointing.level=block", "--set", "activation_checkpointing.enabled=true")
        if gpus == 1:
            assert len(lines) == 1 and lines["single_device"]["sent_bytes"] == 0
            continue
        sums = lines["ddp"]["messages"]["all_reduce"]["bytes"]
        assert abs(lines["ddp"]["sent_bytes"] - 2 * (gpus - 1) / gpus * sums) < 2
        assert lines["zero1"]["bytes"] <= lines["ddp"]["bytes"] * 1.01
        assert lines["zero1"]["sent_bytes"] >= lines["local_sgd"]["sent_bytes"]
        if before is not None:
            for name in "zero1", "zero2", "zero3", "shard_grad_op":
                assert lines[name]["bytes"] <= before[name]["bytes"] * 1.02 + 65536, (name, gpus)
        before = lines


def test_strategies_that_the_job_registers(job, tmp_path):
    """Each with its options, by name and among all; one that plans as another line does is left out there."""
    with open(job) as f:
        d = json.load(f)
    d["strategies"] = {"two": {"base": "hybrid_shard", "fsdp": {"device_mesh": [2, 2]}}, "same": {"base": "fsdp"},
                       "off": {"base": "zero3", "offload": {"optimizer": "cpu"}}}
    own = tmp_path / "own.json"
    own.write_text(json.dumps(d))
    lines, named = plans(own, 4), plans(own, 4, strategies="Two,same,off")
    assert list(lines) == [*plans(job, 4), "two", "off"] and list(named) == ["Two", "same", "off"]
    assert named["same"] == {**lines["zero3"], "strategy": "same"} and named["off"] == lines["off"]
    assert lines["off"]["host_bytes"] > 0 == lines["zero3"]["host_bytes"]
    mode = plans(own, 4, "--mode", "two", strategies="hybrid_shard")["hybrid_shard"]
    assert named["Two"] == {**mode, "strategy": "Two"} != {**plans(own, 4)["hybrid_shard"], "strategy": "Two"}
    p = train(own, "--gpus", 6, "--strategy", "two")
    assert p.returncode == 2 and "fsdp.device_mesh: [2, 2] is 4 ranks" in p.stderr, p
    assert "two" not in plans(own, 6)


def test_no_other_training_is_proposed(job, tmp_path):
    """A strategy that averages weights sends least; it is the one to take only where the job's own averages them."""
    with open(job) as f:
        d = json.load(f)
    d["strategies"] = {"rare": {"base": "ddp", "ddp": {"comm_hook": "post_local_sgd"}, "local_sgd": {"group_size": 1}}}
    own = tmp_path / "own.json"
    own.write_text(json.dumps(d))

    def best(*options):
        p = train("--json", own, "--gpus", 8, *LARGE, *options)
        assert p.returncode == 0, p
        d = json.loads(p.stdout)
        return d["best"], {x["strategy"]: x["tokens_per_s"] for x in d["strategies"]}

    taken, rates = best("--strategy", "ddp,local_sgd,rare")
    assert taken == "ddp" and 1.01 * rates["ddp"] < min(rates["local_sgd"], rates["rare"])
    assert best("--strategy", "ddp,local_sgd,rare", "--mode", "local_sgd")[0] in ("local_sgd", "rare")
    assert best("--strategy", "ddp,rare", "--mode", "rare")[0] is not None
    assert best("--strategy", "local_sgd")[0] is None
    p = train(own, "--gpus", 8, "--strategy", "all", *LARGE)
    assert "take local_sgd" not in p.stdout and "averages weights, not gradients: its results are others" in p.stdout, p
