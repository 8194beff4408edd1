# covers: worker/data/data.c worker/data/tokens.c worker/engine/trainer_open.c worker/engine/trainer_batch.c worker/model/batch.c
"""Documents in a sample (data.document_mask): a run over packed rows is the run over their documents."""

import json
import struct

import pytest
import training

END, PART = 3, 6
MODELS = {"gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 24, "vocab_size": 64},
          "llama": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "max_position_embeddings": 24, "vocab_size": 64}}


def document(i):
    return [4 + (i * 31 + k * k * 7) % 50 for k in range(PART - 1)] + [END]


def batches(path, rows):
    text = json.dumps({"input_ids": {"dtype": "I32", "shape": [len(rows), len(rows[0])],
                                     "data_offsets": [0, 4 * sum(map(len, rows))]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows))
    return str(path)


def shard(path, ids, **facts):
    path.write_bytes(struct.pack("<3i", 20240520, 1, len(ids)) + bytes(1012) + struct.pack(f"<{len(ids)}H", *ids))
    if facts:
        (path.parent / (path.name + ".json")).write_text(json.dumps(facts))
    return str(path)


def make_job(folder, data, length, model="gpt2", mask=True, **training_keys):
    path = folder / "job.json"
    path.write_text(json.dumps({
        "model": {"name": model, **MODELS[model]},
        "data": {"train": data, "sequence_length": length, "shuffle": False, "document_mask": mask},
        "training": {"threads": 1, "batch_size_per_gpu": 1, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_steps": 4,
                     "loss_normalization": "global_tokens", **training_keys},
        "checkpointing": {"save_every_n_steps": 0},
        "logging": {"log_every_n_steps": 1},
    }))
    return str(path)


def rows_of(out):
    return [r for r in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in r]


@pytest.mark.parametrize("model", MODELS)
def test_packed_rows_are_their_documents(tmp_path, model):
    """Steps of 2 rows of 4 documents are steps of 8 rows of one: the same targets, losses and norms."""
    documents = [document(i) for i in range(32)]
    packed = batches(tmp_path / "packed.safetensors", [sum(documents[i:i + 4], []) for i in range(0, 32, 4)])
    alone = batches(tmp_path / "alone.safetensors", documents)
    runs = []
    for name, data, length, rows, mask in (("alone", alone, PART, 8, False), ("packed", packed, 4 * PART, 2, True),
                                           ("mixed", packed, 4 * PART, 2, False)):
        for ranks in (1, 2) if mask else (1,):
            out = tmp_path / f"{name}-{ranks}"
            job = make_job(tmp_path, data, length, model, mask, batch_size_per_gpu=rows // ranks)
            sets = [f"data.document_end={END}", "data.val=" + data] if mask else []
            result = training.train(job, str(out), ranks=ranks, sets=sets)
            assert result.code == 0, result
            runs.append(rows_of(out))
    alone, one, two, mixed = runs
    for packed in (one, two):
        assert [r["targets"] for r in packed] == [r["targets"] for r in alone] == [8 * (PART - 1)] * 4
        assert [r["loss"] for r in packed] == pytest.approx([r["loss"] for r in alone], rel=2e-5)
        assert [r["grad_norm"] for r in packed] == pytest.approx([r["grad_norm"] for r in alone], rel=2e-4)
    assert abs(mixed[0]["loss"] - one[0]["loss"]) > 1e-3  # the test can tell


def test_shards_say_what_ends_a_document(tmp_path):
    ids = sum((document(i) for i in range(40)), [])
    said = shard(tmp_path / "said.bin", ids, document_end=END)
    silent = shard(tmp_path / "silent.bin", ids)
    runs = []
    for data, sets in ((said, []), (silent, [f"data.document_end={END}"])):
        out = tmp_path / f"out-{len(runs)}"
        result = training.train(make_job(tmp_path, data, 12), str(out), ranks=1, sets=sets)
        assert result.code == 0, result
        runs.append([r["loss"] for r in rows_of(out)])
    assert runs[0] == runs[1]
    refused = training.train(make_job(tmp_path, silent, 12), str(tmp_path / "refused"), ranks=1)
    assert refused.code != 0
    assert f"data.document_mask: {silent} does not say which id ends a document; set data.document_end to it" in refused.err, refused
    other = shard(tmp_path / "other.bin", ids, document_end=5)
    refused = training.train(make_job(tmp_path, said, 12), str(tmp_path / "refused"), ranks=1, sets=[f"data.val={other}"])
    assert f"documents of {said} end with id 3, those of {other} with 5; make both alike" in refused.err, refused


def test_models_and_keys_that_do_not_fit(tmp_path):
    refused = training.train(make_job(tmp_path, shard(tmp_path / "a.bin", document(0) * 9), 12), str(tmp_path / "out"), ranks=1,
                             sets=["data.document_end=64"])
    assert "data.document_mask: documents end with id 64, but the model has ids up to 63" in refused.err, refused
    data = batches(tmp_path / "rows.safetensors", [document(0)])
    path = tmp_path / "bert.json"
    path.write_text(json.dumps({"model": {"name": "bert"}, "data": {"train": data, "sequence_length": PART, "document_mask": True}}))
    refused = training.train(str(path), str(tmp_path / "out"), ranks=1)
    assert "data.document_mask: bert knows no documents within a sample; remove it" in refused.err, refused
    refused = training.train(make_job(tmp_path, data, PART, mask=False), str(tmp_path / "out"), ranks=1, sets=["data.document_end=3"])
    assert "data.document_end: nothing reads it while data.document_mask is false; set that to true" in refused.err, refused


def test_samples_without_a_target(tmp_path):
    """Ends alone: a rank without targets goes along, a step without targets changes nothing."""
    ends = [END] * PART
    rows = [document(0), ends, ends, ends, document(1), document(2), ends, document(3)]
    data = batches(tmp_path / "ends.safetensors", rows)
    out = tmp_path / "out"
    result = training.train(make_job(tmp_path, data, PART), str(out), ranks=2, sets=[f"data.document_end={END}"])
    assert result.code == 0 and result.err.count("no row of its batch has a target: the weights stay as they are") == 1, result
    assert [r["targets"] for r in rows_of(out)] == [PART - 1, 0, 2 * (PART - 1), PART - 1]
    assert rows_of(out)[1]["loss"] is None
