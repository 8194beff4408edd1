#!/usr/bin/env python3
"""Writes parts.jsonl: parts of tokenizers with what the tokenizers library makes of texts, for
unit_tokenizer_parts.c. Run with a Python that has tokenizers:
    python tests/golden/tokenizers/parts.py > tests/golden/tokenizers/parts.jsonl

A line is one part: `kind`, `part` (its JSON), `cases` of [text, result]. For normalizers and
pre-tokenizers `all` is the SHA-256 of what becomes of a text of "a" + character + " " for every
character of ASSIGNED: normalised, or as pieces that end with newlines."""
import base64
import hashlib
import json
import random
import struct
import sys

from tokenizers import Tokenizer

random.seed(7)
EVERY = [c for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
# all that Unicode 17 assigns but private use, of which a part is here
ASSIGNED = [c for c in EVERY if c < 0x33480 or 0xE0000 <= c < 0xE0200 or c >= 0x10FF00]
WHOLE = "".join("a" + chr(c) + " " for c in ASSIGNED)
MARKS = [*range(0x300, 0x370), 0x5B0, 0x64B, 0x651, 0x93C, 0x94D, 0x1161, 0x11A8, 0x3099, 0x302A, 0x1D165, 0xF71, 0xF72,
         0xF74, 0x11935, 0x11930, 0x1ABF, 0x897, 0x10EFD, 0x1E08F, 0x345, 0x338, 0x200D, 0x200C, 0xFE0F]
POOLS = [range(32, 127), range(1, 0x300), MARKS, range(0x900, 0xE00), [*range(0xAC00, 0xAD00), *range(0x1100, 0x1200)],
         [*range(0x4E00, 0x4E80), *range(0x2F800, 0x2F830)], [*range(0x1F300, 0x1F650), *range(0x1F1E6, 0x1F200)],
         range(0x2000, 0x2070), range(0x3040, 0x3100), range(0xFF00, 0xFFE0), range(0xFB00, 0xFE00), EVERY,
         list(map(ord, "aAeE \u00a9\u00ae\u200d\t\n.,!-1"))]


def text(most=24):
    pools = [random.choice(POOLS) for _ in range(random.randint(1, 4))] + [MARKS] * (random.random() < 0.4)
    return "".join(chr(random.choice(random.choice(pools))) for _ in range(random.randint(0, most)))


def library(**parts):
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **empty, **parts}))


def say(**row):
    print(json.dumps(row))


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


# one rule of clusters each; a mark at the end tells a cluster that is cut from one that is not
CLUSTERS = ["\u00a9\u200d\u00a9\u0300", "\u00a9\u0300\u200d\u00ae\u0300", "a\u200d\u00a9\u0300", "\u00a9\u00a9\u0300",
            "\u2764\u200d\u00a9\u0300", "\u2605\u200d\u00a9\u0300", "\u0915\u094d\u0915\u0300", "\u0915\u0915\u0300",
            "\u0915\u094d\u200c\u0915\u0300", "\u0915\u200d\u094d\u0915\u0300", "\u0915\u0300\u0915\u0300",
            "\u0915\u094da\u0300", "\u1100\uac00\u0300", "\uac00\u1161\u0300", "\uac00\u11a8\u0300",
            "\uac01\u11a8\u0300", "\uac01\u1161\u0300", "\u1161\u1100\u0300", "\r\n\u0300", "\n\u0300", "\u200b\u0300",
            "a\u0903", "\u0600a", "\u0600\u0300a", "\U0001f1e6\U0001f1e7\u0300", "\u0600\n", "e\u0301\u0323x"]


def normalizer(part, every=True, count=40, more=()):
    n = library(normalizer=part).normalizer
    cases = [[t, n.normalize_str(t)] for t in [*(text() for _ in range(count)), *more]]
    row = {"all": digest(n.normalize_str(WHOLE))} if every else {}
    say(kind="normalizer", part=part, cases=cases, **row)


def splitter(part, count=40):
    p = library(pre_tokenizer=part).pre_tokenizer
    split = lambda t: [piece for piece, _ in p.pre_tokenize_str(t)]
    cases = [[t, split(t)] for t in (text() for _ in range(count))]
    say(kind="splitter", part=part, cases=cases,
        all=digest("".join(x + "\n" for x in split(WHOLE))))


