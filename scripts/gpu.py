#!/usr/bin/env python3
"""Tests and figures that need a real GPU, and programs made elsewhere for a machine that cannot build them.

    scripts/gpu.py test [--tool memcheck]    kernels, whole training runs; the tool: NVIDIA's compute-sanitizer
    scripts/gpu.py bench                     steps beside PyTorch's twin and their floor, starts, kernels, attention, ranks that share the GPU
    scripts/gpu.py pack                      programs, tests and their libraries as one file, build/gpu-pack.tar.xz

Builds with make, or takes the programs out of --pack FILE and builds nothing. Cases run one after the other, what says most first. Each leaves a JSON line
with GPU and programs in results.jsonl of --out (default $OUT, otherwise build/gpu-results), what it said in said.log, and in failures.log when it failed; what
was measured about products and attention is in plans.log. What stands in results of the same GPU and the same programs, there or in --done FILE, is not run
again. Nothing begins after --seconds (default 420) and everything has ended 50 s later; the last line says how many passed, failed and are left. Exit code 0,
1 (something failed), 2 (cannot begin), 75 (cases are left), 77 (no GPU).
"""

import argparse
import ast
import concurrent.futures
import contextlib
import ctypes
import glob
import hashlib
import importlib.util
import json
import lzma
import os
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import typing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
PACK = os.path.join(BUILD, "gpu-pack.tar.xz")
PROGRAMS = ["train", "bench", "dtrun", "dtckpt", "dtdata"]
TOOLS = ["serve_store"]
UNIT = ["unit_cuda_kernels", "unit_cuda_device", "unit_cuda_train", "unit_cuda_golden", "unit_cuda_attention", "unit_cuda_dnn", "unit_cuda_epilogues",
        "unit_cuda_graph", "unit_cuda_nccl_alone"]
ALONE = ["unit_cuda_device"]  # takes all the memory that there is
UNCHECKED = ["unit_cuda_device", "unit_cuda_nccl_alone"]  # asks for more memory than there is, which a tool counts; what NCCL's kernels do is not ours to check
STORIES = ["story_softgpu", "story_gpus"]  # the second: ranks with a GPU each, where there are several
HEADERS = {"uv.h": "libuv1-dev", "cjson/cJSON.h": "libcjson-dev", "xxhash.h": "libxxhash-dev", "sodium.h": "libsodium-dev", "zlib.h": "zlib1g-dev", "yaml.h": "libyaml-dev",
           "oneapi/dnnl/dnnl.h": "libdnnl-dev", "cmocka.h": "libcmocka-dev"}
SYSTEM_LIBRARIES = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so(\..*)?$")  # every machine has its own
NO_GPU = re.compile(r"no NVIDIA driver is here|no GPU is visible")


class Size(typing.NamedTuple):
    """A model of tests/peers/models.py. batch: most samples of so many tokens."""
    name: str
    model: dict
    batch: int
    tokens: int
    twin: tuple


