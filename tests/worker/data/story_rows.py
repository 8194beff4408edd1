# covers: worker/data/labelled.c worker/data/data.c worker/run/trainer_origin.c
"""Labelled rows train as the same rows padded by hand do, bit for bit."""

import json
import struct

import training

N, LENGTH, PAD = 16, 12, 4
ROWS = [[5 + (i * 31 + k * k * 7) % 50 for k in range(1 + i * 5 % LENGTH)] for i in range(N)]
LABELS = [i * 7 % 3 for i in range(N)]


def tensors(path, metadata=None, **all_of):
    """A safetensors file of (type, shape, numbers)."""
    codes, head, body = {"I32": "i", "I64": "q", "F32": "f"}, {"__metadata__": metadata or {}}, b""
    for name, (dtype, shape, numbers) in all_of.items():
        data = struct.pack(f"<{len(numbers)}{codes[dtype]}", *numbers)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return str(path)


def rows(path, labels=LABELS, names=("a", "b", "c")):
    starts = [sum(map(len, ROWS[:i])) for i in range(N + 1)]
    facts = {"format": "pt", "tokenizer": "words", "vocabulary": "64", "pad_id": str(PAD), "label_names": json.dumps(names)}
    return tensors(path, facts, ids=("I32", [starts[-1]], sum(ROWS, [])), starts=("I64", [N + 1], starts), labels=("I64", [N], labels))


def padded(path):
    ids = sum((row + [PAD] * (LENGTH - len(row)) for row in ROWS), [])
    mask = sum(([1] * len(row) + [0] * (LENGTH - len(row)) for row in ROWS), [])
    return tensors(path, input_ids=("I32", [N, LENGTH], ids), attention_mask=("I32", [N, LENGTH], mask), labels=("I64", [N], LABELS))


def make_job(folder, data, labels=3):
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": "bert", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64,
                  "max_position_embeddings": LENGTH, "num_labels": labels},
        "data": {"train": data, "val": data, "sequence_length": LENGTH},
        "training": {"threads": 1, "batch_size_per_gpu": 2, "max_steps": 6, "eval_every_n_steps": 3},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def numbers(out):
    return [{k: r.get(k) for k in ("step", "loss", "val_loss", "val_accuracy", "targets")} for r in map(json.loads, (out / "metrics.jsonl").open())]


def test_rows_are_padded(tmp_path):
    runs = []
    for name, data in (("rows", rows(tmp_path / "rows.safetensors")), ("padded", padded(tmp_path / "padded.safetensors"))):
        for ranks in (1, 2):
            out = tmp_path / f"{name}-{ranks}"
            result = training.train(make_job(tmp_path, data), str(out), ranks=ranks, sets=["data.group_by_length=false"] if name == "rows" else [])
            assert result.code == 0, result
            runs.append((training.hash_of(out), numbers(out)))
    assert runs[:2] == runs[2:]


def test_labels_of_another_list(tmp_path):
    """Two files of other classes, and a class that the model does not have."""
    train, val = rows(tmp_path / "train.safetensors"), rows(tmp_path / "val.safetensors", names=("a", "c", "b"))
    refused = training.train(make_job(tmp_path, train), str(tmp_path / "out"), ranks=1, sets=[f"data.val={val}"])
    assert refused.code != 0 and "class 1 is c, but in" in refused.err and "it is b; both need the same classes" in refused.err, refused
    refused = training.train(make_job(tmp_path, train, labels=2), str(tmp_path / "out"), ranks=1)
    assert refused.code != 0 and "has class 2, but the model has 2 classes; raise model.num_labels to 3 or more" in refused.err, refused


def test_names_of_classes(tmp_path):
    """The exported folder knows the names. A model that has them in another order is refused; one of other names gets the data's."""
    out = tmp_path / "out"
    assert training.train(make_job(tmp_path, rows(tmp_path / "rows.safetensors")), str(out), ranks=1).code == 0
    config = json.loads((out / "model/config.json").read_text())
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"} and config["label2id"] == {"a": 0, "b": 1, "c": 2}
    job = tmp_path / "loaded.json"
    for names, said in ((["a", "c", "b"], "class 2 is b, which is class 1 of the model"), (["x", "y", "z"], "")):
        data = rows(tmp_path / "other.safetensors", names=names)
        job.write_text(json.dumps({"model": {"load": str(out / "model")}, "data": {"train": data, "sequence_length": LENGTH},
                                   "training": {"threads": 1, "batch_size_per_gpu": 2, "max_steps": 1}}))
        r = training.train(str(job), str(tmp_path / "again"), ranks=1)
        assert (r.code != 0 and said in r.err) if said else r.code == 0, r
    assert json.loads((tmp_path / "again/model/config.json").read_text())["id2label"] == {"0": "x", "1": "y", "2": "z"}
