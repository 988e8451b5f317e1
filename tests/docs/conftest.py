"""What documentation and examples register is forgotten behind them."""

from __future__ import annotations

from collections.abc import Iterator

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
