"""The processors of transformers with our plans and patches in them give what they gave without, to the bit."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import timm
import torch
import transformers
from every_family import MODEL_TYPES, config_of, installed, model_of
from pictures import encoded, noise, photograph
from PIL import Image
from sources import ROOT
from tiny_models import tiny_model
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.video_utils import VideoMetadata

import mrope
from mrope.hf import build_vlm, plug, processor, read_positions
from mrope.vision import Clip, clip_of, pdf_pages, plan

QWEN = ("<|vision_start|>", "<|vision_end|>")
GLM = ("<|begin_of_video|>", "<|end_of_video|>")
# Attribute of the tokenizer -> its word and that word's id, which is the one of the configurations of every_family.
SPECIAL = {
    "image_token": ("<|image_pad|>", 500),
    "video_token": ("<|video_pad|>", 501),
    "audio_token": ("<|audio_pad|>", 502),
    "vision_start_token": (QWEN[0], 503),
    "vision_end_token": (QWEN[1], 504),
    "vision_bos_token": (QWEN[0], 503),
    "vision_eos_token": (QWEN[1], 504),
    "audio_bos_token": ("<|audio_start|>", 505),
    "audio_eos_token": ("<|audio_end|>", 506),
    "image_start_token": ("<image>", 507),
    "image_end_token": ("</image>", 508),
    "begin_of_video_token": (GLM[0], 509),
    "end_of_video_token": (GLM[1], 510),
    "slice_start_token": ("<slice>", 496),
    "slice_end_token": ("</slice>", 497),
    "image_id_start_token": ("<image_id>", 480),
    "image_id_end_token": ("</image_id>", 481),
    "video_start_token": ("<|VIDEO_START|>", 482),
    "video_end_token": ("<|VIDEO_END|>", 483),
    "begin_of_image_token": ("<|begin_of_image|>", 484),
    "end_of_image_token": ("<|end_of_image|>", 485),
    "grid_bos_token": ("<sop>", 486),
    "grid_eos_token": ("<eop>", 487),
    "document_token": ("<doc>", 5),
    "row_token": ("<row>", 489),
}
COMPASS = {
    "image_token": ("<|IMAGE_PAD|>", 500),
    "video_token": ("<|VIDEO_PAD|>", 501),
    "vision_start_token": ("<|VISION_START|>", 503),
    "vision_end_token": ("<|VISION_END|>", 504),
    "vision_bos_token": ("<|VISION_START|>", 503),
    "vision_eos_token": ("<|VISION_END|>", 504),
}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# transformers hands tensors to numpy.
pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
THREE = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")


@cache
def tokenizer(name: str = "") -> Any:
    """Words, digits and special tokens, with the attributes that the processors look for."""
    special = SPECIAL | (COMPASS if name == "cohere-compass" else {})
    words = ["<bos>", " ", *("what", "is", "this", "user", "assistant", ":", "?"), *"0123456789"]
    ids = {word: number for number, word in enumerate(words, 20)} | {"<unk>": 0, "\n": 498} | dict(special.values())
    split = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=split,
        unk_token="<unk>",
        pad_token="<unk>",
        bos_token="<bos>",
        extra_special_tokens={attribute: word for attribute, (word, _) in special.items()},
        chat_template=TEMPLATE,
    )


def ours(name: str) -> Any:
    return processor(small(name), tokenizer=tokenizer(name))


def small(name: str) -> mrope.Family:
    """The record with limits that tests can afford, and that pictures reach."""
    from dataclasses import replace

    family = mrope.family(name)
    changes: dict[str, Any] = {}
    if family.image_tokens is not None:
        changes |= {"image_tokens": (40, 90), "image_pixels": None}
    if family.video_pixels is not None:
        changes["video_pixels"] = (40 * family.factor**2, 400 * family.factor**2)
    if family.slices is not None:
        changes["slices"] = (224, 4)
    return replace(family, **changes)


def built(name: str) -> bool:
    """Whether this version of transformers has the family's processor."""
    try:
        ours(name)
    except ValueError as error:
        if "has no" not in str(error):
            raise
        return False
    return True


ALL = [name for name in mrope.family_names() if built(name)]
CLIPS = [name for name in ALL if mrope.family(name).sampling is not None]
MODELS = {
    name: model_type
    for name in ALL
    for model_type in MODEL_TYPES
    if model_type in mrope.family(name).model_types and installed(model_type) and name != "neomme"
}
this_version = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="compared with the processors of transformers 5.24 only"
)


def test_families_that_this_version_lacks() -> None:
    if missing := set(mrope.family_names()) - set(ALL):
        pytest.skip(f"transformers {transformers.__version__} has no processor of {', '.join(sorted(missing))}")


def theirs(name: str, mine: Any) -> Any:
    """A processor of transformers with the same settings, made from what ours writes."""
    parts = {}
    for part in mine.get_attributes():
        own = getattr(mine, part)
        base = next(one for one in type(own).__mro__ if one.__module__.startswith("transformers."))
        parts[part] = own if part in ("tokenizer", "feature_extractor") else base(**own.to_dict())
    made = mine.base(**parts, chat_template=mine.chat_template)
    if hasattr(made, "videos_kwargs"):  # the record's limits instead of those of the omni processors
        made.videos_kwargs = mine.videos_kwargs
    if mine.record.name == "cosmos3-edge":  # what its processor of 5.24 lacks: its model refuses what it gives
        made.videos_kwargs, made.return_mm_token_type_ids = {"return_metadata": True}, True
    return made


