#!/bin/sh
# Includes point down. Each room lists the rooms whose headers it may include; the exceptions are
# named one by one. No table of names can have a hole.
cd "$(dirname "$0")/.." || exit 2
/usr/bin/python3 - <<'PYTHON' || exit 1
import re, subprocess, sys
# A room may include itself, the rooms behind it in its list, and the folders below.
LAUNCHER = "job ssh hosts query store workers rounds output options net".split()
WORKER = "run checkpoints engine data job model".split()
ROOMS = {"base": [], "kernels": ["base"], "collectives": ["base"],
         "worker/engine/optimizers": ["kernels", "base"],  # the rows alone, for all that ask them
         "worker/engine/schedules": ["base"],
         "worker/data/tokenizers": ["base"],
         "cmd": ["launcher", "worker", "collectives", "kernels", "base"]}
for i, room in enumerate(LAUNCHER):
    ROOMS["launcher/" + room] = ["launcher/" + r for r in LAUNCHER[i:]] + ["collectives", "base"]
for i, room in enumerate(WORKER):
    ROOMS["worker/" + room] = ["worker/" + r for r in WORKER[i:]] + ["worker/engine/optimizers", "worker/engine/schedules", "collectives", "kernels", "base"]
EXCEPTIONS = {  # file or folder: headers
    "collectives/": ["kernels/device.h", "kernels/kernels.h"],
}
LIBUV = ("launcher/", "cmd/bench/")  # and not the pure parts of it
PURE = ("launcher/rounds/",)

def room_of(path):
    return max((r for r in ROOMS if path.startswith(r + "/")), key=len, default=None)

status = 0
def say(text):
    global status
    print(text)
    status = 1

for path in subprocess.check_output(["git", "ls-files", "*.c", "*.h", "*.cu", "*.cuh"], text=True).split():
    here = room_of(path)
    if path.startswith("tests/"):
        continue
    if here is None:
        say(f"layers: {path}: lies in no room")
        continue
    for number, line in enumerate(open(path), 1):
        m = re.match(r'#include ["<]([\w/.]+)[">]', line)
        if not m:
            continue
        header = m.group(1)
        if header == "uv.h" and (not path.startswith(LIBUV) or path.startswith(PURE)):
            say(f"{path}:{number}: layers: libuv belongs to the launcher, and not to its pure parts")
        there = room_of(header)
        if there is None or there == here:
            continue
        if any(path.startswith(e) and header in headers for e, headers in EXCEPTIONS.items()):
            continue
        if not any(there == r or there.startswith(r + "/") for r in ROOMS[here]):
            say(f"{path}:{number}: layers: {here} may not include {header}")
sys.exit(status)
PYTHON
grep -nE 'char \*const [a-z_]+\[[A-Z_]*(COUNT|PHASES|LANES|WAYS)\] = \{' $(git ls-files '*.c' '*.h') && {
    echo "layers: names of an enum are a switch without default, so that the compiler finds the one that is missing"
    exit 1
}
exit 0
