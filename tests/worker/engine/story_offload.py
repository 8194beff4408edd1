# covers: worker/engine/homes worker/engine/trainer_activations.c worker/job/job_offload.c
"""State and activations that rest in files or in the host's memory: the bits of a run without it, for the keys of this job, DeepSpeed's, FSDP's and
Lightning's; checkpoints on other numbers of ranks; a kill in the middle of a step; folders that are full, gone or not there; what a plan counts.
run: timeout 300
"""

import json
import os
import signal
import subprocess
import time

import pytest
import support
import training

STEPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offload")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    job = training.make_job(folder, steps=STEPS, training={"max_grad_norm": 0.5, "warmup_steps": 1}, logging={"log_every_n_steps": 1},
                            checkpointing={"save_every_n_steps": 4})
    return folder, job


def nvme(folder, *more):
    return [f'offload.nvme_path=["{folder}/a", "{folder}/b"]', "offload.optimizer=nvme", "offload.portion=4096", *more]


def finished(job, out, ranks, row, sets=(), **keys):
    result = training.train(job, out, ranks=ranks, strategy=row, sets=sets, **keys)
    assert result.code == 0, result
    return training.hash_of(out), training.metrics(out)


def left(folder):
    return os.listdir(folder / "a") + os.listdir(folder / "b")


def test_the_bits_of_a_run_without(place):
    folder, job = place
    plain = {n: finished(job, folder / f"plain-{n}", n, "zero2") for n in (1, 3)}
    for n, row, sets in [(1, "zero1", nvme(folder)), (3, "zero2", nvme(folder, "offload.engine=threads")),
                         (3, "full_shard", nvme(folder, "offload.parameters=nvme", "offload.ratio=0.5")),
                         (1, "zero3", nvme(folder, "offload.parameters=nvme", "offload.pipeline_read=false", "offload.pipeline_write=false"))]:
        out = folder / f"nvme-{row}-{n}"
        assert finished(job, out, n, row, sets) == plain[n], (n, row)
        assert left(folder) == []


def test_other_systems_keys(place):
    """DeepSpeed's blocks in a file of theirs, FSDP's key, names of strategies: each means keys of the section offload."""
    folder, job = place
    plain = finished(job, folder / "theirs-plain", 2, "zero3")
    block = {"device": "nvme", "nvme_path": f"{folder}/a", "pin_memory": True, "buffer_count": 4}
    stage = {"stage": 3, "offload_optimizer": {**block, "fast_init": False, "pipeline_read": True, "pipeline_write": True},
             "offload_param": {**block, "buffer_size": 100000000, "max_in_cpu": 1000000000}}
    aio = {"block_size": 131072, "queue_depth": 16, "intra_op_parallelism": 2, "single_submit": True, "overlap_events": False, "use_gds": False}
    (folder / "ds.json").write_text(json.dumps({"zero_optimization": stage, "aio": aio}))
    theirs = training.make_job(folder, "theirs.json", steps=STEPS, training={"max_grad_norm": 0.5, "warmup_steps": 1},
                               logging={"log_every_n_steps": 1}, deepspeed=f"{folder}/ds.json")
    assert finished(theirs, folder / "theirs", 2, None) == plain
    with open(folder / "theirs" / "job.json") as f:
        kept = json.load(f)["offload"]
    assert (kept["optimizer"], kept["parameters"], kept["queue_depth"], kept["single_submit"]) == ("nvme", "nvme", 16, True), kept
    assert finished(job, folder / "named", 2, "deepspeed_stage_3_offload_nvme", [f"offload.nvme_path={folder}/b"]) == plain
    result = training.train(job, folder / "cpu", ranks=2, strategy="fsdp_cpu_offload")
    assert result.code == 0 and (training.hash_of(folder / "cpu"), training.metrics(folder / "cpu")) == plain, result
    assert (result.out + result.err).count("computes in the host's memory, so nothing moves for cpu") == 1, result
    for change, says in [({"use_gds": True}, "aio.use_gds: is true: files are read through the host's memory; write false")]:
        (folder / "ds.json").write_text(json.dumps({"zero_optimization": stage, "aio": {**aio, **change}}))
        refused = training.train(theirs, folder / "theirs", ranks=2)
        assert refused.code == 100 or refused.code == 2, refused
        assert says in refused.out + refused.err, refused


