#!/usr/bin/env python3
"""Tokenizers of parts that are drawn at random, beside the tokenizers library, for story_tokenizers_mixed.py: each mix of normalizers, pre-tokenizers, models,
decoders, post-processors and added tokens which the library opens must give its ids, or be refused with a reason.

usage: tokenizers_mixed_judge.py TOOL FOLDER TOKENIZERS STRINGS SEED
Prints one line of JSON per tokenizer: its parts, strings compared, the first differences, and why it was refused.
"""
import json, os, random, subprocess, sys

import tokenizers_judge as judge
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

R = random.Random(int(sys.argv[5]))
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PATTERNS = [{"Regex": r"\s+"}, {"Regex": r"\w+"}, {"Regex": r"[^\w\s]"}, {"String": " "}, {"String": "a"}, {"Regex": r"\d{1,3}"}, {"Regex": "(?=[A-Z])"}, {"String": "."},
            {"Regex": judge.PATTERNS["gpt2"]}, {"Regex": judge.PATTERNS["llama3"]}, {"Regex": r"\p{P}"}, {"Regex": "^.|e$"}]


def flag():
    return R.random() < 0.5


def normalizer(depth=0):
    kind = R.choice(["BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Prepend", "Replace", "Strip", "StripAccents", "ByteLevel", "Sequence", "Sequence"])
    if kind == "Sequence":
        return {"type": kind, "normalizers": [normalizer(depth + 1) for _ in range(R.randrange(4))]} if depth < 2 else {"type": "NFC"}
    options = {"BertNormalizer": lambda: {"clean_text": flag(), "handle_chinese_chars": flag(), "strip_accents": R.choice([None, True, False]), "lowercase": flag()},
               "Prepend": lambda: {"prepend": R.choice(["▁", "x ", ""])}, "Strip": lambda: {"strip_left": flag(), "strip_right": flag()},
               "Replace": lambda: {"pattern": R.choice(PATTERNS), "content": R.choice(["", " ", "▁", "zz"])}}
    return {"type": kind, **options.get(kind, dict)()}


def pretokenizer(depth=0):
    kind = R.choice(["BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation", "Split", "UnicodeScripts", "Whitespace",
                     "WhitespaceSplit", "Sequence", "Sequence"])
    if kind == "Sequence":
        return {"type": kind, "pretokenizers": [pretokenizer(depth + 1) for _ in range(R.randrange(4))]} if depth < 2 else {"type": "Whitespace"}
    options = {"ByteLevel": lambda: {"add_prefix_space": flag(), "trim_offsets": flag(), "use_regex": flag()}, "CharDelimiterSplit": lambda: {"delimiter": R.choice("a .")},
               "Digits": lambda: {"individual_digits": flag()}, "FixedLength": lambda: {"length": R.randrange(1, 7)}, "Punctuation": lambda: {"behavior": R.choice(BEHAVIORS)},
               "Metaspace": lambda: {"replacement": R.choice("▁_"), "prepend_scheme": R.choice(["always", "first", "never"]), "split": flag()},
               "Split": lambda: {"pattern": R.choice(PATTERNS), "behavior": R.choice(BEHAVIORS), "invert": flag()}}
    return {"type": kind, **options.get(kind, dict)()}


def decoder(depth=0):
    kind = R.choice(["BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Strip", "WordPiece", "Sequence", "Sequence"])
    if kind == "Sequence":
        return {"type": kind, "decoders": [decoder(depth + 1) for _ in range(R.randrange(4))]} if depth < 2 else {"type": "Fuse"}
    options = {"BPEDecoder": lambda: {"suffix": R.choice(["</w>", "e"])}, "ByteLevel": lambda: {"add_prefix_space": flag(), "trim_offsets": flag(), "use_regex": flag()},
               "CTC": lambda: {"pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": flag()}, "Metaspace": lambda: {"replacement": "▁", "prepend_scheme": R.choice(["always", "first", "never"]), "split": flag()},
               "Replace": lambda: {"pattern": R.choice(PATTERNS), "content": R.choice(["", " ", "q"])}, "WordPiece": lambda: {"prefix": "##", "cleanup": flag()},
               "Strip": lambda: {"content": R.choice(" ▁a"), "start": R.randrange(3), "stop": R.randrange(3)}}
    return {"type": kind, **options.get(kind, dict)()}


