#!/bin/sh
# Nothing is decided by a sentence of ours: a text is for people, and what programs need of it is a field beside it (struct dt_blame, struct cause).
# A string function against a literal with a word and a blank reads a sentence. The files below read such texts from elsewhere, or a format of bytes.
cd "$(dirname "$0")/.." || exit 2
/usr/bin/python3 - "$@" <<'PYTHON' || exit 1
import re, subprocess, sys
READS = {  # file: whose text it is, and how often
    "base/gpu/nvml_text.c": ("the driver's lines in the kernel's log", 2),
    "cmd/doctor/look.c": ("/proc/cpuinfo", 1),
    "collectives/nccl_stop.c": ("what NCCL says of a failure", 3),
    "launcher/hosts/etcd/etcd.c": ("etcd's answers", 1),
    "launcher/hosts/place.c": ("a process that holds a port, by its name in /proc", 1),
    "launcher/job/run_say.c": ("Python's words for a missing module", 1),
    "launcher/ssh/leash.c": ("lines that ssh carries: a word and a value", 4),
    "launcher/workers/process.c": ("/proc", 3),
}
CALL = re.compile(r"\b(?:strstr|strcasestr|memmem|strcmp|strncmp|strcasecmp|strncasecmp|sscanf|memcmp|starts_with|ends_with|fnmatch)\s*\(")
# What is left of a literal without its conversions: a word with a blank beside it.
CONVERSION = re.compile(r"%[*0-9.lhzjtL$#+ -]*(?:\[\^?\]?[^]]*\]|[a-zA-Z%])|\\[a-z0-9]+")
SENTENCE = re.compile(r"[A-Za-z]{2,}[:;,]? |[ (][A-Za-z]{2,}")

def arguments(text, at):
    """The call's text, from the bracket at `at` to the one that closes it."""
    depth, quoted, i = 0, False, at
    while i < len(text):
        c = text[i]
        if quoted:
            i += c == "\\"
            quoted = c != '"'
        elif c == '"':
            quoted = True
        else:
            depth += (c == "(") - (c == ")")
            if depth == 0:
                return text[at:i]
        i += 1
    return text[at:]

status = 0
for path in sys.argv[1:] or subprocess.check_output(["git", "ls-files", "*.c", "*.h", "*.cu"], text=True).split():
    if path.startswith("tests/") and not sys.argv[1:]:
        continue
    text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), open(path).read(), flags=re.S)
    found = []
    for call in CALL.finditer(text):
        literals = re.findall(r'"((?:[^"\\]|\\.)*)"', arguments(text, call.end() - 1))
        if any(SENTENCE.search(CONVERSION.sub("", x)) for x in literals):
            found.append(text.count("\n", 0, call.start()) + 1)
    allowed = READS.get(path, ("", 0))[1]
    if len(found) > allowed:
        status = 1
        for line in found:
            print(f"{path}:{line}: sentences: reads a sentence; keep what it says in a field beside the text")
    elif len(found) < allowed:
        status = 1
        print(f"{path}: sentences: reads {len(found)} sentences, and tests/sentences.sh allows {allowed}")
sys.exit(status)
PYTHON
