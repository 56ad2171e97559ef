"""The reader behind an OpenAI-compatible HTTP server: something real to try clients against, without a GPU."""

from __future__ import annotations

import binascii
import json
import math
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import torch

from mrope.data import GLYPHS, RELATIONS
from mrope.reader.model import FAMILY, PROMPT, Reader
from mrope.reader.wording import UNSUPPORTED, Asked, asked
from mrope.vision import load

MODEL = "reader"
_MOST = 64 << 20
"""Bytes of the longest request."""
_TOP = 20


class RefusedError(Exception):
    """A request that is not answered: HTTP's status, what is wrong with it, and the code of the JSON error."""

    def __init__(self, status: int, said: str, code: str | None = None) -> None:
        super().__init__(said)
        self.status = status
        self.code = code or status


class ReaderServer(ThreadingHTTPServer):
    """Answers POST /v1/chat/completions and GET /v1/models, a thread a connection and one forward at a time.

    A request has one picture of a glyph grid as a data URL, and a question in words (see `mrope.reader.wording`). The
    answer is one letter, with log-probabilities where the request asks for them. What is not understood is refused with
    status 400 and a JSON error in OpenAI's form. Its code is "unsupported_question" where the request is sound and the
    reader cannot be asked it: another question, a cell outside of the picture, several pictures; else it is the status.

    Rows and columns are counted from the upper left corner of the picture, wherever the grid begins.

    Args:
        reader: who answers.
        host: to listen on.
        port: 0 takes one that is free: see `url`.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, reader: Reader, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Handler)
        self.reader = reader
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address that clients are given."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    def complete(self, body: Any) -> dict[str, Any]:
        """The answer to the body of a request.

        Raises:
            RefusedError: the request is not understood.
        """
        if not isinstance(body, Mapping):
            raise RefusedError(400, "the body is no JSON object; expected one with model and messages")
        if body.get("model") != MODEL:
            status = 404 if isinstance(body.get("model"), str) else 400
            raise RefusedError(status, f"model is {body.get('model')!r}; expected {MODEL!r}")
        for name, allowed in (("stream", (None, False)), ("n", (None, 1))):
            if body.get(name) not in allowed:
                raise RefusedError(400, f"{name} is {body[name]!r}; expected {allowed[-1]}")
        top = body.get("top_logprobs") or 0
        if not isinstance(top, int) or not 0 <= top <= _TOP:
            raise RefusedError(400, f"top_logprobs is {top!r}; expected 0 to {_TOP}")
        pictures, words = _shown(body.get("messages"))
        try:
            loaded = [load(picture) for picture in pictures]
        except (ValueError, OSError) as error:
            raise RefusedError(400, str(error)) from None
        if len(loaded) != 1:
            code = UNSUPPORTED if loaded else None
            raise RefusedError(400, f"messages hold {len(loaded)} pictures; expected one", code)
        try:
            with self.lock:
                scores = glyph_scores(self.reader, loaded[0], asked(words))
        except ValueError as error:
            raise RefusedError(400, str(error), UNSUPPORTED) from None
        glyph = max(scores, key=lambda each: scores[each])
        logprobs = {"content": [_token(glyph, scores, top)]} if body.get("logprobs") else None
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": glyph},
                    "logprobs": logprobs,
                    "finish_reason": "stop",
                }
            ],
        }


@torch.no_grad()
def glyph_scores(reader: Reader, picture: Any, question: Asked) -> dict[str, float]:
    """The log-probability of each glyph as the answer; a letter that is named stands where the reader sees it best.

    Raises:
        ValueError: the cell, or what is asked for beside it, lies outside of the picture.
    """
    patches = FAMILY.patchify(picture)
    rows, cols = (side // FAMILY.merge for side in patches.plans[0].grid[1:])
    down, right = RELATIONS[question.relation]
    inside = [
        (row, col)
        for row in range(max(0, -down), rows - max(0, down))
        for col in range(max(0, -right), cols - max(0, right))
    ]
    if not inside or (isinstance(question.start, tuple) and question.start not in inside):
        start = question.start if isinstance(question.start, str) else tuple(side + 1 for side in question.start)
        raise ValueError(
            f"{question.relation!r} of {start} lies outside of the picture's {rows} rows x {cols} columns of letters"
        )

    def logits(relation: str, cells: list[tuple[int, int]]) -> torch.Tensor:
        at = torch.tensor([[row * cols + col for row, col in cells]])
        relations = torch.full_like(at, list(RELATIONS).index(relation))
        ids = reader.positions(len(PROMPT), patches.plans[0].grid).ids
        inputs = (patches.values, torch.tensor(PROMPT), ids, at, relations)
        return reader(*(each.to(reader.device) for each in inputs))[0, -len(cells) :].log_softmax(-1).cpu()

    if isinstance(question.start, str):
        start = inside[int(logits("in", inside)[:, GLYPHS.index(question.start)].argmax())]
    else:
        start = question.start
    return dict(zip(GLYPHS, logits(question.relation, [start])[0].tolist(), strict=True))


def _token(glyph: str, scores: Mapping[str, float], top: int) -> dict[str, Any]:
    """A token with its log-probability, and the likeliest in its place, as OpenAI writes them."""

    def one(each: str) -> dict[str, Any]:
        return {"token": each, "logprob": scores[each], "bytes": list(each.encode())}

    best = sorted(scores, key=lambda each: -scores[each])[:top]
    return {**one(glyph), "top_logprobs": [one(each) for each in best]}


def _shown(messages: Any) -> tuple[list[bytes], str]:
    """The pictures, as files, and the words of the user's message."""
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise RefusedError(400, f"messages is {messages!r:.80}; expected a list of objects with role and content")
    asking = [one for one in messages if one.get("role") != "system"]
    if len(asking) != 1 or asking[0].get("role") != "user":
        roles = [one.get("role") for one in asking]
        raise RefusedError(400, f"messages have the roles {roles}; expected one message of the user")
    content = asking[0].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise RefusedError(400, f"content is {content!r:.80}; expected text, or a list of parts")
    pictures, words = [], []
    for part in parts:
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            words.append(part["text"])
        elif part.get("type") == "image_url":
            pictures.append(_file(part.get("image_url")))
        else:
            raise RefusedError(400, f"a part has the type {part.get('type')!r}; expected text with text, or image_url")
    return pictures, " ".join(words)