def every_byte():
    """A precompiled map that makes X of each text, so that the number of X shows the clusters."""
    units = [0] * 2048
    units[0] = 256 << 10
    for b in range(1, 256):
        units[256 ^ b] = b | 1 << 8 | 1024 << 10
    trie = struct.pack("<2048I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + b"X\0").decode()


def model(part, texts):
    t = library(model=part)
    cases = []
    for x in texts:
        try:
            cases.append([x, t.encode(x).ids])
        except Exception:  # no id and no unknown token
            cases.append([x, None])
    say(kind="model", part=part, cases=cases)


def normalizers():
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        normalizer({"type": kind})
    for left, right in ((True, False), (False, True), (True, True)):
        normalizer({"type": "Strip", "strip_left": left, "strip_right": right})
    for flags in ((True, True, None, True), (True, False, False, True), (False, True, True, False),
                  (True, True, None, False), (False, False, False, False)):
        keys = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
        normalizer({"type": "BertNormalizer", **dict(zip(keys, flags))})
    for pattern, content in (({"String": " "}, "\u2581"), ({"Regex": " {2,}"}, "_"), ({"Regex": "a*"}, "-"),
                             ({"String": ""}, "x"), ({"Regex": "[^a-z]"}, "")):
        normalizer({"type": "Replace", "pattern": pattern, "content": content}, every=False, count=15)
    normalizer({"type": "Prepend", "prepend": "\u2581"}, every=False, count=5)
    normalizer({"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}]})
    normalizer({"type": "Sequence", "normalizers": []}, every=False, count=3)
    normalizer({"type": "Precompiled", "precompiled_charsmap": every_byte()}, count=400, more=CLUSTERS)


def splitters():
    for kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"):
        splitter({"type": kind})
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        splitter({"type": "Punctuation", "behavior": behavior})
    for individual in (True, False):
        splitter({"type": "Digits", "individual_digits": individual})
    splitter({"type": "CharDelimiterSplit", "delimiter": "\u2581"}, count=5)
    splitter({"type": "CharDelimiterSplit", "delimiter": "a"}, count=15)
    splitter({"type": "FixedLength", "length": 3}, count=15)


def models():
    letters = ["".join(random.choice("abc\u00e9\u4e2d") for _ in range(random.randint(1, 7))) for _ in range(150)]
    words = ["[UNK]", "a", "ab", "abc", "##a", "##b", "##c", "##bc", "##\u00e9", "\u4e2d", "##", "##ab"]
    for most in (100, 4):
        model({"type": "WordPiece", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "[UNK]",
               "continuing_subword_prefix": "##", "max_input_chars_per_word": most}, letters + ["##a", "a" * 101])
    scores = [["<unk>", 0], ["a", -2.5], ["b", -10.111173629760742], ["ab", -12.611173629760742], ["c", -3.1],
              ["abc", -7.25], ["bc", -5.600000381469727], ["cc", -6.2], ["<0xC3>", -9], ["<0xA9>", -9]]
    for unknown, fallback in ((0, False), (0, True), (None, True), (None, False)):
        model({"type": "Unigram", "unk_id": unknown, "vocab": scores, "byte_fallback": fallback},
              letters + ["<unk>", "<unk>xa"])
    model({"type": "WordLevel", "vocab": {"a": 5, "bc": 3, "?": 1}, "unk_token": "?"}, ["a", "bc", "b", "\u00e9"])
    model({"type": "WordLevel", "vocab": {"a": 5}, "unk_token": "?"}, ["a", "b"])
    # as the library reads the first score, the two ways tie; as the nearest double, the second wins
    for near, read in ((-11.929070472717285, -11.929070472717283), (-12.864946365356445, -12.864946365356444)):
        model({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["ab", near], ["a", read], ["b", 0]],
               "byte_fallback": False}, ["ab", "abab"])


def lengths():
    def special(name, kind):
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def sequence(name, kind):
        return {"Sequence": {"id": name, "type_id": kind}}

    cls, sep = ("[CLS]", 0), ("[SEP]", 0)
    template = {"type": "TemplateProcessing", "single": [special(*cls), sequence("A", 0), special(*sep)],
                "pair": [special(*cls), sequence("A", 0), special(*sep), sequence("B", 1), special("[SEP]", 1)],
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1, 2], "tokens": ["x", "y"]},
                                   "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}}
    turned = {"type": "TemplateProcessing", "single": [sequence("A", 2)], "pair": [sequence("B", 1), sequence("A", 0)],
              "special_tokens": {}}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 1]}
    roberta = {**bert, "type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    joined = [[byte_level, template], [bert, roberta], [turned, bert], [template, bert]]
    parts = [None, template, turned, bert, roberta, byte_level]
    parts += [{"type": "Sequence", "processors": p} for p in joined]
    vocabulary = {**{f"a{i}": 1000 + i for i in range(60)}, **{f"b{i}": 2000 + i for i in range(60)}, "<unk>": 0}
    for part in parts:
        for _ in range(40):
            direction = random.choice(("Left", "Right"))
            strategy = random.choice(("LongestFirst", "OnlyFirst", "OnlySecond", None))
            truncation = strategy and {"direction": direction, "max_length": random.choice((8, 9, 13, 20)),
                                       "strategy": strategy, "stride": random.choice((0, 0, 1, 3))}
            fill = random.choice(("BatchLongest", {"Fixed": 24}, {"Fixed": 0}))
            padding = random.choice((None, {"strategy": fill, "direction": direction, "pad_id": 7, "pad_type_id": 3,
                                            "pad_to_multiple_of": random.choice((None, 8)), "pad_token": "[PAD]"}))
            a, b = random.choice((0, 1, 2, 5, 9, 20, 40)), random.choice((-1, -1, 0, 1, 3, 8, 15))
            try:
                t = library(post_processor=part, truncation=truncation, padding=padding, pre_tokenizer={
                    "type": "WhitespaceSplit"}, model={"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"})
                e = t.encode(" ".join(f"a{i}" for i in range(a)),
                             None if b < 0 else " ".join(f"b{i}" for i in range(b)))
                want = [e.ids, e.type_ids, e.attention_mask]
            except BaseException:  # a panic is no Exception
                want = None
            say(kind="length", part=part, truncation=truncation, padding=padding, sizes=[a, b], want=want)


sys.stderr.close()  # the library reports its panics there
normalizers()
splitters()
models()
lengths()
