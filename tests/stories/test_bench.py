"""The bench program: its words, and that each benchmark prints one JSON line per case. No times are judged here."""

import json
import os
import subprocess

import pytest
import support

BENCH = os.path.join(support.BIN, "bench")


def bench(*args):
    return subprocess.run([BENCH, *args], env=support.clean_env(), capture_output=True, text=True, timeout=100, check=False)


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
    for name in ("collectives", "first", "start", "step", "store"):
        done = bench(name, "--bogus")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"bench: {name}: --bogus: unknown option; see bench --help\n")
    assert bench("store", "--repeats", "0").stderr == "bench: store: --repeats: 0: must be a whole number from 1 to 101\n"


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
    assert set(found) == {f"gpt2 L1C64 {dtype}, {row}, 2 ranks, 1 thread each" for row in ("ddp", "full_shard") for dtype in ("fp32", "bf16")}
    assert all(case["value"] > 0 and case["unit"] == "tokens/s" for case in found.values())
