# covers: worker/run/trainer_shared.c worker/job/job_compare.c
"""A rank that a script gives another job, or other data, than rank 0 has is refused before anything is trained: dtrun compares the jobs of
hosts, and of no program but train.
run: timeout 120
"""

import json
import re

import pytest
import support
import training


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    return folder, training.make_job(folder, steps=6)


def run(place, name, change, ranks=2):
    """Rank 1 gets a job of its own."""
    folder, job = place
    out = folder / f"out-{name}"
    with open(job) as f:
        content = json.load(f)
    change(content)
    other = folder / f"{name}.json"
    other.write_text(json.dumps(content))
    start = support.script(folder, f"{name}.sh", f'[ "$RANK" = 1 ] && set -- "{other}" || set -- "{job}"\n'
                           f'exec {support.program("train")} --output_dir {out} "$1"\n')
    return support.run([f"--nproc_per_node={ranks}", start]), out


WRONG = {
    "rate": (lambda j: j["training"].update(learning_rate=0.5), "the job is not that of rank 0: training.learning_rate is 0.5 here and 0.003 there; give all ranks the same job"),
    "batch": (lambda j: j["training"].update(batch_size_per_gpu=3, seed=9), "(all that differ: training.batch_size_per_gpu, training.seed)"),
    "model": (lambda j: j["model"].update(n_layer=1), "model.n_layer is 1 here and"),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", WRONG)
def test_another_job(place, name, ranks):
    change, words = WRONG[name]
    result, out = run(place, f"{name}-{ranks}", change, ranks)
    first = result.err.splitlines()[0]  # of rank 1, or of rank 0, which names it
    assert result.code == 1 and words in first and re.search(r"rank 1(: | \(local 1, pid \d+\): exit code 2: )", first), result
    assert not (out / "metrics.jsonl").exists()


def test_other_data(place, tmp_path):
    other = training.make_data(tmp_path, seed=2)
    result, out = run(place, "data", lambda j: j["data"].update(train=f"{other}/train-*.bin"))
    assert result.code == 1 and "data.train: holds other data than on rank 0; give all ranks the same files" in result.err, result
    assert not (out / "metrics.jsonl").exists()


def test_places_may_differ(place):
    result, out = run(place, "threads", lambda j: j["training"].update(threads=2))
    assert result.code == 0 and (out / "metrics.jsonl").exists(), result


def test_a_long_value_that_was_accepted(place):
    """The event is JSON, and what is shown of both values is where they differ."""
    folder, job = place
    out = folder / "long"

    def groups(decay):
        return "optimizer.groups=" + json.dumps([{"params": ["*.bias", "*.ln_1.*", "*.ln_2.*", "transformer.wte.*", "transformer.ln_f.*"], "weight_decay": decay}])

    assert training.train(job, out, sets=[groups(0.125)]).code == 0
    result = training.train(job, out, sets=[groups(0.25), "training.max_steps=8", "checkpointing.accept=groups"])
    assert result.code == 0, result
    with open(out / "events.jsonl") as f:
        change = [x for x in map(json.loads, f) if x.get("key") == "optimizer.groups"]
    assert [("0.125" in x["was"], "0.25" in x["is"]) for x in change] == [(True, True)], change
    line = [x for x in result.err.splitlines() if x.startswith("train: optimizer.groups ")]
    assert len(line) == 1 and "0.125" in line[0] and "0.25" in line[0] and "..." in line[0], line
