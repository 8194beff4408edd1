"""Tiny jobs that are drawn: a trial is a job and two settings of it that must give the same bits (or, on another number of ranks, the same losses
within a tolerance). It is plain data, which random_runs.py runs, compares and makes smaller."""

import json
import os
import random
import struct


# ---- data ----

def write_shard(path, tokens, seed):
    r = random.Random(seed)
    ids = [r.randrange(250) if i % 3 == 0 else r.randrange(9) for i in range(tokens)]
    with open(path, "wb") as f:
        f.write(struct.pack("<3i", 20240520, 1, tokens).ljust(1024, b"\0") + struct.pack(f"<{tokens}H", *ids))


def write_tensors(path, **tensors):
    """Each tensor: (dtype, shape, values)."""
    header, data = {}, b""
    for name, (kind, shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}{ {'I64': 'q', 'F32': 'f'}[kind]}", *values)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


ROWS, LENGTH, CLASSES, SIDE = 61, 9, 3, 6


def make_data(folder):
    """The files that jobs name as @small.bin and so on."""
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(f"{folder}/done"):
        return
    for name, tokens, seed in (("small.bin", 331, 1), ("large.bin", 4099, 2), ("val.bin", 173, 3)):
        write_shard(f"{folder}/{name}", tokens, seed)
    for name, rows, seed in (("", ROWS, 4), ("_val", 13, 5)):
        r = random.Random(seed)
        lengths = [r.randint(3, LENGTH) for _ in range(rows)]
        mask = [int(j < n) for n in lengths for j in range(LENGTH)]
        ids = [m * r.randrange(1, 40) for m in mask]
        labels = ("I64", [rows], [r.randrange(CLASSES) for _ in range(rows)])
        inputs = {"input_ids": ("I64", [rows, LENGTH], ids), "attention_mask": ("I64", [rows, LENGTH], mask)}
        write_tensors(f"{folder}/rows{name}.safetensors", labels=labels, **inputs)
        write_tensors(f"{folder}/words{name}.safetensors", **inputs,
                      labels=("I64", [rows, LENGTH], [r.randrange(CLASSES) if m and r.random() < 0.6 else -100 for m in mask]))
        write_tensors(f"{folder}/numbers{name}.safetensors", **inputs, labels=("F32", [rows], [r.gauss(0, 1) for _ in range(rows)]))
        pixels = [r.gauss(0, 1) for _ in range(rows * 3 * SIDE * SIDE)]
        write_tensors(f"{folder}/images{name}.safetensors", labels=labels, pixel_values=("F32", [rows, 3, SIDE, SIDE], pixels))
    with open(f"{folder}/done", "w"):
        pass


# ---- models: sizes that fit nowhere evenly, and names of their tensors ----

def draw_gpt2(r):
    heads = r.choice([1, 2, 3])
    m = {"name": "gpt2", "n_layer": r.choice([1, 2, 3, 5]), "n_head": heads, "n_embd": heads * r.choice([2, 4, 5, 8]), "n_positions": 17,
         "vocab_size": r.choice([256, 257, 311]), "initializer_range": 0.1}
    if r.random() < 0.3:
        m["n_inner"] = r.choice([7, 20, 33])
    if r.random() < 0.3:
        m["tie_word_embeddings"] = False
    if r.random() < 0.3:
        m.update({k: r.choice([0.1, 0.3]) for k in ("attn_pdrop", "embd_pdrop", "resid_pdrop") if r.random() < 0.7})
    return m, ["*.bias", "*ln_*", "*h.0.*", "*wte*", "*attn*", "*mlp.c_fc.weight"]


