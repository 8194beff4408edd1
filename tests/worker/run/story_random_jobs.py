# covers: worker/run worker/engine worker/checkpoints worker/job
"""Jobs that are drawn (tests/lib/random_jobs.py, random_runs.py), each run under two settings that must give the same bits, or be refused in words that name a key:
strategies and their knobs, recomputing, offload, buckets, devices, hosts, saves, kills, full disks, and going on elsewhere.
DTRUN_RANDOM_JOBS=N jobs (default about 20 s; 500 in the full tier, with seeds from DTRUN_SEED, which a failure prints).
run: timeout 900
"""

import json
import os
import random

import pytest
import random_jobs
import random_runs
import support

COUNT = int(os.environ.get("DTRUN_RANDOM_JOBS", "6" if os.environ.get("SAN") else "32"))
SEED = int(os.environ.get("DTRUN_SEED", str(random.randrange(10**6)) if os.environ.get("DTRUN_ALL") else "1")) * 1000
GROUPS = 4
# Those that were wrong once, as small as they became.
with open(os.path.join(support.ROOT, "tests/equivalence/jobs.jsonl")) as lines:
    KNOWN = [json.loads(line) for line in lines if line.strip()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("jobs"))
    random_jobs.make_data(folder)
    support.program("train")
    return folder


def check(trial, place):
    if trial["kind"] == "full" and os.geteuid() != 0:
        return "left out"
    wrong, ended = random_runs.attempt(trial, place)
    if wrong:
        small, now = random_runs.shrink(trial, place)
        pytest.fail(f"seed {trial.get('seed')}: {wrong}\nsmallest: {json.dumps(small)}\n{now}")
    return ended


@pytest.mark.parametrize("trial", KNOWN, ids=lambda t: t["was"][:60])
def test_what_was_wrong_once(place, trial):
    assert check(trial, place).startswith(trial.get("ends", "done"))


@pytest.mark.parametrize("group", range(GROUPS))
def test_drawn_jobs(place, group):
    ended = [check(random_jobs.draw(seed), place) for seed in range(SEED + group, SEED + COUNT, GROUPS)]
    done = sum(x == "done" for x in ended)
    print(f"seeds from {SEED}: {done} of {len(ended)} done")
    assert done >= len(ended) // 2, ended  # or the drawn jobs show little
