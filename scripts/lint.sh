#!/bin/sh
# Checks the source: format, layers, headers, static analysis, manual pages.   scripts/lint.sh [--fix]   (--fix formats in place)
cd "$(dirname "$0")/.." || exit 2
sh scripts/setup.sh --lint || exit 2
status=0
sources=$(git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
    # shellcheck disable=SC2086
    clang-format -i $sources
else
    # shellcheck disable=SC2086
    clang-format --dry-run -Werror $sources >build/format.txt 2>&1 || { head -n 20 build/format.txt; echo "lint: format differs; run scripts/lint.sh --fix"; status=1; }
fi
sh tests/layers.sh || status=1
sh tests/headers.sh || status=1
sh tests/sentences.sh || status=1
python3 scripts/run_tests.py --check || status=1
mandoc -T lint -W warning docs/man/*.1 || status=1
# shellcheck disable=SC2046
cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches --suppress=preprocessorErrorDirective:kernels/cpu/isa/vec.h \
    --error-exitcode=1 -j2 -I. -D_GNU_SOURCE -DDT_VERSION='"0"' -DDT_ISA=plain $(git ls-files '*.c' | grep -v '^tests/') || status=1
[ $status -eq 0 ] && echo "lint: clean"
exit $status
