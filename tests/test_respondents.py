"""Who is asked, and how: the reader, its blind and its wrong twins, functions, and tiny models of every family."""

from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from plug_families import model_of
from sources import ROOT
from test_processor import COMPASS, GLM, MODELS, QWEN, SPECIAL, TEMPLATE, small, theirs, this_version
from tiny_models import tiny_model, tiny_vlm
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

import mrope
from mrope.data import GLYPHS, Clip, Sample, task
from mrope.hf import plug, processor
from mrope.probes import swap_axes
from mrope.probes.spatial.reply import Reply, Respondent
from mrope.probes.spatial.respondents import (
    Blind,
    CallableRespondent,
    ReaderRespondent,
    ServerRespondent,
    TransformersRespondent,
    respondent,
)
from mrope.probes.spatial.respondents.blind import exchanged
from mrope.probes.spatial.respondents.scoring import choice_scores, choice_steps, suffixes
from mrope.reader import Reader
from mrope.vision import plan

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
FAMILIES = [name for name in MODELS if name != "glm-image"]  # which writes pictures
FIVE = [
    name for name in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "glm4v", "paddleocr-vl", "ernie4.5-vl") if name in MODELS
]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ?."


def samples(name: str, **settings: Any) -> list[Sample]:
    return list(task(name, **settings).samples(0))


def answered(replies: Sequence[Reply]) -> list[str]:
    """What each reply says, by its scores where it has them."""
    assert not [reply.failure for reply in replies if reply.failure]
    return [max(reply.scores, key=reply.scores.__getitem__) if reply.scores else reply.text for reply in replies]


def right(who: Respondent, asked: Sequence[Sample]) -> int:
    replies = answered(list(who.answer(asked)))
    return sum(said == sample.answer for said, sample in zip(replies, asked, strict=True))


def likely(successes: int, trials: int, chance: float) -> bool:
    """Whether a guesser gets so many right: neither tail of the binomial distribution holds less than 0.05 %."""
    weights = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    return min(sum(weights[successes:]), sum(weights[: successes + 1])) > 5e-4


def test_the_bound_of_chance_tells_a_guesser_from_others() -> None:
    assert [likely(n, 96, 1 / 24) for n in (0, 4, 11, 14)] == [True, True, True, False]
    assert [likely(n, 60, 1 / 4) for n in (3, 15, 27, 30)] == [False, True, True, False]


def blank(height: int, width: int, level: int = 200) -> Image.Image:
    return Image.new("RGB", (width, height), (level, level, level))


def asking(*prompt: str | int, pictures: Sequence[Any], **more: Any) -> Sample:
    return Sample(**({"id": "it", "task": "own", "pictures": tuple(pictures), "prompt": prompt, "kind": "text"} | more))


def picture_of(sample: Sample) -> Image.Image:
    picture = sample.pictures[0]
    assert isinstance(picture, Image.Image)
    return picture


def levels(sample: Sample) -> list[Any]:
    """The level of each frame of a clip that is blank, of one colour, or of a picture."""
    shown = sample.pictures[0]
    frames = shown.frames if isinstance(shown, Clip) else (shown,)
    return [np.asarray(frame)[0, 0, 0].item() for frame in frames]


# ------------------------------------------------------------------------------------------------------- the reader


@pytest.fixture(scope="module")
def reader() -> ReaderRespondent:
    return ReaderRespondent(device="cpu")


@pytest.fixture(scope="module")
def neighbours() -> list[Sample]:
    return samples("neighbour", shapes=((3, 5), (7, 4)), each=5)


def test_the_reader_answers_what_it_can_be_asked(reader: ReaderRespondent, neighbours: list[Sample]) -> None:
    asked = [*neighbours, *samples("cell", shapes=((3, 5), (7, 4)), each=12)]
    assert isinstance(reader, Respondent)
    assert {reader.refuses(sample) for sample in asked} == {""}
    assert right(reader, asked) >= 0.95 * len(asked)
    replies = list(reader.answer(asked))
    assert all(list(reply.scores or ()) == list(sample.choices) for reply, sample in zip(replies, asked, strict=True))
    assert (reader.name, reader.facts["checkpoint"], reader.facts["device"]) == ("reader", "reader.safetensors", "cpu")


