# covers: launcher/options
"""Jobs under a real SLURM of three network hosts: srun and sbatch as people use them, the bits of one host, exit codes, requeueing.
The long form (signals, preemption, lost nodes) is in story_slurm_faults.py.
run: waits
run: timeout 300
run: nosan: the launcher's own stories cover it; a cluster of sanitized programs is too slow
"""

import os
import re
import shutil

import pytest

import slurm
import training
from support import BIN, DTRUN, ROOT, lines_of, wait_until

pytestmark = pytest.mark.skipif(slurm.missing() != "" or not os.path.exists(DTRUN), reason=slurm.missing() or "dtrun is not built")
STEPS = 30
BATCH = os.path.join(ROOT, "scripts/slurm/train.sbatch")
MANY = "training.max_steps=1000000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.Slurm(tmp_path_factory.mktemp("slurm"), nodes=3) as c:
        c.env.update(DTRUN_BIN=BIN, WORKERS="1", OMP_NUM_THREADS="1")
        c.env["PATH"] = BIN + ":" + c.env["PATH"]
        yield c


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    job = training.make_job(folder, steps=STEPS)
    result = training.train(job, folder / "one", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "one")


def srun(cluster, nodes, *words, **options):
    return cluster.run(["srun", f"-N{nodes}", *words], **options)


def steps_of(out):
    """Newest saved step of a run, 0 without one."""
    found = lines_of(os.path.join(str(out), "checkpoints", "latest"))
    return int(re.search(r"\d+", found[0]).group()) if found else 0


def batch(cluster, folder, job, *rest, options=("-N2",), env=None):
    """The script that people copy, as it is; returns the job's number and the file of its output."""
    number = cluster.submit([*options, "--output=%x-%j.out", BATCH, job, *rest], env, cwd=folder)
    return number, os.path.join(str(folder), f"train-{number}.out")


def text_of(path):
    return "\n".join(lines_of(path))


def test_srun_without_any_option_has_the_bits_of_one_host(cluster, place):
    folder, job, expected = place
    result = srun(cluster, 2, "dtrun", "train", job, "--output_dir", folder / "srun")
    assert result.returncode == 0 and result.stderr.count("no --key_file") == 1, (result, cluster.logs())
    assert training.hash_of(folder / "srun") == expected


