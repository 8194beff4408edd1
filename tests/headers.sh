#!/bin/sh
# Every header compiles alone and has the guard that its path says.
cd "$(dirname "$0")/.." || exit 2
status=0
for h in $(git ls-files '*.h'); do
    case $h in kernels/cpu/isa/* | kernels/cpu/twin/*) continue ;; esac
    guard=DT_$(echo "${h%.h}" | tr 'a-z/.-' 'A-Z___')_H
    grep -q "^#ifndef $guard" "$h" || { echo "headers: $h: no guard $guard"; status=1; }
    echo "#include \"$h\"" | ${CC:-gcc} -std=gnu11 -D_GNU_SOURCE -DDT_VERSION='"0"' -I. -fsyntax-only -x c - || { echo "headers: $h: does not compile alone"; status=1; }
done
exit $status
