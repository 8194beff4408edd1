# covers: cmd/dtdata worker/data/shards_write.c worker/data/shards_set.c worker/data/tokenizers
"""dtdata tokenize with tokenizers, records, labels and threads: the ids of the tokenizers library, nothing lost, nothing twice, and runs that go on
after a kill."""

import gzip
import json
import os
import random
import re
import signal
import struct
import subprocess

import pytest

import dropin
import places
import support

DTDATA = os.path.join(support.BIN, "dtdata")
GOLDEN = os.path.join(support.ROOT, "tests/golden/tokenizers")
ENDS = {"gpt2": "<|endoftext|>", "llama3": "<|end_of_text|>", "llama2": "</s>", "bert": "[SEP]", "added": "<|endoftext|>", "bert_added": "[SEP]"}


def dtdata(*args, code=0, input=None):
    """Runs dtdata; returns stdout and stderr."""
    support.program("dtdata")
    p = subprocess.run([DTDATA, *map(str, args)], input=input, capture_output=True, timeout=support.DEADLINE_S)
    out, err = p.stdout.decode(), p.stderr.decode()
    assert p.returncode == code, (out, err)
    return out, err


def shards(folder, side="train"):
    """The ids of all shards of a side, in order."""
    ids = []
    for path in sorted(folder.glob(f"{side}-*.bin")):
        data = path.read_bytes()
        magic, version, count = struct.unpack_from("<3i", data)
        width = {(20240520, 1): 2, (20240801, 7): 4}[magic, version]
        assert len(data) == 1024 + width * count
        ids += struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", data, 1024)
    return ids


def tensors(path):
    """(tensors as lists, metadata) of a safetensors file."""
    data = path.read_bytes()
    [size] = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    kinds = {"I32": "i", "I64": "q", "F32": "f", "U8": "B"}
    meta = header.pop("__metadata__")
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        kind = kinds[t["dtype"]]
        out[name] = list(struct.unpack(f"<{(end - begin) // struct.calcsize(kind)}{kind}", data[8 + size + begin:8 + size + end]))
    return out, meta


def rows(path):
    """[(ids, label)] of a file of labelled rows, and its metadata."""
    t, meta = tensors(path)
    assert t["starts"][0] == 0 and t["starts"][-1] == len(t["ids"])
    return [(t["ids"][a:b], label) for a, b, label in zip(t["starts"], t["starts"][1:], t["labels"])], meta


def cases(name):
    with open(f"{GOLDEN}/{name}/cases.jsonl") as f:
        return [c for c in map(json.loads, f) if "text" in c and "pair" not in c]


def token_id(name, token):
    with open(f"{GOLDEN}/{name}/tokenizer.json") as f:
        d = json.load(f)
    return {t["content"]: t["id"] for t in d["added_tokens"]}.get(token, d["model"]["vocab"].get(token))


def judge(code, *args):
    """What the tokenizers library says: JSON that `code` prints. It has `T(path)`, which opens a tokenizer."""
    if not os.path.exists(dropin.PEER_PYTHON):
        pytest.skip("no peers: scripts/setup.sh --peers installs the tokenizers library")
    head = "import json, sys\nfrom tokenizers import Tokenizer\nT = Tokenizer.from_file\n"
    p = subprocess.run([dropin.PEER_PYTHON, "-c", head + code, *map(str, args)], capture_output=True, text=True, timeout=support.DEADLINE_S)
    if "No module named" in p.stderr:
        pytest.skip("the peers lack the tokenizers library")
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.mark.parametrize("name", sorted(ENDS))
def test_golden_cases(tmp_path, name):
    """Each case is a document of a .jsonl file; those without text are counted."""
    texts = [c for c in cases(name) if "\0" not in c["text"]]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": c["text"]}) + "\n" for c in texts))
    end = token_id(name, ENDS[name])
    _, err = dtdata("tokenize", "--tokenizer", f"{GOLDEN}/{name}", "--end", ENDS[name], "-o", tmp_path / "o", tmp_path / "t.jsonl")
    assert f"dtdata: each document ends with {ENDS[name]} ({end})\n" in err
    assert shards(tmp_path / "o") == sum((c["ids"] + [end] for c in texts if c["text"]), [])
    info = json.load(open(tmp_path / "o/train-00000.bin.json"))
    assert info["tokenizer"] == name and info["document_end"] == end and len(info["tokenizer_hash"]) == 16
    out, _ = dtdata("inspect", "--samples", 1, tmp_path / "o/train-00000.bin")
    assert "  document 1, ids 0 to " in out or "  document 1, no ids before 0: " in out


