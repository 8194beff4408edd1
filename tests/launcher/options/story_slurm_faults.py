# covers: launcher/options launcher/job
"""What a real SLURM does to a job: warnings before the time limit, preemption, cancelling in a save, lost nodes, other node counts, late tasks.
The short form is in story_slurm.py.
run: full
run: alone
run: timeout 900
run: nosan: a cluster of sanitized programs is too slow
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import pytest

import slurm
import support
import training
from support import BIN, DTRUN, lines_of, script, wait_until
from story_slurm import BATCH, MANY, batch, steps_of, text_of

pytestmark = pytest.mark.skipif(slurm.missing() != "" or not os.path.exists(DTRUN), reason=slurm.missing() or "dtrun is not built")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return folder, training.make_job(folder, steps=30)


@pytest.fixture
def cluster(tmp_path_factory, request):
    with slurm.Slurm(tmp_path_factory.mktemp("slurm"), nodes=3, kill_wait=30, extra=getattr(request, "param", "")) as c:
        c.env.update(DTRUN_BIN=BIN, WORKERS="1", OMP_NUM_THREADS="1")
        c.env["PATH"] = BIN + ":" + c.env["PATH"]
        yield c


def wait_step(out, step):
    wait_until(lambda: steps_of(out) >= step, f"step {step} of {out}")


def goes_on(cluster, job, out, saved):
    """The job runs again, from what it saved; then it is cancelled."""
    wait_until(lambda: cluster.job(job).get("Restarts", "0") != "0" and steps_of(out) > saved, "a checkpoint of a later run", 300, 0.2)
    with open(os.path.join(out, "metrics.jsonl")) as f:
        steps = [json.loads(line)["step"] for line in f if '"loss"' in line]
    assert steps == sorted(set(steps)), "a step was done twice"
    assert cluster.run(["scancel", job]).returncode == 0
    assert cluster.wait_job(job)["JobState"] == "CANCELLED"
    wait_until(lambda: not cluster.processes("dtrun") and not cluster.processes("train"), "the end of all processes")


def saved_by(out_file, name):
    """Step at which the first run was stopped by this signal."""
    wait_until(lambda: f"stopped by {name}: state saved" in text_of(out_file), f"a saved stop by {name}", 180)
    return int(re.search(r"train: stopped at step (\d+), saved", text_of(out_file)).group(1))


def test_warnings_before_the_time_limit_to_tasks_and_to_the_shell(cluster, place):
    """S-1. SLURM warns up to a minute early; the limit of both jobs is two minutes, side by side."""
    folder, job = place
    jobs = {}
    for way, where in (("tasks", "USR1@45"), ("shell", "B:USR1@45")):
        out = folder / f"limit-{way}"
        jobs[way] = (*batch(cluster, folder, job, f"output_dir={out}", MANY, options=("-N2", "-c4", "--time=2", f"--signal={where}")), out)
    for number, log, out in jobs.values():
        saved = saved_by(log, "USR1")
        goes_on(cluster, number, out, saved)


def test_preempted_it_saves_and_goes_on(cluster, place):
    """S-2. CONT and TERM to the tasks at once, to the shell only at the end of the grace time."""
    folder, job = place
    out = folder / "preempted"
    number, log = batch(cluster, folder, job, f"output_dir={out}", MANY, options=("-N3",))
    wait_step(out, 20)
    urgent = cluster.popen(["srun", "-p", "high", "-N3", "-c16", "hostname"])
    saved = saved_by(log, "TERM")
    stdout, stderr = urgent.communicate(timeout=120)
    assert urgent.returncode == 0 and len(stdout.split()) == 3, (stdout, stderr)
    goes_on(cluster, number, out, saved)


@pytest.fixture
def slow_disk(cluster, tmp_path):
    gate, library = training.slow_disk(tmp_path)
    cluster.env.update(SLOW_DISK=str(gate), LD_PRELOAD_LATER=str(library))
    # The library is for the workers alone: SLURM's own programs sync, too.
    return gate, ["sh", "-c", 'LD_PRELOAD=$LD_PRELOAD_LATER exec "$@"', "sh"]


def phases(cluster):
    found = []
    for pid in cluster.processes("train"):
        try:
            found.append(training.Page(pid).phase())
        except (OSError, KeyError, ValueError):
            continue
    return found


def test_a_save_that_does_not_fit_is_dropped(cluster, place, slow_disk):
    """S-3. The save begins and is killed at the end of dtrun's grace; what was saved before stays, and the next start goes on from it."""
    folder, job = place
    out, (gate, slowly) = folder / "short", slow_disk
    p = cluster.popen(["srun", "-N2", *slowly, "dtrun", "--shutdown_timeout=3", "train", job, "--output_dir", out, "--set", MANY])
    wait_step(out, 20)
    gate.touch()
    wait_until(lambda: "save" in phases(cluster), "a save")
    before = steps_of(out)
    number = cluster.run(["squeue", "-h", "-o", "%i"]).stdout.strip()
    assert cluster.run(["scancel", "-s", "TERM", f"{number}.0"]).returncode == 0
    _, err = p.communicate(timeout=120)
    assert p.returncode == 143, (p.returncode, err)
    assert re.search(rf"the save of step \d+, .* was not done 2\.2 s after the stop: it is dropped, step {before} stays; the one before took", err), err
    assert steps_of(out) == before and not cluster.processes("train")
    gate.unlink()
    again = cluster.popen(["srun", "-N2", *slowly, "dtrun", "train", job, "--output_dir", out, "--set", MANY])
    wait_step(out, before + 20)
    number = cluster.run(["squeue", "-h", "-o", "%i"]).stdout.strip()
    assert cluster.run(["scancel", "-s", "USR1", f"{number}.0"]).returncode == 0
    _, err = again.communicate(timeout=120)
    assert "state saved" in err and f"step {before}" in err, err


