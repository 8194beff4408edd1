# covers: collectives kernels/cuda
"""Ranks with a GPU each on a host of several: by NCCL, and by `peer` from GPU to GPU. Two ranks have the same bits by either, more stay near; a killed and a
frozen rank cost a round. With DTRUN_GPU=1 on DTRUN_GPUS real ones (scripts/gpu.py); otherwise on software GPUs, over a fake NCCL.
run: nosan: story_softgpu_sanitized.py is the short form
run: timeout 600
"""

import os
import shutil
import signal

import pytest
import support
import training
from fake_nccl import MODEL, ROWS, STEPS, library

GPU = bool(os.environ.get("DTRUN_GPU"))
TRAIN = os.path.join(support.BIN, "train") if GPU else os.path.join(support.BUILD, "softgpu", "train")
ALL = GPU or bool(os.environ.get("DTRUN_ALL"))
COUNT = int(os.environ.get("DTRUN_GPUS", "1")) if GPU else 4
pytestmark = [pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers"),
              pytest.mark.skipif(COUNT < 2, reason="this machine has one GPU")]
BOUND = {"32-true": 1e-4, "bf16-mixed": 3e-2}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpus")
    job = training.make_job(folder, steps=STEPS, model=MODEL, data={"sequence_length": 32 if ALL else 16},
                            training={"device": "cuda", "warmup_steps": 0, "batch_size_per_gpu": 2, "eval_every_n_steps": 0, "eval_batches": 1},
                            logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 2})
    (folder / "bin").mkdir()
    shutil.copy2(support.program("dtrun"), folder / "bin" / "dtrun")
    shutil.copy2(TRAIN, folder / "bin" / "train")
    return folder, job


def begin(place, out, ranks, row, sets=(), restarts=0, env=None):
    args = [f"--nproc_per_node={ranks}", f"--max_restarts={restarts}", "train", place[1], "--output_dir", out, "--set", f"training.strategy={row}",
            *[x for s in sets for x in ("--set", s)]]
    nccl = {"DTRUN_NCCL": os.environ.get("DTRUN_NCCL")} if GPU else {"SOFTGPU_DEVICES": str(COUNT), "DTRUN_NCCL": library()}
    return support.Job(args, env={"COLUMNS": "500", **nccl, **(env or {})}, executable=str(place[0] / "bin" / "dtrun"))


def finish(started):
    result = started.finish(timeout_s=300)
    started.wait_gone()
    assert result.code == 0, result
    return result


def run(place, out, ranks, row, sets=(), env=None):
    with begin(place, place[0] / out, ranks, row, sets, env=env) as started:
        finish(started)
    return training.hash_of(place[0] / out), training.metrics(place[0] / out)


NCCL, PEER = "training.collectives=nccl", "training.collectives=peer"


def reached(place):
    """Where GPUs cannot read each other's memory there is nothing to compare NCCL with, and `peer` says so."""
    with begin(place, place[0] / "reached", 2, "ddp", [PEER, "training.max_steps=1"]) as started:
        result = started.finish(timeout_s=300)
        started.wait_gone()
    if "use training.collectives=nccl, which has other ways" in result.err:
        pytest.skip("these GPUs do not reach each other's memory")
    assert result.code == 0, result


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_two_ranks_have_the_bits_of_peer(place, precision):
    reached(place)
    sets = [f"training.precision={precision}"]
    rows = ROWS if ALL else ["ddp", "full_shard"] if precision == "32-true" else ["zero2"]
    expected = run(place, f"peer-{precision}", 2, rows[0], [*sets, PEER])
    for row in rows:
        assert run(place, f"{row}-{precision}", 2, row, [*sets, NCCL]) == expected, row


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_all_gpus_stay_near_the_cpu(place, precision):
    """All rows on as many ranks as there are GPUs, eight at most."""
    folder, job = place
    ranks = min(COUNT, 8)
    out = folder / f"cpu-{precision}"
    result = training.train(job, out, ranks=ranks, strategy="ddp", sets=[f"training.precision={precision}", "training.device=cpu"])
    assert result.code == 0, result
    cpu = training.metrics(out)
    rows = [*ROWS, "hybrid_shard"] if ALL else ["zero1", "hybrid_shard"] if precision == "32-true" else ["full_shard"]
    for row in rows if ranks % 2 == 0 else [r for r in rows if r != "hybrid_shard"]:
        sets = [f"fsdp.device_mesh=[2,{ranks // 2}]"] if row == "hybrid_shard" else []
        _, losses = run(place, f"{row}-{ranks}-{precision}", ranks, row, [f"training.precision={precision}", NCCL, *sets])
        assert sorted(losses) == sorted(cpu)
        for step, loss in losses.items():
            assert abs(loss - cpu[step]) <= BOUND[precision], f"{row}, step {step}: {loss}, on the CPU {cpu[step]}"


def test_deterministic_rows_are_the_same_bits(place):
    """By peer, from GPU to GPU."""
    reached(place)
    ranks = 4 if COUNT >= 4 else 2
    rows = ROWS if ALL else ["ddp", "full_shard"]
    seen = {row: run(place, f"deterministic-{row}", ranks, row, ["training.precision=bf16-mixed", "training.deterministic=true"]) for row in rows}
    assert all(seen[row] == seen[rows[0]] for row in rows), seen


@pytest.mark.parametrize("sets, env", [([], {"DTRUN_NCCL_ZERO_CTA": "1"}), (["training.collective_sms=1"], {})])
def test_how_much_of_a_gpu_nccl_takes_changes_little(place, sets, env):
    """Gathers by copy engines move the same bits; room for collectives gives products other plans."""
    hash_, losses = run(place, "plain", 2, "full_shard", [NCCL])
    other_hash, other = run(place, f"other-{len(sets)}", 2, "full_shard", [NCCL, *sets], env)
    assert sets or other_hash == hash_
    assert all(abs(other[step] - losses[step]) <= BOUND["32-true"] for step in losses), (losses, other)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("row", ["ddp", "full_shard"])
def test_a_lost_rank_costs_a_round_and_no_bit(place, row, how):
    """Nobody stays inside NCCL: who is killed is missed at once, who is frozen when the collective is overdue."""
    if not ALL and (row, how) == ("ddp", signal.SIGSTOP):
        pytest.skip("with DTRUN_ALL=1")
    sets = [NCCL, "training.collective_timeout=10"]
    expected, _ = run(place, f"whole-{row}", 2, row, sets)
    out = place[0] / f"lost-{row}-{how}"
    with begin(place, out, 2, row, sets, restarts=2) as started:
        os.kill(training.wait_pages(started, 2, 3)[1].pid, how)
        result = finish(started)
    assert ("SIGKILL" if how == signal.SIGKILL else "no end in 10 s") in result.err, result
    assert training.hash_of(out) == expected and training.restarts_used(out) == 1, result
