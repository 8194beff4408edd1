"""A real SLURM on this machine for stories: a controller and compute nodes on hosts of hosts.py.

    with Slurm(folder, nodes=2) as cluster:
        cluster.run(["srun", "-N2", "hostname"])

Needs Debian's slurm-wlm, slurm-client and munge (scripts/setup.sh --slurm); missing() says what is not there. n1 is the controller's host and
where programs run unless another is named, n2 and so on are the compute nodes. Several clusters can run side by side.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import time

import hosts
from support import MARKER, clean_env, marked, wait_until

PROGRAMS = ["slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged"]
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

CONFIG = """
ClusterName=dttest
SlurmctldHost=n1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=10
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
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[2-{last}] CPUs=16 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


@functools.cache
def missing():
    """Why there can be no cluster here; empty when there can."""
    absent = [p for p in PROGRAMS if shutil.which(p, path=PATH) is None]
    return f"no {' '.join(absent)}: scripts/setup.sh --slurm installs it" if absent else hosts.missing()


class Slurm:
    def __init__(self, folder, nodes=2, kill_wait=10, extra=""):
        self.dir, self.nodes, self.kill_wait, self.extra = str(folder), nodes, kill_wait, extra
        self.env = clean_env({"SLURM_CONF": self.dir + "/slurm.conf", "PATH": PATH})
        self.marker = self.env[MARKER]
        self.daemons = {}
        self.net = hosts.network(nodes + 1)
        for h in self.net.hosts:
            h.name = f"n{h.number}"  # SLURM writes these as n[2-4]

    # ---- beginning and end ----

    def start(self, name, words, host=None):
        prefix = self.net.hosts[host - 1].prefix() if host else []
        with open(f"{self.dir}/log/{name}", "ab") as log:
            self.daemons[name] = subprocess.Popen(prefix + words, env=self.env, cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                  start_new_session=True)

    def start_node(self, i):
        self.start(f"slurmd{i}", ["slurmd", "-D", "-f", self.dir + "/slurm.conf"], i)

    def __enter__(self):
        for d in ("state", "log"):
            os.makedirs(f"{self.dir}/{d}", exist_ok=True)
        with open(self.dir + "/munge.key", "wb", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(os.urandom(128))
        with open(self.dir + "/slurm.conf", "w") as f:
            f.write(CONFIG.format(dir=self.dir, last=self.nodes + 1, kill_wait=self.kill_wait) + self.extra)
        try:
            self.net.__enter__()
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
        for process in self.daemons.values():
            process.terminate()
        end = time.monotonic() + 5
        while time.monotonic() < end and (any(p.poll() is None for p in self.daemons.values()) or marked(self.marker)):
            time.sleep(0.05)
        for pid in marked(self.marker):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in self.daemons.values():
            process.wait(10)
        self.net.__exit__()

    # ---- use ----

    def states(self):
        return set(self.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%T"]).stdout.split())

    def popen(self, words, env=None, host=1, cwd=None):
        """Starts a program on a host."""
        return subprocess.Popen([*self.net.hosts[host - 1].prefix(), *map(str, words)], env={**self.env, **(env or {})}, cwd=cwd or self.dir,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")

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
