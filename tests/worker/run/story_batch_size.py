# covers: cmd/train/batch_size.c cmd/train/plan.c
"""`train --plan --find_batch_size`: the largest batch of a rank whose plan fits the memory."""

import json
import os
import resource
import subprocess

import pytest
import support
import training


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return training.make_job(tmp_path_factory.mktemp("batch_size"), steps=40)


def train(*options, limit=None):
    """limit: bytes of address space that the process may have."""
    limits = (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) if limit else None
    return subprocess.run([support.program("train"), *map(str, options)], env=support.clean_env(), capture_output=True, text=True,
                          timeout=support.DEADLINE_S, preexec_fn=limits)


def found(*options, limit=None):
    p = train("--plan", "--json", "--find_batch_size", *options, limit=limit)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def planned(job, size, *options):
    p = train("--plan", "--json", job, "--set", f"training.batch_size_per_gpu={size}", *options)
    assert p.returncode == 0, p.stderr
    return sum(json.loads(p.stdout)["bytes"].values())


needs_limit = pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers take more address space than the limit")
MORE_DATA = ("--set", "data.sequence_length=8")


@needs_limit
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_largest_fits_and_the_next_does_not(job, ranks):
    limit = 120 << 20
    d = found(job, *MORE_DATA, "--nproc", ranks, limit=limit)
    n, memory = d["largest"]["batch_size_per_gpu"], d["memory"]
    assert d["ranks"] == ranks and n > 8 and memory < 0.95 * limit * ranks
    at = [planned(job, x, *MORE_DATA, "--nproc", ranks) * ranks for x in (n, n + 1)]
    assert at[0] <= memory * 1.01 and at[1] > memory * 0.99  # ranks of a host have some bytes once
    power = d["power_of_two"]["batch_size_per_gpu"]
    assert power <= n < 2 * power and power & (power - 1) == 0


def test_no_more_than_the_data_has(job):
    p = train("--plan", "--find_batch_size", "--nproc", 2, job)
    assert p.returncode == 0, p.stderr
    assert max(map(len, p.stdout.splitlines())) <= 80 and "data.train has no more" in p.stdout
    n = found("--nproc", 2, job)["largest"]["batch_size_per_gpu"]
    assert train("--plan", "--nproc", 2, job, "--set", f"training.batch_size_per_gpu={n}").returncode == 0
    assert train("--plan", "--nproc", 2, job, "--set", f"training.batch_size_per_gpu={n + 1}").returncode == 2


def test_what_is_proposed_runs_in_the_memory_that_it_names(job, tmp_path):
    d = found(job)["largest"]
    size = ("--set", f"training.batch_size_per_gpu={d['batch_size_per_gpu']}")
    p = train(job, *size, "--set", "training.max_steps=3", "--output_dir", tmp_path / "run")
    assert p.returncode == 0, p.stderr
    held = max(json.loads(x).get("memory_bytes", 0) for x in open(tmp_path / "run" / "metrics.jsonl"))
    if not os.environ.get("SAN"):
        assert held <= 1.05 * d["bytes"] + (16 << 20)  # programs and libraries


def test_the_step_of_the_job_stays(job):
    """The same samples in a step, in as few micro-steps as fit: losses are those of the job."""
    batch = ("--set", "training.batch_size_per_gpu=2", "--set", "training.gradient_accumulation_steps=6")
    d = found(job, *batch)["same_step"]
    assert d["batch_size_per_gpu"] * d["gradient_accumulation_steps"] == 12 and d["batch_size_per_gpu"] == 12


def test_gpus_that_are_elsewhere(job):
    big = [x for o in ("model.n_layer=12", "model.n_embd=1024", "model.n_head=16") for x in ("--set", o)]
    few, many = (found(job, *big, "--gpus", n, "--gpu", "l4", "--mode", "full_shard") for n in (2, 4096))
    assert few["memory"] == many["memory"] < 24e9
    assert 1 < few["largest"]["batch_size_per_gpu"] < many["largest"]["batch_size_per_gpu"]
    n = few["largest"]["batch_size_per_gpu"]
    p = train("--plan", "--json", job, *big, "--gpus", 2, "--gpu", "l4", "--mode", "full_shard", "--set", f"training.batch_size_per_gpu={n}")
    assert json.loads(p.stdout)["strategies"][0]["fits"]


def test_what_cannot_be_found(job):
    big = [x for o in ("model.n_layer=96", "model.n_embd=8192", "model.n_head=64") for x in ("--set", o)]
    p = train("--plan", "--find_batch_size", job, *big, "--gpus", 1, "--gpu", "l4")
    assert p.returncode == 2 and p.stdout == "" and "needs" in p.stderr and len(p.stderr.splitlines()) == 1
    for options in (["--find_batch_size"], ["--plan", "--find_batch_size", "--gpus", 2, "--strategy", "all"]):
        p = train(job, *options)
        assert p.returncode == 2 and "--find_batch_size: only with --plan" in p.stderr
