"""Files of other file systems, by URL and through fsspec: "s3://bucket/a.jpg", "memory://a.jpg", "zip::s3://b/a.zip"."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

_URL = re.compile(r"[A-Za-z][\w+.-]+(://|::)")
_KNOWN = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""What a file system says of a file; all else is said of the way to it."""
_PAUSES = (0.2, 1.0)
"""Seconds to wait before asking again."""
_AHEAD = 1 << 20
"""Bytes that are asked for at a time, behind the header of a file."""
Result = TypeVar("Result")


class UnreachableError(OSError):
    """A file system that did not answer, though it was asked several times."""


def is_url(path: str) -> bool:
    """Whether a path is for fsspec."""
    return _URL.match(path) is not None


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there.

    Raises:
        ImportError: fsspec, or its package for this protocol, is not installed.
        ValueError: fsspec does not know the protocol.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ImportError(f"{url} needs fsspec, which is not installed: pip install 'mrope[scale]'") from None
    try:
        return tried(url, lambda: url_to_fs(url, use_listings_cache=False))
    except ImportError as error:
        raise ImportError(f"{url}: {error}") from None


def url_of(fs: Any, url: str, path: str) -> str:
    """The URL of another path of the file system of `url`."""
    _, chained, rest = url.partition("::")
    if chained and "://" not in url.partition("::")[0]:  # "zip::s3://b/a.zip" is short for "zip://::s3://b/a.zip"
        return f"{url.partition('::')[0]}://{path}::{rest}"
    return f"{fs.unstrip_protocol(path)}{chained}{rest}"


def tried(url: str, call: Callable[[], Result]) -> Result:
    """What a call to a file system gives; it is asked again where the way to it seems to fail.

    Raises:
        OSError: as the file system, of the file.
        UnreachableError: as the last time it was asked.
    """
    for pause in (*_PAUSES, None):
        try:
            return call()
        except (*_KNOWN, ImportError, ValueError):
            raise
        except Exception as error:
            words = " ".join(str(error).split()) or type(error).__name__
            if 400 <= (getattr(error, "status", None) or 0) < 500:  # of HTTP: asking again does not help
                raise OSError(f"{url}: {words}") from error
            if pause is None:
                raise UnreachableError(f"{url}: {words}") from error
            time.sleep(pause)
    raise AssertionError


class RemoteFile:
    """A file of which only the ranges that are read are fetched: the first one as it is asked for, then in blocks."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self._url, self._fs, self._path = url, fs, path
        self._first, self._place, self._file = b"", 0, None

    def seek(self, place: int) -> None:
        self._place = place

    def read(self, count: int) -> bytes:
        data = tried(self._url, lambda: self._fetched(self._place, self._place + count))
        self._place += len(data)
        return data

    def _fetched(self, start: int, end: int) -> bytes:
        if not self._first:
            self._first = self._fs.cat_file(self._path, start=0, end=end)
        if end <= len(self._first):
            return self._first[start:end]
        if self._file is None:
            self._file = self._fs.open(self._path, "rb", block_size=_AHEAD)
        self._file.seek(start)
        return self._file.read(end - start)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