def long_text(name, size):
    """Words that are one token, so that a cut within them shows, runs of white space and of letters, special tokens, characters of all planes."""
    with open(f"{GOLDEN}/{name}/tokenizer.json") as f:
        words = sorted(w.strip("Ġ▁#") for w in json.load(f)["model"]["vocab"] if len(w) > 4 and w.strip("Ġ▁#").isalpha())
    r, parts, total = random.Random(7), [], 0
    pieces = ["the", " of", "\n", "\n\n  ", " ", "    ", "\t", "don't", "1234567", "Ünïcode", "中文字", "😀", "<|endoftext|>", "</s>", "\u0301", "...", "x" * 300, "\u3000"]
    while total < size:
        parts.append(r.choice(pieces) if r.random() < 0.1 else " " + r.choice(words))
        total += len(parts[-1].encode())
    return "".join(parts)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "llama2", "bert"])
def test_a_long_text_is_that_of_the_library(tmp_path, name):
    """One document over several blocks: the ids of the whole, the same bytes for any number of threads."""
    (tmp_path / "a.txt").write_text(long_text(name, 600000))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(long_text(name, 200000)[::-1].encode()))
    path, end = f"{GOLDEN}/{name}/tokenizer.json", token_id(name, ENDS[name])
    for threads in 1, 2, 4:
        dtdata("tokenize", "--tokenizer", path, "--end", ENDS[name], "-o", tmp_path / f"o{threads}", "--threads", threads, "--val", 0, "--shard_tokens", 30001,
               tmp_path / "a.txt", tmp_path / "b.txt.gz")
    files = [sorted(x.name for x in (tmp_path / f"o{threads}").iterdir()) for threads in (1, 2, 4)]
    assert files[0] == files[1] == files[2] and len(files[0]) > 4
    for x in files[0]:
        assert (tmp_path / "o1" / x).read_bytes() == (tmp_path / "o2" / x).read_bytes() == (tmp_path / "o4" / x).read_bytes(), x
    wanted = judge("import gzip\nread = lambda p: (gzip.open if p.endswith('.gz') else open)(p, 'rt', newline='').read()\n"
                   "print(json.dumps([T(sys.argv[1]).encode(read(p), add_special_tokens=False).ids for p in sys.argv[2:]]))", path, tmp_path / "a.txt",
                   tmp_path / "b.txt.gz")
    assert shards(tmp_path / "o1") == sum((ids + [end] for ids in wanted), [])


def test_encode_and_decode():
    text = "Hello, wörld 😀 <|endoftext|> x\n"
    for name in ("gpt2", "llama3"):
        ids, _ = dtdata("encode", "--tokenizer", f"{GOLDEN}/{name}", input=text.encode())
        assert dtdata("decode", "--tokenizer", f"{GOLDEN}/{name}", input=ids.encode())[0] == text
    assert dtdata("encode", "--tokenizer", "bytes", input=b"ab")[0] == "97 98\n"
    assert dtdata("decode", "--tokenizer", "bytes", input=b"97 98\n")[0] == "ab"
    _, err = dtdata("decode", "--tokenizer", "bytes", input=b"97 300", code=1)
    assert err == "dtdata: -: id 300 (number 2) is beyond the vocabulary of 256\n"
    _, err = dtdata("decode", "--tokenizer", "bytes", input=b"97 x", code=1)
    assert err == "dtdata: -: behind id 1: give ids as numbers with spaces between them\n"