def gpt2(name, layers, heads, channels, batch):
    model = {"name": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": channels, "n_positions": TOKENS, "vocab_size": VOCABULARY}
    return Size(f"gpt2 {name}", model, batch, TOKENS, ("gpt2", f"{name}-gpu"))


TOKENS, VOCABULARY, IDS, SHARD_TOKENS = 1024, 50304, 50257, 4 << 20  # GPT-2's; rows of the model's table; ids in the data
STEPS = [gpt2("124M", 12, 12, 768, 64), gpt2("350M", 24, 16, 1024, 32), gpt2("774M", 36, 20, 1280, 32), gpt2("1558M", 48, 25, 1600, 24),
         Size("llama 1B", {"name": "llama-3.2-1b"}, 4, 4096, ("llama", "1.2B-gpu"))]
WARM, MEASURED, GIB = 32, 40, 2**30  # by step 32 we have chosen between CUDA graphs and none
OF_CUDA = 3 * GIB  # context and libraries, roughly
# what is computed again in backward (norms and GELU; nothing); attention whose backward adds up in no order, as PyTorch's
KINDS = {"": ("cheap", None), "none": ("none", None), "none fast": ("none", "fast")}
TWINS = [("pure", "default", "any"), ("autocast", "default", "any"), ("pure", "default", "cudnn"), ("autocast", "max-autotune-no-cudagraphs", "any")]
ROWS, SHARED_BATCH, SHARED_STEPS = ["ddp", "zero1", "zero2", "full_shard", "shard_grad_op"], 2, 12  # ranks that share the GPU
ATTENTION = {"tokens": 16384, "cols": 1024, "heads": (64, 128), "positions": (1024, 2048, 4096, 8192), "options": []}
WAYS = [("cudnn", 50), ("fast", 50), ("own", 50), ("plain", 5)]  # DTRUN_ATTENTION, how often; the last is the reference, and slow
KERNEL_OPTIONS, FLOOR_OPTIONS = ["--repeats=11"], []  # options that are said first count
GRACE_S = 50
TEST_S, STORY_S, CHECKED_S, BENCH_S, ASK_S = 120, 240, 400, 150, 60  # what one may take: what hangs leaves time for the others
SAID_MOST = 30000  # characters of one case in said.log


def stop(text, code=2):
    print(f"gpu: {text}", flush=True)
    sys.exit(code)


# ---- the machine ----

def chosen():
    """Nearly all is run on one GPU, so that ranks share it: the first of CUDA_VISIBLE_DEVICES, otherwise of the machine."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def visible(count):
    """All that a job may have, as CUDA_VISIBLE_DEVICES names them, of a machine with so many. Of parts that MIG cut a process sees one."""
    named = [x.strip() for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [str(i) for i in range(count)] if named == [""] else named[:1] if named[0].startswith("MIG-") else named


def device():
    """That GPU as NVML names it; None: there is none."""
    for name in ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"):
        with contextlib.suppress(OSError):
            nvml = ctypes.CDLL(name)
            break
    else:
        return None
    gpu, text, driver, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(80), (ctypes.c_ulonglong * 3)()
    count = ctypes.c_uint(1)
    if nvml.nvmlInit_v2() != 0:
        return None
    find, name = (nvml.nvmlDeviceGetHandleByIndex_v2, int(chosen())) if chosen().isdigit() else (nvml.nvmlDeviceGetHandleByUUID, chosen().encode())
    if find(name, ctypes.byref(gpu)) != 0:
        return None
    nvml.nvmlDeviceGetName(gpu, text, 96), nvml.nvmlSystemGetDriverVersion(driver, 80), nvml.nvmlDeviceGetMemoryInfo(gpu, memory)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return {"device": text.value.decode(), "driver": driver.value.decode(), "memory_mib": memory[0] >> 20, "gpus": len(visible(count.value))}


VERSIONS = """
import ctypes, json
toolkit = "/usr/local/cuda/lib64/"
names = {"cublasLt": (("libcublasLt.so.13", "libcublasLt.so.12", toolkit + "libcublasLt.so.13", toolkit + "libcublasLt.so.12"), "cublasLtGetVersion"),
         "cuDNN": (("libcudnn.so.9",), "cudnnGetVersion")}
found = {}
for name, (files, call) in names.items():
    for file in files:
        try:
            f = getattr(ctypes.CDLL(file), call)
        except (OSError, AttributeError):
            continue
        f.restype = ctypes.c_size_t
        found[name] = f()
        break
print(json.dumps(found))
"""


def versions(env):
    """Of the libraries that programs find in that environment, as they number themselves; what is not here has none."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        p = subprocess.run([sys.executable, "-c", VERSIONS], env=env, capture_output=True, text=True, timeout=ASK_S)
        return json.loads(p.stdout) if p.returncode == 0 else {}
    return {}


def libraries():
    """Folders in which PyTorch's packages have brought cublasLt, cuDNN and NCCL: its twin computes with the same ones."""
    return sorted(glob.glob(os.path.join(sysconfig.get_paths()["purelib"], "nvidia", "*", "lib")))


def tool_path(tool):
    found = shutil.which("compute-sanitizer") or next((p for p in glob.glob("/usr/local/cuda*/bin/compute-sanitizer") if os.access(p, os.X_OK)), None)
    return found or stop(f"--tool {tool}: compute-sanitizer is not here; it comes with NVIDIA's CUDA toolkit (cuda-sanitizer), put it on the PATH")


# ---- programs ----

def make(*targets):
    gone = [package for header, package in HEADERS.items() if not glob.glob(f"/usr/include/{header}") and not glob.glob(f"/usr/include/*/{header}")]
    nvcc = shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc")
    if gone or not nvcc:
        stop(f"cannot build here: {', '.join((['nvcc'] if not nvcc else []) + gone)} missing; scripts/setup.sh installs packages, "
             "or bring the file that scripts/gpu.py pack makes on another machine and say --pack FILE")
    p = subprocess.run(["make", "-s", f"-j{os.cpu_count()}", *targets], cwd=ROOT, env={**os.environ, "MAKEFLAGS": "", "SAN": ""}, capture_output=True, text=True)
    if p.returncode != 0:
        stop(f"the build failed:\n{p.stderr[-4000:]}")


FILES = [("bin", x) for x in PROGRAMS] + [("gpu", x) for x in UNIT] + [("tools", x) for x in TOOLS]  # all that a test starts


def built():
    make("programs", *[f"build/{kind}/{x}" for kind, x in FILES if kind != "bin"])
    return BUILD


def pack(folder, to):
    """A folder's programs, stripped, and what libraries they want beyond a system's own."""
    wanted = {}
    with tempfile.TemporaryDirectory() as place:
        for kind, name in FILES:
            os.makedirs(os.path.join(place, kind), exist_ok=True)
            subprocess.run(["strip", "-o", os.path.join(place, kind, name), os.path.join(folder, kind, name)], check=True)
            listed = subprocess.run(["ldd", os.path.join(folder, kind, name)], capture_output=True, text=True, check=True).stdout
            wanted.update(m for m in re.findall(r"(\S+) => (/\S+)", listed) if not SYSTEM_LIBRARIES.match(m[0]))
        os.makedirs(os.path.join(place, "lib"))
        for name, path in wanted.items():
            shutil.copyfile(path, os.path.join(place, "lib", name))
        # the same kernels are in each program: a window as large as all of them keeps them once
        way = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 128 << 20}]
        with lzma.open(to, "wb", filters=way) if to.endswith(".xz") else open(to, "wb") as file, tarfile.open(fileobj=file, mode="w") as out:
            for kind in sorted(os.listdir(place)):
                out.add(os.path.join(place, kind), kind)
    print(f"gpu: {os.path.relpath(to)}, {os.path.getsize(to) / 2**20:.1f} MiB: bring it and the tree, then scripts/gpu.py test --pack FILE")
    return 0


