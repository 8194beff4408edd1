# covers: worker/checkpoints cmd/dtckpt.c worker/run/trainer_origin.c
"""A Hugging Face folder in and out: what came in beside the weights is there again, wherever and whenever the export is made."""

import ctypes.util
import json
import os
import re
import shutil
import subprocess

import pytest
import training
from support import BIN, DEADLINE_S, ROOT, clean_env

TRAIN = os.path.join(BIN, "train")
pytestmark = pytest.mark.skipif(not os.path.exists(TRAIN), reason="train is not built")
MODEL = {"name": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}
SETS = {"threads": 1, "batch_size_per_gpu": 2, "max_steps": 2, "eval_every_n_steps": 0, "warmup_steps": -1}
CONFIG = """{
  "_name_or_path": "somebody/gpt2",
  "model_type": "gpt2",
  "architectures": ["GPT2LMHeadModel"],
  "torch_dtype": "bfloat16",
  "n_layer": 1, "n_head": 2, "n_embd": 16, "n_ctx": 16, "vocab_size": 256,
  "attn_pdrop": 0.1, "embd_pdrop": 0.10, "resid_pdrop": 1e-1, "summary_first_dropout": 0.1, "hidden_dropout_prob": 0.0,
  "layer_norm_epsilon": 1e-05,
  "bos_token_id": 5, "eos_token_id": [7, 9],
  "task_specific_params": {"text-generation": {"do_sample": true, "large": 1000000000000000019884624838656}},
  "transformers_version": "4.11.0.dev0"
}
"""


def exported(config):
    return config.replace('"bfloat16"', '"float32"').replace('.dev0"\n}', '.dev0",\n  "dtype": "float32"\n}')


OUT = exported(CONFIG)
FILES = {
    "generation_config.json": '{"eos_token_id": [7, 9]}\n',
    "tokenizer.json": '{"version": "1.0"}\n',
    "tokenizer_config.json": '{"model_max_length": 1000000000000000019884624838656}\n',
    "chat_template.jinja": "{{ messages }}",
    "spiece.model": "\0\1",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
}
LEFT_OUT = {"README.md": "before", "pytorch_model.bin": "weights"}