def assert_same(made: Any, expected: Any) -> None:
    assert list(made) == list(expected)
    for key, value in expected.items():
        if isinstance(value, Tensor):
            assert made[key].dtype == value.dtype, key
            assert made[key].shape == value.shape, key
            assert torch.equal(made[key], value), key
        else:
            assert made[key] == value, key


def assert_equal(made: Any, expected: Any) -> None:
    """The same, but for how lists and tensors are nested."""
    assert list(made) == list(expected)
    for key, value in expected.items():
        assert torch.equal(torch.as_tensor(made[key]), torch.as_tensor(value)), key


def photos() -> list[np.ndarray]:
    sizes = {"coffee": (310, 170), "chelsea": (130, 290), "rocket": (64, 64), "astronaut": (400, 110)}
    return [np.array(photograph(name).resize(size)) for name, size in sizes.items()]


def clip(frames: int, height: int, width: int, fps: float = 24.0) -> tuple[Tensor, VideoMetadata]:
    generator = torch.Generator().manual_seed(frames)
    pixels = torch.randint(0, 256, (frames, 3, height, width), dtype=torch.uint8, generator=generator)
    indices = [round(7.5 * number) for number in range(frames)]
    return pixels, VideoMetadata(total_num_frames=400, fps=fps, frames_indices=indices, duration=400 / fps)


@this_version
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", THREE)
def test_a_batch_of_pictures_and_clips_is_the_librarys(name: str, side: str) -> None:
    mine = ours(name)
    image, video = (f"{QWEN[0]}{token}{QWEN[1]}" for token in (mine.image_token, mine.video_token))
    video = mine.video_token if name == "qwen3-vl" else video
    text = [f"what is {image} and {image}?", "no picture", f"this {video} {image} {video} is {image}"]
    clips = [clip(5, 90, 250), clip(2, 250, 90, 30.0)]
    inputs = {
        "text": text,
        "images": [photos()[:2], [], photos()[2:]],
        "videos": [[], [], [frames for frames, _ in clips]],
        "video_metadata": [about for _, about in clips],
        "do_sample_frames": False,
        "padding": True,
        "padding_side": side,
        "return_tensors": "pt",
    }
    assert_same(mine(**inputs), theirs(name, mine)(**inputs))


@this_version
@pytest.mark.parametrize("name", ALL)
def test_a_record_goes_through_the_librarys_settings_and_back(name: str) -> None:
    mine, record = ours(name), small(name)
    for field in ("patch", "temporal_patch", "merge", "mean", "std", "image_tokens", "slices", "layout"):
        assert getattr(mine.family, field) == getattr(record, field), field
    if name in CLIPS:
        tuned = mine.video_processor.tuned()
        assert tuned.colours("clip") == record.colours("clip")
        for field in ("patch", "temporal_patch", "merge", "video_pixels", "frame_pixels", "slices"):
            assert getattr(tuned, field) == getattr(record, field), field


WRAPPED: dict[str, tuple[str, str]] = dict.fromkeys(("hunyuan-vl", "glm-image"), ("<image>", "</image>"))
SHOWN: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("glm4v", "glm4v-moe", "glm46v", "glm-ocr", "glmga"), GLM),
    **dict.fromkeys(("qwen2-vl", "qwen2.5-vl", "qwen2.5-omni", "qwen3-omni", "cosmos3-edge"), QWEN),
    "ernie4.5-vl": ("<|VIDEO_START|>", "<|VIDEO_END|>"),
}


@this_version
@pytest.mark.parametrize("name", ALL)
def test_a_batch_of_pictures_is_the_librarys_in_every_family(name: str) -> None:
    mine = ours(name)
    begin, end = WRAPPED.get(name, QWEN)
    image = f"{begin}{mine.image_token}{end}"
    inputs: dict[str, Any] = {"images": photos(), "padding": True, "padding_side": "left", "return_tensors": "pt"}
    if name == "neomme":
        inputs["text"] = None
    elif name == "glm-image":
        inputs["text"] = [f"what {image} is {image}", f"{image} {image} ?"]
    else:
        inputs["text"] = [f"what is {image}", f"{image} is {image} or {image} this"]
    assert_same(mine(**inputs), theirs(name, mine)(**inputs))


@this_version
@pytest.mark.parametrize("name", CLIPS)
def test_clips_are_the_librarys_in_every_family(name: str) -> None:
    mine, (begin, end) = ours(name), SHOWN.get(name, ("", ""))
    video = f"{begin}{mine.video_token}{end}"
    clips = [clip(5, 90, 250), clip(2, 250, 90, 30.0), clip(12, 70, 170)]
    inputs = {
        "text": [f"what is {video}", f"{video} is {video} or this"],
        "videos": [[frames for frames, _ in clips[:1]], [frames for frames, _ in clips[1:]]],
        "video_metadata": [about for _, about in clips],
        "do_sample_frames": False,
        "padding": True,
        "return_tensors": "pt",
    }
    assert_same(mine(**inputs), theirs(name, mine)(**inputs))


UNSAMPLED = ("qwen2-vl", "qwen2.5-vl", "qwen2.5-omni", "qwen3-omni")
"""Families whose processors in transformers 5.24 fail when they are to sample and nobody says how many frames."""