def test_scores_are_the_readers_own_logits(reader: ReaderRespondent) -> None:
    (sample,) = samples("cell", shapes=((3, 5),), each=1)
    (reply,) = reader.answer([sample])
    assert sample.ask is not None
    (said,) = Reader.load().ask(sample.pictures[0], [(sample.ask["relation"], tuple(sample.ask["cell"]))])
    scores = torch.tensor(list((reply.scores or {}).values()))
    assert scores.softmax(0).max().item() == pytest.approx(said.probability, rel=1e-5)
    assert GLYPHS[int(scores.argmax())] == said.glyph


def test_a_reader_with_swapped_axes_fails_on_neighbours(neighbours: list[Sample]) -> None:
    swapped = ReaderRespondent(device="cpu", move=swap_axes)
    assert right(swapped, neighbours) < 0.3 * len(neighbours)
    assert (swapped.name, swapped.facts["positions"]) == ("reader, swap_axes", "swap_axes")


def test_a_shifted_reader_answers_as_before(reader: ReaderRespondent, neighbours: list[Sample]) -> None:
    def later(positions: mrope.Positions) -> mrope.Positions:
        return replace(positions, ids=positions.ids + 64)

    moved = list(ReaderRespondent(device="cpu", move=later).answer(neighbours))
    assert answered(moved) == answered(list(reader.answer(neighbours)))


def test_what_the_reader_cannot_be_asked_is_refused_and_said(reader: ReaderRespondent) -> None:
    (cell,) = samples("cell", shapes=((3, 5),), each=1)
    still = Clip((picture_of(cell),) * 2, (0.0, 1.0))
    for changed, why in (
        ({"ask": None}, r"takes no words, and the sample has no `ask`"),
        ({"pictures": (still,)}, r"takes one picture"),
        ({"pictures": cell.pictures * 2}, r"takes one picture"),
        ({"choices": ("A", "7")}, r"knows the glyphs A.*Z, and a choice is '7'"),
        ({"max_tokens": 14}, r"15 of them, and the sample wants 14"),
        ({"ask": {"relation": "under", "cell": [0, 0]}}, r"expected \{\"relation\": one of in, right"),
        ({"ask": {"relation": "in"}}, r"`ask` is \{'relation': 'in'\}; expected"),
        ({"ask": {"relation": "in", "cell": [4, 2]}}, r"'in' of \(4, 2\) is outside of the 3 rows x 5 columns"),
        ({"ask": {"relation": "right", "cell": [2, 4]}}, r"'right' of \(2, 4\) is outside"),
        ({"pictures": (blank(8, 3000),)}, r"3000 wide x 8 high is 375.0 to 1, the limit is 200"),
    ):
        sample = replace(cell, **changed)
        assert re.search(why, reader.refuses(sample)), (changed, reader.refuses(sample))
        before, reply, after = reader.answer([cell, sample, cell])
        assert reply.failure == reader.refuses(sample)
        assert before.scores == after.scores


def test_without_choices_the_reader_writes_a_glyph(reader: ReaderRespondent) -> None:
    (cell,) = samples("cell", shapes=((3, 5),), each=1)
    (reply,) = reader.answer([replace(cell, choices=(), kind="text")])
    assert (reply.text, reply.scores) == (cell.answer, None)


# --------------------------------------------------------------------------------------------------- the blind twin


def test_a_blind_reader_sits_at_chance(reader: ReaderRespondent, neighbours: list[Sample]) -> None:
    cells = samples("cell", shapes=((3, 5), (7, 4)), each=24)
    assert likely(right(Blind(reader), cells), len(cells), 1 / 24)
    # Questions about one picture share its fate, so that the bound is wide of what independent ones would have.
    assert right(Blind(reader), neighbours) < 0.5 * len(neighbours) < right(reader, neighbours)