@pytest.mark.parametrize("first, second", [("USR1", "TERM"), ("TERM", "USR1"), ("TERM", "TERM"), ("INT", "TERM")])
def test_another_signal_in_a_save_changes_nothing(cluster, place, slow_disk, first, second):
    """S-11, R-16."""
    folder, job = place
    out, (gate, slowly) = folder / f"twice-{first}-{second}", slow_disk
    p = cluster.popen(["srun", "-N2", *slowly, "dtrun", "--shutdown_timeout=100", "train", job, "--output_dir", out, "--set", MANY])
    wait_step(out, 20)
    number = cluster.run(["squeue", "-h", "-o", "%i"]).stdout.strip()
    gate.touch()
    assert cluster.run(["scancel", "-s", first, f"{number}.0"]).returncode == 0
    wait_until(lambda: phases(cluster).count("save") > 0, "a save")
    time.sleep(1)
    for _ in range(2):
        assert cluster.run(["scancel", "-s", second, f"{number}.0"]).returncode == 0
        time.sleep(0.5)
    assert p.poll() is None
    gate.unlink()
    _, err = p.communicate(timeout=120)
    assert p.returncode == 75 and f"stopped by {first}: state saved" in err, (p.returncode, err)


def kill_node(cluster, i):
    """All of a node at once: its daemon, the step's and the tasks; and its cable."""
    host = cluster.net.hosts[i - 1]
    cluster.net.down(host)
    for pid in map(int, support.subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True).stdout.split()):
        with contextlib.suppress(ProcessLookupError):  # it may end with another one of them
            os.kill(pid, signal.SIGKILL)


def test_a_lost_node_requeues_the_job(cluster, place):
    """S-5, S-6. By SLURM's default the job ends and runs again on the nodes that are left: one less."""
    folder, job = place
    out = folder / "lost"
    number = cluster.submit(["-N2-3", f"--output={folder}/lost.out", "--open-mode=append", f"--wrap=srun dtrun --max_restarts=3 train {job} --output_dir {out} --set {MANY}"])
    wait_step(out, 20)
    assert cluster.job(number)["NumNodes"] == "3", cluster.job(number)
    last = sorted(set(re.findall(r"n\d", cluster.run(["scontrol", "show", "hostnames", cluster.job(number)["NodeList"]]).stdout)) - {cluster.job(number)["BatchHost"]})[-1]
    kill_node(cluster, int(last[1:]))
    wait_until(lambda: cluster.job(number).get("Restarts") == "1", "the job to be requeued", 180, 0.5)
    saved = steps_of(out)
    wait_until(lambda: cluster.job(number)["JobState"] == "RUNNING" and steps_of(out) > saved, "a checkpoint of the second run", 180, 0.5)
    assert cluster.job(number)["NumNodes"] == "2", cluster.job(number)
    ids = {re.search(rb"TORCHELASTIC_RUN_ID=([^\0]*)", open(f"/proc/{pid}/environ", "rb").read()).group(1) for pid in cluster.processes("train")}
    assert ids == {f"slurm-{number}.0-r1".encode()}, ids
    assert cluster.run(["scancel", number]).returncode == 0
    cluster.wait_job(number)


def test_a_lost_node_is_lost_to_an_elastic_job_only(cluster, place):
    """S-5 with --no-kill: the others go on at once, and SLURM lets them."""
    folder, job = place
    out = folder / "elastic"
    number = cluster.submit(["-N3", "--no-kill", f"--output={folder}/elastic.out", "--open-mode=append",
                             f"--wrap=srun --no-kill --kill-on-bad-exit=0 --wait=0 dtrun --nnodes=2:3 --last_call=2 --max_restarts=3 train {job} --output_dir {out} --set {MANY}"])
    wait_step(out, 20)
    batch_host = cluster.job(number)["BatchHost"]
    kill_node(cluster, max(i for i in (2, 3, 4) if f"n{i}" != batch_host))
    wait_until(lambda: text_of(folder / "elastic.out").count("step ") and len(cluster.processes("train")) == 2, "two hosts", 120)
    saved = steps_of(out)
    wait_step(out, saved + 30)
    assert cluster.job(number)["JobState"] == "RUNNING" and cluster.job(number)["Restarts"] == "0"
    wait_until(lambda: cluster.job(number)["NumNodes"] == "2" or "n" in cluster.job(number)["NodeList"], "SLURM to notice", 120, 0.5)
    assert cluster.run(["scancel", number]).returncode == 0
    cluster.wait_job(number)
    wait_until(lambda: not cluster.processes("train"), "the end of all workers")


