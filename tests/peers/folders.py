"""Transformers reads Hugging Face folders, for the stories that compare it with train and dtckpt.

Reads JSON objects from stdin, one a line, and answers each with a line:
  {"folder": PATH, "data": PATH, "rows": N, "dtype": "float32"}
    -> {"loss": mean over the first N rows of `data`, "grad_norm": of its gradient, "loading": what from_pretrained found amiss, "said": warnings}
       {"refused": why}, if it cannot be loaded and the question has "refusals": true
  {"make": PATH, "class": "BertForMaskedLM", "config": KEYS} -> {}: writes the folder of a model with random weights
  {"train": FOLDER, "data": PATH, "rows": N, "steps": N, "learning_rate": X}
    -> {"losses": before each step of SGD on the first N rows, and after the last}, in fp32 without dropout
  {"tokenize": FOLDER, "texts": [TEXT, ...]} -> {"ids": of each text, "said": warnings}
  {"embed": FOLDER, "rows": lists of ids, "pooling": NAME, "normalize": BOOL} -> {"vectors": of each row}, by AutoModel and the formulas of
    sentence-transformers, in one padded batch with a mask
  {"split": FOLDER, "max_shard_size": SIZE} -> {"files": huggingface_hub's name of the file of each tensor}
"""

import json
import logging
import sys
import warnings

import huggingface_hub
import torch
import transformers
from safetensors import safe_open

SAID = []


class Keep(logging.Handler):
    def emit(self, record):
        SAID.append(record.getMessage())


def first_rows(path, count):
    """The first rows of each tensor, whose last dimensions are those of a sample."""
    with safe_open(path, "pt") as f:
        ids = f.get_tensor("input_ids")
        length, batch_dims = ids.shape[-1], ids.dim() - 1
        fields = {}
        for name in ("input_ids", "labels", "attention_mask", "token_type_ids"):
            if name in f.keys():
                x = f.get_tensor(name)
                fields[name] = x.reshape(-1, length)[:count] if x.dim() > batch_dims else x.reshape(-1)[:count]
    return fields


AUTO = {"ForSequenceClassification": "AutoModelForSequenceClassification", "ForTokenClassification": "AutoModelForTokenClassification",
        "ForMaskedLM": "AutoModelForMaskedLM"}


def class_of(folder):
    """The name of its class, and the automatic one that loads it."""
    with open(f"{folder}/config.json") as f:
        of_class = json.load(f)["architectures"][0]
    return of_class, getattr(transformers, next((name for end, name in AUTO.items() if of_class.endswith(end)), "AutoModelForCausalLM"))


def look(folder, data, rows, dtype, refusals=False):
    SAID.clear()
    of_class, auto = class_of(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model, loading = auto.from_pretrained(folder, dtype=dtype, output_loading_info=True, attn_implementation="eager")
        except Exception as e:
            if not refusals:
                raise
            return {"refused": str(e)}
        model.eval()
        said = SAID + [str(w.message) for w in caught]
        loss = model(**first_rows(data, rows)).loss
        loss.backward()
    assert type(model).__name__ == of_class
    norm = sum(p.grad.double().square().sum().item() for p in model.parameters() if p.grad is not None) ** 0.5
    return {"loss": loss.item(), "grad_norm": norm, "loading": {k: sorted(map(str, v)) for k, v in loading.items() if v}, "said": said}


def make(folder, of_class, config):
    """No two tensors are equal: biases, too, are random."""
    torch.manual_seed(1)
    model_class = getattr(transformers, of_class)
    model = model_class(model_class.config_class(**config))
    for p in model.parameters():
        p.data += 0.02 * torch.randn_like(p)
    model.save_pretrained(folder)
    return {}


def train(train, data, rows, steps, learning_rate):
    model = class_of(train)[1].from_pretrained(train, dtype="float32", attn_implementation="eager").eval()
    batch, losses = first_rows(data, rows), []
    for _ in range(steps):
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for p in model.parameters():
                p -= learning_rate * p.grad
                p.grad = None
    with torch.no_grad():
        return {"losses": losses + [model(**batch).loss.item()]}


def tokenize(tokenize, texts):
    SAID.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenize)
        return {"ids": [tokenizer(text).input_ids for text in texts], "said": SAID + [str(w.message) for w in caught]}


def embed(embed, rows, pooling, normalize=False):
    model = transformers.AutoModel.from_pretrained(embed, dtype="float32", attn_implementation="eager").eval()
    length = max(map(len, rows))
    pad = getattr(model.config, "pad_token_id", None) or 0
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    wide = mask.unsqueeze(-1).float()
    weights = wide * torch.arange(1, length + 1).view(1, -1, 1)
    vectors = {"cls": lambda: hidden[:, 0], "max": lambda: hidden.masked_fill(wide == 0, -1e9).max(1).values,
               "mean": lambda: (hidden * wide).sum(1) / wide.sum(1), "mean_sqrt_len_tokens": lambda: (hidden * wide).sum(1) / wide.sum(1).sqrt(),
               "weightedmean": lambda: (hidden * weights).sum(1) / weights.sum(1),
               "lasttoken": lambda: hidden[torch.arange(len(rows)), mask.sum(1) - 1]}[pooling]()
    return {"vectors": (torch.nn.functional.normalize(vectors, dim=1) if normalize else vectors).tolist()}


def split(split, max_shard_size):
    tensors = {}
    with open(f"{split}/model.safetensors.index.json") as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    for name in files:
        with safe_open(f"{split}/{name}", "pt") as f:
            tensors.update({k: f.get_tensor(k) for k in f.keys()})
    plan = huggingface_hub.split_torch_state_dict_into_shards({k: tensors[k] for k in sorted(tensors)}, max_shard_size=max_shard_size)
    return {"files": plan.tensor_to_filename, "metadata": plan.metadata}


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").addHandler(Keep())
    for line in sys.stdin:
        what = json.loads(line)
        if "make" in what:
            answer = make(what["make"], what["class"], what["config"])
        else:
            answer = next((f for name, f in (("split", split), ("train", train), ("embed", embed), ("tokenize", tokenize)) if name in what), look)(**what)
        print(json.dumps(answer), flush=True)


main()
