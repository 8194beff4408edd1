#!/usr/bin/env python3
"""Writes worker/data/tokenizers/unicode_tables.h: where the tokenizers library and utf8proc
disagree on a property of a character, for every code point. The library takes its tables from
crates of different Unicode versions, so the answers are asked of the library itself.

Run with a Python that has tokenizers, on the machine whose utf8proc is to be used:
    python scripts/unicode_tables.py > worker/data/tokenizers/unicode_tables.h
"""
import ctypes
import struct

import tokenizers
from tokenizers import normalizers, pre_tokenizers

u = ctypes.CDLL("libutf8proc.so.2")
u.utf8proc_unicode_version.restype = ctypes.c_char_p
u.utf8proc_decompose_char.restype = ctypes.c_ssize_t
u.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_int16)
u.utf8proc_category.restype = ctypes.c_int
DECOMPOSE, COMPAT = 1 << 4, 1 << 2
MN, MC, ME, ND, NL, NO = range(6, 12)
LETTERS, PUNCTUATION, CC, CF, CO = range(1, 6), range(12, 19), 26, 27, 29
ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORY = {c: u.utf8proc_category(c) for c in ALL}
ASCII_PUNCTUATION = set(map(ord, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))


def each(normalizer, make, points=ALL, separator="\n"):
    """What a normalizer makes of make(c), for each code point c."""
    found = {}
    points = [c for c in points if chr(c) != separator]
    for i in range(0, len(points), 10000):
        part = points[i : i + 10000]
        lines = normalizer.normalize_str("".join(make(chr(c)) + separator for c in part)).split(separator)
        assert len(lines) == len(part) + 1
        found.update(zip(part, lines))
    return found


def isolated(pre_tokenizer):
    """Code points that are pieces of their own, and those that are left out, between letters."""
    alone, left_out = set(), set()
    for i in range(0, len(ALL), 5000):
        part = ALL[i : i + 5000]
        kept = [0] * (3 * len(part))
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str("".join("a" + chr(c) + "a" for c in part)):
            kept[begin:end] = [end - begin] * (end - begin)
        for k, c in enumerate(part):
            if kept[3 * k + 1] == 1:
                alone.add(c)
            elif kept[3 * k + 1] == 0:
                left_out.add(c)
    return alone, left_out


def say(name, about, points):
    rows, points = [], sorted(points)
    for c in points:
        if rows and rows[-1][1] == c - 1:
            rows[-1][1] = c
        else:
            rows.append([c, c])
    print(f"/* {about} */\nstatic const struct range {name}[] = {{")
    line = "   "
    for first, last in rows or [[0x110000, 0x110000]]:
        word = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line + word) > 118:
            print(line)
            line = "   "
        line += word
    print(line + "\n};\n")


def combining(c):
    return u.utf8proc_get_property(c)[1]


def decomposed(c, compat):
    out = (ctypes.c_int32 * 32)()
    n = u.utf8proc_decompose_char(c, out, 32, DECOMPOSE | (COMPAT if compat else 0), None)
    return "".join(map(chr, out[:n]))


def normal_forms():
    nfd, nfkd = each(normalizers.NFD(), str), each(normalizers.NFKD(), str)
    differ = {c for c in nfd if nfd[c] != decomposed(c, False) or nfkd[c] != decomposed(c, True)}
    assert all(nfd[c] == nfkd[c] == chr(c) for c in differ)
    say("not_decomposed", "have a decomposition in utf8proc, none in the library", differ)
    overlay, normalize = "\u0334", normalizers.NFD().normalize_str  # class 1, that all others come after
    classes = {1: 0x334}  # a character of each class that the library has
    for c in reversed(ALL):
        if combining(c) > 1 and normalize("a" + chr(c) + overlay) == "a" + overlay + chr(c):
            classes[combining(c)] = c
    points, zero = [c for c in ALL if combining(c) or CATEGORY[c] in (MN, MC, ME)], set()
    for k, r in sorted(classes.items()):
        after = each(normalizers.NFD(), lambda x: "a" + x + chr(r), points)
        before = each(normalizers.NFD(), lambda x: "a" + chr(r) + x, points)
        for c in points:
            after_moved, before_moved = after[c] == "a" + chr(r) + nfd[c] and c != r, before[c] == "a" + nfd[c] + chr(r)
            if nfd[c] != chr(c) or c == r:
                continue
            want = combining(c)
            if after_moved != (want > k) or before_moved != (0 < want < k and c != r):
                zero.add(c)
                assert not after_moved and not before_moved, hex(c)
    say("not_combining", "have a combining class in utf8proc, none in the library", zero)
    pairs = [(c, decomposed(c, False)) for c in ALL if not 0xAC00 <= c <= 0xD7A3]
    nfc = normalizers.NFC()
    apart = [whole for c, whole in pairs if len(whole) == 2 and nfc.normalize_str(chr(c)) == chr(c)
             and nfc.normalize_str(whole) != chr(c)]
    print("/* pairs that utf8proc composes, the library does not */\nstatic const int32_t not_composed[][2] = {")
    for first, second in apart:
        print(f"    {{0x{ord(first):x}, 0x{ord(second):x}}},")
    print("};\n")


