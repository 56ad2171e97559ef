"""What a rule of turning does to queries and keys, measured from outside: it is called, and never looked into.

Letters: A axes, H heads, N tokens, D head dim, F pairs of channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mrope.probes.audits.encoding import audit_encoding
from mrope.probes.audits.report import AuditCheck, outcome
from mrope.probes.audits.target import Target

SHIFTS = (5, 1000, 5000, 33_000, 140_000, 1_000_000)
"""Positions by which prompts are moved."""

FAR, FAR_TOKENS = 8192, 32
"""How far apart the tokens of the longer prompt are, in positions, and how many it has."""

PLACES = (4000, 32_000, 1_000_000)
"""Positions at which turns are compared with those that are meant, beside small ones."""

_TOKENS = 6
_ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""What is allowed: tables are float32 whatever turns, and norms of exponentials are kept to 1e-3 or better."""


@dataclass(frozen=True, slots=True, eq=False)
class Bench:
    """Where and how a target is measured.

    Args:
        dtype: of queries and keys.
        device: where they lie.
    """

    dtype: torch.dtype = torch.float64
    device: torch.device | str = "cpu"

    @property
    def allowed(self) -> float:
        """Of numbers of size 1."""
        return _ROUNDING[self.dtype]


def turned(target: Target, q: Tensor, k: Tensor, ids: Tensor, bench: Bench) -> tuple[Tensor, Tensor]:
    """q (H, N, D) and the first K heads of k (H, N, D) turned by ids (A, N), in float64.

    Raises:
        TypeError: it returns something else than two tensors of these heads and tokens.
    """
    assert target.turn is not None
    if isinstance(target.encoding, nn.Module):
        target.encoding.to(bench.device)
    with torch.no_grad():
        own = [x[None].to(bench.device, bench.dtype, copy=True) for x in (q, k[: target.kv_heads or target.heads])]
        shapes = [x.shape for x in own]
        made = target.turn(own[0], own[1], ids.to(bench.device))
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not all(isinstance(x, Tensor) for x in made):
        parts = ", ".join(type(x).__name__ for x in made) if isinstance(made, (tuple, list)) else ""
        raise TypeError(f"{target.name} returns {parts or type(made).__name__}; expected two tensors: q and k, turned")
    rows = [x.reshape(-1, *x.shape[-2:]) if x.dim() > 1 else x for x in made]
    if any(x.shape[:-1] != shape[1:-1] for x, shape in zip(rows, shapes, strict=True)):
        given, came = (" and ".join(str(tuple(x)) for x in each) for each in (shapes, [x.shape for x in made]))
        raise TypeError(
            f"{target.name} returns {came} for q and k of {given}; expected their heads and tokens, q first"
        )
    return rows[0].double().cpu(), rows[1].double().cpu()


