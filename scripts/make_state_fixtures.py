"""Write the states in `tests/states`, and what came after them.

The states there were written by commit 541225e, the last one before positions and loaders were
joined into one of each, when every sampler, feed and clock kept counters of its own. They stand for
the checkpoints that users have. They must never be written anew to make a test pass: a state that
no longer gives the same rest is a bug in the code that loads it.

So a file that exists is always kept. A new case is written when it is added to
`tests/support/saved_states.py`, and then stands for the commit that wrote it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from saved_places import Case, Saved, Sizes, find_rest, save_at
from saved_states import CASES, file_of, make_data


def main() -> int:
    """Write the files that are missing, and return the exit status."""
    missing = {name: case for name, case in CASES.items() if not file_of(name).exists()}
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder))
        for name, case in missing.items():
            file_of(name).parent.mkdir(exist_ok=True)
            file_of(name).write_text(render(name, states_of(case, data)), encoding="utf-8")
    print(f"wrote {len(missing)} files, kept {len(CASES) - len(missing)}")
    return 0


def states_of(case: Case, data: Path) -> dict[str, Any]:
    """Return the states of a case by the places where they were saved, with what came after."""
    saved = {place: save_at(case, data, place) for place in case.places}
    for place, state in case.foreign.items():
        saved[place] = Saved(dict(state), state["epoch"], case.sizes[0])
    return {
        place: {
            "saved_on": list(found.sizes),
            "epoch": found.epoch,
            "state": found.state,
            "loads": [
                {
                    "world_size": sizes.world_size,
                    "batch_size": sizes.batch_size,
                    "rest": [
                        find_rest(case, data, found, sizes, rank)
                        for rank in range(sizes.world_size)
                    ],
                }
                for sizes in sizes_to_load(case, found.sizes, number)
            ],
        }
        for number, (place, found) in enumerate(saved.items())
    }


def sizes_to_load(case: Case, saved_on: Sizes, number: int) -> list[Sizes]:
    """Return the sizes of the run that saved, and others in turn."""
    others = [sizes for sizes in dict.fromkeys(case.sizes) if sizes != saved_on]
    return [saved_on, *others[number % 2 :][:1]]


def render(name: str, places: dict[str, Any]) -> str:
    """One line for each state, and one for what each rank gets after it."""
    parts = []
    for place, entry in places.items():
        loads = []
        for load in entry["loads"]:
            ranks = ",\n".join(
                f"          {json.dumps(rest, separators=(',', ':'))}" for rest in load["rest"]
            )
            sizes = f'"world_size": {load["world_size"]}, "batch_size": {load["batch_size"]}'
            loads.append(f'        {{{sizes}, "rest": [\n{ranks}\n        ]}}')
        parts.append(
            f"    {json.dumps(place)}: {{\n"
            f'      "saved_on": {json.dumps(entry["saved_on"])},\n'
            f'      "epoch": {entry["epoch"]},\n'
            f'      "state": {json.dumps(entry["state"])},\n'
            '      "loads": [\n' + ",\n".join(loads) + "\n      ]\n    }"
        )
    return f'{{\n  "case": {json.dumps(name)},\n  "places": {{\n' + ",\n".join(parts) + "\n  }\n}\n"


if __name__ == "__main__":
    sys.exit(main())
