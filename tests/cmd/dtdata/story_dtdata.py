# covers: cmd/dtdata
"""dtdata as a person uses it: text into shards, a look at them, and what it says when something is wrong."""

import gzip
import json
import os
import resource
import signal
import struct
import subprocess

import support

DTDATA = os.path.join(support.BIN, "dtdata")


def dtdata(*args, code=0, input=None, limit_bytes=None):
    """Runs dtdata; returns stdout and stderr."""
    support.program("dtdata")

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    p = subprocess.run([DTDATA, *map(str, args)], input=input, capture_output=True, timeout=60, preexec_fn=limit if limit_bytes else None)
    out, err = p.stdout.decode(), p.stderr.decode()
    assert p.returncode == code, (out, err)
    return out, err


def ids_of(path):
    """Header checked, ids as a tuple."""
    data = open(path, "rb").read()
    magic, version, count = struct.unpack_from("<3i", data)
    assert (magic, version, len(data)) == (20240520, 1, 1024 + 2 * count)
    assert not any(data[12:1024])
    return struct.unpack_from(f"<{count}H", data, 1024)


def corpus(folder):
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"first text\n")
    (folder / "b.txt").write_bytes("zweiter Text: äöü\n".encode())
    (folder / "sub" / "c.txt.gz").write_bytes(gzip.compress(b"third, packed\n"))
    (folder / "sub" / "binary").write_bytes(b"\x7fELF\0\0")
    (folder / "empty.txt").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"not this\n")
    return folder


def test_folder(tmp_path):
    text, out = corpus(tmp_path / "text"), tmp_path / "out"
    stdout, stderr = dtdata("tokenize", "-o", out, "--val", "0", text)
    wanted = b"first text\n\0" + "zweiter Text: äöü\n\0".encode() + b"third, packed\n\0"
    assert bytes(ids_of(out / "train-00000.bin")) == wanted
    assert stdout == f"train: 3 files, {len(wanted)} tokens in 1 shard: {out}/train-*.bin\n"
    assert stderr == (f"dtdata: left out 1 binary file; the first is {text}/sub/binary\n"
                      f"dtdata: left out 1 empty file; the first is {text}/empty.txt\n")
    info = json.load(open(out / "train-00000.bin.json"))
    assert info["tokenizer"] == "bytes" and info["vocabulary"] == 256 and info["tokens"] == len(wanted)
    assert info["sources"] == [str(text / "a.txt"), str(text / "b.txt"), str(text / "sub" / "c.txt.gz")]
    assert sorted(os.listdir(out)) == ["train-00000.bin", "train-00000.bin.json"]


