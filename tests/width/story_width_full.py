# covers: launcher worker/model kernels/rows.def cmd/doctor
"""Additions of each kind, built and tried: see tests/width.sh.

run: full
run: nosan: the same sources as without sanitizers
run: timeout 1200
"""

from story_width import width


def test_additions_build_and_work():
    code, text = width()
    assert code == 0, text
