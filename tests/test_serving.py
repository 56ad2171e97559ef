"""Positions as vLLM wants them, from values by hand; and requests whose pictures a server does not resize again."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from every_family import config_of, installed
from pictures import photograph
from PIL import Image
from test_processor import ours
from tiny_models import IMAGE, VIDEO, VISION_END, VISION_START, tiny_config, tiny_model

import mrope
from mrope.hf import chat_request, vllm_positions
from mrope.vision import patchify, plan

A, B, STAMP = 11, 12, 13
BEGIN, END = VISION_START, VISION_END
TALL, WIDE = (1, 4, 2), (1, 2, 6)  # 2 x 1 and 1 x 3 tokens
# name -> family, tokens, what came with them, (t, h, w) of each token, delta. Written down by vLLM's rule: the next
# span starts at the largest position + 1, and delta is the largest + 1 - tokens.
TABLE: dict[str, tuple[str, list[int], dict[str, Any], list[list[int]], int]] = {}
for _name in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl"):
    TABLE[f"{_name}, text"] = (_name, [A, B, A], {}, [[0, 1, 2]] * 3, 0)
    TABLE[f"{_name}, a picture of 2 x 3"] = (
        _name,
        [A, BEGIN, *[IMAGE] * 6, END, B],
        {"image_grid_thw": [[1, 4, 6]]},
        [[0, 1, 2, 2, 2, 2, 2, 2, 5, 6], [0, 1, 2, 2, 2, 3, 3, 3, 5, 6], [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]],
        -3,
    )
    TABLE[f"{_name}, two pictures"] = (
        _name,
        [A, BEGIN, IMAGE, IMAGE, END, BEGIN, IMAGE, IMAGE, IMAGE, END],
        {"image_grid_thw": [TALL, WIDE]},
        [[0, 1, 2, 2, 4, 5, 6, 6, 6, 9], [0, 1, 2, 3, 4, 5, 6, 6, 6, 9], [0, 1, 2, 2, 4, 5, 6, 7, 8, 9]],
        0,
    )
    TABLE[f"{_name}, a prompt that ends on a picture"] = (
        _name,
        [A, *[IMAGE] * 6],
        {"image_grid_thw": [[1, 6, 4]]},
        [[0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 2, 2, 3, 3], [0, 1, 2, 1, 2, 1, 2]],
        -3,
    )
_CLIP = [A, BEGIN, *[VIDEO] * 10, END]  # 5 frames of 2 x 1
_H = [0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3]
TABLE["qwen2-vl, a clip"] = (
    "qwen2-vl",
    _CLIP,
    {"video_grid_thw": [[5, 4, 2]]},
    [[0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7], [*_H, 7], [0, 1, *[2] * 10, 7]],
    -5,
)
TABLE["qwen2.5-vl, a clip of 0.75 seconds a step, 1.5 positions, cut to whole ones"] = (
    "qwen2.5-vl",
    _CLIP,
    {"video_grid_thw": [[5, 4, 2]], "second_per_grid_ts": [0.75]},
    [[0, 1, 2, 2, 3, 3, 5, 5, 6, 6, 8, 8, 9], [*_H, 9], [0, 1, *[2] * 10, 9]],
    -3,
)
TABLE["qwen2.5-vl, a clip without times, one second a step"] = (
    "qwen2.5-vl",
    _CLIP,
    {"video_grid_thw": [[5, 4, 2]]},
    [[0, 1, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 11], [*_H, 11], [0, 1, *[2] * 10, 11]],
    -1,
)
TABLE["qwen3-vl, a clip of two frames with time stamps"] = (
    "qwen3-vl",
    [A, *[STAMP, STAMP, BEGIN, *[VIDEO] * 6, END] * 2],
    {"video_grid_thw": [[2, 4, 6]]},
    [
        [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 7, 8, 9, 10, 11, 11, 11, 11, 11, 11, 14],
        [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 7, 8, 9, 10, 11, 11, 11, 12, 12, 12, 14],
        [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 11, 12, 13, 14],
    ],
    -6,
)
by_case = pytest.mark.parametrize("case", TABLE)


@by_case
def test_positions_and_delta_of_vllm(case: str) -> None:
    name, tokens, media, expected, delta = TABLE[case]
    ids, got = vllm_positions({"input_ids": tokens, **media}, tiny_config(name))
    assert ids.dtype == torch.int64
    assert (ids.tolist(), got) == (expected, delta)


@by_case
def test_steps_of_decoding_stand_at_slot_plus_delta(case: str) -> None:
    name, tokens, media, expected, _ = TABLE[case]
    batch = {key: torch.tensor(value) for key, value in media.items()}
    ids, delta = vllm_positions({"input_ids": torch.tensor([tokens]), **batch}, tiny_config(name))
    assert ids.tolist() == expected
    largest = max(map(max, expected))
    steps = [slot + delta for slot in range(len(tokens), len(tokens) + 3)]
    assert steps == [largest + 1, largest + 2, largest + 3]


def test_padding_is_no_part_of_a_request() -> None:
    inputs = {
        "input_ids": torch.tensor([[0, 0, A, *[IMAGE] * 6]]),
        "attention_mask": torch.tensor([[0, 0, *[1] * 7]]),
        "image_grid_thw": torch.tensor([[1, 6, 4]]),
    }
    ids, delta = vllm_positions(inputs, tiny_config("qwen2-vl"))
    assert (ids[1].tolist(), delta) == ([0, 1, 1, 2, 2, 3, 3], -3)


def test_several_rows_and_pictures_without_grids_are_refused() -> None:
    with pytest.raises(ValueError, match=r"input_ids have 2 rows; expected one"):
        vllm_positions({"input_ids": torch.tensor([[A, B], [B, A]])}, tiny_config("qwen2-vl"))
    with pytest.raises(ValueError, match=r"no image_grid_thw came"):
        vllm_positions({"input_ids": [A, IMAGE]}, tiny_config("qwen2-vl"))


def test_configurations_inputs_and_tokens_of_other_kinds_are_refused() -> None:
    config = tiny_config("qwen2.5-vl")
    for other in (config.to_dict(), "qwen2.5-vl", None, tiny_model("qwen2.5-vl")):
        with pytest.raises(TypeError, match=r"config is a \w+; expected the transformers configuration of a model"):
            vllm_positions({"input_ids": [A, B]}, other)
    for other in (None, [A, B]):
        with pytest.raises(TypeError, match=r"inputs|type"):
            vllm_positions(other, config)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"input_ids is of torch.float32; expected whole numbers"):
        vllm_positions({"input_ids": [A, 1.5]}, config)
    with pytest.raises(ValueError, match=r"inputs hold image_grid; expected only input_ids, .*image_grid_thw"):
        vllm_positions({"input_ids": [A, B], "image_grid": [[1, 4, 6]]}, config)


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")  # transformers hands tensors to numpy
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_what_a_processor_gives_is_taken_whole(name: str) -> None:
    mine = ours(name)
    picture = photograph("coffee").resize((310, 170))
    frames = torch.zeros(6, 3, 70, 130, dtype=torch.uint8)
    metadata = {"total_num_frames": 6, "fps": 2.0, "frames_indices": list(range(6))}
    made = mine(
        text=f"what {mine.image_token} is {mine.video_token} this",
        images=picture,
        videos=[frames],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_tensors="pt",
        return_positions=True,
    )
    assert "pixel_values_videos" in made
    ids, delta = vllm_positions(made, tiny_config(name))
    assert torch.equal(ids, made["position_ids"][:, 0])
    assert delta == int(made["position_ids"].max()) + 1 - ids.shape[1]


@pytest.mark.skipif(not installed("hunyuan_vl"), reason="this transformers has no HunYuan-VL")
def test_families_for_which_vllm_has_other_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hunyuan_vl is a XdLayout; expected a GridLayout"):
        vllm_positions({"input_ids": [A, B]}, config_of("hunyuan_vl"))


# ------------------------------------------------------------------------------------------------------- a client


def pixels_of(part: dict[str, Any]) -> Image.Image:
    """What a server decodes."""
    head, _, data = part["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    return Image.open(BytesIO(base64.b64decode(data)))


def talk(*sources: Any) -> list[dict[str, Any]]:
    pictures = [{"type": "image", "image": source} for source in sources]
    return [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [*pictures, {"type": "text", "text": "where?"}]},
    ]


@contextmanager
def server(status: int = 200, said: bytes | None = None) -> Iterator[tuple[str, list[tuple[str, Any, dict[str, Any]]]]]:
    """A server that notes what comes, and its address."""
    seen: list[tuple[str, Any, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers, json.loads(body)))
            answer = {"choices": [{"message": {"role": "assistant", "content": "[84, 28, 140, 56]"}}]}
            data = said or json.dumps(answer if status == 200 else {"error": "no such model"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}/v1", seen
        made.shutdown()
        thread.join(10)


@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def test_a_server_of_other_limits_makes_the_patches_that_were_planned(name: str, tmp_path: Path) -> None:
    photo, path = photograph("chelsea").resize((310, 170)), tmp_path / "page.png"
    photograph("coffee").resize((530, 90)).save(path)
    family = replace(mrope.family(name), image_tokens=(4, 60), image_pixels=None)
    request = chat_request(talk(photo, path), family, model="served")
    parts = [part for part in request.body["messages"][1]["content"] if part["type"] == "image_url"]
    images = [pixels_of(part) for part in parts]
    # The processor of a server whose own limits would enlarge both pictures.
    limits = {"shortest_edge": 500 * 500, "longest_edge": 600 * 600}
    made = transformers.Qwen2VLImageProcessor(
        patch_size=family.patch, image_mean=list(family.mean), image_std=list(family.std), size=limits
    )
    enlarged = made(images=images, return_tensors="pt")
    kept = made(images=images, return_tensors="pt", **request.body["mm_processor_kwargs"])
    expected = patchify([photo, path], family)
    assert enlarged["image_grid_thw"].tolist() != expected.grids.tolist()
    assert kept["image_grid_thw"].tolist() == expected.grids.tolist() == [list(one.grid) for one in request.plans]
    assert torch.equal(kept["pixel_values"], expected.values)


def test_a_request_and_the_way_back(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    Image.fromarray(np.arange(170 * 310 * 3, dtype=np.uint32).astype(np.uint8).reshape(170, 310, 3)).save(path)
    request = chat_request(talk(path), mrope.family("qwen2.5-vl"), model="served", temperature=0)
    with server() as (url, seen):
        answer = request.send(url, key="secret")
    ((where, headers, body),) = seen
    assert (where, headers["Authorization"]) == ("/v1/chat/completions", "Bearer secret")
    assert body == request.body
    assert (body["model"], body["temperature"], body["messages"][0]["content"]) == ("served", 0, "be brief")
    assert body["mm_processor_kwargs"] == {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}
    assert pixels_of(body["messages"][1]["content"][0]).size == (308, 168)
    box = json.loads(answer["choices"][0]["message"]["content"])
    (got,) = request.plans[0].decode_boxes([box])
    scale = 310 / 308, 170 / 168
    assert got == pytest.approx((84 * scale[0], 28 * scale[1], 140 * scale[0], 56 * scale[1]))


def test_fewer_tokens_a_picture() -> None:
    picture = np.zeros((500, 900, 3), dtype=np.uint8)
    request = chat_request(talk(picture), mrope.family("qwen3-vl"), model="served", picture_tokens=100)
    (planned,) = request.plans
    assert planned.tokens <= 100
    assert planned.resized == plan((500, 900), mrope.family("qwen3-vl"), max_tokens=100).resized
    assert pixels_of(request.body["messages"][1]["content"][0]).size == planned.resized[::-1]


def test_text_alone_and_own_fields() -> None:
    request = chat_request([{"role": "user", "content": "hello"}], mrope.family("qwen2-vl"), model="served", seed=1)
    assert request.body == {"model": "served", "messages": [{"role": "user", "content": "hello"}], "seed": 1}
    assert request.plans == ()


@pytest.mark.parametrize("name", [name for name in mrope.family_names() if name not in ("minicpm-v4.7", "glm-image")])
def test_sizes_stay(name: str) -> None:
    family, picture = mrope.family(name), np.zeros((300, 710, 3), dtype=np.uint8)
    request = chat_request(talk(picture), family, model="served")
    sent = pixels_of(request.body["messages"][1]["content"][0])
    again = plan((sent.size[1], sent.size[0]), family)
    assert (again.resized, again.grid) == (request.plans[0].resized, request.plans[0].grid)


def test_families_that_resize_their_own_sizes_are_refused() -> None:
    picture = np.zeros((634, 956, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"becomes \(320, 480\) .* would make \(256, 384\) of that"):
        chat_request(talk(picture), mrope.family("glm-image"), model="served")
    with pytest.raises(ValueError, match=r"family is minicpm-v4\.7, which cuts pictures into slices"):
        chat_request(talk(picture), mrope.family("minicpm-v4.7"), model="served")


def test_what_is_refused() -> None:
    family = mrope.family("qwen2-vl")
    part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    with pytest.raises(ValueError, match=r"message 0 has a part of type 'image_url'"):
        chat_request([{"role": "user", "content": [part]}], family, model="served")
    request = chat_request([{"role": "user", "content": "hello"}], family, model="served")
    with pytest.raises(ValueError, match=r"url is 'file:///x'; expected http"):
        request.send("file:///x")
    with server(404) as (url, _), pytest.raises(RuntimeError, match=r"the server answered 404: .*no such model"):
        request.send(url)


QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def test_too_few_tokens_a_picture_are_refused_by_the_name_that_they_were_given() -> None:
    picture, family = np.zeros((1000, 700, 3), dtype=np.uint8), mrope.family("qwen3-vl")
    with pytest.raises(ValueError, match=r"^picture_tokens is 20; expected at least 64$"):
        chat_request(talk(picture), family, model="served", picture_tokens=20)
    with pytest.raises((TypeError, ValueError), match=r"picture_tokens"):
        chat_request(talk(picture), family, model="served", picture_tokens=1.5)  # pyright: ignore[reportArgumentType]
    # 9 x 6 tokens of 32 pixels are fewer than the least, 64.
    message = r"becomes \(288, 192\) .* make \(320, 224\) of that: expected a size that stays, which picture_tokens="
    with pytest.raises(ValueError, match=message) as refused:
        chat_request(talk(picture), family, model="served", picture_tokens=64)
    would_do = int(str(refused.value).partition("picture_tokens=")[2].split()[0])
    (planned,) = chat_request(talk(picture), family, model="served", picture_tokens=would_do).plans
    assert 64 <= planned.tokens <= would_do < 100


@pytest.mark.parametrize(
    ("key", "value"), [("max_pixels", 7840), ("min_pixels", 784), ("detail", "high"), ("size", {"longest_edge": 7840})]
)
def test_sizes_that_a_picture_states_do_not_vanish(key: str, value: Any) -> None:
    messages = talk(np.zeros((300, 500, 3), dtype=np.uint8))
    messages[1]["content"][0] |= {key: value}
    message = rf"^message 1 has a picture with {key}; expected none of it: picture_tokens and family say its size$"
    with pytest.raises(ValueError, match=message):
        chat_request(messages, "qwen2.5-vl", model="served")
    messages[1]["content"][0] |= {key: None}  # as tables of several kinds of parts have it
    (planned,) = chat_request(messages, "qwen2.5-vl", model="served").plans
    assert planned.resized == (308, 504)
    assert planned.tokens == 11 * 18


def test_fields_by_which_the_server_would_resize_are_refused() -> None:
    messages = talk(np.zeros((300, 500, 3), dtype=np.uint8))
    for extra in ({"max_pixels": 39200}, {"min_pixels": 784}, {"size": {"longest_edge": 39200}}, {"merge_size": 1}):
        message = rf"mm_processor_kwargs sets {next(iter(extra))}, .*; expected picture_tokens=\.\.\., or a family"
        with pytest.raises(ValueError, match=message):
            chat_request(messages, "qwen2.5-vl", model="served", mm_processor_kwargs=extra)
    request = chat_request(messages, "qwen2.5-vl", model="served", mm_processor_kwargs={"fps": 2})
    limits = {"shortest_edge": 3136, "longest_edge": 12845056}
    assert request.body["mm_processor_kwargs"] == {"size": limits, "fps": 2}


def test_a_family_may_be_named() -> None:
    picture = np.zeros((300, 500, 3), dtype=np.uint8)
    named = chat_request(talk(picture), "qwen2.5-vl", model="served")
    assert named.body == chat_request(talk(picture), mrope.family("qwen2.5-vl"), model="served").body


def test_calls_of_tools_have_no_content() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
        {"role": "assistant", "tool_calls": [call]},
    ]
    assert chat_request(messages, mrope.family("qwen2-vl"), model="served").body["messages"] == messages


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (QUESTION[0], "messages"),
        ("hello", "messages"),
        ([{"content": "hello"}], "message 0 is .*; expected"),
        ([QUESTION], "message|type"),
        ([{"role": "assistant"}], "content of message 0 is None; expected text, or a list of parts"),
        ([{"role": "user", "content": None}], "content of message 0 is None"),
        ([{"role": "user", "content": 5}], "content of message 0 is 5"),
        ([{"role": "user", "content": ["hello"]}], "message 0 has a part 'hello'; expected"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "message 0 has a part of type 'text'"),
    ],
    ids=str,
)
def test_messages_of_other_kinds_are_refused(messages: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        chat_request(messages, mrope.family("qwen2-vl"), model="served")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model is ''; expected the name of the served model"),
        ({"family": None}, "family"),
        ({"family": "qwen9-vl"}, "unknown family 'qwen9-vl'"),
        ({"temperature": float("nan")}, "the fields temperature are no JSON"),
        ({"seed": np.int64(3)}, "the fields seed are no JSON: .*int64"),
        ({"mm_processor_kwargs": None}, "mm_processor_kwargs is None; expected a dict"),
    ],
    ids=str,
)
def test_fields_of_other_kinds_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"family": mrope.family("qwen2-vl"), "model": "served"} | options
    with pytest.raises((TypeError, ValueError), match=message):
        chat_request(QUESTION, **given)


def test_addresses_and_answers_of_other_kinds() -> None:
    family = mrope.family("qwen2-vl")
    request = chat_request(QUESTION, family, model="served")
    with server() as (url, seen):
        for end in ("", "/", "/chat/completions", "/chat/completions/"):
            request.send(url + end)
        streamed = chat_request(QUESTION, family, model="served", stream=True)
        with pytest.raises(ValueError, match="stream is True; expected a request without it"):
            streamed.send(url)
        with pytest.raises(ValueError, match="messages is empty"):
            chat_request([], family, model="served").send(url)
    assert [path for path, _, _ in seen] == ["/v1/chat/completions"] * 4
    with pytest.raises(TypeError, match="url"):
        request.send(None)  # pyright: ignore[reportArgumentType]
    for said in (b"<html>busy</html>", b"[1, 2]"):
        with (
            server(said=said) as (url, _),
            pytest.raises(RuntimeError, match="answered 200 and no JSON object") as what,
        ):
            request.send(url)
        assert said.decode() in str(what.value)
