#!/usr/bin/env python3
"""Gates on speed, each a ratio of two things measured in one run: scripts/bench_check.py [--load=N] [--write] [NAME ...]   B=build folder

A gate takes the best of several turns, as neighbours on a machine only ever slow things down, and one that fails is measured once more before it counts. With
a load above 1 (--load) at its beginning its speed says nothing, and it is skipped. How often a step calls each kernel is counted, not timed, so that counts
under any load: no call more than tests/golden/kernel_calls.json says (--write puts there what is now). Exit code 0, 1 (a gate failed), 2 (cannot begin).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH = os.path.join(ROOT, os.environ.get("B") or "build", "bin", "bench")
CALLS = os.path.join(ROOT, "tests", "golden", "kernel_calls.json")
TURNS = 3


def rows(*words):
    """The lines of a benchmark."""
    p = subprocess.run([BENCH, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if p.returncode != 0:
        raise RuntimeError(f"bench {' '.join(words)} ended with {p.returncode}: {p.stderr.strip()[-500:]}")
    return [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]


def kernel(name, *words):
    return rows("kernels", f"--kernel={name}", "--dtype=fp32", "--repeats=9", *words)[0]


def matmul():
    row = kernel("matmul")
    return row["floor"] / row["value"]


def adamw():
    return kernel("adamw_many")["gb_per_s"] / kernel("add", "--rows=16384")["gb_per_s"]


def all_reduce():
    row = next(r for r in rows("collectives", "--ranks=2", "--op=all_reduce", "--min=26214400", "--max=26214400") if r["bytes"] == 26214400)
    return row["floor_us"] / row["us"]


def scaling():
    one, two = (rows("step", f"--ranks={n}", "--strategy=ddp", "--dtype=fp32", "--repeats=3")[0]["value"] for n in (1, 2))
    return two / one


def start():
    """Of two ranks, in starts of /bin/true."""
    bare = []
    for _ in range(50):
        begin = time.perf_counter()
        subprocess.run(["/bin/true"], stdin=subprocess.DEVNULL)
        bare.append(time.perf_counter() - begin)
    row = next(r for r in rows("start", "--nproc=2", "--agents=0", "--repeats=15") if r["unit"] == "ms")
    return row["value"] / 1e3 / statistics.median(bare)


# name: (what the ratio is, measure, bound, whether more is better, CPUs that it wants)
GATES = {
    "matmul": ("of the rate of oneDNN's square product", matmul, 0.85, True, 1),
    "adamw": ("of the bandwidth of an addition", adamw, 0.80, True, 1),
    "all_reduce": ("of the rate of a vector addition by two threads, 25 MiB between 2 ranks", all_reduce, 0.50, True, 2),
    "scaling": ("times the tokens per second of 1 rank by 2", scaling, 1.8, True, 2),
    "start": ("starts of /bin/true for one of 2 ranks", start, 100, False, 2),
}


def gate(name, load):
    """"ok", "FAIL" or "skip", and what to say."""
    what, measure, bound, more, cpus = GATES[name]
    if len(os.sched_getaffinity(0)) < cpus:
        return "skip", f"wants {cpus} CPUs"
    best = None
    for _ in range(2):  # again, before it counts
        if os.getloadavg()[0] > load + (0 if best is None else cpus):  # its own load is none
            return "skip", f"the load is {os.getloadavg()[0]:.1f}"
        found = [measure() for _ in range(TURNS)]
        best = (max if more else min)(found + ([] if best is None else [best]))
        if best >= bound if more else best <= bound:
            break
    passed = best >= bound if more else best <= bound
    return "ok" if passed else "FAIL", f"{best:.3g} {what} (at {'least' if more else 'most'} {bound:g})"


def calls_now():
    """{type: {kernel: calls in a step}} of a small GPT-2 on the CPU."""
    found = {}
    for dtype in ("fp32", "bf16"):
        found[dtype] = {r["case"].split(",")[0].split()[2]: r["calls"] for r in
                        rows("floor", f"--dtype={dtype}", "--size=L2C64", "--batch=2", "--positions=64", "--vocab=256", "--micro-steps=2", "--repeats=1", "--steps=1")
                        if "calls" in r}
    return found


def calls():
    with open(CALLS) as f:
        wanted = json.load(f)
    now = calls_now()
    more = [f"{dtype} {k}: {n}, was {wanted[dtype].get(k, 0)}" for dtype in now for k, n in now[dtype].items() if n > wanted[dtype].get(k, 0)]
    fewer = sum(n > now[dtype].get(k, 0) for dtype in wanted for k, n in wanted[dtype].items())
    total = sum(sum(x.values()) for x in now.values())
    if more:
        return "FAIL", "more calls in a step: " + "; ".join(more)
    return "ok", f"{total} calls in a step of fp32 and one of bf16" + (f"; {fewer} kernels are called less often: --write keeps that" if fewer else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("name", nargs="*", metavar="NAME", help=", ".join([*GATES, "calls"]))
    a = parser.parse_args()
    unknown = [x for x in a.name if x not in [*GATES, "calls"]]
    if unknown or not os.path.exists(BENCH):
        print(f"bench_check: {unknown[0]}: no such gate; there are {', '.join([*GATES, 'calls'])}" if unknown else f"bench_check: {BENCH} is not built; make",
              file=sys.stderr)
        return 2
    if a.write:
        with open(CALLS, "w") as f:
            json.dump(calls_now(), f, indent=1, sort_keys=True)
            f.write("\n")
    count = {"ok": 0, "FAIL": 0, "skip": 0}
    for name in a.name or ["calls", *GATES]:
        try:
            verdict, text = calls() if name == "calls" else gate(name, a.load)
        except (RuntimeError, OSError, StopIteration, KeyError, ValueError) as e:
            verdict, text = "FAIL", f"{type(e).__name__}: {e}"
        count[verdict] += 1
        print(f"{verdict:4} {name:11} {text}", flush=True)
    print(f"{count['ok']} passed, {count['FAIL']} failed, {count['skip']} skipped")
    return 1 if count["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
