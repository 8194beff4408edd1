"""The trainers of the tokenizers library, for the story that compares them with dtdata train-tokenizer.

Reads JSON objects from stdin, one a line, and answers each with a line:
  {"train": FILE, "type": "bpe", "normalizer": JSON or null, "pre_tokenizer": JSON, "vocabulary": N, "special": [TOKEN, ...], "lines": BOOL, "bytes": BOOL}
    -> {"vocab": of the model, "merges": of BPE}; lines: each line of the file is a text, else the whole file is
  {"load": FOLDER, "texts": [TEXT, ...]} -> {"ids", "decoded": by tokenizers, "auto": ids by AutoTokenizer, "roles": its special tokens, "said": warnings}
"""

import json
import logging
import sys
import warnings

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SAID = []


class Keep(logging.Handler):
    def emit(self, record):
        SAID.append(record.getMessage())


def train(job):
    kinds = {"bpe": (models.BPE(), trainers.BpeTrainer), "wordpiece": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer)}
    model, trainer = kinds[job["type"]]
    tokenizer = json.loads(Tokenizer(model).to_str())
    tokenizer.update(normalizer=job["normalizer"], pre_tokenizer=job["pre_tokenizer"])
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if job["bytes"] else []
    text = open(job["train"], encoding="utf-8", newline="").read()
    texts = [line for line in text.split("\n") if line] if job["lines"] else [text]
    tokenizer.train_from_iterator(
        texts, trainer(vocab_size=job["vocabulary"], special_tokens=job["special"], initial_alphabet=alphabet, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": model.get("merges")}


def load(job):
    import transformers

    logging.getLogger("transformers").addHandler(Keep())
    tokenizer = Tokenizer.from_file(job["load"] + "/tokenizer.json")
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in job["texts"]]
    SAID.clear()
    auto = transformers.AutoTokenizer.from_pretrained(job["load"])
    return {
        "ids": ids,
        "decoded": [tokenizer.decode(x) for x in ids],
        "auto": [auto(text, add_special_tokens=False).input_ids for text in job["texts"]],
        "roles": auto.special_tokens_map,
        "said": list(SAID),
    }


logging.getLogger().addHandler(Keep())
warnings.showwarning = lambda message, *rest, **named: SAID.append(str(message))
for line in sys.stdin:
    job = json.loads(line)
    print(json.dumps(train(job) if "train" in job else load(job)), flush=True)