@pytest.mark.parametrize("row,sets,says", [
    ("ddp", ["offload.optimizer=cpu"], "offload.optimizer: training.strategy ddp keeps everything whole on each rank; write zero1"),
    ("zero2", ["offload.parameters=cpu"], "offload.parameters: training.strategy zero2 keeps whole weights on each rank; write zero3"),
    ("zero1", ["offload.optimizer=cpu", "offload.ratio=0.5"], "offload.ratio: only strategies that slice weights"),
    ("zero3", ["offload.optimizer=nvme"], "offload.nvme_path: is missing"),
    ("ddp", ["offload.activations=nvme"], "offload.nvme_path: is missing"),
    ("ddp", ["offload.activations=disk"], "offload.activations: is \"disk\"; give one of: none, cpu, nvme"),
    ("zero3", ["offload.block_size=5000"], "offload.block_size: is no multiple of 4096; write 4096"),
    ("zero3", ["offload.optimizer=nvme", "offload.nvme_path=/nowhere"], "offload.nvme_path: /nowhere: there is no such folder"),
])
def test_refused_in_one_line(place, row, sets, says):
    folder, job = place
    result = training.train(job, folder / "refused", ranks=2, strategy=row, sets=sets)
    assert result.code in (2, 100), result
    assert says in result.out + result.err, result


def test_on_other_ranks_and_without(place):
    """Files on 3 ranks, then none on 2, then files on one: the state came along, so the losses are those of one kind."""
    folder, job = place
    out, sets = folder / "goes-on", ["training.lr_scheduler_type=constant_with_warmup", "data.shuffle=false"]
    _, whole = finished(job, folder / "stays", 1, "zero3", [*sets, "training.batch_size_per_gpu=6"])
    finished(job, out, 3, "zero3", [*sets, *nvme(folder, "offload.parameters=nvme"), "training.batch_size_per_gpu=2", "training.max_steps=4"])
    finished(job, out, 2, "zero2", [*sets, "training.batch_size_per_gpu=3", "training.max_steps=8"])
    _, parts = finished(job, out, 1, "zero1", [*sets, *nvme(folder), "training.batch_size_per_gpu=6"])
    assert sorted(parts) == sorted(whole)
    for step, loss in whole.items():
        assert abs(parts[step] - loss) < 2e-4, (step, parts, whole)


def test_killed_in_a_step(place):
    """kill -9 of a rank, several times: nothing is left in the folders, and the job ends with the hash of an undisturbed run."""
    folder, job = place
    more = ["training.max_steps=150", "checkpointing.save_every_n_steps=5"]
    plain = finished(job, folder / "kill-plain", 2, "zero2", more)
    args = ["--nproc_per_node=2", "--max_restarts=5", "train", job, "--output_dir", str(folder / "kill"), "--mode", "zero2"]
    for s in [*more, *nvme(folder, "offload.activations=nvme")]:
        args += ["--set", s]
    with support.Job(args) as run:
        run.agent_pid = run.agent
        for wanted in (8, 40):
            pages = {}
            deadline = time.monotonic() + support.DEADLINE_S
            while time.monotonic() < deadline and run.process.poll() is None:
                pages = training.pages(run, 2)
                if pages and any(p.step() >= wanted and p.phase() in ("forward", "backward", "collective") for p in pages.values()):
                    break
            assert pages and run.process.poll() is None
            os.kill(pages[1].pid, signal.SIGKILL)
            time.sleep(0.05)
        result = run.finish()
    assert result.code == 0, result
    assert training.restarts_used(folder / "kill") >= 1
    assert training.hash_of(folder / "kill") == plain[0]
    assert left(folder) == []


def test_a_full_disk_is_said_before_the_first_step(place):
    folder, job = place
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    out = folder / "full"
    script = (f"mount -t tmpfs -o size=64k none {folder}/b && exec {support.program('dtrun')} --nproc_per_node=2 train {job} --output_dir {out} "
              f"--mode zero2 --set 'offload.nvme_path={folder}/b' --set offload.optimizer=nvme")
    result = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=support.DEADLINE_S)
    if "unshare" in result.stderr and "not permitted" in result.stderr:
        pytest.skip("no mount namespace")
    text = result.stdout + result.stderr
    assert result.returncode not in (0, None), text
    assert f"offload.nvme_path: {folder}/b: the files of 2 ranks need" in text and "are free; make room" in text, text
    assert not os.path.exists(out / "metrics.jsonl") or training.metrics(out) == {}, text


def test_the_plan(place):
    folder, job = place

    def plan(*sets):
        args = [support.program("train"), job, "--plan", "--json", "--nproc", "3", *(w for s in sets for w in ("--set", s))]
        done = subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert done.returncode == 0, done
        return json.loads(done.stdout.strip().splitlines()[-1])

    without, files = plan("training.strategy=zero3"), plan("training.strategy=zero3", *nvme(folder))
    assert "files" not in without and "host" not in without["bytes"], without
    state = without["bytes"]["optimizer"]
    assert state <= files["files"] <= state + 4 * 2 * 4096, (without, files)
    assert {k: v for k, v in files["bytes"].items() if k != "optimizer"} == {k: v for k, v in without["bytes"].items() if k != "optimizer"}


