#!/usr/bin/python3
"""Records of what the programs did once, and whether they still do the same.

    records.py check  [--bin=FOLDER] [--data=FOLDER] [--short] [PART ...]
    records.py record [--bin=FOLDER] [--data=FOLDER] [PART ...]

Parts are shards, train, plan, calls, checkpoint and wire; without names all of them run. --bin holds
dtrun, train, dtckpt, dtdata and bench (default build/bin), --data the records (default: the folder of
this script). --short takes a few trainings and shapes only. README.md beside this file says what each
record holds, and when to make it anew. check closes each part with ok or FAIL. Exit code: 0 the same,
1 something differs or failed, 2 wrong use.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import wire

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TIMEOUT_S = 300  # for one program
# What of our surroundings the programs see. Nothing else, so that no launcher or test steers them.
KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DTRUN_CACHE", "RUN_TESTS_MARK", "STORY_MARKER")
# One path through the kernels, whatever the CPU could do beyond it. See README.md.
PINS = {"DTRUN_CPU": "avx2", "DTRUN_BF16": "f32", "DTRUN_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
PLAIN = {"DTRUN_CPU": "plain"}  # without vectors: the same bits on every x86-64


class Place:
    """The programs, the folder of the records, and a folder to work in that holds the shards."""

    def __init__(self, programs, data, work, short=False, recording=False):
        self.bin, self.data, self.work, self.short, self.recording = programs, data, work, short, recording
        self.skipped = ""  # why a part could not measure all that it should
        make_text(os.path.join(work, "text"))
        self.run("dtdata", "tokenize", "--tokenizer", "bytes", "--holdout", "0.2", "-o", "shards", "text")

    def environment(self, extra=None):
        return {**{k: os.environ[k] for k in KEPT if k in os.environ}, **PINS, **(extra or {})}

    def run(self, program, *args, env=None, fine=(0,)):
        """Standard output of one of our programs, which runs in the folder to work in."""
        command = [os.path.join(self.bin, program), *map(str, args)]
        p = subprocess.run(command, env=self.environment(env), cwd=self.work, stdin=subprocess.DEVNULL, text=True,
                           timeout=TIMEOUT_S, capture_output=True, errors="replace", check=False)
        if p.returncode not in fine:
            said = (p.stderr or p.stdout).strip()[-2000:]
            raise RuntimeError(f"{' '.join(command)}\nended with {p.returncode}: {said}")
        return p.stdout

    def train(self, out, row, ranks, sets, env=None):
        """Trains to the end; "hash loss val_loss" of the last step."""
        words = [w for s in sets for w in ("--set", s)]
        job = os.path.join(self.data, "job.json")
        self.run("dtrun", f"--nproc_per_node={ranks}", "train", job, "--output_dir", out, "--mode", row, *words,
                 env=env)
        last = {}
        with open(os.path.join(self.work, out, "metrics.jsonl")) as f:
            for line in f:
                last.update(json.loads(line))
        return f"{self.run('dtckpt', 'hash', out).strip()} loss {last['loss']} val_loss {last['val_loss']}"


# ---- text that anybody can make again ----

def numbers(seed):
    """An endless list of numbers below 65536: SHA-256 of a counter."""
    counter = 0
    while True:
        digest = hashlib.sha256(f"{seed} {counter}".encode()).digest()
        yield from (int.from_bytes(digest[i:i + 2], "little") for i in range(0, 32, 2))
        counter += 1


def make_text(folder, files=10, lines=100):
    """Files of made-up words, of which a few are frequent, so that there is something to learn."""
    os.makedirs(folder)
    n = numbers("words")
    words = ["".join(chr(97 + next(n) % 26) for _ in range(1 + next(n) % 7)) for _ in range(100)]
    for i in range(files):
        n = numbers(f"file {i}")
        with open(os.path.join(folder, f"{i}.txt"), "w") as f:
            for _ in range(lines):
                f.write(" ".join(words[next(n) % (1 + next(n) % 100)] for _ in range(10)) + ".\n")


def shards(place):
    folder = os.path.join(place.work, "shards")
    return {("sha256", name): sha256(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


# ---- train: the demo's job, smaller, under each strategy ----

SMALL = ["data.train=shards/train-*.bin", "data.val=shards/val-*.bin", "data.sequence_length=32", "model.n_embd=32",
         "model.n_head=2", "model.n_positions=32", "training.batch_size_per_gpu=2", "training.max_steps=200",
         "training.warmup_steps=20", "training.eval_every_n_steps=100", "training.eval_batches=4", "training.threads=1",
         "logging.log_every_n_steps=100"]
PRECISION = {"fp32": "training.precision=32-true", "bf16": "training.precision=bf16-mixed"}
TWICE = "training.gradient_accumulation_steps=2"
FEW = ("ddp", "zero2", "full_shard")
# name: (settings, strategies (None: all), ranks, environment)
CASES = {
    "accumulate": ([TWICE], None, (1, 2, 3), {}),
    "whole": ([], FEW, (1, 2, 3), {}),
    "recompute": ([TWICE, "model.n_layer=3", "fsdp.backward_prefetch=none", "activation_checkpointing.enabled=true",
                   "activation_checkpointing.level=mlp"], FEW, (2,), {}),
    "tokens": (["training.gradient_accumulation_steps=3", "training.loss_normalization=global_tokens",
                "training.weight_decay=0", "training.lr_scheduler_type=linear", "training.max_grad_norm=0.05",
                "training.seed=7"], FEW, (3,), {}),
    "moments": ([TWICE, "training.optimizer_state_dtype=bf16"], FEW, (2,), {}),
    "boundary": ([TWICE, "training.accumulate_sync=boundary", "mixed_precision.reduce_dtype=fp32"], FEW, (3,), {}),
    "replicas": ([TWICE, "fsdp.device_mesh=[2,1]"], ("hybrid_shard", "hybrid_shard_zero2"), (2,), {}),
    "threads": ([TWICE, "training.threads=2"], FEW, (2,), {}),
    "portable": ([TWICE], FEW, (2,), PLAIN),
}
SHORT = {("accumulate", "fp32", 2): ("zero1", "zero3"), ("accumulate", "bf16", 3): ("ddp", "shard_grad_op"),
         ("moments", "bf16", 2): ("full_shard",), ("threads", "fp32", 2): ("ddp",), ("portable", "fp32", 2): ("zero2",)}


def rows_of(place, ranks):
    """The strategies that so many ranks may have, by the name of their row."""
    rows = []
    for line in place.run("train", "--list-strategies").splitlines():
        if line.startswith("not there yet"):
            break
        if line and not line.startswith(" "):
            rows.append(line)
    return [r for r in rows if ranks == 1 or r != "single_device"]


def missing_for_avx2():
    """Why this machine cannot repeat bits of AVX2; "" when it can."""
    with open("/proc/cpuinfo") as f:
        flags = re.search(r"^flags\s*:(.*)", f.read(), re.M)
    return "" if flags and {"avx2", "fma"} <= set(flags.group(1).split()) else "this CPU has no AVX2 and FMA"


def train(place):
    place.skipped = missing_for_avx2()
    found = {}
    for name, (sets, some, all_ranks, env) in CASES.items():
        if place.skipped and env is not PLAIN:
            continue
        for dtype, precision in PRECISION.items():
            for ranks in all_ranks:
                rows = SHORT.get((name, dtype, ranks), ()) if place.short else some or rows_of(place, ranks)
                for row in rows:
                    out = f"{name}-{dtype}-{ranks}-{row}"
                    found[f"{name} {dtype} {ranks}", row] = place.train(out, row, ranks, [*SMALL, precision, *sets],
                                                                        env)
                    shutil.rmtree(os.path.join(place.work, out))
    return found


# ---- plan: what is known of a job before it runs ----

LEFT_OUT = ("available",)  # of a plan: the machine's free memory
# name: (ranks, strategy, settings)
JOBS = {
    "demo": (1, "auto", []),
    "124M": (8, "full_shard", ["model.n_layer=12", "model.n_embd=768", "model.n_head=12", "model.n_positions=1024",
                               "model.vocab_size=50257", "data.sequence_length=1024", "training.batch_size_per_gpu=4",
                               "training.gradient_accumulation_steps=4", "training.precision=bf16-mixed",
                               "activation_checkpointing.enabled=true", "activation_checkpointing.level=block"]),
    "355M": (4, "zero1", ["model.n_layer=24", "model.n_embd=1024", "model.n_head=16", "model.n_positions=512",
                          "model.vocab_size=50304", "data.sequence_length=512", "mixed_precision.param_dtype=bf16",
                          "mixed_precision.reduce_dtype=fp32", "activation_checkpointing.enabled=true",
                          "activation_checkpointing.level=cheap", "training.accumulate_sync=every_micro_step",
                          "training.gradient_accumulation_steps=2"]),
    "mesh": (8, "hybrid_shard", ["fsdp.device_mesh=[2,4]", "model.n_layer=6", "model.n_embd=384", "model.n_head=6",
                                 "training.optimizer_state_dtype=bf16", "training.precision=bf16-mixed",
                                 "activation_checkpointing.enabled=true", "activation_checkpointing.level=mlp",
                                 "activation_checkpointing.checkpoint_every_n_layers=2", "fsdp.forward_prefetch=true"]),
    "ragged": (3, "ddp", ["model.n_layer=5", "model.n_embd=48", "model.n_head=3", "model.n_positions=37",
                          "model.vocab_size=257", "model.n_inner=100", "data.sequence_length=37",
                          "training.batch_size_per_gpu=5", "training.gradient_accumulation_steps=3",
                          "training.max_steps=-1", "training.num_epochs=2", "ddp.bucket_cap_mb=0.05",
                          "training.loss_normalization=global_tokens"]),
}


def plan(place):
    found = {}
    for name, (ranks, row, sets) in JOBS.items():
        words = [w for s in (*SMALL[:2], *sets) for w in ("--set", s)]
        job = os.path.join(place.data, "job.json")
        text = place.run("train", "--plan", "--json", "--nproc", ranks, "--mode", row, job, *words,
                         fine=(0, 2))  # 2: this machine has not enough memory for the job
        if not text.startswith("{"):
            raise RuntimeError(f"plan of {name}: no JSON: {text}")
        values = json.loads(text)
        values.update({f"bytes.{key}": value for key, value in values.pop("bytes").items()})
        found.update({(name, key): json.dumps(value) for key, value in values.items() if key not in LEFT_OUT})
    return found


# ---- calls: kernels of a step, and the order in which a step's work is put in ----

FLOORS = {
    "fp32 cheap": ["--dtype=fp32", "--size=L2C64", "--batch=2", "--positions=64", "--micro-steps=2", "--level=cheap"],
    "bf16 cheap": ["--dtype=bf16", "--size=L2C64", "--batch=2", "--positions=64", "--micro-steps=2", "--level=cheap"],
    "fp32 none": ["--dtype=fp32", "--size=L3C64", "--batch=3", "--positions=20", "--micro-steps=1", "--level=none"],
    "bf16 mlp": ["--dtype=bf16", "--size=L3C64", "--batch=1", "--positions=33", "--micro-steps=3", "--level=mlp"],
    "bf16 block": ["--dtype=bf16", "--size=L4C128", "--batch=2", "--positions=16", "--micro-steps=2", "--level=block"],
}
QUICK = ["--vocab=256", "--repeats=1", "--steps=1", "--threads=1", "--copy=1", "--square=64"]  # its times do not count


def calls(place):
    found = {}
    for name, words in list(FLOORS.items())[:1 if place.short else None]:
        for line in place.run("bench", "floor", *words, *QUICK, env=PLAIN).splitlines():
            row = json.loads(line)
            if "calls" in row:
                kernel = row["case"].split(",")[0].split()[2]
                found[name, kernel] = f"{row['calls']} calls, {row['bytes']} bytes, {row.get('flops', 0)} flops"
    for dtype in ("fp32",) if place.short else ("fp32", "bf16"):
        for row in ("zero3",) if place.short else rows_of(place, 2):
            found.update({(f"{dtype} {lane}", row): text for lane, text in timeline(place, dtype, row).items()})
    return found


def timeline(place, dtype, row):
    """{lane: names of its spans in their order} of the second step of rank 0 of 2."""
    out = f"timeline-{dtype}-{row}"
    place.train(out, row, 2, [*SMALL, PRECISION[dtype], TWICE, "training.max_steps=3", "training.warmup_steps=1",
                              "logging.timeline_steps=[2,1]"], PLAIN)
    with open(os.path.join(place.work, out, "timeline-rank-0.json")) as f:
        events = json.load(f)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return {names[lane]: ", ".join(e["name"] for e in events if e["ph"] == "X" and e["tid"] == lane)
            for lane in sorted({e["tid"] for e in events if e["ph"] == "X"})}


# ---- checkpoint: small ones with all their state, which later programs load and go on from ----

TINY = [*SMALL, TWICE, "data.sequence_length=16", "model.n_embd=8", "model.n_positions=16", "training.max_steps=60",
        "training.batch_size_per_gpu=16", "checkpointing.save_every_n_steps=30", "checkpointing.keep_last_n=0"]
STEP = "step-00000030"
# name: (strategy, ranks, settings, [(strategy, ranks) to go on with])
CHECKPOINTS = {
    "fp32": ("zero3", 2, [PRECISION["fp32"]], [("zero3", 2), ("ddp", 2), ("single_device", 1), ("full_shard", 3)]),
    "bf16": ("zero1", 3, [PRECISION["bf16"], "training.optimizer_state_dtype=bf16"],
             [("zero1", 3), ("zero2", 2), ("single_device", 1)]),
}
# Keys of FSDP and DeepSpeed that a saved job had beside ours; since then it has ours alone, which are compared.
MOVED = {"fsdp.sharding_strategy": None, "zero_optimization.stage": None, "mixed_precision.param_dtype": None, "bf16.enabled": False}
OF_A_LAUNCH = ("run_id", "launch", "trained_s", "hash")  # of a manifest: names that each launch makes up, its time, and the checksum over all


def checkpoint(place):
    found = {}
    for name, (row, ranks, sets, others) in CHECKPOINTS.items():
        out, kept = f"made-{name}", os.path.join(place.data, "checkpoint", name)
        found[f"{name} in one go", f"{row}:{ranks}"] = place.train(out, row, ranks, [*TINY, *sets], PLAIN)
        made = os.path.join(place.work, out, "checkpoints")
        if place.recording:
            keep_checkpoint(made, kept)
        found.update({(f"{name} {STEP}", file): text for file, text in saved_again(made, kept).items()})
        place.run("dtckpt", "verify", os.path.join(kept, STEP), env=PLAIN)
        found[f"{name} weights", "hash"] = place.run("dtckpt", "hash", os.path.join(kept, STEP)).strip()
        place.run("dtckpt", "export", os.path.join(kept, STEP), f"model-{name}", env=PLAIN)
        model = os.path.join(place.work, f"model-{name}")
        found.update({(f"{name} exported", x): sha256(os.path.join(model, x)) for x in sorted(os.listdir(model))})
        for other, count in others[:2] if place.short else others:
            out = f"on-{name}-{other}-{count}"
            shutil.copytree(kept, os.path.join(place.work, out, "checkpoints"))
            found[f"{name} goes on", f"{other}:{count}"] = place.train(out, other, count, [*TINY, *sets], PLAIN)
            with open(os.path.join(place.work, out, "events.jsonl")) as f:
                steps = [event["step"] for event in map(json.loads, f) if event["event"] == "resume"]
            found[f"{name} goes on from step", f"{other}:{count}"] = ", ".join(map(str, steps))
    return found


def keep_checkpoint(made, kept):
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(os.path.join(made, STEP), os.path.join(kept, STEP))
    for name in ("course.json", "owner.json"):
        shutil.copy2(os.path.join(made, name), kept)


def saved_again(made, kept):
    """{file: "the same" or what differs} of the checkpoint that the same job saves now."""
    found = {}
    for name in sorted({*os.listdir(os.path.join(kept, STEP)), *os.listdir(os.path.join(made, STEP))}):
        a, b = (os.path.join(folder, STEP, name) for folder in (kept, made))
        if not (os.path.exists(a) and os.path.exists(b)):
            found[name] = "only in one of them"
        elif name == "manifest.json":
            found[name] = compare_manifests(a, b)
        else:
            found[name] = "the same" if sha256(a) == sha256(b) else "other bytes"
    return found


def compare_manifests(a, b):
    """A key that the record does not have may have come to the job's; so may one of config.json, or a value for its null."""
    before, now = (json.loads(open(path).read()) for path in (a, b))
    before_job, now_job = before.pop("job"), now.pop("job")
    kept = {k: v for k, v in before.pop("model_config").items() if v is not None}
    model = now.pop("model_config")
    before["model_config"], now["model_config"] = kept, {k: v for k, v in model.items() if k in kept}
    differ = [k for k in sorted({*before, *now}) if k not in OF_A_LAUNCH and before.get(k) != now.get(k)]
    differ += [f"job.{s}.{k}" for s, section in before_job.items() if isinstance(section, dict)
               for k, value in section.items() if now_job.get(s, {}).get(k, MOVED.get(f"{s}.{k}", "missing")) != value]
    return "differs in " + ", ".join(differ) if differ else "the same"


