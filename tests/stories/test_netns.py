"""Jobs on hosts with networks of their own (namespaces): they find each other by name, train the bits of one host, and meet faults of wires.
run: alone
run: timeout 300
"""

import pytest

import hosts
import training
from hosts import PORT, Rounds
from test_nodes import NUMBERS, c10d, static

STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("netns")
    return folder, training.make_job(folder, steps=STEPS)


@pytest.fixture(scope="module")
def one_host(place):
    """Hash and losses of one host, by number of ranks; made when asked for."""
    folder, job = place
    made = {}

    def of(ranks):
        if ranks not in made:
            out = folder / f"one-{ranks}"
            result = training.train(job, out, ranks=ranks)
            assert result.code == 0, result
            made[ranks] = training.hash_of(out), training.metrics(out)
        return made[ranks]

    return of


@pytest.mark.parametrize("layout, strategy", [((2, 1), "full_shard"), ((1, 2, 3), "ddp"), ((2, 2), "zero2")])
def test_the_bits_of_one_host(place, one_host, layout, strategy):
    folder, job = place
    out = folder / ("hosts-" + "-".join(map(str, layout)))
    with hosts.network(len(layout)) as net:
        jobs = [h.job(c10d(PORT, len(layout), f"--nproc_per_node={n}", "train", job, "--output_dir", out, "--mode", strategy, host="a"))
                for h, n in zip(net.hosts, layout)]
        with Rounds(*jobs):
            results = hosts.finish(*jobs)
    assert [r.code for r in results] == [0] * len(layout), results
    assert (training.hash_of(out), training.metrics(out)) == one_host(sum(layout))


@pytest.mark.parametrize("backend, family", [("static", 4), ("c10d", 6)])
def test_hosts_find_each_other_by_name(backend, family):
    with hosts.network(3) as net:
        net.name_hosts(family)
        jobs = []
        for i, h in enumerate(net.hosts):
            if family == 6:
                h.run("ip", "addr", "del", f"{h.address}/24", "dev", "eth0")
            args = static(PORT, i, 3, "sh", "-c", NUMBERS, host="a") if backend == "static" else c10d(PORT, 3, "sh", "-c", NUMBERS, host="a")
            jobs.append(h.job(args))
        results = hosts.finish(*jobs)
        where = net.hosts[0].address if family == 4 else net.hosts[0].address6
    assert [r.code for r in results] == [0, 0, 0], results
    out = [r.out for r in results]
    assert (out if backend == "static" else sorted(out)) == [f"{i} 3 0 1 {i} 3 {where} {PORT}\n" for i in range(3)], results
