"""Tiny models of each shape against NumPy, and what a folder can have wrong with it."""

from __future__ import annotations

import json
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.llm.folders import (
    GROUPS,
    HEADS,
    HIDDEN,
    POSITIONS,
    SIZE,
    VOCABULARY,
    WIDTH,
    gpt2,
    gpt2_logits,
    llama,
    llama_logits,
    write_safetensors,
)
from tilewright.base import events
from tilewright.base.errors import InputError, LimitError, ModelError, UnsupportedError
from tilewright.frontends.hf.decoder import decoder_of
from tilewright.frontends.hf.families import FAMILIES

CONTEXT, CHUNK = 24, 8
IDS = [int(n) for n in np.random.default_rng(0).integers(4, VOCABULARY, 14)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    made = llama(path, "MistralForCausalLM", sliding_window=5, rope_theta=100.0)
    return made.write()


@pytest.fixture(scope="module")
def model(folder):
    return load(folder.path)


def load(path, **more):
    options = {"context": CONTEXT, "chunks": (CHUNK,), "threads": 1} | more
    return tw.llm.load(path, **options)


def logits(model, ids, cuts):
    """Those behind each piece of the ids, which the cuts end."""
    state = model.start()
    ends = [0, *cuts, len(ids)]
    return [model.feed(state, ids[begin:end]) for begin, end in pairwise(ends)]


CUTS = [1, 3, 12]  # steps, a chunk that is filled up, and steps behind it


def test_logits_are_those_of_the_reference(folder, model):
    wanted = llama_logits(folder, IDS, window=5)
    found = logits(model, IDS, CUTS)
    places = [n - 1 for n in [*CUTS, len(IDS)]]
    np.testing.assert_allclose(found, wanted[places], rtol=1e-4, atol=1e-4)
    # The window counts: without it the reference is elsewhere.
    apart = llama_logits(folder, IDS)[-1] - wanted[-1]
    assert np.abs(apart).max() > 1e-2


def test_a_chunk_that_the_cache_has_no_room_for_is_read_in_steps(folder, model):
    ids = (IDS * 2)[:CONTEXT]
    found = logits(model, ids, [CONTEXT - 4])
    wanted = llama_logits(folder, ids, window=5)[[CONTEXT - 5, CONTEXT - 1]]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_norms_of_heads_and_tied_embeddings(tmp_path):
    folder = llama(
        tmp_path / "m",
        "Qwen3ForCausalLM",
        num_hidden_layers=1,
        tie_word_embeddings=True,
    ).write()
    found = logits(load(folder.path, chunks=()), IDS[:6], [5])
    wanted = llama_logits(folder, IDS[:6])[4:]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_gpt2_without_the_prefix_of_its_names(tmp_path):
    folder = gpt2(tmp_path / "m").write()
    found = logits(load(folder.path), IDS, [11])
    wanted = gpt2_logits(folder, IDS)[[10, 13]]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_texts_do_not_see_one_another(model):
    one, two = model.start(), model.start()
    model.feed(one, IDS[:4])
    model.feed(two, IDS[5:9])
    first, second = model.feed(one, IDS[4:5]), model.feed(two, IDS[9:10])
    assert (first == model.feed(model.start(), IDS[:5])).all()
    assert (second == model.feed(model.start(), IDS[5:10])).all()


def test_chunks_have_no_head_and_no_last_network(folder, model):
    """Only the last token needs logits: of the last layer, a chunk needs keys and values."""
    step, chunk = (model.executable(n).model for n in (1, CHUNK))
    head = folder.tensors["lm_head.weight"].nbytes
    network = 3 * folder.tensors["model.layers.1.mlp.up_proj.weight"].nbytes
    assert len(step.constants) - len(chunk.constants) >= head + network
    for made in (step, chunk):
        assert len(made.steps) == 1
        assert len(made.aliases) == 4


def test_greedy_tokens_are_those_of_the_reference(folder, model):
    model.prepare()
    found = [t.id for t in model.generate(IDS[:5], max_tokens=8)]
    wanted = list(IDS[:5])
    while len(wanted) < 13 and wanted[-1] != 2:
        wanted.append(int(llama_logits(folder, wanted, window=5)[-1].argmax()))
    assert found == wanted[5:]
    assert len(model._made) == 2


def test_equal_seeds_give_equal_texts(model):
    def text(seed):
        drawn = model.generate(IDS[:3], max_tokens=12, temperature=2.0, seed=seed)
        return [t.id for t in drawn]

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_text_ends_where_the_context_is_full(model):
    ids = (IDS * 2)[:20]
    found = [*model.generate(ids, max_tokens=99, temperature=3.0)]
    # The last token is given, and needs no place.
    assert len(found) == CONTEXT - 20 + 1
    full = [*model.generate((IDS * 2)[:CONTEXT], max_tokens=99)]
    assert len(full) == 1


def test_a_text_ends_with_an_end_token(folder, model):
    first = next(iter(model.generate(IDS[:5]))).id
    again = load(folder.path)
    again._made = model._made
    again.ends = frozenset([first])
    assert [(t.id, t.text) for t in again.generate(IDS[:5])] == [(first, "")]


def test_integers_of_few_bits_are_near(folder, model):
    small = load(folder.path, precision="int8", group=16, chunks=())
    names = [op.qualified for op in small.graph(1).operations]
    assert "com.microsoft::MatMulNBits" in names
    one, other = (m.feed(m.start(), IDS[:2]) for m in (small, model))
    error = np.linalg.norm(one - other) / np.linalg.norm(other)
    assert 0 < error < 0.05


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.generate(IDS * 2), "28 tokens after 0 exceed the context"),
        (lambda m: m.generate([]), "the prompt is empty"),
        (lambda m: m.generate([VOCABULARY]), f"no token {VOCABULARY}"),
        (lambda m: m.generate([-1]), "no token -1"),
        (lambda m: m.generate([1], max_tokens=0), "max_tokens=0"),
        (lambda m: m.generate([1], top_p=2.0), "top_p=2.0"),
        (lambda m: m.generate([1], stop=["a", ""]), "stop: a text is empty"),
        (lambda m: m.feed(m.start(), []), "there are no ids"),
    ],
)
def test_what_cannot_be_generated_is_refused_at_once(model, call, said):
    with pytest.raises(InputError, match=said):
        call(model)


