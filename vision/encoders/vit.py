"""The native-resolution vision transformer: packed patches of many pictures in, patches or LLM tokens out.

Letters: N patches, V values of a patch, S rows of the packed sequence (N patches, then P prefix tokens a segment), C
channels, H heads, D head dim, A axes, G segments of one length L, M = merge * merge patches of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate
from math import ceil, prod
from typing import Any, Literal, ParamSpec, TypeAlias, TypeVar, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention, silu

from mrope.checks import Number, finite, one_of, positive, whole
from mrope.encoding import Encoding
from mrope.encodings import NoPe, Rotary, patch_coordinates
from mrope.encodings.coordinates import Rule
from mrope.encodings.operands import check_encoding
from mrope.families.record import PatchOrder
from mrope.spans import Grid

from ..cutting.fold import BytesLinear
from ..cutting.orders import in_order
from ..cutting.packing import check_order
from ..cutting.patches import Patches
from .tables import Aspect, TableKind, table_for

Activation: TypeAlias = Literal["gelu", "gelu-tanh", "quick-gelu", "swiglu"]
Norm: TypeAlias = Literal["embed", "pre", "qk", "attention", "mlp", "final"]
Segment: TypeAlias = Literal["frames", "clips"]

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def _in_python(read: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """What reads grids stays out of compiled graphs, which do not know the numbers in them."""
    disabled: Any = None

    @wraps(read)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        nonlocal disabled
        if not torch.compiler.is_compiling():
            return read(*args, **kwargs)
        if disabled is None:  # only now, since this imports the compiler; and once, or each call would compile again
            disabled = torch.compiler.disable(read)
        return disabled(*args, **kwargs)

    return called


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig:
    """The shape of a `VisionEncoder`.

    Every block is ``x + scale * attention(norm(x))``, then the same with an MLP. All linear layers have biases: where a
    published model has none, zeros are the same function.

    Args:
        patch_dim: values V of a patch.
        dim: channels C.
        depth: blocks.
        heads: H.
        head_dim: D; by default ``dim / heads``.
        hidden: channels between the two layers of the MLP.
        activation: of the MLP; "swiglu" gates: ``silu(a) * b``, both `hidden` wide (arXiv:2002.05202).
        norm: "layer", or "rms" (arXiv:1910.07467).
        eps: of all norms.
        norms: the norms beside the two of each block. "embed": of the embedded patches, before anything is added to
            them; "pre": of all tokens before the first block; "qk": of the queries and keys of each head; "attention":
            of what the heads give, before its projection; "mlp": of the hidden channels; "final": after the last block.
        layer_scale: what the scales of the two branches start from (arXiv:2103.17239), any finite number; None: they
            have none.
        prefix: tokens P without a place, class or registers (arXiv:2309.16588), that join the patches of each segment.
        table: (h, w) of a learned table of positions; None: there is none.
        table_kind: how the table is resampled to another grid: see `resample_table`.
        table_aspect: what it is fitted to: see there.
        coordinates: where the encoding finds the patches: the rule of `patch_coordinates`.
        trained: its `trained` grid, for rules that need one.
        offset: patches between coordinate 0 and the first one, where prefix tokens stand, so to say: they are not
            turned. Of the rules "integers" and "reference" alone.
        segment: who attends to whom: each temporal step of a clip for itself ("frames", Qwen2-VL), or the whole clip
            ("clips"). A picture is alone in either.
        window: LLM tokens on a side of the square that a patch attends in (Qwen2.5-VL, arXiv:2502.13923), cut from the
            top left and smaller at the right and at the bottom; None: none.
        full_layers: numbers of the blocks, from 0, that have no windows all the same; each once.
        merge: patches on a side of an LLM token.
        order: of the patches, and of the values inside them: `Family.patch_order`.
        out_dim: channels of an LLM token; None: the encoder gives patches, and merges none.

    Raises:
        ValueError, TypeError: a number is out of its range, a word unknown, or two fields contradict each other.

    >>> VitConfig(patch_dim=588, dim=64, depth=2, heads=4, hidden=256).head_dim
    16
    """

    patch_dim: int
    dim: int
    depth: int
    heads: int
    head_dim: int | None = None
    hidden: int
    activation: Activation = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    eps: Number = 1e-6
    norms: tuple[Norm, ...] = ("final",)
    layer_scale: Number | None = None
    prefix: int = 0
    table: tuple[int, int] | None = None
    table_kind: TableKind = "bicubic-antialias"
    table_aspect: Aspect = "stretched"
    coordinates: Rule = "integers"
    trained: tuple[int, int] | None = None
    offset: Number = 0
    segment: Segment = "frames"
    window: int | None = None
    full_layers: tuple[int, ...] = ()
    merge: int = 1
    order: PatchOrder = "blocks"
    out_dim: int | None = None

    def __post_init__(self) -> None:
        for name in ("patch_dim", "dim", "depth", "heads", "hidden", "merge"):
            whole(name, getattr(self, name), 1)
        for name in ("head_dim", "window", "out_dim"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        if self.head_dim is None:
            if self.dim % self.heads:
                raise ValueError(f"dim {self.dim} does not split into {self.heads} heads; expected that, or a head_dim")
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        whole("prefix", self.prefix, 0)
        for name in ("norms", "full_layers"):
            if not isinstance(getattr(self, name), tuple):
                raise TypeError(f"{name} is {getattr(self, name)!r}; expected a tuple")
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)} name one twice")
        positive("eps", self.eps)
        finite("offset", self.offset)
        if self.layer_scale is not None:
            finite("layer_scale", self.layer_scale)
        one_of("activation", self.activation, get_args(Activation))
        one_of("norm", self.norm, ("layer", "rms"))
        one_of("table_kind", self.table_kind, get_args(TableKind))
        one_of("table_aspect", self.table_aspect, get_args(Aspect))
        one_of("segment", self.segment, get_args(Segment))
        one_of("order", self.order, get_args(PatchOrder))
        for word in self.norms:
            one_of("norms entry", word, get_args(Norm))
        if self.table is not None and (not isinstance(self.table, tuple) or len(self.table) != 2):
            raise ValueError(f"table is {self.table}; expected (h, w)")
        for side in self.table or ():
            whole("table entry", side, 1)
        if self.table is None and (self.table_kind, self.table_aspect) != ("bicubic-antialias", "stretched"):
            raise ValueError(
                f"table_kind is {self.table_kind!r}, table_aspect {self.table_aspect!r} and table None; expected their "
                "defaults, since there is none to resample"
            )
        for layer in self.full_layers:
            if whole("full_layers entry", layer, 0) >= self.depth:
                raise ValueError(f"full_layers {self.full_layers} has block {layer}; there are {self.depth}")
        if self.full_layers and self.window is None:
            raise ValueError(f"full_layers is {self.full_layers}, but window is None: no block has windows")
        if self.window is not None and self.prefix:
            raise ValueError(f"prefix is {self.prefix} with window {self.window}: prefix tokens are in no window")
        patch_coordinates((1, 2), rule=self.coordinates, trained=self.trained)
        if self.offset and self.coordinates not in ("integers", "reference"):
            raise ValueError(f"offset is {self.offset} with coordinates {self.coordinates!r}; expected 0")


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What the blocks of a `VisionEncoder` give.

    Args:
        patches: (N, C), in the order that the patches came in.
        prefix: (segments, P, C), the prefix tokens of each picture, or of each temporal step of a clip.
    """

    patches: Float[Tensor, "n c"]
    prefix: Float[Tensor, "segments p c"]


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """Rows of the packed sequence that attend to one another, those of equal length side by side."""

    groups: tuple[Int64[Tensor, "_ _"], ...]  # (G, L) each
    back: Int64[Tensor, " s"]  # where each row stands in the groups, one behind the other

    @classmethod
    def of(cls, numbers: Int64[Tensor, " s"], device: torch.device) -> _Segments:
        """Those of equal number; numbers run from 0 without a gap."""
        rows = numbers.argsort(stable=True)
        lengths = numbers.bincount()
        starts = lengths.cumsum(0) - lengths
        groups = [rows[starts[lengths == length, None] + torch.arange(length)] for length in lengths.unique().tolist()]
        back = torch.cat([group.flatten() for group in groups]).argsort()
        return cls(tuple(group.to(device) for group in groups), back.to(device))


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where the patches of a batch are, once for all blocks."""

    coordinates: Tensor  # (A, N)
    table: Tensor | None  # (N, C), the rows of the learned table
    whole: _Segments
    windows: _Segments | None
    number: int  # of segments, windows aside
    blocks: Tensor | None  # (N,), the patches token after token, where they do not lie so


class VisionEncoder(nn.Module):
    """A ViT (arXiv:2010.11929) over patches of any number of pictures and clips, each at its own size.

    Pictures are packed into one sequence without padding (NaViT, arXiv:2307.06304). Linear layers see all of it at
    once; attention runs over segments, those of equal length together, so that its memory grows with the longest
    segment and never with the square of the batch.

    `torch.compile` makes one graph of all that follows the grids, and others where segments come in other numbers of
    other lengths: batches of ever new shapes pass torch's limit of eight (`torch._dynamo.config.recompile_limit`), from
    where on they run uncompiled. `torch.export` does not take the encoder, since the numbers in the grids say what is
    computed.

    An `embed` that `fold_normalization` makes of the encoder's own can take its place: patches are raw bytes then.

    Args:
        config: its shape.
        encoding: where patches are, by any of `mrope.encodings`, in all blocks, or a list with one for each (RoPE-Mixed
            learns one a block): `embed` of the first is called on the patches once, `rotate` and `bias` in each block.
            Coordinates are (h, w), or (t, h, w) for an encoding of three axes. Prefix tokens are not handed to it.

    Raises:
        TypeError: `encoding` is none, nor a list of such.
        ValueError: it has another number of axes, heads or channels, or the list another length.

    >>> import mrope
    >>> from mrope.encodings import QwenVisionRope
    >>> family = mrope.family("qwen2-vl")
    >>> config = VitConfig(patch_dim=family.patch_dim, dim=32, depth=2, heads=2, hidden=64, merge=2, out_dim=48)
    >>> encoder = VisionEncoder(config, encoding=QwenVisionRope(16))
    >>> grids = torch.tensor([[1, 4, 6], [2, 2, 2]])
    >>> encoder((torch.zeros(32, family.patch_dim), grids)).shape
    torch.Size([8, 48])
    """

    def __init__(self, config: VitConfig, *, encoding: Encoding | Sequence[Encoding] = NoPe()):
        super().__init__()
        if isinstance(encoding, str):  # which is a sequence too
            raise TypeError(f"encoding is {encoding!r}; expected an mrope.encoding.Encoding, or one for each block")
        encodings = list(encoding) if isinstance(encoding, Sequence) else [encoding] * config.depth
        if len(encodings) != config.depth:
            raise ValueError(f"encoding is a list of {len(encodings)}; expected one for each of {config.depth} blocks")
        for one in encodings:
            check_encoding(one)
        axes = {one.axes for one in encodings if one.axes is not None} or {2}
        if axes not in ({2}, {3}):
            raise ValueError(f"encoding has {sorted(axes)} axes; expected 2, (h, w), or 3, (t, h, w)")
        self.config, self.encodings, self.axes = config, encodings, max(axes)
        self._check_encodings()
        # Registered once, however many blocks share one.
        self.learned_encodings = nn.ModuleList(dict.fromkeys(one for one in encodings if isinstance(one, nn.Module)))
        self.embed = nn.Linear(config.patch_dim, config.dim)
        self.embed_norm, self.pre_norm, self.norm = (
            _norm(config, name, config.dim) for name in ("embed", "pre", "final")
        )
        # The deviation that ViT draws its tables and class tokens with.
        self.prefix = nn.Parameter(torch.empty(config.prefix, config.dim).normal_(std=0.02))
        self.table = (
            None if config.table is None else nn.Parameter(torch.empty(*config.table, config.dim).normal_(std=0.02))
        )
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        if config.out_dim is not None:
            wide = config.merge**2 * config.dim
            self.merger = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, config.out_dim))

    @torch.no_grad()
    def _check_encodings(self) -> None:
        """Try the verbs on one patch: only they know which channels, heads and coordinates they take."""
        config = self.config
        assert config.head_dim is not None  # set on construction
        for number, one in enumerate({id(one): one for one in self.encodings}.values()):
            if isinstance(one, Rotary):
                one = replace(one, impl="eager")  # the device that "triton" takes comes later
            module: Any = one
            own = [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else []
            like = next((each for each in own if each.is_floating_point()), torch.empty(0, device="cpu"))
            if like.is_meta:  # there is nothing to try yet
                continue
            q = like.new_zeros(config.heads, 1, config.head_dim)
            try:
                with like.device:  # whatever the default is
                    where = self._coordinates((1, 1, 1))
                    if not number:
                        one.embed(q.new_zeros(1, config.dim), where)
                    width = one.rotate(q, q, where)[0].shape[-1]
                    one.bias(q, where)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"encoding {type(one).__name__} does not fit dim {config.dim}, {config.heads} heads, head_dim "
                    f"{config.head_dim} and coordinates {config.coordinates!r}: {error}"
                ) from error
            if config.prefix and width != config.head_dim:
                raise ValueError(
                    f"{type(one).__name__} gives heads of {width} channels, prefix tokens have {config.head_dim}: "
                    "expected prefix 0"
                )

    def forward(self, patches: Patches | tuple[Tensor, Tensor]) -> Float[Tensor, "n c"]:
        """The LLM tokens (N / M, out_dim) of all pictures, each picture's row by row; without `out_dim` the patches.

        Args:
            patches: `Patches`, or values (N, V) and grids (pictures, 3) int64 or int32, (t, h, w) in patches. They
                lie in the order of the encoder's config.

        Raises:
            TypeError: `patches` are neither.
            ValueError: values and grids do not fit each other or the encoder.
        """
        values, places = self._read(patches)
        x = self._encoded(values, places).patches
        if self.config.out_dim is None:
            return x
        if places.blocks is not None:
            x = x[places.blocks]
        return self.merger(x.unflatten(0, (-1, self.config.merge**2)).flatten(1))

    def features(self, patches: Patches | tuple[Tensor, Tensor]) -> Features:
        """Patches and prefix tokens after the last block and the final norm; arguments as in `forward`."""
        return self._encoded(*self._read(patches))

    def _encoded(self, values: Tensor, places: _Places) -> Features:
        config = self.config
        x = self.embed_norm(self.embed(values if isinstance(self.embed, BytesLinear) else values.to(self.prefix.dtype)))
        if places.table is not None:
            x = x + places.table
        x = self.encodings[0].embed(x, places.coordinates)
        x = self.pre_norm(torch.cat((x, self.prefix.repeat(places.number, 1))))
        for layer, (block, encoding) in enumerate(zip(self.blocks, self.encodings, strict=True)):
            windows = None if layer in config.full_layers else places.windows
            x = block(x, encoding, places.coordinates, windows or places.whole)
        of_patches, of_prefix = self.norm(x).split((len(values), len(x) - len(values)))
        return Features(of_patches, of_prefix.view(places.number, config.prefix, config.dim))

    @_in_python
    def _read(self, patches: Patches | tuple[Tensor, Tensor]) -> tuple[Tensor, _Places]:
        """Values, and all that the grids say."""
        merge, order = self.config.merge, self.config.order
        if isinstance(patches, Patches):
            same_order = patches.order.replace("strip", "raster") == order.replace("strip", "raster")
            for plan in patches.plans:
                if plan.merge != merge or not same_order:
                    raise ValueError(
                        f"patches have order {patches.order!r} and merge {plan.merge}; the encoder takes {order!r} and "
                        f"{merge}"
                    )
        given: Any = (patches.values, patches.grids) if isinstance(patches, Patches) else patches
        if not isinstance(given, tuple) or [isinstance(each, Tensor) for each in given] != [True, True]:
            raise TypeError(f"patches is a {type(patches).__name__}; expected Patches, or tensors (values, grids)")
        values, grids = given
        of_bytes, dim = isinstance(self.embed, BytesLinear), self.embed.in_features
        right_dtype = values.dtype == torch.uint8 if of_bytes else values.is_floating_point()
        if values.dim() != 2 or values.shape[1] != dim or not right_dtype:
            raise ValueError(
                f"values are {values.dtype} of shape {tuple(values.shape)}; expected "
                f"{'uint8' if of_bytes else 'floating'} (N, {dim})"
            )
        check_order(grids, order, merge)
        if not len(grids):
            raise ValueError("grids are none; expected those of at least one picture")
        if len(values) != grids.prod(1).sum():
            raise ValueError(f"{len(values)} patches do not fill the grids {grids.tolist()}")
        return values, self._places(grids, values.device)

    def _places(self, grids: Tensor, device: torch.device) -> _Places:
        config, table, windows, blocks = self.config, None, None, None
        if self.table is not None:
            kind, aspect = config.table_kind, config.table_aspect
            table = table_for(self.table, grids, kind, order=config.order, merge=config.merge, aspect=aspect)
        listed: list[Grid] = [(t, h, w) for t, h, w in grids.tolist()]
        lying = self._lying(grids, config.order)
        # Pictures of one size lie alike.
        spots = {grid: self._coordinates(grid) for grid in listed}
        coordinates = torch.cat([spots[grid] for grid in listed], dim=1)[:, lying].to(device)
        frames = [(1, h, w) if config.segment == "frames" else (t, h, w) for t, h, w in listed]
        numbers, count = _boxes(listed, frames)  # each a run of patches, in whatever order they lie inside
        joined = torch.arange(count).repeat_interleave(config.prefix)
        if config.window is not None:
            side = config.merge * config.window
            windows = _Segments.of(_boxes(listed, [(1, side, side)] * len(listed))[0][lying], device)
        if config.merge > 1 and not config.order.startswith("blocks"):
            blocks = self._lying(grids, "blocks").to(device)
        segments = _Segments.of(torch.cat((numbers, joined)), device)
        return _Places(coordinates, table, segments, windows, count, blocks)

    def _lying(self, grids: Tensor, order: PatchOrder) -> Int64[Tensor, " n"]:
        """Numbers of the patches, counted row by row through all pictures, in the order in which they lie."""
        number = {(h, w): torch.arange(h * w).view(h, w, 1) for _, h, w in grids.tolist()}
        steps = [shape for t, *shape in grids.tolist() for _ in range(t)]
        starts = accumulate(map(prod, steps), initial=0)
        made = {shape: in_order(number[shape], order, self.config.merge)[:, 0] for shape in number}
        return torch.cat([made[h, w] + start for (h, w), start in zip(steps, starts, strict=False)])

    def _coordinates(self, grid: Grid) -> Tensor:
        """(A, t * h * w), row by row; whole numbers where the rule gives such."""
        rule, trained, sides = self.config.coordinates, self.config.trained, grid[-self.axes :]
        spots = patch_coordinates(sides, rule=rule, trained=trained)
        if self.config.offset:
            spots = spots + self.config.offset * (torch.tensor(trained or sides) / torch.tensor(sides))[:, None]
        elif rule == "integers":
            spots = spots.long()
        return spots if self.axes == 3 else spots.repeat(1, grid[0])


class _Block(nn.Module):
    """Pre-norm attention over segments, then a pre-norm MLP."""

    def __init__(self, config: VitConfig):
        super().__init__()
        assert config.head_dim is not None  # set on construction
        self.heads, self.head_dim, self.prefix = config.heads, config.head_dim, config.prefix
        dim, inner = config.dim, config.heads * config.head_dim
        self.norm1, self.norm2 = (_make_norm(config, dim) for _ in range(2))
        self.qkv = nn.Linear(dim, 3 * inner)
        self.q_norm, self.k_norm = (_norm(config, "qk", config.head_dim) for _ in range(2))
        self.seen_norm = _norm(config, "attention", inner)
        self.out = nn.Linear(inner, dim)
        self.act = _ACTIVATIONS[config.activation]
        self.up = nn.Linear(dim, config.hidden * (2 if config.activation == "swiglu" else 1))
        self.hidden_norm = _norm(config, "mlp", config.hidden)
        self.down = nn.Linear(config.hidden, dim)
        scale = config.layer_scale
        self.scale1, self.scale2 = (
            None if scale is None else nn.Parameter(torch.full((dim,), float(scale))) for _ in range(2)
        )

    def forward(
        self, x: Float[Tensor, "s c"], encoding: Encoding, coordinates: Tensor, segments: _Segments
    ) -> Float[Tensor, "s c"]:
        seen = self._attention(self.norm1(x), encoding, coordinates, segments)
        x = x + (seen if self.scale1 is None else self.scale1 * seen)
        made = self.down(self.hidden_norm(self.act(self.up(self.norm2(x)))))
        return x + (made if self.scale2 is None else self.scale2 * made)

    def _attention(self, x: Tensor, encoding: Encoding, coordinates: Tensor, segments: _Segments) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).permute(1, 2, 0, 3)  # (H, S, D) each
        q, k = self.q_norm(q), self.k_norm(k)
        patches = coordinates.shape[1]
        turned = encoding.rotate(q[:, :patches], k[:, :patches], coordinates)
        turned_q, turned_k = (
            torch.cat((with_place, other[:, patches:]), dim=1) if self.prefix else with_place
            for with_place, other in zip(turned, (q, k), strict=True)
        )
        seen = []
        for rows in segments.groups:
            one, other, values = (each[:, rows].transpose(0, 1) for each in (turned_q, turned_k, v))  # (G, H, L, D)
            bias = None
            if type(encoding).bias is not Encoding.bias:
                placed = rows[:, : rows.shape[1] - self.prefix]  # rows of prefix tokens come last
                bias = encoding.bias(q[:, placed].transpose(0, 1), coordinates[:, placed])
                bias = None if bias is None else pad(bias.to(q.dtype), (0, self.prefix, 0, self.prefix))
            given = scaled_dot_product_attention(one, other, values, attn_mask=bias, scale=self.head_dim**-0.5)
            seen.append(given.transpose(1, 2).flatten(0, 1))
        return self.out(self.seen_norm(torch.cat(seen)[segments.back].flatten(1)))


def _gated(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, dim=-1)
    return silu(gate) * value


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": lambda x: gelu(x, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swiglu": _gated,
}


def _make_norm(config: VitConfig, channels: int) -> nn.Module:
    return (nn.LayerNorm if config.norm == "layer" else nn.RMSNorm)(channels, eps=config.eps)


def _norm(config: VitConfig, name: Norm, channels: int) -> nn.Module:
    return _make_norm(config, channels) if name in config.norms else nn.Identity()


def _boxes(grids: Sequence[Grid], sizes: Sequence[Grid]) -> tuple[Int64[Tensor, " n"], int]:
    """The number of the box that each patch is in, row by row through all pictures, where boxes of a size are cut from
    each grid from its start; and how many there are."""
    numbers, count = [], 0
    for grid, size in zip(grids, sizes, strict=True):
        t, h, w = (torch.arange(side) // most for side, most in zip(grid, size, strict=True))
        _, rows, cols = counts = [ceil(side / most) for side, most in zip(grid, size, strict=True)]
        numbers.append(((t[:, None, None] * rows + h[:, None]) * cols + w).flatten() + count)
        count += prod(counts)
    return torch.cat(numbers), count
