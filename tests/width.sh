#!/bin/sh
# CONTRIBUTING.md says for each kind of addition which files it takes. This adds one of each kind in a scratch copy, touches no other file, builds, and
# tries what was added.   tests/width.sh [--quick] [KIND ...]   (--quick builds nothing: it compares the additions with the table)
# An addition is tests/width/KIND.txt (of "a DeepSpeed key": DeepSpeed-key.txt), in parts that begin with a line of their own:
#   == in FILE after LINE      the text below comes after the one line that begins with LINE; `before` puts it in front of that line
#   == in FILE replace TEXT    TEXT, which is there once, becomes the text below
#   == new FILE                a new file
#   == use FILE after LINE     as `in`, where the table says "and the code that uses it"
#   == test FILE after LINE    as `in`, in the test that the table names
#   == made FILE               a file that the check has a test write anew
#   == make TARGET ...         what is built for the check
#   == check                   shell lines, run in the scratch copy with B set; each must succeed
# The scratch copy is $B/width. It has the objects of $B, so that only what is touched is compiled. It stays there when something fails.
cd "$(dirname "$0")/.." || exit 2
export B="${B:-build}" SAN="${SAN:-}"
/usr/bin/python3 - "$@" <<'PYTHON' || exit 1
import atexit, glob, os, re, shutil, subprocess, sys, tempfile
B = os.environ["B"]
quick = "--quick" in sys.argv
SCRATCH = tempfile.mkdtemp(prefix="width-") if quick else os.path.abspath(os.path.join(B, "width"))
if quick:
    atexit.register(shutil.rmtree, SCRATCH, True)
kinds = [a for a in sys.argv[1:] if a != "--quick"] or sorted(os.path.basename(p)[:-4] for p in glob.glob("tests/width/*.txt"))

def fail(text):
    sys.exit(f"width: {text}")

def table():
    """{kind: (files, test, whether the code that uses it counts as well)} of CONTRIBUTING.md."""
    rows = {}
    for line in open("CONTRIBUTING.md"):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and "`" in cells[1]:
            rows[re.sub(r"^(a|an) ", "", cells[0]).replace(" ", "-")] = (re.findall(r"`([\w./]+)`", cells[1]), re.findall(r"`([\w./]+)`", cells[2]),
                                                      "the code that uses it" in cells[1])
    return rows

def parts_of(kind):
    """[(head, text)] of an addition."""
    path = f"tests/width/{kind}.txt"
    if not os.path.exists(path):
        fail(f"{path}: there is no such file; give a kind of {' '.join(sorted(rows))}")
    pieces = re.split(r"^== (.*)\n", open(path).read(), flags=re.M)
    return list(zip(pieces[1::2], pieces[2::2]))

def allowed(kind, path, head):
    files, tests, uses = rows[kind]
    among = lambda names: any(re.fullmatch(re.escape(f).replace("NAME", "[a-z0-9_]+") + ("/.*" if os.path.isdir(f) else ""), path) for f in names)
    return among(tests) if head == "test" else (uses or among(files)) if head == "use" else among(files)

def change(kind, head, text):
    """One part, in the scratch copy."""
    what, path, *place = re.fullmatch(r"(in|new|use|test|made) (\S+)(?: (after|before|replace) (.*))?", head).groups()
    if not allowed(kind, path, what):
        fail(f"{kind}: touches {path}, which its row in CONTRIBUTING.md does not name")
    at = os.path.join(SCRATCH, path)
    if what == "made":
        return path
    if what == "new":
        if os.path.exists(at):
            fail(f"{kind}: {path} is there already")
        os.makedirs(os.path.dirname(at), exist_ok=True)
        old, new = "", text
    else:
        old = open(at).read()
        how, anchor = place
        found = [m.start() for m in re.finditer(re.escape(anchor) if how == "replace" else "^" + re.escape(anchor), old, re.M)]
        if len(found) != 1:
            fail(f"{kind}: {path}: `{anchor}` is there {len(found)} times; say in tests/width/{kind}.txt where the text belongs now")
        if how == "replace":
            new = old.replace(anchor, text.rstrip("\n"))
        else:
            end = old.index("\n", found[0]) + 1 if how == "after" else found[0]
            new = old[:end] + text + old[end:]
    with open(at, "w") as f:
        f.write(new)
    return path

def copy_sources():
    shutil.rmtree(SCRATCH, ignore_errors=True)
    names = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], text=True).split("\0")
    for name in filter(lambda n: n and os.path.isfile(n), names):
        to = os.path.join(SCRATCH, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy2(name, to)  # with its time, so that make takes it for what the objects were made of

def copy_objects():
    for name in ("obj", "softgpu/obj", "libdtrun.a", "libsupport.a", "softgpu/libsoftgpu.a"):
        at, to = os.path.join(B, name), os.path.join(SCRATCH, B, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if os.path.isdir(at):
            shutil.copytree(at, to)
        elif os.path.exists(at):
            shutil.copy2(at, to)
    device = os.path.join(SCRATCH, B, "obj", "kernels", "device.o")
    if os.path.exists(device):
        os.remove(device)  # it may know the GPU's kernels, which are left out: nvcc would compile them all anew for one

def run(kind, command):
    p = subprocess.run(["sh", "-ec", command], cwd=SCRATCH, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                       env=dict(os.environ, DTRUN_DEVICE="cpu", CMOCKA_MESSAGE_OUTPUT="STDOUT"))
    if p.returncode != 0:
        tail = "\n    ".join(p.stdout.strip().split("\n")[-25:])
        fail(f"{kind}: failed: {command.strip()}\n    {tail}\n{kind}: looked at in {SCRATCH}")

rows = table()
missing = sorted(set(rows) ^ {os.path.basename(p)[:-4] for p in glob.glob("tests/width/*.txt")})
if missing:
    fail(f"{' '.join(missing)}: a row of CONTRIBUTING.md and a file of tests/width belong together")
additions = {kind: parts_of(kind) for kind in kinds}
copy_sources()
for kind, parts in additions.items():
    touched = [change(kind, head, text) for head, text in parts if head.split()[0] in ("in", "new", "use", "test", "made")]
    untouched = [f for f in rows[kind][0] if not any(allowed(kind, t, "in") and
                 re.fullmatch(re.escape(f).replace("NAME", "[a-z0-9_]+") + ("/.*" if os.path.isdir(f) else ""), t) for t in touched)]
    if untouched:
        fail(f"{kind}: needs no {' '.join(untouched)}, which its row in CONTRIBUTING.md names")
    print(f"width: {kind}: {' '.join(dict.fromkeys(touched))}", flush=True)
if not quick:
    copy_objects()
    targets = dict.fromkeys(t for parts in additions.values() for head, _ in parts if head.startswith("make ") for t in head.split()[1:])
    run("build", f"make -s -j2 NVCC= SAN={os.environ['SAN']} " + " ".join(f"{B}/{t}" for t in targets))
    for kind, parts in additions.items():
        for head, text in parts:
            if head == "check":
                run(kind, text)
        print(f"width: {kind}: works", flush=True)
shutil.rmtree(SCRATCH, ignore_errors=True)
print(f"width: {len(additions)} kinds of additions take the files that CONTRIBUTING.md says")
PYTHON
