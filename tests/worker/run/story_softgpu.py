# covers: worker/run worker/engine kernels/cuda collectives/peer.c
"""Training on the software GPU: the worker with all its CUDA code, on a machine without a GPU. Ranks are processes that share one device (training.share_gpu,
collectives by `peer`). All strategies have the same bits per number of ranks, a killed rank and a stop end with the undisturbed hash, and what is wrong with
a GPU is one line. With DTRUN_GPU=1 all of it runs on a real GPU.
run: nosan: story_softgpu_sanitized.py is the short form
run: timeout 600
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import struct
import subprocess
import time

import pytest
import support
import training

GPU = bool(os.environ.get("DTRUN_GPU"))  # a real one
TRAIN = os.path.join(support.BIN, "train") if GPU else os.path.join(support.BUILD, "softgpu", "train")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="built without the CUDA toolkit's headers")
ALL = GPU or bool(os.environ.get("DTRUN_ALL"))
STEPS = 6
LONG = ["training.max_steps=100"] if GPU else []  # where something is to be hit while it trains: steps of a real one take a few milliseconds
MODEL = {"name": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 256}
ROWS = ["ddp", "zero1", "zero2", "full_shard", "shard_grad_op"]
PRECISIONS = ["32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("softgpu")
    job = training.make_job(folder, steps=STEPS, model=MODEL, data={"sequence_length": 32 if ALL else 8},
                            training={"device": "cuda", "share_gpu": True, "warmup_steps": 0, "batch_size_per_gpu": 2, "eval_every_n_steps": 0, "eval_batches": 1},
                            logging={"log_every_n_steps": 1}, checkpointing={"save_every_n_steps": 2})
    (folder / "bin").mkdir()  # `train` is the worker that lies beside dtrun
    shutil.copy2(support.program("dtrun"), folder / "bin" / "dtrun")
    shutil.copy2(TRAIN, folder / "bin" / "train")
    return folder, job


def begin(place, args, env=None):
    return support.Job(args, env=env, executable=str(place[0] / "bin" / "dtrun"))


def command(job, out, ranks, row, sets=(), options=()):
    return [f"--nproc_per_node={ranks}", *options, "train", job, "--output_dir", out, "--set", f"training.strategy={row}",
            *[x for s in sets for x in ("--set", s)]]


def run(place, out, ranks, row, sets=(), options=("--max_restarts=0",), env=None, said=None):
    with begin(place, command(place[1], out, ranks, row, sets, options), env=env) as started:
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 0, result
    if said is not None:
        said.append(result.err)
    return training.hash_of(out), training.metrics(out)


@functools.cache
def undisturbed(place, ranks, row, *sets):
    """Hash and losses without graphs."""
    return run(place, place[0] / f"undisturbed-{ranks}-{row}-{len(sets)}", ranks, row, ["training.cuda_graphs=false", *sets])


def same_bits(place, out, ranks, rows, sets, env=None):
    """Hash and losses of the rows, which must be one."""
    mesh = {"hybrid_shard": ["fsdp.device_mesh=[2,2]"]}
    seen = {row: run(place, place[0] / f"{row}-{out}", ranks, row, [*sets, *mesh.get(row, [])], env=env) for row in rows}
    for row in seen:
        assert seen[row] == seen[rows[0]], f"{row} differs from {rows[0]} on {ranks} ranks: {seen}"
    return seen[rows[0]]


@pytest.mark.parametrize("ranks, precision", [(n, p) for n in (2, 3, 4) for p in PRECISIONS] if ALL else [(2, "32-true"), (3, "bf16-mixed"), (2, "16-mixed"), (2, "16-true")])
def test_all_strategies_are_the_same_bits(place, ranks, precision):
    rows = ROWS if ALL else ["ddp", "full_shard"] if precision.startswith("16") else ["ddp", "zero1", "full_shard"] if ranks == 2 else ["zero2", "shard_grad_op"]
    rows = [*rows, "hybrid_shard"] if ranks == 4 and precision == "32-true" else rows  # its two sums of BF16 round twice
    _, losses = same_bits(place, f"{ranks}-{precision}", ranks, rows, [f"training.precision={precision}"])
    _, cpu = run_on_cpu(place, ranks, rows[0], precision)
    assert sorted(losses) == sorted(cpu)
    bound = {"32-true": 1e-4, "16-mixed": 4e-3, "16-true": 4e-3}.get(precision, 3e-2)
    for step, loss in losses.items():
        assert abs(loss - cpu[step]) <= bound, f"step {step}: {loss}, on the CPU {cpu[step]}"


def test_muon_is_the_same_bits(place):
    """Its products have one shape on any rank, and the losses are those of the CPU."""
    sets = ["optimizer.name=muon", "optimizer.adjust_lr_fn=match_rms_adamw"]
    _, losses = same_bits(place, "muon", 2, ["ddp", "full_shard"], sets)
    out = place[0] / "muon-cpu"
    assert training.train(place[1], out, ranks=2, strategy="ddp", sets=[*sets, "training.device=cpu"]).code == 0
    cpu = training.metrics(out)
    assert sorted(losses) == sorted(cpu) and all(abs(losses[s] - cpu[s]) <= 1e-4 for s in cpu), (losses, cpu)


@pytest.mark.parametrize("ranks, precision", [(2, "32-true"), (2, "bf16-mixed"), (4, "32-true"), (4, "bf16-mixed")] if ALL else [(2, "32-true")])
def test_deterministic_rows_are_the_same_bits(place, tmp_path, ranks, precision):
    """Whatever the plan file says: it is not looked at, and none is written."""
    sets = [f"training.precision={precision}", "training.deterministic=true"]
    env = {"DTRUN_CACHE": str(tmp_path / "plans")}
    expected = same_bits(place, f"deterministic-{ranks}-{precision}", ranks, ROWS if ALL else ["zero1", "full_shard"], sets, env)
    assert not os.path.exists(tmp_path / "plans")
    fast = {**env, "SOFTGPU_LT_FAST": "1"}
    measured = run(place, place[0] / f"measured-{ranks}-{precision}", ranks, "zero1", sets[:1], env=fast)
    assert os.listdir(tmp_path / "plans"), "nothing was measured: this test cannot fail"
    assert GPU or precision != "32-true" or measured != expected, "the fake's algorithms have the same bits: this test cannot fail"
    assert run(place, place[0] / f"again-{ranks}-{precision}", ranks, "zero1", sets, env=fast) == expected


@pytest.mark.parametrize("ranks, rows, sets", [
    (2, ROWS if ALL else ["ddp", "full_shard"], ["training.precision=bf16-mixed"]),
    (3 if ALL else 2, ROWS if ALL else ["zero2"], []),
    (3, ["shard_grad_op"], ["training.precision=bf16-mixed", "training.gradient_accumulation_steps=2", "activation_checkpointing.enabled=true"]),
    (1, ["single_device"], ["training.precision=bf16-mixed"]),
    (1, ["single_device"], ["training.precision=16-mixed", "loss_scaling.initial_scale_power=20"]),
    (1, ["single_device"], ["training.gradient_accumulation_steps=2", "activation_checkpointing.enabled=true", "model.resid_pdrop=0.1"]),
    (1, ["single_device"], ["training.gradient_accumulation_steps=3", "training.precision=bf16-mixed"]),
])
def test_graphs_change_no_bits(place, ranks, rows, sets):
    """With evaluations between and a resume in the middle, whatever the two parts ran with."""
    folder, job = place
    sets = [*sets, "training.eval_every_n_steps=2", "training.lr_scheduler_type=constant"]
    name = f"graphs-{ranks}-{len(sets)}"
    without = run(place, folder / name, ranks, rows[0], [*sets, "training.cuda_graphs=false"])
    for row in rows:
        out = folder / f"{name}-{row}"
        run(place, out, ranks, row, [*sets, "training.cuda_graphs=true", "training.max_steps=4"])
        with_graphs = run(place, out, ranks, row, [*sets, "training.cuda_graphs=true"])
        assert with_graphs == without, f"{row}: {with_graphs}, without graphs {without}"
        assert all("no CUDA graphs" not in (out / "logs" / f"rank-{r}.log").read_text() for r in range(ranks))


@pytest.mark.parametrize("level, graphs", [("block", "true"), ("none", "false")])
def test_activations_on_the_host_change_no_bits(place, level, graphs):
    """They go there and back on streams of their own, also where calls of layers are graphs, over evaluations and a resume."""
    folder, job = place
    sets = ["model.n_layer=6", "activation_checkpointing.enabled=true", f"activation_checkpointing.level={level}", "training.gradient_accumulation_steps=2",
            "training.eval_every_n_steps=2", "training.lr_scheduler_type=constant"]
    rest = [*sets, "offload.activations=cpu", f"training.cuda_graphs={graphs}"]
    for ranks, row in [(1, "single_device"), (2, "full_shard")] if ALL or level == "block" else [(1, "single_device")]:
        without = run(place, folder / f"kept-here-{level}-{ranks}", ranks, row, sets)
        out, said = folder / f"kept-there-{level}-{ranks}", []
        run(place, out, ranks, row, [*rest, "training.max_steps=4"], said=said)
        assert run(place, out, ranks, row, rest) == without, (ranks, row)
        assert said[0].count(" of each rank rest in the host's memory") == 1, said


def test_graphs_are_measured_and_the_faster_way_is_said(place):
    folder, job = place
    sets = ["training.max_steps=30", "model.n_layer=1", "checkpointing.save_every_n_steps=0"]
    without = run(place, folder / "unmeasured", 2, "zero1", [*sets, "training.cuda_graphs=false"])
    said = []
    assert run(place, folder / "measured", 2, "zero1", sets, said=said) == without
    events = [e for e in map(json.loads, open(folder / "measured" / "events.jsonl")) if e["event"] == "cuda_graphs"]
    assert len(events) == 1 and events[0]["step"] == 28 and events[0]["on"] == (events[0]["with_s"] < events[0]["without_s"]), events
    assert said[0].count(f"train: CUDA graphs {'on' if events[0]['on'] else 'off'}: a step takes ") == 1, said


@pytest.mark.skipif(GPU, reason="only the software GPU refuses when it is told to")
@pytest.mark.parametrize("ranks, row", [(2, "full_shard"), (1, "single_device")])
def test_a_rank_without_graphs_is_no_worse(place, ranks, row):
    """One rank's runtime takes nothing down: it says so once, and the job has the same bits."""
    folder, job = place
    said = []
    one = run(place, folder / f"one-of-{ranks}-refuses", ranks, row, ["training.cuda_graphs=true"], env={"SOFTGPU_FAIL": "cudaGraphInstantiate:3:0:0"}, said=said)
    assert one == undisturbed(place, ranks, row)
    assert said[0].count("train: warning: no CUDA graphs: graph: GPU 0 (software GPU, bus 0000:01:00.0): ") == 1, said


