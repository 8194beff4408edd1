# covers: worker/run worker/engine kernels/cuda
"""Training on the software GPU in builds with sanitizers, in a short form: the whole step loop on 1 to 4 ranks, over `peer` and over a fake NCCL, a resume after a
killed rank. What a sanitizer finds ends its rank, and there are no restarts. The long forms are story_softgpu.py and story_softgpu_nccl.py.
run: san
run: timeout 400
"""

import os
import signal

import pytest
import support
import training

TRAIN = os.path.join(support.BUILD, "softgpu", "train")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers")
NCCL = os.path.join(support.BUILD, "softgpu", "nccl", "22907", "libnccl.so.2")
MODEL = {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 256}
LIMIT_S = 900


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return training.software_gpu_place(tmp_path_factory.mktemp("sanitized"), steps=2, model=MODEL,
                                       training={"device": "cuda", "warmup_steps": 0, "batch_size_per_gpu": 1, "eval_every_n_steps": 0, "eval_batches": 1},
                                       logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 1})


def begin(place, out, ranks, sets, restarts=0, env=None):
    args = [f"--nproc_per_node={ranks}", f"--max_restarts={restarts}", "train", place[1], "--output_dir", out, *[x for s in sets for x in ("--set", s)]]
    return support.Job(args, env={"COLUMNS": "500", **(env or {})}, executable=str(place[0] / "bin" / "dtrun"))


def run(place, out, ranks, sets, env=None):
    with begin(place, out, ranks, sets, env=env) as started:
        result = started.finish(timeout_s=LIMIT_S)
        started.wait_gone()
    return result


def check(result, out):
    assert result.code == 0, result
    assert sorted(training.metrics(out)) == [1, 2]


@pytest.mark.parametrize("ranks, strategy, precision", [
    (1, "full_shard", "bf16-mixed"), (2, "ddp", "32-true"), (3, "zero2", "bf16-mixed"), (4, "shard_grad_op", "32-true"),
])
def test_over_peer(place, tmp_path, ranks, strategy, precision):
    sets = ["training.share_gpu=true", f"training.strategy={strategy}", f"training.precision={precision}"]
    check(run(place, tmp_path / "out", ranks, sets), tmp_path / "out")


@pytest.mark.parametrize("ranks, sets", [
    (2, ["training.strategy=zero1", "training.precision=bf16-mixed"]), (3, ["training.strategy=full_shard"]),
    (4, ["training.strategy=hybrid_shard", "fsdp.device_mesh=[2,2]"]),
])
def test_over_nccl(place, tmp_path, ranks, sets):
    env = {"SOFTGPU_DEVICES": str(ranks), "DTRUN_NCCL": NCCL}
    check(run(place, tmp_path / "out", ranks, ["training.collectives=nccl", *sets], env), tmp_path / "out")


def test_a_killed_rank_ends_with_the_undisturbed_hash(place, tmp_path):
    sets = ["training.share_gpu=true", "training.strategy=full_shard"]
    check(run(place, tmp_path / "whole", 2, sets), tmp_path / "whole")
    with begin(place, tmp_path / "out", 2, sets, restarts=1) as started:
        page = training.worker_at([started], 1)
        os.kill(page.pid, signal.SIGKILL)
        result = started.finish(timeout_s=LIMIT_S)
        started.wait_gone()
    check(result, tmp_path / "out")
    assert "SIGKILL" in result.err and training.hash_of(tmp_path / "out") == training.hash_of(tmp_path / "whole"), result


@pytest.mark.skipif("thread" not in os.environ.get("SAN", ""), reason="only the thread sanitizer knows of an order")
def test_a_step_loop_that_forgets_its_waits_is_reported(place, tmp_path):
    result = run(place, tmp_path / "out", 1, ["training.strategy=full_shard"], {"SOFTGPU_FORGET_WAITS": "1"})
    assert result.code != 0, result
    assert "ThreadSanitizer: data race" in result.err + (tmp_path / "out" / "logs" / "rank-0.log").read_text(), result
