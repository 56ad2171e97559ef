"""Encoders from timm give what the models of timm give, at their own size and, where these take others, at those."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from pictures import noise
from torch import Tensor, nn

import mrope
from mrope.vision import VisionEncoder, from_timm, patchify

TINY: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}


def create(name: str, **options: Any) -> Any:
    """A model of two blocks with random weights, all of which count."""
    options.setdefault("depth", 2)
    model: Any = timm.create_model(name, pretrained=False, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def cut(pixels: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Patches of pictures (B, 3, h, w), row by row, each by channels, rows, columns."""
    b, _, h, w = pixels.shape
    rows = [
        picture[:, i : i + patch, j : j + patch].flatten()
        for picture in pixels
        for i in range(0, h, patch)
        for j in range(0, w, patch)
    ]
    return torch.stack(rows), torch.tensor([[1, h // patch, w // patch]] * b)


@torch.no_grad()
def assert_same(model: Any, encoder: VisionEncoder, size: tuple[int, int], patch: int, tolerance: float = 1e-5) -> None:
    pixels = torch.randn(2, 3, *size)
    expected = model.forward_features(pixels)
    features = encoder.features(cut(pixels, patch))
    given = torch.cat((features.prefix, features.patches.unflatten(0, (2, -1))), dim=1)
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


OWN_SIZE = [
    ("vit_small_patch16_224", TINY, (224, 224), 16),
    ("vit_small_patch16_224", {"img_size": (96, 160)}, (96, 160), 16),
    (
        "vit_small_patch16_224",
        TINY | {"qk_norm": True, "scale_mlp_norm": True, "scale_attn_norm": True},
        (224, 224),
        16,
    ),
    ("vit_small_patch16_224", TINY | {"class_token": False, "global_pool": "avg", "pos_embed": "none"}, (224, 224), 16),
    ("vit_small_patch16_224", TINY | {"reg_tokens": 3, "qkv_bias": False, "proj_bias": False}, (224, 224), 16),
    ("vit_base_patch16_clip_quickgelu_224", TINY, (224, 224), 16),
    ("vit_base_patch16_siglip_224", TINY, (224, 224), 16),
    ("vit_small_patch14_reg4_dinov2", TINY | {"img_size": (70, 112)}, (70, 112), 14),
    ("vit_giant_patch14_dinov2", TINY | {"img_size": (70, 112)}, (70, 112), 14),
    ("eva_giant_patch14_224", TINY, (224, 224), 14),
    ("eva02_tiny_patch14_224", {}, (224, 224), 14),
    ("eva02_tiny_patch14_224", {"scale_attn_inner": True, "img_size": (70, 112)}, (70, 112), 14),
    ("eva02_base_patch14_224", TINY, (224, 224), 14),
    ("eva02_base_patch16_clip_224", TINY, (224, 224), 16),
    ("vit_pe_core_base_patch16_224", TINY, (224, 224), 16),
    ("vit_small_patch16_rope_224", TINY, (224, 224), 16),
    ("vit_small_patch16_rope_mixed_ape_224", TINY, (224, 224), 16),
]


@pytest.mark.parametrize(("name", "options", "size", "patch"), OWN_SIZE, ids=lambda value: str(value))
def test_their_own_size(name: str, options: dict[str, Any], size: tuple[int, int], patch: int) -> None:
    model = create(name, **options)
    assert_same(model, from_timm(model), size, patch)


ANY_SIZE = [
    ("vit_small_patch16_224", TINY | {"dynamic_img_size": True}),
    ("eva02_tiny_patch14_224", {"dynamic_img_size": True}),
    ("vit_pe_core_base_patch16_224", TINY | {"dynamic_img_size": True}),
    ("vit_small_patch16_dinov3", {}),
    ("vit_small_patch16_dinov3_qkvb", TINY),
    ("vit_small_patch16_dinov3", TINY | {"swiglu_mlp": True, "swiglu_align_to": 64, "attn_only_layer_scale": True}),
    ("naflexvit_base_patch16_gap", TINY),
    ("naflexvit_base_patch16_par_gap", TINY),
    ("naflexvit_base_patch16_parfac_gap", TINY),
    ("naflexvit_base_patch16_map", TINY | {"pos_embed_antialias": False, "patchify_channels_last": False}),
    ("naflexvit_base_patch16_siglip", TINY),
    ("naflexvit_base_patch16_gap", TINY | {"rope_type": "axial", "class_token": True, "norm_layer": "rmsnorm"}),
    ("naflexvit_base_patch16_gap", TINY | {"rope_type": "dinov3", "rope_rotate_half": True, "embed_norm_layer": None}),
    ("naflexvit_base_patch16_gap", TINY | {"rope_type": "mixed", "pos_embed": "none", "swiglu_mlp": True}),
]


@pytest.mark.parametrize(("name", "options"), ANY_SIZE, ids=lambda value: str(value))
def test_any_size(name: str, options: dict[str, Any]) -> None:
    model = create(name, **options)
    encoder = from_timm(model)
    patch = 14 if "patch14" in name else 16
    for rows, cols in ((7, 4), (3, 19)):
        assert_same(model, encoder, (rows * patch, cols * patch), patch)


def test_a_padded_batch_of_naflex_is_the_packed_one() -> None:
    model = create("naflexvit_base_patch16_siglip", **TINY)
    encoder = from_timm(model)
    grids = torch.tensor([[1, 3, 5], [1, 8, 2], [1, 4, 4]])
    values = torch.randn(47, 768)
    padded, spots = torch.zeros(3, 16, 768), torch.zeros(3, 16, 2, dtype=torch.int64)
    valid = torch.zeros(3, 16, dtype=torch.bool)
    for number, (one, (_, h, w)) in enumerate(zip(values.split([15, 16, 16]), grids.tolist(), strict=True)):
        # Their patches are linear over rows, columns, channels.
        padded[number, : h * w] = one.view(-1, 3, 16, 16).permute(0, 2, 3, 1).flatten(1)
        spots[number, : h * w] = torch.tensor([(i, j) for i in range(h) for j in range(w)])
        valid[number, : h * w] = True
    with torch.no_grad():
        expected = model.forward_features(padded, spots, valid)["patches"][valid]
        torch.testing.assert_close(encoder((values, grids)), expected, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------- families


def unmerged(encoder_output: Tensor, grid: tuple[int, int], merge: int) -> Tensor:
    """Patches token after token, put row by row."""
    h, w = grid
    tokens = encoder_output.view(h // merge, w // merge, merge, merge, -1)
    return tokens.transpose(1, 2).reshape(h * w, -1)


@pytest.mark.parametrize("name", ["qwen2-vl", "paddleocr-vl", "cosmos3-edge", "neomme"])
def test_patches_of_a_family(name: str) -> None:
    """The picture that the family cut is normalised as the model wants it, whatever the family did."""
    family = mrope.family(name)
    options: dict[str, Any] = {"img_size": 5 * family.patch, "patch_size": family.patch, "dynamic_img_size": True}
    model = create("vit_small_patch16_224", **TINY, **options)
    assert model.pretrained_cfg["mean"] == (0.5, 0.5, 0.5)
    model.pretrained_cfg["mean"] = mean = (0.3, 0.5, 0.6)
    model.pretrained_cfg["std"] = std = (0.2, 0.3, 0.25)
    encoder = from_timm(model, family=family)
    height, width = 4 * family.factor, 7 * family.factor
    picture = torch.from_numpy(noise(height, width)).permute(2, 0, 1)
    patches = patchify(picture, family, min_tokens=None if family.image_tokens is None else 1)
    assert patches.plans[0].resized == (height, width)
    pixels = (picture / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    with torch.no_grad():
        expected = model.forward_features(pixels[None])[0]
        features = encoder.features(patches)
    grid = height // family.patch, width // family.patch
    given = unmerged(features.patches, grid, family.merge) if "blocks" in family.patch_order else features.patches
    torch.testing.assert_close(torch.cat((features.prefix[0], given)), expected, rtol=1e-4, atol=1e-4)


def test_frames_of_a_clip_are_averaged_and_tokens_merged() -> None:
    family = mrope.family("qwen2-vl")
    model = create("eva02_tiny_patch14_224", dynamic_img_size=True)
    encoder = from_timm(model, family=family, out_dim=20)
    grids = torch.tensor([[2, 4, 6]])
    frames = torch.randn(2, 3, 2, 56, 84)  # already as the family normalises, and the model
    assert tuple(model.pretrained_cfg["mean"]) == tuple(family.mean)
    values = frames.view(2, 3, 2, 2, 2, 14, 3, 2, 14).permute(0, 3, 6, 4, 7, 1, 2, 5, 8).reshape(48, -1)
    with torch.no_grad():
        expected = model.forward_features(frames.mean(2))[:, 1:]
        given = encoder.features((values, grids)).patches.unflatten(0, (2, -1))
        for step, one in zip(expected, given, strict=True):
            torch.testing.assert_close(unmerged(one, (4, 6), 2), step, rtol=1e-3, atol=1e-3)
        assert encoder((values, grids)).shape == (12, 20)


def test_another_patch_size_is_resampled_as_timm_does() -> None:
    family = mrope.family("qwen2-vl")
    model = create("vit_small_patch16_224", **TINY)
    model.pretrained_cfg |= {"mean": family.mean, "std": family.std}
    encoder = from_timm(model, family=family)
    assert encoder.config.table == (14, 14)
    model.set_input_size(img_size=196, patch_size=14)
    kernel = model.patch_embed.proj.weight.detach()
    given = encoder.embed.weight.detach().view(48, 3, 2, 14, 14).sum(2)
    torch.testing.assert_close(given, kernel, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- contract


def test_a_name_loads_the_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = create("vit_small_patch16_224", **TINY), []

    def made(name: str, *, pretrained: bool) -> nn.Module:
        asked.append((name, pretrained))
        return model

    monkeypatch.setattr(timm, "create_model", made)
    assert from_timm("vit_small_patch16_224").config.dim == 48
    assert asked == [("vit_small_patch16_224", True)]


def test_the_model_stays_as_it_is_and_shares_nothing() -> None:
    model = create("eva02_tiny_patch14_224")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    encoder = from_timm(model)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_dtype_of_the_model_is_kept() -> None:
    encoder = from_timm(create("vit_small_patch16_dinov3", **TINY).double())
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float64}


def test_frozen_stays_frozen_and_modes_are_kept() -> None:
    family = mrope.family("qwen2-vl")
    model = create("vit_small_patch16_224", **TINY)
    for parameter in (*model.patch_embed.parameters(), *model.blocks[0].parameters(), model.cls_token):
        parameter.requires_grad_(False)
    model.pos_embed.requires_grad_(False)
    for mode in (True, False):
        with torch.no_grad():  # under which a copy of a parameter would want no gradient
            encoder = from_timm(model.train(mode), family=family, out_dim=20)
        assert encoder.training == encoder.blocks[1].training == mode
        for name, parameter in encoder.named_parameters():
            assert parameter.is_leaf
            assert parameter.requires_grad == name.startswith(("blocks.1.", "norm.", "merger.")), name


def test_what_is_joined_trains_where_a_part_does_and_what_was_lacking_does_not() -> None:
    model = create("vit_small_patch16_dinov3", **TINY)  # queries, keys and values have no bias
    lacking = [name for name, one in from_timm(model).named_parameters() if not one.requires_grad]
    assert lacking == ["blocks.0.qkv.bias", "blocks.1.qkv.bias"]
    model = create("eva02_base_patch14_224", **TINY)  # three layers, two of them with biases
    model.requires_grad_(False)
    model.blocks[0].attn.k_proj.weight.requires_grad_(True)
    model.blocks[1].attn.v_proj.bias.requires_grad_(True)
    trained = [name for name, one in from_timm(model).named_parameters() if one.requires_grad]
    assert trained == ["blocks.0.qkv.weight", "blocks.1.qkv.bias"]


@pytest.mark.parametrize(
    ("leave", "names"),
    [(("blocks",), "blocks"), (("head", "nope", "norm"), "nope, norm"), (("head.weight",), r"head\.weight")],
    ids=str,
)
def test_names_that_are_not_left_are_refused(leave: tuple[str, ...], names: str) -> None:
    model = create("vit_small_patch16_224", **TINY)
    with pytest.raises(ValueError, match=f"^leave names {names}; expected modules that are not taken over: head$"):
        from_timm(model, leave=leave)
    model.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    assert from_timm(model, leave=("head", "extra", "attn_pool")).config.dim == 48  # not every model has all heads
    with pytest.raises(ValueError, match="expected modules that are not taken over: this model has none"):
        from_timm(create("vit_small_patch16_224", **TINY, num_classes=0), leave=leave)


@pytest.mark.parametrize("layer", ["patch_embed.proj", "blocks.1.attn.qkv", "blocks.0.mlp.fc2"])
@pytest.mark.parametrize("change", ["weight_norm", "prune", "parametrize"])
def test_layers_with_weights_made_of_others_are_refused(layer: str, change: str) -> None:
    from torch.nn.utils import parametrizations, parametrize, prune

    model = create("vit_small_patch16_224", **TINY)
    module = model.get_submodule(layer)
    if change == "weight_norm":
        parametrizations.weight_norm(module)
    elif change == "prune":
        prune.l1_unstructured(module, "weight", amount=0.5)
    else:
        parametrize.register_parametrization(module, "weight", nn.Identity())
    message = rf"^the model is not converted: it has no {layer}\.weight, as after weight_norm, pruning or an adapter; "
    with pytest.raises(ValueError, match=message):
        from_timm(model)


def test_every_parameter_has_a_place_or_is_named() -> None:
    model = create("vit_base_patch16_siglip_224", **TINY)
    encoder = from_timm(model)
    taken = sum(parameter.numel() for name, parameter in model.named_parameters() if not name.startswith("attn_pool"))
    assert taken == sum(parameter.numel() for parameter in encoder.parameters())
    with pytest.raises(ValueError, match=r"have no place in a VisionEncoder: attn_pool\.latent, attn_pool\.q\.weight"):
        from_timm(model, leave=())
    model.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="have no place in a VisionEncoder: extra"):
        from_timm(model)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {}, "it is a ResNet; expected timm's VisionTransformer, Eva or NaFlexVit"),
        ("deit_tiny_distilled_patch16_224", TINY, "it is a VisionTransformerDistilled"),
        ("vit_base_patch16_rpn_224", TINY, "block 0 is a ResPostBlock"),
        ("vit_dlittle_patch16_reg1_gap_256", {"depth": 1}, "block 0 attends by DiffAttention"),
        ("eva02_enormous_patch14_clip_224", TINY, "block 0 is a EvaBlockPostNorm"),
        ("vit_small_patch16_224", TINY | {"patch_size": (16, 8)}, "its patches are of 16 x 8 pixels and 3 channels"),
        ("vit_small_patch16_224", TINY | {"in_chans": 1}, "its patches are of 16 x 16 pixels and 1 channels"),
        ("vit_small_patch16_224", TINY | {"act_layer": nn.ReLU}, r"blocks\.0\.mlp is a Mlp with the activation ReLU"),
        ("naflexvit_base_patch16_gap", TINY | {"attn_gated": True}, "block 0 has a gate behind its attention"),
        ("naflexvit_base_patch16_gap", TINY | {"pos_embed_use_grid_sample": True}, "grid_sample"),
        (
            "naflexvit_base_patch16_gap",
            TINY | {"attn_type": "rope", "num_kv_heads": 1, "qkv_fused": False},
            "block 0 has 1 heads of keys for 3 of queries",
        ),
        (
            "naflexvit_base_patch16_gap",
            TINY | {"rope_type": "mrope", "rope_mrope_section": (2, 3, 3)},
            "its rotary encoding is a RotaryEmbeddingMRope",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_converted_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    model = timm.create_model(name, pretrained=False, **options)
    with pytest.raises(ValueError, match=f"^the model is not converted: .*{message}"):
        from_timm(model)


def test_a_family_needs_the_colours_of_the_model() -> None:
    model = create("vit_small_patch16_224", **TINY)
    del model.pretrained_cfg
    with pytest.raises(ValueError, match="does not say what its pixels were normalised by"):
        from_timm(model, family=mrope.family("qwen2-vl"))
