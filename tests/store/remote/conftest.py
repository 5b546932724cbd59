"""A real server of the S3 protocol, with a proxy before it that can make faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("obstore")

from object_server import FaultProxy, S3Server, fault_proxy, s3_server


@pytest.fixture(scope="package")
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        found.make_bucket("bucket", is_public=True)
        yield found


@pytest.fixture(scope="package")
def started_proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.url) as found:
        yield found


@pytest.fixture
def proxy(started_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy, without faults of other tests, and with its counts at zero."""
    started_proxy.clear()
    started_proxy.forget()
    started_proxy.set(latency=0, bytes_per_second=0)
    yield started_proxy
    started_proxy.clear()
