# covers: launcher launcher/store
"""Unmodified PyTorch under dtrun: collectives, DDP, FSDP2, checkpoints, barriers, a killed rank, error files, the watchdog, two agents.

run: timeout 600
Needs the peers environment (scripts/setup.sh --peers); skipped without it."""

import contextlib
import os
import re
import signal

import dropin
import pytest
from support import DTRUN, ROOT, Job, lines_of, wait_until

pytestmark = [pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built"),
              pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")]
WORKER = os.path.join(ROOT, "tests", "peers", "elastic.py")
PATIENCE_S = 240


def start(folder, mode, *options, env=None):
    return Job([*options, WORKER, mode, folder], env={"PYTHON_EXEC": dropin.PEER_PYTHON, "GLOO_SOCKET_IFNAME": "lo", **(env or {})})


def finish(job):
    result = job.finish(PATIENCE_S)
    job.wait_gone()
    return result


def said(folder):
    return sorted(lines_of(folder / "said"))


def test_training_goes_on_after_a_killed_rank(tmp_path):
    with start(tmp_path, "all", "--nproc_per_node=2", "--max_restarts=1") as job:
        result = finish(job)
    assert result.code == 0, result
    assert re.search(r"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): killed by signal 9 \(SIGKILL\); .*restarting \(1 of 1 used\)$", result.err, re.M), result
    assert said(tmp_path) == sorted([f"0 {r}/2 first round" for r in range(2)] + [f"1 {r}/2 {what} ok" for r in range(2) for what in ("ddp", "fsdp2", "dcp")] +
                                    ["1 0/2 monitored_barrier ok"])
    assert "Failed to check the" not in result.err and "Broken pipe" not in result.err, result


def test_an_error_inside_record_is_the_cause(tmp_path):
    above = tmp_path / "above.json"
    with start(tmp_path, "error", "--nproc_per_node=2", f"--log_dir={tmp_path}/logs", env={"TORCHELASTIC_ERROR_FILE": str(above)}) as job:
        result = finish(job)
    assert result.code == 1, result
    # An interpreter that ends with threads of gloo left may still abort, after it has written why it ends.
    how = r"(exit code 1|killed by signal 6 \(SIGABRT\))"
    assert re.search(rf"^dtrun: host \S+ rank 1 \(local 1, pid \d+\): {how}: ValueError: boom on purpose; ", result.err, re.M), result
    block = result.err.partition("Root Cause (first observed failure):")[2]
    assert "rank      : 1 (local_rank: 1)" in block and 'raise ValueError("boom on purpose")' in block, result
    assert "ValueError: boom on purpose" in above.read_text()


def test_ranks_that_wait_for_ever_are_named(tmp_path):
    with start(tmp_path, "stuck", "--nproc_per_node=2", "--hang_timeout=6") as job:
        result = finish(job)
    assert result.code == 1, result
    assert re.search(r"rank [01] \(local [01], pid \d+\): no output and .* for \d+\.\d s \(--hang_timeout=6\)", result.err), result
    assert [x.split()[-1] for x in said(tmp_path)] == ["stuck", "stuck"], result  # and not while they still imported


def test_the_timer_of_torchs_own_client(tmp_path):
    with start(tmp_path, "watchdog", "--max_restarts=1", env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}) as job:
        result = finish(job)
    assert result.code == 0 and said(tmp_path) == ["1 0/1 watchdog ok"], result
    assert "watchdog timer too long is over: SIGKILL; restarting (1 of 1 used)" in result.err, result


def test_two_agents(tmp_path):
    port = dropin.free_port()
    jobs = [start(tmp_path, "all", "--nnodes=2", f"--node_rank={n}", "--nproc_per_node=1", "--max_restarts=1", "--master_addr=127.0.0.1", f"--master_port={port}")
            for n in range(2)]
    with contextlib.ExitStack() as stack:
        for job in jobs:
            stack.enter_context(job)
        results = [finish(job) for job in jobs]
    assert [r.code for r in results] == [0, 0], results
    assert [x for x in said(tmp_path) if "dcp" in x] == ["1 0/2 dcp ok", "1 1/2 dcp ok"]


def test_agents_join_and_leave(tmp_path):
    options = ["--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{dropin.free_port()}", "--rdzv_id=elastic", "--nproc_per_node=1", "--last_call=1"]

    def rounds(n, at_least=1):
        return wait_until(lambda: sum(x.endswith(f"round of {n}") for x in lines_of(tmp_path / "said")) >= at_least, f"a round of {n}", PATIENCE_S)

    with start(tmp_path, "loop", *options) as first:
        rounds(1)
        with start(tmp_path, "loop", *options) as second:
            rounds(2)
            second.signal(signal.SIGTERM)
            assert finish(second).code in (0, 143)
        before = len([x for x in lines_of(tmp_path / "said") if x.endswith("round of 1")])
        rounds(1, before + 1)
        (tmp_path / "go").touch()
        result = finish(first)
    assert result.code == 0, result
    assert {x.split()[0] for x in lines_of(tmp_path / "said")} == {"0"}, "a change of members costs no restart"
