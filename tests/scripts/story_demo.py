# covers: scripts/demo.sh scripts/loss.awk scripts/machine_text.sh configs/demo.json
"""The demo in its short form on other text, the picture of a loss, and the text of this machine.

run: nosan: the programs are those of other stories; scripts have nothing to look at"""

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree

import pytest

import support


def sources(pattern, folder):
    with open(folder / f"{pattern}-00000.bin.json") as f:
        return set(json.load(f)["sources"])


def test_short_demo(tmp_path):
    """Neither the tokenizer nor the model sees what is held out; all that is said fits 80 columns."""
    for path in ("scripts/demo.sh", "scripts/loss.awk", "scripts/machine_text.sh", "configs/demo.json"):
        os.makedirs(tmp_path / os.path.dirname(path), exist_ok=True)
        shutil.copy(os.path.join(support.ROOT, path), tmp_path / path)
    os.makedirs(tmp_path / "b")
    os.symlink(support.BIN, tmp_path / "b/bin")
    for folder in ("docs", "base"):
        shutil.copytree(os.path.join(support.ROOT, folder), tmp_path / "text" / folder)
    support.program("train")
    env = support.clean_env()
    r = subprocess.run(["sh", "scripts/demo.sh"], check=False, capture_output=True, text=True, timeout=280, cwd=tmp_path,
                       env={**env, "B": "b", "DTRUN_DEMO_SHORT": "1", "DTRUN_TEXT": "text"})
    assert r.returncode == 0, r.stdout + r.stderr
    run = tmp_path / "runs/demo-short"
    train, val = sources("train", run / "data"), sources("val", run / "data")
    assert train and val and not train & val and train == sources("train", run / "bytes") and val == sources("val", run / "bytes")
    assert re.search(rf"2048 tokens from .* in {len(train)} files", r.stderr + r.stdout), r
    said = dict(re.findall(r"held-out files, bits per byte: (\S+)(?: -9)? ([\d.]+)$", r.stdout, re.M))
    assert set(said) == {"model", "gzip", "4-gram"} and all(0.5 < float(x) < 8 for x in said.values()), said
    assert os.path.exists(run / "loss.svg")
    before, _, after = r.stdout.partition("what the model writes")  # which may be anything
    own = (before + after[after.index("demo: held-out"):]).splitlines()
    assert len(own) > 30 and max(map(len, own)) <= 80, max(own, key=len)
    # the last lines are commands that can be copied
    own = r.stdout.partition("demo: with text of your own")[2].partition("\n")[2]
    own = own.replace("text=FOLDER", "set -e; text=text/docs").replace("--output_dir", "--set training.max_steps=2 --set training.warmup_steps=1 --output_dir")
    r = subprocess.run(["sh", "-c", own], check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    assert r.returncode == 0 and "bits/byte" in r.stderr and r.stdout.count("Once upon") == 1, r.stdout + r.stderr


def picture(tmp_path, lines):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    r = subprocess.run(["awk", "-f", os.path.join(support.ROOT, "scripts/loss.awk"), "-v", f"svg={tmp_path}/loss.svg", tmp_path / "metrics.jsonl"],
                       check=True, capture_output=True, text=True)
    assert r.stderr == ""
    return r.stdout.splitlines()


def test_picture(tmp_path):
    """A mark of training is a mean: 64 logged steps that jump by 1 make 32 marks on a straight line, with both evaluations in their places."""
    lines = [{"step": i, "loss": 5 - i / 32 + (0.5 if i % 2 else -0.5)} for i in range(1, 65)]
    said = picture(tmp_path, lines + [{"step": 32, "val_loss": 4.5}, {"step": 64, "val_loss": 3.5}])
    assert len(said) == 13 and said[-2].endswith("64 steps") and max(map(len, said)) <= 80
    rows = [line.split("|", 1)[1] for line in said[:10]]
    marks = {(c, r) for r, row in enumerate(rows) for c, x in enumerate(row) if x == "."}
    assert 30 <= len(marks) <= 32 and sorted(marks) == sorted(marks, key=lambda m: (m[1], m[0]))  # falls, never rises
    assert sorted(x for row in rows for x in row if x == "v") == ["v", "v"]
    svg = xml.etree.ElementTree.parse(tmp_path / "loss.svg").getroot()
    lines = svg.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(x.get("points").split()) for x in lines] == [32, 2]
    assert all(50 <= float(x) <= 580 and 20 <= float(y) <= 280 for x, y in (p.split(",") for line in lines for p in line.get("points").split()))


@pytest.mark.parametrize("lines", [[], [{"step": 1, "loss": 2.0}], [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0}], [{"step": 5, "other": 1}]])
def test_no_picture_of_nothing(tmp_path, lines):
    assert picture(tmp_path, lines) == []


def test_text_of_this_machine():
    ask = lambda *kind: subprocess.run(["sh", os.path.join(support.ROOT, "scripts/machine_text.sh"), *kind], check=True, capture_output=True, text=True)
    small = ask("small")
    files = small.stdout.split()
    assert small.stderr == "" and len(files) == len(set(files)) > 100
    assert all(os.path.isfile(x) and not os.path.islink(x) and os.path.getsize(x) <= 65536 for x in files)
    assert any(x.endswith(".py") for x in files) and any(x.endswith("stdio.h") for x in files)
    assert not any("-packages/" in x or "/encodings/" in x for x in files)
    assert set(ask().stdout.split()) == set(ask("code").stdout.split()) | set(ask("english").stdout.split())
