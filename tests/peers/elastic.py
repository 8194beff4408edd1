"""A PyTorch worker for stories about dtrun as its launcher. elastic.py MODE FOLDER; what it finds goes to FOLDER/said, a line each.

    all      first round: rank 1 dies after an all-reduce; second round: DDP, FSDP2, DCP, monitored_barrier
    error    rank 1 raises inside @record
    watchdog rank 0 lets a timer of torch's own client run out in the first round
    loop     all-reduces until FOLDER/go exists
"""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

MODE, FOLDER = sys.argv[1:3]
RANK, WORLD, RESTART = (int(os.environ[x]) for x in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
LONG = datetime.timedelta(seconds=120)


def say(text):
    with open(os.path.join(FOLDER, "said"), "a") as f:
        f.write(f"{RESTART} {RANK}/{WORLD} {text}\n")


def begin():
    dist.init_process_group("gloo", timeout=LONG)
    assert dist.get_rank() == RANK and dist.get_world_size() == WORLD
    x = torch.full((1000,), float(RANK + 1))
    dist.all_reduce(x)
    assert x[999] == WORLD * (WORLD + 1) / 2


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def losses(m, steps=3):
    """Each rank has its own samples; what comes back is the mean over all of them."""
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + RANK)
        x, y = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
        loss = torch.nn.functional.mse_loss(m(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item() / WORLD)
    return found


def ddp():
    found = losses(torch.nn.parallel.DistributedDataParallel(model()))
    assert found[-1] < found[0]
    say("ddp ok")
    return found


def fsdp2(expected):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    m = model()
    mesh = init_device_mesh("cpu", (WORLD,))
    for part in (m[0], m[2]):
        fully_shard(part, mesh=mesh)
    fully_shard(m, mesh=mesh)
    found = losses(m)
    assert all(abs(a - b) < 1e-5 for a, b in zip(found, expected)), (found, expected)
    say("fsdp2 ok")
    return m


def checkpoint(m):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    state = get_model_state_dict(m)
    kept = {k: v.to_local().clone() for k, v in state.items()}
    dcp.save(state, checkpoint_id=os.path.join(FOLDER, "checkpoint"))
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    state = get_model_state_dict(m)
    dcp.load(state, checkpoint_id=os.path.join(FOLDER, "checkpoint"))
    set_model_state_dict(m, state)
    assert all(torch.equal(v.to_local(), kept[k]) for k, v in get_model_state_dict(m).items())
    say("dcp ok")


def barriers():
    dist.monitored_barrier(timeout=LONG)
    group = dist.new_group(timeout=LONG)
    if RANK == 0:
        try:
            dist.monitored_barrier(group, timeout=datetime.timedelta(seconds=1))
            raise AssertionError("a barrier without rank 1 passed")
        except RuntimeError as e:
            assert "Rank 1 failed to pass monitoredBarrier" in str(e), e
            say("monitored_barrier ok")
    dist.get_default_group_store = getattr(dist.distributed_c10d, "_get_default_store")
    store = dist.get_default_group_store()
    store.set(f"done{RANK}", "1")
    store.wait([f"done{r}" for r in range(WORLD)], LONG)


@record
def main():
    if MODE == "watchdog":
        import torch.distributed.elastic.timer as timer

        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        with timer.expires(after=600, scope="first"):
            pass
        if RANK == 0 and RESTART == 0:
            with timer.expires(after=0.5, scope="too long"):
                time.sleep(600)
        say("watchdog ok")
        return
    begin()
    if MODE == "error":
        if RANK == 1:
            raise ValueError("boom on purpose")
        time.sleep(600)
    elif MODE == "stuck":
        say("stuck")
        if RANK == 1:
            time.sleep(600)
        dist.barrier(group=dist.new_group(timeout=LONG))  # for which Gloo's threads look again and again
    elif MODE == "loop":
        while True:
            go = torch.tensor(float(os.path.exists(os.path.join(FOLDER, "go"))))
            dist.all_reduce(go)
            say(f"round of {WORLD}")
            if go > 0:
                break
            time.sleep(0.1)
    elif RESTART == 0:
        say("first round")
        if RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()  # its peer is gone
        time.sleep(600)
    else:
        checkpoint(fsdp2(ddp()))
        barriers()
    dist.destroy_process_group()


main()
