# covers: scripts/gpu.py
"""scripts/gpu.py with a packed file, as on a machine where nothing can be built: the software GPU's programs in place of the real ones, and an NVML that names a
GPU. What a test starts is in the file, what passed is not run again, and a test that skips itself has not passed.
run: nosan: the script asks for programs of the plain build
run: timeout 300
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile

import pytest
import support
from fake_nccl import library

SCRIPT = os.path.join(support.ROOT, "scripts", "gpu.py")
NVML = os.path.join(support.TOOLS, "nvml")
SOFT_TRAIN = os.path.join(support.BUILD, "softgpu", "train")
pytestmark = pytest.mark.skipif(not os.path.exists(SOFT_TRAIN) or not os.path.exists(NVML), reason="built without the CUDA toolkit's headers, or without tools")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def packed(script, tmp_path_factory):
    """(the file, the folder that it was made of)"""
    folder = tmp_path_factory.mktemp("programs")
    for kind, name in script.FILES:
        (folder / kind).mkdir(exist_ok=True)
        source = {"bin": support.BIN, "tools": support.TOOLS, "gpu": os.path.join(support.BUILD, "tests")}[kind]
        soft = os.path.join(support.BUILD, "softgpu", name)
        shutil.copy2(soft if name in ("train", "bench") else os.path.join(source, name), folder / kind / name)
    script.pack(str(folder), str(folder / "pack.tar"))
    return folder / "pack.tar", folder


def run(pack, out, only, what="test", changed="", more=(), **env):
    """(exit code, what it said, rows of the results). changed: lines that make it smaller."""
    place = str(out.parent / "build")  # where it unpacks and works
    code = f"import sys, gpu; gpu.BUILD = {place!r}\n{changed}\nsys.exit(gpu.main())"
    env = support.clean_env({"PYTHONPATH": os.path.dirname(SCRIPT), "LD_LIBRARY_PATH": NVML, "OUT": None, **env})
    p = subprocess.run([sys.executable, "-c", code, what, "--pack", str(pack), "--out", str(out), *[x for word in only.split("|") for x in ("--only", word)], *more], env=env, capture_output=True, text=True, timeout=240)
    results = out / "results.jsonl"
    return p.returncode, p.stdout + p.stderr, [json.loads(x) for x in results.read_text().splitlines()] if results.exists() else []


def test_a_kernel_that_lists_no_children(monkeypatch):
    """As that of a small virtual machine may be: stories find the processes of a job by their parents."""
    begun = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        listed = [p for p in support.children(os.getpid()) if p in [b.pid for b in begun]]
        real = open

        def refuse(path, *args, **rest):
            if str(path).endswith("/children"):
                raise FileNotFoundError(path)
            return real(path, *args, **rest)

        monkeypatch.setattr("builtins.open", refuse)
        found = [p for p in support.children(os.getpid()) if p in [b.pid for b in begun]]
        monkeypatch.undo()
        assert found == sorted(listed) == sorted(b.pid for b in begun), (found, listed)
    finally:
        for b in begun:
            b.kill()
            b.wait()


def test_what_is_packed_is_all_that_a_test_starts(packed, tmp_path):
    out = tmp_path / "out"
    names = ("unit_cuda_graph", "test_a_lost_rank_is_noticed")
    code, said, rows = run(packed[0], out, "|".join(names), more=["--at_once", "2"])
    assert code == 0 and "2 passed, 0 failed, 0 skipped" in said and all(r["passed"] for r in rows), said
    assert all(any(name in r["case"] for r in rows) for name in names), rows
    code, said, again = run(packed[0], out, names[0])
    assert code == 0 and "passed before" in said and again == rows, said


def test_a_test_that_skips_itself_has_not_passed(packed, tmp_path):
    code, said, rows = run(packed[0], tmp_path / "out", "test_a_rank_without_graphs_is_no_worse")
    assert code == 0 and "0 passed, 0 failed, 2 skipped" in said and rows == [], said
    assert "skipped, worker/run/story_softgpu.py:" in said and "only the software GPU refuses when it is told to" in said, said


def test_what_hangs_is_ended_and_comes_last_the_next_time(packed, tmp_path):
    """On a machine that is lent for half an hour one test that waits for good must not be all that is seen."""
    cases = "gpu.test_cases = lambda s: [(x, lambda name, t=t: gpu.check(s, name, ['sleep', t])) for x, t in (('waits', '60'), ('ends', '0'))]"
    code, said, rows = run(packed[0], tmp_path / "out", "", changed=f"gpu.TEST_S = 1\n{cases}")
    assert code == 1 and [(r["case"], r["passed"]) for r in rows] == [("waits", False), ("ends", True)], said
    assert rows[0]["timed_out"] and rows[0]["seconds"] < 30, rows
    code, said, rows = run(packed[0], tmp_path / "out", "", changed=f"gpu.TEST_S = 1\n{cases}")
    assert code == 1 and len(rows) == 3 and rows[2]["case"] == "waits", said
    assert said.index("ends: passed before") < said.index('{"case": "waits"'), said


def test_nearly_all_is_run_on_one_gpu_where_there_are_more(packed, tmp_path):
    """The first that is visible; results name it. What wants several has all of them."""
    (tmp_path / "nvml").write_text("count 2\n0.name one\n1.name other\n")
    two = {"SOFTGPU_DEVICES": 2, "SOFTGPU_NVML": tmp_path / "nvml", "CUDA_VISIBLE_DEVICES": "1,0", "DTRUN_NCCL": library()}
    code, said, rows = run(packed[0], tmp_path / "out", "test_too_few_gpus", **two)
    assert code == 0 and "1 passed, 0 failed" in said and rows[-1]["device"] == "other" and rows[-1]["gpus"] == 2, said
    wanted = "story_gpus test_how_much_of_a_gpu_nccl_takes_changes_little[sets0-env0]"
    code, said, rows = run(packed[0], tmp_path / "out", wanted, **two)
    assert code == 0 and "1 passed, 0 failed" in said and rows[-1]["case"] == wanted, said
    code, said, rows = run(packed[0], tmp_path / "one", wanted, **{**two, "CUDA_VISIBLE_DEVICES": "1"})
    assert code == 0 and "0 passed, 0 failed, 0 skipped" in said and rows == [], said


SMALL = """
gpu.TOKENS, gpu.WARM, gpu.MEASURED, gpu.SHARED_BATCH, gpu.SHARED_STEPS, gpu.OF_CUDA = 16, 30, 4, 1, 4, 0
gpu.VOCABULARY, gpu.IDS, gpu.SHARD_TOKENS, gpu.ROWS = 256, 256, 1 << 14, ["ddp", "full_shard"]
gpu.STEPS = [gpu.gpt2("small", 1, 2, 32, 2)]
gpu.KERNEL_OPTIONS = ["--rows=64", "--cols=64", "--vocab=200", "--parameters=20000", "--positions=32", "--copy=1", "--square=64", "--repeats=1"]
gpu.FLOOR_OPTIONS = ["--copy=1", "--square=64", "--steps=1", "--repeats=1"]
gpu.ATTENTION = {"tokens": 64, "cols": 64, "heads": (32,), "positions": (32,), "options": ["--copy=1", "--square=64"]}
gpu.WAYS = [(way, 1) for way, _ in gpu.WAYS]
"""


def test_figures(packed, tmp_path):
    """Each kind of case, of sizes that a software GPU can do; PyTorch's twin needs a real one. What stands is not measured again."""
    out, env = tmp_path / "out", {"DTRUN_CACHE": tmp_path / "cache", "OMP_NUM_THREADS": "1"}
    expected = {"step gpt2 small", "step gpt2 small none", "step gpt2 small none fast", "start gpt2 small", "kernels bf16", "floor gpt2 small", "attention 32 x 32",
                *(f"shared gpt2 small {n} ranks {row}" for n in (2, 4) for row in ("ddp", "full_shard"))}
    found = {}
    for only in ("step gpt2 small", "start", "kernels bf16", "floor", "attention", "shared"):
        code, said, rows = run(packed[0], out, only, "bench", SMALL, **env)
        found = {row["case"]: row for row in rows}
        assert code == 0 and all(row["passed"] for row in rows), said
    assert expected <= set(found), sorted(found)
    step, start = found["step gpt2 small"], found["start gpt2 small"]
    assert found["step gpt2 small none"]["memory_bytes"] > step["memory_bytes"] and found["step gpt2 small none"]["first_loss"] == step["first_loss"], found
    assert step["tokens_per_s"] > 0 and step["memory_bytes"] > 2**20 and step["device"] == "software GPU" and "libraries" in step, step
    assert start["cold_s"] > 0 and start["warm_s"] > 0, start
    assert {"step", "between kernels", "adamw_many"} <= {row["case"].split(", ")[0].split(" ", 2)[2] for row in found["floor gpt2 small"]["rows"]}, found
    assert {(row["way"], row["case"].split()[2]) for row in found["attention 32 x 32"]["rows"]} == {
        (way, kernel) for way in ("cudnn", "fast", "own", "plain") for kernel in ("attention", "attention_backward")}, found["attention 32 x 32"]
    assert len({tuple(found[f"shared gpt2 small 2 ranks {row}"]["losses"]) for row in ("ddp", "full_shard")}) == 1
    said = (out / "said.log").read_text()
    assert all(f"==== {case}" in said for case in ("step gpt2 small", "floor gpt2 small", "start gpt2 small warm")), said[-3000:]
    assert "candidate" in said and "==== matmul-" in (out / "plans.log").read_text(), said[-3000:]
    code, said, rows = run(packed[0], out, "memory", "bench", SMALL, **env)
    assert rows[-1]["case"] == "memory gpt2 small" and rows[-1]["passed"] == (abs(step["planned_bytes"] / step["memory_bytes"] - 1) < 0.01), said
    code, said, again = run(packed[0], out, "shared", "bench", SMALL, **env)
    assert code == 0 and said.count("passed before") == 4 and again == rows, said


def test_a_pack_of_another_tree_is_refused(packed, tmp_path):
    older = tmp_path / "older.tar"
    with tarfile.open(packed[0]) as old, tarfile.open(older, "w") as new:
        for member in old:
            if member.name != "bin/dtdata":
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
    code, said, rows = run(older, tmp_path / "out", "test_a_stop_saves")
    assert code == 2 and rows == [] and said.count("\n") == 1 and "older.tar: lacks dtdata; make it anew" in said, said
