# covers: configs/resnet-fashion-mnist.json worker/data/images/idx.c scripts/setup.sh
"""The examples in configs/, in short: what they train on comes with scripts/setup.sh --examples, and they learn from it."""

import json
import os

import pytest

import support
from models import metrics, train

FASHION = os.path.join(support.ROOT, "configs/resnet-fashion-mnist.json")


def test_fashion_mnist(tmp_path):
    """40 steps of 64 images on two ranks, one layer a stage, of about 7000 steps of 128 of the whole example: from 10 % to above 45 % of 768
    images right."""
    with open(FASHION) as f:
        job = json.load(f)
    for path in (job["data"]["train"], job["data"]["val"]):
        if not os.path.exists(path):
            pytest.skip(f"no {path}: scripts/setup.sh --examples installs it")
    train(FASHION, tmp_path / "run", 2, "model.depths=[1, 1, 1]", "training.max_steps=40", "training.batch_size_per_gpu=32", "training.eval_every_n_steps=0",
          "training.eval_batches=12", "logging.log_every_n_steps=1", "training.threads=1")
    losses = metrics(tmp_path / "run", "loss")
    assert len(losses) == 40 and sum(losses[-5:]) / 5 < 1.4
    assert metrics(tmp_path / "run", "val_accuracy")[-1] > 0.45