def test_holdout_is_whole_files(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for i in range(20):
        (text / f"{i:02}.txt").write_bytes(bytes([65 + i]) * 100)
    dtdata("tokenize", "-o", tmp_path / "o", "--holdout", "0.2", text)
    train, val = bytes(ids_of(tmp_path / "o/train-00000.bin")), bytes(ids_of(tmp_path / "o/val-00000.bin"))
    assert len(val) == 4 * 101 and len(train) == 16 * 101
    assert not set(train) & set(val) - {0}
    dtdata("tokenize", "-o", tmp_path / "again", "--val", "0.2", text)
    assert bytes(ids_of(tmp_path / "again/val-00000.bin")) == val


def test_shards_are_one_stream(tmp_path):
    (tmp_path / "t.txt").write_bytes(bytes(range(1, 101)))
    dtdata("tokenize", "-o", tmp_path / "o", "--shard_tokens", "40", tmp_path / "t.txt")
    parts = [ids_of(tmp_path / f"o/train-0000{i}.bin") for i in range(3)]
    assert [len(p) for p in parts] == [40, 40, 21]
    assert sum(parts, ()) == tuple(range(1, 101)) + (0,)
    out, _ = dtdata("inspect", *sorted((tmp_path / "o").glob("*.bin")))
    assert out.count(", as written\n") == 3
    assert json.load(open(tmp_path / "o/train-shards.json")) == {"shards": 3}
    (tmp_path / "o/new.txt").write_bytes(b"new")
    dtdata("tokenize", "-o", tmp_path / "p", "--val", "0", tmp_path / "o")
    assert bytes(ids_of(tmp_path / "p/train-00000.bin")) == b"new\0", "nothing of what dtdata has written is text"


def test_stdin(tmp_path):
    dtdata("tokenize", "-o", tmp_path / "o", "-", input=b"from a pipe")
    assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == b"from a pipe\0"
    _, err = dtdata("tokenize", "-o", tmp_path / "p", "-", "-", input=b"x", code=2)
    assert "dtdata: -: standard input can be read only once\n" in err


def test_records(tmp_path):
    lines = [{"text": "one\nä", "id": 1}, {"id": 2, "text": "two"}, {"text": ""}]
    text = "\n\n".join(json.dumps(x) for x in lines)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.replace("text", "body").encode()))
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "a.jsonl")
    assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == "one\nä\0two\0\0".encode()
    dtdata("tokenize", "-o", tmp_path / "p", "--text_key", "body", tmp_path / "b.jsonl.gz")
    assert ids_of(tmp_path / "p/train-00000.bin") == ids_of(tmp_path / "o/train-00000.bin")
    _, err = dtdata("tokenize", "-o", tmp_path / "q", tmp_path / "b.jsonl.gz", code=1)
    assert err == f"dtdata: {tmp_path}/b.jsonl.gz: record 1: no string under \"text\"; name the key with --text_key\n"
    (tmp_path / "c.jsonl").write_text('{"text": "x"}\n{"text": 1,}\n')
    _, err = dtdata("tokenize", "-o", tmp_path / "q", tmp_path / "c.jsonl", code=1)
    assert err == f"dtdata: {tmp_path}/c.jsonl: record 2:1:12: a comma before \"}}\"; remove the comma\n"
    assert not (tmp_path / "q").exists()


def test_a_quote_that_is_never_closed(tmp_path):
    """Its line alone is broken, not all that follows."""
    (tmp_path / "a.csv").write_text("text\n" + "".join(f'"oops {i}\n' if i == 50 else f"line {i}\n" for i in range(200)))
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "a.csv", code=1)
    assert err == f"dtdata: {tmp_path}/a.csv:52: a quote is never closed\n"
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--on_bad_record", "skip", tmp_path / "a.csv")
    assert f"skipped 1 broken record; the first: {tmp_path}/a.csv:52: a quote is never closed" in err
    assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == b"".join(b"line %d\0" % i for i in range(200) if i != 50)


def test_rows_are_cut(tmp_path):
    """--max_length takes the place of the tokenizer's own; what is cut is counted."""
    folder = tmp_path / "tok"
    folder.mkdir()
    tokenizer = json.load(open(os.path.join(support.ROOT, "tests/golden/tokenizers/bert/tokenizer.json")))
    tokenizer["truncation"] = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "a.csv").write_text("label,text\n0,a\n1," + "a " * 30 + "\n")
    for options, most, cut in (((), 6, True), (("--max_length", 16), 16, True), (("--max_length", 4), 4, True), (("--max_length", 64), 32, False)):
        _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--tokenizer", folder, "--label_column", "label", *options, tmp_path / "a.csv")
        out, _ = dtdata("inspect", "--tokenizer", folder, tmp_path / "o/train-00000.safetensors")
        assert f"row 2, {most} ids" in out
        assert ("cut 1 row to --max_length, or else to what tokenizer.json says; the first is" in err) == cut, err
    tokenizer["truncation"] |= {"strategy": "OnlySecond", "stride": 128}  # of answers in a text: neither is of rows that are cut to a length
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--tokenizer", folder, "--label_column", "label", "--max_length", 16, tmp_path / "a.csv")
    assert "row 2, 16 ids" in dtdata("inspect", "--tokenizer", folder, tmp_path / "o/train-00000.safetensors")[0]
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--tokenizer", folder, "--label_column", "label", tmp_path / "a.csv", code=1)
    assert "OnlySecond, but there is one text" in err


MARK = b"\xef\xbb\xbf"


