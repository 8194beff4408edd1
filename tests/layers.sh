#!/bin/sh
# Includes point down: cmd -> launcher | worker -> collectives | kernels -> base. The exceptions are named here. And no table of names can have a hole.
cd "$(dirname "$0")/.." || exit 2
status=0
check() { # folder, pattern of folders it may not include, allowed headers
    bad=$(git ls-files "$1/*.c" "$1/*.h" | xargs -r grep -nE "^#include \"($2)/" /dev/null | grep -vE "\"($3)\"")
    [ -z "$bad" ] || { echo "$bad"; echo "layers: $1 may not include these"; status=1; }
}
check base 'cmd|launcher|worker|collectives|kernels' none
check kernels 'cmd|launcher|worker|collectives' none
check collectives 'cmd|launcher|worker|kernels' 'kernels/(device|kernels).h'
check launcher 'cmd|worker|kernels' none
check worker 'cmd|launcher' none
grep -rln 'uv\.h' --include='*.c' --include='*.h' base cmd worker collectives kernels && { echo "layers: libuv belongs to launcher"; status=1; }
grep -nE 'char \*const [a-z_]+\[[A-Z_]*(COUNT|PHASES|LANES|WAYS)\] = \{' $(git ls-files '*.c' '*.h') &&
    { echo "layers: names of an enum are a switch without default, so that the compiler finds the one that is missing"; status=1; }
exit $status
