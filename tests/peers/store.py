#!/usr/bin/env python3
"""Clients of PyTorch's TCPStore for `bench store`, which starts this and the servers.

Each line on stdin is `PORT KIND CLIENTS OPS`; the answer is the seconds that CLIENTS threads, a connection each, took for OPS operations in all.
KIND is set, get, add or wait (for a key that is there). Connections are kept, so that only operations are timed.
"""
import datetime, sys, threading, time

from torch.distributed import TCPStore

stores = {}  # by port: connections


def clients(port, count):
    have = stores.setdefault(port, [])
    while len(have) < count:
        have.append(TCPStore("127.0.0.1", port, None, False, timeout=datetime.timedelta(seconds=300), wait_for_workers=False))
    return have[:count]


def work(store, kind, name, count):
    value = "v" * 100
    if kind == "set":
        for _ in range(count):
            store.set(name, value)
        store.check([name])  # the answer to this comes after all sets
    elif kind == "get":
        for _ in range(count):
            store.get(name)
    elif kind == "add":
        for _ in range(count):
            store.add(name + "n", 1)
    else:
        keys = [name]
        for _ in range(count):
            store.wait(keys)


for line in sys.stdin:
    port, kind, count, ops = line.split()
    count, ops = int(count), int(ops)
    connected = clients(int(port), count)
    for i, store in enumerate(connected):
        store.set(f"bench/{i}", "v" * 100)
    threads = [threading.Thread(target=work, args=(s, kind, f"bench/{i}", ops // count)) for i, s in enumerate(connected)]
    began = time.monotonic()
    if count == 1:
        work(connected[0], kind, "bench/0", ops)
    else:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    print(f"{time.monotonic() - began:.9f}", flush=True)