@this_version
@pytest.mark.parametrize("options", [{}, {"fps": 3}, {"num_frames": 16}], ids=str)
@pytest.mark.parametrize("name", CLIPS)
def test_frames_are_picked_as_the_library_does(name: str, options: dict[str, Any]) -> None:
    mine, (begin, end) = ours(name), SHOWN.get(name, ("", ""))
    frames = clip(40, 64, 90)[0]
    about = {"total_num_frames": 40, "fps": 10.0, "duration": 4.0}
    inputs: dict[str, Any] = {
        "text": f"what is {begin}{mine.video_token}{end}",
        "videos": frames,
        "return_tensors": "pt",
        "return_metadata": True,
    }
    made = mine(**inputs, video_metadata=[about], do_sample_frames=True, **options)
    reference = theirs(name, mine)
    rule = options or ({"fps": 2} if name in UNSAMPLED else {})
    picked = np.asarray(reference.video_processor.sample_frames(metadata=VideoMetadata(**about), **rule)).tolist()
    expected = reference(
        **inputs | {"videos": frames[picked]},
        video_metadata=[VideoMetadata(**about, frames_indices=picked)],
        do_sample_frames=False,
        **(options if "omni" in name else {}),  # which makes seconds of it
    )
    assert_same(made, expected)


@pytest.mark.parametrize("known", ["record", "folder"])
@pytest.mark.parametrize("name", MODELS)
def test_position_ids_of_pictures_are_those_of_the_models(name: str, known: str, tmp_path: Path) -> None:
    mine = ours(name)
    if known == "folder":
        mine.save_pretrained(tmp_path)
        config_of(MODELS[name]).save_pretrained(tmp_path)
        mine = processor(tmp_path)
    begin, end = WRAPPED.get(name, QWEN)
    image = f"{begin}{mine.image_token}{end}"
    made = mine(text=f"what is {image} and {image}?", images=photos()[:2], return_tensors="pt", return_positions=True)
    model = model_of(MODELS[name])
    taken = [key for key in made if key in inspect.signature(model.get_rope_index).parameters]
    ids, _ = model.get_rope_index(**{key: made[key] for key in taken})
    assert made["position_ids"].shape == ids.shape
    assert torch.equal(made["position_ids"], ids)


@pytest.mark.parametrize("name", THREE)
def test_a_model_that_gets_position_ids_is_one_that_is_plugged(name: str) -> None:
    mine, model = ours(name), tiny_model(name)
    frames, about = clip(24, 70, 130)  # long enough for text behind it to be where transformers 5.24 does not put it
    made = mine(
        text=[f"what {mine.video_token} is {mine.image_token}?", "this"],
        images=photos()[0],
        videos=[frames],
        video_metadata=[about],
        do_sample_frames=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
        return_positions=True,
    )
    positions = made.pop("position_ids")
    with torch.no_grad():
        logits = model(**made, position_ids=positions).logits
        with plug(model):
            expected = model(**made).logits
    assert torch.equal(logits[0], expected[0])
    kept = made["attention_mask"][1].bool()
    assert torch.equal(logits[1, kept], expected[1, kept])


def test_clips_of_every_kind() -> None:
    mine = ours("qwen2-vl")
    frames, about = clip(4, 70, 130)
    rows = frames.permute(0, 2, 3, 1).contiguous().numpy()
    pictures = [Image.fromarray(one) for one in rows]
    read = clip_of(frames, seconds=[index / 24 for index in about.frames_indices or ()])
    expected = mine(text=mine.video_token, videos=[frames])
    for one in (rows, list(frames), pictures, read, frames[None], [rows], [pictures], [[read]]):
        assert_equal(mine(text=mine.video_token, videos=one), expected)
    single = mine(text=mine.video_token, videos=pictures[0])
    assert_equal(single, mine(text=mine.video_token, videos=frames[:1]))


@this_version
def test_sound_goes_its_own_way() -> None:
    mine = ours("qwen2.5-omni")
    text = f"what {mine.audio_token} is {mine.image_token}"
    inputs: dict[str, Any] = {"text": text, "audio": [np.zeros(8000)], "images": photos()[:1], "return_tensors": "pt"}
    assert_same(mine(**inputs), theirs("qwen2.5-omni", mine)(**inputs))


# ------------------------------------------------------------------------------------------------ files and messages


def movie(path: Path, frames: int, height: int, width: int) -> Path:
    """A lossless clip of 10 frames a second."""
    with av.open(path, "w") as output:
        stream: Any = output.add_stream("png", rate=10)
        stream.height, stream.width, stream.pix_fmt = height, width, "rgb24"
        for pixels in clip(frames, height, width)[0]:
            picture = av.VideoFrame.from_ndarray(pixels.permute(1, 2, 0).contiguous().numpy(), format="rgb24")
            for packet in stream.encode(picture):
                output.mux(packet)
        for packet in stream.encode():
            output.mux(packet)
    return path


def folder_of(name: str, folder: Path) -> Path:
    """A checkpoint's folder without weights."""
    ours(name).save_pretrained(folder)
    config_of(MODELS[name]).save_pretrained(folder)
    return folder


def talk(*contents: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(contents)}]


