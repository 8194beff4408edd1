# covers: worker cmd kernels/cpu collectives
"""All records of tests/records, as story_records.py checks a few.

run: full
run: nosan: the same programs as without sanitizers, many times slower
run: timeout 900
"""

import pytest
import story_records


@pytest.mark.parametrize("part", story_records.PARTS)
def test_the_programs_do_all_that_was_recorded(part):
    code, text = story_records.check(part)
    assert code == 0 and f"ok   {part}" in text, text
    if f"skip {part}" in text:
        pytest.skip(text.splitlines()[0])
