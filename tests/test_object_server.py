"""What the tests of remote data stand on: the servers, and the faults that the proxy makes."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from fault_proxy import Fault
from object_server import (
    FaultProxy,
    S3Server,
    fault_proxy,
    forbidden,
    s3_server,
    throttled,
    too_busy,
    wrong_region,
)
from processes import is_running

DATA = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        started.make_bucket("bucket")
        started.put("bucket", "folder/an object.bin", DATA, is_public=True)
        yield started


@pytest.fixture(scope="module")
def started_proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.url) as started:
        yield started


@pytest.fixture
def proxy(started_proxy: FaultProxy) -> Iterator[FaultProxy]:
    yield started_proxy
    started_proxy.clear()
    started_proxy.forget()
    started_proxy.set(latency=0, bytes_per_second=0)


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Return what a client that tries once gets of the object."""
    to = urlsplit(url)
    connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=5)
    try:
        connection.request("GET", "/bucket/folder/an%20object.bin", headers=headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_objects_come_back_as_they_were_put(server: S3Server) -> None:
    assert server.get("bucket", "folder/an object.bin") == DATA
    assert server.keys("bucket") == ["folder/an object.bin"]


def test_obstore_reads_and_writes_through_the_proxy(server: S3Server, proxy: FaultProxy) -> None:
    obstore = pytest.importorskip("obstore")
    options = server.options(proxy.url)
    client = obstore.store.S3Store("bucket", **options, client_options={"allow_http": True})
    obstore.put(client, "other.bin", b"something")
    try:
        assert bytes(obstore.get_range(client, "other.bin", start=4, end=9)) == b"thing"
    finally:
        server.delete("bucket", "other.bin")
    put, got = proxy.seen
    assert (put.method, put.num_received) == ("PUT", 9)
    assert (got.method, got.byte_range, got.status, got.num_bytes) == ("GET", "bytes=4-8", 206, 5)


def test_requests_and_bytes_are_counted(proxy: FaultProxy) -> None:
    assert get(proxy.url, {"Range": "bytes=10-19"})[2] == DATA[10:20]
    assert get(proxy.url)[2] == DATA
    assert (proxy.num_requests, proxy.num_bytes) == (2, 10 + len(DATA))


def test_requests_at_the_same_time_are_counted(proxy: FaultProxy) -> None:
    proxy.set(latency=0.3)
    with ThreadPoolExecutor(3) as pool:
        assert [found[2] for found in pool.map(get, [proxy.url] * 3)] == [DATA] * 3
    assert proxy.most_at_once == 3
    assert get(proxy.url)[2] == DATA
    assert proxy.seen[-1].num_open == 1


def test_a_fault_hits_as_many_requests_as_it_is_for(proxy: FaultProxy) -> None:
    proxy.inject(too_busy(times=2, path="object"), too_busy(path="elsewhere"))
    assert [get(proxy.url)[0] for _ in range(3)] == [503, 503, 200]


def test_a_share_of_requests_fails_alike_with_the_same_seed(proxy: FaultProxy) -> None:
    hit = []
    for _ in range(2):
        proxy.clear()
        proxy.inject(forbidden(times=None, share=0.5), seed=3)
        hit.append([get(proxy.url, {"Range": "bytes=0-9"})[0] for _ in range(20)])
    assert hit[0] == hit[1]
    assert set(hit[0]) == {403, 206}


def test_answers_of_services_have_their_status_headers_and_code(proxy: FaultProxy) -> None:
    proxy.inject(throttled(7), wrong_region("eu-west-3"))
    status, headers, _ = get(proxy.url)
    assert (status, headers["Retry-After"]) == (429, "7")
    status, headers, body = get(proxy.url)
    assert (status, headers["x-amz-bucket-region"]) == (301, "eu-west-3")
    assert b"<Code>PermanentRedirect</Code>" in body


def test_a_connection_that_is_cut_leaves_the_body_incomplete(proxy: FaultProxy) -> None:
    proxy.inject(Fault(kind="cut", after=300_000), Fault(kind="drop"))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(proxy.url)
    assert caught.value.partial == DATA[:300_000]
    with pytest.raises(http.client.RemoteDisconnected):
        get(proxy.url)
    assert [seen.num_bytes for seen in proxy.seen] == [300_000, 0]


def test_a_body_is_short_or_corrupt_without_a_sign(proxy: FaultProxy) -> None:
    proxy.inject(Fault(kind="short", after=1000), Fault(kind="corrupt", after=700_000))
    assert get(proxy.url)[2] == DATA[:1000]
    corrupt = get(proxy.url)[2]
    assert [n for n in range(len(DATA)) if corrupt[n] != DATA[n]] == [700_000]


@pytest.mark.parametrize("after", [-1, 1000])
def test_a_stall_is_silent_until_its_end(proxy: FaultProxy, after: int) -> None:
    proxy.inject(Fault(kind="stall", after=after, seconds=0.3), Fault(kind="stall", after=after))
    start = time.monotonic()
    assert get(proxy.url)[2] == DATA
    assert time.monotonic() - start >= 0.3
    to = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(str(to.hostname), to.port, timeout=0.3)
    connection.request("GET", "/bucket/folder/an%20object.bin")
    with pytest.raises(TimeoutError):
        connection.getresponse().read()
    connection.close()


def test_latency_and_rate_hold_for_every_request(proxy: FaultProxy) -> None:
    proxy.set(latency=0.1, bytes_per_second=4 * len(DATA))
    start = time.monotonic()
    assert get(proxy.url)[2] == DATA
    assert time.monotonic() - start >= 0.1 + 0.25 * 0.9


def test_servers_end_with_their_block_and_their_stdin() -> None:
    with s3_server() as server, fault_proxy(server.url) as proxy:
        pids = [server.process.pid, proxy.process.pid]
        assert all(map(is_running, pids))
    assert not any(map(is_running, pids))
    assert [server.process.returncode, proxy.process.returncode] == [0, 0]
