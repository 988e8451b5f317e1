"""`tilewright generate` and `tilewright embed`: on folders made here."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import tilewright as tw
from tests.llm.folders import bert, llama

pytest.importorskip("tokenizers")
CHAT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ bos_token }}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # A context of 16 has no chunks: one compilation, which the cache on disk is asked for.
    return llama(tmp_path_factory.mktemp("cli"), num_hidden_layers=1).write().path


def generate(command, folder, *more):
    return command("generate", folder, "--context", 16, "--threads", 1, *more)


def test_generate_prints_the_text_and_json_all_of_it(command, folder):
    line = ["--prompt", "abcd", "--max-tokens", 6]
    found = generate(command, folder, *line, "--json")
    assert found.code == 0, found.err
    told = found.json
    model = tw.llm.load(folder, context=16, threads=1)
    tokens = [*model.generate("abcd", max_tokens=6)]
    assert told["tokens"] == [t.id for t in tokens]
    assert told["text"] == model.tokenizer.decode(told["tokens"])
    assert told["prompt_tokens"] == 3  # "abc" is one, and <s>
    shown = generate(command, folder, *line)
    assert shown.code == 0
    assert "3 tokens read in" in shown.err
    # With a stop text, it ends before that.
    stop = told["text"][1]
    ended = generate(command, folder, *line, "--stop", stop, "--json").json
    assert ended["text"] == told["text"][: told["text"].index(stop)]


def test_generate_continues_ids_without_a_tokenizer(command, tmp_path, monkeypatch):
    folder = llama(tmp_path / "m", num_hidden_layers=1).write().path
    line = ["--ids", "5,17", "--max-tokens", 4]
    with_text = generate(command, folder, *line, "--json").json
    assert with_text["prompt_tokens"] == 2 and with_text["text"]
    model = tw.llm.load(folder, context=16, threads=1)
    wanted = [t.id for t in model.generate([5, 17], max_tokens=4)]
    (folder / "tokenizer.json").unlink()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    found = generate(command, folder, *line, "--json").json
    assert (found["tokens"], found["text"]) == (wanted, "")
    assert wanted == with_text["tokens"]
    shown = generate(command, folder, *line)
    assert shown.code == 0 and shown.out == ",".join(map(str, wanted)) + "\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("", 2, "give either --prompt or --ids"),
        ("--ids 5 --prompt a", 2, "give either --prompt or --ids"),
        ("--ids 5,-1", 2, "'5,-1': expected ids of tokens, such as 5,17"),
        ("--ids five", 2, "'five': expected ids of tokens"),
        ("--ids 5 --chat", 2, "--chat: a template is filled in with a text"),
        ("--ids 5,262", 1, "262"),
    ],
)
def test_generate_refuses_other_ids(command, folder, line, code, said):
    found = generate(command, folder, *line.split())
    assert (found.code, found.out) == (code, "") and said in found.err, found.err


def test_generate_fills_in_the_chat_template(command, folder):
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHAT, "bos_token": {"content": "<s>"}})
    )
    line = ["--max-tokens", 1, "--json", "--prompt"]
    chat = generate(command, folder, "--chat", *line, "abc").json
    model = tw.llm.load(folder, context=16, threads=1)
    ids = model.encode("user: abc\n<s>")
    # The template has the special tokens; a prompt gets its <s> from the tokenizer.
    assert (ids[0], ids[-1], len(ids)) == (1, 1, 10)
    assert chat["prompt_tokens"] == 9
    assert chat["tokens"] == [t.id for t in model.generate(ids[1:], max_tokens=1)]
    bad = "{{ raise_exception('roles must alternate') }}"
    for template, said in ((bad, "roles must alternate"), ("{% if", "chat template")):
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": template})
        )
        found = generate(command, folder, "--chat", "--prompt", "a")
        assert (found.code, found.out) == (1, "")
        assert said in found.err
    (folder / "tokenizer_config.json").unlink()
    found = generate(command, folder, "--chat", "--prompt", "a")
    assert "the model has no chat template" in found.err


def test_generate_names_what_is_wrong(command, folder, tmp_path):
    for code, more, said in (
        (1, ["--prompt", "x" * 16], "17 tokens after 0 exceed the context of 16"),
        (2, ["--prompt", "a", "--top-p", "nan"], "top_p=nan"),
        (2, ["--prompt", "a", "--context", "65"], "a context of 65 positions"),
    ):
        found = generate(command, folder, *more)
        assert (found.code, found.out) == (code, "")
        assert said in found.err
        assert len(found.err.splitlines()) == 1
    missing = command("generate", tmp_path / "none", "--prompt", "a")
    assert missing.code == 1
    assert "there is no such folder" in missing.err
    (tmp_path / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"]}')
    unknown = command("generate", tmp_path, "--prompt", "a", "--json")
    assert unknown.json["error"]["code"] == "TW-UNSUPPORTED"
    assert "Mamba2ForCausalLM is not supported" in unknown.err


def test_embed_prints_and_writes_vectors(command, tmp_path):
    folder = bert(tmp_path / "m").write().path
    line = ["embed", "--model", folder, "--threads", 1]
    printed = command(*line, "a", "bc")
    assert printed.code == 0, printed.err
    one, two = (np.array(json.loads(text)) for text in printed.out.splitlines())
    told = command(*line, "a", "bc", "--json").json["vectors"]
    assert [v["text"] for v in told] == ["a", "bc"]
    np.testing.assert_allclose(told[0]["vector"], one, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(two), 1, rtol=1e-4)
    file = tmp_path / "v.npy"
    written = command(*line, "--raw", "a", "bc", "-o", file)
    assert "2 vectors of 32 numbers" in written.out
    raw = np.load(file)
    np.testing.assert_allclose(raw[1] / np.linalg.norm(raw[1]), two, atol=1e-5)
    assert abs(np.linalg.norm(raw[1]) - 1) > 1e-3


def test_embed_names_what_is_wrong(command, tmp_path):
    folder = bert(tmp_path / "m").write().path
    file = tmp_path / "v.npy"
    found = command("embed", "--model", folder, "x" * 64, "-o", file)
    assert found.code == 1
    assert "a text of 65 tokens: the model takes 64" in found.err
    assert not file.exists()
    assert command("embed", "--model", folder).code == 2


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_packages_that_are_not_installed_are_named(
    command, folder, monkeypatch, package
):
    for name in (package, "jinja2.sandbox"):
        monkeypatch.setitem(sys.modules, name, None)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": CHAT}))
    found = generate(command, folder, "--chat", "--prompt", "a")
    path.unlink()
    assert (found.code, found.out) == (1, "")
    assert f"the package {package}" in found.err
    assert "pip install 'tilewright[llm]'" in found.err
