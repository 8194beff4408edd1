# covers: worker/checkpoints
"""What may lie in the folder of a run that should not, and who may see another folder there: `train` says what it is, and good checkpoints stay."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
import places
import support
import training
from nodes import c10d, finish, free_port

pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(support.BIN, "train")), reason="train is not built")
STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder, and a job of STEPS steps that keeps all its checkpoints."""
    folder = tmp_path_factory.mktemp("output")
    return folder, training.make_job(folder, steps=STEPS, checkpointing={"keep_last_n": 0}, model={"n_layer": 1})


def steps_in(out):
    return sorted(x for x in os.listdir(out / "checkpoints") if x.startswith("step-"))


def test_nothing_is_set_aside_before_all_have_loaded(place):
    """Rank 1 has another job, so it cannot continue: what a named beginning would give up is still there."""
    folder, job = place
    out = folder / "loaded"
    assert training.train(job, out).code == 0
    before = steps_in(out)
    text = 'if [ "$RANK" = 1 ]; then set -- "$@" --set training.learning_rate=0.5; fi; exec "$0" "$@"'
    result = support.run(["--nproc_per_node=2", "--max_restarts=0", "/bin/sh", "-c", text, support.program("train"), job, "--output_dir", out, "--set",
                          "checkpointing.resume=step-10"])
    assert result.code != 0 and "training.learning_rate" in result.err, result
    assert steps_in(out) == before and len(before) == STEPS // 10


