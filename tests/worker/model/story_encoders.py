# covers: worker/model/models/encoders.c worker/data/tensors.c worker/model/batch.c
"""Encoders as whole jobs: padded batches from a file of tensors, whose optional fields may be missing. A run agrees
with Transformers, and each strategy gives the same bits."""

import json
import math
import os
import struct
import subprocess

import pytest

import support
import training
from models import metrics, train, weights_hash

GOLDEN = os.path.join(support.ROOT, "tests/golden/models")


def make_job(folder, model, data, steps, micro_steps, batch, length):
    job = {
        "model": model,
        "data": {"train": data, "val": data, "shuffle": False, "sequence_length": length},
        "training": {"batch_size_per_gpu": batch, "gradient_accumulation_steps": micro_steps, "max_steps": steps, "learning_rate": 1e-3,
                     "lr_scheduler_type": "constant", "weight_decay": 0.1, "adam_beta2": 0.95, "max_grad_norm": 1.0, "threads": 1},
        "logging": {"log_every_n_steps": 1},
    }
    path = os.path.join(str(folder), "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


@pytest.mark.parametrize("name, steps, batch, length", [("bert", 20, 3, 20), ("roberta", 10, 2, 16), ("modernbert", 10, 2, 16)])
def test_as_transformers(tmp_path, name, steps, batch, length):
    """Losses and norms of a run that begins with a folder; the folder that it leaves names the same class."""
    with open(f"{GOLDEN}/{name}/expected.json") as f:
        expected = json.load(f)["runs"]["plain"]["fp64"]
    data = f"{GOLDEN}/{name}/batches.safetensors"
    train(make_job(tmp_path, {"load": f"{GOLDEN}/{name}/hf"}, data, steps, 4, batch, length), tmp_path / "run")
    assert metrics(tmp_path / "run", "loss") == pytest.approx(expected["loss"], rel=1e-5)
    assert metrics(tmp_path / "run", "grad_norm") == pytest.approx(expected["grad_norm"], rel=1e-4)
    with open(f"{GOLDEN}/{name}/hf/config.json") as f, open(tmp_path / "run/model/config.json") as g:
        began, ended = json.load(f), json.load(g)
    assert all(ended[k] == began[k] for k in ("architectures", "id2label", "model_type"))


@pytest.mark.parametrize("name, recompute, precision, dropouts", [
    ("bert", "none", "32-true", ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"]), ("bert", "block", "bf16-mixed", []),
    ("modernbert", "mlp", "bf16-mixed", ["embedding_dropout", "attention_dropout", "mlp_dropout"])])
def test_same_bits_under_each_strategy(tmp_path, name, recompute, precision, dropouts):
    """A new model on two ranks, whatever is kept, dropped or made again; it goes on from its checkpoint under another strategy."""
    model = {"name": name, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
             "max_position_embeddings": 20, "vocab_size": 97, "pad_token_id": 0, "num_labels": 3, **{key: 0.2 for key in dropouts}}
    job = make_job(tmp_path, model, f"{GOLDEN}/bert/batches.safetensors", 6, 1, 4, 20)
    sets = ["activation_checkpointing.enabled=true", f"activation_checkpointing.level={recompute}",
            f"training.precision={precision}"]
    hashes, losses = set(), set()
    for strategy in ["ddp", "full_shard"]:
        train(job, tmp_path / strategy, 2, f"training.strategy={strategy}", *sets)
        hashes.add(weights_hash(tmp_path / strategy))
        losses.add(tuple(metrics(tmp_path / strategy, "loss") + metrics(tmp_path / strategy, "val_loss")))
    train(job, tmp_path / "half", 2, f"training.precision={precision}", "training.strategy=full_shard", "training.max_steps=3")
    train(job, tmp_path / "half", 2, f"training.precision={precision}", "training.strategy=zero2")
    assert hashes == {weights_hash(tmp_path / "half")} and len(losses) == 1


@pytest.mark.parametrize("task, kind", [("token_classification", "TokenClassification"), ("masked_lm", "MaskedLM")])
def test_tokens(tmp_path, task, kind):
    """Each token has a label; the exported folder says so, and a run that begins with it has the same loss."""
    model = {"name": "distilbert", "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2, "vocab_size": 160, "num_labels": 160,
             "max_position_embeddings": 24, "task": task}
    r = train(make_job(tmp_path, model, f"{GOLDEN}/distilbert/batches.safetensors", 2, 1, 2, 16), tmp_path / "run", check=False)
    assert "labels: shape (10, 4, 2), but the model reads (n, 16)" in r.stderr + r.stdout
    data = f"{GOLDEN}/llama/batches.safetensors"
    train(make_job(tmp_path, model, data, 2, 1, 2, 24), tmp_path / "run")
    with open(tmp_path / "run/model/config.json") as f:
        assert json.load(f)["architectures"] == ["DistilBertFor" + kind]
    r = subprocess.run([support.program("dtckpt"), "sample", str(tmp_path / "run"), "x"], capture_output=True, text=True, timeout=60)
    assert "the model is a distilbert, which writes no text" in r.stderr + r.stdout
    job = make_job(tmp_path, {"load": str(tmp_path / "run/model")}, data, 1, 1, 2, 24)
    train(job, tmp_path / "again", 1, "training.learning_rate=0")
    assert metrics(tmp_path / "again", "val_loss") == pytest.approx(metrics(tmp_path / "run", "val_loss"), rel=1e-6)


def without(source, target, *starts, labels=None):
    """A copy of a safetensors file without the tensors whose names begin so. labels: a shape, and numbers to be added as F32."""
    with open(source, "rb") as f:
        raw = f.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data = {}, b""
    for name, x in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__" and not name.startswith(starts):
            begin, end = x["data_offsets"]
            header[name] = {**x, "data_offsets": [len(data), len(data) + end - begin]}
            data += raw[8 + size + begin:8 + size + end]
    if labels is not None:
        raw = struct.pack(f"<{len(labels[1])}f", *labels[1])
        header["labels"] = {"dtype": "F32", "shape": labels[0], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def test_other_heads_are_said(tmp_path):
    """Published folders hold heads of other tasks, which are not used; buffers need no word."""
    legacy = f"{GOLDEN}/bert/hf_legacy"
    r = train(make_job(tmp_path, {"load": legacy}, f"{GOLDEN}/bert/batches.safetensors", 1, 1, 3, 20), tmp_path / "run")
    said = [line for line in (r.stderr + r.stdout).splitlines() if "not used, since they are of another head" in line]
    assert len(said) == 1 and "cls.predictions" in said[0] and "position_ids" not in said[0], said


def test_a_new_head(tmp_path):
    """A folder without a classifier, as models are published: the job says what gets which classes, what is missing begins
    anew under each strategy alike, and the exported folder has the new head."""
    base = tmp_path / "base"
    os.mkdir(base)
    without(f"{GOLDEN}/roberta/hf/model.safetensors", base / "model.safetensors", "classifier.")
    with open(f"{GOLDEN}/roberta/hf/config.json") as f:
        config = {**json.load(f), "architectures": ["RobertaForMaskedLM"]}
    with open(base / "config.json", "w") as f:
        json.dump({k: v for k, v in config.items() if k not in ("id2label", "label2id")}, f)
    data = f"{GOLDEN}/roberta/batches.safetensors"
    job = make_job(tmp_path, {"load": str(base), "task": "sequence_classification", "num_labels": 5}, data, 4, 1, 2, 16)
    hashes = set()
    for strategy in ["ddp", "full_shard"]:
        r = train(job, tmp_path / strategy, 2, f"training.strategy={strategy}")
        hashes.add(weights_hash(tmp_path / strategy))
        assert "does not have classifier.dense.weight, classifier.dense.bias, classifier.out_proj.weight" in r.stderr + r.stdout
    assert len(hashes) == 1
    with open(tmp_path / "ddp/model/config.json") as f:
        config = json.load(f)
    assert config["architectures"] == ["RobertaForSequenceClassification"] and config["id2label"]["4"] == "LABEL_4"
    job = make_job(tmp_path, {"load": str(tmp_path / "ddp/model")}, data, 1, 1, 2, 16)
    train(job, tmp_path / "again", 1, "training.learning_rate=0")
    assert metrics(tmp_path / "again", "val_loss") == pytest.approx(metrics(tmp_path / "ddp", "val_loss"), rel=1e-6)
    # a head of another size begins anew, too; the part that fits is taken
    r = train(job, tmp_path / "three", 1, "model.task=sequence_classification", "model.num_labels=3")
    said = r.stderr + r.stdout
    assert "does not have classifier.out_proj.weight, classifier.out_proj.bias" in said and "out_proj.bias [5] instead of [3]" in said, said
    # other keys than those of the head stay the folder's
    r = train(job, tmp_path / "no", 1, f"model.load={base}", "model.hidden_size=32", check=False)
    assert "model.hidden_size: is 32, but" in r.stderr + r.stdout
    without(f"{GOLDEN}/roberta/hf/model.safetensors", base / "model.safetensors", "roberta.encoder.layer.1.")
    r = train(job, tmp_path / "no", 1, f"model.load={base}", "model.task=sequence_classification", "model.num_labels=3",
              check=False)
    assert "tensors do not fit its config.json: 16 missing: roberta.encoder.layer.1." in r.stderr + r.stdout


LABELS = {"regression": lambda row, c: ((row * 7 + c * 5) % 23) / 8 - 1, "multi_label_classification": lambda row, c: float((row * 7 + c * 5) % 3 == 0)}


@pytest.mark.parametrize("problem", LABELS)
def test_numbers_as_labels_as_transformers(tmp_path, problem):
    """Losses and norms; the labels that make_labels.py has. The folder that a run leaves says what its head gives."""
    with open(f"{GOLDEN}/bert/labels.json") as f:
        expected = json.load(f)[problem]
    data = str(tmp_path / "data.safetensors")
    without(f"{GOLDEN}/bert/batches.safetensors", data, "labels", labels=([20, 4, 3, 3], [LABELS[problem](row, c) for row in range(240) for c in range(3)]))
    job = make_job(tmp_path, {"load": f"{GOLDEN}/bert/hf", "problem_type": problem}, data, len(expected["loss"]), 4, 3, 20)
    train(job, tmp_path / "run")
    assert metrics(tmp_path / "run", "loss") == pytest.approx(expected["loss"], rel=1e-5)
    assert metrics(tmp_path / "run", "grad_norm") == pytest.approx(expected["grad_norm"], rel=1e-4)
    with open(tmp_path / "run/model/config.json") as f:
        config = json.load(f)
    assert config["problem_type"] == problem and len(config["id2label"]) == 3
    job = make_job(tmp_path, {"load": str(tmp_path / "run/model")}, data, 1, 4, 3, 20)
    train(job, tmp_path / "again", 1, "training.learning_rate=0")
    assert metrics(tmp_path / "again", "val_loss") == pytest.approx(metrics(tmp_path / "run", "val_loss"), rel=1e-6)
    with open(tmp_path / "again/metrics.jsonl") as f:
        [last] = [m for m in map(json.loads, f) if "val_loss" in m][-1:]
    if problem == "regression":
        assert "val_f1_macro" not in last
    else:
        assert 0 <= last["val_accuracy"] < 1 and 0 < last["val_f1_micro"] < 1 and last["val_f1_macro"] == pytest.approx(sum(last["val_f1"]) / 3)
    r = train(make_job(tmp_path, {"load": f"{GOLDEN}/bert/hf"}, data, 1, 1, 3, 20), tmp_path / "no", check=False)
    assert "labels are numbers, but the model gives classes; for numbers set model.problem_type" in r.stderr + r.stdout
    without(data, str(tmp_path / "two.safetensors"), "labels", labels=([20, 4, 3, 3], [0.5] * 719 + [2]))
    job = make_job(tmp_path, {"load": f"{GOLDEN}/bert/hf", "problem_type": problem}, str(tmp_path / "two.safetensors"), 1, 1, 3, 20)
    r = train(job, tmp_path / "two", check=False)
    assert r.returncode == (0 if problem == "regression" else 2), r
    assert problem == "regression" or "labels: sample 240 has 2; labels of several classes are from 0 to 1" in r.stderr + r.stdout, r


SMALL = {"vocab_size": 160, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32,
         "task": "masked_lm"}
HEADS = {"gpt2": ({"vocab_size": 160, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}, "transformer.wte.weight", "lm_head.weight"),
         "bert": (SMALL, "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
         "roberta": (SMALL, "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
         "distilbert": ({"vocab_size": 160, "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 32, "task": "masked_lm"},
                        "distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
         "modernbert": ({**SMALL, "pad_token_id": 0}, "model.embeddings.tok_embeddings.weight", "decoder.weight")}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_of_its_own(tmp_path, name):
    """tie_word_embeddings false: two tables, the same bits under each strategy, and a folder with both that goes on with the same loss. By default there is one."""
    sizes, table, head = HEADS[name]
    data = f"{GOLDEN}/llama/batches.safetensors"
    job = make_job(tmp_path, {"name": name, **sizes, "tie_word_embeddings": False}, data, 2, 1, 2, 24)
    for strategy in ("ddp", "full_shard"):
        train(job, tmp_path / strategy, 2, f"training.strategy={strategy}", "training.precision=bf16-mixed")
    assert weights_hash(tmp_path / "ddp") == weights_hash(tmp_path / "full_shard")
    assert metrics(tmp_path / "ddp", "val_loss") == metrics(tmp_path / "full_shard", "val_loss")
    train(job, tmp_path / "run")
    header, raw = training.read_tensors(tmp_path / "run/model/model.safetensors")
    [one, two] = [raw[slice(*header[x]["data_offsets"])] for x in (table, head)]
    assert len(one) == len(two) == 160 * 16 * 4 and one != two
    assert metrics(tmp_path / "run", "val_perplexity")[-1] == pytest.approx(math.exp(metrics(tmp_path / "run", "val_loss")[-1]), rel=1e-6)
    train(make_job(tmp_path, {"load": str(tmp_path / "run/model")}, data, 1, 1, 2, 24), tmp_path / "again", 1, "training.learning_rate=0")
    assert metrics(tmp_path / "again", "val_loss") == pytest.approx(metrics(tmp_path / "run", "val_loss"), rel=1e-6)
    train(make_job(tmp_path, {"name": name, **sizes}, data, 1, 1, 2, 24), tmp_path / "tied")
    assert head not in training.read_tensors(tmp_path / "tied/model/model.safetensors")[0]


def test_one_bias_of_an_untied_head(tmp_path):
    """Files of older versions have the bias under one name, whichever it is: the same loss."""
    sizes, names = HEADS["bert"][0], ("cls.predictions.bias", "cls.predictions.decoder.bias")
    data, found = f"{GOLDEN}/llama/batches.safetensors", []
    train(make_job(tmp_path, {"name": "bert", **sizes, "tie_word_embeddings": False}, data, 2, 1, 2, 24), tmp_path / "run")
    folder = tmp_path / "run/model"
    os.rename(folder / "model.safetensors", tmp_path / "whole")
    header, raw = training.read_tensors(tmp_path / "whole")
    for other in names:
        kept, body = {}, b""
        for x, entry in header.items():
            if x != "__metadata__" and x != names[0]:
                kept[other if x == names[1] else x] = {**entry, "data_offsets": [len(body), len(body) + entry["data_offsets"][1] - entry["data_offsets"][0]]}
                body += raw[slice(*entry["data_offsets"])]
        text = json.dumps(kept).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        train(make_job(tmp_path, {"load": str(folder)}, data, 1, 1, 2, 24), tmp_path / other, 1, "training.learning_rate=0")
        found += metrics(tmp_path / other, "val_loss")
    assert found == pytest.approx(metrics(tmp_path / "run", "val_loss") * 2, rel=1e-6)


def test_pearson_as_transformers(tmp_path):
    """The correlation of the weights in the folder, which make_labels.py has, on any number of ranks, and by --evaluate."""
    with open(f"{GOLDEN}/bert/labels.json") as f:
        expected = json.load(f)["pearson"]
    data, got = str(tmp_path / "data.safetensors"), []
    without(f"{GOLDEN}/bert/batches.safetensors", data, "labels", labels=([20, 4, 3, 3], [LABELS["regression"](row, c) for row in range(240) for c in range(3)]))
    model = {"load": f"{GOLDEN}/bert/hf", "problem_type": "regression"}
    for ranks in (1, 2, 3):
        out = tmp_path / f"{ranks}"
        said = train(make_job(tmp_path, model, data, 1, 1, 7, 20), out, ranks, "training.learning_rate=0").stderr
        got += metrics(out, "val_pearson")
    assert f"pearson {expected:.4f}\n" in said, said
    r = subprocess.run([support.program("train"), "--evaluate", f"{GOLDEN}/bert/hf", f"{tmp_path}/job.json", "--set", "model.problem_type=regression"],
                       capture_output=True, text=True, timeout=60, check=True)
    got.append(json.loads(r.stdout)["val_pearson"])
    assert len(got) == 4 and got == pytest.approx([expected] * 4, abs=1e-7), (got, expected)


def test_rows_without_variance(tmp_path):
    """DistilBERT's norms have an epsilon that is no key: constant embeddings train on, as in Transformers."""
    model = {"name": "distilbert", "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2, "vocab_size": 160, "num_labels": 3, "max_position_embeddings": 24,
             "initializer_range": 0}
    train(make_job(tmp_path, model, f"{GOLDEN}/distilbert/batches.safetensors", 2, 1, 2, 16), tmp_path / "run")
    assert metrics(tmp_path / "run", "loss")[0] == pytest.approx(1.0986123, rel=1e-5)


def test_one_number(tmp_path):
    """num_labels 1 is regression without more words. Each strategy gives the same bits on three ranks, whose evaluation is that of one."""
    model = {"name": "distilbert", "dim": 16, "hidden_dim": 24, "n_layers": 1, "n_heads": 2, "vocab_size": 160, "num_labels": 1, "max_position_embeddings": 24}
    data, val = str(tmp_path / "data.safetensors"), []
    without(f"{GOLDEN}/distilbert/batches.safetensors", data, "labels", labels=([80], [LABELS["regression"](row, 0) for row in range(80)]))
    hashes = set()
    for ranks, strategy in ((3, "ddp"), (3, "full_shard"), (3, "zero2"), (1, "ddp")):
        out = tmp_path / f"{strategy}-{ranks}"
        train(make_job(tmp_path, model, data, 3, 3 // ranks, 2, 16), out, ranks, f"training.strategy={strategy}")
        hashes.update({weights_hash(out)} if ranks == 3 else ())
        val.append(metrics(out, "val_loss")[-1])
    assert len(hashes) == 1 and val == pytest.approx([val[0]] * 4, rel=1e-6), (hashes, val)
    without(f"{GOLDEN}/distilbert/batches.safetensors", data, "labels", labels=([80], [0.5] * 71 + [float("nan")] * 9))
    r = train(make_job(tmp_path, model, data, 3, 1, 2, 16), tmp_path / "no", check=False)
    assert "labels: sample 72 has nan; labels are finite F32 numbers" in r.stderr + r.stdout
    r = train(make_job(tmp_path, model, f"{GOLDEN}/distilbert/batches.safetensors", 3, 1, 2, 16), tmp_path / "no", check=False)
    assert "labels are integers, but the model gives numbers; write them as F32" in r.stderr + r.stdout
