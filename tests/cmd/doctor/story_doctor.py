# covers: cmd/doctor
"""doctor: alone, under dtrun, and on hosts where one thing is broken: it is named, nothing else is, and doctor ends.
run: alone
run: timeout 300
"""

import glob
import json
import os
import re
import socket

import pytest

import hosts
from hosts import PORT
from support import BIN, Job, run, script
from nodes import c10d, finish, free_port

DOCTOR = os.path.join(BIN, "doctor")
SANITIZED = "build-" in BIN
QUIET = {"NCCL_SOCKET_IFNAME": None, "GLOO_SOCKET_IFNAME": None, "TMPDIR": None, "PYTHON_EXEC": None}


def checks(text):
    """Lines of --json by check; of several of one check the worst."""
    order, found = ["ok", "info", "warn", "fail"], {}
    for line in map(json.loads, text.splitlines()):
        assert set(line) == {"group", "check", "level", "finding", "advice"} and line["level"] in order, line
        assert bool(line["advice"]) <= (line["level"] in ("warn", "fail")), line
        kept = found.get(line["check"])
        if kept is None or order.index(line["level"]) > order.index(kept["level"]):
            found[line["check"]] = line
    return found


def failed(found):
    return [name for name, line in found.items() if line["level"] == "fail"]


def alone(*args, env=None, **rest):
    return run(args, env={**QUIET, **(env or {})}, executable=DOCTOR, **rest)


def on_hosts(net, **env):
    """doctor on all hosts of a network; the results, and what it found."""
    results = hosts.finish(*(h.job(c10d(PORT, len(net.hosts), "doctor", "--json", host="a"), env={**QUIET, **env}) for h in net.hosts))
    return results, checks("".join(r.out for r in results))


def test_alone():
    result = alone()
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80 and re.match(r"doctor \S+: 1 rank on 1 host: \S+ \(rank 0\)$", lines[0]), result
    assert re.fullmatch(r"\d+ ok, \d+ warn, 0 fail", lines[-1]), result
    assert [line for line in lines if line and line[0] != " "][1:-1] == ["job", "environment", "devices", "limits", "names", "ports"], result
    found = checks(alone("--json").out)
    assert len(found) >= 20 and "round trip" not in found and found["GPUs"]["level"] == "info", found
    assert found["open files"]["group"] == "limits" and found["choices"]["finding"].startswith("dtrun would take hosts 1 (default), workers per host 1")


def test_words():
    assert alone("--help").code == 0 and max(map(len, alone("--help").out.splitlines())) <= 80
    assert alone("--version").out.startswith("doctor ")
    for args in (["--bogus"], ["job.json"]):
        assert alone(*args).code == 2
    broken = alone(env={"RANK": "0", "WORLD_SIZE": "2"})
    assert broken.code == 2 and "MASTER_ADDR" in broken.err, broken


@pytest.mark.parametrize("limit, check, level, word", [
    ("ulimit -n 70; ", "open files", "warn", "should be at least 1024"),
    ("ulimit -n 40; ", "open files", "fail", "should be at least 1024"),
    pytest.param("ulimit -v 4000000; ", "reserving memory", "warn", "ulimit -v", marks=pytest.mark.skipif(SANITIZED, reason="sanitizers reserve terabytes")),
    ("export TMPDIR=/nowhere; ", "temporary files", "fail", "/nowhere: No such file"),
    ("export NCCL_SOCKET_IFNAME=ib; ", "interfaces", "fail", "NCCL_SOCKET_IFNAME=ib"),
    ("export NCCL_SOCKET_IFNAME=^lo; ", "interfaces", "ok", ""),
    ("export PYTHON_EXEC=/nowhere; ", "python", "warn", "PYTHON_EXEC: /nowhere: no such program"),
    ("export OMP_NUM_THREADS=4096; ", "threads", "warn", "OMP_NUM_THREADS=4096"),
    ("export PET_NNODES=2 PET_RDZV_BACKEND=c10d; ", "choices", "fail", "dtrun would refuse to start here: "),
])
def test_one_thing_is_broken(tmp_path, limit, check, level, word):
    path = script(tmp_path, "broken.sh", f"{limit}exec {DOCTOR} --json\n")
    result = run([], env=QUIET, executable=path)
    found = checks(result.out)
    assert found[check]["level"] == level and word in found[check]["finding"], found[check]
    assert failed(found) == ([check] if level == "fail" else []), result
    assert result.code == (level == "fail"), result


