#!/usr/bin/python3
"""How soon faults are noticed, and how soon all train again: a worker or an agent is killed, a host is cut off; and what faults cost a job. By hand.

    tests/tools/bench_faults.py [killed|cut|useful|saves ...]      DTRUN_REPEATS=N (default 20; of the cut 3, as root)

One JSON line per case, in ms: median and worst. Noticed: the first worker of another host is told that its round is over. Back: the last worker of the next
round has started. Agents are processes of this machine; for the cut, network namespaces with the waits that a job has by default.
"""

import glob
import json
import os
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import hosts
import support
import training
from nodes import free_port

REPEATS = int(os.environ.get("DTRUN_REPEATS") or 20)
# Says when it starts, and when it is told to end.
SAYS = ('say() { echo "$1 $DTRUN_ROUND $(date +%s.%N)" >> "$0"; }; trap "say end; exit 143" TERM; say start; while :; do sleep 1000 & wait $!; done')


def times(folder, name, what, after):
    """By round: when the worker on a host said so, later than `after`."""
    found = {}
    for line in support.lines_of(os.path.join(folder, name)):
        word, number, at = line.split()
        if word == what and float(at) > after:
            found.setdefault(int(number), float(at))
    return found


def newest_round(folder, names, count, after):
    """When the last of `count` workers of one round started, all of them after that time; or None."""
    by_round = {}
    for n in names:
        for number, at in times(folder, n, "start", after).items():
            by_round.setdefault(number, []).append(at)
    full = [max(v) for v in by_round.values() if len(v) == count]
    return min(full) if full else None


def measure(folder, names, left, fault, deadline_s):
    """(noticed, back) in ms after the fault."""
    begun = time.time()
    fault()
    back = support.wait_until(lambda: newest_round(folder, left, len(left), begun), "the next round", deadline_s, step_s=0.02)
    noticed = min(t for n in left for t in times(folder, n, "end", begun).values())
    return (noticed - begun) * 1e3, (back - begun) * 1e3


def show(case, values, **more):
    print(json.dumps({"bench": "faults", "case": case, "count": len(values), "noticed_ms": round(statistics.median(v[0] for v in values), 1),
                      "noticed_worst_ms": round(max(v[0] for v in values), 1), "back_ms": round(statistics.median(v[1] for v in values), 1),
                      "back_worst_ms": round(max(v[1] for v in values), 1), "load": round(os.getloadavg()[0], 1), **more}), flush=True)


def killed(count):
    """A worker, or an agent that does not lead, of `count` agents."""
    with tempfile.TemporaryDirectory() as folder:
        meet = [f"--nnodes={count - 1}:{count}", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "--rdzv_id=bench", "--max_restarts=100000"]
        names = [str(i) for i in range(count)]
        jobs = {}

        def start(name):
            jobs[name] = support.Job([*meet, "sh", "-c", SAYS, os.path.join(folder, name)], env={"DTRUN_LOG": "error"})

        try:
            for n in names:
                start(n)
            support.wait_until(lambda: newest_round(folder, names, count, 0), "the first round", 120)
            victim, values = names[-1], []
            for _ in range(REPEATS):
                worker = support.wait_until(lambda: support.children(jobs[victim].agent), "a worker")[0]
                others = [n for n in names if n != victim]
                begun = time.time()
                os.kill(worker, signal.SIGKILL)
                back = support.wait_until(lambda: newest_round(folder, names, count, begun), "the next round", step_s=0.02)  # noqa: B023
                noticed = min(t for n in others for t in times(folder, n, "end", begun).values())
                values.append(((noticed - begun) * 1e3, (back - begun) * 1e3))
            show(f"worker killed, {count} hosts", values)
            values = []
            for k in range(3):  # who comes back more often has to stay for a minute first
                values.append(measure(folder, names, [n for n in names if n != victim], lambda: os.kill(jobs[victim].agent, signal.SIGKILL), 60))
                jobs[victim].finish()
                if k == 2:
                    break
                begun = time.time()
                start(victim)
                support.wait_until(lambda: newest_round(folder, names, count, begun), "a round of all", 120, step_s=0.02)  # noqa: B023
            show(f"agent killed, {count} hosts", values)
        finally:
            for j in jobs.values():
                j.kill()


def cut(lost):
    """One of three hosts, with the default waits."""
    values = []
    for _ in range(min(REPEATS, 3)):
        with tempfile.TemporaryDirectory() as folder, hosts.Network(3) as net:
            jobs = {}
            for h in net.hosts:
                jobs[h.name] = h.job(["--nnodes=1:3", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{hosts.PORT}", "--rdzv_id=bench", "sh", "-c", SAYS,
                                      os.path.join(folder, h.name)])
            support.wait_until(lambda: newest_round(folder, "abc", 3, 0), "the first round", 120)  # noqa: B023
            time.sleep(2)
            victim = next(h for h in net.hosts if h.name == lost)
            values.append(measure(folder, "abc", [n for n in "abc" if n != lost], lambda: net.down(victim), 60))  # noqa: B023
            for j in jobs.values():
                j.kill()
    show("host cut off, " + ("the one that leads" if lost == "a" else "another one"), values)


def useful(every_s, wall_s):
    """The share of time that steps took which the job kept, with a worker killed so often."""
    with tempfile.TemporaryDirectory() as folder:
        job = training.make_job(folder, steps=10000000, checkpointing={"save_every_n_steps": 200}, logging={"log_every_n_steps": 1000000})
        options = ["--nproc_per_node=2", "--max_restarts=1000"]

        def steps(out, seconds, faults_s):
            with support.Job([*options, "train", job, "--output_dir", out, "--set", "training.eval_every_n_steps=0"]) as running:
                support.wait_until(lambda: newest(out) > 0, "a checkpoint")
                first, begun = newest(out), time.monotonic()
                for k in range(1, int(seconds / faults_s) + 1 if faults_s else 1):
                    time.sleep(max(0, begun + k * faults_s - time.monotonic()))
                    os.kill(support.wait_until(lambda: support.children(running.agent), "workers")[-1], signal.SIGKILL)
                time.sleep(max(0, begun + seconds - time.monotonic()))
                return (newest(out) - first) / (time.monotonic() - begun)

        def newest(out):
            return max((int(os.path.basename(p)[5:13]) for p in glob.glob(f"{out}/checkpoints/step-????????")), default=0)

        quiet = [steps(os.path.join(folder, "quiet1"), wall_s / 2, 0)]
        faulty = steps(os.path.join(folder, "faulty"), wall_s, every_s)
        quiet.append(steps(os.path.join(folder, "quiet2"), wall_s / 2, 0))
        print(json.dumps({"bench": "faults", "case": f"useful share, a worker killed every {every_s} s", "value": round(faulty / statistics.mean(quiet), 4),
                          "steps_per_s_undisturbed": [round(q) for q in quiet], "save_every_n_steps": 200, "load": round(os.getloadavg()[0], 1)}), flush=True)


def main():
    parts = sys.argv[1:] or ["killed", "cut", "useful"]
    if "killed" in parts:
        for count in (2, 8, 64):
            killed(count)
    if "cut" in parts and not hosts.missing():
        cut("c")
        cut("a")
    if "useful" in parts:
        useful(10, 60)
        useful(60, 120)


if __name__ == "__main__":
    main()
