"""Runs trials of random_jobs.py: both sides must give the same bits, or be refused in words that name a key; no run may crash, hang, leave
processes or files, or damage a checkpoint.

By hand, until the time is over:
    B=build /usr/bin/python3 tests/lib/random_runs.py --seconds 600 --seed 1 --place /dev/shm/jobs
    B=build /usr/bin/python3 tests/lib/random_runs.py --trial trial.json
"""

import argparse
import contextlib
import copy
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import random_jobs
import support
import training

LIMIT_S = 4 * support.DEADLINE_S  # a run of a tiny job that takes longer hangs
STATE_OF_TIME = {"step_s", "data_wait_s", "tokens_per_s", "samples_per_s", "mfu", "memory_bytes", "round", "time"}
SECTIONS = ("model data transforms training optimizer scheduler ddp power_sgd local_sgd fsdp mixed_precision loss_scaling activation_checkpointing "
            "offload checkpointing early_stopping logging export generation").split()
KEY = re.compile(r"\b(%s)\.[a-zA-Z_]+" % "|".join(SECTIONS))
BROKEN = re.compile(r"signal|SIG[A-Z]{3,}|[Ii]nternal error|Sanitizer|Assertion|core dumped|corrupted|double free|no progress")
# A run that ends by what it computes: a loss that is no number, an overflow at the least scale.
COMPUTED = re.compile(r"not finite|non-finite|overflow|diverge")


class Outcome:
    """code: of dtrun; None: it hangs. broken: what no run may do."""

    def __init__(self, code, err, out, stopped=False, killed=False):
        self.code, self.err, self.broken = code, err, None
        self.metrics, self.hash, self.state = {}, None, None
        if code is None:
            self.broken = "hangs"
        elif code == 0:
            self.read(out)
        elif code in (128 + signal.SIGTERM, -signal.SIGTERM) and stopped:
            self.code = 75  # before it began
        elif code < 0 or code >= 126 or code not in (1, 2, 75, 100, 111):
            self.broken = f"exit code {code}"
        elif BROKEN.search(re.sub(r"killed by signal 9 \(SIGKILL\)", "", err) if killed else err):
            self.broken = "breaks down"
        elif code != 75 and not KEY.search(err) and not COMPUTED.search(err):
            self.broken = "is refused without the name of a key"

    @property
    def done(self):
        return self.code == 0

    def read(self, out):
        with open(os.path.join(out, "metrics.jsonl")) as f:
            for line in f:
                row = json.loads(line)
                kind = "val" if any(k.startswith("val_") for k in row) else "train"
                if isinstance(row.get("samples"), list):  # texts
                    continue
                self.metrics.setdefault((kind, row["step"]), {}).update({k: v for k, v in row.items() if k not in STATE_OF_TIME})
        self.hash = training.hash_of(out).split()[0]
        self.state = state_of(newest(out))

    def why(self):
        """The lines that are no progress."""
        lines = [x for x in self.err.splitlines() if re.match(r"(\[.*?\] ?)?(dtrun|train):", x) and not re.search(r"no effect|: done at|set aside", x)]
        return " | ".join(lines[:4] or self.err.splitlines()[-4:])


def saved(out):
    folder = os.path.join(out, "checkpoints")
    steps = [x for x in os.listdir(folder) if re.fullmatch(r"step-\d+", x) and os.path.exists(f"{folder}/{x}/manifest.json")] if os.path.isdir(folder) else []
    return sorted(steps)


def newest(out):
    return os.path.join(out, "checkpoints", saved(out)[-1])


def state_of(checkpoint):
    """{purpose/tensor: hash} of all that a checkpoint has, however it is cut into slices."""
    parts = {}
    for name in sorted(os.listdir(checkpoint)):
        if name.endswith(".safetensors"):
            header, data = training.read_tensors(os.path.join(checkpoint, name))
            for key, entry in header.items():
                if key != "__metadata__":
                    tensor, _, first = key.rpartition("@")
                    begin, end = entry["data_offsets"]
                    parts.setdefault(tensor, []).append((int(first), data[begin:end]))
    return {name: hashlib.sha1(b"".join(x for _, x in sorted(all_of))).hexdigest()[:16] for name, all_of in parts.items()}


