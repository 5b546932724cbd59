"""`feedline verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from feedline.cli.configs import DATA
from feedline.cli.printing import Outcome, command, echo
from feedline.errors import InvalidValueError
from feedline.words import several

if TYPE_CHECKING:
    from feedline.store import VerifyResult


@command
@click.argument("folder", type=DATA)
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Check on this machine, or with tasks on a Ray cluster.",
)
@click.option(
    "--threads",
    type=int,
    metavar="N",
    help="Threads, or tasks of a cluster; by default one for each core.",
)
@click.option("--quiet", is_flag=True, help="Print only faults, and no progress.")
def verify(folder: Path | str, engine: str, threads: int | None, quiet: bool) -> Outcome:
    """Check every chunk of a FOLDER against what was recorded when it was written.

    All faults are listed. The exit code is 1 if there are any, and 2 if FOLDER is not a folder of
    chunks.

    \b
    Examples:
      feedline verify packed
      feedline verify packed --json
      feedline verify s3://bucket/packed
      feedline verify /shared/packed --engine ray
    """
    from feedline.packing import verify as verify_folder

    if isinstance(folder, Path) and folder.is_file():
        raise InvalidValueError(
            f"{folder}: is a file but must be a folder; pass the folder that packing wrote"
        )
    result = verify_folder(
        folder, engine=engine, progress=False if quiet else None, num_threads=threads
    )
    faults = [{"path": str(fault.path), "text": fault.text} for fault in result.faults]
    described = {**vars(result), "folder": str(result.folder), "ok": result.ok, "faults": faults}
    return Outcome(described, lambda: _print(result, quiet), result.ok)


def _print(result: VerifyResult, quiet: bool) -> None:
    for fault in result.faults:
        echo(fault.text, err=True)
    if quiet:
        return
    if result.num_unchecked:
        echo(
            f"{result.num_unchecked:,} of {several(result.num_chunks, 'chunk')} without a "
            "checksum, so changed values would not be detected; pack again to add checksums"
        )
    verdict = "all is well" if result.ok else f"{several(len(result.faults), 'fault')}"
    counts = f"{several(result.num_samples, 'sample')} in {several(result.num_chunks, 'chunk')}"
    echo(f"{result.folder}: {counts}: {verdict}")
