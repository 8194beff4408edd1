"""What stories of training over the fake NCCL share: the job, its place, the library."""

import os

import support
import training

TRAIN = os.path.join(support.BUILD, "softgpu", "train")
STEPS = 5
ROWS = ["ddp", "zero1", "zero2", "full_shard", "shard_grad_op"]
MODEL = {"name": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 256}


def library(version="22907"):
    return os.path.join(support.BUILD, "softgpu", "nccl", version, "libnccl.so.2")


def make_place(folder):
    return training.software_gpu_place(folder, steps=STEPS, model=MODEL, data={"sequence_length": 32 if os.environ.get("DTRUN_ALL") else 16},
                                       training={"device": "cuda", "warmup_steps": 0, "batch_size_per_gpu": 2, "eval_every_n_steps": 0, "eval_batches": 1},
                                       logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 2})


def environment(ranks, env=None):
    """A GPU for each of so many ranks of a host."""
    return {"SOFTGPU_DEVICES": str(ranks), "DTRUN_NCCL": library(), "COLUMNS": "500", **(env or {})}
