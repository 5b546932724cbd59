"""URLs of objects, and of folders of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from feedline.errors import InvalidValueError

#: What a URL may begin with.
SCHEMES = ("s3", "gs", "az", "http", "https")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Url:
    """The URL of an object, or of a folder of objects.

    Args:
        root: The scheme and the bucket, container or host, such as `s3://bucket`.
        key: The name of the object in it, without a slash at its ends, not quoted.

    Examples:
        >>> folder = Url.of("s3://bucket/data/")
        >>> folder / "chunk-000000.safetensors"
        s3://bucket/data/chunk-000000.safetensors
    """

    root: str
    key: str

    @classmethod
    def of(cls, text: str) -> Url:
        """Return a URL, or raise if it is none that can be opened."""
        scheme = _SCHEME.match(text)
        known = ", ".join(f"{name}://" for name in SCHEMES)
        if scheme is None or scheme[1].lower() not in SCHEMES:
            raise InvalidValueError(f"url={text!r:.200} must begin with one of {known}")
        is_web = scheme[1].lower().startswith("http")
        bucket, _, key = text[scheme.end() :].partition("/")
        if not bucket or (is_web and not urlsplit(text).hostname):
            raise InvalidValueError(f"url={text!r:.200} must name a bucket or host")
        if is_web and (mark := next((m for m in "?#" if m in text), None)):
            raise InvalidValueError(
                f"url={text!r:.200} must not have {mark!r}: the names of other files could not be "
                "made from it; use the plain URL, and storage_options for access"
            )
        key = (unquote(key) if is_web else key).strip("/")
        if "\0" in key or any(part in (".", "..") for part in key.split("/")):
            raise InvalidValueError(f"url={text!r:.200} must not have '.' or '..' as a part")
        return cls(f"{scheme[1].lower()}://{bucket}", key)

    @property
    def scheme(self) -> str:
        """What the URL begins with, such as `s3`."""
        return self.root.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The bucket, container or host."""
        return self.root.partition("://")[2]

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """The folder that this is in."""
        return Url(self.root, self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> Url:
        return Url(self.root, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        key = quote(self.key) if self.scheme.startswith("http") else self.key
        return f"{self.root}/{key}"

    __repr__ = __str__


def is_url(path: Any) -> bool:
    """Whether this is a text that begins like a URL; `s3:/bucket`, from a `Path`, is an error."""
    if isinstance(path, os.PathLike):
        text = os.fspath(path)
        if isinstance(text, str) and text.startswith(tuple(f"{name}:/" for name in SCHEMES)):
            raise InvalidValueError(f"path={path!r:.200} must be a text: a Path spoils a URL")
        return False
    return isinstance(path, str) and _SCHEME.match(path) is not None


def local_folder(name: str, folder: str | os.PathLike[str]) -> Path:
    """Return a folder on this machine; a URL would become the name of one, and "" all of `.`."""
    if not os.fspath(folder):
        raise InvalidValueError(f"{name}={folder!r} must name a folder; use '.' for this one")
    if is_url(folder):
        raise InvalidValueError(
            f"{name}={folder!r:.200} must be a folder on this machine, not a URL; use a local or "
            "mounted folder"
        )
    return Path(folder)


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    try:
        return urlsplit(url).hostname in _LOOPBACK
    except ValueError:
        return False
