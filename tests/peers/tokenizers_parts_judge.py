"""Pairs that are truncated, beside the tokenizers library; converted tokenizers, beside SentencePiece and
tiktoken:
    python tests/peers/tokenizers_parts_judge.py TOKENIZE DTDATA FOLDER STRINGS SEED
TOKENIZE is the tool of the stories, DTDATA the program. Prints a JSON object per tokenizer: its name, the
number of strings, and the first that differ."""
import base64
import io
import json
import os
import random
import re
import subprocess
import sys

import sentencepiece
import tiktoken
from tokenizers import Tokenizer

TOOL, DTDATA, FOLDER, STRINGS, SEED = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
R = random.Random(SEED)
TEXT = open(os.path.join(ROOT, "README.md"), encoding="utf-8").read()
WORDS = TEXT.split()
# SentencePiece adds scores as floats, the library as doubles. Two ways to split a number or a row of dashes may tie.
PLAIN = [w for w in WORDS if not re.search(r"\d|(.)\1\1", w)]
CHARACTERS = [*"abcdeé中日ß😀\u2581 \t\n.,'-", "e\u0301", "\u3000"]


def text(words=WORDS):
    if R.random() < 0.4:
        return "".join(R.choice(CHARACTERS) for _ in range(R.randint(0, 25)))
    return R.choice(("", "", " ")) + R.choice((" ", " ", "  ", "\n")).join(R.choice(words) for _ in range(R.randint(0, 15)))


def ask(path, lines):
    out = subprocess.run([TOOL, path], input="".join(line + "\n" for line in lines), capture_output=True, text=True, check=True).stdout
    return [None if line.startswith("!") else [int(i) for i in line.split()] for line in out.split("\n")[:-1]]


def report(name, cases, got):
    different = [[*case, ours] for case, ours in zip(cases, got, strict=True) if case[-1] != ours]
    print(json.dumps({"name": name, "strings": len(cases), "different": different[:3]}), flush=True)


def ids_of(path, texts):
    return ask(path, ["e " + t.encode().hex() for t in texts])


def pairs():
    folder = os.path.join(ROOT, "tests/golden/tokenizers/bert/tokenizer.json")
    with open(folder, encoding="utf-8") as f:
        bert = json.load(f)
    for k in range(30):
        bert["truncation"] = {"direction": R.choice(("Left", "Right")), "max_length": R.choice((7, 9, 12, 17, 30)), "strategy":
                              R.choice(("LongestFirst", "LongestFirst", "OnlyFirst", "OnlySecond")), "stride": R.choice((0, 0, 1))}
        path = os.path.join(FOLDER, f"pair{k}.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(bert, f)
        t = Tokenizer.from_file(path)
        cases = []
        for _ in range(max(STRINGS // 4, 10)):
            a, b = text(), text()
            try:
                cases.append((a, b, t.encode(a, b).ids))
            except BaseException:  # a panic is no Exception
                cases.append((a, b, None))
        report(f"pair {bert['truncation']}", cases, ask(path, [f"p {a.encode().hex()} {b.encode().hex()}" for a, b, _ in cases]))


def convert(source, *options):
    path = source + ".json"
    subprocess.run([DTDATA, "convert-tokenizer", source, path, *options], capture_output=True, check=True)
    return path


def sentencepieces():
    kinds = [("unigram", {}), ("bpe", {}), ("bpe", {"byte_fallback": True, "remove_extra_whitespaces": False}),
             ("unigram", {"byte_fallback": True, "add_dummy_prefix": False}),
             ("bpe", {"user_defined_symbols": ["a.b", "the", "--"]}), ("unigram", {"user_defined_symbols": ["<sep>", "dtrun"]}),
             ("bpe", {"add_dummy_prefix": False, "byte_fallback": True, "split_digits": True})]
    for k, (kind, options) in enumerate(kinds):
        model, source = io.BytesIO(), os.path.join(FOLDER, f"{k}.model")
        rule = R.choice(("identity", "nmt_nfkc", "nfkc_cf"))
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n")), model_writer=model, model_type=kind, num_threads=1,
                                                 vocab_size=R.randint(400, 900), hard_vocab_limit=False, minloglevel=2,
                                                 normalization_rule_name=rule, **options)
        with open(source, "wb") as f:
            f.write(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        cases = [(t, processor.encode(t)) for t in (text(PLAIN) for _ in range(STRINGS))]
        report(f"{kind} {rule} {options}", cases, ids_of(convert(source), [t for t, _ in cases]))


def ranks():
    """The GPT-2 of the golden data, as ranks, under the patterns that tiktoken has."""
    from tiktoken_ext import openai_public as known

    bytes_of, extra = {}, 0x100
    for b in range(256):
        visible = 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE
        bytes_of[chr(b) if visible else chr(extra)] = b
        extra += not visible
    with open(os.path.join(ROOT, "tests/golden/tokenizers/gpt2/tokenizer.json"), encoding="utf-8") as f:
        vocabulary = json.load(f)["model"]["vocab"]
    tokens = sorted((t for t in vocabulary if not t.startswith("<|")), key=lambda t: (len(t) > 1, vocabulary[t]))
    table = {bytes(bytes_of[c] for c in t): i for i, t in enumerate(tokens)}
    source = os.path.join(FOLDER, "ranks")
    with open(source, "w", encoding="ascii") as f:
        f.writelines(base64.b64encode(t).decode() + f" {i}\n" for t, i in table.items())
    cl100k = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    for name, regex in (("gpt2", known.r50k_pat_str), ("cl100k", cl100k), (r"\p{L}+|\P{L}", r"\p{L}+|\P{L}")):
        special = {"<|end|>": 9000, "<|a b|>": 9005}
        encoding = tiktoken.Encoding(name, pat_str=regex, mergeable_ranks=table, special_tokens=special)
        cases = [(t, encoding.encode(t, allowed_special="all")) for t in (text() + R.choice(["", "", *special]) for _ in range(STRINGS))]
        path = convert(source, "--pattern", name, "--special", ",".join(f"{k}={v}" for k, v in special.items()))
        report(f"ranks {name}", cases, ids_of(path, [t for t, _ in cases]))


pairs()
sentencepieces()
ranks()
