# covers: cmd/train/texts.c cmd/train/texts.h cmd/train/classes.c cmd/train/classes.h cmd/dtdata/tokenize_run.c cmd/dtdata/tokenize_run.h
"""data.train and data.val name texts: the run is that of the shards which dtdata tokenize makes of them, bit for bit. They are made once, whoever asks at
the same time and however often it is killed."""

import gzip
import json
import os
import random
import resource
import re
import signal
import subprocess
import time

import pytest
import support
import training

LENGTH = 16
WORDS = "the quick brown fox jumps over lazy dogs, while 12 of 345 birds sing a song.".split()


def text(seed, words=400):
    r = random.Random(seed)
    return "".join(r.choice(WORDS) + r.choice((" ", " ", "\n")) for _ in range(words))


def write_corpus(folder):
    """Text, packed text, records, folders in folders."""
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(text(1))
    (folder / "b.txt.gz").write_bytes(gzip.compress(text(2).encode()))
    subprocess.run(["zstd", "-q", "-o", str(folder / "c.txt.zst")], input=text(3).encode(), check=True)
    (folder / "d.jsonl").write_text("".join(json.dumps({"id": i, "body": text(10 + i, 20)}) + "\n" for i in range(30)))
    (folder / "deep" / "e.md").write_text(text(4))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_corpus(folder / "corpus")
    (folder / "held.txt").write_text(text(99))
    dtdata("train-tokenizer", "-v", "300", "-o", folder / "tok", "--text_key", "body", folder / "corpus")
    return folder


def dtdata(*args):
    p = subprocess.run([support.program("dtdata"), *map(str, args)], capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode == 0, p
    return p


def make_job(folder, place, name="job.json", model=None, training_keys=None, **data):
    path = folder / name
    path.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": 300, **(model or {})},
        "data": {"train": str(place / "corpus"), "val": str(place / "held.txt"), "tokenizer": str(place / "tok"), "text_key": "body", "sequence_length": LENGTH,
                 "cache_dir": str(folder / "cache"), **data},
        "training": {"threads": 1, "batch_size_per_gpu": 2, "max_steps": 6, "eval_every_n_steps": 3, **(training_keys or {})},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def train(job, out, ranks=1, sets=(), code=0, **more):
    result = training.train(job, str(out), ranks=ranks, sets=sets, **more)
    assert (result.code == 0) == (code == 0), result
    return result


def plan(job, *sets):
    """train --plan, which looks at the data and trains nothing."""
    args = [support.program("train"), "--plan", *(word for s in sets for word in ("--set", s)), job]
    return subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S, env=support.clean_env())


def refused(job, words, *sets):
    p = plan(job, *sets)
    assert p.returncode == 2 and words in p.stderr and p.stderr.count("\n") == 1, p


def numbers(out):
    return [{k: r.get(k) for k in ("step", "loss", "val_loss", "val_bits_per_byte", "val_accuracy")} for r in map(json.loads, (out / "metrics.jsonl").open())]


def entries(folder):
    return sorted(x for x in os.listdir(folder / "cache") if "." not in x)


