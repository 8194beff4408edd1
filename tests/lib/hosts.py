"""Hosts for stories: network namespaces on a switch of their own, each with its own name, address and /etc/hosts; faults on the wires between them.

    with hosts.network(3) as net:
        a, b, c = net.hosts
        with a.job([...]) as first, b.job([...]) as second:
            net.cut(a, b)

The machine's own network is not touched: addresses 10.77.0.x and fd77::x exist only inside, so any number of networks can stand side by side.
All hosts see the same files and processes. Leaving the block ends, by their pids, the processes inside, and removes the namespaces.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import support
from nodes import c10d

sequence = itertools.count()
PORT = 29400  # nobody else is in these networks
# Runs "$@" inside the network of $1 under the name $2 with the hosts file $3; execs all the way, so that the pid stays.
ON_HOST = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'


def tool(*words):
    """Runs one command; fails with what it said."""
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout


@functools.cache
def missing():
    """Why there can be no hosts here; empty when there can."""
    for name in ("ip", "nft", "ss", "nsenter", "unshare"):
        if shutil.which(name) is None:
            return f"no {name}: scripts/setup.sh installs it"
    try:
        with Network(1) as net:
            net.nft("add table bridge part")
            net.hosts[0].run("true")
    except (AssertionError, OSError) as e:
        return f"network namespaces are not allowed here: {e}".replace("\n", " ")[:200]
    return ""


def network(count, **options):
    """A Network; skips the test, with the reason, where there can be none."""
    if missing():
        import pytest

        pytest.skip(missing())
    return Network(count, **options)


class Host:
    def __init__(self, net, number):
        self.net, self.number, self.name = net, number, "abcdefghijklmnop"[number - 1]
        self.namespace, self.port = f"{net.prefix}-{self.name}", f"p{number}"
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self.hosts_file = os.path.join(net.folder, self.name)

    def prefix(self):
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--uts", "--mount", "--propagation", "slave", "sh", "-c", ON_HOST, self.name,
                self.hosts_file]

    def run(self, *words):
        return tool(*self.prefix(), *words)

    def job(self, args, **rest):
        return HostJob(self, args, **rest)

    @contextlib.contextmanager
    def inside(self):
        """Sockets that this thread opens in the block are this host's."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.namespace}") as there:
            assert libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(here.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


class HostJob(support.Job):
    """dtrun, or another copy of it, on a host."""

    def __init__(self, host, args, dtrun=support.DTRUN, **rest):
        self.host, self.dtrun = host, dtrun
        words = host.prefix() + [dtrun, *map(str, args)]
        super().__init__(words[1:], executable=words[0], **rest)

    @property
    def agent(self):
        def find():
            for pid in support.children(self.pid):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{self.pid}/exe") == self.dtrun == os.readlink(f"/proc/{pid}/exe"):
                        return pid
            return None

        if not hasattr(self, "agent_pid"):
            self.agent_pid = support.wait_until(find, "an agent under the guard")
        return self.agent_pid


class Network:
    def __init__(self, count):
        self.prefix = f"dt{os.getpid()}-{next(sequence)}"
        self.switch = f"{self.prefix}-sw"
        self.folder = tempfile.mkdtemp(prefix="dt-hosts-")
        self.hosts = [Host(self, i) for i in range(1, count + 1)]

    def __enter__(self):
        try:
            tool("ip", "netns", "add", self.switch)
            tool("ip", "-n", self.switch, "link", "set", "lo", "up")
            tool("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            tool("ip", "-n", self.switch, "link", "set", "br0", "up")
            for h in self.hosts:
                tool("ip", "netns", "add", h.namespace)
                tool("ip", "-n", h.namespace, "link", "set", "lo", "up")
                tool("ip", "link", "add", "eth0", "netns", h.namespace, "type", "veth", "peer", "name", h.port, "netns", self.switch)
                tool("ip", "-n", h.namespace, "addr", "add", f"{h.address}/24", "dev", "eth0")
                tool("ip", "-n", h.namespace, "addr", "add", f"{h.address6}/64", "dev", "eth0", "nodad")
                tool("ip", "-n", h.namespace, "link", "set", "eth0", "up")
                tool("ip", "-n", self.switch, "link", "set", h.port, "master", "br0", "up")
            self.name_hosts()
        except BaseException:
            self.remove()
            raise
        return self

    def add_second(self):
        """Each host also gets eth1, on a switch of its own: 10.88.0.x, which no name leads to."""
        tool("ip", "-n", self.switch, "link", "add", "br1", "type", "bridge", "forward_delay", "0")
        tool("ip", "-n", self.switch, "link", "set", "br1", "up")
        for h in self.hosts:
            tool("ip", "link", "add", "eth1", "netns", h.namespace, "type", "veth", "peer", "name", f"q{h.number}", "netns", self.switch)
            tool("ip", "-n", h.namespace, "addr", "add", f"10.88.0.{h.number}/24", "dev", "eth1")
            tool("ip", "-n", h.namespace, "link", "set", "eth1", "up")
            tool("ip", "-n", self.switch, "link", "set", f"q{h.number}", "master", "br1", "up")

    def name_hosts(self, family=4):
        """What /etc/hosts says from now on, on all hosts."""
        text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n" + "".join(f"{h.address if family == 4 else h.address6} {h.name}\n" for h in self.hosts)
        for h in self.hosts:
            with open(h.hosts_file, "w") as f:
                f.write(text)

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        here = tool("ip", "netns", "list").split()
        for name in (n for n in here if n.startswith(self.prefix + "-")):
            for pid in tool("ip", "netns", "pids", name).split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        for name in (n for n in here if n.startswith(self.prefix + "-")):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- faults ----

    def nft(self, rule):
        tool("ip", "netns", "exec", self.switch, "nft", rule)

    def cut(self, *pairs, both=True):
        """Drops what goes from the first to the second of each pair; with `both` also what comes back."""
        self.nft("add table bridge part")
        self.nft("add chain bridge part cut { type filter hook forward priority 0; }")
        for x, y in pairs:
            for a, b in ((x, y), (y, x))[: 1 + both]:
                self.nft(f'add rule bridge part cut iifname "{a.port}" oifname "{b.port}" drop')

    def heal(self):
        self.nft("flush chain bridge part cut")

    def down(self, host):
        """Pulls the cable."""
        tool("ip", "-n", self.switch, "link", "set", host.port, "down")

    @contextlib.contextmanager
    def delay(self, host, ms):
        """What comes to this host comes later by so much, as long as the block lasts."""
        here = ["ip", "netns", "exec", host.namespace]
        rule = ["INPUT", "-i", "eth0", "-j", "NFQUEUE", "--queue-num", "0"]
        holder = subprocess.Popen([*here, support.PYTHON, os.path.join(os.path.dirname(__file__), "delay.py"), str(ms)], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout.readline() == "ready\n"
            tool(*here, "iptables", "-A", *rule)
            yield
            assert holder.poll() is None
            tool(*here, "iptables", "-D", *rule)
        finally:
            holder.kill()
            holder.communicate()

    def up(self, host):
        tool("ip", "-n", self.switch, "link", "set", host.port, "up")


class Rounds:
    """Watches, as long as the block lasts, that workers of two rounds never live at once (promise P1).

    Seen: a worker of an older round that still lives after one of a newer round does. The jobs are those that make one run."""

    def __init__(self, *jobs):
        self.jobs, self.workers, self.overlaps, self.newest = jobs, {}, [], 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while not self.stopped.wait(0.02):
            self.look()

    def look(self):
        for job in self.jobs:
            for pid in support.children(getattr(job, "agent_pid", 0)):
                if pid not in self.workers:
                    with contextlib.suppress(OSError, KeyError, ValueError):
                        with open(f"/proc/{pid}/environ", "rb") as f:
                            env = dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)
                        with open(f"/proc/{pid}/cmdline", "rb") as f:
                            plans = b"--plan" in f.read().split(b"\0")  # asked before there is a round, with the environment of a first one
                        ours = env.get(support.MARKER.encode()) == job.marker.encode()  # the number of an agent that is gone may be another process's
                        if support.alive(pid) and ours and b"DTRUN_ROUND" in env:
                            self.workers[pid] = -1 if plans else int(env[b"DTRUN_ROUND"])
        living = {pid: r for pid, r in self.workers.items() if r >= 0}
        newest = max(living.values(), default=0)
        for pid, r in living.items():
            if not support.alive(pid):
                self.workers[pid] = -1
            elif r < newest:
                self.overlaps.append((pid, r, newest))
        self.newest = max(self.newest, newest)

    def __enter__(self):
        for job in self.jobs:
            assert job.agent
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.stopped.set()
        self.thread.join()
        assert kind is not None or not self.overlaps, f"a worker of an older round lives beside a newer one: (pid, round, newer) {self.overlaps[:5]}"


def finish(*jobs, timeout_s=support.DEADLINE_S):
    """Results of all jobs; nothing of them may be left (promise P5)."""
    end = time.monotonic() + timeout_s
    results = [job.finish(max(1, end - time.monotonic())) for job in jobs]
    for job in jobs:
        job.wait_gone()
    return results


# Says which round it is in (group rank, hosts, round) and stays until the file `go` is there.
STAY = 'echo "$GROUP_RANK $GROUP_WORLD_SIZE $DTRUN_ROUND" >> "$1/$2"; while [ ! -e "$1/go" ]; do sleep 0.05; done'


class Stayers:
    """One run over hosts whose workers stay, round after round, until they may go."""

    def __init__(self, net, folder, nnodes, scale=3, options=(), on=None, env=None, meet=None):
        """meet: options that name the backend and the endpoint."""
        self.net, self.folder, self.nnodes, self.scale, self.options, self.env = net, folder, nnodes, scale, options, env
        self.meet = meet or ["--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}", "--rdzv_conf=last_call_timeout=1"]
        self.jobs = {h.name: self.start(h) for h in (on or net.hosts)}

    def start(self, host, *options):
        return host.job([f"--nnodes={self.nnodes}", *self.meet, "--rdzv_id=story", f"--time_scale={self.scale}", *self.options, *options,
                         "sh", "-c", STAY, "x", self.folder, host.name], env=self.env)

    def newest(self, name):
        """(group rank, hosts, round) of what runs on a host, or ran there last."""
        lines = support.lines_of(os.path.join(self.folder, name))
        return tuple(map(int, lines[-1].split())) if lines else (-1, 0, 0)

    def wait_round(self, names, newer_than=0, timeout_s=support.DEADLINE_S):
        """Waits for a round of just these hosts; its number."""

        def there():
            seen = [self.newest(n) for n in names]
            same = all(s[1] == len(names) and s[2] == seen[0][2] > newer_than for s in seen)
            return seen[0][2] if same else 0

        return support.wait_until(there, f"a round of {names}", timeout_s)

    def wait_idle(self, name, timeout_s=support.DEADLINE_S):
        support.wait_until(lambda: not any(map(support.alive, support.children(self.jobs[name].agent))), f"the end of the workers on {name}", timeout_s)

    def go(self, timeout_s=support.DEADLINE_S):
        """Lets the workers end; results by host."""
        with open(os.path.join(self.folder, "go"), "w"):
            pass
        return dict(zip(self.jobs, finish(*self.jobs.values(), timeout_s=timeout_s)))


def train_on(net, job, out, layout, *rest, options=()):
    """The jobs of a training run: on each host as many ranks as the layout says; the first host is the endpoint."""
    return [h.job(c10d(PORT, len(layout), *options, f"--nproc_per_node={n}", "train", job, "--output_dir", out, *rest, host="a"))
            for h, n in zip(net.hosts, layout)]
