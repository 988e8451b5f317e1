"""Texts that are decoded together are those that each would be alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tilewright as tw
from tests.llm.folders import POSITIONS, VOCABULARY, WIDTH, gpt2, llama, llama_logits
from tilewright.base.errors import ExecutionError, InputError, LimitError
from tilewright.llm.batch import Batch, sizes
from tilewright.llm.sampling import Sampling
from tilewright.llm.serve.engine import Engine, EngineClosed, TextPiece

CONTEXT, CHUNK, ROWS = 32, 8, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    made = llama(path, "MistralForCausalLM", sliding_window=5, rope_theta=100.0)
    return made.write()


@pytest.fixture(scope="module")
def model(folder):
    made = tw.llm.load(folder.path, context=CONTEXT, chunks=(CHUNK,), threads=1)
    return made.prepare(sizes(ROWS))


def prompts(*lengths):
    rng = np.random.default_rng(1)
    return [[int(n) for n in rng.integers(4, VOCABULARY, k)] for k in lengths]


def answers(model, texts, tokens, **sampling):
    return [
        model.answer(ids, most, Sampling(**sampling))
        for ids, most in zip(texts, tokens, strict=True)
    ]


def alone(model, ids, most, **sampling):
    return [t.id for t in model.generate(ids, max_tokens=most, **sampling)]


def test_a_step_may_have_powers_of_two_and_all_rows():
    assert [sizes(n) for n in (1, 2, 5, 8)] == [
        [1],
        [1, 2],
        [1, 2, 4, 5],
        [1, 2, 4, 8],
    ]


def test_rows_have_positions_of_their_own(folder, model):
    """Logits of a step of texts of several lengths, against NumPy."""
    texts = prompts(3, 14, 6, 9)
    caches = model.caches(ROWS)
    batch = Batch(model, ROWS)
    batch._caches = caches
    joined = [batch.join(a) for a in answers(model, texts, [4] * 4)]
    while not all(text.read for text in joined):
        for text in joined:
            batch.read(text)
    found = [logits for _, logits in batch.step()]
    wanted = [llama_logits(folder, ids, window=5)[-1] for ids in texts]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_learned_positions_are_those_of_each_row(tmp_path):
    folder = gpt2(tmp_path / "m").write()
    model = tw.llm.load(folder.path, context=16, chunks=(), threads=1)
    texts = prompts(2, 5)
    found = Batch(model, 2).generate(answers(model, texts, [4, 4]))
    wanted = [alone(model, ids, 4) for ids in texts]
    assert [[t.id for t in tokens] for tokens in found] == wanted


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.8}])
def test_texts_that_join_and_leave_are_those_alone(model, sampling):
    """More texts than rows, of other lengths: rows are reused, and texts move into others."""
    texts = prompts(3, 17, 1, 9, 12, 2, 30)
    tokens = [9, 2, 14, 5, 1, 20, 9]
    found = Batch(model, ROWS).generate(answers(model, texts, tokens, **sampling))
    for ids, most, got in zip(texts, tokens, found, strict=True):
        assert [t.id for t in got] == alone(model, ids, most, **sampling)
    assert len(found[6]) == 3  # there the context was full


def test_a_row_that_moved_takes_its_keys_and_values_along(model):
    texts = prompts(5, 7, 11)
    batch = Batch(model, ROWS)
    joined = [batch.join(a) for a in answers(model, texts, [8] * 3)]
    for _ in range(3):
        for text in joined:
            batch.read(text)
    found = [batch.take(text, logits).id for text, logits in batch.step()]
    batch.leave(joined[0])
    assert batch.texts == [joined[2], joined[1]]
    for cache in batch._caches.values():
        cache[2:] = np.nan  # nobody's any more
    kept = [found[2]]
    for _ in range(3):
        kept += [batch.take(t, x).id for t, x in batch.step() if t is joined[2]]
    assert kept == alone(model, texts[2], 4)


def test_a_step_leaves_a_prompt_alone_that_is_read_in_parts(model):
    """A text that is not read takes part in the steps of the others, and must not show it."""
    long, short = prompts(20, 3)
    batch = Batch(model, 2)
    first, second = (batch.join(a) for a in answers(model, [long, short], [6, 9]))
    batch.read(second)
    found = {first: [], second: []}
    while batch.texts:
        for text, logits in batch.step():
            found[text].append(batch.take(text, logits).id)
            if text.answer.reason is not None:
                batch.leave(text)
        batch.read(first)
    assert found[first] == alone(model, long, 6)
    assert found[second] == alone(model, short, 9)


def test_a_full_batch_takes_nobody(model):
    batch = Batch(model, 1)
    one, two = answers(model, prompts(2, 2), [1, 1])
    batch.join(one)
    with pytest.raises(InputError, match="all 1 rows are in use"):
        batch.join(two)


class Client:
    """Collects what an engine tells it. hold: after so many pieces, wait until let go."""

    def __init__(self, hold=None):
        self.found, self.hold = [], hold
        self.over, self.held, self.go = (threading.Event() for _ in range(3))

    def __call__(self, found):
        self.found.append(found)
        if isinstance(found, Exception) or found.reason is not None:
            self.over.set()
        if len(self.found) == self.hold:
            self.held.set()
            assert self.go.wait(20)

    @property
    def text(self):
        assert self.over.wait(20)
        assert all(isinstance(piece, TextPiece) for piece in self.found)
        return "".join(piece.text for piece in self.found)


@pytest.fixture
def engine(model):
    made = Engine(Batch(model, 2), waiting=1).start()
    yield made
    made.close()


def ask(engine, ids, most, hold=None):
    client = Client(hold)
    answer = engine.model.answer(ids, most, Sampling())
    return client, engine.submit(answer, client)


def text(model, ids, most):
    return "".join(map(str, model.generate(ids, max_tokens=most)))


def test_a_cancelled_request_frees_its_row_for_the_one_that_waits(model, engine):
    texts = prompts(4, 3, 10)
    long, asked = ask(engine, texts[0], 20, hold=2)
    other, _ = ask(engine, texts[1], 12)
    assert long.held.wait(20)
    third, _ = ask(engine, texts[2], 6)
    with pytest.raises(LimitError, match="the queue is full"):
        while True:  # the second one may still be waiting for its row
            ask(engine, texts[2], 20)
    engine.cancel(asked)
    long.go.set()
    assert third.text == text(model, texts[2], 6)
    assert other.text == text(model, texts[1], 12)
    assert not long.over.is_set()
    assert len(long.found) == 2


def test_an_error_of_one_text_ends_that_one_alone(model, engine, monkeypatch):
    choose = Sampling.choose

    def broken(self, logits, generator):
        return choose(self, logits * (np.nan if self.seed else 1), generator)

    monkeypatch.setattr(Sampling, "choose", broken)
    ids = prompts(4)[0]
    bad = Client()
    engine.submit(model.answer(ids, 5, Sampling(seed=1)), bad)
    good, _ = ask(engine, ids, 5)
    assert good.text == text(model, ids, 5)
    assert bad.over.wait(20)
    assert [type(e) for e in bad.found] == [ExecutionError]


def test_an_error_of_a_step_ends_all_that_took_part(engine, monkeypatch):
    def failing(*_):
        raise ExecutionError("the step failed")

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "step", failing)
        client, _ = ask(engine, [5, 6], 3)
        assert client.over.wait(20)
    assert str(client.found[0]) == "the step failed"
    after, _ = ask(engine, [5, 6], 3)
    assert len(after.text) > 0
    assert engine.counts == {"active": 0, "waiting": 0}


def test_who_waits_hears_that_the_engine_is_closed(model):
    engine = Engine(Batch(model, 1), waiting=4).start()
    first, _ = ask(engine, [5, 6], 20, hold=1)
    assert first.held.wait(20)
    second, _ = ask(engine, [5, 6], 2)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._closed:
        pass
    first.go.set()
    closing.join(20)
    for client in (first, second):
        assert isinstance(client.found[-1], EngineClosed)
    with pytest.raises(EngineClosed):
        ask(engine, [5], 1)


def test_sizes_of_the_caches(model):
    shapes = {cache.shape for cache in model.caches(3).values()}
    assert shapes == {(3, *model.decoder.cache()[1:])}
    assert model.decoder.cache()[2] == CONTEXT < POSITIONS
    assert model.decoder.width == WIDTH
