# covers: worker/model/models/decoders.c worker/model/blocks/decoder_layer.c worker/model/presets.c
"""Llama and the families near it as whole jobs: fresh models train to the same bits under each strategy and whatever is computed
again, go on from their checkpoints, and leave folders that load again; presets have their published sizes."""

import json
import os
import subprocess

import pytest

import support
from models import metrics, text_shards, train, weights_hash

SIZES = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 3}
FAMILIES = {
    "llama": {"attention_bias": True, "rope_type": "llama3", "rope_factor": 8, "rope_original_max_position_embeddings": 16},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {"head_dim": 12},
    "mistral": {"sliding_window": 7},
    "gemma2": {"head_dim": 8, "sliding_window": 6},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6, "sliding_window_pattern": 2},
    "smollm3": {"no_rope_layer_interval": 2},
    "phi3": {"partial_rotary_factor": 0.5},
    "olmo2": {},
    "granite": {"residual_multiplier": 0.5, "logits_scaling": 2, "embedding_multiplier": 3, "attention_multiplier": 0.3},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return text_shards(tmp_path_factory.mktemp("data"))


def make_job(folder, shards, name, **sections):
    job = {
        "model": {"name": name, **SIZES, **FAMILIES[name]},
        "data": {"train": shards, "sequence_length": 32},
        "training": {"batch_size_per_gpu": 2, "max_steps": 3, "learning_rate": 1e-2, "max_grad_norm": 1.0, "threads": 1},
        "checkpointing": {"save_every_n_steps": 2},
        "logging": {"log_every_n_steps": 1},
    }
    for section, values in sections.items():
        job[section] = {**job.get(section, {}), **values}
    path = os.path.join(str(folder), f"{name}.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_same_bits_under_each_strategy(tmp_path, shards, name):
    job = make_job(tmp_path, shards, name)
    train(job, tmp_path / "ddp", 2, "training.strategy=ddp")
    train(job, tmp_path / "sliced", 2, "training.strategy=full_shard", "activation_checkpointing.enabled=true")
    assert weights_hash(tmp_path / "ddp") == weights_hash(tmp_path / "sliced")
    assert metrics(tmp_path / "ddp", "loss") == metrics(tmp_path / "sliced", "loss") and metrics(tmp_path / "ddp", "loss")[2] < metrics(tmp_path / "ddp", "loss")[0]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "olmo2"])
def test_half_precision(tmp_path, shards, name):
    """The same bits under each strategy; losses near those of fp32."""
    job = make_job(tmp_path, shards, name)
    train(job, tmp_path / "wide", 2, "training.strategy=ddp")
    for strategy in ["ddp", "zero3"]:
        train(job, tmp_path / strategy, 2, f"training.strategy={strategy}", "training.precision=bf16-mixed")
    assert weights_hash(tmp_path / "ddp") == weights_hash(tmp_path / "zero3")
    assert metrics(tmp_path / "ddp", "loss") == pytest.approx(metrics(tmp_path / "wide", "loss"), rel=1e-2)


@pytest.mark.parametrize("name", ["smollm3", "gemma2"])
def test_the_folder_loads_again(tmp_path, shards, name):
    """What a run leaves begins another one with the same loss; a resumed run ends as one that was not cut."""
    job = make_job(tmp_path, shards, name)
    train(job, tmp_path / "whole", 1)
    train(job, tmp_path / "cut", 2, "training.max_steps=2", "training.batch_size_per_gpu=1")
    train(job, tmp_path / "cut", 1)
    assert metrics(tmp_path / "cut", "loss")[:2] == pytest.approx(metrics(tmp_path / "whole", "loss")[:2], rel=1e-5)
    with open(tmp_path / "again.json", "w") as f:
        json.dump({"model": {"load": str(tmp_path / "whole/model")}, "data": {"train": shards, "sequence_length": 32},
                   "training": {"batch_size_per_gpu": 2, "max_steps": 1, "learning_rate": 0.0}}, f)
    train(str(tmp_path / "again.json"), tmp_path / "again", 1)
    assert metrics(tmp_path / "again", "loss")[0] < metrics(tmp_path / "whole", "loss")[0]
    with open(tmp_path / "whole/model/config.json") as f:
        assert json.load(f)["model_type"] == name


def test_presets():
    listed = subprocess.run([support.program("train"), "--list-models"], capture_output=True, text=True, check=True).stdout
    sizes = {line.split()[0]: float(line.split()[1]) for line in listed.splitlines() if line.startswith(" ")}
    published = {"gpt2-124m": 124439808, "llama-2-7b": 6738415616, "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.2-1b": 1235814400,
                 "tinyllama-1.1b": 1100048384, "qwen2.5-0.5b": 494032768, "qwen2.5-7b": 7615616512, "qwen3-0.6b": 596049920, "qwen3-8b": 8190735360,
                 "mistral-7b": 7241732096, "mistral-nemo-12b": 12247782400, "gemma-2-2b": 2614341888, "gemma-2-9b": 9241705984,
                 "gemma-2-27b": 27227128320, "gemma-3-270m": 268098176, "gemma-3-1b": 999885952, "gemma-3-4b": 3880263168, "gemma-3-12b": 11766034176,
                 "gemma-3-27b": 27009346304, "qwen2.5-1.5b": 1543714304, "qwen2.5-3b": 3085938688, "qwen3-1.7b": 1720574976, "qwen3-4b": 4022468096, "smollm3-3b": 3075098624, "phi-3-mini": 3821079552, "phi-4": 14659507200,
                 "olmo-2-1b": 1484916736, "olmo-2-7b": 7298617344, "granite-3.1-2b": 2533531648, "granite-3.1-8b": 8170848256}
    for name, count in published.items():
        assert sizes[name] == round(count / 1e6, 1), name


def test_a_preset_is_a_family_with_other_defaults(tmp_path):
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": {"name": "Llama-3.2-1B", "num_hidden_layers": 2}, "data": {"train": "x", "sequence_length": 8}}))
    printed = subprocess.run([support.program("train"), "--print-config", str(job)], capture_output=True, text=True, check=True).stdout
    for text in ['"llama"', "128256", "llama3", "2048"]:
        assert text in printed, text


def test_numbers_have_the_types_that_transformers_declares(tmp_path, shards):
    """It refuses 256.0 for a whole number, and 30 for a float."""
    train(make_job(tmp_path, shards, "gemma2"), tmp_path / "run", 1, "training.max_steps=1")
    text = (tmp_path / "run/model/config.json").read_text()
    for line in ['"query_pre_attn_scalar": 256,', '"attn_logit_softcapping": 50.0,', '"final_logit_softcapping": 30.0,', '"sliding_window": 6,']:
        assert line in text, (line, text)