def unpacked(path):
    folder = os.path.join(BUILD, "gpu-pack")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with tarfile.open(path) as f:
            f.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    except (OSError, tarfile.TarError, EOFError, lzma.LZMAError) as e:
        stop(f"--pack {path}: {e}; scripts/gpu.py pack makes one")
    missing = [name for kind, name in FILES if not os.path.exists(os.path.join(folder, kind, name))]
    if missing:  # tests that want them would be skipped
        stop(f"--pack {path}: lacks {', '.join(missing)}; make it anew with scripts/gpu.py pack of this tree")
    return folder


def digest(folder):
    total = hashlib.sha256()
    for path in sorted(os.path.join(folder, kind, name) for kind, name in FILES):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            total.update(f.read())
    return total.hexdigest()[:12]


# ---- a case ----

class Session:
    def __init__(self, a, gpu, folder):
        self.gpu, self.folder, self.tool, self.out = gpu, folder, a.tool, a.out
        self.results = os.path.join(a.out, "results.jsonl")
        self.work = os.path.join(BUILD, "gpu-work")
        self.begin, self.seconds, self.programs = time.time(), a.seconds, digest(folder)
        self.all = {"CUDA_VISIBLE_DEVICES": ",".join(visible(gpu.get("gpus", 1))), "DTRUN_GPUS": str(gpu.get("gpus", 1))}  # for what wants more than one
        self.bare = {**os.environ, "CUDA_VISIBLE_DEVICES": chosen(), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # NVML counts so
        found = [os.path.join(folder, "lib"), *libraries(), *os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/local/nvidia/lib64"]
        self.cache = os.environ.get("DTRUN_CACHE") or os.path.join(self.work, "cache")  # there may be no HOME
        self.env = {**self.bare, "LD_LIBRARY_PATH": ":".join(x for x in found if x), "DTRUN_CACHE": self.cache,
                    "DTRUN_LOG": os.environ.get("DTRUN_LOG", "info"), **({"DTRUN_GPU": "1"} if gpu else {})}
        self.versions = versions(self.env)
        self.known, self.failed, self.count, self.lock = {}, set(), {"passed": 0, "failed": 0, "skipped": 0, "left": 0}, threading.RLock()
        for folder in (a.out, self.work, self.cache):
            os.makedirs(folder, exist_ok=True)
        for path in [*a.done, self.results]:
            self.read(path)

    def read(self, path):
        if not os.path.exists(path):
            return
        with open(path) as f:
            for line in f:
                with contextlib.suppress(ValueError):  # the last one of a run that was cut off
                    row = json.loads(line)
                    if gpu_of(row) == gpu_of(self.gpu) and row.get("programs") == self.programs:
                        if row.get("passed"):
                            self.known[row["case"]] = row
                        else:
                            self.failed.add(row["case"])

    def left_s(self):
        return self.begin + self.seconds - time.time()

    def add(self, case, passed, **values):
        row = {"case": case, "passed": passed, "date": time.strftime("%Y-%m-%d"), **self.gpu, "programs": self.programs, "libraries": self.versions, **values}
        with self.lock:
            # what a reader of the terminal needs: the rest is in the file
            print(json.dumps({k: v for k, v in row.items() if k in ("case", "passed", *values) and k != "rows"}), flush=True)
            with open(self.results, "a") as f:
                f.write(json.dumps(row) + "\n")
            self.count["passed" if passed else "failed"] += 1
            if passed:
                self.known[case] = row

    def skip(self, case, why):
        with self.lock:
            print(f"{case}: skipped, {why}", flush=True)
            self.count["skipped"] += 1

    def run(self, command, env=None, until=None, cwd=ROOT, limit_s=1e9):
        """(exit code or None when its time was over, all that it printed, seconds). until(): it may be ended, for all is there."""
        begin, limit = time.time(), max(min(self.left_s() + GRACE_S, limit_s), 1)
        with tempfile.TemporaryFile() as said:
            p = subprocess.Popen(command, cwd=cwd, env=env or self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                                                start_new_session=True)
            code, ended = None, False
            try:
                while code is None and time.time() - begin < limit and not ended:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = p.wait(timeout=0.2)
                    ended = until is not None and until()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            said.seek(0)
            return 0 if ended and code is None else code, said.read().decode(errors="replace"), round(time.time() - begin, 1)

    def keep(self, case, text, file="said.log"):
        """What a case said, its end where that is long."""
        with self.lock, open(os.path.join(self.out, file), "a") as f:
            f.write(f"==== {case}\n{text[-SAID_MOST:]}\n")

    def say(self, case, text):
        self.keep(case, text, "failures.log")
        print(text[-3000:], flush=True)

    def close(self):
        c = self.count
        with open(os.path.join(self.out, "plans.log"), "w") as out:
            for path in sorted(glob.glob(os.path.join(self.cache, "*.plans"))):
                with open(path) as f:
                    out.write(f"==== {os.path.basename(path)}\n{f.read()}")
        print(f"{c['passed']} passed, {c['failed']} failed, {c['skipped']} skipped" + (f", {c['left']} left: start it again to go on" if c["left"] else "") +
              f"; {os.path.relpath(self.results)}", flush=True)
        return 1 if c["failed"] else 75 if c["left"] else 77 if not self.gpu else 0


def gpu_of(row):
    return row.get("device"), row.get("driver")


def run_all(s, cases, at_once=1):
    """cases: (name, function); what failed before comes after the others. The last line is there however this ends, but for SIGKILL."""
    done = []

    def one(case):
        name, run = case
        if name in s.known:
            print(f"{name}: passed before", flush=True)
            s.count["passed"] += 1
        elif s.left_s() <= 0:
            s.count["left"] += 1
        else:
            run(name)
        done.append(name)

    cases = sorted(cases, key=lambda case: case[0] in s.failed)
    alone = [c for c in cases if at_once == 1 or c[0] in ALONE]
    try:
        for case in alone:
            one(case)
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, [c for c in cases if c not in alone]))
    except KeyboardInterrupt:
        print("gpu: told to end", flush=True)
        s.count["left"] += len(cases) - len(done)
    finally:
        code = s.close()
    return code


