"""The engine of one machine: processes that each take one part after the other.

A worker is a command of its own, so that it starts the same everywhere and shares nothing. It reads numbers of parts
from stdin, one a line, and answers each with a line of JSON, {"rows": 2000} or {"error": "..."}; it ends with its
stdin, so that it outlives nobody. One that is killed is replaced, and its part begins anew.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .store import drop_temporary, write_part

_TRIES = 3
"""How often a part may lose its worker before the scan stops: it may be the part that kills them."""
_COMMAND = "from mrope.data.scanning.local import work; work()"


def run_local(out: Path, numbers: Sequence[int], workers: int, on_part: Callable[[int, int], None]) -> None:
    """Write these parts; `on_part` gets the number and the rows of each that is done.

    Args:
        workers: processes; with one, and for one part, this process does the work.

    Raises:
        OSError: rows cannot be written, nothing can be reached, or a part ended its worker again and again; parts that
            are done stay done.
    """
    workers = min(workers, len(numbers))
    if workers <= 1:
        for number in numbers:
            on_part(number, write_part(out, number))
        return
    waiting, tries = list(reversed(numbers)), dict.fromkeys(numbers, 0)
    with selectors.DefaultSelector() as selector:
        running: dict[int, tuple[subprocess.Popen[str], int]] = {}
        ended: list[subprocess.Popen[str]] = []

        def start() -> None:
            worker = _start(out)
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
            hand_on(worker)

        def hand_on(worker: subprocess.Popen[str]) -> None:
            running[worker.pid] = worker, waiting.pop()
            assert worker.stdin is not None
            with suppress(BrokenPipeError):  # a dead one shows on its stdout
                worker.stdin.write(f"{running[worker.pid][1]}\n")
                worker.stdin.flush()

        try:
            for _ in range(workers):
                start()
            while running:
                for key, _ in selector.select():
                    worker = key.data
                    _, number = running.pop(worker.pid)
                    line = worker.stdout.readline()
                    if line.endswith("\n"):
                        answer = json.loads(line)
                        if "error" in answer:
                            raise OSError(answer["error"])
                        on_part(number, answer["rows"])
                        if waiting:
                            hand_on(worker)
                        else:  # it ends by itself, and nobody waits for it while others work
                            selector.unregister(worker.stdout)
                            worker.stdin.close()
                            ended.append(worker)
                        continue
                    selector.unregister(worker.stdout)
                    _stop(worker)
                    drop_temporary(out, worker.pid)
                    tries[number] += 1
                    if tries[number] == _TRIES:
                        raise ChildProcessError(
                            f"part {number} ended its worker {_TRIES} times, at last with exit code {worker.returncode}"
                        )
                    waiting.append(number)
                    start()
        finally:
            for key in list(selector.get_map().values()):
                worker = key.data
                worker.kill()
                _stop(worker)
                drop_temporary(out, worker.pid)
            for worker in ended:
                _stop(worker)


def _start(out: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, os.fspath(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": paths},
    )


def _stop(worker: subprocess.Popen[str]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
    worker.wait()


def work() -> None:
    """What a worker does until its stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it stops it
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        try:
            answer = {"rows": write_part(sys.argv[1], int(line))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}" if not isinstance(error, OSError) else str(error)}
        with suppress(BrokenPipeError):  # nobody waits for it any more: stdin has ended
            os.write(answers, f"{json.dumps(answer)}\n".encode())
