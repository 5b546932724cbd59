"""Single requests through obstore, and what their errors mean."""

from __future__ import annotations

import ctypes
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

from feedline.errors import (
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    RemoteError,
)
from feedline.store.extras import import_extra
from feedline.store.remote.urls import Url, is_loopback
from feedline.words import several

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Where obstore looks for credentials when none are given: the servers of the cloud's own machines.
_CREDENTIAL_SERVERS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "metadata/")
_REGION_CODES = (
    *("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"),
)
_ENDPOINTS = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "azure_endpoint")
# What says which server a bucket is on: options, and variables that begin as below.
_SERVERS = ("endpoint_url_s3", "endpoint_url", "endpoint", "base_url", "account_name")
_PREFIXES = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}
# A connection that delivers nothing for this long is given up.
_STALL = "20s"
# What is written to a file at once.
_PIECE_BYTES = 2**18
# What stands in for the ETag of a server that gives none; a true one is quoted.
_MODIFIED = "modified "


class TransientError(RemoteError):
    """A fault that may pass: the request is worth another try."""


class StalledError(TransientError):
    """A connection delivered nothing for too long."""


@dataclass(frozen=True)
class Head:
    """What a server says about an object.

    Args:
        num_bytes: Its size.
        etag: A text that changes with its content: the ETag, or else when the object was modified;
            None if the server says neither.
    """

    num_bytes: int
    etag: str | None


class Requests:
    """Makes requests in this process; every call is one request.

    Clients are opened when they are first needed, and anew in another process.

    Args:
        options: The keys of obstore's store, and `client_options`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._clients: dict[str, Any] = {}
        self._lock = Lock()
        _made.add(self)

    def keep_forever(self) -> None:
        """Let the clients live as long as this process.

        What drops a client waits for obstore's threads, which a forked child does not have: if one
        of them was busy at the fork, that takes forever, and no other thread can run meanwhile.
        """
        for client in self._clients.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))

    def head(self, url: Url) -> Head:
        """Return what the server says about an object."""
        with _explained(url):
            return _head(self._client(url).head(url.key))

    def read(self, url: Url, limit: int) -> tuple[bytes, Head]:
        """Return a whole object of at most `limit` bytes."""
        with _explained(url):
            found = self._client(url).get(url.key)
            head = _head(found.meta)
            if head.num_bytes > limit:
                raise DamagedDataError(
                    f"{url}: has {several(head.num_bytes, 'byte')} but must have at most {limit}"
                )
            data = bytes(found.bytes())
        _check_length(url, len(data), head.num_bytes)
        return data, head

    def read_range(
        self, url: Url, start: int, end: int, etag: str | None, object_bytes: int | None
    ) -> bytes:
        """Return some bytes of an object."""
        return b"".join(self._pieces(url, start, end, etag, object_bytes))

    def fetch_range(
        self,
        url: Url,
        start: int,
        end: int,
        etag: str | None,
        object_bytes: int | None,
        path: Path,
        offset: int,
    ) -> int:
        """Write some bytes of an object to a file that is there; return their CRC-32."""
        descriptor = os.open(path, os.O_WRONLY)
        crc = 0
        try:
            for piece in self._pieces(url, start, end, etag, object_bytes):
                # Here it is in the processor's cache.
                crc = zlib.crc32(piece, crc)
                while piece:
                    written = os.pwrite(descriptor, piece, offset)
                    piece, offset = piece[written:], offset + written
        finally:
            os.close(descriptor)
        return crc

    def _pieces(
        self, url: Url, start: int, end: int, etag: str | None, object_bytes: int | None
    ) -> Iterator[memoryview]:
        """Yield some bytes of an object as they arrive, or raise if it is another one."""
        options: dict[str, Any] = {"range": (start, end)}
        if etag is not None and not etag.startswith(("W/", _MODIFIED)):
            options["if_match"] = etag
        with _explained(url):
            try:
                found = self._client(url).get(url.key, options=options)
            except Exception as error:
                if type(error).__name__ != "NotSupportedError":
                    raise
                # A server that always sends all of it.
                found = self._client(url).get(url.key)
            if _is_other(found.meta, etag, object_bytes):
                raise changed(url)
            place, num_left = found.range[0], end - start
            for received in found.stream(min_chunk_size=_PIECE_BYTES):
                piece = memoryview(received)
                piece = piece[max(0, start - place) : max(0, end - place)]
                place += len(received)
                num_left -= len(piece)
                yield piece
        _check_length(url, end - start - num_left, end - start)

    def write(self, url: Url, data: bytes | Path) -> str | None:
        """Write a whole object, from memory or from a file; return its ETag, if it has one."""
        with _explained(url):
            etag: str | None = self._client(url).put(url.key, data).get("e_tag")
        return etag

    def remove(self, url: Url) -> None:
        """Remove an object."""
        with _explained(url):
            self._client(url).delete(url.key)

    def list_heads(self, url: Url, limit: int) -> list[tuple[str, Head]]:
        """Return the objects under a folder, by names relative to it, at most about `limit`."""
        found: list[tuple[str, Head]] = []
        start = len(url.key) + 1 if url.key else 0
        with _explained(url):
            for page in self._client(url).list(url.key or None):
                found += [(entry["path"][start:], _head(entry)) for entry in page]
                if len(found) >= limit:
                    break
        return found

    def _client(self, url: Url) -> Any:
        with self._lock:
            if url.root not in self._clients:
                self._clients[url.root] = open_client(url, self._options)
            return self._clients[url.root]


def server_of(url: Url, options: Mapping[str, Any]) -> str:
    """Return what is given of the server that a bucket is on; a web server is in its URL."""
    given = {name.lower(): value for name, value in {**os.environ, **options}.items()}
    prefixes = _PREFIXES.get(url.scheme, ())
    names = [prefix + name for name in _SERVERS for prefix in prefixes]
    names += _SERVERS if prefixes else ()
    return " ".join(str(given[name]) for name in names if given.get(name))


def open_client(url: Url, options: Mapping[str, Any]) -> Any:
    """Return obstore's client for a bucket or host."""
    stores = import_extra("obstore.store", extra="remote", what="URLs such as s3://bucket/data")
    given = dict(options)
    client: dict[str, Any] = {"read_timeout": _STALL, "connect_timeout": "5s", "timeout": "10min"}
    client |= given.pop("client_options", {})
    endpoints = [given.get(name) for name in _ENDPOINTS]
    endpoints += [os.environ.get(f"AWS_{name.upper()}") for name in ("endpoint", "endpoint_url")]
    endpoint = next((text for text in endpoints if text), None)
    if isinstance(endpoint, str) and is_loopback(endpoint):
        client.setdefault("allow_http", True)
    # Tries are counted, and waited for, by the caller.
    more = {"client_options": client, "retry_config": {"max_retries": 0}}
    try:
        if url.scheme == "s3":
            return stores.S3Store(url.bucket, **more, **given)
        if url.scheme == "gs":
            return stores.GCSStore(url.bucket, **more, **given)
        if url.scheme == "az":
            return stores.AzureStore(url.bucket, **more, **given)
        if given:
            raise InvalidValueError(
                f"storage_options={list(given)!s:.200} cannot be used with {url.scheme}:// URLs; "
                "use only client_options"
            )
        # Whoever asks for http gets it.
        client.setdefault("allow_http", url.scheme == "http")
        return stores.HTTPStore.from_url(url.root, **more)
    except FeedlineError:
        raise
    except Exception as error:
        text = _short(error)
        raise InvalidValueError(f"storage_options do not fit {url.root} ({text})") from None


