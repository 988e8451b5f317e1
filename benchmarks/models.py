"""The benchmark networks as ONNX files with seeded weights (python -m benchmarks.models)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from benchmarks import quantized
from benchmarks.operators import OPERATORS as OPERATORS
from benchmarks.quantized import NETWORKS as NETWORKS
from benchmarks.quantized import QUANTIZED as QUANTIZED

Array = np.ndarray


@dataclass(frozen=True)
class Recipe:
    """How one network is made.

    source: "torch", or the name of the onnx package's light model. images: the shape of its one
    float32 input (None: what INPUTS makes). logit_gain: what brings the logits' std near 1.
    """

    source: str
    images: tuple[int, ...] | None
    logit_gain: float = 1.0


IMAGE = (1, 3, 224, 224)

# The networks that are measured, all of them.
RECIPES: dict[str, Recipe] = {
    "lenet": Recipe("torch", (1, 1, 32, 32), 1 / 6),
    "lenet_b64": Recipe("torch", (64, 1, 32, 32), 1 / 6),
    "resnet18": Recipe("torch", IMAGE, 1 / 4),
    "resnet50": Recipe("resnet50", IMAGE, 1 / 84),
    "mobilenet_v2": Recipe("torch", IMAGE),
    "squeezenet": Recipe("squeezenet", IMAGE, 1 / 3.5),
    "densenet121": Recipe("densenet121", IMAGE, 1 / 13),
    "inception_v2": Recipe("inception_v2", IMAGE, 1 / 64),
    "shufflenet": Recipe("shufflenet", IMAGE, 1 / 27),
    "vgg19": Recipe("vgg19", IMAGE, 1 / 6.5),
    "unet_small": Recipe("torch", (1, 3, 192, 192)),
    "convnext_tiny": Recipe("torch", IMAGE),
    "bert_base": Recipe("torch", None),
    "minilm": Recipe("torch", None),
    "vit_small": Recipe("torch", IMAGE),
    "gpt2_6l": Recipe("torch", None),
    "gpt2_6l_step": Recipe("torch", None),
    "lstm2": Recipe("torch", (1, 32, 256)),
}

# The light models keep the input names that they were published with.
INPUT_NAME = {
    "torch": "image",
    "resnet50": "gpu_0/data_0",
    "shufflenet": "gpu_0/data_0",
}


def bert_inputs(rng: np.random.Generator, length: int = 128) -> dict[str, Array]:
    """Token ids, segments and a mask that hides the last quarter: int64 [1, length] each."""
    mask = np.ones((1, length), np.int64)
    mask[:, 3 * length // 4 :] = 0
    segments = np.zeros((1, length), np.int64)
    segments[:, length // 2 :] = 1
    ids = rng.integers(0, 30522, (1, length), dtype=np.int64)
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


def decoder_inputs(
    rng: np.random.Generator, length: int, past: int = 0
) -> dict[str, Array]:
    """Token ids [1, length]; with `past`, keys and values of six layers [1, 12, past, 64]."""
    arrays: dict[str, Array] = {
        "input_ids": rng.integers(0, 50257, (1, length), dtype=np.int64)
    }
    for layer in range(6 if past else 0):
        for what in ("key", "value"):
            value = rng.standard_normal((1, 12, past, 64), dtype=np.float32)
            arrays[f"past_{what}_{layer}"] = value
    return arrays


INPUTS: dict[str, Callable[[np.random.Generator], dict[str, Array]]] = {
    "bert_base": bert_inputs,
    "minilm": bert_inputs,
    "gpt2_6l": lambda rng: decoder_inputs(rng, 64),
    "gpt2_6l_step": lambda rng: decoder_inputs(rng, 1, past=64),
}


# Everything that can be built, networks first.
NAMES = (*RECIPES, *OPERATORS, *QUANTIZED, *NETWORKS)
CALIBRATION = 4  # inputs that a network is quantized by


def default_directory() -> Path:
    """The user's cache folder for benchmark networks."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright-bench"))


def shapes(name: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of an operator's inputs; KeyError names the known networks and operators."""
    if name in OPERATORS:
        return OPERATORS[name].shapes
    if name in QUANTIZED:
        return (QUANTIZED[name].shape,)
    raise KeyError(f"no network or operator {name!r}; there are {', '.join(NAMES)}")


def inputs(name: str, seed: int = 0) -> dict[str, Array]:
    """Seeded inputs of a network or an operator: normal float32, or what INPUTS makes."""
    name = NETWORKS.get(name, name)
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    if name in INPUTS:
        return INPUTS[name](rng)
    how = RECIPES.get(name)
    if how is not None:
        assert how.images is not None
        image = rng.standard_normal(how.images, dtype=np.float32)
        return {INPUT_NAME.get(how.source, "data_0"): image}
    normal = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes(name))
    return {f"x{i}": value for i, value in enumerate(normal)}


