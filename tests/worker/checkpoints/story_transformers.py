# covers: worker/checkpoints/checkpoint_export.c worker/checkpoints/hf.c worker/run/trainer_origin.c worker/model/models/decoders.c worker/model/models/encoders.c worker/model/models/gpt2.c
"""Transformers is the judge of folders: for each family a run that begins with a folder logs the loss that Transformers
computes from it, and what train and dtckpt export it loads without a warning, with the same loss: in one file or several, in
fp32 and bf16. Needs the peers environment (scripts/setup.sh --peers); skipped without it.

run: timeout 300"""

import json
import os
import subprocess

import dropin
import pytest
import training

import support

GOLDEN = os.path.join(support.ROOT, "tests/golden/models")
FAMILIES = ["gpt2", "llama", "llama3_tied", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "phi3", "olmo2", "granite", "bert",
            "roberta", "distilbert", "modernbert"]
PEER = os.path.join(support.ROOT, "tests/peers/folders.py")
ROWS = 2
SHARD = "20KB"


def has_transformers():
    if not os.access(dropin.PEER_PYTHON, os.X_OK):
        return False
    find = "import importlib.util as u; raise SystemExit(not all(u.find_spec(n) for n in ('torch', 'transformers', 'safetensors')))"
    return subprocess.run([dropin.PEER_PYTHON, "-c", find], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_transformers(), reason=f"no transformers at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")


def train(folder, source, data):
    """One step that changes nothing: (loss, what was said)."""
    rows = training.read_tensors(data)[0]["input_ids"]["shape"]
    os.makedirs(folder)
    with open(f"{folder}/job.json", "w") as f:
        json.dump({"model": {"load": source}, "data": {"train": data, "shuffle": False, "sequence_length": rows[-1]},
                   "training": {"batch_size_per_gpu": ROWS, "max_steps": 1, "learning_rate": 0.0, "threads": 1},
                   "logging": {"log_every_n_steps": 1}}, f)
    done = subprocess.run([support.program("train"), f"{folder}/job.json", "--output_dir", f"{folder}/run"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    with open(f"{folder}/run/metrics.jsonl") as f:
        return next(m["loss"] for m in map(json.loads, f) if "loss" in m), done.stdout + done.stderr


def export(folder, out, *options):
    done = subprocess.run([support.program("dtckpt"), "export", f"{folder}/run", out, *options], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of each family: our loss, and what Transformers answers of each folder. One process answers all, since its imports take seconds."""
    top, found, asked = tmp_path_factory.mktemp("folders"), {}, []
    sources = {name: (f"{GOLDEN}/{name}/hf", f"{GOLDEN}/{name}/batches.safetensors") for name in FAMILIES}
    sources["untied"] = (training.untie(f"{GOLDEN}/llama3_tied/hf", top / "source"), sources["llama3_tied"][1])
    for name, (source, data) in sources.items():
        loss, said = train(top / name, source, data)
        found[name] = {"loss": loss, "said": said, "folder": top / name}
        for kind, options in (("shards", ["--dtype", "bf16", f"--max_shard_size={SHARD}"]), ("half", ["--dtype=fp16"])):
            export(top / name, top / name / kind, *options)
        for kind, folder in (("source", source), ("model", top / name / "run/model"), ("shards", top / name / "shards"), ("half", top / name / "half")):
            asked.append((name, kind, {"folder": str(folder), "data": data, "rows": ROWS, "dtype": "float32"}))
        asked.append((name, "split", {"split": str(top / name / "shards"), "max_shard_size": SHARD}))
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(a[2]) + "\n" for a in asked), capture_output=True, text=True,
                          timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    for (name, kind, _), line in zip(asked, done.stdout.splitlines(), strict=True):
        found[name][kind] = json.loads(line)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_folders(results, name):
    r = results[name]
    assert r["loss"] == pytest.approx(r["source"]["loss"], rel=2e-6)
    assert r["model"]["loss"] == pytest.approx(r["source"]["loss"], rel=1e-7)
    for kind, most in (("shards", 2e-2), ("half", 2e-3)):  # weights are rounded
        assert r[kind]["loss"] == pytest.approx(r["source"]["loss"], rel=most)
    for kind in ("model", "shards", "half"):
        assert (r[kind]["loading"], r[kind]["said"]) == ({}, []), kind
    with open(r["folder"] / "shards/model.safetensors.index.json") as f:
        index = json.load(f)
    assert len(set(index["weight_map"].values())) > 1
    assert index["weight_map"] == r["split"]["files"] and index["metadata"]["total_size"] == r["split"]["metadata"]["total_size"]
    for kind, dtype in (("model", "float32"), ("shards", "bfloat16"), ("half", "float16")):
        with open(r["folder"] / ("run/model" if kind == "model" else kind) / "config.json") as f:
            config = json.load(f)
        assert config["dtype"] == config["torch_dtype"] == dtype


def test_a_head_that_is_not_the_embedding(results):
    """Transformers keeps both and warns, and so does the run, once; its own folder needs no warning."""
    r = results["untied"]
    said = "lm_head.weight differs from model.embed_tokens.weight, though config.json says tie_word_embeddings true"
    assert r["said"].count(said) == 1
    assert "tie" in " ".join(r["source"]["said"])
    assert r["source"]["loss"] != pytest.approx(results["llama3_tied"]["source"]["loss"], rel=1e-2)
    assert r["loss"] == pytest.approx(r["source"]["loss"], rel=2e-6)
    assert r["model"]["loss"] == pytest.approx(r["source"]["loss"], rel=1e-7)
    for kind in ("model", "shards", "half"):
        assert (r[kind]["loading"], r[kind]["said"]) == ({}, []), kind
    with open(r["folder"] / "run/model/config.json") as f:
        assert json.load(f)["tie_word_embeddings"] is False
