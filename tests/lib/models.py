"""Whole jobs of one model, as its story runs them: under dtrun, what was logged, and what the weights are."""

import json
import os
import subprocess

import support
import training


def train(job, out, ranks=1, *sets, check=True, dtrun=None):
    """The ended process; with check it must have succeeded."""
    command = [dtrun or support.program("dtrun"), f"--nproc_per_node={ranks}", "train", job, "--output_dir", str(out)]
    for s in sets:
        command += ["--set", s]
    r = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180, cwd=support.ROOT)
    assert not check or r.returncode == 0, r.stderr
    return r


def metrics(out, key=None):
    """The lines of metrics.jsonl, or the values of a key, in order."""
    with open(os.path.join(str(out), "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f]
    return lines if key is None else [m[key] for m in lines if key in m]


def weights_hash(out):
    return training.hash_of(out).split()[0]


def text_shards(folder):
    """Shards of bytes of a small text; what data.train takes."""
    text = folder / "text.txt"
    text.write_text("".join(f"line {i}: {i * 7919 % 1000} and then {i * i % 77}\n" for i in range(400)))
    subprocess.run([support.program("dtdata"), "tokenize", "-o", str(folder / "shards"), str(text)], check=True, capture_output=True)
    return str(folder / "shards/train-*.bin")
