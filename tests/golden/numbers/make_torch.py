"""PyTorch's numbers for unit_optimizer beyond optimizers.json, from whose shapes, init, lr and grads they are: torch.json.
Muon takes the matrix, in the row's shape, and AdamW the vector. torch.optim.Muon iterates in BF16: after_bf16 are its weights as they are;
after_fp32, after_fp64 are those of the same class with the iterations in the type of the weights.
    ~/.cache/dtrun/peers/bin/python tests/golden/numbers/make_torch.py >tests/golden/numbers/torch.json
"""

import json
import os

import torch
from torch.optim import _muon

GIVEN = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.json")))
BF16 = _muon._zeropower_via_newtonschulz
MUON = [{"shape": [3, 5], "momentum": 0.95, "nesterov": True, "ns_steps": 5, "eps": 1e-7, "adjust_lr_fn": "original", "weight_decay": 0.1},
        {"shape": [5, 3], "momentum": 0.9, "nesterov": False, "ns_steps": 3, "eps": 1e-7, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
        {"shape": [5, 3], "momentum": 0.5, "nesterov": True, "ns_steps": 1, "eps": 0.5, "adjust_lr_fn": "original", "weight_decay": 0.3},
        {"shape": [15, 1], "momentum": 0.95, "nesterov": True, "ns_steps": 5, "eps": 1e-7, "adjust_lr_fn": "spectral_unclamped", "weight_decay": 0.1}]
AMSGRAD = [{"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "amsgrad": True}, {"betas": [0.5, 0.6], "eps": 1e-8, "weight_decay": 0.1, "amsgrad": True}]


def exact(grad, coefficients, steps, eps):
    """_zeropower_via_newtonschulz without its BF16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def run(make, shapes, dtype):
    tensors = [torch.tensor(x, dtype=torch.float32).to(dtype).reshape(s) for x, s in zip(GIVEN["init"], shapes)]
    optimizers, after = make(tensors), []
    for lr, grads in zip(GIVEN["lr"], GIVEN["grads"]):
        for t, g in zip(tensors, grads):
            t.grad = torch.tensor(g, dtype=torch.float32).to(dtype).reshape(t.shape)
        for o in optimizers:
            o.param_groups[0]["lr"] = lr
            o.step()
        after.append([t.flatten().tolist() for t in tensors])
    state = [{k: v.flatten().tolist() for o in optimizers for k, v in o.state.get(t, {}).items() if k != "step"} for t in tensors]
    return after, state


def muon(options):
    rest = {k: v for k, v in options.items() if k != "shape"}
    return lambda t: [torch.optim.Muon([t[1]], **rest), torch.optim.AdamW([t[0]], betas=(0.9, 0.95), eps=1e-8, weight_decay=options["weight_decay"])]


rows = []
for options in MUON:
    shapes = [[7], options["shape"]]
    _muon._zeropower_via_newtonschulz = BF16
    rounded, _ = run(muon(options), shapes, torch.float32)
    _muon._zeropower_via_newtonschulz = exact
    single, state = run(muon(options), shapes, torch.float32)
    double, _ = run(muon(options), shapes, torch.float64)
    rows.append({"name": "Muon", "options": {**options, "betas": [0.9, 0.95]}, "after_bf16": rounded, "after_fp32": single, "after_fp64": double[-1:], "state_fp32": state})
for cls in (torch.optim.AdamW, torch.optim.Adam):
    for options in AMSGRAD:
        make = lambda t: [cls(t, foreach=False, **options)]
        single, state = run(make, [[7], [15]], torch.float32)
        double, _ = run(make, [[7], [15]], torch.float64)
        rows.append({"name": cls.__name__, "options": options, "after_fp32": single, "after_fp64": double[-1:], "state_fp32": state})
print('{"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}")
