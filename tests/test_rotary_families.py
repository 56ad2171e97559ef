"""The rotary encoding of every family against its module in transformers, with every context extension."""

from __future__ import annotations

import importlib
import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from every_family import config_of, installed
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import mrope
from mrope import AxisSplit, Frequencies, HeadSplit, Rotary
from mrope.extensions import DynamicNtk, Extension, LongRope, Ntk, Yarn, read_extension

MODEL_TYPES = [name for record in map(mrope.family, mrope.family_names()) for name in record.model_types]
WITHOUT_LANGUAGE = ("qwen2_5_omni", "qwen3_omni_moe")  # their language model is the thinker's
NO_ROTATION = "hunyuan_vl"
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])

PARAMETERS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.5},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn-deepseek": {"factor": 8.0, "original_max_position_embeddings": 512, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn-exact": {"factor": 4.0, "original_max_position_embeddings": 512, "truncate": False, "beta_fast": 16.0},
    "yarn-given": {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.25},
    "llama3": {
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 512},
}


def needs(model_type: str) -> None:
    if model_type in WITHOUT_LANGUAGE or not installed(model_type):
        pytest.skip(f"no language model of {model_type} in this transformers")


def layer_of(model_type: str) -> dict[str, str]:
    """The argument that names a type of layer, where types differ."""
    return {"layer": "full_attention"} if model_type in ("neomme", "cohere_compass") else {}


def theirs(config: Any, ids: Tensor, *heads: Tensor) -> tuple[Tensor, ...]:
    """What the rotary module and the function of the model's own file make of queries and keys."""
    text = config.get_text_config()
    if VERSION < (5, 3) and config.model_type.startswith(("qwen2", "paddle")):
        pytest.skip("earlier versions choose the axes of pairs in the attention")
    found = importlib.import_module(type(text).__module__.replace("configuration", "modeling"))
    kind = next(
        getattr(found, name)
        for name in vars(found)
        if name.endswith("RotaryEmbedding") and "Vision" not in name and "Talker" not in name
    )
    per_layer = {"layer_type": "full_attention"} if layer_of(config.model_type) else {}
    cos, sin = kind(config=text)(heads[0], ids, **per_layer)
    return found.apply_rotary_pos_emb(*heads, cos, sin)


