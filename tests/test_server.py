"""Models behind HTTP: the reader's server as a real process, and clients of servers of every bad kind."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sources import ROOT
from typer.testing import CliRunner

import mrope
import mrope.cli
from mrope.data import Clip, Sample, draw_grid, fonts, sample_key, task
from mrope.hf import chat_request
from mrope.probes.spatial import Settings, summarise
from mrope.probes.spatial import ask as run_probe
from mrope.probes.spatial.reply import Reply, Respondent
from mrope.probes.spatial.respondents import ReaderRespondent, ServerRespondent
from mrope.probes.spatial.respondents.kept import Kept
from mrope.probes.spatial.respondents.ordered import in_order
from mrope.probes.spatial.respondents.posting import _wait
from mrope.reader import FAMILY, Reader
from mrope.reader.serving import ReaderServer
from mrope.reader.wording import Asked, asked

KEY = "sk-very-secret-0123"


def samples(name: str, **settings: Any) -> list[Sample]:
    return list(task(name, **settings).samples(0))


def question(number: int = 0, **more: Any) -> Sample:
    """One of many, each with a picture of its own."""
    picture = Image.new("RGB", (60 + number, 40), (number, 3, 5))
    known: dict[str, Any] = {"id": str(number), "task": "own", "pictures": (picture,), "prompt": (0, "Which?")}
    return Sample(**(known | {"kind": "choice", "choices": ("A", "B"), "answer": "A"} | more))


# ------------------------------------------------------------------------------------------------- questions, read back

_PLAIN = {"guises": ("plain", "padded")}
"""Of `moved`: the grid begins in the upper left corner, in whole cells."""


def test_the_questions_of_the_tasks_are_read_back() -> None:
    for name in ("cell", "neighbour", "moved"):
        for sample in samples(name, shapes=((3, 5), (12, 2)), each=4, **_PLAIN if name == "moved" else {}):
            found = asked(sample.words.replace("<picture 0>", ""))
            assert sample.ask is not None
            assert found.relation == sample.ask["relation"]
            if name != "neighbour":
                assert found.start == tuple(sample.ask["cell"])
            else:  # the neighbour's start is named by its letter, which the reader itself finds
                (start,) = re.findall(r"the letter (\w)\?", sample.words)
                assert found.start == start


def test_rows_are_no_columns() -> None:
    assert asked("Which letter stands in row 2,\n column 5? Go.") == Asked("in", (1, 4))
    assert asked("Which letter stands directly below the letter K?") == Asked("below", "K")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "What do you see?",
        "Which letter stands in row 0, column 5?",
        "Which letter stands in row 2?",
        "Which letter stands directly below the letter I?",
        "Which letter stands in row 1, column 5? Which letter stands in row 2, column 5?",
        *(sample.words for sample in samples("row", each=1)[:1] + samples("count", each=1)[:1]),
    ],
)
def test_other_questions_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"expected one .Which letter stands in row 2, column 5"):
        asked(words)


# ------------------------------------------------------------------------------------------- the reader's server itself


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of the reader, served in this process, without its log."""
    with ReaderServer(Reader.load()) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def _no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseHTTPRequestHandler, "log_message", lambda *_: None)


