# covers: worker/run worker/engine kernels/cuda
"""What the loop of steps leaves alone: a run of twice the steps makes no more memory, events, descriptors or graphs, asks the device about nothing more, waits
for no stream, and looks at no variable more often. On the software GPU, which writes down who does; ranks by `peer` and by a fake NCCL.
run: nosan: what is called is the same in all builds
run: timeout 600
"""

import collections
import os
import subprocess

import pytest
import support
import training
from fake_nccl import MODEL, TRAIN, environment, make_place

pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers")
FEW, MANY = 12, 24

# Writes down each name that a program asks getenv for, but for those that the software GPU and the fake NCCL ask for themselves.
ASKED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *getenv(const char *name)
{
    const char *path = secure_getenv("ASKED_FILE");
    static const char *const fakes[] = {"LOCAL_RANK", "RANK", "TORCHELASTIC_RESTART_COUNT"};
    int fake = strncmp(name, "SOFTGPU_", 8) == 0;
    for (size_t i = 0; i < sizeof fakes / sizeof fakes[0]; i++) {
        fake = fake || strcmp(name, fakes[i]) == 0;
    }
    if (path != NULL && !fake) {
        char line[200];
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), size = snprintf(line, sizeof line, "getenv %.150s\n", name);
        if (fd < 0 || write(fd, line, size) != size) {
            abort();
        }
        close(fd);
    }
    return ((char *(*)(const char *))dlsym(RTLD_NEXT, "getenv"))(name);
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop")
    (folder / "asked.c").write_text(ASKED)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "asked.so", folder / "asked.c", "-ldl"], check=True)
    folder, job = make_place(folder)
    os.rename(folder / "bin" / "train", folder / "bin" / "train.real")  # the worker alone is watched
    support.script(folder / "bin", "train", f'#!/bin/sh\nLD_PRELOAD={folder}/asked.so exec "$0.real" "$@"\n')
    return folder, job


def run(place, out, ranks, steps, sets):
    """How often each name was called by all ranks of a run."""
    folder, job = place
    said, nccl = folder / f"{out}.calls", folder / f"{out}.nccl"
    sets = [f"training.max_steps={steps}", "training.eval_every_n_steps=0", "checkpointing.save_every_n_steps=0", "logging.log_every_n_steps=1000", *sets]
    args = [f"--nproc_per_node={ranks}", "--max_restarts=0", "train", job, "--output_dir", folder / out, *[x for s in sets for x in ("--set", s)]]
    env = environment(ranks, {"SOFTGPU_SETUPS": str(said), "ASKED_FILE": str(said), "SOFTGPU_NCCL_LOG": str(nccl), "DTRUN_CACHE": str(folder / "cache")})
    with support.Job(args, env=env, executable=str(folder / "bin" / "dtrun")) as started:
        result = started.finish(timeout_s=100)
        started.wait_gone()
    assert result.code == 0, result
    assert max(training.metrics(folder / out)) == steps
    count = collections.Counter(said.read_text().splitlines())
    if nccl.exists():
        count.update(line.split()[0] for line in nccl.read_text().splitlines() if line.split()[0] not in LOOP_OF_NCCL)
    return count


LOOP_OF_NCCL = ("ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclCommGetAsyncError")


@pytest.mark.parametrize("ranks, sets", [
    (1, ["training.strategy=single_device", "training.precision=bf16-mixed", "training.cuda_graphs=true"]),
    (2, ["training.strategy=full_shard", "training.precision=bf16-mixed", "training.collectives=peer", "training.cuda_graphs=true"]),
    (2, ["training.strategy=ddp", "training.gradient_accumulation_steps=2", "training.collectives=peer", "training.cuda_graphs=false"]),
    (2, ["training.strategy=zero1", "training.precision=bf16-mixed", "training.collectives=nccl", "training.cuda_graphs=false"]),
    (2, ["training.strategy=full_shard", "training.collectives=nccl", "training.collective_sms=1", "training.cuda_graphs=true"]),
])
def test_more_steps_make_nothing_more(place, ranks, sets):
    name = "-".join(s.split("=")[1] for s in sets)
    run(place, f"{name}-plans", ranks, 1, sets)  # products are measured
    few, many = (run(place, f"{name}-{steps}", ranks, steps, sets) for steps in (FEW, MANY))
    assert few["cudaMalloc"] > 0 and few["cublasLtMatmulDescCreate"] > 0 and any(x.startswith("getenv ") for x in few), few  # or all of this is deaf
    more = {x: (few[x], many[x]) for x in few | many if few[x] != many[x]}
    assert not more, f"calls of {FEW} and {MANY} steps: {more}"


@pytest.mark.parametrize("sets, graphs", [
    (["training.cuda_graphs=layers"], MODEL["n_layer"] * 2),
    ([], 2),  # batches lie in two places by turns
    (["training.gradient_accumulation_steps=2"], 4),
    (["training.gradient_accumulation_steps=3"], MODEL["n_layer"] * 3),  # forward, backward that overwrites or adds
])
def test_a_micro_step_of_one_rank_is_a_graph(place, sets, graphs):
    count = run(place, f"graphs-{graphs}-{len(sets)}", 1, 8, ["training.cuda_graphs=true", *sets])
    assert count["cudaGraphInstantiate"] == graphs, count


def test_memory_is_asked_for_in_a_few_logged_steps(place):
    """The driver takes a lock for it: the first four, then every tenth; and once for the event "memory"."""
    few, many = (run(place, f"memory-{steps}", 1, steps, ["logging.log_every_n_steps=1"])["cudaMemGetInfo"] for steps in (2, MANY))
    assert many - few == 2 + (MANY - 4) // 10 + 1, (few, many)
