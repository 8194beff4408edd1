# covers: worker/data/images/png.c worker/data/images/jpeg.c worker/data/images/pnm.c worker/data/images/image.c worker/data/images/resize.c
"""Decoded and resized pixels are PIL's, bit for bit; PIL makes the files and judges."""

import io
import os
import subprocess

import pytest

import support

PEERS = os.environ.get("DTRUN_PEERS") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "dtrun", "peers")
PYTHON = os.path.join(PEERS, "bin/python")
PIXELS = os.path.join(support.TOOLS, "pixels")
SIZES = [None, (37, 53), (8, 8), (120, 11), (11, 120)]  # width, height

# Images of many kinds, then the pixels that PIL has for them: for each of SIZES a file NUMBER-CHANNELS-SIZE.raw.
MAKE = r"""
import os, random, sys
from PIL import Image
import PIL
folder, sizes = sys.argv[1], eval(sys.argv[2])
if int(PIL.__version__.split(".")[0]) < 13:
    sys.exit("PIL " + PIL.__version__ + " resizes in another order")
r, count = random.Random(1), 0
def noise(width, height, mode):
    w, h = max(1, width // 4), max(1, height // 4)
    return Image.frombytes(mode, (w, h), r.randbytes(w * h * len(mode))).resize((width, height), Image.BICUBIC)
def save(image, end, **options):
    global count
    path = f"{folder}/{count:03d}.{end}"
    image.save(path, **options)
    for channels in (1, 3):
        x = Image.open(path).convert({1: "L", 3: "RGB"}[channels])
        for i, size in enumerate(sizes):
            with open(f"{folder}/{count:03d}-{channels}-{i}.raw", "wb") as f:
                f.write((x if size is None else x.resize(size, Image.BILINEAR)).tobytes())
    count += 1
for i in range(8):
    size = r.randint(1, 90), r.randint(1, 90)
    for mode in ("L", "RGB"):
        x = noise(*size, mode)
        save(x, "png")
        save(x, "jpg", quality=(30, 75, 95)[i % 3], progressive=i % 2 == 0, subsampling=i % 3 if mode == "RGB" else -1)
        save(x, "ppm" if mode == "RGB" else "pgm")
    save(noise(*size, "RGBA"), "png")
    x = noise(*size, "RGB")
    save(x.quantize((2, 4, 16, 200)[i % 4]), "png")
    save(x.convert("1"), "png")
    save(x.convert("LA"), "png")
    save(x.convert("CMYK"), "jpg", quality=80)
    with open(f"{folder}/16.ppm", "wb") as f:
        most = (65535, 1000, 3)[i % 3]
        f.write(b"P6 %d %d\n# a comment\n%d\n" % (*size, most))
        f.write(b"".join(r.randint(0, most).to_bytes(2 if most > 255 else 1, "big") for _ in range(size[0] * size[1] * 3)))
    os.rename(f"{folder}/16.ppm", f"{folder}/{count:03d}.ppm")
    x = Image.open(f"{folder}/{count:03d}.ppm")
    x.load()
    for channels in (1, 3):
        y = x.convert({1: "L", 3: "RGB"}[channels])
        for k, s in enumerate(sizes):
            with open(f"{folder}/{count:03d}-{channels}-{k}.raw", "wb") as f:
                f.write((y if s is None else y.resize(s, Image.BILINEAR)).tobytes())
    count += 1
"""


def ours(paths, channels, size):
    """The pixels of each file."""
    command = [PIXELS, str(channels), *([] if size is None else [str(size[1]), str(size[0])]), "--raw"]
    done = subprocess.run(command, input=("\n".join(paths) + "\n").encode(), capture_output=True, timeout=support.DEADLINE_S, check=True)
    stream, out = io.BytesIO(done.stdout), []
    for _ in paths:
        line = stream.readline().decode()
        out.append(line if line.startswith("error") else stream.read(int(line.split()[0]) * int(line.split()[1]) * channels))
    return out


def test_pixels_of_pil(tmp_path):
    if not os.path.exists(PYTHON) or subprocess.run([PYTHON, "-c", "import PIL"], capture_output=True).returncode != 0:
        pytest.skip("no PIL; scripts/setup.sh --peers installs it")
    done = subprocess.run([PYTHON, "-c", MAKE, str(tmp_path), repr(SIZES)], capture_output=True, text=True, timeout=support.DEADLINE_S)
    if done.returncode == 1 and "another order" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    paths = sorted(str(p) for p in tmp_path.iterdir() if p.suffix != ".raw")
    assert len(paths) > 80
    for channels in (1, 3):
        for i, size in enumerate(SIZES):
            for path, pixels in zip(paths, ours(paths, channels, size)):
                with open(f"{os.path.splitext(path)[0]}-{channels}-{i}.raw", "rb") as f:
                    assert pixels == f.read(), (path, channels, size)