def exchange(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON that a server answers, without any client of ours."""
    host = url.removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(data)


def address(picture: Image.Image, kind: str = "PNG") -> str:
    file = BytesIO()
    picture.save(file, kind)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(file.getvalue()).decode()


def grid(rows: int = 3, cols: int = 5) -> tuple[Image.Image, list[str]]:
    rng = np.random.default_rng(7)
    drawn = draw_grid(sample_key(rows, cols, rng), fonts("held-out"), rng)
    return drawn.picture, drawn.text().split("\n")


def body(words: str = "Which letter stands in row 2, column 4?", **more: Any) -> dict[str, Any]:
    picture = {"type": "image_url", "image_url": {"url": address(grid()[0])}}
    content = [picture, {"type": "text", "text": words}]
    return {"model": "reader", "messages": [{"role": "user", "content": content}], **more}


def complete(url: str, request: Any) -> tuple[int, Any]:
    return exchange(url, "POST", "/v1/chat/completions", json.dumps(request).encode())


def test_the_server_answers_as_openai_does(served: str) -> None:
    _, rows = grid()
    status, answer = complete(served, body(logprobs=True, top_logprobs=3, temperature=0, max_tokens=5))
    assert status == 200
    assert (answer["object"], answer["model"]) == ("chat.completion", "reader")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": rows[1][3]}
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    (token,) = choice["logprobs"]["content"]
    assert (token["token"], token["bytes"]) == (rows[1][3], [ord(rows[1][3])])
    (said,) = Reader.load().ask(grid()[0], [("in", (1, 3))])
    assert np.exp(token["logprob"]) == pytest.approx(said.probability, rel=1e-4)
    tops = [one["logprob"] for one in token["top_logprobs"]]
    assert (len(tops), tops, tops[0]) == (3, sorted(tops, reverse=True), token["logprob"])
    _, plain = complete(served, body())
    assert plain["choices"][0]["logprobs"] is None
    assert plain["id"] != answer["id"]


def test_a_letter_that_is_named_is_found_in_the_picture(served: str) -> None:
    _, rows = grid()
    text = "".join(rows)
    row, col = next((r, c) for r in (0, 1) for c in range(4) if text.count(rows[r][c]) == 1)
    for side, expected in (("to the right of", rows[row][col + 1]), ("below", rows[row + 1][col])):
        _, answer = complete(served, body(f"Which letter stands directly {side} the letter {rows[row][col]}?"))
        assert answer["choices"][0]["message"]["content"] == expected


def test_the_models_are_listed(served: str) -> None:
    status, answer = exchange(served, "GET", "/v1/models")
    assert (status, answer["object"], [model["id"] for model in answer["data"]]) == (200, "list", ["reader"])


def _with_content(*parts: Any) -> dict[str, Any]:
    return {"model": "reader", "messages": [{"role": "user", "content": list(parts)}]}


_TEXT = {"type": "text", "text": "Which letter stands in row 1, column 1?"}
_BLANK = address(Image.new("RGB", (96, 64)))


@pytest.mark.parametrize(
    ("status", "request_", "why"),
    [
        (400, [], "the body is no JSON object"),
        (400, {"messages": []}, "model is None; expected 'reader'"),
        (404, {"model": "gpt"}, "model is 'gpt'; expected 'reader'"),
        (400, {"model": "reader"}, "messages is None; expected a list"),
        (400, {"model": "reader", "messages": ["hi"]}, "messages is ['hi']; expected a list"),
        (400, {"model": "reader", "messages": []}, "messages have the roles []; expected one message of the user"),
        (400, {"model": "reader", "messages": [{"role": "user"}]}, "content is None; expected text, or a list"),
        (400, body() | {"messages": body()["messages"] * 2}, "messages have the roles ['user', 'user']"),
        (400, body(stream=True), "stream is True; expected False"),
        (400, body(n=2), "n is 2; expected 1"),
        (400, body(top_logprobs=21), "top_logprobs is 21; expected 0 to 20"),
        (400, body("Where is the cat?"), "the question is 'Where is the cat?'; expected one"),
        (
            400,
            body("Which letter stands in row 4, column 1?"),
            "'in' of (4, 1) lies outside of the picture's 3 rows x 5",
        ),
        (400, _with_content(_TEXT), "messages hold 0 pictures; expected one"),
        (400, _with_content(_TEXT, {"type": "input_audio"}), "a part has the type 'input_audio'; expected text"),
        (
            400,
            _with_content(_TEXT, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}),
            "is 'http://x/y.png'",
        ),
        (400, _with_content(_TEXT, {"type": "image_url", "image_url": None}), "url of a picture is 'None'"),
        (400, _with_content(_TEXT, *[{"type": "image_url", "image_url": {"url": _BLANK}}] * 2), "hold 2 pictures"),
        (
            400,
            _with_content(_TEXT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}),
            "holds no base64",
        ),
        (
            400,
            _with_content(_TEXT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}),
            "",
        ),
    ],
)
def test_what_the_server_does_not_understand_is_refused_as_json(
    served: str, status: int, request_: Any, why: str
) -> None:
    got, answer = complete(served, request_)
    assert got == status
    assert why in answer["error"]["message"]
    asked_well = any(words in why for words in ("the question is", "lies outside", "hold 2 pictures"))
    code = "unsupported_question" if asked_well else status
    assert (answer["error"]["type"], answer["error"]["code"]) == ("invalid_request_error", code)
    assert "\n" not in answer["error"]["message"]


def test_other_paths_methods_and_bodies(served: str) -> None:
    assert exchange(served, "GET", "/v1/files")[0] == 404
    assert exchange(served, "GET", "/v1/chat/completions")[0] == 405
    assert exchange(served, "POST", "/v1/chat/completions", b"{rubbish")[0] == 400
    assert exchange(served, "POST", "/v1/chat/completions", b"[" * 100_000)[0] == 400
    assert exchange(served, "POST", "/v1/chat/completions", b"x", **{"Content-Length": "much"})[0] == 411
    assert exchange(served, "POST", "/v1/chat/completions", b"x", **{"Content-Length": str(1 << 40)})[0] == 413
    assert exchange(served, "PUT", "/v1/models")[0] == 501
    assert complete(served, body())[0] == 200


def test_a_connection_serves_several_requests(served: str) -> None:
    connection = http.client.HTTPConnection(served.removeprefix("http://").removesuffix("/v1"), timeout=30)
    for path in ("/v1/models", "/v1/nothing", "/v1/models"):
        connection.request("GET", path)
        assert connection.getresponse().read().startswith(b"{")
    connection.close()


# ------------------------------------------------------------------------------------- a real process, a kill, a resume


@contextmanager
def process(log: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`mrope reader serve` and its address; it logs into `log`."""
    command = [sys.executable, "-m", "mrope", "reader", "serve", "--port", "0", "--device", "cpu", *options]
    with log.open("a") as errors:
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line.startswith("serving reader at http://127.0.0.1:"), log.read_text()
        yield line.split()[-1], running
    finally:
        running.kill()
        running.wait(30)
        assert running.stdout is not None
        running.stdout.close()


def requests_in(log: Path) -> int:
    return log.read_text().count('"POST /v1/chat/completions HTTP/1.1" 200')


def test_a_real_server_answers_as_the_reader_does(tmp_path: Path) -> None:
    cells = samples("cell", shapes=((3, 5), (7, 4)), each=6)
    around = samples("neighbour", shapes=((4, 3),), each=1)
    with process(tmp_path / "log") as (url, running):
        plain = ServerRespondent(url, "reader", parallel=3)
        planned = ServerRespondent(url, "reader", family=FAMILY)
        assert isinstance(plain, Respondent)
        expected = list(ReaderRespondent(device="cpu").answer(cells))
        for who in (plain, planned):
            for mine, sample, reply in zip(expected, cells, who.answer(cells), strict=True):
                assert (reply.failure, reply.text) == ("", sample.answer)
                assert mine.scores is not None
                assert reply.scores is not None
                assert max(reply.scores, key=reply.scores.__getitem__) == sample.answer
        replies = list(planned.answer(around))
        assert [reply.text for reply in replies] == [sample.answer for sample in around]
        assert all(
            list(reply.scores or ()) == list(sample.choices) for reply, sample in zip(replies, around, strict=True)
        )
        (where,) = replies[0].plans
        assert where is not None
        first = around[0].pictures[0]
        assert isinstance(first, Image.Image)
        assert where.original == first.size[::-1]
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    (left,) = ServerRespondent(url, "reader", retries=0).answer(cells[:1])
    assert "the server cannot be reached" in left.failure


def test_what_the_reader_cannot_be_asked_is_refused_over_http_too(served: str, tmp_path: Path) -> None:
    grids = {"shapes": [[3, 5], [7, 4]], "each": 1}
    tasks = {"cell": grids, "neighbour": grids, "point": grids, "row": grids, "moved": grids | _PLAIN}
    needle = {"needle": {"lengths": [2], "depths": 1, "each": 1}}  # pictures that are two
    settings = Settings({**tasks, **needle})
    inside = run_probe(ReaderRespondent(Reader.load()), settings, tmp_path / "inside")
    over = run_probe(ServerRespondent(served, "reader"), settings, tmp_path / "over")
    words = [(one["task"], one["id"], one["outcome"]) for one in over]
    assert words == [(one["task"], one["id"], one["outcome"]) for one in inside]
    assert {(task, word) for task, _, word in words} == {
        *((task, "right") for task in ("cell", "neighbour", "moved")),
        *((task, "refused") for task in ("point", "row", "needle")),
    }
    (reason,) = {one["reason"] for one in over if one["task"] == "needle"}
    assert reason == "HTTP 400: messages hold 2 pictures; expected one"
    by_task = {one.task: one for one in summarise(over)}
    assert (by_task["point"].asked, by_task["point"].refused) == (0, 2)
    assert by_task["moved"].agreement is not None
    assert (by_task["moved"].agreement.value, by_task["moved"].agreement.count) == (1.0, 2)


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ({"message": "no such words", "code": "unsupported_question"}, True),
        ({"message": "no such words", "code": 400}, False),
        ({"message": "the code is unsupported_question", "type": "unsupported_question"}, False),
        ("unsupported_question", False),
    ],
)
def test_only_the_errors_code_makes_a_refusal_of_a_failure(error: Any, refused: bool) -> None:
    reply, script = ask(lambda handler, _, __: send(handler, {"error": error}, 400))
    assert reply.refused == refused
    assert (reply.failure == "HTTP 400: no such words") == refused
    assert len(script.seen) == 1


