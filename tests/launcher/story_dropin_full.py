# covers: launcher
"""The whole table of dropin.py, as story_dropin.py does for a few rows.

run: full
run: timeout 900
"""

import os

import dropin
import pytest
from support import DTRUN

pytestmark = [pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built"),
              pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return dropin.run_both(tmp_path_factory.mktemp("dropin"), list(dropin.CASES))[0]


@pytest.mark.parametrize("name", list(dropin.CASES))
def test_like_torchrun(both, name):
    dropin.compare(*both[name])


@pytest.mark.parametrize("name", [n for n in dropin.CASES if n.startswith(("bad_", "no_", "zero_", "missing_", "unknown_")) and not n.startswith("no_python")])
def test_a_refusal_is_one_line_and_2(both, name):
    ours = both[name][1]
    assert ours.code == 2 and ours.out == "" and ours.err.startswith("dtrun: ") and ours.err.count("\n") == 1, ours.err