def placed(value, place):
    """@NAME is a file of the place."""
    if isinstance(value, str) and value.startswith("@"):
        return os.path.join(place, value[1:])
    if isinstance(value, list):
        return [placed(v, place) for v in value]
    if isinstance(value, dict):
        return {k: placed(v, place) for k, v in value.items()}
    return value


def write_job(trial, side, place, path):
    job = copy.deepcopy(trial["job"])
    for section, values in side.items():
        if section == "output_dir":
            job[section] = values
        elif section not in ("ranks", "env", "threads"):
            job.setdefault(section, {}).update(values)
    with open(path, "w") as f:
        json.dump(placed(job, place), f, indent=1)
    return path


def disturb(job, moments, number):
    """At each moment, in seconds since the one before: a worker is killed, or (SIGTERM) the job is asked to stop."""
    r = random.Random(str(moments))
    for moment in moments:
        time.sleep(moment)
        with contextlib.suppress(OSError, IndexError, AssertionError):
            if number == signal.SIGTERM:
                job.signal(number)
                return
            pid = r.choice(support.children(support.children(job.pid)[0]))
            with open(f"/proc/{pid}/environ", "rb") as f:
                if b"DTRUN_PAGE=" in f.read():  # a worker, and not what looks at the job before
                    os.kill(pid, number)


def run(trial, side, place, out, moments=(), number=signal.SIGKILL):
    name = os.path.basename(out)
    if trial["kind"] == "threads":
        return run_threads(trial, side, place, out)
    path = write_job(trial, side, place, os.path.join(place, f"{name}.json"))
    args = [f"--nproc_per_node={side['ranks']}", *(["--max_restarts=9"] if moments else []), "train", path, "--output_dir", out]
    with support.Job(args, env=side["env"]) as job:
        thread = threading.Thread(target=disturb, args=(job, moments, number)) if moments else None
        if thread:
            thread.start()
        try:
            stdout, err = job.process.communicate(timeout=LIMIT_S)
            code = job.process.returncode
        except subprocess.TimeoutExpired:
            code, err = None, stacks(job.survivors())
        if thread:
            thread.join()
        left = job.survivors() if code is not None else []
        if left:
            with contextlib.suppress(AssertionError):
                support.wait_until(lambda: not job.survivors(), "the end of all its processes", 10)
                left = []
    outcome = Outcome(code, err, out, bool(moments) and number == signal.SIGTERM, bool(moments))
    if left:
        outcome.broken = f"leaves processes {left}"
    elif outcome.done and training.restarts_used(out) > (len(moments) if number == signal.SIGKILL else 0):
        outcome.broken = "was restarted"
    return outcome


def evaluate(trial, side, place, out):
    """The newest checkpoint of a run, evaluated under the side's settings: the numbers that the run had at its end."""
    path = write_job(trial, side, place, f"{out}-evaluate.json")
    args = [f"--nproc_per_node={side['ranks']}", "train", "--evaluate", newest(out), path, "--output_dir", f"{out}-evaluate"]
    with support.Job(args, env=side["env"]) as job:
        result = job.finish(LIMIT_S)
    outcome = Outcome(result.code if result.code else 2, result.err, out)
    if result.code == 0:
        outcome.code, outcome.broken = 0, None
        outcome.metrics = {}
        for row in map(json.loads, result.out.splitlines()):
            outcome.metrics.setdefault(("val", row["step"]), {}).update(row)
    return outcome


def same_evaluation(left, right, _):
    for key, row in right.metrics.items():
        was = left.metrics.get(key, {})
        apart = sorted(k for k in row if row[k] != was.get(k))
        if apart:
            return f"{key}: " + ", ".join(f"{k} {was.get(k)} and {row[k]}" for k in apart)
    return None if right.metrics else "nothing is evaluated"


def crash(trial, side, place, out, moment):
    """Every process of the job is killed at this moment. What is wrong then with the newest checkpoint; null: nothing."""
    path = write_job(trial, side, place, f"{out}.json")
    with support.Job([f"--nproc_per_node={side['ranks']}", "train", path, "--output_dir", out], env=side["env"]) as job:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(timeout=moment)
        job.kill()
        job.process.communicate()
        job.wait_gone()
    return damage(out)