@this_version
@pytest.mark.parametrize("name", THREE)
def test_a_conversation_with_files_is_the_librarys(name: str, tmp_path: Path) -> None:
    photo, film = tmp_path / "photo.jpg", movie(tmp_path / "clip.mov", 40, 64, 90)
    photo.write_bytes(encoded(photograph("coffee").resize((310, 170)), "JPEG"))
    text = {"type": "text", "text": "what is this?"}
    messages = [
        talk({"type": "image", "path": str(photo)}, text, {"type": "video", "path": str(film)}),
        talk(text),
        talk({"type": "image", "image": photos()[1]}, text),
    ]
    mine = processor(folder_of(name, tmp_path))
    words: dict[str, Any] = {"padding": True, "fps": 2, "return_positions": True}
    made = mine.apply_chat_template(
        messages,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs=words,
        add_generation_prompt=True,
    )
    positions = made.pop("position_ids")
    assert torch.equal(positions, read_positions(made, config_of(MODELS[name])))

    reference = theirs(name, mine)
    prompts = mine.apply_chat_template(messages, add_generation_prompt=True)
    if name == "qwen3-vl":
        prompts = [prompt.replace(QWEN[0] + mine.video_token + QWEN[1], mine.video_token) for prompt in prompts]
    about = VideoMetadata(total_num_frames=40, fps=10.0, duration=4.0)
    about.frames_indices = np.asarray(reference.video_processor.sample_frames(metadata=about, fps=2)).tolist()
    expected = reference(
        text=prompts,
        images=[Image.open(photo).convert("RGB"), photos()[1]],
        videos=[clip(40, 64, 90)[0][about.frames_indices]],
        video_metadata=[about],
        do_sample_frames=False,
        padding=True,
        return_tensors="pt",
    )
    assert_same(made, expected)


def test_a_conversation_is_planned_before_anything_is_decoded(tmp_path: Path) -> None:
    mine = processor(folder_of("qwen3-vl", tmp_path))
    photo, film = tmp_path / "photo.jpg", movie(tmp_path / "clip.mov", 40, 64, 90)
    photo.write_bytes(encoded(Image.fromarray(noise(300, 180)), "JPEG")[:800])  # the header alone
    messages = [talk({"type": "image", "path": str(photo)}), talk({"type": "video", "path": str(film)})]
    planned = mine.plan(messages, fps=2)
    assert [plan.original for plan in planned.images] == [(300, 180)]
    assert [plan.grid for plan in planned.images] == [(1, 18, 12)]
    assert [(plan.frames, plan.grid) for plan in planned.videos] == [(8, (4, 4, 6))]
    # user, colon, space, the pair around the picture, 9 x 6 tokens, space
    assert planned.tokens[0] == 3 + 2 + 54 + 1
    made = mine.apply_chat_template([messages[1]], tokenize=True, return_dict=True, processor_kwargs={"fps": 2})
    assert planned.tokens[1] == len(made["input_ids"][0])
    assert planned.videos[0].times == pytest.approx([0.3, 1.4, 2.5, 3.6])  # of frames 0, 6, 11, 17, 22, 28, 33, 39
    box = planned.images[0].decode_boxes([[500.0, 250.0, 1000.0, 500.0]])
    assert box == [[90.0, 75.0, 180.0, 150.0]]


@pytest.mark.parametrize("name", [name for name in ("qwen2.5-vl", "glm46v", "minicpm-v4.7", "neomme") if name in ALL])
def test_a_plan_has_as_many_tokens_as_the_batch(name: str) -> None:
    mine = ours(name)
    pieces = [{"type": "image", "image": one} for one in photos()[:2]]
    mine.chat_template = "{% for part in messages[0].content %}" + mine.image_token + "{% endfor %}"
    messages = talk(*pieces[:1]) if name == "neomme" else talk(*pieces)
    if name == "neomme":
        mine.chat_template = "<doc>" + mine.chat_template
    planned = mine.plan(messages)
    made = mine.apply_chat_template(messages, tokenize=True, return_dict=True)
    assert planned.tokens == (len(made["input_ids"][0]),)
    assert len(planned.images) == len(messages[0]["content"])


