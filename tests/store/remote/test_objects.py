"""Objects over a real server: what arrives, what is tried again, and what each fault says."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fault_proxy import Fault
from feedline.errors import DamagedDataError, InvalidValueError, MissingDataError, RemoteError
from feedline.store.remote import objects as objects_module
from feedline.store.remote.forked import sendable
from feedline.store.remote.objects import Objects, wait_before
from feedline.store.remote.requests import Requests
from feedline.store.remote.urls import Url, is_url, local_folder
from object_server import FaultProxy, S3Server, forbidden, throttled, too_busy, wrong_region

DATA = np.arange(50_000, dtype=np.uint32).tobytes()
URL = Url.of("s3://bucket/a folder/x%20y.bin")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_FIRST_WAIT", 0.01)


@pytest.fixture
def objects(server: S3Server, proxy: FaultProxy) -> Objects:
    server.put("bucket", URL.key, DATA)
    return Objects({**server.options(proxy.url), "client_options": {"read_timeout": "1s"}})


def fetched(objects: Objects, path: Path, **more: Any) -> bytes:
    objects.fetch(URL, path, 0, len(DATA), **more)
    return path.read_bytes()


def test_what_was_written_is_read_whole_and_in_ranges(objects: Objects, tmp_path: Path) -> None:
    url = Url.of("s3://bucket") / "new"
    (tmp_path / "file").write_bytes(DATA)
    objects.write(url, tmp_path / "file")
    objects.write(url.parent / "small", b"abc")
    head = objects.head(url)
    assert head.num_bytes == len(DATA)
    assert objects.read(url)[0] == DATA
    assert objects.read(url.parent / "small")[0] == b"abc"
    assert objects.read_range(url, 1000, 3000, head.etag) == DATA[1000:3000]
    assert objects.read_range(url, 5, 5) == b""
    objects.fetch(url, tmp_path / "part", 7, 9999, head.etag)
    assert (tmp_path / "part").read_bytes() == DATA[7:9999]
    assert "small" in dict(objects.list_heads(Url.of("s3://bucket"), 10_000))


def test_a_large_object_comes_in_parts_and_is_counted_once(
    objects: Objects, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_PART_BYTES", 30_000)
    proxy.inject(too_busy(times=2))
    assert fetched(objects, tmp_path / "x") == DATA
    meters = objects.meters
    assert meters.num_bytes == len(DATA)
    assert meters.num_requests == 7 + 2
    assert meters.num_retries == 2
    assert meters.num_requests == proxy.num_requests


@pytest.mark.parametrize("fault", [too_busy(times=3), throttled(times=3)], ids=["503", "429"])
def test_a_server_that_is_busy_is_asked_again(
    fault: Any, objects: Objects, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.inject(fault)
    assert fetched(objects, tmp_path / "x") == DATA
    assert objects.meters.num_retries == 3


def test_waits_grow_and_differ() -> None:
    means = [np.mean([wait_before(number) for _ in range(200)]) for number in (1, 3, 5)]
    assert means[0] < means[1] < means[2]
    assert len({wait_before(3) for _ in range(10)}) == 10


def test_a_server_that_stays_busy_is_one_error_with_the_number_of_tries(
    objects: Objects, server: S3Server, proxy: FaultProxy
) -> None:
    proxy.inject(too_busy(times=None))
    few = Objects(server.options(proxy.url), max_tries=3)
    with pytest.raises(RemoteError, match=r"503.*3 times in a row; check the network"):
        few.head(URL)
    assert few.meters.num_requests == 3


@pytest.mark.parametrize("kind", ["stall", "cut", "short", "drop"])
def test_a_broken_or_stalled_body_is_read_again(
    kind: str, objects: Objects, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.inject(Fault(kind=kind, after=1000))
    assert fetched(objects, tmp_path / "x") == DATA
    assert objects.meters.num_retries == 1
    assert objects.meters.num_stalls == (kind == "stall")


def test_a_changed_object_is_an_error_and_never_delivered(
    objects: Objects, server: S3Server, tmp_path: Path
) -> None:
    etag = objects.head(URL).etag
    server.put("bucket", URL.key, DATA[::-1])
    with pytest.raises(DamagedDataError, match="has changed since it was opened"):
        fetched(objects, tmp_path / "x", etag=etag)
    with pytest.raises(DamagedDataError, match="has changed since it was opened"):
        objects.read_range(URL, 0, 9, etag)


def test_what_is_not_there_is_named(objects: Objects) -> None:
    with pytest.raises(MissingDataError, match="s3://bucket/nothing: it does not exist"):
        objects.read(Url.of("s3://bucket/nothing"))
    with pytest.raises(MissingDataError, match="the bucket does not exist"):
        objects.read(Url.of("s3://no-such-bucket/x"))
    assert objects.meters.num_retries == 0


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (forbidden(times=None), "access is denied .403."),
        (wrong_region(times=None), "another region; set AWS_REGION"),
    ],
    ids=["403", "region"],
)
def test_what_will_not_pass_is_not_tried_again(
    fault: Any, text: str, objects: Objects, proxy: FaultProxy
) -> None:
    proxy.inject(fault)
    with pytest.raises(RemoteError, match=text):
        objects.read(URL)
    assert objects.meters.num_requests == 1


def test_missing_credentials_say_so(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    given = {"client_options": {"connect_timeout": "300ms", "timeout": "1s"}}
    lost = Objects({"endpoint": server.url, "region": "us-east-1", **given}, max_tries=1)
    with pytest.raises(RemoteError, match="no credentials were found; set the usual environment"):
        lost.read(URL)


def test_the_usual_variables_are_enough(
    objects: Objects, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    assert Objects().read(URL)[0] == DATA


def test_http_is_refused_for_endpoints_elsewhere() -> None:
    given = {"endpoint": "http://example.com", "access_key_id": "a", "secret_access_key": "b"}
    with pytest.raises(InvalidValueError, match="allowed for this machine only"):
        Objects(given).head(URL)


def test_options_that_are_unknown_are_an_error(server: S3Server) -> None:
    with pytest.raises(InvalidValueError, match="'nonsense' is not valid"):
        Objects({**server.options(), "nonsense": 1}).head(URL)
    with pytest.raises(InvalidValueError, match="must be a dict"):
        Objects("nonsense")  # type: ignore[arg-type]


def test_secrets_are_not_shown(objects: Objects, server: S3Server) -> None:
    assert server.options()["secret_access_key"] not in repr(objects)


def test_an_object_too_large_to_read_whole_is_refused(objects: Objects) -> None:
    with pytest.raises(DamagedDataError, match="has 200,000 bytes but must have at most 10"):
        objects.read(URL, 10)


def test_plain_http_serves_public_objects(server: S3Server, tmp_path: Path) -> None:
    server.put("bucket", "public/x y.bin", DATA, is_public=True)
    objects = Objects()
    url = Url.of(f"{server.url}/bucket/public/x%20y.bin")
    assert url.key == "bucket/public/x y.bin"
    head = objects.head(url)
    objects.fetch(url, tmp_path / "x", 0, head.num_bytes, head.etag)
    assert (tmp_path / "x").read_bytes() == DATA


def test_objects_are_read_in_forked_children_of_a_process_that_has_read(
    objects: Objects, tmp_path: Path
) -> None:
    assert fetched(objects, tmp_path / "parent") == DATA
    pid = os.fork()
    if not pid:
        code = 1
        try:
            is_same = fetched(objects, tmp_path / "child") == DATA
            try:
                objects.head(URL / "nothing")
            except MissingDataError:
                code = 0 if is_same and objects.meters.num_requests == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Client:
    """A client that says so when a forked process drops it."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.owner = pipe, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            os.write(self.pipe, b"dropped")


