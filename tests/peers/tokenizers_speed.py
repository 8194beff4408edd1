#!/usr/bin/env python3
"""The tokenizers library for `bench tokenizer`, which starts this.

Each line on stdin has its words between tabs; the answer is a number of seconds:
    make FOLDER             trains tokenizers (32768 tokens, the patterns of GPT-2 and Llama 3) there, on texts of this machine, which are written beside them
    encode TOKENIZER TEXT   user time of encoding the text in parts of whole lines, one thread, without offsets, which is the library's fastest
"""
import glob, os, sys, sysconfig, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PART, TEXT = 16 << 10, 4_000_000
opened = {}


def collect(patterns):
    text = ""
    for path in sorted(p for pattern in patterns for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)):
        try:
            with open(path, encoding="utf-8", newline="") as f:
                text += f.read()
        except UnicodeDecodeError:
            continue
        if len(text) > TEXT:
            break
    return text[:TEXT]


def make(folder):
    library = sysconfig.get_paths()["stdlib"]
    texts = {"english": collect(["docs/*.md", "*.md", "/usr/share/common-licenses/*", "/usr/share/doc/**/*.txt", "/usr/share/doc/**/copyright"]),
             "code": collect([library + "/*.py", library + "/*/*.py"])}
    for name, text in texts.items():
        with open(f"{folder}/{name}.txt", "w", encoding="utf-8", newline="") as f:
            f.write(text)
    byte_level = pre_tokenizers.ByteLevel
    for name, pre in (("gpt2", byte_level(add_prefix_space=False)),
                      ("llama3", pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level(add_prefix_space=False, use_regex=False)]))):
        t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
        t.train_from_iterator((line for text in texts.values() for line in text.splitlines(True)),
                              trainers.BpeTrainer(vocab_size=32768, initial_alphabet=byte_level.alphabet(), show_progress=False))
        t.save(f"{folder}/{name}.json")


def parts_of(path):
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    parts, at = [], 0
    while at < len(text):
        end = text.find("\n", at + PART)
        parts.append(text[at:end + 1 if end >= 0 else len(text)])
        at += len(parts[-1])
    return parts


def encode(tokenizer, path):
    if tokenizer not in opened:
        opened[tokenizer] = Tokenizer.from_file(tokenizer if os.path.isfile(tokenizer) else tokenizer + "/tokenizer.json")
    if path not in opened:
        opened[path] = parts_of(path)
    begin = os.times().user
    opened[tokenizer].encode_batch_fast(opened[path], add_special_tokens=False)
    return os.times().user - begin


for line in sys.stdin:
    what, *words = line.rstrip("\n").split("\t")
    begin = time.perf_counter()
    took = make(*words) if what == "make" else encode(*words)
    print(took if took is not None else time.perf_counter() - begin, flush=True)
