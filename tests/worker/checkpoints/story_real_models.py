# covers: scripts/models.py worker/checkpoints/hf.c worker/run/trainer_origin.c worker/run/generate.c worker/model/models/decoders.c worker/model/models/encoders.c worker/run/embed.c worker/run/embed_settings.c cmd/train/embed.c
"""Real weights, SmolLM2-135M-Instruct and all-MiniLM-L6-v2, give the numbers of tests/golden/finetune/real.json: losses and
log-probabilities, greedy ids, embeddings. Training begins with Transformers' losses, and what it exports Transformers and its
tokenizers load without a warning. Needs the models (scripts/setup.sh --models) and the peers environment (--peers); skipped
without them.

run: timeout 300
run: nosan: weights of this size take minutes there, and small ones go the same way in other stories"""

import hashlib
import json
import math
import os
import shutil
import struct
import subprocess

import dropin
import numpy as np
import pytest
import training

import support

CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
MODELS = os.environ.get("DTRUN_MODELS") or os.path.join(CACHE, "dtrun", "models")
SMOLLM2, MINILM = os.path.join(MODELS, "smollm2"), os.path.join(MODELS, "minilm")
PEER = os.path.join(support.ROOT, "tests/peers/folders.py")
IGNORED = -100
with open(os.path.join(support.ROOT, "tests/golden/finetune/real.json")) as facts_file:
    FACTS = json.load(facts_file)
LOSS = {"rel": 2e-5, "abs": 2e-5}  # a loss or log-probability of another machine

pytestmark = [pytest.mark.skipif(not os.path.exists(f"{d}/config.json"), reason=f"no weights at {d}: scripts/setup.sh --models") for d in (SMOLLM2, MINILM)]
pytestmark.append(pytest.mark.skipif(not os.access(dropin.PEER_PYTHON, os.X_OK), reason=f"no Transformers at {dropin.PEER_PYTHON}: scripts/setup.sh --peers"))


