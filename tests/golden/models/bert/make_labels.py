"""Makes labels.json: what Transformers gives in fp64 for the model in hf/ and the batches of batches.safetensors, but with numbers as labels, one for each
of three outputs (regression), or with any number of the three classes (multi-label); and the mean of the outputs' Pearson correlations over all rows before
the first step.   python make_labels.py   (writes beside itself)"""

import json
import os

import torch
import transformers
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, MICRO_STEPS = 6, 4
VALUES = {"regression": lambda row, c: ((row * 7 + c * 5) % 23) / 8 - 1, "multi_label_classification": lambda row, c: float((row * 7 + c * 5) % 3 == 0)}


def run(problem):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(f"{HERE}/hf", problem_type=problem, attn_implementation="eager").double().eval()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    batches = load_file(f"{HERE}/batches.safetensors")
    rows, found = batches["input_ids"].shape[2], {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        loss_sum = 0.0
        for micro in range(MICRO_STEPS):
            first = (step * MICRO_STEPS + micro) * rows
            labels = torch.tensor([[VALUES[problem](first + b, c) for c in range(3)] for b in range(rows)], dtype=torch.float64)
            inputs = {k: batches[k][step, micro] for k in ("input_ids", "attention_mask", "token_type_ids")}
            loss = model(**inputs, labels=labels).loss / MICRO_STEPS
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found["loss"].append(loss_sum)
        found["grad_norm"].append(norm.item())
    return found


def pearson():
    model = transformers.AutoModelForSequenceClassification.from_pretrained(f"{HERE}/hf", problem_type="regression", attn_implementation="eager").double().eval()
    batches = {k: v.flatten(0, 2) for k, v in load_file(f"{HERE}/batches.safetensors").items() if k != "labels"}
    with torch.no_grad():
        logits = model(**batches).logits
    labels = torch.tensor([[VALUES["regression"](row, c) for c in range(3)] for row in range(len(logits))], dtype=torch.float64)
    return sum(torch.corrcoef(torch.stack([logits[:, c], labels[:, c]]))[0, 1].item() for c in range(3)) / 3


with open(f"{HERE}/labels.json", "w") as f:
    json.dump({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, **{p: run(p) for p in VALUES}, "pearson": pearson()}, f, indent=1)
    f.write("\n")
