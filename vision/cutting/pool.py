"""Many pictures on all cores: results in order, from a bounded queue, and no picture that stops the others."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Thread
from types import TracebackType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from mrope.checks import one_of, whole
from mrope.devices import check_device
from mrope.families import Family

from ..loading.files import MAX_PIXELS
from ..loading.load import Background
from ..loading.pictures import OnError, Picture, check_kind, check_several, name_of
from ..plans.fitting import check_family, picture_limits
from ..plans.plan import Resized
from .patches import Dtype, Impl, Patches, patchify

Outcome: TypeAlias = "Patches | Failure"


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """A picture that became no patches.

    Args:
        index: its place among the sources, from 0.
        name: path of the file, or how errors call what has none.
        error: why; its text names the file too.
    """

    index: int
    name: str
    error: Exception


class PatchStream(Iterator[Outcome]):
    """The results of `patchify_all`, one a source, in their order; to be closed, used with `with`, or used up.

    `skipped` lists the failures that were left out so far.
    """

    def __init__(self, outcomes: Iterator[Outcome], on_error: OnError) -> None:
        self.skipped: list[Failure] = []
        self._outcomes, self._on_error = outcomes, on_error

    def __next__(self) -> Outcome:
        for outcome in self._outcomes:
            if not isinstance(outcome, Failure) or self._on_error == "keep":
                return outcome
            if self._on_error == "raise":
                self.close()
                raise outcome.error
            self.skipped.append(outcome)
        raise StopIteration

    def close(self) -> None:
        """Stop: pictures that were not begun are dropped, those in work are waited for."""
        getattr(self._outcomes, "close", lambda: None)()

    def __enter__(self) -> PatchStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def patchify_all(
    sources: Iterable[Picture | Resized],
    family: Family,
    *,
    workers: int | None = None,
    ahead: int = 2,
    on_error: OnError = "raise",
    progress: bool = False,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    conflict: Literal["error", "pad", "tile", "family"] = "error",
    background: Background = "white",
    max_pixels: int = MAX_PIXELS,
    dtype: Dtype = "float32",
    device: torch.device | str | None = None,
    impl: Impl = "auto",
) -> PatchStream:
    """The patches of any number of pictures, one after the other, made by threads that each take whole pictures.

    Nothing begins before the first result is asked for. Sources are then taken one by one, so that they may be a
    generator of millions of paths; with the result that was given out last, no more than `workers + ahead` pictures are
    alive.

    Args:
        sources: what `patchify` takes, one picture each; an array or tensor of four axes is one picture a row.
        workers: threads, by default one for each core that this process may use. Each lets torch use one thread.
        ahead: pictures that may be finished or wait beyond one for each worker.
        on_error: what a picture does that cannot be read, or whose plan is refused: "raise" its error, when its turn
            comes; "skip" it and list it in `skipped`; "keep" its place with a `Failure`.
        progress: show a bar on stderr.
        min_tokens: as in `patchify`, as all that follow.

    Raises:
        ValueError, TypeError: a setting is wrong, at once; a picture is, with "raise", in its turn.
        ImportError: with any `on_error`, a package is missing.

    >>> import mrope, numpy
    >>> pages = (numpy.zeros((56, side), numpy.uint8) for side in (84, 0, 28))
    >>> stream = patchify_all(pages, mrope.family("qwen2-vl"), workers=2, on_error="skip")
    >>> [patches.grids.tolist() for patches in stream], len(stream.skipped)
    ([[[1, 4, 6]], [[1, 6, 4]]], 1)
    """
    one_of("on_error", on_error, get_args(OnError))
    one_of("conflict", conflict, ("error", "pad", "tile", "family"))
    one_of("dtype", dtype, get_args(Dtype))
    one_of("impl", impl, get_args(Impl))
    workers = _cores() if workers is None else whole("workers", workers, 1)
    ahead = whole("ahead", ahead, 0)
    whole("max_pixels", max_pixels, 1)
    check_several("sources", sources)
    check_family(family)
    picture_limits(family, min_tokens, max_tokens)
    check_device(device)

    def cut(source: Any, **limits: Any) -> Patches:
        return patchify(
            source,
            family,
            **limits,
            background=background,
            max_pixels=max_pixels,
            dtype=dtype,
            device=device,
            impl=impl,
        )

    # What no picture can do is a mistake of the call, and not of the pictures.
    try:
        cut(np.zeros((64, 64, 4), np.uint8))
    except ValueError as error:
        if error.__cause__ is not None and str(error).startswith("picture 0: "):
            raise error.__cause__ from None
        raise

    def one(index: int, source: Any) -> Outcome:
        try:
            if not isinstance(source, Resized):
                check_kind(source, f"picture {index}")
            return cut(source, min_tokens=min_tokens, max_tokens=max_tokens, conflict=conflict)
        except ImportError:
            raise
        except Exception as error:
            return _failure(index, source, error)

    def outcomes() -> Iterator[Outcome]:
        total = len(sources) if hasattr(sources, "__len__") else None  # pyright: ignore[reportArgumentType]
        pool = ThreadPoolExecutor(workers, "mrope", _alone, (torch.get_num_threads(),))
        waiting: deque[Future[Outcome]] = deque()
        numbered: Iterator[tuple[int, Any]] = enumerate(sources)
        broken: Exception | None = None
        try:
            with _bar(total, shown=progress) as advance:
                while True:
                    try:
                        for source in islice(numbered, workers + ahead - len(waiting)):
                            waiting.append(pool.submit(one, *source))
                    except Exception as error:  # of the caller's iterator: what came before it is given out first
                        numbered, broken = iter(()), error
                    if not waiting:
                        if broken is not None:
                            raise broken
                        return
                    outcome = waiting.popleft().result()
                    advance(isinstance(outcome, Failure))
                    yield outcome
                    del outcome  # the caller's alone: it may go before the next one is made
        finally:
            pool.shutdown(cancel_futures=True)

    return PatchStream(outcomes(), on_error)


def _failure(index: int, source: object, error: Exception) -> Failure:
    name = name_of(source)
    if name is None:  # `patchify` saw one picture, the first of its list
        name = f"picture {index}"
        if isinstance(error, ValueError):
            error = ValueError(f"{name}: {str(error).removeprefix('picture 0: ')}")
    return Failure(index, name, error)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alone(threads: int) -> None:
    """Let torch use one thread in this one: the cores are busy with other pictures."""
    torch.get_num_threads()  # the first question of a thread sets it up, and would undo what follows
    torch.set_num_threads(1)
    # That also set what threads that are started later begin with, which is not ours to change.
    restoring = Thread(target=torch.set_num_threads, args=(threads,))
    restoring.start()
    restoring.join()


@contextmanager
def _bar(total: int | None, *, shown: bool) -> Iterator[Any]:
    """A function to call with each outcome, whether it failed; a progress bar follows it if one is shown."""
    if not shown:
        yield lambda failed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task, failures = bars.add_task("pictures", total=total), 0

        def advance(failed: bool) -> None:
            nonlocal failures
            failures += failed
            bars.update(task, advance=1, description=f"pictures, {failures} failed" if failures else "pictures")

        yield advance
