# covers: worker/run worker/job worker/data
"""Wrong jobs, broken data, full disks, damaged checkpoints: one clear line `where: what: cause; do this`, the right exit code, nothing left
behind (processes, shared memory, temporary files).
run: timeout 300
"""

import glob
import json
import os
import re
import shutil
import struct
import subprocess
import socket

import pytest
import places
import support
import training


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    job = training.make_job(folder, steps=20, training={"eval_every_n_steps": 10})
    result = training.train(job, folder / "plain", ranks=2)
    assert result.code == 0, result
    return folder, job, training.hash_of(folder / "plain")


def changed(place, name, change):
    """A copy of the job, changed."""
    folder, job, _ = place
    with open(job) as f:
        content = json.load(f)
    change(content)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content, indent=2))
    return path


def refused(job, out, *words, code=2, ranks=2, sets=(), env=None):
    """The job ends with the code, a line has all the words, and nothing is left."""
    shm = set(os.listdir("/dev/shm"))
    result = training.train(job, out, ranks=ranks, sets=sets, env=env)
    assert result.code == code, result
    lines = [x for x in result.err.splitlines() if all(w in x for w in words)]
    assert lines, (words, result)
    assert re.match(r"(train|dtrun): \S.*: .*", lines[0]), result
    assert not [n for n in set(os.listdir("/dev/shm")) - shm if "dtrun" in n and str(result.marker) in n]
    assert not glob.glob(str(out) + "/**/*.tmp*", recursive=True)
    if code == 2:
        assert not os.path.exists(out), os.listdir(out)
    return result


