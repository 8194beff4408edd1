"""The words after an assertion are shown whole: of a job's output that is cut in the middle, the line that matters is missing."""
from _pytest._io.saferepr import saferepr
from _pytest.assertion import rewrite


def whole(obj, *_, **__):
    return saferepr(obj, maxsize=16000)


rewrite.saferepr = whole