# ---- records: lines of `group | value | items that have it` ----

def read_record(place, part):
    found = {}
    with open(os.path.join(place.data, f"{part}.txt")) as f:
        for line in f:
            if not line.startswith("#"):
                group, value, items = line.rstrip("\n").split(" | ")
                found.update({(group, item): value for item in items.split()})
    return found


def write_record(place, part, found):
    lines = {}
    for (group, item), value in found.items():
        lines.setdefault((group, value), []).append(item)
    with open(os.path.join(place.data, f"{part}.txt"), "w") as f:
        f.write("# group | value | what has it\n")
        f.writelines(f"{group} | {value} | {' '.join(items)}\n" for (group, value), items in lines.items())


def differences(place, part, found):
    before = read_record(place, part)
    lines = [f"{part}: {group}, {item}: {value}; recorded: {before.get((group, item), 'nothing')}"
             for (group, item), value in found.items() if before.get((group, item)) != value]
    if not place.short and not place.skipped:
        lines += [f"{part}: {group}, {item}: gone; recorded: {value}" for (group, item), value in before.items()
                  if (group, item) not in found]
    return lines if before else [f"{part}: the record is empty"]


PARTS = {"shards": shards, "train": train, "plan": plan, "calls": calls, "checkpoint": checkpoint, "wire": None}