WRONG = {
    "key": (lambda j: j["training"].update(warmup_step=3), ("warmup_step", "unknown key", "warmup_steps")),
    "type": (lambda j: j["training"].update(max_steps="many"), ("max_steps",)),
    "value": (lambda j: j["training"].update(batch_size_per_gpu=-1), ("batch_size_per_gpu", "-1")),
    "heads": (lambda j: j["model"].update(n_head=5), ("n_head",)),
    "strategy": (lambda j: j["training"].update(strategy="full_shart"), ("full_shart", "full_shard")),
    "place": (lambda j: j["model"].update(max_steps=3), ("max_steps",)),
    "data": (lambda j: j["data"].update(train="/nowhere/*.bin"), ("/nowhere/*.bin",)),
    "model": (lambda j: j["model"].update(name="gpt9"), ("gpt9",)),
    "sequence": (lambda j: j["data"].update(sequence_length=64), ("sequence_length",)),
    "vocabulary": (lambda j: j["model"].update(vocab_size=16), ("vocab_size", "16")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job(place, name):
    change, words = WRONG[name]
    path = changed(place, name, change)
    refused(path, place[0] / f"out-{name}", *words)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\1\2", '{"model": 1e999}', '{"a": ' * 2000, "\udcff\udcfe"], ids=range(7))
def test_no_json_at_all(place, text):
    path = place[0] / "broken.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    refused(path, place[0] / "out-broken", "broken.json")


def test_job_file_missing(place):
    refused(place[0] / "nowhere.json", place[0] / "out-nowhere", "nowhere.json")


@pytest.mark.parametrize("kind", ["missing", "empty", "binary"])
def test_text_for_dtdata(place, kind):
    path, out = place[0] / f"text-{kind}", place[0] / f"shards-{kind}"
    if kind != "missing":
        path.write_bytes(b"" if kind == "empty" else bytes(range(256)) * 40)
    p = subprocess.run([support.program("dtdata"), "tokenize", "-o", str(out), str(path)], capture_output=True, text=True, errors="replace",
                       timeout=support.DEADLINE_S)
    if kind == "binary":  # bytes are tokens: nothing is wrong with them
        assert p.returncode in (0, 1, 2) and (p.returncode == 0 or str(path) in p.stderr), p
    else:
        assert p.returncode not in (0, -11, -6) and p.stderr.startswith("dtdata: "), p
        assert not glob.glob(str(out) + "/*.bin"), os.listdir(out)


def broken_shards(place, name, change):
    """A job over shards of which the first was changed by change(bytes)."""
    folder = place[0] / f"data-{name}"
    shutil.copytree(place[0] / "shards", folder)
    first = sorted(glob.glob(str(folder / "train-*.bin")))[0]
    with open(first, "rb") as f:
        data = f.read()
    with open(first, "wb") as f:
        f.write(change(data))
    return changed(place, name, lambda j: j["data"].update(train=f"{folder}/train-*.bin", val=f"{folder}/val-*.bin")), first


SHARDS = {
    "truncated": lambda b: b[: len(b) // 2 + 1],
    "short-header": lambda b: b[:100],
    "nothing": lambda b: b"",
    "magic": lambda b: b"GARBAGE!" + b[8:],
    "grown": lambda b: b + b"\0\0\0",
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_broken_shard(place, name):
    job, first = broken_shards(place, name, SHARDS[name])
    refused(job, place[0] / f"out-{name}", os.path.basename(first))


def test_a_shard_of_another_tokenizer(place):
    """A token that the model does not have is found before a step is made with it."""
    def change(b):
        return b[:1024] + struct.pack("<H", 50000) + b[1026:]

    job, first = broken_shards(place, "tokens", change)
    os.unlink(first + ".json")  # it has the hash of the data
    out = place[0] / "out-tokens"
    result = training.train(job, out, ranks=2)
    assert result.code in (2, 100), result
    assert any("50000" in x and "vocab_size" in x and x.startswith("train: ") for x in result.err.splitlines()), result


def test_wrong_options(place):
    _, job, _ = place
    for options, words in ((["--nproc_per_node=0"], ["nproc_per_node", "0"]), (["--nproc_per_node=10000"], ["nproc_per_node"]),
                           (["--nproc_per_node=x"], ["nproc_per_node", "x"])):
        result = support.run([*options, "train", job, "--output_dir", place[0] / "out-options"])
        assert result.code == 2, result
        assert any(all(w in x for w in words) and x.startswith("dtrun: ") for x in result.err.splitlines()), result
    if not os.path.exists("/dev/nvidia0"):
        result = support.run(["--nproc_per_node=gpu", "train", job, "--output_dir", place[0] / "out-options"])
        assert result.code == 2 and "gpu" in result.err.lower(), result
    result = support.run(["--nproc_per_node=2", "no-such-program-anywhere"])
    assert result.code == 2 and "no-such-program-anywhere" in result.err, result
    assert not os.path.exists(place[0] / "out-options")


def test_a_port_that_is_taken(place):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        result = support.run(["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}", "train", place[1], "--output_dir", place[0] / "out-port"])
    assert result.code == 111, result
    owner = f"already in use by pid {os.getpid()} ("  # of this test
    assert any(x.startswith(f"dtrun: port {port}: {owner}") for x in result.err.splitlines()), result
    assert not os.path.exists(place[0] / "out-port" / "checkpoints")


def test_larger_than_memory(place):
    path = changed(place, "huge", lambda j: j["model"].update(n_embd=65536, n_layer=64))
    out = place[0] / "out-huge"
    result = refused(path, out, "memory")
    assert "train: plan: 2 ranks" in result.err and "; use " in result.err, result


def test_loss_not_finite(place):
    out = place[0] / "out-nan"
    result = training.train(place[1], out, ranks=2, sets=["training.learning_rate=1e30", "training.max_grad_norm=0", "training.max_steps=100"])
    assert result.code == 100, result
    assert re.search(r"exit code 100: step \d+: the loss is not finite; .*learning_rate", cause_of(result)), result
    assert "restarting" not in result.err


TINY = os.path.join(support.ROOT, "tests/golden/finetune/tiny")


def with_nan(folder, name):
    """A copy of a small model whose tensor has a NaN as its element 5, and a job that begins with it."""
    shutil.copytree(TINY, folder / name)
    weights = folder / name / "model.safetensors"
    header, _ = training.read_tensors(weights)
    tensor = header["model.layers.1.mlp.up_proj.weight"]
    assert tensor["dtype"] == "F32", tensor
    data = bytearray(weights.read_bytes())
    at = len(data) - max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__") + tensor["data_offsets"][0] + 4 * 5
    data[at:at + 4] = struct.pack("<f", float("nan"))
    weights.write_bytes(data)
    data = training.make_data(folder)
    job = folder / f"{name}.json"
    job.write_text(json.dumps({"model": {"load": str(folder / name)}, "training": {"batch_size_per_gpu": 1, "max_steps": 3, "threads": 1},
                               "data": {"train": f"{data}/train-*.bin", "val": f"{data}/val-*.bin", "sequence_length": 16}}))
    return job


@pytest.mark.parametrize("ranks, strategy", [(1, "auto"), (2, "full_shard")])
def test_weights_that_are_not_finite(place, ranks, strategy):
    """The folder is to blame, and not the learning rate: in the first step, and in an evaluation."""
    name = f"nan-{ranks}"
    job, said = with_nan(place[0], name), f"{name}/model.safetensors: tensor model.layers.1.mlp.up_proj.weight holds NaN (element 5); take a copy that does not"
    result = training.train(job, place[0] / f"out-{name}", ranks=ranks, strategy=strategy)
    assert result.code == 100 and said in cause_of(result) and "learning_rate" not in result.err, result
    evaluation = subprocess.run([support.program("train"), "--evaluate", place[0] / name, job], capture_output=True, text=True, timeout=60, check=False)
    assert evaluation.returncode == 100 and said in evaluation.stderr, evaluation


def test_fresh_looks_at_the_weights_first(place):
    """A run is not set aside for one that cannot begin."""
    folder = place[0]
    shutil.copytree(TINY, folder / "lacks")
    data = training.make_data(folder)
    job = folder / "lacks.json"
    job.write_text(json.dumps({"model": {"load": str(folder / "lacks")}, "training": {"batch_size_per_gpu": 1, "max_steps": 2, "threads": 1},
                               "data": {"train": f"{data}/train-*.bin", "sequence_length": 16}}))
    out = folder / "out-lacks"
    assert training.train(job, out, ranks=2).code == 0
    before = sorted(os.listdir(out))
    (folder / "lacks/model.safetensors").unlink()
    result = support.run(["--nproc_per_node=2", "train", job, "--output_dir", out, "--fresh"])
    assert result.code == 100 and "lacks: neither model.safetensors nor" in cause_of(result), result
    assert sorted(os.listdir(out)) == before and training.hash_of(out)


def cause_of(result):
    """What the rank said of itself: one line of the launcher's, and nothing of it a second time, but in the JSON record."""
    found = re.findall(r"^dtrun: host \S+ rank \d+ \(local \d+, pid \d+\): (.*)$", result.err, re.M)
    assert len(found) == 1, result
    words = re.sub(r"^exit code \d+: (rank \d+: )?", "", found[0]).split("; ")[0]
    assert len(words) > 10 and result.err.count(words) == 1, (words, result)
    return found[0]


def damage(folder, kind):
    name = sorted(glob.glob(f"{folder}/slices-*"))[0]
    with open(name, "rb") as f:
        data = bytearray(f.read())
    if kind == "bit":
        data[len(data) - 5] ^= 4
        open(name, "wb").write(data)
    elif kind == "short":
        open(name, "wb").write(data[:-7])
    elif kind == "gone":
        os.unlink(name)
    elif kind == "empty":
        open(name, "wb").close()
    elif kind == "manifest":
        text = open(f"{folder}/manifest.json").read()
        open(f"{folder}/manifest.json", "w").write(text[: len(text) // 2])


@pytest.mark.parametrize("kind", ["bit", "short", "gone", "empty", "manifest"])
def test_a_damaged_checkpoint(place, kind):
    """The one before is used, and a line says why."""
    folder, job, expected = place
    out = folder / f"out-damaged-{kind}"
    shutil.copytree(folder / "plain", out)
    damage(out / "checkpoints" / "step-00000020", kind)
    result = training.train(job, out, ranks=2)
    assert result.code == 0 and "(step 10)" in result.err, result
    assert any(x.startswith("train: ") and "step-00000020" in x and "step-00000010" not in x.split(":")[1] for x in result.err.splitlines()), result
    assert training.hash_of(out) == expected


def test_the_option_that_said_it_is_blamed(place):
    folder, job, _ = place
    for asked, said in ((["--mode", "nosuch", job], '--mode nosuch: training.strategy: is "nosuch"; see train --list-strategies'),
                        (["--seed", "x", job], '--seed x: training.seed: is "x"; give a whole number from 0 to 9007199254740992'),
                        ([folder], f"{folder}: is a folder; give the job file")):
        p = subprocess.run([support.program("train"), *map(str, asked)], capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert (p.returncode, p.stdout, p.stderr) == (2, "", f"train: {said}\n"), p


@pytest.mark.parametrize("kind", ["bit", "short", "gone", "empty", "manifest"])
def test_verify_names_each_damaged_checkpoint(place, kind):
    """Of a run or of a folder of checkpoints: the newest being damaged is no reason to look at the one before alone."""
    out = place[0] / f"out-verify-{kind}"
    shutil.copytree(place[0] / "plain", out)
    assert training.dtckpt("verify", out)[0] == 0
    damage(out / "checkpoints" / "step-00000020", kind)
    for path in (out, out / "checkpoints"):
        code, text, err = training.dtckpt("verify", path)
        assert code == 1 and "step-00000010: step 10: every checksum is right" in text, (code, text, err)
        assert "damaged: " in err and "step-00000020" in err and "step-00000020" not in text, (text, err)
    assert training.dtckpt("verify", out / "checkpoints" / "step-00000020")[0] == 1
    assert training.dtckpt("verify", out / "checkpoints" / "step-00000010")[0] == 0
    assert training.dtckpt("verify", out / "checkpoints" / "step-00000015")[0] == 2


def test_folders_of_others_are_no_damage(place):
    """Whatever begins with step-, by name or by what it holds none of ours; a checkpoint that has lost its manifest is damaged, though."""
    out = place[0] / "out-foreign"
    shutil.copytree(place[0] / "plain", out)
    points = out / "checkpoints"
    for name in ("step-77", "step-abc", "step-00000077", "step-9.tmp-1"):
        (points / name).mkdir()
        (points / name / "model.bin").write_text("theirs")
    (points / "step-99").mkdir()
    (points / "step-99" / "manifest.json").write_text('{"theirs": 1}')
    code, text, err = training.dtckpt("verify", out)
    assert code == 0 and err == "" and len(re.findall("not a checkpoint of dtrun: ", text)) == 5 and text.count("every checksum is right") == 2, (code, text, err)
    code, text, err = training.dtckpt("list", out)
    assert code == 0 and "damaged" not in text and len(re.findall(r"^step-\S+ .* not a checkpoint of dtrun: ", text, re.M)) == 5, (code, text, err)
    assert training.dtckpt("verify", points / "step-77") == (2, "", f"dtckpt: {points}/step-77: not a checkpoint of dtrun: it holds no manifest.json\n")
    os.unlink(points / "step-00000020" / "manifest.json")
    code, text, err = training.dtckpt("verify", out)
    assert code == 1 and err.startswith("dtckpt: damaged: ") and "step-00000020" in err, (code, text, err)
    for name in ("step-00000010", "step-00000020"):
        shutil.rmtree(points / name)
    code, text, err = training.dtckpt("verify", out)
    assert code == 2 and err == f"dtckpt: {points}: holds no checkpoint of dtrun\n", (code, text, err)


def test_dtckpt_refuses_empty_words_and_keeps_what_is_not_its_own(place):
    """The folder of an export is a person's: what lies there stays, but for what a killed export left."""
    run, folder = place[0] / "plain", place[0] / "exported"
    assert training.dtckpt("export", run, "") == (2, "", "dtckpt: export: the name of the folder is empty\n")
    assert training.dtckpt("sample", run, "") == (2, "", "dtckpt: sample: the prompt is empty; give at least one character\n")
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder.mkdir()
    kept = ["notes.tmp-5", f"model.safetensors.tmp-{os.getpid()}"]
    for name in [*kept, f"model.safetensors.tmp-{gone.pid}"]:
        (folder / name).write_text("mine")
    assert training.dtckpt("export", run, folder)[0] == 0
    assert sorted(os.listdir(folder)) == sorted([*kept, "config.json", "generation_config.json", "model.safetensors"])


def test_all_checkpoints_damaged(place):
    """A named checkpoint that is damaged is refused, not replaced."""
    folder, job, _ = place
    out = folder / "out-damaged-named"
    shutil.copytree(folder / "plain", out)
    named = out / "checkpoints" / "step-00000020"
    damage(named, "bit")
    result = training.train(job, out, ranks=2, sets=[f"checkpointing.resume={named}"])
    assert result.code == 100 and "step-00000020" in cause_of(result), result


def both_ways(job, out, before="", options=""):
    """What train alone says to a folder, and under dtrun: the same line, 2, before anything starts. `before` runs in a mount namespace of its own."""
    for program in (f"'{support.program('train')}'", f"'{support.DTRUN}' --nproc_per_node=2 train"):
        line = f"{before} exec {program} '{job}' --output_dir '{out}' {options}"
        p = places.in_mounts(line) if before else subprocess.run(["sh", "-c", line], env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert p.returncode == 2 and p.stdout == "" and p.stderr.count("\n") == 1, p
        yield p.stderr


@pytest.mark.parametrize("below", ["", "run/1"])
def test_output_that_is_a_file(place, below):
    path = place[0] / "a-file"
    path.write_text("")
    for said in both_ways(place[1], path / below):
        assert said == f"train: output_dir: {path}: is not a folder; choose another name, or move the file away\n"


def test_output_where_no_folder_can_be_made(place):
    """Root may write there, says the kernel, and another try would end the same way."""
    for line in both_ways(place[1], "/sys/run/1"):
        assert "/sys" in line and re.search(r"(cannot be written to: .*|no folder can be made there); choose another folder", line), line


@pytest.mark.parametrize("kind, options, said", [
    ("full", "size=64k", r"its disk is full \(\S+ K?i?B free\); make room there, or choose another folder"),
    ("read-only", "ro", r"cannot be written to: Read-only file system; choose another folder, or change who may write there"),
])
def test_output_on_a_disk_that_cannot_take_it(place, kind, options, said):
    mount = places.mount_point(place[0], f"disk-{kind}")
    before = f"mount -t tmpfs -o {options} none '{mount}' &&"
    before += f" head -c 60000 /dev/zero >'{mount}/much' &&" if kind == "full" else ""
    for line in both_ways(place[1], mount / "run", before):
        assert re.fullmatch(rf"train: output_dir: {re.escape(str(mount))}: {said}\n", line), line


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root and setpriv")
def test_output_of_somebody_else(place):
    home, job = place[0] / "somebody", place[0] / "readable.json"
    home.mkdir(mode=0o755)
    shutil.copy(place[1], job)
    for path in [place[0], *place[0].parents]:  # pytest's folders are for their owner alone
        if path.stat().st_uid == os.geteuid() and str(path).startswith("/tmp/"):
            os.chmod(path, 0o755)
    somebody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*somebody, "test", "-x", support.program("train")]).returncode != 0:
        pytest.skip("the programs lie where another user cannot reach them")
    p = subprocess.run([*somebody, support.program("train"), job, "--output_dir", home / "run"],
                       env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)
    said = f"train: output_dir: {home}: cannot be written to: Permission denied; choose another folder, or change who may write there\n"
    assert (p.returncode, p.stderr) == (2, said), p


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_output_that_somebody_else_put_there(place):
    """As in /tmp: whoever is first owns the folder, and could exchange what we write."""
    shared = place[0] / "shared"
    (shared / "run").mkdir(parents=True)
    os.chmod(shared, 0o1777)
    os.chown(shared / "run", 65534, 65534)
    os.chmod(shared / "run", 0o777)
    for line in both_ways(place[1], shared / "run"):
        assert line == (f"train: output_dir: {shared}/run: belongs to user 65534, and anybody could have put it into {shared}; choose another folder, run: "
                        f"chown 0 {shared}/run, or set DTRUN_TRUST_FOLDERS=1 where this user is trusted\n")
    for impossible in ("/proc/x", "/dev/null/x", "/sys/x", "/proc"):
        result = support.run([f"--log_dir={impossible}", "-r", "3", "/bin/true"])
        assert result.code == 2 and result.err.startswith("dtrun: --log_dir: /") and result.err.count("\n") == 1, result
    result = support.run([f"--log_dir={shared}/run/logs", "-r", "3", "/bin/true"])
    assert result.code == 2 and re.match(rf"dtrun: --log_dir: {shared}/run: belongs to user 65534", result.err) and result.err.count("\n") == 1, result
    assert os.listdir(shared / "run") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_output_below_what_somebody_else_put_there(place):
    """One part higher, or where a link leads through it: its owner could exchange it all the same. And a folder that all may write to."""
    scratch, opened = place[0] / "scratch", place[0] / "opened"
    (scratch / "runs" / "demo").mkdir(parents=True)
    os.chmod(scratch, 0o1777)
    os.chown(scratch / "runs", 65534, 65534)
    os.symlink(scratch / "runs" / "demo", place[0] / "way")
    opened.mkdir()
    os.chmod(opened, 0o777)
    for out, why in ((scratch / "runs" / "demo", f"{scratch}/runs: belongs to user 65534, and anybody could have put it into {scratch}"),
                     (place[0] / "way" / "new", f"{scratch}/runs: belongs to user 65534, and anybody could have put it into {scratch}"),
                     (opened / "new", f"{opened}: anybody may write to it (mode 0777), and so exchange what lies in it")):
        for line in both_ways(place[1], out):
            assert line.startswith(f"train: output_dir: {why}; choose another folder"), line
        for line in both_ways(place[1], place[0] / "fine", options=f"--set checkpointing.checkpoint_dir={out}"):
            assert line.startswith(f"train: checkpointing.checkpoint_dir: {why}; choose another folder"), line
        result = support.run([f"--log_dir={out}", "-r", "3", "/bin/true"])
        assert result.code == 2 and result.err.startswith(f"dtrun: --log_dir: {why}; ") and result.err.count("\n") == 1, result
        words = [support.program("dtdata"), "tokenize", "-o", out, place[1]]
        p = subprocess.run(words, env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert p.returncode == 1 and why in p.stderr, p
    assert os.listdir(scratch / "runs" / "demo") == [] and os.listdir(opened) == []
    result = support.run([f"--log_dir={opened}", "-r", "3", "/bin/true"], env={"DTRUN_TRUST_FOLDERS": "1"})
    assert result.code == 0, result


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root and setpriv")
def test_a_reader_of_the_folder_locks_nothing(place):
    """Whoever may open a file may lock it, also for reading only. Also a lock that an older version has left open to all."""
    folder, job, _ = place
    out = folder / "read-by-all"
    assert training.train(job, out).code == 0
    for path in [folder, *folder.parents]:  # pytest's folders are for their owner alone
        if path.stat().st_uid == os.geteuid() and str(path).startswith("/tmp/"):
            os.chmod(path, 0o755)
    locks = [out / "checkpoints.lock", out / "checkpoints" / "owner.lock"]
    opens = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'for x; do exec 3<"$x" || exit 7; done', "sh"]
    for older in False, True:
        for lock in locks:
            if older:
                os.chmod(lock, 0o644)
        assert training.train(job, out).code == 0
        for lock in locks:
            assert subprocess.run([*opens, lock], stderr=subprocess.DEVNULL, timeout=support.DEADLINE_S).returncode != 0, lock
    assert subprocess.run([*opens, out / "job.json"], timeout=support.DEADLINE_S).returncode == 0  # which it may read


HOSTILE = "\x1b]0;owned\x07\u202e\u009b2J\nforged"


def test_names_from_somewhere_are_shown_as_escapes(place, tmp_path):
    """A tensor, a file of an index, a model type, a key, a tokenizer, a folder: what a terminal would obey, or what begins a line, never reaches one."""
    folder, job, _ = place
    hf, runs = tmp_path / "hf", tmp_path / "runs"
    hf.mkdir()
    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 256, "activation_function": "gelu_new"}
    header = json.dumps({HOSTILE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    tensors = struct.pack("<Q", len(header)) + header + b"\0\0\0\0"
    index = json.dumps({"weight_map": {"t": HOSTILE}}).encode()
    foreign = [("model.safetensors", tensors, config), ("model.safetensors.index.json", index, config),
               ("model.safetensors", tensors, {**config, "model_type": HOSTILE})]
    said = []

    def ask(code, program, *args):
        p = subprocess.run([support.program(program), *map(str, args)], env=support.clean_env(), capture_output=True, timeout=support.DEADLINE_S)
        assert p.returncode == code, p
        said.append(p.stdout + p.stderr)

    with open(job) as f:
        text = json.load(f)
    loads = tmp_path / "loads.json"
    loads.write_text(json.dumps({**text, "model": {"load": str(hf)}}))
    for name, data, c in foreign:
        for old in hf.iterdir():
            old.unlink()
        (hf / name).write_bytes(data)
        (hf / "config.json").write_text(json.dumps(c))
        ask(100 if c is config else 2, "train", loads, "--output_dir", tmp_path / "out")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({**text, HOSTILE: 1}))
    ask(2, "train", keys)
    out = tmp_path / f"out{HOSTILE}"
    ask(0, "train", job, "--output_dir", out)
    ask(0, "train", job, "--output_dir", out)  # which is finished
    said.append(b"".join(p.read_bytes() for p in (out / "logs").iterdir()))
    ask(0, "dtckpt", "list", out)
    ask(0, "dtckpt", "verify", out)
    steps = runs / f"step-00000001{HOSTILE}"
    steps.mkdir(parents=True)
    ask(2, "dtckpt", "list", runs)
    shard = next((folder / "shards").glob("train-*.bin"))
    shutil.copy(shard, tmp_path / "s.bin")
    (tmp_path / "s.bin.json").write_text(json.dumps({**json.loads((folder / "shards" / f"{shard.name}.json").read_text()), "tokenizer": HOSTILE[:30]}))
    ask(0, "dtdata", "inspect", tmp_path / "s.bin")
    assert sum(b"owned" in text for text in said) >= 8, said
    for text in said:
        assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae|^(train: )?forged", text, re.M), text


def test_links_that_somebody_put_there_first(place):
    """What a run appends to is never another file: its lines are lost, with one warning, and training goes on."""
    folder, job, expected = place
    out, victim = folder / "out-links", folder / "victim"
    (out / "logs").mkdir(parents=True)
    victim.write_text("theirs")
    for name in ("metrics.jsonl", "events.jsonl", "logs/rank-0.log", "logs/rank-1.log"):
        (out / name).symlink_to(victim)
    result = training.train(job, out, ranks=2, restarts=None)  # events.jsonl is one of the links
    assert result.code == 0 and training.hash_of(out) == expected, result
    assert victim.read_text() == "theirs"
    warned = [x for x in result.err.splitlines() if re.search(r"\.jsonl: is a symbolic link; remove it; training goes on without these lines$", x)]
    assert len(warned) == 1, result


def test_a_wrong_job_alone_is_2(place):
    """What train's help says: nothing was started."""
    for sets in (["data.train=/nonexistent/*.bin"], ["model.n_head=5"], ["model.n_embd=65536", "model.n_layer=100"]):
        argv = [support.program("train"), place[1], "--output_dir", place[0] / "wrong-alone", *(x for s in sets for x in ("--set", s))]
        p = subprocess.run(argv, env=support.clean_env(), capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert p.returncode == 2 and p.stderr.startswith("train: ") and p.stderr.count("\n") == 1, p
        assert not (place[0] / "wrong-alone").exists()


@pytest.mark.parametrize("asked", ["step-14", "step-00000014", "runs/nowhere/step-00000014"])
def test_a_checkpoint_that_is_not_there(place, asked):
    """Asked for by its name or by its folder: the nearest ones are listed."""
    folder, job, _ = place
    out = folder / "out-asked"
    shutil.copytree(folder / "plain", out, dirs_exist_ok=True)
    for said in both_ways(job, out, options=f"--set checkpointing.resume={asked}"):
        assert re.fullmatch(rf"train: checkpointing\.resume: \S*/step-0*14: no such checkpoint; {out}/checkpoints has the nearest at steps 10, 20\n", said), said


def unchanged(out):
    return sorted((x, os.stat(x).st_mtime_ns) for x in glob.glob(f"{out}/**", recursive=True) if os.path.isfile(x))


@pytest.mark.parametrize("asked", ["step-10", "another run's", "auto"])
@pytest.mark.parametrize("key, value, was", [("model.n_embd", "64", "32"), ("training.learning_rate", "0.5", "0.003")])
def test_a_checkpoint_of_another_job(place, asked, key, value, was):
    """Named or not: both values, before anything is started or changed."""
    folder, job, _ = place
    out = folder / f"out-other-{asked.split()[0]}"
    from_other = asked == "another run's"
    if not out.exists() and not from_other:
        shutil.copytree(folder / "plain", out)
    named = folder / "plain" / "checkpoints" / "step-00000020"
    before = unchanged(out)
    resume = "auto" if asked == "auto" else named if from_other else asked
    for said in both_ways(job, out, options=f"--set checkpointing.resume='{resume}' --set {key}={value}"):
        where = named if from_other else out / "checkpoints" / ("step-00000020" if asked == "auto" else "step-00000010")
        prefix = "" if asked == "auto" else "checkpointing.resume: "
        keep = "" if key == "model.n_embd" else f", keep the optimizer's state and go on with --accept {key} (checkpointing.accept)"
        assert said == (f"train: {prefix}{where}: {key}: was {was}, is now {value}; go back to the old value{keep}, or begin anew with --fresh or another "
                        "output_dir\n"), said
    assert unchanged(out) == before and not glob.glob(f"{out}/**/*.old-*", recursive=True)


def test_a_name_that_is_no_checkpoint(place):
    folder, job, _ = place
    for said in both_ways(job, folder / "out-none", options=f"--set checkpointing.resume='{folder}/plain'"):
        assert said == f"train: checkpointing.resume: {folder}/plain: is no checkpoint (it holds no manifest.json); name a folder step-N\n", said


def test_a_course_that_began_by_a_name(place):
    """It goes on from its own saves under the same command, also when what it began from is gone; without saves of its own it is refused."""
    folder, job, _ = place
    out, source = folder / "out-course", folder / "source"
    shutil.copytree(folder / "plain" / "checkpoints" / "step-00000010", source)
    sets = [f"checkpointing.resume={source}"]
    assert training.train(job, out, sets=sets).code == 0
    shutil.rmtree(source)
    result = training.train(job, out, sets=sets)
    assert result.code == 0 and "finished at step 20" in result.err, result
    for said in both_ways(job, out, options=f"--set {sets[0]} --set training.learning_rate=0.5"):
        assert f"{out}/checkpoints/step-00000020: training.learning_rate: was 0.003, is now 0.5" in said, said
    for path in glob.glob(f"{out}/checkpoints/step-*"):
        shutil.rmtree(path)
    for said in both_ways(job, out, options=f"--set {sets[0]}"):
        assert said == f"train: checkpointing.resume: {source}: no such checkpoint; {out}/checkpoints holds none; begin with resume auto\n", said


def test_a_folder_in_use(place):
    """By another job: who it is, before anything starts; its plan may be asked for meanwhile."""
    folder, job, _ = place
    out = folder / "out-in-use"
    lines = support.wait_lines
    with support.Job(["--nproc_per_node=1", "--rdzv_id=job-7", "train", job, "--output_dir", out, "--set", "training.max_steps=1000000", "--set",
                      "logging.log_every_n_steps=1", "--set", "training.eval_every_n_steps=0"]) as first:
        lines(out / "metrics.jsonl", 2)
        pid = support.children(first.agent)[0]
        for said in both_ways(job, out):
            assert re.fullmatch(rf"train: {out}/checkpoints: in use by host \S+ pid {pid}, job job-7, since 20\S+; give this one another --output_dir\n", said), said
        p = subprocess.run([support.program("train"), "--plan", job, "--output_dir", out, "--set", "training.max_steps=1000000"], env=support.clean_env(),
                           capture_output=True, text=True, timeout=support.DEADLINE_S)
        assert p.returncode == 0 and "strategy" in p.stdout, p
        first.signal(2)
        assert first.finish().code == 75


def test_two_starts_at_once_in_one_folder(place):
    """Neither saw the other when it looked; one of them gets the folder."""
    folder, job, _ = place
    out = folder / "out-at-once"
    words = ["--nproc_per_node=2", "train", job, "--output_dir", out, "--set", "training.max_steps=1000000", "--set", "training.eval_every_n_steps=0"]
    with support.Job(words) as a, support.Job(words) as b:
        first = support.wait_until(lambda: next((x for x in (a, b) if x.process.poll() is not None), None), "the refusal")
        refused, other = first.finish(), b if first is a else a
        said = [x for x in refused.err.splitlines() if "in use by host" in x]
        assert refused.code == 2 and len(said) == 1 and "; give this one another --output_dir" in said[0], refused
        support.wait_until(lambda: any(json.loads(x)["step"] > 1 for x in support.lines_of(out / "metrics.jsonl") if '"step"' in x), "steps of the other")
        other.signal(2)
        assert other.finish().code == 75


def test_a_checkpoint_asked_for_by_its_name(place):
    folder, job, expected = place
    out = folder / "out-by-name"
    shutil.copytree(folder / "plain", out)
    result = training.train(job, out, ranks=2, sets=["checkpointing.resume=step-10"])
    assert result.code == 0 and "(step 10)" in result.err and training.hash_of(out) == expected, result
