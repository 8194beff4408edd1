#!/usr/bin/env python3
"""The tokenizers library as the judge of ours, for story_tokenizers_peer.py: makes tokenizers of all kinds, and compares the ids of generated strings, of whole
files, and the text of ids with those of tests/tools/tokenize.

usage: tokenizers_judge.py TOOL FOLDER STRINGS SEED [NAME...]
JUDGE_LONG=1 trains its tokenizers on more text, and compares longer texts.
Prints one line of JSON per tokenizer: name, strings compared, and the first differences.
"""
import json, os, random, subprocess, sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES, CHARACTERS = (3000, 100_000) if os.environ.get("JUDGE_LONG") else (1000, 20_000)
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
    "o200k": r"[^\r\n\p{L}\p{N}]?" + CAPITALS + "*" + SMALL + "+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?" + CAPITALS + "+" + SMALL + "*" + CONTRACTIONS
             + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES,
    # no scanner of ours knows these
    "llama3 otherwise": "(?:" + CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES + ")",
    "o200k otherwise": r"(?:[^\r\n\p{L}\p{N}]?" + CAPITALS + "*" + SMALL + "+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?" + CAPITALS + "+" + SMALL + "*"
                       + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES + ")",
    "possessive": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "han": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{M}\p{Lo}&&[^\p{Han}]]+|\p{N}{1,3}",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+", "within": r"[a-f[^\S\n]&&[^bc\r]&&\w ]+|[^x&&\w]",
    "words": r"\w+|[^\w\s]+", "not words": r"\W+", "boundary": r"\b", "digits": r"\d{2,}?", "lines": r"^.*$", "any": r"(?m:.)+?x", "case": r"(?i)the|AND|ss?k", "case of classes": r"(?i)\p{Lu}+|[g-mé][^\p{Lu}]|e\P{Lu}",
    "look": r"(?<=[a-z])(?=\P{Ll})|(?<!\s)\n", "empty": r"x*", "classes": r"[^\S\n]+|[\p{^L}\d]{,2}|[\u0041-\x{5a}\]\-]",
}
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
SPECIAL = ["<|endoftext|>", "<mask>", "<sep>", "<|a|>", "<|ab|>", "<|a", "token with space", "dtrun", "[UNK]", "[CLS]", "</s>", "Café", " lead", "tail "]
WORDS = ("the The THE and a I'm you'RE we'll it's don't o'clock 'S 'ſ HELLO HelloWorld iPhone getHTTPResponse x1 3.14 1234567 ²½Ⅳ① return; if(x==0){ } // "
         "naïve café Straße ǅ ŉ ﬁ 中文 日本語テスト 한국어 สวัสดี हिन्दी עברית العربية Ελληνικά русский 😀 👩‍👩‍👧 🇩🇪 e\u0301 a\u0308\u0323 \ufb01 \u212a \u0130 i\u0307 ß ẞ ς Σ "
         "\u0e01\u0e33 \u1100\u1161 \uac00 ▁x _y ▁ <0x41> \u00ad \ufeff \u200d \u200b \u180e \u2028 \u0085 \u001c \x7f \x01 \ufffd").split(" ")
GAPS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n  ", "\u3000", "\u00a0", "\u2003", "\u0085", "", "", ""]