def test_products_are_measured_once_for_all_ranks(place):
    """The first start measures and says so; later ones, of any strategy, have its bits, also where another algorithm would be faster now."""
    folder, job = place
    said = []
    cache = {"DTRUN_CACHE": str(folder / "plans")}
    first = run(place, folder / "cold", 2, "ddp", env={**cache, "SOFTGPU_LT_FAST": "1"}, said=said)
    again = run(place, folder / "warm", 2, "full_shard", env={**cache, "SOFTGPU_LT_FAST": "2"}, said=said)
    assert "products measured in" in said[0] and "products measured in" not in said[1], said
    assert first == again
    plans = [name for name in os.listdir(folder / "plans") if name.startswith("matmul-") and name.endswith(".plans")]
    assert len(plans) == 1, plans
    if not GPU:
        other = run(place, folder / "other", 2, "ddp", env={"DTRUN_CACHE": str(folder / "other plans"), "SOFTGPU_LT_FAST": "2"})
        assert other != first, "the fake's algorithms have the same bits: this test cannot fail"


def run_on_cpu(place, ranks, row, precision):
    folder, job = place
    out = folder / f"cpu-{row}-{ranks}-{precision}"
    result = training.train(job, out, ranks=ranks, strategy=row, sets=[f"training.precision={precision}", "training.device=cpu"])
    assert result.code == 0, result
    return training.hash_of(out), training.metrics(out)


