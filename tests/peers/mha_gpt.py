"""The model mha-gpt as a program of PyTorch's modules.

    python mha_gpt.py golden     # makes tests/golden/models/mha-gpt: losses and gradients of a fill rule in fp64, and a folder
    python mha_gpt.py            # reads JSON objects from stdin, one a line, and answers each with a line:
      {"folder": PATH, "ids": [[...]], "new": N}
        -> {"loss": mean over all targets of ids, "ids": greedy continuations of the first row, "tensors": all names}
      {"begin": SIZES} -> {NAME: [mean, deviation, largest magnitude]} of a new model's tensors
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/models/mha-gpt")
FOLDER = {"vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
LETTERS = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 6}


class Layer(nn.Module):
    def __init__(self, width, heads, eps):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class MhaGpt(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_hidden_layers, num_attention_heads, max_position_embeddings, causal=True, shift_labels=True,
                 layer_norm_eps=1e-5, **_):
        super().__init__()
        self.causal, self.shift = causal, shift_labels
        self.embedding, self.pos_embedding = nn.Embedding(vocab_size, hidden_size), nn.Embedding(max_position_embeddings, hidden_size)
        self.layers = nn.ModuleList(Layer(hidden_size, num_attention_heads, layer_norm_eps) for _ in range(num_hidden_layers))
        self.norm, self.head = nn.LayerNorm(hidden_size, eps=layer_norm_eps), nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        x = self.embedding(ids) + self.pos_embedding(torch.arange(length))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))

    def loss(self, ids):
        logits, labels = self(ids), ids
        if self.shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def is_norm(name):
    return "norm" in name


def golden_run(switches):
    """AdamW over one batch. Parameter p, element j: 0.1 sin(0.7 (j + 1) + 1.3 (p + 1)), and 1 more for a norm's weight."""
    model = MhaGpt(**LETTERS, **switches).double()
    with torch.no_grad():
        for p, (name, x) in enumerate(model.named_parameters()):
            x.copy_(0.1 * torch.sin(0.7 * torch.arange(1, x.numel() + 1, dtype=torch.float64) + 1.3 * (p + 1)).reshape(x.shape))
            x += is_norm(name) and name.endswith("weight")
    ids = torch.tensor([[(7 * b + 3 * t + 1) % 11 for t in range(5)] for b in range(2)])
    plain = [x for n, x in model.named_parameters() if is_norm(n) or n.endswith("bias")]
    decayed = [x for n, x in model.named_parameters() if not (is_norm(n) or n.endswith("bias"))]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    run = {**switches, "loss": []}
    for step in range(4):
        optimizer.zero_grad()
        loss = model.loss(ids)
        loss.backward()
        run["loss"].append(float(f"{loss.item():.12e}"))
        if step == 0:
            grads = {n: x.grad.flatten() for n, x in model.named_parameters()}
            run["grad_norm"] = float(f"{torch.cat(list(grads.values())).norm().item():.12e}")
            run["gradients"] = {n: [float(f"{v:.9e}") for v in g[:2].tolist()] for n, g in grads.items()}
        optimizer.step()
    return run


def golden():
    runs = [golden_run({"causal": c, "shift_labels": s}) for c, s in ((True, True), (False, False))]
    os.makedirs(f"{OUT}/hf", exist_ok=True)
    with open(f"{OUT}/expected.json", "w") as f:
        f.write(json.dumps({"sizes": LETTERS, "parameters": sum(x.numel() for x in MhaGpt(**LETTERS).parameters()), "runs": runs}, indent=1) + "\n")
    with open(f"{OUT}/hf/config.json", "w") as f:
        f.write(json.dumps({"model_type": "mha-gpt", "architectures": ["MhaGptForCausalLM"], **FOLDER}, indent=1) + "\n")
    save_file({n: x.detach() for n, x in MhaGpt(**FOLDER).named_parameters()}, f"{OUT}/hf/model.safetensors", metadata={"format": "pt"})


def load(folder):
    with open(f"{folder}/config.json") as f:
        model = MhaGpt(**json.load(f)).eval()
    tensors = load_file(f"{folder}/model.safetensors")
    model.load_state_dict(tensors)
    return model, list(tensors)


def answer(question):
    with torch.no_grad():
        if "begin" in question:
            sums = {n: [x.mean(), x.std(unbiased=False), x.abs().max()] for n, x in MhaGpt(**question["begin"]).named_parameters()}
            return {n: [v.item() for v in values] for n, values in sums.items()}
        model, names = load(question["folder"])
        ids = torch.tensor(question["ids"])
        new = ids[:1]
        for _ in range(question["new"]):
            new = torch.cat([new, model(new)[:, -1:].argmax(-1)], 1)
        return {"loss": model.loss(ids).item(), "ids": new[0, ids.shape[1]:].tolist(), "tensors": names}


if __name__ == "__main__":
    torch.manual_seed(1)
    if sys.argv[1:] == ["golden"]:
        golden()
    else:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))))