def make_string(r):
    kind = r.random()
    if kind < 0.02:
        return r.choice(WORDS + [" ", "\n", "a", "中", "\u0301"]) * r.randrange(1, 400)
    parts = []
    for _ in range(r.randrange(0, 14)):
        roll = r.random()
        if roll < 0.55:
            parts.append(r.choice(WORDS))
        elif roll < 0.65:
            parts.append(r.choice(SPECIAL))
        elif roll < 0.8:
            low, high = r.choice([(0, 0x80), (0, 0x300), (0x300, 0x370), (0, 0x3000), (0x1100, 0x1200), (0xa000, 0xd800), (0xe000, 0x10000), (0x10000, 0x20000),
                                  (0x1e000, 0x20000), (0x20000, 0x110000)])
            parts.append("".join(chr(r.randrange(low, high)) for _ in range(r.randrange(1, 5))).translate({c: 0x61 for c in range(0xd800, 0xe000)}))
        elif roll < 0.9:
            parts.append("".join(r.choice("abcdefgh ABC.,'-_/\n1") for _ in range(r.randrange(1, 30))))
        else:
            parts.append(r.choice("aA1.,!?'’\"-_/#<>|[]{}()$€+=~`^…—") * r.randrange(1, 5))
        parts.append(r.choice(GAPS))
    return "".join(parts)


def corpus():
    r = random.Random(5)
    english = "the quick brown fox jumps over the lazy dog and then it doesn't know what to do with all of these words and that is all we'll say".split()
    for i in range(LINES):
        yield " ".join(r.choice(english) for _ in range(12)) + ("\n" if i % 3 else ".")
        if i % 4 == 0:
            yield make_string(r)


def trained(model, trainer, **parts):
    t = Tokenizer(model)
    for name, part in parts.items():
        setattr(t, name, part)
    t.train_from_iterator(corpus(), trainer)
    return t


def byte_level(split=None, options=(), added=(), prefix=False, size=1500):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    steps = [split] if split is not None else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None or not isinstance(split, pre_tokenizers.Split)))
    t = trained(models.BPE(**dict(options)), trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False),
                pre_tokenizer=pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0], decoder=decoders.ByteLevel())
    t.add_tokens(list(added))
    return t


def altered(t, change):
    j = json.loads(t.to_str())
    change(j)
    return Tokenizer.from_str(json.dumps(j))


def sentencepiece(fallback, **options):
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{i:02X}>" for i in range(256)][: 256 if fallback == "all" else 200] if fallback else [])
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1500, special_tokens=special, show_progress=False, limit_alphabet=60))

    def change(j):
        j["added_tokens"] = j["added_tokens"][:3]
        j["model"].update(byte_fallback=bool(fallback), fuse_unk=options.get("fuse", False))
        j["pre_tokenizer"] = options.get("pre")
        j["normalizer"] = options.get("normalizer")
        j["decoder"] = options.get("decoder")
    return altered(t, change)


LLAMA_DECODER = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                   {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
LLAMA_NORMALIZER = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
ADDED = [AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<sep>", rstrip=True, special=True, normalized=False),
         AddedToken("dtrun", single_word=True, normalized=True), AddedToken("<|a|>", normalized=True), AddedToken("<|ab|>", normalized=False, special=True),
         AddedToken("<|a", normalized=True), AddedToken("token with space", normalized=True), AddedToken("Café", normalized=True),
         AddedToken(" lead", normalized=False), AddedToken("tail ", normalized=True, rstrip=True, lstrip=True)]


def bert(**options):
    t = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=1200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False),
                normalizer=normalizers.BertNormalizer(**options), pre_tokenizer=pre_tokenizers.BertPreTokenizer(), decoder=decoders.WordPiece(cleanup=True),
                post_processor=processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]))
    return t


