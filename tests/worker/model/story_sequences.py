# covers: worker/model/models/sequence_head.c worker/model/models/gpt2.c worker/model/blocks/last_token.c worker/model/blocks/class_head.c worker/model/models/decoders.c worker/data/tensors.c
"""Classes of sequences by decoders, as Transformers' ...ForSequenceClassification: losses of a run over padded rows, the folder that it
leaves, a new head on a language model, numbers as labels, the same bits under each strategy. Comparisons need the peers environment
(scripts/setup.sh --peers) and are skipped without it.

run: timeout 600"""

import json
import os
import random
import shutil
import struct
import subprocess

import dropin
import pytest

import support
from models import metrics, train, weights_hash

PEER = os.path.join(support.ROOT, "tests/peers/folders.py")
needs_peers = pytest.mark.skipif(not os.access(dropin.PEER_PYTHON, os.X_OK), reason=f"no Transformers at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
KEYS = {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "max_position_embeddings": 32, "pad_token_id": 3}
IDS = {"bos_token_id": None, "eos_token_id": None}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
CLASSES = {"LlamaForSequenceClassification": {}, "Qwen2ForSequenceClassification": {}, "Qwen3ForSequenceClassification": {}, "MistralForSequenceClassification": {"sliding_window": 5},
           "Gemma2ForSequenceClassification": {"sliding_window": 5}, "Gemma3TextForSequenceClassification": {"sliding_window": 5}, "SmolLM3ForSequenceClassification": {},
           "Phi3ForSequenceClassification": {}, "Olmo2ForSequenceClassification": {}, "GPT2ForSequenceClassification": NO_DROPOUT}
ROWS, LENGTH = 12, 14
RATE = 0.05  # with 0.1 OLMo 2 makes twenty times the rounding of a step
SOFTGPU = os.path.join(support.BUILD, "softgpu", "train")


def write_data(path, labels="class"):
    draw = random.Random(2)
    counts = [LENGTH, 1, 2, *(draw.randrange(1, LENGTH + 1) for _ in range(ROWS - 3))]
    ids = [[draw.choice([i for i in range(61) if i != 3]) if t < n else 3 for t in range(LENGTH)] for n in counts]
    ids[0][4] = 3  # a padding id that has tokens behind it
    mask = [[int(t < n) for t in range(LENGTH)] for n in counts]
    given = [draw.randrange(3) for _ in range(ROWS)] if labels == "class" else [draw.random() for _ in range(ROWS)]
    header, raw = {}, b""
    for name, values, kind, shape in (("input_ids", sum(ids, []), "i", [ROWS, LENGTH]), ("attention_mask", sum(mask, []), "i", [ROWS, LENGTH]),
                                      ("labels", given, "q" if labels == "class" else "f", [ROWS])):
        data = struct.pack(f"<{len(values)}{kind}", *values)
        header[name] = {"dtype": {"i": "I32", "q": "I64", "f": "F32"}[kind], "shape": shape, "data_offsets": [len(raw), len(raw) + len(data)]}
        raw += data
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw)
    return str(path)


def make_job(folder, model, data, steps, batch=ROWS, **keys):
    job = {"model": model, "data": {"train": data, "val": data, "shuffle": False, "sequence_length": LENGTH}, "optimizer": {"name": "sgd"},
           "training": {"batch_size_per_gpu": batch, "max_steps": steps, "learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0, "max_grad_norm": 0,
                        "threads": 1, **keys}, "logging": {"log_every_n_steps": 1}}
    path = os.path.join(str(folder), "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def ask(questions):
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(q) + "\n" for q in questions), capture_output=True, text=True,
                          timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_peers
