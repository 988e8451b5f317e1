"""Writes the figures of README.md and docs/benchmarks.md (python -m benchmarks.publish).

Only rows that count are published: every engine's outputs agreed with the float64 reference in the
run that timed them. The rows are in `published.json` next to this file, so that the tests can
compare the pages with them.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from benchmarks import harness, models, score
from benchmarks.harness import ROOT
from tilewright.cli.rounds import RoundTable

PUBLISHED: Final = ROOT / "benchmarks" / "published.json"
# The networks of the README, with the names that a reader knows.
README: Final = {
    "lenet": "LeNet",
    "lenet_b64": "LeNet, batch 64",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNetV2",
    "squeezenet": "SqueezeNet",
    "densenet121": "DenseNet-121",
    "shufflenet": "ShuffleNet",
    "bert_base": "BERT-base, sequence 128",
    "vit_small": "ViT-S/16",
}
_ENGINES: Final = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "openvino_bf16": "OpenVINO",
    "torch_eager": "torch eager",
    "torch_compile": "torch.compile",
}
Rows = Mapping[tuple[str, int], RoundTable]


def newest(store: harness.Rows) -> dict[tuple[str, int], RoundTable]:
    """The last row of each name and thread count; probes of guests are none."""
    rows = (r for key, r in store.rows.items() if not key.startswith("probe|"))
    return {(r.network, r.threads): r for r in rows}


def countable(rows: Rows) -> dict[tuple[str, int], RoundTable]:
    """The rows that may be published. Prints on standard error why others may not.

    Raises ClickException if they are from several processors, or none is left.
    """
    kept: dict[tuple[str, int], RoundTable] = {}
    for key, row in rows.items():
        reasons = score.void(row) or (
            [] if row.facts else ["it does not say where it is from"]
        )
        for reason in reasons:
            click.echo(f"left out: {row.network} x{row.threads}: {reason}", err=True)
        if not reasons:
            kept[key] = row
    machines = sorted({r.facts["processor"] for r in kept.values()})
    if len(machines) != 1:
        found = ", ".join(machines) or "no rows"
        raise click.ClickException(
            f"figures of one processor are published, found: {found}"
        )
    return kept


def read(path: Path = PUBLISHED) -> dict[tuple[str, int], RoundTable]:
    """The published rows."""
    found = [
        RoundTable(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))
    ]
    return {(r.network, r.threads): r for r in found}


def write(rows: Rows, path: Path = PUBLISHED) -> None:
    """Keep the rows, times to four digits."""
    kept = []
    for row in rows.values():
        fields = asdict(row)
        fields["times"] = {
            e: [float(f"{t:.4g}") for t in ts] for e, ts in row.times.items()
        }
        kept.append(json.dumps(fields | {"key": ""}))
    path.write_text("[\n" + ",\n".join(kept) + "\n]\n", encoding="utf-8")


# -- text of the pages


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _spread(row: RoundTable) -> str:
    """The quartiles of the rounds' leads."""
    peer = score.fastest(row)
    ratios = sorted(row.ratios(peer)) if peer else []
    if len(ratios) < 2:
        return ""
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{low:.2f}-{high:.2f}"


def _mean(rows: Sequence[RoundTable]) -> str:
    return _ratio(
        score.geometric_mean([v for r in rows if (v := score.lead(r)) is not None])
    )


def _table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    every = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _provenance(rows: Rows) -> str:
    """Processor, commits, days, peers and the largest error of a set of rows."""

    def said(fact: str) -> str:
        return ", ".join(sorted({r.facts[fact] for r in rows.values()}))

    error = max(r.error[r.engines[0]] for r in rows.values())
    rounds = statistics.median(len(r.times[r.engines[0]]) for r in rows.values())
    return (
        f"{said('cpus')} processors of {said('processor')}, {said('day')}, commit "
        f"{said('commit')}; {said('packages')}; medians of {rounds:g} interleaved rounds. Our "
        f"largest error against float64 is {error:.0e} of an output's peak."
    )


def readme(rows: Rows) -> str:
    """The block of README.md."""
    lines = []
    networks = {key: r for key, r in rows.items() if score.kind(r.network) == "network"}
    for name, title in README.items():
        one, two = networks.get((name, 1)), networks.get((name, 2))
        if one is None or two is None:
            continue
        ours = one.engines[0]
        lines.append([
            title, _number(one.median(ours)), _ratio(one.speed("onnxruntime")),
            _ratio(score.lead(one)), _number(two.median(ours)), _ratio(score.lead(two)),
        ])  # fmt: skip
    single, double = ([r for r in networks.values() if r.threads == n] for n in (1, 2))
    against = [v for r in single if (v := r.speed("onnxruntime")) is not None]
    lines.append([
        f"geometric mean of {len(single)} networks", "",
        f"**{_ratio(score.geometric_mean(against))}**", f"**{_mean(single)}**", "",
        f"**{_mean(double)}**",
    ])  # fmt: skip
    heading = ["batch 1", "1 thread, ms", "speed against ONNX Runtime", "against the fastest",
               "2 threads, ms", "against the fastest"]  # fmt: skip
    return f"{_table(heading, lines)}\n\n{_provenance(networks)}"


