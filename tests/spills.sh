#!/bin/sh
# What ptxas made of the kernels: registers, shared memory and spills per kernel and target, from the build's *.ptxas files.
#   tests/spills.sh [BUILD]   prints all and a summary, and fails when a kernel spills
# A file whose kernels may spill says so in its heading: "not hot:", and why.
cd "$(dirname "$0")/.." || exit 2
build=${1:-${B:-build}}
status=0
seen=0
all=
newline='
'
for f in "$build"/obj/kernels/cuda/*.ptxas; do
    [ -e "$f" ] || break
    seen=$((seen + 1))
    source=kernels/cuda/$(basename "$f" .ptxas).cu
    [ -e "$source" ] || continue # of a file that is gone
    hot=1
    head -n 30 "$source" | grep -q 'not hot:' && hot=0
    table=$(c++filt <"$f" | awk -v file="$source" -v hot=$hot '
        /Compiling entry function/ { split($0, q, "\047"); name = q[2]; target = q[4]; sub(/^void /, "", name); gsub(/\(anonymous namespace\)::/, "", name); sub(/\(.*\)$/, "", name) }
        /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
        /Used [0-9]+ registers/ {
            regs = $0; sub(/.*Used /, "", regs); sub(/ .*/, "", regs)
            smem = 0; if (match($0, /[0-9]+ bytes smem/)) smem = substr($0, RSTART, RLENGTH) + 0
            printf "%-8s %3d registers %6d shared %5d stack %5d spilled  %s: %s\n", target, regs, smem, stack, stores + loads, file, name
            if (hot && stores + loads > 0) { bad = 1; printf "spills: %s: %s spills %d bytes on %s\n", file, name, stores + loads, target }
        }
        END { exit bad }') || status=1
    printf '%s\n' "$table"
    all=$all$table$newline
done
[ $seen -gt 0 ] || { echo "spills: no kernels were compiled by nvcc"; exit 77; }
printf '%s' "$all" | awk '
    / registers / { kernels++; if ($2 > most) most = $2; if ($8 > 0) { spilling++; if ($8 > worst) worst = $8 } }
    END { printf "kernels: %d of all targets, %d registers at most; %d spill, %d bytes at most\n", kernels, most, spilling, worst }'
exit $status
