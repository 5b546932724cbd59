"""Draws the pictures of reports in docs/images: `.venv/bin/python scripts/make_screenshots.py`.

A demo is run for the report of a real training; the others are reports of plans. It needs Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import Opened, launched, opened  # noqa: E402
from feedline.report import report_config, write_report  # noqa: E402
from feedline.runs import RunConfig  # noqa: E402

IMAGES = ROOT / "docs" / "images"

CONFIG = {
    "seed": 7,
    "ranks": 8,
    "batch_size": 16,
    "tail": "even",
    "data": {
        "mixture": [
            {"name": "web", "samples": 60_000, "weight": 3},
            {"name": "books", "samples": 20_000, "weight": 1},
            {"name": "code", "samples": 9_000, "weight": 1},
        ],
        "phases": [{"position": 45_000, "weights": {"web": 1, "books": 1, "code": 2}}],
    },
}


def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, launched() as browser:
        folder = Path(name)
        demo = folder / "demo"
        subprocess.run(
            [sys.executable, "-m", "feedline", "demo", "--folder", str(demo)], check=True
        )
        report = report_config(
            RunConfig.from_dict(CONFIG), resize=[8, 6, 2], title="Three sources, annealed"
        )
        plan = write_report(report, folder / "plan.html")
        for theme in ("light", "dark"):
            with opened(browser, demo / "report.html", width=1000, theme=theme) as page:
                _save(page, f"report-demo-{theme}.png", height=1180)
        with opened(browser, plan, width=1000) as page:
            _save(page, "report-plan.png", height=1330)
        with opened(browser, plan, width=360, theme="dark") as page:
            _save(page, "report-phone.png", height=1100)


def _save(page: Opened, name: str, *, height: int) -> None:
    width = page.page.viewport_size["width"]  # type: ignore[index]
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.page.screenshot(path=IMAGES / name, clip=clip, full_page=True)  # type: ignore[arg-type]
    print(f"{name}: {(IMAGES / name).stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