def test_byte_order_marks_are_no_text(tmp_path):
    """Whichever way a file comes in; also where files were joined, before a later record, but not inside of a text."""
    records = b'{"text": "a"}\r\n{"text": "b"}'
    ways = {  # name: bytes, tokens, marks, where the first is
        "m.txt": (MARK + b"one\r\ntwo", b"one\r\ntwo\0", 1, "m.txt"),
        "m.txt.gz": (gzip.compress(MARK) + gzip.compress(b"one"), b"one\0", 1, "m.txt.gz"),
        "inside.txt": (b"one" + MARK, b"one" + MARK + b"\0", 0, ""),
        "twice.txt": (MARK + MARK, MARK + b"\0", 1, "twice.txt"),
        "crlf.jsonl": (records, b"a\0b\0", 0, ""),
        "m.jsonl": (MARK + records, b"a\0b\0", 1, "m.jsonl"),
        "m.jsonl.gz": (gzip.compress(MARK + records), b"a\0b\0", 1, "m.jsonl.gz"),
        "joined.jsonl": (records + b"\n" + MARK + records, b"a\0b\0a\0b\0", 1, "joined.jsonl: record 3"),
        "blank.jsonl": (records + b"\n" + MARK + b"\r\n", b"a\0b\0", 1, "blank.jsonl: record 3"),
    }
    for name, (data, tokens, marks, first) in ways.items():
        (tmp_path / name).write_bytes(data)
        _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", tmp_path / name)
        assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == tokens, name
        assert err == (f"dtdata: left out 1 byte order mark; the first begins {tmp_path}/{first}\n" if marks else ""), name
    _, err = dtdata("tokenize", "-o", tmp_path / "p", "-", input=MARK + b"x")
    assert bytes(ids_of(tmp_path / "p/train-00000.bin")) == b"x\0"
    assert err == "dtdata: left out 1 byte order mark; the first begins -\n"
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, data in (("a.txt", MARK + b"a"), ("b.txt", MARK + b"b"), ("c.txt", MARK)):
        (folder / name).write_bytes(data)
    _, err = dtdata("tokenize", "-o", tmp_path / "q", "--val", "0", folder)
    assert bytes(ids_of(tmp_path / "q/train-00000.bin")) == b"a\0b\0"
    assert err == f"dtdata: left out 1 empty file; the first is {folder}/c.txt\ndtdata: left out 2 byte order marks; the first begins {folder}/a.txt\n"


def test_nothing_is_no_data(tmp_path):
    """Shards that were there stay."""
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "blank.jsonl").write_bytes(b"\r\n \n")
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "a.txt")
    for path, data in ((tmp_path / "blank.jsonl", None), ("-", b""), ("-", MARK)):
        _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", path, input=data, code=1)
        assert err.endswith(f"dtdata: {path}: no text for train: what was read is empty; give other files\n")
        assert err.count("\n") == 1 or err.startswith("dtdata: left out 1 byte order mark; "), err
        assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == b"a\0"