def test_as_transformers(tmp_path):
    data = write_data(tmp_path / "data.safetensors")
    ask([{"make": str(tmp_path / name), "class": name, "config": {**KEYS, **IDS, **more, "num_labels": 3}} for name, more in CLASSES.items()])
    theirs = ask([{"train": str(tmp_path / name), "data": data, "rows": ROWS, "steps": 3, "learning_rate": RATE} for name in CLASSES])
    for name in CLASSES:
        train(make_job(tmp_path, {"load": str(tmp_path / name)}, data, 3), tmp_path / f"run-{name}")
    for name, answer in zip(CLASSES, theirs):
        run = tmp_path / f"run-{name}"
        assert metrics(run, "loss") == pytest.approx(answer["losses"][:3], rel=2e-6), name
        assert metrics(run, "val_loss")[-1] == pytest.approx(answer["losses"][3], rel=2e-6), name
    for name, answer in zip(CLASSES, ask([{"folder": str(tmp_path / f"run-{name}/model"), "data": data, "rows": ROWS, "dtype": "float32"} for name in CLASSES])):
        assert (answer["loading"], answer["said"]) == ({}, []), name
        assert answer["loss"] == pytest.approx(metrics(tmp_path / f"run-{name}", "val_loss")[-1], rel=2e-6), name


@needs_peers
def test_a_new_head_on_a_language_model(tmp_path):
    data, numbers = write_data(tmp_path / "data.safetensors"), write_data(tmp_path / "numbers.safetensors", "number")
    makes = [{"make": str(tmp_path / str(tied)), "class": "LlamaForCausalLM", "config": {**KEYS, **IDS, "tie_word_embeddings": tied}} for tied in (True, False)]
    ask(makes)
    for tied in (True, False):
        model = {"load": str(tmp_path / str(tied)), "task": "sequence_classification"}
        r = train(make_job(tmp_path, {**model, "num_labels": 3}, data, 2), tmp_path / f"run-{tied}")
        assert "score.weight" in r.stderr + r.stdout
        assert ("lm_head.weight" in r.stderr + r.stdout) == (not tied)
        train(make_job(tmp_path, {**model, "num_labels": 1}, numbers, 2), tmp_path / f"numbers-{tied}")
    folders = [(tmp_path / f"{kind}-{tied}", d) for kind, d in (("run", data), ("numbers", numbers)) for tied in (True, False)]
    for (run, _), answer in zip(folders, ask([{"folder": str(run / "model"), "data": d, "rows": ROWS, "dtype": "float32"} for run, d in folders])):
        with open(run / "model/config.json") as f:
            assert json.load(f)["architectures"] == ["LlamaForSequenceClassification"]
        assert (answer["loading"], answer["said"]) == ({}, [])
        assert answer["loss"] == pytest.approx(metrics(run, "val_loss")[-1], rel=2e-6)


