# covers: cmd/doctor base/gpu
"""doctor and GPUs, with a driver's library that says what a test wants (tests/softgpu/nvml.c): each thing that is wrong with a GPU is one line with what to
do, and nothing else is said. Which GPUs CUDA_VISIBLE_DEVICES lets through is what PyTorch says.
run: timeout 120
"""

import json
import os
import re
import subprocess
import time

import dropin
import pytest

from support import BIN, ROOT, TOOLS, clean_env, run
from story_doctor import QUIET, alone, checks

NVML = os.path.join(TOOLS, "nvml")
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(NVML, "libnvidia-ml.so.1")), reason="tools are not built: make tools")
GIB = 2**30


def with_gpus(tmp_path, lines, **env):
    """Environment with a driver that says the lines, and has 4 GPUs unless they say otherwise."""
    path = tmp_path / "nvml.txt"
    path.write_text("\n".join([*lines, "count 4", *(f"{i}.name NVIDIA H200" for i in range(4))]) + "\n")
    return {**QUIET, "LD_LIBRARY_PATH": NVML, "SOFTGPU_NVML": str(path), "CUDA_VISIBLE_DEVICES": None, **env}


def gpu_lines(result):
    return [line for line in map(json.loads, result.out.splitlines()) if line["check"].startswith("GPU")]


@pytest.fixture(scope="module")
def with_cuda(tmp_path_factory):
    """Was this dtrun built where nvcc is, and without sanitizers?"""
    lines = gpu_lines(alone("--json", env=with_gpus(tmp_path_factory.mktemp("built"), [])))
    return not any(line["finding"] == "this program was built without CUDA" for line in lines)


def test_healthy_gpus(tmp_path, with_cuda):
    result = alone("--json", env=with_gpus(tmp_path, ["0.nvlinks_up 18", "0.1 nvlink", "0.2 nvlink", "0.3 nvlink", "1.2 nvlink", "1.3 nvlink", "2.3 nvlink"]))
    lines = gpu_lines(result)
    found = {line["check"]: line["finding"] for line in lines}
    driver = "580.65.06, CUDA 13.0" if with_cuda else "this program was built without CUDA"
    assert found["GPUs"] == "4 x NVIDIA H200" and found["GPU driver"].startswith(driver), result
    assert found["GPU memory"] == "8.0 GiB each, free" and found["GPU errors"] == "none" and found["GPU modes"] == "whole, for all programs, awake", result
    assert found["GPU clocks"] == "up to 1980 MHz, not slowed down" and found["GPU links"] == "all pairs of a host by NVLink", result
    assert result.code == 0 and all(line["level"] in ("ok", "info") for line in lines if line["check"] not in ("GPU driver", "GPU libraries")), result