def test_each_sample_gets_the_picture_of_another_at_its_own_size() -> None:
    sizes = [(40, 70), (90, 30), (64, 20), (25, 80)]
    pictures = [blank(*size, level=10 * number) for number, size in enumerate(sizes, 1)]
    asked = [asking(0, pictures=[pictures[index // 2]], id=str(index)) for index in range(8)]  # two ask about each
    shown = exchanged(asked, 3)
    for before, after in zip(asked, shown, strict=True):
        assert picture_of(after).size == picture_of(before).size
        assert levels(after) != levels(before)
        assert (after.id, after.prompt) == (before.id, before.prompt)
    again = exchanged(asked, 3)
    assert [levels(one) for one in again] == [levels(one) for one in shown]


def test_a_blind_model_shows_some_of_many_what_it_shows_all() -> None:
    who = Blind(CallableRespondent(lambda sample: levels(sample)[0]))
    asked = [asking(0, pictures=[blank(30 + 7 * index, 90, 10 + index)]) for index in range(9)]  # of one id
    everything = [reply.text for reply in who.answer(asked)]
    assert sorted(everything) == [str(10 + index) for index in range(9)]
    some = [asked[index] for index in (7, 2, 4)]
    assert [reply.text for reply in who.answer(some, among=asked)] == [everything[index] for index in (7, 2, 4)]


def test_a_blind_model_sees_clips_of_its_own_length() -> None:
    first = Clip(tuple(blank(40, 70, level) for level in (1, 2, 3)), (0.0, 0.5, 2.0))
    second = Clip(tuple(blank(30, 20, level) for level in (7, 8)), (0.0, 1.0))
    shown = exchanged([asking(0, pictures=[first]), asking(0, pictures=[second])])
    assert [levels(one) for one in shown] == [[7, 8, 7], [1, 2]]
    longer = shown[0].pictures[0]
    assert isinstance(longer, Clip)
    assert (longer.seconds, longer.frames[0].size) == (first.seconds, (70, 40))


def test_where_there_is_no_other_picture_a_blind_model_sees_grey() -> None:
    (sample,) = samples("cell", shapes=((3, 5),), each=1)
    one, again = exchanged([sample, replace(sample, id="again")])
    assert (levels(one), levels(again), picture_of(one).size) == ([128], [128], picture_of(sample).size)
    text = asking("2 + 2?", pictures=[])
    assert exchanged([text])[0].pictures == ()


# ------------------------------------------------------------------------------------------------------- functions


def test_a_function_gives_text_scores_or_a_reply() -> None:
    sample = asking(0, "?", pictures=[blank(20, 30)], kind="choice", choices=("A", "B"))
    given = iter(["A", {"B": 2, "A": 1.5}, Reply("B", seconds=3.0)])
    text, scored, whole = CallableRespondent(lambda _: next(given), name="three").answer([sample] * 3)
    assert (text.text, text.scores, text.failure) == ("A", None, "")
    assert (scored.text, scored.scores) == ("", {"A": 1.5, "B": 2.0})
    assert (whole.text, whole.seconds) == ("B", 3.0)


def oracle(sample: Sample) -> str:
    return sample.answer


def test_a_function_that_knows_is_right() -> None:
    who = CallableRespondent(oracle)
    asked = samples("cell", each=2)
    assert right(who, asked) == len(asked)
    assert (who.name, who.facts["function"]) == ("oracle", f"{__name__}:oracle")


def test_what_a_function_raises_or_gives_wrongly_fails_that_sample_alone() -> None:
    sample = asking(0, "?", pictures=[blank(20, 30)], kind="choice", choices=("A", "B"))
    wrong: list[tuple[Any, str]] = [
        (KeyError("deep"), "KeyError: 'deep'"),
        (ValueError("deep\n down"), "ValueError: deep down"),
        (RuntimeError(), r"RuntimeError"),
        ([7], "function gave [7]; expected text, a Reply, or a mapping from each choice to a number"),
        (None, "function gave None; expected text, a Reply, or a mapping from each choice to a number"),
        ({"A": 1.0}, "function scored 'A'; expected 'A', 'B'"),
        ({}, "function scored nothing; expected 'A', 'B'"),
        ({"A": 1.0, "B": 0.0, "C": 1.0}, "function scored 'A', 'B', 'C'; expected 'A', 'B'"),
        ({"A": math.nan, "B": 0.0}, "function scored {'A': nan, 'B': 0.0}; expected numbers"),
        ({"A": "high", "B": 0.0}, "ValueError: could not convert string to float: 'high'"),
    ]
    given = iter([each for pair in wrong for each in (pair[0], "A")])

    def answer(_: Sample) -> Any:
        value = next(given)
        if isinstance(value, Exception):
            raise value
        return value

    replies = list(CallableRespondent(answer).answer([sample] * 2 * len(wrong)))
    assert [reply.failure for reply in replies[::2]] == [why for _, why in wrong]
    assert {reply.text for reply in replies[1::2]} == {"A"}
    (open_one,) = CallableRespondent(lambda _: {"": 1}).answer([replace(sample, choices=(), kind="text")])
    assert open_one.failure == "function scored ''; expected text or a number, as the sample has no choices"


# ------------------------------------------------------------------------------------------------------ by one string


def test_a_string_names_a_respondent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text("def ask(sample):\n    return 'A'\nclass Made: pass\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(respondent("reader", device="cpu"), ReaderRespondent)
    assert respondent("reader", device="cpu", blind=True).name == "reader, blind"
    function = respondent("python:my_model:ask", name="mine")
    assert isinstance(function, CallableRespondent)
    assert [reply.text for reply in function.answer([asking(0, pictures=[blank(9, 20)])])] == ["A"]
    served = respondent("http://localhost:9/v1", model="m", family="qwen3-vl")
    assert isinstance(served, ServerRespondent)
    assert (served.name, served.facts["family"]) == ("m", "qwen3-vl")


def test_a_respondent_of_a_module_is_taken_as_it_is() -> None:
    assert respondent(f"python:{__name__}:MADE") is MADE


MADE = CallableRespondent(oracle, name="made")


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("readers", {}, r"model is 'readers'; expected reader, hf:FOLDER, http://HOST:PORT/v1 or python:MODULE:FUNC"),
        ("", {}, r"model is ''; expected reader"),
        ("hf:", {}, r"model is 'hf:'; expected"),
        ("python:json", {}, r"model is 'python:json'; expected"),
        ("python::dumps", {}, r"model is 'python::dumps'; expected"),
        ("python:json:nothing", {}, r"model is 'python:json:nothing', and json has no nothing"),
        ("reader", {"parallel": 3}, r"parallel is no option of 'reader'; expected one of reader, device, move, name"),
        ("http://localhost:9/v1", {}, r"model is missing for 'http://localhost:9/v1'; expected it among the options"),
        ("http://", {"model": "m"}, r"url is 'http://'; expected http:// or https://, up to /v1"),
        ("hf:/nowhere/at/all", {}, r"model is '/nowhere/at/all'; expected a folder with a config.json"),
        ("http://localhost:9/v1", {"model": "m", "family": "minicpm-v4.7"}, r"minicpm-v4\.7, which cuts pictures"),
        ("http://localhost:9/v1", {"model": "m", "family": "gpt"}, r"gpt"),
    ],
)
def test_a_wrong_string_gets_one_clear_error(spec: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        respondent(spec, **options)
    assert "\n" not in str(caught.value)


def test_any_word_is_no_true_and_no_dtype() -> None:
    boolean, dtype = "expected true or false", "expected float32, bfloat16 or float16"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"blind": "maybe"}, f"blind is 'maybe'; {boolean}"),
        ({"random_weights": "maybe"}, f"random_weights is 'maybe'; {boolean}"),
        ({"plug": "maybe"}, f"plug is 'maybe'; {boolean}, or options"),
        ({"plug": 3}, f"plug is 3; {boolean}, or options"),
        ({"dtype": "float7"}, f"dtype is 'float7'; {dtype}"),
        ({"dtype": "int8"}, f"dtype is 'int8'; {dtype}"),
    ]
    # In a process of its own, since here types are checked before the library looks.
    script = (
        "from mrope.probes.spatial import respondent\n"
        f"for options in {[options for options, _ in wrong]}:\n"
        "    try:\n        respondent('hf:/nowhere', **options)\n"
        "    except (TypeError, ValueError) as error:\n        print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [why for _, why in wrong], run.stderr


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ImportError, match="no_such_module"):
        respondent("python:no_such_module:ask")


# ----------------------------------------------------------------------------------------------- rules of the scores


class Signs:
    """A tokenizer of one token a character, but "th", and "?A" behind a prompt, are one."""

    def __call__(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        tokens = [ord(sign) for sign in text.replace("th", "\x01").replace("?A", "\x02")]
        return type("Row", (), {"input_ids": tokens})()


def test_the_steps_of_choices_by_hand() -> None:
    assert choice_steps(["the", "cat"], Signs(), "Which? ", [9]) == {
        "the": [(1,), (ord("e"),)],
        "cat": [(ord("c"),), (ord("a"),), (ord("t"),)],
    }
    # A sign that would melt into the prompt is taken as it is alone.
    assert choice_steps(["A", "B"], Signs(), "Which?", []) == {"A": [(65,)], "B": [(66,)]}


def test_choices_that_begin_others_all_end() -> None:
    steps = choice_steps(["1", "12", "3"], Signs(), "", [7, 8])
    assert steps == {"1": [(49,), (7, 8)], "12": [(49,), (50,), (7, 8)], "3": [(51,), (7, 8)]}
    assert suffixes(steps) == [(49, 50), (51,)]
    with pytest.raises(ValueError, match="one choice begins another, and the model has no eos_token_id"):
        choice_steps(["1", "12"], Signs(), "", [])


def test_choices_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"choices 'th' and '\\x01' have the same tokens \[1\]"):
        choice_steps(["th", "\x01"], Signs(), "", [])
    with pytest.raises(ValueError, match="choice '' has no tokens"):
        choice_steps(["a", ""], Signs(), "", [])


def test_a_longer_choice_pays_for_each_of_its_tokens() -> None:
    # Three words of a half, a quarter and a quarter, in each place.
    row = torch.tensor([0.5, 0.25, 0.25]).log()
    steps: dict[str, list[tuple[int, ...]]] = {"a": [(0,)], "bc": [(1,), (2,)], "cb": [(2,), (1, 2)]}
    behind = suffixes(steps)
    assert behind == [(1,), (2,)]
    scores = choice_scores(steps, behind, [torch.stack([row, row])] * 2)
    expected = {"a": math.log(1 / 2), "bc": math.log(1 / 16), "cb": math.log(1 / 4 * 1 / 2)}
    assert scores == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------------------------------------- tiny models, by family


@cache
def tokenizer(name: str) -> Any:
    """One token a sign, with the special tokens of the family, and a chat template with its markers."""
    special = SPECIAL | (COMPASS if name == "cohere-compass" else {})
    ids = {sign: number for number, sign in enumerate(LETTERS, 20)} | {"<unk>": 0, "\n": 498} | dict(special.values())
    split = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    template = TEMPLATE
    if name == "cohere-compass":
        template = template.replace("<|image_pad|>", "<|IMAGE_PAD|>").replace("<|video_pad|>", "<|VIDEO_PAD|>")
    if name == "hunyuan-vl":
        template = template.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image><|image_pad|></image>")
    if name.startswith("gl"):
        template = template.replace("<|video_pad|>".join(QWEN), "<|video_pad|>".join(GLM))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=split,
        unk_token="<unk>",
        pad_token="<unk>",
        extra_special_tokens={attribute: word for attribute, (word, _) in special.items()},
        chat_template=template,
    )