def as_queries(target: Target, keys: Tensor) -> Tensor:
    """Keys (K, ...) as often as there are heads of queries (H, ...): each of them stands before a group of these."""
    return keys.repeat_interleave(target.heads // len(keys), dim=0)


def matrices(target: Target, ids: Tensor, bench: Bench) -> tuple[Tensor, Tensor]:
    """(H, D, D) and (K, D, D) what a query and a key at ids (A,) are multiplied with, if they are."""
    unit = torch.eye(target.head_dim, dtype=torch.float64).expand(target.heads, -1, -1)
    q, k = turned(target, unit, unit, ids[:, None].expand(-1, target.head_dim), bench)
    return q.mT, k.mT


def turn_checks(target: Target, bench: Bench) -> Iterator[AuditCheck]:
    """Every check of turning."""
    rng = torch.Generator().manual_seed(0)
    most, axes = int(max(4, target.extent)), len(target.axes)
    scale = min(1.0, float(target.extent) / most)
    ids = torch.randint(0, most, (axes, _TOKENS), generator=rng)
    ids = ids if scale == 1 else ids * scale
    q, k = torch.randn(2, target.heads, _TOKENS, target.head_dim, generator=rng, dtype=torch.float64)
    out, out_k = turned(target, q, k, ids, bench)
    promised = target.properties
    one = [matrices(target, ids[:, token], bench) for token in range(_TOKENS)] if out.shape == q.shape else []
    tokens = [slice(token, token + 1) for token in range(_TOKENS)]
    alone = torch.cat([turned(target, q[:, at], k[:, at], ids[:, at], bench)[0] for at in tokens], dim=1)
    applied = [(each[0] @ q[:, token, :, None])[..., 0] for token, each in enumerate(one)]
    if one and _off(torch.stack(applied, dim=1), alone) < bench.allowed:
        yield from _rotation(target, one, q, alone, bench)
        yield from _pairs(target, one, ids, bench)
        yield _commutes(target, ids, one, bench)
    else:
        shape = f"queries of {target.head_dim} channels come back with {out.shape[-1]}"
        yield AuditCheck(
            name="rotation",
            means="queries and keys are rotated, which is linear and keeps their channels",
            figure=_not_linear(target, q, k, ids, bench) if one else shape,
            limit="a rotation" if promised.norm else "",
            outcome=outcome(False, promised.norm),
            source="arXiv:2104.09864",
        )
    yield from _shift(target, q, k, ids, bench)
    yield _alone(target, q, k, ids, (out, out_k), bench)
    trained = target.trained
    if trained is not None and trained.turn is not None:
        if one:
            yield _as_trained(target, trained, ids, bench)
        elif (trained.heads, trained.head_dim) == (target.heads, target.head_dim):  # PoPE, which is no matrix
            yield _as_trained_here(target, trained, q, k, ids, bench)
    if target.encoding is not None:
        yield _declared(target, promised)


def bare_checks(target: Target) -> Iterator[AuditCheck]:
    """Of an encoding that does not turn: what it promises."""
    if target.encoding is not None:
        yield _declared(target, target.properties)


def _not_linear(target: Target, q: Tensor, k: Tensor, ids: Tensor, bench: Bench) -> str:
    """Why what comes back is no matrix times what was given."""
    first, again = (turned(target, q, k, ids, bench) for _ in range(2))
    names = ("queries", "keys")
    for name, out in zip(names, first, strict=True):
        if not bool(out.isfinite().all()):
            tokens = int((~out.isfinite()).any(-1).any(0).sum())
            return f"NaN or infinity in the {name} of {tokens} of {out.shape[1]} tokens"
    for name, out, other in zip(names, first, again, strict=True):
        if not torch.equal(out, other):
            return f"the {name} differ between two calls, by {_off(other, out):.2g}"
    if len(first[0]) == len(first[1]):
        queries, keys = (turned(target, x, x, ids, bench)[0] for x in (q, k))
        if _off(first[0], keys) < bench.allowed < _off(first[0], queries):
            return "what comes back first is the key, turned: queries and keys are exchanged"
    with torch.no_grad():
        assert target.turn is not None
        own = [x[None].to(bench.device, bench.dtype) for x in (q, k[: len(first[1])])]
        dtypes = [x.dtype for x in target.turn(own[0], own[1], ids.to(bench.device))]
    narrow = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype.itemsize < bench.dtype.itemsize]
    return f"{narrow[0]} comes back for {str(bench.dtype).removeprefix('torch.')}" if narrow else "it is not linear"


def _off(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))


def _rotation(
    target: Target, one: list[tuple[Tensor, Tensor]], q: Tensor, out: Tensor, bench: Bench
) -> Iterator[AuditCheck]:
    unit = torch.eye(target.head_dim, dtype=torch.float64)
    off = max(float((each.mT @ each - unit).abs().max()) for pair in one for each in pair)
    before, after = q.norm(dim=-1), out.norm(dim=-1)
    worst = (after / before - 1).abs().flatten().argmax()
    lengths = f"{float(before.flatten()[worst]):.4f} -> {float(after.flatten()[worst]):.4f}"
    promised = bool(target.properties.norm)
    yield AuditCheck(
        name="rotation",
        means="queries and keys are rotated: lengths and angles among them stay (|R'R - 1|)",
        figure=f"{off:.2g}; the length that changes most {lengths}",
        value=off,
        limit=f"below {bench.allowed:g}" if promised else "",
        outcome=outcome(off < bench.allowed, promised),
        source="arXiv:2104.09864",
    )
    apart = max(_off(first, as_queries(target, second)) for first, second in one)
    yield AuditCheck(
        name="queries-and-keys",
        means="a query and a key at one position turn alike",
        figure=f"apart by {apart:.2g}",
        value=apart,
        limit=f"below {bench.allowed:g}" if promised else "",
        outcome=outcome(apart < bench.allowed, promised),
    )


