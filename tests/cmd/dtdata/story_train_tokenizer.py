# covers: cmd/dtdata/train_tokenizer.c cmd/dtdata/train_counting.c cmd/dtdata/train_format.c cmd/dtdata
"""dtdata train-tokenizer: the library's merges, the same file whatever the memory and the threads and however often it was killed, and what it says
when something is wrong."""

import glob
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import support

DTDATA = os.path.join(support.BIN, "dtdata")
PEERS = os.environ.get("DTRUN_PEERS") or os.path.join(os.path.expanduser("~"), ".cache", "dtrun", "peers")


def dtdata(*args, code=0, input=None):
    """Runs dtdata; returns stdout and stderr."""
    support.program("dtdata")
    p = subprocess.run([DTDATA, "train-tokenizer", *(x if isinstance(x, bytes) else str(x) for x in args)], input=input, capture_output=True, timeout=support.DEADLINE_S)
    out, err = p.stdout.decode(), p.stderr.decode()
    assert p.returncode == code, (out, err)
    return out, err


def judge(*jobs):
    """Answers of tests/peers/tokenizer_training.py, one for each job."""
    python = os.path.join(PEERS, "bin", "python")
    script = os.path.join(support.ROOT, "tests", "peers", "tokenizer_training.py")
    if not os.path.exists(python) or not glob.glob(os.path.join(PEERS, "lib", "python3*", "site-packages", "tokenizers")):
        pytest.skip("no tokenizers library: scripts/setup.sh --peers installs it")
    p = subprocess.run([python, script], input="".join(json.dumps(job) + "\n" for job in jobs), capture_output=True, text=True,
                       timeout=5 * support.DEADLINE_S)
    assert p.returncode == 0, p.stderr
    return [json.loads(line) for line in p.stdout.splitlines()]


def write_text(path, size, seed=1):
    """Words by Zipf's law, with numbers, marks, accents, other scripts and blank lines."""
    chance = random.Random(seed)
    syllables = ["ba", "ko", "ti", "sur", "en", "lo", "ma", "fi", "der", "ge", "ö", "né", "стр", "на", "中", "文", "x", "q"]
    words = ["".join(chance.choices(syllables, k=1 + int(chance.expovariate(0.6)))) for _ in range(4000)]
    parts, n = [], 0
    while n < size:
        line = " ".join(words[min(int(chance.paretovariate(0.7)) - 1, 3999)] for _ in range(12))
        line += chance.choice([".", "!", " (12345)", "  ", " it's", ";\n\n    indented", ", " + str(chance.randrange(10**6))]) + "\n"
        parts.append(line)
        n += len(line)
    path.write_text("".join(parts), encoding="utf-8", newline="")
    return path


def read(folder):
    return (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "o200k", "[a-z]+|[^a-z]+"])
def test_bpe_is_the_librarys(tmp_path, pattern):
    """All merges and ids, down to the last pairs, where counts are equal and tokens arise in several ways."""
    text = write_text(tmp_path / "text.txt", 200000)
    out, err = dtdata("-v", 5000, "--pattern", pattern, "--special", "<|endoftext|>", "--special", "<|pad|>", "-o", tmp_path / "tok", text)
    ours = json.loads(read(tmp_path / "tok"))
    (theirs,) = judge({"train": str(text), "type": "bpe", "normalizer": None, "pre_tokenizer": ours["pre_tokenizer"], "vocabulary": 5000,
                    "special": ["<|endoftext|>", "<|pad|>"], "lines": False, "bytes": True})
    assert ours["model"]["merges"] == theirs["merges"]
    assert ours["model"]["vocab"] == theirs["vocab"]


def test_sentencepiece_bpe_is_the_librarys(tmp_path):
    text = write_text(tmp_path / "text.txt", 100000)
    dtdata("-v", 2000, "--pattern", "sentencepiece", "-o", tmp_path / "tok", text)
    ours = json.loads(read(tmp_path / "tok"))
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    (theirs,) = judge({"train": str(text), "type": "bpe", "normalizer": None, "pre_tokenizer": ours["pre_tokenizer"], "vocabulary": 2000, "special": special,
                    "lines": True, "bytes": False})
    assert ours["model"]["merges"] == theirs["merges"] and ours["model"]["vocab"] == theirs["vocab"]


