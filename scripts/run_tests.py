#!/usr/bin/python3
"""Runs unit tests (tests/ROOM/unit_*.c, cmocka) and stories (tests/ROOM/story_*.py, pytest) and closes with `N passed, N failed, N skipped`.

    scripts/run_tests.py [--full] [--retry] [--done=FILE] [--of FILE ...] [NAME ...]
    scripts/run_tests.py --check

A NAME is a test (`unit_comm`, `story_status`, or `comm`: both kinds of that name), a room (`launcher`, `launcher/workers`) or a file of either tree.
--of FILE runs what covers a source file; of a helper in tests/lib, what uses it.
--check runs nothing: it says which covered path does not exist, which source file nobody covers, and which test lies where nobody finds it.
The first lines of a test say what it covers, files or rooms (`covers: launcher/workers/guard.c launcher/output`), and may hold `run:` marks:
  run: waits      mostly sleeps, and looks at the clock: two beside the others, four once these are through
  run: alone      nothing else runs beside it, but for what computes
  run: computes   looks at no clock: it goes on beside all others, on the processor time that they leave
  run: full       only with --full
  run: nosan      not in sanitizer builds (with the reason after a colon, which is printed)
  run: san        only in sanitizer builds
  run: timeout N  seconds it may take in all (default 120; five times as much in sanitizer builds, with --full, and for what
                  computes); longer ones begin first
All others run one per processor, two at least, and one more, as most of them wait now and then.
Each line ends with the seconds that a test took and the processor seconds of it and its children.
With --done=FILE each test that passed is written there, and one that stands there is counted and not run again.
With --retry a test that failed beside others runs once more, alone; if it passes then, it counts as passed and is named at the end.
INT or TERM ends the tests that run, with all that they started, and the rest is left out; the last line says what was known by then.
"""
import contextlib, glob, os, re, shutil, signal, subprocess, sys, tempfile, threading, time, uuid

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("B") or "build"
SAN = os.environ.get("SAN") or ""
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
MARK = "RUN_TESTS_MARK"  # in the environment of all that a test starts, whatever its session
END_S = 10  # for a test to clear up after itself
WAITING = 4  # tests that mostly sleep, side by side; half as many while others run
SOURCES = ("base", "cmd", "collectives", "kernels", "launcher", "worker")
SCRATCH = tempfile.mkdtemp(prefix="dt-")  # of this run alone, and short: a socket's path has 107 bytes
stopped = []  # signals that ended this run
running = {}  # test: process

def end_marked(mark):
    """Ends every process that carries the mark: what is left of a test that was ended."""
    word = f"{MARK}={mark}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as f:
                if word in f.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)


def on_signal(number, _):
    """pytest clears up when interrupted; a C program has nothing to do so with."""
    stopped.append(number)
    for t, p in list(running.items()):
        with contextlib.suppress(OSError):
            os.kill(p.pid, signal.SIGINT if t.kind == "story" else signal.SIGTERM)


