"""`feedline pack`."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from feedline.cli.pack_anndata import are_anndata, check_options, run_pack_anndata
from feedline.cli.printing import print_json
from feedline.errors import FeedlineError, InvalidValueError

__all__ = ["pack"]

if TYPE_CHECKING:
    from feedline.packing import PackResult

    # Generic in the stubs of new releases, and not in old ones when run.
    _Param = click.ParamType[Any]
else:
    _Param = click.ParamType

# Those of feedline.packing, which would import numpy for a help text.
_FORMATS = ("safetensors", "npy", "pt", "parquet")

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}ib": 2 ** (10 * (n + 1)) for n, letter in enumerate("kmgt")}
_UNITS |= {f"{letter}b": 10 ** (3 * (n + 1)) for n, letter in enumerate("kmgt")}


class _Size(_Param):
    """A number of bytes, such as 64MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match is None or match[2].lower() not in _UNITS:
            self.fail(f"{value!r} must be a number of bytes, such as 64MiB or 1.5GiB", param, ctx)
        return int(float(match[1]) * _UNITS[match[2].lower()])


class _Split(_Param):
    """A share, or shares by name."""

    name = "split"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | dict[str, float]:
        """Return the share, or shares by name."""
        try:
            if "=" not in value:
                return float(value)
            pairs = [part.split("=") for part in value.split(",")]
            shares = {name.strip(): float(share) for name, share in pairs}
        except ValueError:
            shares = {}
        if not shares or len(shares) != len(pairs):
            self.fail(f"{value!r} must be like 0.1 or train=0.9,validation=0.1", param, ctx)
        return shares


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="SOURCE...")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
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
    help="A column to take, and its name in the source if that is another. Repeat for several; "
    "by default all are taken.",
)
@click.option("--chunk-samples", type=int, metavar="N", help="Samples in a chunk.")
@click.option("--chunk-bytes", type=_Size(), help="Bytes in a chunk, such as 64MiB (the default).")
@click.option(
    "--shuffle/--no-shuffle",
    default=None,
    help="Shuffle all samples, also beyond memory; AnnData is shuffled by default.",
)
@click.option("--seed", default="0", metavar="SEED", help="Seed of the shuffle and the split.")
@click.option(
    "--split",
    type=_Split(),
    metavar="SHARES",
    help="Validation share such as 0.1, or train=0.9,validation=0.1.",
)
@click.option("--threads", type=int, metavar="N", help="Threads; by default one for each core.")
@click.option("--memory", type=_Size(), default="512MiB", show_default=True, help="Memory to use.")
@click.option("--element", default="X", help="AnnData: the matrix, such as layers/counts.")
@click.option("--obs", multiple=True, metavar="NAME", help="AnnData: a column to take; repeat.")
@click.option("--chunk-rows", type=int, default=64, metavar="N", help="AnnData: rows in a chunk.")
@click.option("--shard-rows", type=int, metavar="N", help="AnnData: rows in a shard.")
@click.option("--no-source-row", is_flag=True, help="AnnData: leave out feedline_source_row.")
@click.option("--no-resume", is_flag=True, help="Start over instead of going on.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that is there, at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress, and print nothing.")
@click.pass_context
def pack(
    context: click.Context,
    sources: tuple[str, ...],
    folder: Path,
    format_: str,
    columns: tuple[str, ...],
    chunk_samples: int | None,
    chunk_bytes: int | None,
    shuffle: bool | None,
    seed: str,
    split: float | dict[str, float] | None,
    threads: int | None,
    memory: int,
    element: str,
    obs: tuple[str, ...],
    chunk_rows: int,
    shard_rows: int | None,
    no_source_row: bool,
    no_resume: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write files as a FOLDER of chunks.

    SOURCE is a parquet, CSV, JSONL or .npy file, or a folder of them. FOLDER appears when all is
    done; after an interruption, the same command goes on.

    SOURCE may also be AnnData, .h5ad or zarr: FOLDER is then one zarr group, shuffled and sharded.

    \b
    Examples:
      feedline pack data.parquet packed
      feedline pack logs/*.jsonl packed --shuffle --seed 7 --split 0.1
      feedline pack a.csv packed --format pt --column sequences/item=item --column targets/y=label
      feedline pack big.parquet packed --chunk-bytes 256MiB --memory 4GiB --json
      feedline pack a.h5ad b.h5ad packed.zarr --obs cell_type --seed 7
    """
    is_for_anndata = are_anndata(sources)
    check_options(context, is_for_anndata=is_for_anndata)
    key: int | str = int(seed) if re.fullmatch(r"-?\d{1,4000}", seed) else seed
    if is_for_anndata:
        run_pack_anndata(
            sources,
            folder,
            element=element,
            obs=obs or None,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            shuffle=shuffle is not False,
            seed=key,
            has_source_row=not no_source_row,
            memory_budget=memory,
            overwrite=overwrite,
            as_json=as_json,
            quiet=quiet,
        )
        return
    from feedline.packing import pack as pack_source

    # With one source, a folder of .npy files is one of columns; several are read in turn.
    source: Any = sources[0] if len(sources) == 1 else list(sources)
    try:
        result = pack_source(
            source,
            folder,
            format=format_,
            columns=_parse_columns(columns),
            chunk_samples=chunk_samples,
            chunk_bytes=chunk_bytes,
            shuffle=bool(shuffle),
            seed=key,
            split=split,
            num_threads=threads,
            memory_budget=memory,
            progress=False if quiet else None,
            resume=not no_resume,
            overwrite=overwrite,
        )
    except FeedlineError as error:
        # What is wrong with the source as a whole does not name it.
        if not str(error).startswith("source has "):
            raise
        named = ", ".join(sources[:3])
        raise InvalidValueError(f"{named}: {str(error).removeprefix('source ')}") from None
    except KeyboardInterrupt:
        click.echo("Interrupted; the same command goes on from here.", err=True)
        sys.exit(130)
    if as_json:
        print_json(_describe(result))
    elif not quiet:
        _print(result)


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str] | None:
    if not columns:
        return None
    pairs = [(new, old or new) for new, _, old in (text.partition("=") for text in columns)]
    if len(dict(pairs)) != len(pairs):
        raise click.BadParameter("names a column twice", param_hint="--column")
    return dict(pairs)


def _describe(result: PackResult) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result),
        "folder": str(result.folder),
        "columns": [column.describe() for column in result.columns],
        "splits": dict(result.splits),
    }


def _print(result: PackResult) -> None:
    click.echo(
        f"{result.folder}: {result.num_samples:,} samples in {result.num_chunks:,} chunks, "
        f"{result.num_bytes:,} bytes"
    )
    for name, count in result.splits.items():
        click.echo(f"  {name}: {count:,} samples")
    for column in result.columns:
        click.echo(f"  {column.name}: {column}")
    if result.num_resumed_chunks:
        click.echo(f"  {result.num_resumed_chunks:,} chunks were finished before")