def damage(out):
    """What `dtckpt verify` says of each checkpoint that looks complete; null: they are good."""
    bad = [training.dtckpt("verify", os.path.join(out, "checkpoints", x)) for x in saved(out)]
    return next((f"dtckpt verify: {text} {err}" for code, text, err in bad if code != 0), None)


def run_full(trial, place, out, size):
    """The right side's run with `size` bytes for its folder, and then the one that goes on with room: (its outcome, or what is wrong)."""
    lines = [f"mkdir -p '{out}'; mount -t tmpfs -o size={size} none '{out}'"]
    for name, more in (("right", ""), ("right_on", "mount -o remount,size=1g none '" + out + "'; ")):
        side = trial[name]
        path = write_job(trial, side, place, f"{out}-{name}.json")
        env = " ".join(f"{k}={v}" for k, v in side["env"].items())
        lines.append(f"{more}{env} timeout {LIMIT_S} '{support.DTRUN}' --nproc_per_node={side['ranks']} train '{path}' --output_dir '{out}' 2>'{place}/{name}.err'; "
                     f"echo code $?; for c in '{out}'/checkpoints/step-*/manifest.json; do [ ! -e \"$c\" ] || "
                     f"'{support.program('dtckpt')}' verify \"$(dirname \"$c\")\" >/dev/null || echo damaged $c; done")
    lines.append(f"cp -r '{out}' '{out}-copy'")
    shutil.rmtree(f"{out}-copy", ignore_errors=True)
    p = subprocess.run(["unshare", "-m", "sh", "-c", "; ".join(lines)], env=support.clean_env(), capture_output=True, text=True, timeout=3 * LIMIT_S)
    codes = [int(x) for x in re.findall(r"code (\d+)", p.stdout)]
    errs = [open(f"{place}/{name}.err", errors="replace").read() for name in ("right", "right_on")]
    if "damaged" in p.stdout or len(codes) != 2:
        return None, f"{p.stdout} {p.stderr}"
    first = Outcome(codes[0] if codes[0] != 124 else None, errs[0], f"{out}-copy") if codes[0] != 0 else None
    full = re.search(r"No space left|full|free there|ENOSPC", errs[0])
    if first and (first.code is None or (first.broken and not (first.broken.endswith("key") and full))):
        return None, f"on a small disk {first.broken}: {first.why()}"
    return Outcome(codes[1] if codes[1] != 124 else None, errs[1], f"{out}-copy"), None


