# covers: worker cmd kernels/cpu collectives
"""The records of tests/records in short: the programs still do what was recorded.
run: full
run: nosan: the same programs as without sanitizers, many times slower
"""

import os
import shutil
import subprocess

import pytest
import support

RECORDS = os.path.join(support.ROOT, "tests", "records")
PARTS = ["shards", "train", "plan", "calls", "checkpoint", "wire"]


def check(*words, data=RECORDS):
    """(exit code, what it says) of a check with the programs of this build."""
    for name in ("bench", "dtckpt", "dtdata", "dtrun", "train"):
        support.program(name)
    script = os.path.join(RECORDS, "records.py")
    command = [support.PYTHON, script, "check", "--bin", support.BIN, "--data", str(data), *words]
    p = subprocess.run(command, env=support.clean_env(), capture_output=True, text=True, check=False)
    return p.returncode, p.stdout + p.stderr


@pytest.mark.parametrize("part", PARTS)
def test_the_programs_do_what_was_recorded(part):
    code, text = check("--short", part)
    assert code == 0 and f"ok   {part}" in text, text
    if f"skip {part}" in text:
        pytest.skip(text.splitlines()[0])


CHANGES = {
    "shards": ("shards.txt", "| train-00000.bin\n", "| train-00001.bin\n"),
    "plan": ("plan.txt", "| total\n", "0 | total\n"),
    "calls": ("calls.txt", "fp32 cheap | 5", "fp32 cheap | 6"),
    "wire": ("wire.txt", "a < 2a", "a < 2b"),
}


@pytest.mark.parametrize("part", CHANGES)
def test_another_record_is_seen(part, tmp_path):
    """A check against a record with one other byte fails, and says where."""
    data = tmp_path / "records"
    shutil.copytree(RECORDS, data)
    name, before, after = CHANGES[part]
    text = (data / name).read_text()
    assert before in text
    (data / name).write_text(text.replace(before, after, 1))
    code, text = check("--short", part, data=data)
    assert code == 1 and f"FAIL {part}" in text and f"{part}: " in text, text
