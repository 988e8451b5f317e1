"""Choosing tokens, streaming text, cutting prompts, stretching positions: without a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.llm.folders import llama
from tilewright.base.errors import (
    ExecutionError,
    InputError,
    ModelError,
    UnsupportedError,
)
from tilewright.frontends.hf.rotary import Rotary
from tilewright.llm.model import pieces
from tilewright.llm.sampling import Sampling
from tilewright.llm.tokens import TextStream

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(sampling, logits=LOGITS, count=2000):
    generator = sampling.generator()
    return [sampling.choose(logits, generator) for _ in range(count)]


def test_without_temperature_the_first_of_the_likeliest_is_taken():
    assert Sampling().choose(LOGITS, Sampling().generator()) == 1
    assert Sampling().choose(np.zeros(4), Sampling().generator()) == 0


def test_tokens_are_drawn_by_their_probabilities():
    shares = np.bincount(drawn(Sampling(temperature=1.0)), minlength=5) / 2000
    np.testing.assert_allclose(shares, np.exp(LOGITS), atol=0.04)
    cold = np.bincount(drawn(Sampling(temperature=0.5)), minlength=5) / 2000
    squares = np.exp(LOGITS) ** 2
    np.testing.assert_allclose(cold, squares / squares.sum(), atol=0.04)


def test_equal_seeds_draw_equal_tokens_and_others_do_not():
    one, two = (drawn(Sampling(1.0, seed=n), count=50) for n in (1, 2))
    assert one == drawn(Sampling(1.0, seed=1), count=50)
    assert one != two


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0, top_k=2), {1, 3}),
        (Sampling(1.0, top_k=1), {1}),
        (Sampling(1.0, top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_p=0.39), {1}),
        (Sampling(1.0, top_p=0.69), {1, 3}),
        (Sampling(1.0, top_p=0.71), {1, 3, 4}),
        # Of the two, 0.4 / 0.7 of the probability is the first one's.
        (Sampling(1.0, top_k=2, top_p=0.5), {1}),
    ],
)
def test_only_the_likeliest_are_drawn(sampling, expected):
    assert set(drawn(sampling)) == expected


def test_logits_that_are_no_numbers_are_refused():
    generator = Sampling().generator()
    for bad in ([0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf]):
        with pytest.raises(ExecutionError, match="not finite"):
            Sampling(1.0).choose(np.array(bad), generator)
    masked = np.array([-np.inf, 0.0, -np.inf])
    assert set(drawn(Sampling(1.0), masked, 20)) == {1}


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"seed": -1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    (name,) = bad
    with pytest.raises(InputError, match=name):
        Sampling(**bad)


class Bytes:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def streamed(text, *stop):
    stream = TextStream(Bytes(), stop)
    found = []
    for byte in text.encode():
        found.append(stream.push(byte))
        if stream.stopped:
            return found
    return [*found, stream.end()]


def test_characters_come_when_they_are_whole():
    assert streamed("aé€b") == ["a", "", "é", "", "", "€", "b", ""]


class Words:
    """A tokenizer whose ids are words, with a space between, as SentencePiece's are."""

    def decode(self, ids):
        return " ".join("zero one two three".split()[n] for n in ids)


def test_spaces_between_words_stay():
    stream = TextStream(Words())
    assert [stream.push(n) for n in (1, 3, 2)] == ["one", " three", " two"]


def test_bytes_that_never_become_a_character_are_given_out():
    stream = TextStream(Bytes())
    found = [stream.push(0xFF) for _ in range(4)] + [stream.push(ord("a"))]
    assert "".join(found) == "\N{REPLACEMENT CHARACTER}" * 4 + "a"
    stream.push(0xE2)
    assert stream.end() == "\N{REPLACEMENT CHARACTER}"


def test_a_stop_text_is_left_out_and_its_beginning_held_back():
    assert streamed("one, two", ", t") == ["o", "n", "e", "", "", ""]
    assert streamed("a,,b", ",b") == ["a", "", ",", ""]
    assert "".join(streamed("a, b", ", t")) == "a, b"
    assert streamed("a,", ", t") == ["a", "", ","]
    assert "".join(streamed("abcab", "x", "ca")) == "ab"


@pytest.mark.parametrize("sizes", [(), (4,), (16, 4)])
def test_pieces_cover_a_prompt_and_stay_in_the_cache(sizes):
    for room in range(1, 40):
        for count in range(room + 1):
            place = 0
            for length, used in pieces(count, room, sizes):
                assert length in (1, *sizes)
                assert 0 < used <= length
                assert place + length <= room
                place += used
            assert place == count


def test_a_rest_takes_the_smallest_chunk_that_holds_it():
    assert [*pieces(70, 2048, (64, 16))] == [(64, 64), (16, 6)]
    assert [*pieces(17, 2048, (64, 16))] == [(64, 17)]
    assert [*pieces(17, 20, (64, 16))] == [(16, 16), (1, 1)]
    assert [*pieces(1, 2048, (64, 16))] == [(1, 1)]


def tables(kind, **more):
    return Rotary(8, 100.0, kind, more, 32, 64).tables()


def test_positions_are_stretched():
    cos, sin = tables("default")
    rates = 100.0 ** -(np.arange(0, 8, 2) / 8)
    angles = np.outer(np.arange(64), rates)
    np.testing.assert_allclose(cos, np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sin, np.sin(angles), atol=1e-5)
    assert (tables("dynamic", factor=2.0)[0] == cos).all()
    linear, _ = tables("linear", factor=2.0)
    np.testing.assert_allclose(linear[::2], cos[:32], atol=1e-5)
    long, _ = tables(
        "longrope",
        original_max_position_embeddings=16,
        long_factor=[2.0] * 4,
        short_factor=[1.0] * 4,
    )
    # By the square root of 1 + log(32 / 16) / log(16).
    np.testing.assert_allclose(long[::2], np.sqrt(1.25) * cos[:32], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "more", "error", "said"),
    [
        ("spiral", {}, UnsupportedError, "'spiral'"),
        ("linear", {}, ModelError, "'factor'"),
        ("linear", {"factor": "2"}, ModelError, "'factor'"),
        ("llama3", {"factor": 2.0}, ModelError, "'low_freq_factor'"),
        ("longrope", {"long_factor": [1.0] * 3}, ModelError, "long_factor"),
    ],
)
def test_stretching_that_lacks_something_is_refused(kind, more, error, said):
    with pytest.raises(error, match=said):
        tables(kind, **more)


def test_the_settings_of_a_decoder_are_the_same_text_in_every_process(tmp_path):
    config = llama(tmp_path / "m", rope_scaling={"rope_type": "linear", "factor": 2.0})
    script = (
        "import json, sys; from tilewright.frontends.hf.decoder import decoder_of; "
        "print(decoder_of(json.loads(sys.argv[1])).settings)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script, json.dumps(config.config)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(told) == 1
    assert "'factor': 2.0" in told.pop()
