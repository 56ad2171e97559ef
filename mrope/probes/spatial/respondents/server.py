"""A model behind an OpenAI-compatible server."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrope.checks import Number, whole
from mrope.data import Clip, Sample
from mrope.families import Family
from mrope.families import family as family_called
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.respondents.kept import Kept
from mrope.probes.spatial.respondents.messages import as_pictures, failed, media, message
from mrope.probes.spatial.respondents.ordered import in_order
from mrope.probes.spatial.respondents.posting import NoAnswerError, Poster
from mrope.vision import Plan, load

_TOP = 20  # the most that OpenAI and vLLM give
_AT_ONCE = (401, 403, 404)
"""What goes for every request: the rest is not asked."""


class ServerRespondent:
    """A served model, asked over HTTP: several requests at once, replies in order.

    A server that is busy (429), fails (500, 502, 503, 504), breaks the connection or is late is asked again after
    pauses that grow. What still fails is a reply with `failure`. After 401, 403 and 404, which go for every request,
    the rest of the samples fail with the same words and are not sent. A refusal whose JSON error has the code
    "unsupported_question", as those of `mrope reader serve`, says that the model cannot be asked this: a reply with
    `refused`.

    The answer is the text. Where it is one token that is a choice, and the server gives log-probabilities of that token
    and of others in its place, these are the scores; a choice that is not among them gets the lowest of them.

    Args:
        url: of the server, such as "http://localhost:8000/v1".
        model: the name of the served model.
        family: of the model, a name or a record: pictures are then sent at the size of their plan, so that boxes find
            their way back, and `mm_processor_kwargs` keep the server from resizing them (see `mrope.hf.chat_request`).
            None sends pictures as they are, and boxes are taken for their pixels.
        key: sent as a bearer token, or "env:NAME", the environment variable that holds it. It is written into no file
            and no message.
        parallel: requests at a time.
        timeout: seconds for one try.
        retries: tries after the first.
        pause: seconds before the second try; each further pause is twice as long, or what the server asks for.
        cache: folder of answers, by the content of the request: what was answered is not asked again, by this run or
            by one that resumes it. Failures are asked again.
        new_tokens: most tokens of an answer.
        fields: other fields of each request, such as {"seed": 1}; None takes one out, as {"temperature": None}.
        name: what reports call it, by default the model's name.

    Raises:
        ValueError, TypeError: an address, a key, a family or a number that cannot be.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        family: str | Family | None = None,
        key: str | None = None,
        parallel: int = 8,
        timeout: Number = 120,
        retries: int = 4,
        pause: Number = 1,
        cache: str | Path | None = None,
        new_tokens: int = 256,
        fields: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        from mrope.hf import chat_request

        self.family = family_called(family) if isinstance(family, str) else family
        if self.family is not None:
            chat_request([], self.family, model=model)  # refuses families whose pictures cannot be sent so
        self.parallel = whole("parallel", parallel, 1)
        self.model, self.name = model, name or model
        self._poster = Poster(url, _key(key), timeout, retries, pause)
        self._kept = None if cache is None else Kept(Path(cache))
        own = {"temperature": 0, "max_tokens": whole("new_tokens", new_tokens, 1)}
        self._fields = own | dict(fields or {})
        self._no_logprobs = False
        family_name = "not told" if self.family is None else self.family.name
        self.facts: Mapping[str, str] = {
            "model": model,
            "server": url,
            "family": family_name,
            "request": ", ".join(f"{field} {value}" for field, value in self._fields.items() if value is not None),
        }

    def refuses(self, sample: Sample) -> str:
        """Why the model cannot be asked this sample; "" if it can."""
        if sample.max_tokens is None:
            return ""
        if self.family is None:
            return f"the sample wants {sample.max_tokens} tokens a picture, and the family is not told; give family"
        try:
            self._request(sample)
        except ValueError as error:  # of a family that has no size of so few tokens
            return str(error)
        return ""

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        """One reply for each sample, in order, as they come."""
        stop, closed = threading.Event(), _Closed()

        def ask(sample: Sample) -> Reply:
            start = time.perf_counter()
            try:
                return self._ask(sample, closed, stop)
            except NoAnswerError as error:
                why, refused = str(error), error.refused
            except Exception as error:
                why, refused = failed(error).failure, False
            return Reply(failure=self._poster.told(why), seconds=time.perf_counter() - start, refused=refused)

        return in_order(ask, samples, workers=self.parallel, stop=stop)

    def _ask(self, sample: Sample, closed: _Closed, stop: threading.Event) -> Reply:
        if why := self.refuses(sample):
            return Reply(failure=why)
        body, plans = self._request(sample)
        asked = {"url": self._poster.url.rstrip("/"), **body}
        if self._kept is not None and (kept := self._kept.get(asked)) is not None:
            try:
                return _reply(kept["answer"], sample, plans, kept["seconds"])
            except (NoAnswerError, KeyError):
                pass  # no file of ours: the server is asked
        if closed.why:
            raise NoAnswerError(closed.why)
        start = time.perf_counter()
        try:
            answer = self._post(body, stop)
        except NoAnswerError as error:
            closed.why = str(error) if error.status in _AT_ONCE else closed.why
            raise
        seconds = time.perf_counter() - start
        reply = _reply(answer, sample, plans, seconds)  # before it is kept: what cannot be read is asked again
        if self._kept is not None:
            self._kept.put(asked, {"answer": answer, "seconds": seconds})
        return reply

    def _post(self, body: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
        """The answer; without log-probabilities where the server refuses to give them."""
        plain = {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}
        try:
            return self._poster.post("/chat/completions", plain if self._no_logprobs else body, stop)
        except NoAnswerError as error:
            if error.status not in (400, 422) or "logprob" not in str(error) or self._no_logprobs or plain == body:
                raise
            answer = self._poster.post("/chat/completions", plain, stop)
            self._no_logprobs = True
            return answer

    def _request(self, sample: Sample) -> tuple[dict[str, Any], tuple[Plan | None, ...]]:
        """The body of the request, and the plan of each picture that is sent at the size of one."""
        from mrope.hf import chat_request

        fields = self._fields
        if sample.choices:
            fields = {"logprobs": True, "top_logprobs": _TOP} | fields
        if self.family is None:
            said = [message(sample, _as_they_are)]
            body, plans = {"model": self.model, "messages": said, **fields}, iter(())
        else:
            said = [message(sample, as_pictures)]
            request = chat_request(
                said, self.family, model=self.model, picture_tokens=sample.max_tokens, **_given(fields)
            )
            body, plans = request.body, iter(request.plans)
        dropped = [name for name, value in fields.items() if value is None]
        by_index: dict[int, Plan] = {}
        for index, one in media(sample):
            for _ in one.frames if isinstance(one, Clip) else (one,):
                if (planned := next(plans, None)) is not None:
                    by_index[index] = planned
        body = {name: value for name, value in body.items() if name not in dropped}
        found = tuple(by_index.get(index) for index in range(len(sample.pictures)))
        return body, found if by_index else ()


def _key(key: str | None) -> str | None:
    """The key itself, where it is told by the variable that holds it."""
    if key is None or not key.startswith("env:"):
        return key
    name = key.removeprefix("env:")
    if not os.environ.get(name):
        raise ValueError(f"key is {key!r}, and the environment has no {name}; expected a variable that holds the key")
    return os.environ[name]


class _Closed:
    """Why a server answers nobody, "" while it does; shared by the threads of one run."""

    why = ""


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _as_they_are(one: Any) -> list[dict[str, Any]]:
    from mrope.hf.serving import picture_url

    return [
        {"type": "image_url", "image_url": {"url": picture_url(load(part["image"]))}} if "image" in part else part
        for part in as_pictures(one)
    ]


def _reply(answer: Mapping[str, Any], sample: Sample, plans: tuple[Plan | None, ...], seconds: float) -> Reply:
    """The text of an answer, and scores of the choices where it has such."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise NoAnswerError(f"the answer has no choices[0].message.content: {answer!r}") from None
    if text is None:
        text = ""  # a model that wrote nothing
    if isinstance(text, list):  # parts, as some servers give
        text = "".join(part.get("text", "") for part in text if isinstance(part, Mapping))
    if not isinstance(text, str):
        raise NoAnswerError(f"the answer's content is {text!r}; expected text")
    return Reply(text, _scores(choice, text, sample), plans=plans, seconds=seconds)


def _scores(choice: Mapping[str, Any], text: str, sample: Sample) -> dict[str, float] | None:
    """Log-probabilities of the choices, where the answer is one token that is a choice."""
    try:
        first = choice["logprobs"]["content"][0]
        told = [(one["token"], float(one["logprob"])) for one in [*first["top_logprobs"], first]]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    if _bare(first["token"]) not in sample.choices or _bare(text) != _bare(first["token"]):
        return None
    lowest = min(value for _, value in told)
    best = dict.fromkeys(sample.choices, lowest)
    for token, value in told:
        if _bare(token) in best:
            best[_bare(token)] = max(best[_bare(token)], value)
    return best


def _bare(text: Any) -> str:
    return re.sub(r"^\W+|\W+$", "", str(text))
