# covers: worker/run worker/job cmd/train.c
"""The program `train` as people use it: its options, what it says when a job cannot run, stopping and going on, and ranks under dtrun."""

import json
import os
import signal
import struct
import subprocess
import time

import pytest
import training
from support import BIN, DEADLINE_S, DTRUN, ROOT, Job, clean_env, marked, program, run, wait_lines, wait_until

TRAIN = os.path.join(BIN, "train")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="train is not built")


def shard(path, count, seed):
    tokens = []
    for i in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        tokens.append((seed >> 16) % (7 if i % 3 else 60))
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + struct.pack(f"<{count}H", *tokens))


@pytest.fixture
def job(tmp_path):
    """A job small enough for a step to take about a millisecond; change(...) writes it again."""
    shard(tmp_path / "train.bin", 8001, 1)
    shard(tmp_path / "val.bin", 401, 2)
    content = {
        "output_dir": str(tmp_path / "run"),
        "model": {"name": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 64},
        "data": {"train": str(tmp_path / "train.bin"), "val": str(tmp_path / "val.bin"), "sequence_length": 16},
        "training": {"batch_size_per_gpu": 2, "max_steps": 12, "learning_rate": 0.01, "strategy": "auto"},
        "checkpointing": {"save_every_n_steps": 5},
        "logging": {"log_every_n_steps": 4},
    }
    path = tmp_path / "job.json"

    def change(**sections):
        for name, values in sections.items():
            if isinstance(values, dict):
                content[name].update(values)
            else:
                content[name] = values
        path.write_text(json.dumps(content))
        return str(path)

    change()
    change.path = str(path)
    change.out = tmp_path / "run"
    return change


