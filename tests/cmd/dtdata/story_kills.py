# covers: cmd/dtdata/progress.c cmd/dtdata/output.c cmd/dtdata/source.c worker/data/shards_set.c
"""dtdata tokenize killed at every step of giving its shards their names, and between any two shards: what is there is never a part of a run that
is taken for all, and the same command completes it."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess

import pytest

import places
import support

DTDATA = os.path.join(support.BIN, "dtdata")
GOLDEN = os.path.join(support.ROOT, "tests/golden/tokenizers")

# Counts renames and removals of files whose path has MATCH in it, and ends the process behind number AT; there are no locks where NO_LOCKS is set.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void count(const char *path)
{
    static int n;
    const char *match = getenv("MATCH"), *at = getenv("AT");
    if (match && at && strstr(path, match) && ++n == atoi(at)) {
        kill(getpid(), SIGKILL);
    }
}
int rename(const char *from, const char *to)
{
    if (getenv("BEFORE") && strstr(to, getenv("BEFORE"))) {
        kill(getpid(), SIGKILL);
    }
    int result = ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
    count(to);
    return result;
}
int unlink(const char *path)
{
    int result = ((int (*)(const char *))dlsym(RTLD_NEXT, "unlink"))(path);
    count(path);
    return result;
}
int flock(int fd, int operation)
{
    if (getenv("NO_LOCKS")) {
        errno = ENOLCK;
        return -1;
    }
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return str(folder / "shim.so")


def dtdata(*args, shim=None, **env):
    support.program("dtdata")
    more = {"LD_PRELOAD": shim, **{k: str(v) for k, v in env.items()}} if shim else {}
    return subprocess.run([DTDATA, *map(str, args)], env={**os.environ, **more}, capture_output=True, text=True, timeout=support.DEADLINE_S)


def good(*args, **env):
    p = dtdata(*args, **env)
    assert p.returncode == 0, p.stderr
    return p


def look(folder):
    """Files of a folder but hidden ones, with a hash of what is in them."""
    return {x: hashlib.sha256((folder / x).read_bytes()).hexdigest()[:16] for x in sorted(os.listdir(folder)) if not x.startswith(".")}


needs_preload = pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers must be loaded first")


def corpus(folder, count, seed):
    r = random.Random(seed)
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.csv").write_text("text,label\n" + "".join(f"{'xyz'[r.randrange(3)] * r.randrange(60)},{'ab'[k % 2]}\n" for k in range(400)))
    return folder


@needs_preload
@pytest.mark.parametrize("form, earlier", [([], 2), ([], 5), (["--label_column", "label"], 5), (["--label_column", "label"], 0)])
def test_every_step_of_naming(tmp_path, shim, form, earlier):
    """earlier: files of an older run's text, which has fewer or more shards. In the short form every third step."""
    by = 1 if os.environ.get("DTRUN_ALL") else 3
    options = ["tokenize", *form, "--shard_tokens", 9000, "--val", 0.3]
    old, whole, out = tmp_path / "old", tmp_path / "whole", tmp_path / "out"
    text = corpus(tmp_path / "text", 4, 1)
    files = lambda folder: sorted(folder.glob("*.csv"))
    before = {}
    if earlier:
        good(*options, "-o", old, *files(corpus(tmp_path / "older", earlier, 2)))
        before = look(old)
    good(*options, "-o", whole, *files(text))
    after = look(whole)
    command = [*options, *(["--overwrite"] if earlier else []), "-o", out, *files(text)]
    job = tmp_path / "job.json"
    model = {"name": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "max_position_embeddings": 64, "num_labels": 2} if form else \
        {"name": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 64}
    job.write_text(json.dumps({"model": {"vocab_size": 256, **model}, "data": {"train": str(out / ("train-*.safetensors" if form else "train-*.bin")), "sequence_length": 64},
                               "training": {"max_steps": 1, "batch_size_per_gpu": 1}, "output_dir": str(tmp_path / "run")}))
    kills = refusals = 0
    while True:
        subprocess.run(["rm", "-rf", out], check=True)
        if earlier:
            subprocess.run(["cp", "-r", old, out], check=True)
        p = dtdata(*command, shim=shim, MATCH=f"{out}/", AT=1 + kills * by)
        if p.returncode == 0:
            break
        assert p.returncode == -signal.SIGKILL, p.stderr
        kills += 1
        now = look(out) if out.exists() else {}
        p = subprocess.run([support.program("train"), "--plan", job], capture_output=True, text=True, timeout=support.DEADLINE_S)
        if p.returncode == 0:  # all of one run, of the side that is looked at
            sides = [{k: v for k, v in x.items() if k.startswith("train-") and not k.endswith("-shards.json")} for x in (now, before, after)]
            assert sides[0] in sides[1:], (kills, sorted(now))
        else:
            refusals += "getting their names" in p.stderr
            assert "getting their names" in p.stderr or "no such file" in p.stderr, p.stderr
        p = dtdata(*command)
        assert p.returncode == 0, p.stderr
        assert look(out) == after, (kills, p.stderr)
        assert [x for x in os.listdir(out) if x.startswith(".")] == []
    assert kills > 10 and refusals >= 3
    assert look(out) == after


