# covers: worker/data/tokenizers
"""Tokenizers beside the tokenizers library (tests/peers/tokenizers_judge.py; scripts/setup.sh --peers): it makes tokenizers of every
kind, and the ids of generated strings and of files, alone, with special tokens and in random parts, and the text of ids must be
the library's. JUDGE_STRINGS says how many strings per tokenizer, JUDGE_SEED which; with DTRUN_ALL=1 texts are longer.

run: computes
run: timeout 600"""

import glob
import json
import os
import subprocess

import dropin
import pytest

import support

JUDGE = os.path.join(support.ROOT, "tests/peers/tokenizers_judge.py")
TOOL = os.path.join(support.TOOLS, "tokenize")


def has_library():
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tokenizers') is None)"
    return os.access(dropin.PEER_PYTHON, os.X_OK) and subprocess.run([dropin.PEER_PYTHON, "-c", look], check=False).returncode == 0


def is_utf8(path):
    try:
        with open(path, encoding="utf-8") as f:
            return len(f.read()) > 0
    except UnicodeDecodeError:
        return False


@pytest.mark.skipif(not has_library(), reason=f"no tokenizers library at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_same_as_the_library(tmp_path):
    strings, seed = os.environ.get("JUDGE_STRINGS", "60"), os.environ.get("JUDGE_SEED", "1")
    files = sorted(glob.glob(os.path.join(support.ROOT, "docs/*.md")) + glob.glob(os.path.join(support.ROOT, "base/*.c")), key=os.path.getsize)[-4:]
    done = subprocess.run([dropin.PEER_PYTHON, JUDGE, TOOL, str(tmp_path), strings, seed], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env=support.clean_env({"JUDGE_FILES": ":".join(f for f in files if is_utf8(f)), "JUDGE_LONG": os.environ.get("DTRUN_ALL"),
                                                 "TOKENIZERS_PARALLELISM": "false"}))
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    different = [r for r in results if r["different"]]
    assert not different, json.dumps(different[:5], ensure_ascii=False, indent=1)
    assert len(results) > 130 and sum(r["strings"] for r in results) > 10000


def test_bytes_that_are_not_utf8():
    """Each kind of broken byte is refused, with its place."""
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xe2\x82", b"\x80"):
        for request in ("e ", "r 3 "):
            done = subprocess.run([TOOL, os.path.join(support.ROOT, "tests/golden/tokenizers/gpt2/tokenizer.json")],
                                  input=request + (b"caf\xc3\xa9 " + bad + b"x").hex() + "\n", capture_output=True, text=True, check=True)
            assert done.stdout == f"! byte 6 of the text (0x{bad[0]:02x}) is not valid UTF-8\n"


@pytest.mark.skipif(not has_library(), reason=f"no tokenizers library at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_parts_at_random(tmp_path):
    """Mixes of parts that nobody has tried: the library's ids and texts, or a refusal that names the part."""
    judge, seed = os.path.join(support.ROOT, "tests/peers/tokenizers_mixed_judge.py"), os.environ.get("JUDGE_SEED", "1")
    done = subprocess.run([dropin.PEER_PYTHON, judge, TOOL, str(tmp_path), os.environ.get("JUDGE_MIXES", "40"), "10", seed], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False, env=support.clean_env({"TOKENIZERS_PARALLELISM": "false"}))
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 20
    different = [r for r in results if r["different"]]
    assert not different, json.dumps(different[:3], ensure_ascii=False, indent=1)
    refused = {r["refused"] for r in results if r["refused"]}
    assert all("UnicodeScripts is not supported" in r or "the normalizer leaves nothing of" in r for r in refused), refused
    assert len([r for r in results if r["refused"]]) < len(results) / 4