def do_part(place, part):
    """Lines about what differs; when recording, none."""
    place.skipped = ""
    if part == "wire":
        return (wire.record if place.recording else wire.replay)(place)
    found = PARTS[part](place)
    if not place.recording:
        return differences(place, part, found)
    if place.skipped:
        raise RuntimeError(place.skipped)
    write_record(place, part, found)
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "record"])
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--data", default=HERE)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART")
    a = parser.parse_intermixed_args()
    unknown = [p for p in a.parts if p not in PARTS]
    if unknown or (a.short and a.command == "record"):
        parser.error(f"{unknown[0]}: no such part; there are {', '.join(PARTS)}" if unknown else "--short is for check")
    status = 0
    for part in a.parts or PARTS:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="records-") as work:
            try:
                place = Place(os.path.abspath(a.bin), os.path.abspath(a.data), work, a.short, a.command == "record")
                lines = do_part(place, part)
            except (RuntimeError, OSError, ValueError, KeyError, subprocess.SubprocessError) as e:
                lines, place = [f"{part}: {type(e).__name__}: {e}"], None
        for line in lines:
            print(line, file=sys.stderr)
        if place and place.skipped:
            print(f"skip {part}: in part: {place.skipped}")
        print(f"{'FAIL' if lines else 'ok  '} {part} {time.monotonic() - begin:.1f} s", flush=True)
        status = 1 if lines else status
    return status


if __name__ == "__main__":
    sys.exit(main())