@cache
def tiny(name: str) -> tuple[Any, Any]:
    """A model with random weights whose words are far from equally likely, and our processor for it."""
    if name == "qwen2-vl":
        model, family = tiny_model(name), small(name)
    else:
        model, family = copy.deepcopy(model_of(MODELS[name])), replace(small(name), patch=16)
    with torch.no_grad():
        model.get_output_embeddings().weight *= 20
    return model, processor(family, tokenizer=tokenizer(name))


@pytest.fixture(scope="module")
def shown() -> list[Sample]:
    """Two pictures and choices of several lengths; one picture behind a longer prompt; an uneven clip."""
    tall, wide, other = (picture_of(sample) for sample in samples("cell", shapes=((5, 2), (2, 6), (3, 5)), each=1))
    clip = Clip(tuple(picture.resize((151, 92)) for picture in (tall, wide, other)), (0.0, 0.5, 2.0))
    return [
        asking("B", 0, "LOOK", 1, "A?", pictures=[tall, wide], kind="choice", choices=("AB", "A", "CD", "ABC", "Z")),
        asking("C ", 0, " A?", pictures=[clip], kind="choice", choices=("A", "B")),
        asking("LOOK CLOSELY ", 0, "WHICH?", pictures=[other], kind="choice", choices=("Q", "Z", "X9")),
    ]