def test_files_that_are_missing_or_broken_are_named(tmp_path):
    path = tmp_path / "m"
    with pytest.raises(ModelError, match="there is no such folder"):
        load(path)
    path.mkdir()
    with pytest.raises(ModelError, match=r"config.json is missing"):
        load(path)
    llama(path).write()
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model.safetensors nor"):
        load(path).graph(1)
    for text in ("{", "[]", "[" * 100_000):
        (path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config.json: it is not"):
            load(path)


def test_tensors_that_do_not_fit_are_named(tmp_path):
    folder = llama(tmp_path / "m")
    name = "model.layers.1.mlp.up_proj.weight"
    whole = dict(folder.tensors)
    for change, error, said in (
        ({name: whole[name][:-1]}, ModelError, rf"{name}.*\[47, 32\].*\[48, 32\]"),
        ({name: None}, ModelError, f"{name}.*missing"),
        ({"model.extra": whole[name]}, UnsupportedError, "model.extra"),
        ({name: whole[name].astype(np.int64)}, UnsupportedError, "int64"),
    ):
        tensors = whole | change
        folder.tensors = {n: a for n, a in tensors.items() if a is not None}
        folder.write()
        with pytest.raises(error, match=said):
            load(folder.path).graph(1)


def test_shards_are_read_by_their_index(tmp_path):
    folder = llama(tmp_path / "m", num_hidden_layers=1).write()
    whole = folder.path / "model.safetensors"
    whole.unlink()
    names = sorted(folder.tensors)
    index = folder.path / "model.safetensors.index.json"
    with_bf16 = {n: a.astype(ml_dtypes.bfloat16) for n, a in folder.tensors.items()}
    places = {n: f"part-{k % 2}.safetensors" for k, n in enumerate(names)}
    for part in set(places.values()):
        write_safetensors(
            folder.path / part, {n: with_bf16[n] for n in names if places[n] == part}
        )
    index.write_text(json.dumps({"weight_map": places}))
    constants = load(folder.path).graph(1).constants
    found = {v.name: a for v, a in constants.items()}
    for name, array in with_bf16.items():
        assert (found[name] == array.astype(np.float32)).all()
    index.write_text(json.dumps({"weight_map": {**places, "x": "part-0.safetensors"}}))
    with pytest.raises(ModelError, match="'x' is missing"):
        load(folder.path).graph(1)
    for bad in ({"x": "../model.safetensors"}, {"x": ""}, [], {"x": 3}):
        index.write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(ModelError, match="weight_map"):
            load(folder.path).graph(1)


def config(**more):
    return llama(None, **more).config


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"architectures": ["LamaForCausalLM"]}, UnsupportedError, "LlamaForCausalLM"),
        ({"architectures": None}, UnsupportedError, "no architecture"),
        ({"hidden_size": "32"}, ModelError, "hidden_size is '32'"),
        ({"vocab_size": None}, ModelError, "vocab_size is None"),
        ({"num_key_value_heads": 3}, ModelError, "4 heads for 3"),
        ({"quantization_config": {"bits": 4}}, UnsupportedError, "quantization_config"),
        ({"layer_types": ["full_attention"]}, ModelError, "layer_types has no entry 1"),
        ({"layer_types": ["linear"] * 2}, UnsupportedError, "a layer of 'linear'"),
        ({"rms_norm_eps": "x"}, ModelError, "rms_norm_eps"),
        ({"hidden_act": None}, ModelError, "hidden_activation is None"),
        ({"rope_scaling": 3}, ModelError, "rope_parameters"),
    ],
)
def test_configurations_that_are_not_supported_are_refused(more, error, said):
    with pytest.raises(error, match=said):
        decoder_of(config(**more))


ROPE = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "attention_factor": 1.0,
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.4,
}
WRONG = ("x", [], {}, -1, True, float("nan"), float("inf"), [1, "x"], {"a": 1}, 1 << 70)


