# covers: worker/data/images/source.c worker/data/images/transforms.c worker/data/images/folder.c worker/data/images/idx.c worker/data/data.c
"""A ResNet trains straight from files of images: the same losses from a folder of PNG files, from IDX and from the same pixels as tensors;
with augmentation the same on one rank and two, and after a resume; damaged images end the run or are skipped."""

import gzip
import json
import os
import random
import shutil
import struct
import subprocess
import zlib

import pytest

import support
from models import metrics, train, weights_hash

COUNT, SIDE, CLASSES = 24, 12, 3
AUGMENTED = {"random_crop": SIDE, "padding": 2, "random_horizontal_flip": 0.5, "mean": 0.3, "std": 0.4}


def images():
    """[(label, bytes)]: gray, sorted by label as a folder has them; each class has a pattern of its own."""
    r = random.Random(4)
    labels = [i * CLASSES // COUNT for i in range(COUNT)]
    return [(k, bytes(r.randrange(60) + 70 * k + (50 if (x + k * y) % 4 == 0 else 0) for y in range(SIDE) for x in range(SIDE))) for k in labels]


def png(pixels):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + pixels[y * SIDE:(y + 1) * SIDE] for y in range(SIDE))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) +
            chunk(b"IEND", b""))


def make_folder(root):
    for i, (label, pixels) in enumerate(images()):
        os.makedirs(root / f"kind-{label}", exist_ok=True)
        (root / f"kind-{label}" / f"{i:02d}.png").write_bytes(png(pixels))
    return str(root)


def make_idx(folder):
    rows = images()
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as f:
        f.write(struct.pack(">IIII", 0x803, COUNT, SIDE, SIDE) + b"".join(p for _, p in rows))
    with gzip.open(folder / "train-labels-idx1-ubyte.gz", "wb") as f:
        f.write(struct.pack(">II", 0x801, COUNT) + bytes(label for label, _ in rows))
    return str(folder / "train-*-ubyte.gz")


