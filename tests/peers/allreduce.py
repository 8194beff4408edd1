#!/usr/bin/env python3
"""gloo's all_reduce between two processes over loopback, for `bench collectives --peer`, which starts this.

Each line on stdin is `BYTES TIMES`; the answer is the mean seconds of TIMES sums of fp32 in place, of the slower rank.
"""
import os, socket, sys, time

import torch
import torch.distributed as dist


def main(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    order = torch.zeros(2, dtype=torch.int64)
    while True:
        if rank == 0:
            line = sys.stdin.readline().split()
            order[0], order[1] = (int(line[0]), int(line[1])) if line else (0, 0)
        dist.broadcast(order, 0)
        size, times = order.tolist()
        if times == 0:
            break
        x = torch.full((size // 4,), 2.0**-70)
        dist.all_reduce(x)  # connections and buffers
        dist.barrier()
        began = time.monotonic()
        for _ in range(times):
            dist.all_reduce(x)
        mean = torch.tensor([(time.monotonic() - began) / times], dtype=torch.float64)
        dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(f"{mean.item():.9f}", flush=True)
    dist.destroy_process_group()


with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    free = s.getsockname()[1]
child = os.fork()
main(1 if child == 0 else 0, free)
if child != 0:
    os.waitpid(child, 0)
