#!/usr/bin/env python3
"""PIL for `bench data`, which starts this.

Each line on stdin is `decode FOLDER` or `sample FOLDER`; the answer is the processor's seconds for all images in the folder's only class: decoded from
memory to RGB; or read, decoded, cropped at random, resized to 224 x 224 (bilinear), mirrored half the time, and made normalised numbers by NumPy, as
torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize do it.
"""
import glob, io, math, random, sys, time

import numpy as np
from PIL import Image

SIDE = 224
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None], np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


def crop(width, height):
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def sample(path):
    with open(path, "rb") as f:
        image = Image.open(f).convert("RGB")
    image = image.crop(crop(*image.size)).resize((SIDE, SIDE), Image.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    x = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)).astype(np.float32) / np.float32(255)
    return (x - MEAN) / STD


for line in sys.stdin:
    what, folder = line.split()
    paths = sorted(glob.glob(f"{folder}/*/*"))
    held = [open(p, "rb").read() for p in paths]
    begin = time.process_time()
    for path, data in zip(paths, held):
        if what == "decode":
            Image.open(io.BytesIO(data)).convert("RGB").load()
        else:
            sample(path)
    print(time.process_time() - begin, flush=True)
