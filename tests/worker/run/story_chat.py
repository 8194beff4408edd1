# covers: cmd/train/chat.c
"""`train --chat` answers turns by the chat template beside the tokenizer: with the text that `--generate` gives behind the
rendered conversation, turn by turn; and SmolLM2 with its own template."""

import json
import os
import re
import shutil
import subprocess

import pytest

import support

GOLDEN = os.path.join(support.ROOT, "tests/golden/finetune")
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
SMOLLM2 = os.path.join(os.environ.get("DTRUN_MODELS") or os.path.join(CACHE, "dtrun", "models"), "smollm2")
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def train(*args, text=""):
    return subprocess.run([support.program("train"), *map(str, args)], input=text, capture_output=True, text=True, timeout=120, check=False)


def shown(text):
    """Without what a terminal is not given as it is."""
    return re.sub(r"\\x[0-9a-f]{2}|\\[a-z]", "", "".join(c for c in text if c.isprintable() or c == "\n"))


@pytest.fixture
def folder(tmp_path):
    """The tiny model with its tokenizer and template."""
    shutil.copytree(f"{GOLDEN}/tiny", tmp_path / "tiny")
    shutil.copytree(f"{GOLDEN}/chat", tmp_path / "tiny", dirs_exist_ok=True)
    return tmp_path / "tiny"


def generated(folder, prompt, options):
    """The text of a prompt and what follows it, without special tokens."""
    done = train("--generate", folder, "--prompt", prompt, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["text"]


def test_turns(folder):
    """Greedy answers of two turns, the second of which has the first in its prompt."""
    options = ["--max_new_tokens", 6, "--set", "generation.do_sample=false"]
    done = train("--chat", folder, *options, text="Hi there\n\nAnd you?\r\n")
    assert done.returncode == 0 and done.stderr == "", done
    conversation = SYSTEM + "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    text = generated(folder, conversation, options)
    plain = conversation.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert text.startswith(plain)
    answers = [text[len(plain):]]
    conversation += answers[0] + "<|im_end|>\n<|im_start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"
    text = generated(folder, conversation, options)
    plain = conversation.replace("<|im_start|>", "").replace("<|im_end|>", "")
    answers.append(text[len(plain):])
    assert shown(done.stdout) == shown("".join(a + "\n" for a in answers))


def test_system_message(folder):
    (folder / "chat_template.jinja").write_text("{{ raise_exception(messages | tojson) }}")
    done = train("--chat", folder, "--system", "Be brief.", text="Hi there\n")
    assert done.returncode == 2 and done.stdout == "", done
    assert '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]' in done.stderr
    wrong = train("--generate", folder, "--system", "Be brief.", "--prompt", "a")
    assert (wrong.returncode, wrong.stderr) == (2, "train: --system: only with --chat; see train --help\n")


def test_template_of_the_configuration(folder):
    """A list of templates in tokenizer_config.json, of which default is taken."""
    source = (folder / "chat_template.jinja").read_text()
    options = ["--max_new_tokens", 4, "--set", "generation.do_sample=false"]
    before = train("--chat", folder, *options, text="Hi\n")
    (folder / "chat_template.jinja").unlink()
    done = train("--chat", folder, *options, text="Hi\n")
    assert done.returncode == 2 and "tokenizer_config.json: has no chat_template" in done.stderr, done
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for template in source, [{"name": "tool_use", "template": "{{ bad"}, {"name": "default", "template": source}]:
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
        assert train("--chat", folder, *options, text="Hi\n").stdout == before.stdout != ""


@pytest.mark.parametrize("template,says", [
    ("{{ raise_exception('no ' ~ messages[0].role) }}", "train: no user"),
    ("{{ messages | groupby('role') }}", "chat_template.jinja:1: filter groupby is not supported"),
    ("", "the conversation has 0 ids"),
    ("{{ messages[0].content * 2 }}", "repeated text is not supported"),
    ("{% for i in range(200) %}{{ bos_token }}{% endfor %}", "the conversation has 200 ids; there is room for 1 to 127"),
])
def test_template_that_fails(folder, template, says):
    (folder / "chat_template.jinja").write_text(template)
    done = train("--chat", folder, text="Hi\n")
    assert done.returncode == 2 and says in done.stderr and done.stdout == "", done


@pytest.mark.parametrize("line, words", [(b"\nyo\xff\n", "line 2 of standard input"), (b"a\0b\n", "line 1 of standard input"), (None, "--system")])
def test_what_is_no_text(folder, line, words):
    args = [support.program("train"), "--chat", str(folder), *([] if line else ["--system", b"\xff"])]
    done = subprocess.run(args, input=line or b"", capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"train: {words} is no text in UTF-8\n"), done


def test_positions_end_an_answer(folder):
    """An answer ends where the model's 128 positions do; a seed draws the same answer again."""
    (folder / "chat_template.jinja").write_text("{% for i in range(120) %}{{ bos_token }}{% endfor %}")
    once = train("--chat", folder, "--seed", 3, text="Hi\n")
    assert once.returncode == 0 and once.stdout == train("--chat", folder, "--seed", 3, text="Hi\n").stdout


@pytest.mark.parametrize("args", [["--prompt", "x"], ["--prompt_ids", "1"], ["--json"], ["--batch_size", "2"], ["--generate", "x"], ["--plan"]])
def test_options_that_do_not_go_together(folder, args):
    done = train("--chat", folder, *args)
    assert done.returncode == 2 and "--chat" in done.stderr, done


def test_no_tokenizer():
    done = train("--chat", f"{GOLDEN}/tiny", text="Hi\n")
    assert done.returncode == 2 and "there is no tokenizer.json beside the weights" in done.stderr, done


@pytest.mark.skipif(not os.path.exists(f"{SMOLLM2}/config.json"), reason=f"no weights at {SMOLLM2}: scripts/setup.sh --models")
def test_real_weights():
    done = train("--chat", SMOLLM2, "--max_new_tokens", 20, "--set", "generation.do_sample=false",
                 text="What is the capital of France?\nAnd of Italy?\n")
    assert done.stdout == "The capital of France is Paris.\nThe capital of Italy is Rome.\n", done