@pytest.mark.parametrize("ranks", [1, 3])
def test_as_with_shards(tmp_path, place, ranks):
    shards = [tmp_path / "train", tmp_path / "val"]
    for out, source in zip(shards, ("corpus", "held.txt")):
        dtdata("tokenize", "-o", out, "--tokenizer", place / "tok", "--text_key", "body", "--val", "0", place / source)
    by_shards = make_job(tmp_path, place, "shards.json", train=f"{shards[0]}/train-*.bin", val=f"{shards[1]}/train-*.bin")
    by_text = make_job(tmp_path, place)
    train(by_shards, tmp_path / "a", ranks)
    said = train(by_text, tmp_path / "b", ranks).err
    assert f"train: data.train: {place}/corpus: tokenizes 5 files, " in said and f"train: data.val: {place}/held.txt: tokenizes 1 file, " in said, said
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b") and numbers(tmp_path / "b")[-1]["val_bits_per_byte"] > 0
    assert training.hash_of(tmp_path / "a") == training.hash_of(tmp_path / "b")
    for k, out in enumerate(shards):  # ids and all that the JSON says of them
        made = [tmp_path / "cache" / x for x in entries(tmp_path) if json.loads((tmp_path / "cache" / x / "texts.json").read_text())["source"] == str(place / ("corpus", "held.txt")[k])]
        assert len(made) == 1 and (made[0] / "train-00000.bin").read_bytes() == (out / "train-00000.bin").read_bytes()
        assert (made[0] / "train-00000.bin.json").read_text() == (out / "train-00000.bin.json").read_text()
    assert json.loads((tmp_path / "b" / "job.json").read_text())["data"]["train"] == str(place / "corpus")
    assert len(os.listdir(tmp_path / "cache")) == 2, "no lock stays behind"
    # the same texts, and so the same samples: a run goes on with either
    assert "tokenizes" not in train(by_text, tmp_path / "b", ranks, ["training.max_steps=8"]).err
    assert "tokenizes" not in train(by_text, tmp_path / "a", ranks, ["training.max_steps=8"]).err
    assert training.hash_of(tmp_path / "a") == training.hash_of(tmp_path / "b")


def test_changed_texts(tmp_path, place):
    corpus = write_corpus(tmp_path / "corpus")
    job = make_job(tmp_path, place, train=str(corpus))
    train(job, tmp_path / "out")
    first = entries(tmp_path)
    times = os.stat(corpus / "a.txt")
    (corpus / "a.txt").write_text(text(1).replace("fox", "cat"))
    os.utime(corpus / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))  # size and time are what they were
    p = train(job, tmp_path / "out", sets=["training.max_steps=8"], code=1)
    assert "tokenizes 5 files" in p.err and f"data.train: {corpus} is not what it was" in p.err, p
    assert len(entries(tmp_path)) == len(first) + 1
    train(job, tmp_path / "out", sets=["training.max_steps=8", "checkpointing.accept=data.train"])
    # of a mixture, too, the text is named that the job has
    mixture = [{"path": str(place / "corpus"), "weight": 1}, {"path": str(corpus), "weight": 3}]
    mixed = make_job(tmp_path, place, "mixed.json", train=mixture)
    train(mixed, tmp_path / "mixed")
    (corpus / "a.txt").write_text(text(1).replace("fox", "pig"))
    p = train(mixed, tmp_path / "mixed", sets=["training.max_steps=8"], code=1)
    assert f"data.train: {corpus} is not what it was" in p.err, p
    p = plan(make_job(tmp_path, place, "less.json", train=[mixture[0], {"path": str(corpus), "weight": 1e-6}]))
    assert f"data.train: {corpus}: weight 1e-06 is less than a sample in 4096" in p.stderr, p
    train(job, tmp_path / "out", sets=["training.max_steps=9", "checkpointing.accept=data.train"])
    # another tokenizer, another key of the text
    assert "tokenizes" not in plan(job).stderr
    assert plan(job, "data.tokenizer=bytes").stderr.count("tokenizes") == 2
    assert plan(job, "data.text_key=id", "data.train=" + str(corpus / "a.txt")).stderr.count("tokenizes") == 2


def test_many_at_once(tmp_path, place):
    """The first makes them. All others wait for it, and find them."""
    job = make_job(tmp_path, place)
    args = [support.program("train"), "--plan", job]
    all_of = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=support.clean_env()) for _ in range(6)]
    said = [p.communicate(timeout=support.DEADLINE_S)[1] for p in all_of]
    assert [p.returncode for p in all_of] == [0] * 6 and sum(s.count("tokenizes") for s in said) >= 2, said
    assert sum("data.train: " + str(place / "corpus") + ": tokenizes" in s for s in said) == 1, said
    assert len(entries(tmp_path)) == 2


