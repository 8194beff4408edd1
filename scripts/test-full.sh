#!/bin/sh
# Everything this machine can run: all tests in three builds (plain in their long forms, address and undefined, thread), then longer fuzzing. Some
# hours on 2 cores; resumable: what passed is remembered in build/full, for this very source (but its pages).   scripts/test-full.sh [NAME ...]
# Environment: PARTS, some of "plain address-undefined thread fuzz" (default all); how many of each: DTRUN_KILLS, DTRUN_RANDOM_JOBS,
# DTRUN_SCHEDULES, DTRUN_CROWDS, DTRUN_STORE_OPS, FUZZ_COUNT (in FUZZ_S seconds at most); and DTRUN_SEED, FUZZ_SEED.
cd "$(dirname "$0")/.." || exit 2
mkdir -p build/full
source=$({ git ls-files -s -- . ':!docs' ':!*.md'; git diff HEAD -- . ':!docs' ':!*.md'; } 2>/dev/null | cksum | cut -d' ' -f1)
some=${1:+$(echo "$*" | cksum | cut -d' ' -f1)}
passed=0 failed=0 skipped=0
part() { # name, command...
    case " ${PARTS:-$1} " in *" $1 "*) ;; *) return ;; esac
    name=$1 log=build/full/$1${some:+-$some}-$source.log
    shift
    if tail -n 1 "$log" 2>/dev/null | grep -q ', 0 failed,'; then
        echo "== $name: done before, see $log"
    else
        echo "== $name"
        "$@" 2>&1 | tee "$log"
    fi
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    [ -n "$line" ] || line="0 passed, 1 failed, 0 skipped"
    # shellcheck disable=SC2086
    set -- $line
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
build_and_test() { # sanitizers or nothing, names of tests...
    san=$1 b=build
    [ -z "$san" ] || b=build-$(echo "$san" | tr , -)
    shift
    make -s -j2 SAN="$san" programs unit fuzz tools || { echo "0 passed, 1 failed, 0 skipped"; return; }
    SAN=$san B=$b scripts/test.sh --full --done="build/full/$b-$source.done" "$@"
}
long_forms() { # of a few tests; under sanitizers the short ones find as much
    DTRUN_ALL=1 DTRUN_KILLS=${DTRUN_KILLS:-1000} DTRUN_SCHEDULES=${DTRUN_SCHEDULES:-20000} DTRUN_CROWDS=${DTRUN_CROWDS:-20} \
        DTRUN_STORE_OPS=${DTRUN_STORE_OPS:-1000000} DTRUN_RANDOM_JOBS=${DTRUN_RANDOM_JOBS:-500} build_and_test "" "$@"
}
fuzz_all() { # every fuzz program, a number of seeded mutations, with the address and undefined sanitizers, two at a time
    make -s -j2 SAN=address,undefined fuzz || { echo "0 passed, 1 failed, 0 skipped"; return; }
    list=build/full/fuzz-$source.done
    touch "$list"
    # shellcheck disable=SC2016
    find tests/fuzz -name 'fuzz_*.c' -exec basename {} .c \; | sort | LIST=$list COUNT=${FUZZ_COUNT:-200000} TIME_S=${FUZZ_S:-600} \
        SEED=${FUZZ_SEED:-$(date +%s)} xargs -P 2 -n 1 sh -c '
        grep -q "^ok   $0:" "$LIST" && exit
        said=$(timeout $((TIME_S > 0 ? TIME_S + 120 : 0)) "build-address-undefined/fuzz/$0" -n "$COUNT" -t "$TIME_S" -s "$SEED" "tests/fuzz/corpus/${0#fuzz_}" 2>&1) &&
        echo "ok   $0: ${said#*: }" >>"$LIST" || echo "FAIL $0, seed $SEED: $said" | tee -a build/full/fuzz-failures.txt'
    cat "$list"
    good=$(grep -c '^ok   ' "$list")
    echo "$good passed, $(($(find tests/fuzz -name 'fuzz_*.c' | wc -l) - good)) failed, 0 skipped"
}

part plain long_forms "$@"
part address-undefined build_and_test address,undefined "$@"
part thread build_and_test thread "$@"
[ $# -gt 0 ] || part fuzz fuzz_all
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