def test_the_end_is_that_of_the_configuration(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(open(f"{GOLDEN}/gpt2/tokenizer.json", "rb").read())
    (tmp_path / "t").write_text("a")
    _, err = dtdata("tokenize", "--tokenizer", folder, "-o", tmp_path / "o", tmp_path / "t", code=1)
    assert err == f"dtdata: {folder}/tokenizer.json: no eos_token in tokenizer_config.json beside it; name the token that ends documents with --end\n"
    # what lies beside it says so, too: the last one of these is asked first
    for name, what in (("config.json", {"eos_token_id": 7}), ("generation_config.json", {"eos_token_id": [8, 9]}), ("special_tokens_map.json", {"eos_token": "!"})):
        (folder / name).write_text(json.dumps(what))
        dtdata("tokenize", "--tokenizer", folder, "-o", tmp_path / "o", "--overwrite", tmp_path / "t")
        assert shards(tmp_path / "o")[-1] == {"config.json": 7, "generation_config.json": 8}.get(name, json.load(open(f"{GOLDEN}/gpt2/tokenizer.json"))["model"]["vocab"]["!"])
    for token in "<|endoftext|>", {"content": "<|endoftext|>", "special": True}:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        dtdata("tokenize", "--tokenizer", folder, "-o", tmp_path / "o", "--overwrite", tmp_path / "t")
        assert shards(tmp_path / "o")[-1] == 0
    _, err = dtdata("tokenize", "--tokenizer", folder, "--end", "no such", "-o", tmp_path / "o", tmp_path / "t", code=1)
    assert err == f"dtdata: --end: no such: {folder}/tokenizer.json has no such token\n"


# ---- records ----

def test_json_arrays(tmp_path):
    """An array of objects is what its objects are one per line, packed or not. In a folder it is text, as it stands, as the rest of sources is."""
    records = [{"id": i, "text": f"text {i}, with [brackets] and \"quotes\"", "label": "ab"[i % 2]} for i in range(300)]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(records).encode()))
    for name, more in (("a.json", ()), ("a.jsonl", ()), ("b.json.gz", ("--format", "json"))):
        dtdata("tokenize", "-o", tmp_path / f"o-{name}", "--val", 0, *more, tmp_path / name)
        dtdata("tokenize", "-o", tmp_path / f"r-{name}", "--label_column", "label", tmp_path / name)
    assert shards(tmp_path / "o-a.json") == shards(tmp_path / "o-a.jsonl") == shards(tmp_path / "o-b.json.gz")
    assert len({(tmp_path / f"r-{name}" / "train-00000.safetensors").read_bytes() for name in ("a.json", "a.jsonl", "b.json.gz")}) == 1
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x.json").write_text('[{"text": "a"}]')
    (tmp_path / "package.json").write_text('{"name": "x"}')
    dtdata("tokenize", "-o", tmp_path / "o-code", "--val", 0, tmp_path / "code", tmp_path / "package.json")
    assert bytes(shards(tmp_path / "o-code")) == b'[{"text": "a"}]\0{"name": "x"}\0'
    (tmp_path / "bad.json").write_text('[{"text": "a"}, {"text": 1}, {"text": "c"}]')
    _, err = dtdata("tokenize", "-o", tmp_path / "p", tmp_path / "bad.json", code=1)
    assert err == f'dtdata: {tmp_path}/bad.json: record 2: no string under "text"; name the key with --text_key\n'
    _, err = dtdata("tokenize", "-o", tmp_path / "p", "--on_bad_record", "skip", tmp_path / "bad.json")
    assert bytes(shards(tmp_path / "p")) == b"a\0c\0" and "skipped 1 broken record" in err
    (tmp_path / "cut.json").write_text('[{"text": "a"}, {"text": "b')
    _, err = dtdata("tokenize", "-o", tmp_path / "q", tmp_path / "cut.json", code=1)
    assert err == f"dtdata: {tmp_path}/cut.json: the JSON array does not end: the file is cut short\n"
    _, err = dtdata("tokenize", "-o", tmp_path / "q", "--format", "json", tmp_path / "a.jsonl", code=1)
    assert err == f"dtdata: {tmp_path}/a.jsonl: no JSON array of objects; with one object per line say the format jsonl\n"
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "x" * (40 << 20)}) + "\n")
    _, err = dtdata("tokenize", "-o", tmp_path / "q", tmp_path / "long.jsonl", code=1)
    assert err == f"dtdata: {tmp_path}/long.jsonl: record 1: longer than 16777216 bytes (16 MiB), the most that a JSON record may have; cut its text into several records\n"


