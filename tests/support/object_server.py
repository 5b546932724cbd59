"""Servers of objects on this machine: S3's protocol by moto, behind a proxy that makes faults.

Each is a real process, and ends with the block that started it, or with the tests if these are
killed. A test that needs nothing but objects takes `s3_server`; one that looks at requests, latency
or faults puts `fault_proxy(server.url)` in between::

    with s3_server() as server, fault_proxy(server.url) as proxy:
        server.put("bucket", "data/a.bin", b"...")
        proxy.inject(too_busy(times=2))
        environment = server.environment(proxy.url)     # AWS_ENDPOINT_URL and the like
        ...
        assert proxy.num_bytes == 3
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from fault_proxy import Fault, Seen
from processes import SUPPORT, environment

#: Keys that moto takes, as it takes any.
ACCESS_KEY, SECRET_KEY, REGION = "feedline", "a-secret-of-tests", "us-east-1"


@dataclass
class S3Server:
    """A server of the S3 protocol that runs."""

    url: str
    process: subprocess.Popen[str]

    def environment(self, url: str | None = None) -> dict[str, str]:
        """Return the variables by which S3 clients find the server, or the proxy at `url`."""
        return {
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
            # Nobody asks a cloud for keys, nor reads those of whoever runs the tests.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def options(self, url: str | None = None) -> dict[str, str]:
        """Return the same as options of a client, by obstore's names."""
        return {
            "endpoint": url or self.url,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": REGION,
        }

    def gcs_options(self, url: str | None = None) -> dict[str, str]:
        """Return options that let a client of `gs://` read public objects, by obstore's names.

        Google's XML interface is S3's where objects are read, so moto serves it.
        """
        key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {"service_account_key": json.dumps({**key, "gcs_base_url": url or self.url})}

    def make_bucket(self, bucket: str, *, is_public: bool = False) -> None:
        """Make a bucket that is not there yet; whoever asks may read a public one's objects."""
        self._ask("PUT", bucket, headers={"x-amz-acl": "public-read"} if is_public else {})

    def put(self, bucket: str, key: str, data: bytes, *, is_public: bool = False) -> None:
        """Write an object; `is_public` lets `http://` read it, without keys."""
        headers = {"x-amz-acl": "public-read"} if is_public else {}
        self._ask("PUT", f"{bucket}/{quote(key)}", data, headers)

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object's bytes."""
        return self._ask("GET", f"{bucket}/{quote(key)}")

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object."""
        self._ask("DELETE", f"{bucket}/{quote(key)}")

    def keys(self, bucket: str) -> list[str]:
        """Return the names of a bucket's objects (of the first thousand)."""
        from xml.etree import ElementTree

        found = ElementTree.fromstring(self._ask("GET", f"{bucket}?list-type=2"))
        return [key.text or "" for key in found.iter() if key.tag.rpartition("}")[2] == "Key"]

    def reset(self) -> None:
        """Remove all buckets."""
        self._ask("POST", "moto-api/reset")

    def _ask(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        # moto looks for a key and its region in it, and verifies no signature.
        scope = f"{ACCESS_KEY}/20260101/{REGION}/s3/aws4_request"
        signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        fields = {"Authorization": signed, "Content-Type": "binary/octet-stream", **(headers or {})}
        request = Request(f"{self.url}/{path}", data or b"", fields, method=method)
        if method == "GET":
            request.data = None
        try:
            with urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise AssertionError(f"{method} {path}: {error.code} {said}") from None


class FaultProxy:
    """A proxy that runs: tells it what to do, and what it has seen."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = process
        self._lock = threading.Lock()

    def set(self, *, latency: float | None = None, bytes_per_second: float | None = None) -> None:
        """Set the seconds that each request waits, and the rate of all together (0: no limit)."""
        given = {"latency": latency, "bytes_per_second": bytes_per_second}
        self._tell({name: value for name, value in given.items() if value is not None})

    def inject(self, *faults: Fault, seed: int | None = None) -> None:
        """Add faults; for each request, the first that matches counts."""
        message: dict[str, Any] = {"inject": [asdict(fault) for fault in faults]}
        self._tell(message if seed is None else {**message, "seed": seed})

    def clear(self) -> None:
        """Stop all faults."""
        self._tell({"clear": True})

    def forget(self) -> None:
        """Count from here."""
        self._tell({"forget": True})

    @property
    def seen(self) -> list[Seen]:
        """The requests up to now."""
        return [Seen(**record) for record in self._tell({"seen": True})]

    @property
    def num_requests(self) -> int:
        """How many requests there were."""
        return len(self.seen)

    @property
    def num_bytes(self) -> int:
        """How many bytes of bodies were passed to clients."""
        return sum(seen.num_bytes for seen in self.seen)

    @property
    def most_at_once(self) -> int:
        """The most requests that were open at the same time."""
        return max((seen.num_open for seen in self.seen), default=0)

    def _tell(self, message: dict[str, Any]) -> Any:
        with self._lock:
            stdin, stdout = _pipes(self.process)
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())


def too_busy(**more: Any) -> Fault:
    """Return the answer of a service that is overloaded: 503, `SlowDown`."""
    return Fault(kind="status", status=503, body=_said("SlowDown"), **more)


def throttled(seconds: int = 1, **more: Any) -> Fault:
    """Return the answer of a service that wants to be asked later: 429 with Retry-After."""
    headers = {"Retry-After": str(seconds)}
    body = _said("TooManyRequests")
    return Fault(kind="status", status=429, headers=headers, body=body, **more)


def forbidden(**more: Any) -> Fault:
    """Return the answer to keys that may not do this: 403, `AccessDenied`."""
    return Fault(kind="status", status=403, body=_said("AccessDenied"), **more)


def wrong_region(region: str = "eu-west-3", **more: Any) -> Fault:
    """Return the answer of S3 to a request that another region is to serve."""
    headers = {"x-amz-bucket-region": region}
    body = _said("PermanentRedirect")
    return Fault(kind="status", status=301, headers=headers, body=body, **more)


def _said(code: str) -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>injected by a test</Message></Error>"
    )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start moto's server on a free port."""
    with _started("s3_job.py") as (process, port):
        yield S3Server(f"http://127.0.0.1:{port}", process)


@contextmanager
def fault_proxy(url: str) -> Iterator[FaultProxy]:
    """Start a proxy on a free port that passes requests on to the server at `url`."""
    to = urlsplit(url)
    with _started("fault_proxy.py", str(to.hostname), str(to.port or 80)) as (process, port):
        yield FaultProxy(f"http://127.0.0.1:{port}", process)


@contextmanager
def _started(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a script that prints its port and ends with its stdin."""
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / script), *arguments],
        env=environment(SUPPORT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # An interrupt of the tests is not one of the server that they tidy up with.
        start_new_session=True,
    )
    try:
        line = _pipes(process)[1].readline()
        assert line, f"{script} did not start"
        yield process, int(line)
    finally:
        for pipe in _pipes(process):
            pipe.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
