"""Write the golden vectors that `tests/plan/test_golden.py` compares with.

They pin down every order that Feedline computes. Writing them anew is right only together with a
new version of each kind that changed (`feedline.plan.versions`) and an entry in the changelog, so
an existing file is kept unless `--force` is given. `--add` keeps every section that the file has
and writes those that it lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from golden import SECTIONS, VECTORS_FILE, compute_vectors


def main() -> int:
    """Write the file, or say why not, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write the golden vectors.")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    parser.add_argument("--add", action="store_true", help="write the sections that it lacks")
    options = parser.parse_args()
    if not VECTORS_FILE.exists() or options.force:
        vectors = compute_vectors()
    elif options.add:
        vectors = json.loads(VECTORS_FILE.read_text(encoding="utf-8"))
        vectors |= {name: compute() for name, compute in SECTIONS.items() if name not in vectors}
    else:
        print(f"{VECTORS_FILE.name} exists; use --force to change the promised orders")
        return 1
    VECTORS_FILE.write_text(render(vectors), encoding="utf-8")
    print(f"wrote {VECTORS_FILE.name}: {VECTORS_FILE.stat().st_size} bytes")
    return 0


def render(vectors: dict[str, dict[str, object]]) -> str:
    """The vectors as JSON with one line per entry, so that a difference can be read."""
    sections = []
    for name, entries in vectors.items():
        lines = [f"    {json.dumps(key)}: {json.dumps(entries[key])}" for key in entries]
        sections.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
