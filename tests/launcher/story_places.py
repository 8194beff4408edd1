# covers: launcher cmd/dtrun.c base/cgroup.c
"""Where people run it: an install folder with spaces, a foreign working folder, an ordinary user, odd umasks, two jobs at once, many ranks
on few cores, one CPU, closed streams, a terminal of 80 columns.
run: timeout 300
"""

import glob
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

import pytest
import support
import training
from places import control_group, little_memory


@pytest.fixture(scope="module")
def place():
    """Not below pytest's folders: each pytest that starts closes those to other users."""
    with tempfile.TemporaryDirectory(prefix="dtrun-places-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        yield made_in(folder)


def made_in(folder):
    job = training.make_job(folder, steps=20, training={"eval_every_n_steps": 10})
    result = training.train(job, folder / "plain", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "plain")


def shell(line, env=None, cwd=None, timeout_s=support.DEADLINE_S):
    """Runs a shell line and fails when something of it is left."""
    env = support.clean_env(env)
    p = subprocess.run(["sh", "-c", line], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    support.wait_until(lambda: not support.marked(env[support.MARKER]), "the end of all processes")
    return p


def command(job, out, ranks=2):
    return f"'{support.program('dtrun')}' --nproc_per_node={ranks} train '{job}' --output_dir '{out}'"


def same(place, p, out):
    assert p.returncode == 0, p
    assert training.hash_of(out) == place[2], p


@pytest.fixture(scope="module")
def installed(place):
    """The programs under a prefix with spaces, as `make install` puts them, readable by everybody."""
    root = place[0] / "a folder" / "with spaces"
    p = subprocess.run(["make", "-s", "-C", support.ROOT, "-n", "install", f"DESTDIR={root}", "PREFIX=/opt/d t"], capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode == 0, p
    lines = [x for x in p.stdout.splitlines() if x.startswith(("install ", "for p in "))]  # nothing is built here
    p = subprocess.run(["sh", "-e", "-c", "\n".join(lines)], cwd=support.ROOT, capture_output=True, text=True, timeout=support.DEADLINE_S)
    assert p.returncode == 0, p
    return root / "opt" / "d t"


def test_uninstall_removes_what_install_put_there(place, installed, tmp_path):
    prefix = tmp_path / "a root" / "opt" / "d t"
    shutil.copytree(installed, prefix)
    (prefix / "bin" / "mine").write_text("stays")
    (prefix / "share" / "doc" / "dtrun" / "notes").write_text("stays")
    p = subprocess.run(["make", "-s", "-C", support.ROOT, "uninstall", f"DESTDIR={tmp_path}/a root", "PREFIX=/opt/d t"], capture_output=True, text=True,
                       timeout=support.DEADLINE_S)
    left = sorted(os.path.join(at, x) for at, _, files in os.walk(prefix) for x in files)
    assert (p.returncode, p.stdout, p.stderr) == (0, "", ""), p
    assert [x.name for x in sorted(installed.glob("share/man/man1/*"))] == sorted(os.listdir(f"{support.ROOT}/docs/man"))
    assert left == [f"{prefix}/bin/mine", f"{prefix}/share/doc/dtrun/notes"] and not (prefix / "libexec" / "dtrun").exists()
    assert len(list(installed.glob("bin/*"))) == 3  # others' installations stay


def test_installed_under_a_prefix_with_spaces(place, installed):
    folder, job, _ = place
    out = folder / "out put"
    p = shell(f"cd / && '{installed}/bin/dtrun' --nproc_per_node=2 train '{job}' --output_dir '{out}'")
    same(place, p, out)


def test_a_foreign_working_folder(place, tmp_path):
    """Paths of the command line are the caller's, those of a job say where they are."""
    folder, job, _ = place
    p = shell(f"{support.DTRUN} --nproc_per_node=2 train {os.path.relpath(job, tmp_path)} --output_dir here/run", cwd=tmp_path)
    same(place, p, tmp_path / "here" / "run")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root and setpriv")
def test_an_ordinary_user(place, installed):
    folder, job, _ = place
    home = folder / "nobody"
    home.mkdir()
    os.chown(home, 65534, 65534)
    p = shell(f"cd '{home}' && exec setpriv --reuid=65534 --regid=65534 --clear-groups '{installed}/bin/dtrun' --nproc_per_node=2 train '{job}' --output_dir run",
              env={"HOME": str(home), "TMPDIR": None})
    same(place, p, home / "run")
    assert all(os.lstat(x).st_uid == 65534 for x in glob.glob(f"{home}/run/**", recursive=True))


@pytest.mark.parametrize("mask", ["000", "077"])
def test_umask(place, mask):
    folder, job, _ = place
    out = folder / f"umask-{mask}"
    p = shell(f"umask {mask}; {command(job, out)}")
    same(place, p, out)
    if mask == "077":
        assert not [x for x in glob.glob(f"{out}/**", recursive=True) if os.path.isfile(x) and stat.S_IMODE(os.stat(x).st_mode) & 0o077]
    else:
        assert not [x for x in glob.glob(f"{out}/**", recursive=True) if stat.S_IMODE(os.stat(x).st_mode) & 0o111 and os.path.isfile(x)]


def test_two_jobs_at_once_with_the_same_names(place, tmp_path):
    folder, job, _ = place
    for i in "ab":
        (tmp_path / i).mkdir()
        shutil.copy(job, tmp_path / i / "job.json")
    jobs = [support.Job(["--nproc_per_node=2", "--rdzv_id=same", "train", "job.json", "--output_dir", "run"], cwd=tmp_path / i) for i in "ab"]
    try:
        for one, i in zip(jobs, "ab"):
            result = one.finish()
            assert result.code == 0, result
            assert training.hash_of(tmp_path / i / "run") == place[2]
            one.wait_gone()
    finally:
        for one in jobs:
            one.kill()


def test_more_ranks_than_cores(place):
    folder, job, _ = place
    ranks = 64 if os.environ.get("DTRUN_ALL") else 24
    out = folder / "many"
    result = training.train(job, out, ranks=ranks, sets=["training.max_steps=6", "training.batch_size_per_gpu=1", "training.eval_every_n_steps=0"],
                            timeout_s=4 * support.DEADLINE_S)
    assert result.code == 0 and "done at step 6" in result.err, result


@pytest.mark.skipif(not shutil.which("taskset"), reason="taskset is not installed")
def test_one_cpu(place):
    folder, job, _ = place
    cpu = min(os.sched_getaffinity(0))
    p = shell(f"taskset -c {cpu} {command(job, folder / 'one-cpu')}")
    same(place, p, folder / "one-cpu")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_closed_streams(place, closed):
    folder, job, _ = place
    out = folder / ("closed" + re.sub(r"\W", lambda m: str(ord(m[0])), closed))
    p = shell(f"{command(job, out)} {closed}")
    same(place, p, out)


def test_a_reader_that_goes_away(place):
    folder, job, _ = place
    out = folder / "reader"
    shell(f"({command(job, out)}; echo $? >'{folder}/reader-code') 2>&1 | head -n 1")
    assert (folder / "reader-code").read_text() == "0\n"
    assert training.hash_of(out) == place[2]


@pytest.mark.skipif(not shutil.which("script"), reason="script is not installed")
@pytest.mark.parametrize("columns", [80, 20])
def test_a_narrow_terminal(place, columns):
    """Progress replaces its line, which therefore fits; what stays is whole."""
    folder, job, _ = place
    out, log = folder / f"terminal-{columns}", folder / f"terminal-{columns}.txt"
    p = shell(f"script -qec \"stty cols {columns} rows 24; {command(job, out)}\" '{log}' >/dev/null")
    same(place, p, out)
    text = log.read_bytes().decode(errors="replace")
    shown = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", x).rstrip() for x in re.split(r"[\r\n]+", text) if "step" in x and "COMMAND" not in x]
    progress = [x for x in shown if x.startswith("step ") and "val loss" not in x]
    assert progress and max(map(len, progress)) < columns, shown
    assert "done at step 20" in text and "\r\x1b[K" in text


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root and setpriv")
def test_set_user_id_is_refused(tmp_path):
    program = shutil.copy(support.DTRUN, tmp_path / "dtrun")
    os.chmod(program, 0o4755)
    for path in [tmp_path, *tmp_path.parents]:
        if path.stat().st_uid == os.geteuid() and str(path).startswith("/tmp/"):
            os.chmod(path, 0o755)
    p = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "id", "-u"], env=support.clean_env(), capture_output=True, text=True,
                       timeout=support.DEADLINE_S)
    if p.returncode == 0 and p.stdout == "65534\n":
        pytest.skip("this file system ignores the set-user-id bit")
    assert (p.returncode, p.stdout) == (2, "") and p.stderr.startswith("dtrun: set-user-id"), p


def inside(path, line):
    return f"echo $$ >{path}/cgroup.procs && exec {line}"


def test_little_memory_in_a_control_group(place):
    """What the group allows is what the plan counts with."""
    folder, job, _ = place
    with little_memory(300) as path:
        p = shell(inside(path, command(job, folder / "cgroup")))
        same(place, p, folder / "cgroup")
        p = shell(inside(path, command(job, folder / "cgroup-large") + " --set model.n_embd=1024 --set model.n_layer=8"))
        assert p.returncode == 2 and "memory" in p.stderr and not (folder / "cgroup-large").exists(), p


def test_out_of_memory_is_named():
    """By the kernel's counter: a kill -9 by somebody is not mistaken for it."""
    with little_memory(100) as path:
        run = f"'{support.DTRUN}' --nproc_per_node=2 sh -c 'if [ $RANK = 1 ]; then exec {{}}; fi; exec sleep 1000'"
        p = shell(inside(path, run.format("tail /dev/zero")))
        assert p.returncode == 1, p
        assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): killed by the kernel, out of memory \(limit 100 MiB of the control group, "
                         r"peak \S+ MiB\); use less memory per rank; 1 other rank stopped because of it$", p.stderr, re.M), p
        p = shell(inside(path, run.format(f'{support.PYTHON} -c "import os; os.kill(os.getpid(), 9)"')))
        assert p.returncode == 1 and "killed by signal 9 (SIGKILL)" in p.stderr and "out of memory" not in p.stderr, p


@pytest.mark.parametrize("kind", ["set", "quota"])
def test_one_cpu_of_a_control_group(place, kind):
    folder, job, _ = place
    cpu = min(os.sched_getaffinity(0))
    groups = {"set": ("cpuset", {"cpuset.mems": 0, "cpuset.cpus": cpu}, {"cpuset.cpus": cpu}),
              "quota": ("cpu", {"cpu.cfs_period_us": 100000, "cpu.cfs_quota_us": 100000}, {"cpu.max": "100000 100000"})}
    with control_group(*groups[kind]) as path:
        p = shell(inside(path, command(job, folder / f"cpu-{kind}")))
        same(place, p, folder / f"cpu-{kind}")
        p = shell(inside(path, f"'{support.DTRUN}' --dry_run --nproc_per_node=cpu /bin/true"))
        assert "workers   1, cpu (" in p.stdout, p
