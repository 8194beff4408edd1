# covers: worker/engine/homes worker/job/job_offload.c
"""State that rests in files or in the host's memory: the bits of a run without it, for the keys of this job, DeepSpeed's, FSDP's and
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
    for s in [*more, *nvme(folder)]:
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