def partners(matrix: Tensor) -> Tensor | None:
    """(2, F) the two channels of each pair of a turn (D, D); None where channels mix otherwise."""
    off = matrix.abs() - torch.diag(matrix.diagonal().abs())
    moving = off.amax(1) > 1e-7
    partner = off.argmax(1)
    channels = torch.arange(len(matrix))
    rest = off.scatter(1, partner[:, None], 0).amax(1)
    if not bool((partner[partner] == channels)[moving].all()) or bool((rest[moving] > 1e-6).any()):
        return None
    lower = channels[moving & (partner > channels)]
    return torch.stack((lower, partner[lower]))


def generic(target: Target) -> Tensor:
    """(A,) a position at which every pair that turns at all is seen to turn."""
    ids = torch.tensor([1009, 2003, 3001, 4001, 5003, 6007])[: len(target.axes)]
    return ids if target.extent >= 4 else ids / 1000


def _pairs(target: Target, one: list[tuple[Tensor, Tensor]], ids: Tensor, bench: Bench) -> Iterator[AuditCheck]:
    """Both channels of a pair turn by one angle."""
    found = [partners(each[0]) for each in matrices(target, generic(target), bench)]
    if found[0] is None:
        yield AuditCheck(
            name="pairs",
            means="two channels turn together, and no others with them",
            figure="channels mix in larger groups",
        )
        return
    off = 0.0
    for matrix, own in ((pair[place], found[place]) for pair in one for place in (0, 1)):
        if own is not None and own.numel():
            low, high = own
            same = (matrix[:, low, low] - matrix[:, high, high]).abs().amax()
            opposite = (matrix[:, low, high] + matrix[:, high, low]).abs().amax()
            off = max(off, float(same), float(opposite))
    low, high = found[0]
    if bool((high == low + 1).all()):
        pairing = "neighbours (2j, 2j + 1)"
    elif bool((high - low == len(low)).all()):
        pairing = f"halves (j, j + {len(low)})"
    else:
        pairing = f"others, such as ({int(low[0])}, {int(high[0])})"
    standing = target.head_dim - 2 * len(low)
    yield AuditCheck(
        name="pairs",
        means="both channels of a pair turn by one angle",
        figure=f"{len(low)} pairs, {pairing}; {standing} channels do not turn; angles differ by {off:.2g}",
        value=off,
        limit=f"below {bench.allowed:g}",
        outcome=outcome(off < bench.allowed),
        source="arXiv:2104.09864",
    )


def _commutes(target: Target, ids: Tensor, one: list[tuple[Tensor, Tensor]], bench: Bench) -> AuditCheck:
    """Turning by p and by p' is turning by p + p'."""
    together = matrices(target, ids[:, 0] + ids[:, 1], bench)[0]
    off = _off(one[0][0] @ one[1][0], together)
    promised = bool(target.properties.commutes)
    return AuditCheck(
        name="commutes",
        means="turning by p and then by p' is turning by p + p'",
        figure=f"off by {off:.2g}",
        value=off,
        limit=f"below {bench.allowed:g}" if promised else "",
        outcome=outcome(off < bench.allowed, promised),
        source="arXiv:2502.02562",
    )