@pytest.mark.parametrize("lines, env, check, level, words", [
    (["init 18"], {}, "GPU driver", "fail", "the driver in the kernel and its library are of different versions; reboot"),
    (["init 4"], {}, "GPU driver", "fail", "no permission"),
    (["cuda 11080"], {}, "GPU driver", "fail", "the driver is made for CUDA 11.8, this program for"),
    (["2.error 15"], {}, "GPUs", "fail", "GPU 2: lost: it fell off the bus; reboot the host"),
    (["2.late 15"], {}, "GPUs", "fail", "lost: it fell off the bus"),
    (["1.late 16"], {}, "GPUs", "fail", "needs a reset"),
    (["2.late 15"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "GPUs", "warn", "(not visible to this job)"),
    ([], {"CUDA_VISIBLE_DEVICES": ""}, "GPUs", "info", "CUDA_VISIBLE_DEVICES is empty: none of 4 is seen"),
    ([], {"CUDA_VISIBLE_DEVICES": "-1"}, "GPUs", "fail", "CUDA_VISIBLE_DEVICES=-1: -1 is no GPU"),
    ([], {"CUDA_VISIBLE_DEVICES": "0,9"}, "GPUs", "warn", "9 is no GPU of this host, which has 0 to 3"),
    ([], {"CUDA_VISIBLE_DEVICES": "1,1"}, "GPUs", "fail", "1 is named twice"),
    ([], {"CUDA_VISIBLE_DEVICES": "GPU-none"}, "GPUs", "fail", "GPU-none is no GPU of this host"),
    (["cuda_sees 3"], {}, "GPUs", "fail", "CUDA sees 3 of 4 GPUs"),
    (["cuda_init 999"], {}, "GPU driver", "fail", "cuInit gave 999"),
    (["0.compute_mode 2"], {}, "GPU modes", "fail", "GPU 0 (0000:01:00.0): compute mode prohibited"),
    (["0.compute_mode 3"], {}, "GPU modes", "info", "exclusive process: ranks cannot share it"),
    (["3.compute_mode 3", "3.processes 1:5"], {}, "GPU modes", "fail", "exclusive process, and in use by pid 1"),
    (["1.mig 1", "1.parts 2"], {}, "GPU modes", "warn", "cut into parts by MIG"),
    (["0.persistence 0"], {}, "GPU modes", "warn", "persistence mode is off"),
    ([f"0.used {3 * GIB}"], {}, "GPU memory", "warn", "3.0 GiB of 8.0 GiB used by nobody who is known"),
    ([f"0.used {3 * GIB}", f"0.processes {os.getpid()}:{2 * GIB}"], {}, "GPU memory", "warn", f"used by pid {os.getpid()} ("),
    (["1.ecc_uncorrected 3"], {}, "GPU errors", "fail", "GPU 1 (0000:02:00.0): 3 memory errors that could not be corrected"),
    (["1.remap_failed 1"], {}, "GPU errors", "fail", "no spare row is left"),
    (["1.remap_pending 1"], {}, "GPU errors", "warn", "at the next reset"),
    (["1.retired_pages 64"], {}, "GPU errors", "fail", "64 pages retired"),
    (["2.throttle 0x48", "2.clock 1200"], {}, "GPU clocks", "warn", "slowed down by hardware slowdown, heat (hardware): 1200 of 1980 MHz"),
    (["2.clock_max 1500"], {}, "GPU clocks", "warn", "highest clocks from 1500 to 1980 MHz"),
    (["0.nvlinks_up 17", "0.nvlinks_down 1"], {}, "GPU links", "warn", "1 of 18 NVLinks are down"),
    (["3.pcie_width 8"], {}, "GPU links", "warn", "PCIe with 8 of 16 lanes"),
    (["0.2 none"], {}, "GPU links", "warn", "GPUs that cannot read each other's memory: 0-2"),
])
def test_one_thing_is_wrong_with_gpus(tmp_path, with_cuda, lines, env, check, level, words):
    if "this program for" in words and not with_cuda:
        pytest.skip("this dtrun was built without CUDA: it has no version that a driver could be too old for")
    result = alone("--json", env=with_gpus(tmp_path, lines, **env))
    said = gpu_lines(result)
    found = [line for line in said if line["check"] == check and words in line["finding"] + "; " + line["advice"]]
    assert len(found) == 1 and found[0]["level"] == level, result
    installed = ("GPU driver", "GPU libraries")  # what this machine has, or this build lacks
    others = [line for line in said if line["level"] in ("warn", "fail") and line is not found[0] and not (line["check"] in installed and line["level"] == "warn")]
    assert not others, result
    assert result.code == (level == "fail"), result


def nccl(folder, version):
    """A library with NCCL's functions that says it is of that version."""
    with open(os.path.join(ROOT, "collectives", "nccl_abi.h"), encoding="utf-8") as f:
        names = set(re.findall(r"\bnccl[A-Z]\w+", f.read())) - {"ncclGetVersion"}
    source = folder / "nccl.c"
    source.write_text("".join([f"int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}\n", *(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names))]))
    library = folder / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("version, level, words", [
    (22809, None, "NCCL 2.28.9 (FILE)"),
    (21200, "warn", "NCCL 2.12.0 (FILE): too old, 2.14 is the least"),
    (None, "warn", "NCCL: DTRUN_NCCL=FILE: "),
])
def test_which_nccl_is_found(tmp_path, version, level, words):
    file = nccl(tmp_path, version) if version else tmp_path / "nothing.so"
    result = alone("--json", env=with_gpus(tmp_path, [], DTRUN_NCCL=str(file)))
    found = [line for line in gpu_lines(result) if line["check"] == "GPU libraries" and words.replace("FILE", str(file)) in line["finding"]]
    assert len(found) == 1 and level in (None, found[0]["level"]), result


def test_a_driver_that_hangs_holds_nobody_up(tmp_path):
    begin_s = time.monotonic()
    result = alone("--json", env=with_gpus(tmp_path, ["hang 1"]))
    assert time.monotonic() - begin_s < 20 and result.code == 1, result
    found = checks(result.out)
    assert "looking at GPUs did not come back" in found["ranks"]["finding"] and found["MTU"]["level"] == "ok", result


@pytest.mark.parametrize("lines, variables, count", [
    (["count 2"], {}, 2),
    (["count 8", "3.error 4", "7.error 4"], {}, 6),  # 4: the job's control group keeps them from us
    (["count 8"], {"CUDA_VISIBLE_DEVICES": "5"}, 1),
    (["count 0"], {}, 0),
])
def test_workers_are_counted_by_the_driver(tmp_path, lines, variables, count):
    result = run(["--nproc_per_node=gpu", "--dry_run", "/bin/true"], env=with_gpus(tmp_path, lines, **variables))
    if count == 0:
        assert result.code == 2 and "no GPU here" in result.err, result
    else:
        assert result.code == 0 and f"workers   {count}, gpu" in result.out, result


LISTS = ["0", "0,1", "3,1,2", "", "-1", "0,-1,2", "0,0", "1,0,1", "none", "0,none,1", "1gpu2,2ampere", " 1, 2", "+1", "GPU-1", "GPU-1,GPU-2", "GPU-1,2", "GPU-1,GPU-1",
         "MIG-1,MIG-2", "MIG-1,GPU-1", "0,GPU-1", "0,,1", ",0", "7,", "0 ,1", "0;1"]


@pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_visible_devices_are_those_of_torch():
    code = ("import json,os,sys,torch\nout=[]\nfor v in json.load(sys.stdin):\n os.environ['CUDA_VISIBLE_DEVICES']=v\n"
            " out.append(len(torch.cuda._parse_visible_devices()))\nprint(json.dumps(out))")
    done = subprocess.run([dropin.PEER_PYTHON, "-c", code], input=json.dumps(LISTS), capture_output=True, text=True, timeout=60, env=clean_env(), check=True)
    for value, count in zip(LISTS, json.loads(done.stdout), strict=True):
        result = run(["--nproc_per_node=gpu", "--dry_run", "/bin/true"], env={"CUDA_VISIBLE_DEVICES": value})
        if count == 0:
            assert result.code == 2 and "no GPU here" in result.err, (value, result)
        else:
            assert result.code == 0 and f"workers   {count}, gpu" in result.out, (value, count, result)
