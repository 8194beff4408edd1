# covers: launcher/net launcher/hosts
"""Names and addresses of endpoints on hosts with networks of their own: names that come late or lead to loopback, scopes, one open port, strangers.
run: waits
run: timeout 300
"""

import re
import time

import pytest

import hosts
from hosts import PORT, finish
from support import wait_lines, wait_until
from nodes import STAY, c10d, static

PLACE = "echo $RANK $WORLD_SIZE $MASTER_ADDR $DTRUN_LOCAL_ADDR"


def set_names(host, text):
    with open(host.hosts_file, "w") as f:
        f.write("127.0.0.1 localhost\n" + text)


def run_on(net, argument_lists, at_start=lambda jobs: None):
    jobs = [h.job([*args, "sh", "-c", PLACE]) for h, args in zip(net.hosts, argument_lists)]
    at_start(jobs)
    results = finish(*jobs)
    assert [r.code for r in results] == [0] * len(jobs), results
    return results


def test_an_own_name_that_leads_to_loopback_is_not_given_to_others():
    with hosts.network(2) as net:
        a, b = net.hosts
        set_names(a, "127.0.1.1 a\n")
        results = run_on(net, [c10d(PORT, 2, host="a")] * 2)
        assert [r.out for r in results] == [f"0 2 {a.address} {a.address}\n", f"1 2 {a.address} {b.address}\n"], results
        assert "a is 127.0.1.1 on this host" in results[0].err, results[0]
        results = run_on(net, [static(PORT, rank, 2, host="a") for rank in range(2)])
        assert [r.out for r in results] == [f"0 2 a {a.address}\n", f"1 2 a {b.address}\n"], results


@pytest.mark.parametrize("way", ["static", "c10d"])
def test_a_loopback_endpoint_is_open_to_others_and_says_so(way):
    """As with torchrun, whoever hosts may call itself localhost while others come by its address: then a key is what keeps strangers out."""
    with hosts.network(2) as net:
        a, b = net.hosts
        words = [static(PORT, rank, 2, host=h) if way == "static" else c10d(PORT, 2, host=h) for rank, h in enumerate(("127.0.0.1", a.address))]
        first, second = run_on(net, words)
    assert first.err.count("warning: no --key_file: whoever reaches this job's ports can join it") == 1, first
    assert "only agents of this machine" not in first.err and "is a loopback address, at which other hosts find themselves" in first.err, first
    assert "no --key_file" not in second.err, second


def test_a_name_may_come_late():
    with hosts.network(2) as net:
        a, b = net.hosts
        for h in net.hosts:
            set_names(h, "")

        def name_it(jobs):
            wait_until(lambda: all(job.agent for job in jobs), "agents")
            time.sleep(2)  # five seconds at this scale: it has been told that the name means nothing
            for h in net.hosts:
                set_names(h, f"{a.address} a\n")

        results = run_on(net, [c10d(PORT, 2, "--time_scale=4", host="a")] * 2, name_it)
        assert sorted(r.out.split()[2] for r in results) == [a.address] * 2, results
        assert any(re.search(r"endpoint a: name look-up: .*; trying on", r.err) for r in results), results
        assert "held by this host now" in results[0].err, results[0]


def test_an_address_with_a_scope():
    with hosts.network(2) as net:
        found = wait_until(lambda: re.search(r"inet6 (fe80::[0-9a-f:]+)/64 scope link (?!tentative)", net.hosts[0].run("ip", "addr", "show", "dev", "eth0")), "an address")
        results = run_on(net, [c10d(PORT, 2, host=f"[{found[1]}%eth0]")] * 2)
        assert [r.out.split()[2] for r in results] == [f"{found[1]}%eth0"] * 2, results


@pytest.mark.parametrize("count, options", [(2, []), (3, [f"--port_range={PORT}-{PORT}"])])
def test_one_open_port_is_enough(count, options):
    """The endpoint's; with more than two hosts, whose workers call each other, the same port on each."""
    with hosts.network(count) as net:
        net.nft("add table bridge wall")
        net.nft("add chain bridge wall fire { type filter hook forward priority 0; }")
        for h in net.hosts if options else net.hosts[:1]:
            net.nft(f'add rule bridge wall fire tcp flags & (syn|ack) == syn oifname "{h.port}" tcp dport {PORT} accept')
        net.nft("add rule bridge wall fire tcp flags & (syn|ack) == syn drop")
        results = run_on(net, [c10d(PORT, count, *options, host="a")] * count)
        assert sorted(r.out.split()[0] for r in results) == [str(i) for i in range(count)], results


HELLO = "00cef7853c0d01020304"  # a store client's beginning, as PyTorch's
ASK = f"""import socket, sys
s = socket.create_connection(("a", {PORT}), 60)
s.settimeout(60)
s.sendall(bytes.fromhex("{HELLO}"))
try:
    print(s.recv(4).hex())
except ConnectionError:
    print()
"""


def test_the_store_is_for_hosts_of_the_job_alone(tmp_path):
    with hosts.network(3) as net:
        a, b, c = net.hosts
        with a.job(c10d(PORT, 2, "sh", "-c", STAY, "x", tmp_path, "a", host="a")) as first, b.job(c10d(PORT, 2, "sh", "-c", STAY, "x", tmp_path, "b", host="a")) as second:
            wait_lines(tmp_path / "a", 1)
            wait_lines(tmp_path / "b", 1)
            assert [h.run("/usr/bin/python3", "-c", ASK) for h in (a, b, c)] == ["01020304\n", "01020304\n", "\n"]
            (tmp_path / "go").touch()
            results = finish(first, second)
    assert [r.code for r in results] == [0, 0], results
    assert f"connection from {c.address}:" in "".join(r.err for r in results), results
