# covers: cmd/bench
"""The bench program: its words, and that each benchmark prints one JSON line per case. No times are judged here.
run: timeout 300"""

import json
import os
import re
import subprocess

import pytest
import support

BENCH = os.path.join(support.BIN, "bench")


def bench(*args):
    return subprocess.run([BENCH, *args], env=support.clean_env(), capture_output=True, text=True, timeout=2 * support.DEADLINE_S, check=False)


def cases(done):
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert {"bench", "case", "value", "unit", "p10", "p90", "count", "load"} <= set(line)
        assert line["p10"] <= line["value"] <= line["p90"] and line["value"] > 0
    return {line["case"]: line for line in lines}


def test_help_and_usage():
    done = bench("--help")
    assert done.returncode == 0 and "store" in done.stdout and "start" in done.stdout
    assert bench().returncode == 2
    done = bench("nothing")
    assert done.returncode == 2 and "nothing: no such benchmark" in done.stderr
    assert max(map(len, bench("--help").stdout.splitlines())) <= 80
    for name in ("collectives", "data", "first", "floor", "generate", "kernels", "load", "offload", "start", "step", "store"):
        done = bench(name, "--bogus")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"bench: {name}: --bogus: unknown option; see bench --help\n")
    assert bench("store", "--repeats", "0").stderr == "bench: store: --repeats: 0: must be a whole number from 1 to 101\n"


def test_offload(tmp_path):
    """Step, disk, step with files, and memory; the third one's floor is the larger of the first two. Nothing is left."""
    found = list(cases(bench("offload", "--size=L1C64", "--batch=1", "--ranks=2", "--steps=5", "--repeats=1", f"--folder={tmp_path}")).values())
    assert [x["unit"] for x in found] == ["ms", "ms", "ms", "MiB"] and all("2 ranks" in x["case"] for x in found), found
    assert abs(found[2]["floor"] - max(found[0]["value"], found[1]["value"])) < 1e-3 * found[2]["floor"] and found[3]["floor"] > 0, found
    assert os.listdir(tmp_path) == []
    done = bench("offload", "--size=L1C64", "--repeats=1", "--steps=4", "--folder=/nowhere")
    assert done.returncode == 1 and "bench offload: /nowhere failed" in done.stderr, done


def test_data():
    found = cases(bench("data", "--width=40", "--height=30", "--repeats=2"))
    shards = {"shards opened, checksum compared", "shards to batches, shuffled"}
    assert set(found) == {f"{kind} {what} 30x40" for kind in ("jpeg", "png") for what in ("decoded", "samples")} | shards
    assert found["jpeg decoded 30x40"]["floor"] > 0


def test_data_from_the_disk(tmp_path):
    done = bench("data", f"--folder={tmp_path}/none", "--repeats=1")
    assert done.returncode == 1 and done.stderr == f"bench data: {tmp_path}/none: No such file or directory\n"
    if os.environ.get("DTRUN_ALL"):  # writes 1.3 GB
        found = cases(bench("data", f"--folder={tmp_path}", "--repeats=1"))
        assert sorted(x["unit"] for x in found.values()) == ["MB/s", "rows/s"] and all(x["value"] > 0 and x["floor"] > 0 for x in found.values())
        assert os.listdir(tmp_path) == []


def test_generate():
    found = cases(bench("generate", "--size=L1C64", "--vocab=50", "--batch=2", "--prompt=5", "--ids=200", "--repeats=2"))
    assert {x.rsplit(", ", 1)[1] for x in found} == {"with a cache", "without a cache"} and all(x["calls"] == 2 for x in found.values())


def test_load(tmp_path):
    """Of a folder of 183 MiB a process holds its share and one unit more at most: the files' pages do not stay."""
    maker = os.path.join(support.ROOT, "tests/tools/llama_folder.py")
    subprocess.run(["/usr/bin/python3", maker, str(tmp_path / "llama"), "fp32", "1"], check=True, timeout=60)
    two = [support.program("dtrun"), "--nproc_per_node=2", "bench", "load", "--strategy=full_shard"]
    for command in ([BENCH, "load"], two):
        done = subprocess.run([*command, f"--folder={tmp_path}/llama", "--repeats=1"], env=support.clean_env(), capture_output=True, text=True, timeout=2 * support.DEADLINE_S)
        found = cases(done)
        assert set(found) == {"cold", "warm", "peak memory"}
        # the thread sanitizer has memory of its own for each byte
        assert found["peak memory"]["value"] < found["peak memory"]["floor"] or "thread" in os.environ.get("SAN", ""), found
    assert "say --folder" in bench("load").stderr
    assert "no/*.safetensors: no such file" in bench("load", "--folder", "no").stderr