def _makers(name: str) -> tuple[str, ...]:
    """The package that makes the file, then our source files that say how."""
    how = RECIPES.get(name)
    if how is not None and how.source != "torch":
        return "onnx", "light_nets.py"
    if name in QUANTIZED:
        return "onnx", "quantized.py"
    if name in NETWORKS:
        return "onnxruntime", "quantized.py", *_makers(NETWORKS[name])[1:]
    nets = (
        ("conv_nets.py", "sequence_nets.py")
        if how
        else ("operators.py", "sequence_nets.py")
    )
    return "torch", "torch_nets.py", *nets


def recipe_hash(name: str) -> str:
    """Changes when the file that `build` would write may change."""
    here = Path(__file__).parent
    maker, *sources = _makers(name)
    parts = [name, repr(RECIPES.get(name)), maker, importlib.metadata.version(maker)]
    parts += [repr({k: (v.shape, v.dtype) for k, v in inputs(name).items()})]
    parts += [
        (here / file).read_text(encoding="utf-8") for file in ("weights.py", *sources)
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def build(name: str, directory: Path) -> Path:
    """Writes `directory/<name>.onnx` unless it exists with the same recipe; returns its path."""
    path = directory / f"{name}.onnx"
    note = directory / f"{name}.recipe"
    wanted = recipe_hash(name)
    if (
        path.exists()
        and note.exists()
        and note.read_text(encoding="utf-8").strip() == wanted
    ):
        return path
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory / f".{name}.{os.getpid()}.onnx"
    try:
        _write(name, scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    note.write_text(wanted + "\n", encoding="utf-8")
    return path


def _write(name: str, path: Path) -> None:
    how = RECIPES.get(name, Recipe("torch", None))
    if name in NETWORKS:
        source = build(NETWORKS[name], path.parent)
        samples = (inputs(name, seed) for seed in range(1, CALIBRATION + 1))
        quantized.write_network(source, samples, path)
    elif name in QUANTIZED:
        import onnx

        onnx.save(quantized.build(name), path)
    elif how.source == "torch":
        import torch

        from benchmarks import torch_nets

        example = {k: torch.from_numpy(v) for k, v in inputs(name).items()}
        torch_nets.build(name, example, how.logit_gain, path)
    else:
        import onnx

        from benchmarks import light_nets

        onnx.save(light_nets.build(name, how.source, how.logit_gain), path)


def write_outputs(name: str, path: Path, seed: int = 0) -> Path:
    """Writes `<name>.npz` next to the model: `in.<input>` and ONNX Runtime's `out.<output>`."""
    import onnxruntime as ort

    feeds = inputs(name, seed)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    values = session.run(names, feeds)
    arrays = {f"in.{k}": v for k, v in feeds.items()}
    arrays |= {f"out.{k}": v for k, v in zip(names, values)}
    target = path.with_suffix(".npz")
    np.savez(target, **arrays)  # type: ignore[arg-type]
    return target


def describe(path: Path) -> dict[str, object]:
    """Nodes, operators with their counts, megabytes of a model file."""
    import onnx

    graph = onnx.load(path).graph
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    size = path.stat().st_size / 1e6
    return {"nodes": len(graph.node), "megabytes": round(size, 1), "operators": counts}


@click.command(
    epilog="Example: python -m benchmarks.models resnet50 bert_base -o /tmp/models"
)
@click.argument("names", nargs=-1, type=click.Choice(list(NAMES)))
@click.option("--all", "everything", is_flag=True, help="Every network and operator.")
@click.option(
    "-o", "--dir", "directory", type=click.Path(path_type=Path), help="Where to write."
)
@click.option(
    "--with-outputs",
    is_flag=True,
    help="Also inputs and ONNX Runtime's outputs (.npz).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per network.")
def main(
    names: tuple[str, ...], everything: bool, directory: Path | None, with_outputs: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Build benchmark networks and operators as ONNX files with seeded weights."""
    chosen = NAMES if everything else names
    if not chosen:
        raise click.UsageError(f"name networks, or --all; there are {', '.join(NAMES)}")
    for name in chosen:
        path = build(name, directory or default_directory())
        if with_outputs:
            write_outputs(name, path)
        facts = describe(path)
        if as_json:
            click.echo(json.dumps({"network": name, "path": str(path), **facts}))
        else:
            click.echo(f"{path}  {facts['nodes']} nodes, {facts['megabytes']} MB")


if __name__ == "__main__":
    sys.exit(main())
