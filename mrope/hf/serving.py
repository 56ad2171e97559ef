"""Serving: positions as vLLM wants them, and requests to an OpenAI-compatible server with pictures already planned.

Letters: N tokens.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from jaxtyping import Int64
from torch import Tensor

from mrope.checks import Number, positive, whole
from mrope.families import Family
from mrope.families import family as family_called
from mrope.hf.reading import layout_of, read_spans
from mrope.layouts import GridLayout
from mrope.vision import Plan, patchify, plan, unpatchify

_BY_TOKEN = ("input_ids", "attention_mask", "mm_token_type_ids")
_READ = (*_BY_TOKEN, "image_grid_thw", "video_grid_thw", "second_per_grid_ts")
# What processors give beside it, and says nothing of positions.
_LEFT = (
    *("pixel_values", "pixel_values_videos", "video_metadata", "position_ids", "labels"),
    *("moe_mm_token_type_ids", "token_type_ids", "text_replacement_offsets"),
)
_SIZING = ("size", "min_pixels", "max_pixels", "patch_size", "merge_size")  # settings by which a server resizes


def vllm_positions(inputs: Mapping[str, Any], config: Any) -> tuple[Int64[Tensor, "3 n"], int]:
    """What vLLM's `get_mrope_input_positions` gives for a request: its positions, and its decode delta.

    vLLM numbers tokens by the rule that the weights were trained with: each span starts at the largest position of all
    axes + 1, and a generated token in slot s stands at s + delta on all axes, where delta is the largest position of
    the prompt + 1 - its tokens. In earlier versions it is `MRotaryEmbedding.get_input_positions_tensor`.

    Args:
        inputs: of one request: input_ids (1, N) or (N,), a list too, and image_grid_thw, video_grid_thw and
            second_per_grid_ts, as the processor of transformers gives them; padding, pixels and labels are left out.
        config: the model's transformers configuration.

    Raises:
        TypeError: `config` is none or its model none of ours, `inputs` is no mapping, or tokens are no whole numbers.
        ValueError: there are several rows or other inputs, pictures do not fit the placeholders, or the family's
            positions are no plain grids, for which vLLM has rules of its own.

    >>> from transformers import Qwen2VLConfig
    >>> config = Qwen2VLConfig(image_token_id=6, video_token_id=7)
    >>> ids, delta = vllm_positions({"input_ids": [1, 6, 6, 6, 2], "image_grid_thw": [[1, 2, 6]]}, config)
    >>> ids.tolist(), delta
    ([[0, 1, 1, 1, 4], [0, 1, 1, 1, 4], [0, 1, 2, 3, 4]], 0)
    """
    if not isinstance(getattr(config, "model_type", None), str):
        raise TypeError(f"config is a {type(config).__name__}; expected the transformers configuration of a model")
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs is a {type(inputs).__name__}; expected a mapping with input_ids")
    layout = layout_of(config)
    if not isinstance(layout, GridLayout):
        raise ValueError(
            f"layout of {config.model_type} is a {type(layout).__name__}; expected a GridLayout, the rule of vLLM that "
            "is known here"
        )
    if unknown := sorted(key for key, value in inputs.items() if value is not None and key not in (*_READ, *_LEFT)):
        raise ValueError(f"inputs hold {', '.join(unknown)}; expected only {', '.join((*_READ, *_LEFT))}")
    rows = {name: torch.as_tensor(inputs[name]) for name in _BY_TOKEN if inputs.get(name) is not None}
    for name, value in rows.items():
        if value.is_floating_point() and value.numel():
            raise TypeError(f"{name} is of {value.dtype}; expected whole numbers")
    rows = {name: value[None] if value.dim() == 1 else value for name, value in rows.items()}
    spans = read_spans({**inputs, **rows}, config)
    if len(spans) != 1:
        raise ValueError(f"input_ids have {len(spans)} rows; expected one, as vLLM keeps its requests apart")
    made = layout(spans[0])
    return made.ids, int(made.offset)


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """A request for an OpenAI-compatible server: see `chat_request`.

    Args:
        body: the JSON object of POST /chat/completions.
        plans: of each picture, in the order of the messages; `plans[0].decode_boxes(written)` are pixels of the first.
    """

    body: dict[str, Any]
    plans: tuple[Plan, ...]

    def send(self, url: str, *, key: str | None = None, timeout: Number = 600) -> dict[str, Any]:
        """The answer of the server, as it came: `answer["choices"][0]["message"]["content"]` is the text.

        Args:
            url: of the server, such as "http://localhost:8000/v1", with or without its /chat/completions.
            key: sent as a bearer token, where the server wants one.
            timeout: in seconds.

        Raises:
            TypeError: `url` is no string.
            ValueError: `url` is no address of this kind, the request has no messages, or wants a stream, which is no
                answer in one.
            OSError: the server cannot be reached, or does not answer in time.
            RuntimeError: it refuses the request, or its answer is no JSON object; what it says is told.
        """
        if not isinstance(url, str):
            raise TypeError(f"url is {url!r:.80}; expected the address of a server, up to /v1")
        if not self.body["messages"]:
            raise ValueError("messages is empty; expected at least one")
        if self.body.get("stream"):
            raise ValueError("stream is True; expected a request without it, as one answer is read here")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url is {url!r}; expected http:// or https://, up to /v1")
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        place = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        request = Request(place, json.dumps(self.body, allow_nan=False).encode(), headers)
        try:
            with urlopen(request, timeout=positive("timeout", timeout)) as answer:
                said, status = answer.read().decode(errors="replace"), answer.status
        except HTTPError as error:
            said = error.read().decode(errors="replace")
            raise RuntimeError(f"the server answered {error.code}: {said:.500}") from error
        try:
            made = json.loads(said)
        except ValueError:
            made = None
        if not isinstance(made, dict):
            raise RuntimeError(f"the server answered {status} and no JSON object: {said:.500}")
        return made


def chat_request(
    messages: Sequence[Mapping[str, Any]],
    family: Family | str,
    *,
    model: str,
    picture_tokens: int | None = None,
    **options: Any,
) -> ChatRequest:
    """A request whose pictures are sent at the size of their plan, so that the server resizes nothing.

    Each picture is loaded by our one policy (upright, over white), resized by the family's rule, and sent as a PNG,
    byte for byte what the model is to see. The family's limits go along as `mm_processor_kwargs`, which vLLM reads, so
    that a server with other limits leaves the sizes alone, too; remove them from `body` for one that refuses the field.

    Args:
        messages: {"role": ..., "content": ...}, where the content is text, or a list of {"type": "text", "text": ...}
            and {"type": "image", "image": ...}: a path, PIL image, or what else `mrope.vision.load` takes. A message
            that has other fields, such as `tool_calls`, may be without content, or have None. A picture has no others:
            `picture_tokens` and `family` say its size.
        family: the record of the served model, with its limits, or its name.
        model: the name of the served model.
        picture_tokens: most LLM tokens of one picture, by default the family's.
        options: other fields of the request, such as `temperature`; an `mm_processor_kwargs` that sets no sizes goes
            along with ours.

    Raises:
        OSError, ValueError, TypeError: as `mrope.vision.plan`; or a message or a part of one is of another kind, a
            field is no JSON or sets sizes, `picture_tokens` are fewer than the family's least, or the family would
            resize its own size again, or cuts pictures into slices.

    >>> import numpy as np, mrope
    >>> picture = {"type": "image", "image": np.zeros((300, 500, 3), dtype=np.uint8)}
    >>> request = chat_request([{"role": "user", "content": [picture]}], mrope.family("qwen2.5-vl"), model="served")
    >>> request.plans[0].resized, request.body["messages"][0]["content"][0]["type"]
    ((308, 504), 'image_url')
    """
    family = family_called(family) if isinstance(family, str) else family
    if not isinstance(family, Family):
        raise TypeError(f"family is {family!r:.80}; expected a record of a family, or its name")
    if not isinstance(model, str) or not model:
        raise TypeError(f"model is {model!r:.80}; expected the name of the served model")
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"messages is {messages!r:.80}; expected a list of messages")
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the fields {', '.join(options)} are no JSON: {error}") from error
    extra = options.get("mm_processor_kwargs", {})
    if not isinstance(extra, dict):
        raise TypeError(f"mm_processor_kwargs is {extra!r:.80}; expected a dict of settings of the server's processor")
    if sizing := [name for name in _SIZING if name in extra]:
        raise ValueError(
            f"mm_processor_kwargs sets {', '.join(sizing)}, by which the server would resize; expected "
            "picture_tokens=..., or a family with other limits"
        )
    if picture_tokens is not None:
        least = 1 if family.image_tokens is None else -(-family.pixel_limits[0] // family.factor**2)
        whole("picture_tokens", picture_tokens, least)
    if family.slices is not None:
        raise ValueError(
            f"family is {family.name}, which cuts pictures into slices; expected one that keeps them whole"
        )
    plans: list[Plan] = []
    talk = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TypeError(f'message {number} is {message!r:.80}; expected {{"role": ..., "content": ...}}')
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            message = {**message, "content": [_sent(number, one, family, picture_tokens, plans) for one in content]}
        elif not isinstance(content, str) and (content is not None or not message.keys() - {"role", "content", "name"}):
            raise TypeError(f"content of message {number} is {content!r:.80}; expected text, or a list of parts")
        talk.append({**message})
    body: dict[str, Any] = {"model": model, "messages": talk, **options}
    if plans and family.resize != "padded":
        frames = family.temporal_patch if family.resize == "volume" else 1  # a picture counts as so many
        limits = (limit * frames for limit in family.pixel_limits)
        size = dict(zip(("shortest_edge", "longest_edge"), limits, strict=True))
        body["mm_processor_kwargs"] = {"size": size} | extra
    return ChatRequest(body, tuple(plans))


def _sent(number: int, part: Any, family: Family, picture_tokens: int | None, plans: list[Plan]) -> dict[str, Any]:
    """A part of message `number` as it is sent; the plan of a picture is added to `plans`."""
    if not isinstance(part, Mapping):
        raise TypeError(f'message {number} has a part {part!r:.80}; expected {{"type": "text", "text": ...}} or such')
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return dict(part)
    if part.get("type") != "image" or part.get("image") is None:
        raise ValueError(
            f'message {number} has a part of type {part.get("type")!r} with {sorted(part)}; expected {{"type": "text", '
            '"text": ...} or {"type": "image", "image": ...}'
        )
    if unknown := sorted(key for key in part.keys() - {"type", "image"} if part[key] is not None):
        raise ValueError(
            f"message {number} has a picture with {', '.join(unknown)}; expected none of it: picture_tokens and family "
            "say its size"
        )
    planned = plan(part["image"], family, max_tokens=picture_tokens)
    if (changed := _changed(planned, family)) is not None:
        more = range(0) if picture_tokens is None else range(picture_tokens + 1, 4 * picture_tokens)
        tokens = (n for n in more if _changed(plan(planned.original, family, max_tokens=n), family) is None)
        what = next((f", which picture_tokens={n} makes" for n in tokens), "")
        raise ValueError(
            f"picture {len(plans)} becomes {planned.resized} (height, width) by the rule of {family.name}, which would "
            f"make {changed} of that: expected a size that stays{what}"
        )
    patches = patchify([part["image"]], family, plans=[planned], dtype="uint8")
    plans.append(planned)
    return {"type": "image_url", "image_url": {"url": picture_url(unpatchify(patches)[0])}}


def _changed(planned: Plan, family: Family) -> tuple[int, int] | None:
    """The size (height, width) that the family would make of a planned one; None where it stays."""
    again = plan(planned.resized, family, conflict="family")
    return None if (again.resized, again.grid) == (planned.resized, planned.grid) else again.resized


def picture_url(pixels: Tensor) -> str:
    """A picture (3, height, width), uint8, as the address that holds it: a PNG in base64."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()
