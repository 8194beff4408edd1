# covers: worker/engine worker/model collectives launcher/store
# run: computes
"""Five mistakes that training code makes, and two of a store, put into a copy of the tree: each must turn a test red, or that test proves nothing.
run: nosan: it builds the tree itself
run: timeout 600
"""

import functools
import os
import shutil
import subprocess

import pytest

import support

TESTS = ["unit_tree", "unit_golden_train", "unit_comm", "unit_equivalence"]
STORE_TESTS = ["unit_store_soak"]
MUTANTS = {"1/N dropped": TESTS, "1/k dropped": TESTS, "sum in another order": TESTS, "one unit's reduction skipped": TESTS, "weight decay on biases": TESTS,
           "now and then an add counts twice": STORE_TESTS, "half a request of a client that dies counts": STORE_TESTS}
# (file, what stands there, what stands there instead): all in one build, in which the variable MUTANT names the one that is made.
EDITS = [
    ("worker/engine/step_sums.c", "(double)(c->strategy->size * in->micro_steps)",
     '(double)((MUTANT("1/N dropped") ? 1 : c->strategy->size) * (MUTANT("1/k dropped") ? 1 : in->micro_steps))'),
    ("collectives/tree.c", "    return half;", '    return MUTANT("sum in another order") ? n - 1 : half;'),
    ("worker/engine/placements/grads_whole.c", "if (!last_micro_step || s->alone) {",
     'if (!last_micro_step || s->alone || (MUTANT("one unit\'s reduction skipped") && unit == 1)) {'),
    ("worker/model/chain.c", ".decay = dims >= 2", '.decay = dims >= (MUTANT("weight decay on biases") ? 1 : 2)'),
    ("collectives/store_table.c", "    *total = number = (int64_t)((uint64_t)number + (uint64_t)delta);",
     "    static int nth;\n    *total = (int64_t)((uint64_t)number + (uint64_t)delta);\n"
     '    number = *total + (MUTANT("now and then an add counts twice") && ++nth % 500 == 0 ? delta : 0);'),
    ("launcher/store/store_server.c", "            bool usual = size == 0",
     '            bool half = size == 0 && MUTANT("half a request of a client that dies counts");\n'
     "            for (int n = 0; half && n < 8 && dt_wire_parser_held(&c->parser) > 0 && !c->closing; n++) {\n"
     '                serve(c, "", 1);\n            }\n            bool usual = size == 0'),
]
CHOICE = """#include <stdlib.h>
#include <string.h>
#define MUTANT(name) (getenv("MUTANT") != NULL && strcmp(getenv("MUTANT"), name) == 0)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of sources and objects with the edits, in which only what they touch is built again."""
    copy = tmp_path_factory.mktemp("tree")
    for name in os.listdir(support.ROOT):
        if name not in (".git", "runs") and not name.startswith("build"):
            source = os.path.join(support.ROOT, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy2)(source, copy / name)
    for name in ("obj", "tests"):
        shutil.copytree(os.path.join(support.BUILD, name), copy / "build" / name)
    shutil.copy2(os.path.join(support.BUILD, "libdtrun.a"), copy / "build")
    for path, right, wrong in EDITS:
        source = (copy / path).read_text()
        assert source.count(right) == 1, f"{path} no longer holds {right!r}; say here where the rule is now"
        (copy / path).write_text(CHOICE + source.replace(right, wrong))
    made = subprocess.run(["make", "-s", "-j2", *[f"build/tests/{t}" for t in TESTS + STORE_TESTS]], cwd=copy, capture_output=True, text=True, timeout=500,
                          env={k: v for k, v in os.environ.items() if k not in ("B", "SAN", "MAKEFLAGS", "MFLAGS")})
    assert made.returncode == 0, made.stderr[-3000:]
    return copy


@functools.cache
def passes(tree, test, mutant=""):
    return subprocess.run([f"build/tests/{test}"], cwd=tree, capture_output=True, timeout=1500, env={**os.environ, "MUTANT": mutant}).returncode == 0


@pytest.mark.parametrize("mutant", MUTANTS)
def test_turns_a_test_red(tree, mutant):
    """And that test is green without the mutation."""
    red = next((test for test in MUTANTS[mutant] if not passes(tree, test, mutant)), None)
    assert red, f"{mutant}: every test stayed green"
    assert passes(tree, red), f"{red} fails without a mutation"
    print(f"{mutant}: {red}")