def test_a_killed_run_asks_only_the_rest_when_it_is_resumed(tmp_path: Path) -> None:
    cells = samples("cell", shapes=((3, 5), (7, 4)), each=8)
    log, cache = tmp_path / "log", tmp_path / "cache"
    with process(log) as (url, _):
        run = (
            "import sys\nfrom mrope.data import task\nfrom mrope.probes.spatial.respondents import ServerRespondent\n"
            "asked = list(task('cell', shapes=((3, 5), (7, 4)), each=8).samples(0))\n"
            f"who = ServerRespondent({url!r}, 'reader', parallel=1, cache={str(cache)!r})\n"
            "for number, reply in enumerate(who.answer(asked)):\n    print(reply.text, flush=True)\n"
            "    if number == 4:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        killed = subprocess.run([sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert killed.stdout.split() == [sample.answer for sample in cells[:5]]
        kept = len(list(cache.rglob("*.json")))
        asked_before = requests_in(log)
        assert 5 <= kept <= asked_before <= kept + 1 < len(cells)
        resumed = ServerRespondent(url, "reader", parallel=4, cache=cache)
        assert [reply.text for reply in resumed.answer(cells)] == [sample.answer for sample in cells]
        assert requests_in(log) - asked_before == len(cells) - kept
        assert [reply.text for reply in resumed.answer(cells)] == [sample.answer for sample in cells]
        assert requests_in(log) - asked_before == len(cells) - kept
    # All is kept: nobody need be there.
    assert [reply.text for reply in resumed.answer(cells)] == [sample.answer for sample in cells]


def test_a_port_that_is_taken_and_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for options, why in (
            (["--port", str(taken.getsockname()[1])], "in use"),
            (["--weights", str(tmp_path / "none.safetensors")], "no reader weights at"),
        ):
            run = CliRunner().invoke(mrope.cli.app, ["reader", "serve", "--device", "cpu", *options])
            assert (run.exit_code, run.stdout) == (2, "")
            assert why in run.stderr
            assert run.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------------------- servers of bad kinds


class Script:
    """A server that does as it is told: `act(handler, number, body)` for each request, which it notes."""

    def __init__(self, act: Callable[[BaseHTTPRequestHandler, int, Any], None]) -> None:
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.at: list[float] = []
        lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(script.seen)
                    script.seen.append((dict(self.headers), data))
                    script.at.append(time.monotonic())
                act(self, number, data)

            def do_GET(self) -> None:
                self.do_POST()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self) -> Script:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