def train(*args, env=None, code=0):
    done = subprocess.run([TRAIN, *args], env=clean_env(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_help_fits_a_terminal():
    text = train("--help").stdout
    assert text.startswith("usage: train [options] job.json")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert train("--version").stdout.startswith("train ")
    strategies = train("--list-strategies").stdout
    assert "hybrid_shard_zero2" in strategies
    assert all(len(x) <= 80 and x == x.rstrip() for x in strategies.splitlines())
    assert json.loads(train("--schema").stdout)["type"] == "object"


def test_each_listed_strategy_is_taken():
    """A row begins its line; "also named:" is followed by words, on further lines too."""
    names, other = [], False
    for line in train("--list-strategies").stdout.splitlines():
        other = "also named:" in line or (other and line.startswith(" " * 16))
        if not line.startswith(" "):
            names.append(line)
        elif other:
            names += line.replace("also named:", "").split()
    assert len(names) > 40 and "_hybrid_shard_zero2" in names and "zero3_offload" in names
    for name in names:
        said = train("--print-config", os.path.join(ROOT, "configs/demo.json"), "--set", f"training.strategy={name}", "--set", "offload.nvme_path=/tmp").stdout
        assert f'training.strategy "{name}" ' in " ".join(said.split()), name


def test_wrong_use():
    assert "no job file" in train(code=2).stderr
    assert "a run's folder has its job.json" in train("--evaluate", "out", code=2).stderr
    assert train("--nonsense", code=2).stderr == "train: --nonsense: unknown option; see train --help\n"
    assert train("--list-strategy", code=2).stderr == "train: --list-strategy: unknown option; did you mean --list-strategies?\n"
    assert train("-xy", code=2).stderr == "train: -x: unknown option; see train --help\n"
    assert train("--seed", code=2).stderr == "train: --seed: needs a value; see train --help\n"
    assert train("--fresh=1", code=2).stderr == "train: --fresh: takes no value; see train --help\n"
    assert "--nproc: x: must be a whole number from 1 to 1048576" in train("--plan", "--nproc", "x", "job.json", code=2).stderr
    assert train("a", "b", code=2).stderr == "train: b: one job file, please, and a is given already; see train --help\n"
    assert train("-o", "x", "a", code=2).stderr == "train: -o: only with --convert or --embed\n"
    assert "nowhere.json" in train("nowhere.json", code=2).stderr


def test_plan(job):
    text = train("--plan", job.path).stdout
    assert max(len(line) for line in text.splitlines() if "output" not in line and "run" not in line) <= 80
    for word in ("weights", "gradients", "optimizer", "activations", "gather_slots", "total"):
        assert word in text
    alone = json.loads(train("--plan", "--json", job.path).stdout)
    four = json.loads(train("--plan", "--json", "--nproc", "4", "--mode", "zero3", job.path).stdout)
    assert alone["output_dir"] == str(job.out) and alone["ranks"] == 1 and four["ranks"] == 4
    assert alone["total"] == sum(alone["bytes"].values())
    assert four["bytes"]["optimizer"] * 3 < alone["bytes"]["optimizer"]
    assert "units, bf16\n" in train("--plan", "--set", "bf16.enabled=true", job.path).stdout
    half = json.loads(train("--plan", "--json", "--set", "bf16.enabled=true", job.path).stdout)
    assert (half["precision"], alone["precision"]) == ("bf16-mixed", "32-true")
    assert half["bytes"]["weights"] * 2 == alone["bytes"]["weights"] and half["bytes"]["optimizer"] * 2 == alone["bytes"]["optimizer"] * 3
    by_env = json.loads(train("--plan", "--json", job.path, env={"WORLD_SIZE": 3}).stdout)
    assert by_env["ranks"] == 3
    assert not job.out.exists()


def test_plan_refuses_what_cannot_run(job):
    said = train("--plan", job(model={"n_embd": 65536, "n_layer": 64}), code=2).stderr
    assert "train: plan: 1 rank on this host needs" in said and "available memory" in said
    job(model={"n_embd": 32, "n_layer": 2, "vocab_size": 32})
    assert "model.vocab_size: 32" in train("--plan", job.path, code=2).stderr
    job(model={"vocab_size": 64}, data={"train": "nowhere-*.bin"})
    assert "nowhere-*.bin" in train("--plan", job.path, code=2).stderr
    assert "unknown" in train("--plan", "--set", "training.lerning_rate=1", job.path, code=2).stderr


@pytest.mark.skipif(bool(os.environ.get("SAN")), reason="sanitizers reserve more address space than any limit")
def test_limit_of_address_space(job):
    job(model={"n_embd": 512, "n_layer": 8})
    limited = subprocess.run(["sh", "-c", f"ulimit -v 300000; exec {TRAIN} --plan {job.path}"], env=clean_env(), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
    assert limited.returncode == 2 and "limit of address space" in limited.stderr


def test_a_run_alone(job):
    said = train(job.path).stderr
    assert "step 12/12 100% loss" in said and "train: done at step 12" in said
    steps = [m for m in metrics(job.out) if "loss" in m]
    assert [m["step"] for m in steps] == [4, 8, 12]
    assert [m["step"] for m in metrics(job.out) if "val_loss" in m] == [12]
    assert steps[-1]["tokens"] == 12 * 2 * 16 and steps[-1]["loss"] < 4.5
    assert json.loads((job.out / "job.json").read_text())["training"]["max_steps"] == 12
    assert (job.out / "model" / "model.safetensors").exists() and (job.out / "logs" / "rank-0.log").exists()
    assert sorted(p.name for p in (job.out / "checkpoints").glob("step-*")) == ["step-00000005", "step-00000010", "step-00000012"]
    assert "finished at step 12" in train(job.path).stderr
    refused = train("--set", "training.learning_rate=0.5", job.path, code=2).stderr
    assert "learning_rate" in refused and "0.5" in refused and "--accept training.learning_rate" in refused
    assert json.loads((job.out / "job.json").read_text())["training"]["learning_rate"] == 0.01
    assert "train: done at step 12" in train("--fresh", job.path).stderr
    assert (job.out / "checkpoints.old-1").exists()


def events(out, kind):
    return [e for e in map(json.loads, (out / "events.jsonl").read_text().splitlines()) if e.get("event") == kind]


def curve(out, begin=0):
    """Of each step, the place in the data where it begins and its rate."""
    steps = [m for m in metrics(out) if "lr" in m]
    return list(zip([begin] + [m["epoch"] for m in steps], [m["lr"] for m in steps]))


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
@pytest.mark.parametrize("length", [{"num_epochs": 2, "max_steps": -1}, {"max_steps": 124}])
def test_other_ranks_follow_the_curve(job, tmp_path, length):
    """500 samples, 8 of a step at first: at each place of the data the rate is that of an undisturbed run, give or take a step, and both end at the same place."""
    job(training={"batch_size_per_gpu": 4, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, **length}, checkpointing={"save_every_n_steps": 20, "keep_last_n": 0},
        logging={"log_every_n_steps": 1})
    dtrun("--nproc-per-node", "2", TRAIN, job.path)
    whole = curve(job.out) + [(2, 0)]
    for ranks, batch, accumulation in (1, 4, 1), (4, 4, 1), (2, 2, 2):
        out = tmp_path / f"by-{ranks}"
        said = dtrun("--nproc-per-node", str(ranks), TRAIN, job.path, "--output_dir", str(out), "--set", f"checkpointing.resume={job.out}/checkpoints/step-00000040",
                     "--set", f"training.batch_size_per_gpu={batch}", "--set", f"training.gradient_accumulation_steps={accumulation}")
        for at, rate in curve(out, 40 * 8 / 500):
            (x, a), (y, b) = max(p for p in whole if p[0] <= at + 1e-9), min(p for p in whole if p[0] > at + 1e-9)
            assert abs(rate - (a + (b - a) * (at - x) / (y - x))) <= 3e-4, (ranks, at, rate, a, b)
        assert at >= 2 - 32 / 500, (ranks, at)
        different = ranks * batch * accumulation != 8
        assert different == ("samples, and was 8 when the run began: it ends at step " in said), said


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
@pytest.mark.parametrize("length", [{"num_epochs": 0.5, "max_steps": -1}, {"max_steps": 20}])
def test_what_is_finished_stays_finished(job, length):
    job(training={"batch_size_per_gpu": 3, **length}, checkpointing={"keep_last_n": 1})
    dtrun("--nproc-per-node", "4", TRAIN, job.path)

    def there():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for folder in ("model", "checkpoints/step-*") for p in job.out.glob(f"{folder}/*")}

    before, step = there(), int((job.out / "checkpoints" / "latest").read_text().split("-")[1])
    for ranks, sets in (1, []), (2, ["training.batch_size_per_gpu=1"]), (3, ["training.gradient_accumulation_steps=2"]), (2, ["training.max_steps=3"]):
        said = dtrun("--nproc-per-node", str(ranks), TRAIN, job.path, *[x for s in sets for x in ("--set", s)])
        assert f"finished at step {step}" in said and there() == before, (ranks, said)
    more = "training.max_steps=25" if "num_epochs" not in length else "training.num_epochs=0.6"
    said = dtrun("--nproc-per-node", "1", TRAIN, job.path, "--set", more)
    assert "done at step" in said and there() != before, said


def test_more_steps_say_what_the_rate_is(job):
    job(training={"lr_scheduler_type": "cosine", "warmup_steps": 2}, logging={"log_every_n_steps": 1})
    train(job.path)
    said = train(job.path, "--set", "training.max_steps=24").stderr
    assert "train: training.max_steps 12 -> 24 from step 12 (learning rate 0 -> 0.00571)\n" in said
    rates = [m["lr"] for m in metrics(job.out) if "lr" in m]
    assert abs(rates[12] - 0.00571) < 1e-5 and len(rates) == 24
    change = events(job.out, "change")[-1]
    assert (change["key"], change["was"], change["is"], change["step"], change["lr_was"]) == ("training.max_steps", 12, 24, 12, 0) and change["lr"] == rates[12]
    plan = train("--plan", job.path, "--set", "training.max_steps=30").stdout
    assert plan.endswith("\ngoes on    from step 24 to step 30\n")


def test_accepted_numbers(job):
    """With the optimizer's state: one line and one event for each; then it is the run's."""
    job(training={"lr_scheduler_type": "linear"}, logging={"log_every_n_steps": 1})
    train(job.path)
    job(training={"max_steps": 24, "learning_rate": 0.004, "weight_decay": 0.5})
    said = train(job.path, code=2).stderr
    assert ("training.learning_rate: was 0.01, is now 0.004 (all that differ: training.learning_rate,training.weight_decay); go back to the old value, keep the "
            "optimizer's state and go on with --accept training.learning_rate,training.weight_decay (checkpointing.accept), or begin anew") in said
    assert "training.weight_decay: was 0, is now 0.5;" in train("--accept", "learning_rate", job.path, code=2).stderr
    train("--plan", "--accept", "learning_rate,weight_decay", job.path)
    said = train("--accept", "learning_rate", "--accept", "training.weight_decay", job.path).stderr
    assert "train: training.learning_rate 0.01 -> 0.004 from step 12 (learning rate 0 -> 0.002)\n" in said
    assert "train: training.weight_decay 0 -> 0.5 from step 12 (learning rate 0 -> 0.002)\n" in said
    assert [e["key"] for e in events(job.out, "change")] == ["training.learning_rate", "training.weight_decay", "training.max_steps"]
    assert json.loads((job.out / "job.json").read_text())["checkpointing"]["accept"] == ["training.learning_rate", "training.weight_decay"]
    assert "finished at step 24" in train(job.path).stderr
    said = train("--accept", "lerning_rate", job.path, code=2).stderr
    assert "--accept lerning_rate: checkpointing.accept: lerning_rate: is no key that a checkpoint is compared by; did you mean learning_rate?" in said


def test_data_that_grew(job, tmp_path):
    """Shards under other names are the same data. One that is new is named; accepted, its first epoch begins."""
    for name, count, seed in ("a-0.bin", 801, 1), ("a-1.bin", 800, 2), ("b-0.bin", 801, 1), ("b-1.bin", 800, 2):
        shard(tmp_path / name, count, seed)
    job(data={"train": f"{tmp_path}/a-*.bin", "shuffle": False}, training={"max_steps": -1, "num_epochs": 1}, logging={"log_every_n_steps": 1})
    train(job.path)  # 50 steps
    job(data={"train": f"{tmp_path}/b-*.bin"}, training={"num_epochs": 2})
    said = train(job.path).stderr
    assert "training.num_epochs 1 -> 2 from step 50 (learning rate 0 -> 0.005)" in said and "done at step 100" in said
    shard(tmp_path / "b-2.bin", 160, 3)
    said = train(job.path, code=2).stderr
    assert ("data.train: b-2.bin is new (3 files now, 2 then); bring the old data back, keep the optimizer's state and go on from the first sample with --accept "
            "data.train (checkpointing.accept), or begin anew") in said
    said = train("--accept", "data.train", job.path).stderr
    assert "train: data.train: b-2.bin is new (3 files now, 2 then), from step 100, with the first sample (learning rate 0 -> 0.00524)\n" in said
    assert "done at step 210" in said  # 110 samples, 2 of a step, twice
    rows = [m for m in metrics(job.out) if "lr" in m]
    assert [m["step"] for m in rows] == list(range(1, 211))
    assert abs(rows[100]["epoch"] - 2 / 110) < 1e-9 and rows[99]["tokens"] == 3200 and rows[209]["tokens"] == 6720
    assert "finished at step 210" in train(job.path).stderr
    shard(tmp_path / "b-0.bin", 801, 9)
    assert "data.train: b-0.bin is not what it was; bring" in train(job.path, code=2).stderr


def test_data_of_another_tokenizer(job, tmp_path):
    """Ids that mean something else are not accepted; the weights are a start."""
    job()
    for name in "one", "two":
        (tmp_path / "train.bin.json").write_text(json.dumps({"tokenizer": name, "vocabulary": 64}))
        (tmp_path / "val.bin.json").write_text(json.dumps({"tokenizer": name, "vocabulary": 64}))
        if name == "one":
            train(job.path)
    shard(tmp_path / "train.bin", 8001, 5)
    said = train("--accept", "data.train", job.path, code=2).stderr
    assert "data.train: tokenizer two, and one when it was saved; make the data with that one, or begin anew" in said
    subprocess.run([program("dtckpt"), "export", job.out / "checkpoints/step-00000012", tmp_path / "start"], env=clean_env(), check=True, capture_output=True)
    job(output_dir=str(tmp_path / "other"), model={"load": str(tmp_path / "start")})
    assert "done at step 12" in train(job.path).stderr


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
def test_a_round_accepts_as_the_first_did(job):
    """A rank is killed before the new number is saved, and after that: the launch goes on either way, with it."""
    job(training={"max_steps": 20, "lr_scheduler_type": "constant", "strategy": "zero1"}, checkpointing={"save_every_n_steps": 10})
    dtrun("--nproc-per-node", "2", TRAIN, job.path)
    for steps, every in (4000, 0), (6000, 20):
        job(training={"max_steps": steps, "learning_rate": 0.001 if every == 0 else 0.002}, checkpointing={"save_every_n_steps": every})
        before = set((job.out / "checkpoints").glob("step-????????"))
        lines = len((job.out / "metrics.jsonl").read_text().splitlines())
        with Job(["--nproc-per-node", "2", "--max-restarts", "1", "train", "--accept", "learning_rate", job.path]) as running:
            wait_lines(job.out / "metrics.jsonl", lines + 3)
            wait_until(lambda: every == 0 or set((job.out / "checkpoints").glob("step-????????")) - before, "a checkpoint")
            os.kill(workers(running.marker)[1], signal.SIGKILL)
            done = running.finish(2 * DEADLINE_S)
        assert done.code == 0, done
        assert metrics(job.out)[-2 if "val_loss" in metrics(job.out)[-1] else -1]["lr"] == (0.001 if every == 0 else 0.002)
        assert [e["step"] for e in events(job.out, "resume")][-1] > 20 if every else events(job.out, "resume")[-1]["step"] == 20
    assert "finished at step 6000" in train(job.path).stderr


def test_loss_not_finite(job):
    said = train(job(training={"learning_rate": 1e8, "max_grad_norm": 0, "max_steps": 200}), code=100).stderr
    assert "not finite" in said and "rank 0: step " in said
    saved = [int(p.name[5:]) for p in (job.out / "checkpoints").glob("step-*")]
    assert all(step < int(said.split("step ")[-1].split(":")[0]) for step in saved)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_and_go_on(job, number):
    job(training={"max_steps": 2000}, logging={"log_every_n_steps": 1})
    p = subprocess.Popen([TRAIN, job.path], env=clean_env(), stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if line.startswith("step 3/"):
            p.send_signal(number)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=DEADLINE_S) == 75, rest
    assert "the same command continues" in rest
    stopped = int(rest.split("stopped at step ")[1].split(",")[0])
    job(training={"max_steps": stopped + 3})
    said = train(job.path).stderr
    assert f"(step {stopped})" in said and f"done at step {stopped + 3}" in said


def test_a_run_in_the_background_of_a_script_is_not_interrupted(job):
    job(training={"max_steps": 30}, logging={"log_every_n_steps": 1})
    p = subprocess.Popen(["sh", "-c", 'trap "" INT USR1; exec "$0" "$1"', TRAIN, job.path], env=clean_env(), stderr=subprocess.PIPE, text=True)
    for line in p.stderr:
        if line.startswith("step 3/"):
            p.send_signal(signal.SIGINT)
            p.send_signal(signal.SIGUSR1)
            break
    rest = p.stderr.read()
    assert p.wait(timeout=DEADLINE_S) == 0 and "done at step 30" in rest, rest


def hash_of(out):
    return subprocess.run([program("dtckpt"), "hash", str(out)], env=clean_env(), stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S).stdout.split()[0]


def dtrun(*args, code=0):
    done = subprocess.run([DTRUN, *args], env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * DEADLINE_S)
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
def test_ranks_as_processes(job, tmp_path):
    hashes = {}
    for row in ("ddp", "zero1", "full_shard"):
        job(output_dir=str(tmp_path / row), training={"strategy": row})
        out = dtrun("--nproc-per-node", "2", TRAIN, job.path)
        assert "done at step 12" in out
        hashes[row] = hash_of(tmp_path / row)
    assert len(set(hashes.values())) == 1, hashes
    job(output_dir=str(tmp_path / "full_shard"), training={"strategy": "zero2", "max_steps": 15})
    assert "(step 12)" in dtrun("--nproc-per-node", "3", TRAIN, job.path)


def workers(marker):
    """Pids of the running ranks of one dtrun."""
    found = []
    for pid in marked(marker):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as f:
                rank = b"\0RANK=" in f.read()
        except OSError:
            continue
        if rank and words and words[0].endswith(b"train") and b"--plan" not in words:
            found.append(pid)
    return found


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
def test_killed_rank_changes_nothing(job, tmp_path):
    """One rank is killed in the middle; the run goes on from the last checkpoint and ends with the same bits."""
    job(output_dir=str(tmp_path / "whole"), training={"max_steps": 400, "strategy": "full_shard"}, checkpointing={"save_every_n_steps": 10})
    whole = run(["--nproc-per-node", "2", "train", job.path])
    assert whole.code == 0, whole
    job(output_dir=str(tmp_path / "killed"))
    with Job(["--nproc-per-node", "2", "--max-restarts", "2", "train", job.path]) as running:
        wait_until(lambda: list((tmp_path / "killed" / "checkpoints").glob("step-????????")) and len(workers(running.marker)) == 2, "a checkpoint")
        os.kill(workers(running.marker)[1], signal.SIGKILL)
        done = running.finish(2 * DEADLINE_S)
    assert done.code == 0, done
    assert "killed by signal 9" in done.err + done.out, done
    events = [json.loads(line) for line in (tmp_path / "killed" / "events.jsonl").read_text().splitlines()]
    assert any(e.get("event") == "resume" for e in events), events
    assert hash_of(tmp_path / "killed") == hash_of(tmp_path / "whole")


@pytest.mark.skipif(not os.path.exists(DTRUN), reason="dtrun is not built")
def test_stop_of_all_ranks(job, tmp_path):
    """TERM to dtrun: all ranks save after the same step and end with 75; the same command continues."""
    job(training={"max_steps": 100000, "strategy": "zero2"}, checkpointing={"save_every_n_steps": 0}, logging={"log_every_n_steps": 1})
    with Job(["--nproc-per-node", "2", "train", job.path]) as running:
        wait_lines(job.out / "metrics.jsonl", 3)
        running.signal(signal.SIGTERM)
        done = running.finish(2 * DEADLINE_S)
    assert done.code == 75, done
    stopped = int((job.out / "checkpoints" / "latest").read_text().strip().split("-")[1])
    assert stopped >= 3
    job(training={"max_steps": stopped + 2})
    again = run(["--nproc-per-node", "3", "train", job.path])
    assert again.code == 0 and f"(step {stopped})" in again.out + again.err, again


def table(path):
    """(header, {step: row as numbers, by column}) of a table; no step stands twice."""
    header, *rows = path.read_text().splitlines()
    rows = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    by_step = {int(row["step"]): row for row in rows}
    assert len(by_step) == len(rows) and list(by_step) == sorted(by_step), path.read_text()
    return header, by_step


@pytest.mark.parametrize("place", [None, "elsewhere.csv"])
def test_table(job, tmp_path, place):
    """The table has a row for each logged step: also when the run goes on, from its end, from a kill in the middle of a line, or from an earlier checkpoint."""
    path = tmp_path / place if place else job.out / "metrics.csv"
    job(logging={"log_every_n_steps": 1, "csv": True, **({"csv_path": str(path)} if place else {})}, checkpointing={"keep_last_n": 0})

    def check(steps):
        header, rows = table(path)
        lines = {m["step"]: m for m in metrics(job.out) if "lr" in m}
        assert list(rows) == list(lines) == list(range(1, steps + 1))
        for step, line in lines.items():
            assert {k: float(rows[step][k]) for k in line if k != "time" and line[k] is not None} == {k: float(v) for k, v in line.items() if k != "time" and v is not None}
        return header

    train(job.path)
    header = check(12)
    assert header.split(",")[:3] == ["step", "epoch", "tokens"] and header.split(",")[-2:] == ["round", "time"]
    with open(path, "a") as f:
        f.write("13,0.0")  # as a kill leaves it
    train(job.path, "--set", "training.max_steps=14")
    assert check(14) == header
    train(job.path, "--set", "training.max_steps=16", "--set", "checkpointing.resume=step-00000005")
    assert check(16) == header
    train(job.path, "--fresh")
    assert check(12) == header


def test_table_of_others(job, tmp_path):
    """A file that is no such table stays as it is, and the run goes on; so it does without the folder."""
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n999,3")
    job(logging={"csv": True, "csv_path": str(other)})
    said = train(job.path).stderr
    assert f"{other}: its first line is not the header of these rows; move it away, or give another logging.csv_path; training goes on" in said, said
    assert other.read_text() == "a,b\n1,2\n999,3" and "done at step 12" in said
    said = train(job.path, "--fresh", "--set", f"logging.csv_path={tmp_path}/none/x.csv").stderr
    assert "training goes on without these lines" in said and "done at step 12" in said, said


def test_timeline(job):
    job(training={"strategy": "full_shard", "gradient_accumulation_steps": 2}, logging={"timeline_steps": [3, 2]})
    assert run(["--nproc_per_node=2", "train", job.path], env={"DTRUN_STREAMS": "thread"}).code == 0
    for rank in range(2):
        training.check_timeline(job.out, rank, [3, 4], ["transformer.h.0", "transformer.h.1"], micro_steps=2)


def test_timeline_of_the_last_steps(job):
    """Steps that end with the run are written as well; steps beyond it, or behind it when it goes on, leave no file."""
    job(logging={"timeline_steps": [11, 9]})
    train(job.path)
    events = json.loads((job.out / "timeline-rank-0.json").read_text())["traceEvents"]
    assert {e["args"]["step"] for e in events if e["ph"] == "X"} == {11, 12}
    for steps in [100, 3], [2, 3]:
        (job.out / "timeline-rank-0.json").unlink(missing_ok=True)
        job(training={"max_steps": job_steps(job) + 2}, logging={"timeline_steps": steps})
        train(job.path)
        assert not (job.out / "timeline-rank-0.json").exists()


def job_steps(job):
    return json.loads(open(job.path).read())["training"]["max_steps"]
