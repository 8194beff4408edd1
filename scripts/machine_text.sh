#!/bin/sh
# Prints files and folders of text that every machine has on which dtrun was built, some 20 MB.   scripts/machine_text.sh [code|english]
#   code      headers of C
#   english   licences, which are read twice under two names on some systems; that does no harm
#   (none)    both, and the modules of Python's library, without tables of encodings and what others have installed
[ "${1:-}" = code ] || echo /usr/share/common-licenses
[ "${1:-}" = english ] && exit 0
for f in /usr/include/*.h /usr/include/linux /usr/include/asm-generic /usr/include/*-linux-gnu/sys /usr/include/*-linux-gnu/bits /usr/include/*-linux-gnu/asm; do
    [ -e "$f" ] && echo "$f"
done
[ "${1:-}" = code ] && exit 0
for f in /usr/lib/python3.[0-9]*; do
    [ -d "$f" ] && find "$f" -name '*.py' ! -path '*/*-packages/*' ! -path '*/encodings/*' ! -path '*/test/*' ! -path '*/tests/*' | LC_ALL=C sort
done
exit 0