def by_plain_loop(who: TransformersRespondent, sample: Sample, choice: str) -> float:
    """The score of a choice, from forwards of one row without padding, a token at a time."""
    inputs, _ = who._inputs(sample)
    tokens = [tokenizer("").convert_tokens_to_ids(sign) for sign in choice]
    ends = [2] if "AB" in sample.choices else []  # of that sample one choice begins another
    total = 0.0
    for at, token in enumerate([*tokens, *ends]):
        more = torch.tensor([tokens[:at]], dtype=torch.int64)
        row = dict(inputs)
        for name, new in (("input_ids", more), ("attention_mask", torch.ones_like(more))):
            row[name] = torch.cat([row[name], new], dim=1)
        if "mm_token_type_ids" in row:
            row["mm_token_type_ids"] = torch.cat([row["mm_token_type_ids"], torch.zeros_like(more).int()], dim=1)
        with torch.no_grad(), nullcontext() if who.plug is None else plug(who.model):
            total += who.model(**row).logits[0, -1].log_softmax(-1)[token].item()
    return total


@pytest.mark.parametrize("plugged", [False, True], ids=["own", "plugged"])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_a_plain_loop(name: str, plugged: bool, shown: list[Sample]) -> None:
    model, made = tiny(name)
    who = TransformersRespondent(model, made, plug=plugged, batch=8)
    replies = list(who.answer(shown))
    spread = set()
    for sample, reply in zip(shown, replies, strict=True):
        assert reply.failure == ""
        expected = {choice: by_plain_loop(who, sample, choice) for choice in sample.choices}
        assert reply.scores == pytest.approx(expected, rel=1e-4, abs=1e-4)
        spread |= set(expected.values())
    assert max(spread) - min(spread) > 0.5  # there is something to tell apart
    assert not hasattr(model, "_mrope_plug")