def send(handler: BaseHTTPRequestHandler, data: Any, status: int = 200, **headers: str) -> None:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(raw))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(raw)


def chat(text: Any, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, **more}]}


def client(url: str, **options: Any) -> ServerRespondent:
    return ServerRespondent(url, "m", **({"pause": 0.01, "retries": 2, "timeout": 5, "key": KEY} | options))


def ask(
    act: Callable[[BaseHTTPRequestHandler, int, Any], None], sample: Sample | None = None, **options: Any
) -> tuple[Reply, Script]:
    """What one sample gets, and the server that gave it; the key is in no reply."""
    with Script(act) as script:
        (reply,) = client(script.url, **options).answer([question() if sample is None else sample])
    assert KEY not in repr(reply)
    return reply, script


def test_an_answer_in_prose_is_text() -> None:
    said = "Well, the letter in question would be  A.\n"
    reply, script = ask(lambda handler, _, __: send(handler, chat(said)))
    assert reply.text == said
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html>no</html>", "the answer is no JSON: '<html>no</html>'"),
        (b"", "the answer is no JSON: ''"),
        (b"\xff\xfe{", "the answer is no JSON"),
        (b"[" * 100_000, "the answer is no JSON: '[["),
        ([1, 2], "the answer is no JSON object: [1, 2]"),
        ({}, "the answer has no choices[0].message.content: {}"),
        ({"choices": []}, "the answer has no choices[0].message.content: {'choices': []}"),
        ({"choices": [{"text": "A"}]}, "has no choices[0].message.content"),
        ({"choices": None}, "has no choices[0].message.content"),
        (chat(7), "the answer's content is 7; expected text"),
    ],
)
def test_rubbish_is_a_failure(data: Any, why: str, tmp_path: Path) -> None:
    reply, script = ask(lambda handler, _, __: send(handler, data), cache=tmp_path)
    assert why in reply.failure
    assert (reply.text, reply.scores, len(script.seen)) == ("", None, 1)
    assert not list(tmp_path.rglob("*.json"))  # and is asked again by the next run


