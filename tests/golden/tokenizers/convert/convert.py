#!/usr/bin/env python3
"""Writes models of SentencePiece and ranks of tiktoken, and cases.jsonl with the ids that these two
libraries give, for unit_tokenizer_convert.c. Run with a Python that has both:
    python tests/golden/tokenizers/convert/convert.py"""
import base64
import io
import json
import os
import random

import sentencepiece
import tiktoken

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..", "..")
random.seed(11)
TEXT = open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8").read() + "naïve café Ünïcödé 日本語 ½ ﬁ ２０\n" * 3
# Not compared: numbers like 1000, where two ways to split have the same sum and rounding decides
# (SentencePiece adds floats, the library doubles), and marks behind characters that the rules replace
# (the library replaces such a cluster as a whole).
WORDS = [w for w in TEXT.split() if not any(c.isdigit() for c in w)]
OTHER = [*"\u00e9\u00df\u4e2d\u65e5\U0001f600\u00bd\ufb01\uff12\u2581\u3000\t\n  .,'abcde", "e\u0301"]
RULES = "FF12\t32\nFB01\t66 69\nBD\t31 2044 32\n65 301\tE9\n3000\t20\n9\t20\nA\t20\n"


def text():
    if random.random() < 0.3:
        return "".join(random.choice(OTHER) for _ in range(random.randint(0, 20)))
    spaces = random.choice((" ", " ", "  ", "\n"))
    return random.choice(("", " ", "")) + spaces.join(random.choice(WORDS) for _ in range(random.randint(0, 12)))


def train(name, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n")), model_writer=model, num_threads=1,
                                             minloglevel=2, hard_vocab_limit=False, **options)
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    texts = [text() for _ in range(150)]
    return {"file": name, "cases": [[t, processor.encode(t)] for t in texts]}


def sentencepieces():
    rules = os.path.join(HERE, "rules.tsv")
    with open(rules, "w", encoding="utf-8") as f:
        f.write(RULES)
    yield train("bpe.model", model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                remove_extra_whitespaces=False)
    yield train("bpe_user.model", model_type="bpe", vocab_size=500, normalization_rule_tsv=rules,
                user_defined_symbols=["a.b", "the"], character_coverage=0.99)
    yield train("unigram.model", model_type="unigram", vocab_size=500, normalization_rule_tsv=rules)
    yield train("unigram_bytes.model", model_type="unigram", vocab_size=700, byte_fallback=True,
                normalization_rule_name="identity", add_dummy_prefix=False)
    yield train("bpe_lines.model", model_type="bpe", vocab_size=400, byte_fallback=True, add_dummy_prefix=False,
                normalization_rule_name="identity", remove_extra_whitespaces=False,
                user_defined_symbols=["\n", "\n\n", "\t", "\u2581\u2581", "a.b"])
    yield train("bpe_map.model", model_type="bpe", vocab_size=400, normalization_rule_tsv=rules,
                user_defined_symbols=["\n", "\n\n", "½", "the"])
    os.remove(rules)


def ranks(name, pattern, regex, special):
    byte_of = {}
    for b in range(256):
        visible = 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE
        byte_of[chr(b) if visible else chr(0x100 + len([x for x in byte_of.values() if ord_of[x] >= 0x100]))] = b
        ord_of[b] = ord(list(byte_of)[-1])
    model = json.load(open(os.path.join(HERE, "..", "gpt2", "tokenizer.json"), encoding="utf-8"))["model"]
    merged = {tuple(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]}
    keep = {a + b for a, b in merged} | set(byte_of)
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda x: x[1]) if t in keep]
    table = {bytes(byte_of[c] for c in t): i for i, t in enumerate(sorted(tokens, key=lambda t: len(t) > 1))}
    table[b" zqxj"] = len(table)  # no merges lead to it: only a whole piece is it
    with open(os.path.join(HERE, name), "w", encoding="ascii") as f:
        for token, rank in table.items():
            f.write(base64.b64encode(token).decode() + f" {rank}\n")
    encoding = tiktoken.Encoding(name, pat_str=regex, mergeable_ranks=table, special_tokens=special)
    texts = [text() + random.choice(["", " zqxj", *special]) for _ in range(150)]
    return {"file": name, "pattern": pattern, "special": special,
            "cases": [[t, encoding.encode(t, allowed_special="all")] for t in texts]}


ord_of = {}
if __name__ == "__main__":
    from tiktoken_ext import openai_public as known

    cl100k = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$""" \
             r"""|\s*[\r\n]|\s+(?!\S)|\s"""
    rows = list(sentencepieces())
    rows.append(ranks("gpt2.tiktoken", "gpt2", known.r50k_pat_str, {"<|endoftext|>": 5000}))
    rows.append(ranks("gpt2.tiktoken", "cl100k", cl100k, {"<|end|>": 5007, "<|a b|>": 6000}))
    with open(os.path.join(HERE, "cases.jsonl"), "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")