def test_positions_that_are_plugged_change_the_scores(shown: list[Sample]) -> None:
    model, made = tiny("qwen2-vl")
    sample = shown[1]  # the text behind a clip is where transformers has other positions
    frames = tuple(picture_of(shown[2]).resize((151, 92)) for _ in range(24))
    longer = replace(sample, pictures=(Clip(frames, tuple(at / 2 for at in range(len(frames)))),))
    (own,), (ours,) = (
        TransformersRespondent(model, made, plug=plugged).answer([longer]) for plugged in (False, {"rotary": True})
    )
    assert own.scores != ours.scores


@pytest.mark.parametrize("name", FIVE)
def test_models_with_random_weights_sit_at_chance(name: str) -> None:
    who = TransformersRespondent(*tiny(name), random_weights=True)
    assert who.facts["random weights"] == "yes"
    asked = samples("neighbour", shapes=((3, 5), (4, 3)), each=2)
    asked = [sample for index, sample in enumerate(asked) if index % 2]  # the questions out and back belong together
    cells = samples("cell", shapes=((3, 5), (4, 3)), each=24)
    assert likely(right(who, cells), len(cells), 1 / 24)
    assert likely(right(who, asked), len(asked), 1 / 4)


def test_the_batch_changes_nothing(shown: list[Sample]) -> None:
    model, made = tiny("qwen3-vl")
    asked = [*shown, *samples("cell", shapes=((3, 5),), each=3), asking(0, "A", pictures=[blank(60, 90)])]
    one, all_at_once = (
        list(TransformersRespondent(model, made, batch=batch, new_tokens=4).answer(asked)) for batch in (1, 8)
    )
    assert [reply.text for reply in one] == [reply.text for reply in all_at_once]
    for alone, together in zip(one, all_at_once, strict=True):
        assert (alone.scores or {}) == pytest.approx(together.scores or {}, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", FIVE)
def test_what_is_written_is_what_the_model_generates(name: str) -> None:
    model, made = tiny(name)
    asked = [asking("LOOK ", 0, " A?", pictures=[blank(90, 50)]), asking("B", 0, pictures=[blank(40, 130)])]
    replies = TransformersRespondent(model, made, new_tokens=5, batch=1).answer(asked)
    for sample, reply in zip(asked, replies, strict=True):
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in sample.prompt
        ]
        text = made.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = made(text=[text], images=[sample.pictures[0]], return_tensors="pt")
        written = model.generate(**inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)
        expected = made.tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert (reply.text, reply.scores, reply.failure) == (expected, None, "")


def test_boxes_come_back_by_the_plans() -> None:
    model, made = tiny("qwen2.5-vl")
    film = Clip((blank(92, 151), blank(92, 151)), (0.0, 1.0))
    asked = asking(1, "A", 0, pictures=[blank(170, 310), film], kind="box", box=(1, 2, 3, 4))
    (reply,) = TransformersRespondent(model, made, new_tokens=1).answer([asked])
    still, moving = reply.plans
    assert still is not None
    assert moving is not None
    assert still == plan((170, 310), made.family)
    assert (still.resized, moving.original, moving.frames) == ((160, 320), (92, 151), 2)
    down, across = 170 / 160, 310 / 320
    (box,) = still.decode_boxes([[32, 16, 96, 48]])
    assert box == pytest.approx((32 * across, 16 * down, 96 * across, 48 * down))


def test_a_processor_of_transformers_has_no_plans() -> None:
    model, made = tiny("qwen2-vl")
    asked = asking(0, "A", pictures=[blank(170, 310)], kind="box", box=(1, 2, 3, 4))
    if not transformers.__version__.startswith("5.24."):
        pytest.skip("made from the settings of transformers 5.24")
    who = TransformersRespondent(model, theirs("qwen2-vl", made), new_tokens=1)
    (reply,) = who.answer([asked])
    assert (reply.failure, reply.plans) == ("", ())
    assert re.search(
        r"the sample wants 50 tokens .* whose limits are not known", who.refuses(replace(asked, max_tokens=50))
    )