def test_an_empty_answer_is_an_answer() -> None:
    for said in ("", None, []):
        reply, _ = ask(lambda handler, _, __, said=said: send(handler, chat(said)))
        assert (reply.text, reply.failure) == ("", "")


def test_text_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "B"}, {"type": "text", "text": "ox"}]
    reply, _ = ask(lambda handler, _, __: send(handler, chat(parts)))
    assert reply.text == "Box"


def test_429_then_right() -> None:
    def act(handler: BaseHTTPRequestHandler, number: int, _: Any) -> None:
        send(handler, {"error": "slow down"}, 429) if number < 2 else send(handler, chat("A"))

    reply, script = ask(act)
    assert reply.text == "A"
    assert len(script.seen) == 3


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_that_fails_for_ever_is_given_up(status: int) -> None:
    reply, script = ask(lambda handler, _, __: send(handler, {"error": f"key {KEY} is tired"}, status))
    assert reply.failure == f"HTTP {status}: key *** is tired after 3 tries"
    assert len(script.seen) == 3


def test_pauses_grow_and_the_servers_own_are_kept() -> None:
    _, script = ask(lambda handler, _, __: send(handler, {}, 500), pause=0.1, retries=3)
    at = script.at
    first, second, third = (after - before for before, after in pairwise(at))
    assert (first >= 0.1, second >= 0.2, third >= 0.4) == (True, True, True)
    assert third < 1.5
    _, script = ask(lambda handler, _, __: send(handler, {}, 503, Retry_After="1"), retries=1)
    before, after = script.at
    assert 1 <= after - before < 3


def test_a_time_to_come_back_at_is_a_number_or_a_date() -> None:
    from email.utils import formatdate

    assert (_wait("7"), _wait("0.5"), _wait("-3"), _wait("1e9")) == (7, 0.5, 0, 1e9)
    assert (_wait(None), _wait("soon"), _wait("nan"), _wait("")) == (None, None, None, None)
    assert 8 <= (_wait(formatdate(time.time() + 10, usegmt=True)) or 0) <= 10
    assert _wait(formatdate(time.time() - 100, usegmt=True)) == 0


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "`fields` adds fields to it, or takes out those given as None"),
        (401, "give the server's key"),
        (403, "give a key that may use this model"),
        (404, "check the model's name"),
        (413, "the pictures are too large"),
        (422, "the server does not understand the request"),
        (418, "HTTP 418"),
    ],
)
def test_a_refusal_says_what_to_do_and_is_not_tried_again(status: int, advice: str) -> None:
    reply, script = ask(lambda handler, _, __: send(handler, {"error": f"no,\n{KEY}"}, status))
    assert reply.failure.startswith(f"HTTP {status}: ")
    assert advice in reply.failure
    assert "\n" not in reply.failure
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"error": {"message": "no such\nthing", "code": 418}}, "no such thing"),
        ({"object": "error", "message": "too long"}, "too long"),
        ({"error": "plain"}, "plain"),
        ({"detail": [{"msg": "odd"}]}, '{"detail": [{"msg": "odd"}]}'),
        (b"<b>not here</b>", "<b>not here</b>"),
        (["odd"], '["odd"]'),
        (b"", ""),
    ],
)
def test_what_a_server_says_is_told(data: Any, said: str) -> None:
    reply, _ = ask(lambda handler, _, __: send(handler, data, 418))
    assert reply.failure == (f"HTTP 418: {said}" if said else "HTTP 418")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_goes_for_every_request_ends_the_run_with_a_failure_for_each(status: int) -> None:
    with Script(lambda handler, _, __: send(handler, {"error": "no"}, status)) as script:
        who = client(script.url, parallel=2)
        replies = list(who.answer([question(number) for number in range(40)]))
        assert len(replies) == 40
        assert len({reply.failure for reply in replies}) == 1
        assert len(script.seen) <= 2
        list(who.answer([question()]))  # another run asks again
        assert len(script.seen) <= 3


def _half(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "500")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [{"mess')
    handler.close_connection = True


def _half_of_a_chunk(handler: BaseHTTPRequestHandler) -> None:
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b'40\r\n{"choices')
    handler.close_connection = True


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def _no_http(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (_half, r"the connection broke after 19 of 500 bytes after 3 tries"),
        (_half_of_a_chunk, r"the connection broke: IncompleteRead.* after 3 tries"),
        (_hang_up, r"(the connection broke|cannot be reached): .*after 3 tries"),
        (_no_http, r"the connection broke: BadStatusLine.* after 3 tries"),
    ],
)
def test_a_connection_that_breaks_is_tried_again(act: Callable[[Any], None], why: str) -> None:
    reply, script = ask(lambda handler, _, __: act(handler))
    assert re.search(why, reply.failure), reply.failure
    assert len(script.seen) == 3
    right, script = ask(lambda handler, number, _: act(handler) if number == 0 else send(handler, chat("B")))
    assert (right.text, len(script.seen)) == ("B", 2)


