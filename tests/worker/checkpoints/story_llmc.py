# covers: worker/checkpoints/llmc.c cmd/dtckpt.c
"""dtckpt import: a model of llm.c, written here as llm.c writes it, becomes a folder with the weights of the Hugging Face folder that
it was made from, bit for bit, and trains with the same loss; files that are no such model are refused.

run: timeout 300"""

import array
import json
import os
import struct
import subprocess

import dropin
import pytest
import training

import support

GOLDEN = os.path.join(support.ROOT, "tests/golden/models/gpt2")
PARTS = ["wte.weight", "wpe.weight", "ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
         "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"]
MAPS = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def words_of(raw, dtype):
    """Elements as integers. bf16 is the upper half of fp32, cut off."""
    words = array.array("I", raw)
    return words if dtype == "F32" else array.array("H", (w >> 16 for w in words))


def tensors_of(dtype):
    """{name: (shape, elements)} of the golden model, without transformer. before the names."""
    header, data = training.read_tensors(f"{GOLDEN}/hf/model.safetensors")
    return {name.removeprefix("transformer."): (x["shape"], words_of(data[slice(*x["data_offsets"])], dtype))
            for name, x in header.items() if name != "__metadata__"}


def config():
    with open(f"{GOLDEN}/hf/config.json") as f:
        return json.load(f)


def as_llmc(dtype, padding=5):
    """The bytes of the file that llm.c would have of the golden model. Rows of padding are no zeros."""
    c, tensors = config(), tensors_of(dtype)
    header = [20240326, 3 if dtype == "F32" else 5, c["n_positions"], c["vocab_size"], c["n_layer"], c["n_head"], c["n_embd"], c["vocab_size"] + padding]
    out = struct.pack("<256i", *header, *[0] * (256 - len(header)))
    for part in PARTS:
        for name in [f"h.{i}.{part}" for i in range(c["n_layer"])] if f"h.0.{part}" in tensors else [part]:
            shape, x = tensors[name]
            if name.endswith(MAPS):  # llm.c stores maps (out, in)
                x = array.array(x.typecode, (x[k * shape[1] + j] for j in range(shape[1]) for k in range(shape[0])))
            out += x.tobytes()
            if part == "wte.weight":
                out += b"\x3f" * (x.itemsize * padding * shape[1])
    return out


def import_(path, folder):
    return subprocess.run([support.program("dtckpt"), "import", str(path), str(folder)], capture_output=True, text=True, timeout=60)


def losses(folder, model, out):
    """Of three steps."""
    (folder / "job.json").write_text(json.dumps({
        "model": {"load": str(model), "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0},
        "data": {"train": f"{GOLDEN}/batches.safetensors", "sequence_length": 16, "shuffle": False},
        "training": {"batch_size_per_gpu": 2, "max_steps": 3, "learning_rate": 1e-3, "threads": 1}, "logging": {"log_every_n_steps": 1}}))
    done = subprocess.run([support.program("train"), str(folder / "job.json"), "--output_dir", str(out)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return training.metrics(out)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_weights_are_those_of_the_folder(tmp_path, dtype):
    (tmp_path / "model.bin").write_bytes(as_llmc(dtype))
    done = import_(tmp_path / "model.bin", tmp_path / "hf")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    header, data = training.read_tensors(tmp_path / "hf/model.safetensors")
    expected = tensors_of(dtype)
    assert set(header) - {"__metadata__"} == {f"transformer.{name}" for name in expected} and header["__metadata__"] == {"format": "pt"}
    for name, (shape, x) in expected.items():
        found = header[f"transformer.{name}"]
        assert (found["dtype"], found["shape"]) == (dtype, shape), name
        assert data[slice(*found["data_offsets"])] == x.tobytes(), name
    theirs, ours = config(), json.loads((tmp_path / "hf/config.json").read_text())
    for key in ("model_type", "n_positions", "vocab_size", "n_layer", "n_head", "n_embd", "layer_norm_epsilon", "activation_function"):
        assert ours[key] == theirs[key], key
    assert ours["dtype"] == ours["torch_dtype"] == {"F32": "float32", "BF16": "bfloat16"}[dtype]
    assert ours["attn_pdrop"] == 0 and ours["tie_word_embeddings"] is True


def test_it_trains_as_the_folder(tmp_path):
    (tmp_path / "model.bin").write_bytes(as_llmc("F32"))
    assert import_(tmp_path / "model.bin", tmp_path / "hf").returncode == 0
    expected = losses(tmp_path, f"{GOLDEN}/hf", tmp_path / "theirs")
    assert len(expected) == 3 and losses(tmp_path, tmp_path / "hf", tmp_path / "ours") == expected
    (tmp_path / "half.bin").write_bytes(as_llmc("BF16"))
    assert import_(tmp_path / "half.bin", tmp_path / "half").returncode == 0
    assert losses(tmp_path, tmp_path / "half", tmp_path / "narrow") == pytest.approx(expected, rel=1e-2)


@pytest.mark.skipif(not dropin.has_torch(), reason=f"no PyTorch at {dropin.PEER_PYTHON}: scripts/setup.sh --peers")
def test_transformers_loads_it(tmp_path):
    """Without a warning, with the loss of the folder that the file was made from."""
    (tmp_path / "model.bin").write_bytes(as_llmc("F32"))
    assert import_(tmp_path / "model.bin", tmp_path / "hf").returncode == 0
    questions = [{"folder": str(folder), "data": f"{GOLDEN}/batches.safetensors", "rows": 2, "dtype": "float32"} for folder in (tmp_path / "hf", f"{GOLDEN}/hf")]
    done = subprocess.run([dropin.PEER_PYTHON, os.path.join(support.ROOT, "tests/peers/folders.py")], input="".join(json.dumps(q) + "\n" for q in questions),
                          capture_output=True, text=True, timeout=240, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    ours, theirs = map(json.loads, done.stdout.splitlines())
    assert (ours["loading"], ours["said"]) == ({}, []) and ours["loss"] == theirs["loss"]


def test_refused(tmp_path):
    """Nothing is written then, and the message names the file."""
    whole = as_llmc("BF16", padding=0)
    cases = {"cut": (whole[:-2], "cut short: it has"), "long": (whole + b"\0\0", "too long: it has"), "short": (whole[:99], "cut short: it has 99 bytes"),
             "empty": (b"", "is empty"), "other": (b"x" * 2000, "no model of llm.c"),
             "state": (struct.pack("<256i", 20240527, 1, *[0] * 254), "the optimizer's state of one process")}
    for name, (content, says) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        done = import_(path, tmp_path / "hf")
        assert done.returncode == 1 and done.stderr.startswith(f"dtckpt: {path}: ") and says in done.stderr, (name, done)
        assert not (tmp_path / "hf").exists()
    done = import_(tmp_path / "nothing", tmp_path / "hf")
    assert done.returncode == 2 and f"{tmp_path}/nothing" in done.stderr
    done = import_(tmp_path, tmp_path / "hf")
    assert done.returncode == 1 and "is no file" in done.stderr
    (tmp_path / "model.bin").write_bytes(whole)
    done = import_(tmp_path / "model.bin", tmp_path)
    assert done.returncode == 2 and f"import: {tmp_path}: holds " in done.stderr
    done = import_(tmp_path / "model.bin", "")
    assert done.returncode == 2 and "the name of the folder is empty" in done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted([*cases, "model.bin"])
