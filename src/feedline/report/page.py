"""A report as one HTML file: style, script and data in it, and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template

from feedline.report.charts import Report

__all__ = ["render"]

_SCRIPTS = ("dom.js", "frame.js", "lines.js", "map.js", "rows.js", "places.js", "report.js")


def render(report: Report) -> str:
    """Return the report as HTML. The same report gives the same text."""
    # The version is asked of the package that is installed, for this room may not import the root.
    from importlib.metadata import version

    parts = "\n".join(_read(name) for name in _SCRIPTS)
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    style = _read("style.css")
    # A browser runs this script alone, whatever names stand in the data, and fetches nothing.
    policy = (
        f"default-src 'none'; img-src data:; script-src {_digest(script)}; "
        f"style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(report.to_dict(), separators=(",", ":"), allow_nan=False)
    # Inside of a script element only its end tag matters, and this hides it.
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
