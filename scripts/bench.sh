#!/bin/sh
# Runs every benchmark with its defaults (or those named), one JSON line per case: scripts/bench.sh [NAME ...]   B=build folder
cd "$(dirname "$0")/.." || exit 2
bench=${B:-build}/bin/bench
[ $# -gt 0 ] || set -- $($bench --help | awk '/^  [a-z]/ { print $1 }')
code=0
for name; do
    $bench "$name" || code=1
done
exit $code