def test_csv_and_tsv(tmp_path):
    """Quotes, line breaks inside of them, byte order marks, CRLF; texts go to shards, rows to safetensors."""
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,label\r\nplain,ham\r\n"with, comma",spam\r\n\r\n"a ""quoted"" word",ham\r\n"two\r\nlines",spam')
    (tmp_path / "b.tsv").write_bytes(b'id\ttext\n1\ta "b\n2\t"c"\n')
    dtdata("tokenize", "-o", tmp_path / "o", "--val", 0, tmp_path / "a.csv", tmp_path / "b.tsv")
    assert bytes(shards(tmp_path / "o")) == b'plain\0with, comma\0a "quoted" word\0two\r\nlines\0a "b\0"c"\0'
    out, _ = dtdata("tokenize", "-o", tmp_path / "p", "--label_column", "label", tmp_path / "a.csv")
    assert out == f"train: 1 file, 4 rows in 1 shard: {tmp_path}/p/train-*.safetensors\nlabels: ham, spam\n"
    got, meta = rows(tmp_path / "p/train-00000.safetensors")
    assert [(bytes(ids), label) for ids, label in got] == [(b"plain", 0), (b"with, comma", 1), (b'a "quoted" word', 0), (b"two\r\nlines", 1)]
    assert json.loads(meta["label_names"]) == ["ham", "spam"] and meta["tokenizer"] == "bytes" and meta["pad_id"] == "0"
    out, _ = dtdata("inspect", tmp_path / "p/train-00000.safetensors")
    assert f'{tmp_path}/p/train-00000.safetensors: 4 rows, 41 ids\n  tokenizer bytes, labels ["ham","spam"]\n  row 1, 5 ids, label ham: plain\n' in out
    for labels, place in (("spam,ham", None), ("ham", 3)):
        out, err = dtdata("tokenize", "-o", tmp_path / "p", "--overwrite", "--label_column", "label", "--labels", labels, tmp_path / "a.csv", code=1 if place else 0)
        if place:
            assert err == f"dtdata: {tmp_path}/a.csv:{place}: the label spam is none of ham\n"
        else:
            assert [label for _, label in rows(tmp_path / "p/train-00000.safetensors")[0]] == [1, 0, 1, 0]
    # an index without a name, as pandas writes it, and empty columns, as tables of Excel have them
    (tmp_path / "e.csv").write_bytes(b",text,label,,,x,x\n0,a,ham,,,,\n1,b,spam,,,1,2\n")
    dtdata("tokenize", "-o", tmp_path / "e", "--label_column", "label", tmp_path / "e.csv")
    assert rows(tmp_path / "e/train-00000.safetensors")[0] == [([97], 0), ([98], 1)]
    # a text without ids is no row: nothing could be judged by it
    (tmp_path / "0.csv").write_bytes(b'text,label\na,ham\n"",spam\nb,spam\n')
    _, err = dtdata("tokenize", "-o", tmp_path / "0", "--label_column", "label", tmp_path / "0.csv")
    assert f"dtdata: skipped 1 document without text; the first is {tmp_path}/0.csv:3\n" in err
    assert rows(tmp_path / "0/train-00000.safetensors")[0] == [([97], 0), ([98], 1)]
    _, err = dtdata("inspect", tmp_path / "0", code=2)
    assert f"dtdata: inspect: {tmp_path}/0 is a folder; name its shards: {tmp_path}/0/*.bin, or *.safetensors\n" in err
    (tmp_path / "n.csv").write_bytes(b"text,label\na,10\nb,0.5\n")
    dtdata("tokenize", "-o", tmp_path / "n", "--label_column", "label", "--regression", tmp_path / "n.csv")
    got, meta = rows(tmp_path / "n/train-00000.safetensors")
    assert [label for _, label in got] == [10.0, 0.5] and "label_names" not in meta
    for value, says in ("1e39", "is beyond the numbers of fp32"), ("nan", "is no number"), ("-inf", "is no number"):
        (tmp_path / "n.csv").write_text(f"text,label\na,10\nb,{value}\n")
        _, err = dtdata("tokenize", "-o", tmp_path / "m", "--label_column", "label", "--regression", tmp_path / "n.csv", code=1)
        assert err == f"dtdata: {tmp_path}/n.csv:3: the label {value} {says}\n"


