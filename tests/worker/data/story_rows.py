# covers: worker/data/labelled.c worker/data/data.c worker/run/trainer_origin.c cmd/train/classes.c
"""Labelled rows train as the same rows padded by hand do, bit for bit."""

import json
import struct
import subprocess

import support
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


def test_evaluated_classes(tmp_path):
    """A model's names say which class a number is: data of other names, or of the same in another order, are refused. Numbers, and data or models without
    names, are taken as they are."""
    out = tmp_path / "out"
    job = make_job(tmp_path, rows(tmp_path / "rows.safetensors"), labels=4)
    assert training.train(job, str(out), ranks=1).code == 0

    def evaluate(data, model=out):
        return subprocess.run([support.program("train"), "--evaluate", model, job, "--set", f"data.val={data}"], capture_output=True, text=True,
                              timeout=support.DEADLINE_S, check=False, env=support.clean_env())

    good = evaluate(tmp_path / "rows.safetensors")
    assert good.returncode == 0, good
    some = {"labels": [0] * N}
    for model in out, out / "model":
        for names, more, said in ((["c"], some, "class 0 is c, which is class 2 of the model; make the data with its order of labels, a, b, c ("),
                                  (["a", "c", "b"], {}, "class 1 is c, which is class 2 of the model"),
                                  (["a", "b", "z"], {}, "class 2 is z, which the model does not have; give data of its classes, a, b, c ("),
                                  (["a", "c", "z"], {}, "class 2 is z"), (["a"], some, None), (["0", "1", "2"], {}, None)):
            data = rows(tmp_path / "other.safetensors", names=names, **more)
            r = evaluate(data, model)
            if said is None:
                assert r.returncode == 0, (names, r)
            else:
                assert r.returncode == 2 and f"train: data.val: {data}: {said}" in r.stderr and r.stderr.count("\n") == 1, (names, r)
        r = evaluate(padded(tmp_path / "padded.safetensors"), model)
        assert r.returncode == 0 and json.loads(r.stdout)["val_accuracy"] == json.loads(good.stdout)["val_accuracy"], r
    # a model without names
    assert training.train(job, str(tmp_path / "nameless"), ranks=1, sets=[f"data.train={tmp_path}/padded.safetensors"]).code == 0
    assert evaluate(rows(tmp_path / "other.safetensors", names=["z", "y", "x"]), tmp_path / "nameless").returncode == 0
    r = evaluate(rows(tmp_path / "other.safetensors", names=["0", "2", "3"]), tmp_path / "nameless")  # numbers of classes, but not these
    assert r.returncode == 2 and "class 1 is 2, and the model's classes have no other names than their numbers" in r.stderr, r


def test_going_on_with_moved_classes(tmp_path):
    """Data that were accepted have the classes of the run by other numbers."""
    out, sets = tmp_path / "out", ["data.val=null", "training.eval_every_n_steps=0"]
    job = make_job(tmp_path, rows(tmp_path / "rows.safetensors"))
    assert training.train(job, str(out), ranks=1, sets=sets).code == 0
    other = rows(tmp_path / "other.safetensors", names=("c", "b", "a"))
    r = training.train(job, str(out), ranks=1, sets=[*sets, f"data.train={other}", "training.max_steps=8", "checkpointing.accept=data.train"])
    assert r.code != 0 and "data.train: class 2 is a, which is class 0 of the model" in r.err, r