def test_workers_hear_of_the_hosts_that_srun_chose(cluster):
    show = 'echo "$(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RUN_ID"'
    names = ["n2", "n3", "n4"]
    for hosts in (names, names[1:], names[:1]):
        result = srun(cluster, len(hosts), "-w", ",".join(hosts), "dtrun", "--nproc_per_node=2", "sh", "-c", show)
        assert result.returncode == 0, result
        seen = [line.split() for line in result.stdout.splitlines()]
        where = {int(s[1].split("/")[0]): s for s in seen}
        assert sorted(where) == list(range(2 * len(hosts))), result
        for rank, (host, ranks, local, group, _, _) in where.items():
            assert host == hosts[rank // 2] and ranks == f"{rank}/{2 * len(hosts)}" and local == f"{rank % 2}/2" and group == f"{rank // 2}/{len(hosts)}", result
        assert len({s[4] for s in seen}) == 1 and len({s[5] for s in seen}) == 1, result
        if len(hosts) > 1:
            assert seen[0][4] in (hosts[0], f"10.77.0.{names.index(hosts[0]) + 2}") and re.fullmatch(r"slurm-\d+\.0", seen[0][5]), result


def test_dry_run_says_what_came_from_slurm(cluster):
    result = srun(cluster, 2, "-w", "n[3-4]", "dtrun", "--dry_run", "/bin/true")
    assert result.returncode == 0, result
    for line in ("hosts     2 (SLURM_STEP_NUM_NODES)", "cluster   slurm", "list n[3-4] (SLURM_STEP_NODELIST)",
                 "endpoint  n3 port 1"):
        assert line in result.stdout, result


# Each failure must come out of every host's launcher, so that srun, which gives the highest, gives just this one.
@pytest.mark.parametrize("code, words", [
    (0, ["--nproc_per_node=2", "/bin/true"]),
    (1, ["sh", "-c", "exit 7"]),
    (2, ["--no-such-option", "/bin/true"]),
    (2, ["train", "/nowhere/job.json"]),
    (100, ["--permanent_exit_codes=100", "sh", "-c", '[ "$RANK" != 1 ] || exit 100; sleep 600']),
    (93, ["--permanent_exit_codes=93", "sh", "-c", '[ "$RANK" != 0 ] || exit 93; sleep 600']),
    (111, ["--nnodes=3", "--join_timeout=2", "/bin/true"]),
])
def test_exit_codes_through_srun(cluster, code, words):
    result = srun(cluster, 2, "--kill-on-bad-exit=0", "--wait=0", "dtrun", *words)
    assert result.returncode == code, (result, cluster.logs())


def test_stopped_jobs_are_run_again_and_go_on(cluster, place):
    """Three ways, their waits side by side: the script asks, the launcher asks by itself when it is warned by USR1, and because it was told to."""
    folder, job, _ = place
    long = ["training.max_steps=2000", "checkpointing.save_every_n_steps=100"]
    whole = training.train(job, folder / "whole", ranks=2, sets=long)
    assert whole.code == 0, whole
    line = f"--wrap=srun dtrun %s train {job} --output_dir {folder}/%s " + " ".join("--set " + s for s in long)
    jobs = {}
    for way in ("script", "auto", "on"):
        if way == "script":
            jobs[way] = batch(cluster, folder, job, f"output_dir={folder}/script", *long, options=("-N2", "-c4"))
        else:
            options = "--requeue=on" if way == "on" else ""
            jobs[way] = cluster.submit(["-N2", f"--output={folder}/{way}.out", line % (options, way)]), folder / f"{way}.out"
        wait_until(lambda: steps_of(folder / way) >= 100, "a checkpoint")
        assert cluster.run(["scancel", "-s", "TERM" if way == "on" else "USR1", f"{jobs[way][0]}.0"]).returncode == 0
    for way, (number, out) in jobs.items():
        done = cluster.wait_job(number)
        assert done["JobState"] == "COMPLETED" and done["Restarts"] == "1", (way, done, text_of(out), cluster.logs())
        assert training.hash_of(folder / way) == training.hash_of(folder / "whole"), (way, text_of(out))


def test_a_cancelled_job_saves_and_stays_cancelled(cluster, place):
    folder, job, _ = place
    number, out = batch(cluster, folder, job, f"output_dir={folder}/cancelled", MANY)
    wait_until(lambda: steps_of(folder / "cancelled") >= 10, "a checkpoint")
    assert cluster.run(["scancel", number]).returncode == 0
    assert cluster.wait_job(number)["JobState"] == "CANCELLED"
    wait_until(lambda: "stopped by TERM: state saved" in text_of(out) and not cluster.processes("dtrun") and not cluster.processes("train"), "the end")
    assert cluster.job(number)["Restarts"] == "0"


def test_a_task_per_worker_is_one_job(cluster, place):
    folder, job, expected = place
    result = srun(cluster, 1, "-n2", "dtrun", "train", job, "--output_dir", folder / "tasks")
    assert result.returncode == 0 and training.hash_of(folder / "tasks") == expected, (result, cluster.logs())
    assert result.stderr.count("start one per host: srun --ntasks-per-node=1") == 1, result
    show = 'echo "$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $RANK $LOCAL_RANK $GROUP_RANK $LOCAL_WORLD_SIZE $GROUP_WORLD_SIZE"'
    for words in (["--ntasks-per-node=2"], ["-n4", "-m", "cyclic"], ["-n3"]):  # as many on each, ranks by turns, one on the second
        result = srun(cluster, 2, *words, "dtrun", "sh", "-c", show)
        lines = [list(map(int, line.split())) for line in result.stdout.splitlines()]
        assert result.returncode == 0 and len(lines) == (3 if words == ["-n3"] else 4), result
        nodes = [line[2] for line in lines]
        for line in lines:
            assert line[3:6] == line[:3] and line[6] == nodes.count(line[2]) and line[7] == 2, result
    result = srun(cluster, 2, "-n4", "dtrun", "--nproc_per_node=2", "/bin/true")
    assert result.returncode == 2 and "start one per host: srun --ntasks-per-node=1" in result.stderr, result


def test_a_stop_through_srun_saves_and_is_75(cluster, place):
    folder, job, _ = place
    p = cluster.popen(["srun", "-N2", "dtrun", "train", job, "--set", MANY, "--output_dir", folder / "stop"])
    wait_until(lambda: steps_of(folder / "stop") >= 10, "a checkpoint")
    number = cluster.run(["squeue", "-h", "-o", "%i"]).stdout.strip()
    assert cluster.run(["scancel", "-s", "USR1", f"{number}.0"]).returncode == 0
    out, err = p.communicate(timeout=60)
    assert p.returncode == 75 and "state saved" in err, (p.returncode, out, err)


def test_the_batch_script_as_it_is(cluster, place):
    folder, job, expected = place
    number, out = batch(cluster, folder, job, f"output_dir={folder}/batch")
    done = cluster.wait_job(number)
    assert done["JobState"] == "COMPLETED" and done["ExitCode"] == "0:0", (done, text_of(out))
    assert training.hash_of(folder / "batch") == expected
    number, out = batch(cluster, folder, "/nowhere/job.json")
    done = cluster.wait_job(number)
    assert done["JobState"] == "FAILED" and done["ExitCode"] == "2:0" and done["Restarts"] == "0", (done, text_of(out))