def test_labels_of_json_and_numbers(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"text": "a", "label": 9007199254740993}\n{"text": "a", "label": 9007199254740992}\n')
    _, err = dtdata("tokenize", "-o", tmp_path / "b", "--label_column", "label", tmp_path / "b.jsonl", code=1)
    assert err == f"dtdata: {tmp_path}/b.jsonl: record 1: the label is a number beyond 2^53, where two are read as one; write it as a text\n"
    dtdata("tokenize", "-o", tmp_path / "b", "--label_column", "label", "--regression", tmp_path / "b.jsonl")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"t{i}", "label": i % 11}) + "\n" for i in range(33)))
    dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "a.jsonl")
    got, meta = rows(tmp_path / "o/train-00000.safetensors")
    assert [label for _, label in got] == [i % 11 for i in range(33)]  # not in the order of their bytes
    assert json.loads(meta["label_names"]) == [str(i) for i in range(11)]
    _, err = dtdata("tokenize", "-o", tmp_path / "p", "--label_column", "label", "--format", "jsonl", "-", input=b"{}", code=2)
    assert err == "dtdata: -: cannot be read twice to find the labels; name them with --labels A,B,...\n"
    dtdata("tokenize", "-o", tmp_path / "p", "--label_column", "label", "--labels", "y,x", "--format", "jsonl", "-", input=b'{"text": "a", "label": "x"}')
    assert rows(tmp_path / "p/train-00000.safetensors")[0] == [([97], 1)]


def test_rows_are_held_out_by_their_text(tmp_path):
    lines = [f"text {i % 500},{'ab'[i % 2]}" for i in range(2000)]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines))
    dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", "--val", 0.2, tmp_path / "a.csv")
    train, val = rows(tmp_path / "o/train-00000.safetensors")[0], rows(tmp_path / "o/val-00000.safetensors")[0]
    texts = [{bytes(ids) for ids, _ in side} for side in (train, val)]
    assert len(train) + len(val) == 2000 and not texts[0] & texts[1] and 200 < len(val) < 600


def test_pairs_and_truncation(tmp_path):
    """Rows of a BERT tokenizer are those of the library, with types, cut to --max_length."""
    texts = ["a short one", "a much longer text that has to be cut, since it goes on and on and on", "", "plain"]
    pairs = ["its pair", "second text", "only this", "that goes on and on and on and on and on and on and on"]
    (tmp_path / "a.tsv").write_text("text\ttext2\tlabel\n" + "".join(f"{a}\t{b}\tx\n" for a, b in zip(texts, pairs)))
    path = f"{GOLDEN}/bert/tokenizer.json"
    _, err = dtdata("tokenize", "--tokenizer", path, "--label_column", "label", "--text_pair_column", "text2", "--max_length", 16, "-o", tmp_path / "o", tmp_path / "a.tsv")
    assert "rows to --max_length, or else to what tokenizer.json says; the first is " in err
    t, meta = tensors(tmp_path / "o/train-00000.safetensors")
    wanted = judge("t = T(sys.argv[1])\nt.enable_truncation(16)\nt.no_padding()\n"
                   "es = [t.encode(a, b) for a, b in zip(*json.loads(sys.argv[2]))]\nprint(json.dumps([[e.ids, e.type_ids] for e in es]))", path, json.dumps([texts, pairs]))
    assert [t["ids"][a:b] for a, b in zip(t["starts"], t["starts"][1:])] == [e[0] for e in wanted]
    assert t["types"] == sum((e[1] for e in wanted), [])
    assert meta["pad_id"] == str(token_id("bert", "[PAD]"))


