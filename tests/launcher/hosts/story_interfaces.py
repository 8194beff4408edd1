# covers: launcher/hosts launcher/net
"""Hosts with two networks (N-18): a job stays on that of its endpoint, whatever the hosts' names lead to, also under another coordinator.
run: waits
run: timeout 200
"""

import os
import re
import signal

import pytest

import hosts
import training
from hosts import PORT
from support import lines_of, wait_until
from nodes import NUMBERS, c10d

ENDPOINT = "10.88.0.1"


def usual_bytes(net):
    """What has left the hosts by the network of their names."""
    return sum(int(hosts.tool("ip", "netns", "exec", h.namespace, "cat", "/sys/class/net/eth0/statistics/tx_bytes")) for h in net.hosts)


@pytest.mark.parametrize("family", [4, "4 only"])
def test_master_addr_is_on_the_endpoint_s_network(family):
    with hosts.network(3) as net:
        net.add_second()
        if family == "4 only":
            for h in net.hosts:
                for dev in ("lo", "eth0", "eth1"):
                    hosts.tool("ip", "netns", "exec", h.namespace, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{dev}/disable_ipv6")
        results = hosts.finish(*[h.job(c10d(PORT, 3, "sh", "-c", NUMBERS, host=ENDPOINT)) for h in net.hosts])
    assert [r.code for r in results] == [0, 0, 0], results
    assert sorted(r.out for r in results) == [f"{i} 3 0 1 {i} 3 {ENDPOINT} {PORT}\n" for i in range(3)], results


def test_another_coordinator_is_told_by_the_same_network(tmp_path):
    script = 'echo "$MASTER_ADDR $GROUP_WORLD_SIZE" >> "$1/$2"; while [ ! -e "$1/go" ]; do sleep 0.05; done'
    with hosts.network(3) as net:
        net.add_second()
        jobs = {h.name: h.job(["--nnodes=2:3", "--rdzv_backend=c10d", f"--rdzv_endpoint={ENDPOINT}:{PORT}", "--rdzv_id=two", "--last_call=1", "sh", "-c",
                               script, "x", tmp_path, h.name]) for h in net.hosts}
        for n in "abc":
            wait_until(lambda n=n: f"{ENDPOINT} 3" in lines_of(tmp_path / n), f"a round of three on {n}")
        lost = jobs.pop("a")
        os.kill(lost.agent, signal.SIGKILL)
        hosts.finish(lost)
        for n in "bc":
            wait_until(lambda n=n: lines_of(tmp_path / n)[-1].endswith(" 2"), f"a round of two on {n}")
        (tmp_path / "go").touch()
        results = hosts.finish(*jobs.values())
    assert [r.code for r in results] == [0, 0], results
    said = {lines_of(tmp_path / n)[-1] for n in "bc"}
    assert len(said) == 1 and re.fullmatch(r"10\.88\.0\.[23] 2", said.pop()), said


def test_ranks_meet_on_the_endpoint_s_network(tmp_path):
    job = training.make_job(tmp_path, steps=60)
    assert training.train(job, tmp_path / "one", ranks=2).code == 0
    with hosts.network(2) as net:
        net.add_second()
        used = {}
        for endpoint in (ENDPOINT, "a"):
            before, out = usual_bytes(net), tmp_path / f"out-{endpoint}"
            results = hosts.finish(*[h.job(c10d(PORT, 2, "train", job, "--output_dir", out, host=endpoint)) for h in net.hosts])
            assert [r.code for r in results] == [0, 0], results
            assert training.hash_of(out) == training.hash_of(tmp_path / "one")
            used[endpoint] = usual_bytes(net) - before
    assert used[ENDPOINT] < 20000 < used["a"] / 10, used  # neighbours are looked for on any network