def test_a_server_that_never_answers_or_drips_is_late() -> None:
    done = threading.Event()

    def drip(handler: BaseHTTPRequestHandler, _: int, __: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not done.wait(0.05):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    def wait(*_: Any) -> None:
        done.wait(20)

    for act in (wait, drip):
        start = time.monotonic()
        reply, _ = ask(act, timeout=0.4, retries=1)
        assert re.fullmatch(r"no (whole )?answer within 0.4 s after 2 tries", reply.failure), reply.failure
        assert time.monotonic() - start < 5
    done.set()


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    reply, script = ask(lambda handler, _, __: send(handler, chat("A" * (10 << 20))))
    assert (reply.failure, len(script.seen)) == ("the answer is longer than 4 MiB", 1)


def test_a_redirection_is_not_followed_and_the_key_goes_nowhere_else() -> None:
    with Script(lambda handler, _, __: send(handler, chat("A"))) as other:
        for status in (301, 302, 303, 307, 308):
            where = f"{other.url}/x?token=1"
            reply, _ = ask(lambda handler, _, __, s=status, w=where: send(handler, b"", s, Location=w))
            assert reply.failure == (
                f"HTTP {status}: the server sends us to {other.url}/x; give that address, if you trust it"
            )
        assert other.seen == []


def test_nobody_at_the_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (reply,) = client(f"http://127.0.0.1:{port}/v1").answer([question()])
    assert re.fullmatch(r"the server cannot be reached: .*refused after 3 tries", reply.failure)


# ------------------------------------------------------------------------------------------------- order, keys, content


def test_replies_come_in_order_however_late_the_server_is() -> None:
    def act(handler: BaseHTTPRequestHandler, _: int, data: Any) -> None:
        (url,) = [part["image_url"]["url"] for part in data["messages"][0]["content"] if part["type"] == "image_url"]
        width = Image.open(BytesIO(base64.b64decode(url.partition(",")[2]))).width
        time.sleep(0.002 * (100 - width))  # the first are the latest
        send(handler, chat(str(width)))

    with Script(act) as script:
        replies = list(client(script.url, parallel=8).answer([question(number) for number in range(30)]))
    assert [reply.text for reply in replies] == [str(60 + number) for number in range(30)]


def test_a_run_that_is_left_asks_no_more() -> None:
    with Script(lambda handler, _, __: send(handler, chat("A"))) as script:
        replies = client(script.url, parallel=2).answer([question(number) for number in range(100)])
        assert next(replies).text == "A"
        replies.close()  # pyright: ignore[reportAttributeAccessIssue]
        time.sleep(0.2)
        assert len(script.seen) <= 12


def test_in_order_hands_on_what_goes_wrong() -> None:
    stop = threading.Event()
    made = in_order(lambda number: 12 // number, [3, 2, 0, 1], workers=2, stop=stop)
    assert [next(made), next(made)] == [4, 6]
    with pytest.raises(ZeroDivisionError):
        next(made)
    assert stop.is_set()


def test_the_key_is_sent_and_written_nowhere(tmp_path: Path) -> None:
    with Script(lambda handler, _, __: send(handler, chat("A"))) as script:
        who = client(script.url, cache=tmp_path)
        (reply,) = who.answer([question()])
        assert script.seen[0][0]["Authorization"] == f"Bearer {KEY}"
    assert reply.text == "A"
    (file,) = tmp_path.rglob("*.json")
    assert KEY not in file.read_text()
    assert KEY not in repr(who) + repr(who.facts) + repr(who._poster) + who.name
    with Script(lambda handler, _, __: send(handler, chat("A"))) as script:
        list(client(script.url, key=None).answer([question()]))
        assert "Authorization" not in script.seen[0][0]


def test_a_server_that_repeats_the_key_is_not_repeated() -> None:
    for data in ({"error": KEY}, [KEY], b"no " + KEY.encode(), chat({"key": KEY})):
        for before in ("", "x" * 120):  # a cut through the key would leave half of it
            shown = data if isinstance(data, bytes) else json.loads(json.dumps(data).replace(KEY, before + KEY))
            reply, _ = ask(lambda handler, _, __, shown=shown: send(handler, shown))
            assert "***" in reply.failure
            assert KEY[:6] not in reply.failure
    for before in range(180, 220):  # a cut through the key would leave half of it
        raw = b"x" * before + KEY.encode() * 3000
        reply, _ = ask(lambda handler, _, __, raw=raw: send(handler, raw))
        assert KEY[:6] not in reply.failure


def test_a_key_may_be_told_by_the_variable_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    _, script = ask(lambda handler, _, __: send(handler, chat("A")), key="env:MY_KEY")
    assert script.seen[0][0]["Authorization"] == f"Bearer {KEY}"
    with pytest.raises(ValueError, match="key is 'env:NO_KEY', and the environment has no NO_KEY; expected"):
        ServerRespondent("http://localhost:9/v1", "m", key="env:NO_KEY")


@pytest.mark.parametrize("key", ["", "  ", "sk-\nX: y", "schlüssel"])
def test_a_key_that_no_header_takes_is_refused_without_being_told(key: str) -> None:
    with pytest.raises(ValueError, match="key is empty or holds signs") as caught:
        ServerRespondent("http://localhost:9/v1", "m", key=key)
    assert not key.strip() or key not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8000/v1", "url is 'localhost:8000/v1'; expected http:// or https://, up to /v1"),
        ("ftp://host/v1", "url is 'ftp://host/v1'"),
        ("http://host/v1?key=abc", "url is 'http://host/v1'; expected"),
        ("http://me:secret@host/v1", "url holds a name or a password"),
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_secrets(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        ServerRespondent(url, "m")
    assert "secret" not in str(caught.value)
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"parallel": 0}, {"retries": -1}, {"timeout": 0}, {"pause": -1}, {"new_tokens": 0}]
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))} is"):
        ServerRespondent("http://localhost:9/v1", "m", **options)