def draw_decoder(r):
    name = r.choice(["llama", "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "phi3", "olmo2", "granite"])
    kv = r.choice([1, 2, 3])
    heads = kv * r.choice([1, 2, 3])
    head = r.choice([2, 4, 6])
    m = {"name": name, "num_hidden_layers": r.choice([1, 2, 3, 4]), "hidden_size": heads * head, "intermediate_size": r.choice([7, 16, 25]),
         "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": r.choice([256, 301]), "max_position_embeddings": 19,
         "initializer_range": 0.1, "tie_word_embeddings": r.random() < 0.5, "pad_token_id": r.choice([None, None, 3])}
    if name in ("qwen3", "gemma2", "gemma3_text"):
        m["head_dim"] = head
    if name in ("gemma2", "gemma3_text", "mistral") and r.random() < 0.7:
        m["sliding_window"] = r.choice([2, 3, 5])
    if r.random() < 0.3 and name not in ("gemma2",):
        m["attention_dropout"] = 0.2
    return m, ["*norm*", "*layers.0.*", "*embed_tokens*", "*attn*", "*mlp*", "*o_proj*", "*.weight"]


def draw_mha(r):
    heads = r.choice([1, 2, 3])
    return {"name": "mha-gpt", "num_hidden_layers": r.choice([1, 2, 3]), "hidden_size": heads * r.choice([2, 4, 5]), "num_attention_heads": heads,
            "vocab_size": 259, "max_position_embeddings": 17}, ["*bias", "*.0.*", "*norm*"]


def draw_encoder(r):
    name = r.choice(["bert", "roberta", "distilbert", "modernbert"])
    heads = r.choice([1, 2, 3])
    width, inner, layers = heads * r.choice([2, 4, 6]), r.choice([7, 16, 20]), r.choice([1, 2, 3])
    m = {"name": name, "vocab_size": 41, "max_position_embeddings": LENGTH + 2 * (name == "roberta"), "initializer_range": 0.1, "num_labels": CLASSES}
    m.update({"dim": width, "hidden_dim": inner, "n_layers": layers, "n_heads": heads} if name == "distilbert" else
             {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads})
    data = r.choice(["rows", "rows", "words", "masked", "numbers"])
    m["task"] = {"words": "token_classification", "masked": "masked_lm"}.get(data, "sequence_classification")
    if data == "masked":
        del m["num_labels"]
    if data == "numbers":
        m["num_labels"] = 1
    if name == "modernbert":
        m.update({"pad_token_id": 0, "local_attention": r.choice([2, 4]), "global_attn_every_n_layers": r.choice([2, 3])})
        if r.random() < 0.3:
            m["mlp_dropout"] = 0.2
    elif r.random() < 0.3:
        m["dropout" if name == "distilbert" else "hidden_dropout_prob"] = 0.2
    if name == "roberta":
        m["pad_token_id"] = 0
    names = {"bert": ["*bias", "*LayerNorm*", "*layer.0.*", "*embeddings*"], "roberta": ["*bias", "*LayerNorm*", "*layer.0.*", "*embeddings*"],
             "distilbert": ["*bias", "*layer_norm*", "*layer.0.*", "*embeddings*"], "modernbert": ["*norm*", "*layers.0.*", "*embeddings*"]}[name]
    return m, names, "words" if data == "masked" else data


def draw_resnet(r):
    stages = r.choice([1, 2])
    m = {"name": "resnet", "num_channels": 3, "image_size": SIDE, "num_labels": CLASSES, "embedding_size": r.choice([5, 8]),
         "hidden_sizes": [r.choice([8, 12]) for _ in range(stages)], "depths": [r.choice([1, 2]) for _ in range(stages)],
         "layer_type": r.choice(["basic", "bottleneck"]), "stem": "small"}
    return m, ["*classifier*", "*normalization*", "*embedder.embedder*", "*stages.0*"], "images"


def draw_mlp(r):
    return {"name": "mlp", "num_channels": 3, "image_size": SIDE, "num_labels": CLASSES, "hidden_size": r.choice([5, 16]),
            "last_hidden_size": r.choice([3, 8]), "frozen_layers": r.choice([0, 0, 1, 2])}, ["*bias", "*weight"], "images"


# ---- what is trained ----

def draw_optimizer(r, job, names):
    t, o = job["training"], {}
    name = o["name"] = r.choice(["adamw", "adamw", "adamw", "adam", "sgd", "lion", "adagrad", "lamb", "muon"])
    t["learning_rate"] = {"sgd": 0.05, "lion": 1e-3, "adagrad": 0.02, "muon": 0.01}.get(name, 5e-3)
    if name in ("adamw", "adam") and r.random() < 0.3:
        t["adam_amsgrad"] = True
    if name in ("adamw", "adam") and r.random() < 0.2:
        t["adam_bias_correction"] = False
    if name == "sgd" and r.random() < 0.7:
        o.update({"momentum": 0.9, "nesterov": r.random() < 0.5})
    if name == "adagrad" and r.random() < 0.4:
        o.update({"lr_decay": 0.1, "initial_accumulator_value": 0.1})
    if name == "muon":
        o["adjust_lr_fn"] = r.choice(["original", "match_rms_adamw", "spectral_unclamped"])
        if r.random() < 0.4:
            o["adamw_learning_rate"] = 2e-3
    t["weight_decay"] = r.choice([0, 0, 0.1])
    if r.random() < 0.3:
        groups = []
        for glob in r.sample(names, min(len(names), r.choice([1, 2]))):
            g = {"params": [glob]}
            g.update(r.choice([{"lr_scale": 0.3}, {"learning_rate": 1e-3}, {}]))
            g.update(r.choice([{"weight_decay": 0.2}, {"weight_decay": 0}, {}]))
            groups.append(g)
        o["groups"] = groups
    job["optimizer"] = o
    if r.random() < 0.2:
        t["freeze"] = [r.choice(names)]


def draw_schedule(r, job, steps):
    t = job["training"]
    kind = r.choice(["linear", "cosine", "constant", "polynomial", "step", "one_cycle", "warmup_stable_decay", "inverse_sqrt", "exponential",
                     "cosine_warm_restarts", "warmupdecaylr", "reduce_lr_on_plateau", "onecycle"])
    t["lr_scheduler_type"] = kind
    numbers = {"step": {"step_size": 2, "gamma": 0.5}, "exponential": {"gamma": 0.9}, "cosine_warm_restarts": {"T_0": 3},
               "reduce_lr_on_plateau": {"patience": 0, "factor": 0.5, "threshold": 0.01}, "onecycle": {"cycle_min_lr": 1e-4, "cycle_first_step_size": 3},
               "one_cycle": {}}.get(kind, {})
    if kind in ("one_cycle", "onecycle") and (job["optimizer"]["name"] not in ("adamw", "adam", "lion") or r.random() < 0.5):
        numbers["cycle_momentum"] = False
    if numbers:
        job["scheduler"] = numbers
    if kind in ("linear", "cosine", "polynomial", "warmup_stable_decay", "warmupdecaylr") and r.random() < 0.6:
        t["warmup_steps"] = r.choice([1, 2])
    if kind == "reduce_lr_on_plateau":
        t["eval_every_n_steps"] = 2


def draw_precision(r, job):
    t = job["training"]
    kind = t["precision"] = r.choice(["32-true"] * 4 + ["bf16-mixed"] * 3 + ["bf16-true", "16-mixed", "16-true", "64-true"])
    if kind.startswith("16"):
        job["loss_scaling"] = {"algorithm": r.choice(["torch", "deepspeed"]), "initial_scale_power": r.choice([8, 16, 30])}
    if kind == "32-true" and r.random() < 0.15:
        job["mixed_precision"] = {"reduce_dtype": r.choice(["bf16", "fp16"])}
    if kind in ("bf16-mixed", "16-mixed", "64-true") and r.random() < 0.3:
        job["mixed_precision"] = {"reduce_dtype": "fp32"}
    elif kind != "32-true" and kind != "64-true" and r.random() < 0.2:
        t["grad_accum_dtype"] = "bf16" if kind.startswith("bf16") else "fp16"
    if r.random() < 0.2:
        t["optimizer_state_dtype"] = r.choice(["bf16", "fp32"])


def draw_job(r):
    """(job without what a side chooses, what is said of it)."""
    kind = r.choice(["gpt2", "gpt2", "decoder", "decoder", "mha", "encoder", "encoder", "resnet", "mlp"])
    drawn = {"gpt2": draw_gpt2, "decoder": draw_decoder, "mha": draw_mha, "encoder": draw_encoder, "resnet": draw_resnet, "mlp": draw_mlp}[kind](r)
    steps = r.choice([3, 4, 5, 6, 8, 11])
    t = {"max_steps": steps, "batch_size_per_gpu": r.choice([1, 1, 2, 3]), "threads": 1, "seed": r.randrange(5)}
    job = {"model": drawn[0], "training": t, "logging": {"log_every_n_steps": 1}, "checkpointing": {"save_every_n_steps": r.choice([0, 1, 2, 3]),
                                                                                                  "keep_last_n": 0}}
    if len(drawn) == 3:
        job["data"] = {"train": f"@{drawn[2]}.safetensors", "val": f"@{drawn[2]}_val.safetensors"}
        if kind == "encoder":
            job["data"]["sequence_length"] = LENGTH
    else:
        job["data"] = {"train": r.choice(["@small.bin", "@large.bin"]), "val": "@val.bin", "sequence_length": r.choice([5, 8, 13, 17])}
    if kind in ("gpt2", "decoder") and r.random() < 0.15:
        job["data"].update({"document_mask": True, "document_end": 3})
    if job["data"]["train"] == "@small.bin" and r.random() < 0.15:
        job["data"]["train"] = [{"path": "@small.bin", "weight": 2}, {"path": "@large.bin", "weight": 3.5}]
    if r.random() < 0.15:
        job["data"]["shuffle"] = False
    elif r.random() < 0.1 and not isinstance(job["data"]["train"], list):
        job["data"]["sampler"] = "distributed"
    if r.random() < 0.1:
        job["data"]["val"] = {"one": job["data"]["val"], "two": [job["data"]["val"]]}
    draw_optimizer(r, job, drawn[1])
    draw_schedule(r, job, steps)
    draw_precision(r, job)
    t["gradient_accumulation_steps"] = r.choice([1, 1, 1, 2, 3, {"0": 1, "1": 2}, {"0": 2, "1": 1}])
    if r.random() < 0.3:
        del t["max_steps"]
        t["num_epochs"] = r.choice([1, 2, 0.5]) if job["data"]["train"] != "@large.bin" else 0.05
    elif "sequence_length" in job["data"] and r.random() < 0.1:
        t["max_tokens"] = t.pop("max_steps") * job["data"]["sequence_length"] * r.choice([2, 7])
    t["max_grad_norm"] = r.choice([0, 0.3, 1])
    if r.random() < 0.15:
        del t["max_grad_norm"]
        t.update({"gradient_clip_algorithm": "value", "gradient_clip_value": r.choice([1e-3, 0.05])})
    if r.random() < 0.5:
        t["loss_normalization"] = "global_tokens"
    if r.random() < 0.25 and kind not in ("resnet", "mlp"):
        t["uneven_inputs"] = "join"
        if r.random() < 0.3:
            t["divide_by_initial_world_size"] = False
    if r.random() < 0.15:
        t["limit_train_batches"] = r.choice([2, 3, 0.5])
    elif r.random() < 0.1:
        t["overfit_batches"] = r.choice([1, 2, 0.3])
    if r.random() < 0.2:
        t["partial_accumulation"] = r.choice(["drop", "step"])
    if r.random() < 0.25:
        t.setdefault("eval_every_n_steps", r.choice([1, 2, 3]))
        t["eval_batches"] = r.choice([0, 1, 2])
    elif r.random() < 0.1 and "eval_every_n_steps" not in t:
        t["eval_every_n_epochs"] = r.choice([0.1, 0.25, 1])
    if r.random() < 0.1:
        job["checkpointing"]["save_every_n_epochs"] = r.choice([0.1, 0.3, 1])
    if kind == "resnet" and r.random() < 0.5:
        t["sync_batch_norm"] = True
    if r.random() < 0.15:
        t.update(r.choice([{"skip_update_lossz": 0.5}, {"skip_update_gradz": 0.5}, {"loss_guard_factor": 1.0},
                           {"loss_guard_factor": 0.99, "loss_guard_action": "rollback", "loss_guard_rollbacks": 2}]))
        t["loss_guard_window"] = r.choice([2, 3])
        if t.get("loss_guard_action") and job["checkpointing"]["save_every_n_steps"] == 0:
            job["checkpointing"]["save_every_n_steps"] = 2
    if "eval_every_n_steps" in t and r.random() < 0.3:
        job["early_stopping"] = {"monitor": "val_loss", "patience": r.choice([0, 1, 2])}
    if "eval_every_n_steps" in t and r.random() < 0.3:
        job["checkpointing"]["save_top_k"] = r.choice([1, 2])
        if r.random() < 0.5:
            job["checkpointing"]["load_best_model_at_end"] = True
    return job


# ---- one side: what must change no bit ----

WHOLE = ["ddp", "no_shard", "zero0", "ddp_spawn", "fsdp_no_shard", "deepspeed_stage_0", "ddp_find_unused_parameters_true"]
STATE = ["zero1", "zero2", "zero_stage_1", "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "zero2_offload", "deepspeed_stage_2_offload"]
WEIGHTS = ["zero3", "full_shard", "shard_grad_op", "fsdp", "fsdp_shard_grad_op", "deepspeed_stage_3", "zero3_offload", "fsdp_cpu_offload"]
REDUCES_ONCE = set(WHOLE) | {"zero1", "zero_stage_1", "deepspeed_stage_1", "single_device"}
HALF_WIRE = {"bf16-mixed", "bf16-true", "16-mixed", "16-true"}


def is_half_on_the_wire(job):
    reduce = job.get("mixed_precision", {}).get("reduce_dtype")
    return reduce in ("bf16", "fp16") or (job["training"]["precision"] in HALF_WIRE and reduce != "fp32")


def accumulates(job):
    return job["training"]["gradient_accumulation_steps"] != 1


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def draw_fsdp(r, ranks, shards, strategy):
    f = {}
    if r.random() < 0.4:
        f["backward_prefetch"] = r.choice(["BACKWARD_PRE", "BACKWARD_POST", "none", None])
    if r.random() < 0.3:
        f["forward_prefetch"] = True
    if r.random() < 0.5:
        f.update(r.choice([{"layers_per_unit": 2}, {"layers_per_unit": 3}, {"auto_wrap_policy": "none"}, {"auto_wrap_policy": "size_based", "min_num_params": 700},
                           {"auto_wrap_policy": "size_based", "min_num_params": 5000}]))
    for key, values in (("prefetch_bucket_size", [0, 1, 900, 10**9]), ("max_live_parameters", [0, 1500, 10**9]), ("max_reuse_distance", [500, 3000, 10**9]),
                        ("param_persistence_threshold", [10, 100, 10**9, None]), ("model_persistence_threshold", [0, 300])):
        if r.random() < 0.25:
            f[key] = r.choice(values)
    if r.random() < 0.2:
        f["overlap_comm"] = False
    between = [d for d in divisors(shards) if 1 < d < shards]
    if between and r.random() < 0.5:
        f["reshard_after_forward"] = r.choice(between)
    return f


def draw_offload(r, strategy, nvme):
    o = {}
    if strategy in WEIGHTS or strategy.startswith("hybrid"):
        o["optimizer"], o["parameters"] = r.choice(["none", "cpu", "nvme"]), r.choice(["none", "cpu", "nvme"])
        if o["optimizer"] != "none" and r.random() < 0.3:
            o["ratio"] = r.choice([0, 0.3, 0.8])
    elif strategy in STATE:
        o["optimizer"] = r.choice(["cpu", "nvme"])
    if r.random() < 0.5 or not o:
        o["activations"] = r.choice(["cpu", "nvme"])
    if "nvme" in o.values():
        o["nvme_path"] = nvme[: r.choice([1, 2])]
        o["engine"] = r.choice(["auto", "threads", "io_uring"])
        if r.random() < 0.5:
            o.update({"block_size": r.choice([4096, 8192]), "queue_depth": r.choice([1, 3]), "intra_op_parallelism": r.choice([1, 2])})
        if o["engine"] != "threads" and r.random() < 0.3:
            o.update({"single_submit": True, "overlap_events": False})
    if o.get("optimizer", "none") != "none" or o.get("parameters", "none") != "none":
        o["portion"], o["buffer_count"] = r.choice([2048, 4096]), r.choice([2, 3, 4])
        o.update({k: False for k in ("pipeline_read", "pipeline_write") if r.random() < 0.3})
    return o


def draw_strategy(r, job, ranks, mesh):
    """(name, shards). mesh: the hybrid one that both sides have, or null."""
    if mesh:
        return r.choice(["hybrid_shard", "hybrid_shard_zero2"]), mesh[1]
    hybrids = [s for s in divisors(ranks) if s == ranks or (not is_half_on_the_wire(job) and s & (s - 1) == 0)]  # other groups have another tree of sums
    kind = r.choice(["whole", "state", "state", "weights", "weights", "weights", "hybrid"])
    if kind == "hybrid":
        return r.choice(["hybrid_shard", "hybrid_shard_zero2", "fsdp_hybrid_shard"]), r.choice(hybrids)
    return r.choice({"whole": WHOLE, "state": STATE, "weights": WEIGHTS}[kind]), ranks


def draw_side(r, job, ranks, sync, plain=False, mesh=None, whole=False):
    """The keys of a side. sync: the family that both belong to; whole: only strategies that have everything whole."""
    strategy, shards = (r.choice(WHOLE), ranks) if whole else draw_strategy(r, job, ranks, mesh)
    if job["training"].get("strategy") == "local_sgd":
        strategy = "local_sgd"
    elif plain and not mesh:
        strategy, shards = "ddp" if sync == "boundary" else "zero2" if not whole else "ddp", ranks
    side = {"ranks": ranks, "training": {"strategy": strategy}, "env": {}}
    hybrid = "hybrid" in strategy
    if accumulates(job):
        natural = "boundary" if strategy in REDUCES_ONCE or strategy == "local_sgd" else "every"
        if sync != natural:
            side["training"]["accumulate_sync"] = {"boundary": "boundary", "every": "every_micro_step"}[sync]
    if hybrid:
        side["fsdp"] = {"device_mesh": [ranks // shards, shards]}
    if plain:
        return side
    if r.random() < 0.15:
        side.setdefault("fsdp", {})["wrap_layers"] = r.choice([["*.0"], ["*.0", "*0"], ["*"]])
    if (strategy in WEIGHTS or hybrid) and r.random() < 0.7:
        side.setdefault("fsdp", {}).update(draw_fsdp(r, ranks, shards, strategy))
    if strategy in WHOLE and r.random() < 0.5:
        side["ddp"] = {"bucket_cap_mb": r.choice([0.0005, 0.003, 0.02, 1000]), "first_bucket_mb": r.choice([0.0005, 1])}
    if r.random() < 0.45:
        side["activation_checkpointing"] = {"enabled": True, "level": r.choice(["none", "cheap", "mlp", "block", "full", "selective", "auto"]),
                                            "checkpoint_every_n_layers": r.choice([1, 1, 2, 3])}
    if r.random() < 0.45:
        side["offload"] = draw_offload(r, strategy, ["@nvme-a", "@nvme-b"])
    c = {}
    if r.random() < 0.3:
        c["asynchronous"] = True
        if r.random() < 0.3 and "loss_guard_action" not in job["training"]:  # a rollback takes the newest there is
            c["skip_when_saving"] = True
    if r.random() < 0.3 and not local_training(job):
        c["snapshot_every_n_steps"] = r.choice([1, 2, 3])
    if r.random() < 0.2:
        c["keep_last_n"] = r.choice([1, 2])
    if c:
        side["checkpointing"] = c
    if ranks == 1 and r.random() < 0.6 and job["training"]["precision"] != "64-true":  # its memory is one process's
        side["env"]["DTRUN_DEVICE"] = "separate"
    if r.random() < 0.6:
        side["env"]["DTRUN_STREAMS"] = r.choice(["thread", "inline"])
    if r.random() < 0.2:
        side["training"]["threads"] = r.choice([2, 3])
    if r.random() < 0.2 and not local_training(job):
        side["training"]["check_replicas_every_n_steps"] = r.choice([1, 2])
    if r.random() < 0.1 and "_" not in strategy and strategy != "local_sgd":  # a row that the job registers
        own = {"base": strategy, "description": "drawn", **{k: side.pop(k) for k in ("fsdp", "ddp") if k in side}}
        side["strategies"], side["training"]["strategy"] = {"drawn": own}, "drawn"
    if r.random() < 0.15:
        side["logging"] = r.choice([{"csv": True}, {"timeline_steps": [2, 2]}])
    if job["model"]["name"] in ("gpt2", "llama") and r.random() < 0.15 and not local_training(job):
        side["logging"] = {"sample_every_n_steps": r.choice([1, 2])}
        side["generation"] = {"prompt_ids": ["5,7", "3"], "max_new_tokens": 3, "temperature": 0.9}
    if job["model"]["name"] == "resnet" and r.random() < 0.2:
        side["training"]["broadcast_buffers"] = False
    return side


def local_training(job):
    """Ranks have weights of their own for a while: what looks at them averages them."""
    return job.get("ddp", {}).get("comm_hook") == "post_local_sgd" or job["training"].get("strategy") == "local_sgd"


def draw_hook(r, job, ranks):
    hook = r.choice(["fp16_compress", "bf16_compress", "power_sgd", "batched_power_sgd", "post_local_sgd", "local_sgd"])
    job["ddp"] = {"comm_hook": hook}
    if hook == "local_sgd":
        job["ddp"] = {}
        job["local_sgd"] = {"period": r.choice([1, 2, 3]), "warmup_steps": r.choice([0, 2])}
        job["training"]["strategy"] = hook
    if hook in ("power_sgd", "batched_power_sgd"):
        mean = job["training"].get("loss_normalization") != "global_tokens"
        job["power_sgd"] = {"matrix_approximation_rank": r.choice([1, 2, 3]), "start_powerSGD_iter": 2, "min_compression_rate": 0.5,
                            "use_error_feedback": mean and not job["training"]["precision"].startswith("16"), "warm_start": r.random() < 0.7}
        if hook == "batched_power_sgd":
            del job["power_sgd"]["min_compression_rate"]
            job["ddp"].update({"bucket_cap_mb": r.choice([0.003, 25]), "first_bucket_mb": 0.003})
    if hook == "post_local_sgd":
        job["local_sgd"] = {"period": r.choice([1, 2, 3]), "group_size": r.choice(divisors(ranks)), "warmup_steps": r.choice([0, 2])}
    elif hook != "local_sgd" and "compress" not in hook and r.random() < 0.3 and not job["training"]["precision"].startswith("16"):
        job["ddp"]["comm_wrapper"] = "bf16_compress"


def rolls_back(job):
    """To the newest checkpoint, and so many times in a round: a run that was disturbed has others."""
    return job["training"].get("loss_guard_action") == "rollback"


GOES_ON = ("cut", "stopped", "killed", "crashed", "full")


def draw(seed):
    r = random.Random(f"random jobs {seed}")
    job = draw_job(r)
    ranks = r.choice([1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 8])
    sync = r.choice(["boundary", "every"])
    kinds = ["same"] * 6 + ["threads"] * 4 + ["near", "cut", "cut", "stopped", "killed", "killed", "crashed", "full", "evaluated"]
    kind = r.choice(kinds)
    if kind == "evaluated":  # each sample counts once, whatever the batches are
        ranks_of = r.choice([1, 2, 3, 4])
        job["training"].pop("eval_batches", None)
        job["training"].pop("overfit_batches", None)
        if job["training"]["precision"] == "64-true":
            job["training"]["precision"] = "32-true"
    if kind in GOES_ON and kind != "cut" and (rolls_back(job) or job["training"]["precision"] == "64-true"):  # checkpoints hold fp32
        kind = "same"
    whole = False
    if kind != "near" and r.random() < 0.15:
        whole, sync = True, "boundary"
        draw_hook(r, job, ranks)
    trial = {"seed": seed, "kind": kind, "job": job}
    mesh = None
    if kind in ("same", "threads") and not whole and ranks > 1 and r.random() < 0.08:
        shards = r.choice(divisors(ranks))
        mesh = [ranks // shards, shards]
    if kind == "near":
        make_near(r, trial)
        return trial
    trial["left"] = draw_side(r, job, ranks, sync, plain=True, mesh=mesh, whole=whole)
    trial["right"] = draw_side(r, job, ranks, sync, mesh=mesh, whole=whole)
    if kind in GOES_ON:
        job["checkpointing"]["save_every_n_steps"] = r.choice([1, 2])
        for key in ("keep_last_n", *(["skip_when_saving"] if kind == "cut" else [])):
            trial["right"].get("checkpointing", {}).pop(key, None)
    if kind == "cut":  # both have the same checkpoints, and go on with the same other number of ranks, under two strategies
        others = ranks if whole or r.random() < 0.4 else r.choice([1, 2, 3, 4])
        trial["left_on"] = draw_side(r, job, others, sync, plain=True, whole=whole)
        trial["right_on"] = draw_side(r, job, others, sync, whole=whole)
        trial["at"] = r.choice([1, 2, 3, 4])
    if kind == "evaluated":
        trial["right"] = draw_side(r, job, ranks_of, sync, whole=whole)
        trial["right"]["training"]["batch_size_per_gpu"] = r.choice([1, 2, 4])
    if kind == "full":
        trial["right"].setdefault("checkpointing", {}).setdefault("asynchronous", r.random() < 0.8)
        trial["room"] = round(r.uniform(0.6, 4), 2)
    if kind in ("stopped", "crashed", "full"):
        trial["right_on"] = draw_side(r, job, ranks, sync, whole=whole)
    if kind == "threads":
        make_threads(r, job, trial["right"], ranks)
    if job.get("ddp", {}).get("comm_hook") == "batched_power_sgd":  # it compresses a bucket as a whole, so buckets are not a side's
        for name in ("left", "right", "left_on", "right_on"):
            for section in ("ddp", "fsdp"):
                trial.get(name, {}).pop(section, None)
    if kind in ("stopped", "killed", "crashed"):
        trial["moments"] = [round(r.uniform(0, 0.25), 3) for _ in range(r.choice([1, 1, 2]))]
    return trial


def make_threads(r, job, side, ranks):
    """Ranks as threads of one process, which may compute on a device with memory of its own, and as if on several hosts."""
    side["env"].pop("DTRUN_DEVICE", None)
    side.get("checkpointing", {}).pop("snapshot_every_n_steps", None)
    side["threads"] = {}
    if r.random() < 0.7 and job["training"]["precision"] != "64-true":
        side["threads"]["device"] = "separate"
        side["training"]["collectives"] = "peer"
    elif ranks > 1:
        side["threads"]["hosts"] = "".join(sorted(r.choice("aabc") for _ in range(ranks)))


def make_near(r, trial):
    """Other numbers of ranks and other cuts into micro-steps of the same batch. What depends on the cut is taken out."""
    job, total = trial["job"], r.choice([4, 6, 8, 12])
    t = job["training"]
    t.update({"precision": r.choice(["32-true", "64-true"]), "loss_normalization": "global_tokens", "max_steps": r.choice([3, 4, 5])})
    for key in ("num_epochs", "max_tokens", "uneven_inputs", "divide_by_initial_world_size", "limit_train_batches", "partial_accumulation", "optimizer_state_dtype", "overfit_batches", "eval_batches",
                "grad_accum_dtype", "gradient_accumulation_steps", "skip_update_lossz", "skip_update_gradz", "loss_guard_factor", "loss_guard_window",
                "loss_guard_action", "loss_guard_rollbacks", "gradient_clip_algorithm", "gradient_clip_value"):
        t.pop(key, None)
    for section in ("mixed_precision", "loss_scaling", "early_stopping"):
        job.pop(section, None)
    for key in ("save_top_k", "load_best_model_at_end"):
        job["checkpointing"].pop(key, None)
    job["data"].pop("sampler", None)
    if "sequence_length" in job["data"] and job["model"].get("vocab_size", 0) > 100:  # no batch of an epoch is cut
        job["data"]["train"] = "@large.bin"
    if job["optimizer"]["name"] in ("lion", "adagrad", "muon"):  # signs, and roots of nothing, make much of a last bit
        job["optimizer"] = {"name": "adamw"}
    if t["lr_scheduler_type"] == "reduce_lr_on_plateau":
        t["lr_scheduler_type"] = "constant"
        job.pop("scheduler")
    if job["model"]["name"] == "resnet":
        t["sync_batch_norm"] = True
    sizes = [(n, k, total // n // k) for n in (1, 2, 3, 4, 5, 8) for k in (1, 2, 3) if total % (n * k) == 0]
    if job["model"]["name"] in ("resnet", "mlp"):  # statistics are of a micro-step, and those of mlp of a rank
        sizes = [s for s in sizes if s[1] == 1 and (s[0] == 1 or job["model"]["name"] == "resnet")]
    for name, plain in (("left", True), ("right", False)):
        ranks, micro_steps, batch = r.choice(sizes)
        t["gradient_accumulation_steps"] = micro_steps
        side = draw_side(r, job, ranks, "boundary", plain=plain)
        side["training"].update({"gradient_accumulation_steps": micro_steps, "batch_size_per_gpu": batch})
        trial[name] = side
    del t["gradient_accumulation_steps"], t["batch_size_per_gpu"]
    trial["within"] = 1e-9 if t["precision"] == "64-true" else 3e-4