@this_version
def test_a_family_that_is_none_of_ours_is_asked_too(shown: list[Sample]) -> None:
    words: dict[str, Any] = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**small, num_hidden_layers=2, image_size=56, patch_size=14),
        text_config=transformers.LlamaConfig(**small, **words, num_hidden_layers=2, max_position_embeddings=2048),
        image_token_index=500,
    )
    model: Any = transformers.LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight *= 20
    size = {"shortest_edge": 56}
    made = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(size=size, crop_size={"height": 56, "width": 56}),
        tokenizer("qwen2-vl"),
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<|image_pad|>",
        num_additional_image_tokens=1,
        chat_template=tokenizer("qwen2-vl").chat_template,
    )
    who = TransformersRespondent(model, made, batch=4)
    assert who.facts["family"] == "llava"
    asked = [*shown, asking(0, "A", pictures=[blank(60, 90)], kind="choice", choices=("A", "B"))]  # the clip as frames
    for sample, reply in zip(asked, who.answer(asked), strict=True):
        assert reply.failure == ""
        expected = {choice: by_plain_loop(who, sample, choice) for choice in sample.choices}
        assert reply.scores == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl", "glm4v", "paddleocr-vl"])
def test_a_budget_of_tokens_is_kept(name: str) -> None:
    if name not in MODELS:
        pytest.skip(f"transformers {transformers.__version__} does not have it")
    who = TransformersRespondent(*tiny(name))
    picture = asking("A", 0, pictures=[blank(340, 620)], kind="choice", choices=("A", "B"))
    counts = []
    for most in (None, 60, 12):
        inputs, _ = who._inputs(replace(picture, max_tokens=most))
        counts.append(int((inputs["input_ids"] == 500).sum()))
    assert counts[0] > 60
    assert 40 < counts[1] <= 60
    assert 6 < counts[2] <= 12
    film = Clip((blank(92, 151), blank(92, 151)), (0.0, 1.0))
    assert re.search(
        "wants 12 tokens a picture, and shows a clip", who.refuses(replace(picture, pictures=(film,), max_tokens=12))
    )


def test_a_picture_that_passes_its_budget_is_not_asked_about() -> None:
    """A strip of 20 x 600 is 7 tokens of 28 pixels at least: a side is never shorter than one."""
    who = TransformersRespondent(*tiny("qwen2-vl"))
    strip = asking("A", 0, pictures=[blank(20, 600)], kind="choice", choices=("A", "B"))
    assert (
        who.refuses(replace(strip, max_tokens=2)) == "the sample wants 2 tokens a picture, and qwen2-vl makes 7 of one"
    )
    assert who.refuses(replace(strip, max_tokens=30)) == ""
    inputs, _ = who._inputs(replace(strip, max_tokens=30))
    assert int((inputs["input_ids"] == 500).sum()) <= 30


def test_frames_are_told_by_their_own_times() -> None:
    film = Clip(tuple(blank(92, 151, level) for level in (10, 60, 120, 250)), (0.0, 0.5, 3.0, 3.5))
    asked = asking(0, "A", pictures=[film], kind="choice", choices=("A", "B"))
    _, made = tiny("qwen3-vl")
    inputs, _ = TransformersRespondent(*tiny("qwen3-vl"))._inputs(asked)
    # A step of two frames is told by the middle of their times.
    text = made.tokenizer.decode(inputs["input_ids"][0]).replace(" ", "").replace("<|video_pad|>", "")
    stamps = [part for part in text.split("<unk>") if part.replace(".", "").isdigit()]
    assert stamps == ["0.2", "3.2"]  # 0.25 and 3.25, as the family writes them
    inputs, _ = TransformersRespondent(*tiny("qwen2.5-vl"))._inputs(asked)
    assert float(inputs["second_per_grid_ts"][0]) == pytest.approx(2 * 3.5 / 3, rel=1e-3)


def test_a_family_without_clips_is_shown_its_frames() -> None:
    who = TransformersRespondent(*tiny("paddleocr-vl"))
    film = Clip((blank(92, 151), blank(60, 151)), (0.5, 2.0))
    inputs, text = who._inputs(asking(0, "A", pictures=[film]))
    assert len(inputs["image_grid_thw"]) == 2
    assert text.index("0.5 seconds:") < text.index("<|image_pad|>") < text.index("2 seconds:")