def test_a_folder_gives_its_own_limits_and_says_where_from(tmp_path: Path) -> None:
    mine = processor(folder_of("qwen2.5-vl", tmp_path))
    assert mine.family.pixel_limits == (31360, 70560)
    assert mine.sources == {
        "tokenizer": str(tmp_path),
        "chat_template": str(tmp_path / "chat_template.jinja"),
        "image_processor": f"31360 to 70560 pixels: {tmp_path / 'processor_config.json'}",
        "video_processor": f"31360 to 313600 pixels: {tmp_path / 'processor_config.json'}",
    }
    older = tmp_path / "older"
    older.mkdir()
    for file in tmp_path.glob("*.json*"):
        if file.name != "processor_config.json":
            (older / file.name).write_text(file.read_text())
    named = {"processor_class": "Qwen2_5_VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    (older / "preprocessor_config.json").write_text(json.dumps(named))
    stated = processor(older).sources["image_processor"]
    assert stated.endswith(f"class default of transformers, as {older / 'preprocessor_config.json'} states none")
    limits = {"min_pixels": 12544, "max_pixels": 50176, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    (older / "preprocessor_config.json").write_text(json.dumps(limits | named))
    mine = processor(older)
    assert mine.sources["image_processor"] == f"12544 to 50176 pixels: {older / 'preprocessor_config.json'}"
    made = mine(text=mine.image_token, images=photos()[0], return_tensors="pt")
    # 170 / 1.0248 = 5.9 and 310 / 1.0248 = 10.8 times 28 pixels, where 1.0248**2 = 170 * 310 / 50176
    assert made["image_grid_thw"].tolist() == [[1, 10, 20]]


def test_it_is_the_familys_class_and_is_saved_copied_and_pickled_as_such(tmp_path: Path) -> None:
    mine = ours("qwen3-vl")
    assert isinstance(mine, transformers.Qwen3VLProcessor)
    inputs = {"text": f"what is {mine.image_token}", "images": photos()[0], "return_tensors": "pt"}
    mine.save_pretrained(tmp_path)
    loaded = transformers.Qwen3VLProcessor.from_pretrained(tmp_path)
    assert type(loaded) is transformers.Qwen3VLProcessor
    assert_same(mine(**inputs), loaded(**inputs))
    for again in (pickle.loads(pickle.dumps(mine)), copy.deepcopy(mine)):
        assert type(again) is type(mine)
        assert_same(again(**inputs), mine(**inputs))
    assert mine.batch_decode([[22, 24]]) == ["what this"]


@this_version
def test_limits_and_types_of_a_call() -> None:
    mine = ours("qwen2-vl")
    inputs: dict[str, Any] = {"text": [mine.image_token, "is this", mine.image_token], "images": photos()[:2]}
    size = {"shortest_edge": 784, "longest_edge": 28 * 28 * 9}
    for options in ({"size": size}, {"images_kwargs": {"size": size}}, {"return_tensors": "np", "padding": True}, {}):
        made, expected = mine(**inputs, **options), theirs("qwen2-vl", mine)(**inputs, **options)
        assert list(made) == list(expected)
        for key in made:
            assert type(made[key]) is type(expected[key])
            assert np.array_equal(np.asarray(made[key], dtype=object), np.asarray(expected[key], dtype=object))
    assert mine(**inputs, max_pixels=28 * 28 * 9, min_pixels=784)["image_grid_thw"].tolist() == [[1, 4, 8], [1, 8, 4]]
    assert mine(text="what is this", return_tensors="pt").keys() == {"input_ids", "attention_mask", "mm_token_type_ids"}
    alone = mine.image_processor(photos()[0], return_tensors="pt")
    assert_same(alone, theirs("qwen2-vl", mine).image_processor(photos()[0], return_tensors="pt"))


# ------------------------------------------------------------------------- where transformers 5.24 leaves trained rules


@this_version
def test_cosmos3_edge_gives_token_types_and_takes_clips_9_8() -> None:
    mine = processor("cosmos3-edge", tokenizer=tokenizer())
    frames, about = clip(3, 70, 130)
    made = mine(text=mine.video_token, videos=[frames], video_metadata=[about], do_sample_frames=False)
    assert made["mm_token_type_ids"][0].count(2) == sum(h * w // 4 * t for t, h, w in made["video_grid_thw"].tolist())


@this_version
@pytest.mark.parametrize("name", ["qwen3-vl", "qwen3.5", "cohere-compass"])
def test_markers_around_a_clip_give_way_to_those_around_its_frames_9_9(name: str) -> None:
    mine = ours(name)
    begin, end = mine.vision_start_token, mine.vision_end_token
    frames, about = clip(3, 70, 130)
    inputs: dict[str, Any] = {"videos": [frames] * 2, "video_metadata": [about] * 2, "do_sample_frames": False}
    around = f"what{begin}{mine.video_token}{end}is{mine.video_token}this"
    made = mine(text=[around], **inputs, return_text_replacement_offsets=True)
    reference = theirs(name, mine)
    bare = reference(text=[around.replace(begin, "").replace(end, "")], **inputs)
    assert made["input_ids"] == bare["input_ids"]
    assert len(reference(text=[around], **inputs)["input_ids"][0]) == len(bare["input_ids"][0]) + 2
    (first, second) = made["text_replacement_offsets"][0]
    assert around[slice(*first["span"])] == begin + mine.video_token + end
    assert around[slice(*second["span"])] == mine.video_token
    assert first["new_span"][0] == first["span"][0]


@this_version
def test_a_clip_of_one_frame_9_18() -> None:
    mine = ours("qwen3-vl")
    frames, about = clip(1, 70, 130)
    made = mine(text=mine.video_token, videos=[frames], video_metadata=[about], do_sample_frames=False)
    assert made["video_grid_thw"][0, 0] == 1
    with pytest.raises(ValueError, match="must be larger than temporal_factor"):
        theirs("qwen3-vl", mine)(text=mine.video_token, videos=[frames], video_metadata=[about], do_sample_frames=False)


def test_metadata_that_are_given_stay_as_they_are_9_18() -> None:
    mine = ours("qwen3-vl")
    frames, about = clip(3, 70, 130)
    mine(text=mine.video_token, videos=[frames], video_metadata=[about], do_sample_frames=False)
    mine.video_processor([frames], video_metadata=[about], do_sample_frames=False)
    assert about.frames_indices == [0, 8, 15]


@this_version
def test_cosmos3_edge_takes_text_without_a_picture() -> None:
    mine = processor("cosmos3-edge", tokenizer=tokenizer())
    reference = theirs("cosmos3-edge", mine)
    for text, options in (("what is this", {}), (["what is", "this"], {"padding": True, "return_tensors": "pt"})):
        assert_same(mine(text=text, **options), reference(text=text, **options))
    # "user", ":", " this", " "
    assert mine.plan(talk({"type": "text", "text": "this"})).tokens == (4,)


@this_version
@pytest.mark.parametrize("name", [name for name in ALL if name not in ("minicpm-v4.7", "neomme")])
def test_a_picture_that_fits_is_taken_without_resizing(name: str) -> None:
    mine = ours(name)
    begin, end = WRAPPED.get(name, QWEN)
    picture = Image.fromarray(photos()[0])
    for _ in range(5):  # some rules make another size of their own
        height, width = plan(picture, small(name), conflict="family").resized
        picture = picture.resize((width, height))
    inputs = {"text": f"what is {begin}{mine.image_token}{end}", "images": [picture], "return_tensors": "pt"}
    assert_same(mine(**inputs, do_resize=False), theirs(name, mine)(**inputs, do_resize=False))
    assert_same(mine(**inputs, do_resize=False), mine(**inputs))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_pixels_of_0_to_255_are_bytes_in_any_dtype_and_order(dtype: type) -> None:
    mine, picture = ours("qwen2-vl"), photos()[0]
    expected = mine(text=mine.image_token, images=Image.fromarray(np.ascontiguousarray(picture[:, ::-1])))
    for one in (picture.astype(dtype)[:, ::-1], torch.from_numpy(picture.astype(dtype)).flip(1)):
        assert_equal(mine(text=mine.image_token, images=one), expected)


@this_version
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("name", THREE)
def test_a_clip_of_qwen_vl_utils_is_taken_without_resizing(name: str, dtype: torch.dtype) -> None:
    mine = ours(name)
    height, width = 6 * small(name).factor, 10 * small(name).factor
    frames, about = clip(4, height, width)
    inputs: dict[str, Any] = {
        "text": f"what is {mine.video_token}",
        "videos": [frames.to(dtype)],
        "video_metadata": [about],
        "do_sample_frames": False,
        "do_resize": False,
        "return_tensors": "pt",
    }
    assert_same(mine(**inputs), theirs(name, mine)(**inputs))
    message = f"do_resize is False and clip 0 is {height - 1} high x {width} wide; expected a size that {name} keeps"
    with pytest.raises(ValueError, match=message):
        mine(**inputs | {"videos": [frames[:, :, 1:]]})


@pytest.mark.parametrize("name", THREE)
def test_clips_and_pages_of_our_own_kinds_stand_in_messages(name: str, tmp_path: Path) -> None:
    mine, file = ours(name), tmp_path / "page.pdf"
    Image.fromarray(photos()[1]).save(file)
    (page,) = pdf_pages(file)
    frames, _ = clip(4, 70, 130)
    footage = clip_of(frames, fps=4)
    messages = talk({"type": "video", "video": footage}, {"type": "image", "image": page})
    made = mine.apply_chat_template(messages, tokenize=True, return_dict=True)
    prompt = mine.apply_chat_template(messages)
    about = {"total_num_frames": 4, "fps": 4.0, "frames_indices": [0, 1, 2, 3]}
    seen = {"videos": [frames], "video_metadata": [about], "do_sample_frames": False}
    assert_equal({**made}, {**mine(text=prompt, images=[page], **seen)})
    assert mine.plan(messages).tokens == (len(made["input_ids"][0]),)
    assert isinstance(messages[0]["content"][0]["video"], Clip)


TOOLS = [{"type": "function", "function": {"name": "this", "description": "what", "parameters": {}}}]


@pytest.mark.parametrize(
    "options",
    [
        {"add_generation_prompt": True},
        {"continue_final_message": True},
        {"tools": TOOLS},
        {"chat_template": "what is <|image_pad|>{{ messages[0].role }}"},
        {"thinking": True},
        {"processor_kwargs": {"max_pixels": 28 * 28 * 9, "min_pixels": 784}},
        {"processor_kwargs": {"padding": "max_length", "max_length": 300}, "add_generation_prompt": True},
    ],
    ids=str,
)
def test_options_of_the_template_count_in_a_plan(options: dict[str, Any]) -> None:
    mine = ours("qwen2-vl")
    extra = "{% if tools %}{{ tools[0].function.name }} {{ tools | length }} {% endif %}{% if thinking %}5 5{% endif %}"
    mine.chat_template = extra + TEMPLATE
    answer = {"role": "assistant", "content": [{"type": "text", "text": "is this"}]}
    messages = [*talk({"type": "image", "image": photos()[0]}, {"type": "text", "text": "what"}), answer]
    made = mine.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
    plain = mine.plan(messages)
    assert mine.plan(messages, **options).tokens == (sum(made["attention_mask"][0]),)
    assert mine.plan(messages, **options).tokens != plain.tokens


def test_an_option_that_nobody_knows_is_refused_by_a_plan() -> None:
    mine = ours("qwen2-vl")
    messages = talk({"type": "image", "image": photos()[0]})
    for options in ({"bogus": 1}, {"add_generation_promt": True}, {"processor_kwargs": {"max_pixel": 784}}):
        with pytest.raises(TypeError, match="is no word of the chat template and no option of Qwen2VLProcessor"):
            mine.plan(messages, **options)
    with pytest.raises(ValueError, match="messages is empty"):
        mine.plan([])
    with pytest.raises(TypeError, match="messages"):
        mine.plan("what is this")


# ---------------------------------------------------------------------------------------------------------- bad input


def test_more_pictures_than_placeholders_and_the_other_way_round() -> None:
    mine = ours("qwen2-vl")
    one, two = photos()[0], photos()[:2]
    token = re.escape(mine.image_token)
    for text, images, message in (
        (f"what {mine.image_token}", two, f"images has 2 for text, which has 1 {token}; expected one for each"),
        (f"what {mine.image_token * 2}", [one], f"images has 1 for text, which has 2 {token}; expected one for each"),
        (f"what {mine.image_token}", None, f"images has 0 for text, which has 1 {token}; expected one for each"),
        (
            [mine.image_token, mine.image_token * 2],
            [two, [one]],
            f"images has 2 for row 0 of text, which has 1 {token}; expected one for each",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            mine(text=text, images=images)
    with pytest.raises(ValueError, match="videos has 0 for text"):
        mine(text=mine.video_token)


def test_a_truncation_that_cuts_a_picture() -> None:
    mine = ours("qwen2-vl")
    text = [f"what is {mine.image_token}", "this"]
    length = len(mine(text=text, images=photos()[:1])["input_ids"][0])
    with pytest.raises(ValueError, match=f"truncated inside a picture or clip; expected max_length={length} or more"):
        mine(text=text, images=photos()[:1], truncation=True, max_length=20)
    kept = mine(text=text, images=photos()[:1], truncation=True, max_length=length)
    assert len(kept["input_ids"][0]) == length


@pytest.mark.skipif("ernie4.5-vl" not in ALL, reason="this version of transformers has no Ernie")
def test_a_checkpoint_whose_clips_are_not_built_still_takes_pictures(tmp_path: Path) -> None:
    file = folder_of("ernie4.5-vl", tmp_path) / "processor_config.json"
    stated = json.loads(file.read_text())
    stated["video_processor"] |= {"draw_on_frames": True, "font": "font.ttf"}
    file.write_text(json.dumps(stated))
    (tmp_path / "font.ttf").write_bytes(next((ROOT / "data" / "fonts").rglob("*.ttf")).read_bytes())
    mine = processor(tmp_path)
    refusal = "draw_on_frames is True; only False is built for ernie4.5-vl"
    assert mine.sources["video_processor"].startswith(f"clips are refused, {refusal}: ")
    assert mine(text=mine.image_token, images=photos()[0])["image_grid_thw"].tolist() == [[1, 12, 22]]
    with pytest.raises(ValueError, match=refusal):
        mine(text=mine.video_token, videos=[clip(4, 70, 90)[0]], do_sample_frames=False)
    inputs: dict[str, Any] = {"text": mine.video_token, "videos": [clip(4, 70, 90)[0]], "do_sample_frames": False}
    assert mine(**inputs, draw_on_frames=False)["video_grid_thw"][0, 0] == 4


def test_wrong_settings_and_sources_are_refused(tmp_path: Path) -> None:
    mine = ours("qwen2-vl")
    inputs: dict[str, Any] = {"text": mine.image_token, "images": photos()[0]}
    for options, message in (
        ({"do_resize": False}, "do_resize is False and picture 0 is 170 high x 310 wide; expected a size .* 168 x 308"),
        ({"do_rescale": False}, "do_rescale is False; only True is built for qwen2-vl"),
        ({"do_normalize": False}, "do_normalize is False; only True is built for qwen2-vl"),
        ({"size": {"height": 28, "width": 56}}, "expected shortest_edge and longest_edge, in pixels in all"),
        ({"resample": 2}, "resample is .*2.*; only 3 is built for qwen2-vl"),
    ):
        with pytest.raises(ValueError, match=message):
            mine(**inputs, **options)
    with pytest.raises(ValueError, match=r"rows have .* tokens; return_positions needs padding=True"):
        mine(text=["what is", "this"], return_positions=True)
    with pytest.raises(ValueError, match="tokenizer is None; expected one with the special tokens of qwen2-vl"):
        processor("qwen2-vl")
    with pytest.raises(ValueError, match="source is 'no/such'; expected a folder or one of qwen2-vl, "):
        processor("no/such")
    with pytest.raises(ValueError, match="video_metadata has no fps; expected it"):
        mine(text=mine.video_token, videos=[clip(5, 70, 90)[0]], do_sample_frames=True)
    with pytest.raises(ValueError, match="total_num_frames 400 for 5 frames; expected those of the whole clip"):
        mine(
            text=mine.video_token,
            videos=[clip(5, 70, 90)[0]],
            video_metadata=[clip(5, 70, 90)[1]],
            do_sample_frames=True,
        )
    with pytest.raises(ValueError, match="frames_indices for 5 frames; expected one a frame"):
        mine(text=mine.video_token, videos=[clip(5, 70, 90)[0]], video_metadata=[clip(4, 70, 90)[1]])
    with pytest.raises(ValueError, match="expected a file here, as clips are not fetched"):
        mine(text=mine.video_token, videos=["https://example.org/clip.mp4"])


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen3-vl"])
def test_a_built_model_has_the_processor_of_its_family(name: str, tmp_path: Path) -> None:
    language = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    vision = timm.create_model("vit_tiny_patch16_224", depth=1)
    model = build_vlm(vision, language, family=name, image_token_id=500, video_token_id=501).eval()
    model.save_pretrained(tmp_path)
    words = copy.deepcopy(tokenizer(name))
    for named in (None, "Qwen2VLProcessor"):  # as tokenizers of checkpoints name it
        words._processor_class = named
        words.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"image processor; expected the files of both, which processor\(family"):
            processor(tmp_path)
    asked: dict[str, Any] = {"text": "what <|image_pad|> is", "images": photos()[0], "return_tensors": "pt"}
    expected = processor(name, tokenizer=tokenizer(name))(**asked)
    for source in (model, model.config):
        made = processor(source, tokenizer=tokenizer(name))
        assert_same(made(**asked), expected)
    with torch.no_grad():
        logits = model(**expected).logits
        made.save_pretrained(tmp_path)
        again = processor(tmp_path)(**asked, return_positions=True)
        assert torch.equal(again["position_ids"], read_positions(dict(expected), model.config))
        assert torch.equal(model(**again).logits, logits)
    with pytest.raises(ValueError, match=rf"tokenizer is None; expected one with the special tokens of {name}"):
        processor(model)
    for other in (torch.nn.Linear(2, 3), tiny_model("qwen2-vl"), None):
        with pytest.raises(TypeError, match=rf"source is a {type(other).__name__}; expected a folder, the name of"):
            processor(other, tokenizer=tokenizer(name))


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("max_tokens", 10, "max_pixels="),
        ("picture_tokens", 3, "max_pixels="),
        ("conflict", "skip", "sizes follow the family's rule"),
    ],
)
def test_words_of_other_functions_are_refused_by_name(name: str, value: Any, right: str) -> None:
    mine = ours("qwen2-vl")
    asked: dict[str, Any] = {"text": mine.image_token, "images": photos()[0]}
    with pytest.raises(TypeError, match=rf"{name} is no option of Qwen2VLProcessor; expected .*{right}"):
        mine(**asked, **{name: value})


def test_positions_are_asked_for_by_true() -> None:
    mine = ours("qwen2-vl")
    for value in ("yes", 1, None):
        with pytest.raises(TypeError, match="return_positions"):
            mine(text="what", return_positions=value)


def test_limits_of_pixels_that_are_none_are_named() -> None:
    mine = ours("qwen2-vl")
    asked: dict[str, Any] = {"text": mine.image_token, "images": photos()[0]}
    least = mine.family.pixel_limits[0]
    with pytest.raises(ValueError, match=rf"max_pixels is 10; expected at least min_pixels, here {least}"):
        mine(**asked, max_pixels=10)
    with pytest.raises(ValueError, match="max_pixels is -1; expected at least 1"):
        mine(**asked, max_pixels=-1)
    with pytest.raises(ValueError, match="min_pixels is 0; expected at least 1"):
        mine(**asked, min_pixels=0)
    with pytest.raises(TypeError, match="max_pixels is 'many'; expected a whole number"):
        mine.image_processor(photos()[0], max_pixels="many")
    rows, columns = mine(**asked, max_pixels=2 * least)["image_grid_thw"][0, 1:].tolist()
    assert least <= rows * columns * mine.family.patch**2 <= 2 * least


def test_sources_and_tokenizers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="tokenizer is 'gpt2'; expected a tokenizer of transformers"):
        processor("qwen2-vl", tokenizer="gpt2")
    ours("qwen2-vl").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no config\.json, which names the model"):
        processor(tmp_path)
    plain = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "what": 1}, unk_token="<unk>")), unk_token="<unk>"
    )
    mine = processor("qwen2-vl", tokenizer=plain)
    assert mine(text="what")["input_ids"] == [[1]]
    with pytest.raises(ValueError, match=r"images came, and the tokenizer has no <\|image_pad\|>; expected the one of"):
        mine(text=mine.image_token, images=photos()[0])