def test_two_hosts_without_locks(tmp_path, place):
    """Whoever comes second takes what is there: a folder of another host's, which is not finished, is neither used nor removed."""
    job = make_job(tmp_path, place)
    plan(job)
    cache = tmp_path / "cache"
    names = entries(tmp_path)
    (cache / f"{names[0]}.elsewhere").mkdir()
    (cache / f"{names[0]}.elsewhere" / "train-00000.bin").write_bytes(b"half")
    train(job, tmp_path / "out")
    assert (cache / f"{names[0]}.elsewhere").exists() and entries(tmp_path) == names


def test_killed(tmp_path):
    """A kill leaves complete shards, and the next run goes on behind them. Nothing that is half done is taken for whole."""
    source, job = tmp_path / "big.txt", tmp_path / "job.json"
    piece = text(7, 20000).encode()
    with open(source, "wb") as f:
        for _ in range(110000000 // len(piece)):
            f.write(piece)
    job.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": 256},
        "data": {"train": str(source), "tokenizer": "bytes", "cache_dir": str(tmp_path / "cache")}, "training": {"threads": 1, "max_steps": 1},
    }))
    p = subprocess.Popen([support.program("train"), "--plan", str(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=support.clean_env())
    support.wait_until(lambda: list((tmp_path / "cache").glob("*/.unfinished")) or p.poll() is not None, "the begin")
    p.send_signal(signal.SIGSTOP)  # as if it had worked for 10 s: then it says how far it is
    time.sleep(10.5)
    p.send_signal(signal.SIGCONT)
    support.wait_until(lambda: list((tmp_path / "cache").glob("*/.unfinished/progress.json")) or p.poll() is not None, "a complete shard")
    p.send_signal(signal.SIGKILL)
    said = p.communicate()[1]
    assert re.search(r"train: data\.train: \d+ % of 10\d MiB read, \d+ tokens, \d+ s left\n", said), said
    if p.returncode != -signal.SIGKILL:
        pytest.skip("it was done before the kill")
    assert entries(tmp_path) == []
    q = plan(str(job))
    assert q.returncode == 0 and "goes on behind 1 complete shard" in q.stderr, q
    (entry,) = entries(tmp_path)
    assert sorted(os.listdir(tmp_path / "cache" / entry)) == ["texts.json", "train-00000.bin", "train-00000.bin.json", "train-00001.bin", "train-00001.bin.json", "train-shards.json"]
    assert sum(os.path.getsize(x) - 1024 for x in (tmp_path / "cache" / entry).glob("*.bin")) == 2 * (os.path.getsize(source) + 1)
    assert sorted(os.listdir(tmp_path / "cache")) == [entry]
    os.remove(tmp_path / "cache" / entry / "train-00001.bin")
    refused(str(job), "shards of it are missing; remove the folder, and it is made again")


def test_globs_and_mixtures(tmp_path, place):
    dtdata("tokenize", "-o", tmp_path / "shards", "--tokenizer", place / "tok", "--val", "0", place / "held.txt")
    source = [{"path": str(place / "corpus" / "*.txt*"), "weight": 3}, {"path": str(tmp_path / "shards" / "train-*.bin"), "weight": 1}]
    said = train(make_job(tmp_path, place, train=source), tmp_path / "out").err
    assert said.count("tokenizes 3 files") == 1 and f"data.train: 75 % of the samples are from {source[0]['path']}, which has " in said, said


def test_the_cache_among_the_texts(tmp_path, place):
    corpus = write_corpus(tmp_path / "corpus")
    job = make_job(tmp_path, place, train=str(corpus), val=None, cache_dir=str(corpus / "cache"))
    assert "tokenizes 5 files" in plan(job, "training.eval_every_n_steps=0").stderr
    assert "tokenizes" not in plan(job, "training.eval_every_n_steps=0").stderr


def test_beside_the_weights(tmp_path, place):
    """Without data.tokenizer it is that of model.load."""
    train(make_job(tmp_path, place), tmp_path / "first")
    load = tmp_path / "first" / "model"
    assert (load / "tokenizer.json").exists()
    job = make_job(tmp_path, place, "again.json", tokenizer=None)
    made = json.loads(open(job).read())
    made["model"] = {"load": str(load)}
    open(job, "w").write(json.dumps(made))
    train(job, tmp_path / "second")


def test_where_the_cache_is(tmp_path, place):
    job = make_job(tmp_path, place, cache_dir=None)
    for name, folder in (("XDG_CACHE_HOME", "dtrun/texts"), ("HOME", ".cache/dtrun/texts")):
        env = {k: v for k, v in support.clean_env().items() if k != "XDG_CACHE_HOME"}
        env[name] = str(tmp_path / f"{name}[1]")
        p = subprocess.run([support.program("train"), "--plan", job], capture_output=True, text=True, env=env, timeout=support.DEADLINE_S)
        assert p.returncode == 0 and len(list((tmp_path / f"{name}[1]" / folder).glob("*/texts.json"))) == 2, p


def test_names_that_are_globs(tmp_path, place):
    """A cache, and a folder of shards, whose names another reader would take for patterns."""
    job = make_job(tmp_path, place, cache_dir=str(tmp_path / "c*[1]?"))
    train(job, tmp_path / "out")
    assert "tokenizes" not in train(job, tmp_path / "out", sets=["training.max_steps=8"]).err
    shards = tmp_path / "sh[1]"
    dtdata("tokenize", "-o", shards, "--tokenizer", place / "tok", "--val", "0", place / "held.txt")
    refused(job, f"data.train: {shards}: is a folder; name its files, for example {shards}/train-*.bin", f"data.train={json.dumps(str(shards))}")


def test_where_the_cache_cannot_be(tmp_path, place):
    """A file in its place, and a limit on the sizes of files, whose signal ends nothing."""
    (tmp_path / "taken").write_text("")
    p = plan(make_job(tmp_path, place, cache_dir=str(tmp_path / "taken")))
    assert p.returncode == 2 and f"train: data.train: data.cache_dir: {tmp_path}/taken: is not a folder" in p.stderr, p
    args = [support.program("train"), "--plan", make_job(tmp_path, place)]
    p = subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S, env=support.clean_env(),
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert p.returncode > 0 and "raise the limit with ulimit -f" in p.stderr, p


def test_refusals(tmp_path, place):
    job = make_job(tmp_path, place)
    corpus, tok = place / "corpus", place / "tok"
    refused(job, f"train: data.train: {corpus} is text: name a tokenizer.json or its folder in data.tokenizer", "data.tokenizer=null")
    refused(job, f"train: model.vocab_size: 290: data.tokenizer {tok} has 300 tokens; raise it to 300 or more", "model.vocab_size=290")
    refused(job, "data.label_key: gpt2 reads texts without labels; remove it", "data.label_key=x")
    refused(job, "data.end_token: <none>: ", "data.end_token=<none>")
    assert not (tmp_path / "cache").exists()
    assert plan(job).returncode == 0  # data.val is there from now on
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good words \xff and more" * 9)
    p = plan(job, f"data.train={bad}")
    assert p.returncode == 2 and f"train: data.train: {bad}" in p.stderr and "not UTF-8" in p.stderr, p
    p = plan(job, f"data.train={bad}", "data.encoding_errors=replace")
    assert p.returncode == 0 and "replaced 9 parts" in p.stderr, p
    records = tmp_path / "r.jsonl"
    records.write_text(json.dumps({"body": text(5)}) + "\n{broken\n")
    p = plan(job, f"data.train={records}")
    assert p.returncode == 2 and "r.jsonl" in p.stderr, p
    p = plan(job, f"data.train={records}", "data.on_bad_record=skip")
    assert p.returncode == 0 and "skipped 1 broken record" in p.stderr, p
    records.write_text(json.dumps({"body": text(5), "choices": ["a"]}) + "\n")  # no item of multiple choice: it has no context
    p = plan(job, f"data.train={records}")
    assert p.returncode == 0, p
    empty = tmp_path / "empty"
    empty.mkdir()
    p = plan(job, f"data.train={empty}")
    assert p.returncode == 2 and "no text" in p.stderr, p
    # what is no text stays what it was
    binary = tmp_path / "x.bin"
    binary.write_bytes(bytes(5000))
    refused(job, "neither a token shard nor a safetensors file", f"data.train={binary}")
    refused(job, "no such file", f"data.train={tmp_path}/none-*.txt")
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "a.txt").write_text(text(5))
    (mixed / "x.bin").write_bytes(bytes(5000))
    p = plan(job, f"data.train={mixed}")
    assert p.returncode == 0 and "left out 1 binary file" in p.stderr, p
    # a file that is no text says why, and what a job can do about a text is a key of the job
    for name, data, words in (("empty.txt", b"", "is empty"), ("wide.txt", "words".encode("utf-16"), "byte order mark of UTF-16"),
                              ("cut.txt.gz", gzip.compress(text(6).encode())[:14], "damaged or cut short")):
        (tmp_path / name).write_bytes(data)
        refused(job, words, f"data.train={tmp_path / name}")
    for key in ("data.text_key=nobody", "data.text_key=id"):
        p = plan(job, f"data.train={place / 'corpus' / 'd.jsonl'}", key)
        assert p.returncode == 2 and "name the key with data.text_key" in p.stderr, p
    p = plan(job, f"data.train={bad}")
    assert p.returncode == 2 and 'or give data.encoding_errors "replace"' in p.stderr, p
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + text(5).encode())
    p = plan(job, f"data.train={marked}")
    assert p.returncode == 0 and "train: left out 1 byte order mark" in p.stderr and "dtdata" not in p.stderr, p
    small = tmp_path / "small.txt"
    small.write_text("a b")
    p = plan(job, f"data.train={small}")
    assert p.returncode == 2 and f"data.train: {small}: " in p.stderr and "too few for one sample" in p.stderr, p
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        assert plan(job, f"data.cache_dir={closed}/x").returncode != 0


