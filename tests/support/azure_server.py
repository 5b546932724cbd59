"""Azurite: Azure's own server of blobs for tests, as a process; needs node.

It is taken from the search path, or from `.azurite`, where `make test-azure` installs it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from processes import SUPPORT, free_port, kill_job

INSTALLED = SUPPORT.parent.parent / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
#: The account that every azurite has; its key is public.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azurite_path() -> str | None:
    """Return the program, or None where it is not installed."""
    return str(INSTALLED) if INSTALLED.exists() else shutil.which("azurite-blob")


@dataclass
class AzureServer:
    """An azurite that runs."""

    url: str

    def options(self, url: str | None = None) -> dict[str, str]:
        """Return a client's options, by obstore's names; `url` is that of a proxy."""
        endpoint = f"{url or self.url}/{ACCOUNT}"
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}

    def make_container(self, container: str) -> None:
        """Make a container that is not there yet."""
        fields = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{fields[name]}" for name in sorted(fields))]
        # The account's name stands twice where it is a part of the path too.
        lines += [f"/{ACCOUNT}/{ACCOUNT}/{container}", "restype:container"]
        key, text = base64.b64decode(KEY), "\n".join(lines).encode()
        sign = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        fields["Authorization"] = f"SharedKey {ACCOUNT}:{sign}"
        url = f"{self.url}/{ACCOUNT}/{container}?restype=container"
        with urlopen(Request(url, headers=fields, method="PUT"), timeout=60) as answer:
            assert answer.status == 201


@contextmanager
def azure_server(folder: Path) -> Iterator[AzureServer]:
    """Start azurite on a free port; it keeps its blobs in `folder`."""
    program, port = azurite_path(), free_port()
    assert program is not None, "azurite is not installed; run `make test-azure`"
    command = [program, "--blobPort", str(port), "--location", str(folder)]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with open(folder / "log.txt", "w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            server = AzureServer(f"http://127.0.0.1:{port}")
            _wait_for(server.url, process, folder / "log.txt")
            yield server
        finally:
            kill_job(process)


def _wait_for(url: str, process: subprocess.Popen[str], log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urlopen(url, timeout=5).close()
        except URLError as error:
            # Any answer will do, and it refuses whoever has no key.
            if getattr(error, "code", None) is not None:
                error.close()  # type: ignore[attr-defined]
                return
            assert process.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < end, f"azurite took too long: {log.read_text('utf-8')}"
            time.sleep(0.05)
        else:
            return