@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_a_configuration_says_it_is_read_or_refused(name):
    """No other error: whatever one value is, whole or of its rotary positions."""
    whole = {
        **config(architecture=name, rope_parameters=ROPE, sliding_window=7),
        **gpt2(None).config,
        "architectures": [name],
        "query_pre_attn_scalar": 16,
        "max_window_layers": 1,
        "sliding_window_pattern": 2,
        "use_sliding_window": True,
        "attn_logit_softcapping": 5.0,
    }
    changed = [whole | {key: bad} for key in whole for bad in WRONG]
    changed += [
        whole | {"rope_parameters": ROPE | {key: bad}} for key in ROPE for bad in WRONG
    ]
    for given in [whole, *changed]:
        try:
            d = decoder_of(given, 8)
            for layer in d.layers:
                _ = layer.rotary and layer.rotary.tables()
        except (InputError, ModelError, UnsupportedError, LimitError):
            assert given is not whole


def test_the_context_is_within_what_the_model_was_trained_with():
    for positions in (0, 1, POSITIONS + 1):
        with pytest.raises(InputError, match="context"):
            decoder_of(config(), positions)
    assert decoder_of(config()).positions == POSITIONS


def test_an_unknown_activation_is_refused(tmp_path):
    folder = llama(tmp_path / "m", hidden_act="mish").write()
    with pytest.raises(UnsupportedError, match="'mish'"):
        load(folder.path).graph(1)


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({"architecture": "LlamaForCausalLM"}, [0] * 6),
        ({"architecture": "MistralForCausalLM"}, [7] * 6),
        ({"architecture": "Gemma2ForCausalLM"}, [7, 0] * 3),
        ({"architecture": "Gemma3ForCausalLM"}, [7, 7, 7, 7, 7, 0]),
        ({"architecture": "Qwen2ForCausalLM"}, [0] * 6),
        (
            {
                "architecture": "Qwen2ForCausalLM",
                "use_sliding_window": True,
                "max_window_layers": 4,
            },
            [0] * 4 + [7] * 2,
        ),
        (
            {
                "architecture": "LlamaForCausalLM",
                "layer_types": ["sliding_attention", "full_attention"] * 3,
            },
            [7, 0] * 3,
        ),
    ],
)
def test_windows_by_layer_as_older_configurations_have_them(more, windows):
    d = decoder_of(config(sliding_window=7, num_hidden_layers=6, **more))
    assert [layer.window for layer in d.layers] == windows


def test_rotary_positions_as_older_configurations_have_them():
    more = {"rope_theta": 500.0, "rope_local_base_freq": 20.0, "sliding_window": 7}
    d = decoder_of(
        config(
            architecture="Gemma3ForCausalLM",
            num_hidden_layers=6,
            rope_scaling={"type": "linear", "factor": 8.0},
            **more,
        )
    )
    found = [(layer.rotary.theta, layer.rotary.kind) for layer in d.layers]
    assert found == [(20.0, "default")] * 5 + [(500.0, "linear")]


def test_every_family_names_all_parts_of_a_layer():
    for name, family in FAMILIES.items():
        parts = set(family.parts)
        assert "query_key_value" in parts or {"query", "key", "value"} <= parts, name
        assert {"attention_norm", "output", "down"} <= parts, name
        assert "gate_up" in parts or "up" in parts, name
        assert family.parallel or "mlp_norm" in parts, name
        assert set(family.biases) <= parts | {"head"}, name


def test_sizes_of_the_reference_differ():
    """Else a mistake that takes one for the other would not be seen."""
    sizes = (WIDTH, HIDDEN, HEADS * SIZE, GROUPS * SIZE, VOCABULARY, POSITIONS, CONTEXT)
    assert len(set(sizes)) == len(sizes)


def test_a_whole_model_comes_from_the_cache_while_all_that_it_is_of_is_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    folder = llama(tmp_path / "model", num_hidden_layers=1)
    folder.tensors = {n: a for n, a in folder.tensors.items() if ".1." not in n}
    folder.write()

    def made(**more):
        """The logits, and whether the model came from the cache."""
        with events.record() as log:
            found = load(folder.path, chunks=(), **more)
            logits = found.feed(found.start(), IDS[:1])
        return logits, any(e.kind == "model-cached" for e in log)

    first, cached = made()
    assert not cached
    again, cached = made()
    assert cached
    np.testing.assert_array_equal(first, again)
    # Another context, precision, setting of the configuration, or weight is another model.
    assert not made(context=CONTEXT - 1)[1]
    assert not made(precision="int8")[1]
    folder.config["final_logit_softcapping"] = 0.5
    folder.write()
    capped, cached = made()
    assert not cached
    assert np.abs(capped).max() <= 0.5 < np.abs(first).max()
    del folder.config["final_logit_softcapping"]
    folder.tensors["lm_head.weight"] = 2 * folder.tensors["lm_head.weight"]
    folder.write()
    doubled, cached = made()
    assert not cached
    np.testing.assert_allclose(doubled, 2 * first, rtol=1e-5)