# The end of rank 0 takes its time, so the agents hear of the other one first.
SLOW_END = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
void _exit(int code)
{
    const char *rank = getenv("RANK");
    if (rank && rank[0] == '0') {
        usleep(700000);
    }
    syscall(SYS_exit_group, code);
    __builtin_unreachable();
}
"""


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="a sanitizer wants to be the first library")
def test_who_only_heard_of_it_is_not_the_cause(place):
    """All checkpoints are damaged, which rank 0 finds and tells; rank 1 on the other host has ended long before it. Both hosts name rank 0."""
    folder, job = place
    out = folder / "heard"
    assert training.train(job, out).code == 0
    for name in steps_in(out):
        for slices in (out / "checkpoints" / name).glob("slices-*"):
            os.truncate(slices, 100)
    source, library = folder / "end.c", folder / "end.so"
    source.write_text(SLOW_END)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    args = c10d(free_port(), 2, "--nproc_per_node=1", "train", job, "--output_dir", out)
    with support.Job(args, env={"LD_PRELOAD": library}) as a, support.Job(args, env={"LD_PRELOAD": library}) as b:
        results = finish(a, b)
    for result in results:
        assert result.code == 100 and " rank 1 (" not in result.err, result
    assert all(re.search(r"^dtrun: host \S+ rank 0 \(.*: exit code 100: .*none of its checkpoints is whole", r.err, re.M) for r in results), results


def apart(place, name, *rest, shared=False):
    """Two agents of one job whose output_dir, one path, is a folder of its own for each (or is shared after all); their results."""
    folder, job = place
    out, args = folder / name if (folder / name).exists() else places.mount_point(folder, name), c10d(free_port(), 2, "--nproc_per_node=2")
    jobs = []
    for host in "ab":
        own = folder / f"{name}-{'a' if shared else host}"
        own.mkdir(exist_ok=True)
        words = ["-m", "sh", "-c", f"mount --bind '{own}' '{out}' && exec \"$@\"", "sh", support.DTRUN, *args, "train", job, "--output_dir", out, *rest]
        jobs.append(support.Job(words, executable="unshare"))
    return finish(*jobs), [folder / f"{name}-{host}" for host in ("aa" if shared else "ab")]


def test_output_folders_that_are_not_shared_are_refused(place):
    """Before anything is trained, with the same words on both hosts; nothing is left in either folder but who was there."""
    results, folders = apart(place, "apart")
    for result in results:
        assert result.code == 2, result
        assert re.search(r"rank 0 .*exit code 2: output_dir: \S+/apart is another folder on host \S+ \(rank [23]\) than on host \S+ \(rank 0\); "
                         "it must be shared between the hosts", result.err), result
    for folder in folders:
        assert not list(folder.glob("checkpoints/step-*")) and not list(folder.rglob(".seen-*")) and not (folder / "metrics.jsonl").exists()


def test_output_folders_that_are_shared_are_not(place):
    """Also when the folder is there already, with what a killed start has left in it, and when the run begins anew."""
    for rest in [], [], ["--fresh"]:
        results, folders = apart(place, "together", *rest, shared=True)
        assert [r.code for r in results] == [0, 0], results
        assert not list(folders[0].rglob(".seen-*"))
        (folders[0] / "checkpoints" / ".seen-from-all-hosts-0").touch()
    assert (folders[0] / "checkpoints.old-1").exists() and not (folders[0] / "checkpoints.old-2").exists()


def test_data_that_differ_between_hosts(place):
    """One path, other bytes: refused on both hosts before anything is trained. The same bytes under other names are the same data."""
    folder, job = place
    for host in "abc":
        (folder / f"data-{host}").mkdir()
    for i, path in enumerate(sorted((folder / "shards").glob("train-*.bin"))):
        for host, name in ("a", path.name), ("b", f"part-{i:05}.bin"), ("c", path.name):
            shutil.copy(path, folder / f"data-{host}" / name)
    with open(folder / "data-c" / path.name, "r+b") as f:
        f.seek(-2, os.SEEK_END)
        f.write(b"x")
    data = places.mount_point(folder, "data")
    for other, code in ("c", 2), ("b", 0):
        args = c10d(free_port(), 2, "--nproc_per_node=1", "train", job, "--output_dir", folder / f"hosts-{other}", "--set", f"data.train={data}/*.bin")
        mount = f"mount --bind '{folder}'/data-$0 '{data}' && exec \"$@\""
        results = finish(*[support.Job(["-m", "sh", "-c", mount, host, support.DTRUN, *args], executable="unshare") for host in ("a", other)])
        assert [r.code for r in results] == [code, code], results
        refused = r"data.train: \S+/data/\*\.bin holds other data on host \S+ \(rank 1\) than on host \S+ \(rank 0\); give all hosts the same files"
        assert all((re.search(refused, r.err) is not None) == (code == 2) for r in results), results


def alone(job, out, *rest, code=0, **more):
    args = [support.program("train"), job, "--output_dir", out, *rest]
    p = subprocess.run(list(map(str, args)), env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S, **more)
    assert p.returncode == code, p.stderr
    return p.stderr


def test_pipes_in_the_place_of_files(place):
    """Nobody writes to them; each is said, or made up for, at once. A job by a pipe of the shell is a job."""
    folder, job = place
    out, pipe = folder / "pipes", folder / "pipe.json"
    os.mkfifo(pipe)
    assert f"train: {pipe}: is a pipe, and nobody has written to it for 5 s; give a file" in alone(pipe, out, "--plan", code=2)
    for key in "data.train", "data.val":
        said = alone(job, out, "--plan", "--set", f"{key}={pipe}", code=2)
        assert f"{pipe}: is not a regular file; give token shards" in said, said
    os.symlink(next((folder / "shards").glob("train-*.bin")), folder / "part-0.bin")
    os.mkfifo(folder / "part-1.bin")
    assert "/part-1.bin: not a regular file" in alone(job, out, "--plan", "--set", f"data.train={folder}/part-?.bin", code=2)
    with open(job) as f:
        alone("/dev/stdin", out, input=f.read())
    newest, before = steps_in(out)[:-3:-1]
    names = ["course.json", "owner.json", "latest", f"{newest}/manifest.json"]
    for name in names:
        (out / "checkpoints" / name).unlink()
        os.mkfifo(out / "checkpoints" / name)
    code, text, err = training.dtckpt("list", out)
    assert code == 1 and f"damaged: {out}/checkpoints/{newest}/manifest.json: is not a regular file" in text, text + err
    assert training.dtckpt("verify", out)[0] == 1
    said = alone(job, out)
    assert f"/checkpoints/{before} (step" in said and f"done at step {STEPS}" in said, said
    assert all((out / "checkpoints" / name).is_file() for name in names)


@pytest.mark.parametrize("name", ["checkpoints/course.json", "checkpoints/owner.json", "checkpoints/owner.lock", "checkpoints.lock", "metrics.jsonl",
                                  "events.jsonl", "job.json", "env.json", "logs"])
def test_a_folder_in_the_place_of_a_file(place, name):
    """One line before anything is started, and no restarts: another try would find the same. `logs` is the other way round."""
    folder, job = place
    out = folder / f"taken-{name.replace('/', '-')}"
    (out / name).parent.mkdir(parents=True)
    (out / name).touch() if name == "logs" else (out / name).mkdir()
    result = training.train(job, out, ranks=2)
    assert result.code == 2 and result.err.startswith(f"train: {out}/{name}: is ") and "; remove it" in result.err and result.err.count("\n") == 1, result
    assert f"train: {out}/{name}: is " in alone(job, out, code=2)
    if name.startswith("checkpoints/") or name == "metrics.jsonl":
        assert "done at step" in alone(job, out, "--fresh")


def test_what_was_set_aside_is_not_called_complete(place):
    """Its manifest and sizes are right and one byte is not: `list`, which reads no data, says that it has not looked; `verify` finds it."""
    folder, job = place
    out = folder / "aside"
    alone(job, out)
    newest = steps_in(out)[-1]
    slices = next((out / "checkpoints" / newest).glob("slices-*"))
    data = bytearray(slices.read_bytes())
    data[-1] ^= 1
    slices.write_bytes(data)
    said = alone(job, out)
    assert f"{newest}.old-1" in steps_in(out) and "; the one before is tried" in said, said
    code, text, err = training.dtckpt("list", out)
    states = {line.split()[0]: line for line in text.splitlines()}
    assert code == 0 and states[f"{newest}.old-1"].endswith("  set aside, data not verified") and states[newest].endswith("  complete"), text + err
    code, text, err = training.dtckpt("verify", out)
    assert code == 0 and "damaged: " in err and f"{newest}.old-1: " in err, text + err


def test_another_folder_of_checkpoints(place):
    """The numbers and the model of a run whose checkpoints lie elsewhere, or are gone, are set aside, with a line for each."""
    folder, job = place
    out, other = folder / "two", folder / "other"
    csv = "logging.csv=true"
    sets = ["training.max_steps=10", f"checkpointing.checkpoint_dir={other}", csv]
    assert training.train(job, out, sets=[csv]).code == 0
    for count, gone in enumerate((None, other), 1):
        before = [(out / name).read_bytes() for name in ("metrics.jsonl", "metrics.csv", "model/model.safetensors")]
        if gone:
            shutil.rmtree(gone)
        said = training.train(job, out, sets=sets).err
        assert [said.count(f"train: {out}/{x}: is of another run: set aside ({x}.old-N)") for x in ("metrics.jsonl", "metrics.csv", "model")] == [1, 1, 1], said
        assert [(out / name).read_bytes() for name in (f"metrics.jsonl.old-{count}", f"metrics.csv.old-{count}", f"model.old-{count}/model.safetensors")] == before
        assert max(training.metrics(out, "loss")) == 10 and (out / "model").exists()
    assert "is of another run" not in training.train(job, out, sets=sets).err
    assert "is of another run" not in training.train(job, out).err  # O/checkpoints go on; model/ is written anew


def test_a_run_from_a_checkpoint_of_another_folder(place):
    """What output_dir holds of its own run is set aside with that run's checkpoints."""
    folder, job = place
    first, out = folder / "from", folder / "into"
    for x in first, out:
        assert training.train(job, x).code == 0
    before = (out / "metrics.jsonl").read_bytes()
    said = training.train(job, out, sets=[f"checkpointing.resume={first}/checkpoints/step-00000020", "training.max_steps=22"]).err
    assert [said.count(f"train: {out}/{x}: is of another run: set aside ({x}.old-N)") for x in ("metrics.jsonl", "model")] == [1, 1], said
    assert (out / "metrics.jsonl.old-1").read_bytes() == before and min(training.metrics(out, "loss")) > 20


