"""A report as one self-contained HTML file, with style, script and data.

The file is written atomically, and replaces only an older report.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template

from feedline.errors import InvalidValueError, StoreError
from feedline.report.charts import Report

_MARK = b'<meta name="generator" content="feedline'
_SCRIPTS = ("dom.js", "frame.js", "lines.js", "map.js", "rows.js", "places.js", "report.js")


def render(report: Report) -> str:
    """Return the report as HTML. The same report gives the same text.

    Args:
        report: What the page shows.
    """
    # The version is asked of the package that is installed, for this room may not import the root.
    from importlib.metadata import version

    parts = "\n".join(_read(name) for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    style = _read("style.css")
    # A browser runs only this script, even if names in the data contain others, and fetches
    # nothing.
    policy = (
        f"default-src 'none'; img-src data:; script-src {_digest(script)}; "
        f"style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(report.to_dict(), separators=(",", ":"), allow_nan=False)
    # Inside a script element only its end tag matters, and this hides it.
    data = data.replace("<", "\\u003c")
    return Template(_read("page.html")).substitute(
        version=html.escape(version("feedline")),
        policy=policy,
        # The name of a file may hold what is not text.
        title=html.escape(report.title).encode(errors="replace").decode(),
        style=style,
        script=script,
        data=data,
    )


def _read(name: str) -> str:
    return (files("feedline.report") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the report as one HTML file, and return its path.

    An older report is replaced; any other file is not.

    Args:
        report: What the page shows.
        path: The file.
    """
    target = Path(path)
    check_target(target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(render(report), encoding="utf-8")
        os.replace(unfinished, target)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return target


def check_target(target: Path) -> None:
    """Raise if a report cannot be written to a file, or would replace something else."""
    try:
        if target.is_dir():
            raise InvalidValueError(
                f"output={target} must be a file but is a folder; use an .html file"
            )
        # Opening a pipe or a device could wait forever.
        if target.exists() and not (target.is_file() and _MARK in _start_of(target)):
            raise InvalidValueError(
                f"output={target} must be new, or a report; choose another file, or remove this one"
            )
    except OSError as error:
        raise _unwritable(target, error) from None


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1024)


def _unwritable(target: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{target}: cannot be written ({error.strerror or error}); choose another place"
    )