def _shift(target: Target, q: Tensor, k: Tensor, ids: Tensor, bench: Bench) -> Iterator[AuditCheck]:
    """Scores depend on differences of positions alone; each axis is moved by another amount."""
    whole_positions, promised = target.extent >= 4, bool(target.properties.shift)
    shifts = SHIFTS if whole_positions else tuple(float(target.extent) * each for each in (0.1, 1, 3))
    prompts = [(q, k, ids)]
    if whole_positions and promised and target.properties.norm:  # exponentials of such distances leave float32
        rng = torch.Generator().manual_seed(1)
        far = torch.randn(2, target.heads, FAR_TOKENS, target.head_dim, generator=rng, dtype=torch.float64)
        prompts.append((far[0], far[1], torch.randint(0, FAR, (len(ids), FAR_TOKENS), generator=rng)))
    # An angle is a float32 product, whose last bit is worth more the larger it is; of many pairs few are that fast.
    lost = torch.finfo(torch.float32).eps * min(1.0, 16 / target.head_dim)
    told, fails, worst = [], [], 0.0
    for shift in shifts:
        step = torch.tensor([shift // (axis + 1) or shift for axis in range(len(ids))])[:, None]
        try:
            off = max(_moved(target, *prompt, step, bench) for prompt in prompts)
        except Exception as error:  # of whatever code turns
            told.append(f"raises {type(error).__name__} by {shift:,}")
            fails.append(f"{shift:,}")
            continue
        told.append(f"{off:.1g} by {shift:,}")
        worst = max(worst, off) if math.isfinite(off) else math.nan
        if not off <= bench.allowed + lost * (float(shift) + (FAR if len(prompts) > 1 else 0)):  # nor if no number
            fails.append(f"{shift:,}")
    first, moved = _scores(target, q, k, ids, bench)[0, 0, 1], _scores(target, q, k, ids + shifts[0], bench)[0, 0, 1]
    yield AuditCheck(
        name="shift",
        means="scores stay when all tokens move together, to a million positions (the most, as a share of |q| |k|)",
        figure=f"{', '.join(told)}{_overflow(target, worst)}; one score {float(first):.3f}, moved by {shifts[0]:g} "
        f"{float(moved):.3f}",
        value=worst,
        limit=f"{bench.allowed:g}, and {lost:.2g} a position, which float32 angles lose" if promised else "",
        outcome=outcome(not fails, promised),
        source="arXiv:2104.09864, section 3.2.1",
    )


def _overflow(target: Target, worst: float) -> str:
    """Why a score is no number, where it is known: exponentials of positions leave their dtype."""
    return "" if math.isfinite(worst) or target.properties.norm else " (an exponential of the position overflows)"


def _moved(target: Target, q: Tensor, k: Tensor, ids: Tensor, step: Tensor, bench: Bench) -> float:
    """By how much scores change when all tokens move, as a share of |q| |k|; infinity or NaN: a score is none."""
    size = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    change = _scores(target, q, k, ids + step, bench) - _scores(target, q, k, ids, bench)
    return float(change.abs().max()) / size


def _scores(target: Target, q: Tensor, k: Tensor, ids: Tensor, bench: Bench) -> Tensor:
    q, k = turned(target, q, k, ids, bench)
    return q @ as_queries(target, k).mT


def _alone(target: Target, q: Tensor, k: Tensor, ids: Tensor, out: tuple[Tensor, Tensor], bench: Bench) -> AuditCheck:
    """A token turns by its own position: decoded, prefilled, alone, or packed behind a document that went far."""
    last = slice(_TOKENS - 1, None)
    alone = turned(target, q[:, last], k[:, last], ids[:, last], bench)
    far = (100_000 if target.extent >= 4 else target.extent) + torch.zeros_like(ids)
    packed = turned(target, torch.cat((q, q), 1), torch.cat((k, k), 1), torch.cat((far, ids), 1), bench)
    decoded = max(_off(one, whole[:, last]) for one, whole in zip(alone, out, strict=True))
    joined = max(_off(row[:, _TOKENS:], whole) for row, whole in zip(packed, out, strict=True))
    off = max(decoded, joined)
    return AuditCheck(
        name="own-position",
        means="a token turns by its own position alone: decoded as prefilled, packed as single",
        figure=f"decoded off by {decoded:.2g}, packed by {joined:.2g}",
        value=off,
        limit=f"below {bench.allowed:g}",
        outcome=outcome(off < bench.allowed),
    )


def _as_trained(target: Target, trained: Target, ids: Tensor, bench: Bench) -> AuditCheck:
    """It turns as what it is meant to be."""
    wide = max(target.head_dim, trained.head_dim)

    def apart(at: Tensor) -> float:
        theirs, ours = (_padded(matrices(each, at, bench)[0], wide) for each in (target, trained))
        return float((theirs - ours).abs().max().nan_to_num(math.inf))

    far, beyond = [], []
    for place in PLACES if target.extent >= 4 else ():
        at = place + 101 * torch.arange(len(ids))
        try:
            apart_there = apart(at)
        except Exception as error:  # of whatever code turns
            far.append(f"raises {type(error).__name__} at {place:,}")
            beyond.append(place)
            continue
        far.append(f"{apart_there:.2g} at {place:,}")
        if not apart_there < bench.allowed + torch.finfo(torch.float32).eps * float(at.max()):
            beyond.append(place)
    off = apart(ids[:, 0])
    alone = [torch.zeros_like(ids[:, 0]).index_fill(0, torch.tensor(axis), 7) for axis in range(len(ids))]
    axes = [name for name, at in zip(target.axes, alone, strict=True) if apart(at) >= bench.allowed]
    return AuditCheck(
        name="turns-as-trained",
        means=f"queries and keys turn as in {trained.name}",
        figure=", ".join((f"off by {off:.2g}", *far)) + (f"; it differs along {', '.join(axes)}" if axes else ""),
        value=off,
        limit=f"below {bench.allowed:g}, and 1.2e-7 a position",
        outcome=outcome(off < bench.allowed and not axes and not beyond),
    )


def _as_trained_here(target: Target, trained: Target, q: Tensor, k: Tensor, ids: Tensor, bench: Bench) -> AuditCheck:
    """What becomes of some queries and keys, where channels are not kept."""
    pairs = list(zip(*(turned(each, q, k, ids, bench) for each in (target, trained)), strict=True))
    off = max(_off(ours, theirs) if ours.shape == theirs.shape else math.inf for ours, theirs in pairs)
    return AuditCheck(
        name="turns-as-trained",
        means=f"queries and keys become what they do in {trained.name}",
        figure=f"off by {off:.2g}",
        value=off,
        limit=f"below {bench.allowed:g}",
        outcome=outcome(off < bench.allowed),
    )


def _padded(matrix: Tensor, wide: int) -> Tensor:
    """(H, wide, wide): channels beyond those that were given do not turn."""
    out = torch.eye(wide, dtype=matrix.dtype).expand(len(matrix), -1, -1).clone()
    out[:, : matrix.shape[-2], : matrix.shape[-1]] = matrix
    return out


def _declared(target: Target, promised: object) -> AuditCheck:
    """`audit_encoding` beside what the encoding says of itself."""
    assert target.encoding is not None
    if isinstance(target.encoding, nn.Module):
        target.encoding.to("cpu")
    measured = audit_encoding(
        target.encoding,
        axes=len(target.axes),
        head_dim=target.head_dim,
        heads=target.heads if target.heads > 1 else 2,
        extent=min(20, target.extent),
    )
    return AuditCheck(
        name="declared",
        means="the encoding has the properties that it declares",
        figure=_told(measured) if measured == promised else f"{_told(measured)}; declared: {_told(promised)}",
        limit="as declared",
        outcome=outcome(measured == promised),
    )


def _told(properties: object) -> str:
    names = ("norm", "shift", "text_is_rope", "commutes")
    words = {True: "yes", False: "no", None: "-"}
    return ", ".join(f"{name.replace('_', '-')} {words[getattr(properties, name)]}" for name in names)


def waves_of(target: Target, bench: Bench) -> tuple[Tensor, Tensor] | None:
    """(H, F, A) radians per position of each pair on each axis, and which of them read it; None: it has no such pairs.

    Known where the encoding is ours; else seen from turns by one position on one axis.
    """
    axes = len(target.axes)
    if target.rotary is not None:
        axis = target.rotary.split.axis
        theta = target.rotary.frequencies.inv_freq(target.rotary.split.rotary_dim, axis, dtype=torch.float64).detach()
        reads = (axis[..., None] == torch.arange(axes)).reshape(-1, axis.shape[-1], axes)
        return theta.reshape(-1, axis.shape[-1])[..., None] * reads, reads
    if target.waves is not None:
        waves = target.waves.double().cpu().reshape(-1, *target.waves.shape[-2:]).mT
        return waves, waves != 0
    if target.turn is None:
        return None
    found = partners(matrices(target, generic(target), bench)[0][0]) if _keeps_width(target, bench) else None
    if found is None:
        return None
    low, high = found
    each = []
    for axis in range(axes):
        step = torch.zeros(axes, dtype=torch.int64).index_fill(0, torch.tensor(axis), 1)
        matrix = matrices(target, step, bench)[0]
        each.append(torch.atan2(matrix[:, high, low], matrix[:, low, low]))
    theta = torch.stack(each, dim=-1)
    theta = torch.where(theta.abs() < 1e-11, 0, theta)
    if not math.isfinite(float(theta.sum())):
        return None
    theta = theta if float(theta.sum()) >= 0 else -theta
    theta = theta[:1] if torch.allclose(theta, theta[:1]) else theta  # heads that turn alike are told once
    return theta, theta != 0


def _keeps_width(target: Target, bench: Bench) -> bool:
    one = torch.ones(target.heads, 1, target.head_dim, dtype=torch.float64)
    return turned(target, one, one, torch.zeros(len(target.axes), 1, dtype=torch.int64), bench)[0].shape == one.shape
