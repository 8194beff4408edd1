# covers: worker/model/models worker/model/blocks worker/data/data.c worker/run/trainer_origin.c
"""Where each family drops: a rate so near 1 that nothing is left, for one key at a time, gives the loss that Transformers 5.24 has
in training with the rate 1. Who drops what is thus compared without comparing random numbers."""

import json
import os
import subprocess

import pytest

import support

GOLDEN = os.path.join(support.ROOT, "tests/golden/models")
ALL = 0.9999999
# of the first samples of batches.safetensors, in eager attention
LOSSES = {
    "gpt2": {"attn_pdrop": 7.897615, "embd_pdrop": 7.597539, "resid_pdrop": 13.215542},
    "llama": {"attention_dropout": 5.165583},
    "phi3": {"attention_dropout": 4.226263, "resid_pdrop": 4.766581},
    "gemma2": {"attention_dropout": 4.878484},
    "olmo2": {"attention_dropout": 4.750421},
    "bert": {"hidden_dropout_prob": 1.197802, "attention_probs_dropout_prob": 1.058898, "classifier_dropout": 1.225346},
    "roberta": {"hidden_dropout_prob": 0.953481, "attention_probs_dropout_prob": 1.242796, "classifier_dropout": 1.092391},
    "distilbert": {"dropout": 1.638288, "attention_dropout": 0.914693, "seq_classif_dropout": 0.940705},
    "modernbert": {"embedding_dropout": 1.068859, "attention_dropout": 0.426891, "mlp_dropout": 0.384157, "classifier_dropout": 1.068859},
}


@pytest.mark.parametrize("name", LOSSES)
def test_sites(tmp_path, name):
    data = f"{GOLDEN}/{name}/batches.safetensors"
    for key, loss in LOSSES[name].items():
        job = {
            "model": {"load": f"{GOLDEN}/{name}/hf", **dict.fromkeys(LOSSES[name], 0), key: ALL},
            "data": {"train": data, "shuffle": False, "sequence_length": {"llama": 24, "bert": 20}.get(name, 16)},
            "training": {"batch_size_per_gpu": 3 if name == "bert" else 2, "max_steps": 1, "threads": 1},
            "logging": {"log_every_n_steps": 1},
        }
        path, out = tmp_path / f"{key}.json", tmp_path / key
        path.write_text(json.dumps(job))
        subprocess.run([support.program("train"), path, "--output_dir", out], check=True, capture_output=True, timeout=120)
        step = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
        assert step["loss"] == pytest.approx(loss, rel=1e-5), (key, step)