def test_a_folder_that_cannot_be_evaluated(weights, tmp_path):
    """The messages name the option, and what the folder lacks."""
    source, file = weights
    folder = tmp_path / "alone"
    os.mkdir(folder)
    shutil.copy(file, folder / "model.safetensors")
    job = training.make_job(tmp_path, model=MODEL, training=SETS)
    p = subprocess.run([TRAIN, "--evaluate", str(folder), job], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert (p.returncode, p.stderr) == (2, f"train: --evaluate: {folder}: has weights and no config.json, which says of what model they are\n")
    (folder / "config.json").write_text(CONFIG.replace('"n_head": 2', '"n_head": 3'))
    p = subprocess.run([TRAIN, "--evaluate", str(folder), job], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert (p.returncode, p.stderr) == (2, f"train: --evaluate: {folder}/config.json: n_head: n_embd 16 cannot be split among n_head 3 heads; "
                                           "choose a multiple\n")
    (folder / "config.json").write_text(CONFIG)
    (folder / "model.safetensors").write_bytes(file.read_bytes()[:-8])
    with open(job) as f:
        sections = json.load(f)
    sections.pop("model")
    sections["data"]["val"] = sections["data"]["train"]
    (tmp_path / "evaluate.json").write_text(json.dumps(sections))
    p = subprocess.run([TRAIN, "--evaluate", str(folder), str(tmp_path / "evaluate.json")], env=clean_env(), capture_output=True, text=True,
                       timeout=DEADLINE_S)
    assert p.returncode != 0 and p.stderr.startswith(f"train: --evaluate: {folder}/model.safetensors: tensor "), p.stderr


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """(folder of the data, model.safetensors)"""
    folder = tmp_path_factory.mktemp("weights")
    run(training.make_job(folder, model=MODEL, training=SETS), folder / "out")
    return folder, folder / "out" / "model" / "model.safetensors"


def run(job, out, *sets, code=0, options=()):
    args = [TRAIN, job, "--output_dir", out, *(x for s in sets for x in ("--set", s)), *options]
    p = subprocess.run([str(a) for a in args], env=clean_env(), capture_output=True, text=True, timeout=DEADLINE_S)
    assert p.returncode == code, p.stdout + p.stderr
    return p.stderr


def make_folder(folder, weights, config=CONFIG, files=FILES):
    folder.mkdir()
    shutil.copy(weights[1], folder / "model.safetensors")
    (folder / "config.json").write_text(config)
    for name, text in {**files, **LEFT_OUT}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def load_job(weights, tmp_path, folder):
    """The job file lies where the data are made, under a name of this test's own."""
    return training.make_job(weights[0], name=f"{tmp_path.name}.json", model={"load": str(folder)}, training=SETS)


@pytest.fixture
def no_dimensions(monkeypatch):
    """make_job's model would say its own."""
    made = training.make_job

    def make_job(*args, model=None, **others):
        path = made(*args, **others)
        content = json.load(open(path))
        content["model"] = model
        json.dump(content, open(path, "w"))
        return path

    monkeypatch.setattr(training, "make_job", make_job)


def check(folder, config=OUT, files=FILES):
    assert (folder / "config.json").read_text() == config
    found = {os.path.relpath(os.path.join(d, n), folder): open(os.path.join(d, n)).read() for d, _, names in os.walk(folder) for n in names
             if n not in ("config.json", "model.safetensors")}
    assert found == files


def export(path, out, said=""):
    code, _, err = training.dtckpt("export", path, out)
    assert code == 0 and said in err and (said or not err), err


def test_a_folder_comes_out_again(tmp_path, weights, no_dimensions):
    """Also when the source is gone before the run has ended, and other ranks go on; of a checkpoint that was moved away alone, the rest is named."""
    came, out = make_folder(tmp_path / "came", weights), tmp_path / "out"
    job = load_job(weights, tmp_path, came)
    said = run(job, out, "training.max_steps=1")
    assert said.count(f"train: {came}: not kept for the exported folder: README.md, pytorch_model.bin\n") == 1, said
    check(out / "model")
    shutil.rmtree(out / "model")
    shutil.rmtree(came)
    result = training.train(job, str(out), ranks=2, strategy="zero3", sets=["training.batch_size_per_gpu=1"])
    assert result.code == 0 and result.err.count(f"train: model.load: {came}: is not there; not needed") == 1, result
    assert "not kept" not in result.err
    check(out / "model")
    export(out, tmp_path / "a")
    export(f"{out}/checkpoints/step-00000001/", tmp_path / "b")
    for folder in (tmp_path / "a", tmp_path / "b"):
        check(folder)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (out / "model" / "model.safetensors").read_bytes()
    shutil.copytree(out / "checkpoints" / "step-00000002", tmp_path / "alone" / "step-00000002")
    export(tmp_path / "alone" / "step-00000002", tmp_path / "c", f"/origin: is not there: tokenizer and other files of {came} are not in the exported folder")
    check(tmp_path / "c", files={})
    assert "No such file or directory" in run(job, out, code=2, options=["--fresh"])  # whoever begins anew needs the weights


def test_the_export_is_a_folder_to_load(tmp_path, weights, no_dimensions):
    came = make_folder(tmp_path / "came", weights)
    run(load_job(weights, tmp_path, came), tmp_path / "one")
    job = load_job(weights, tmp_path, tmp_path / "one" / "model")
    said = run(job, tmp_path / "two")
    assert "not kept" not in said
    check(tmp_path / "two" / "model")


def losses(out):
    return [step["loss"] for step in map(json.loads, open(out / "metrics.jsonl")) if "loss" in step]


def test_dropout(tmp_path, weights, no_dimensions):
    """Of the folder, of the library where the folder has no key, or of the job; the exported folder has what the run ended with."""
    lacking = CONFIG.replace(' "resid_pdrop": 1e-1,', "")
    assert lacking != CONFIG
    for name, config in (("came", CONFIG), ("lacking", lacking), ("none", CONFIG.replace("0.1,", "0,").replace("0.10,", "0,").replace("1e-1,", "0,"))):
        job = load_job(weights, tmp_path, make_folder(tmp_path / name, weights, config=config))
        run(job, tmp_path / f"out-{name}")
        check(tmp_path / f"out-{name}" / "model", config=exported(config))
    assert losses(tmp_path / "out-came") == losses(tmp_path / "out-lacking") != losses(tmp_path / "out-none")
    off = [f"model.{key}_pdrop=0" for key in ("attn", "embd", "resid")]
    job = load_job(weights, tmp_path, tmp_path / "lacking")
    run(job, tmp_path / "off", *off)
    assert losses(tmp_path / "off") == losses(tmp_path / "out-none")
    config = (tmp_path / "off" / "model" / "config.json").read_text()
    assert all(f'"{key}_pdrop": 0.0' in config for key in ("attn", "embd", "resid")), config
    more = ["model.resid_pdrop=0.25", "training.max_steps=3"]
    assert "model.resid_pdrop: was 0, is now 0.25; go back" in run(job, tmp_path / "off", *off[:2], *more, code=2)
    run(job, tmp_path / "off", *off[:2], *more, "checkpointing.accept=resid_pdrop")
    assert json.loads((tmp_path / "off" / "model" / "config.json").read_text())["resid_pdrop"] == 0.25
    assert "model.resid_pdrop" in run(job, tmp_path / "bad", "model.resid_pdrop=1", code=2)


def test_the_files_are_those_of_the_beginning(tmp_path, weights, no_dimensions):
    """A run that begins with another run's checkpoint has that one's; --fresh with another folder the new ones; without a folder there are none."""
    one, two = make_folder(tmp_path / "one", weights), make_folder(tmp_path / "two", weights, files={"vocab.json": "{}"})
    job = load_job(weights, tmp_path, one)
    run(job, tmp_path / "first")
    named = f"checkpointing.resume={tmp_path}/first/checkpoints/step-00000002"
    run(job, tmp_path / "second", named, "training.max_steps=3", f"model.load={two}")
    check(tmp_path / "second" / "model")
    own = f"checkpointing.resume={tmp_path}/second/checkpoints/../checkpoints/step-00000003"
    run(job, tmp_path / "second", own, "training.max_steps=4")
    check(tmp_path / "second" / "model")
    run(job, tmp_path / "second", f"model.load={two}", options=["--fresh"])
    check(tmp_path / "second" / "model", files={"vocab.json": "{}"})
    scratch = training.make_job(weights[0], name=f"{tmp_path.name}.json", model=MODEL, training=SETS)
    shutil.rmtree(tmp_path / "first" / "model")
    for step in ("1", "2"):
        shutil.rmtree(tmp_path / "first" / "checkpoints" / f"step-0000000{step}", ignore_errors=True)
    run(scratch, tmp_path / "first")
    assert sorted(os.listdir(tmp_path / "first" / "model")) == ["config.json", "generation_config.json", "model.safetensors"]


def test_the_files_stay_where_there_are_no_others(tmp_path, weights, no_dimensions):
    """A copy of one's own checkpoint has no origin beside it; model.load's stands in, and when that is gone, what is kept stays."""
    came, out = make_folder(tmp_path / "came", weights), tmp_path / "out"
    job = load_job(weights, tmp_path, came)
    run(job, out)
    shutil.copytree(out / "checkpoints" / "step-00000002", tmp_path / "copy" / "step-00000002")
    named = f"checkpointing.resume={tmp_path}/copy/step-00000002"
    run(job, out, named, "training.max_steps=3")
    check(out / "model")
    shutil.rmtree(came)
    run(job, out, named, "training.max_steps=4")
    check(out / "model")
    step = max((out / "checkpoints").glob("step-*"))
    (tmp_path / "link").symlink_to(step)
    export(tmp_path / "link", tmp_path / "a")
    p = subprocess.run([os.path.join(BIN, "dtckpt"), "export", ".", str(tmp_path / "b")], cwd=step, env=clean_env(), capture_output=True, text=True)
    assert p.returncode == 0 and p.stderr == "", p.stderr
    for folder in (tmp_path / "a", tmp_path / "b"):
        check(folder)


def make_old(manifest):
    """As earlier versions wrote it: without the horizon, and with a config.json of their own."""
    xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash"))
    xxhash.XXH3_64bits.restype = ctypes.c_uint64
    written = manifest.read_text()
    text = re.sub(r'"horizon":\{[^}]*\},\n', "", written).replace('"bos_token_id": 5, ', "")
    assert '"horizon"' not in text and len(text) < len(written) - 100
    body = text[: text.rindex(',\n"hash":')].encode()
    total = xxhash.XXH3_64bits(body, ctypes.c_size_t(len(body)))
    manifest.write_bytes(body + f',\n"hash":"{total:016x}"}}\n'.encode())


@pytest.mark.skipif(ctypes.util.find_library("xxhash") is None, reason="no libxxhash.so, which the manifest's hash needs")
def test_a_run_of_before_there_was_an_origin(tmp_path, weights, no_dimensions):
    """Going on takes config.json and the files from model.load."""
    came, out = make_folder(tmp_path / "came", weights), tmp_path / "out"
    job = load_job(weights, tmp_path, came)
    run(job, out)
    make_old(out / "checkpoints" / "step-00000002" / "manifest.json")
    shutil.rmtree(out / "checkpoints" / "origin")
    shutil.rmtree(out / "model")
    run(job, out, "training.max_steps=3")
    check(out / "model")


def test_a_folder_of_links(tmp_path, weights, no_dimensions):
    """Hugging Face's cache is one of links and comes along; a link to somewhere else stays out of what will be published."""
    snapshot, blobs = tmp_path / "models--gpt2" / "snapshots" / "main", tmp_path / "models--gpt2" / "blobs"
    came = make_folder(tmp_path / "came", weights)
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, name in enumerate([*os.listdir(came)]):
        if (came / name).is_file():
            shutil.copy(came / name, blobs / f"{i:040x}")
            (snapshot / name).symlink_to(f"../../blobs/{i:040x}")
    (tmp_path / "id_rsa").write_text("secret")
    (snapshot / "vocab.json").symlink_to(tmp_path / "id_rsa")
    said = run(load_job(weights, tmp_path, snapshot), tmp_path / "out")
    assert f"train: {snapshot}: not kept for the exported folder: README.md, pytorch_model.bin, vocab.json (a link that leads elsewhere)\n" in said, said
    check(tmp_path / "out" / "model", files={n: t for n, t in FILES.items() if "/" not in n})


def test_options_of_an_export(tmp_path, weights, no_dimensions):
    """Another type, several files: a folder to load. What is wrong is said before anything is written."""
    run_of, out = weights[0] / "out", tmp_path / "x"
    code, _, err = training.dtckpt("export", "--dtype", "bf16", run_of, "--max_shard_size=2KB", out)
    assert (code, err) == (0, "")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    names = set(index["weight_map"].values())
    assert len(names) > 2 and index["metadata"]["total_size"] == 2 * index["metadata"]["total_parameters"]
    assert set(os.listdir(out)) == names | {"config.json", "generation_config.json", "model.safetensors.index.json"}
    assert json.loads((out / "generation_config.json").read_text()) == {"_from_model_config": True, "eos_token_id": 0}
    assert '"bfloat16"' in (out / "config.json").read_text()
    for name in names:
        header = training.read_tensors(out / name)[0]
        assert {k: v["dtype"] for k, v in header.items() if k != "__metadata__"} == {k: "BF16" for k, v in index["weight_map"].items() if v == name}
    run(load_job(weights, tmp_path, out), tmp_path / "again", "training.max_steps=1")
    check_config = json.loads((tmp_path / "again" / "model" / "config.json").read_text())
    assert check_config["dtype"] == check_config["torch_dtype"] == "float32"
    for options, said in ((["--dtype", "int8"], "export: --dtype: int8: must be float32, bf16 or fp16"),
                          (["--max_shard_size=5G"], "export: --max_shard_size: 5G: must be a size as 5GB or 200MB, or a number of bytes"),
                          (["--max_shard_size"], "export: --max_shard_size: : must be a size"), (["--dtyp=bf16"], "export: --dtyp: unknown option; did you mean --dtype?"),
                          (["--weights"], "export: --weights: unknown option; there are --dtype and --max_shard_size"),
                          (["x"], "export: takes PATH FOLDER [--dtype TYPE] [--max_shard_size SIZE]")):
        code, _, err = training.dtckpt("export", run_of, tmp_path / "no", *options)
        assert code == 2 and said in err, err
    assert not (tmp_path / "no").exists()


def test_what_no_export_wrote_stays(tmp_path, weights, no_dimensions):
    """A folder with weights of another program, or of a run, is no place for an export; one of an earlier export is."""
    for name in ("model.safetensors", "pytorch_model.bin", "manifest.json", "course.json", "owner.json", "step-00000002", "step-00000002.tmp-1"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("not ours")
        code, _, err = training.dtckpt("export", weights[0] / "out", folder)
        assert code == 2 and f"holds {name}, which no export wrote; give another folder" in err and os.listdir(folder) == [name], err
    checkpoints = weights[0] / "out" / "checkpoints"
    before = sorted(os.listdir(checkpoints))
    code, _, err = training.dtckpt("export", weights[0] / "out", checkpoints)
    assert code == 2 and "which no export wrote; give another folder" in err and sorted(os.listdir(checkpoints)) == before, err
    (tmp_path / "file").write_text("not ours")
    code, _, err = training.dtckpt("export", weights[0] / "out", tmp_path / "file")
    assert code == 2 and f"export: {tmp_path}/file: is no folder; give another one" in err, err
    for _ in range(2):
        assert training.dtckpt("export", weights[0] / "out", tmp_path / "new")[0] == 0


def test_the_job_says_how(tmp_path, weights, no_dimensions):
    """The run's own folder in the type and size of `export`; a finished run writes it again where they ask for another type."""
    job = training.make_job(weights[0], name=f"{tmp_path.name}.json", model=MODEL, training=SETS, export={"dtype": "bf16", "max_shard_size": "2KB"})
    out = tmp_path / "out"
    run(job, out)
    index = json.loads((out / "model" / "model.safetensors.index.json").read_text())
    first = training.read_tensors(out / "model" / min(index["weight_map"].values()))[0]
    assert {v["dtype"] for k, v in first.items() if k != "__metadata__"} == {"BF16"}
    before = os.stat(out / "model" / "model.safetensors.index.json").st_mtime_ns
    run(job, out)
    assert os.stat(out / "model" / "model.safetensors.index.json").st_mtime_ns == before
    run(job, out, "export.dtype=float32", "export.max_shard_size=5GB")
    assert sorted(os.listdir(out / "model")) == ["config.json", "generation_config.json", "model.safetensors"]


def test_a_head_that_is_not_the_embedding(tmp_path):
    """All ranks decide alike by the weights; the run goes on when the source is gone, and its folder says what it is."""
    golden = os.path.join(ROOT, "tests/golden/models/llama3_tied")
    came = training.untie(f"{golden}/hf", tmp_path / "came")
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"model": {"load": came}, "data": {"train": f"{golden}/batches.safetensors", "sequence_length": 32},
                               "training": {"batch_size_per_gpu": 1, "max_steps": 2, "threads": 1}, "logging": {"log_every_n_steps": 1}}))
    hashes = set()
    for strategy in ("ddp", "full_shard"):
        result = training.train(str(job), str(tmp_path / strategy), strategy=strategy)
        assert result.code == 0 and result.err.count("lm_head.weight differs from model.embed_tokens.weight") == 1, result
        hashes.add(training.hash_of(tmp_path / strategy))
    assert len(hashes) == 1
    for ask in (["--evaluate", came, job, "--set", f"data.val={golden}/batches.safetensors"], ["--generate", came, "--prompt_ids", "1,2"]):
        said = subprocess.run([os.path.join(BIN, "train"), *map(str, ask)], check=True, capture_output=True, text=True, timeout=60).stderr
        assert said.count("lm_head.weight differs from model.embed_tokens.weight") == 1, said
    shutil.rmtree(came)
    out = tmp_path / "ddp"
    result = training.train(str(job), str(out), ranks=1, sets=["training.max_steps=4"])
    assert result.code == 0 and "differs from" not in result.err, result
    assert json.loads((out / "model" / "config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" in training.read_tensors(out / "model" / "model.safetensors")[0]
    run(job, tmp_path / "again", f"model.load={out}/model")
