"""Real etcds on this machine for stories.

    with Etcd(folder) as etcd:                    # one member
        dtrun(... f"--rdzv_endpoint={etcd.endpoints}")
        etcd.kill(); etcd.start()                 # its data stay; etcd.wipe() between them: they do not
    with Etcd(folder, host=net.hosts[2]) as etcd: # on a host of hosts.py

Needs Debian's etcd-server (scripts/setup.sh --etcd); missing() says what is not there.
"""

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.request

from support import clean_env, wait_until


def missing():
    return None if shutil.which("etcd") else "etcd is not installed (scripts/setup.sh --etcd)"


def free_ports(count):
    """Ports that no outgoing connection is given."""
    found = []
    while len(found) < count:
        port = random.randrange(15000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def b64(text):
    return base64.b64encode(text.encode()).decode()


class Etcd:
    def __init__(self, folder, members=1, options=(), tls=None, host=None):
        """tls: (ca, certificate, key) files of a server that wants certificates of its clients."""
        self.folder, self.tls, self.options, self.host = str(folder), tls, options, host
        self.address = host.address if host else "127.0.0.1"
        ports = free_ports(2 * members)
        self.ports, self.peer_ports = ports[:members], ports[members:]
        self.processes = [None] * members
        self.env = clean_env()

    @property
    def endpoints(self):
        return ",".join(f"{self.address}:{p}" for p in self.ports)

    def url(self, i):
        return f"http{'s' if self.tls else ''}://{self.address}:{self.ports[i]}"

    def start(self, *which):
        for i in which or range(len(self.ports)):
            peer = f"http://127.0.0.1:{self.peer_ports[i]}"
            cluster = ",".join(f"m{k}=http://127.0.0.1:{p}" for k, p in enumerate(self.peer_ports))
            tls = ["--client-cert-auth", "--trusted-ca-file", self.tls[0], "--cert-file", self.tls[1], "--key-file", self.tls[2]] if self.tls else []
            with open(os.path.join(self.folder, f"etcd-{i}.log"), "a") as log:
                self.processes[i] = subprocess.Popen(
                    [*(self.host.prefix() if self.host else []), "etcd", "--name", f"m{i}", "--data-dir", os.path.join(self.folder, f"etcd-{i}"), "--listen-client-urls", self.url(i),
                     "--advertise-client-urls", self.url(i), "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                     "--initial-cluster", cluster, "--log-level", "warn", "--unsafe-no-fsync", *tls, *self.options],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        if not self.tls:
            wait_until(lambda: any(self.health(i) for i in range(len(self.ports))), "an etcd that answers")
        else:
            wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", self.ports[0])) == 0, "an etcd that listens")

    def ask(self, url, data=None, timeout_s=60):
        with self.host.inside() if self.host else contextlib.nullcontext():
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=timeout_s) as answer:
                return json.load(answer)

    def health(self, i):
        try:
            return self.ask(self.url(i) + "/health", timeout_s=5)["health"] == "true"
        except (OSError, ValueError):
            return False

    def call(self, path, **body):
        return self.ask(self.url(0) + "/v3/" + path, json.dumps(body).encode())

    def keys(self, prefix="/dtrun/"):
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.call("kv/range", key=b64(prefix), range_end=b64(end)).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): kv for kv in found}

    def leader(self):
        """Which member leads the others."""
        for i in range(len(self.ports)):
            status = self.ask(self.url(i) + "/v3/maintenance/status", b"{}")
            if status["leader"] == status["header"]["member_id"]:
                return i
        return None

    def kill(self, *which):
        for i in which or range(len(self.ports)):
            if self.processes[i] is not None:
                self.processes[i].send_signal(signal.SIGKILL)
                self.processes[i].wait()
                self.processes[i] = None

    def wipe(self):
        """The next start begins with nothing."""
        for i, process in enumerate(self.processes):
            assert process is None
            shutil.rmtree(os.path.join(self.folder, f"etcd-{i}"), ignore_errors=True)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
