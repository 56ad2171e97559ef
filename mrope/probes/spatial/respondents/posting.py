"""One request to a server, tried again while that may help, with an error that says what to do where it does not."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from mrope.checks import Number, positive, whole
from mrope.reader.wording import UNSUPPORTED

_AGAIN = (429, 500, 502, 503, 504)
_MOST = 4 << 20
"""Bytes of an answer that are read at most."""
_READ = 20_000
"""Bytes of a refusal that are read; the key is taken out before they are shortened."""
_LONGEST = 60.0
"""Seconds of the longest pause between two tries, unless the server asks for more."""
_ADVICE = {
    400: "the server does not understand the request; `fields` adds fields to it, or takes out those given as None",
    401: "give the server's key",
    403: "give a key that may use this model",
    404: "check the model's name, and that the address ends before /chat/completions",
    413: "the pictures are too large for the server; give a family with lower limits, or fewer pictures",
    422: "the server does not understand the request; `fields` adds fields to it, or takes out those given as None",
}


class NoAnswerError(Exception):
    """Why a server gave no answer, in one line; `status` is that of HTTP, 0 where there was none.

    `refused` where the server says by the error's code that its model cannot be asked this.
    """

    def __init__(self, said: str, status: int = 0, refused: bool = False) -> None:
        super().__init__(said)
        self.status, self.refused = status, refused


class _Stay(HTTPRedirectHandler):
    """Follows no redirection: a POST would become a GET, and the key would go to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


@dataclass(frozen=True, slots=True, repr=False)
class Poster:
    """Sends JSON to one server.

    Args:
        url: of the server, such as "http://localhost:8000/v1".
        key: sent as a bearer token; never told.
        timeout: seconds for one try, from the connection to the last byte.
        retries: tries after the first, where the server is busy, fails or cannot be reached. Pauses grow from `pause`
            to twice as long each, and are as long as the server asks for in Retry-After; one that asks for more than a
            minute is not waited for.
        pause: seconds before the second try.
    """

    url: str
    key: str | None
    timeout: Number
    retries: int
    pause: Number

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url is {_hidden(self.url)!r}; expected http:// or https://, up to /v1")
        if parts.username is not None:
            raise ValueError("url holds a name or a password; expected the address alone, and the key apart")
        if self.key is not None and (not self.key.isascii() or not self.key.isprintable() or not self.key.strip()):
            raise ValueError("key is empty or holds signs that no header takes; expected plain letters and digits")
        positive("timeout", self.timeout)
        positive("pause", self.pause)
        whole("retries", self.retries, 0)

    def post(self, path: str, body: Mapping[str, Any], stop: threading.Event) -> dict[str, Any]:
        """The server's answer, a JSON object; `stop` ends pauses early, and tries no more.

        Raises:
            NoAnswerError: there is none after all tries, or it is none that can be read.
        """
        data = json.dumps(body).encode()
        pause = float(self.pause)
        for tried in range(1, self.retries + 2):
            try:
                return self._read(self._once(path, data))
            except _BusyError as busy:
                if busy.wait is not None and busy.wait > _LONGEST:
                    raise NoAnswerError(
                        self.told(f"{busy}; it asks to wait for {busy.wait:.0f} s, so ask again later"), busy.status
                    ) from None
                if tried > self.retries or stop.is_set():
                    tries = f" after {tried} tries" if tried > 1 else ""
                    raise NoAnswerError(self.told(f"{busy}{tries}"), busy.status) from None
                stop.wait(pause if busy.wait is None else busy.wait)
                pause = min(2 * pause, _LONGEST)
            except NoAnswerError as error:
                raise NoAnswerError(self.told(str(error)), error.status, error.refused) from None
        raise AssertionError("the last try returns or raises")

    def _once(self, path: str, data: bytes) -> bytes:
        headers = {"Content-Type": "application/json"} | (
            {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        )
        request = Request(f"{self.url.rstrip('/')}{path}", data, headers)
        try:
            with build_opener(_Stay).open(request, timeout=float(self.timeout)) as answer:
                return self._whole(answer)
        except HTTPError as error:
            raise self._refused(error) from None
        except TimeoutError:
            raise _BusyError(f"no answer within {self.timeout:g} s") from None
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _BusyError(f"no answer within {self.timeout:g} s") from None
            raise _BusyError(f"the server cannot be reached: {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _BusyError(f"the connection broke: {type(error).__name__} {error}".rstrip()) from None

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        """The bytes of an answer, in time and up to the limit."""
        deadline = time.monotonic() + float(self.timeout)
        got = bytearray()
        while part := answer.read1(1 << 16):
            got += part
            if len(got) > _MOST:
                raise NoAnswerError(f"the answer is longer than {_MOST >> 20} MiB")
            if time.monotonic() > deadline:
                raise _BusyError(f"no whole answer within {self.timeout:g} s")
        expected = answer.headers.get("Content-Length")
        if expected is not None and expected.isdigit() and len(got) < int(expected):
            raise _BusyError(f"the connection broke after {len(got)} of {expected} bytes")
        return bytes(got)

    def told(self, text: str, most: int = 1000) -> str:
        """`text` on one line of at most so many letters, without the key, which a server may repeat."""
        line = " ".join(text.split())
        line = line if self.key is None else line.replace(self.key, "***")
        return line if len(line) <= most else f"{line[:most]} ..."

    def _refused(self, error: HTTPError) -> Exception:
        """What an answer of another status than 2xx means."""
        with error:
            try:
                message, code = _error(error.read(_READ))
            except (OSError, http.client.HTTPException):
                message, code = "", None
        said = self.told(message, 500)
        status = error.code
        if 300 <= status < 400:
            where = _hidden(error.headers.get("Location", "elsewhere"))
            return NoAnswerError(
                f"HTTP {status}: the server sends us to {where}; give that address, if you trust it", status
            )
        line = f"HTTP {status}{f': {said}' if said else ''}"
        if status in _AGAIN:
            return _BusyError(line, status, _wait(error.headers.get("Retry-After")))
        if code == UNSUPPORTED:
            return NoAnswerError(line, status, refused=True)
        advice = _ADVICE.get(status)
        return NoAnswerError(f"{line} ({advice})" if advice else line, status)

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            said = self.told(data[:_READ].decode(errors="replace"), 200)
            raise NoAnswerError(f"the answer is no JSON: {said!r}") from None
        if not isinstance(answer, dict):
            raise NoAnswerError(f"the answer is no JSON object: {self.told(repr(answer), 200)}")
        return answer


class _BusyError(Exception):
    """Another try may help, after `wait` seconds where the server says so."""

    def __init__(self, said: str, status: int = 0, wait: float | None = None) -> None:
        super().__init__(said)
        self.status, self.wait = status, wait


def _wait(told: str | None) -> float | None:
    """The seconds of a Retry-After, which is a number or a date."""
    if told is None:
        return None
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)


def _error(data: bytes) -> tuple[str, Any]:
    """What a refusal says, and its code: those of an error in OpenAI's form; or all of it, and None."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace"), None
    error = said.get("error", said) if isinstance(said, dict) else said
    message, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    return message if isinstance(message, str) else data.decode(errors="replace"), code


def _hidden(url: str) -> str:
    """An address without names, passwords and queries, in which keys may stand."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
