"""`feedline pack`."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from feedline.cli.configs import DATA, size_in_bytes
from feedline.cli.printing import Outcome, command, echo
from feedline.errors import FeedlineError, InvalidValueError
from feedline.words import several

if TYPE_CHECKING:
    from feedline.packing import AnnDataPackResult, PackResult

# Those of feedline.packing, which would import numpy for a help text.
_FORMATS = ("safetensors", "npy", "pt", "parquet")
_ENGINES = ("local", "ray")

# Options that mean something for one kind of source only.
_FOR_TABLES = (
    *(
        "format",
        "columns",
        "chunk_samples",
        "chunk_bytes",
        "split",
        "engine",
        "num_threads",
        "no_resume",
    ),
)
_FOR_ANNDATA = ("element", "obs", "chunk_rows", "shard_rows", "no_source_row")


def _split(text: str) -> float | dict[str, float]:
    """Return a share, or shares by name."""
    try:
        if "=" not in text:
            return float(text)
        pairs = [part.split("=") for part in text.split(",")]
        shares = {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        shares = {}
    if not shares or len(shares) != len(pairs):
        raise click.BadParameter(f"{text!r} must be like 0.1 or train=0.9,validation=0.1")
    return shares


@command
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="SOURCE...")
@click.argument("folder", type=DATA)
@click.option(
    "--format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="Files to write.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME[=SOURCE]",
    help=(
        "A column to take, with its name in the source if that differs. Repeat for several; by "
        "default all."
    ),
)
@click.option("--chunk-samples", type=int, metavar="N", help="Samples in a chunk.")
@click.option(
    "--chunk-bytes",
    type=size_in_bytes,
    metavar="SIZE",
    help="Bytes in a chunk, such as 64MiB (the default).",
)
@click.option(
    "--shuffle/--no-shuffle",
    default=None,
    help="Shuffle all samples, also beyond memory; AnnData is shuffled by default.",
)
@click.option("--seed", default="0", metavar="SEED", help="Seed of the shuffle and the split.")
@click.option(
    "--split",
    type=_split,
    metavar="SHARES",
    help="Validation share such as 0.1, or train=0.9,validation=0.1.",
)
@click.option(
    "--engine",
    type=click.Choice(_ENGINES),
    default=_ENGINES[0],
    show_default=True,
    help="Pack on this machine, or with tasks on a Ray cluster.",
)
@click.option(
    "--threads",
    "num_threads",
    type=int,
    metavar="N",
    help="Threads, or tasks of a cluster; by default one for each core.",
)
@click.option(
    "--memory",
    "memory_budget",
    type=size_in_bytes,
    metavar="SIZE",
    default="512MiB",
    show_default=True,
    help="Memory to use; with Ray, for each task.",
)
@click.option("--element", default="X", help="AnnData: the matrix, such as layers/counts.")
@click.option("--obs", multiple=True, metavar="NAME", help="AnnData: a column to take; repeat.")
@click.option("--chunk-rows", type=int, default=64, metavar="N", help="AnnData: rows in a chunk.")
@click.option("--shard-rows", type=int, metavar="N", help="AnnData: rows in a shard.")
@click.option("--no-source-row", is_flag=True, help="AnnData: omit feedline_source_row.")
@click.option("--no-resume", is_flag=True, help="Start over instead of resuming.")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder, at the very end.")
@click.option("--quiet", is_flag=True, help="Print nothing, not even progress.")
@click.pass_context
def pack(
    context: click.Context,
    /,
    sources: tuple[str, ...],
    folder: Path | str,
    shuffle: bool | None,
    seed: str,
    quiet: bool,
    **options: Any,
) -> Outcome:
    """Write files as a FOLDER of chunks.

    SOURCE is a parquet, Arrow, CSV, JSONL or .npy file, or a folder of them; or anything else that
    feedline.open opens. Columns may hold numbers, lists, texts, bytes, dates and records. FOLDER
    appears at the end, complete; after an interruption, the same command resumes.

    SOURCE may also be AnnData, .h5ad or zarr: FOLDER is then one zarr group, shuffled and sharded.
    SOURCE and FOLDER may be URLs, such as s3://bucket/data.

    \b
    Examples:
      feedline pack data.parquet packed
      feedline pack logs/*.jsonl packed --shuffle --seed 7 --split 0.1
      feedline pack a.csv packed --format pt --column sequences/item=item --column targets/y=label
      feedline pack big.parquet packed --chunk-bytes 256MiB --memory 4GiB --json
      feedline pack packed/train shuffled --shuffle --format npy
      feedline pack a.h5ad b.h5ad packed.zarr --obs cell_type --seed 7
      feedline pack data.parquet s3://bucket/packed
      feedline pack /shared/texts /shared/packed --shuffle --engine ray
    """
    is_for_anndata = _are_anndata(sources)
    _drop_options(context, options, is_for_anndata)
    options["seed"] = int(seed) if re.fullmatch(r"-?\d{1,4000}", seed) else seed
    options["progress"] = False if quiet else None
    run: Callable[..., Any] = _pack_anndata if is_for_anndata else _pack_tables
    try:
        result = run(sources, folder, shuffle, options)
    except KeyboardInterrupt:
        rest = "nothing was written" if is_for_anndata else "the same command resumes from here"
        echo(f"Interrupted; {rest}.", err=True)
        sys.exit(130)
    described = dataclasses.asdict(dataclasses.replace(result, folder=str(result.folder)))
    if not is_for_anndata:
        described["columns"] = [column.describe() for column in result.columns]
    lines = _anndata_lines(result) if is_for_anndata else _table_lines(result)
    return Outcome(described, lambda: None if quiet else echo("\n".join(lines)))


def _are_anndata(sources: tuple[str, ...]) -> bool:
    """Whether the sources are AnnData files; raise if only some of them are."""
    from feedline.packing.anndata.sources import is_anndata
    from feedline.store.remote.urls import is_url

    kinds = {not is_url(s) and is_anndata(Path(s)): s for s in sources}
    if len(kinds) > 1:
        raise InvalidValueError(
            f"{kinds[True]} is AnnData and {kinds[False]} is not; pack each kind separately"
        )
    return True in kinds


def _drop_options(context: click.Context, options: dict[str, Any], is_for_anndata: bool) -> None:
    """Remove the options that do not apply to these sources; raise if one was given."""
    for name in _FOR_TABLES if is_for_anndata else _FOR_ANNDATA:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            kind = "files of rows, not for AnnData" if is_for_anndata else "AnnData"
            raise InvalidValueError(f"{option} is for {kind}; omit it")
        del options[name]


def _pack_tables(
    sources: tuple[str, ...], folder: Path | str, shuffle: bool | None, options: dict[str, Any]
) -> PackResult:
    from feedline.packing import pack as pack_source

    options["columns"] = _parse_columns(options["columns"])
    options["resume"] = not options.pop("no_resume")
    # With one source, a folder of .npy files is one of columns; several are read in turn.
    source: Any = sources[0] if len(sources) == 1 else list(sources)
    try:
        return pack_source(source, folder, shuffle=bool(shuffle), **options)
    except FeedlineError as error:
        # What is wrong with the source as a whole does not name it.
        if not str(error).startswith("source has "):
            raise
        named = ", ".join(sources[:3])
        raise InvalidValueError(f"{named}: {str(error).removeprefix('source ')}") from None


def _pack_anndata(
    sources: tuple[str, ...], folder: Path | str, shuffle: bool | None, options: dict[str, Any]
) -> AnnDataPackResult:
    from feedline.packing import pack_anndata

    options["obs"] = options["obs"] or None
    if options.pop("no_source_row"):
        options["source_row"] = None
    return pack_anndata(sources, folder, shuffle=shuffle is not False, **options)


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str] | None:
    if not columns:
        return None
    pairs = [(new, old or new) for new, _, old in (text.partition("=") for text in columns)]
    if len(dict(pairs)) != len(pairs):
        raise click.BadParameter("names a column twice", param_hint="--column")
    return dict(pairs)


def _table_lines(result: PackResult) -> list[str]:
    lines = [
        f"{result.folder}: {several(result.num_samples, 'sample')} in "
        f"{several(result.num_chunks, 'chunk')}, {result.num_bytes:,} bytes",
        *(f"  {name}: {several(count, 'sample')}" for name, count in result.splits.items()),
        *(f"  {column.name}: {column}" for column in result.columns),
    ]
    if result.num_resumed_chunks:
        lines.append(f"  {several(result.num_resumed_chunks, 'chunk')} finished before")
    return lines


def _anndata_lines(result: AnnDataPackResult) -> list[str]:
    kind = "sparse" if result.is_sparse else "dense"
    return [
        f"{result.folder}: {several(result.num_rows, 'row')} and "
        f"{several(result.num_columns, 'column')}, {result.num_bytes:,} bytes",
        f"  X: {kind} {result.dtype}, {several(result.num_values, 'value')}",
        f"  obs: {', '.join(result.obs) or 'no columns'}",
    ]
