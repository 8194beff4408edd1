"""Drives a store server with PyTorch's own client, in one process that imports torch once: every call of the client, the prefix store, a
timed-out wait, and two rounds of a gloo job of two ranks that find the store as workers of a launcher do. Prints one line per part.
Usage: torch_store.py SERVE_STORE   (needs torch; run by story_store_pytorch.py)
"""

import datetime
import os
import subprocess
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist

LONG = datetime.timedelta(seconds=60)
SHORT = datetime.timedelta(milliseconds=300)


def calls(port):
    store = dist.TCPStore("127.0.0.1", port, 2, False, timeout=LONG)
    store.set("k", "value")
    assert store.get("k") == b"value"
    assert [store.add("ctr", n) for n in (1, 41, -2)] == [1, 42, 40]
    assert store.get("ctr") == b"40"
    assert not store.check(["nope", "k"]) and store.check(["k", "ctr"])
    assert store.compare_set("c", "", "v1") == b"v1"
    assert store.compare_set("c", "v1", "v2") == b"v2"
    assert store.compare_set("c", "bad", "v3") == b"v2"
    assert store.compare_set("missing", "x", "y") == b"x"
    store.append("a", "foo")
    store.append("a", "bar")
    assert store.get("a") == b"foobar"
    store.multi_set(["m1", "m2"], ["x", "yy"])
    assert store.multi_get(["m1", "m2"]) == [b"x", b"yy"]
    keys = store.num_keys()
    assert keys == 7, keys  # init/ is counted too
    assert store.delete_key("m1") and not store.delete_key("m1")
    big = bytes(range(256)) * 20000
    store.set("big", big)
    assert store.get("big") == big
    begin = time.monotonic()
    try:
        store.wait(["never"], SHORT)
        raise AssertionError("a wait for nothing returned")
    except dist.DistStoreError:
        assert time.monotonic() - begin >= 0.25
    assert store.get("k") == b"value"  # usable afterwards
    inner = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    inner.set("k", "v")
    assert store.get("inner/outer/k") == b"v"
    other = dist.TCPStore("127.0.0.1", port, 2, False, timeout=LONG)
    thread = threading.Thread(target=lambda: (time.sleep(0.1), other.set("go", "1")))
    thread.start()
    store.wait(["go"], LONG)
    thread.join()
    print("calls ok")

    if hasattr(store, "queue_push"):
        store.queue_push("q", "ab")
        store.queue_push("q", "cd")
        assert store.queue_len("q") == 2
        assert [store.queue_pop("q"), store.queue_pop("q")] == [b"ab", b"cd"]
        assert store.queue_len("q") == 0
        thread = threading.Thread(target=lambda: (time.sleep(0.1), other.queue_push("q", "late")))
        thread.start()
        assert store.queue_pop("q", True) == b"late"
        thread.join()
        print("queues ok")
    if hasattr(store, "list_keys"):
        found = sorted(store.list_keys())
        assert "k" in found and "m2" in found and "m1" not in found, found
        print("list ok")
    if hasattr(store, "barrier"):
        thread = threading.Thread(target=lambda: other.barrier("meet", 2, LONG))
        thread.start()
        store.barrier("meet", 2, LONG)
        thread.join()
        print("barrier ok")
    if hasattr(store, "clone"):
        assert store.clone().get("k") == b"value"
        print("clone ok")


def rank_main(rank, port, offset):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True",
                      GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", timeout=LONG)
    x = torch.tensor([1.0 + rank + offset])
    dist.all_reduce(x)
    dist.barrier()
    assert x.item() == 3 + 2 * offset, x
    dist.destroy_process_group()


def job(port, offset):
    """Two ranks, forked: torch is imported already."""
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rank_main(rank, port, offset)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0, 0], codes


def new_round(server):
    server.stdin.write("reset\n")
    server.stdin.flush()
    assert server.stdout.readline().strip() == "reset"


def main():
    server = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        job(port, 0)
        new_round(server)
        job(port, 10)  # the same keys again: stale ones would name peers that are gone
        new_round(server)
        print("gloo ok")
        sys.stdout.flush()
        calls(port)
        print("all ok", torch.__version__)
    finally:
        server.stdin.close()
        server.wait(60)


main()
