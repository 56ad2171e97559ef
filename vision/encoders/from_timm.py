"""Vision transformers of timm as a `VisionEncoder`: the same function, at any grid.

Letters: N patches, C channels, H heads, F rotary pairs, P prefix tokens, T frames and p pixels a side of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from mrope.encoding import Encoding
from mrope.encodings import AxialRope, Dinov3Rope, Eva02Rope, MixedRope, NoPe
from mrope.families import Family

from ..cutting.orders import by_token
from ..plans.fitting import check_family
from .vit import Activation, Norm, VisionEncoder, VitConfig

_HEADS = ("head", "fc_norm", "attn_pool")


def from_timm(
    model: nn.Module | str,
    *,
    family: Family | None = None,
    out_dim: int | None = None,
    leave: Sequence[str] = _HEADS,
) -> VisionEncoder:
    """A timm ViT, EVA, EVA-02, DINOv3, SigLIP, SigLIP2 or NaFlexViT as an encoder of pictures of any size.

    At the size of the model `VisionEncoder.features` gives what its `forward_features` gives; its position table is
    resampled to other grids as timm does it (to one column rightly: see `resample_table`), and its rotary encoding goes
    on by its own rule. What the model lacks beside it (a bias, the scale of one branch) is zeros or ones that do not
    train, which is the same function. A parameter made of several (of queries, keys and values, say) trains where one
    of them does, and the encoder is in the mode of the model, training or not. What acts in training alone (dropout,
    stochastic depth, moved coordinates) is not taken over.

    Args:
        model: made by timm, of its classes VisionTransformer, Eva or NaFlexVit; or a name, whose published weights timm
            then loads. It stays as it is.
        family: whose patches the encoder will take: their order, their T frames (each frame of a picture is the
            picture; of a clip they are averaged), their size (the kernel is resampled to another p as in FlexiViT,
            arXiv:2212.08013) and the mean and standard deviation of pictures, which the weights take back.
            None: patches row by row, each by channels, rows, columns, normalised as the model wants them.
        out_dim: of a new, untrained merger from `family.merge` x `family.merge` patches to an LLM token; None: none.
        leave: modules whose parameters stay behind: what comes after `forward_features`. All others are taken over, or
            the model is refused. The three heads may be named whether the model has them or not.

    Raises:
        TypeError: `leave` is one name.
        ValueError: the model computes something that a `VisionEncoder` does not; the error says what. Or it does not
            say what its pixels were normalised by, and a family is given. Or `leave` names what is taken over, or
            what the model has not.

    >>> import timm
    >>> model = timm.create_model("vit_tiny_patch16_224", depth=1)
    >>> features = from_timm(model).features((torch.zeros(15, 768), torch.tensor([[1, 3, 5]])))
    >>> features.patches.shape, features.prefix.shape
    (torch.Size([15, 192]), torch.Size([1, 1, 192]))
    """
    if isinstance(model, str):
        from timm import create_model

        model = create_model(model, pretrained=True)
    if family is not None:
        check_family(family)
    if isinstance(leave, str):
        raise TypeError(f"leave is {leave!r}; expected several names, such as ({leave!r},)")
    with torch.enable_grad():  # which tells what trains
        return _Conversion(model).encoder(family, out_dim, tuple(leave))


class _Conversion:
    """The tensors of a timm model: those still left, and those taken over under the names of `VisionEncoder`."""

    def __init__(self, model: nn.Module):
        from timm.models.eva import Eva
        from timm.models.naflexvit import NaFlexVit
        from timm.models.vision_transformer import VisionTransformer

        if type(model) not in (VisionTransformer, Eva, NaFlexVit):
            _refuse(f"it is a {type(model).__name__}; expected timm's VisionTransformer, Eva or NaFlexVit")
        self.model: Any = model
        self.flexible = isinstance(model, NaFlexVit)
        # With their gradients: what is made of several wants one where any of them does.
        self.left: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        self.state: dict[str, Tensor] = {}
        self.norms: dict[Norm, None] = {}  # those beside the two of each block, in order
        self.norm_kinds: set[tuple[Literal["layer", "rms"], float]] = set()

    def encoder(self, family: Family | None, out_dim: int | None, leave: tuple[str, ...]) -> VisionEncoder:
        settings: dict[str, Any] = self._stem(family)
        blocks = [self._block(number, block) for number, block in enumerate(self.model.blocks)]
        if any(block != blocks[0] for block in blocks):
            _refuse(f"its blocks differ: {blocks}")
        self._norm("pre_norm", "norm_pre", self.model.norm_pre, "pre")
        self._norm("norm", "norm", self.model.norm, "final")
        encodings, where = self._encodings(blocks[0]["head_dim"])
        kinds = sorted(self.norm_kinds)
        if len(kinds) != 1:
            _refuse(f"its norms are of different kinds: {kinds}")
        if unknown := {*leave} - {name.split(".")[0] for name in self.left} - {*_HEADS}:
            others = dict.fromkeys(name.split(".")[0] for name in self.left)
            raise ValueError(
                f"leave names {', '.join(sorted(map(str, unknown)))}; expected modules that are not taken over: "
                f"{', '.join(others) or 'this model has none'}"
            )
        if lost := [name for name in self.left if name.split(".")[0] not in leave]:
            _refuse(f"these of its parameters have no place in a VisionEncoder: {', '.join(lost)}")
        config = VitConfig(
            depth=len(blocks),
            norm=kinds[0][0],
            eps=kinds[0][1],
            norms=tuple(self.norms),
            layer_scale=1.0 if "blocks.0.scale1" in self.state else None,
            out_dim=out_dim,
            **settings,
            **blocks[0],
            **where,
        )
        encoder = VisionEncoder(config, encoding=encodings).to(self.state["embed.weight"])
        merger = {name: value for name, value in encoder.state_dict().items() if name.startswith("merger.")}
        encoder.load_state_dict(self.state | merger)
        for name, value in self.state.items():
            encoder.get_parameter(name).requires_grad_(value.requires_grad)
        return encoder.train(self.model.training)

    def _taken(self, name: str) -> Tensor:
        if name not in self.left:
            _refuse(
                f"it has no {name}, as after weight_norm, pruning or an adapter; expected the layers that timm makes, "
                "with the weights merged"
            )
        return self.left.pop(name)

    # ------------------------------------------------------------------------------------- patches, prefix and table

    def _stem(self, family: Family | None) -> dict[str, Any]:
        from timm.layers.patch_embed import PatchEmbed

        stem: Any = self.model.embeds if self.flexible else self.model.patch_embed
        name = "embeds" if self.flexible else "patch_embed"
        if not self.flexible and type(stem) is not PatchEmbed:
            _refuse(f"its patches are embedded by {type(stem).__name__}")
        if self.flexible and stem.norm_input is not None:
            _refuse("it norms the pixels of a patch before it embeds them")
        rows, cols = int(stem.patch_size[0]), int(stem.patch_size[1])
        weight, bias = self._taken(f"{name}.proj.weight"), self.left.pop(f"{name}.proj.bias", None)
        if rows != cols or weight[0].numel() != 3 * rows * cols:
            _refuse(f"its patches are of {rows} x {cols} pixels and {weight[0].numel() // (rows * cols)} channels")
        if weight.dim() == 2 and stem.channels_last:
            weight = weight.unflatten(1, (rows, cols, 3)).permute(0, 3, 1, 2)
        kernel, dim = weight.reshape(-1, 3, rows, cols), len(weight)
        bias = kernel.new_zeros(dim) if bias is None else bias
        self._norm("embed_norm", f"{name}.norm", stem.norm, "embed")
        merge, frames, order = 1, 1, "raster"
        if family is not None:
            kernel, bias = self._for_family(kernel, bias, family)
            merge, frames, order = family.merge, family.temporal_patch, family.patch_order
        patch = kernel.shape[-1]
        embed = kernel.new_empty(dim, 3 * frames * patch * patch)
        inside = by_token(embed, (dim, 1, 1), patch=patch, merge=1, order=order)[:, 0, 0, 0, 0]  # (C, 3, T, p, p)
        inside.copy_(kernel[:, :, None] / frames)
        self.state |= {"embed.weight": embed, "embed.bias": bias}
        settings = {"dim": dim, "patch_dim": embed.shape[1], "merge": merge, "order": order}
        return settings | self._prefix_and_table(stem, dim)

    def _for_family(self, kernel: Tensor, bias: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        """Kernel (C, 3, p, p) and bias for the pixels of a family."""
        from timm.layers.patch_embed import resample_patch_embed

        colours = getattr(self.model, "pretrained_cfg", {})
        if not {"mean", "std"} <= {*colours}:
            _refuse("it does not say what its pixels were normalised by, as those that timm.create_model makes do")
        kernel = resample_patch_embed(kernel, [family.patch, family.patch]).double()
        ours, theirs = (
            torch.tensor(pair, dtype=torch.float64, device=kernel.device).unflatten(1, (3, 1, 1))
            for pair in ((family.mean, family.std), (colours["mean"], colours["std"]))
        )
        kernel, shift = kernel * (ours[1] / theirs[1]), kernel * ((ours[0] - theirs[0]) / theirs[1])
        return kernel.to(bias.dtype), (bias + shift.sum((1, 2, 3))).to(bias.dtype)

    def _prefix_and_table(self, stem: Any, dim: int) -> dict[str, Any]:
        name = "embeds." if self.flexible else ""
        given = [self.left.pop(f"{name}{kind}_token", None) for kind in ("cls", "reg")]
        tokens = [token[0] for token in given if token is not None]
        prefix = torch.cat(tokens) if tokens else self.state["embed.bias"].new_empty(0, dim)
        settings: dict[str, Any] = {"prefix": len(prefix)}
        if self.flexible:
            table = self._flexible_table(stem, settings)
        else:
            table = self.left.pop("pos_embed", None)
            settings["table_kind"] = "bicubic-antialias"
            if table is not None:
                table = table[0]
                if not self.model.no_embed_class:  # prefix tokens have rows of the table too
                    prefix, table = prefix + table[: len(prefix)], table[len(prefix) :]
                table = table.unflatten(0, stem.grid_size)
        self.state["prefix"] = prefix
        if table is not None:
            self.state["table"] = table
            settings["table"] = tuple(table.shape[:2])
        return settings

    def _flexible_table(self, stem: Any, settings: dict[str, Any]) -> Tensor | None:
        table, rows, cols = (self.left.pop(f"embeds.pos_embed{axis}", None) for axis in ("", "_y", "_x"))
        if table is None and rows is None:
            return None
        settings["table_aspect"] = "square" if stem.pos_embed_ar_preserving else "stretched"
        if rows is not None and cols is not None:
            # What is linear along each of two axes is bilinear in their sum.
            settings["table_kind"] = "bilinear"
            table = rows[0, :, None] + cols[0, None]
        else:
            assert table is not None
            table = table[0]
            how = stem.pos_embed_interp_mode, stem.pos_embed_antialias, stem.pos_embed_align_corners
            if how not in _TABLE_KINDS:
                _refuse(
                    f"its table is resampled by (mode, antialias, align_corners) {how}; known are {[*_TABLE_KINDS]}"
                )
            settings["table_kind"] = _TABLE_KINDS[how]
        if stem.pos_embed_use_grid_sample:
            _refuse("its table is resampled by grid_sample in batches, and otherwise not")
        if stem.pos_embed_ar_preserving and table.shape[0] != table.shape[1]:
            _refuse(
                f"its table is {table.shape[0]} x {table.shape[1]} and keeps aspect ratios at all grids but this one"
            )
        return table

    # ------------------------------------------------------------------------------------------------------- blocks

    def _block(self, number: int, block: Any) -> dict[str, Any]:
        """The settings that a block stands for."""
        from timm.layers.attention import Attention, AttentionRope
        from timm.models.eva import EvaAttention, EvaBlock
        from timm.models.vision_transformer import Block

        if type(block) not in (Block, EvaBlock):
            _refuse(f"block {number} is a {type(block).__name__}; expected timm's Block or EvaBlock")
        name, attention = f"blocks.{number}.", block.attn
        if type(attention) not in (Attention, EvaAttention, AttentionRope):
            _refuse(f"block {number} attends by {type(attention).__name__}")
        if attention.gate is not None:
            _refuse(f"block {number} has a gate behind its attention")
        if getattr(attention, "num_kv_groups", 1) != 1:
            _refuse(f"block {number} has {attention.num_kv_heads} heads of keys for {attention.num_heads} of queries")
        self._norm(f"{name}norm1", f"{name}norm1", block.norm1)
        self._norm(f"{name}norm2", f"{name}norm2", block.norm2)
        if attention.qkv is not None:
            self._linear(f"{name}qkv", f"{name}attn.qkv")
        else:
            self._linear(f"{name}qkv", *(f"{name}attn.{part}_proj" for part in "qkv"))
        q, v = (self.left.pop(f"{name}attn.{part}_bias", None) for part in "qv")
        if q is not None and v is not None:
            self.state[f"{name}qkv.bias"] = torch.cat((q, torch.zeros_like(q), v))
        self._norm(f"{name}q_norm", f"{name}attn.q_norm", attention.q_norm, "qk")
        self._norm(f"{name}k_norm", f"{name}attn.k_norm", attention.k_norm, "qk")
        self._norm(f"{name}seen_norm", f"{name}attn.norm", attention.norm, "attention")
        self._linear(f"{name}out", f"{name}attn.proj")
        activation = self._mlp(name, f"{name}mlp.", block.mlp)
        for key in ("ls1.gamma", "ls2.gamma", "gamma_1", "gamma_2"):
            if f"{name}{key}" in self.left:
                self.state[f"{name}scale{1 if '1' in key else 2}"] = self.left.pop(f"{name}{key}")
        if f"{name}scale1" in self.state:
            self.state.setdefault(f"{name}scale2", torch.ones_like(self.state[f"{name}scale1"]))
        hidden = self.state[f"{name}down.weight"].shape[1]
        heads, head_dim = attention.num_heads, attention.head_dim
        return {"heads": heads, "head_dim": head_dim, "hidden": hidden, "activation": activation}

    def _mlp(self, ours: str, name: str, mlp: Any) -> Activation:
        from timm.layers.mlp import GluMlp, Mlp, SwiGLU

        if type(mlp) not in (Mlp, GluMlp, SwiGLU):
            _refuse(f"{name[:-1]} is a {type(mlp).__name__}; expected timm's Mlp, GluMlp or SwiGLU")
        activation = _activation(mlp.act)
        if (activation == "silu") != (type(mlp) is not Mlp) or activation is None:
            _refuse(f"{name[:-1]} is a {type(mlp).__name__} with the activation {mlp.act}")
        self._linear(f"{ours}up", *([f"{name}fc1_g", f"{name}fc1_x"] if type(mlp) is SwiGLU else [f"{name}fc1"]))
        if type(mlp) is GluMlp and mlp.gate_last:
            for part in ("weight", "bias"):
                self.state[f"{ours}up.{part}"] = torch.cat(self.state[f"{ours}up.{part}"].chunk(2)[::-1])
        self._norm(f"{ours}hidden_norm", f"{name}norm", mlp.norm, "mlp")
        self._linear(f"{ours}down", f"{name}fc2")
        return "swiglu" if activation == "silu" else activation

    def _linear(self, ours: str, *names: str) -> None:
        """Layers side by side as one; those without a bias get zeros."""
        weights = [self._taken(f"{name}.weight") for name in names]
        biases = [self.left.pop(f"{name}.bias", None) for name in names]
        self.state[f"{ours}.weight"] = torch.cat(weights)
        self.state[f"{ours}.bias"] = torch.cat(
            [
                weight.new_zeros(len(weight)) if bias is None else bias
                for weight, bias in zip(weights, biases, strict=True)
            ]
        )

    def _norm(self, ours: str, name: str, norm: Any, word: Norm | None = None) -> None:
        from timm.layers.norm import LayerNorm, LayerNormFp32, RmsNorm, RmsNormFp32

        if type(norm) is nn.Identity:
            return
        if type(norm) not in (nn.LayerNorm, LayerNorm, LayerNormFp32, RmsNorm, RmsNormFp32):
            _refuse(f"{name} is a {type(norm).__name__}; expected timm's LayerNorm or RmsNorm")
        kind, eps = "layer" if isinstance(norm, nn.LayerNorm) else "rms", norm.eps
        self.norm_kinds.add((kind, eps))
        self.state[f"{ours}.weight"] = weight = self._taken(f"{name}.weight")
        if kind == "layer":
            bias = self.left.pop(f"{name}.bias", None)
            self.state[f"{ours}.bias"] = torch.zeros_like(weight) if bias is None else bias
        if word is not None:
            self.norms[word] = None

    # -------------------------------------------------------------------------------------------------------- rotary

    def _encodings(self, head_dim: int) -> tuple[Encoding | list[Encoding], dict[str, Any]]:
        """The encoding, or that of each block, and the settings that say where it finds the patches."""
        from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, RotaryEmbeddingDinoV3, RotaryEmbeddingMixed

        rope: Any = getattr(self.model, "rope", None)
        if rope is None:
            return NoPe(), {}
        pairing = "half" if self.model.blocks[0].attn.rotate_half else "adjacent"
        if type(rope) is RotaryEmbeddingMixed and pairing == "adjacent":
            return self._mixed(rope, head_dim), {}
        if type(rope) is RotaryEmbeddingDinoV3:
            if (
                rope.grid_offset
                or rope.grid_indexing != "ij"
                or rope.min_period is not None
                or rope.temperature is None
            ):
                _refuse("its rotary encoding has an offset, periods of its own, or the columns first")
            rule = {"separate": "centres", "min": "centres-shorter", "max": "centres-longer"}[rope.normalize_coords]
            return Dinov3Rope(head_dim, base=rope.temperature, pairing=pairing), {"coordinates": rule}
        if type(rope) is not RotaryEmbeddingCat or rope.in_pixels or rope.grid_type != "index":
            _refuse(f"its rotary encoding is a {type(rope).__name__}")
        kind = AxialRope if rope.grid_indexing == "xy" else Eva02Rope
        where: dict[str, Any] = {"offset": rope.grid_offset}
        if rope.ref_feat_shape is not None:
            where |= {"coordinates": "reference", "trained": tuple(rope.ref_feat_shape)}
        return kind(head_dim, base=rope.temperature, pairing=pairing), where

    def _mixed(self, rope: Any, head_dim: int) -> list[Encoding]:
        waves = self._taken("rope.freqs")  # (2, depth, H, F), in the order of the coordinates
        if rope.grid_indexing == "xy":
            waves = waves.flip(0)
        encodings: list[Encoding] = []
        for layer in range(waves.shape[1]):
            encodings.append(MixedRope(head_dim, heads=waves.shape[2]))
            self.state[f"learned_encodings.{layer}.waves"] = waves[:, layer].transpose(0, 1)
        return encodings


_TABLE_KINDS = {
    ("bilinear", False, False): "bilinear",
    ("bilinear", False, True): "bilinear-corners",
    ("bilinear", True, False): "bilinear-antialias",
    ("bicubic", False, False): "bicubic",
    ("bicubic", True, False): "bicubic-antialias",
}


def _activation(act: nn.Module) -> Any:
    """Its word, "silu" for that of a gate, or None."""
    if isinstance(act, nn.GELU):
        return "gelu" if act.approximate == "none" else "gelu-tanh"
    words = {"GELU": "gelu", "GELUTanh": "gelu-tanh", "QuickGELU": "quick-gelu", "SiLU": "silu"}
    return words.get(type(act).__name__)


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"the model is not converted: {why}")
