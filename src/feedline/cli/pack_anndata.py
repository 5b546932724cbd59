"""`feedline pack` from AnnData files: which options fit, and what is printed."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from feedline.cli.printing import print_json
from feedline.errors import InvalidValueError

if TYPE_CHECKING:
    from feedline.packing.anndata.packer import AnnDataPackResult

__all__ = ["are_anndata", "check_options", "run_pack_anndata"]

_ONLY_ANNDATA = ["element", "obs", "chunk_rows", "shard_rows", "no_source_row"]
_ONLY_TABLES = [
    "format_",
    "columns",
    "chunk_samples",
    "chunk_bytes",
    "split",
    "threads",
    "no_resume",
]


def are_anndata(sources: tuple[str, ...]) -> bool:
    """Whether the sources are AnnData files; raise if only some of them are."""
    from feedline.packing.anndata.sources import is_anndata

    kinds = {is_anndata(Path(source)): source for source in sources}
    if len(kinds) > 1:
        raise InvalidValueError(
            f"{kinds[True]} is AnnData and {kinds[False]} is not; pack each kind on its own"
        )
    return True in kinds


def check_options(context: click.Context, *, is_for_anndata: bool) -> None:
    """Raise if an option was given that means nothing for these sources."""
    for name in _ONLY_TABLES if is_for_anndata else _ONLY_ANNDATA:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            kind = "files of rows, not for AnnData" if is_for_anndata else "AnnData"
            raise InvalidValueError(f"{option} is for {kind}; leave it out")


def run_pack_anndata(
    sources: tuple[str, ...],
    folder: Path,
    *,
    has_source_row: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Pack, and print what was written."""
    from feedline.packing.anndata.packer import SOURCE_ROW, pack_anndata

    options["source_row"] = SOURCE_ROW if has_source_row else None
    try:
        result = pack_anndata(sources, folder, progress=False if quiet else None, **options)
    except KeyboardInterrupt:
        click.echo("Interrupted; nothing was written.", err=True)
        sys.exit(130)
    if as_json:
        print_json({**dataclasses.asdict(result), "folder": str(result.folder)})
    elif not quiet:
        _print(result)


def _print(result: AnnDataPackResult) -> None:
    kind = "sparse" if result.is_sparse else "dense"
    click.echo(
        f"{result.folder}: {result.num_rows:,} rows and {result.num_columns:,} columns, "
        f"{result.num_bytes:,} bytes"
    )
    click.echo(f"  X: {kind} {result.dtype}, {result.num_values:,} values")
    click.echo(f"  obs: {', '.join(result.obs) or 'no columns'}")