def test_broken_records(tmp_path):
    """Refused with the place, or counted with the first place."""
    (tmp_path / "r.csv").write_bytes(b'text,label\na,x\nb\nc,x,extra\n"open,x\n')
    (tmp_path / "q.csv").write_bytes(b'text,label\na,x\n"b"c,x\n')
    (tmp_path / "r.jsonl").write_bytes(b'{"text": "a"}\n{"text": 1}\n[]\n{"text": "\xff"}\n{"text": "b"}\n')
    for name, first, count, kept in (("r.csv", "3: 1 field, the header has 2", 3, b"a\0"),
                                     ("q.csv", "3: field 1: text behind its closing quote; a quote inside of quotes is written twice", 1, b"a\0"),
                                     ("r.jsonl", ' record 2: no string under "text"; name the key with --text_key', 3, b"a\0b\0")):
        _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / name, code=1)
        assert err == f"dtdata: {tmp_path}/{name}:{first}\n"
        _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--on_bad_record", "skip", tmp_path / name)
        assert err == f"dtdata: skipped {count} broken record{'s' if count > 1 else ''}; the first: {tmp_path}/{name}:{first}\n"
        assert bytes(shards(tmp_path / "o")) == kept
        for x in (tmp_path / "o").iterdir():
            x.unlink()
    for header, cause in (b"text,a,text", "two columns are named text"), \
            (b",body,label", 'no column "text" (there are body, label); name it with --text_column'):
        (tmp_path / "h.csv").write_bytes(header)
        _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "h.csv", code=1)
        assert err == f"dtdata: {tmp_path}/h.csv:1: {cause}\n"


def test_records_that_give_nothing(tmp_path):
    """Why nothing is left is said; lines of old Macintoshes are one header."""
    (tmp_path / "a.jsonl").write_text('{"text": "a\\u0000b"}\n')
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "a.jsonl", code=1)
    assert "left out 1 record with \\u0000" in err and err.endswith("no text for train: what was read is empty; give other files\n"), err
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_bytes(b"text\ra\rb\r")
        _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / name, code=1)
        assert err == f"dtdata: {tmp_path}/{name}:1: a CR within the header: lines must end with LF or CRLF; convert it: tr '\\r' '\\n'\n"


def test_what_is_not_utf8(tmp_path):
    """Refused by the tokenizers' text, replaced as Python does, also where blocks meet."""
    r = random.Random(3)
    data = b"".join(r.choice([b"\xff", b"\xe4\xb8", "中".encode(), b"\xf0\x9f", b"a", b" b\n", b"\xed\xa0\x80", b"\xc0\xaf"]) for _ in range(200000))
    (tmp_path / "t").write_bytes(data)
    first = next(i for i in range(len(data)) if data[:i + 1].decode(errors="replace").count("\ufffd") and not data[:i].decode(errors="ignore").encode() != data[:i])
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--encoding_errors", "replace", "--threads", 2, tmp_path / "t")
    text = data.decode(errors="replace")
    assert bytes(shards(tmp_path / "o")) == text.encode() + b"\0"
    assert err == f"dtdata: replaced {text.count(chr(0xfffd))} parts that are not UTF-8 by U+FFFD; the first is {tmp_path}/t: byte {first}\n"
    _, err = dtdata("tokenize", "--tokenizer", f"{GOLDEN}/gpt2", "--end", "<|endoftext|>", "-o", tmp_path / "p", tmp_path / "t", code=1)
    assert f"dtdata: {tmp_path}/t: byte {first} (0x{data[first]:02x}) is not UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or give --encoding_errors replace" in err
    (tmp_path / "s").write_bytes(data[:300000])
    path = f"{GOLDEN}/gpt2/tokenizer.json"
    dtdata("tokenize", "--tokenizer", path, "--end", "<|endoftext|>", "--encoding_errors", "replace", "-o", tmp_path / "q", tmp_path / "s")
    wanted = judge("print(json.dumps(T(sys.argv[1]).encode(open(sys.argv[2], errors='replace', newline='').read(), add_special_tokens=False).ids))", path, tmp_path / "s")
    assert shards(tmp_path / "q") == wanted + [0]
    # a few such bytes in a long text: it is cut in blocks all the same
    words = bytearray(b"".join(r.choice([b"the ", b"word ", b"it's ", b"x\n", b"42, ", b"<|endoftext|> ", "\u4e2d ".encode()]) for _ in range(300000)))
    for _ in range(12):
        words[r.randrange(len(words))] = 0xff
    (tmp_path / "w").write_bytes(words)
    wanted = judge("print(json.dumps(T(sys.argv[1]).encode(open(sys.argv[2], errors='replace', newline='').read(), add_special_tokens=False).ids))", path, tmp_path / "w")
    for threads in (1, 2):
        dtdata("tokenize", "--tokenizer", path, "--end", "<|endoftext|>", "--encoding_errors", "replace", "--threads", threads, "-o", tmp_path / f"w{threads}", tmp_path / "w")
        assert shards(tmp_path / f"w{threads}") == wanted + [0]