def run(program, *args):
    done = subprocess.run([support.program(program), *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_tensors(path, tensors):
    """{name: array of int64 or float32}"""
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": {"int64": "I64", "float32": "F32"}[x.dtype.name], "shape": x.shape, "data_offsets": [at, at := at + x.nbytes]}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))
    return str(path)


def write_rows(path, rows):
    """Rows of (ids, targets): at which places of the row the next id, which stands there, is judged. Filled up behind."""
    length = max(len(ids) for ids, _ in rows)
    ids = np.array([row + [0] * (length - len(row)) for row, _ in rows])
    labels = np.array([[row[i] if i in targets else IGNORED for i in range(len(row))] + [IGNORED] * (length - len(row)) for row, targets in rows])
    return write_tensors(path, {"input_ids": ids, "labels": labels}), length


def make_job(path, folder, length, data, **training_keys):
    with open(path, "w") as f:
        json.dump({"model": {"load": folder, **data.pop("model", {})}, "data": {"sequence_length": length, "shuffle": False, **data},
                   "optimizer": {"name": "sgd"},
                   "training": {"threads": 2, "lr_scheduler_type": "constant", "weight_decay": 0, "max_grad_norm": 0, **training_keys},
                   "logging": {"log_every_n_steps": 1}}, f)
    return path


def losses(out):
    with open(f"{out}/metrics.jsonl") as f:
        return [m["loss"] for m in map(json.loads, f) if "loss" in m]


def peers(questions):
    """One process answers all, since its imports take seconds."""
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(q) + "\n" for q in questions), capture_output=True, text=True,
                          timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_smollm2():
    """(row, mean loss over its targets) of what is recorded: sentences, likeliest next ids, answers, a chat's turns."""
    f = FACTS["smollm2"]
    cases = [((x["ids"], range(1, len(x["ids"]))), x["loss"]) for x in f["losses"]]
    cases += [((x["ids"] + [x["top"][k][0]], [len(x["ids"])]), -x["top"][k][2]) for x, k in zip(f["next"], (0, 1, 4))]
    for x in f["evaluation"]["choices"][:2]:
        begin = len(x["context_ids"])
        for more, said in zip(x["continuation_ids"], x["loglikelihood"]):
            cases.append(((x["context_ids"] + more, range(begin, begin + len(more))), -said / len(more)))
    return cases


def turns():
    """The rows of chats whose answers are learned: from behind "<|im_start|>assistant", a newline, to "<|im_end|>", a newline."""
    before, after = [1, 520, 9531, 198], [2, 198]
    rows = []
    for x in FACTS["smollm2"]["sft"]:
        ids, targets, inside = x["ids"], [], False
        for i in range(len(ids)):
            inside = (inside or ids[max(i - 4, 0):i] == before) and ids[i - 2:i] != after
            targets += [i] * inside
        rows.append((ids, targets))
    return rows


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Three steps on the two chats, and what Transformers says of them and of the exported folder."""
    top = tmp_path_factory.mktemp("smollm2")
    data, length = write_rows(top / "chats.safetensors", turns())
    job = make_job(top / "job.json", SMOLLM2, length, {"train": data}, batch_size_per_gpu=2, max_steps=3, learning_rate=1e-3)
    plan = json.loads(run("train", "--plan", "--json", job, "--output_dir", top / "run"))
    run("train", job, "--output_dir", top / "run")
    out = str(top / "run/model")
    trained, after, words = peers([{"train": SMOLLM2, "data": data, "rows": 2, "steps": 3, "learning_rate": 1e-3},
                                   {"folder": out, "data": data, "rows": 2, "dtype": "float32"},
                                   {"tokenize": out, "texts": [x["text"] for x in FACTS["smollm2"]["tokenize"]]}])
    evaluated = json.loads(run("train", "--evaluate", out, "--set", f"data.val={data}", job))["val_loss"]
    ours = losses(top / "run")
    shutil.rmtree(top / "run")  # 1 GB
    return {"plan": plan, "losses": ours, "theirs": trained["losses"], "after": after, "evaluated": evaluated, "words": words}


def test_the_folder_made_of_a_gguf_file():
    f = FACTS["smollm2"]
    with open(f"{SMOLLM2}/config.json") as config:
        assert json.load(config) == f["config"]
    header, data = training.read_tensors(f"{SMOLLM2}/model.safetensors")
    assert len(header.keys() - {"__metadata__"}) == sum(f["types"].values())
    for name, wanted in f["tensors"].items():
        begin, end = header[name]["data_offsets"]
        assert hashlib.sha256(data[begin:end]).hexdigest()[:16] == wanted["sha256"], name


def test_losses_and_log_probabilities(tmp_path):
    for i, (row, loss) in enumerate(of_smollm2()):
        data, length = write_rows(tmp_path / f"{i}.safetensors", [row])
        job = make_job(tmp_path / "job.json", SMOLLM2, length, {"val": data}, batch_size_per_gpu=1)
        assert json.loads(run("train", "--evaluate", SMOLLM2, job))["val_loss"] == pytest.approx(loss, **LOSS), i


def test_greedy_ids(tmp_path):
    chats = FACTS["smollm2"]["chat"]
    (tmp_path / "prompts").write_text("".join(",".join(map(str, x["ids"])) + "\n" for x in chats))
    said = run("train", "--generate", SMOLLM2, "--prompt_ids", f"@{tmp_path}/prompts", "--set", "generation.do_sample=false", "--max_new_tokens", 24,
               "--json")
    assert [json.loads(line)["ids"] for line in said.splitlines()] == [x["greedy"] for x in chats]


def test_training_begins_with_the_recorded_loss(smollm2):
    chats = FACTS["smollm2"]["sft"]
    assert [len(targets) for _, targets in turns()] == [x["targets"] for x in chats]
    wanted = sum(x["loss"] * x["targets"] for x in chats) / sum(x["targets"] for x in chats)
    assert smollm2["losses"][0] == pytest.approx(wanted, **LOSS)
    assert smollm2["plan"]["parameters"] == FACTS["smollm2"]["parameters"]


def test_training_as_transformers(smollm2):
    ours, theirs = smollm2["losses"] + [smollm2["evaluated"]], smollm2["theirs"]
    assert ours == pytest.approx(theirs, rel=2e-5)
    assert all(a > b for a, b in zip(ours, ours[1:])) and ours[-1] < 0.8 * ours[0], ours


def test_the_exported_folder(smollm2):
    after, words = smollm2["after"], smollm2["words"]
    assert (after["loading"], after["said"], words["said"]) == ({}, [], [])
    assert after["loss"] == pytest.approx(smollm2["evaluated"], rel=1e-5)
    assert words["ids"] == [x["ids"] for x in FACTS["smollm2"]["tokenize"]]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """The embeddings of the recorded sentences. A head of zeros gives each class the same probability, so its gradient is what the
    encoder gives, summed over the tokens of a class; a step of SGD at rate 1 makes that the head's weights. Each sentence has two
    classes, of its first token and of the others; nothing is of the last class, whose weights are the sum over all."""
    top = tmp_path_factory.mktemp("minilm")
    ids = [row[:sum(mask)] for x in FACTS["minilm"]["pairs"] for row, mask in zip(x["ids"], x["mask"])]
    length, classes = max(map(len, ids)), 2 * len(ids) + 1
    mask = np.array([[int(i < len(row)) for i in range(length)] for row in ids])
    labels = np.where(mask == 1, 2 * np.arange(len(ids))[:, None] + (np.arange(length) > 0), IGNORED)
    data = write_tensors(top / "sentences.safetensors", {"input_ids": np.array([row + [0] * (length - len(row)) for row in ids]),
                                                         "attention_mask": mask, "labels": labels})
    source = top / "source"
    source.mkdir()
    for name in set(os.listdir(MINILM)) - {"model.safetensors", "config.json"}:
        if os.path.isfile(f"{MINILM}/{name}"):
            shutil.copy(f"{MINILM}/{name}", source / name)
    with open(f"{MINILM}/config.json") as f:
        config = json.load(f)
    config |= {"architectures": ["BertForTokenClassification"], "id2label": {str(i): f"LABEL_{i}" for i in range(classes)},
               "label2id": {f"LABEL_{i}": i for i in range(classes)}, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (source / "config.json").write_text(json.dumps(config))
    header, raw = training.read_tensors(f"{MINILM}/model.safetensors")
    header.pop("__metadata__", None)
    hidden, more = config["hidden_size"], {"classifier.weight": [classes, config["hidden_size"]], "classifier.bias": [classes]}
    raw += bytes(4 * classes * (hidden + 1))
    at = len(raw) - 4 * classes * (hidden + 1)
    for name, shape in more.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at := at + 4 * math.prod(shape)]}
    text = json.dumps(header).encode()
    with open(source / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + raw)
    job = make_job(top / "job.json", str(source), length, {"train": data}, batch_size_per_gpu=len(ids), max_steps=1, learning_rate=1.0)
    plan = json.loads(run("train", "--plan", "--json", job, "--output_dir", top / "run"))
    run("train", job, "--output_dir", top / "run")
    header, raw = training.read_tensors(f"{top}/run/model/model.safetensors")
    begin, end = header["classifier.weight"]["data_offsets"]
    head = np.frombuffer(raw[begin:end], np.float32).reshape(classes, hidden).astype(np.float64)
    sums = mask.sum() * (head[:-1] - head[-1]).reshape(len(ids), 2, hidden)
    evaluated = json.loads(run("train", "--evaluate", top / "run/model", "--set", f"data.val={data}", job))["val_loss"]
    after, words = peers([{"folder": str(top / "run/model"), "data": data, "rows": len(ids), "dtype": "float32"},
                          {"tokenize": str(top / "run/model"), "texts": [t for x in FACTS["minilm"]["pairs"] for t in x["texts"]]}])
    return {"first": sums[:, 0], "mean": sums.sum(1) / mask.sum(1)[:, None], "loss": losses(top / "run")[0], "classes": classes, "ids": ids,
            "parameters": plan["parameters"], "hidden": hidden, "evaluated": evaluated, "after": after, "words": words}


def test_embeddings(minilm):
    assert minilm["loss"] == pytest.approx(math.log(minilm["classes"]), rel=1e-6)
    mean = minilm["mean"] / np.linalg.norm(minilm["mean"], axis=1)[:, None]
    for i, x in enumerate(FACTS["minilm"]["pairs"]):
        assert mean[2 * i] @ mean[2 * i + 1] == pytest.approx(x["cosine"], abs=1e-5)
        assert mean[2 * i][:4] == pytest.approx(x["mean_head"], abs=1e-5)
        assert minilm["first"][2 * i][:4] == pytest.approx(x["cls_head"], abs=1e-4)
        assert np.linalg.norm(minilm["first"][2 * i]) == pytest.approx(x["cls_norm"], rel=1e-5)


def test_embed(tmp_path):
    """train --embed: the recorded numbers, as the folder's modules say, and those of Transformers for texts of many lengths."""
    pairs = FACTS["minilm"]["pairs"]
    texts = [t for x in pairs for t in x["texts"]] + ["", "word " * 300, "\tNaïve façade: 漢字, 3.14!  "] + [t["text"] for t in FACTS["smollm2"]["tokenize"] if t["text"] and t["text"].isprintable()]
    with open(tmp_path / "texts.jsonl", "w") as f:
        f.writelines(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts))
    done = subprocess.run([support.program("train"), "--embed", MINILM, "--texts", tmp_path / "texts.jsonl"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, f"train: --embed: 1 of {len(texts)} texts were cut at 256 tokens\n")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    vectors = np.array([r["embedding"] for r in rows])
    assert [r["row"] for r in rows] == list(range(len(texts))) and np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    for i, x in enumerate(pairs):
        assert vectors[2 * i] @ vectors[2 * i + 1] == pytest.approx(x["cosine"], abs=1e-5)
        assert vectors[2 * i][:4] == pytest.approx(x["mean_head"], abs=1e-5)
    [words] = peers([{"tokenize": MINILM, "texts": [t.strip() for t in texts]}])
    ids = [row if len(row) <= 256 else row[:255] + row[-1:] for row in words["ids"]]
    assert [r["tokens"] for r in rows] == list(map(len, ids))
    [theirs] = peers([{"embed": MINILM, "rows": ids, "pooling": "mean", "normalize": True}])
    assert np.abs(vectors - np.array(theirs["vectors"])).max() < 1e-5
    run("train", "--embed", MINILM, "--texts", tmp_path / "texts.jsonl", "--batch_size", 3, "-o", tmp_path / "v.npy")
    again = np.load(tmp_path / "v.npy")
    assert again.dtype == np.float32 and again.shape == vectors.shape and np.abs(again - vectors).max() < 1e-6
    first = np.array([json.loads(line)["embedding"] for line in run("train", "--embed", MINILM, "--texts", tmp_path / "texts.jsonl", "--pooling", "cls").splitlines()])
    for i, x in enumerate(pairs):
        assert first[2 * i][:4] == pytest.approx(x["cls_head"], abs=1e-5) and np.linalg.norm(first[2 * i]) == pytest.approx(x["cls_norm"], rel=1e-5)


def test_the_encoders_folder(minilm):
    after, words = minilm["after"], minilm["words"]
    assert (after["loading"], after["said"], words["said"]) == ({}, [], [])
    assert after["loss"] == pytest.approx(minilm["evaluated"], rel=2e-6)
    assert words["ids"] == minilm["ids"]
    pooler = minilm["hidden"] * (minilm["hidden"] + 1)  # which no classifier of tokens has
    assert minilm["parameters"] == FACTS["minilm"]["parameters"] - pooler + minilm["classes"] * (minilm["hidden"] + 1)


def test_prompts_of_text():
    """A text prompt has the ids of the folder's own tokenizer, and the likeliest next ids are its words."""
    facts = FACTS["smollm2"]
    texts = [t for t in facts["tokenize"] if t["text"] and "\0" not in t["text"]]
    ask = ["--generate", SMOLLM2, "--set", "generation.do_sample=false", "--max_new_tokens", 1, "--json"]
    rows = [json.loads(line) for line in run("train", *ask, *(w for t in texts + facts["next"] for w in ("--prompt", t["text"]))).splitlines()]
    assert [r["prompt_ids"] for r in rows] == [t["ids"] for t in texts + facts["next"]]
    for row, fact in zip(rows[len(texts):], facts["next"]):
        assert row["ids"] == [fact["top"][0][0]] and row["text"] == fact["text"] + fact["top"][0][1], row