def lower():
    found = each(normalizers.Lowercase(), str)
    rows = []
    for c in sorted(found):
        if found[c] == chr(u.utf8proc_tolower(c)) or c == 0x130:
            continue
        assert len(found[c]) == 1, hex(c)
        change = ord(found[c]) - c
        if rows and rows[-1][2] == change and rows[-1][1] == c - 1:
            rows[-1][1] = c
        else:
            rows.append([c, c, change])
    print("/* lower case in the library that utf8proc does not have: first, last, change */")
    print("static const int32_t lower_case[][3] = {")
    for row in rows:
        print(f"    {{0x{row[0]:x}, 0x{row[1]:x}, {row[2]}}},")
    print("};\n")


def sets():
    bert = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    gone = each(normalizers.BertNormalizer(**{**bert, "clean_text": True}), str, separator="|")
    other = {c for c in gone if gone[c] == "" and c not in (0, 0xFFFD)} ^ {
        c for c in gone if CATEGORY[c] in (CC, CF, CO) and c not in (0, 9, 10, 13)
    }
    say("other_differ", "BertNormalizer's control characters: differ from Cc, Cf, Co", other)
    gone = each(normalizers.BertNormalizer(**{**bert, "strip_accents": True}), str)
    say("nonspacing_differ", "BertNormalizer's accents: differ from Mn",
        {c for c in gone if (gone[c] == "") != (CATEGORY[c] == MN)})
    gone = each(normalizers.StripAccents(), str)
    say("mark_differ", "StripAccents: differ from Mn, Mc, Me",
        {c for c in gone if (gone[c] == "") != (CATEGORY[c] in (MN, MC, ME))})
    alone, _ = isolated(pre_tokenizers.Punctuation("isolated"))
    say("punctuation_differ", "punctuation: differs from P* and ASCII's",
        alone ^ ({c for c in ALL if CATEGORY[c] in PUNCTUATION} | ASCII_PUNCTUATION))
    alone, _ = isolated(pre_tokenizers.Digits(individual_digits=True))
    say("numeric_differ", "Digits: differ from Nd, Nl, No", alone ^ {c for c in ALL if CATEGORY[c] in (ND, NL, NO)})
    alone, left_out = isolated(pre_tokenizers.Whitespace())
    word = set(ALL) - alone - left_out
    say("word_differ", "\\w of Whitespace: differs from L*, M*, Nd, Nl, Pc",
        word ^ {c for c in ALL if CATEGORY[c] in (*LETTERS, MN, MC, ME, ND, NL, 12)})


def every_byte():
    """A precompiled map that makes X of each text: a cluster below 6 bytes becomes one X, a longer one
    one X per character."""
    units = [0] * 2048
    units[0] = 256 << 10
    for b in range(1, 256):
        units[256 ^ b] = b | 1 << 8 | 1024 << 10
    trie = struct.pack("<2048I", *units)
    return normalizers.Precompiled(struct.pack("<I", len(trie)) + trie + b"X\0")