def test_a_late_task_is_waited_for(cluster, place):
    """S-7, in a tenth of the time."""
    folder, job = place
    late = script(folder, "late", '[ "$SLURM_PROCID" = 0 ] || sleep 8\nexec "$@"\n')
    result = cluster.run(["srun", "-N2", late, "dtrun", "--time_scale=4", "train", job, "--output_dir", folder / "late-out"], timeout_s=180)
    assert result.returncode == 0 and re.search(r"waiting \d+ s for hosts: 1 of 2 here \(n\d\); .* not heard from: node 1", result.stderr), result


def test_array_tasks_and_heterogeneous_jobs_stay_apart(cluster, tmp_path):
    """S-10. Both tasks of the array run on the same hosts at once."""
    show = 'echo "$RANK/$WORLD_SIZE $MASTER_PORT $TORCHELASTIC_RUN_ID"; sleep 3'
    number = cluster.submit(["-N2", "--array=0-1", f"--output={tmp_path}/%a.out", f"--wrap=srun dtrun sh -c '{show}'"])
    found = []
    for i in (0, 1):
        assert cluster.wait_job(f"{number}_{i}")["JobState"] == "COMPLETED"
        found.append(sorted(line.split() for line in lines_of(tmp_path / f"{i}.out") if line[:2] in ("0/", "1/")))
    for one in found:
        assert [line[0] for line in one] == ["0/2", "1/2"] and one[0][1:] == one[1][1:], found
    assert found[0][0][2] != found[1][0][2] and found[0][0][1] != found[1][0][1], found
    result = cluster.run(["srun", "-N2", "dtrun", "sh", "-c", show, ":", "-N1", "dtrun", "sh", "-c", show])
    assert result.returncode == 0 and sorted(line.split()[0] for line in result.stdout.splitlines()) == ["0/3", "1/3", "2/3"], result


def test_what_surrounds_a_step_is_said_once(cluster):
    """S-8. A container file's RANK and WORLD_SIZE, and an option that contradicts the step."""
    result = cluster.run(["srun", "-N2", "dtrun", "sh", "-c", 'echo "$RANK/$WORLD_SIZE"'], env={"WORLD_SIZE": "7", "RANK": "5"})
    assert result.returncode == 0 and sorted(result.stdout.split()) == ["0/2", "1/2"], result
    assert result.stderr.count("WORLD_SIZE=7 and RANK=5 are inherited and not used") == 2, result  # once per host
    result = cluster.run(["srun", "-N2", "dtrun", "--nnodes=1", "sh", "-c", 'echo "$RANK/$WORLD_SIZE"'])
    assert result.stdout.split() == ["0/1", "0/1"] and result.stderr.count("--nnodes says 1, SLURM_STEP_NUM_NODES says 2; --nnodes counts") == 2, result


@pytest.mark.parametrize("cluster", ["RequeueExit=75,111\n"], indirect=True)
def test_codes_that_slurm_itself_requeues(cluster, place, tmp_path):
    """A site with RequeueExit: the exit code is enough; other codes end the job as they are."""
    folder, job = place
    out = folder / "codes"
    number = cluster.submit(["-N2", f"--output={tmp_path}/out", "--open-mode=append", f"--wrap=srun dtrun --requeue=off train {job} --output_dir {out} --set {MANY}"])
    wait_step(out, 20)
    assert cluster.run(["scancel", "-s", "USR1", f"{number}.0"]).returncode == 0
    goes_on(cluster, number, out, saved_by(tmp_path / "out", "USR1"))
    for code, words in ((1, "sh -c 'exit 7'"), (2, "--none"), (93, "--permanent_exit_codes=93 sh -c 'exit 93'"), (0, "/bin/true")):
        number = cluster.submit(["-N2", "--output=/dev/null", f"--wrap=srun --wait=0 dtrun {words}"])
        done = cluster.wait_job(number)
        assert done["ExitCode"] == f"{code}:0" and done["Restarts"] == "0", (code, done)
    out = folder / "mapped"
    number = cluster.submit(["-N2", f"--output={tmp_path}/mapped", f"--wrap=srun dtrun --requeue=off --requeue_exit_code=85 train {job} --output_dir {out} --set {MANY}"])
    wait_step(out, 20)
    assert cluster.run(["scancel", "-s", "USR1", f"{number}.0"]).returncode == 0
    assert cluster.wait_job(number)["ExitCode"] == "85:0"