class _explained:
    """Turns errors of obstore into ours."""

    def __init__(self, url: Url) -> None:
        self._url = url

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, FeedlineError) or not isinstance(error, Exception):
            return
        if isinstance(error, ModuleNotFoundError):
            return
        raise explain(self._url, error) from None


def explain(url: Url, error: Exception) -> FeedlineError:
    """Return our error for one that obstore has raised."""
    text, short = str(error), _short(error)
    name = type(error).__name__
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    code = _CODE.search(text)
    if any(server in text.partition("Debug source")[0] for server in _CREDENTIAL_SERVERS):
        return RemoteError(
            f"{url}: no credentials were found; set the usual environment variables, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or storage_options; for public data use "
            'storage_options={"skip_signature": True}'
        )
    if "incorrectly configured region" in text or (code and code[1] in _REGION_CODES):
        return RemoteError(
            f"{url}: the bucket is in another region; set AWS_REGION, or "
            'storage_options={"region": …}'
        )
    if isinstance(error, FileNotFoundError) or name == "NotFoundError":
        what = "the bucket" if code and code[1] == "NoSuchBucket" else "it"
        return MissingDataError(f"{url}: {what} does not exist; check the URL")
    if name == "PermissionDeniedError" or status == 403:
        return RemoteError(
            f"{url}: access is denied (403); check the rights of the credentials; some servers "
            "answer so where nothing is"
        )
    if name == "UnauthenticatedError" or status == 401:
        return RemoteError(f"{url}: the credentials are missing or wrong (401); check them")
    if name == "PreconditionError" or status in (412, 416):
        return changed(url)
    if "BadScheme" in text:
        return InvalidValueError(
            f"{url}: the endpoint begins with http://, which is allowed for this machine only; use "
            'https://, or storage_options={"client_options": {"allow_http": True}}'
        )
    if "kind: Timeout" in text or "TimedOut" in text:
        return StalledError(f"{url}: the connection stalled")
    is_passing = status >= 500 or status in (408, 425, 429) or (not status and _is_broken(text))
    kind = TransientError if is_passing else RemoteError
    return kind(f"{url}: the request failed ({short})")


def changed(url: Url) -> DamagedDataError:
    """Return the error for an object that is not the one that was opened."""
    return DamagedDataError(
        f"{url}: has changed since it was opened (another ETag, date or size); open the data "
        "again, and start a new run"
    )


def _is_broken(text: str) -> bool:
    kinds = ("Connect", "Interrupted", "Request", "Timeout")
    return any(f"kind: {kind}," in text for kind in kinds) or "body error" in text


def _check_length(url: Url, found: int, expected: int) -> None:
    if found != expected:
        raise TransientError(
            f"{url}: {several(found, 'byte')} of {expected} arrived; the body is truncated"
        )


def _head(meta: Mapping[str, Any]) -> Head:
    return Head(int(meta["size"]), meta.get("e_tag") or _modified(meta))


def _modified(meta: Mapping[str, Any]) -> str | None:
    """Return when an object was modified, in place of its ETag; None if the server does not say."""
    seconds = meta["last_modified"].timestamp()
    # obstore takes 1970 for what it is not told.
    return f"{_MODIFIED}{seconds:.0f}" if seconds else None


def _is_other(meta: Mapping[str, Any], etag: str | None, object_bytes: int | None) -> bool:
    if object_bytes not in (None, int(meta["size"])):
        return True
    if etag is None:
        return False
    # A server may leave out either in the answer to a part, so like is compared with like.
    found = _modified(meta) if etag.startswith(_MODIFIED) else meta.get("e_tag")
    return found not in (None, etag)


def _short(error: Exception) -> str:
    return str(error).partition("\n\nDebug source")[0].replace("\n", " ")[:300]


_made: WeakSet[Requests] = WeakSet()


def _after_fork_in_child() -> None:
    for requests in list(_made):
        requests.keep_forever()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
