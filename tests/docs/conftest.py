"""What documentation and examples register is forgotten behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.graph.ops import registry
from tilewright.runtime import devices
from tilewright.schedule.registry import PRIMITIVES
from tilewright.targets import registry as targets


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators, targets, devices and primitives that a test registers; all others stay."""
    registry.registered()
    kept = registry._definitions
    monkeypatch.setattr(registry, "_definitions", dict(kept))
    monkeypatch.setattr(targets, "_ROWS", dict(targets._ROWS))
    monkeypatch.setattr(devices, "_makers", dict(devices._makers))
    primitives = dict(PRIMITIVES)
    devices.find.cache_clear()
    yield
    # A target of ours that was imported meanwhile registers its operators this once.
    for name, known in registry._definitions.items():
        if not any(map(registry.foreign, known)):
            kept.setdefault(name, known)
    PRIMITIVES.clear()
    PRIMITIVES.update(primitives)


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules in the folder of a test can be imported, and are forgotten behind it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        place = getattr(sys.modules[name], "__file__", None)
        if place is not None and Path(place).is_relative_to(tmp_path):
            del sys.modules[name]
