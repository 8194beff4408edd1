#!/bin/sh
# Prints files and folders of text that every machine with a C compiler has, some 10 MB.   scripts/machine_text.sh [code|english]
# The licences are read twice under two names on some systems, which does no harm.
[ "${1:-}" = code ] || echo /usr/share/common-licenses
[ "${1:-}" = english ] && exit 0
for f in /usr/include/*.h /usr/include/linux /usr/include/asm-generic /usr/include/*-linux-gnu/sys /usr/include/*-linux-gnu/bits /usr/include/*-linux-gnu/asm; do
    [ -e "$f" ] && echo "$f"
done
exit 0