@pytest.mark.parametrize("row, sets", [("ddp", []), ("full_shard", []), ("zero2", ["training.precision=bf16-mixed"])])
def test_saves_beside_training_are_the_same_checkpoints(place, row, sets):
    """The thread copies on a stream of its own, slowly: an update that did not wait would be in the checkpoint."""
    folder, _ = place
    there = [folder / f"undisturbed-2-{'zero2' if sets else 'full_shard'}-{len(sets)}", folder / f"beside-{row}-{len(sets)}"]
    expected = undisturbed(place, 2, "zero2" if sets else "full_shard", *sets)
    assert run(place, there[1], 2, row, [*sets, "checkpointing.asynchronous=true"], env={"SOFTGPU_COPY_US": "20000"}) == expected
    hashes = [[training.dtckpt("hash", out / "checkpoints" / f"step-{s:08}")[1].split()[0] for s in (2, 4, 6)] for out in there]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 3, hashes
    with open(there[1] / "events.jsonl") as f:
        saves = [e for e in map(json.loads, f) if e["event"] == "save"]
    assert [e["step"] for e in saves] == [2, 4, 6] and (GPU or min(e["seconds"] for e in saves[:2]) > 0.3), saves


def test_a_checkpoint_of_a_gpu_goes_on_elsewhere(place):
    folder, job = place
    out = folder / "moves"
    run(place, out, 2, "full_shard", ["training.max_steps=2"])
    result = training.train(job, out, ranks=3, strategy="zero1", sets=["training.device=cpu", "training.max_steps=4"])
    assert result.code == 0, result
    _, losses = run(place, out, 1, "ddp")
    assert max(losses) == STEPS


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_rank_ends_with_the_undisturbed_hash(place, ranks):
    folder, job = place
    expected, _ = undisturbed(place, ranks, "full_shard", *LONG)
    out = folder / f"killed-{ranks}"
    with begin(place, command(job, out, ranks, "full_shard", ["training.cuda_graphs=true", *LONG], ("--max_restarts=3",))) as started:
        os.kill(training.wait_pages(started, ranks, 3)[ranks - 1].pid, signal.SIGKILL)
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 0, result
    assert training.hash_of(out) == expected, result
    assert "SIGKILL" in result.err, result


