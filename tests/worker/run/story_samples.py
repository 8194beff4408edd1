# covers: worker/run/trainer_samples.c worker/run/generate.c worker/run/prompt.c worker/run/observers/metrics.c worker/run/observers/console.c
"""logging.sample_every_n_steps: samples are those of train --generate from the checkpoint of the same step, and change no bit of the training."""

import json
import os
import shutil
import subprocess

import pytest

import models
import support
import training

TINY = os.path.join(support.ROOT, "tests/golden/finetune/tiny")
SOFT = os.path.join(support.BUILD, "softgpu", "train")
GENERATION = {"prompt": ["abc", "de\n"], "prompt_ids": "5,6,7", "max_new_tokens": 12, "temperature": 1, "seed": 7}
BF16 = "training.precision=bf16-mixed"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(folder, job file): samples at steps 3 and 6, a checkpoint of each."""
    folder = tmp_path_factory.mktemp("samples")
    return folder, training.make_job(folder, steps=6, training={"eval_every_n_steps": 4, "eval_batches": 2, "warmup_steps": 0},
                                     checkpointing={"save_every_n_steps": 3, "keep_last_n": 0},
                                     logging={"sample_every_n_steps": 3}, generation=GENERATION)


def samples(out):
    return {m["step"]: m["samples"] for m in models.metrics(out) if "samples" in m}


def generated(point, job):
    r = subprocess.run([support.program("train"), "--generate", point, job, "--json"], capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in r.stdout.splitlines()]


@pytest.mark.parametrize("ranks, strategy, sets", [
    (1, "auto", []), (2, "ddp", []), (2, "full_shard", [BF16]), (3, "full_shard", []), (3, "zero1", [BF16]),
    (2, "hybrid_shard", [BF16, "fsdp.device_mesh=[2,1]"]),
    # units that are not those of the model, and elements of 8 bytes
    (2, "ddp", ['training.freeze=["*h.0*"]']), (3, "zero3", ['training.freeze=["*.bias"]', "fsdp.param_persistence_threshold=40", BF16]),
    (2, "full_shard", ["fsdp.auto_wrap_policy=none", "training.precision=64-true"])])
def test_as_generated(place, tmp_path, ranks, strategy, sets):
    folder, job = place
    sets = [f"training.strategy={strategy}", *sets]
    said = models.train(job, tmp_path / "with", ranks, *sets).stderr
    models.train(job, tmp_path / "without", ranks, *sets, "logging.sample_every_n_steps=0")
    assert models.weights_hash(tmp_path / "with") == models.weights_hash(tmp_path / "without")
    losses = [[{k: m[k] for k in ("step", "loss", "val_loss") if k in m} for m in models.metrics(out) if "samples" not in m]
              for out in (tmp_path / "with", tmp_path / "without")]
    assert losses[0] == losses[1] and samples(tmp_path / "without") == {}
    made = samples(tmp_path / "with")
    assert sorted(made) == [3, 6] and made[3] != made[6]
    for step, rows in made.items():
        assert rows == generated(tmp_path / f"with/checkpoints/step-{step:08}", job), step
    ids = ",".join(map(str, made[6][2]["ids"]))
    assert f"step 6/6 sample 3 {ids}\n" in said and 'step 6/6 sample 1 "abc' in said and 'step 6/6 sample 2 "de\\n' in said


def test_of_a_folder(place, tmp_path):
    """A folder's settings and stop ids count, and after its end what the run has kept of them. A run that goes on makes the samples that are missing."""
    folder = tmp_path / "tiny"
    shutil.copytree(TINY, folder)
    (folder / "generation_config.json").write_text('{"max_new_tokens": 5, "eos_token_id": 0}')
    (tmp_path / "prompts").write_text("5 6 7\n\n8\n")
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "output_dir": str(tmp_path / "run"), "model": {"load": str(folder)}, "data": {"train": f"{training.make_data(tmp_path)}/train-*.bin", "sequence_length": 16},
        "training": {"batch_size_per_gpu": 1, "max_steps": 4, "threads": 1}, "checkpointing": {"save_every_n_steps": 2, "keep_last_n": 0},
        "logging": {"sample_every_n_steps": 2}, "generation": {"prompt_ids": ["9", f"@{tmp_path}/prompts"]}}))
    out = tmp_path / "run"
    models.train(job, out, 1, "training.max_steps=2")
    shutil.rmtree(folder)
    models.train(job, out, 2)
    made = samples(out)
    assert sorted(made) == [2, 4] and [r["prompt_ids"] for r in made[4]] == [[9], [5, 6, 7], [8]]
    for step, rows in made.items():
        assert rows == generated(out / f"checkpoints/step-{step:08}", job) and all(len(r["ids"]) <= 5 for r in rows)


