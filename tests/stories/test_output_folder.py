"""What may lie in the folder of a run that should not, and who may see another folder there: `train` says what it is, and good checkpoints stay."""

import os

import pytest
import support
import training

pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(support.BIN, "train")), reason="train is not built")
STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder, and a job of STEPS steps that keeps all its checkpoints."""
    folder = tmp_path_factory.mktemp("output")
    return folder, training.make_job(folder, steps=STEPS, checkpointing={"keep_last_n": 0}, model={"n_layer": 1})


def steps_in(out):
    return sorted(x for x in os.listdir(out / "checkpoints") if x.startswith("step-"))


def test_nothing_is_set_aside_before_all_have_loaded(place):
    """Rank 1 has another job, so it cannot continue: what a named beginning would give up is still there."""
    folder, job = place
    out = folder / "loaded"
    assert training.train(job, out).code == 0
    before = steps_in(out)
    text = 'if [ "$RANK" = 1 ]; then set -- "$@" --set training.learning_rate=0.5; fi; exec "$0" "$@"'
    result = support.run(["--nproc_per_node=2", "--max_restarts=0", "/bin/sh", "-c", text, support.program("train"), job, "--output_dir", out, "--set",
                          "checkpointing.resume=step-10"])
    assert result.code != 0 and "training.learning_rate" in result.err, result
    assert steps_in(out) == before and len(before) == STEPS // 10