def test_zstd(tmp_path):
    """Frames that follow each other are one text; a frame that is cut short is refused."""
    if subprocess.run(["sh", "-c", "command -v zstd"], capture_output=True).returncode != 0:
        pytest.skip("no zstd program")
    one, two = (subprocess.run(["zstd", "-c"], input=x, capture_output=True, check=True).stdout for x in (b"one ", b"two" * 100000))
    (tmp_path / "a.txt.zst").write_bytes(b"\x50\x2a\x4d\x18\4\0\0\0size" + one + two)  # pzstd begins with a frame without data
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "a.txt.zst")
    assert bytes(shards(tmp_path / "o")) == b"one " + b"two" * 100000 + b"\0"
    wide = b"\x28\xb5\x2f\xfd\0\xa8\1\0\0"  # a frame with a window of 2 GiB
    for data, cause in ((two[:-5], "damaged or cut short (unexpected end)"),
                        (wide, "packed with a window above 128 MiB (zstd --long), which would be held in memory; unpack it with zstd -d --long=31"),
                        (one + b"garbage", "what follows the packed data is no zstd, and would be lost; unpack it, or cut it off")):
        (tmp_path / "b.zst").write_bytes(data)
        _, err = dtdata("tokenize", "-o", tmp_path / "p", tmp_path / "b.zst", code=1)
        assert err == f"dtdata: {tmp_path}/b.zst: {cause}\n"


# ---- runs that do not end ----

def corpus(folder):
    """Texts and records of several blocks, some of them held out."""
    r = random.Random(5)
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.txt").write_bytes(bytes(r.randrange(32, 127) for _ in range(700000)))
        with open(folder / f"{i}.jsonl", "w") as f:
            f.writelines(json.dumps({"text": "".join(r.choice("abc \n") for _ in range(r.randrange(2000)))}) + "\n" for _ in range(400))
        with open(folder / f"{i}.csv", "w") as f:
            f.write("text,label\n")
            f.writelines(f'"row {k},\n{"x" * r.randrange(300)}",{"abc"[k % 3]}\n' for k in range(2000))
    return folder


def same_folders(a, b):
    names = sorted(os.listdir(a))
    assert names == sorted(os.listdir(b))
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.parametrize("options", [["--shard_tokens", 60000, "--val", 0.3], ["--shard_tokens", 40000, "--val", 0.3, "--label_column", "label"]], ids=["shards", "rows"])
def test_a_killed_run_goes_on(tmp_path, options):
    """After every kill the same command goes on, and what comes out is that of a run without one."""
    text = corpus(tmp_path / "text")
    paths = sorted(text.glob("*.csv")) if "--label_column" in options else [text]
    whole, out = tmp_path / "whole", tmp_path / "out"
    dtdata("tokenize", *options, "-o", whole, *paths)
    command = [DTDATA, "tokenize", *map(str, options), "-o", str(out), *map(str, paths)]
    kills = resumed = 0
    while True:
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        progress, before = out / ".unfinished/progress.json", None
        support.wait_until(lambda: p.poll() is not None or progress.exists(), "the first shard is complete")
        before = complete(progress)
        support.wait_until(lambda: p.poll() is not None or complete(progress) > before, "one more shard is complete")
        if kills < 3 and p.poll() is None:
            p.send_signal(signal.SIGKILL if kills < 2 else signal.SIGTERM)
            kills += 1
        _, err = p.communicate(timeout=support.DEADLINE_S)
        resumed += "goes on behind" in err
        if p.returncode == 0:
            break
        assert p.returncode == -signal.SIGKILL or (p.returncode == 143 and "dtdata: stopped by signal 15; the same command goes on\n" in err), (p.returncode, err)
        assert [x for x in os.listdir(out) if not x.startswith(".")] == []
    assert kills > 0 and resumed >= kills
    same_folders(whole, out)


