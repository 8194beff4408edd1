# covers: worker/data/tokenizers cmd/dtdata/convert.c
"""Pairs that are truncated, beside the tokenizers library, and converted tokenizers, beside SentencePiece and tiktoken
(tests/peers/tokenizers_parts_judge.py; scripts/setup.sh --peers). JUDGE_STRINGS says how many strings per tokenizer, JUDGE_SEED which.

run: computes
run: timeout 600"""

import json
import os
import subprocess

import dropin
import pytest

import support

JUDGE = os.path.join(support.ROOT, "tests/peers/tokenizers_parts_judge.py")
CONVERT = os.path.join(support.ROOT, "tests/golden/tokenizers/convert")


def has_libraries():
    look = "import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in ('tokenizers', 'sentencepiece', 'tiktoken')))"
    return os.access(dropin.PEER_PYTHON, os.X_OK) and subprocess.run([dropin.PEER_PYTHON, "-c", look], check=False).returncode == 0


def convert(*words, code=0):
    done = subprocess.run([os.path.join(support.BIN, "dtdata"), "convert-tokenizer", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.skipif(not has_libraries(), reason=f"no tokenizers, sentencepiece and tiktoken at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_same_as_the_libraries(tmp_path):
    strings, seed = os.environ.get("JUDGE_STRINGS", "60"), os.environ.get("JUDGE_SEED", "1")
    done = subprocess.run([dropin.PEER_PYTHON, JUDGE, os.path.join(support.TOOLS, "tokenize"), os.path.join(support.BIN, "dtdata"), str(tmp_path),
                           strings, seed], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=support.clean_env({}))
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    different = [r for r in results if r["different"]]
    assert not different, json.dumps(different[:5], ensure_ascii=False, indent=1)
    assert len(results) == 40


def test_wrong_use(tmp_path):
    """Options that do not fit the file, and files of neither kind."""
    model, ranks, out = f"{CONVERT}/bpe.model", f"{CONVERT}/gpt2.tiktoken", tmp_path / "t.json"
    assert "--pattern and --special are for ranks" in convert(model, out, "--pattern", "gpt2", code=2)
    assert "give --pattern" in convert(ranks, out, code=2)
    assert "which --bos and --eos are for" in convert(ranks, out, "--bos", code=2)
    assert "--special x: must be NAME=ID" in convert(ranks, out, "--pattern", "gpt2", "--special", "x", code=2)
    assert "give the file to read" in convert(model, code=2)
    convert(tmp_path / "none", out, code=2)
    (tmp_path / "noise").write_bytes(b"\n\x7f\x01\x02")
    assert "noise: damaged" in convert(tmp_path / "noise", out, code=1)
    assert not out.exists()