def test_a_forked_process_drops_no_client_of_its_parent() -> None:
    # That would wait for threads of obstore which are not there.
    objects, (end, pipe) = Objects(), os.pipe()
    requests = Requests({})
    requests._clients["s3://bucket"] = Client(pipe)
    objects._here().requests = requests
    del requests
    child = os.fork()
    if not child:
        objects._here()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os.close(pipe)
    with open(end, "rb") as found:
        assert found.read() == b""


class _OfTwoParts(Exception):
    """An error that cannot be unpickled, because it is made of two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class _Panic(BaseException):
    """What obstore raises for its own faults is none of Python's usual errors."""


@pytest.mark.parametrize("error", [_OfTwoParts("it", "broke"), _Panic("it broke")])
def test_an_error_that_cannot_be_sent_arrives_as_one_with_its_text(error: BaseException) -> None:
    assert isinstance(sendable(error), RemoteError)
    assert f"{type(error).__name__}: it broke" in str(sendable(error))
    same = MissingDataError("there is nothing")
    assert type(sendable(same)) is MissingDataError
    assert str(sendable(same)) == str(same)


def test_the_helper_of_a_forked_process_ends_with_it(objects: Objects) -> None:
    objects.head(URL)
    readable, writable = os.pipe()
    pid = os.fork()
    if not pid:
        objects.head(URL)
        os.write(writable, b"%d" % objects._here().requests._process.pid)
        time.sleep(60)
        os._exit(1)
    helper = int(os.read(readable, 20))
    os.close(readable)
    os.close(writable)
    assert Path(f"/proc/{helper}").exists()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(600):
        if not is_running(helper):
            return
        time.sleep(0.05)
    raise AssertionError("the helper still runs")


def is_running(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for somebody to ask how."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_objects_are_read_in_a_fresh_process(objects: Objects, tmp_path: Path) -> None:
    objects.head(URL)
    (tmp_path / "pickled").write_bytes(pickle.dumps((objects, URL)))
    code = "import pickle, sys; o, u = pickle.load(open(sys.argv[1], 'rb')); print(o.head(u))"
    command = [sys.executable, "-c", code, str(tmp_path / "pickled")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    assert "num_bytes=200000" in done.stdout


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ftp://x/y", "must begin with one of s3://, gs://"),
        ("s3:///x", "must name a bucket"),
        ("s3://bucket/a/../b", "must not have '.' or '..'"),
        ("https://host/x?token=3", "must not have '\\?'"),
    ],
)
def test_urls_that_cannot_be_used_are_errors(text: str, error: str) -> None:
    with pytest.raises(InvalidValueError, match=error):
        Url.of(text)


def test_a_path_is_no_url() -> None:
    assert is_url("s3://bucket/x")
    assert not is_url("/data/x")
    assert not is_url(Path("/data/x"))
    with pytest.raises(InvalidValueError, match="a Path spoils a URL"):
        is_url(Path("s3://bucket/x"))


@pytest.mark.parametrize(
    ("folder", "error"),
    [("s3://bucket/x", "log='s3://bucket/x' must be a folder on this machine"), ("", "log=''")],
)
def test_a_url_does_not_become_a_folder(folder: str, error: str) -> None:
    assert local_folder("log", "data/x") == local_folder("log", Path("data/x")) == Path("data/x")
    with pytest.raises(InvalidValueError, match=error):
        local_folder("log", folder)