@needs_preload
@pytest.mark.parametrize("seed", range(2))
def test_long_records_between_two_shards(tmp_path, shim, seed):
    """Blocks must end at the same records when a run goes on for the side that is behind: none is lost, none comes twice."""
    r = random.Random(seed)
    with open(tmp_path / "rows.jsonl", "w") as f:
        for i in range(100):
            size = r.randrange(150_000, 400_000) if r.random() < 0.2 else r.randrange(20_000)
            f.write(json.dumps({"text": f"{i} " + "x" * size, "label": "ab"[i % 2]}) + "\n")
    options = ["tokenize", "--label_key", "label", "--val", 0.5, "--max_length", 40, "--shard_tokens", 40, tmp_path / "rows.jsonl"]
    good(*options, "-o", tmp_path / "whole")
    after = look(tmp_path / "whole")
    for at in range(3 + 7 * seed, 95, 23):
        out = tmp_path / f"out{at}"
        p = dtdata(*options, "-o", out, shim=shim, MATCH="progress.json", AT=at)
        assert p.returncode == -signal.SIGKILL
        good(*options, "-o", out)
        assert look(out) == after, at


@needs_preload
def test_a_list_of_shards_that_was_being_written(tmp_path, shim):
    text = tmp_path / "text.txt"
    text.write_text("abc " * 20000)
    command = ["tokenize", "--val", 0, "--shard_tokens", 9000, text, "-o", tmp_path / "out"]
    assert dtdata(*command, shim=shim, BEFORE="out/train-shards.json").returncode == -signal.SIGKILL
    assert [x for x in look(tmp_path / "out") if x.startswith("train-shards.json.tmp-")]
    good(*command)
    assert len(look(tmp_path / "out")) == 9 * 2 + 1 and "train-shards.json" in look(tmp_path / "out")


@needs_preload
def test_complete_shards_do_not_count_as_space_that_is_needed(tmp_path, shim):
    """The shards need 8 MB of a disk of 10 MB, on which a killed run has left 5 MB of them."""
    text, mount = tmp_path / "t", places.mount_point(tmp_path, "small")
    text.write_bytes(b"x" * 4_000_000)
    go = f"'{support.program('dtdata')}' tokenize -o '{mount}/o' --val 0 --shard_tokens 500000 '{text}'"
    p = places.in_mounts(f"mount -t tmpfs -o size=10m none '{mount}'; MATCH=progress.json AT=5 LD_PRELOAD='{shim}' {go}; echo code $? >&2; "
                         f"dd if=/dev/zero of='{mount}/other' bs=1M count=3 2>/dev/null; {go}; rm '{mount}/other'; {go} && cp -r '{mount}/o' '{tmp_path}/out'")
    lines = [x for x in p.stderr.splitlines() if not x.startswith("Killed")]
    assert lines[0] == "code 137" and re.match(r".*: the shards need [23]\.\d MiB, but [12]\.\d MiB are free", lines[1]), p
    assert "dtdata: goes on behind 5 complete shards of an earlier run" in lines, p
    good("tokenize", "--val", 0, "--shard_tokens", 500000, text, "-o", tmp_path / "whole")
    assert look(tmp_path / "out") == look(tmp_path / "whole")


