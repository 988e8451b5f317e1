"""Vectors of texts against NumPy; poolings; what a folder can have wrong with it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tilewright as tw
from tests.llm.folders import bert, bert_vectors
from tilewright.base.errors import InputError, ModelError, UnsupportedError
from tilewright.frontends.hf.encoder import encoder_of

pytest.importorskip("tokenizers")
TEXTS = ["a cat", "abc", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert(tmp_path_factory.mktemp("encoder")).write()


@pytest.fixture(scope="module")
def model(folder):
    return tw.llm.load_embedder(folder.path, lengths=(8,), threads=1)


def wanted(folder, model, text):
    return bert_vectors(folder, model.tokenizer.encode(text))


def test_vectors_are_the_means_of_those_of_the_tokens(folder, model):
    found = model(TEXTS)
    assert found.dtype == np.float32
    for vector, text in zip(found, TEXTS, strict=True):
        mean = wanted(folder, model, text).mean(0)
        unit = mean / np.linalg.norm(mean)
        np.testing.assert_allclose(vector, unit, rtol=1e-4, atol=1e-5)
    # However many places were filled up.
    again = tw.llm.load_embedder(folder.path, lengths=(5, 8), threads=1)
    np.testing.assert_allclose(again("abc"), found[1], rtol=1e-5, atol=1e-6)
    assert model([]).shape == (0, found.shape[1])


def test_the_pooling_is_what_the_folder_says(tmp_path):
    folder = bert(tmp_path / "m").write()
    said = folder.path / "1_Pooling"
    said.mkdir()
    config = said / "config.json"
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    config.write_text(json.dumps(modes))
    model = tw.llm.load_embedder(folder.path, lengths=(8,), normalized=False, threads=1)
    first = wanted(folder, model, "a cat")[0]
    np.testing.assert_allclose(model("a cat"), first, rtol=1e-4, atol=1e-5)
    assert tw.llm.load_embedder(folder.path, pooling="mean").pooling == "mean"
    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(UnsupportedError, match="pooling_mode_max_tokens"):
        tw.llm.load_embedder(folder.path)


def test_texts_that_are_too_long_are_refused_or_cut(folder, tmp_path):
    path = bert(tmp_path / "m").write().path
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    model = tw.llm.load_embedder(path, threads=1)
    assert model.lengths == (6,)
    with pytest.raises(InputError, match="a text of 8 tokens: the model takes 6"):
        model("1234567")
    cut = model("1234567", truncate=True)
    # <s>, the first four, and the last one.
    assert (cut == model("12347")).all()


def test_a_text_without_tokens_is_refused(folder, model, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "encode", lambda text: [])
    with pytest.raises(InputError, match="no tokens"):
        model("")


def test_what_does_not_fit_is_named(tmp_path):
    folder = bert(tmp_path / "m").write()
    for more, error, said in (
        ({"architectures": ["LlamaModel"]}, UnsupportedError, "LlamaModel"),
        ({"num_attention_heads": 5}, ModelError, "5 heads"),
        ({"hidden_size": 0}, ModelError, "hidden_size is 0"),
        ({"position_embedding_type": "relative_key"}, UnsupportedError, "relative"),
    ):
        with pytest.raises(error, match=said):
            encoder_of(folder.config | more)
    with pytest.raises(InputError, match="pooling='max'"):
        tw.llm.load_embedder(folder.path, pooling="max", lengths=(8,))("a")
    (folder.path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer.json: it cannot be read"):
        tw.llm.load_embedder(folder.path)
    (folder.path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer.json is missing"):
        tw.llm.load_embedder(folder.path)


def test_positions_of_roberta_begin_behind_those_of_the_padding():
    config = bert(None, architectures=["RobertaModel"], pad_token_id=1).config
    found = encoder_of(config)
    assert (found.first, found.positions) == (2, found.rows - 2)