@pytest.mark.parametrize("options", [[], ["--fresh"]])
def test_a_model_that_the_job_reads_stays(place, options):
    """model.load may be the model/ of output_dir, which the end of the run replaces."""
    folder, job = place
    out = folder / f"tuned-{len(options)}"
    assert training.train(job, out).code == 0
    shutil.rmtree(out / "checkpoints")
    before = (out / "model/model.safetensors").read_bytes()
    result = support.run(["--nproc_per_node=3", "train", job, "--output_dir", out, "--set", f"model.load={out}/model", *options])
    assert result.code == 0 and "model: is of another run" not in result.err, result
    assert (out / "model/model.safetensors").read_bytes() != before and not (out / "model.old-1").exists()


@pytest.mark.parametrize("name", ["step-20/", "{out}/checkpoints/step-00000020//"])
def test_a_named_checkpoint_stays(place, name):
    """It is not removed to make room, however its name ends."""
    folder, job = place
    out = folder / f"named-{len(name)}"
    assert training.train(job, out).code == 0
    result = training.train(job, out, sets=[f"checkpointing.resume={name.format(out=out)}", "checkpointing.keep_last_n=1"])
    assert result.code == 0 and [x for x in steps_in(out) if "old" not in x] == ["step-00000020", "step-00000040"], result