def makers():
    yield "gpt2", lambda: byte_level()
    yield "gpt2 prefix, added", lambda: byte_level(prefix=True, added=ADDED)
    yield "gpt2 added", lambda: byte_level(added=ADDED)
    yield "gpt2 NFC", lambda: altered(byte_level(), lambda j: j.update(normalizer={"type": "NFC"}))
    for name in ("llama3", "qwen2", "o200k", "llama3 otherwise", "o200k otherwise", "possessive", "deepseek"):
        split = pre_tokenizers.Split(Regex(PATTERNS[name]), "removed" if name == "possessive" else "isolated", invert=name == "possessive")
        yield "bytes " + name, lambda s=split, n=name: byte_level(s, options={"ignore_merges": n in ("llama3", "o200k")})
    yield "smollm", lambda: byte_level(pre_tokenizers.Digits(individual_digits=True))
    yield "digits", lambda: byte_level(pre_tokenizers.Digits(individual_digits=False))
    yield "few bytes", lambda: trained(models.BPE(unk_token="?"), trainers.BpeTrainer(vocab_size=700, special_tokens=["?"], limit_alphabet=60, show_progress=False),
                                       pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel())
    yield "few bytes fused", lambda: trained(models.BPE(unk_token="?", fuse_unk=True), trainers.BpeTrainer(vocab_size=700, special_tokens=["?"], limit_alphabet=60, show_progress=False),
                                             pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel())
    yield "suffix", lambda: trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False),
                                    pre_tokenizer=pre_tokenizers.Whitespace(), decoder=decoders.BPEDecoder("</w>"))
    yield "prefix", lambda: trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"), trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], continuing_subword_prefix="##", show_progress=False),
                                    pre_tokenizer=pre_tokenizers.WhitespaceSplit(), normalizer=normalizers.Lowercase())
    yield "llama2", lambda: sentencepiece("all", fuse=True, normalizer=LLAMA_NORMALIZER, decoder=LLAMA_DECODER)
    yield "llama2 some bytes", lambda: sentencepiece("some", fuse=False, normalizer=LLAMA_NORMALIZER, decoder=LLAMA_DECODER)
    yield "llama2 no bytes, fused", lambda: sentencepiece(None, fuse=True, normalizer=LLAMA_NORMALIZER, decoder=LLAMA_DECODER)
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            part = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
            yield f"metaspace {scheme} {split}", lambda p=part: sentencepiece("all", fuse=True, pre=p, decoder=p)
    yield "metaspace first, stripped", lambda: sentencepiece("all", fuse=True, pre={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
                                                             normalizer={"type": "Strip", "strip_left": True, "strip_right": False})
    yield "bert", lambda: bert()
    yield "bert cased", lambda: bert(lowercase=False, strip_accents=True, handle_chinese_chars=False, clean_text=False)
    def bert_added():
        t = bert()
        t.add_tokens(ADDED[:8])
        return t
    yield "bert added", bert_added
    yield "unigram", lambda: trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=6000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False),
                                     normalizer=normalizers.NFKC(), pre_tokenizer=pre_tokenizers.Metaspace(), decoder=decoders.Metaspace())
    yield "word level", lambda: trained(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=900, special_tokens=["[UNK]"], show_progress=False),
                                        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]))
    yield "ctc", lambda: trained(models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=900, special_tokens=["[UNK]", "<pad>", "|"], show_progress=False),
                                 pre_tokenizer=pre_tokenizers.Whitespace(), decoder=decoders.CTC())


def splits():
    """Pre-tokenizers and normalizers by their pieces."""
    for name, pattern in PATTERNS.items():
        for i, behavior in enumerate(BEHAVIORS):
            for invert in (False, True):
                if invert == (len(name) + i) % 2 or name in ("words", "look", "empty"):
                    yield f"split {name} {behavior} {invert}", None, pre_tokenizers.Split(Regex(pattern), behavior, invert)
    for behavior in BEHAVIORS:
        yield f"split string {behavior}", None, pre_tokenizers.Split("a", behavior, False)
        yield f"punctuation {behavior}", None, pre_tokenizers.Punctuation(behavior)
    yield "char delimiter", None, pre_tokenizers.CharDelimiterSplit("a")
    yield "sequence", None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation()])
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer"):
        yield f"normalizer {name}", getattr(normalizers, name)(), pre_tokenizers.Whitespace()
    yield "normalizer replace", normalizers.Replace(Regex(r"\s+"), " "), pre_tokenizers.WhitespaceSplit()


