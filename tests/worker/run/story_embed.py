# covers: cmd/train/embed.c cmd/train/options.c worker/run/embed.c worker/run/embed_settings.c worker/model/blocks/hidden.c
"""train --embed: vectors of texts from folders of each family and from checkpoints are those of Transformers' AutoModel, pooled as
sentence-transformers does, whatever is computed beside a text. Models read bytes, so that ids are known. Comparisons need the peers
environment (scripts/setup.sh --peers) and are skipped without it.

run: timeout 300"""

import json
import os
import random
import resource
import struct
import subprocess

import dropin
import pytest

import support

PEER = os.path.join(support.ROOT, "tests/peers/folders.py")
needs_peers = pytest.mark.skipif(not os.access(dropin.PEER_PYTHON, os.X_OK), reason=f"no Transformers at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
SIZES = {"vocab_size": 256, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
FAMILIES = {
    "BertModel": {**SIZES, "max_position_embeddings": 64}, "RobertaModel": {**SIZES, "max_position_embeddings": 67, "pad_token_id": 2},
    "DistilBertModel": {"vocab_size": 256, "dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    "BertForMaskedLM": {**SIZES, "max_position_embeddings": 64}, "RobertaForSequenceClassification": {**SIZES, "max_position_embeddings": 67, "pad_token_id": 2},
    "ModernBertModel": {**SIZES, "max_position_embeddings": 64, "pad_token_id": 0, "local_attention": 6, "num_hidden_layers": 4,
                        "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "GPT2LMHeadModel": {"vocab_size": 256, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
    "LlamaModel": DECODER, "LlamaForCausalLM": {**DECODER, "tie_word_embeddings": False}, "Qwen3ForCausalLM": DECODER,
    "Gemma2ForCausalLM": {**DECODER, "sliding_window": 5}, "Olmo2Model": DECODER,
    "GraniteForCausalLM": {**DECODER, "residual_multiplier": 0.3, "embedding_multiplier": 2.0}, "Phi3ForCausalLM": DECODER}
POOLINGS = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def texts():
    """Printable ASCII without id 0 and 2, of all lengths that the models have room for."""
    draw = random.Random(5)
    return ["".join(chr(draw.randrange(33, 127)) for _ in range(n)) for n in [7, 64, 1, 30, 64, 2, *range(1, 40, 3)]]


def ask(questions):
    done = subprocess.run([dropin.PEER_PYTHON, PEER], input="".join(json.dumps(q) + "\n" for q in questions), capture_output=True, text=True,
                          timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def embed(*args, lines=None, code=0):
    done = subprocess.run([support.program("train"), "--embed", *map(str, args)], input=lines, capture_output=True, timeout=120)
    out, said = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, said
    return said if code else [json.loads(line)["embedding"] for line in out.splitlines()]


def largest(a, b):
    assert len(a) == len(b) and len(a[0]) == len(b[0])
    return max(abs(x - y) for u, v in zip(a, b) for x, y in zip(u, v))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    top = tmp_path_factory.mktemp("folders")
    rows = [list(t.encode()) for t in texts()]
    makes = [{"make": str(top / name), "class": name, "config": config} for name, config in FAMILIES.items()]
    asks = [{"embed": str(top / name), "rows": rows, "pooling": "mean"} for name in FAMILIES]
    asks += [{"embed": str(top / "BertModel"), "rows": rows, "pooling": p, "normalize": p != "max"} for p in POOLINGS]
    answers = [a.get("vectors") for a in ask(makes + asks)][len(makes):]
    return top, dict(zip([*FAMILIES, *POOLINGS], answers))


@needs_peers
@pytest.mark.parametrize("name", FAMILIES)
def test_each_family(folders, tmp_path, name):
    top, expected = folders
    (tmp_path / "texts").write_text("".join(t + "\n" for t in texts()))
    assert largest(embed(top / name, "--texts", tmp_path / "texts"), expected[name]) < 1e-5
    one = embed(top / name, "--texts", tmp_path / "texts", "--batch_size", 1)
    assert largest(one, expected[name]) < 1e-5


@needs_peers
def test_poolings_and_modules(folders, tmp_path):
    """Options, and the same by the files of sentence-transformers, old and new."""
    top, expected = folders
    base, lines = top / "BertModel", "".join(t + "\n" for t in texts()).encode()
    for p in POOLINGS:
        got = embed(base, "--pooling", p, *([] if p == "max" else ["--normalize"]), lines=lines)
        assert largest(got, expected[p]) < 1e-5, p
    both = embed(base, "--pooling", "max,cls", lines=lines)
    assert [len(v) for v in both] == [48] * len(texts()) and largest([v[24:] for v in both], expected["max"]) < 1e-5
    folder = tmp_path / "model"
    folder.mkdir()
    for name in os.listdir(base):
        os.symlink(base / name, folder / name)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
               {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (folder / "1_Pooling").mkdir()
    for config, p in (({"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False}, "weightedmean"), ({"pooling_mode": "lasttoken"}, "lasttoken")):
        (folder / "1_Pooling/config.json").write_text(json.dumps(config))
        (folder / "modules.json").write_text(json.dumps(modules))
        assert largest(embed(folder, lines=b"".join(b"  " + line + b"\n" for line in lines.splitlines())), expected[p]) < 1e-5
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"q": "A"}, "default_prompt_name": "q"}))
    assert largest(embed(folder, lines=lines.split(b"\n")[0]), embed(base, "--pooling", "lasttoken", "--normalize", lines=b"A" + lines.split(b"\n")[0])) < 1e-6
    modules[1]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "module Dense is not computed" in embed(folder, lines=lines, code=2)
    embed(folder, "--pooling", "mean", lines=lines)
    (folder / "modules.json").unlink()
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 5}))
    assert largest(embed(folder, lines=b"ABCDE"), embed(folder, lines=b"ABCDEFG")) < 1e-6


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a decoder and one of an encoder over bytes."""
    top = tmp_path_factory.mktemp("trained")
    ids = [[(7 * r + 3 * i) % 90 + 33 for i in range(12)] for r in range(8)]
    head, raw, at = {}, b"", 0
    for name, values in (("input_ids", sum(ids, [])), ("labels", sum(ids, []))):
        data = struct.pack(f"<{len(values)}i", *values)
        head[name] = {"dtype": "I32", "shape": [8, 12], "data_offsets": [at, at := at + len(data)]}
        raw += data
    text = json.dumps(head).encode()
    (top / "data.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)
    for name, model in (("llama", DECODER), ("bert", {**SIZES, "max_position_embeddings": 64, "task": "masked_lm"}),
                        ("mha-gpt", {**SIZES, "max_position_embeddings": 64, "causal": False})):
        model = {k: v for k, v in model.items() if k not in ("bos_token_id", "eos_token_id") and (name != "mha-gpt" or k != "intermediate_size")}
        job = {"model": {"name": name, **model}, "data": {"train": str(top / "data.safetensors"), "sequence_length": 12},
               "training": {"batch_size_per_gpu": 2, "max_steps": 2, "learning_rate": 1e-2, "threads": 1}}
        (top / f"{name}.json").write_text(json.dumps(job))
        done = subprocess.run([support.program("train"), top / f"{name}.json", "--output_dir", top / name], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    return top


@pytest.mark.parametrize("name", ["llama", "bert", "mha-gpt"])
def test_a_run(trained, name):
    """A run, its checkpoint and its exported folder give the same vectors; a text's vector does not depend on the others."""
    lines = "".join(t + "\n" for t in texts()).encode()
    of_run = embed(trained / name, lines=lines)
    assert of_run == embed(trained / name / "model", lines=lines)
    alone = [embed(trained / name, lines=line)[0] for line in lines.splitlines()[:4]]
    assert largest(alone, of_run[:4]) < 1e-6


def test_bad_input(trained, tmp_path):
    (tmp_path / "odd.jsonl").write_text('{"text": "a"}\n{"words": "b"}\n')
    assert 'odd.jsonl:2: no text under "text"' in embed(trained / "bert", "--texts", tmp_path / "odd.jsonl", code=2)
    assert "standard input:2" in embed(trained / "bert", lines=b"a\n\nb\n", code=2)
    assert len(embed(trained / "bert", lines=b'{"text": "a"}\n{"text": "b", "x": [1]}\n')) == 2
    assert embed(trained / "bert", lines=b"{brace\r\n") == embed(trained / "bert", lines=b"{brace")
    assert embed(trained / "bert", lines=b"") == []
    assert "--pooling: sum: must be" in embed(trained / "bert", "--pooling", "sum", lines=b"a", code=2)
    assert "not beside --plan" in embed(trained / "bert", "--plan", code=2)
    assert "a job file" in embed(trained / "bert", trained / "bert.json", code=2)
    assert "no such folder" in embed(tmp_path / "none", code=2)
    assert "No such file" in embed(trained / "bert", "--texts", tmp_path / "none", code=2)
    out = tmp_path / "v.npy"
    assert embed(trained / "bert", "-o", out, lines=b"ab\n\n", code=2) and not os.listdir(tmp_path) == [] and not out.exists()
    assert sorted(os.listdir(tmp_path)) == ["odd.jsonl"]
    # a disk that is full when the last vectors are written; a matrix is there whole or not at all
    done = subprocess.run([support.program("train"), "--embed", str(trained / "bert"), "-o", str(out)], input=b"word\n" * 500, capture_output=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)))
    assert done.returncode == 1 and done.stderr.decode() == f"train: {out}: cannot be written\n", done
    assert sorted(os.listdir(tmp_path)) == ["odd.jsonl"]
    done = subprocess.run([support.program("train"), "--texts", "x", "job.json"], capture_output=True, text=True)
    assert done.returncode == 2 and "--texts: only with --embed" in done.stderr