def random_heads(split: AxisSplit | HeadSplit, head_dim: int, high: int = 5_000) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (A, 2, 37), queries and keys."""
    ids = torch.randint(0, high, (split.axes, 2, 37))
    return ids, torch.randn(2, 3, 37, head_dim), torch.randn(2, 1, 37, head_dim)


@pytest.mark.evidence("library", "Rotary")
@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name != NO_ROTATION])
def test_queries_and_keys_turn_as_in_transformers_to_the_bit(model_type: str) -> None:
    needs(model_type)
    if model_type == "cohere_compass" and VERSION < (5, 24):
        pytest.skip("earlier versions let rows and columns take turns, as in Ernie 4.5 VL")
    config = config_of(model_type)
    rotary = Rotary.from_config(config, **layer_of(model_type))
    ids, q, k = random_heads(rotary.split, config.get_text_config().head_dim)
    for ours, reference in zip(rotary(q, k, ids), theirs(config, ids, q, k), strict=True):
        assert torch.equal(ours, reference)
    swapped = ids[[*range(rotary.axes - 2), -1, -2]]
    assert not torch.equal(rotary(q, k, swapped)[0], rotary(q, k, ids)[0])


@pytest.mark.parametrize("name", mrope.family_names())
def test_a_configuration_with_the_recorded_values_gives_the_record(name: str) -> None:
    record = mrope.family(name)
    section = record.split.counts
    if record.split.allocation == "alternating" and len(section) == 3:
        section = (*section[1:], section[0])  # Ernie's order: h, w, t
    rope: dict[str, Any] = {"rope_theta": record.frequencies.base, "partial_rotary_factor": record.partial_rotary}
    if isinstance(record.frequencies.extension, Ntk):
        rope |= {"rope_type": "dynamic", "alpha": record.frequencies.extension.factor}
    if len(section) != 2:
        rope["mrope_section"] = list(section)
    for model_type in record.model_types:
        config = {"model_type": model_type, "head_dim": record.head_dim, "rope_parameters": rope}
        assert Rotary.from_config(config) == record.rotary()
        assert Rotary.from_config({"model_type": model_type}) == record.rotary()  # what is not stated is the record's


def test_other_layers_of_neomme_turn_a_quarter_of_their_channels() -> None:
    rotary = mrope.family("neomme").other_layers["full_attention"]
    assert rotary == Rotary(AxisSplit((4, 4), "alternating"), Frequencies(1e6))
    needs("neomme")
    config = deepcopy(config_of("neomme"))
    config.rope_parameters["full_attention"] |= {"rope_theta": 1e6, "partial_rotary_factor": 0.25}
    assert Rotary.from_config(config, layer="full_attention") == rotary


def test_a_layer_without_rope_parameters_does_not_rotate() -> None:
    types = {"full_attention": None, "sliding_attention": {"rope_theta": 1e4, "mrope_section": [24, 20, 20]}}
    config = {"model_type": "cohere_compass", "text_config": {"rope_parameters": types, "head_dim": 128}}
    still = Rotary.from_config(config, "full_attention")
    ids, q, k = random_heads(still.split, 128)
    assert all(map(torch.equal, still(q, k, ids), (q, k)))
    assert Rotary.from_config(config, "sliding_attention") == mrope.family("cohere-compass").rotary()
    with pytest.raises(ValueError, match="layer is None; expected one of full_attention, sliding_attention"):
        Rotary.from_config(config)


def test_glm46v_pairs_as_its_backbone_does() -> None:
    for backbone, pairing in (("glm4v_text", "adjacent"), ("glm4v_moe_text", "half")):
        rotary = Rotary.from_config({"model_type": "glm46v", "text_config": {"model_type": backbone}})
        assert rotary.pairing == pairing


def test_a_folder_is_read(tmp_path: Path) -> None:
    config = {"model_type": "qwen2_vl", "rope_theta": 5e5, "rope_scaling": {"type": "mrope"}, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert Rotary.from_config(tmp_path) == Rotary(AxisSplit((16, 24, 24)), Frequencies(5e5))


# ------------------------------------------------------------------------------------------- the fault of hunyuan_vl


def by_doubled_sections(x: Tensor, ids: Tensor, counts: tuple[int, ...], inv_freq: Tensor) -> Tensor:
    """Sections doubled over the doubled table: channel d reads the axis whose doubled section d falls into."""
    axis = torch.arange(len(counts)).repeat_interleave(2 * torch.tensor(counts))
    angle = ids.movedim(0, -1)[..., axis].float() * torch.cat((inv_freq, inv_freq))
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * angle.cos().unsqueeze(1) + turned * angle.sin().unsqueeze(1)


@pytest.mark.evidence("library", "Rotary")
def test_hunyuan_of_transformers_is_no_rotation_and_ours_is() -> None:
    needs("hunyuan_vl")
    config = config_of("hunyuan_vl")
    rotary = Rotary.from_config(config)
    ids, q, k = random_heads(rotary.split, 128)
    faulty, _ = theirs(config, ids, q, k)
    torch.testing.assert_close(faulty, by_doubled_sections(q, ids, (16,) * 4, rotary.frequencies.inv_freq(128)))
    assert (faulty.norm(dim=-1) - q.norm(dim=-1)).abs().max() > 0.1
    turned, _ = rotary(q, k, ids)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    text = ids[:1].expand(4, -1, -1)  # equal axes: the fault does not show
    assert torch.equal(rotary(q, k, text)[0], theirs(config, text, q, k)[0])


def test_hunyuan_is_stretched_by_its_alpha() -> None:
    released = {
        "model_type": "hunyuan_vl",
        "head_dim": 128,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [16, 16, 16, 16]},
    }
    rotary = Rotary.from_config(released)
    assert rotary == mrope.family("hunyuan-vl").rotary()
    # 1e4 * 1000 ** (128 / 126) = 1.1158840e7; the slowest pair: its power -126 / 128
    base = 1.1158840e7
    assert rotary.frequencies.inv_freq(128)[-1].item() == pytest.approx(base ** (-126 / 128), rel=1e-5)
    assert base == pytest.approx(1e4 * 1000 * 1000 ** (2 / 126), rel=1e-6)


# --------------------------------------------------------------------------------------------------------- extensions


@pytest.mark.evidence("library", "Rotary")
@pytest.mark.parametrize(
    "model_type", ["qwen2_vl", "qwen3_vl", "qwen3_5", "glm4v", "ernie4_5_vl_moe", "cohere_compass"]
)
@pytest.mark.parametrize("kind", PARAMETERS)
def test_extended_frequencies_are_those_of_transformers_to_the_bit(kind: str, model_type: str) -> None:
    needs(model_type)
    config = deepcopy(config_of(model_type))
    text = config.get_text_config()
    text.max_position_embeddings = 512
    layered = layer_of(model_type)
    rope = text.rope_parameters["full_attention"] if layered else text.rope_parameters
    rope |= {"rope_type": kind.partition("-")[0], **PARAMETERS[kind]}
    rotary_dim = int(text.head_dim * rope.get("partial_rotary_factor", 1))
    if kind == "longrope":
        rope["short_factor"] = [1.0 + 0.01 * j for j in range(rotary_dim // 2)]
        rope["long_factor"] = [1.5 + 0.1 * j for j in range(rotary_dim // 2)]
    rotary = Rotary.from_config(config, **layered)
    if layered and kind == "yarn-exact":  # a fault of transformers: it does not find `truncate` of a type of layers
        extension = rotary.frequencies.extension
        assert isinstance(extension, Yarn)
        rotary = replace(rotary, frequencies=Frequencies(1e6, replace(extension, ends="whole")))
    per_layer = {"layer_type": "full_attention"} if layered else {}
    for length in (400, 1500):
        # As its modules call it, with the length in a tensor.
        reference, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](text, seq_len=torch.tensor(length), **per_layer)
        assert torch.equal(rotary.frequencies.inv_freq(rotary_dim, length=length), reference)
        assert rotary.frequencies.attention_factor() == factor
        ids = torch.randint(0, length, (3, 1, 50))
        cos, _ = rotary.cos_sin(ids, length=length)
        angle = ids.float().movedim(0, -1)[..., rotary.split.axis] * reference
        assert torch.equal(cos, angle.cos() * factor)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_proportional_frequencies_are_those_of_transformers(share: float) -> None:
    config = deepcopy(config_of("qwen3_vl"))
    text = config.get_text_config()
    text.rope_parameters |= {"rope_type": "proportional", "partial_rotary_factor": share, "factor": 2.0}
    if "proportional" not in ROPE_INIT_FUNCTIONS:
        pytest.skip("this transformers has no proportional rope")
    rotary = Rotary.from_config(config)
    reference, _ = ROPE_INIT_FUNCTIONS["proportional"](text)
    assert torch.equal(rotary.frequencies.inv_freq(128), reference)
    assert (reference == 0).sum() == 64 - 64 * share


def test_the_length_decides_and_positions_know_it() -> None:
    frequencies = Frequencies(1e6, DynamicNtk(2, trained=32))
    rotary = Rotary(AxisSplit(), frequencies)
    positions = mrope.family("qwen2-vl").positions(["text:40", "image:1x8x4", "text:3"])
    assert positions.next == 47
    cos, _ = rotary.cos_sin(positions)
    assert torch.equal(cos, rotary.cos_sin(positions.ids, length=47)[0])
    assert not torch.equal(cos, rotary.cos_sin(positions.ids, length=32)[0])
    with pytest.raises(ValueError, match=r"DynamicNtk depends on the length of the row; pass length="):
        rotary.cos_sin(positions.ids)


@pytest.mark.parametrize(
    ("base", "trained", "ramp"), [(1e6, 32768, (23, 40)), (5e6, 262144, (29, 45))], ids=["qwen2.5-vl", "qwen3-vl"]
)
def test_where_yarn_begins_and_ends(base: float, trained: int, ramp: tuple[int, int]) -> None:
    assert Yarn(4, trained).ramp(base, 128) == ramp


def test_yarn_on_a_chunked_split_slows_width_and_never_time() -> None:
    plain, slowed = (Frequencies(1e6, each).inv_freq(128, dtype=torch.float64) for each in (None, Yarn(4, 32768)))
    quotient = plain / slowed
    t, h, w = quotient[:16], quotient[16:40], quotient[40:]
    assert torch.equal(t, torch.ones_like(t))
    assert int((h > 1 + 1e-9).sum()) == 16  # of 24
    torch.testing.assert_close(w, torch.full_like(w, 4))
    assert Yarn(4, 32768).attention_factor == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("parameters", "longest", "why"),
    [
        ({"rope_type": "spiral"}, None, "rope_type is 'spiral'; expected one of default, mrope, linear"),
        ({"rope_type": "linear"}, None, "of type 'linear' have no factor"),
        ({"rope_type": "yarn", "factor": 4.0}, None, "have no original_max_position_embeddings"),
        ({"rope_type": "dynamic", "factor": 4.0}, None, "go by max_position_embeddings, which is not stated"),
        ({"rope_type": "linear", "factor": 4.0, "twist": 1}, None, "have twist, which are not known here"),
        (
            {"rope_type": "yarn", "factor": 4.0, "mscale": -1, "original_max_position_embeddings": 64},
            None,
            "mscale is -1",
        ),
        (
            {"rope_type": "longrope", "factor": 4.0, "short_factor": 3, "original_max_position_embeddings": 64},
            None,
            "short_factor is 3; expected a list",
        ),
        ({"rope_type": "linear", "factor": 0.5}, None, "factor is 0.5; expected from 1 to 1e30"),
    ],
)
def test_rope_parameters_that_cannot_be_honoured_are_refused(parameters: dict, longest: int | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_extension(parameters, longest)


def test_longrope_wants_a_divisor_for_each_pair() -> None:
    with pytest.raises(ValueError, match="short has 3 divisors; 8 rotary channels need 4"):
        Frequencies(1e4, LongRope(4, 512, (1.0,) * 3, (1.0,) * 3)).inv_freq(8, length=10)


@pytest.mark.parametrize(
    "extension", [DynamicNtk(4, 20), LongRope(4, 20, (1.0,) * 64, (3.0,) * 64)], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("heads", [False, True], ids=["pairs", "heads"])
def test_each_document_has_the_frequencies_of_its_own_length(extension: Extension, heads: bool) -> None:
    split = HeadSplit((1, 1, 1), pairs=64) if heads else AxisSplit()
    rotary = Rotary(split, Frequencies(1e6, extension))
    family = mrope.family("qwen2-vl")
    rows = [family.positions(spans) for spans in (["text:5"], ["text:30", "image:1x8x4"], ["text:90"])]
    alone = [rotary.cos_sin(row)[0].movedim(-2, 0) for row in rows]  # tokens first
    packed = rotary.cos_sin(mrope.pack(rows))[0].movedim(-2, 0)
    assert torch.equal(packed, torch.cat(alone))
    batch = mrope.batch(rows)
    for row, (cos, wanted) in enumerate(zip(rotary.cos_sin(batch)[0], alone, strict=True)):
        tokens = cos.movedim(-2, 0)[batch.mask[row]]
        assert torch.equal(tokens, wanted[:, 0] if heads else wanted)
    q, k = torch.randn(3, 3, batch.ids.shape[-1], 128), torch.randn(3, 3, batch.ids.shape[-1], 128)
    turned, _ = rotary(q, k, batch)
    short, _ = rotary(q[0, :, -5:], k[0, :, -5:], rows[0])
    assert torch.equal(turned[0, :, -5:], short)
    assert not rotary.properties.shift


def test_dynamic_ntk_is_that_of_the_module_of_transformers() -> None:
    config = deepcopy(config_of("qwen2_vl"))
    text = config.get_text_config()
    text.max_position_embeddings = 512
    text.rope_parameters |= {"rope_type": "dynamic", "factor": 4.0}
    rotary, ids = Rotary.from_config(config), torch.arange(999).repeat(3, 1, 1)
    q, k = torch.randn(1, 2, 999, 128), torch.randn(1, 1, 999, 128)
    wanted = theirs(config, ids, q, k)
    cos, sin = rotary.cos_sin(ids, length=999)
    for x, reference in zip((q, k), wanted, strict=True):
        assert torch.equal(mrope.apply_rotary(x, cos, sin), reference)


def test_what_was_added_by_hand_wins_and_nulls_are_not_stated() -> None:
    stated = {"rope_theta": 5e5, "rope_type": "default"}
    card = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"model_type": "qwen2_vl", "rope_parameters": stated, "rope_scaling": card}
    wanted = Frequencies(5e5, Yarn(4.0, 32768))
    assert Rotary.from_config(config).frequencies == wanted
    assert mrope.Family.from_config(config).frequencies == wanted
    null = {"model_type": "qwen2_vl", "rope_parameters": {"rope_theta": None}}
    assert Rotary.from_config(null) == mrope.family("qwen2-vl").rotary()


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "qwen9"}, "model_type is 'qwen9'; known are qwen2_vl"),
        ({"model_type": "qwen2_vl", "text_config": "x"}, "text_config is 'x'; expected an object"),
        ({"model_type": "qwen2_vl", "rope_theta": 0}, "is 0; expected a finite number above 0"),
        ({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": 64}}, "mrope_section is 64; expected a list"),
        ({"model_type": "qwen2_vl", "rope_scaling": [1]}, r"rope_scaling is \[1\]; expected an object"),
        ({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [32, 32]}}, "qwen2-vl has 3 axes"),
        ({"model_type": "qwen2_vl", "head_dim": 64}, r"sums to 64; rotary_dim 64 needs 32, as in \(8, 12, 12\)"),
        ({"model_type": "qwen2_vl", "hidden_size": 8, "num_attention_heads": 0}, "num_attention_heads is 0"),
        (
            {"model_type": "qwen2_vl", "rope_parameters": {"full_attention": {}, "b": {}}},
            "expected one of full_attention, b",
        ),
    ],
)
def test_configurations_that_cannot_be_honoured_are_refused(config: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Rotary.from_config(config)


def test_class_defaults_of_transformers_are_taken_at_their_word() -> None:
    needs("qwen4_exp")
    from transformers import CONFIG_MAPPING

    with pytest.raises(ValueError, match="sums to 32; rotary_dim 256 needs 128"):  # which its module clamps
        Rotary.from_config(CONFIG_MAPPING["qwen4_exp"]())


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        Rotary.from_config(tmp_path)
    with pytest.raises(ValueError, match=r"has no config\.json; expected a checkpoint folder"):
        Rotary.from_config(tmp_path / "none")
