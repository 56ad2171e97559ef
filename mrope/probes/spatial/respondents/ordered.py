"""Work on many things at once, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, stop: Event) -> Iterator[Result]:
    """`work(item)` of each item, in order, with so many at work at once.

    The threads are daemons, so that an interrupted process ends at once. A consumer that leaves early sets `stop`, and
    what was not begun is not done. At most four items a worker are ahead of the consumer.
    """
    jobs: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        while (job := jobs.get()) is not None:
            future, item = job
            if stop.is_set():
                future.cancel()
                continue
            try:
                future.set_result(work(item))
            except BaseException as error:
                future.set_exception(error)

    threads = [Thread(target=run, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    ahead: deque[Future[Result]] = deque()
    try:
        for item in items:
            future: Future[Result] = Future()
            ahead.append(future)
            jobs.put((future, item))
            if len(ahead) >= 4 * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        stop.set()
        for _ in threads:
            jobs.put(None)