def clusters():
    x = every_byte()
    accent, joiner, sign, ka, virama, vowel, lead = "\u0300", "\u200d", "\u00a9", "\u0915", "\u094d", "\u1161", "\u1100"

    def counts(make, points=ALL):
        found = {}
        for c in points:
            found[c] = x.normalize_str(make(chr(c))).count("X")
        return found

    bound = {c: bound_class(c) for c in ALL}
    after = {c for c, n in counts(lambda s: "a" + s).items() if n == 1 and c not in (0, ord(joiner))}
    before = {c for c, n in counts(lambda s: s + "a").items() if n == 1 and c}
    extend = {c for c in after if x.normalize_str(sign + chr(c) + joiner + sign + accent) == "XXXXX"}
    # a long cluster gives one X per character, so those of 4 bytes show nothing here
    say("extend_differ", "clusters: Extend differs from utf8proc's",
        extend ^ {c for c in ALL if bound[c] == 5})
    say("spacing_differ", "clusters: SpacingMark differs from utf8proc's",
        (after - extend) ^ {c for c in ALL if bound[c] == 12})
    say("prepend_differ", "clusters: Prepend differs from utf8proc's", before ^ {c for c in ALL if bound[c] == 13})
    control = {c for c in ALL if 0x80 <= c < 0x10000 and x.normalize_str(chr(c) + accent) == "XX"}
    say("control_differ", "clusters: Control of 2 or 3 bytes differs from utf8proc's",
        control ^ {c for c in ALL if 0x80 <= c < 0x10000 and bound[c] == 4})
    rest = [c for c in ALL if c not in after and c not in before and c not in control and c >= 0x80]
    picture = {c for c in rest if x.normalize_str(chr(c) + joiner + sign + accent) == "XXXX"}
    say("picture_differ", "clusters: Extended_Pictographic differs from utf8proc's",
        picture ^ {c for c in ALL if bound[c] == 19})
    three = [c for c in rest if c < 0x10000 and c >= 0x800]
    say("consonants", "clusters: InCB=Consonant of 3 bytes",
        {c for c in three if x.normalize_str(ka + virama + chr(c) + accent) == "XXXX"})
    say("linkers", "clusters: InCB=Linker",
        {c for c in after if x.normalize_str(ka + chr(c) + ka + accent) == "XXXX"})
    say("not_linking", "clusters: Extend, but InCB=None",
        {c for c in extend if x.normalize_str(ka + virama + chr(c) + ka + accent) != "XXXXX"})
    hangul = {6: "L", 7: "V", 8: "T", 9: "LV", 10: "LVT"}
    for c in three:
        t = chr(c)
        is_v = x.normalize_str(lead + t + accent) == "XXX"
        to_v, to_t = x.normalize_str(t + vowel + accent) == "XXX", x.normalize_str(t + "\u11a8" + accent) == "XXX"
        kind = {(1, 1, 0): "L", (1, 1, 1): "V", (0, 0, 1): "T"}.get((is_v, to_v, to_t))
        if kind == "V":
            kind = "V" if x.normalize_str(vowel + t + accent) == "XXX" else "LV"
        elif (is_v, to_v, to_t) == (1, 0, 1):
            kind = "LVT"
        assert kind == hangul.get(bound[c]), (hex(c), kind, bound[c])


class Property(ctypes.Structure):
    _fields_ = [("category", ctypes.c_int16), ("combining_class", ctypes.c_int16), ("bidi", ctypes.c_int16),
                ("decomp_type", ctypes.c_int16), ("decomp", ctypes.c_uint16), ("casefold", ctypes.c_uint16),
                ("upper", ctypes.c_uint16), ("lower", ctypes.c_uint16), ("title", ctypes.c_uint16),
                ("comb", ctypes.c_uint16), ("bits", ctypes.c_uint16, 8), ("boundclass", ctypes.c_uint16, 8)]


def bound_class(c):
    return ctypes.cast(u.utf8proc_get_property(c), ctypes.POINTER(Property)).contents.boundclass


print(f"""/* Written by scripts/unicode_tables.py: where tokenizers {tokenizers.__version__} and utf8proc's
 * Unicode {u.utf8proc_unicode_version().decode()} disagree. Do not edit. */
#ifndef DT_WORKER_DATA_TOKENIZERS_UNICODE_TABLES_H
#define DT_WORKER_DATA_TOKENIZERS_UNICODE_TABLES_H

#include <stdint.h>

struct range {{
    int32_t first, last;
}};

/* clang-format off */
""".rstrip("\n"))
print()
normal_forms()
lower()
sets()
clusters()
print("/* clang-format on */\n\n#endif")