def _file(address: Any) -> bytes:
    url = address.get("url") if isinstance(address, Mapping) else None
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise RefusedError(400, f"url of a picture is {str(url)[:40]!r}; expected data:image/...;base64,...")
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(400, "url of a picture holds no base64") from None


class _Handler(BaseHTTPRequestHandler):
    server: ReaderServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds of silence after which a connection is closed
    _paths: ClassVar[dict[str, str]] = {"/v1/models": "GET", "/v1/chat/completions": "POST"}

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            body = self._body()
            if (known := self._paths.get(self.path.partition("?")[0])) is None:
                raise RefusedError(404, f"{self.path} is not here; expected {' or '.join(self._paths)}")
            if known != method:
                raise RefusedError(405, f"{method} is not for {self.path}; expected {known}")
            status, made = 200, self._models() if known == "GET" else self.server.complete(_read(body))
        except RefusedError as error:
            status, made = error.status, _error(str(error), error.status, error.code)
        except OSError:  # the client has left
            self.close_connection = True
            return
        except Exception as error:  # a fault of ours is one request's, and not the server's
            status, made = 500, _error(f"{type(error).__name__}: {error}", 500)
        self._send(status, made)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # where the next request begins is not known
            raise RefusedError(411, f"Content-Length is {length!r}; expected the bytes of the body")
        if int(length) > _MOST:
            self.close_connection = True
            raise RefusedError(413, f"the body has {length} bytes; expected at most {_MOST}")
        return self.rfile.read(int(length))

    def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "mrope"}]}

    def _send(self, status: int, made: Mapping[str, Any]) -> None:
        data = json.dumps(made).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the client has left
            self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What `http.server` refuses by itself, as JSON like the rest."""
        self.close_connection = True
        self.log_error("code %d, message %s", code, message)
        self._send(code, _error(message or explain or "refused", code))


def _read(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=lambda _: math.nan)
    except (ValueError, RecursionError):
        raise RefusedError(400, f"the body is {body[:40]!r}; expected JSON") from None


def _error(said: str, status: int, code: str | int | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": " ".join(said.split()), "type": kind, "param": None, "code": code or status}}
