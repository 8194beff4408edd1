"""The part wire of records.py: what clients of PyTorch's store send, and what our store answers.

wire.py PORT is the client that is recorded; it needs a Python with torch.
"""
import datetime
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

PEERS = os.environ.get("DTRUN_PEERS") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtrun", "peers")
TIMEOUT_S = 300  # for dtrun to start
PID = "ffffff7f"  # stands for the client's process id, which PING carries there and back
PING = "0d"
# A, B and C are clients with a connection each. A call after "&" waits in a thread until the next
# call lets it go on.
CALLS = """
A = TCPStore(world_size=None, wait_for_workers=False)
A.set("key", "value")
A.get("key")
A.set("key", "")
A.get("key")
A.set("long", "x" * 300)
A.get("long")
A.add("count", 1)
A.add("count", 41)
A.add("count", -2)
A.add("count", 0)
A.get("count")
A.add("count", 2 ** 40)
A.check(["key"])
A.check(["key", "count"])
A.check(["none"])
A.check(["key", "none"])
A.wait(["key"])
A.wait(["key", "count"])
A.wait(["never"], SHORT)
A.get("key")
A.compare_set("swap", "", "one")
A.compare_set("swap", "one", "two")
A.compare_set("swap", "other", "three")
A.compare_set("absent", "some", "new")
A.append("list", "ab")
A.append("list", "cd")
A.get("list")
A.multi_set(["m1", "m2"], ["x", "yy"])
A.multi_get(["m1", "m2"])
A.multi_get(["m2"])
A.num_keys()
A.delete_key("m1")
A.delete_key("m1")
A.num_keys()
A.queue_push("queue", "first")
A.queue_push("queue", "second")
A.queue_len("queue")
A.queue_pop("queue")
A.queue_pop("queue", True)
A.queue_len("queue")
A.queue_len("no queue")
P = PrefixStore("outer", PrefixStore("inner", A))
P.set("key", "prefixed")
P.get("key")
P.add("count", 5)
B = TCPStore(world_size=1, wait_for_workers=True)
&A.wait(["late"])
B.set("late", "1")
&A.get("later")
B.add("later", 3)
&A.queue_pop("pushed", True)
B.queue_push("pushed", "late")
&A.barrier("meet", 2, LONG)
B.barrier("meet", 2, LONG)
A.barrier("alone", 1, LONG)
A.list_keys()
C = A.clone()
C.get("key")
""".strip().split("\n")
QUIET_S = 0.1  # after which the bytes of a call have arrived


