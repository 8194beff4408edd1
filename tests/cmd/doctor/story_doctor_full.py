# covers: cmd/doctor
"""doctor where somebody never answers: a rank, a name server. It says so, and ends in time.
run: full
run: alone
run: timeout 400
"""

import os
import re
import signal
import time

import hosts
from support import Job, children, run, serve, wait_until
from story_doctor import DOCTOR, QUIET, checks, failed


def test_a_rank_that_never_comes():
    store, _, port = serve("127.0.0.1:0")
    with store:
        begin = time.monotonic()
        env = {**QUIET, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        result = run(["--json"], env=env, executable=DOCTOR, timeout_s=90)
        store.signal(signal.SIGTERM)
        store.finish()
    found = checks(result.out)
    assert result.code == 100 and failed(found) == ["ranks"] and found["ranks"]["finding"] == "no word from rank 1", result
    assert "ranks are missing" in found["all-reduce"]["finding"] and time.monotonic() - begin < 60, found


def test_a_stopped_rank_does_not_hold_the_others():
    with Job(["--nproc_per_node=3", "doctor", "--json"], env=QUIET) as job:
        agent = job.agent

        def started():  # one that has not begun its program yet would stop the agent with it (vfork)
            workers = sorted(children(agent))
            return workers if len(workers) == 3 and all(os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "doctor" for pid in workers) else None

        workers = wait_until(started, "three workers", step_s=0.001)
        os.kill(workers[2], signal.SIGSTOP)
        result = job.finish(120)
        job.wait_gone()
    found = checks(result.out)
    assert result.code == 100 and failed(found), result
    assert "rank 2" in " ".join(found[name]["finding"] for name in failed(found)), found


def test_a_name_server_that_does_not_answer(tmp_path):
    servers = tmp_path / "resolv.conf"
    servers.write_text("nameserver 10.77.0.9\n")
    with hosts.network(1) as net:
        with open(net.hosts[0].hosts_file, "w") as f:
            f.write("127.0.0.1 localhost\n")
        out = net.hosts[0].run("sh", "-c", f'mount --bind "{servers}" /etc/resolv.conf; exec "{DOCTOR}" --json')
    found = checks(out)
    assert found["own name"]["level"] == "warn" and re.fullmatch(r"a does not resolve on itself: no answer of the resolver", found["own name"]["finding"]), found
    assert not failed(found), found
