# covers: launcher
"""dtrun beside torchrun: the same command lines and workers, the same environment, arguments, output, files, reports and failures.

run: timeout 300
Needs the peers environment (scripts/setup.sh --peers); skipped without it. story_dropin_full.py runs the whole table."""

import os

import dropin
import pytest
from support import DTRUN

NAMES = [name for name, (short, _, _) in dropin.CASES.items() if short]
pytestmark = [pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built"),
              pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return dropin.run_both(tmp_path_factory.mktemp("dropin"), NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_like_torchrun(both, name):
    dropin.compare(*both[0][name])


def test_all_spellings_of_options_are_known(both):
    dropin.check_options(both[1]["options"])
