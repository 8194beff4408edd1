# covers: launcher/store
"""An unmodified PyTorch client against our store server.

run: timeout 300
Needs the peers environment (scripts/setup.sh --peers); skipped without it."""

import os
import subprocess

import pytest
import support

PEERS = os.environ.get("DTRUN_PEERS") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtrun", "peers")
PYTHON = os.path.join(PEERS, "bin", "python")
SERVE = os.path.join(support.TOOLS, "serve_store")


def has_torch():
    if not os.path.exists(PYTHON):
        return False
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([PYTHON, "-c", look], check=False).returncode == 0


@pytest.mark.skipif(not os.path.exists(SERVE), reason="tools are not built: make tools")
@pytest.mark.skipif(not has_torch(), reason=f"no PyTorch at {PYTHON}: scripts/setup.sh --peers")
def test_every_call_and_two_rounds_of_gloo():
    driver = os.path.join(support.ROOT, "tests", "lib", "torch_store.py")
    done = subprocess.run([PYTHON, driver, SERVE], env=support.clean_env(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    assert "gloo ok" in done.stdout and "calls ok" in done.stdout and "all ok" in done.stdout, done.stdout