def test_a_range_without_a_free_port():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        found = checks(alone("--json", env={"DTRUN_PORT_RANGE": f"{port}-{port}"}).out)
    assert found["listening"]["level"] == "fail" and str(port) in found["listening"]["finding"], found["listening"]


def test_the_scheduler_and_who_said_what(tmp_path):
    env = {**QUIET, "SLURM_JOB_ID": "77", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "PET_NPROC_PER_NODE": "3"}
    found = checks(alone("--json", env=env).out)
    assert found["scheduler"]["finding"].startswith("slurm, not started by its launcher, job 77 (SLURM_JOB_ID), hosts 2 (SLURM_NNODES), list n[1-2]"), found
    assert "workers per host 3 (PET_NPROC_PER_NODE)" in found["choices"]["finding"], found
    found = checks(run(["--nproc_per_node=1", "doctor", "--json"], env=env).out)
    assert "workers per host 1 (--nproc_per_node)" in found["choices"]["finding"] and "job 77 (SLURM_JOB_ID)" in found["scheduler"]["finding"], found


def test_two_ranks():
    result = run(["--nproc_per_node=2", "doctor"], env=QUIET)
    assert result.code == 0 and max(map(len, result.out.splitlines())) <= 80, result
    assert re.search(r"^doctor \S+: 2 ranks on 1 host: \S+ \(ranks 0, 1\)$", result.out, re.M), result
    found = checks(run(["--nproc_per_node=2", "doctor", "--json"], env=QUIET).out)
    assert re.fullmatch(r"1\.0 \w+ across 2 ranks by shm: right, \d+\.\d us, \d+\.\d+ GB/s", found["all-reduce"]["finding"]), found
    assert "1 MiB comes back as it was" in found["round trip"]["finding"], found


def test_more_ranks_than_cores():
    cores = len(os.sched_getaffinity(0))
    found = checks(run([f"--nproc_per_node={cores + 1}", "doctor", "--json"], env=QUIET).out)
    assert found["cores"]["level"] == "warn" and f"{cores + 1} ranks on " in found["cores"]["finding"], found


def test_what_failed_is_the_cause_and_nothing_is_tried_again():
    result = run(["--nproc_per_node=2", "--max_restarts=3", "doctor"], env={**QUIET, "GLOO_SOCKET_IFNAME": "ib"})
    assert result.code == 100 and result.out.count("\nlimits\n") == 1, result
    assert re.search(r"^dtrun: host \S+ rank 0 .*: exit code 100: 1 check failed; interfaces: .*GLOO_SOCKET_IFNAME=ib names none of its interfaces", result.err,
                     re.M), result
    assert "SIGTERM" not in result.err, result  # the others had ended by themselves


def test_two_agents_of_one_machine():
    port = free_port()
    jobs = [Job(c10d(port, 2, f"--nproc_per_node={n}", "doctor", "--json"), env=QUIET) for n in (1, 2)]
    with jobs[0], jobs[1]:
        results = finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    assert [bool(r.out) for r in results].count(True) == 1, results  # one report for all
    found = checks("".join(r.out for r in results))
    assert re.match(r"1 pair passes 64 bytes to 1 MiB; slowest round trip \d+ us", found["messages"]["finding"]), found
    assert "across 3 ranks by tcp: right" in found["all-reduce"]["finding"], found
    assert found["own name"]["level"] == "ok" and "meeting at 127.0.0.1" in found["choices"]["finding"], found
    assert f": 3 ranks on {len(os.sched_getaffinity(0))} core" in found["cores"]["finding"], found


