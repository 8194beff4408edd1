#!/bin/sh
# Everything this machine can run: all tests in three builds (plain, address and undefined, thread), then longer fuzzing. About an hour; resumable:
# a finished part is remembered in build/full for this commit.   scripts/test-full.sh [NAME ...]
cd "$(dirname "$0")/.." || exit 2
mkdir -p build/full
commit=$(git rev-parse --short HEAD 2>/dev/null || echo none)-$(git diff HEAD 2>/dev/null | cksum | cut -d' ' -f1)
passed=0 failed=0 skipped=0
part() { # name, command...
    name=$1
    shift
    log=build/full/$name-$commit.log
    if tail -n 1 "$log" 2>/dev/null | grep -q ', 0 failed,'; then
        echo "== $name: done before, see $log"
    else
        echo "== $name"
        "$@" 2>&1 | tee "$log"
    fi
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    [ -n "$line" ] || line="0 passed, 1 failed, 0 skipped"
    set -- $line
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
build_and_test() {
    [ -z "$1" ] && export DTRUN_KILLS=1000 DTRUN_SCHEDULES=100000 DTRUN_ALL=1
    make -s -j2 SAN="$1" programs unit fuzz tools || { echo "0 passed, 1 failed, 0 skipped"; return; }
    b=build
    [ -n "$1" ] && b=build-$(echo "$1" | tr , -)
    shift
    SAN=${b#build} B=$b scripts/test.sh --full "$@"
    unset DTRUN_KILLS DTRUN_SCHEDULES DTRUN_ALL
}
fuzz_all() { # every fuzz program, a fixed number of seeded mutations, with the address and undefined sanitizers
    ok=0 bad=0
    for f in build-address-undefined/fuzz/fuzz_*; do
        case $f in *.d) continue ;; esac
        n=$(basename "$f")
        files=$(find "tests/fuzz/corpus/${n#fuzz_}" -type f 2>/dev/null)
        # shellcheck disable=SC2086
        if timeout 900 "$f" -n "${FUZZ_COUNT:-200000}" -s "$(date +%s)" $files; then ok=$((ok + 1)); else bad=$((bad + 1)); fi
    done
    echo "$ok passed, $bad failed, 0 skipped"
}
part plain build_and_test "" "$@"
part address-undefined build_and_test address,undefined "$@"
part thread build_and_test thread "$@"
[ $# -eq 0 ] && part fuzz fuzz_all
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