class Store:
    """The store of a job whose one worker waits for us."""

    def __init__(self, place):
        self.gate = os.path.join(place.work, "store-port")
        wait = 'echo "$MASTER_PORT" >"$0.new" && mv "$0.new" "$0"; while [ -e "$0" ]; do sleep 0.02; done'
        command = [os.path.join(place.bin, "dtrun"), "--nproc_per_node=1", "sh", "-c", wait, self.gate]
        self.job = subprocess.Popen(command, cwd=place.work, env=place.environment(), stdin=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        end = time.monotonic() + TIMEOUT_S
        while not os.path.exists(self.gate):
            if self.job.poll() is not None:
                raise RuntimeError(f"dtrun started no worker: {self.job.stderr.read().strip()}")
            if time.monotonic() > end:
                self.job.terminate()
                raise RuntimeError(f"dtrun started no worker within {TIMEOUT_S} s")
            time.sleep(0.01)
        with open(self.gate) as f:
            self.port = int(f.read())
        return self

    def __exit__(self, *_):
        if os.path.exists(self.gate):
            os.unlink(self.gate)
        try:
            self.job.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.job.terminate()
            self.job.communicate()


def client_main(port):
    """Runs under a Python with torch. Makes each call that stdin names, a line each, and prints a
    line once the call is over or, after "&", has begun."""
    from torch.distributed import PrefixStore, TCPStore

    long = datetime.timedelta(seconds=60)
    names = {"SHORT": datetime.timedelta(milliseconds=300), "LONG": long, "PrefixStore": PrefixStore,
             "TCPStore": lambda **words: TCPStore("127.0.0.1", port, is_master=False, timeout=long, **words)}

    def call(text):
        try:
            exec(text, names)
        except Exception as e:  # the wait for a key that never comes
            print(type(e).__name__, file=sys.stderr)

    threads = []
    for text in sys.stdin:
        text = text.strip()
        if text.startswith("&"):
            threads.append(threading.Thread(target=call, args=[text[1:]]))
            threads[-1].start()
        else:
            call(text)
            for t in threads:
                t.join()
            threads = []
        print("done", flush=True)


class Proxy:
    """Stands between clients and the store; notes what passes, by connection and direction."""

    def __init__(self, port):
        self.port, self.lines, self.count = port, [], 0
        self.pairs = {}  # socket: (other socket, name of the connection, direction)
        self.listener = socket.create_server(("127.0.0.1", 0))

    def until(self, done):
        """Passes bytes on until done() and nothing comes for QUIET_S. A pause begins a new line."""
        pause = True
        while True:
            ready = select.select([self.listener, *self.pairs], [], [], QUIET_S)[0]
            if not ready and done():
                return
            for s in ready:
                self.accept() if s is self.listener else self.pass_on(s, pause)
            pause = not ready

    def accept(self):
        client = self.listener.accept()[0]
        store = socket.create_connection(("127.0.0.1", self.port))
        name = chr(ord("a") + self.count)
        self.count += 1
        self.pairs[client], self.pairs[store] = (store, name, ">"), (client, name, "<")

    def pass_on(self, s, pause):
        other, name, direction = self.pairs[s]
        data = s.recv(1 << 20)
        if not data:
            for x in (s, other):
                del self.pairs[x]
                x.close()
            return
        other.sendall(data)
        start = f"{name} {direction} "
        if not pause and self.lines and self.lines[-1].startswith(start):
            self.lines[-1] += data.hex()
        else:
            self.lines.append(start + data.hex())


def record(place):
    """Writes wire.txt; returns no lines."""
    python = os.path.join(PEERS, "bin", "python")
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                             check=True).stdout.strip()
    with Store(place) as store:
        proxy = Proxy(store.port)
        port = proxy.listener.getsockname()[1]
        client = subprocess.Popen([python, os.path.abspath(__file__), str(port)], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(client.stdout.fileno(), False)
        pid = client.pid.to_bytes(4, "little").hex()
        for text in CALLS:
            proxy.lines.append(f"= {text}")
            client.stdin.write(text + "\n")
            client.stdin.flush()
            proxy.until(lambda: client.stdout.readline() or client.poll() is not None)
        client.stdin.close()
        proxy.until(lambda: client.poll() is not None)
    lines = [re.sub(f"({PING}| < ){pid}$", rf"\g<1>{PID}", line) for line in proxy.lines]
    with open(os.path.join(place.data, "wire.txt"), "w") as f:
        f.write(f"# Store clients of PyTorch {version}: calls (=), bytes sent (>) and answered (<), by connection\n")
        f.write("\n".join(lines) + "\n")
    return []


def replay(place):
    """Lines about answers that are not as recorded."""
    with open(os.path.join(place.data, "wire.txt")) as f:
        lines = [line.rstrip("\n") for line in f if not line.startswith("#")]
    differ, links, call = [], {}, ""
    with Store(place) as store:
        for line in lines:
            name, direction, text = line.split(" ", 2) if not line.startswith("=") else ("", "=", line[2:])
            if direction == "=":
                call = text
                continue
            if name not in links:
                links[name] = socket.create_connection(("127.0.0.1", store.port), timeout=20)
            wanted = bytes.fromhex(text)
            if direction == ">":
                links[name].sendall(wanted)
                continue
            got = receive(links[name], len(wanted))
            if got != wanted:
                return [f"wire: {call}: connection {name} got {got.hex() or 'nothing'}; recorded: {text}"]
        for name, link in links.items():
            link.shutdown(socket.SHUT_WR)
            more = receive(link, 1)
            if more:
                differ.append(f"wire: connection {name}: the store sends more than was recorded: {more.hex()}")
            link.close()
    return differ if lines else ["wire: the record is empty"]


def receive(link, size):
    """So many bytes; fewer when the connection ends or nothing comes."""
    got = b""
    try:
        while len(got) < size:
            piece = link.recv(size - len(got))
            if not piece:
                break
            got += piece
    except OSError:
        pass
    return got


if __name__ == "__main__":
    client_main(int(sys.argv[1]))
