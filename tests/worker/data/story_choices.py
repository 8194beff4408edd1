# covers: worker/data/choices.c worker/data/mixture.c worker/engine/choice_scores.c worker/data/tokenizers/special_tokens.c
"""Multiple choice has the scores and accuracies that lm-evaluation-harness 0.4.13 computed once
(tests/golden/finetune/choices.json), on any number of ranks; what is no item is refused with its line."""

import json
import os
import shutil
import subprocess

import pytest
import training

import support

GOLDEN = os.path.join(support.ROOT, "tests/golden/finetune")
TINY, TOKENIZER = f"{GOLDEN}/tiny", f"{GOLDEN}/chat"
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
SMOLLM2 = os.path.join(os.environ.get("DTRUN_MODELS") or os.path.join(CACHE, "dtrun", "models"), "smollm2")
with open(f"{GOLDEN}/choices.json") as golden_file:
    FACTS = json.load(golden_file)
ITEM = {"context": "The sky is", "choices": ["blue", "green"], "label": 0}


def write(path, items):
    with open(path, "w") as f:
        f.write("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in items))
    return path


def items_of(facts):
    return [{"context": q["context"], "choices": q["choices"], "label": q["gold"], **{k: q[k] for k in ["delimiter"] if k in q}} for q in facts["choices"]]


def evaluate(folder, data, *options, ranks=1, model=TINY, length=24, batch=2, job=None):
    own = folder / "evaluation.json"
    own.write_text(json.dumps({"data": {"val": str(data), "sequence_length": length}, "training": {"batch_size_per_gpu": batch, "threads": 1}}))
    args = ["train", "--evaluate", model, job or own, *options]
    program = [support.program("dtrun"), f"--nproc_per_node={ranks}"] if ranks > 1 else []
    args[0] = args[0] if program else support.program("train")
    return subprocess.run([*program, *map(str, args)], capture_output=True, text=True, timeout=support.DEADLINE_S, check=False, cwd=folder)


def numbers(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(got, facts):
    targets = sum(len(ids) for q in facts["choices"] for ids in q["continuation_ids"])
    assert got["val_loss"] == pytest.approx(-sum(sum(q["loglikelihood"]) for q in facts["choices"]) / targets, rel=1e-5)
    assert (got["val_acc"], got["val_acc_norm"], got["val_acc_bytes"], got["val_items"]) == (facts["acc"], facts["acc_norm"], facts["acc_bytes"], len(facts["choices"]))
    assert "val_perplexity" not in got and "val_bits_per_byte" not in got


@pytest.mark.parametrize("ranks,batch,options", [(1, 1, []), (1, 64, []), (2, 2, ["--mode", "full_shard"]), (3, 2, []), (3, 1, ["--set", "training.precision=bf16-mixed"])])
def test_golden(tmp_path, ranks, batch, options):
    data = write(tmp_path / "items.jsonl", items_of(FACTS["tiny"]))
    got = numbers(evaluate(tmp_path, data, "--set", f"data.tokenizer={TOKENIZER}", *options, ranks=ranks, batch=batch))
    if "bf16-mixed" not in "".join(options):
        check(got, FACTS["tiny"])
    assert got["val_items"] == 4


@pytest.mark.parametrize("right", range(3))
def test_each_score_picks_its_own(tmp_path, right):
    """The first golden item has scores -54, -180, -87 and texts of 5, 30 and 7 characters, of 5, 30 and 10 bytes."""
    item = items_of(FACTS["tiny"])[0] | {"label": right}
    got = numbers(evaluate(tmp_path, write(tmp_path / "one.jsonl", [item]), "--set", f"data.tokenizer={TOKENIZER}"))
    golden = FACTS["tiny"]["choices"][0]
    assert [got[k] for k in ("val_acc", "val_acc_norm", "val_acc_bytes")] == [golden[k] == right for k in ("pred", "pred_norm", "pred_bytes")]


def test_a_limit_leaves_whole_items(tmp_path):
    """Of a batch of 4 samples, an item of 3 is known and the next one not."""
    data = write(tmp_path / "items.jsonl", items_of(FACTS["tiny"]))
    got = numbers(evaluate(tmp_path, data, "--set", f"data.tokenizer={TOKENIZER}", "--set", "training.eval_batches=1", batch=4))
    assert got["val_items"] == 1 and got["val_acc"] == 1


def test_a_list_has_the_numbers_of_its_glob(tmp_path):
    """Items of all files, also where a rank has samples of several. Ids that the model does not have are refused as of one file."""
    items = items_of(FACTS["tiny"])
    files = [str(write(tmp_path / f"{i}.jsonl", items[:1] if i == 0 else items[1:])) for i in range(2)]
    tokenizer = f"data.tokenizer={TOKENIZER}"
    for ranks in 1, 3:
        got = numbers(evaluate(tmp_path, tmp_path / "?.jsonl", "--set", tokenizer, "--set", f"data.val={json.dumps(files)}", ranks=ranks))
        check(got, FACTS["tiny"])
        assert got == numbers(evaluate(tmp_path, tmp_path / "?.jsonl", "--set", tokenizer, ranks=ranks))
    job = training.make_job(tmp_path, steps=1, data={"val": None}, training={"eval_every_n_steps": 0})
    assert training.train(job, tmp_path / "out", ranks=1).code == 0
    done = evaluate(tmp_path, tmp_path, "--set", tokenizer, "--set", f"data.val={json.dumps(files)}", model=tmp_path / "out", job=job)
    assert done.returncode == 2 and "model.vocab_size: 256: data.val has " in done.stderr, done


@pytest.mark.skipif(not os.path.exists(f"{SMOLLM2}/config.json"), reason=f"no weights at {SMOLLM2}: scripts/setup.sh --models")
def test_real_weights(tmp_path):
    data = write(tmp_path / "items.jsonl", items_of(FACTS["smollm2"]))
    check(numbers(evaluate(tmp_path, data, model=SMOLLM2, length=64, batch=4)), FACTS["smollm2"])


def test_a_run_evaluates_with_it(tmp_path):
    """Bytes need no tokenizer; the checkpoint gives the numbers of its run."""
    data = write(tmp_path / "items.jsonl", [ITEM, "", ITEM | {"label": 1, "context": "é "}])
    job = training.make_job(tmp_path, steps=10, data={"val": str(data)}, training={"eval_every_n_steps": 10, "eval_batches": 0})
    assert training.train(job, tmp_path / "out", ranks=2).code == 0
    with open(tmp_path / "out/metrics.jsonl") as f:
        last = [json.loads(line) for line in f if "val_acc" in line][-1]
    assert last["val_items"] == 2 and last["val_acc"] in (0, 0.5, 1)
    for ranks in 1, 3:
        got = numbers(evaluate(tmp_path, data, model=tmp_path / "out", job=job, ranks=ranks))
        assert got["val_loss"] == pytest.approx(last["val_loss"], rel=1e-6) and got["val_acc"] == last["val_acc"]


def test_bytes_of_a_larger_vocabulary(tmp_path):
    """data.tokenizer "bytes" says it, also where a model has more ids than bytes."""
    data = write(tmp_path / "items.jsonl", [ITEM])
    job = training.make_job(tmp_path, steps=2, model={"vocab_size": 300}, data={"val": str(data), "tokenizer": "bytes"}, training={"eval_every_n_steps": 2})
    assert training.train(job, tmp_path / "out", ranks=1).code == 0
    assert numbers(evaluate(tmp_path, data, model=tmp_path / "out", job=job))["val_items"] == 1


def test_ends_of_documents_in_items(tmp_path):
    """data.document_mask is of texts: an item stays whole, whatever ids it has, in the run and after it, alone and beside a text."""
    ids = training.byte_shard(tmp_path / "text.bin", "some words\0more words\0" * 200) if hasattr(training, "byte_shard") else None
    text = tmp_path / "text.txt"
    text.write_text("some words " * 400)
    data = write(tmp_path / "items.jsonl", [{"context": "a\nb", "choices": ["c\n", "d"], "label": 0}, ITEM])
    job = training.make_job(tmp_path, steps=4, data={"val": str(data), "document_mask": True, "document_end": 10},
                            training={"eval_every_n_steps": 4, "eval_batches": 0})
    assert training.train(job, tmp_path / "out", ranks=1).code == 0
    with open(tmp_path / "out/metrics.jsonl") as f:
        last = [json.loads(line) for line in f if "val_acc" in line][-1]
    plain = numbers(evaluate(tmp_path, data, "--set", "data.document_mask=false", "--set", "data.document_end=null", model=tmp_path / "out", job=job))
    masked = numbers(evaluate(tmp_path, data, model=tmp_path / "out", job=job))
    assert masked["val_loss"] == plain["val_loss"] == pytest.approx(last["val_loss"], rel=1e-6)


@pytest.mark.parametrize("line,says", [
    ('{"context": "a", "choices": ["b", "c"]}', "label: must be the number of the right choice, 0 to 1"),
    ('{"context": "a", "choices": ["b"], "label": 1}', "label: must be the number of the right choice, 0 to 0"),
    ('{"context": "a", "choices": ["b"], "label": 0.5}', "label: must be"),
    ('{"context": "a", "choices": [], "label": 0}', "is no item"),
    ('{"context": "a", "choices": ["b", 3], "label": 0}', "is no item"),
    ('{"choices": ["b"], "label": 0}', "is no item"),
    ('{"context": "a", "choices": ["b"], "label": 0, "delimiter": 3}', "is no item"),
    ('{"context": "a", "choices": ["b"], "label": 0', "2:"),
    ('[1]', "is no item"),
    ('{"context": "a", "choices": ["b", ""], "label": 0}', "is no item"),
    (json.dumps({"context": "a", "choices": ["word " * 30], "label": 0}), "ids, but data.sequence_length is 24; raise it"),
])
def test_what_is_no_item(tmp_path, line, says):
    done = evaluate(tmp_path, write(tmp_path / "bad.jsonl", [ITEM, line]), "--set", f"data.tokenizer={TOKENIZER}")
    assert done.returncode == 2 and "bad.jsonl:2:" in done.stderr and says in done.stderr, done


def test_what_does_not_fit(tmp_path):
    data = write(tmp_path / "items.jsonl", [ITEM])
    done = evaluate(tmp_path, data)
    assert done.returncode == 2 and "set data.tokenizer" in done.stderr, done
    done = evaluate(tmp_path, write(tmp_path / "empty.jsonl", [""]), "--set", "data.format=multiple_choice")
    assert done.returncode == 2 and "holds no item" in done.stderr, done
    job = training.make_job(tmp_path, steps=10, data={"train": str(data)})
    done = subprocess.run([support.program("train"), "--plan", job], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2 and "multiple choice is for data.val" in done.stderr, done


def test_no_first_token(tmp_path):
    """A tokenizer without bos_token and eos_token cannot score behind an empty context."""
    shutil.copy(f"{TOKENIZER}/tokenizer.json", tmp_path)
    done = evaluate(tmp_path, write(tmp_path / "items.jsonl", [ITEM | {"context": ""}]), "--set", f"data.tokenizer={tmp_path}")
    assert done.returncode == 2 and "items.jsonl:1: the context has no ids" in done.stderr, done