def test_the_request_by_hand() -> None:
    picture = Image.new("RGB", (61, 43), (9, 8, 7))
    film = Clip((picture, picture), (0.25, 2.0))
    sample = question(pictures=(film, picture), prompt=("Look: ", 1, " and ", 0, " Which?"))
    _, script = ask(lambda handler, _, __: send(handler, chat("A")), sample, fields={"seed": 4, "temperature": None})
    ((_, sent),) = script.seen
    content = sent.pop("messages")[0]["content"]
    assert sent == {"model": "m", "seed": 4, "max_tokens": 256, "logprobs": True, "top_logprobs": 20}
    told = [part.get("text", "picture") for part in content]
    assert told == ["Look: ", "picture", " and ", "0.25 seconds:", "picture", "2 seconds:", "picture", " Which?"]
    got = Image.open(BytesIO(base64.b64decode(content[1]["image_url"]["url"].partition(",")[2])))
    assert (got.size, got.getpixel((60, 42))) == ((61, 43), (9, 8, 7))


def test_pictures_go_at_the_size_of_their_plan() -> None:
    picture = Image.new("RGB", (610, 430), (9, 8, 7))
    film = Clip((picture.resize((151, 92)),) * 2, (0.0, 1.0))
    sample = question(pictures=(film, picture), prompt=(1, " and ", 0), max_tokens=100, kind="text", choices=())
    reply, script = ask(lambda handler, _, __: send(handler, chat("A")), sample, family="qwen3-vl")
    ((_, sent),) = script.seen
    moving, still = reply.plans
    assert moving is not None
    assert still is not None
    expected = mrope.family("qwen3-vl")
    assert still == expected.plan(picture, max_tokens=100)
    assert moving == expected.plan(film.frames[0], max_tokens=100)
    part = sent["messages"][0]["content"][0]
    assert Image.open(BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2]))).size == still.resized[::-1]
    assert "logprobs" not in sent
    parts = [{"type": "image", "image": picture}]
    request = chat_request([{"role": "user", "content": parts}], expected, model="m")
    assert sent["mm_processor_kwargs"] == request.body["mm_processor_kwargs"]
    _, script = ask(
        lambda handler, _, __: send(handler, chat("A")), sample, family="qwen3-vl", fields={"mm_processor_kwargs": None}
    )
    ((_, sent),) = script.seen
    assert "mm_processor_kwargs" not in sent


def test_a_budget_needs_a_family() -> None:
    sample = question(max_tokens=100)
    why = "the sample wants 100 tokens a picture, and the family is not told; give family"
    assert client("http://localhost:9/v1").refuses(sample) == why
    reply, script = ask(lambda handler, _, __: send(handler, chat("A")), sample)
    assert reply.failure == why
    assert len(script.seen) == 0


