#!/usr/bin/python3
"""Makes a Hugging Face folder of a llama with random weights, to measure how long it takes to load it:

    tests/tools/llama_folder.py FOLDER [fp32|bf16 [LAYERS]]

14 layers in fp32, and 31 in bf16, are 1 GB.
"""

import json
import os
import struct
import sys

import numpy as np

HIDDEN, INNER, HEADS, KEYS, VOCABULARY = 1024, 4096, 16, 4, 32000
LAYER = {"input_layernorm": (HIDDEN,), "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN // HEADS * KEYS, HIDDEN),
         "self_attn.v_proj": (HIDDEN // HEADS * KEYS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN), "post_attention_layernorm": (HIDDEN,),
         "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}


def main():
    folder, kind = sys.argv[1], (sys.argv[2:3] or ["fp32"])[0]
    layers = int(sys.argv[3]) if len(sys.argv) > 3 else 14 if kind == "fp32" else 31
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in LAYER.items()}
    width, header, at = {"fp32": 4, "bf16": 2}[kind], {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": {4: "F32", 2: "BF16"}[width], "shape": shape, "data_offsets": [at, at := at + int(np.prod(shape)) * width]}
    text = json.dumps(header).encode()
    random = np.random.default_rng(1)
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            x = 0.02 * random.standard_normal(shape, np.float32)
            f.write(x if width == 4 else (x.view(np.uint32) >> 16).astype(np.uint16))
        os.fsync(f.fileno())
    with open(f"{folder}/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
                   "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "vocab_size": VOCABULARY,
                   "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
                   "tie_word_embeddings": True}, f)


main()
