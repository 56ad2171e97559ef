"""The seeds of the field and the swap of allocations: each program's numbers are what its docstring claims.

Every program runs once. Its claims are asserted on the numbers that `main` returns, its printed text on a line or two.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sources import ROOT

import mrope
from mrope import AxisSplit, Rotary

SEEDS = ROOT / "examples" / "seeds"
NAMES = sorted(path.stem for path in SEEDS.glob("*.py"))


class Ran(NamedTuple):
    module: Any
    numbers: Any
    printed: str


@functools.cache
def ran(name: str) -> Ran:
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    printed = io.StringIO()
    with redirect_stdout(printed):
        numbers = module.main()
    return Ran(module, numbers, printed.getvalue())


def seed(name: str) -> Ran:
    return ran(f"seeds/{name}")


# ------------------------------------------------------------------------------------------------------------- the list


def rows() -> dict[str, str]:
    """What the list of seeds says that each prints."""
    return dict(re.findall(r"^\| `(\w+)\.py` \|.*\| `(.*)` \|$", (SEEDS / "README.md").read_text(), re.MULTILINE))


def test_the_list_has_every_seed() -> None:
    assert sorted(rows()) == NAMES
    assert len(NAMES) == 7


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_prints_what_the_list_shows(name: str) -> None:
    assert rows()[name] in seed(name).printed


@pytest.mark.parametrize("name", [*(f"seeds/{name}" for name in NAMES), "swap_allocations"])
def test_a_program_is_short_and_says_how_to_run_it(name: str) -> None:
    path = Path("examples") / f"{name}.py"
    source = (ROOT / path).read_text()
    assert len(source.splitlines()) <= 150
    assert f"\nRun it: python {path.as_posix()}\n" in source


# ------------------------------------------------------------------------------------------------------------ the seeds


@pytest.mark.evidence("properties", "NoPe")
def test_without_positions_outputs_are_permuted_with_their_tokens() -> None:
    numbers = seed("no_positions").numbers
    assert numbers["none"] < 1e-5
    assert numbers["carried"] < 1e-5
    assert numbers["rotary"] > 0.1
    assert numbers["transposed"] > 0.1


@pytest.mark.evidence("properties", "Sinusoidal")
def test_a_shift_of_a_sinusoidal_code_is_one_rotation() -> None:
    _, numbers, printed = seed("sinusoidal_shift")
    assert numbers["error"] < 1e-4
    assert numbers["off"] < 1e-5
    assert numbers["error_2d"] < 1e-4
    assert numbers["error_learned"] > 1
    assert numbers["error_swapped"] > 1  # rows taken for columns
    matrix = [[float(word) for word in line.split()] for line in printed.splitlines()[1:5]]
    fast, slow = 3 * 1.0, 3 * 0.1
    expected = np.zeros((4, 4))
    for first, angle in ((0, fast), (2, slow)):
        expected[first, first] = expected[first + 1, first + 1] = math.cos(angle)
        expected[first, first + 1], expected[first + 1, first] = math.sin(angle), -math.sin(angle)
    np.testing.assert_allclose(matrix, expected, atol=1e-4)


def test_the_block_of_a_shift_turns_a_code_to_a_later_one() -> None:
    block = seed("sinusoidal_shift").module.block(torch.tensor(0.7)).tolist()
    code = [math.sin(2.0), math.cos(2.0)]
    turned = [sum(a * b for a, b in zip(row, code, strict=True)) for row in block]
    assert turned == pytest.approx([math.sin(2.7), math.cos(2.7)])


def test_adding_is_a_concatenation_with_tied_blocks() -> None:
    numbers = seed("add_or_concatenate").numbers
    assert max(numbers[name] for name in ("sum", "tied", "apart")) < 1e-4
    assert numbers["x.x moved"] == 0
    for term in ("x.p", "p.x", "p.p"):
        assert numbers[term] > 0.1
        assert numbers[f"{term} moved"] > 0.1
    assert numbers["weights concatenated"] == 2 * numbers["weights added"]


@pytest.mark.evidence("definition", "Rotary")
@pytest.mark.parametrize(("pairing", "pairs"), [("half", ((0, 2), (1, 3))), ("adjacent", ((0, 1), (2, 3)))])
def test_four_channels_are_two_complex_numbers(pairing: str, pairs) -> None:
    module, numbers, printed = seed("four_channels")
    expected = [0.0] * 4
    for (one, other), angle in zip(pairs, (3.0, 0.05), strict=True):
        turned = complex(one + 1, other + 1) * complex(math.cos(angle), math.sin(angle))
        expected[one], expected[other] = turned.real, turned.imag
    assert numbers[pairing] == pytest.approx(expected, abs=1e-12)
    assert numbers[f"{pairing} by mrope"] == pytest.approx(expected, abs=1e-5)
    assert numbers["permuted"] == pytest.approx(numbers["adjacent"], abs=1e-5)
    assert "1 x -0.9900 - 3 x 0.1411 = -1.4134" in printed
    assert f"by mrope: {' '.join(f'{value:.4f}' for value in expected)}" in printed
    assert math.hypot(*module.TOKEN) == pytest.approx(math.hypot(*numbers[pairing]))


@pytest.mark.evidence("properties", "Rotary")
def test_scores_depend_on_the_differences_alone_until_one_breaks_it() -> None:
    _, numbers, printed = seed("score_depends_on_the_difference")
    for kept in ("t", "h", "w", "values as they are", "values turned, and back", "odd, left alone"):
        assert numbers[kept] < 1e-4
    for broken in ("one", "values turned", "odd, with a partner of 0"):
        assert numbers[broken] > 0.1
    assert numbers["shrunk"] < 0.9
    assert "mrope: rotary_dim 5 is odd; a rotary pair takes two channels" in printed


def test_a_fake_partner_makes_the_last_channel_shrink() -> None:
    angle = torch.tensor([[0.3, 0.5, 0.9]])
    module = seed("score_depends_on_the_difference").module
    turned = module.with_fake_partner(torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]]), angle.cos(), angle.sin())
    one, two = complex(1, 2) * np.exp(0.3j), complex(3, 4) * np.exp(0.5j)
    expected = [one.real, one.imag, two.real, two.imag, 5 * math.cos(0.9)]
    assert turned.flatten().tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.evidence("properties", "NoPe")
def test_a_causal_mask_alone_counts() -> None:
    module, numbers, printed = seed("nope_counts")
    assert numbers["causal counts"] < 1e-4
    assert numbers["bidirectional counts"] == pytest.approx(module.TOKENS - 1)
    assert numbers["causal"] > 0.5
    assert abs(numbers["bidirectional"]) < 0.2
    assert "1 / output - 1 = 0 1 2 3 4 5 ..." in printed


def slowed(pair: int, base: float, trained: int, rule: str) -> float:
    """By what the frequency of a pair of 64 is multiplied to reach four times as far, in plain Python."""
    if rule == "PI":
        return 1 / 4
    if rule == "NTK":
        return 4 ** (-pair / 63)
    low, high = (64 * math.log(trained / (turns * 2 * math.pi)) / math.log(base) for turns in (32, 1))
    share = min(max((pair - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0), 1)
    return share / 4 + 1 - share


@pytest.mark.evidence("definition", "Rotary")
@pytest.mark.parametrize("rule", ["PI", "NTK", "YaRN"])
@pytest.mark.parametrize(
    ("family", "base", "trained", "axes"),
    [("qwen2-vl", 1e6, 32768, "t" * 16 + "h" * 24 + "w" * 24), ("qwen3-vl", 5e6, 262144, "thw" * 20 + "tttt")],
)
def test_what_an_extension_does_to_each_axis(family: str, base: float, trained: int, axes: str, rule: str) -> None:
    numbers = seed("stretching_the_context").numbers
    for axis in "thw":
        pairs = [pair for pair in range(64) if axes[pair] == axis]
        paces = {pair: base ** (-pair / 64) for pair in pairs}
        new = {pair: pace * slowed(pair, base, trained, rule) for pair, pace in paces.items()}
        step = sum(1 - math.cos(pace) for pace in new.values()) / sum(1 - math.cos(pace) for pace in paces.values())
        far = sum(math.cos(4 * trained * pace) for pace in new.values()) / len(pairs)
        strange = sum(
            paces[pair] * trained < 2 * math.pi and new[pair] * 4 > paces[pair] * (1 + 1e-9) for pair in pairs
        )
        assert numbers[f"{family} {rule} step {axis}"] == pytest.approx(step, rel=1e-6)
        assert numbers[f"{family} {rule} far {axis}"] == pytest.approx(far, abs=1e-6)
        assert numbers[f"{family} {rule} strange {axis}"] == strange
        assert numbers[f"{family} {rule} slowed {axis}"] == sum(new[pair] < paces[pair] for pair in pairs)


def test_pi_gives_up_near_steps_ntk_and_yarn_keep_them() -> None:
    _, numbers, printed = seed("stretching_the_context")
    for family in ("qwen2-vl", "qwen3-vl"):
        for axis in "thw":
            assert numbers[f"{family} PI step {axis}"] == pytest.approx(1 / 16, rel=0.1)
            assert numbers[f"{family} PI far {axis}"] == pytest.approx(numbers[f"{family} trained far {axis}"])
            assert numbers[f"{family} PI strange {axis}"] == numbers[f"{family} YaRN strange {axis}"] == 0
        strange = [sum(numbers[f"{family} {rule} strange {axis}"] for axis in "thw") for rule in ("as it is", "NTK")]
        assert strange[1] == strange[0] - 1  # all slow pairs but the last
        for rule, fast, slow in (("PI", 1 / 4, 1 / 4), ("NTK", 1, 1 / 4), ("YaRN", 1, 1 / 4)):
            assert numbers[f"{family} {rule} fast"] == pytest.approx(fast)
            assert numbers[f"{family} {rule} slow"] == pytest.approx(slow)
    assert [numbers[f"qwen2-vl YaRN slowed {axis}"] for axis in "thw"] == [0, 16, 24]
    assert numbers["qwen2-vl YaRN step w"] == pytest.approx(numbers["qwen2-vl PI step w"])
    assert numbers["temperature"] == pytest.approx(1 + 0.1 * math.log(4))
    assert "1.139" in printed


# ------------------------------------------------------------------------------------------------------ the allocations

ORDERS = {
    "interleaved (Qwen3-VL)": "thw" * 20 + "tttt",
    "chunked": "t" * 24 + "h" * 20 + "w" * 20,
    "alternating": "hw" * 20 + "t" * 24,
    "MM-RoPE": "tthwhwhw" * 8,
    "VideoRoPE": "hw" * 24 + "t" * 16,
    "HoPE": "hw" * 24 + "t" * 16,
}


@pytest.mark.evidence("library", "Rotary")
def test_the_released_allocation_changes_nothing() -> None:
    numbers = ran("swap_allocations").numbers["interleaved (Qwen3-VL)"]
    assert numbers["text"] == numbers["picture"] == 0


def test_every_allocation_changes_pictures_and_hope_alone_changes_text() -> None:
    _, numbers, printed = ran("swap_allocations")
    assert numbers.keys() == ORDERS.keys()
    for name in ORDERS.keys() - {"interleaved (Qwen3-VL)"}:
        assert numbers[name]["picture"] > 0.1
        assert 0.1 < numbers[name]["attention"] < 0.9
        assert (numbers[name]["text"] > 0) == (name == "HoPE")
    assert len({round(each["attention"], 9) for each in numbers.values()}) == len(ORDERS)
    far = {name: each["far text"] for name, each in numbers.items()}
    others = {value for name, value in far.items() if name != "HoPE"}
    assert len(others) == 1
    assert far["HoPE"] - max(others) > 0.01
    assert "HoPE                    t does not turn" in printed


@pytest.mark.parametrize("name", ORDERS)
def test_kernels_and_wavelengths_are_those_of_the_formula(name: str) -> None:
    numbers = ran("swap_allocations").numbers[name]
    still = name == "HoPE"
    paces = {axis: [5e6 ** (-j / 64) for j in range(64) if ORDERS[name][j] == axis] for axis in "thw"}
    if still:
        paces["t"] = [0.0] * 16
    for axis, shown in (("t", "next frame"), ("h", "below"), ("w", "right")):
        kernel = (sum(math.cos(pace) for pace in paces[axis]) + 64 - len(paces[axis])) / 64
        assert numbers[shown] == pytest.approx(kernel, abs=1e-6)
        if not (still and axis == "t"):
            assert numbers[f"shortest {axis}"] == pytest.approx(2 * math.pi / max(paces[axis]), rel=1e-5)
            assert numbers[f"longest {axis}"] == pytest.approx(2 * math.pi / min(paces[axis]), rel=1e-5)
    every = [pace for each in paces.values() for pace in each]
    assert numbers["far text"] == pytest.approx(sum(math.cos(1e5 * pace) for pace in every) / 64, abs=2e-3)


@torch.no_grad()
def test_rows_taken_for_columns_change_the_picture() -> None:
    module = ran("swap_allocations").module
    model = module.tiny_qwen3_vl()
    family = mrope.family("qwen3-vl")
    ids = family.positions([module.Text(3), module.PICTURE]).ids[:, None]
    tokens = torch.arange(ids.shape[-1])[None]
    own = model(input_ids=tokens, position_ids=ids).logits
    twin = Rotary(AxisSplit.parse("TWH*20 T*4"), family.frequencies)
    with module.swapped(model, twin):
        swapped = model(input_ids=tokens, position_ids=ids).logits
        back = model(input_ids=tokens, position_ids=ids[[0, 2, 1]]).logits
    assert (swapped - own).abs().max() > 0.01
    assert torch.equal(back, own)
    assert torch.equal(model(input_ids=tokens, position_ids=ids).logits, own)  # nothing is left in the model