def test_store():
    found = cases(bench("store", "--repeats", "2", "--ops=50", "--clients", "8"))
    assert set(found) == {"set", "add", "get", "connect, 8 clients", "wake, 8 clients"}
    assert found["add"]["floor"] > 0 and found["add"]["count"] == 2


@pytest.mark.skipif(not os.path.exists(support.DTRUN), reason="dtrun is not built")
def test_start():
    found = cases(bench("start", "--repeats", "1", "--nproc", "1,2", "--agents", "12"))
    firsts = ("launch to first all_reduce", "killed worker until the other one knows", "killed worker to next all_reduce")
    assert set(found) == {"1 processes", "2 processes", "2 launchers of one job, 1 process each", *(f"{name}, {who}" for name in firsts for who in ("2 ranks", "2 agents")),
                          "12 agents to their first round", "12 agents, failure to the next round",
                          "resident memory of the agent, 2 workers", "resident memory of the agent, 64 workers"}
    assert all(case["value"] > 0 for case in found.values())


def test_start_says_what_is_missing():
    done = bench("start", "--dtrun", "/nowhere/dtrun")
    assert done.returncode == 2 and "/nowhere/dtrun" in done.stderr
    if os.path.exists("/bin/false"):
        done = bench("start", "--dtrun", "/bin/false", "--repeats", "1", "--nproc", "1")
        assert done.returncode == 1 and "failed" in done.stderr


def test_step():
    found = cases(bench("step", "--size", "L1C64", "--ranks", "2", "--strategy", "ddp,full_shard", "--steps", "6", "--repeats", "1"))
    rates = {f"gpt2 L1C64 {dtype}, {row}, 2 ranks, 1 thread each" for row in ("ddp", "full_shard") for dtype in ("fp32", "bf16")}
    assert set(found) == rates | {f"{rate}: peak memory of all ranks" for rate in rates}
    assert all(case["value"] > 0 and case["unit"] == ("tokens/s" if name in rates else "MiB") for name, case in found.items())


def test_step_of_another_model():
    """What the model reads is made up from its own description."""
    found = cases(bench("step", "--model=bert", "--ranks=1", "--dtype=bf16", "--steps=4", "--repeats=1"))
    (rate, memory) = found.values()
    assert rate["case"] == "bert L4C256 bf16, single_device, 1 rank, 1 thread each" and rate["value"] > 0 and memory["value"] > 100
    done = bench("step", "--model=t5")
    assert (done.returncode, done.stderr) == (2, "bench step: --model: t5: there are gpt2, llama, bert, resnet, smollm2\n")


KERNELS = ("fill cast scale add sum_slices column_sum layernorm layernorm_backward activation activation_backward "
           "rmsnorm rmsnorm_backward rmsnorm_heads rmsnorm_heads_backward gelu_erf silu gate gate_backward rope "
           "embedding embedding_tables embedding_backward embedding_backward_types position_backward dropout masked_mean masked_mean_backward "
           "take_rows take_rows_backward unfold fold max_pool max_pool_backward batch_moments "
           "batch_merge batch_norm batch_norm_sums batch_norm_backward cross_entropy cross_entropy_capped label_loss adamw adamw_many adamw_bf16_moments adam sgd lion adagrad lamb muon trust_ratio norm_sum norm_finish exact_sum").split()
ARITHMETIC = "matmul matmul_gelu matmul_dx matmul_dx_gelu matmul_dw matmul_dw_bias convolution convolution_input convolution_weights attention attention_backward".split()