def complete(progress):
    try:
        with open(progress) as f:
            state = json.load(f)
        return state["train"]["complete"] + state["val"]["complete"]
    except FileNotFoundError:
        return 0


def test_what_goes_on_must_be_the_same(tmp_path):
    """Another command, other files, or a damaged shard: refused; two at the same time: refused."""
    text = corpus(tmp_path / "text")
    out = tmp_path / "out"
    words = ["tokenize", "--shard_tokens", "60000", "--val", "0", "-o", str(out), str(text)]

    def begin():
        p = subprocess.Popen([DTDATA, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        support.wait_until(lambda: complete(out / ".unfinished/progress.json") > 0, "a shard is complete")
        return p

    support.program("dtdata")
    p = begin()
    p.send_signal(signal.SIGSTOP)
    _, err = dtdata(*words, code=1)
    assert err == f"dtdata: {out}: another dtdata writes there now; wait for it, or give another -o\n"
    p.kill()
    p.wait()
    other = [w if w != "60000" else "70000" for w in words]
    _, err = dtdata(*other, code=2)
    assert f"dtdata: {out}/.unfinished: another command was begun here, or its files have changed since; " in err
    with open(out / ".unfinished/train-00000.bin", "r+b") as f:
        f.seek(2000)
        f.write(b"XX")
    _, err = dtdata(*words, code=1)
    assert f"{out}/.unfinished/train-00000.bin: changed or damaged since it was written; remove its folder to begin anew" in err
    (text / "0.txt").write_bytes(b"less")
    _, err = dtdata(*words, code=2)
    assert "or its files have changed since" in err
    dtdata(*words, "--overwrite")
    dtdata("tokenize", "--shard_tokens", "60000", "--val", "0", "-o", tmp_path / "whole", text)
    same_folders(tmp_path / "whole", out)


def test_a_full_disk_keeps_what_is_complete(tmp_path):
    """What is complete stays, nothing has its name, and with more room the same command goes on."""
    text = corpus(tmp_path / "text")
    program, mount = support.program("dtdata"), places.mount_point(tmp_path, "small")
    go = f"'{program}' tokenize --tokenizer '{GOLDEN}/gpt2' --end '<|endoftext|>' --shard_tokens 60000 --val 0 -o '{mount}/o' '{text}'"
    p = places.in_mounts(f"mount -t tmpfs -o size=600k none '{mount}'; {go}; echo code $? >&2; ls '{mount}/o' >&2; mount -o remount,size=64m '{mount}'; {go} && "
                         f"cp -r '{mount}/o' '{tmp_path}/out'")
    first, second = re.split(r"^code \d+$", p.stderr, flags=re.M)
    assert "No space left on device\n" in first and re.findall(r"^code (\d+)$", p.stderr, re.M) == ["1"], p
    assert f"dtdata: complete shards are kept in {mount}/o/.unfinished; the same command goes on\n" in first and "train-" not in second.split("dtdata")[0], p
    assert re.search(r"dtdata: goes on behind [1-9]\d* complete shards of an earlier run\n", second), p
    dtdata("tokenize", "--tokenizer", f"{GOLDEN}/gpt2", "--end", "<|endoftext|>", "--shard_tokens", 60000, "--val", 0, "-o", tmp_path / "whole", text)
    same_folders(tmp_path / "whole", tmp_path / "out")


def test_space_is_looked_at_before(tmp_path):
    (tmp_path / "t").write_bytes(b"x" * 1000000)
    mount = places.mount_point(tmp_path, "small")
    p = places.in_mounts(f"mount -t tmpfs -o size=500k none '{mount}'; '{support.program('dtdata')}' tokenize -o '{mount}/o' '{tmp_path}/t'; ls -A '{mount}'")
    assert p.stderr == f"dtdata: {mount}/o: the shards need 1.9 MiB, but 500 KiB are free; give -o on another disk\n" and p.stdout == "", p
