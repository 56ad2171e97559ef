"""The native-resolution encoder equals the towers of transformers, and a dense formula; packed pictures do not meet."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pictures import noise
from sources import ROOT
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mrope
from mrope.attention import Mask, attend
from mrope.encodings import (
    Alibi,
    AxialRope,
    ContinuousBias,
    Dinov3Rope,
    LearnedTable,
    LieRope,
    MixedRope,
    NoPe,
    Pope,
    QwenVisionRope,
    Sinusoidal,
    T5Bias,
    patch_coordinates,
)
from mrope.vision import Patches, VisionEncoder, VitConfig, fold_normalization, patchify

MIXED = torch.tensor([[1, 4, 6], [3, 6, 4], [1, 2, 2], [1, 18, 10], [2, 8, 8], [1, 4, 6]])
SMALL = VitConfig(patch_dim=12, dim=24, depth=2, heads=2, hidden=40)


def made(config: VitConfig, encoding: Any = NoPe(), spread: float = 0.3) -> VisionEncoder:
    """An encoder whose parameters all count: norms, biases and scales too."""
    encoder = VisionEncoder(config, encoding=encoding)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += spread * torch.randn_like(parameter)
    return encoder


def values_for(grids: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(int(grids.prod(1).sum()), width, dtype=dtype)


# ------------------------------------------------------------------------------------------- towers of transformers


def tower(name: str) -> tuple[Any, VisionEncoder]:
    """A tower with random weights, and the encoder that has the same ones."""
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    shared: dict[str, Any] = {"patch_size": 4, "depth": 3, "num_heads": 2}
    config = VitConfig(patch_dim=96, dim=32, depth=3, heads=2, hidden=64, merge=2, out_dim=48)
    if name == "qwen2-vl":
        cls = type(Qwen2VLForConditionalGeneration._from_config(_tiny("qwen2-vl")).model.visual)
        model = cls(Qwen2VLVisionConfig(embed_dim=32, hidden_size=48, mlp_ratio=2, **shared))
        config = replace(config, activation="quick-gelu")
    elif name == "qwen2.5-vl":
        cls = type(Qwen2_5_VLForConditionalGeneration._from_config(_tiny("qwen2.5-vl")).model.visual)
        rest: dict[str, Any] = {"out_hidden_size": 48, "window_size": 24, "fullatt_block_indexes": [1]}
        model = cls(Qwen2_5_VLVisionConfig(hidden_size=32, intermediate_size=64, **rest, **shared))
        config = replace(config, activation="swiglu", norm="rms", window=3, full_layers=(1,))
    else:
        rest = {"out_hidden_size": 48, "num_position_embeddings": 25, "deepstack_visual_indexes": [0]}
        model = Qwen3VLVisionModel(Qwen3VLVisionConfig(hidden_size=32, intermediate_size=64, **rest, **shared))
        config = replace(config, activation="gelu-tanh", table=(5, 5), table_kind="bilinear-corners")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    encoder = VisionEncoder(config, encoding=QwenVisionRope(16))
    encoder.load_state_dict(_renamed(model.state_dict(), encoder.state_dict()))
    return model.eval(), encoder


def _tiny(name: str) -> Any:
    from tiny_models import tiny_config

    return tiny_config(name)


def _renamed(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {key: torch.zeros_like(value) for key, value in ours.items()}  # Qwen2-VL embeds without a bias
    words = {
        "patch_embed.proj": "embed",
        "attn.qkv": "qkv",
        "attn.proj": "out",
        "mlp.linear_fc1": "up",
        "mlp.linear_fc2": "down",
        "mlp.fc1": "up",
        "mlp.fc2": "down",
        "mlp.down_proj": "down",
        "merger.ln_q": "norm",
        "merger.norm": "norm",
        "merger.mlp": "merger",
        "merger.linear_fc1": "merger.0",
        "merger.linear_fc2": "merger.2",
    }
    for key, value in theirs.items():
        if key.startswith("deepstack") or "up_proj" in key:
            continue
        if key == "pos_embed.weight":
            state["table"] = value.view_as(state["table"])
            continue
        if "gate_proj" in key:
            key, value = key.replace("mlp.gate_proj", "up"), torch.cat((value, theirs[key.replace("gate", "up")]))
        for word, other in words.items():
            key = key.replace(word, other)
        assert key in state
        state[key] = value.reshape(state[key].shape)
    return state


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_towers_of_transformers(name: str) -> None:
    model, encoder = tower(name)
    values = values_for(MIXED, 96)
    with torch.no_grad():
        expected = model(values, MIXED).pooler_output
        torch.testing.assert_close(encoder((values, MIXED)), expected, rtol=1e-4, atol=1e-4)
        # The same patches as pictures of the other orientation are other pictures.
        swapped = encoder((values, MIXED[:, [0, 2, 1]]))
    assert not torch.allclose(swapped, expected, atol=1e-2)


# ------------------------------------------------------------------------------------------------- the dense formula


def places(grid: tuple[int, int, int], merge: int, order: str) -> list[tuple[int, int, int]]:
    """(t, row, col) of each patch in the order in which they lie, by loops."""
    t, h, w = grid
    if order == "raster":
        return [(f, i, j) for f in range(t) for i in range(h) for j in range(w)]
    return [
        (f, a * merge + i, b * merge + j)
        for f in range(t)
        for a in range(h // merge)
        for b in range(w // merge)
        for i in range(merge)
        for j in range(merge)
    ]


def dense(encoder: VisionEncoder, values: Tensor, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Patches and prefix of one picture or clip of one segment, in float64, token pair by token pair."""
    c = encoder.config
    state = {key: value.double().numpy() for key, value in encoder.state_dict().items()}
    spots = places(grid, c.merge, c.order)
    prefix = state["prefix"]
    patches, joined = len(spots), len(prefix)

    def norm(x: np.ndarray, key: str) -> np.ndarray:
        if f"{key}.weight" not in state:
            return x
        if c.norm == "rms":
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.eps) * state[f"{key}.weight"]
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.eps) * state[f"{key}.weight"] + state[f"{key}.bias"]

    def linear(x: np.ndarray, key: str) -> np.ndarray:
        return x @ state[f"{key}.weight"].T + state[f"{key}.bias"]

    def turned(head: np.ndarray) -> np.ndarray:
        """Axial rotation by hand: pair k of an axis turns by 100 ** (-4k / D) a patch; cols first, in pairs."""
        out, quarter = head.copy(), head.shape[1] // 4
        for number, (_, row, col) in enumerate(spots):
            for pair in range(2 * quarter):
                spot = (col if pair < quarter else row) + c.offset
                z = complex(*head[number, 2 * pair : 2 * pair + 2])
                z *= np.exp(1j * spot * 100.0 ** (-4 * (pair % quarter) / head.shape[1]))
                out[number, 2 * pair : 2 * pair + 2] = z.real, z.imag
        return out

    def sees(a: int, b: int, layer: int) -> bool:
        if max(a, b) >= patches:
            return True
        (f, i, j), (g, k, m) = spots[a], spots[b]
        side = c.merge * (c.window or 0)
        windowed = c.window is not None and layer not in c.full_layers
        near = not windowed or (i // side, j // side, f) == (k // side, m // side, g)
        return near and (c.segment == "clips" or f == g)

    x = norm(linear(values.double().numpy(), "embed"), "embed_norm")
    x = norm(np.concatenate((x, prefix)), "pre_norm")
    for layer in range(c.depth):
        key = f"blocks.{layer}"
        qkv = linear(norm(x, f"{key}.norm1"), f"{key}.qkv").reshape(patches + joined, 3, c.heads, -1)
        allowed = np.array([[sees(a, b, layer) for b in range(len(x))] for a in range(len(x))])
        heads = []
        for head in range(c.heads):
            q, k, v = (qkv[:, part, head] for part in range(3))
            q, k = turned(norm(q, f"{key}.q_norm")), turned(norm(k, f"{key}.k_norm"))
            scores = np.exp(np.where(allowed, q @ k.T / math.sqrt(q.shape[1]), -np.inf))
            heads.append(scores / scores.sum(-1, keepdims=True) @ v)
        seen = linear(norm(np.concatenate(heads, -1), f"{key}.seen_norm"), f"{key}.out")
        x = x + state.get(f"{key}.scale1", 1.0) * seen
        hidden = linear(norm(x, f"{key}.norm2"), f"{key}.up")
        if c.activation == "swiglu":
            gate, value = np.split(hidden, 2, -1)
            hidden = gate / (1 + np.exp(-gate)) * value
        else:
            hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
        x = x + state.get(f"{key}.scale2", 1.0) * linear(norm(hidden, f"{key}.hidden_norm"), f"{key}.down")
    x = norm(x, "norm")
    return x[:patches], x[patches:]


ALL_NORMS = ("embed", "pre", "qk", "attention", "mlp", "final")


@pytest.mark.parametrize(
    ("changes", "grid"),
    [
        ({}, (1, 3, 5)),
        ({"prefix": 3, "norms": ALL_NORMS, "layer_scale": 0.5}, (1, 3, 5)),
        (
            {"prefix": 1, "norms": ALL_NORMS, "norm": "rms", "activation": "swiglu", "offset": 1, "head_dim": 8},
            (1, 3, 5),
        ),
        ({"segment": "clips", "prefix": 2, "norms": ()}, (3, 2, 3)),
        ({"merge": 2}, (2, 4, 6)),
        ({"merge": 2, "order": "raster", "window": 2, "full_layers": (1,)}, (2, 6, 10)),
        ({"merge": 2, "window": 2, "segment": "clips"}, (2, 6, 10)),
        ({"merge": 1, "window": 3, "eps": 1e-3}, (1, 4, 7)),
    ],
    ids=["plain", "norms", "rms-swiglu", "clips", "blocks", "raster-windows", "blocks-windows", "ragged-windows"],
)
def test_a_dense_formula_in_float64(changes: dict[str, Any], grid: tuple[int, int, int]) -> None:
    config = replace(SMALL, **{"head_dim": None} | changes)
    encoder = made(config, AxialRope(config.head_dim or 0)).double()
    grids = torch.tensor([[1, 2, 4], grid, [1, 4, 2]])
    values = values_for(grids, 12, torch.float64)
    mine = slice(8, 8 + math.prod(grid))
    patches, prefix = dense(encoder, values[mine], grid)
    features = encoder.features((values, grids))
    torch.testing.assert_close(features.patches[mine].detach().numpy(), patches, rtol=1e-5, atol=1e-5)
    if config.segment == "clips" or grid[0] == 1:
        torch.testing.assert_close(features.prefix[1].detach().numpy(), prefix, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["raster", "strip"])
def test_tokens_of_raster_patches_are_those_of_blocks(order: str) -> None:
    blocks = made(replace(SMALL, merge=2, out_dim=10, table=(3, 4)), AxialRope(12))
    raster = VisionEncoder(replace(blocks.config, order=order), encoding=AxialRope(12))
    raster.load_state_dict(blocks.state_dict())
    grids = torch.tensor([[2, 4, 6], [1, 2, 8]])
    values = values_for(grids, 12)
    numbers, start = [], 0
    for t, h, w in grids.tolist():
        numbers += [start + (f * h + i) * w + j for f, i, j in places((t, h, w), 2, "blocks")]
        start += t * h * w
    torch.testing.assert_close(raster((values, grids)), blocks((values[numbers], grids)), rtol=1e-5, atol=1e-5)


def test_the_table_is_that_of_each_grid() -> None:
    encoder = made(replace(SMALL, depth=1, table=(4, 6), table_kind="bilinear", norms=(), merge=2))
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.startswith(("blocks.0.out", "blocks.0.down", "embed")):
                parameter.zero_()  # the table alone is left
    grids = torch.tensor([[1, 4, 6], [2, 2, 8]])
    rows = encoder((torch.zeros(56, 12), grids))
    table = encoder.table
    assert table is not None
    for number, (_, i, j) in enumerate(places((1, 4, 6), 2, "blocks")):
        torch.testing.assert_close(rows[number], table[i, j])
    # Row 0 of 2 lies between rows 0 and 1 of 4; column 1 of 8 at 1.5 * 6 / 8 - 0.5 = 0.625 of 6.
    halves = table[:2].mean(0)
    torch.testing.assert_close(rows[24 + 1], 0.375 * halves[0] + 0.625 * halves[1])
    torch.testing.assert_close(rows[24:40], rows[40:])


# ------------------------------------------------------------------------------------------------------- any encoding


def encodings(head_dim: int) -> dict[str, Any]:
    """An encoding with each verb, or a list with one for each block."""
    return {
        "none": NoPe(),
        "axial": AxialRope(head_dim),
        "volume": AxialRope(head_dim, axes=3),
        "mrope": mrope.Rotary(mrope.AxisSplit((1, 3, 2)), mrope.Frequencies(100.0)),
        "lie": LieRope(head_dim, heads=2),
        "pope": Pope(mrope.AxisSplit((head_dim // 2, head_dim // 2)), 2),
        "mixed": [MixedRope(head_dim, heads=2) for _ in range(2)],
        "alibi": Alibi(heads=2, axes=2),
        "t5": T5Bias(heads=2, axes=2),
        "continuous": ContinuousBias(2, (4, 6)),
        "sinusoidal": Sinusoidal(24, axes=2),
        "learned": LearnedTable(24, (8, 8)),
    }


@pytest.mark.parametrize("name", list(encodings(12)))
def test_any_encoding_attends_in_each_picture_alone(name: str) -> None:
    encoding = encodings(12)[name]
    encoder = made(SMALL, encoding)
    each = encoding if isinstance(encoding, list) else [encoding] * SMALL.depth
    grids = torch.tensor([[1, 3, 5], [1, 4, 2], [1, 3, 5]])
    values = values_for(grids, 12)
    outputs = []
    for one, (t, h, w) in zip(values.split(grids.prod(1).tolist()), grids.tolist(), strict=True):
        ids = patch_coordinates((t, h, w) if each[0].axes == 3 else (h, w)).long()
        x = each[0].embed(encoder.embed(one)[None], ids)
        block: Any
        for block, turn in zip(encoder.blocks, each, strict=True):
            q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, 2, 12)).permute(2, 0, 3, 1, 4)
            seen = attend(q, k, v, encoding=turn, positions=ids, mask=Mask("all"))
            x = x + block.out(seen.transpose(1, 2).flatten(2))
            x = x + block.down(nn.functional.gelu(block.up(block.norm2(x))))
        outputs.append(encoder.norm(x)[0])
    torch.testing.assert_close(encoder((values, grids)), torch.cat(outputs), rtol=1e-4, atol=1e-4)
    learned = {key for one in each if isinstance(one, nn.Module) for key, _ in one.named_parameters()}
    assert {key.split(".", 2)[2] for key, _ in encoder.named_parameters() if key.startswith("learned_")} == learned


@pytest.mark.parametrize("name", ["alibi", "learned"])
def test_prefix_tokens_have_no_bias_and_no_place(name: str) -> None:
    encoder = made(replace(SMALL, depth=1, prefix=2, norms=()), encodings(12)[name])
    values, grids = values_for(torch.tensor([[1, 3, 5]]), 12), torch.tensor([[1, 3, 5]])
    ids = patch_coordinates((3, 5)).long()
    block: Any = encoder.blocks[0]
    x = torch.cat((encoder.encodings[0].embed(encoder.embed(values), ids), encoder.prefix))
    q, k, v = block.qkv(block.norm1(x)).unflatten(-1, (3, 2, 12)).permute(1, 2, 0, 3)
    scores = q @ k.mT / math.sqrt(12)
    bias = encoder.encodings[0].bias(q[:, :15], ids)
    scores[:, :15, :15] += 0 if bias is None else bias
    x = x + block.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    x = x + block.down(nn.functional.gelu(block.up(block.norm2(x))))
    features = encoder.features((values, grids))
    torch.testing.assert_close(torch.cat((features.patches, features.prefix[0])), x, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------------- packed and single


@pytest.mark.parametrize(
    "changes", [{}, {"window": 2, "full_layers": (0,)}, {"prefix": 2}, {"segment": "clips"}], ids=str
)
def test_packed_pictures_are_those_alone(changes: dict[str, Any]) -> None:
    encoder = made(replace(SMALL, merge=2, out_dim=20, table=(4, 6), **changes), AxialRope(12))
    values = values_for(MIXED, 12)
    tokens = encoder((values, MIXED)).split((MIXED.prod(1) // 4).tolist())
    alone = [encoder((one, grid[None])) for one, grid in zip(values.split(MIXED.prod(1).tolist()), MIXED, strict=True)]
    for packed, single in zip(tokens, alone, strict=True):
        torch.testing.assert_close(packed, single, rtol=1e-4, atol=1e-4)


def test_a_change_in_one_picture_reaches_no_other() -> None:
    encoder = made(replace(SMALL, prefix=1), AxialRope(12))
    grids = torch.tensor([[1, 3, 4], [2, 3, 4], [1, 4, 4]])
    values = values_for(grids, 12).requires_grad_()
    features = encoder.features((values, grids))
    (gradient,) = torch.autograd.grad(features.patches[12:24].sum() + features.prefix[1].sum(), values)
    reached = gradient.abs().sum(1) > 0
    assert reached.tolist() == [False] * 12 + [True] * 12 + [False] * 28  # the first step of the clip


def test_memory_does_not_grow_with_the_square_of_the_batch() -> None:
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max([largest, *(one.numel() for one in tree_leaves(out) if torch.is_tensor(one))])
            return out

    encoder = made(SMALL, AxialRope(12))
    grids = torch.tensor([[1, 4, 6]]).repeat(100, 1)
    values = values_for(grids, 12)
    with Watch(), torch.no_grad():
        encoder((values, grids))
    assert largest <= 2400 * 3 * 24  # queries, keys and values of all patches; 2400 * 2400 would be 33 times that


def test_patches_of_a_family_go_straight_in() -> None:
    family = mrope.family("qwen2-vl")
    patches = patchify([noise(60, 90), noise(100, 40)], family)
    config = VitConfig(patch_dim=family.patch_dim, dim=24, depth=1, heads=2, hidden=40, merge=2, out_dim=8)
    encoder = made(config, QwenVisionRope(12), spread=0.05)
    tokens = encoder(patches)
    assert len(tokens) == sum(plan.tokens for plan in patches.plans)
    assert torch.equal(tokens, encoder((patches.values, patches.grids)))
    for changes in ({"merge": 1, "out_dim": None}, {"order": "raster"}):
        with pytest.raises(ValueError, match="patches have order 'blocks' and merge 2; the encoder takes "):
            VisionEncoder(replace(config, **changes))(patches)


def test_bytes_through_a_folded_embedding() -> None:
    encoder = made(replace(SMALL, patch_dim=48), AxialRope(12))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    grids = torch.tensor([[1, 3, 5]])
    pixels = torch.randint(256, (15, 3, 4, 4), dtype=torch.uint8)
    normalised = (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = encoder((normalised.flatten(1), grids))
    with pytest.raises(ValueError, match=r"values are torch.uint8 of shape \(15, 48\); expected floating"):
        encoder((pixels.flatten(1), grids))
    encoder.register_module("embed", fold_normalization(encoder.embed, mean=mean, std=std))
    torch.testing.assert_close(encoder((pixels.flatten(1), grids)), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="expected uint8"):
        encoder((normalised.flatten(1), grids))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes_of_weights_count(dtype: torch.dtype) -> None:
    encoder = made(replace(SMALL, prefix=1, table=(3, 3)), Dinov3Rope(12))
    values = values_for(MIXED, 12)
    expected = encoder((values, MIXED))
    given = encoder.to(dtype)((values, MIXED))
    assert given.dtype == dtype
    torch.testing.assert_close(given.float(), expected, rtol=0.1, atol=0.1)


def test_gradients_in_float64() -> None:
    config = VitConfig(
        patch_dim=3,
        dim=8,
        depth=2,
        heads=2,
        hidden=6,
        activation="swiglu",
        norms=ALL_NORMS,
        layer_scale=0.3,
        prefix=1,
        table=(2, 2),
        merge=2,
        out_dim=3,
    )
    encoder = made(config, [MixedRope(4, heads=2) for _ in range(2)]).double()
    grids = torch.tensor([[1, 2, 4], [1, 4, 2]])
    names, parameters = zip(*encoder.named_parameters(), strict=True)

    def tokens(values: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(encoder, dict(zip(names, parameters, strict=True)), ((values, grids),))

    assert torch.autograd.gradcheck(
        tokens, (values_for(grids, 3, torch.float64).requires_grad_(), *parameters), fast_mode=True
    )


def test_inputs_are_not_written_to() -> None:
    encoder = made(replace(SMALL, prefix=1), AxialRope(12))
    values, grids = values_for(MIXED, 12), MIXED.clone()
    before = values.clone()
    encoder((values, grids))
    assert torch.equal(values, before)
    assert torch.equal(grids, MIXED)


# ----------------------------------------------------------------------------------------- compiled, saved, trained


def test_a_compiled_encoder_is_the_same_in_one_graph() -> None:
    # In a process of its own: the checks of shapes that tests put into our functions would be traced as well.
    script = """
import torch
from torch.autograd import grad
from mrope.encodings import AxialRope, MixedRope
from mrope.vision import VisionEncoder, VitConfig

def counted(graph, inputs):
    graphs.append(graph)
    return graph.forward

torch.manual_seed(0)
small = dict(patch_dim=12, dim=24, depth=2, heads=2, hidden=40)
windows = dict(merge=2, out_dim=10, order="raster", window=2, full_layers=(1,), table=(3, 4))
clips = dict(prefix=2, segment="clips", table=(3, 4))
several, one = [[1, 4, 6], [2, 6, 4], [1, 2, 8]], [[1, 4, 6]]
for settings, encoding, backend, batches in (
    (windows, AxialRope(12), counted, ((several, 1), (one, 2), (several, 2))),  # the last lies as the first
    (clips, [MixedRope(12, heads=2) for _ in range(2)], "aot_eager", ((several, 0),)),
):
    encoder, graphs = VisionEncoder(VitConfig(**small, **settings), encoding=encoding), []
    parameters = [each for each in encoder.parameters() if each.numel()]
    compiled = torch.compile(encoder, backend=backend)
    for grids, made in batches:
        grids = torch.tensor(grids)
        values = torch.randn(int(grids.prod(1).sum()), 12)
        given, expected = compiled((values, grids)), encoder((values, grids))
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)
        ours, theirs = (grad(out.square().sum(), parameters) for out in (given, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert len(graphs) == made, (len(graphs), made)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


TRAINED = replace(
    SMALL, norms=ALL_NORMS, layer_scale=0.5, prefix=2, table=(3, 4), merge=2, out_dim=6, activation="swiglu"
)
LEARNED = {
    "mixed": lambda: [MixedRope(12, heads=2) for _ in range(2)],
    "lie": lambda: LieRope(12, heads=2),
    "learned": lambda: LearnedTable(24, (8, 6)),
    "continuous": lambda: ContinuousBias(2, (4, 6)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_file_of_weights_is_the_encoder(name: str) -> None:
    encoder = made(TRAINED, LEARNED[name]())
    grids = torch.tensor([[1, 4, 6], [2, 6, 2]])
    values = values_for(grids, 12)
    file = io.BytesIO()
    torch.save(encoder.state_dict(), file)
    file.seek(0)
    fresh = VisionEncoder(TRAINED, encoding=LEARNED[name]())
    with torch.no_grad():
        expected = encoder((values, grids))
        assert not torch.allclose(fresh((values, grids)), expected, atol=1e-2)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(fresh((values, grids)), expected)


@pytest.mark.parametrize("name", LEARNED)
def test_a_few_steps_lower_the_loss_and_reach_every_parameter(name: str) -> None:
    encoder = made(TRAINED, LEARNED[name](), spread=0.05)
    grids = torch.tensor([[1, 4, 6], [2, 6, 2]])
    values, wanted = values_for(grids, 12), torch.randn(12, 6)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    before = {key: parameter.detach().clone() for key, parameter in encoder.named_parameters()}
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (encoder((values, grids)) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key
        assert not torch.equal(parameter, before[key]), key
    assert {"table", "prefix"} <= {*before}
    assert any(key.startswith("learned_encodings.") for key in before)


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "dim 24 does not split into 5 heads"),
        ({"depth": 0}, "depth is 0; expected at least 1"),
        ({"window": 0}, "window is 0; expected at least 1"),
        ({"prefix": -1}, "prefix is -1"),
        ({"prefix": 1, "window": 2}, "prefix is 1 with window 2"),
        ({"full_layers": (1,)}, "window is None: no block has windows"),
        ({"window": 2, "full_layers": (2,)}, "has block 2; there are 2"),
        ({"coordinates": "reference"}, "trained"),
        ({"coordinates": "centres", "offset": 1}, "offset is 1 with coordinates 'centres'"),
        ({"eps": 0}, "eps is 0"),
        ({"table": (0, 3)}, "table entry is 0"),
        ({"offset": math.nan}, "offset is nan; expected a finite number"),
        ({"offset": -math.inf}, "offset is -inf; expected a finite number"),
        ({"layer_scale": math.nan}, "layer_scale is nan; expected a finite number"),
        ({"layer_scale": math.inf}, "layer_scale is inf; expected a finite number"),
        ({"window": 2, "full_layers": (1, 1)}, r"full_layers \(1, 1\) name one twice"),
        ({"norms": ("qk", "qk")}, r"norms \('qk', 'qk'\) name one twice"),
    ],
)
def test_refused_shapes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **{"head_dim": None} | changes)


@pytest.mark.parametrize("name", ["offset", "layer_scale"])
def test_words_are_no_numbers_of_a_shape(name: str) -> None:
    for value in ("a", True):
        given: dict[str, Any] = {name: value}
        with pytest.raises(TypeError, match=f"^{name} is {value!r}; expected a number$|{name}"):
            replace(SMALL, **given)


def test_scales_of_0_leave_the_patches_as_they_are_embedded() -> None:
    encoder = made(replace(SMALL, norms=()), AxialRope(12))
    still = VisionEncoder(replace(encoder.config, layer_scale=0), encoding=AxialRope(12))
    still.load_state_dict(encoder.state_dict(), strict=False)
    values = values_for(MIXED, 12)
    assert torch.equal(still((values, MIXED)), still.embed(values))


@pytest.mark.parametrize(
    ("shape", "grids", "message"),
    [
        ((8, 13), [[1, 2, 4]], r"values are torch.float32 of shape \(8, 13\); expected floating \(N, 12\)"),
        ((7, 12), [[1, 2, 4]], r"7 patches do not fill the grids \[\[1, 2, 4\]\]"),
        ((6, 12), [[1, 2, 3]], "multiples"),
        ((8, 12), [[1, 2]], r"grids are torch.int64 of shape \(1, 2\); expected int64 or int32 \(pictures, 3\)"),
        ((8, 12), [1, 2, 4], r"grids are torch.int64 of shape \(3,\); expected int64 or int32 \(pictures, 3\)"),
        ((8, 12), [[1.0, 2.0, 4.0]], "grids are torch.float32 .*; expected int64 or int32"),
    ],
)
def test_refused_patches(shape: tuple[int, int], grids: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionEncoder(replace(SMALL, merge=2))((torch.zeros(shape), torch.tensor(grids)))


def test_int32_grids_are_those_of_int64() -> None:
    encoder = made(replace(SMALL, merge=2, order="raster", out_dim=10, table=(3, 4), window=2), AxialRope(12))
    values = values_for(MIXED, 12)
    assert torch.equal(encoder((values, MIXED.int())), encoder((values, MIXED)))


def test_grids_in_lists_are_no_tensors() -> None:
    given: Any = (torch.zeros(8, 12), [[1, 2, 4]])
    with pytest.raises(TypeError, match=r"^patches is a tuple; expected Patches, or tensors \(values, grids\)|patches"):
        VisionEncoder(SMALL)(given)


def test_the_name_of_an_encoding_is_not_a_list_of_letters() -> None:
    given: Any = "rope"
    with pytest.raises(TypeError, match=r"^encoding is 'rope'; expected an mrope.encoding.Encoding|encoding"):
        VisionEncoder(replace(SMALL, depth=4), encoding=given)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (lambda: AxialRope(16), {}, "AxialRope does not fit dim 24, 2 heads, head_dim 12 .*: q has 12 channels"),
        (
            lambda: AxialRope(12, axes=3),
            {"head_dim": 10},
            "AxialRope does not fit .* head_dim 10 .*: q has 10 channels",
        ),
        (lambda: LieRope(10, heads=2), {}, "LieRope does not fit .* head_dim 12 .*: q or k has head dim 12"),
        (lambda: [MixedRope(12, heads=2), MixedRope(16, heads=2)], {}, "MixedRope does not fit .* head_dim 12"),
        (lambda: MixedRope(12, heads=3), {}, "MixedRope does not fit dim 24, 2 heads"),
        (lambda: Alibi(heads=4, axes=2), {}, "Alibi does not fit dim 24, 2 heads"),
        (lambda: ContinuousBias(3, (4, 6)), {}, "ContinuousBias does not fit dim 24, 2 heads"),
        (lambda: LearnedTable(20, (8, 6)), {}, "LearnedTable does not fit dim 24"),
        (lambda: LearnedTable(24, (8, 6)), {"coordinates": "centres"}, "LearnedTable .* coordinates 'centres'"),
        (lambda: Dinov3Rope(12), {"heads": 1, "head_dim": 8}, "Dinov3Rope does not fit dim 24, 1 heads, head_dim 8"),
        (
            lambda: AxialRope(12, axes=3),
            {"coordinates": "reference", "trained": (4, 6)},
            "AxialRope does not fit .*: trained .* has 2 axes",
        ),
    ],
)
def test_encodings_of_another_size_are_refused_before_any_patch(
    make: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^encoding {message}"):
        VisionEncoder(replace(SMALL, **changes), encoding=make())


def test_encodings_are_tried_in_any_dtype_and_not_on_meta() -> None:
    learned = LieRope(12, heads=2).bfloat16()
    assert VisionEncoder(SMALL, encoding=learned).bfloat16()((torch.zeros(8, 12), torch.tensor([[1, 2, 4]]))).shape
    triton = mrope.Rotary(mrope.AxisSplit((1, 3, 2)), mrope.Frequencies(100.0), impl="triton")
    VisionEncoder(SMALL, encoding=triton)  # its device may come later
    with torch.device("meta"):
        for encoding in (LieRope(12, heads=2), LearnedTable(24, (8, 6)), QwenVisionRope(12), NoPe()):
            assert VisionEncoder(SMALL, encoding=encoding).embed.weight.is_meta


def test_refused_encodings() -> None:
    with pytest.raises(ValueError, match=r"encoding has \[1\] axes; expected 2"):
        VisionEncoder(SMALL, encoding=Alibi(heads=2))
    with pytest.raises(ValueError, match="encoding is a list of 3; expected one for each of 2 blocks"):
        VisionEncoder(SMALL, encoding=[NoPe()] * 3)
    with pytest.raises(ValueError, match="Pope gives heads of 24 channels, prefix tokens have 12"):
        VisionEncoder(replace(SMALL, prefix=1), encoding=encodings(12)["pope"])


def test_patches_without_a_plan_are_patches_too() -> None:
    with pytest.raises(ValueError, match="grids are none; expected those of at least one picture"):
        VisionEncoder(SMALL)(Patches(torch.zeros(0, 12), torch.zeros(0, 3).long(), (), (0, 0, 0), (1, 1, 1)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree() -> None:
    config = replace(SMALL, merge=2, out_dim=10, table=(3, 4), window=2, full_layers=(1,))
    encoder = made(config, AxialRope(12), spread=0.05)
    values = values_for(MIXED, 12)
    expected = encoder((values, MIXED))
    given = encoder.cuda()((values.cuda(), MIXED.cuda()))
    torch.testing.assert_close(given.cpu(), expected, rtol=1e-2, atol=1e-2)