class Ours:
    def __init__(self, tool, path):
        self.p = subprocess.Popen([tool, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, lines):
        data = "".join(line + "\n" for line in lines).encode()
        out, _ = self.p.communicate(data)
        answers = out.decode().split("\n")
        assert answers[-1] == "" and len(answers) == len(lines) + 1, (len(answers), len(lines), answers[:2])
        return answers[:-1]


def hexed(text):
    return text.encode().hex()


def compare(tool, path, t, strings):
    t.save(path)
    t = Tokenizer.from_file(path)  # the library reads some scores as a neighbouring double
    lines, wanted = [], []
    for i, s in enumerate(strings):
        ids = t.encode(s, add_special_tokens=False).ids
        lines += ["e " + hexed(s), "s " + hexed(s), f"r {i} " + hexed(s), "d 0 " + " ".join(map(str, ids)), "d 1 " + " ".join(map(str, ids))]
        wanted += [" ".join(map(str, ids)), " ".join(map(str, t.encode(s).ids)), " ".join(map(str, ids)), hexed(t.decode(ids, skip_special_tokens=False)), hexed(t.decode(ids))]
    r, size = random.Random(3), t.get_vocab_size()
    for i in range(2):  # long enough to be cut
        text = ""
        while len(text) < CHARACTERS:
            text += r.choice(strings) + r.choice(GAPS)
        lines.append(f"r {i} " + hexed(text))
        wanted.append(" ".join(map(str, t.encode(text, add_special_tokens=False).ids)))
    for _ in range(len(strings) // 3):
        ids = [r.randrange(size + 3) for _ in range(r.randrange(0, 12))]
        lines.append("d 0 " + " ".join(map(str, ids)))
        wanted.append(hexed(t.decode(ids, skip_special_tokens=False)))
    answers = Ours(tool, path).ask(lines)
    return [{"asked": q[:300], "ours": a[:200], "theirs": w[:200]} for q, a, w in zip(lines, answers, wanted) if a != w]


def compare_pieces(tool, path, normalizer, splitter, strings):
    t = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    t.pre_tokenizer = splitter
    if normalizer is not None:
        t.normalizer = normalizer
    t.save(path)
    wanted = []
    for s in strings:
        normal = normalizer.normalize_str(s) if normalizer is not None else s
        wanted.append("".join(hexed(p) + " " for p, _ in splitter.pre_tokenize_str(normal)) if normal != "" else "")
    answers = Ours(tool, path).ask(["w " + hexed(s) for s in strings])
    return [{"asked": s[:100], "ours": a[:200], "theirs": w[:200]} for s, a, w in zip(strings, answers, wanted) if a != w]


def compare_files(tool, path, t, files):
    t.save(path)
    t = Tokenizer.from_file(path)
    bad = []
    for f in files:
        text = open(f, encoding="utf-8").read()
        got = Ours(tool, path).ask(["r 1 " + hexed(text)])[0]
        if got != " ".join(map(str, t.encode(text, add_special_tokens=False).ids)):
            bad.append({"asked": f, "ours": got[:100], "theirs": ""})
    return bad


def main():
    tool, folder, count, seed, names = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]
    files = [f for f in os.environ.get("JUDGE_FILES", "").split(":") if f]
    r = random.Random(seed)
    strings = [""] + WORDS + SPECIAL + [make_string(r) for _ in range(count)]
    path = os.path.join(folder, "tokenizer.json")

    def say(name, bad, compared):
        print(json.dumps({"name": name, "strings": compared, "different": len(bad), "first": bad[:3]}), flush=True)
    for name, make in makers():
        if not names or name in names:
            t = make()
            say(name, compare(tool, path, t, strings), len(strings))
            if files:
                say(name + ": files", compare_files(tool, path, t, files), len(files))
    for name, normalizer, splitter in splits():
        if not names or name in names or "splits" in names:
            some = strings[: max(200, len(strings) // 4)]
            say(name, compare_pieces(tool, path, normalizer, splitter, some), len(some))


if __name__ == "__main__":
    main()