def test_wordpiece_is_the_librarys(tmp_path):
    """Counts that differ: with equal ones the library takes another token every time."""
    text = tmp_path / "text.txt"
    text.write_text("".join((word + " ") * (1000 - 37 * i) for i, word in enumerate("they these there other mother father weather whether leather".split())))
    dtdata("-v", 40, "--type", "wordpiece", "-o", tmp_path / "tok", text)
    ours = json.loads(read(tmp_path / "tok"))
    (theirs,) = judge({"train": str(text), "type": "wordpiece", "normalizer": ours["normalizer"], "pre_tokenizer": ours["pre_tokenizer"], "vocabulary": 40,
                    "special": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "lines": False, "bytes": False})
    assert set(ours["model"]["vocab"]) == set(theirs["vocab"])


SAMPLES = ["the quick  brown fox", "ba ko\n\n  né 中文 12345 it's", "", "a <|endoftext|>x</s>[SEP]"]
ROLES = {
    ("--pattern", "llama3"): {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    (): {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
    ("--pattern", "sentencepiece"): {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ("--type", "wordpiece"): {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
    ("--type", "unigram"): {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}


def test_the_library_and_auto_tokenizer_read_the_folders(tmp_path):
    text = write_text(tmp_path / "text.txt", 30000)
    jobs = []
    for i, options in enumerate(ROLES):
        dtdata("-v", 700, *options, "-o", tmp_path / str(i), text)
        jobs.append({"load": str(tmp_path / str(i)), "texts": SAMPLES})
    for (options, roles), loaded in zip(ROLES.items(), judge(*jobs)):
        assert loaded["ids"] == loaded["auto"] and loaded["said"] == [], options
        assert loaded["roles"] == roles
        if "--type" not in options:
            lost = [r for r in roles.values()]
            for sample, decoded in zip(SAMPLES, loaded["decoded"]):
                for token in lost:
                    sample = sample.replace(token, "")
                assert decoded == sample


@pytest.mark.parametrize("options", [(), ("--type", "wordpiece"), ("--type", "unigram")])
def test_memory_and_threads_change_nothing(tmp_path, options):
    text = write_text(tmp_path / "text.txt", 60000 if "unigram" in options else 900000)
    results = set()
    for memory, threads in (("2G", 1), ("2G", 4), ("1M", 1), ("1M", 4), ("12M", 2), ("1", 3)):
        out = tmp_path / f"tok-{memory}-{threads}"
        dtdata("-v", 1500, *options, "--memory", memory, "--threads", threads, "--save_every", "300K", "-o", out, text)
        results.add(read(out))
        assert not os.path.exists(f"{out}.counts")
    assert len(results) == 1


def test_files_and_records_are_texts_of_their_own(tmp_path):
    """A folder, .gz and records give the counts of their texts."""
    texts = ["ab ab", "ab cd\n", "cd cd cd"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text(texts[0])
    (folder / "b.txt.gz").write_bytes(gzip.compress(texts[1].encode()))
    (folder / "c.jsonl").write_text(json.dumps({"body": texts[2]}) + "\n")
    records = tmp_path / "all.jsonl"
    records.write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    dtdata("-v", 262, "--text_key", "body", "-o", tmp_path / "one", folder)
    dtdata("-v", 262, "--text_key", "body", "-o", tmp_path / "two", records)
    dtdata("-v", 262, "-o", tmp_path / "three", "-", input=(texts[0] + "\0"[:0]).encode())
    assert read(tmp_path / "one") == read(tmp_path / "two") != read(tmp_path / "three")
    assert json.loads(read(tmp_path / "one"))["model"]["merges"] == [["c", "d"], ["a", "b"], ["Ġ", "cd"], ["Ġ", "ab"]]


def test_columns_are_texts(tmp_path):
    """A CSV, a TSV and an array of objects have the tokenizer of the same texts one per line of JSON."""
    texts = [f"word {i * i}, \"quoted\"\nand a second line" for i in range(200)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"body": t}) + "\n" for t in texts))
    (tmp_path / "t.json").write_text(json.dumps([{"body": t} for t in texts], indent=1))
    (tmp_path / "t.csv").write_text("id,body\n" + "".join('{},"{}"\n'.format(i, t.replace('"', '""')) for i, t in enumerate(texts)))
    made = []
    for name, key in (("t.jsonl", "--text_key"), ("t.json", "--text_key"), ("t.csv", "--text_column")):
        dtdata("-v", 320, key, "body", "-o", tmp_path / f"tok-{name}", tmp_path / name)
        made.append((tmp_path / f"tok-{name}" / "tokenizer.json").read_bytes())
    assert made[0] == made[1] == made[2]
    out, err = dtdata("-v", 320, "-o", tmp_path / "x", tmp_path / "t.csv", code=1)
    assert err == f'dtdata: {tmp_path}/t.csv:1: no column "text" (there are id, body); name it with --text_column\n'
    (tmp_path / "t.tsv").write_text("body\nlow low lower\n")
    dtdata("-v", 260, "--text_column", "body", "-o", tmp_path / "tsv", tmp_path / "t.tsv")


PEAK = r"""
import os, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(p.pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(status != 0)
"""


def peak_of(*args):
    """Asked by a small process: the kernel counts what a child had of its parent before exec, and tests grow."""
    return int(subprocess.run([sys.executable, "-c", PEAK, DTDATA, "train-tokenizer", *map(str, args)], check=True, stdout=subprocess.PIPE, text=True).stdout)


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers take memory of their own")
def test_peak_stays_within_memory(tmp_path):
    """Words that occur once, more than fit."""
    limit, text = 40_000_000, tmp_path / "text.txt"
    chance = random.Random(3)
    with open(text, "w") as f:
        for _ in range(800):
            f.write(" ".join("".join(chance.choices("abcdefghijklmnop", k=9)) for _ in range(400)) + "\n")
    assert peak_of("-v", 300, "--memory", limit, "--threads", 2, "-o", tmp_path / "little", text) <= limit
    assert peak_of("-v", 300, "--threads", 2, "-o", tmp_path / "much", text) > limit
    assert read(tmp_path / "little") == read(tmp_path / "much")


def test_a_word_of_a_million_letters(tmp_path):
    """Text without white space, as of genomes: a word is read once in each merge, not once for each of its pairs."""
    (tmp_path / "text.txt").write_text("".join(random.Random(4).choices("acgt", k=1000000)))
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    dtdata("-v", 400, "--threads", 1, "-o", tmp_path / "tok", tmp_path / "text.txt")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent < 20


def start(*args):
    return subprocess.Popen([DTDATA, "train-tokenizer", *(x if isinstance(x, bytes) else str(x) for x in args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def test_goes_on_after_a_kill(tmp_path):
    text = write_text(tmp_path / "text.txt", 1500000)
    args = ("-v", 1000, "--threads", 2, "--save_every", "300K")
    dtdata(*args, "-o", tmp_path / "whole", text)
    p = start(*args, "-o", tmp_path / "tok", text)
    manifest = tmp_path / "tok.counts" / "manifest.json"
    support.wait_until(lambda: manifest.exists() or p.poll() is not None, "the first save")
    p.kill()
    p.communicate()
    if p.returncode != 0:  # else it was faster than we are
        before = json.load(open(manifest))
        assert before["text_bytes"] > 0
        out, err = dtdata(*args, "-o", tmp_path / "tok", text)
        assert "went on behind the" in err
    assert read(tmp_path / "tok") == read(tmp_path / "whole")
    assert not (tmp_path / "tok.counts").exists()


def test_kills_at_any_moment(tmp_path):
    """However often and wherever it is killed, the file is there whole or not at all, and in the end the same."""
    text = write_text(tmp_path / "text.txt", 700000)
    args = ("-v", 700, "--threads", 2, "--memory", "1M", "--save_every", "200K", "-o")
    began = time.monotonic()
    dtdata(*args, tmp_path / "whole", text)
    length_s = time.monotonic() - began
    chance = random.Random(5)
    for round in range(2):
        out = tmp_path / f"tok-{round}"
        for _ in range(5):
            p = start(*args, out, text)
            time.sleep(chance.uniform(0, length_s))
            p.send_signal(signal.SIGKILL)
            p.communicate()
            if (out / "tokenizer.json").exists():
                assert read(out) == read(tmp_path / "whole")
                break
        if not (out / "tokenizer.json").exists():
            dtdata(*args, out, text)
        assert read(out) == read(tmp_path / "whole")


def test_another_text_is_counted_anew(tmp_path):
    text = write_text(tmp_path / "text.txt", 1200000)
    args = ("-v", 500, "--threads", 1, "--save_every", "300K", "-o", tmp_path / "tok")
    p = start(*args, text)
    manifest = tmp_path / "tok.counts" / "manifest.json"
    support.wait_until(lambda: manifest.exists() or p.poll() is not None, "the first save")
    p.kill()
    p.communicate()
    if p.returncode == 0:
        pytest.skip("it was done before it could be killed")
    write_text(text, 100000, seed=2)
    out, err = dtdata(*args, text)
    assert "counts of another text or other options were there; counted anew" in err
    dtdata(*args[:-1], tmp_path / "fresh", text)
    assert read(tmp_path / "tok") == read(tmp_path / "fresh")


def test_a_signal_stops_and_says_how_to_go_on(tmp_path):
    text = write_text(tmp_path / "text.txt", 3000000)
    p = start("-v", 30000, "--threads", 1, "-o", tmp_path / "tok", text)
    support.wait_until(lambda: (tmp_path / "tok.counts").exists() or p.poll() is not None, "the folder")
    p.send_signal(signal.SIGTERM)
    err = p.communicate()[1].decode()
    if p.returncode != 0:
        assert p.returncode == 128 + signal.SIGTERM
        assert err == f"dtdata: stopped; the same command goes on with the counts in {tmp_path}/tok.counts\n"
        assert not (tmp_path / "tok" / "tokenizer.json").exists()


def test_a_full_disk(tmp_path):
    """A limit on file sizes stands for the disk: nothing half-written is left as the tokenizer."""
    text = write_text(tmp_path / "text.txt", 300000)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    p = subprocess.run([DTDATA, "train-tokenizer", "-v", "3000", "-o", tmp_path / "tok", text], capture_output=True, preexec_fn=limit)
    assert p.returncode == 1 and b"File too large" in p.stderr
    assert not (tmp_path / "tok" / "tokenizer.json").exists()
    dtdata("-v", 3000, "-o", tmp_path / "tok", text)


def test_wrong_use(tmp_path):
    text = write_text(tmp_path / "text.txt", 3000)
    for args, said in (
        ((), "train-tokenizer: no files; give text files or folders, or - for standard input"),
        (("--type", "wordlevel", text), "--type wordlevel: there are bpe, wordpiece, unigram"),
        (("--pattern", "gpt3", text), "--pattern gpt3: there are gpt2, llama3, qwen2, o200k, sentencepiece, and regular expressions"),
        (("--pattern", "gpt2", "--type", "unigram", text), "--pattern: only for --type bpe"),
        (("-v", "200", text), "-v 200: 257 tokens are needed for special ones and bytes alone; give more"),
        (("-v", "0", text), "-v 0: give a whole number from 1 to 10000000"),
        (("--memory", "much", text), "--memory much: give a size, for example 2G or 512M"),
        (("--limit_alphabet", "10", text), "--limit_alphabet: only for --type wordpiece and --pattern sentencepiece"),
        (("--special", b"\xff", text), "--special: is not UTF-8"),
        (("--keep_case", text), "--keep_case: only for --type wordpiece; the others keep it anyway"),
        (("-", "-"), "-: standard input can be read only once"),
    ):
        out, err = dtdata(*args, "-o", tmp_path / "tok", code=2)
        assert err.splitlines()[0] == "dtdata: " + said
    dtdata("-v", 300, "-o", tmp_path / "tok", text)
    out, err = dtdata("-v", 300, "-o", tmp_path / "tok", text, code=2)
    assert "is there already; choose another folder with -o, or give --overwrite" in err
    out, err = dtdata("-v", 300, "-o", tmp_path / "tok", "--overwrite", text)
    out, err = dtdata("--pattern", "(a", "-o", tmp_path / "other", text, code=1)
    assert "--pattern" in err
    _, err = dtdata("--type", "wordpiece", "-v", 10, "-o", tmp_path / "few", text)
    assert "these are more than -v 10: each character has a token" in err
    out, err = dtdata("-v", "5", "--type", "unigram", "-o", tmp_path / "other", text, code=1)
    assert "do not fit; give at least" in err
    text.write_bytes(b"ab\n" * 200000 + b"cd \xff ef\n")
    for pattern in ("gpt2", "sentencepiece"):
        out, err = dtdata("-v", 300, "--pattern", pattern, "-o", tmp_path / "bad", text, code=1)
        assert err == f"dtdata: {text}: byte 600003 (0xff) is not UTF-8; convert the file (iconv -f ENCODING -t UTF-8)\n"
    assert not (tmp_path / "bad.counts").exists()
    assert (tmp_path / "other.counts").exists()  # with a larger -v they need not be counted again
    out, err = dtdata("-v", 300, "-o", tmp_path / "bad", "-", code=1, input=b"")
    assert err == "dtdata: -: no text: what was read is empty; give other files\n"
