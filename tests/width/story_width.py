# covers: launcher worker/model kernels/rows.def cmd/doctor
"""The table of additions in CONTRIBUTING.md: what tests/width adds of each kind touches the files that it names and no
other, and the places of these additions are still there. story_width_full.py also builds and tries them."""

import os
import re
import shutil
import subprocess

import pytest
import support


def width(*words, root=support.ROOT):
    """(exit code, what it says) of tests/width.sh."""
    env = dict(support.clean_env(), B=os.environ.get("B") or "build", SAN=os.environ.get("SAN") or "")
    p = subprocess.run(["sh", os.path.join(root, "tests", "width.sh"), *words], env=env, capture_output=True, text=True, check=False)
    return p.returncode, p.stdout + p.stderr


def test_additions_touch_the_files_that_the_table_names():
    code, text = width("--quick")
    assert code == 0 and "kinds of additions take the files that CONTRIBUTING.md says" in text, text


@pytest.fixture
def copy(tmp_path):
    """A tree with the same files, which git knows, to be changed."""
    names = subprocess.check_output(["git", "-C", support.ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True)
    for name in filter(None, names.split("\0")):
        if os.path.isfile(os.path.join(support.ROOT, name)):
            to = tmp_path / name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.join(support.ROOT, name), to)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.parametrize("file, before, after, said", [
    ("CONTRIBUTING.md", " `docs/man/dtrun.1` and the code", " and the code", r"option: touches docs/man/dtrun\.1, which its row .* does not name"),
    ("CONTRIBUTING.md", "`launcher/options/cluster.c`", "`launcher/options/cluster.c` `launcher/options/env.c`",
     r"scheduler: needs no launcher/options/env\.c, which its row .* names"),
    ("launcher/query/numbers.c", '    {"max_restarts", JOB(max_restarts)', '    {"most_restarts", JOB(max_restarts)',
     r"number: launcher/query/numbers\.c: .* is there 0 times"),
    ("CONTRIBUTING.md", "| a number |", "| a figure |", r"figure number: a row of CONTRIBUTING\.md and a file of tests/width belong together")])
def test_what_is_not_so_is_said(copy, file, before, after, said):
    text = (copy / file).read_text()
    assert text.count(before) == 1
    (copy / file).write_text(text.replace(before, after))
    code, text = width("--quick", root=str(copy))
    assert code == 1 and re.search(said, text), text