@needs_peers
@pytest.mark.parametrize("of_class", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_the_job_gives_the_padding_id(tmp_path, of_class):
    """A published language model has none."""
    data, load = write_data(tmp_path / "data.safetensors"), str(tmp_path / "source")
    ask([{"make": load, "class": of_class, "config": {**KEYS, **IDS, **NO_DROPOUT, "pad_token_id": None}}])
    model = {"load": load, "task": "sequence_classification", "num_labels": 3}
    r = train(make_job(tmp_path, model, data, 1), tmp_path / "no", check=False)
    assert r.returncode == 2 and "pad_token_id null" in r.stderr
    train(make_job(tmp_path, {**model, "pad_token_id": 3}, data, 2, ROWS // 2), tmp_path / "run", 2)
    with open(tmp_path / "run/model/config.json") as f:
        config = json.load(f)
    assert config["pad_token_id"] == 3 and config["architectures"] == [of_class.removesuffix("LMHeadModel").removesuffix("ForCausalLM") + "ForSequenceClassification"]
    answer, = ask([{"folder": str(tmp_path / "run/model"), "data": data, "rows": ROWS, "dtype": "float32"}])
    assert (answer["loading"], answer["said"]) == ({}, [])
    assert answer["loss"] == pytest.approx(metrics(tmp_path / "run", "val_loss")[-1], rel=2e-6)
    r = train(make_job(tmp_path, {**model, "pad_token_id": 61}, data, 1), tmp_path / "no", check=False)
    assert r.returncode == 2 and "pad_token_id 61 is not below vocab_size 61" in r.stderr


@pytest.mark.skipif(not os.path.exists(SOFTGPU), reason="built without the CUDA toolkit's headers")
def test_on_the_software_gpu(tmp_path):
    """Losses, and what an evaluation says, are the CPU's."""
    for name in ("dtrun", "train"):
        shutil.copy2(support.program("dtrun") if name == "dtrun" else SOFTGPU, tmp_path / name)
    job = make_job(tmp_path, {"name": "llama", **KEYS, "task": "sequence_classification", "num_labels": 3, "initializer_range": 0.3},
                   write_data(tmp_path / "data.safetensors"), 3, ROWS // 2)
    train(job, tmp_path / "cpu", 2, "training.device=cpu", dtrun=tmp_path / "dtrun")
    train(job, tmp_path / "gpu", 2, "training.device=cuda", "training.share_gpu=true", "training.strategy=full_shard", dtrun=tmp_path / "dtrun")
    for key in ("loss", "grad_norm", "val_loss", "val_accuracy", "val_f1_macro"):
        assert metrics(tmp_path / "gpu", key) == pytest.approx(metrics(tmp_path / "cpu", key), rel=1e-5), key
    assert len(set(metrics(tmp_path / "gpu", "loss"))) == 3


def test_same_bits_and_what_is_refused(tmp_path):
    data = write_data(tmp_path / "data.safetensors")
    model = {"name": "llama", **KEYS, "task": "sequence_classification", "num_labels": 3, "attention_dropout": 0.1}
    hashes = set()
    for strategy in ("ddp", "full_shard"):
        train(make_job(tmp_path, model, data, 3, 3), tmp_path / strategy, 2, f"training.strategy={strategy}", "training.precision=bf16-mixed",
              "activation_checkpointing.enabled=true")
        hashes.add(weights_hash(tmp_path / strategy))
    assert len(hashes) == 1
    assert metrics(tmp_path / "ddp", "val_f1_macro") == metrics(tmp_path / "full_shard", "val_f1_macro")
    source = tmp_path / "ddp/model"
    config = json.loads((source / "config.json").read_text())
    config["id2label"] = {"0": "ham", "1": "spam", "2": "eggs"}
    (source / "config.json").write_text(json.dumps(config))
    train(make_job(tmp_path, {"load": str(source), "problem_type": "single_label_classification"}, data, 1), tmp_path / "named")
    told = json.loads((tmp_path / "named/model/config.json").read_text())
    assert (told["id2label"], told["problem_type"]) == (config["id2label"], "single_label_classification")  # classes that stay keep their names
    train(make_job(tmp_path, {"load": str(source), "num_labels": 4}, data, 1), tmp_path / "more")
    assert json.loads((tmp_path / "more/model/config.json").read_text())["id2label"]["3"] == "LABEL_3"
    r = train(make_job(tmp_path, {**model, "pad_token_id": None}, data, 1), tmp_path / "no", check=False)
    assert r.returncode == 2 and "pad_token_id null: a sequence's class is that of its last token" in r.stderr
    r = train(make_job(tmp_path, {**model, "pad_token_id": 4}, data, 1), tmp_path / "no", check=False)
    assert r.returncode == 2 and "has masked tokens other than model.pad_token_id 4" in r.stderr
    r = train(make_job(tmp_path, {**model, "num_labels": 2}, data, 1), tmp_path / "no", check=False)
    assert r.returncode == 2 and "num_labels" in r.stderr
    done = subprocess.run([support.program("train"), "--generate", tmp_path / "ddp", "--prompt_ids", "5,6"], capture_output=True, text=True)
    assert done.returncode == 2 and "writes no text" in done.stderr