def sms(path, rows, seed):
    r = random.Random(seed)
    path.write_text("kind,body\n" + "".join(f'{r.choice(("ham", "spam", "other"))},"{text(seed * 100 + i, r.randint(1, 9)).strip()}"\n' for i in range(rows)))
    return path


def bert(tmp_path, place, name="bert.json", **data):
    job = json.loads(open(make_job(tmp_path, place, name, **data)).read())
    job["model"] = {"name": "bert", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 300,
                    "max_position_embeddings": LENGTH, "num_labels": 3}
    (tmp_path / name).write_text(json.dumps(job))
    return str(tmp_path / name)


def test_labelled_rows(tmp_path, place):
    """Rows of a CSV are those of dtdata tokenize. The classes are those of data.train and data.val together, also when only one is read."""
    a, b = sms(tmp_path / "a.csv", 60, 1), tmp_path / "b.csv"
    b.write_text('kind,body\nspam,"buy the fox"\nspam,"lazy dogs"\nother,"a song"\n')
    dtdata("tokenize", "-o", tmp_path / "rows", "--tokenizer", place / "tok", "--text_column", "body", "--label_column", "kind", "--max_length", LENGTH, a)
    dtdata("tokenize", "-o", tmp_path / "held", "--tokenizer", place / "tok", "--text_column", "body", "--label_column", "kind", "--labels", "ham,other,spam",
           "--max_length", LENGTH, b)
    by_rows = bert(tmp_path, place, "rows.json", train=f"{tmp_path}/rows/train-*", val=f"{tmp_path}/held/train-*")
    by_text = bert(tmp_path, place, train=str(a), val=str(b), label_key="kind")
    train(by_rows, tmp_path / "1", 2)
    train(by_text, tmp_path / "2", 2)
    assert numbers(tmp_path / "1") == numbers(tmp_path / "2") and numbers(tmp_path / "2")[-1]["val_accuracy"] is not None
    assert training.hash_of(tmp_path / "1") == training.hash_of(tmp_path / "2")
    refused(by_text, "is text, and bert reads labelled rows: say in data.label_key where the labels are", "data.label_key=null")
    p = plan(by_text, "model.num_labels=2")
    assert p.returncode == 2 and f"train: data.train: {a}: labels: sample " in p.stderr and "or more; the data have ham, other, spam\n" in p.stderr, p
    p = subprocess.run([support.program("train"), "--evaluate", str(tmp_path / "2"), by_text], capture_output=True, text=True, env=support.clean_env())
    assert p.returncode == 0 and "tokenizes" not in p.stderr, p