# ---- tests ----

def check(s, name, command, env=None, cwd=ROOT, skipped=None, limit_s=None):
    """skipped: finds in what a program said that it came to an end and tested nothing."""
    code, said, seconds = s.run(command, env, cwd=cwd, limit_s=CHECKED_S if s.tool else limit_s or TEST_S)
    why = "no GPU here" if not s.gpu and NO_GPU.search(said) else skipped(said) if skipped and code == 0 else None
    if why is not None:
        s.skip(name, why)
        return
    s.keep(name, said)
    s.add(name, code == 0, seconds=seconds, **({} if code == 0 else {"code": code, "timed_out": code is None}))
    if code != 0:
        s.say(name, said)


def story_path(name):
    return os.path.relpath(glob.glob(os.path.join(ROOT, "tests", "**", name + ".py"), recursive=True)[0], os.path.join(ROOT, "tests"))


def stories(name):
    """Its tests, one by one where parameters make several, as pytest lists them; without pytest, which is said then, by their functions."""
    path = story_path(name)
    listed = ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        listed = subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", path], cwd=os.path.join(ROOT, "tests"),
                                env={**os.environ, "DTRUN_GPU": "1"}, capture_output=True, text=True, timeout=ASK_S).stdout
    found = re.findall(rf"^{re.escape(path)}::(\S.*)$", listed, re.M)
    if not found:
        with open(os.path.join(ROOT, "tests", path)) as f:
            found = [n.name for n in ast.parse(f.read()).body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    return found


def all_skipped(said):
    """For pytest that is no failure: the reason that it gives, or None when a test ran."""
    reason = re.search(r"^SKIPPED \[\d+\] (.*)", said, re.M)
    return None if re.search(r"\b\d+ passed\b", said) else reason.group(1) if reason else "nothing ran"


def story(s, name, file, function):
    env = {**s.env, **(s.all if file == "story_gpus" else {}), "B": s.folder, "DTRUN_GPU": "1", "DTRUN_LOG": os.environ.get("DTRUN_LOG", "")}
    if not s.gpu:
        s.skip(name, "no GPU here")
    elif importlib.util.find_spec("pytest") is None:
        s.add(name, False, error=f"{sys.executable} has no pytest")
    else:
        check(s, name, [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short", f"{story_path(file)}::{function}"], env,
              os.path.join(ROOT, "tests"), all_skipped, STORY_S)


def none_passed(said):
    """The same of cmocka, and of a program that says why before it asks cmocka for anything."""
    reason = re.search(r"^skipped: (.*)", said, re.M)
    return "all of its tests skip themselves" if re.search(r"^\[  PASSED  \] 0 test", said, re.M) else reason and "[  PASSED  ]" not in said and reason.group(1) or None


def test_cases(s):
    checker = [tool_path(s.tool), "--tool", s.tool, "--error-exitcode", "9"] if s.tool else []
    after = f" {s.tool}" if s.tool else ""
    cases = [(x + after, lambda name, x=x: check(s, name, [*checker, os.path.join(s.folder, "gpu", x)], skipped=none_passed)) for x in UNIT
             if not s.tool or x not in UNCHECKED]
    files = [] if s.tool else [x for x in STORIES if x != "story_gpus" or s.gpu.get("gpus", 1) > 1]
    return cases + [(f"{file} {x}", lambda name, f=file, x=x: story(s, name, f, x)) for file in files for x in stories(file)]


# ---- figures ----

def rows_of(said):
    return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]


def lines(s, name, *words):
    code, said, seconds = s.run([os.path.join(s.folder, "bin", "bench"), *words], limit_s=BENCH_S)
    rows = rows_of(said)
    if not s.gpu and NO_GPU.search(said):
        s.skip(name, "no GPU here")
        return
    s.keep(name, said)
    s.add(name, code == 0, seconds=seconds, rows=rows, **({"timed_out": True} if code is None else {}))
    if code != 0:
        s.say(name, said)


def kernels(s, name, dtype):
    lines(s, name, "kernels", "--device=cuda", f"--dtype={dtype}", *KERNEL_OPTIONS)


def floor(s, name, size):
    """Kernels of the step that was measured, one by one; where not its whole batch fitted, half of what did, as there is more to hold."""
    batch = s.known.get(f"step {size.name}", {"B": size.batch})["B"]
    job, _ = write_job(s, size, batch if batch == size.batch else max(batch // 2, 1), False)
    lines(s, name, "floor", *FLOOR_OPTIONS, "--device=cuda", "--dtype=bf16", "--level=none", f"--job={job}")


def attention(s, name, head, positions):
    """Both passes by each implementation, one after the other; a row says by which it was computed."""
    rows, failed = [], None
    for way, repeats in WAYS:
        command = [os.path.join(s.folder, "bin", "bench"), "kernels", "--device=cuda", "--dtype=bf16", f"--rows={ATTENTION['tokens']}",
                   f"--cols={ATTENTION['cols']}", f"--head={head}", f"--positions={positions}", f"--repeats={repeats}", *ATTENTION["options"]]
        for kernel in ("attention", "attention_backward"):
            code, said, _ = s.run([*command, f"--kernel={kernel}"], env={**s.env, "DTRUN_ATTENTION": way}, limit_s=BENCH_S / 2)
            s.keep(f"{name} {way} {kernel}", said)
            rows += [{"way": way, **row} for row in rows_of(said)]
            failed = failed or (f"{way} {kernel}: {said}" if code != 0 else None)
    s.add(name, failed is None, rows=rows)
    if failed is not None:
        s.say(name, failed)


def shard(s):
    path = os.path.join(s.work, "train.bin")
    if not os.path.exists(path):
        r, count = random.Random(1), SHARD_TOKENS
        with open(path + ".new", "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            f.write(struct.pack(f"<{count}H", *r.choices(range(IDS), k=count)))
        os.rename(path + ".new", path)
    return path


def write_job(s, size, batch, graphs, level="cheap", **training):
    """(job, run folder)"""
    folder = os.path.join(s.work, f"step-{size.name.replace(' ', '-')}")
    os.makedirs(folder, exist_ok=True)
    job = {"model": size.model, "data": {"train": shard(s), "sequence_length": size.tokens},
           "training": {"batch_size_per_gpu": batch, "max_steps": 100000, "learning_rate": 1e-4, "weight_decay": 0.1, "max_grad_norm": 1.0, "device": "cuda",
                        "precision": "bf16-mixed", "cuda_graphs": graphs, **training},
           "activation_checkpointing": {"enabled": True, "level": level}, "checkpointing": {"save_every_n_steps": 0}, "logging": {"log_every_n_steps": 1}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path, os.path.join(folder, "run")


def fitting(s, size, graphs, level="cheap", **training):
    """The job with the largest batch that fits: its plan says how many bytes it wants. (batch, job, run folder), batch 0: none does."""
    train, batch = os.path.join(s.folder, "bin", "train"), size.batch
    while batch > 0:
        job, out = write_job(s, size, batch, graphs, level, **training)
        try:
            p = subprocess.run([train, job, "--plan", "--json", "--output_dir", out], env={**s.env, "DTRUN_DEVICE": "cuda"}, capture_output=True, text=True, timeout=ASK_S)
        except subprocess.TimeoutExpired:
            s.say(size.name, f"--plan took more than {ASK_S} s")
            break
        line = next((x for x in p.stdout.splitlines() if x.startswith("{")), None)
        if line is not None:
            plan = json.loads(line)
            if plan["total"] - plan["bytes"]["staging"] + OF_CUDA <= s.gpu["memory_mib"] * 2**20:
                return batch, job, out
        elif p.returncode == 2 and "GPU needs" not in p.stderr:
            s.say(size.name, p.stderr)
            break
        batch //= 2
    return 0, None, None


def read_rows(path):
    with contextlib.suppress(OSError), open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]
    return []


def step(s, name, size, graphs="auto", kind=""):
    level, attention = KINDS[kind]
    batch, job, out = fitting(s, size, graphs, level)
    if batch == 0:
        s.add(name, False, error="no batch of it fits into this GPU")
        return
    shutil.rmtree(out, ignore_errors=True)
    metrics, first = os.path.join(out, "metrics.jsonl"), []

    def enough():
        count = len(read_rows(metrics))
        if count > 0 and not first:
            first.append(time.time())
        return count >= WARM + MEASURED

    begin = time.time()
    code, said, seconds = s.run([os.path.join(s.folder, "bin", "train"), job, "--output_dir", out, "--fresh"], until=enough, limit_s=BENCH_S,
                                env={**s.env, **({"DTRUN_ATTENTION": attention} if attention else {})})
    rows = [r for r in read_rows(metrics) if "tokens_per_s" in r]
    after = rows[WARM:]
    events = read_rows(os.path.join(out, "events.jsonl"))
    memory = [r for r in events if r.get("event") == "memory"]
    times = sorted(r["step_s"] * 1e3 for r in after)
    passed = code == 0 and len(after) >= MEASURED // 2
    s.keep(name, said + "".join(f"{json.dumps(r)}\n" for r in events))
    s.add(name, passed, seconds=seconds, B=batch, T=size.tokens, level=level, graphs=[r for r in events if r.get("event") == "cuda_graphs"],
          **({"timed_out": True} if code is None else {}), **({
        "tokens_per_s": round(statistics.median(r["tokens_per_s"] for r in after)), "step_ms": round(statistics.median(times), 2), "p10": round(times[len(times) // 10], 2),
        "p90": round(times[len(times) * 9 // 10], 2), "mfu": after[-1].get("mfu"), "clock_mhz": after[-1].get("gpu_clock_mhz"), "t_first_s": round(first[0] - begin, 1),
        "first_loss": rows[0]["loss"], "loss": rows[-1]["loss"], "memory_bytes": next((r["memory_bytes"] for r in reversed(rows) if r.get("memory_bytes")), None),
        "planned_bytes": memory[0]["planned_bytes"] if memory else None} if after else {}))
    if not passed:
        s.say(name, said)
    shutil.rmtree(out, ignore_errors=True)


def memory(s, name, size):
    """What the plan says, beside what the device held while it was measured: within a hundredth."""
    step = s.known.get(f"step {size.name}")
    if step is None:
        s.add(name, False, error=f"step {size.name} has no figures")
        return
    planned, held = step["planned_bytes"], step["memory_bytes"]
    s.add(name, bool(planned and held) and abs(planned / held - 1) < 0.01, planned_bytes=planned, memory_bytes=held)


def start(s, name, size):
    """Seconds from launch until the first step is told, which is when the second one has been put in: with no plan file, and with one."""
    batch, job, out = fitting(s, size, False)
    times, failed = {}, None if batch > 0 else "no batch of it fits into this GPU"
    with tempfile.TemporaryDirectory(dir=s.work) as cache:
        for plans in ("cold", "warm") if failed is None else ():
            shutil.rmtree(out, ignore_errors=True)
            first, begin = [], time.time()

            def told():
                if not first and read_rows(os.path.join(out, "metrics.jsonl")):
                    first.append(time.time())
                return bool(first)

            command = [os.path.join(s.folder, "bin", "train"), job, "--output_dir", out, "--fresh"]
            code, said, _ = s.run(command, env={**s.env, "DTRUN_CACHE": cache}, until=told, limit_s=BENCH_S)
            s.keep(f"{name} {plans}", said)
            failed = failed or (None if code == 0 and first else said)
            times[f"{plans}_s"] = round(first[0] - begin, 2) if first else None
    s.add(name, failed is None, B=batch, T=size.tokens, **times)
    if failed is not None:
        s.say(name, failed)
    shutil.rmtree(out, ignore_errors=True)


def hidden(path):
    """The share of a rank's time in collectives during which it computed as well, as its timeline has it; None where there is none."""
    try:
        with open(path) as f:
            spans = [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    except (OSError, ValueError, KeyError):
        return None
    compute = [(a, b) for lane, a, b in spans if lane == 0]
    others = [(a, b) for lane, a, b in spans if lane in (1, 2)]
    total = sum(b - a for a, b in others)
    both = sum(max(0, min(b, d) - max(a, c)) for a, b in others for c, d in compute)
    return round(both / total, 3) if total > 0 else None


def shared(s, name, size, ranks, row):
    """Ranks that share the GPU, by `peer`: the losses of each strategy are bit for bit those of the first one; steps beside its say what a strategy costs."""
    job, out = write_job(s, size, SHARED_BATCH, False, share_gpu=True, collectives="peer", strategy=row, max_steps=SHARED_STEPS, deterministic=True)
    shutil.rmtree(out, ignore_errors=True)
    bin_ = os.path.join(s.folder, "bin")
    code, said, seconds = s.run([os.path.join(bin_, "dtrun"), f"--nproc_per_node={ranks}", "--max_restarts=0", os.path.join(bin_, "train"), job, "--output_dir", out,
                                 "--fresh", "--set", f"logging.timeline_steps=[{SHARED_STEPS - 2}, 2]"], limit_s=BENCH_S)
    rows = [r for r in read_rows(os.path.join(out, "metrics.jsonl")) if "loss" in r]
    losses = [r["loss"] for r in rows]
    first = s.known.get(shared_name(size, ranks, ROWS[0]))
    same = first is None or losses == first["losses"]
    passed = code == 0 and len(losses) == SHARED_STEPS and same
    s.add(name, passed, seconds=seconds, B=SHARED_BATCH, T=size.tokens, ranks=ranks, losses=losses,
          **({"step_ms": round(statistics.median(r["step_s"] * 1e3 for r in rows[SHARED_STEPS // 2:]), 2),
              "hidden": hidden(os.path.join(out, "timeline-rank-0.json"))} if passed else {"same_losses": same}))
    if not passed:
        s.say(name, said)
    shutil.rmtree(out, ignore_errors=True)


def shared_name(size, ranks, row):
    return f"shared {size.name} {ranks} ranks {row}"


def twin(s, name, size, bf16, compiled, attention):
    """PyTorch's step of the batch that ours has at the level `none`, else of half of it until it fits."""
    ours = s.known.get(step_name(size, "none")) or s.known.get(step_name(size, ""))
    batch = ours["B"] if ours else size.batch
    while batch > 0:
        code, said, seconds = s.run([sys.executable, os.path.join(ROOT, "tests/peers/step_gpu.py"), "--model", size.twin[0], "--size", size.twin[1], "--B", str(batch),
                                     "--T", str(size.tokens), "--bf16", bf16, "--compile", compiled, "--attention", attention, "--warmup", str(WARM // 2),
                                     "--steps", str(MEASURED)], env=s.bare, limit_s=BENCH_S)
        if code in (0, None) or "OutOfMemoryError" not in said or s.left_s() <= 0:
            break
        batch //= 2
    line = next((x for x in reversed(said.splitlines()) if x.startswith("{")), None)
    s.keep(name, said)
    s.add(name, code == 0 and line is not None, seconds=seconds, **(json.loads(line) if line else {}), **({"timed_out": True} if code is None else {}))
    if line is None:
        s.say(name, said)


def twin_name(size, variant):
    return f"twin {size.name} {' '.join(variant)}"


def step_name(size, kind):
    return f"step {size.name} {kind}".rstrip()


def bench_cases(s):
    """What says most comes first; a twin compiles for a minute."""
    def steps(size):
        return [(step_name(size, kind), lambda name, kind=kind: step(s, name, size, kind=kind)) for kind in KINDS]

    def twins(size, variants):
        return [(twin_name(size, v), lambda name, v=v: twin(s, name, size, *v)) for v in variants]

    def memory_of(size):
        return (f"memory {size.name}", lambda name: memory(s, name, size))

    first, others = STEPS[0], STEPS[1:]
    cases = steps(first) + [memory_of(first), (f"floor {first.name}", lambda name: floor(s, name, first)), ("kernels bf16", lambda name: kernels(s, name, "bf16"))]
    cases += twins(first, TWINS[:1]) + [(f"start {first.name}", lambda name: start(s, name, first))]
    cases += [c for size in others for c in [*steps(size), memory_of(size), *twins(size, TWINS[:1])]]
    cases += [(f"attention {head} x {t}", lambda name, d=head, t=t: attention(s, name, d, t)) for head in ATTENTION["heads"] for t in ATTENTION["positions"]]
    for batch in (1, 4):  # small enough for the host to be in the way
        for graphs in (False, True):
            name = f"step {first.name} batch {batch} graphs {'on' if graphs else 'off'}"
            cases.append((name, lambda name, b=batch, g=graphs: step(s, name, first._replace(batch=b), g)))
    cases += [(shared_name(first, n, row), lambda name, n=n, row=row: shared(s, name, first, n, row)) for n in (2, 4) for row in ROWS]
    cases += [c for size in STEPS for c in twins(size, TWINS[1:])] + [("kernels fp32", lambda name: kernels(s, name, "fp32"))]
    if s.gpu:
        return cases
    return [(name, run if name.startswith("kernels") else lambda name: s.skip(name, "no GPU here")) for name, run in cases]


def compare(s):
    for size in STEPS:
        theirs = [(s.known[n]["tokens_per_s"], s.known[n]["B"], v) for v in TWINS if (n := twin_name(size, v)) in s.known]
        best, batch, variant = max(theirs, default=(0, 0, ()))
        for kind in KINDS:
            ours = s.known.get(step_name(size, kind))
            if ours and best > 0 and ours["B"] == batch:
                print(f"{step_name(size, kind)}: {ours['tokens_per_s']} tokens/s, PyTorch's best of {len(theirs)} {best} ({' '.join(variant)}), ratio {ours['tokens_per_s'] / best:.2f}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["test", "bench", "pack"])
    ap.add_argument("--tool", choices=["memcheck", "racecheck", "synccheck", "initcheck"])
    ap.add_argument("--seconds", type=float, default=420)
    ap.add_argument("--pack", metavar="FILE")
    ap.add_argument("--out", metavar="FOLDER", default=os.environ.get("OUT") or os.path.join(BUILD, "gpu-results"))
    ap.add_argument("--done", metavar="FILE", action="append", default=[])
    ap.add_argument("--only", metavar="WORD", action="append", default=[], help="cases with this in their name, or with another one that is given so")
    ap.add_argument("--at_once", metavar="N", type=int, default=1, help="tests at a time; figures are always taken alone")
    a = ap.parse_args()
    if a.what == "pack":
        return pack(built(), PACK)
    gpu = device()
    if gpu is None:
        print("gpu: no GPU is here (NVML names none): programs are only looked at whether they start", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    s = Session(a, gpu or {}, unpacked(a.pack) if a.pack else built())
    cases = [c for c in (test_cases(s) if a.what == "test" else bench_cases(s)) if not a.only or any(x in c[0] for x in a.only)]
    code = run_all(s, cases, a.at_once if a.what == "test" else 1)
    if a.what == "bench":
        compare(s)
    return code


if __name__ == "__main__":
    sys.exit(main())
