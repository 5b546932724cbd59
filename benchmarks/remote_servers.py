"""The servers of `remote.py`: nginx with files as an S3 bucket, and a proxy with latency before it.

nginx answers `GET /bucket/key`, with ranges and ETags, which is all that S3 clients ask for when
they read objects whose names they know.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from object_server import FaultProxy, fault_proxy
from processes import free_port

__all__ = ["FaultProxy", "client_environment", "fault_proxy", "nginx", "nginx_path"]

_CONFIG = """
worker_processes 1;
daemon off;
pid nginx.pid;
error_log error.log;
events { worker_connections 1024; }
http {
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    default_type application/octet-stream;
    client_body_temp_path temporary-1;
    proxy_temp_path temporary-2;
    fastcgi_temp_path temporary-3;
    uwsgi_temp_path temporary-4;
    scgi_temp_path temporary-5;
    server { listen 127.0.0.1:PORT; root ROOT; }
}
"""


def nginx_path() -> str:
    """Return the program; `$FEEDLINE_NGINX` names one that is not installed."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    found = os.environ.get("FEEDLINE_NGINX") or shutil.which("nginx", path=places)
    if found is None:
        raise SystemExit("nginx is missing; install it (apt install nginx) or set FEEDLINE_NGINX")
    return found


@contextmanager
def nginx(root: Path, work: Path) -> Iterator[str]:
    """Serve the files in `root`, and yield the URL; `work` is a folder for nginx itself."""
    port = free_port()
    config = _CONFIG.replace("PORT", str(port)).replace("ROOT", str(root))
    # Started by root, its worker would be a user that may not read the folder.
    config = f"user root;\n{config}" if os.geteuid() == 0 else config
    (work / "nginx.conf").write_text(config, encoding="utf-8")
    command = [nginx_path(), "-p", str(work), "-c", "nginx.conf", "-e", "error.log"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit("nginx does not start; see error.log in its folder")


def client_environment(url: str) -> dict[str, str]:
    """Return the variables by which every client finds the bucket."""
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": url,
        # The name that MosaicML Streaming has for it.
        "S3_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