def test_a_sample_that_fails_does_not_spoil_its_batch(shown: list[Sample]) -> None:
    who = TransformersRespondent(*tiny("qwen2.5-vl"))
    thin = asking(0, "A", pictures=[blank(2, 900)], kind="choice", choices=("A", "B"))
    same = replace(shown[2], choices=("~", "^"))  # both unknown to the tokenizer
    first, second, third, last = who.answer([shown[2], thin, same, shown[0]])
    assert re.search("ValueError: .*900 wide x 2 high", second.failure)
    assert third.failure == "ValueError: choices '~' and '^' have the same tokens [0]; expected others"
    (alone,) = who.answer([shown[0]])
    assert last.scores == pytest.approx(alone.scores, rel=1e-4)
    assert first.scores is not None


# ------------------------------------------------------------------------------------------------- folders, built ones


@this_version
def test_a_folder_with_and_without_weights(tmp_path: Path, shown: list[Sample]) -> None:
    model, made = tiny("qwen2-vl")
    made.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no weights; expected \*\.safetensors in it, or random_weights=True"):
        respondent(f"hf:{tmp_path}", device="cpu")
    first, again = (respondent(f"hf:{tmp_path}", device="cpu", random_weights=True) for _ in range(2))
    assert (first.facts["random weights"], first.facts["family"]) == ("yes", "qwen2-vl")
    assert first.name == tmp_path.name
    assert [one.scores for one in first.answer(shown)] == [one.scores for one in again.answer(shown)]
    model.save_pretrained(tmp_path)
    loaded = respondent(f"hf:{tmp_path}", device="cpu")
    assert (loaded.facts["random weights"], loaded.facts["dtype"]) == ("no", "float32")
    expected = list(TransformersRespondent(model, made).answer(shown))
    for one, other in zip(loaded.answer(shown), expected, strict=True):
        assert one.scores == pytest.approx(other.scores, rel=1e-4)


def test_arguments_that_cannot_be_are_refused() -> None:
    model, made = tiny("qwen2-vl")
    with pytest.raises(ValueError, match="processor is None; expected that of the model"):
        TransformersRespondent(model)
    with pytest.raises(ValueError, match="device is 'cuda' and dtype None; expected None with a model that is given"):
        TransformersRespondent(model, made, device="cuda")
    with pytest.raises(ValueError, match="batch is 0; expected at least 1"):
        TransformersRespondent(model, made, batch=0)
    with pytest.raises(ValueError, match="tokenizer is None, and the processor has none"):
        TransformersRespondent(model, lambda sample: {})
    with pytest.raises(ValueError, match="processor is '/nowhere'; expected a folder that is there"):
        TransformersRespondent(model, "/nowhere")


def test_a_built_model_is_asked_through_a_function(shown: list[Sample]) -> None:
    model = tiny_vlm()
    with torch.no_grad():
        model.get_output_embeddings().weight *= 20

    def inputs(sample: Sample) -> dict[str, Any]:
        patches = model.config.record.patchify(list(sample.pictures))
        tokens: list[int] = []
        for part in sample.prompt:
            if isinstance(part, str):
                tokens += [ord(sign) for sign in part]
            else:
                tokens += [model.config.image_token_id] * patches.plans[part].tokens
        return {
            "input_ids": torch.tensor([tokens]),
            "pixel_values": patches.values,
            "image_grid_thw": patches.grids,
        }

    who = TransformersRespondent(model, inputs, tokenizer=Signs(), random_weights=True)
    asked = [sample for sample in shown if not isinstance(sample.pictures[0], Clip)]
    for sample, reply in zip(asked, who.answer(asked), strict=True):
        assert reply.failure == ""
        row = inputs(sample)
        for choice in sample.choices:
            tokens, total = [ord(sign) for sign in choice], 0.0
            for at, token in enumerate([*tokens, *([3] if "AB" in sample.choices else [])]):
                ids = torch.cat([row["input_ids"], torch.tensor([tokens[:at]], dtype=torch.int64)], dim=1)
                with torch.no_grad():
                    logits = model(**{**row, "input_ids": ids}).logits[0, -1]
                total += logits.log_softmax(-1)[token].item()
            assert reply.scores is not None
            assert reply.scores[choice] == pytest.approx(total, rel=1e-4, abs=1e-4)
