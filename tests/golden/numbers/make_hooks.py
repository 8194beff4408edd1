"""Writes hooks.json: what PyTorch's DDP makes of gradients with its communication hooks, on 2 and 3 ranks
(gloo). Gradients and PowerSGD's first matrices are the ratios below, the same in unit_hooks.c.

    ~/.cache/dtrun/peers/bin/python tests/golden/numbers/make_hooks.py >tests/golden/numbers/hooks.json
"""
import json, os, socket, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

SHAPES = [(12, 8), (16,), (6, 10), (3, 4), (5, 4, 3)]
STEPS, BEGINS = 6, 2


def ratio(i, tensor, step, rank):
    return ((i * i * 127 + i * 7919 + tensor * 15487 + step * 104729 + rank * 1299709) % 2003 - 1001) / 1001


def values(shape, tensor, step, rank):
    count = 1
    for n in shape:
        count *= n
    return torch.tensor([ratio(i, tensor, step, rank) for i in range(count)], dtype=torch.float64).float().view(shape)


class Given(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(s)) for s in SHAPES)

    def forward(self, step, rank):
        return sum((w * values(w.shape, t, step, rank)).sum() for t, w in enumerate(self.w))


def first_q(*shape, **options):
    """Of the one matrix (m, r) of that shape."""
    batch, m, r = shape
    assert batch == 1
    return values((1, m, r), m, 99, 0)


def train(case, rank):
    """The gradients that each step leaves, as lists."""
    model = torch.nn.parallel.DistributedDataParallel(Given(), bucket_cap_mb=100)
    if isinstance(case, str):
        model.register_comm_hook(None, getattr(default_hooks, case + "_compress_hook"))
    else:
        approximation, rate, feedback, warm = case
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=BEGINS, matrix_approximation_rank=approximation,
                                            min_compression_rate=rate, use_error_feedback=feedback, warm_start=warm)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    steps = []
    for step in range(STEPS):
        model.zero_grad()
        model(step, rank).backward()
        steps.append([[float(f"{x:.9g}") for x in w.grad.flatten().tolist()] for w in model.module.w])
    return steps


CASES = {"fp16": "fp16", "bf16": "bf16", "rank 1": (1, 1.2, True, True), "rank 2": (2, 1, True, True),
         "no feedback": (2, 1, False, True), "cold": (2, 1, True, False), "rank 3": (3, 0.8, True, True)}


def run(rank, size, port, out):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    torch.randn = first_q
    result = []
    for name, case in CASES.items():
        fields = {"name": name, "ranks": size}
        if not isinstance(case, str):
            fields |= dict(zip(("rank", "rate", "feedback", "warm"), case))
        result.append(fields | {"steps": train(case, rank)})
    if rank == 0:
        json.dump(result, open(out, "w"))
    dist.destroy_process_group()


def main():
    result = []
    for size in (2, 3):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        out = f"/tmp/hooks-{os.getpid()}.json"
        mp.spawn(run, (size, port, out), size)
        result += json.load(open(out))
        os.remove(out)
    print('{"torch": "%s", "cases": [' % torch.__version__)
    print(",\n".join(json.dumps(r, separators=(",", ":")) for r in result))
    print("]}")


if __name__ == "__main__":
    main()