def make_tensors(folder, mean=0.0, std=1.0):
    """The same pixels as torchvision's ToTensor and Normalize give them, in fp32."""
    def f32(x):
        return struct.unpack("f", struct.pack("f", x))[0]
    value = [f32(f32(f32(i / 255) - f32(mean)) / f32(std)) for i in range(256)]
    rows = images()
    pixels = struct.pack(f"<{COUNT * SIDE * SIDE}f", *(value[x] for _, p in rows for x in p))
    labels = struct.pack(f"<{COUNT}q", *(label for label, _ in rows))
    head = json.dumps({"pixel_values": {"dtype": "F32", "shape": [COUNT, 1, SIDE, SIDE], "data_offsets": [0, len(pixels)]},
                       "labels": {"dtype": "I64", "shape": [COUNT], "data_offsets": [len(pixels), len(pixels) + len(labels)]}}).encode()
    (folder / "train.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + pixels + labels)
    return str(folder / "train.safetensors")


def make_job(folder, files, name="job.json", **sections):
    job = {
        "model": {"name": "resnet", "num_channels": 1, "image_size": SIDE, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                  "layer_type": "basic", "stem": "small", "num_labels": CLASSES},
        "data": {"train": files, "val": files},
        "training": {"batch_size_per_gpu": 4, "max_steps": 12, "learning_rate": 0.05, "lr_scheduler_type": "constant", "threads": 1,
                     "sync_batch_norm": True, "eval_every_n_steps": 6},
        "optimizer": {"name": "sgd", "momentum": 0.9},
        "checkpointing": {"save_every_n_steps": 4},
        "logging": {"log_every_n_steps": 1},
    }
    for section, values in sections.items():
        job[section] = {**job.get(section, {}), **values}
    path = folder / name
    path.write_text(json.dumps(job))
    return str(path)


def losses(out, keys=("loss", "val_loss", "val_accuracy")):
    return [(m["step"], k, m[k]) for m in metrics(out) for k in keys if k in m]


@pytest.mark.parametrize("ranks", [1, 2])
def test_same_as_tensors(tmp_path, ranks):
    """One set of images in three forms: the same losses to the last bit, and the same weights."""
    transforms = {"mean": 0.3, "std": 0.4}
    runs = []
    for name, data, sections in [("tensors", make_tensors(tmp_path, **transforms), {}), ("folder", make_folder(tmp_path / "png"), {"transforms": transforms}),
                                 ("idx", make_idx(tmp_path), {"transforms": transforms})]:
        train(make_job(tmp_path, data, f"{name}.json", **sections), tmp_path / name, ranks)
        runs.append((losses(tmp_path / name), weights_hash(tmp_path / name)))
    assert runs[0] == runs[1] == runs[2]
    values = [v for _, k, v in runs[0][0] if k == "loss"]
    assert len(values) == 12 and sum(values[-4:]) < sum(values[:4])


def test_augmented(tmp_path):
    """The same losses on two ranks as on one, and after a resume in the middle of an epoch; other ones than without augmentation; the
    evaluation is never augmented."""
    data = make_folder(tmp_path / "png")
    job = make_job(tmp_path, data, transforms=AUGMENTED)
    train(job, tmp_path / "one", 1, "training.batch_size_per_gpu=8")
    train(job, tmp_path / "two", 2)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [x[:2] for x in one] == [x[:2] for x in two]
    assert [x[2] for x in one] == pytest.approx([x[2] for x in two], rel=1e-4)
    train(job, tmp_path / "half", 2, "training.max_steps=4")
    train(job, tmp_path / "half", 2)
    assert weights_hash(tmp_path / "half") == weights_hash(tmp_path / "two")
    train(job, tmp_path / "plain", 2, "transforms.random_crop=null", "transforms.padding=0", "transforms.random_horizontal_flip=0")
    assert losses(tmp_path / "plain") != two
    train(job, tmp_path / "other", 2, "training.seed=7", "training.learning_rate=0", "data.shuffle=false")
    train(job, tmp_path / "same", 2, "training.seed=7", "training.learning_rate=0", "data.shuffle=false")
    assert losses(tmp_path / "other") == losses(tmp_path / "same")
    seen = [v for _, k, v in losses(tmp_path / "other") if k == "loss"]
    assert len(set(seen)) == len(seen)  # the weights rest, and each epoch has crops of its own


def test_other_transforms_are_refused(tmp_path):
    job = make_job(tmp_path, make_folder(tmp_path / "png"), transforms=AUGMENTED)
    train(job, tmp_path / "run", 1, "training.max_steps=4")
    done = train(job, tmp_path / "run", 1, "transforms.padding=1", check=False)
    assert done.returncode != 0 and "transforms.padding" in done.stderr and "--accept" in done.stderr
    train(job, tmp_path / "run", 1, "transforms.padding=1", "checkpointing.accept=transforms.padding")


def damage(folder):
    """One file with pixels that cannot be decoded behind a good header."""
    path = f"{folder}/kind-1/10.png"
    with open(path, "r+b") as f:
        f.truncate(60)
    return path


@pytest.mark.parametrize("ranks", [1, 2])
def test_damaged(tmp_path, ranks):
    folder = make_folder(tmp_path / "png")
    path = damage(folder)
    job = make_job(tmp_path, folder)
    done = train(job, tmp_path / "refused", ranks, check=False)
    assert done.returncode == 100 and f"{path}: damaged PNG: " in done.stderr and 'data.on_bad_image to "skip"' in done.stderr
    done = train(job, tmp_path / "skipped", ranks, "data.on_bad_image=skip")
    assert f"skipped: {path}: damaged PNG: " in done.stderr and "damaged images that this rank skipped: 1 (1 of kind-1)" in done.stderr
    assert len([1 for _, k, _ in losses(tmp_path / "skipped") if k == "loss"]) == 12
    with open(path, "r+b") as f:
        f.truncate(20)
    done = train(job, tmp_path / "at once", ranks, check=False)
    assert done.returncode == 2 and f"{path}: damaged PNG: the file is cut off (damaged: 1 of {COUNT} images)" in done.stderr
    done = train(job, tmp_path / "left out", ranks, "data.on_bad_image=skip")
    assert f"1 of {COUNT} images are skipped (1 of kind-1); the first: {path}: damaged PNG" in done.stderr


@pytest.mark.parametrize("section, values, text", [
    ("model", {"num_labels": 2}, "has class 2, but the model has 2 classes; raise model.num_labels to 3 or more"),
    ("model", {"image_size": 8}, "is 12 x 12 (height x width), but the model reads 8 x 8; set transforms.resize to [8, 8]"),
    ("transforms", {"random_crop": 20}, "smaller than transforms.random_crop (20 x 20); resize it first, or give more padding"),
    ("transforms", {"random_crop": 8, "random_resized_crop": 8}, "transforms.random_resized_crop does the same"),
    ("transforms", {"resize": [1, 2, 3]}, "transforms.resize: has 3 numbers; give one, or height and width"),
    ("transforms", {"resize": 1.5}, "is 1.5; give a whole number or a list of up to 4, from 1 to 8192, or null"),
    ("transforms", {"padding": 2}, "belongs to transforms.random_crop, which is not given"),
    ("transforms", {"scale": [1, 0.5]}, "transforms.scale: give two numbers, the lesser one first"),
    ("data", {"format": "cifar10"}, "is a folder; name its files"),
    ("data", {"train": "nowhere"}, "nowhere: no such file"),
])
def test_refuses(tmp_path, section, values, text):
    done = train(make_job(tmp_path, make_folder(tmp_path / "png"), **{section: values}), tmp_path / "run", check=False)
    assert done.returncode == 2 and text in done.stderr, done.stderr


def test_sizes(tmp_path):
    """A model of another size than the images have: resized and cropped."""
    data = make_folder(tmp_path / "png")
    for i, transforms in enumerate([{"resize": 8}, {"resize": [10, 9], "center_crop": 8}, {"resize": 8, "random_resized_crop": 8}]):
        train(make_job(tmp_path, data, model={"image_size": 8}, transforms=transforms), tmp_path / str(i), 1, "training.max_steps=2")
    assert len({tuple(losses(tmp_path / str(i), ("val_loss",))) for i in range(3)}) == 3


def test_transforms_of_tensors(tmp_path):
    done = train(make_job(tmp_path, make_tensors(tmp_path), transforms={"mean": 0.5}), tmp_path / "run", check=False)
    assert done.returncode == 2 and "data.train: tensors are taken as they are; remove the section transforms" in done.stderr


def test_folders_in_other_words(tmp_path):
    """An evaluation takes folders by their numbers only if there are as many as classes, and the model knows no name of them."""
    root = tmp_path / "png"
    job = make_job(tmp_path, make_folder(root))
    train(job, tmp_path / "out", 1)
    for rename, said in (({0: "n00", 1: "n01", 2: "n02"}, None), ({0: "kind-0", 1: "n01", 2: "n02"}, "class 1 is n01, which the model does not have")):
        other = tmp_path / f"png-{rename[0]}"
        for k, name in rename.items():
            shutil.copytree(root / f"kind-{k}", other / name)
        args = [support.program("train"), "--evaluate", tmp_path / "out", job, "--set", f"data.val={other}"]
        p = subprocess.run(args, capture_output=True, text=True, timeout=support.DEADLINE_S, check=False, env=support.clean_env())
        assert p.returncode == 2 and said in p.stderr if said else p.returncode == 0, p
