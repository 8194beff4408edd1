# covers: launcher/options/options_accelerate.c worker/job/dialects worker/job/convert.c cmd/train.c cmd/train/answer.c base/yaml.c
"""Files of accelerate, Hugging Face and Lightning train as the same job in our keys, bit by bit; what
`train` says of them on the command line."""

import json
import os
import subprocess

import pytest
import support
import training

TRAIN = os.path.join(support.BIN, "train")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="train is not built")

ACCELERATE = """# one machine
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_forward_prefetch: true
mixed_precision: 'no'
num_machines: 1
num_processes: 2
use_cpu: true
"""
ARGUMENTS = """per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 2e-3
weight_decay: 0.1
max_steps: 6
lr_scheduler_type: cosine
warmup_steps: 2
logging_steps: 1
save_strategy: 'no'
seed: 5
report_to: [wandb]
dataloader_num_workers: 4
"""
LIGHTNING = """seed_everything: 5
trainer:
  accelerator: cpu
  devices: 2
  strategy: fsdp
  max_steps: 6
  accumulate_grad_batches: 2
  log_every_n_steps: 1
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 2.e-3, weight_decay: 0.1}
"""
OURS = {"batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "learning_rate": 2e-3, "weight_decay": 0.1, "max_steps": 6, "seed": 5, "threads": 1}


def call(*args, code=0):
    done = subprocess.run([TRAIN, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    return done


def write(path, text):
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(path)


def run(folder, name, job, sets=()):
    out = str(folder / name)
    done = training.train(job, out, ranks=2, sets=list(sets))
    assert done.code == 0, done
    return done, (training.hash_of(out), training.metrics(out))


def test_files_train_as_ours(tmp_path):
    plain = json.load(open(training.make_job(str(tmp_path), "job.json")))
    base = {"model": plain["model"], "data": plain["data"]}
    write(tmp_path / "accelerate.yaml", ACCELERATE)
    write(tmp_path / "arguments.yaml", ARGUMENTS)
    write(tmp_path / "lightning.yaml", LIGHTNING)
    theirs = write(tmp_path / "theirs.json", {**base, "training": {"threads": 1}, "accelerate": "accelerate.yaml", "transformers": "arguments.yaml"})
    ours = write(tmp_path / "ours.json", {**base, "training": {**OURS, "strategy": "shard_grad_op", "lr_scheduler_type": "cosine", "warmup_steps": 2, "loss_normalization": "global_tokens"},
                                          "checkpointing": {"save_every_n_steps": 0}, "logging": {"log_every_n_steps": 1}})
    done, first = run(tmp_path, "theirs", theirs)
    _, second = run(tmp_path, "ours", ours)
    assert first == second and len(first[1]) == 6
    told = [line for line in (done.out + done.err).splitlines() if "no effect: " in line]
    assert len(told) == 1 and "report_to (the numbers are in metrics.jsonl" in told[0]
    theirs = write(tmp_path / "trainer.json", {**base, "training": {"threads": 1, "batch_size_per_gpu": 2}, "lightning": "lightning.yaml"})
    ours = write(tmp_path / "plain.json", {**base, "training": {**OURS, "strategy": "full_shard", "lr_scheduler_type": "constant", "max_grad_norm": 0}, "logging": {"log_every_n_steps": 1}})
    assert run(tmp_path, "trainer", theirs)[1] == run(tmp_path, "plain", ours)[1]


STOPS = """seed_everything: 5
trainer:
  accelerator: cpu
  devices: 2
  max_epochs: 4
  limit_train_batches: 12
  limit_val_batches: 0.5
  val_check_interval: 0.5
  num_sanity_val_steps: -1
  log_every_n_steps: 1
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val/loss, patience: 2, min_delta: 0.1}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {monitor: val/loss, save_top_k: 2}
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 3.e-2}
"""
BEST = """per_device_train_batch_size: 2
learning_rate: 2e-3
num_train_epochs: 1
max_steps: 20
eval_strategy: steps
eval_steps: 0.25
save_strategy: best
load_best_model_at_end: true
metric_for_best_model: eval_loss
early_stopping_patience: 3
seed: 5
"""


def kept(folder):
    return sorted(os.listdir(folder / "checkpoints"))


def test_ends_and_best_checkpoints_as_ours(tmp_path):
    plain = json.load(open(training.make_job(str(tmp_path), "job.json")))
    base = {"model": plain["model"], "data": plain["data"]}
    write(tmp_path / "stops.yaml", STOPS)
    write(tmp_path / "best.yaml", BEST)
    theirs = write(tmp_path / "stops.json", {**base, "training": {"threads": 1, "batch_size_per_gpu": 2}, "lightning": "stops.yaml"})
    ours = write(tmp_path / "ends.json", {
        **base,
        "training": {"batch_size_per_gpu": 2, "seed": 5, "threads": 1, "num_epochs": 4, "limit_train_batches": 12, "eval_batches": 0.5, "eval_every_n_epochs": 0.5,
                     "num_sanity_val_steps": -1, "learning_rate": 3e-2, "weight_decay": 0.01, "lr_scheduler_type": "constant", "max_grad_norm": 0},
        "early_stopping": {"monitor": "val_loss", "patience": 2, "min_delta": 0.1}, "logging": {"log_every_n_steps": 1},
        "checkpointing": {"save_top_k": 2, "save_every_n_epochs": 1, "keep_last_n": 1}})
    done, first = run(tmp_path, "stops", theirs)
    _, second = run(tmp_path, "ends", ours)
    assert first == second and 12 < len(first[1]) < 48 and "early stopping: val_loss" in done.err, done
    assert kept(tmp_path / "stops") == kept(tmp_path / "ends")
    theirs = write(tmp_path / "best.json", {**base, "training": {"threads": 1}, "transformers": "best.yaml"})
    ours = write(tmp_path / "own.json", {
        **base, "training": {"batch_size_per_gpu": 2, "seed": 5, "threads": 1, "max_steps": 20, "eval_every_n_steps": 5, "learning_rate": 2e-3,
                     "loss_normalization": "global_tokens"},
        "early_stopping": {"monitor": "val_loss", "patience": 3, "check_finite": False},
        "checkpointing": {"save_top_k": 1, "save_every_n_steps": 0, "keep_last_n": 0, "load_best_model_at_end": True}})
    assert run(tmp_path, "best", theirs)[1] == run(tmp_path, "own", ours)[1]
    assert kept(tmp_path / "best") == kept(tmp_path / "own")


def test_launched_by_accelerates_file(tmp_path):
    plain = json.load(open(training.make_job(str(tmp_path), "job.json")))
    base = {"model": plain["model"], "data": plain["data"], "training": {**OURS, "max_steps": 3}}
    job, file = write(tmp_path / "ours.json", base), write(tmp_path / "a.yaml", ACCELERATE)
    done = support.run(["--config_file", file, "train", job, "--output_dir", str(tmp_path / "file")])
    assert done.code == 0, done
    same = write(tmp_path / "same.json", {**base, "training": {**base["training"], "strategy": "shard_grad_op"}, "fsdp": {"forward_prefetch": True}})
    assert training.train(same, str(tmp_path / "same"), ranks=2).code == 0
    assert training.hash_of(str(tmp_path / "file")) == training.hash_of(str(tmp_path / "same"))
    done = support.run(["--config_file", file, "--num_processes", "1", "train", job, "--output_dir", str(tmp_path / "one")])
    assert done.code == 0 and "a.yaml:11:1: num_processes: 2, but --num_processes: 1: that counts" in done.err, done


def test_beside_a_job(tmp_path):
    job = write(tmp_path / "job.json", {"model": {"name": "gpt2"}, "data": {"train": "x"}})
    one, other = write(tmp_path / "a.yaml", ACCELERATE.replace("num_processes: 2", "num_processes: 1")), write(tmp_path / "t.yaml", ARGUMENTS)
    text = call("--print-config", "--config", one, "--config", other, job).stdout
    assert "shard_grad_op" in text and "t.yaml:3:1" in text
    wrong = call("--print-config", "--config", write(tmp_path / "b.yaml", "learning_rate: 1\noptim: x\nbf16: true\n"), "--config", one, job, code=2).stderr
    assert sorted(line.split(": ")[2] for line in wrong.splitlines()) == ["mixed_precision", "optim"]
    assert "say it in one place" in wrong and "a.yaml:9:1" in wrong and "b.yaml:3:1" in wrong
    wrong = call("--print-config", "--config", job, job, code=2).stderr
    assert "beside a job file --config takes a file of DeepSpeed, Hugging Face, accelerate or Lightning" in wrong


def test_convert_and_explain(tmp_path):
    done = call("--convert", write(tmp_path / "a.yaml", ARGUMENTS), "--set", "model.name=gpt2", "--set", "data.train=x")
    job = json.loads(done.stdout)
    assert job["training"]["learning_rate"] == 2e-3 and job["checkpointing"]["save_every_n_steps"] == 0
    assert done.stderr == "train: report_to (the numbers are in metrics.jsonl, and with logging.csv in a table): no effect\n"
    out = tmp_path / "out.json"
    assert call("--convert", tmp_path / "a.yaml", "-o", out).stdout == ""
    assert json.loads(out.read_text())["training"] == job["training"]
    call("--convert", tmp_path / "missing.yaml", code=2)
    assert "(DeepSpeed)" in call("--explain", "zero_optimization.stage").stdout
    assert "did you mean max_epochs?" in call("--explain", "max_epoch", code=2).stderr
    job = write(tmp_path / "s.json", {"strategies": {"mine": {"base": "zero2", "description": "ours"}}, "data": {"train": "x"}})
    assert call("--list-strategies", job).stdout.endswith("mine\n    zero2: ours\n")
    shown = call("--print-config", "--mode", "mine", "--set", "model.name=gpt2", job).stdout
    assert [line.split()[1:] for line in shown.splitlines() if line.startswith("training.strategy ")] == [['"zero2"', job.rsplit("/", 1)[1] + ":1:26"]]
