# covers: docs/man
"""The manual pages say what --help says: every option, command and exit code, in the same words, and no other option."""

import glob
import os
import re
import shutil
import subprocess

import pytest
import support

FOLDER = os.path.join(support.ROOT, "docs", "man")
HELP = {"dtrun": ["dtrun", "--help=all"], "dtdata": ["dtdata", "--help=all"], "dtckpt": ["dtckpt", "--help"], "dtrun-train": ["train", "--help"],
        "dtrun-bench": ["bench", "--help"], "dtrun-doctor": ["doctor", "--help"]}
SILENT = {"Sh", "Ss", "Bl", "El", "It", "Pp", "Ar", "Cm", "Ev", "Pa", "Ql", "Pq", "Op", "Dl", "Nd", "Dd", "Dt", "Os"}


def plain(page):
    """The words of an mdoc page as a reader sees them, with one space between two."""
    name, out = "", []
    for line in page.splitlines():
        if not line.startswith("."):
            out += line.split()
            continue
        words, flags, joined = line[1:].split(), 0, False
        name = words[1] if words[0] == "Nm" and len(words) > 1 else name
        words = [name] if words == ["Nm"] else words[1:2] + words[3:] if words[0] == "Xr" else words
        for i, word in enumerate(words):
            if word == "Fl":
                flags += 1
            elif word == "Ns":
                joined = True
            elif word not in SILENT and word != "Nm":
                word = "-" * flags + word
                glue = joined or (word in (",", ".", ":", ";", ")") and out)
                out[len(out) - 1 if glue else len(out):] = [(out[-1] if glue else "") + word]
                flags, joined = 0, False
    return " ".join(out).replace(r"\-", "-").replace(r"\e", "\\").replace(r"\&", "")


def names(text):
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


@pytest.mark.parametrize("page", sorted(HELP))
def test_a_page_says_what_help_says(page):
    with open(os.path.join(FOLDER, f"{page}.1")) as f:
        text = plain(f.read())
    program, *options = HELP[page]
    said = subprocess.run([support.program(program), *options], capture_output=True, text=True, env=support.clean_env(), timeout=support.DEADLINE_S).stdout
    table = said[said.index("\n\n") if "\n\n" in said else said.index("\n  "):]
    lines = [x for x in table.splitlines() if x.startswith("  ") and "--help, --version" not in x and "--help  --version" not in x]
    assert len(lines) >= (5 if page != "dtrun-doctor" else 1), said
    assert names(table) <= names(text) <= names(said), names(text) ^ names(said)
    for line in lines:  # a name and its explanation, or more of that
        wanted = " ".join(line.split())
        assert wanted in text, (page, wanted)
    codes = re.search(r"^Exit codes: (.*)", said, re.M | re.S)
    assert codes is None or " ".join(codes[1].split()) in text, codes


def test_every_page_is_of_a_program():
    assert sorted(os.path.basename(x) for x in glob.glob(f"{FOLDER}/*")) == sorted(f"{x}.1" for x in HELP)


@pytest.mark.skipif(not shutil.which("mandoc"), reason="no mandoc: scripts/setup.sh --lint installs it")
def test_pages_are_clean():
    p = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *glob.glob(f"{FOLDER}/*.1")], capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert (p.returncode, p.stdout) == (0, ""), p.stdout


@pytest.mark.parametrize("words", [["dtckpt", "export"], ["bench", "kernels"]])
def test_help_of_a_command(words):
    ask = lambda *args: subprocess.run([support.program(words[0]), *args], capture_output=True, text=True, env=support.clean_env(), timeout=support.DEADLINE_S)
    p = ask(words[1], "--help")
    assert p.returncode == 0 and p.stdout == ask("--help").stdout and p.stderr == "", p


@pytest.mark.parametrize("words, said", [
    (["export", "x"], "export: takes PATH FOLDER [--dtype TYPE] [--max_shard_size SIZE]; see dtckpt --help"), (["diff"], "diff: takes PATH PATH; see dtckpt --help"),
    (["lst", "x"], "lst: unknown command; did you mean list?"), (["nothing"], "nothing: unknown command; see dtckpt --help"),
    ([], "no command; see dtckpt --help")])
def test_a_wrong_command_of_dtckpt(words, said):
    p = subprocess.run([support.program("dtckpt"), *words], capture_output=True, text=True, env=support.clean_env(), timeout=support.DEADLINE_S)
    assert p.returncode == 2 and p.stderr == f"dtckpt: {said}\n" and p.stdout == "", p
