# covers: launcher/hosts launcher/rounds
"""A host is lost without a word of its kernel: the others train again within the time that is promised, whoever led, with an etcd and without.
run: waits
run: timeout 300
"""

import contextlib
import time

import pytest

import etcd
import hosts
from hosts import PORT, Rounds, Stayers
from support import wait_until

SCALE = 3
BACK_S = 25 / SCALE  # from the cut to the next round


def begin(place, net, count, backend, **rest):
    """Stayers on the first `count` hosts, in one round, led by the first; with the waits of a job that says nothing about them."""
    stack = contextlib.ExitStack()
    if backend == "etcd-v3":
        if etcd.missing():
            pytest.skip(etcd.missing())
        store = stack.enter_context(etcd.Etcd(place, host=net.hosts[count]))
        meet = ["--rdzv_backend=etcd-v3", f"--rdzv_endpoint={store.endpoints}"]
    else:
        meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint=a:{PORT}"]
    first, others = net.hosts[0], net.hosts[1:count]
    run = Stayers(net, place, f"1:{count}", scale=SCALE, on=[first], meet=meet, **rest)
    if backend == "etcd-v3":  # whoever begins the run there leads it
        wait_until(store.keys, "a run in etcd")
    for h in others:
        run.jobs[h.name] = run.start(h)
    run.wait_round([h.name for h in net.hosts[:count]])
    return stack, run


@pytest.mark.parametrize("backend, count, lost", [("etcd-v3", 2, "a"), ("etcd-v3", 2, "b"), ("etcd-v3", 3, "a"), ("c10d", 3, "a"), ("c10d", 3, "b")])
def test_the_others_are_back_in_time(tmp_path, backend, count, lost):
    with hosts.network(count + 1) as net:
        stack, run = begin(tmp_path, net, count, backend)
        with stack, Rounds(*run.jobs.values()):
            before = run.newest("c" if lost == "b" and count == 3 else "b" if lost == "a" else "a")[2]
            begun_s = time.monotonic()
            net.down(next(h for h in net.hosts if h.name == lost))
            run.wait_round([n for n in run.jobs if n != lost], newer_than=before)
            took_s = time.monotonic() - begun_s
            net.up(next(h for h in net.hosts if h.name == lost))  # and it is taken in again
            run.wait_round(list(run.jobs), newer_than=before)
            results = run.go()
    assert took_s < BACK_S, results
    assert [r.code for r in results.values()] == [0] * count, results
