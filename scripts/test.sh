#!/bin/sh
# Runs the tests of the commit tier: scripts/test.sh [--full] [--retry] [NAME ...]; see run_tests.py.
cd "$(dirname "$0")/.." || exit 2
for p in /usr/bin/python3 python3; do
    command -v $p >/dev/null 2>&1 && exec $p scripts/run_tests.py "$@"
done
echo "test.sh: python3 is missing; run: scripts/setup.sh" >&2
exit 2
