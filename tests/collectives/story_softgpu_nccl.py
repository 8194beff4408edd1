# covers: collectives kernels/cuda
"""Training over a fake NCCL, a software GPU for each rank: losses stay with the CPU's, two ranks have the bits of `peer`, a killed rank and a hang cost a round and
no bit, and what is wrong with NCCL is one line. Nothing of it shows speed.
run: nosan: story_softgpu_sanitized.py is the short form
run: timeout 600
"""

import json
import os
import signal
import time

import pytest
import support
import training
from fake_nccl import MODEL, ROWS, STEPS, TRAIN, environment, library, make_place

pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers")
ALL = bool(os.environ.get("DTRUN_ALL"))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("nccl"))


def begin(place, args, ranks, env=None):
    return support.Job(args, env=environment(ranks, env), executable=str(place[0] / "bin" / "dtrun"))


def command(job, out, ranks, row, sets=(), options=()):
    return [f"--nproc_per_node={ranks}", *options, "train", job, "--output_dir", out, "--set", f"training.strategy={row}",
            *[x for s in sets for x in ("--set", s)]]


def run(place, out, ranks, row, sets=(), options=("--max_restarts=0",), env=None):
    with begin(place, command(place[1], out, ranks, row, sets, options), ranks, env) as started:
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 0, result
    return training.hash_of(out), training.metrics(out)


def test_what_nccl_takes_with_its_first_collectives_is_in_the_plan(place, tmp_path):
    """It is made before the plan is compared with what is free; without room for it nothing is trained."""
    out, nccl = tmp_path / "run", {"SOFTGPU_NCCL_BUFFERS_MB": "96"}
    run(place, out, 2, "zero1", env=nccl)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    memory = [e for e in events if e["event"] == "memory"]
    assert len(memory) == 1 and memory[0]["measured_bytes"] > 96 << 20, memory
    assert abs(memory[0]["planned_bytes"] / memory[0]["measured_bytes"] - 1) < 0.01, memory
    least = memory[0]["measured_bytes"] >> 20
    roomy = {**nccl, "SOFTGPU_MEMORY_MB": str(least + 48)}  # streams have 32 MiB, and one is open for a moment only
    assert run(place, tmp_path / "room", 2, "zero1", env=roomy)[0] == training.hash_of(out)
    for mb, text in ((str(least + 2), "plan: 1 rank on this GPU needs "), ("90", "NCCL 2.29.7: ")):
        with begin(place, command(place[1], tmp_path / mb, 2, "zero1", (), ("--max_restarts=3",)), 2, {**nccl, "SOFTGPU_MEMORY_MB": mb}) as started:
            result = started.finish(timeout_s=100)
            started.wait_gone()
        assert result.code == 100 or (result.code == 1 and "exit code 100: " in result.err), result
        assert text in result.err and "step 1/" not in result.err, result


def calls(log):
    """How often each of the fake's functions was called, by its log."""
    names = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
    return {name: names.count(name) for name in set(names)}


@pytest.mark.parametrize("ranks", [2, 3, 4] if ALL else [2, 3])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_losses_are_the_cpus(place, ranks, precision):
    folder, job = place
    some = {(2, "32-true"): ["full_shard", "ddp"], (2, "bf16-mixed"): ["zero1"], (3, "32-true"): ["shard_grad_op"], (3, "bf16-mixed"): ["zero2"]}
    rows = ROWS if ALL else some[ranks, precision]
    out = folder / f"cpu-{ranks}-{precision}"
    result = training.train(job, out, ranks=ranks, strategy="ddp", sets=[f"training.precision={precision}", "training.device=cpu"])
    assert result.code == 0, result
    cpu = training.metrics(out)
    bound = 1e-4 if precision == "32-true" else 3e-2
    sets = [f"training.precision={precision}"]
    with_graphs, without = "training.cuda_graphs=true", "training.cuda_graphs=false"
    for row in rows:
        log = folder / f"{row}-{ranks}-{precision}.log"
        hash_, losses = run(place, folder / f"{row}-{ranks}-{precision}", ranks, row, [*sets, with_graphs], env={"SOFTGPU_NCCL_LOG": str(log)})
        assert sorted(losses) == sorted(cpu)
        for step, loss in losses.items():
            assert abs(loss - cpu[step]) <= bound, f"{row}, step {step}: {loss}, on the CPU {cpu[step]}"
        count = calls(log)
        assert count["ncclCommInitRankConfig"] == ranks and count["ncclCommWindowRegister"] >= ranks, count
        assert count["ncclAllReduce"] >= STEPS * ranks, count
        assert count.get("ncclCommSplit", 0) == (ranks if row in ("full_shard", "shard_grad_op") else 0), count  # gathers between reductions
        assert row == "ddp" or min(count["ncclReduceScatter"], count["ncclAllGather"]) >= STEPS * ranks, count
        if ranks == 2:  # whatever the order, a sum of two has the same bits
            assert run(place, folder / f"peer-{row}-{ranks}-{precision}", ranks, row, [*sets, without, "training.collectives=peer"]) == (hash_, losses)