class Bare:
    """Ranks of `train` without an agent, each with a page that nobody writes orders to: what they notice, they notice themselves."""

    def __init__(self, place, args, ranks=2, env=None):
        self.pages, self.processes, self.fds = [], [], []
        self.store = subprocess.Popen([os.path.join(support.BUILD, "tools", "serve_store"), "127.0.0.1", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        port = self.store.stdout.readline().split()[-1].decode()
        for r in range(ranks):
            fd = os.memfd_create("page")
            os.write(fd, struct.pack("QII", 0x3147505444, training.PAGE_VERSION, 1).ljust(training.STEP_AT, b"\0") + struct.pack("q", -1) + bytes(4096 - training.STEP_AT - 8))
            own = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                       DTRUN_PAGE=f"/proc/{os.getpid()}/fd/{fd}", **(env or {}))
            self.fds.append(fd)
            self.processes.append(subprocess.Popen([str(place[0] / "bin" / "train"), *map(str, args)], env=own, stderr=subprocess.PIPE, text=True))
            self.pages.append(training.Page(self.processes[r].pid, fd, r))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in [*self.processes, self.store]:
            p.kill()
            p.communicate()
        for fd in self.fds:
            os.close(fd)


def test_a_lost_rank_is_noticed_while_the_host_is_far_ahead(place):
    """The host sits in a launch, because the queue is full, and the stream waits for a rank that is gone."""
    folder, job = place
    out = folder / "ahead"
    micro_steps = 40  # the queue holds the work of about twelve
    sets = [f"training.gradient_accumulation_steps={micro_steps}", "training.batch_size_per_gpu=1", "training.max_steps=2", "checkpointing.save_every_n_steps=1",
            "training.strategy=full_shard"]
    with Bare(place, [job, "--output_dir", out, *[x for s in sets for x in ("--set", s)]]) as ranks:
        words, log = f"rank 1 is gone: process {ranks.processes[1].pid} has ended", out / "logs" / "rank-0.log"
        lives, lost = ranks.pages
        support.wait_until(lambda: lives.step() == 1, "the first step", 240, 0.001)
        a_step = lives.collective_count()
        support.wait_until(lambda: lives.collective_count() > 1.5 * a_step, "the middle of the second one", step_s=0.001)
        assert lives.step() == lost.step() == 1
        ranks.processes[1].kill()
        begin = time.monotonic()
        with contextlib.suppress(TimeoutError):
            support.wait_until(lambda: words in log.read_text(), "the cause", 10, 0.001)
        noticed = time.monotonic() - begin
        code = ranks.processes[0].wait(support.DEADLINE_S)
    assert code == 111 and words in log.read_text(), (code, log.read_text())
    assert noticed < (5 if GPU else 1), noticed  # 70 ms on two cores with little else to do; a process has ended when the driver has cleared up after it
    assert max(training.metrics(out)) == 1 and [x for x in os.listdir(out / "checkpoints") if x.startswith("step")] == ["step-00000001"]


def wrapped(place, folder, text):
    """As place, with a worker that a shell script starts: "$0.real" "$@" is the real one."""
    shutil.copytree(place[0] / "bin", folder / "bin")
    os.rename(folder / "bin" / "train", folder / "bin" / "train.real")
    support.script(folder / "bin", "train", f"#!/bin/sh\n{text}\n")
    return folder, place[1]


@pytest.mark.skipif(GPU, reason="only the software GPU breaks when it is told to")
@pytest.mark.parametrize("rank, sets", [(0, []), (1, []), (1, ["checkpointing.asynchronous=true"])])
def test_a_gpu_that_breaks_in_a_save_ends_its_rank(place, tmp_path, rank, sets):
    """It is no refusal of the disk: nothing is said of a next try, nothing is listed, and the next round makes up for it."""
    expected, losses = undisturbed(place, 2, "full_shard")
    broken = wrapped(place, tmp_path, f"""case "$*" in *--plan*) ;; *) [ "$RANK" = {rank} ] && mkdir {tmp_path}/once 2>/dev/null && export SOFTGPU_LOST_COPY=2048 ;; esac
exec "$0.real" "$@" """)
    out = tmp_path / "out"
    with begin(broken, command(place[1], out, 2, "full_shard", sets, ("--max_restarts=1",)), env={"COLUMNS": "400"}) as started:
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 0 and training.hash_of(out) == expected and training.metrics(out) == losses, result
    with open(out / "events.jsonl") as f:
        events = [json.loads(line) for line in f]
    assert [e["step"] for e in events if e["event"] == "save" and e["round"] == 1] == [] and "save_failed" not in [e["event"] for e in events], events
    assert "next try" not in result.err, result
    line = [x for x in result.err.splitlines() if f" rank {rank} (local {rank}, pid " in x and "cudaErrorIllegalAddress" in x and "restarting" in x]
    assert len(line) == 1 and "GPU 0 (" in line[0], result


@pytest.mark.skipif(GPU, reason="only the software GPU is late when it is told to be")
def test_a_slow_gpu_is_named_and_who_waits_for_it_is_not(place, tmp_path):
    slow = wrapped(place, tmp_path, """[ "$RANK" = 1 ] && export SOFTGPU_DELAY_US=30000
exec "$0.real" "$@" """)
    out = tmp_path / "out"
    sets = ["model.n_layer=1", "training.batch_size_per_gpu=1", "training.max_steps=54", "checkpointing.save_every_n_steps=0", "logging.log_every_n_steps=54"]
    _, losses = run(slow, out, 2, "ddp", sets)
    assert max(losses) == 54
    with open(out / "events.jsonl") as f:
        events = [json.loads(line) for line in f]
    found = [e for e in events if e["event"] == "slow"]
    assert [(e["rank"], e["phase"]) for e in found] == [(1, "compute")], events
    assert found[0]["communication_s"] < found[0]["compute_s"] / 2, found


def anonymous_kb(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(next(line for line in f if line.startswith("RssAnon")).split()[1])


@pytest.mark.skipif(GPU, reason="the driver's own memory would count")
def test_a_save_takes_no_memory_for_what_lies_on_the_gpu(place, tmp_path):
    """It passes through a window; 7 million weights and their moments are 84 MB."""
    gate, library = training.slow_disk(tmp_path)
    sets = ["model.n_embd=512", "training.batch_size_per_gpu=1", "training.max_steps=1", "training.strategy=ddp"]
    args = [place[1], "--output_dir", tmp_path / "out", *[x for s in sets for x in ("--set", s)]]
    with Bare(place, args, ranks=1, env={"LD_PRELOAD": str(library), "SLOW_DISK": str(gate)}) as alone:
        page, pid = alone.pages[0], alone.processes[0].pid
        support.wait_until(lambda: page.phase() == "backward", "the first backward", step_s=0.001)
        gate.write_text("")
        before = anonymous_kb(pid)
        names = tmp_path / "out" / "checkpoints"
        support.wait_until(lambda: page.phase() == "save" and any(f.stat().st_size > 75e6 for f in names.glob("*tmp*/slices*")), "the save")
        grown = anonymous_kb(pid) - before
        gate.unlink()
        assert alone.processes[0].wait(support.DEADLINE_S) == 0
    assert grown < 30000, grown


def test_a_stop_saves_and_goes_on(place):
    folder, job = place
    expected, _ = undisturbed(place, 2, "zero2", *LONG)
    out = folder / "stopped"
    with begin(place, command(job, out, 2, "zero2", LONG)) as started:
        training.wait_pages(started, 2, 1)
        started.signal(signal.SIGTERM)
        result = started.finish(timeout_s=300)
        started.wait_gone()
    assert result.code == 75, result
    again, _ = run(place, out, 2, "zero2", LONG)
    assert again == expected


@pytest.mark.parametrize("env, sets, words", [
    ({"SOFTGPU_DEVICES": "0"}, [], "no GPU is visible"),
    ({"SOFTGPU_DRIVER": "12080"}, [], "the driver is made for CUDA 12.8"),
    ({"SOFTGPU_MEMORY_MB": "300"}, ["model.n_embd=512", "model.n_layer=12"], "memory of the GPU is"),
    ({"SOFTGPU_DEVICES": "2", "SOFTGPU_PEERS": "0"}, ["training.collectives=peer"], "use training.collectives=nccl, which has other ways"),
    ({}, ["training.share_gpu=false"], "2 ranks on this host and 1 GPU; start fewer (--nproc_per_node=1)"),
])
def test_what_is_wrong_with_a_gpu_is_one_line(place, env, sets, words):
    if GPU:
        pytest.skip("only the software GPU can be told what it is, and has no file in /dev")
    folder, job = place
    with begin(place, command(job, folder / "wrong", 2, "ddp", sets, ("--max_restarts=3",)), env={"COLUMNS": "400", **env}) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    assert result.code == 100, result
    said = [line for line in result.err.splitlines() if "exit code 100" in line and line.startswith("dtrun: ") and "(first seen)" not in line]
    assert len(said) == 1 and words in said[0], result


def test_too_few_gpus_are_said_before_anything_starts(place):
    """As far as variables, and the files of real ones, tell."""
    folder, job = place
    with begin(place, command(job, folder / "few", 2, "ddp", ["training.share_gpu=false"]), env={"CUDA_VISIBLE_DEVICES": "0"}) as started:
        result = started.finish(timeout_s=120)
        started.wait_gone()
    assert result.code == 2 and len(result.err.splitlines()) == 1, result
    assert "2 ranks on this host and 1 GPU visible (CUDA_VISIBLE_DEVICES=0); start fewer (--nproc_per_node=1)" in result.err, result


def test_without_a_driver_it_is_said_and_auto_takes_the_cpu(place):
    folder, job = place
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("a driver is here")
    result = support.run([job, "--output_dir", folder / "none", "--set", "training.max_steps=1"], executable=support.program("train"))
    assert result.code == 100, result
    assert "device cuda" in result.err and len(result.err.splitlines()) == 1, result
    result = support.run([job, "--output_dir", folder / "auto", "--set", "training.max_steps=1", "--set", "training.device=auto"], executable=support.program("train"),
                         env={"DTRUN_DEVICE": None})
    assert result.code == 0, result


def test_timeline(place):
    """Events of the device note the times, also around graphs, and change no bit."""
    timed = run(place, place[0] / "timed", 2, "full_shard", ["logging.timeline_steps=[3,2]", "training.cuda_graphs=true"])
    assert timed == undisturbed(place, 2, "full_shard")
    for rank in range(2):
        training.check_timeline(place[0] / "timed", rank, [3, 4], ["transformer.h.0", "transformer.h.1"])
