#!/bin/sh
# Prints files and folders of text that every machine has on which dtrun was built.   scripts/machine_text.sh [code|english|small]
#   code      C headers
#   english   licences, which are read twice under two names on some systems; that does no harm
#   (none)    both, some 10 MB
#   small     the files of both and of Python's library, some 13 MB, but for those above 64 KiB: they are mostly tables, and one of them
#             would be most of what is held out
headers() {
    for f in /usr/include/*.h /usr/include/linux /usr/include/asm-generic /usr/include/*-linux-gnu/sys /usr/include/*-linux-gnu/bits /usr/include/*-linux-gnu/asm; do
        [ -e "$f" ] && echo "$f"
    done
}
case ${1:-} in
code) headers ;;
english) echo /usr/share/common-licenses ;;
small)
    # Without what others have installed into Python's folders, its tests, and its tables of encodings.
    # shellcheck disable=SC2046
    find /usr/share/common-licenses $(headers) /usr/lib/python3.[0-9]* -type f -size -65k \( ! -path '/usr/lib/*' -o -name '*.py' \) \
        ! -path '*/*-packages/*' ! -path '*/encodings/*' ! -path '*/test/*' ! -path '*/tests/*' 2>/dev/null | LC_ALL=C sort
    ;;
*)
    echo /usr/share/common-licenses
    headers
    ;;
esac
exit 0
