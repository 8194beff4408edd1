"""A real SLURM on this machine for stories: a controller and compute nodes, each in a network namespace with a host name of its own.

    with Slurm(folder, nodes=2) as cluster:
        cluster.run(["srun", "-N2", "hostname"])

Needs root, ip, nsenter and Debian's slurm-wlm, slurm-client and munge (scripts/setup.sh --slurm); missing() says what is not there. Everything lives
in `folder` and in namespaces that are made and removed here; several clusters can run side by side.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

from support import MARKER, alive, clean_env, marked, wait_until

PROGRAMS = ["ip", "nsenter", "unshare", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged"]
SBIN = "/usr/sbin:/sbin"
# A program on a test host: own network, own host name, own /etc/hosts. It execs all the way.
ON_HOST = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'

CONFIG = """
ClusterName=dttest
SlurmctldHost={prefix}-h1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout=20
SlurmctldParameters=idle_on_node_suspend
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={prefix}-h[2-{last}] CPUs=16 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing():
    """Why there can be no cluster here, or None."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    path = os.environ.get("PATH", "") + ":" + SBIN
    absent = [p for p in PROGRAMS if shutil.which(p, path=path) is None]
    if absent:
        return f"{' '.join(absent)}: not installed; scripts/setup.sh --slurm"
    probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode != 0 else None


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True, env=dict(os.environ, PATH=os.environ["PATH"] + ":" + SBIN))


class Slurm:
    def __init__(self, folder, nodes=2, kill_wait=10, extra=""):
        self.dir, self.nodes, self.kill_wait, self.extra = str(folder), nodes, kill_wait, extra
        self.prefix = f"ds{os.getpid()}"
        self.env = clean_env({"SLURM_CONF": self.dir + "/slurm.conf", "PATH": os.environ["PATH"] + ":" + SBIN})
        self.marker = self.env[MARKER]
        self.daemons = {}

    def host(self, i):
        """Name of host i; 1 has the controller, the compute nodes begin with 2."""
        return f"{self.prefix}-h{i}"

    # ---- beginning and end ----

    def _net_up(self):
        switch = f"{self.prefix}-sw"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        with open(self.dir + "/hosts", "w") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"10.77.0.{i} {self.host(i)}\n" for i in range(1, self.nodes + 2)))
        for i in range(1, self.nodes + 2):
            ip("netns", "add", self.host(i))
            ip("-n", self.host(i), "link", "set", "lo", "up")
            ip("link", "add", "eth0", "netns", self.host(i), "type", "veth", "peer", "name", f"p{i}", "netns", switch)
            ip("-n", self.host(i), "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
            ip("-n", self.host(i), "link", "set", "eth0", "up")
            ip("-n", switch, "link", "set", f"p{i}", "master", "br0", "up")

    def on_host(self, i, words):
        """argv that runs `words` on host i."""
        return ["nsenter", f"--net=/run/netns/{self.host(i)}", "unshare", "--uts", "--mount", "--propagation", "slave", "sh", "-c", ON_HOST, self.host(i),
                self.dir + "/hosts", *map(str, words)]

    def start(self, name, words, host=None):
        with open(f"{self.dir}/log/{name}", "ab") as log:
            self.daemons[name] = subprocess.Popen(self.on_host(host, words) if host else words, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=log, start_new_session=True)

    def start_node(self, i):
        self.start(f"slurmd{i}", ["slurmd", "-D", "-f", self.dir + "/slurm.conf"], i)

    def __enter__(self):
        for d in ("state", "log"):
            os.makedirs(f"{self.dir}/{d}", exist_ok=True)
        with open(self.dir + "/munge.key", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(128))
        with open(self.dir + "/slurm.conf", "w") as f:
            f.write(CONFIG.format(dir=self.dir, prefix=self.prefix, last=self.nodes + 1, kill_wait=self.kill_wait) + self.extra)
        try:
            self._net_up()
            self.start("munged", ["munged", "--foreground", "--force", f"--socket={self.dir}/munge.socket", f"--key-file={self.dir}/munge.key",
                                  f"--pid-file={self.dir}/munged.pid", f"--seed-file={self.dir}/munged.seed"])
            wait_until(lambda: os.path.exists(self.dir + "/munge.socket"), "munged")
            self.start("ctl", ["slurmctld", "-D", "-f", self.dir + "/slurm.conf"], 1)
            for i in range(2, self.nodes + 2):
                self.start_node(i)
            wait_until(lambda: self.states() == {"idle"}, "idle nodes", step_s=0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        names = [f"{self.prefix}-sw", *(self.host(i) for i in range(1, self.nodes + 2))]
        inside = lambda: [int(p) for n in names for p in ip("netns", "pids", n, check=False).stdout.split() if alive(int(p))]
        for process in self.daemons.values():
            process.terminate()
        end = time.monotonic() + 5
        while time.monotonic() < end and (inside() or any(p.poll() is None for p in self.daemons.values())):
            time.sleep(0.05)
        for pid in {*inside(), *marked(self.marker)}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self.daemons.values():
            process.wait(10)
        for name in names:
            ip("netns", "del", name, check=False)

    # ---- use ----

    def states(self):
        p = self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"])
        return set(p.stdout.split())

    def popen(self, words, env=None, host=1, cwd=None):
        """Starts a program on host 1 (or another one) of the cluster."""
        return subprocess.Popen(self.on_host(host, words), env={**self.env, **(env or {})}, cwd=cwd or self.dir, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")

    def run(self, words, env=None, timeout_s=60, host=1, cwd=None):
        """The same, to its end: returncode, stdout, stderr."""
        p = self.popen(words, env, host, cwd)
        try:
            out, err = p.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            raise AssertionError(f"{words}: still running after {timeout_s} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(words, p.returncode, out, err)

    def submit(self, words, env=None, cwd=None):
        """sbatch; the job's number."""
        p = self.run(["sbatch", "--parsable", *words], env, cwd=cwd)
        assert p.returncode == 0, p
        return p.stdout.strip()

    def job(self, job):
        """What `scontrol show job` says, as a dictionary."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run(["scontrol", "show", "job", "-o", job]).stdout))

    def wait_job(self, job, states=("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), timeout_s=90):
        """Waits until the job is in one of these states; what scontrol says then."""
        return wait_until(lambda: (found := self.job(job)).get("JobState") in states and found, f"job {job} {'/'.join(states)}", timeout_s, 0.1)

    def processes(self, name):
        """Living processes of the cluster whose program is called `name`."""
        found = []
        for pid in marked(self.marker):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as f:
                if f.read().strip() == name:
                    found.append(pid)
        return found

    def logs(self):
        """The daemons' last words, for a failure."""
        text = ""
        for name in sorted(os.listdir(self.dir + "/log")):
            with open(f"{self.dir}/log/{name}", errors="replace") as f:
                text += f"== {name}\n" + "".join(f.readlines()[-15:])
        return text
