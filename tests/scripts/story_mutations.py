# covers: worker/engine worker/model collectives launcher/store
# run: computes
"""Mistakes that training code makes, and two of a store, put into a copy of the tree: each must turn a test red, or that test proves nothing.
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
TABLE = ["unit_equivalence"]
MUTANTS = {"1/N dropped": TESTS, "1/k dropped": TESTS, "sum in another order": TESTS, "one unit's reduction skipped": TESTS, "weight decay on biases": TESTS,
           "now and then an add counts twice": STORE_TESTS, "half a request of a client that dies counts": STORE_TESTS}
# With DTRUN_ALL=1. The number of ranks on which the equivalence table sees it, if not on three.
MORE_MUTANTS = {"clip skipped": TABLE, "loss scale not undone": TABLE, "first values of any seed": ["unit_chain"], "order of any seed": ["unit_sampler"],
                "each epoch in one order": ["unit_sampler"], "masks by place in the batch": TABLE, "micro-steps overwrite": TABLE,
                "replicas not summed": TABLE, "replicas count twice in the norm": TABLE, "weights that stay are old": TABLE,
                "random bits by place in the unit": TABLE, "rate of the first step": TABLE, "micro-steps overwrite slices": TABLE,
                "no set_epoch": ["unit_sampler"], "values are not cut": TABLE, "targets of one rank": TABLE, "one rate for all groups": ["unit_optimizer"],
                "statistics of one rank": TABLE, "errors are not added": ["unit_hooks"], "ranks never meet": TABLE, "an overflow is applied": TABLE,
                "what is offloaded stays old": TABLE, "another neighbour's slice": TABLE, "samples begin anew": ["unit_resume"],
                "steps are forgotten": ["unit_resume"]}
RANKS = {"values are not cut": "2", "targets of one rank": "1", "statistics of one rank": "2", "ranks never meet": "2", "what is offloaded stays old": "1",
         "another neighbour's slice": "4", "an overflow is applied": "2",
         "masks by place in the batch": "1", "replicas not summed": "4", "replicas count twice in the norm": "4", "clip skipped": "2", "rate of the first step": "2"}
if os.environ.get("DTRUN_ALL"):
    MUTANTS.update(MORE_MUTANTS)
# (file, what stands there, what stands there instead): all in one build, in which the variable MUTANT names the one that is made.
EDITS = [
    ("worker/engine/step_sums.c", "c->strategy->size * in->micro_steps)",
     '(MUTANT("1/N dropped") ? 1 : c->strategy->size) * (MUTANT("1/k dropped") ? 1 : in->micro_steps))'),
    ("collectives/tree.c", "    return half;", '    return MUTANT("sum in another order") ? n - 1 : half;'),
    ("worker/engine/placements/grads_whole.c", "if (!last_micro_step || s->alone) {",
     'if (!last_micro_step || s->alone || (MUTANT("one unit\'s reduction skipped") && unit == 1)) {'),
    ("worker/engine/step_sums.c", ".max_norm = input->max_norm", '.max_norm = MUTANT("clip skipped") ? 0 : input->max_norm'),
    ("worker/engine/step_sums.c", "in->loss_scale > 0 ? mean", 'in->loss_scale > 0 && !MUTANT("loss scale not undone") ? mean'),
    ("worker/model/init.c", "    uint64_t hash = XXH64(t->name", '    seed = MUTANT("first values of any seed") ? 1 : seed;\n    uint64_t hash = XXH64(t->name'),
    ("worker/data/sampler.c", "dt_mix64(dt_mix64(s->seed) ^ (uint64_t)epoch)",
     'dt_mix64(dt_mix64(MUTANT("order of any seed") ? 1 : s->seed) ^ (MUTANT("each epoch in one order") ? 0 : (uint64_t)epoch))'),
    ("worker/data/data.c", "batch_number(b, row, epoch * order->sample_count + position)",
     'batch_number(b, row, MUTANT("masks by place in the batch") ? row : epoch * order->sample_count + position)'),
    ("worker/engine/placements/grads_whole.c", "*accumulate = micro_step > 0;", '*accumulate = micro_step > 0 && !MUTANT("micro-steps overwrite");'),
    ("worker/engine/placements/grads_sliced.c", "if (s->replicas > 1) {", 'if (s->replicas > 1 && !MUTANT("replicas not summed")) {'),
    ("worker/engine/placements/grads_sliced.c", "    if (!first) {", '    if (!first && !MUTANT("micro-steps overwrite slices")) {'),
    ("worker/engine/strategy.c", "return s->replica_rank == 0;", 'return s->replica_rank == 0 || MUTANT("replicas count twice in the norm");'),
    ("worker/engine/placements/weights_sliced.c", "unit >= 0 && (strategy_trains(s, unit) ||",
     'unit >= 0 && ((strategy_trains(s, unit) && !MUTANT("weights that stay are old")) ||'),
    ("worker/engine/optimizer.c", ".unit = first->declared.unit,", '.unit = MUTANT("random bits by place in the unit") ? r->unit : first->declared.unit,'),
    ("worker/engine/trainer_step.c", "trainer_rate(t, t->stepper.begun_samples)", 'trainer_rate(t, MUTANT("rate of the first step") ? 0 : t->stepper.begun_samples)'),
    ("worker/data/sampler.c", "s->seed + (uint64_t)epoch)", 's->seed + (MUTANT("no set_epoch") ? 0 : (uint64_t)epoch))'),
    ("worker/engine/optimizer.c", "args.clip_value = o->clip_value", 'args.clip_value = MUTANT("values are not cut") ? 0 : o->clip_value'),
    ("worker/engine/step_sums.c", "+= in->valid_count[j]", '+= MUTANT("targets of one rank") && s->world->rank > 0 ? 0 : in->valid_count[j]'),
    ("worker/engine/optimizer.c", ".lr = learning_rate * o->groups[group].lr_scale",
     '.lr = learning_rate * (MUTANT("one rate for all groups") ? 1 : o->groups[group].lr_scale)'),
    ("worker/engine/trainer_open.c", "sync_batch_norm ? t->size : 1", 'sync_batch_norm && !MUTANT("statistics of one rank") ? t->size : 1'),
    ("worker/engine/hooks/power_sgd.c", "    if (at->error != NULL) {\n        w->device",
     '    if (at->error != NULL && MUTANT("errors are not added")) {\n        clear(s, at->error, count);\n    }\n    if (at->error != NULL) {\n        w->device'),
    ("worker/engine/hooks/local_sgd.c", "return h->apart &&", 'return h->apart && !MUTANT("ranks never meet") &&'),
    ("worker/engine/trainer_step.c", "t->strategy.precision.scaler != NULL ? t->step_sums.overflow",
     't->strategy.precision.scaler != NULL && !MUTANT("an overflow is applied") ? t->step_sums.overflow'),
    ("worker/engine/homes/windows.c", "    if (v->changed == v->changed_end) {",
     '    v->changed_end = MUTANT("what is offloaded stays old") ? v->changed : v->changed_end;\n    if (v->changed == v->changed_end) {'),
    ("worker/engine/placements/weights_sliced.c", "(size_t)(s->shard_rank % s->reshard) * size_bytes",
     '(MUTANT("another neighbour\'s slice") ? 0 : (size_t)(s->shard_rank % s->reshard)) * size_bytes'),
    ("worker/run/trainer_continue.c", "t->run.position = state->position", 't->run.position = MUTANT("samples begin anew") ? 0 : state->position'),
    ("worker/run/trainer_weights.c", "t->optimizer.steps = state->optimizer_steps", 't->optimizer.steps = MUTANT("steps are forgotten") ? 0 : state->optimizer_steps'),
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
        (copy / path).write_text(("" if source.startswith(CHOICE) else CHOICE) + source.replace(right, wrong))
    made = subprocess.run(["make", "-s", "-j2", *[f"build/tests/{t}" for t in sorted(set(sum(MUTANTS.values(), [])))]], cwd=copy, capture_output=True, text=True, timeout=500,
                          env={k: v for k, v in os.environ.items() if k not in ("B", "SAN", "MAKEFLAGS", "MFLAGS")})
    assert made.returncode == 0, made.stderr[-3000:]
    return copy


@functools.cache
def passes(tree, test, ranks, mutant=""):
    env = {**os.environ, "MUTANT": mutant, "DTRUN_RANKS": ranks}
    env.pop("DTRUN_ALL", None)
    return subprocess.run([f"build/tests/{test}"], cwd=tree, capture_output=True, timeout=1500, env=env).returncode == 0


@pytest.mark.parametrize("mutant", MUTANTS)
def test_turns_a_test_red(tree, mutant):
    """And that test is green without the mutation."""
    ranks = RANKS.get(mutant, "3")
    red = next((test for test in MUTANTS[mutant] if not passes(tree, test, ranks, mutant)), None)
    assert red, f"{mutant}: every test stayed green"
    assert passes(tree, red, ranks), f"{red} fails without a mutation"
    print(f"{mutant}: {red}")
