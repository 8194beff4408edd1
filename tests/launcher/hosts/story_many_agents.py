# covers: launcher/hosts launcher/rounds
"""A thousand hosts' launchers at once, each a real process of its own on this machine, one worker each: they meet, hold one round, and end.
DTRUN_AGENTS=N: so many (with the thread sanitizer, which gives each process ten times the memory, a quarter of that by default). Prints time, memory, processes and files.
run: full
run: alone
run: timeout 600
"""

import os
import resource
import subprocess
import time

import support
from etcd import free_ports
from support import clean_env, children, wait_until

AGENTS = int(os.environ.get("DTRUN_AGENTS") or (250 if "thread" in os.environ.get("SAN", "") else 1000))
MEET_S = 300


def available_mib():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) / 1024


def test_a_thousand_agents_hold_a_round(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    assert limit == resource.RLIM_INFINITY or limit > 5 * AGENTS, "ulimit -u"
    script = 'echo "$RANK $WORLD_SIZE $GROUP_RANK"; : > "$1/in-$RANK"; : < "$1/go"'  # a thousand loops of sleep would take both cores
    os.mkfifo(tmp_path / "go")
    args = [support.DTRUN, f"--nnodes={AGENTS}", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_ports(1)[0]}", "--rdzv_id=many",
            f"--join_timeout={MEET_S}", "sh", "-c", script, "x", str(tmp_path)]
    env, before_mib, begun_s = clean_env(), available_mib(), time.monotonic()
    jobs = []
    try:
        with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
            for _ in range(AGENTS):
                jobs.append(subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
        started_s = time.monotonic() - begun_s
        wait_until(lambda: len(os.listdir(tmp_path)) == AGENTS + 3, f"{AGENTS} workers", MEET_S, step_s=0.2)
        met_s = time.monotonic() - begun_s
        time.sleep(2)  # for the memory of what ended
        mib = before_mib - available_mib()
        files = max(len(os.listdir(f"/proc/{children(j.pid)[0]}/fd")) for j in jobs)
        go = os.open(tmp_path / "go", os.O_WRONLY)  # whoever waits for a writer goes on
        ending_s = time.monotonic()
        codes = {j.wait(MEET_S) for j in jobs}
        ended_s = time.monotonic() - ending_s
        os.close(go)
    finally:
        for j in jobs:
            if j.poll() is None:
                j.kill()
                j.wait()
    print(f"{AGENTS} agents: started in {started_s:.1f} s, in a round after {met_s:.1f} s, all ended {ended_s:.1f} s after their workers could; "
          f"{mib:.0f} MiB with their workers (sh), {4 * AGENTS} processes, at most {files} files in one agent")
    assert codes == {0}, (codes, (tmp_path / "err").read_text()[-2000:])
    lines = (tmp_path / "out").read_text().split("\n")[:-1]
    assert sorted(lines) == sorted(f"{i} {AGENTS} {i}" for i in range(AGENTS)), lines[:5]
    assert not support.marked(env[support.MARKER])
