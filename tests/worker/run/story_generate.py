# covers: cmd/train/generate.c cmd/train/evaluate.c worker/run/prompt.c worker/run/model_source.c worker/run/trainer.c worker/engine/class_counts.c
"""train --generate and train --evaluate: as Transformers, from every kind of folder, and the same on any number of ranks."""

import json
import math
import os
import re
import shutil
import subprocess

import pytest

import support
import training

GOLDEN = os.path.join(support.ROOT, "tests/golden")
TINY = f"{GOLDEN}/finetune/tiny"


def train(*args, code=0, ranks=0):
    front = [support.program("dtrun"), f"--nproc_per_node={ranks}", "train"] if ranks else [support.program("train")]
    r = subprocess.run([*front, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=support.ROOT)
    assert r.returncode == code, (args, r)
    return r.stdout if code == 0 else r.stderr


def rows(*args):
    return [json.loads(line) for line in train("--json", *args).splitlines()]


def test_greedy_as_transformers(tmp_path):
    """The prompts of the golden file, one by one and as the lines of a file; a job's section counts as its options do."""
    with open(f"{GOLDEN}/finetune/evaluation.json") as f:
        cases = json.load(f)["greedy"]
    one = cases[0]
    ids = ",".join(map(str, one["ids"]))
    greedy = ["--set", "generation.do_sample=false", "--max_new_tokens", one["new"]]
    [row] = rows("--generate", TINY, "--prompt_ids", ids, *greedy)
    assert row == {"row": 0, "prompt_ids": one["ids"], "ids": one["out"], "end": "length"}
    lines = tmp_path / "prompts"
    lines.write_text(f"{ids}\n\n5 6 7\n{ids}\n")
    several = rows("--generate", TINY, "--prompt_ids", f"@{lines}", *greedy, "--batch_size", 2)
    assert [r["ids"] for r in several][::2] == [one["out"]] * 2 and several[1]["prompt_ids"] == [5, 6, 7]
    assert train("--generate", TINY, "--prompt_ids", ids, *greedy) == ",".join(map(str, one["out"])) + "\n"


def test_a_job_of_its_section_alone(tmp_path):
    """A file with nothing but the section `generation` is enough."""
    job = tmp_path / "job.json"
    job.write_text('{"generation": {"max_new_tokens": 3, "do_sample": false}}')
    [row] = rows("--generate", TINY, "--prompt_ids", "5,6,7", job)
    assert len(row["ids"]) == 3 or row["end"] == "stop", row
    job.write_text('{"generation": {"max_new_token": 3}}')
    assert "generation.max_new_token: unknown key; did you mean max_new_tokens" in train("--generate", TINY, "--prompt_ids", "5", job, code=2)
    assert "an id is missing behind 5, between two commas" in train("--generate", TINY, "--prompt_ids", "5,,3", code=2)
    assert "an id is missing behind 5, at the end of the list" in train("--generate", TINY, "--prompt_ids", "5,", code=2)
    assert "an id is missing before the first comma" in train("--generate", TINY, "--prompt_ids", ",5", code=2)


def test_text(tmp_path):
    """A text is encoded by the folder's tokenizer; what comes out is the text of all ids, also where it is printed while it grows."""
    shutil.copytree(TINY, tmp_path / "tiny")
    shutil.copy(f"{GOLDEN}/tokenizers/gpt2/tokenizer.json", tmp_path / "tiny")
    with open(f"{GOLDEN}/tokenizers/gpt2/cases.jsonl") as f:
        cases = [c for c in map(json.loads, f) if len(c.get("ids", [])) in range(3, 20) and "\0" not in c.get("text", "\0")][:40]
    ask = ["--generate", tmp_path / "tiny", "--max_new_tokens", 9, "--set", "generation.do_sample=false"]
    made = rows(*ask, *(w for c in cases for w in ("--prompt", c["text"])))
    assert len(cases) == 40 and [m["prompt_ids"] for m in made] == [c["ids"] for c in cases]
    by_ids = rows(*ask, *(w for c in cases for w in ("--prompt_ids", ",".join(map(str, c["ids"])))))
    assert [m["ids"] for m in made] == [m["ids"] for m in by_ids] and all("text" not in m for m in by_ids)
    for case, row in zip(cases[:8], made):
        assert row["text"].startswith(case["text"]), row
        shown = train(*ask, "--prompt", case["text"])
        assert shown == row["text"] + "\n" or not row["text"].replace("\n", "").replace("\t", "").isprintable(), (case, shown)
    assert "tokenizer.json" in train("--generate", TINY, "--prompt", "x", code=2)
    (tmp_path / "tiny/tokenizer.json").write_text("{}")
    assert f"{tmp_path}/tiny/tokenizer.json: " in train(*ask, "--prompt", "x", code=2)
    assert rows(*ask, "--prompt_ids", "5")  # ids need no tokenizer


def test_draws(tmp_path):
    """The same seed, the same ids; rows differ, so do seeds. The folder's settings hold until the job has others."""
    ask = ["--generate", TINY, "--prompt_ids", "5,6,7", "--prompt_ids", "5,6,7", "--max_new_tokens", 20]
    first = [r["ids"] for r in rows(*ask)]
    assert first == [r["ids"] for r in rows(*ask, "--batch_size", 1)] and first[0] != first[1]
    assert first != [r["ids"] for r in rows(*ask, "--seed", 7)]
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": {"load": TINY}, "data": {"train": "none"}, "generation": {"seed": 7, "temperature": 0.7, "top_p": 0.9}}))
    assert [r["ids"] for r in rows(*ask, "--seed", 7)] == [r["ids"] for r in rows(*ask, job)]


def test_what_is_not_computed(tmp_path):
    """Keys of the folder that would change the ids are named once; the ids are those without them."""
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/generation_config.json").write_text('{"num_beams": 4, "max_new_tokens": 3}')
    command = [support.program("train"), "--generate", str(tmp_path / "tiny"), "--prompt_ids", "5,6", "--prompt_ids", "7"]
    r = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert r.stderr == f"train: {tmp_path}/tiny: generation_config.json: not computed: num_beams\n" and len(r.stdout.splitlines()) == 2, r


def test_max_length(tmp_path):
    """max_length of generation_config.json counts the prompt, and max_new_tokens, wherever it stands, counts instead of it."""
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/generation_config.json").write_text('{"max_length": 6, "eos_token_id": []}')
    ask = ["--generate", tmp_path / "tiny", "--prompt_ids", "5,6", "--prompt_ids", "7,8,9,10,11"]
    assert [(len(r["ids"]), r["end"]) for r in rows(*ask)] == [(4, "length"), (1, "length")]
    assert [len(r["ids"]) for r in rows(*ask, "--max_new_tokens", 7)] == [7, 7]
    said = "prompt 3 has 6 ids, and max_length of generation_config.json is 6, prompt included; give generation.max_new_tokens"
    assert said in train(*ask, "--prompt_ids", "1,2,3,4,5,6", code=2)
    (tmp_path / "tiny/generation_config.json").write_text('{"max_length": "6"}')
    assert "max_length: must be an integer above 0" in train(*ask, code=2)


def test_the_tokenizer_knows_where_to_stop(tmp_path):
    """Without eos_token_id in the model's files, its tokenizer's eos_token ends a row."""
    shutil.copytree(TINY, tmp_path / "tiny")
    shutil.copy(f"{GOLDEN}/tokenizers/gpt2/tokenizer.json", tmp_path / "tiny")
    (tmp_path / "tiny/generation_config.json").unlink()
    config = json.loads((tmp_path / "tiny/config.json").read_text())
    (tmp_path / "tiny/config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    ask = ["--generate", tmp_path / "tiny", "--prompt_ids", "5,6,7", "--max_new_tokens", 9]
    [whole] = rows(*ask)
    assert len(whole["ids"]) == 9 and whole["end"] == "length", whole
    words = json.loads((tmp_path / "tiny/tokenizer.json").read_text())["model"]["vocab"]
    end = whole["ids"][4]
    (tmp_path / "tiny/tokenizer_config.json").write_text(json.dumps({"eos_token": next(w for w, i in words.items() if i == end)}))
    [row] = rows(*ask)
    assert row["ids"] == whole["ids"][:whole["ids"].index(end) + 1] and row["end"] == "stop", row


@pytest.mark.parametrize("args, said", [
    (["--generate", TINY], "--generate: no prompt"),
    (["--prompt", "x", "job.json"], "--prompt: only with --generate"),
    (["--generate", TINY, "--prompt", "x"], "the model has 672 tokens"),
    (["--generate", TINY, "--prompt_ids", "700"], "prompt 1 has id 700; the model knows 0 to 671"),
    (["--generate", "nothing", "--prompt_ids", "7"], "nothing: no such folder"),
    (["--generate", TINY, "--prompt_ids", "7", "--temperature", "hot"], "generation.temperature"),
    (["--generate", TINY, "--prompt_ids", "7", "--set", "training.seed=1"], "training"),
    (["--evaluate", "nothing", "job.json"], "--evaluate: nothing: no such folder")])
def test_refused(args, said):
    assert said in train(*args, code=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a model over bytes."""
    folder = tmp_path_factory.mktemp("bytes")
    data = training.make_data(folder)
    job = folder / "job.json"
    job.write_text(json.dumps({
        "model": {"name": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 256},
        "data": {"train": f"{data}/train-*.bin", "val": f"{data}/val-*.bin", "sequence_length": 32},
        "training": {"batch_size_per_gpu": 4, "max_steps": 12, "learning_rate": 1e-3, "threads": 1, "eval_batches": 3},
        "output_dir": str(folder / "run")}))
    train(job)
    with open(folder / "run/metrics.jsonl") as f:
        [last] = [m for m in map(json.loads, f) if "val_loss" in m]
    return folder, job, last


def test_what_ends_documents_ends_rows(run, tmp_path):
    """A model from the beginning says by eos_token_id what ends a document in its data; one that was loaded keeps its own."""
    folder, job, _ = run
    assert json.loads((folder / "run/model/config.json").read_text())["eos_token_id"] == 0
    on = tmp_path / "on.json"
    on.write_text(json.dumps({**json.loads(job.read_text()), "model": {"load": TINY}}))
    train(on, "--set", "training.max_steps=1", "--output_dir", tmp_path / "on")
    assert json.loads((tmp_path / "on/model/config.json").read_text())["eos_token_id"] == 641


def test_a_run_speaks(run):
    """A run's folder, its checkpoint and its exported folder are one model: the same ids, and the text that they are."""
    folder = run[0] / "run"
    [point] = (folder / "checkpoints").glob("step-*")
    ask = ["--prompt", "The ", "--max_new_tokens", 20, "--temperature", 1, "--generate"]
    all_ids = [rows(*ask, path) for path in (folder, point, folder / "checkpoints", folder / "model")]
    assert all(x == all_ids[0] for x in all_ids) and (len(all_ids[0][0]["ids"]) == 20 or all_ids[0][0]["ids"][-1] == 0)  # what ends documents
    text = "".join(chr(i) if i in (9, 10) or 32 <= i < 127 else "." for i in all_ids[0][0]["prompt_ids"] + all_ids[0][0]["ids"])
    assert train(*ask, folder) == text + "\n" and text.startswith("The ")
    r = subprocess.run([support.program("dtckpt"), "sample", str(folder), "The ", "100"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and r.stdout.startswith("The ") and len(r.stdout) == 105  # longer than its positions


def test_the_model_of_a_checkpoint_is_the_jobs(run):
    """Sizes that change no tensor's shape would give other numbers without a word."""
    said = train("--evaluate", run[0] / "run", run[1], "--set", "model.n_head=1", code=2)
    assert re.search(r"model\.n_head: was \d+ when it was trained, and this job says 1; make the job say so, too", said), said


def test_the_family_of_a_checkpoint_is_the_jobs(run, tmp_path):
    """Said before the data are looked at, which are of the one family or of the other."""
    job = tmp_path / "job.json"
    data = f"{GOLDEN}/models/bert/batches.safetensors"
    job.write_text(json.dumps({"model": {"load": f"{GOLDEN}/models/bert/hf"}, "data": {"val": data, "sequence_length": 20}}))
    for ranks in 1, 2:
        said = train("--evaluate", run[0] / "run", job, ranks=ranks, code=2)
        assert re.search(r'model\.name: was "gpt2" when it was trained, and this job says "bert"; make the job say so, too', said), said
    job.write_text(json.dumps({"model": {"name": "gpt2"}, "data": {"val": data, "sequence_length": 20}}))
    said = train("--evaluate", f"{GOLDEN}/models/bert/hf", job, code=2)
    assert "model.name: is gpt2, but" in said and "says bert; remove it here" in said, said


def test_evaluation_needs_neither_training_data_nor_an_optimizer(run, tmp_path):
    """A job for it alone has no data.train; what a job has there may be gone. The plan has no memory for training. Numbers are those
    of the whole job, under every placement of weights, in fp32 and bf16."""
    folder, whole, _ = run
    job = tmp_path / "job.json"
    job.write_text(json.dumps({key: {k: v for k, v in section.items() if k != "train"} if key == "data" else section
                               for key, section in json.loads(whole.read_text()).items()}))
    plan = json.loads(train("--evaluate", folder / "run", "--plan", "--json", job))
    assert plan["bytes"]["gradients"] == plan["bytes"]["optimizer"] == 0 < plan["bytes"]["weights"] and plan["samples"] > 0
    assert "\nsteps " not in train("--evaluate", folder / "run", "--plan", job)
    all_of_it = ["--set", "training.eval_batches=0", "--output_dir", tmp_path / "out"]
    wanted = json.loads(train("--evaluate", folder / "run", whole, *all_of_it))
    assert json.loads(train("--evaluate", folder / "run", job, *all_of_it)) == wanted
    assert json.loads(train("--evaluate", folder / "run/model", whole, *all_of_it, "--set", f"data.train={tmp_path}/gone.bin")) == {**wanted, "step": 0}
    for options in (["--mode", "ddp"], ["--mode", "zero3", "--set", "training.precision=bf16-mixed"]):
        other = json.loads(train("--evaluate", folder / "run", job, *all_of_it, *options, ranks=2))
        assert other["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-2 if "--set" in options else 1e-6)
    assert not (tmp_path / "out").exists()
    assert "data.train: missing; add it" in train(job, code=2)


def test_evaluate_tokens(run):
    """The numbers of the run's last evaluation, from each of its folders, on one rank and on two."""
    folder, job, last = run
    wanted = {k: v for k, v in last.items() if k.startswith("val_")}
    assert wanted["val_perplexity"] == pytest.approx(math.exp(wanted["val_loss"]), rel=1e-6)
    assert wanted["val_bits_per_byte"] == pytest.approx(wanted["val_loss"] / math.log(2), rel=1e-6)
    before = sorted(p.name for p in (folder / "run").rglob("*"))
    assert json.loads(train("--evaluate", folder / "run", job)) == {"step": 12, **wanted}
    assert json.loads(train("--evaluate", folder / "run/model", job)) == {"step": 0, **wanted}
    batches = ["--set", "training.eval_batches=0"]
    whole = json.loads(train("--evaluate", folder / "run", job, *batches))
    two = json.loads(train("--evaluate", folder / "run", job, *batches, "--mode", "zero3", ranks=2))
    assert two == {k: pytest.approx(v, rel=1e-6) for k, v in whole.items()}
    assert before == sorted(p.name for p in (folder / "run").rglob("*"))
    assert "no data.val" in train("--evaluate", folder / "run", job, "--set", "data.val=null", code=2)


@pytest.mark.parametrize("name, length", [("bert", 20), ("distilbert", 16)])
def test_evaluate_classes(tmp_path, name, length):
    """Counts are whole numbers: accuracy and F1 are the same on any number of ranks, with a ragged end, too."""
    data = f"{GOLDEN}/models/{name}/batches.safetensors"
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": {"load": f"{GOLDEN}/models/{name}/hf"},
                               "data": {"train": data, "val": data, "sequence_length": length},
                               "training": {"batch_size_per_gpu": 7, "max_steps": 1, "threads": 1}, "output_dir": str(tmp_path / "run")}))
    found = [json.loads(train("--evaluate", f"{GOLDEN}/models/{name}/hf", job, ranks=n)) for n in (1, 2, 3)]
    one = found[0]
    keys = {"val_accuracy", "val_f1_macro", "val_f1"}
    assert keys <= set(one) and 0 < one["val_accuracy"] < 1 and one["val_f1_macro"] == pytest.approx(sum(one["val_f1"]) / len(one["val_f1"]))
    assert all(x[k] == one[k] for x in found for k in keys)
    assert not (tmp_path / "run").exists()