def test_binary_files_among_labelled_ones(tmp_path, place):
    """They are left out, and said, as dtdata tokenize does; also of the files that have only a say in the classes."""
    folder, held = tmp_path / "rows", sms(tmp_path / "held.csv", 20, 2)
    folder.mkdir()
    sms(folder / "a.csv", 60, 1)
    (folder / "logo.png").write_bytes(bytes(5000))
    (folder / "none.csv").write_text("")
    p = plan(bert(tmp_path, place, train=str(folder), val=str(held), label_key="kind"))
    assert p.returncode == 0 and f"train: left out 1 binary file; the first is {folder}/logo.png" in p.stderr and "left out 1 empty file" in p.stderr, p
    assert p.stderr.count("logo.png") == 1, p


def evaluate(model, job, *sets):
    args = [support.program("train"), "--evaluate", str(model), job, *(word for s in sets for word in ("--set", s))]
    return subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S, env=support.clean_env())


def accuracy(p):
    assert p.returncode == 0, p
    return json.loads(p.stdout)["val_accuracy"]


def kinds(path, rows):
    path.write_text("kind,body\n" + "".join(f"{kind},{body}\n" for kind, body in rows))
    return path


def test_classes_of_the_model(tmp_path, place):
    """A model that is evaluated, or trained further, has its classes by its own numbers, whatever labels the texts have."""
    told = [(kind, f"{word} {word} {word} {i}") for i in range(20) for kind, word in (("ham", "fox"), ("spam", "dogs"), ("other", "song"))]
    a, b = kinds(tmp_path / "a.csv", told), kinds(tmp_path / "b.csv", told[:9])
    job = bert(tmp_path, place, train=str(a), val=str(b), label_key="kind", training_keys={"max_steps": 60, "learning_rate": 1e-2, "batch_size_per_gpu": 6})
    out = tmp_path / "out"
    train(job, out)
    assert accuracy(evaluate(out, job)) == 1
    spam = kinds(tmp_path / "spam.csv", [x for x in told if x[0] == "spam"][:5])
    for model in out, out / "model":
        for more in [], [f"data.train={tmp_path}/none"], [f"data.train={spam}"]:  # whichever labels stand in data.train now
            assert accuracy(evaluate(model, job, f"data.val={spam}", *more)) == 1
        assert "tokenizes" not in evaluate(model, job, f"data.val={spam}").stderr
    strange = kinds(tmp_path / "strange.csv", [*told[:4], ("aaa", "a song")])
    p = evaluate(out, job, f"data.val={strange}")
    assert p.returncode == 2 and f"train: data.val: {strange}:6: the label aaa is none of ham, other, spam\n" in p.stderr, p
    numbers_ = kinds(tmp_path / "numbers.csv", [(("ham", "other", "spam").index(kind), body) for kind, body in told[:6]])
    assert accuracy(evaluate(out, job, f"data.val={numbers_}", f"data.train={tmp_path}/none")) == 1
    # a model that has them in no order of bytes is trained further, and evaluated
    config = json.loads((out / "model" / "config.json").read_text())
    config["id2label"] = {"0": "z", "1": "spam", "2": "ham"}
    config["label2id"] = {"z": 0, "spam": 1, "ham": 2}
    (out / "model" / "config.json").write_text(json.dumps(config))
    two = kinds(tmp_path / "two.csv", [x for x in told if x[0] != "other"])
    made = json.loads(open(job).read())
    made["model"], made["data"]["train"], made["data"]["val"] = {"load": str(out / "model")}, str(two), str(spam)
    (tmp_path / "loaded.json").write_text(json.dumps(made))
    train(str(tmp_path / "loaded.json"), tmp_path / "again")
    assert json.loads((tmp_path / "again" / "model" / "config.json").read_text())["id2label"] == config["id2label"]
    assert accuracy(evaluate(tmp_path / "again", str(tmp_path / "loaded.json"))) == 1
    # new classes take the place of the model's
    made["data"]["train"], made["data"]["val"] = str(kinds(tmp_path / "new.csv", [(x[0] + "!", x[1]) for x in told])), None
    made["training"]["eval_every_n_steps"] = 0
    (tmp_path / "new.json").write_text(json.dumps(made))
    train(str(tmp_path / "new.json"), tmp_path / "new")
    assert json.loads((tmp_path / "new" / "model" / "config.json").read_text())["id2label"] == {"0": "ham!", "1": "other!", "2": "spam!"}