def postprocessor(depth=0):
    kind = R.choice(["BertProcessing", "RobertaProcessing", "ByteLevel", "TemplateProcessing", "Sequence"])
    if kind == "Sequence":
        return {"type": kind, "processors": [postprocessor(1) for _ in range(R.randrange(3))]} if depth == 0 else {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    if kind == "TemplateProcessing":
        special, a, b = [{"SpecialToken": {"id": t, "type_id": k}} for t, k in (("[S]", 0), ("[E]", R.randrange(3)))], {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
        single, pair = R.choice([[special[0], a, special[1]], [a], [a, special[1], special[1]]]), R.choice([[a, special[1], b], [special[0], b, a], [a, b]])
        return {"type": kind, "single": single, "pair": pair, "special_tokens": {"[S]": {"id": "[S]", "ids": [1], "tokens": ["[S]"]}, "[E]": {"id": "[E]", "ids": [2, 1], "tokens": ["[E]", "[S]"]}}}
    return {"type": kind, **({"add_prefix_space": flag(), "trim_offsets": flag(), "use_regex": flag()} if kind == "ByteLevel" else {"sep": ["[E]", 2], "cls": ["[S]", 1]}),
            **({"trim_offsets": flag(), "add_prefix_space": flag()} if kind == "RobertaProcessing" else {})}


SPECIAL = ["[UNK]", "[S]", "[E]", "<pad>"]


def base_models():
    words = [w for line in list(judge.corpus())[:400] for w in line.split()]
    made = {}

    def train(name, model, trainer, pre):
        t = Tokenizer(model)
        t.pre_tokenizer = pre
        t.train_from_iterator([" ".join(words)], trainer)
        made[name] = json.loads(t.to_str())["model"]
    options = {"special_tokens": SPECIAL, "show_progress": False}
    train("bpe", models.BPE(unk_token="[UNK]"), trainers.BpeTrainer(vocab_size=600, limit_alphabet=80, **options), pre_tokenizers.Metaspace())
    train("bpe none", models.BPE(), trainers.BpeTrainer(vocab_size=600, limit_alphabet=80, **options), pre_tokenizers.WhitespaceSplit())
    train("suffix", models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", **options), pre_tokenizers.WhitespaceSplit())
    train("bytes", models.BPE(), trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options), pre_tokenizers.ByteLevel())
    train("wordpiece", models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20), trainers.WordPieceTrainer(vocab_size=500, **options), pre_tokenizers.Whitespace())
    train("unigram", models.Unigram(), trainers.UnigramTrainer(vocab_size=500, unk_token="[UNK]", **options), pre_tokenizers.Metaspace())
    train("words", models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=300, **options), pre_tokenizers.Whitespace())
    return made


def mixed(made):
    name = R.choice(sorted(made))
    model = dict(made[name])
    if model["type"] == "BPE":
        model.update(fuse_unk=flag(), ignore_merges=flag(), byte_fallback=flag())
    j = json.loads(Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).to_str())
    j.update(model=model, normalizer=normalizer() if R.random() < 0.7 else None, pre_tokenizer=pretokenizer() if R.random() < 0.85 else None,
             decoder=decoder() if R.random() < 0.85 else None, post_processor=postprocessor() if R.random() < 0.6 else None)
    return name, j


def main():
    tool, folder, tokenizers, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    made = base_models()
    path = os.path.join(folder, "tokenizer.json")
    for _ in range(tokenizers):
        name, j = mixed(made)
        parts = {"model": name, **{k: j[k] for k in ("normalizer", "pre_tokenizer", "decoder", "post_processor")}}
        try:
            t = Tokenizer.from_str(json.dumps(j))
            if flag():
                t.add_tokens([AddedToken(k, lstrip=flag(), rstrip=flag(), single_word=flag(), normalized=flag()) for k in R.sample(judge.SPECIAL, 5)])
                t.add_special_tokens(["<|special|>"])
            t.save(path)
            t = Tokenizer.from_file(path)
        except BaseException as e:
            continue
        strings = [""] + [judge.make_string(R) for _ in range(count)]
        lines, wanted = [], []
        for i, s in enumerate(strings):
            for kind in "esrd":
                try:
                    ids = t.encode(s, add_special_tokens=kind == "s").ids
                    if kind == "d":
                        wanted.append(t.decode(ids, skip_special_tokens=False).encode().hex())
                        lines.append("d 0 " + " ".join(map(str, ids)))
                    else:
                        wanted.append(" ".join(map(str, ids)))
                        lines.append((f"r {i} " if kind == "r" else kind + " ") + s.encode().hex())
                except BaseException:  # the library panics
                    pass
        p = subprocess.run([tool, path], input="".join(line + "\n" for line in lines), capture_output=True, text=True)
        refused = (p.stdout + p.stderr).strip() if p.returncode != 0 else ""
        got = p.stdout.split("\n")[:-1]
        bad = [] if refused else [{"asked": q[:400], "ours": a[:200], "theirs": w[:200]} for q, a, w in zip(lines, got, wanted, strict=True) if a != w and not a.startswith("!")]
        failed = sorted({a for a in got if a.startswith("!")})
        print(json.dumps({"name": parts, "strings": len(lines), "different": len(bad), "first": bad[:2], "refused": refused, "failed": failed[:2]}, ensure_ascii=False), flush=True)


main()
