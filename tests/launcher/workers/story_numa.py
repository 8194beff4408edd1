# covers: launcher/workers
"""--numa_binding: the masks are torch's on trees of all kinds, and the kernel shows that workers have them. The latter with files in the place of /sys
and a driver of ours in the place of CUDA's, in a mount namespace of its own (root).

run: timeout 240"""

import json
import os
import random
import socket
import subprocess
import time

import dropin
import pytest
from support import DTRUN, PYTHON, ROOT, TOOLS, Job, children, clean_env, run, wait_until
from sysfs import Machine, text_of

MODES = ("node", "socket", "exclusive", "core-complex")
TOOL = os.path.join(TOOLS, "numa_masks")
MINE = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
has_tool = pytest.mark.skipif(not os.path.exists(TOOL), reason="tools are not built: make tools")


def masks_of(root, mode, allowed, addresses):
    return subprocess.run([TOOL, root, mode, text_of(allowed), *addresses], check=True, capture_output=True, text=True).stdout.splitlines()


MACHINES = {  # name: machine, CPUs that may be used (None: all)
    "one socket": (Machine(cores=8, devices=[0, 0, 0]), None),
    "one node that the kernel does not name": (Machine(cores=8, devices=[-1, -1]), None),
    "two sockets, four nodes, threads": (Machine(2, 2, 2, 4, 2, devices=[0, 1, 2, 3, 0, 1, 2, 3], split_threads=True), None),
    "threads side by side": (Machine(2, 1, 2, 4, 2, devices=[1, 1, 0]), None),
    "ragged complexes": (Machine(1, 2, 3, [2, 5, 3, 1, 4, 4], 2, devices=[0, 0, 0, 0, 1, 1, 1], split_threads=True), None),
    "offline CPUs": (Machine(2, 1, 2, 4, 2, devices=[0, 0, 1, 1], split_threads=True, offline=(0, 5, 17, 30)), None),
    "a cut affinity": (Machine(2, 2, 1, 6, 2, devices=[0, 0, 1, 2, 3], split_threads=True), {1, 2, 3, 8, 9, 14, 20, 25, 26, 40, 44}),
    "more devices than cores": (Machine(1, 1, 1, 2, 2, devices=[0, 0, 0]), None),
    "no CPU that may be used": (Machine(2, 1, 1, 4, devices=[0, 1]), {0, 1}),
    "hundreds of CPUs": (Machine(2, 4, 8, 8, 2, devices=[3, 1, 7, 5, 0, 2, 4, 6], split_threads=True), None),
}