@needs_preload
def test_a_damaged_shard_of_a_killed_run(tmp_path, shim):
    text = tmp_path / "text.txt"
    text.write_text("abc " * 20000)
    options = ["tokenize", "--val", 0, "--shard_tokens", 9000, text]
    good(*options, "-o", tmp_path / "whole")
    out = tmp_path / "out"
    dtdata(*options, "-o", out, shim=shim, MATCH="progress.json", AT=4)
    with open(out / ".unfinished/train-00001.bin", "r+b") as f:
        f.seek(2000)
        f.write(b"z")
    p = dtdata(*options, "-o", out)
    assert p.returncode == 1 and "train-00001.bin: changed or damaged" in p.stderr
    p = good(*options, "--overwrite", "-o", out)
    assert "begins anew" in p.stderr
    assert look(out) == look(tmp_path / "whole")


@needs_preload
def test_counts_of_a_run_that_goes_on(tmp_path, shim):
    """Parts that are not UTF-8 are counted once, also where blocks depend on those before, and are read again."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"no blank \xff here \xfe" * 60000)
    options = ["tokenize", "--tokenizer", os.path.join(GOLDEN, "llama2"), "--end", "</s>", "--encoding_errors", "replace", "--val", 0, "--shard_tokens", 100000, text]
    whole = good(*options, "-o", tmp_path / "whole")
    said = re.findall(r"replaced \d+ parts.*", whole.stderr)
    assert len(said) == 1
    dtdata(*options, "-o", tmp_path / "out", shim=shim, MATCH="progress.json", AT=3)
    p = good(*options, "-o", tmp_path / "out")
    assert "goes on behind" in p.stderr and re.findall(r"replaced \d+ parts.*", p.stderr) == said
    assert look(tmp_path / "out") == look(tmp_path / "whole")


@needs_preload
def test_a_file_system_without_locks(tmp_path, shim):
    (tmp_path / "text.txt").write_text("abc " * 5000)
    good("tokenize", "--val", 0, "-o", tmp_path / "out", tmp_path / "text.txt", shim=shim, NO_LOCKS=1)
    good("train-tokenizer", "-v", 260, "-o", tmp_path / "tok", tmp_path / "text.txt", shim=shim, NO_LOCKS=1)


@needs_preload
def test_a_tokenizer_inside_of_its_text(tmp_path, shim):
    """A run that was killed leaves its counts in the folder that is read; the next one passes them over."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.txt").write_text(f"some words {i} " * 90000)
    options = ["train-tokenizer", "-v", 300, "--save_every", "500K"]
    good(*options, "-o", tmp_path / "whole", folder)
    p = dtdata(*options, "-o", folder / "tok", folder, shim=shim, MATCH="tok.counts/", AT=4)
    assert p.returncode == -signal.SIGKILL
    p = good(*options, "-o", folder / "tok", folder)
    assert "counted anew" not in p.stderr
    assert (folder / "tok/tokenizer.json").read_bytes() == (tmp_path / "whole/tokenizer.json").read_bytes()


@pytest.mark.parametrize("skip", [False, True])
def test_records_that_are_too_long(tmp_path, skip):
    """A record longer than all that is read at a time, and a quote that is never closed with more than that behind it."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "first"}) + "\n" + json.dumps({"text": "b" * 40_000_000}) + "\n" + json.dumps({"text": "last"}) + "\n")
    (tmp_path / "b.csv").write_text('text\nfirst\n"open\n' + "a line\n" * 6_000_000)
    (tmp_path / "c.csv").write_text("text\nfirst\n" + "c" * 40_000_000 + "\nlast\n")
    for name, count, words in (("a.jsonl", len("first|last|"), "a.jsonl: record 2: longer than 16777216 bytes"),
                               ("b.csv", len("first|") + 6_000_000 * len("a line|"), "b.csv:3: "),
                               ("c.csv", len("first|last|"), "c.csv:3: a record of more than 16777216 bytes")):
        p = dtdata("tokenize", *(["--on_bad_record", "skip"] if skip else []), "--val", 0, "-o", tmp_path / f"out-{name}", tmp_path / name)
        assert words in p.stderr, p.stderr
        if skip:
            assert p.returncode == 0 and f"{count} tokens" in p.stdout and "skipped 1 " in p.stderr, (p.stdout, p.stderr)
        else:
            assert p.returncode == 1
