# covers: worker/checkpoints/checkpoint_export.c worker/checkpoints/hf.c worker/run/trainer_origin.c worker/model/models/decoders.c worker/model/models/rope_section.c worker/model/models/encoders.c worker/model/models/gpt2.c
"""Transformers is the judge of folders: for each family a run that begins with a folder logs the loss that Transformers
computes from it, and what train and dtckpt export it loads without a warning, with the same loss: in one file or several, in
fp32 and bf16. Needs the peers environment (scripts/setup.sh --peers); skipped without it.

run: timeout 420"""

import json
import os
import struct
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


SIZES = {"vocab_size": 160, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
UNTIED = {"GPT2LMHeadModel": {"vocab_size": 160, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0},
          "BertForMaskedLM": SIZES, "RobertaForMaskedLM": SIZES,
          "DistilBertForMaskedLM": {"vocab_size": 160, "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 32},
          "ModernBertForMaskedLM": {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}}
DROPOUTS = ("dropout", "attention_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop")
NO_DROPOUT = {"GPT2LMHeadModel": DROPOUTS[4:], "BertForMaskedLM": DROPOUTS[2:4], "RobertaForMaskedLM": DROPOUTS[2:4], "DistilBertForMaskedLM": DROPOUTS[:2],
              "ModernBertForMaskedLM": ()}


def ask(questions):
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(q) + "\n" for q in questions), capture_output=True, text=True, timeout=240,
                          env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def next_tokens(folder):
    """Rows of llama's batches, whose labels are their ids."""
    header, data = training.read_tensors(f"{GOLDEN}/llama/batches.safetensors")
    begin, end = header["input_ids"]["data_offsets"]
    count = (end - begin) // 8
    ids = [i % 160 for i in struct.unpack(f"<{count}q", data[begin:end])] if header["input_ids"]["dtype"] == "I64" else None
    raw = struct.pack(f"<{count}q", *(max(i, 3) for i in ids))
    entry = {**header["input_ids"], "data_offsets": [0, len(raw)]}
    text = json.dumps({"input_ids": entry, "labels": {**entry, "data_offsets": [len(raw), 2 * len(raw)]}}).encode()
    path = f"{folder}/tokens.safetensors"
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw + raw)
    return path, entry["shape"][-1]


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    """Of each class a folder that Transformers made with a head of its own, and a run of two steps that begins with it."""
    top, found = tmp_path_factory.mktemp("untied"), {}
    data, length = next_tokens(top)
    ask([{"make": f"{top}/{name}", "class": name, "config": {**config, "tie_word_embeddings": False, **dict.fromkeys(NO_DROPOUT[name], 0.0)}}
         for name, config in UNTIED.items()])
    for name in UNTIED:
        out = top / f"run-{name}"
        with open(top / "job.json", "w") as f:
            json.dump({"model": {"load": f"{top}/{name}"}, "data": {"train": data, "val": data, "shuffle": False, "sequence_length": length},
                       "training": {"batch_size_per_gpu": ROWS, "max_steps": 2, "learning_rate": 1e-2, "threads": 1, "eval_batches": 1, "max_grad_norm": 0},
                       "logging": {"log_every_n_steps": 1}}, f)
        done = subprocess.run([support.program("train"), f"{top}/job.json", "--output_dir", str(out)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "begin anew" not in done.stderr, done.stderr
        with open(out / "metrics.jsonl") as f:
            lines = [json.loads(line) for line in f]
        found[name] = {"first": lines[0], "val_loss": lines[-1]["val_loss"], "model": f"{out}/model", "source": f"{top}/{name}"}
    answers = ask([{"folder": found[name][kind], "data": data, "rows": ROWS, "dtype": "float32"} for name in UNTIED for kind in ("source", "model")])
    for i, name in enumerate(UNTIED):
        found[name]["theirs"], found[name]["ours"] = answers[2 * i:2 * i + 2]
    return found


@pytest.mark.parametrize("name", UNTIED)
def test_a_head_of_its_own(untied, name):
    """tie_word_embeddings false: loss and gradient are Transformers', and the folder that the run leaves it loads without a word."""
    r = untied[name]
    assert r["first"]["loss"] == pytest.approx(r["theirs"]["loss"], rel=2e-6)
    assert r["first"]["grad_norm"] == pytest.approx(r["theirs"]["grad_norm"], rel=1e-5)
    assert r["ours"]["loss"] == pytest.approx(r["val_loss"], rel=2e-6) and r["ours"]["loss"] < r["theirs"]["loss"]
    assert (r["ours"]["loading"], r["ours"]["said"]) == ({}, [])
    with open(f"{r['model']}/config.json") as f:
        assert json.load(f)["tie_word_embeddings"] is False
    headers = [training.read_tensors(f"{r[kind]}/model.safetensors")[0] for kind in ("source", "model")]
    assert set(headers[0]) - {"__metadata__"} == set(headers[1]) - {"__metadata__"}


TINY = {"vocab_size": 160, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "max_position_embeddings": 32}
TINY_ENCODER = {k: v for k, v in TINY.items() if k not in ("num_key_value_heads", "head_dim")}
DESCRIBED = {"mistral-nemo-12b": {}, "mistral-7b": {"sliding_window": 5}, "phi-3-mini": {"sliding_window": 5, "pad_token_id": None},
             "olmo-2-1b": {"pad_token_id": None}, "gemma-2-2b": {"attn_logit_softcapping": None, "sliding_window": 5, "query_pre_attn_scalar": 9},
             "gemma-3-1b": {"sliding_window": 5}, "qwen3-0.6b": {}, "smollm3-3b": {"pad_token_id": None}, "gemma-3-4b": {"sliding_window": 5},
             "modernbert-base": {"pad_token_id": 1, "task": "masked_lm"}}
LINEAR, OTHER = {"rope_type": "linear", "factor": 4.0}, {"rope_type": "default", "rope_theta": 300.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
# of a folder's config.json: what is taken out, what is put in, and whether Transformers loads it
EDITS = {
    "scaling wins": ("llama", (), {"rope_parameters": OTHER, "rope_theta": 9.0, "rope_scaling": LINEAR}, True),
    "scaling empty": ("llama", (), {"rope_parameters": OTHER, "rope_scaling": {}}, True),
    "null factor": ("llama", (), {"rope_parameters": {**YARN, "factor": None}}, True),
    "length beside": ("llama", (), {"rope_parameters": LLAMA3, "original_max_position_embeddings": 8}, True),
    "no factor": ("llama", (), {"rope_parameters": YARN}, False),
    "no frequency": ("llama", (), {"rope_parameters": {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}}, False),
    "null linear": ("llama", (), {"rope_parameters": {**LINEAR, "factor": None}}, False),
    "a list": ("llama", (), {"rope_parameters": [1]}, False),
    "a word": ("llama", (), {"rope_scaling": "linear", "rope_parameters": None}, False),
    "two patterns": ("gemma3_text", ("layer_types",), {"sliding_window_pattern": 3, "_sliding_window_pattern": 2}, True),
    "its own pattern": ("gemma3_text", ("layer_types", "sliding_window_pattern"), {"_sliding_window_pattern": 2}, True),
    "scaling joins": ("gemma3_text", (), {"rope_scaling": LINEAR}, True),
    "flat": ("modernbert", (), {"rope_parameters": OTHER}, False),
}


RENAMED = ["xlm-roberta", "camembert"]


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """Folders of models that jobs describe by a preset and sizes, and folders with another config.json: our loss (none: refused),
    what was said, and what Transformers answers of each."""
    top, found = tmp_path_factory.mktemp("described"), {}
    data, length = next_tokens(top)
    for name, keys in DESCRIBED.items():
        with open(top / "job.json", "w") as f:
            json.dump({"model": {"name": name, **(TINY_ENCODER if "bert" in name else TINY), **keys}, "data": {"train": data, "val": data, "shuffle": False, "sequence_length": length},
                       "training": {"batch_size_per_gpu": ROWS, "max_steps": 1, "learning_rate": 1e-2, "threads": 1, "eval_batches": 1}}, f)
        done = subprocess.run([support.program("train"), f"{top}/job.json", "--output_dir", f"{top}/{name}"], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (name, done.stderr)
        with open(top / name / "metrics.jsonl") as f:
            found[name] = {"loss": [json.loads(line) for line in f][-1]["val_loss"], "said": done.stderr,
                           "ask": {"folder": f"{top}/{name}/model", "data": data, "rows": ROWS, "dtype": "float32"}}
    rows = f"{GOLDEN}/roberta/batches.safetensors"
    for name in RENAMED:
        os.mkdir(top / f"{name}-hf")
        os.symlink(f"{GOLDEN}/roberta/hf/model.safetensors", top / f"{name}-hf/model.safetensors")
        with open(f"{GOLDEN}/roberta/hf/config.json") as f, open(top / f"{name}-hf/config.json", "w") as g:
            json.dump({**json.load(f), "model_type": name, "architectures": ["AutoModel"]}, g)
        loss, said = train(top / name, f"{top}/{name}-hf", rows)
        found[name] = {"loss": loss, "said": said, "ask": {"folder": f"{top}/{name}/run/model", "data": rows, "rows": ROWS, "dtype": "float32"}}
    for name, (golden, out, into, _) in EDITS.items():
        folder, rows = top / name, f"{GOLDEN}/{golden}/batches.safetensors"
        os.mkdir(folder)
        for file in os.listdir(f"{GOLDEN}/{golden}/hf"):
            if file.startswith("model"):
                os.symlink(f"{GOLDEN}/{golden}/hf/{file}", folder / file)
        with open(f"{GOLDEN}/{golden}/hf/config.json") as f:
            config = {k: v for k, v in json.load(f).items() if k not in out}
        with open(folder / "config.json", "w") as f:
            json.dump({**config, **into}, f)
        with open(top / "job.json", "w") as f:
            json.dump({"data": {"val": rows, "sequence_length": training.read_tensors(rows)[0]["input_ids"]["shape"][-1]},
                       "training": {"batch_size_per_gpu": ROWS, "threads": 1, "eval_batches": 1}}, f)
        done = subprocess.run([support.program("train"), "--evaluate", str(folder), f"{top}/job.json"], capture_output=True, text=True, timeout=120)
        found[name] = {"loss": json.loads(done.stdout)["val_loss"] if done.returncode == 0 else None, "said": done.stderr,
                       "ask": {"folder": str(folder), "data": rows, "rows": ROWS, "dtype": "float32", "refusals": True}}
    for name, answer in zip(found, ask([f["ask"] for f in found.values()]), strict=True):
        found[name]["theirs"] = answer
    return found


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_model_that_a_job_describes(described, name):
    """Transformers loads it without a word, as the class of its family."""
    r = described[name]
    assert (r["theirs"]["loading"], r["theirs"]["said"]) == ({}, [])
    assert r["theirs"]["loss"] == pytest.approx(r["loss"], rel=2e-6)


@pytest.mark.parametrize("name", RENAMED)
def test_a_family_by_another_name(described, name):
    """config.json has the class that Transformers makes of it (the peer compares)."""
    r = described[name]
    assert (r["theirs"]["loading"], r["theirs"]["said"]) == ({}, [])
    assert r["theirs"]["loss"] == pytest.approx(r["loss"], rel=2e-6)


@pytest.mark.parametrize("name", EDITS)
def test_a_config_of_two_spellings(described, name):
    """It means what Transformers computes; what that refuses is refused, with the file and the key."""
    r = described[name]
    if EDITS[name][3]:
        assert r["loss"] == pytest.approx(r["theirs"]["loss"], rel=2e-6), r["said"]
    else:
        assert "no file" not in r["theirs"]["refused"] and r["loss"] is None and "/config.json: rope_" in r["said"], r
