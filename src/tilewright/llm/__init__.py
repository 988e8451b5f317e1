"""Language models from Hugging Face folders: text in, text out; texts in, vectors out.

    model = tw.llm.load("folder")
    for token in model.generate("Once upon a time", max_tokens=100):
        print(token, end="", flush=True)

model: prompts and tokens over a key-value cache. sampling: the choice of a token. tokens: text as
ids and back. encoder: vectors of texts.
"""

from __future__ import annotations

from tilewright.llm.answer import GeneratedToken
from tilewright.llm.encoder import Embedder, load_embedder
from tilewright.llm.model import KeyValueCache, LanguageModel, load
from tilewright.llm.sampling import Sampling

__all__ = [
    "Embedder",
    "LanguageModel",
    "Sampling",
    "KeyValueCache",
    "GeneratedToken",
    "load",
    "load_embedder",
]
