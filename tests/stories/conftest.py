"""The words after an assertion are shown whole: of a job's output that is cut in the middle, the line that matters is missing."""
import functools

from _pytest.assertion import rewrite

rewrite.saferepr = functools.partial(rewrite.saferepr, maxsize=16000)
