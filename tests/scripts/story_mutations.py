# covers: worker/engine worker/model collectives launcher/store
# run: computes
"""Five mistakes that training code makes, and two of a store, put into a copy of the tree one at a time: each must turn a test red, or that test
proves nothing.
run: nosan: it builds the tree itself
run: timeout 600
"""

import os
import shutil
import subprocess

import pytest

import support

TESTS = ["unit_tree", "unit_comm", "unit_equivalence", "unit_golden_train"]
MUTATIONS = {
    "1/N dropped": ("worker/engine/clip.c", "(double)(c->strategy->size * in->micro_steps)", "(double)(0 * c->strategy->size + in->micro_steps)"),
    "1/k dropped": ("worker/engine/clip.c", "(double)(c->strategy->size * in->micro_steps)", "(double)(c->strategy->size + 0 * in->micro_steps)"),
    "sum in another order": ("collectives/tree.c", "    return half;", "    return n - 1;"),
    "one unit's reduction skipped": ("worker/engine/placements/grads_whole.c", "if (!last_micro_step || s->alone) {", "if (!last_micro_step || s->alone || unit == 1) {"),
    "weight decay on biases": ("worker/model/chain.c", ".decay = dims >= 2", ".decay = dims >= 1"),
}
STORE_TESTS = ["unit_store_soak"]
STORE_MUTATIONS = {
    "now and then an add counts twice": (
        "collectives/store_table.c", "    *total = number = (int64_t)((uint64_t)number + (uint64_t)delta);",
        "    static int nth;\n    *total = (int64_t)((uint64_t)number + (uint64_t)delta);\n    number = *total + (++nth % 500 == 0 ? delta : 0);"),
    "half a request of a client that dies counts": (
        "launcher/store/store_server.c", "            bool usual = size == 0",
        "            for (int n = 0; size == 0 && n < 8 && dt_wire_parser_held(&c->parser) > 0 && !c->closing; n++) {\n"
        "                serve(c, \"\", 1);\n            }\n            bool usual = size == 0"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of sources and objects, so that only what a mutation touches is built again."""
    copy = tmp_path_factory.mktemp("tree")
    for name in os.listdir(support.ROOT):
        if name not in (".git", "runs") and not name.startswith("build"):
            source = os.path.join(support.ROOT, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy2)(source, copy / name)
    for name in ("obj", "tests"):
        shutil.copytree(os.path.join(support.BUILD, name), copy / "build" / name)
    shutil.copy2(os.path.join(support.BUILD, "libdtrun.a"), copy / "build")
    return copy


def red_test(tree, tests):
    """Name of the first test that fails, or None."""
    made = subprocess.run(["make", "-s", "-j2", *[f"build/tests/{t}" for t in tests]], cwd=tree, capture_output=True, text=True, timeout=500,
                          env={k: v for k, v in os.environ.items() if k not in ("B", "SAN", "MAKEFLAGS", "MFLAGS")})
    assert made.returncode == 0, made.stderr[-3000:]
    for test in tests:
        if subprocess.run([f"build/tests/{test}"], cwd=tree, capture_output=True, timeout=300).returncode != 0:
            return test
    return None


def test_without_a_mutation_all_is_green(tree):
    assert red_test(tree, TESTS + STORE_TESTS) is None


@pytest.mark.parametrize("name", [*MUTATIONS, *STORE_MUTATIONS])
def test_turns_a_test_red(tree, name):
    path, right, wrong = {**MUTATIONS, **STORE_MUTATIONS}[name]
    source = (tree / path).read_text()
    assert source.count(right) == 1, f"{path} no longer holds {right!r}; say here where the rule is now"
    (tree / path).write_text(source.replace(right, wrong))
    try:
        red = red_test(tree, TESTS if name in MUTATIONS else STORE_TESTS)
    finally:
        (tree / path).write_text(source)
    assert red, f"{name}: every test stayed green"
    print(f"{name}: {red}")