def _networks(rows: Rows, threads: int) -> str:
    chosen = [rows[name, threads] for name in models.RECIPES if (name, threads) in rows]
    peers = list(
        dict.fromkeys(e for r in chosen for e in r.engines[1:] if r.times.get(e))
    )
    lines = [
        [
            r.network,
            _number(r.median(r.engines[0])),
            *(_number(r.median(e)) for e in peers),
            _ratio(score.lead(r)),
            _spread(r),
            f"{r.error[r.engines[0]]:.0e}",
        ]
        for r in chosen
    ]
    lines.append(
        ["geometric mean", "", *("" for _ in peers), f"**{_mean(chosen)}**", "", ""]
    )
    titles = [_ENGINES.get(e, e) for e in peers]
    return _table(["network", "ours", *titles, "lead", "quartiles", "error"], lines)


def _pairs(rows: Rows, names: Sequence[str]) -> str:
    """One and two threads side by side, with the fastest peer of each."""
    lines = []
    for name in names:
        cells = [name]
        for threads in (1, 2):
            r = rows.get((name, threads))
            peer = None if r is None else score.fastest(r)
            if r is None or peer is None:
                cells += [""] * 6
                continue
            cells += [_number(r.median(r.engines[0])), _number(r.median(peer))]
            cells += [_ENGINES.get(peer, peer), _ratio(score.lead(r)), _spread(r)]
            cells.append(f"{r.error[r.engines[0]]:.0e}")
        if any(cells[1:]):
            lines.append(cells)
    means = [
        f"**{_mean([rows[n, t] for n in names if (n, t) in rows])}**" for t in (1, 2)
    ]
    lines.append(
        ["geometric mean", "", "", "", means[0], "", "", "", "", "", means[1], "", ""]
    )
    one = ["ours", "fastest peer", "", "lead", "quartiles", "error"]
    return _table(
        ["", f"1 thread: {one[0]}", *one[1:], f"2 threads: {one[0]}", *one[1:]], lines
    )


def page(rows: Rows) -> str:
    """The block of docs/benchmarks.md."""
    kinds: dict[str, list[str]] = {}
    for name in (*models.OPERATORS, *models.QUANTIZED, *models.NETWORKS):
        if (name, 1) in rows or (name, 2) in rows:
            low = score.kind(name) != "operator"
            kinds.setdefault("Low precision" if low else "Operators", []).append(name)
    parts = [_provenance(rows)]
    for threads, title in ((1, "one thread"), (2, "two threads")):
        if any(
            r.threads == threads and r.network in models.RECIPES for r in rows.values()
        ):
            parts += [f"### Networks on {title}", _networks(rows, threads)]
    for title, names in kinds.items():
        parts += [f"### {title}", _pairs(rows, names)]
    return "\n\n".join(parts)


PAGES: Final[Mapping[str, Callable[[Rows], str]]] = {
    "README.md": readme,
    "docs/benchmarks.md": page,
}
_BLOCK: Final = re.compile(r"(<!-- bench -->\n).*?(\n<!-- /bench -->)", re.DOTALL)


def with_block(text: str, block: str) -> str:
    """A page with the text between its markers replaced. Raises ValueError if there are none."""
    if len(_BLOCK.findall(text)) != 1:
        raise ValueError("a page has one <!-- bench --> block")
    return _BLOCK.sub(lambda m: f"{m[1]}\n{block}\n{m[2]}", text)


def outdated(rows: Rows, root: Path = ROOT) -> list[str]:
    """The pages that differ from the rows."""
    texts = {name: (root / name).read_text(encoding="utf-8") for name in PAGES}
    return [
        name
        for name, make in PAGES.items()
        if with_block(texts[name], make(rows)) != texts[name]
    ]


@click.command(epilog="Example: make bench && python -m benchmarks.publish")
@click.option(
    "--rows", "path", type=click.Path(path_type=Path, exists=True), help="rows.jsonl."
)
@click.option(
    "--check", is_flag=True, help="Exit with 1 where a page differs; write nothing."
)
def main(path: Path | None, check: bool) -> None:
    """Publish the newest rows that count: published.json, then both pages from it."""
    if not check:
        source = path or models.default_directory() / "results" / "rows.jsonl"
        write(countable(newest(harness.Rows(source))))
    rows = read()
    stale = outdated(rows)
    for name in stale:
        click.echo(f"{name}: {'differs from published.json' if check else 'written'}")
        if not check:
            target = ROOT / name
            text = with_block(target.read_text(encoding="utf-8"), PAGES[name](rows))
            target.write_text(text, encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
