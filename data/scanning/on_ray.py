"""The engine of many machines: one Ray task a part, on a cluster that is there or on a Ray of this machine.

All that lies in files - the scan's folder and the local sources - must be on storage that every machine of the cluster
has at the same place, and `mrope` must be installed there; sources by URL are fetched by whoever looks at them. A task
returns the number of its rows alone, so that next to nothing goes through Ray's object store.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .remote import is_url
from .store import read_settings, write_part

_RETRIES = 2
"""How often Ray begins a part anew whose worker died; after that it may be the part that kills them."""
_AHEAD = 4
"""Tasks that are handed in for each core; some wait, so that no worker does."""
_STORE = 80 << 20
"""Bytes of the object store of a Ray that is started here: about the least that Ray allows."""
_MAGIC = re.compile(r"[*?\[{]")


def run_ray(out: Path, numbers: Sequence[int], address: str | None, on_part: Callable[[int, int], None]) -> None:
    """Write these parts; `on_part` gets the number and the rows of each that is done.

    Args:
        address: of a running cluster, "auto" or "host:port"; None starts one on this machine and stops it at the end.
            A process that is connected to Ray already goes on with that, and gives none.

    Raises:
        ImportError: Ray is not installed.
        ValueError: an address, and the process is connected already.
        ConnectionError: nothing answers at that address.
        OSError: rows cannot be written, a machine does not see what it should look at or has no mrope, or a part ended
            its worker again and again; parts that are done stay so.
    """
    place, host = os.path.abspath(out), socket.gethostname()
    with _connected(address) as ray:
        # Retries are of lost workers and machines; what goes wrong in a part comes back in words.
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_answer)
        paths = ray.put([place, *_local_roots(read_settings(out))])
        waiting, running = list(reversed(numbers)), {}
        try:
            while waiting or running:
                most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while waiting and len(running) < most:
                    number = waiting.pop()
                    running[task.remote(place, number, host, paths)] = number
                (done,), _ = ray.wait(list(running))
                number = running.pop(done)
                on_part(number, _rows(ray, done, number))
        finally:
            for one in running:
                ray.cancel(one, force=True)


def _rows(ray: Any, done: Any, number: int) -> int:
    """What the task of a part returned."""
    try:
        answer = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        why = str(error).strip().splitlines()[-1]
        raise OSError(f"Ray cannot run part {number}: {why}; expected mrope on all machines of the cluster") from None
    except ray.exceptions.RayError as error:
        why = type(error).__name__
        raise ChildProcessError(f"part {number} ended its worker {_RETRIES + 1} times, at last by {why}") from None
    if isinstance(answer, str):
        raise OSError(answer)
    return answer


def _answer(out: str, number: int, host: str, paths: Sequence[str]) -> int | str:
    """The rows of a part, or what is wrong, in words: another machine may not know its exception."""
    try:
        return unseen(host, paths) or write_part(out, number)
    except Exception as error:
        return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def unseen(host: str, paths: Sequence[str]) -> str:
    """A line that says which of the paths on `host` this machine does not see; "" where there is none.

    >>> unseen("another-machine", ["/"])
    ''
    """
    here = socket.gethostname()
    for path in paths if here != host else ():
        if not os.path.exists(path):
            return f"{path} is on {host} and not on {here}; expected storage that all machines of the cluster share"
    return ""


def _local_roots(settings: Mapping[str, Any]) -> list[str]:
    """The local sources that are there now; of globs and braces, the folder that all of it lies in."""
    roots: dict[str, None] = {}
    for source in settings["sources"]:
        if not is_url(source):
            path = os.path.join(settings["folder"] or "", source)
            magic = None if os.path.exists(path) else _MAGIC.search(path)
            roots[path if magic is None else os.path.dirname(path[: magic.start()])] = None
    return [root for root in roots if os.path.exists(root)]


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """The module of Ray, connected as long as the context lasts."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ImportError("engine 'ray' needs Ray, which is not installed: pip install 'mrope[scale]'") from None
    if ray.is_initialized():
        if address is not None:
            raise ValueError(f"address is {address!r}, and this process is connected to Ray already; expected none")
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is not None:
        _check_listens(address)
        ray.init(address, **quiet)
    else:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with _environment({"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}):  # which its workers inherit
            ray.init("local", include_dashboard=False, object_store_memory=_STORE, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdecimal()):
        return  # "auto", or what Ray refuses at once
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        words = f"address is {address!r}, where nothing answers ({error.strerror or error})"
        raise ConnectionError(f"{words}; expected 'auto', or the 'host:port' of a running Ray cluster") from None


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that are other ones for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