CONSTANT = "training.lr_scheduler_type=constant_with_warmup"  # the same whatever max_steps is
DEEP = ["model.n_layer=6", "activation_checkpointing.enabled=true"]


def test_activations(place):
    """What layers keep: the bits of a run without, of any strategy, whatever is computed again, over evaluations, saves and a resume."""
    folder, job = place
    sets = [*DEEP, "training.gradient_accumulation_steps=2", "training.eval_every_n_steps=3", CONSTANT]
    plain = finished(job, folder / "kept-plain", 2, "ddp", sets)
    for row, level, more in [("ddp", "block", []), ("zero2", "none", ["training.accumulate_sync=boundary", "offload.engine=threads"])]:
        out = folder / f"kept-{row}-{level}"
        files = [f"offload.nvme_path={folder}/a", "offload.activations=nvme", f"activation_checkpointing.level={level}"]
        finished(job, out, 2, row, [*sets, *files, *more, "training.max_steps=4"])
        assert finished(job, out, 2, row, [*sets, *files, *more]) == plain, (row, level)
        assert left(folder) == []
    block = {"cpu_checkpointing": True, "partition_activations": True, "contiguous_memory_optimization": True, "number_checkpoints": 3,
             "synchronize_checkpoint_boundary": True, "profile": True}
    (folder / "kept.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "activation_checkpointing": block}))
    theirs = training.make_job(folder, "kept-job.json", steps=STEPS, training={"max_grad_norm": 0.5, "warmup_steps": 1}, logging={"log_every_n_steps": 1},
                               deepspeed=f"{folder}/kept.json")
    result = training.train(theirs, folder / "kept-theirs", ranks=2, sets=[*sets, "training.accumulate_sync=boundary"])
    assert result.code == 0 and training.hash_of(folder / "kept-theirs") == plain[0], result
    said = result.out + result.err
    silent = [line for line in said.splitlines() if line.startswith("train: no effect: ")]
    assert len(silent) == 1 and all(f"activation_checkpointing.{key}" in silent[0] for key in block if key != "cpu_checkpointing"), said
    assert "cpu_checkpointing" not in silent[0], said
    assert said.count("computes in the host's memory, so nothing moves for cpu") == 1, said
    with open(folder / "kept-theirs" / "job.json") as f:
        assert json.load(f)["offload"]["activations"] == "cpu"


def plan_of(job, *sets):
    args = [support.program("train"), job, "--plan", "--json", "--nproc", "2", *(w for s in sets for w in ("--set", s))]
    done = subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert done.returncode == 0, done
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("level, width", [("none", 16), ("cheap", 10), ("mlp", 6), ("block", 1)])
def test_planned_activations(place, level, width):
    """Of 6 layers, each with so many values of n_embd per token (and statistics), three have room: the other bytes are in files."""
    folder, job = place
    sets = [*DEEP, "model.n_embd=64", "training.batch_size_per_gpu=32", f"activation_checkpointing.level={level}"]
    without = plan_of(job, *sets)
    files = plan_of(job, *sets, f"offload.nvme_path={folder}/a", "offload.activations=nvme")
    layer = 32 * 16 * 64 * width * 4
    assert abs(files["files"] / (6 * layer) - 1) < (0.05 if width > 1 else 0.01), (files["files"], layer)
    saved = without["bytes"]["activations"] - files["bytes"]["activations"]
    assert abs(saved / (3 * files["files"] / 6) - 1) < 0.01, (saved, files, without)
    assert {k: v for k, v in files["bytes"].items() if k != "activations"} == {k: v for k, v in without["bytes"].items() if k != "activations"}
    every = plan_of(job, *sets, "activation_checkpointing.checkpoint_every_n_layers=2")["bytes"]["activations"]
    assert (every > without["bytes"]["activations"]) == (level in ("mlp", "block")), (every, without)


def memory_of(folder, job, ranks, row, more):
    """Bytes that rank 0 has in use. The plan's differ by a twentieth at most, and by work memory of products and stacks."""
    out = folder / f"memory-{ranks}-{row}-{len(more)}"
    finished(job, out, ranks, row, ["model.n_layer=8", "model.n_embd=256", "model.n_head=4", "training.max_steps=3", "training.eval_every_n_steps=0", *more])
    memory = [e for e in map(json.loads, open(out / "events.jsonl")) if e["event"] == "memory"]
    assert len(memory) == 1 and abs(memory[0]["measured_bytes"] - memory[0]["planned_bytes"]) < 0.05 * memory[0]["planned_bytes"] + 2**22, (ranks, row, memory)
    return memory[0]["measured_bytes"]


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers take memory of their own")
def test_the_memory_is_that_of_the_plan(place):
    """With any number of ranks, though each reads the others' pages; with offload less than without; and less for each of more ranks that share."""
    folder, job = place
    files = memory_of(folder, job, 1, "zero2", nvme(folder, "offload.activations=nvme", "offload.portion=131072"))
    assert files < memory_of(folder, job, 1, "zero2", []) - 2**24, files
    for row in ("ddp", "full_shard"):
        two, four = (memory_of(folder, job, ranks, row, []) for ranks in (2, 4))
        assert (four < two - 2**24) == (row == "full_shard"), (row, two, four)


# ---- disks that are not as they were ----

def mounted(folder, script):
    """Runs a shell script that mounts a disk over folder/b; what it says, and its exit code."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    result = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=2 * support.DEADLINE_S)
    if "unshare" in result.stderr and "not permitted" in result.stderr:
        pytest.skip("no mount namespace")
    return result.returncode, result.stdout + result.stderr


def command(folder, job, out, *sets):
    words = " ".join(f"--set '{s}'" for s in [f"offload.nvme_path={folder}/b", "offload.optimizer=nvme", *sets])
    return f"{support.program('dtrun')} --nproc_per_node=2 train {job} --output_dir {out} --mode zero2 {words}"


def test_a_disk_that_cannot_be_written(place):
    """Said in one line with the folder before anything starts, by a plan, too; a run that is there already goes on elsewhere."""
    folder, job = place
    out = folder / "read-only"
    plain = finished(job, folder / "read-only-plain", 2, "zero2", [CONSTANT])
    finished(job, out, 2, "zero2", nvme(folder, CONSTANT, "training.max_steps=4"))
    go = command(folder, job, out, CONSTANT)
    code, said = mounted(folder, f"mount -t tmpfs none {folder}/b && mount -o remount,ro {folder}/b && {go} --plan; [ $? = 2 ] && exec {go}")
    assert code == 2, (code, said)
    assert f"offload.nvme_path: {folder}/b: " in said and "Read-only file system" in said, said
    assert len([x for x in said.splitlines() if "Read-only file system" in x and "cause" not in x]) <= 2, said  # a rank each
    assert finished(job, out, 2, "zero2", nvme(folder, CONSTANT)) == plain


def test_a_folder_that_vanishes(place):
    """The files have no names, so a run does not miss it; a round that begins without it is refused in one line, and the checkpoints stay."""
    folder, job = place
    out = folder / "vanished"
    script = f"""mount -t tmpfs none {folder}/b && mkdir {folder}/b/in
{command(folder, job, out, f'offload.nvme_path={folder}/b/in', 'training.max_steps=60')} &
while [ ! -e {out}/checkpoints/step-0000000004/manifest.json ] && kill -0 $!; do sleep 0.05; done
rmdir {folder}/b/in; wait $!; echo first $?
{command(folder, job, out, f'offload.nvme_path={folder}/b/in', 'training.max_steps=70')}; echo second $?"""
    _, said = mounted(folder, script)
    plain, _ = finished(job, folder / "vanished-plain", 2, "zero2", ["training.max_steps=60"])
    assert "first 0" in said, said
    assert "second 0" not in said and "second " in said, said
    assert f"offload.nvme_path: {folder}/b/in: there is no such folder; create it, or name one on a fast disk" in said, said
    assert training.hash_of(out) == plain, said


def test_a_slow_disk(place):
    """Every write takes 30 ms: the run is slow, and right."""
    folder, job = place
    plain, _ = finished(job, folder / "slow-plain", 2, "zero2", ["training.max_steps=3"])
    out = folder / "slow"
    traced = ["strace", "-f", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=30000"]
    args = [*traced, support.program("dtrun"), "--nproc_per_node=2", "train", job, "--output_dir", str(out), "--mode", "zero2"]
    for x in ["training.max_steps=3", *nvme(folder, "offload.engine=threads")]:
        args += ["--set", x]
    try:
        # The leak checker cannot work under strace.
        result = subprocess.run(args, capture_output=True, text=True, timeout=3 * support.DEADLINE_S,
                                env=support.clean_env({"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}))
    except FileNotFoundError:
        pytest.skip("no strace")
    if "ptrace" in result.stderr and "not permitted" in result.stderr:
        pytest.skip("strace may not trace here")
    assert result.returncode == 0, result
    assert training.hash_of(out) == plain
