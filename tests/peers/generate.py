#!/usr/bin/env python3
"""transformers' generate for `bench generate`, which starts this.

Each line on stdin is `LAYERS CHANNELS VOCABULARY ROWS PROMPT IDS THREADS`; the answer is the seconds of one more id for all rows of a GPT-2 of that
size with a cache, greedy, in fp32: the time of IDS new ids less that of one, by the number of ids between.
"""
import os, sys, time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import GPT2Config, GPT2LMHeadModel

models = {}  # by size


def take(model, ids, count):
    begin = time.perf_counter()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=count, max_new_tokens=count, do_sample=False, use_cache=True, pad_token_id=0)
    assert out.shape[1] == ids.shape[1] + count
    return time.perf_counter() - begin


for line in sys.stdin:
    layers, channels, vocabulary, rows, prompt, count, threads = map(int, line.split())
    torch.set_num_threads(threads)
    size = layers, channels, vocabulary, prompt + count
    if size not in models:
        torch.manual_seed(1)
        models[size] = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=channels, n_head=channels // 64, vocab_size=vocabulary,
                                                  n_positions=prompt + count)).eval()
    ids = torch.randint(vocabulary, (rows, prompt), generator=torch.Generator().manual_seed(1))
    one = take(models[size], ids, 1)
    print((take(models[size], ids, count) - one) / (count - 1), flush=True)