def test_groups_of_a_hybrid(place):
    folder, job = place
    log = folder / "hybrid.log"
    sets = ["fsdp.device_mesh=[2,2]"]
    hash_, losses = run(place, folder / "hybrid", 4, "hybrid_shard", sets, env={"SOFTGPU_NCCL_LOG": str(log)})
    assert calls(log)["ncclCommSplit"] == 3 * 4, calls(log)  # shard, replica, gather
    log = folder / "hybrid-copies.log"
    copies = run(place, folder / "hybrid-copies", 4, "hybrid_shard", sets, env={"SOFTGPU_NCCL_LOG": str(log), "DTRUN_NCCL_ZERO_CTA": "1"})
    assert copies == (hash_, losses)
    assert calls(log)["ncclCommSplit"] == 4 * 4 + 3 * 4, calls(log)  # and one for copies of each and of the world
    old, old_losses = run(place, folder / "hybrid-old", 4, "hybrid_shard", sets, env={"DTRUN_NCCL": library("21700")})
    assert (old, old_losses) == (hash_, losses)
    assert run(place, folder / "hybrid-peer", 4, "hybrid_shard", [*sets, "training.collectives=peer"]) == (hash_, losses)  # sums of two, twice


def overtaken(events, rank):
    """How many gathers of the rank came through while one of its reductions was on the device."""
    count, reducing = 0, False
    for line in events.read_text().splitlines():
        what, name, _, of = line.split()
        if int(of) != rank:
            continue
        if name == "ncclReduceScatter":
            reducing = what == "begin"
        elif name == "ncclAllGather":
            count += what == "end" and reducing
    return count


