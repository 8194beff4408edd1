"""Lion's numbers for unit_optimizer: lion.json, from shapes, init, lr and grads of optimizers.json.
PyTorch has no Lion, so this is algorithm 2 of Chen et al., "Symbolic Discovery of Optimization
Algorithms" (2023), in Python's doubles; after_fp32 rounds each weight and momentum to float.
    python3 tests/golden/numbers/make_lion.py >tests/golden/numbers/lion.json
"""

import json
import os
import struct

GIVEN = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.json")))
OPTIONS = [{"betas": [0.9, 0.99], "weight_decay": 0.0}, {"betas": [0.95, 0.98], "weight_decay": 0.3}, {"betas": [0.0, 0.5], "weight_decay": 0.0}]


def to_float(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def run(options, rounded):
    beta1, beta2 = options["betas"]
    weights = [[to_float(x) for x in tensor] for tensor in GIVEN["init"]]
    momentum = [[0.0] * len(tensor) for tensor in weights]
    after = []
    for lr, grads in zip(GIVEN["lr"], GIVEN["grads"]):
        for w, m, grad in zip(weights, momentum, grads):
            for i, g in enumerate(map(to_float, grad)):
                way = beta1 * m[i] + (1 - beta1) * g
                sign = (way > 0) - (way < 0)
                w[i] = rounded(w[i] - lr * (sign + options["weight_decay"] * w[i]))
                m[i] = rounded(beta2 * m[i] + (1 - beta2) * g)
        after.append([list(w) for w in weights])
    return after, momentum


rows = []
for options in OPTIONS:
    single, state = run(options, to_float)
    double, _ = run(options, float)
    rows.append({"name": "Lion", "options": options, "after_fp32": single, "after_fp64": double[-1:], "state_fp32": [{"exp_avg": m} for m in state]})
print('{"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}")