class Test:
    def __init__(self, kind, name, source, command, cwd, patient):
        self.kind, self.name, self.source, self.command, self.cwd = kind, name, source, command, cwd
        with open(source, errors="replace") as f:
            head = "".join(f.readline() for _ in range(30))
        self.path = os.path.relpath(source, ROOT)
        self.covers = [path for line in re.findall(r"^(?:/\*|#) covers: ([^*\n]*)", head, re.M) for path in line.split()]
        self.alone = re.search(r"\brun: alone\b", head) is not None
        self.waits = re.search(r"\brun: waits\b", head) is not None
        self.computes = re.search(r"\brun: computes\b", head) is not None
        if self.computes:
            self.command = ["sh", "-c", 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"', "sh", *command]
        self.full = re.search(r"\brun: full\b", head) is not None
        self.nosan = re.search(r"\brun: nosan\b:? ?([^\n*]*)", head)
        self.san = re.search(r"\brun: san\b", head) is not None
        self.cut = re.search(r"^(?: \*|/\*|#).*\brun:$", head, re.M) is not None  # a mark that a formatter broke over two lines says nothing
        limit = re.search(r"\brun: timeout (\d+)", head)
        self.scratch = os.path.join(SCRATCH, name.split("_", 1)[1][:12] + "-" + uuid.uuid4().hex[:4])
        self.limit = (int(limit.group(1)) if limit else 120) * (5 if patient or self.computes else 1)
        self.passed = self.failed = self.skipped = 0
        self.reasons = []
        self.output = ""
        self.seconds = self.processor_s = 0.0

    def covers_path(self, path):
        return any(path == c or path.startswith(c + "/") or c.startswith(path + "/") for c in self.covers)

    def run(self):
        self.passed = self.failed = self.skipped = 0
        self.reasons = []
        start = time.monotonic()
        env = dict(os.environ, B=BUILD, CMOCKA_MESSAGE_OUTPUT="STDOUT", PYTHONDONTWRITEBYTECODE="1", DTRUN_DEVICE="cpu")
        env.setdefault("DTRUN_CACHE", os.path.join(ROOT, BUILD, "cache"))  # plan files of tests are not the user's
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:verify_asan_link_order=0")
        env.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:suppressions=" + os.path.join(ROOT, "tests/tsan.supp"))
        env.setdefault("LSAN_OPTIONS", "suppressions=" + os.path.join(ROOT, "tests/lsan.supp") + ":print_suppressions=0")
        env[MARK] = uuid.uuid4().hex
        late = False
        with tempfile.TemporaryFile() as out:
            command = self.command + ([f"--basetemp={self.scratch}"] if self.kind == "story" else [])
            p = subprocess.Popen(command, cwd=self.cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                 start_new_session=True)
            running[self] = p
            if stopped:  # meanwhile: the handler did not see it
                p.kill()
            code = self.wait(p, self.limit)
            late = code is None and not stopped
            if late:
                os.killpg(p.pid, signal.SIGTERM)
                code = self.wait(p, END_S)
            if code is None:
                os.killpg(p.pid, signal.SIGKILL)
                code = self.wait(p, 1e9)
            del running[self]
            if late or stopped:
                end_marked(env[MARK])
            out.seek(0)
            self.output = out.read().decode(errors="replace")
        self.seconds = time.monotonic() - start
        self.unit(code) if self.kind == "unit" else self.story(code)
        if stopped:
            return False
        if late:
            self.failed += 1
            self.output += f"\n{self.name}: still running after {self.limit} s; ended\n"
        elif code != 0 and not self.failed and not (self.kind == "story" and code == 5):
            self.failed += 1
            self.output += f"\n{self.name}: ended with {'signal %d' % -code if code < 0 else 'exit code %d' % code}\n"
        elif not (self.passed or self.failed or self.skipped):
            self.failed += 1
            self.output += f"\n{self.name}: ran no test\n"
        if self.failed == 0:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return self.failed == 0

    def wait(self, p, limit_s):
        """The exit code; None when it is late, or takes longer than END_S to end after a signal to us."""
        end = time.monotonic() + limit_s
        while True:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            if pid != 0:
                p.returncode = os.waitstatus_to_exitcode(status)
                self.processor_s = usage.ru_utime + usage.ru_stime
                return p.returncode
            time.sleep(0.02)
            if stopped and end > time.monotonic() + END_S:
                end = time.monotonic() + END_S
            if time.monotonic() >= end:
                return None

    def unit(self, code):
        self.passed = len(re.findall(r"^\[       OK \] ", self.output, re.M))
        self.skipped = len(re.findall(r"^\[  SKIPPED \] [A-Za-z_]", self.output, re.M))
        self.failed = len(set(re.findall(r"^\[  FAILED  \] ([A-Za-z_]\w*)", self.output, re.M)))
        self.skipped = min(self.skipped, max(0, len(set(re.findall(r"^\[  SKIPPED \] ([A-Za-z_]\w*)", self.output, re.M)))))
        if self.skipped:
            self.reasons = re.findall(r"^skip: (.*)$", self.output, re.M)

    def story(self, code):
        for number, what in re.findall(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)\b", self.output.strip().rsplit("\n", 1)[-1]):
            if what == "passed":
                self.passed += int(number)
            elif what == "skipped":
                self.skipped += int(number)
            else:
                self.failed += int(number)
        self.reasons = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", self.output, re.M)

    def line(self):
        word = "FAIL" if self.failed else "ok" if self.passed else "skip"
        counts = ", ".join(f"{n} {w}" for n, w in ((self.passed, "passed"), (self.failed, "failed"), (self.skipped, "skipped")) if n)
        return f"{word:4} {self.name:34} {counts:36} {self.seconds:6.1f} s {self.processor_s:6.1f} cpu"


def all_tests(full):
    """(tests, those whose program was not built because the CUDA toolkit is missing)"""
    tests, no_headers = [], []
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "**", "unit_*.c*"), recursive=True)):
        name = os.path.splitext(os.path.basename(path))[0]
        program = os.path.join(ROOT, BUILD, "tests", name)
        test = Test("unit", name, path, [program], ROOT, SAN or full)
        soft = name.startswith(("unit_cuda_", "unit_softgpu_"))
        (no_headers if soft and not os.path.exists(program) and os.environ.get("SOFTGPU") != "1" else tests).append(test)
    for path in sorted(glob.glob(os.path.join(ROOT, "tests", "**", "story_*.py"), recursive=True)):
        name, inside = os.path.splitext(os.path.basename(path))[0], os.path.relpath(path, os.path.join(ROOT, "tests"))
        command = [PYTHON, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short", inside]
        tests.append(Test("story", name, path, command, os.path.join(ROOT, "tests"), SAN or full))
    return tests, no_headers


def from_root(path):
    """A path as it is from the project's root, of one that may also be from where we were started."""
    known = os.path.exists(os.path.join(ROOT, path)) or not os.path.exists(path)
    return path.strip("/") if known and not os.path.isabs(path) else os.path.relpath(os.path.abspath(path), ROOT)


def covering(tests, path):
    """Tests of a source file or room; of a helper of tests, those that name it."""
    path = from_root(path)
    if not os.path.exists(os.path.join(ROOT, path)):
        sys.exit(f"run_tests.py: --of {path}: no such file")
    stem, end = os.path.splitext(path)
    if path.startswith("tests/lib/"):
        word = re.compile(rf"tests/lib/{os.path.basename(stem)}\.h|^(?:import|from) {os.path.basename(stem)}\b", re.M)
        return [t for t in tests if word.search(open(t.source, errors="replace").read())]
    files = [path] + [stem + other for other in (".c", ".cu") if end in (".h", ".cuh") and os.path.exists(os.path.join(ROOT, stem + other))]
    return [t for t in tests if t.path == path or any(t.covers_path(f) for f in files)]


def chosen(tests, name):
    """Tests that a NAME stands for."""
    path = from_root(name)
    inside = path if path.startswith("tests/") else "tests/" + path
    found = [t for t in tests if name in (t.name, t.name.split("_", 1)[1])] or [t for t in tests if (t.path + "/").startswith(inside + "/")]
    if not found and os.path.exists(os.path.join(ROOT, path)):
        found = covering(tests, path)
    if not found:
        sys.exit(f"run_tests.py: no test named {name}, and none that lies in or covers {path}")
    return found


def check(tests):
    """Whether every covered path exists, every source file is covered, and every test can be found; says what is not so."""
    said = [f"{t.path}: covers {c}, which does not exist" for t in tests for c in t.covers if not os.path.exists(os.path.join(ROOT, c))]
    said += [f"{t.path}: a run: mark ends its line without its word" for t in tests if t.cut]
    said += [f"{t.path}: does not say what it covers" for t in tests if not t.covers]
    names = [t.name for t in tests]
    said += [f"{t.path}: another test has that name" for t in tests if names.count(t.name) > 1]
    for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
        said += [f"{os.path.relpath(os.path.join(folder, f), ROOT)}: tests are named unit_*.c and story_*.py" for f in files
                 if re.fullmatch(r"test_\w+\.(c|cu|py)", f)]
    for room in SOURCES:
        for folder, _, files in os.walk(os.path.join(ROOT, room)):
            for path in (os.path.relpath(os.path.join(folder, f), ROOT) for f in sorted(files) if f.endswith((".c", ".cu"))):
                if not any(t.covers_path(path) for t in tests):
                    said.append(f"{path}: no test covers it")
    print("\n".join(["tests: " + x for x in said] or [f"tests: {len(tests)} cover every source file"]))
    return 1 if said else 0


def main():
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        print(__doc__)
        return 0
    of = [arguments.pop(i) for i in reversed([i + 1 for i, a in enumerate(arguments[:-1]) if a == "--of"])]
    unknown = [a for a in arguments if a.startswith("-") and a not in ("--full", "--retry", "--check", *["--of"] * len(of)) and not a.startswith("--done=")]
    if unknown:
        sys.exit(f"run_tests.py: {unknown[0]}: unknown option, or without its value; see run_tests.py --help")
    full, retry = "--full" in arguments, "--retry" in arguments
    done_file = next((a.split("=", 1)[1] for a in arguments if a.startswith("--done=")), None)
    tests, no_headers = all_tests(full)
    if "--check" in arguments:
        return check(tests + no_headers)
    names = [n for n in arguments if not n.startswith("-")]
    if names or of:
        wanted = {t for n in names for t in chosen(tests + no_headers, n)} | {t for f in of for t in covering(tests + no_headers, f)}
        tests, no_headers = [t for t in tests if t in wanted], [t for t in no_headers if t in wanted]
    named = {t for t in tests if t.name in names or t.name.split("_", 1)[1] in names}  # one that is only for the full tier runs when it is named
    left_out = [t for t in tests if (t.full and not full and t not in named) or (SAN and t.nosan) or (t.san and not SAN)]
    tests = [t for t in tests if t not in left_out]
    before = {}
    if done_file and os.path.exists(done_file):
        with open(done_file) as f:
            before = {words[0]: (int(words[1]), int(words[2])) for words in map(str.split, f) if len(words) == 3}
    for t in tests:
        if f"{t.kind}:{t.name}" in before:
            t.passed, t.skipped = before[f"{t.kind}:{t.name}"]
            print(f"ok   {t.name:34} {t.passed} passed before")
    left = sorted((t for t in tests if f"{t.kind}:{t.name}" not in before), key=lambda t: -t.limit)
    computing, alone, sleeping = [t for t in left if t.computes], [t for t in left if t.alone], [t for t in left if t.waits]
    beside = [t for t in left if not (t.computes or t.alone or t.waits)]
    processors = max(2, len(os.sched_getaffinity(0)))
    lock, again = threading.Lock(), []

    def report(t, ok, last):
        with lock:
            print(t.line() if not stopped or ok else f"ended: {t.line()}", flush=True)
            if ok and done_file:
                with open(done_file, "a") as f:
                    f.write(f"{t.kind}:{t.name} {t.passed} {t.skipped}\n")
            if not ok and not stopped:
                print("    " + "\n    ".join(t.output.strip().split("\n")[-(60 if last else 25):]), flush=True)

    def worker(queue):
        while True:
            with lock:
                if not queue or stopped:
                    return
                t = queue.pop(0)
            ok = t.run()
            if not ok and retry:
                again.append(t)
            report(t, ok, not retry)

    for number in (signal.SIGINT, signal.SIGTERM):
        ignored = signal.getsignal(number) == signal.SIG_IGN  # by a shell that started us in the background; tests must not inherit that
        signal.signal(number, (lambda *_: None) if ignored else on_signal)

    def work_off(*queues):
        threads = [threading.Thread(target=worker, args=[queue]) for queue in queues]
        for t in threads:
            t.start()
        return threads

    computes = work_off(*[computing] * processors)
    busy, asleep = work_off(*[beside] * (processors + 1)), work_off(*[sleeping] * (WAITING // 2))
    for t in busy:
        t.join()
    for t in asleep + work_off(*[sleeping] * (WAITING - WAITING // 2)):
        t.join()
    for t in work_off(alone) + computes:
        t.join()
    second = []
    for t in again if not stopped else []:
        print(f"once more, alone: {t.name}", flush=True)
        ok = t.run()
        report(t, ok, True)
        if ok:
            second.append(t.name)

    skipped_whole = 0
    for t in sorted(tests, key=lambda t: t.name):
        for reason in sorted(set(t.reasons)):
            print(f"skipped in {t.name}: {reason}")
    for t in no_headers:
        print(f"skipped {t.name}: was not built, because the CUDA toolkit's headers are missing")
        skipped_whole += 1
    for t in left_out:
        why = t.nosan.group(1).strip() if SAN and t.nosan else "only in builds with sanitizers" if t.san else "only in make test-full"
        print(f"left out: {t.name}: {why}")
    if os.listdir(SCRATCH):
        print(f"files of what failed: {SCRATCH}")
    if second:
        print("passed at the second try: " + ", ".join(second))
    passed, failed, skipped = (sum(getattr(t, k) for t in tests) for k in ("passed", "failed", "skipped"))
    skipped += skipped_whole
    print(f"{passed} passed, {failed} failed, {skipped} skipped" + (f"; ended by {signal.Signals(stopped[0]).name}" if stopped else ""), flush=True)
    sys.exit(128 + stopped[0] if stopped else 1 if failed or not passed else 0)


try:
    sys.exit(main())
finally:
    with contextlib.suppress(OSError):
        os.rmdir(SCRATCH)  # empty unless something failed
