"""TfIdfVectorizer and MelWeightMatrix, natively, against ONNX's reference."""

import numpy as np
import pytest

from tests.graph.one_operator import agree

RNG = np.random.default_rng(3)


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("mode", "dtype"), [("TF", np.int32), ("IDF", np.int64), ("TFIDF", np.int64)]
)
@pytest.mark.parametrize(
    ("low", "high", "skips"), [(1, 1, 0), (1, 3, 2), (2, 2, 5), (2, 3, 0)]
)
@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 1), (0,)])
def test_tfidf(mode, shape, low, high, skips, dtype):
    x = RNG.integers(0, 3, shape).astype(dtype)
    pool = [0, 2, 1, 0, 1, 2, 2, 2, 0, 0, 1, 2, 2, 2, 1]
    agree(
        "TfIdfVectorizer",
        [x],
        mode=mode,
        min_gram_length=low,
        max_gram_length=high,
        max_skip_count=skips,
        ngram_counts=[0, 3, 9],
        ngram_indexes=[*range(8)],
        pool_int64s=pool,
        weights=[0.5, 1.5, 2.0, 3.0, 0.25, 4.0, 1.0, 7.0],
    )


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_tfidf_of_nothing(shape):
    """A pool of single items and of pairs counts none of them, in each row that there is."""
    x = np.zeros(shape, np.int64)
    agree(
        "TfIdfVectorizer",
        [x],
        expected=[np.zeros((*shape[:-1], 4), np.float32)],
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=1,
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2, 3],
        pool_int64s=[2, 1, 0, 1, 2, 2],
    )


def test_tfidf_puts_counts_where_the_model_says():
    x = RNG.integers(0, 3, (4, 20))
    agree(
        "TfIdfVectorizer",
        [x],
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 2],
        ngram_indexes=[5, 0, 3, 2],
        pool_int64s=[2, 1, 0, 1, 2, 2],
    )


@pytest.mark.parametrize(
    ("bands", "length", "rate", "low", "high"),
    [
        (8, 16, 8192, 0.0, 4096.0),
        (40, 400, 16000, 20.0, 7600.0),
        (3, 5, 100, 1.0, 49.0),
    ],
)
@pytest.mark.parametrize("known", [(), range(5)])
def test_mel(bands, length, rate, low, high, known):
    ints = [np.array(n, np.int32) for n in (bands, length, rate)]
    edges = [np.array(h, np.float32) for h in (low, high)]
    agree("MelWeightMatrix", [*ints, *edges], known=known, rtol=1e-6)