@pytest.mark.skipif(not os.path.exists(SOFT), reason="built without the CUDA toolkit's headers")
@pytest.mark.parametrize("ranks, strategy, sets", [(1, "auto", []), (2, "full_shard", [BF16])])
def test_on_a_gpu(place, tmp_path, ranks, strategy, sets):
    """Weights come from the device, and the samples are computed on the host. The step after them is not begun before, whether or not a save follows."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    shutil.copy2(support.program("dtrun"), bin_folder / "dtrun")
    shutil.copy2(SOFT, bin_folder / "train")
    sets = [f"training.strategy={strategy}", "training.device=cuda", "training.share_gpu=true", "training.max_steps=4", "training.eval_every_n_steps=0",
            "data.val=null", *sets]
    hashes = []
    for name, every, save in (("with", 2, 2), ("without", 0, 0), ("unsaved", 2, 0)):
        models.train(place[1], tmp_path / name, ranks, *sets, f"logging.sample_every_n_steps={every}", f"checkpointing.save_every_n_steps={save}",
                     dtrun=str(bin_folder / "dtrun"))
        hashes.append(models.weights_hash(tmp_path / name))
    assert len(set(hashes)) == 1
    made = samples(tmp_path / "with")
    assert sorted(made) == [2, 4] and made == samples(tmp_path / "unsaved")
    for step, rows in made.items():
        assert rows == generated(tmp_path / f"with/checkpoints/step-{step:08}", place[1])


@pytest.mark.parametrize("sets, said", [
    (["generation.prompt=null", "generation.prompt_ids=null"], "logging.sample_every_n_steps: no prompt; give generation.prompt or generation.prompt_ids"),
    (["generation.prompt_ids=5,300"], "logging.sample_every_n_steps: prompt 3 has id 300; the model knows 0 to 255"),
    (["generation.prompt_ids=5,,3"], "generation.prompt_ids: an id is missing behind 5, between two commas"),
    (["generation.prompt=[]"], "generation.prompt: is []; give a string that is not empty, or a list of such strings, or null")])
def test_refused(place, sets, said):
    refuse(place[1], sets, said)


def test_no_text():
    refuse("configs/mlp.json", ["logging.sample_every_n_steps=1", "generation.prompt=x"], "logging.sample_every_n_steps: the model is a mlp, which writes no text; remove it")


def refuse(job, sets, said):
    sets = [w for s in sets for w in ("--set", s)]
    r = subprocess.run([support.program("train"), "--plan", job, *sets], capture_output=True, text=True, timeout=60, check=False, cwd=support.ROOT)
    assert r.returncode == 2 and said in r.stderr, r


def test_memory(place):
    """Rank 0 alone has the weights for samples, as fp32, and the plan says so."""
    totals = {}
    for every in (0, 3):
        for ranks in (1, 2):
            r = subprocess.run([support.program("train"), "--plan", "--nproc", str(ranks), place[1], "--set", f"logging.sample_every_n_steps={every}"],
                               capture_output=True, text=True, timeout=60, check=True)
            totals[every, ranks] = r.stdout
    weights = int(totals[0, 1].split(" parameters")[0].split(", ")[1]) * 4
    [staging, bare] = [int(t.split("staging")[1].split()[0]) for t in (totals[3, 2], totals[0, 2])]
    assert weights < staging - bare < 3 * weights
    assert totals[0, 2].split("2 ranks on this host: ")[1] != totals[3, 2].split("2 ranks on this host: ")[1]
