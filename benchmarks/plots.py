"""Pictures of the last results, as SVG files for the README and the documentation.

What a picture says (`plotted_results.py`, `plotted_scale.py`) is written into it once more as JSON,
as its metadata, where a test compares it with the results; so a picture that was not made again
after a benchmark does not go unnoticed. Only drawing (`plot_drawing.py`) needs matplotlib.

Run it with `make bench-plots`; `make bench` ends with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from plot_drawing import draw
from plotted_scale import pictures

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def main() -> int:
    drawn = {f"{picture.name}.svg": draw(picture) for picture in pictures()}
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path in IMAGES.glob("bench-*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, svg in drawn.items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        print(f"docs/images/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
