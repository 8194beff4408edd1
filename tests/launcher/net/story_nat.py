# covers: launcher/net launcher/hosts
"""A host behind translated addresses (a router, a container's bridge): what works as it is, what --local_addr and --port_range make work, and what is said
otherwise. And a host whose own name leads to an address that only it can reach.
run: waits
run: timeout 300
"""

import contextlib

import hosts
import training
from hosts import PORT, tool
from support import wait_until
from nodes import NUMBERS

PORTS = "30000-30015"
INNER = "10.99.0.2"


@contextlib.contextmanager
def translated(forward):
    """Two hosts: the first on the network, the second behind a router (the network's second address), which passes on PORTS if it is told to."""
    with hosts.network(3) as net:
        a, router, inner = net.hosts
        on = ["ip", "netns", "exec", router.namespace]
        tool("ip", "-n", inner.namespace, "link", "del", "eth0")
        tool("ip", "link", "add", "eth1", "netns", router.namespace, "type", "veth", "peer", "name", "eth0", "netns", inner.namespace)
        tool("ip", "-n", router.namespace, "addr", "add", "10.99.0.1/24", "dev", "eth1")
        tool("ip", "-n", router.namespace, "link", "set", "eth1", "up")
        tool("ip", "-n", inner.namespace, "addr", "add", f"{INNER}/24", "dev", "eth0")
        tool("ip", "-n", inner.namespace, "link", "set", "eth0", "up")
        tool("ip", "-n", inner.namespace, "route", "add", "default", "via", "10.99.0.1")
        tool(*on, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        tool(*on, "nft", "add table ip nat")
        tool(*on, "nft", "add chain ip nat out { type nat hook postrouting priority 100; }")
        tool(*on, "nft", 'add rule ip nat out oifname "eth0" masquerade')
        if forward:
            tool(*on, "nft", "add chain ip nat in { type nat hook prerouting priority -100; }")
            tool(*on, "nft", f'add rule ip nat in iifname "eth0" tcp dport {PORTS} dnat to {INNER}')
        yield a, router, inner


def c10d(*rest, host="10.77.0.1", port=PORT):
    return ["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint={host}:{port}", "--rdzv_id=nat", "--last_call=1", "--join_timeout=20", *map(str, rest)]


def train_both(tmp_path, first, second):
    """Both jobs train the bits of one host."""
    job = training.make_job(tmp_path, steps=40)
    assert training.train(job, tmp_path / "one", ranks=4).code == 0
    words = ["--nproc_per_node=2", "train", job, "--output_dir", tmp_path / "two", "--mode", "full_shard"]
    results = hosts.finish(*[host.job([*args, *words]) for host, args in (first, second)])
    assert [r.code for r in results] == [0, 0], results
    assert training.hash_of(tmp_path / "two") == training.hash_of(tmp_path / "one")
    return results


def test_who_only_calls_needs_nothing(tmp_path):
    with translated(forward=False) as (a, _, inner):
        results = hosts.finish(*[h.job(c10d("--node_rank", i, "sh", "-c", NUMBERS)) for i, h in enumerate((a, inner))])
        assert [r.code for r in results] == [0, 0], results
        train_both(tmp_path, (a, c10d("--node_rank=0")), (inner, c10d("--node_rank=1")))


def test_who_is_called_names_the_address_and_ports_that_are_passed_on(tmp_path):
    with translated(forward=True) as (a, router, inner):
        named = [f"--local_addr={router.address}", f"--port_range={PORTS}"]
        train_both(tmp_path, (a, c10d("--node_rank=1")), (inner, c10d("--node_rank=0", *named)))


def test_a_translated_host_may_hold_the_endpoint(tmp_path):
    with translated(forward=True) as (a, router, inner):
        named = [f"--local_addr={router.address}", f"--port_range={PORTS}"]
        meet = {"host": router.address, "port": 30000}
        results = hosts.finish(*[h.job(c10d(*rest, "sh", "-c", NUMBERS, **meet)) for h, rest in ((a, ["--rdzv_conf=is_host=0"]),
                                                                                              (inner, ["--rdzv_conf=is_host=1", *named]))])
    assert [r.code for r in results] == [0, 0], results
    # The router does not lead the inner host back to itself.
    assert [r.out.split()[-2:] for r in results] == [[router.address, "30000"], [INNER, "30000"]], results


def test_an_address_that_nobody_reaches_is_said_with_what_to_do(tmp_path):
    """The agents meet at the router's open port; the workers cannot, for nobody told them its address."""
    job = training.make_job(tmp_path, steps=40)
    with translated(forward=True) as (a, router, inner):
        args = ["--nnodes=2", f"--master_addr={router.address}", "--master_port=30000"]
        words = ["train", job, "--output_dir", tmp_path / "out"]
        with a.job([*args, "--node_rank=1", "-r", "3", "--log_dir", tmp_path / "logs", *words]) as late, \
             inner.job([*args, "--node_rank=0", *words]) as first:
            wait_until(lambda: "waiting 10 s for rank 0 on host " in logs(tmp_path / "logs"), "for whom it waits")
            assert f" at {INNER} port " in logs(tmp_path / "logs") and "name that there with --local_addr" in logs(tmp_path / "logs")
            for job_there in (late, first):
                job_there.kill()
            hosts.finish(late, first)
        train_both(tmp_path, (a, [*args, "--node_rank=1"]), (inner, [*args, "--node_rank=0", f"--local_addr={router.address}", "--port_range=30001-30015"]))


def logs(folder):
    return "".join(p.read_text() for p in folder.rglob("stderr.log"))


def test_a_name_that_leads_where_only_its_host_is(tmp_path):
    with hosts.network(2) as net:
        a, b = net.hosts
        tool("ip", "-n", b.namespace, "link", "add", "docker0", "type", "bridge")
        tool("ip", "-n", b.namespace, "addr", "add", "172.17.0.2/16", "dev", "docker0")
        tool("ip", "-n", b.namespace, "link", "set", "docker0", "up")
        with open(b.hosts_file, "w") as f:
            f.write(f"127.0.0.1 localhost\n{a.address} a\n172.17.0.2 b\n")
        train_both(tmp_path, (a, c10d()), (b, c10d()))  # it is known by the way to the endpoint, not by its name
        results = hosts.finish(*[h.job(c10d("sh", "-c", NUMBERS, host="b")) for h in (a, b)])
        assert [r.code for r in results] == [0, 0], results
        assert all(r.out.endswith(f" {b.address} {PORT}\n") for r in results), results
        assert f"b is 172.17.0.2 on this host, but another one came to {b.address}: all are told that one" in results[1].err, results