def test_a_budget_that_a_family_has_no_size_for_is_no_mistake_of_the_model() -> None:
    sample = question(max_tokens=12)
    who = client("http://localhost:9/v1", family="qwen3-vl")
    assert who.refuses(sample) == "picture_tokens is 12; expected at least 64"
    assert who.refuses(replace(sample, max_tokens=100)) == ""


# ---------------------------------------------------------------------------------------------------- log-probabilities


def logprobs(token: str, **others: float) -> dict[str, Any]:
    tops = [{"token": each, "logprob": value} for each, value in others.items()]
    return {"content": [{"token": token, "logprob": others.get(token, -0.1), "top_logprobs": tops}]}


@pytest.mark.parametrize(
    ("text", "given", "scores"),
    [
        ("B", logprobs("B", B=-0.5, A=-1.0, C=-3.0), {"A": -1.0, "B": -0.5}),
        (" B.\n", logprobs(" B", **{" B": -0.5, "A": -1.0, "x": -3.0}), {"A": -1.0, "B": -0.5}),
        ("B", logprobs("B", **{"B": -0.5, " A": -2.0, "A": -1.5, "x": -4.0}), {"A": -1.5, "B": -0.5}),
        ("B", logprobs("B", B=-0.5, x=-4.0), {"A": -4.0, "B": -0.5}),  # no likelier than the least that is told
        ("The letter is B", logprobs("The", The=-0.1, B=-4.0, A=-5.0), None),
        ("B or A", logprobs("B", B=-0.5, A=-1.0), None),
        ("C", logprobs("C", C=-0.5, A=-1.0), None),
        ("B", None, None),
        ("B", {"content": []}, None),
        ("B", {"content": None}, None),
        ("B", {"content": [{"token": "B", "logprob": "high", "top_logprobs": []}]}, None),
    ],
)
def test_scores_are_told_where_the_answer_is_one_token(text: str, given: Any, scores: Any) -> None:
    reply, _ = ask(lambda handler, _, __: send(handler, chat(text, logprobs=given)))
    assert (reply.text, reply.scores) == (text, scores)


def test_a_server_that_refuses_logprobs_is_asked_without() -> None:
    def act(handler: BaseHTTPRequestHandler, _: int, data: Any) -> None:
        refused = {"error": {"message": "logprobs are not supported"}}
        send(handler, refused, 400) if "logprobs" in data else send(handler, chat("A"))

    with Script(act) as script:
        who = client(script.url, parallel=1)
        replies: Sequence[Reply] = list(who.answer([question(number) for number in range(3)]))
        assert [reply.text for reply in replies] == ["A"] * 3
        assert ["logprobs" in data for _, data in script.seen] == [True, False, False, False]


# -------------------------------------------------------------------------------------------------------------- a cache


def test_an_answer_is_kept_by_what_was_asked(tmp_path: Path) -> None:
    with Script(lambda handler, number, _: send(handler, chat(f"A{number}"))) as script:
        first = [question(0), question(1), question(0, prompt=(0, "Where?"))]

        def texts(asked: Sequence[Sample], **options: Any) -> list[str]:
            who = client(script.url, cache=tmp_path / "kept", parallel=1, **options)
            return [reply.text for reply in who.answer(asked)]

        assert texts(first) == ["A0", "A1", "A2"]
        assert texts(first[::-1]) == ["A2", "A1", "A0"]
        assert len(script.seen) == 3
        assert texts(first[:1], fields={"seed": 5}) == ["A3"]  # another request
        file = max((tmp_path / "kept").rglob("*.json"), key=lambda path: "A1" in path.read_text())
        file.write_text(file.read_text()[:-9])
        assert texts(first) == ["A0", "A4", "A2"]  # a broken file is no answer
        file.write_text('{"answer": {"choices": []}, "seconds": 1}')
        assert texts(first) == ["A0", "A5", "A2"]
        assert not list(tmp_path.rglob("*.part"))


def test_failures_are_not_kept(tmp_path: Path) -> None:
    with Script(lambda handler, number, _: send(handler, chat("A"), 500 if number == 0 else 200)) as script:
        for expected in ("", "A", "A"):
            (reply,) = client(script.url, cache=tmp_path, retries=0).answer([question()])
            assert reply.text == expected
        assert len(script.seen) == 2


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.put({"a": 1}, {"answer": "first"})
    with pytest.raises(TypeError):
        kept.put({"a": 1}, {"answer": object()})
    assert kept.get({"a": 1}) == {"answer": "first"}
    assert kept.get({"a": 2}) is None
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]