def run_threads(trial, side, place, out):
    path = write_job(trial, {**side, "output_dir": out}, place, f"{out}.json")
    command = [os.path.join(support.TOOLS, "rank_threads"), path, str(side["ranks"]), *(f"{k}={v}" for k, v in side.get("threads", {}).items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=support.clean_env(side["env"])) as process:
        try:
            text, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            err = stacks([process.pid])
            process.kill()
            return Outcome(None, err, out)
    outcome = Outcome(process.returncode or None, "train: " + err, out)
    if process.returncode == 0:
        outcome.code, outcome.broken = 0, None
        lines = text.splitlines()
        outcome.metrics = {("train", i): {"line": x} for i, x in enumerate(lines[:-1], 1)}
        outcome.hash, outcome.state = lines[-1], {}
    return outcome


def stacks(pids):
    """Where the processes of a job that hangs stand."""
    text = []
    for pid in pids:
        p = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"], capture_output=True, text=True, timeout=60) \
            if shutil.which("gdb") else None
        text.append(f"pid {pid}: {p.stdout[-6000:] if p else open(f'/proc/{pid}/wchan').read()}")
    return "\n".join(text)


def cut_back(out, step):
    """The run stands after this step: checkpoints behind it are gone. Returns whether one is left."""
    steps = saved(out)
    keep = [x for x in steps if int(x[5:]) <= step]
    if not keep:
        return False
    for x in steps[len(keep):]:
        os.unlink(os.path.join(out, "checkpoints", x, "manifest.json"))
    return True


def differences(a, b, within=None):
    """What differs between two outcomes of runs that are done; null: nothing."""
    def same(x, y):
        if within is None or not isinstance(x, float) or not isinstance(y, float):
            return x == y or (x != x and y != y)
        return math.isclose(x, y, rel_tol=within, abs_tol=within)

    if within is None:
        if sorted(a.metrics) != sorted(b.metrics):
            return f"steps {sorted(set(a.metrics) ^ set(b.metrics))} stand on one side alone"
        for key in sorted(a.metrics, key=lambda k: (k[1], k[0])):
            x, y = a.metrics[key], b.metrics[key]
            apart = sorted(k for k in set(x) | set(y) if not same(x.get(k), y.get(k)))
            if apart:
                return f"{key}: " + ", ".join(f"{k} {x.get(k)} and {y.get(k)}" for k in apart)
        if a.hash != b.hash or a.state != b.state:
            apart = sorted(k for k in set(a.state) | set(b.state) if a.state.get(k) != b.state.get(k))
            return f"hash {a.hash} and {b.hash}; of the state {apart[:6]} ({len(apart)} of {len(a.state)})"
        return None
    for key in sorted(set(a.metrics) & set(b.metrics), key=lambda k: (k[1], k[0])):
        for k in ("loss", "val_loss", "lr"):
            x, y = a.metrics[key].get(k), b.metrics[key].get(k)
            if (x is None) != (y is None) or (x is not None and not same(float(x), float(y))):
                return f"{key}: {k} {x} and {y}"
    return None


def names_own_key(outcome, side):
    """The refusal is about what this side alone says."""
    own = {f"{s}.{k}" for s, v in side.items() if isinstance(v, dict) for k in v}
    return any(m.group(0) in own for m in KEY.finditer(outcome.err)) or any(s + "." in outcome.err for s in side if s not in ("ranks", "env", "training", "threads"))


def compare(left, right, side, within=None, apart=differences):
    for name, x in (("left", left), ("right", right)):
        if x.broken:
            return f"{name} {x.broken}: {x.why() if x.code is not None else x.err}"
    if left.done and right.done:
        return apart(left, right, within)
    if left.done != right.done:
        x, name = (right, "right") if left.done else (left, "left")
        return None if name == "right" and names_own_key(x, side) else f"only {name} fails: {x.why()}"
    return None


def attempt(trial, place):
    """(what is wrong or null, how it ended): runs a trial. place has the data."""
    left_out, right_out = os.path.join(place, "left"), os.path.join(place, "right")
    for path in (left_out, right_out, f"{place}/nvme-a", f"{place}/nvme-b"):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(f"{place}/nvme-a")
    os.makedirs(f"{place}/nvme-b")
    kind, right_side = trial["kind"], trial["right"]
    left = run(trial, trial["left"], place, left_out)
    if kind == "killed":
        right = run(trial, right_side, place, right_out, trial["moments"])
    elif kind == "stopped":
        right = run(trial, right_side, place, right_out, trial["moments"][:1], signal.SIGTERM)
        if right.code == 75 and not right.broken:
            right_side = trial["right_on"]
            right = run(trial, right_side, place, right_out)
    elif kind == "evaluated":
        right = evaluate(trial, right_side, place, left_out) if left.done else left
    elif kind == "crashed":
        for i, moment in enumerate(trial["moments"]):
            bad = crash(trial, trial["right_on" if i % 2 else "right"], place, right_out, moment)
            if bad:
                return bad, "crashed"
        right_side = trial["right_on"]
        right = run(trial, right_side, place, right_out)
    elif kind == "full" and left.done:
        size = sum(os.path.getsize(os.path.join(newest(left_out), x)) for x in os.listdir(newest(left_out)))
        right_side = {**trial["right"], **trial["right_on"]}
        right, bad = run_full(trial, place, right_out, int(size * trial["room"]) // 4096 * 4096 + 65536)
        if bad:
            return bad, "full"
    else:
        right = run(trial, right_side, place, right_out)
    wrong = compare(left, right, right_side, trial.get("within"), same_evaluation if kind == "evaluated" else differences)
    if kind == "cut" and wrong is None and left.done and right.done and cut_back(left_out, trial["at"]) and cut_back(right_out, trial["at"]):
        left = run(trial, trial["left_on"], place, left_out)
        right = run(trial, trial["right_on"], place, right_out)
        wrong = compare(left, right, trial["right_on"])
        wrong = wrong and f"going on: {wrong}"
    files = os.listdir(f"{place}/nvme-a") + os.listdir(f"{place}/nvme-b")
    if wrong is None and files:
        wrong = f"offload leaves files: {files}"
    ended = "done" if left.done and right.done else "one refused" if left.done or right.done else "both refused"
    return wrong, ended + ("" if left.done and right.done else ": " + (right if left.done else left).why()[:200])


def smaller(trial):
    """Trials that are this one without a key, or with fewer ranks."""
    for where in ("right", "left", "right_on", "left_on", "job"):
        part = trial.get(where, {})
        for section in list(part):
            if section in ("ranks", "model", "data", "logging", "threads"):
                continue
            if where == "job" or section != "training":
                t = copy.deepcopy(trial)
                if section in ("env", "training"):
                    t[where][section] = {k: v for k, v in t[where][section].items() if k in ("precision", "max_steps", "gradient_accumulation_steps")}
                else:
                    del t[where][section]
                yield t
            for key in list(part[section]):
                if (section, key) in (("training", "precision"), ("optimizer", "name"), ("training", "gradient_accumulation_steps")):
                    continue
                t = copy.deepcopy(trial)
                del t[where][section][key]
                yield t
    for section, key, value in (("training", "precision", "32-true"), ("optimizer", "name", "adamw"), ("training", "gradient_accumulation_steps", 1),
                                ("training", "max_steps", 1), ("training", "max_steps", 2), ("training", "max_steps", 3)):
        if trial["job"].get(section, {}).get(key) not in (None, value):
            t = copy.deepcopy(trial)
            t["job"][section][key] = value
            yield t
    for ranks in (1, 2):
        if trial["left"]["ranks"] > ranks and trial["kind"] in ("same", "threads") and "hosts" not in json.dumps(trial) and "device_mesh" not in json.dumps(trial):
            t = copy.deepcopy(trial)
            t["left"]["ranks"] = t["right"]["ranks"] = ranks
            yield t


def shrink(trial, place, seconds=60):
    """The smallest trial found within the time that still fails with the same kind of words."""
    def sort_of(wrong):
        return re.sub(r"[\d.e+-]+", "#", wrong or "")[:12]

    wrong, _ = attempt(trial, place)
    end, shrunk = time.monotonic() + seconds, bool(wrong)
    while shrunk and time.monotonic() < end:
        shrunk = False
        for t in smaller(trial):
            if time.monotonic() > end:
                break
            with contextlib.suppress(Exception):
                now, _ = attempt(t, place)
                if now and sort_of(now) == sort_of(wrong):
                    trial, wrong, shrunk = t, now, True
                    break
    return trial, wrong


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--place", default="/dev/shm/random-jobs")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--trial")
    p.add_argument("--shrink", type=float, default=60)
    p.add_argument("--kind")
    a = p.parse_args()
    random_jobs.make_data(a.place)
    if a.trial:
        with open(a.trial) as f:
            trial = json.load(f)
        print(*attempt(trial, a.place), sep="\n")
        return
    end, counts, seed = time.monotonic() + a.seconds, {}, a.seed
    while time.monotonic() < end:
        trial = random_jobs.draw(seed)
        seed += 1
        if a.kind and trial["kind"] != a.kind:
            continue
        wrong, ended = attempt(trial, a.place)
        key = trial["kind"] + " " + ended.split(":")[0]
        counts[key] = counts.get(key, 0) + 1
        if "refused" in ended:
            print(f"seed {trial['seed']}: {ended}", flush=True)
        if wrong:
            print(f"WRONG seed {trial['seed']} {trial['kind']}: {wrong}", flush=True)
            small, now = shrink(trial, a.place, a.shrink)
            print(f"  smallest: {json.dumps(small)}\n  {now}", flush=True)
    print(f"seeds {a.seed} to {seed - 1}: {counts}")


if __name__ == "__main__":
    sys.exit(main())
