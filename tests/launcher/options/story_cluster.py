# covers: launcher/options
"""dtrun inside the variables of each scheduler: a job on one host runs as without one, workers get our values, and what does not fit is said once."""

import os
import re
import shutil
import socket
import subprocess

import pytest
from support import DEADLINE_S, DTRUN, ROOT, clean_env, run, script
from nodes import free_port

pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
SHOW = ["sh", "-c", 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR"']
HOST = socket.gethostname()

SRUN = {"SLURM_JOB_ID": "771234", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": HOST,
        "SLURM_JOB_NODELIST": HOST, "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_TASKS_PER_NODE": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
BATCH = {k: v for k, v in SRUN.items() if "STEP" not in k} | {"SLURM_TASKS_PER_NODE": "8", "SLURM_NTASKS": "8"}
ONE_HOST = {
    "srun": ("slurm", SRUN),
    "sbatch": ("slurm", BATCH),
    "restarted": ("slurm", SRUN | {"SLURM_RESTART_COUNT": "2"}),
    "array": ("slurm", SRUN | {"SLURM_ARRAY_JOB_ID": "771230", "SLURM_ARRAY_TASK_ID": "4"}),
    "kubeflow": ("kubeflow", {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1"}),
    "indexed job": ("kubernetes", {"JOB_COMPLETION_INDEX": "0"}),
    "lsf": ("lsf", {"LSB_JOBID": "5", "LSB_HOSTS": HOST}),
    "jsrun": ("lsf", {"LSB_JOBID": "5", "JSM_NAMESPACE_SIZE": "1", "JSM_NAMESPACE_RANK": "0", "JSM_NAMESPACE_LOCAL_RANK": "0",
                      "JSM_NAMESPACE_LOCAL_SIZE": "1"}),
    "pbs": ("pbs", {"PBS_JOBID": "12.server", "PBS_NODEFILE": "/nowhere/nodes"}),
    "open mpi": ("mpi", {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}),
    "hydra": ("mpi", {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0", "PMI_SIZE": "1", "PMI_RANK": "0"}),
    "pmi": ("mpi", {"PMI_SIZE": "1", "PMI_RANK": "0"}),
    "pmix": ("mpi", {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}),
}


def cluster_of(result):
    return re.search(r"^cluster   (\S+?)(,|$)", result.out, re.M).group(1)


@pytest.mark.parametrize("case", ONE_HOST)
def test_a_job_on_one_host_is_the_same_under_every_scheduler(case):
    name, env = ONE_HOST[case]
    result = run(["--nproc_per_node=2", *SHOW], env=env)
    assert result.code == 0 and result.err == "", result
    assert sorted(result.out.splitlines()) == ["0/2 0/2 0 127.0.0.1", "1/2 1/2 0 127.0.0.1"], result
    shown = run(["--dry_run", "/bin/true"], env=env)
    assert cluster_of(shown) == name, shown


def test_dry_run_names_the_variables():
    shown = run(["--dry_run", "/bin/true"], env=SRUN | {"SLURM_RESTART_COUNT": "2"})
    for line in ("job 771234 (SLURM_JOB_ID)", "started again 2 (SLURM_RESTART_COUNT)", "hosts 1 (SLURM_STEP_NUM_NODES)", f"list {HOST} (SLURM_STEP_NODELIST)"):
        assert line in shown.out, shown
    assert cluster_of(run(["--dry_run", "--cluster=none", "/bin/true"], env=SRUN)) == "none"


# This host is the second of two: options, variables (@ is a file of hosts), what is said of hosts, of us and of the endpoint, and workers per host.
TWO_HOSTS = {
    "srun": (["--nproc_per_node=2"], SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
             "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "a[1-2]"}, "SLURM_STEP_NUM_NODES", "SLURM_NODEID",
             "a1 port 16234, static (SLURM_STEP_NODELIST)", 2),
    "kubeflow": ([], {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "29400"},
                 "PET_NNODES", "PET_NODE_RANK", "job-0 port 29400, static (PET_MASTER_ADDR)", 4),
    "indexed job": (["--nnodes=2", "--rdzv_endpoint=job-0.job:29500"], {"JOB_COMPLETION_INDEX": "1"}, "--nnodes", "JOB_COMPLETION_INDEX",
                    "job-0.job port 29500, static (--rdzv_endpoint)", 1),
    "pmix with an address": (["--nnodes=2"], {"PMIX_RANK": "1", "MASTER_ADDR": "a1"}, "--nnodes", "PMIX_RANK", "a1 port 29500, static (MASTER_ADDR)", 1),
    "pmix": (["--nnodes=2", "--rdzv_endpoint=a1:4444"], {"PMIX_RANK": "1", "PMIX_NAMESPACE": "f"}, "--nnodes", "PMIX_RANK",
             "a1 port 4444, static (--rdzv_endpoint)", 1),
    "pytorchjob": (["--cluster=pytorchjob"], {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}, "WORLD_SIZE", "RANK",
                   "job-master-0 port 23456, static (MASTER_ADDR)", 1),
    "jsrun": ([], {"LSB_JOBID": "5", "LSB_DJOB_RANKFILE": "@launch a1 a1 HERE HERE", "JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2",
                   "JSM_NAMESPACE_LOCAL_RANK": "0", "JSM_NAMESPACE_LOCAL_SIZE": "1"}, "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK",
              "a1 port 15005, static (LSB_DJOB_RANKFILE)", 1),
    "pbs": (["--cluster=pbs"], {"PBS_JOBID": "12.server", "PBS_NODEFILE": "@a1 a1 HERE HERE"}, "PBS_NODEFILE", "PBS_NODEFILE",
            "a1 port 15012, static (PBS_NODEFILE)", 1),
    "open mpi": ([], {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                      "MASTER_ADDR": "a1"}, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "a1 port 29500, static (MASTER_ADDR)", 1),
    "hydra": ([], {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0", "PMI_SIZE": "2", "PMI_RANK": "1", "MASTER_ADDR": "a1", "MASTER_PORT": "3333"},
              "PMI_SIZE", "PMI_RANK", "a1 port 3333, static (MASTER_ADDR)", 1),
    "pmi": (["--rdzv_endpoint=a1:4444"], {"PMI_SIZE": "2", "PMI_RANK": "1"}, "PMI_SIZE", "PMI_RANK", "a1 port 4444, static (--rdzv_endpoint)", 1),
    "pmi with an address": ([], {"PMI_SIZE": "2", "PMI_RANK": "1", "MASTER_ADDR": "a1", "MASTER_PORT": "3333"}, "PMI_SIZE", "PMI_RANK",
                            "a1 port 3333, static (MASTER_ADDR)", 1),
    "plain": (["--nnodes=2", "--node_rank=1", "--rdzv_endpoint=[fd00::1]:4444"], {}, "--nnodes", "--node_rank",
              "fd00::1 port 4444, static (--rdzv_endpoint)", 1),
}


@pytest.mark.parametrize("case", TWO_HOSTS)
def test_dry_run_on_the_second_of_two_hosts(case, tmp_path):
    options, env, hosts, rank, endpoint, each = TWO_HOSTS[case]
    for name, value in env.items():
        if value.startswith("@"):
            (tmp_path / "list").write_text(value[1:].replace("HERE", HOST).replace(" ", "\n") + "\n")
            env = env | {name: str(tmp_path / "list")}
    shown = run([*options, "--dry_run", "/bin/true"], env=env | {"OMP_NUM_THREADS": "1"})
    assert shown.code == 0 and shown.err == "", shown
    address, _, port = endpoint.split()[:3]
    for line in (f"hosts     2 ({hosts})", f"this host 1 ({rank})", f"endpoint  {endpoint}"):
        assert line + "\n" in shown.out, (line, shown)
    variables = dict(line.strip().split("=", 1) for line in shown.out.split("variables of the first worker here")[1].splitlines()[1:])
    wanted = {"RANK": each, "WORLD_SIZE": 2 * each, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": each, "GROUP_RANK": 1, "GROUP_WORLD_SIZE": 2,
              "MASTER_ADDR": address, "MASTER_PORT": port.rstrip(",")}
    assert {k: variables[k] for k in wanted} == {k: str(v) for k, v in wanted.items()}, shown


@pytest.mark.parametrize("count, shown", [("2:4", "2 to 4"), ("3:3", "3"), ("3", "3")])
def test_a_range_of_hosts_is_shown_alike_everywhere(count, shown):
    result = run(["--dry_run", "/bin/true"], env={"PET_NNODES": count, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "job-0:29500"})
    assert f"hosts     {shown} (PET_NNODES)\n" in result.out and f"          hosts {shown} (PET_NNODES)\n" in result.out, result


def test_hosts_that_mpi_does_not_name_are_asked_for():
    result = run(["/bin/true"], env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
                                     "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert result.code == 2 and "add --rdzv_endpoint=HOST:PORT" in result.err, result


POD = {"KUBERNETES_SERVICE_HOST": "x", "JOB_COMPLETION_INDEX": "1"}


@pytest.mark.parametrize("env, said", [
    (POD, "JOB_COMPLETION_INDEX: 1: of how many hosts? add --nnodes=N; N=1: a job of its own"),
    (POD | {"MASTER_ADDR": "job-0.svc"}, "JOB_COMPLETION_INDEX: 1: of how many hosts? add --nnodes=N; N=1: a job of its own"),
    (POD | {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX: x: must be a number; correct it, or add --cluster=none"),
    ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "f"}, "PMIX_RANK: 1: of how many hosts? add --nnodes=N; N=1: a job of its own"),
    ({"PMI_SIZE": "two", "PMI_RANK": "0"}, "PMI_SIZE: two: must be a number; correct it, or add --cluster=none"),
])
def test_a_numbered_host_of_an_unknown_number_does_not_train_alone(env, said):
    for options in ([], ["--dry_run"]):
        result = run([*options, *SHOW], env=env)
        assert result.code == 2 and result.out == "" and result.err == f"dtrun: {said}\n", result
    for options in (["--nnodes=1"], ["--standalone"], ["--cluster=none"]):
        result = run([*options, *SHOW], env=env)
        assert result.code == 0 and result.out == "0/1 0/1 0 127.0.0.1\n" and result.err == "", result


def test_a_number_that_cannot_be_read_is_not_0():
    """Several hosts would all be the first one."""
    options = ["--nnodes=2", "--rdzv_endpoint=a1:4444", "--dry_run", "/bin/true"]
    result = run(options, env=POD | {"JOB_COMPLETION_INDEX": "x"})
    assert result.code == 2 and result.err.startswith("dtrun: JOB_COMPLETION_INDEX: x: must be a number;"), result
    assert "this host 1 (--node_rank)" in run(["--node_rank=1", *options], env=POD | {"JOB_COMPLETION_INDEX": "x"}).out


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="no Open MPI: scripts/setup.sh --slurm installs it")
def test_mpirun_for_real():
    env = clean_env({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    show = 'echo "$OMPI_COMM_WORLD_RANK $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE"'

    def mpirun(count, *options):
        done = subprocess.run(["mpirun.openmpi", "--oversubscribe", "-n", str(count), DTRUN, *options, "sh", "-c", show], env=env, capture_output=True, text=True,
                              timeout=DEADLINE_S)
        assert done.returncode == 0, done
        return sorted(done.stdout.splitlines())

    assert mpirun(1, "--nproc_per_node=2") == ["0 0/2 0/2 0/1", "0 1/2 1/2 0/1"]
    assert mpirun(3, f"--rdzv_endpoint=127.0.0.1:{free_port()}") == [f"{i} {i}/3 {i}/3 0/1" for i in range(3)]


def test_a_batch_script_uses_its_own_host_and_says_so():
    result = run(SHOW, env=BATCH | {"SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "a[1-4]"})
    assert result.code == 0 and result.out == "0/1 0/1 0 127.0.0.1\n", result
    assert result.err == "dtrun: slurm: 4 hosts are allocated (SLURM_NNODES), this run uses one; to use all: srun --ntasks-per-node=1 dtrun ...\n"


def test_an_explicit_number_of_hosts_wins_with_one_line():
    result = run(["--nnodes=1", *SHOW], env=SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"})
    assert result.code == 0 and result.out == "0/1 0/1 0 127.0.0.1\n", result
    assert result.err == "dtrun: number of hosts: --nnodes says 1, SLURM_STEP_NUM_NODES says 2; --nnodes counts\n"


def test_a_place_to_meet_that_is_not_the_first_host_is_named():
    env = SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NUM_TASKS": "2"}
    for address, said in (("localhost", True), ("a2", True), ("a1.site", False), ("10.0.0.7", False), ("fd00::a1", False)):
        shown = run(["--dry_run", "/bin/true"], env=env | {"MASTER_ADDR": address})
        line = f"dtrun: where hosts meet: MASTER_ADDR says {address}, rank 0 of SLURM_STEP_NODELIST is a1; MASTER_ADDR counts\n"
        assert shown.code == 0 and shown.err == (line if said else "") and f"endpoint  {address} port 16234" in shown.out, shown


def test_a_task_per_worker_is_refused_with_the_line_to_use():
    env = SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
    result = run(["--nproc_per_node=4", *SHOW], env=env)
    assert result.code == 2 and result.out == "" and result.err.count("\n") == 1, result
    assert "it started 4 tasks on 1 host, " in result.err and "srun --ntasks-per-node=1" in result.err
    alone = run(["--nproc_per_node=2", "--cluster=none", *SHOW], env=env)
    assert alone.code == 0 and alone.err == "", alone


@pytest.mark.parametrize("port", ["99999", "0", "abc", "12x"])
def test_a_port_that_is_none_is_refused(port):
    """Each host might take another one in its place."""
    for env in ({"WORLD_SIZE": "3", "RANK": "1"}, SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "m,n", "SLURM_NODEID": "1"}):
        options = ["--cluster=pytorchjob"] if "RANK" in env else []
        result = run([*options, "--dry_run", "/bin/true"], env={**env, "MASTER_ADDR": "m", "MASTER_PORT": port})
        assert result.code == 2, result
        assert result.err == f"dtrun: MASTER_PORT: {port}: must be a port, 1 to 65535; correct or unset it, or add --master_port=PORT\n", result
        given = run([*options, "--master_port=29511", "--dry_run", "/bin/true"], env={**env, "MASTER_ADDR": "m", "MASTER_PORT": port})
        assert given.code == 0 and "29511" in given.out, given


def test_inherited_ranks_are_not_taken_and_always_overwritten():
    """A container file that counts pods with RANK and WORLD_SIZE, beside a launcher."""
    result = run(["--nproc_per_node=3", *SHOW], env={"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "9", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1"})
    assert result.code == 0, result
    assert sorted(result.out.splitlines()) == [f"{i}/3 {i}/3 0 127.0.0.1" for i in range(3)]
    assert result.err == ("dtrun: WORLD_SIZE=2 and RANK=1 are inherited and not used: this job has 1 host with 3 workers each; if they count hosts: "
                          "--cluster=pytorchjob\n")
    one = run(["--cluster=pytorchjob", *SHOW], env={"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"})
    assert one.code == 0 and one.err == "" and one.out == "0/1 0/1 0 127.0.0.1\n", one


def test_a_launcher_below_a_launcher_is_not_the_schedulers():
    """Its worker inherits the variables of the step; only the outer launcher was started by srun."""
    env = SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    result = run(["--cluster=none", "sh", "-c", f"exec {DTRUN} --nproc_per_node=2 " + 'sh -c \'echo "$RANK/$WORLD_SIZE"\''], env=env)
    assert result.code == 0 and sorted(result.out.splitlines()) == ["0/2", "1/2"], result


def test_a_wrong_name_is_refused():
    result = run(["--cluster=zeus", "/bin/true"])
    assert result.code == 2 and result.err == "dtrun: --cluster: zeus: must be one of slurm lsf pbs flux mpi kubeflow kubernetes pytorchjob none\n"
    result = run(["--cluster=pbs", "/bin/true"])
    assert result.code == 2 and "none of its variables is set here" in result.err


def test_requeue_needs_a_scheduler():
    result = run(["--requeue=on", "/bin/true"])
    assert result.code == 2 and result.err == "dtrun: --requeue: on: there is no scheduler here that could run the job again (slurm, lsf)\n"
    result = run(["--requeue=perhaps", "/bin/true"], env=SRUN)
    assert result.code == 2 and "--requeue: perhaps: must be" in result.err, result


def stand_ins(folder, code, log):
    """srun, jsrun, scontrol, brequeue and dtrun that write what they were asked; dtrun ends with `code`."""
    for name in ("srun", "jsrun"):
        script(folder, name, f'echo "{name} $*" >>{log}\nwhile [ "$1" != dtrun ]; do shift; done\nexec "$@"\n')
    for name in ("scontrol", "brequeue"):
        script(folder, name, f'echo "{name} $*" >>{log}\n')
    script(folder, "dtrun", f'echo "dtrun $*" >>{log}\nexit {code}\n')


@pytest.mark.parametrize("code, again", [(0, False), (1, False), (75, True), (111, True), (143, False), (100, False)])
def test_the_batch_scripts_start_one_launcher_per_host_and_requeue(tmp_path, code, again):
    log = tmp_path / "log"
    stand_ins(tmp_path, code, log)
    env = clean_env({"DTRUN_BIN": str(tmp_path), "SLURM_JOB_ID": "7", "LSB_JOBID": "8", "JOB": "job.json"})
    done = subprocess.run(["bash", os.path.join(ROOT, "scripts/slurm/train.sbatch"), "job.json", "training.seed=7"], env=env, timeout=DEADLINE_S)
    lines = log.read_text().splitlines()
    assert lines[0].startswith("srun --ntasks-per-node=1 ") and lines[1] == ("dtrun --nproc_per_node=auto --max_restarts=3 --shutdown_timeout=120 --requeue=off "
                                                                       "train job.json --set training.seed=7")
    assert lines[2:] == (["scontrol requeue 7"] if again else []) and done.returncode == (0 if again else code)
    log.unlink()
    done = subprocess.run(["bash", os.path.join(ROOT, "scripts/lsf/train.lsf")], env=env, timeout=DEADLINE_S)
    lines = log.read_text().splitlines()
    assert lines[0].startswith("jsrun --rs_per_host=1 --tasks_per_rs=1 ") and lines[1] == ("dtrun --nproc_per_node=6 --max_restarts=3 --shutdown_timeout=100 "
                                                                                    "--requeue=off train job.json")
    assert lines[2:] == (["brequeue 8"] if again else []) and done.returncode == (0 if again else code)


def test_a_list_of_hosts_that_cannot_be_read_is_quoted():
    """It says where rank 0 is, but for a slip: that it does not say so would send people elsewhere."""
    env = SRUN | {"SLURM_STEP_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_STEP_NODELIST": "n[1-", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NUM_TASKS": "2"}
    result = run(SHOW, env=env)
    assert result.code == 2 and result.err == ("dtrun: slurm: SLURM_STEP_NODELIST: n[1-: a range must be LO-HI with LO <= HI; or add "
                                               "--rdzv_endpoint=HOST:PORT\n"), result