def drawn(seed):
    """A machine and an affinity from a seed."""
    r = random.Random(seed)
    sockets, nodes, complexes = r.randint(1, 2), r.randint(1, 3), r.randint(1, 3)
    cores = [r.randint(1, 5) for _ in range(sockets * nodes * complexes)]
    threads = r.randint(1, 2)
    total = sum(cores) * threads
    offline = r.sample(range(total), r.randint(0, total // 4))
    machine = Machine(sockets, nodes, complexes, cores, threads, [r.randrange(sockets * nodes) for _ in range(r.randint(1, 8))], r.random() < 0.5, offline)
    return machine, set(r.sample(sorted(machine.cpus), r.randint(1, len(machine.cpus)))) if r.random() < 0.5 else None


@has_tool
@pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_masks_are_those_of_torch(tmp_path):
    machines = {**MACHINES, **{f"seed {i}": drawn(i) for i in range(60)}}
    cases, names = [], []
    for k, (name, (machine, allowed)) in enumerate(machines.items()):
        root = machine.write(str(tmp_path / str(k)))
        for mode in MODES:
            names.append((name, mode))
            cases.append({"root": root, "allowed": sorted(machine.cpus if allowed is None else allowed), "addresses": machine.addresses, "mode": mode})
    driver = os.path.join(ROOT, "tests", "peers", "numa_masks.py")
    done = subprocess.run([dropin.PEER_PYTHON, driver], input=json.dumps(cases), capture_output=True, text=True, timeout=200, env=clean_env(), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    masks = failures = 0
    for name, case, answer in zip(names, cases, json.loads(done.stdout), strict=True):
        ours = masks_of(case["root"], case["mode"], case["allowed"], case["addresses"])
        for device, (mine, torchs) in enumerate(zip(ours, answer, strict=True)):
            where = (*name, "device", device, mine, torchs)
            if isinstance(torchs, list):
                assert mine == text_of(torchs), where
                masks += 1
            elif "empty sequence" in torchs and case["mode"] == "socket" and not mine.startswith("error: "):
                own = next(m for n, (m, _) in machines.items() if n == name[0])  # another node of the socket has no CPU for us: ours leaves it out
                node = max(own.devices[device], 0)
                socket = {own.cpus[c][0] for c in own.nodes[node]}.pop()
                assert mine == text_of(c for c in case["allowed"] if own.cpus[c][0] == socket), where
            else:
                assert mine.startswith("error: "), where
                failures += 1
    assert masks > 500 and failures > 20, (masks, failures)


@has_tool
def test_nodes_that_are_possible_only_have_no_part(tmp_path):
    """With possible nodes that are not there, or have only memory, torch fails for --numa-binding=socket."""
    root = Machine(2, 1, 1, 4, devices=[0, 1], bare_nodes=(2,), possible=set(range(8))).write(str(tmp_path / "sys"))
    addresses = Machine(devices=[0, 1]).addresses
    assert masks_of(root, "socket", range(8), addresses) == ["0-3", "4-7"]
    assert masks_of(root, "node", range(8), ["-"] * 4) == ["0-3", "0-3", "4-7", "4-7"]
    assert masks_of(root, "node", range(8), ["-"] * 3) == ["0-3", "0-3", "4-7"]
    assert masks_of(root, "exclusive", range(8), ["-"] * 6) == ["0-1", "2", "3", "4-5", "6", "7"]
    assert masks_of(root, "node", {5, 6}, ["-"] * 2) == ["5-6", "5-6"]


# ---- the program, with this machine's CPUs in two nodes ----

DRIVER = r"""
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) { if (getenv("FAKE_HANG")) pause(); if (getenv("FAKE_CRASH")) abort(); return getenv("FAKE_INIT") ? atoi(getenv("FAKE_INIT")) : (int)flags; }
int cuDeviceGetCount(int *n) { *n = getenv("FAKE_COUNT") ? atoi(getenv("FAKE_COUNT")) : 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = 100 + i; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { int i = d - 100; *v = a == 33 ? 0x3b + i : a == 34 ? i % 32 : a == 50 ? i % 3 : -1; return 0; }
"""
needs_mounts = pytest.mark.skipif(os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
                                  reason="needs a mount namespace of its own (root)")
needs_two = pytest.mark.skipif(len(MINE) < 2 or MINE[:2] != [0, 1], reason="needs CPUs 0 and 1")
SHOW = "import os; os.write(1, f'{os.environ[\"RANK\"]} {sorted(os.sched_getaffinity(0))} {os.environ[\"DTRUN_CPU_SHARERS\"]}\\n'.encode())"


@pytest.fixture
def machine(tmp_path):
    """arguments and variables -> those of a dtrun that finds two nodes with a CPU each; GPU 0 is near node 1, GPU 1 near node 0."""
    root = Machine(2, 1, 1, 1, devices=[1, 0]).write(str(tmp_path / "sys"))
    (tmp_path / "driver.c").write_text(DRIVER)
    (tmp_path / "lib").mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "lib" / "libcuda.so.1", tmp_path / "driver.c"], check=True)
    mounts = f'mount --bind {root}/devices/system /sys/devices/system && mount --bind {root}/bus /sys/bus && exec "$@"'

    def start(args, gpus=True, **more):
        env = {"LOGLEVEL": "INFO", "LD_LIBRARY_PATH": str(tmp_path / "lib") if gpus else None, **more}
        return Job(["-m", "sh", "-c", mounts, "sh", DTRUN, *args], env=env, executable="unshare")

    return start


def affinities(job):
    result = job.finish()
    assert result.code == 0, result
    return sorted(result.out.splitlines()), result


@needs_mounts
@needs_two
def test_workers_run_near_their_gpu(machine):
    with machine(["--numa-binding=node", "--nproc_per_node=2", PYTHON, "-c", SHOW]) as job:
        lines, result = affinities(job)
    assert lines == ["0 [1] 1", "1 [0] 1"], result
    assert "numa: local 0 cpus 1 node 1 0000:3b:00.0" in result.err and "numa: local 1 cpus 0 node 0 0001:3c:01.0" in result.err, result
    for mode in ("socket", "exclusive", "core-complex"):
        with machine([f"--numa_binding={mode}", "--nproc_per_node=2", PYTHON, "-c", SHOW]) as job:
            assert affinities(job)[0] == ["0 [1] 1", "1 [0] 1"], mode


@needs_mounts
@needs_two
def test_a_restart_binds_again(machine, tmp_path):
    code = f"import os, sys; open({str(tmp_path / 'seen')!r}, 'a').write(os.environ['RANK'] + str(sorted(os.sched_getaffinity(0)))); sys.exit(os.environ['RANK'] == '0')"
    with machine(["--numa_binding=node", "--nproc_per_node=2", "--max_restarts=1", PYTHON, "-c", code]) as job:
        assert job.finish().code == 1
    seen = (tmp_path / "seen").read_text()
    assert seen.count("0[1]") == 2 and seen.count("0[0]") == seen.count("1[1]") == 0, seen


@needs_mounts
@needs_two
def test_without_gpus_workers_are_spread(machine):
    """Blocks of neighbours; and so where the driver is there without a device, or our own program runs."""
    wanted = ["0 [0] 2", "1 [0] 2", "2 [1] 1"]
    for gpus, env in ((False, {}), (True, {"FAKE_INIT": "100"}), (True, {"FAKE_COUNT": "0"})):
        with machine(["--numa_binding=node", "--nproc_per_node=3", PYTHON, "-c", SHOW], gpus=gpus, **env) as job:
            lines, result = affinities(job)
        assert lines == wanted and "no GPU can be used" not in result.err, result
    for env, why in (({"FAKE_INIT": "999"}, "cuInit gave 999"), ({"FAKE_CRASH": "1"}, "libcuda.so.1 crashed with signal 6")):
        with machine(["--numa_binding=node", "--nproc_per_node=3", PYTHON, "-c", SHOW], **env) as job:
            lines, result = affinities(job)
        assert lines == wanted and f"dtrun: --numa_binding: no GPU can be used: {why}; workers are spread over the NUMA nodes\n" in result.err, result
    with machine(["--numa_binding=node", "--nproc_per_node=3", "doctor"], FAKE_CRASH="1") as job:
        result = job.finish()
    assert "crashed" not in result.err and "numa: local 2 cpus 1 node 1 no GPU" in result.err, result


@needs_mounts
@needs_two
def test_an_agent_per_worker(machine):
    """As a scheduler starts them that has a task per worker: they share this host as if one agent had started them."""
    def both(mode, **env):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        task = {"SLURM_JOB_ID": 7, "SLURM_STEP_NODELIST": "a", "SLURM_NNODES": 1, "SLURM_NODEID": 0, "SLURM_STEP_TASKS_PER_NODE": 2, "SLURM_NTASKS": 2,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **env}
        args = [f"--numa_binding={mode}", PYTHON, "-c", SHOW.replace("os.environ[\"DTRUN_CPU_SHARERS\"]", "os.environ.get(\"DTRUN_CPU_SHARERS\")")]
        with machine(args, SLURM_PROCID=0, SLURM_LOCALID=0, **task) as a, machine(args, SLURM_PROCID=1, SLURM_LOCALID=1, **task) as b:
            return [job.finish() for job in (a, b)]

    assert [r.out for r in both("exclusive")] == ["0 [1] None\n", "1 [0] None\n"]  # GPU 0 is near node 1
    assert [r.out for r in both("exclusive", FAKE_COUNT="0")] == ["0 [0] None\n", "1 [1] None\n"]
    assert [r.out for r in both("node", FAKE_COUNT="1")] == ["0 [1] None\n", "1 [1] None\n"]  # each sees one GPU, which is its own
    for result in both("exclusive", FAKE_COUNT="1"):
        assert result.code == 2 and "dtrun: --numa_binding: exclusive: this launcher sees only its own worker's GPU" in result.err, result


@needs_mounts
@needs_two
def test_refusals(machine):
    rows = [
        (["--nproc_per_node=3", "--numa_binding=node"], {},
         "dtrun: --numa_binding: worker 2 has no GPU to be near, 2 are there; lower --nproc_per_node, or set CUDA_VISIBLE_DEVICES= if none is used\n"),
        (["--nproc_per_node=4", "--numa_binding=exclusive"], {"FAKE_COUNT": "0"},
         "dtrun: --numa_binding: worker 0: exclusive: node 0 has 1 physical cores to share out among 2; use node, or core-complex\n"),
        (["--nproc_per_node=2", "--numa_binding=node"], {"FAKE_COUNT": "9"},
         "dtrun: --numa_binding: GPU 2: /sys/bus/pci/devices/0002:3d:02.0/numa_node: No such file or directory\n"),
    ]
    for args, env, text in rows:
        with machine([*args, "true"], **env) as job:
            result = job.finish()
        assert (result.code, result.out, result.err) == (2, "", text), result
    result = run(["--dry_run", "--numa_binding=core-complex", "true"])
    assert result.code == 0 and "binding   by core-complex (--numa_binding)\n" in result.out, result
    result = run(["--numa_binding=socks", "true"])
    assert result.code == 2 and "--numa_binding: socks: must be one of node|socket|exclusive|core-complex" in result.err, result


@needs_mounts
@needs_two
def test_a_driver_that_hangs(machine):
    """It is given up after a minute (of time that goes faster here), and a wish to stop does not wait for it."""
    with machine(["--numa_binding=node", "--nproc_per_node=2", "--time_scale=60", "true"], FAKE_HANG="1") as job:
        result = job.finish()
    assert (result.code, result.err) == (
        111, "dtrun: --numa_binding: the GPU driver gave no answer for 1 s; see whether nvidia-smi does, or leave the option out\n"), result
    with machine(["--numa_binding=node", "--nproc_per_node=2", "true"], FAKE_HANG="1") as job:
        wait_until(lambda: children(job.agent), "the process that asks the driver")
        begin = time.monotonic()
        job.signal(15)
        result = job.finish()
        assert result.code == 143 and time.monotonic() - begin < 30, result
        assert not job.survivors()