@pytest.mark.parametrize("name", ["image_token_id", "video_token_id"])
def test_a_configuration_of_another_tokenizer_is_named_as_the_cause(name: str, tmp_path: Path) -> None:
    config = copy.deepcopy(config_of(MODELS["qwen2-vl"]))
    written = getattr(config, name)
    setattr(config, name, 77)
    ours("qwen2-vl").save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    mine = processor(tmp_path)
    inputs: dict[str, Any] = {
        "text": f"{mine.image_token} is {mine.video_token}",
        "images": photos()[0],
        "videos": [clip(4, 70, 90)[0]],
    }
    assert mine(**inputs)["input_ids"]
    with pytest.raises(ValueError, match=rf"{name} of the configuration is 77, and the tokenizer has {written}"):
        mine(**inputs, return_positions=True)


@pytest.mark.skipif("glm4v" not in MODELS, reason="this version of transformers has no GLM-4.1V")
def test_a_configuration_with_other_words_around_clips_is_named_as_the_cause(tmp_path: Path) -> None:
    config = copy.deepcopy(config_of(MODELS["glm4v"]))
    config.video_start_token_id = 77
    ours("glm4v").save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    mine = processor(tmp_path)
    inputs: dict[str, Any] = {"text": GLM[0] + mine.video_token + GLM[1], "videos": [clip(4, 70, 90)[0]]}
    seen = {"video_metadata": [clip(4, 70, 90)[1]], "do_sample_frames": False, "return_positions": True}
    with pytest.raises(ValueError, match="video_start_token_id of the configuration is 77, and the tokenizer has 509"):
        mine(**inputs, **seen)


def test_rates_and_sizes_that_are_none_are_refused(tmp_path: Path) -> None:
    mine, frames = ours("qwen2-vl"), clip(5, 70, 90)[0]
    with pytest.raises(ValueError, match="fps of video_metadata is 0; expected a finite number above 0"):
        mine(text=mine.video_token, videos=[frames], video_metadata=[{"total_num_frames": 5, "fps": 0.0}])
    with pytest.raises(ValueError, match="fps is -1; expected a finite number above 0"):
        mine(text=mine.video_token, videos=[frames], fps=-1)
    picture = tmp_path / "page.png"
    Image.fromarray(photos()[0]).save(picture)
    with pytest.raises(ValueError, match=r"video is '.*page\.png', without a frame rate"):
        mine(text=mine.video_token, videos=[str(picture)], fps=2, do_sample_frames=True)
    with pytest.raises(TypeError, match="size is 5; expected"):
        mine.image_processor(photos()[0], size=5)
    with pytest.raises(ValueError, match="text is None and return_positions is True"):
        mine(images=photos()[0], return_positions=True)
