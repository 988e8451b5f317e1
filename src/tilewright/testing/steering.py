"""What acted together in random graphs, and weights that lead to pairs that never did.

A fact of a compilation is a rule, pass, idiom or sketch that acted in it, taken from its events. A
graph is worth the pairs of facts that it was the first to bring together. A piece is drawn the more
often, the more such pairs the graphs with it brought, and the fewer graphs had it together with the
pieces already there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from itertools import combinations

from tilewright.base.dataclass import dataclass
from tilewright.base.events import Event

# The field that says which one of its kind acted; "": there is only one.
FACTS = {
    "fuse": "rule",
    "sketch-chosen": "sketch",
    "rule": "rule",
    "fold": "",
    "placed": "",
    "padded": "",
    "winograd": "",
    "split-sum": "",
    "split-window": "",
    "separated": "",
    "kept-across": "",
    "kept-serial": "",
    "kept-whole": "",
    "kept-plain": "",
}
LEAST, MOST = 0.2, 5.0  # times the usual weight


def facts(events: Iterable[Event]) -> frozenset[str]:
    """The facts of a compilation: what acted in it; a pass counts if it changed something."""
    found = set()
    for e in events:
        if e.kind in FACTS:
            which = e.fields.get(FACTS[e.kind], "")
            found.add(f"{e.kind} {which}".strip())
        elif e.kind == "pass" and e.fields.get("changed"):
            found.add(f"pass {e.fields['name']}")
    return frozenset(found)


@dataclass
class Steering:
    """Counts over many graphs. met: how often a pair of facts occurred in one graph."""

    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    _together: Counter[tuple[str, str]] = field(default_factory=Counter)
    _graphs: Counter[str] = field(default_factory=Counter)
    _first: Counter[str] = field(default_factory=Counter)
    taken: list[str] = field(default_factory=list)

    def weight(self, piece: str, usual: float) -> float:
        """The weight of a piece, given those already `taken`."""
        others = [_pair(piece, p) for p in set(self.taken) if p != piece]
        rarities = [1 / (1 + self._together[pair]) for pair in others]
        if rarities:
            rarity = 2 * sum(rarities) / len(rarities)
        else:
            rarity = 1.0
        # New pairs per graph with this piece, relative to the average piece.
        graphs = self._graphs[piece]
        all_graphs = max(1, sum(self._graphs.values()))
        average = sum(self._first.values()) / all_graphs
        gain = 1.0
        if average and graphs:
            gain = self._first[piece] / graphs / average
        factor = (rarity + gain) / 2
        return usual * min(MOST, max(LEAST, factor))

    def add(self, found: Collection[str]) -> int:
        """Count a graph of the `taken` pieces that had these facts; returns the number of new
        pairs."""
        pairs = list(combinations(sorted(found), 2))
        first = sum(not self.met[pair] for pair in pairs)
        self.met.update(pairs)
        pieces: Sequence[str] = sorted(set(self.taken))
        self._together.update(combinations(pieces, 2))
        for p in pieces:
            self._graphs[p] += 1
            self._first[p] += first
        return first


def _pair(a: str, b: str) -> tuple[str, str]:
    if a < b:
        return a, b
    return b, a