@pytest.mark.skipif(SANITIZED, reason="libfaketime and a sanitizer both want to be the first library")
def test_a_clock_that_is_off():
    """U-9: a note, and nothing else."""
    library = next((p for p in glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
    if library is None:
        pytest.skip("no libfaketime here")
    port = free_port()
    # Only the worker: the library also changes waits, by a monotonic clock that it takes for faked unless the last variable is 0.
    late = (f"LD_PRELOAD={library} FAKETIME=-3600 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_FORCE_MONOTONIC_FIX=0 exec {DOCTOR} --json")
    jobs = [Job(c10d(port, 2, "sh", "-c", command), env=QUIET) for command in (f"exec {DOCTOR} --json", late)]
    with jobs[0], jobs[1]:
        results = finish(*jobs)
    assert [r.code for r in results] == [0, 0], results
    clock = checks("".join(r.out for r in results))["clock"]
    assert clock["level"] == "warn" and re.fullmatch(r"\S+#[01] is 3(600\.[0-4]|599\.[5-9]) s ahead of \S+#[01]", clock["finding"]), clock


# ---- hosts with networks of their own ----


def test_hosts_that_are_well():
    with hosts.network(3) as net:
        results, found = on_hosts(net)
    assert [r.code for r in results] == [0, 0, 0] and not failed(found), results
    assert found["messages"]["finding"].startswith("3 pairs pass 64 bytes to 1 MiB"), found
    assert re.match(r"hosts are at most \d+\.\d ms apart", found["clock"]["finding"]), found
    assert found["MASTER_ADDR"]["finding"] == "10.77.0.1" and "a: eth0 10.77.0.1, eth0 fd77::1; used: eth0" in found["interfaces"]["finding"], found
    assert found["somaxconn"]["level"] == found["MTU"]["level"] == found["own name"]["level"] == "ok", found


def test_large_messages_are_lost(tmp_path):
    """N-19: the way takes 1300 bytes, drops more, and no error comes back. What doctor itself has to tell is more than that."""
    long = tmp_path.joinpath("x" * 200, "y" * 200, "z" * 200)
    long.mkdir(parents=True)
    with hosts.network(2) as net:
        net.nft("add table bridge part")
        net.nft("add chain bridge part lost { type filter hook forward priority 0; }")
        net.nft("add rule bridge part lost meta protocol ip meta length > 1300 drop")
        results, found = on_hosts(net, TMPDIR=long)
    assert [r.code for r in results] == [100, 100], results
    assert failed(found) == ["messages"], results
    assert re.fullmatch(r"large messages are lost: [ab] to [ab], 1228 bytes pass, 1248 do not|large messages are lost: [ab] to [ab], 1248 bytes pass, 1300 do not",
                        found["messages"]["finding"]), found
    assert re.search(r"ip link set dev eth0 mtu 1(280|300) on both", found["messages"]["advice"]), found
    assert found["all-reduce"]["level"] == "info" and "not tried" in found["all-reduce"]["finding"], found


@pytest.mark.parametrize("action, word, advice", [("drop", "timed out", "drops it"), ("reject", "refused", "rejects it")])
def test_a_firewall_between_workers(action, word, advice):
    """Only the port of the launcher is open."""
    with hosts.network(2) as net:
        for h in net.hosts:
            for rule in ("add table inet wall", "add chain inet wall input { type filter hook input priority 0; }",
                         f"add rule inet wall input iifname eth0 tcp flags & (syn|ack) == syn tcp dport != {PORT} "
                         + ("reject with tcp reset" if action == "reject" else "drop")):
                hosts.tool("ip", "netns", "exec", h.namespace, "nft", rule)
        results, found = on_hosts(net)
    assert [r.code for r in results] == [100, 100], results
    assert failed(found) == ["messages"] and word in found["messages"]["finding"] and advice in found["messages"]["advice"], found


def test_limits_of_one_host():
    with hosts.network(2) as net:
        net.hosts[1].run("sysctl", "-q", "-w", "net.core.somaxconn=16")
        net.hosts[1].run("sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=40000 40100")
        net.hosts[1].run("ip", "link", "set", "dev", "eth0", "mtu", "1400")
        with open(net.hosts[1].hosts_file) as f:
            text = f.read()
        with open(net.hosts[1].hosts_file, "w") as f:
            f.write(text.replace("10.77.0.2 b", "127.0.1.1 b"))
        results, found = on_hosts(net)
    assert [r.code for r in results] == [0, 0], results
    warned = {name: line["finding"] for name, line in found.items() if line["level"] == "warn" and name not in ("cores", "python")}
    assert warned == {"somaxconn": "b: 16, should be at least 128", "outgoing": "b: 101 ports for outgoing connections, should be 1000",
                      "MTU": "a: 1500; b: 1400", "own name": "b resolves to 127.0.1.1 on itself"}, results


def test_a_slow_way():
    with hosts.network(2) as net:
        hosts.tool("ip", "netns", "exec", net.hosts[1].namespace, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "1mbit", "burst", "32kbit",
                   "latency", "400ms")
        results, found = on_hosts(net)
    assert [r.code for r in results] == [0, 0] and not failed(found), results
    assert found["messages"]["level"] == "warn" and re.fullmatch(r"b to a: 0\.\d+ MB/s, 1 MiB did not arrive in 5 s", found["messages"]["finding"]), found