def test_kernels():
    found = cases(bench("kernels", "--rows=256", "--cols=96", "--vocab=500", "--parameters=10000", "--repeats=2"))
    shape = {name: "10000" for name in ("adamw", "adamw_many", "adamw_bf16_moments", "adam", "sgd", "lion", "adagrad", "lamb", "muon", "norm_sum")}
    shape |= {"cross_entropy": "32x500", "cross_entropy_capped": "32x500", "label_loss": "32x500", "norm_finish": "32", "exact_sum": "32", "trust_ratio": "32"}
    names = {f"{dtype} {name} {shape.get(name, '256x96')}" for dtype in ("fp32", "bf16") for name in KERNELS + ARITHMETIC}
    assert {case.split(" ", 1)[1] for case in found} == names  # before: the CPU's instruction set
    assert all(case["floor"] > 0 and case["unit"] == "us" for case in found.values())
    by_name = {case.split(" ", 1)[1]: line.get("bytes") or line["flops"] for case, line in found.items()}
    assert all(("flops" in line) == (case.split(" ")[2] in ARITHMETIC) and by_name[case.split(" ", 1)[1]] > 0 for case, line in found.items())
    assert by_name["bf16 matmul_dw 256x96"] == 2 * 256 * 96 * 4 * 96 and by_name["fp32 attention_backward 256x96"] == 5 * 256 * 256 * 96
    assert by_name["fp32 add 256x96"] == 3 * 4 * 256 * 96 and by_name["bf16 cross_entropy 32x500"] == 2 * 2 * 32 * 500
    assert by_name["bf16 adamw 10000"] - by_name["bf16 adamw_bf16_moments 10000"] == 8 * 10000
    assert set(cases(bench("kernels", "--kernel=scale", "--dtype=bf16", "--rows=8", "--repeats=1")).popitem()[1]) >= {"gb_per_s", "to_floor"}


SOFT = os.path.join(support.BUILD, "softgpu", "bench")
TINY = ["--rows=64", "--cols=64", "--vocab=200", "--parameters=20000", "--positions=32", "--copy=1", "--square=64", "--repeats=1"]


@pytest.mark.skipif(not os.path.exists(SOFT), reason="built without the CUDA toolkit's headers")
@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="lines are the same in all builds")
def test_kernels_of_a_gpu(tmp_path):
    """Every row of its table has a line, in both types."""

    def run(*args, **env):
        env = support.clean_env({"DTRUN_CACHE": tmp_path, **env})
        return cases(subprocess.run([SOFT, "kernels", "--device=cuda", *TINY, *args], env=env, capture_output=True, text=True, timeout=100, check=False))

    found = run()
    with open(os.path.join(support.ROOT, "kernels", "rows.def")) as f:
        table = set(re.findall(r"^KERNEL\((\w+),", f.read(), re.M))
    lines = {dtype: {case.split()[2] for case in found if case.startswith(f"cuda {dtype} ")} for dtype in ("fp32", "bf16")}
    assert lines["fp32"] == lines["bf16"] == {*KERNELS, *ARITHMETIC}, lines
    assert "adamw_many" in table and {name.removesuffix("_many") for name in table} <= lines["fp32"], table  # an update of one slice has no row
    assert all(line["device"] == "GPU 0 (software GPU, bus 0000:01:00.0)" for line in found.values())
    by = {}
    for wish in ("cudnn", "own", "plain"):
        found = run("--kernel=attention_backward", "--dtype=bf16", "--head=32", DTRUN_ATTENTION=wish)
        by[wish] = found["cuda bf16 attention_backward 64x64"]["by"]
    assert by == {"cudnn": "cuDNN", "own": "kernels of our own on tensor cores", "plain": "kernels of our own"}


FLOOR = ["--size=L1C64", "--batch=2", "--positions=64", "--vocab=200", "--repeats=1", "--steps=1", "--copy=1", "--square=64"]
STEP = {"embedding", "layernorm", "matmul", "attention", "cross_entropy", "attention_backward", "layernorm_backward", "embedding_backward", "position_backward",
        "norm_sum", "exact_sum", "norm_finish", "adamw_many"}  # and more, by device and level