def test_one_job_at_a_time_in_an_output_folder(place):
    """Also where their checkpoints lie in folders of their own, or of one alone in output_dir."""
    folder, job = place
    out = folder / "shared"
    args = ["train", job, "--output_dir", out, "--set", "training.max_steps=1000000", "--set"]
    with support.Job(["--nproc_per_node=1", *args, f"checkpointing.checkpoint_dir={folder}/first"]) as running:
        support.wait_until(lambda: (out / "metrics.jsonl").exists(), "the first job's steps")
        for more in [], [f"checkpointing.checkpoint_dir={folder}/second"]:
            second = training.train(job, out, sets=more)
            assert second.code == 2 and f"{out}/checkpoints: in use by host " in second.err and "give this one another --output_dir" in second.err, second
        running.kill()
    assert not (folder / "second").exists()


def test_a_round_goes_on_in_its_own_folder(place):
    """Before the first checkpoint a worker dies: the next round begins anew, and its numbers take the place of those that were."""
    folder, job = place
    out = folder / "round"
    args = ["--nproc_per_node=2", "--max_restarts=1", "train", job, "--output_dir", out]
    sets = ["checkpointing.save_every_n_steps=0", "logging.log_every_n_steps=1", "training.max_steps=400", "training.eval_every_n_steps=0"]
    with support.Job([*args, *(y for x in sets for y in ("--set", x))]) as running:
        os.kill(training.wait_pages(running, 2, 20)[1].pid, signal.SIGKILL)
        result = running.finish()
    assert result.code == 0 and "is of another run" not in result.err, result
    assert sorted(training.metrics(out, "loss")) == list(range(1, 401)) and not list(out.glob("*.old-*"))


def test_a_project_of_somebody_else_in_a_scratch_space():
    """Its leader has made the folder and the group may write to it. Refused, unless that user is trusted; only root hears of chown."""
    with support.as_nobody() as (folder, words):
        scratch, project = os.path.join(folder, "scratch"), os.path.join(folder, "scratch", "project")
        os.makedirs(project)
        os.chown(project, 65533, 65534)
        os.chmod(project, 0o2775)
        os.chmod(scratch, 0o1777)
        args = [*words, f"--log_dir={project}/mine/logs", "-r", "3", "/bin/echo", "written"]
        refused = support.run(args, executable="setpriv")
        taken = support.run(args, executable="setpriv", env={"DTRUN_TRUST_FOLDERS": "1"})
        assert refused.code == 2 and refused.err == (
            f"dtrun: --log_dir: {project}: belongs to user 65533, and anybody could have put it into {scratch}; choose another folder, "
            "or set DTRUN_TRUST_FOLDERS=1 where this user is trusted\n"), refused
        assert taken.code == 0, taken
        assert any("written" in open(os.path.join(where, name)).read() for where, _, names in os.walk(project) for name in names if name == "stdout.log")
