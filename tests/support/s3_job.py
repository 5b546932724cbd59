"""moto's server of the S3 protocol, alone in a process; it ends when stdin is closed."""

from __future__ import annotations

import logging
import os
import sys

from moto.server import ThreadedMotoServer


def main() -> None:
    """Serve on a free port, and print it."""
    # A line for each request, on the stderr of the tests.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    # Nothing is kept, so nothing is worth the second that stopping takes.
    os._exit(0)


if __name__ == "__main__":
    main()
