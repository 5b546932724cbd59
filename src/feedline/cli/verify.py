"""`feedline verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from feedline.cli.printing import print_json
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from feedline.store import VerifyResult


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--threads", type=int, metavar="N", help="Threads; by default one for each core.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress, and print nothing but faults.")
def verify(folder: Path, threads: int | None, as_json: bool, quiet: bool) -> None:
    """Check every chunk of a FOLDER against what was recorded when it was written.

    All faults are listed. The exit code is 1 if there are any, and 2 if FOLDER is no folder of
    chunks.

    \b
    Examples:
      feedline verify packed
      feedline verify packed --json
    """
    from feedline.store import verify as verify_folder

    if folder.is_file():
        raise InvalidValueError(
            f"{folder}: is a file but must be a folder; give the folder that packing wrote"
        )
    result = verify_folder(folder, progress=False if quiet else None, num_threads=threads)
    if as_json:
        faults = [{"path": str(fault.path), "text": fault.text} for fault in result.faults]
        print_json({**vars(result), "folder": str(folder), "ok": result.ok, "faults": faults})
    else:
        _print(result, quiet)
    if not result.ok:
        sys.exit(1)


def _print(result: VerifyResult, quiet: bool) -> None:
    for fault in result.faults:
        click.echo(fault.text, err=True)
    if quiet:
        return
    if result.num_unchecked:
        click.echo(
            f"{result.num_unchecked:,} of {result.num_chunks:,} chunks have no checksum, so "
            "altered values would not be seen; pack again to get checksums"
        )
    verdict = "all is well" if result.ok else f"{len(result.faults):,} faults"
    counts = f"{result.num_samples:,} samples in {result.num_chunks:,} chunks"
    click.echo(f"{result.folder}: {counts}: {verdict}")
