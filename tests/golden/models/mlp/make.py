"""Makes the golden data of model mlp with PyTorch, in fp64: images with
labels, first weights, and what a run over them gives.   python make.py   (writes beside itself)"""

import json
import os
import struct

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
CHANNELS, SIDE, HIDDEN, LAST, CLASSES, MOMENTUM = 2, 6, 24, 12, 5, 0.1
TRAIN, VAL, BATCH, MICRO_STEPS, STEPS = 96, 22, 8, 2, 12
LR, BETAS, EPS, DECAY, MAX_NORM = 1e-2, (0.9, 0.99), 1e-8, 0.1, 1.0


def save_file(tensors, path):
    """A safetensors file."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, t in tensors.items():
        raw = t.numpy().tobytes()
        header[name] = {"dtype": {torch.float32: "F32", torch.int64: "I64"}[t.dtype], "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


class Centre(nn.Module):
    """x less its mean over the batch; in evaluation less the running mean. No gradient of the mean."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("num_batches_tracked", torch.zeros(1))

    def forward(self, x):
        if not self.training:
            return x - self.running_mean
        mean = x.mean(0).detach()
        self.running_mean.mul_(1 - MOMENTUM).add_(MOMENTUM * mean)
        self.num_batches_tracked += 1
        return x - mean


def images(count, generator):
    """Each class has an image of its own; all have a bright corner, so that centring matters."""
    labels = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, CHANNELS, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
    x = means[labels] * 0.6 + torch.randn(count, CHANNELS, SIDE, SIDE, generator=generator)
    x[:, :, :3, :3] += 2
    return {"pixel_values": x.contiguous(), "labels": labels.to(torch.int64)}


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        x = data["pixel_values"].double().flatten(1)
        loss = nn.functional.cross_entropy(model(x), data["labels"])
    model.train()
    return loss.item()


def main():
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(3)
    train, val = images(TRAIN, generator), images(VAL, generator)
    width = CHANNELS * SIDE * SIDE
    model = nn.Sequential(Centre(width), nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LAST), nn.ReLU(), nn.Linear(LAST, CLASSES))
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.2)
        else:
            nn.init.normal_(p, std=0.05)
    names = {"layers.0.weight": "1.weight", "layers.0.bias": "1.bias", "layers.1.weight": "3.weight", "layers.1.bias": "3.bias",
             "classifier.weight": "5.weight", "classifier.bias": "5.bias", "layers.0.running_mean": "0.running_mean",
             "layers.0.num_batches_tracked": "0.num_batches_tracked"}
    state = model.state_dict()
    save_file({ours: state[theirs].clone().contiguous() for ours, theirs in names.items()}, f"{HERE}/hf/model.safetensors")
    save_file(train, f"{HERE}/train.safetensors")
    save_file(val, f"{HERE}/val.safetensors")
    with open(f"{HERE}/hf/config.json", "w") as f:
        json.dump({"model_type": "mlp", "num_channels": CHANNELS, "image_size": SIDE, "hidden_size": HIDDEN, "last_hidden_size": LAST,
                   "num_labels": CLASSES, "momentum": MOMENTUM}, f, indent=2)
        f.write("\n")
    model.double().train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0}], lr=LR, betas=BETAS, eps=EPS)
    out = {"loss": [], "grad_norm": [], "torch": torch.__version__, "val_loss_before": evaluate(model, val)}
    position = 0
    for _ in range(STEPS):
        total = 0
        optimizer.zero_grad()
        for _ in range(MICRO_STEPS):
            x = train["pixel_values"][position:position + BATCH].double().flatten(1)
            loss = nn.functional.cross_entropy(model(x), train["labels"][position:position + BATCH]) / MICRO_STEPS
            loss.backward()
            total += loss.item()
            position = (position + BATCH) % TRAIN
        out["grad_norm"].append(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
        out["loss"].append(total)
    out["val_loss"] = evaluate(model, val)
    state = model.state_dict()
    out["weights"] = {ours: [v for v in state[theirs].flatten().tolist()] for ours, theirs in names.items() if theirs not in ("1.weight", "3.weight")}
    out["first_of_weight_0"] = state["1.weight"].flatten()[:40].tolist()
    with open(f"{HERE}/expected.json", "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
