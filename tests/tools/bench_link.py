#!/usr/bin/python3
"""How much of a link all_reduce uses: two hosts in namespaces, a link of so many Mbit/s in each direction, one rank on each; by hand, as root.

    tests/tools/bench_link.py [MBIT_PER_S [BYTES]]

Prints one JSON line: bus bandwidth (bytes that must leave each host, 2(n-1)/n of the buffer, over the median time) over that of the link. Frames carry
1448 of 1514 bytes, so 0.956 is all that can be. The limit is a token bucket (tbf) on each host's interface: netem, which some kernels lack, is not needed.
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
import hosts


def main():
    mbit = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 25 << 20
    if hosts.missing():
        sys.exit(hosts.missing())
    with hosts.Network(2) as net:
        for h in net.hosts:
            hosts.tool("ip", "netns", "exec", h.namespace, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb",
                       "latency", "50ms")
        jobs = [h.job(["--nnodes=2", "--rdzv_backend=c10d", f"--rdzv_endpoint=a:{hosts.PORT}", "--rdzv_id=bench", "bench", "collectives", "--hosts", "2",
                       "--op", "all_reduce", "--min", size, "--max", size, "--seconds", "2", "--no-floor"]) for h in net.hosts]
        results = hosts.finish(*jobs, timeout_s=300)
    for r in results:
        if r.code != 0:
            sys.exit(str(r))
    rows = [json.loads(line) for r in results for line in r.out.splitlines() if line.startswith("{")]
    row = next(x for x in rows if x["op"] == "all_reduce")
    share = row["busbw"] * 8 / (mbit / 1000)  # gigabytes per second
    print(json.dumps({"bench": "link", "mbit_per_s": mbit, "bytes": row["bytes"], "us": row["us"], "share": round(share, 3), "load": row["load"]}))


if __name__ == "__main__":
    main()
