# covers: configs/resnet-fashion-mnist.json configs/gpt2-text.json configs/llama-text.json configs/minilm-spam.json configs/smollm2-text.json
# covers: worker/data/images/idx.c scripts/setup.sh scripts/example.sh scripts/machine_text.sh scripts/messages.py
"""The examples in configs/, in short, as scripts/example.sh runs them: they learn from what they train on. What comes with
scripts/setup.sh --examples and --models is skipped where it is not there.

run: timeout 600
run: nosan: weights of this size take minutes there, and small ones go the same way in other stories"""

import json
import os
import re
import subprocess

import pytest

import support
from models import metrics, train

FASHION = os.path.join(support.ROOT, "configs/resnet-fashion-mnist.json")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtrun")
MODELS, EXAMPLES = os.environ.get("DTRUN_MODELS") or f"{CACHE}/models", os.environ.get("DTRUN_EXAMPLES") or f"{CACHE}/examples"


def example(name, folder, *sets, **env):
    """The words of scripts/example.sh, which makes runs/ in the folder."""
    command = ["sh", os.path.join(support.ROOT, "scripts/example.sh"), name, *(word for s in sets for word in ("--set", s))]
    build = os.path.dirname(os.path.dirname(support.program("train")))
    r = subprocess.run(command, check=False, capture_output=True, text=True, timeout=570, cwd=folder, env={**os.environ, "B": build, **env})
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def needs(*paths):
    for path, option in paths:
        if not os.path.exists(path):
            pytest.skip(f"no {path}: scripts/setup.sh {option}")


def test_fashion_mnist(tmp_path):
    """40 steps of 64 images on two ranks, one layer a stage, of about 7000 steps of 128 of the whole example: from 10 % to above 45 % of 768
    images right."""
    with open(FASHION) as f:
        job = json.load(f)
    needs(*((path, "--examples") for path in (job["data"]["train"], job["data"]["val"])))
    train(FASHION, tmp_path / "run", 2, "model.depths=[1, 1, 1]", "training.max_steps=40", "training.batch_size_per_gpu=32", "training.eval_every_n_steps=0",
          "training.eval_batches=12", "logging.log_every_n_steps=1", "training.threads=1")
    losses = metrics(tmp_path / "run", "loss")
    assert len(losses) == 40 and sum(losses[-5:]) / 5 < 1.4
    assert metrics(tmp_path / "run", "val_accuracy")[-1] > 0.45


@pytest.mark.parametrize(("name", "layers"), (("gpt2-text", "n_layer"), ("llama-text", "num_hidden_layers")))
def test_text(tmp_path, name, layers):
    """60 steps of 512 tokens through one layer, of 600 steps of 2048 through four: below the 5.5 bits per byte of letters at random. What
    the example says to do next works."""
    text = " ".join(p for p in ("/usr/include/asm-generic", "/usr/include/linux/netfilter", "/usr/share/common-licenses") if os.path.exists(p))
    sets = (f"model.{layers}=1", "data.sequence_length=64", "training.batch_size_per_gpu=4", "training.max_steps=60", "training.warmup_steps=5",
            "training.eval_every_n_steps=30", "training.eval_batches=8", "training.threads=1", "logging.sample_every_n_steps=0")
    said = example(name, tmp_path, *sets, DTRUN_TEXT=text)
    bits = metrics(tmp_path / "runs" / name, "val_bits_per_byte")
    assert len(bits) == 2 and bits[1] < bits[0] and bits[1] < 4.5
    command = re.search(r"next: (.*)", said)[1]
    done = subprocess.run(["sh", "-c", f"{command} --max_new_tokens 8"], check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("#include <"), done
    again = example(name, tmp_path, *sets, DTRUN_TEXT=text)
    assert "train-tokenizer" not in again and "dtdata" not in again  # what is there is used again


def test_minilm_spam(tmp_path):
    """30 steps of 16 messages, of 408 steps of 32: above 93 % of 160 messages right, where 87 % are ham."""
    needs((f"{MODELS}/minilm/config.json", "--peers --models"), (f"{EXAMPLES}/sms.tsv", "--examples"))
    example("minilm-spam", tmp_path, "training.max_steps=30", "training.batch_size_per_gpu=8", "training.learning_rate=2e-4", "training.eval_every_n_steps=0",
            "training.eval_batches=10", "training.threads=1", "logging.log_every_n_steps=1")
    assert metrics(tmp_path / "runs/minilm-spam", "val_accuracy")[-1] > 0.93
    with open(tmp_path / "runs/minilm-spam/model/config.json") as f:
        assert json.load(f)["id2label"] == {"0": "ham", "1": "spam"}


def test_smollm2_text(tmp_path):
    """4 steps of 128 tokens, of 200 steps of 2048: the perplexity on held-out headers falls by a tenth; that on English is known before and
    after, and is no worse than by a fifth."""
    needs((f"{MODELS}/smollm2/config.json", "--peers --models"))
    said = example("smollm2-text", tmp_path, "data.sequence_length=64", "training.gradient_accumulation_steps=1", "training.max_steps=4",
                   "training.warmup_steps=0", "training.learning_rate=3e-4", "training.eval_every_n_steps=0", "training.eval_batches=2", "training.threads=1",
                   "checkpointing.save_every_n_steps=0", DTRUN_TEXT="/usr/include/asm-generic /usr/include/linux/netfilter")
    perplexity = [json.loads(line)["val_perplexity"] for line in said.splitlines() if line.startswith('{"step"')]
    headers, english = perplexity[0::2], perplexity[1::2]
    assert len(perplexity) == 4 and headers[1] < 0.9 * headers[0] and english[1] < 1.2 * english[0], said