def test_names_with_commas(tmp_path, place):
    """Classes of a model may have any names, also where the texts' own order is another one."""
    told = [(kind, f"{word} {word} {word} {i}") for i in range(20) for kind, word in (("a, b", "fox"), ('c "d"', "dogs"), ("[e]", "song"))]
    a = tmp_path / "a.csv"
    a.write_text("kind,body\n" + "".join('"{}",{}\n'.format(kind.replace('"', '""'), body) for kind, body in told))
    some = tmp_path / "some.csv"
    some.write_text("kind,body\n" + "".join('"{}",{}\n'.format(kind.replace('"', '""'), body) for kind, body in told[:9] if kind != "[e]"))
    job = bert(tmp_path, place, train=str(a), val=str(a), label_key="kind", training_keys={"max_steps": 60, "learning_rate": 1e-2, "batch_size_per_gpu": 6})
    train(job, tmp_path / "out")
    assert accuracy(evaluate(tmp_path / "out", job, f"data.val={some}", f"data.train={tmp_path}/none")) == 1


def test_numbers_of_classes_with_a_gap(tmp_path, place):
    """Labels that are numbers of the model's classes are those, also where a class has no row: in training, and for a model without names."""
    told = [(kind, f"{word} {word} {word} {i}") for i in range(20) for kind, word in ((0, "fox"), (1, "dogs"), (2, "song"))]
    a, gap = kinds(tmp_path / "a.csv", told), kinds(tmp_path / "gap.csv", [x for x in told[:18] if x[0] != 1])
    job = bert(tmp_path, place, train=str(a), val=str(gap), label_key="kind", training_keys={"max_steps": 60, "learning_rate": 1e-2, "batch_size_per_gpu": 6})
    out = tmp_path / "out"
    train(job, out)
    config = json.loads((out / "model" / "config.json").read_text())
    config["id2label"], config["label2id"] = {str(k): f"LABEL_{k}" for k in range(3)}, {f"LABEL_{k}": k for k in range(3)}
    (out / "model" / "config.json").write_text(json.dumps(config))
    assert accuracy(evaluate(out / "model", job, f"data.train={tmp_path}/none")) == 1
    train(job, tmp_path / "short", sets=[f"data.train={gap}", "training.max_steps=1"])
    assert json.loads((tmp_path / "short" / "model" / "config.json").read_text())["id2label"] == {"0": "0", "1": "1", "2": "2"}


def test_keys_of_texts_beside_shards(tmp_path):
    """Shards hold ids: what says how texts are read has no effect, and that is said."""
    text = tmp_path / "text.txt"
    text.write_text("some words " * 2000)
    subprocess.run([os.path.join(support.BIN, "dtdata"), "tokenize", "--val", "0", "-o", tmp_path / "shards", text], check=True, capture_output=True)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": {"name": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 16, "vocab_size": 256},
                               "data": {"train": f"{tmp_path}/shards/train-*.bin", "sequence_length": 16, "text_key": "body", "on_bad_record": "skip"},
                               "training": {"max_steps": 1}, "output_dir": str(tmp_path / "run")}))
    p = subprocess.run([support.program("train"), "--plan", job], capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode == 0 and "no effect    data.text_key, data.on_bad_record (goes with texts; the data are shards)\n" in p.stdout, (p.stdout, p.stderr)
