#!/bin/sh
# Every header compiles alone and has the guard that its path says.
cd "$(dirname "$0")/.." || exit 2
status=0
# Where the CUDA toolkit's headers are missing, what includes them is left out.
cuda=${CUDA-/usr/local/cuda}/include
for h in $(git ls-files '*.h'); do
    case $h in kernels/cpu/isa/* | kernels/cpu/twin/*) continue ;; esac
    guard=DT_$(echo "${h%.h}" | tr 'a-z/.-' 'A-Z___')_H
    grep -q "^#ifndef $guard" "$h" || { echo "headers: $h: no guard $guard"; status=1; }
    options="-std=gnu11 -x c"
    case $h in
    tests/softgpu/*) options="-std=c++17 -DDT_SOFTGPU -isystem $cuda -x c++" ;;
    esac
    case $options in *isystem*) [ -e "$cuda/cuda_runtime.h" ] || continue ;; esac
    # shellcheck disable=SC2086
    echo "#include \"$h\"" | ${CC:-gcc} -D_GNU_SOURCE -DDT_VERSION='"0"' -I. -fsyntax-only $options - || { echo "headers: $h: does not compile alone"; status=1; }
done
exit $status
