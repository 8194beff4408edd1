# covers: base/config_sets.c worker/engine/trainer_open.c worker/run/trainer.c worker/run/observers/metrics.c cmd/train/evaluate.c cmd/train/texts.c
"""Several sets of data.val by name: each has the numbers that it has alone, on any number of ranks, and nothing of the training changes."""

import json
import subprocess

import pytest

import support
import training


def line_of(out, name, step):
    """The numbers of a set at a step, by their keys without the set's name."""
    start = f"val_{name}_" if name else "val_"
    lines = [m for m in map(json.loads, open(out / "metrics.jsonl")) if m["step"] == step and f"{start}loss" in m]
    assert len(lines) == 1, lines
    return {k.removeprefix(start): v for k, v in lines[0].items() if k.startswith(start)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    data = training.make_data(folder)
    (folder / "own.txt").write_text("abc abcd dcba\n" * 100)
    sets = {"held-out": f"{data}/val-*.bin", "seen": [f"{data}/train-*.bin"], "both": [f"{data}/val-*.bin", f"{data}/train-*.bin"],
            "text": f"{folder}/own.txt"}
    return folder, sets


def run(place, out, val, ranks=1, *sets, code=0):
    folder, _ = place
    job = training.make_job(folder, f"{out}.json", steps=20, data={"val": val, "tokenizer": "bytes", "cache_dir": f"{folder}/cache"},
                            training={"eval_every_n_steps": 10, "eval_batches": 0})
    result = training.train(job, folder / out, ranks=ranks, sets=sets)
    assert result.code == code, result
    return job, folder / out, result


def test_each_set_has_its_own_numbers(place):
    folder, sets = place
    job, out, said = run(place, "several", sets)
    hashes = {training.hash_of(out)}
    for name, value in sets.items():
        _, alone, _ = run(place, f"alone-{name}", value)
        hashes.add(training.hash_of(alone))
        for step in (10, 20):
            assert line_of(out, name, step) == line_of(alone, "", step), name
    numbers = {name: line_of(out, name, 20) for name in sets}
    assert len({n["loss"] for n in numbers.values()}) == 4 and all({"perplexity", "bits_per_byte"} <= set(n) for n in numbers.values()), numbers
    _, two, _ = run(place, "two-ranks", sets, 2, "training.batch_size_per_gpu=1")
    assert all(line_of(two, name, 20) == pytest.approx(numbers[name], rel=1e-4) for name in sets)
    assert len(hashes) == 1
    assert "step 20/20 val held-out loss " in said.err + said.out, said
    done = subprocess.run([support.program("train"), "--evaluate", out, job], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in lines] == [20] * 4
    for name, line in zip(sets, lines, strict=True):
        assert line[f"val_{name}_loss"] == numbers[name]["loss"] and "val_loss" not in line


def test_a_list_is_one_set(place):
    """Its loss is the mean over all samples: of the parts by their numbers of samples, which have one length."""
    folder, sets = place
    both = line_of(folder / "several", "both", 20)["loss"]
    parts = [line_of(folder / "several", name, 20)["loss"] for name in ("held-out", "seen")]
    assert min(parts) < both < max(parts), (both, parts)


def test_going_on_repeats_no_evaluation(place):
    folder, sets = place
    job, out, _ = run(place, "goes-on", sets, 1, "training.max_steps=10")
    result = training.train(job, out, ranks=1)
    assert result.code == 0, result
    for name in sets:
        assert line_of(out, name, 10) and line_of(out, name, 20)  # each once


@pytest.mark.parametrize("value, words", [
    ({"a.b": "x"}, 'data.val: "a.b" is no name of a set; give'), ({"c": "x", "a.b": "x"}, 'data.val: "a.b" is no name of a set; give'),
    ({"": "x"}, 'data.val: "" is no name of a set; give'), ({}, "data.val: has 0 sets; 1 to 16 are right; give a path, a list of paths, or {"),
    ({"a": 3}, "data.val: a: is 3; give"), ({"a": ["x", 3]}, "data.val: a: entry 2 is 3; give"), ([], "data.val: has 0 paths; 1 to 64 are right; give"),
    ({"a" * 41: "x"}, f'data.val: "{"a" * 41}" is no name of a set; give'),
    ({"b": "nothing-*.bin"}, "data.val.b: nothing-*.bin: no such file"),
])
def test_what_is_no_set(place, value, words):
    folder, _ = place
    job = training.make_job(folder, "bad.json", data={"val": value})
    done = support.run([job, "--output_dir", folder / "bad"], executable=support.program("train"))
    assert done.code != 0 and words in done.err, done


def test_set_on_the_command_line(place):
    """--set replaces one set, adds one, and takes one out; the saved job says the same."""
    folder, sets = place
    _, out, _ = run(place, "set", {"a": sets["held-out"], "b": sets["seen"]}, 1, f"data.val.c={sets['held-out']}", "data.val.b=null", "training.max_steps=10")
    keys = {k for m in map(json.loads, open(out / "metrics.jsonl")) for k in m if k.startswith("val_") and k.endswith("_loss")}
    assert keys == {"val_a_loss", "val_c_loss"} and line_of(out, "a", 10) == line_of(out, "c", 10)