@pytest.mark.parametrize("ranks, row, sets, env, apart", [
    (2, "full_shard", [], {}, True),
    (2, "full_shard", [], {"DTRUN_NCCL_ZERO_CTA": "1"}, True),
    (3, "shard_grad_op", ["training.gradient_accumulation_steps=2"], {}, True),
    (2, "full_shard", [], {"SOFTGPU_NCCL_VERSION": "22509"}, False),
    (2, "full_shard", [], {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, False),
])
def test_a_late_reduction_holds_up_no_gather(place, tmp_path, ranks, row, sets, env, apart):
    """Where NCCL begins what two communicators do in the order in which the host asks for it; otherwise they are not safe beside each other. No bit changes."""
    sets = ["training.max_steps=2", "model.n_layer=4", *sets]
    whole = run(place, tmp_path / "whole", ranks, row, sets, env={"NCCL_LAUNCH_ORDER_IMPLICIT": "0"})
    events = tmp_path / "events"
    assert run(place, tmp_path / "late", ranks, row, sets, env={"SOFTGPU_NCCL_EVENTS": str(events), "SOFTGPU_NCCL_FAULT": "late-sums@0", **env}) == whole
    assert (overtaken(events, 0) > 0) == apart, events.read_text()


def told(log):
    """What multiprocessors products of layers' forward and backward and of the head were told of (0: all), by the log of the fake cublasLt. The head has the vocabulary
    as a side; of a layer's products those of forward turn neither operand."""
    out = {"forward": set(), "backward": set(), "head": set()}
    for line in log.read_text().splitlines():
        _, turned, m, n, k, _, sms = line.split()
        head = str(MODEL["vocab_size"]) in (m, n, k)
        out["head" if head else "forward" if turned == "NN" else "backward"].add(int(sms))
    return out


AGAIN = "activation_checkpointing.enabled=true"


@pytest.mark.parametrize("ranks, row, sets, env, forward, backward, head", [
    (2, "ddp", ["training.collective_sms=1", AGAIN], {}, {0}, {3}, {0}),
    (2, "zero1", ["training.collective_sms=1", "training.precision=bf16-mixed"], {}, {3, 0}, {3}, {0}),  # 0: in the evaluation
    (2, "full_shard", ["training.collective_sms=1", AGAIN], {}, {3}, {2}, {3}),  # gathers, in backward beside reductions
    (2, "full_shard", ["training.collective_sms=3", AGAIN], {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}, {1}, {1}, {1}),  # one at a time
    (2, "full_shard", ["training.collective_sms=1", AGAIN], {"DTRUN_NCCL_ZERO_CTA": "1"}, {0}, {3}, {0}),
    (2, "full_shard", ["training.collective_sms=4"], {}, {0}, {0}, {0}),  # all that there are
    (2, "full_shard", [], {}, {0}, {0}, {0}),
    (2, "full_shard", ["training.collective_sms=1", "training.deterministic=true"], {}, {0}, {0}, {0}),  # by peer
    (1, "ddp", ["training.collective_sms=1"], {}, {0}, {0}, {0}),
])
def test_products_leave_room_for_collectives(place, tmp_path, ranks, row, sets, env, forward, backward, head):
    """Measured and run; by a second start, which measures nothing, with the same bits."""
    log = tmp_path / "products.log"
    env = {"SOFTGPU_LT_LOG": str(log), "SOFTGPU_SM": "4", "DTRUN_CACHE": str(tmp_path / "cache"), **env}
    results = []
    for out in (tmp_path / "out", tmp_path / "again"):
        results.append(run(place, out, ranks, row, ["training.max_steps=2", *sets], env=env))
        assert told(log) == {"forward": forward, "backward": backward, "head": head}
        log.unlink()
    assert results[0] == results[1]


def test_micro_steps_that_reduce_nothing_have_all_multiprocessors(place, tmp_path):
    """Layer by layer as a graph, too: the first run makes one algorithm the plan where nothing is left to others, the second another one where something is."""
    log = tmp_path / "products.log"
    env = {"SOFTGPU_LT_LOG": str(log), "SOFTGPU_SM": "4", "DTRUN_CACHE": str(tmp_path / "cache")}
    hashes = []
    for fast, sms, graphs in (("1", 0, "false"), ("2", 1, "false"), ("2", 1, "true")):
        sets = ["training.max_steps=3", "training.gradient_accumulation_steps=3", f"training.collective_sms={sms}", f"training.cuda_graphs={graphs}"]
        hashes.append(run(place, tmp_path / f"{sms}-{graphs}", 2, "ddp", sets, env={**env, "SOFTGPU_LT_FAST": fast})[0])
        assert told(log) == {"forward": {0}, "backward": {0, 3} if sms else {0}, "head": {0}}
        log.unlink()
    assert hashes[1] == hashes[2] and hashes[0] != hashes[1]


def disturb(place, out, ranks, row, act, env=None, sets=()):
    """Runs a job; act(pages) when all ranks are at step 3. Its result."""
    with begin(place, command(place[1], out, ranks, row, sets, ("--max_restarts=3",)), ranks, env) as started:
        act(training.wait_pages(started, ranks, 3))
        result = started.finish(timeout_s=300)
        started.wait_gone()
    return result


@pytest.mark.parametrize("ranks, victim, version", [(2, 0, "22907"), (3, 2, "21700")])
def test_a_killed_rank_ends_with_the_undisturbed_hash(place, ranks, victim, version):
    folder, job = place
    env = {"DTRUN_NCCL": library(version)}
    expected, _ = run(place, folder / f"whole-{ranks}", ranks, "full_shard", env=env)
    out = folder / f"killed-{ranks}"
    begin_s = time.monotonic()
    result = disturb(place, out, ranks, "full_shard", lambda pages: os.kill(pages[victim].pid, signal.SIGKILL), env)
    assert result.code == 0, result
    assert training.hash_of(out) == expected, result
    assert "SIGKILL" in result.err, result
    assert time.monotonic() - begin_s < 120


def test_a_hang_is_named_and_costs_a_round(place):
    folder, job = place
    expected, _ = run(place, folder / "unhung", 2, "zero2")
    out = folder / "hung"
    with begin(place, command(job, out, 2, "zero2", ["training.collective_timeout=2"], ("--max_restarts=1",)), 2,
               {"SOFTGPU_NCCL_FAULT": "hang@1:30", "SOFTGPU_NCCL_FAULT_RESTART": "0"}) as started:
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 0, result
    assert "no end in 2 s" in result.err and "(number " in result.err, result
    assert training.hash_of(out) == expected, result


@pytest.mark.parametrize("env, sets, code, words", [
    ({"DTRUN_NCCL": "/nonexistent/libnccl.so.2"}, ["training.collectives=nccl"], 100, "NCCL: DTRUN_NCCL=/nonexistent/libnccl.so.2: "),
    ({"DTRUN_NCCL": "OLD"}, ["training.collectives=nccl"], 100, "NCCL 2.12.0 ("),
    ({"SOFTGPU_NCCL_VERSION": "22907,22703"}, [], 100, "rank 0 has NCCL 2.29.7 ("),
    ({"SOFTGPU_NCCL_FAULT": "init-error@1"}, [], 111, "rank 1: NCCL 2.29.7: ncclCommInitRankConfig: unhandled system error"),
    ({"SOFTGPU_NCCL_FAULT": "error@1:3"}, [], 111, "remote process exited or there was a network error"),
    ({"SOFTGPU_NCCL_FAULT": "no-memory@1"}, [], None, "rank 1: NCCL 2.29.7: ncclMemAlloc of "),
    ({}, ["training.collectives=nccl", "training.deterministic=true"], 100, "training.deterministic: NCCL, which GPUs with training.collectives=nccl use"),
    ({"SOFTGPU_DEVICES": "1"}, ["training.collectives=nccl", "training.share_gpu=true"], 100, "nccl needs a GPU for each rank, and ranks 0 and 1 share one (bus 0000:01:00.0)"),
])
def test_what_is_wrong_is_one_line(place, env, sets, code, words):
    folder, job = place
    env = {k: library("21200") if v == "OLD" else v for k, v in env.items()}
    with begin(place, command(job, folder / "wrong", 2, "ddp", sets, ("--max_restarts=0",)), 2, env) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    assert result.code in ((1, code) if code == 111 else (code,) if code else (1, 100, 111)), result
    said = [line for line in result.err.splitlines() if line.startswith("dtrun: ") and words in line and "(first seen)" not in line]
    assert len(said) == 1, result


@pytest.mark.parametrize("env, sets, words", [
    ({"DTRUN_NCCL": "/nonexistent/libnccl.so.2"}, [], "DTRUN_NCCL=/nonexistent/libnccl.so.2: "),
    ({}, ["training.deterministic=true"], None),
    ({"SOFTGPU_DEVICES": "1"}, ["training.share_gpu=true"], None),
])
def test_auto_takes_peer_on_one_host(place, tmp_path, env, sets, words):
    """Where NCCL is not here, which is said once; where its order of sums is not wanted; where it would refuse ranks that share a GPU."""
    log = tmp_path / "peer.log"
    with begin(place, command(place[1], tmp_path / "out", 2, "ddp", ["training.max_steps=1", *sets]), 2, {"SOFTGPU_NCCL_LOG": str(log), **env}) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    assert result.code == 0, result
    said = [line for line in (result.err + result.out).splitlines() if "(training.collectives=peer)" in line]
    assert len(said) == (words is not None) and (words is None or words in said[0]), result
    assert not log.exists()


VIRTUAL = ("--max_restarts=0", "--virtual_local_rank")


def test_ranks_that_see_one_gpu_each_have_nccl(place, tmp_path):
    """Each sees its own as GPU 0 of one: the number says nothing, the UUID does."""
    whole = run(place, tmp_path / "whole", 2, "ddp", ["training.max_steps=2"])
    log = tmp_path / "own.log"
    own = run(place, tmp_path / "own", 2, "ddp", ["training.max_steps=2"], VIRTUAL, {"CUDA_VISIBLE_DEVICES": "1,0", "SOFTGPU_NCCL_LOG": str(log)})
    assert own == whole and calls(log)["ncclCommInitRankConfig"] == 2


@pytest.mark.parametrize("gpus, sets, words", [
    ("0,1", ["training.collectives=peer"], " does not see the GPU of rank "),
    ("0,1", ["training.deterministic=true"], " does not see the GPU of rank "),
    ("1,1", [], "training.device: ranks 0 and 1 compute on one GPU (bus 0000:02:00.0); give each its own (CUDA_VISIBLE_DEVICES, --nproc_per_node)"),
    ("1,1", ["training.share_gpu=true"], None),
])
def test_lists_of_one_gpu(place, tmp_path, gpus, sets, words):
    log = tmp_path / "log"
    args = command(place[1], tmp_path / "out", 2, "ddp", ["training.max_steps=1", *sets], VIRTUAL)
    with begin(place, args, 2, {"CUDA_VISIBLE_DEVICES": gpus, "SOFTGPU_NCCL_LOG": str(log)}) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    said = [line for line in result.err.splitlines() if words is not None and line.startswith("dtrun: ") and words in line and "(first seen)" not in line]
    assert result.code == (100 if words is not None else 0) and len(said) == (words is not None) and not log.exists(), result