def floor(program, *args, env=None):
    """By type and what the line is about; what is between kernels, which may be less than nothing, apart."""
    done = subprocess.run([program, "floor", *FLOOR, *args], env=env or support.clean_env(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in map(json.loads, done.stdout.splitlines()):
        _, dtype, what = line["case"].split(", ")[0].split(" ", 2)
        found.setdefault(dtype, {})[what] = line
    for lines in found.values():
        between, step = lines.pop("between kernels"), lines["step"]
        kernels = [line for what, line in lines.items() if what != "step"]
        assert {line["unit"] for line in lines.values()} == {"us"} and all(line["value"] > 0 and line["floor"] > 0 and line["bytes"] > 0 for line in lines.values())
        assert STEP <= set(lines) and all(line["calls"] > 0 for line in kernels)
        for key in ("floor", "bytes"):
            assert abs(sum(line[key] for line in kernels) / step[key] - 1) < 1e-3, key
        assert abs((between["value"] + sum(line["value"] for line in kernels)) / step["value"] - 1) < 1e-3
    return found


def test_floor():
    found = floor(BENCH, "--micro-steps=3", "--level=none")
    assert set(found) == {"fp32", "bf16"}
    for lines in found.values():
        assert lines["step"]["case"].endswith(" step, L1C64 2x64, 3 micro-steps, level none")
        assert lines["attention"]["calls"] == 3 and lines["adamw_many"]["calls"] == 1
        assert lines["matmul"]["flops"] == 6 * (12 * 64 * 64 + 200 * 64) * 2 * 64 * 3 and lines["attention"]["flops"] == 3 * 2 * 2 * 64 * 64 * 64
    assert found["fp32"]["cross_entropy"]["bytes"] == 2 * found["bf16"]["cross_entropy"]["bytes"]


def test_floor_of_a_job(tmp_path):
    """Any job: its samples are random, and its strategy, precision and graphs are the bench's."""
    job = {"model": {"name": "resnet", "stem": "small", "image_size": 8, "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1],
                     "layer_type": "basic", "num_labels": 3},
           "data": {"train": "nowhere/*.bin", "val": "nowhere.bin"}, "training": {"batch_size_per_gpu": 4, "strategy": "full_shard"}}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    words = ["--job", str(path), "--dtype=fp32", "--repeats=1", "--steps=1", "--copy=1", "--square=64"]
    lines = {case["case"].split(", ")[0].split(" ", 2)[2]: case for case in map(json.loads, bench("floor", *words).stdout.splitlines())}
    assert lines["step"]["case"].endswith(" step, resnet 4x1, level cheap")
    # the stem's, two and a shortcut's in the second of two blocks: 6, of which the level computes 2 again
    assert lines["batch_norm"]["calls"] == 8 and lines["cross_entropy"]["calls"] == 1
    job["model"]["depth"] = [1]
    path.write_text(json.dumps(job))
    done = bench("floor", *words)
    assert done.returncode == 2 and "model.depth: unknown key; did you mean depths?" in done.stderr


@pytest.mark.skipif(not os.path.exists(SOFT), reason="built without the CUDA toolkit's headers")
@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="lines are the same in all builds")
def test_floor_of_a_gpu(tmp_path):
    found = floor(SOFT, "--device=cuda", "--dtype=bf16", env=support.clean_env({"DTRUN_CACHE": tmp_path}))
    assert all(line["device"] == "GPU 0 (software GPU, bus 0000:01:00.0)" for line in found["bf16"].values())
    products = sum(found["bf16"].get(what, {"flops": 0})["flops"] for what in ("matmul", "matmul_epilogue"))
    assert products == 6 * (12 * 64 * 64 + 200 * 64) * 2 * 64  # whichever products have their epilogue


def test_floor_that_is_none():
    for option, said in (("--size=L2", "--size: L2: must be like L6C384, channels a multiple of 64"), ("--dtype=fp8", "--dtype: fp8: must be fp32 or bf16"),
                         ("--level=all", "--level: all: must be one of none|cheap|mlp|block")):
        done = bench("floor", option)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"bench: floor: {said}\n")
    done = bench("floor", "--device=twin64")
    assert (done.returncode, done.stdout) == (2, "") and "--device: twin64: its kernels know one type" in done.stderr


def test_kernels_that_are_none():
    done = bench("kernels", "--cols=100", "--head=64")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "bench: kernels: --head: 64: must divide --cols=100\n")
    done = bench("kernels", "--kernel=sale")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "bench: kernels: --kernel: sale: no such kernel\n")
    done = bench("kernels", "--device=abacus")
    assert done.returncode == 2 and done.stdout == "" and "device abacus: unknown" in done.stderr
    for twin in ("twin32", "twin64"):  # of one type each; the other would be written past the end of its buffers
        done = bench("kernels", f"--device={twin}", "--kernel=add", "--rows=8", "--repeats=1")
        assert (done.returncode, done.stdout) == (2, "") and f"--device: {twin}: its kernels know one type" in done.stderr