def test_other_encodings_are_refused(tmp_path):
    """A text in UTF-16 has zeros like a binary file, and would be left out as one."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "plain.txt").write_bytes(b"plain")
    for encoding in ("UTF-16", "UTF-32"):
        mark = "\ufeff" + "ab"
        for i, data in enumerate((mark.encode(encoding + "LE"), mark.encode(encoding + "BE"), gzip.compress(mark.encode(encoding + "LE")))):
            odd = tmp_path / "sub" / "odd.txt"
            odd.write_bytes(data)
            _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "sub", code=1)
            assert err == f"dtdata: {odd}: begins with the byte order mark of {encoding}; convert it: iconv -f {encoding} -t UTF-8\n"
            _, err = dtdata("tokenize", "-o", tmp_path / "o", "-", input=data, code=1)
            assert err == f"dtdata: -: begins with the byte order mark of {encoding}; convert it: iconv -f {encoding} -t UTF-8\n"


def test_records_of_others(tmp_path):
    """What stands beside the text may be anything that JSON has; a text that is none is left out and counted."""
    (tmp_path / "t.jsonl").write_text(
        '{"id": 1212092628029698048, "text": "a"}\n'
        '{"n": 1e999, "d": 0.%s1, "x\\u0000": "\\u0000 \\ud83d", "text": "b", "in": {"text": "no"}}\n'
        '{"text": "c\\u0000d"}\n{"text": "half \\ud83d"}\n{"text": "whole \\ud83d\\ude00"}\n' % ("0" * 600)
    )
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "t.jsonl")
    assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == "a\0b\0whole \U0001f600\0".encode()
    assert err == f"dtdata: left out 2 records with \\u0000 or half of a surrogate pair in the text; the first is {tmp_path}/t.jsonl: record 3\n"
    (tmp_path / "u.jsonl").write_text('{"text": "a"}\n{"in": {"text": "no"}}\n')
    _, err = dtdata("tokenize", "-o", tmp_path / "p", tmp_path / "u.jsonl", code=1)
    assert err == f"dtdata: {tmp_path}/u.jsonl: record 2: no string under \"text\"; name the key with --text_key\n"


def test_own_files_are_no_text(tmp_path):
    text = tmp_path / "text"
    (text / "sub").mkdir(parents=True)
    (text / "a.txt").write_bytes(b"one")
    (text / "sub" / "b.txt").write_bytes(b"two")
    (text / "mine.bin.json").write_bytes(b"stays")  # no shard beside it
    dtdata("tokenize", "-o", text / "old", "--val", "0", text)
    (text / "old" / "train-00001.bin.tmp-77").write_bytes(bytes(1024))
    (text / "old" / "train-00001.bin.json.tmp-77").write_bytes(b"{}")
    (text / "old" / "train-00001.bin.json.tmp-77.tmp-77").write_bytes(b"{")
    wanted = [str(text / "a.txt"), str(text / "mine.bin.json"), str(text / "sub" / "b.txt")]
    dtdata("tokenize", "-o", tmp_path / "out", "--val", "0", text)
    assert json.load(open(tmp_path / "out/train-00000.bin.json"))["sources"] == wanted
    (text / "old" / "more.txt").write_bytes(b"nobody asked for this")
    _, err = dtdata("tokenize", "-o", text / "sub/../old", "--overwrite", "--val", "0", text)
    assert err == f"dtdata: left out {text}/sub/../old, where the shards go\n"
    assert json.load(open(text / "old/train-00000.bin.json"))["sources"] == wanted


def test_packed(tmp_path):
    """Members that follow each other are one text, zeros behind them nothing; anything else would be lost."""
    one, two = gzip.compress(b"one "), gzip.compress(b"two" * 100000)
    for name, data in ("plain.gz", b"not packed"), ("two.gz", one + two), ("tape.gz", one + bytes(700) + two + bytes(70000)), ("short.gx", b"\x1f"):
        (tmp_path / name).write_bytes(data)
        dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", tmp_path / name)
        wanted = data if name in ("plain.gz", "short.gx") else b"one " + b"two" * 100000
        assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == wanted + b"\0"
    for name, data in ("a.gz", one + b"garbage\n"), ("b.gz", one + bytes(3) + b"\x1f"), ("c.gz", one + b"\x1f\x00" + two[2:]):
        (tmp_path / name).write_bytes(data)
        _, err = dtdata("tokenize", "-o", tmp_path / "p", tmp_path / name, code=1)
        assert err == f"dtdata: {tmp_path}/{name}: what follows the packed data is no gzip, and would be lost; unpack it, or cut it off\n"
    damaged = bytearray(two)
    damaged[-6] ^= 1
    (tmp_path / "d.gz").write_bytes(one + damaged)
    _, err = dtdata("tokenize", "-o", tmp_path / "p", tmp_path / "d.gz", code=1)
    assert err == f"dtdata: {tmp_path}/d.gz: damaged or cut short (incorrect data check)\n"


def test_devices(tmp_path):
    for device in "/dev/zero", "/dev/null":
        _, err = dtdata("tokenize", "-o", tmp_path / "o", device, code=1, limit_bytes=1000000)
        assert err == f"dtdata: {device}: is a device; give text files, folders of them, or - for standard input\n"
    with open("/dev/zero") as zero:
        p = subprocess.run([DTDATA, "tokenize", "-o", str(tmp_path / "o"), "-"], stdin=zero, capture_output=True, text=True, timeout=60,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000)))
    assert (p.returncode, p.stderr) == (1, "dtdata: -: binary, not text: a NUL among its first bytes\n")
    assert not (tmp_path / "o").exists()


def test_existing_shards_are_kept(tmp_path):
    (tmp_path / "t").write_bytes(b"old")
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "t")
    (tmp_path / "t").write_bytes(b"new text")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "t", code=2)
    first = tmp_path / "o/train-00000.bin"
    assert err == f"dtdata: {first}: is there already; choose another folder with -o, or give --overwrite\n"
    assert bytes(ids_of(first)) == b"old\0"
    dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", tmp_path / "t")
    assert bytes(ids_of(first)) == b"new text\0"


def test_a_file_is_read_once(tmp_path):
    """Links, and paths that were given before, are the file that was read."""
    (tmp_path / "in/d").mkdir(parents=True)
    for name in "a", "d/b":
        (tmp_path / "in" / name).write_text(name)
    os.link(tmp_path / "in/a", tmp_path / "in/d/a2")
    (tmp_path / "in/z").symlink_to("a")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--val", "0", tmp_path / "in", tmp_path / "in/d/b", tmp_path / "in/./d")
    assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == b"a\0d/b\0"
    assert err == f"dtdata: left out 5 files that were read already; the first is {tmp_path}/in/d/a2\n"
    many = tmp_path / "many"
    many.mkdir()
    for i in range(300):
        (many / f"{i:03}").write_text("x")  # alike, and yet different files
    dtdata("tokenize", "-o", tmp_path / "p", "--val", "0", many)
    assert bytes(ids_of(tmp_path / "p/train-00000.bin")) == b"x\0" * 300


def test_capital_ends_of_names(tmp_path):
    """Tables of other systems are called DATA.CSV."""
    for name, data, wanted in (("DATA.CSV", b"TEXT,B\r\nq,1\r\n", b"q\0"), ("a.JSONL", b'{"TEXT": "x"}\n', b"x\0"),
                               ("b.Csv.GZ", gzip.compress(b"TEXT\ny\n"), b"y\0"), ("c.JSON", b'[{"TEXT": "z"}]', b"z\0")):
        (tmp_path / name).write_bytes(data)
        dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--text_key", "TEXT", tmp_path / name)
        assert bytes(ids_of(tmp_path / "o/train-00000.bin")) == wanted, name


def test_bad_input(tmp_path):
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "none", code=2)
    assert err == f"dtdata: {tmp_path}/none: No such file or directory\n"
    (tmp_path / "b").write_bytes(b"\0\0")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "b", code=1)
    assert err == f"dtdata: {tmp_path}/b: no text: 1 binary and 0 empty files; give text files or folders of them\n"
    for name, data in (("a.gz", b"\x1f"), ("a.zst", b"\x28\xb5\x2f"), ("a.ZST", b"\x28")):
        (tmp_path / name).write_bytes(data)
        _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / name, code=1)
        assert err == f"dtdata: {tmp_path}/{name}: damaged or cut short (unexpected end)\n"
    (tmp_path / "j.jsonl").write_bytes(b"{}\n")
    dtdata("tokenize", "-o", tmp_path / "o/p", tmp_path / "j.jsonl", code=1)
    assert not (tmp_path / "o/p").exists(), "a folder that holds nothing"
    (tmp_path / "t").write_bytes(b"text")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--val", "0.1", tmp_path / "t", code=2)
    assert err == "dtdata: --val: whole files are held out, and there is only one; give more files, or --val 0\n"
    (tmp_path / "c.gz").write_bytes(gzip.compress(os.urandom(100000).hex().encode())[:-2000])
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "c.gz", code=1)
    assert f"dtdata: {tmp_path}/c.gz: damaged or cut short" in err
    (tmp_path / "file").write_bytes(b"x")
    _, err = dtdata("tokenize", "-o", tmp_path / "file" / "o", tmp_path / "t", code=1)
    assert "is not a folder" in err
    assert not (tmp_path / "o").exists() or os.listdir(tmp_path / "o") == []


def test_full_disk_leaves_nothing(tmp_path):
    (tmp_path / "t").write_bytes(b"x" * 500000)
    _, err = dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "t", code=1, limit_bytes=300000)
    assert "train-00000.bin: File too large; files may have 293 KiB here: raise the limit with ulimit -f" in err, err
    _, err = dtdata("train-tokenizer", "-o", tmp_path / "k", __file__, code=1, limit_bytes=2000)
    assert "File too large; files may have 2.0 KiB here" in err and not (tmp_path / "k").exists()
    assert not (tmp_path / "o").exists()


def test_signal_leaves_nothing(tmp_path):
    support.program("dtdata")
    p = subprocess.Popen([DTDATA, "tokenize", "-o", str(tmp_path / "o"), "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b"x" * 1000000)
    p.stdin.flush()
    support.wait_until(lambda: (tmp_path / "o").exists() and os.listdir(tmp_path / "o"), "the first shard begins")
    p.send_signal(signal.SIGTERM)
    p.stdin.close()
    err = p.stderr.read().decode()
    assert p.wait(timeout=60) == 143
    assert err == "dtdata: stopped by signal 15; nothing was written\n"
    assert not (tmp_path / "o").exists()


def test_a_script_in_the_background_is_not_interrupted(tmp_path):
    support.program("dtdata")
    words = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', DTDATA, "tokenize", "-o", str(tmp_path / "o"), "-"]
    p = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdin.write(b"x" * 1000000)
    p.stdin.flush()
    support.wait_until(lambda: (tmp_path / "o").exists() and os.listdir(tmp_path / "o"), "the first shard begins")
    p.send_signal(signal.SIGINT)
    p.stdin.close()
    assert p.wait(timeout=60) == 0


def test_inspect_foreign_shards(tmp_path):
    """Shards of others, which say nothing of tokenizer and documents: llm.c's, where an end stands before each, and nanoGPT's."""
    ids = b"\0ab\0\0cd"
    wide = struct.pack(f"<{len(ids)}H", *ids)
    (tmp_path / "l.bin").write_bytes(struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012) + wide)
    (tmp_path / "n.bin").write_bytes(wide)
    for name, options in ("l", ()), ("n", ("--format", "nanogpt")):
        out, _ = dtdata("inspect", "--tokenizer", "bytes", "--samples", 3, *options, tmp_path / f"{name}.bin")
        assert out.splitlines()[3:] == ["  document 1, ids 1 to 2: ab", "  document 2, no ids before 4: ", "  document 3, ids 5 to 6, not ended in this shard: cd"]
        out, _ = dtdata("inspect", *options, tmp_path / f"{name}.bin")
        assert "text 1, ids 0 to 6, not ended in this shard: 0 97 98 0 0 99 100\n" in out
    _, err = dtdata("inspect", "--end", "x", tmp_path / "l.bin", code=1)
    assert err == f"dtdata: {tmp_path}/l.bin: --end x: its tokenizer is not known; give --tokenizer\n"
    _, err = dtdata("inspect", "--end", "x", "--tokenizer", "bytes", tmp_path / "l.bin", code=1)
    assert err == "dtdata: x: bytes end documents with 0\n"
    _, err = dtdata("inspect", "--format", "x", tmp_path / "l.bin", code=2)
    assert "give nanogpt (ids without a header) or auto" in err


def test_inspect_finds_damage(tmp_path):
    (tmp_path / "t").write_bytes(b"some text")
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "t")
    path = tmp_path / "o/train-00000.bin"
    with open(path, "r+b") as f:
        f.seek(1026)
        f.write(b"X")
    _, err = dtdata("inspect", path, code=1)
    assert "changed or damaged; make it again" in err
    with open(path, "r+b") as f:
        f.truncate(1030)
    _, err = dtdata("inspect", path, code=1)
    assert err == f"dtdata: {path}: 1030 bytes, but 10 tokens need 1044: cut short or damaged; make it again\n"


def test_baseline(tmp_path):
    (tmp_path / "text").mkdir()
    for i in range(10):
        (tmp_path / "text" / str(i)).write_bytes(b"the same words again and again. " * 50)
    dtdata("tokenize", "-o", tmp_path / "o", tmp_path / "text")
    out, _ = dtdata("baseline", "--train", f"{tmp_path}/o/train-*.bin", "--val", f"{tmp_path}/o/val-*.bin")
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in out.splitlines()}
    assert list(values) == ["gzip -9", "1-gram", "2-gram", "3-gram", "4-gram"]
    assert 0 < values["4-gram"] < values["1-gram"] < 8


def test_converted_tokenizers(tmp_path):
    """A folder that is there gets the tokenizer.json; an error names what the user gave."""
    model = os.path.join(support.ROOT, "tests/golden/tokenizers/convert/bpe.model")
    (tmp_path / "tok").mkdir()
    assert dtdata("convert-tokenizer", model, tmp_path / "tok")[0].startswith(f"{tmp_path}/tok/tokenizer.json: vocabulary ")
    dtdata("convert-tokenizer", model, tmp_path / "alone.json")
    assert (tmp_path / "alone.json").read_bytes() == (tmp_path / "tok/tokenizer.json").read_bytes()
    assert dtdata("convert-tokenizer", model, tmp_path / "no/x.json", code=2)[1] == f"dtdata: {tmp_path}/no/x.json: No such file or directory\n"


def sentencepiece_model(kind, pieces, byte_fallback=False, extra_spaces=True):
    """kind: 1 unigram, 2 bpe. pieces: (text, type)."""
    field = lambda number, body: bytes([number << 3 | 2, len(body)]) + body
    body = b""
    for i, (text, piece_type) in enumerate(pieces):
        body += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -i) + bytes([3 << 3, piece_type]))
    return body + field(2, bytes([3 << 3, kind]) + (b"\x98\x02\x01" if byte_fallback else b"")) + field(3, bytes([4 << 3, extra_spaces]))


def test_a_converted_model_says_which_texts_differ(tmp_path):
    plain = [("<unk>", 2), ("\u2581", 1), ("a", 1)]
    spaces = "user-defined pieces of several spaces are never found, because extra spaces are removed first; SentencePiece keeps them"
    weighed = "user-defined pieces with spaces are taken wherever they stand; SentencePiece weighs them"
    byte = "the name of a byte piece in a text, like <0x0A>, is the byte; characters in SentencePiece"
    two, one, control = ("\u2581\u2581", 4), ("\u2581a", 4), ("<0x0A>", 6)
    for kind, more, fallback, extra, says in ((1, [], False, True, []), (2, [two], False, True, [spaces]), (2, [two], False, False, []), (2, [one], False, True, []),
                                              (1, [two], False, False, [weighed]), (1, [two], False, True, [spaces]), (1, [control], True, True, [byte])):
        (tmp_path / "x.model").write_bytes(sentencepiece_model(kind, plain + more, fallback, extra))
        _, err = dtdata("convert-tokenizer", tmp_path / "x.model", tmp_path / "x.json")
        assert err.splitlines() == [f"dtdata: {tmp_path}/x.model: other ids: {x}" for x in says], (kind, more, extra)


def test_labels_that_no_reader_would_take(tmp_path):
    """A text for a label is refused with its place, before a file is there that cannot be read back."""
    long = "x" * 1025
    (tmp_path / "a.tsv").write_text(f"text\tlabel\na\t{long[1:]}\nb\t{long}\n")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "a.tsv", code=1)
    assert err == f"dtdata: {tmp_path}/a.tsv:3: the label has 1025 bytes, of 1024 at most; name the key or column of the labels\n"
    with open(tmp_path / "b.tsv", "w") as f:
        f.write("text\tlabel\n" + "".join(f"a\t{i:05}{'y' * 1000}\n" for i in range(16000)))
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "b.tsv", code=1)
    assert "different labels are too long together; name the key or column of the labels" in err
    with open(tmp_path / "c.tsv", "w") as f:
        f.write("text\tlabel\n" + "".join(f"a\t{i:05}{'y' * 1000}\n" for i in range(15000)))
    dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "c.tsv")
    assert dtdata("inspect", tmp_path / "o/train-00000.safetensors")[0].startswith(f"{tmp_path}/o/train-00000.safetensors: 15000 rows")


def test_minus_zero_is_the_class_zero(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "a", "label": {x}}}\n' for x in ("0", "-0.0", "1", "0.0", "-0")))
    dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "a.jsonl")
    assert 'labels ["0","1"]' in dtdata("inspect", tmp_path / "o/train-00000.safetensors")[0]


def test_empty_lines_before_a_header(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\n\r\n\ntext,label\nab,x\n\ncd\n")
    _, err = dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "a.csv", code=1)
    assert err.startswith(f"dtdata: {tmp_path}/a.csv:7: "), err
    (tmp_path / "a.csv").write_bytes(b"\n\r\n\ntext,label\nab,x\n\ncd,x\n")
    assert dtdata("tokenize", "-o", tmp_path / "o", "--label_column", "label", tmp_path / "a.csv")[0].startswith("train: 1 file, 2 rows")
    (tmp_path / "a.csv").write_bytes(b"\n\n\n")
    assert "a.csv: no text for train: what was read is empty" in dtdata("tokenize", "-o", tmp_path / "p", "--label_column", "label", tmp_path / "a.csv", code=1)[1]


def test_usage():
    out, _ = dtdata("--help")
    assert out.startswith("usage: dtdata COMMAND") and max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 40 and "--help=all" in out and "--shard_tokens" not in out
    every = dtdata("--help=all")[0]
    assert set(out.splitlines()) <= set(every.splitlines()) and max(map(len, every.splitlines())) <= 80
    assert dtdata("tokenise", "--help")[0] == out  # no such command
    seen = set()
    for command, option in [("tokenize", "--shard_tokens"), ("train-tokenizer", "--memory"), ("encode", "--tokenizer"), ("decode", "--tokenizer"),
                            ("inspect", "--samples"), ("convert-tokenizer", "--eos"), ("baseline", "--val")]:
        own = dtdata(command, "--help")[0]
        assert option in own and len(own.splitlines()) <= 40 and set(own.splitlines()) <= set(every.splitlines()), own
        seen |= set(own.splitlines())
    assert {x for x in every.splitlines() if x.startswith("  ")} - seen == {x for x in out.splitlines() if x.startswith(("  COMMAND", "  --version"))}
    assert dtdata("--version")[0].startswith("dtdata ")
    assert "dtdata: tokenise: unknown command; did you mean tokenize?\n" in dtdata("tokenise", code=2)[1]
    assert "dtdata: no command" in dtdata(code=2)[1]
    assert dtdata("tokenize", "--tokenizer", "gpt2", "x", code=2)[1].startswith("dtdata: gpt2")
    assert "dtdata: --max_length: is for labelled rows; give --label_column as well\n" in dtdata("tokenize", "--max_length", "9", "x", code=2)[1]
    assert "dtdata: --format xml: give text, jsonl, json, csv or tsv\n" in dtdata("tokenize", "--format", "xml", "x", code=2)[1]
    assert "dtdata: --on_bad_record drop: give refuse or skip\n" in dtdata("tokenize", "--on_bad_record", "drop", "x", code=2)[1]
    assert "dtdata: --val 2: give a fraction from 0 to below 1\n" in dtdata("tokenize", "--val", "2", "x", code=2)[1]
    assert "dtdata: --shard_tokens 0: " in dtdata("tokenize", "--shard_tokens", "0", "x", code=2)[1]
    assert "dtdata: -o: the name of the folder is empty\n" in dtdata("tokenize", "-o", "", "x", code=2)[1]
    assert "dtdata: tokenize: no files" in dtdata("tokenize", code=2)[1]
    assert "dtdata: --end: is for documents; labelled rows end as the tokenizer's template ends them\n" in \
        dtdata("tokenize", "--end", "x", "--label_column", "y", "x", code=2)[1]


def test_an_option_of_records_beside_text_alone_has_no_effect(tmp_path):
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / "b.jsonl").write_text('{"body": "text"}\n')
    says = f"no effect: it is for records, and {tmp_path}/a.txt is text"
    for option, value in ("--text_key", "body"), ("--text_column", "body"), ("--on_bad_record", "skip"):
        _, err = dtdata("tokenize", "-o", tmp_path / "o", "--overwrite", "--val", 0, option, value, tmp_path / "a.txt")
        assert err == f"dtdata: {option.replace('column', 'key')}: {says}; say --format if it is not\n"
    _, err = dtdata("train-tokenizer", "-o", tmp_path / "t", "-v", 300, "--text_key", "body", tmp_path / "a.txt")
    assert err.startswith(f"dtdata: --text_key: {says}\n")
    out, err = dtdata("tokenize", "-o", tmp_path / "p", "--val", 0, "--text_key", "body", tmp_path / "a.txt", tmp_path / "b.jsonl")
    assert out.startswith("train: 2 files, 11 tokens") and err == ""  # some are records
