"""Frames are picked as the families' own processors pick them, and their times are written in the same words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.models.cohere_compass.video_processing_cohere_compass import CohereCompassVideoProcessor
from transformers.models.cosmos3_edge.processing_cosmos3_edge import Cosmos3EdgeProcessor
from transformers.models.cosmos3_edge.video_processing_cosmos3_edge import Cosmos3EdgeVideoProcessor
from transformers.models.ernie4_5_vl_moe.video_processing_ernie4_5_vl_moe import Ernie4_5_VLMoeVideoProcessor
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor
from transformers.models.glmga.video_processing_glmga import GlmgaVideoProcessor
from transformers.models.hy_v4_vl.video_processing_hy_v4_vl import HYV4VLVideoProcessor
from transformers.models.minicpmv4_6.video_processing_minicpmv4_6 import MiniCPMV4_6VideoProcessor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.models.qwen3_5 import tokenization_qwen3_5
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from mrope import family, family_names
from mrope.families.sampling import QWEN_VL_UTILS, Sampling, SamplingRule, Stamp
from mrope.vision import clip_of

PROCESSORS = {
    "qwen2-vl": Qwen2VLVideoProcessor,
    "qwen3-vl": Qwen3VLVideoProcessor,
    "cohere-compass": CohereCompassVideoProcessor,
    "cosmos3-edge": Cosmos3EdgeVideoProcessor,
    "glm4v": Glm4vVideoProcessor,
    "glm46v": Glm46VVideoProcessor,
    "glmga": GlmgaVideoProcessor,
    "ernie4.5-vl": Ernie4_5_VLMoeVideoProcessor,
    "hy-v4-vl": HYV4VLVideoProcessor,
    "minicpm-v4.7": MiniCPMV4_6VideoProcessor,
}
COUNTED = [name for name in PROCESSORS if name[:3] in ("qwe", "coh", "cos", "ern", "hy-")]
CLIPPED = tuple(name for name in family_names() if family(name).sampling is not None)

TOTALS = st.one_of(st.integers(1, 40), st.integers(1, 20000))
RATES = st.one_of(st.sampled_from([10, 15, 24, 25, 30, 60, 24000 / 1001, 30000 / 1001]), st.floats(1, 120))
WANTED = st.one_of(st.sampled_from([0.5, 1, 1.5, 2, 4]), st.floats(0.1, 10))


def sampling(name: str) -> Sampling:
    rule = family(name).sampling
    assert rule is not None
    return rule


def processor(name: str) -> Any:
    """The video processor of a family as its class alone makes it: the picks need no files."""
    made = PROCESSORS[name].__new__(PROCESSORS[name])
    for attribute in ("num_frames", "fps"):
        if not hasattr(made, attribute):
            setattr(made, attribute, None)
    return made


def reference(name: str, total: int, source_fps: float, **asked: Any) -> list[int]:
    metadata = VideoMetadata(total_num_frames=total, fps=source_fps, duration=total / source_fps)
    return [int(index) for index in processor(name).sample_frames(metadata, **asked)]


@pytest.mark.parametrize("name", PROCESSORS)
@settings(max_examples=300, deadline=None)
@given(total=TOTALS, source_fps=RATES, fps=st.one_of(st.none(), WANTED))
def test_picks_equal_transformers(name: str, total: int, source_fps: float, fps: float | None) -> None:
    rule = sampling(name)
    asked: dict[str, Any] = {"fps": fps}
    if name in ("glm46v", "minicpm-v4.7"):  # they take no other rate
        fps, asked = None, {}
    elif name == "qwen2-vl":  # theirs has no default
        asked = {"fps": fps or 2}
    picks = rule.indices(total, source_fps, fps=fps)
    assert all(0 <= index < total for index in picks)
    try:
        expected = reference(name, total, source_fps, **asked)
    except (ZeroDivisionError, RuntimeError):
        assert rule.rule == "spaced"
        assert total < rule.multiple
        assert picks == [0] * rule.multiple
        return
    if not expected:
        assert rule.rule in ("ticks", "whole-ticks")
        assert picks == [0, 0]
    elif len(expected) == len(picks) + 1 and rule.rule in ("spaced", "stride"):
        assert expected[:-1] == picks  # a range of floats that went one step too far
    else:
        assert picks == expected


def test_the_original_picks_the_frame_beside() -> None:
    picks, theirs = sampling("qwen2-vl").indices(25471, 25, fps=2), reference("qwen2-vl", 25471, 25, fps=2)
    assert len(picks) == len(theirs) == 768
    assert picks[641] == 25471 * 641 // 768 == 21258  # 21258.9987, which float32 rounds up
    assert theirs[641] == 21259


@pytest.mark.parametrize("name", COUNTED)
@settings(max_examples=100, deadline=None)
@given(total=TOTALS, frames=st.integers(16, 180))
def test_so_many_frames_equal_transformers(name: str, total: int, frames: int) -> None:
    if frames > total:
        with pytest.raises(ValueError, match=f"frames is {frames}, and there are {total}; expected at most {total}"):
            sampling(name).indices(total, 30, frames=frames)
        return
    picks = sampling(name).indices(total, 30, frames=frames)
    multiple = sampling(name).multiple
    assert len(picks) == round(frames / multiple) * multiple
    if len(picks) > total:
        assert sorted(set(picks)) == list(range(total))  # transformers refuses; each frame comes, one of them twice
        return
    expected = reference(name, total, 30, num_frames=frames)
    assert picks == expected[: len(picks)]
    assert len(expected) - len(picks) <= (sampling(name).rule != "even")


@settings(max_examples=300, deadline=None)
@given(total=TOTALS, source_fps=RATES, fps=WANTED)
def test_qwen_vl_utils(total: int, source_fps: float, fps: float) -> None:
    picks = QWEN_VL_UTILS.indices(total, source_fps, fps=fps)
    if total < 2:
        assert picks == [0, 0]
        return
    most = min(768, total) // 2 * 2
    count = int(min(max(total / source_fps * fps, 4), most, total) // 2 * 2)
    step = (total - 1) / (count - 1)
    assert picks == [round(index * step) if index < count - 1 else total - 1 for index in range(count)]


@pytest.mark.parametrize(
    ("name", "total", "source_fps", "expected"),
    [
        ("qwen2-vl", 1, 30, [0, 0]),
        ("qwen2-vl", 3, 30, [0, 1]),
        ("qwen2-vl", 90, 30, [0, 15, 30, 45, 60, 75]),
        ("qwen3-vl", 1, 30, [0]),
        ("qwen3-vl", 3, 30, [0, 1, 2]),
        ("qwen3-vl", 90, 30, [0, 18, 36, 53, 71, 89]),
        ("glm4v", 1, 30, [0, 0]),
        ("glm4v", 75, 30, [0, 15, 30, 45, 60, 60]),
        ("glm46v", 1, 30, [0, 0]),
        ("glmga", 1, 30, [0, 0]),
        ("glmga", 12, 25, [0, 0]),
        ("ernie4.5-vl", 3, 30, [0, 1, 2]),
        ("minicpm-v4.7", 75, 30, [0, 30, 60]),
        ("minicpm-v4.7", 1, 30, [0]),
    ],
)
def test_worked_picks(name: str, total: int, source_fps: float, expected: list[int]) -> None:
    assert sampling(name).indices(total, source_fps) == expected


def test_families_without_clips_have_no_rule() -> None:
    without = {name for name in family_names() if family(name).sampling is None}
    assert without == {"glm-image", "paddleocr-vl", "hunyuan-vl", "neomme"}
    assert all(family(name).stamp is None for name in without)


def test_families_that_share_a_processor_share_a_rule() -> None:
    shared = {"qwen2-vl": ["qwen2.5-vl", "qwen2.5-omni", "qwen3-omni"], "glm4v": ["glm4v-moe"], "glm46v": ["glm-ocr"]}
    shared["qwen3-vl"] = ["qwen3.5", "qwen4-exp", "cosmos3-omni", "cohere-compass", "cosmos3-edge"]
    for name, others in shared.items():
        assert all(sampling(other) == sampling(name) for other in others)


def test_a_range_of_floats_goes_one_step_too_far() -> None:
    picks = sampling("qwen2-vl").indices(367, 24)  # 15.3 seconds, 2 frames a second: 30 frames in whole pairs
    assert picks == [step * 367 // 30 for step in range(30)]
    assert picks[-3:] == [330, 342, 354]
    # Their 30th step of 12.23... frames falls short of the end by a rounding: frame 367, of 0..366.
    assert reference("qwen2-vl", 367, 24, fps=2) == [*picks, 367]
    assert len(reference("qwen2-vl", 61, 24, num_frames=56)) == 57  # which is then filled up to 58
    picks = sampling("qwen2-vl").indices(61, 24, frames=56)
    assert picks == [step * 61 // 56 for step in range(56)]


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("total", [1, 2, 3, 5, 17, 4001])
def test_fps_with_a_cap(name: str, total: int) -> None:
    rule = sampling(name)
    for most in (2, 7, 64, 2000):
        picks = rule.indices(total, 30, fps=4, max_frames=most)
        assert max(1, rule.multiple) <= len(picks) <= most
        assert picks == sorted(picks)
        assert len(picks) % rule.multiple == 0
        assert 0 <= picks[0] <= picks[-1] < total


@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("total", [1, 2, 9, 4001])
@pytest.mark.parametrize("frames", [1, 4, 30])
def test_so_many_frames(name: str, total: int, frames: int) -> None:
    rule = sampling(name)
    if frames > total:
        with pytest.raises(ValueError, match=f"frames is {frames}, and there are {total}; expected at most {total}"):
            rule.indices(total, 30, frames=frames)
        return
    picks = rule.indices(total, 30, frames=frames)
    assert len(picks) == max(rule.multiple, frames)
    assert picks == sorted(picks)
    assert 0 <= picks[0] <= picks[-1] < total


def test_even_goes_from_the_first_frame_to_the_last() -> None:
    even = Sampling(rule="even")
    assert even.indices(101, 25, frames=5) == [0, 25, 50, 75, 100]
    assert even.indices(4, 25) == [0, 1, 2, 3]
    assert even.indices(4, 25, frames=3) == [0, 2, 3]  # 1.5 goes to the even 2
    assert even.indices(1000, 25, max_frames=3) == [0, 500, 999]


def test_a_cap_that_is_given_replaces_the_familys() -> None:
    two_hours = 2 * 3600 * 30
    assert len(sampling("qwen3-vl").indices(two_hours, 30)) == 768
    assert len(sampling("qwen3-vl").indices(two_hours, 30, max_frames=2000)) == 2000
    assert len(sampling("glm46v").indices(two_hours, 30)) == 640


def test_refusals() -> None:
    rule = sampling("qwen2-vl")
    for other in ({"fps": 2}, {"max_frames": 8}):
        with pytest.raises(ValueError, match=f"frames is 4 together with {next(iter(other))}; give frames alone"):
            rule.indices(10, 30, frames=4, **other)
    with pytest.raises(ValueError, match="total is 0; expected at least 1"):
        rule.indices(0, 30)
    with pytest.raises(ValueError, match="source_fps is 0; expected a finite number above 0"):
        rule.indices(10, 0)
    with pytest.raises(ValueError, match="max_frames is 1; expected at least 2"):
        rule.indices(10, 30, max_frames=1)
    with pytest.raises(ValueError, match="fps is -1; expected a finite number above 0"):
        rule.indices(10, 30, fps=-1)
    with pytest.raises(ValueError, match="frames is 0; expected at least 1"):
        rule.indices(10, 30, frames=0)
    with pytest.raises(TypeError):
        rule.indices(10, 30, frames=2.5)  # pyright: ignore[reportArgumentType]


def test_more_frames_than_there_are_were_repeated_in_silence() -> None:
    rule = sampling("qwen2-vl")
    with pytest.raises(ValueError, match="frames is 10, and there are 9; expected at most 9, or max_frames=10 instead"):
        rule.indices(9, 30, frames=10)
    assert rule.indices(9, 30, fps=30, max_frames=10) == list(range(8))  # what the message says would do
    assert rule.indices(3, 30, frames=3) == [0, 0, 1, 2]  # rounded up to pairs
    assert rule.indices(1, 30, frames=1) == [0, 0]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"rule": "ticks"}, "fps is None; the rule 'ticks' needs"),
        ({"rule": "even", "max_seconds": 300}, "max_seconds is 300; only the rule 'seconds-ceil' has one"),
        ({"rule": "ticks", "fps": 2, "min_frames": 4}, "min_frames is 4; the rule 'ticks' has none"),
        ({"rule": "even", "max_frames": 2, "min_frames": 4}, "max_frames is 2; expected at least 4"),
        ({"rule": "even", "fps": 0}, "fps is 0; expected a finite number above 0"),
    ],
)
def test_rules_that_contradict_themselves(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Sampling(**fields)


def prompt(name: str, made: Any, indices: list[int], source_fps: float) -> str:
    """The text that a transformers processor writes for a clip of 3 tokens a step."""
    self = object.__new__(made)
    record = family(name)
    for attribute in ("vision_start_token", "vision_end_token"):
        setattr(self, attribute, "")
    self.video_token = self.image_token = "."
    self.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=record.temporal_patch)
    steps = -(-len(indices) // record.temporal_patch)
    metadata = VideoMetadata(total_num_frames=99, fps=source_fps, frames_indices=list(indices))
    inputs = {"video_grid_thw": torch.tensor([[steps, 2, 6]]), "video_metadata": [metadata]}
    text = self.replace_video_token(inputs, 0)
    return text.replace("<|begin_of_image|>", "").replace("<|end_of_image|>", "")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("qwen3-vl", Qwen3VLProcessor),
        ("cosmos3-edge", Cosmos3EdgeProcessor),
        ("glm4v", Glm4vProcessor),
        ("glm46v", Glm46VProcessor),
        ("glmga", Glm46VProcessor),
    ],
)
@pytest.mark.parametrize("indices", [[0], [300, 315], [0, 7, 19, 60, 61, 62, 200], list(range(0, 4000, 37))], ids=len)
@pytest.mark.parametrize("source_fps", [30, 24000 / 1001, 7.5])
def test_stamps_equal_transformers(name: str, made: Any, indices: list[int], source_fps: float) -> None:
    record = family(name)
    clip = clip_of([np.zeros((2, 3), np.uint8)] * len(indices), seconds=[index / source_fps for index in indices])
    stamps = clip.stamps(record)
    assert record.stamp is not None
    assert stamps is not None
    written = [stamp + "..." if record.stamp.place == "before" else "..." + stamp for stamp in stamps]
    assert "".join(written) == prompt(name, made, indices, source_fps)


def test_worked_stamps() -> None:
    frame_300, frame_315 = 300 / 30, 315 / 30
    clip = clip_of([np.zeros((2, 3), np.uint8)] * 3, seconds=[frame_300, frame_315, 11])
    assert clip.stamps(family("qwen3-vl")) == ["<10.2 seconds>", "<11.0 seconds>"]
    assert clip.stamps(family("cosmos3-edge")) == ["<10.0 seconds>", "<10.5 seconds>", "<11.0 seconds>"]
    assert clip.stamps(family("glm4v")) == ["10", "11"]
    assert clip.stamps(family("glm46v")) == ["10.0 seconds", "11.0 seconds"]
    assert clip.stamps(family("qwen2.5-vl")) is None
    assert {name for name in family_names() if family(name).stamp} >= {"qwen3.5", "glm-ocr", "cosmos3-omni"}


def test_tokens_of_a_stamp() -> None:
    stamp = family("qwen3-vl").stamp
    assert stamp is not None
    texts = [stamp.text(seconds) for seconds in (0, 0.5, 9.96, 10.25, 99.95, 1234.5)]
    assert stamp.tokens(texts) == [6, 6, 7, 7, 7 + (texts[4] == "<100.0 seconds>"), 9]
    for pattern in (PRETOKENIZE_REGEX, tokenization_qwen3_5.PRETOKENIZE_REGEX):  # each piece of these is one token
        split = regex.compile(pattern)
        assert stamp.tokens(texts) == [len(split.findall(text)) for text in texts]
    # A public report counts 8 text tokens between the frames of a short clip: a stamp and two markers.
    assert stamp.tokens(["<0.5 seconds>"]) == [8 - 2]


def test_tokens_through_a_tokenizer() -> None:
    stamp = family("glm4v").stamp
    assert stamp is not None
    assert stamp.tokens(["7", "123"], tokenizer=lambda text: [0] * -(-len(text) // 3)) == [1, 1]
    with pytest.raises(ValueError, match="tokenizer is None, and it is not known how this family's tokenizer splits"):
        stamp.tokens(["7"])


def test_stamps_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="pieces is -1; expected at least 0"):
        Stamp(template="{whole}", place="after", time="first", pieces=-1)


def test_every_rule_is_some_familys() -> None:
    assert {sampling(name).rule for name in CLIPPED} == set(SamplingRule.__args__)  # pyright: ignore[reportAttributeAccessIssue]
