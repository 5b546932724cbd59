"""A dataset of images or videos of several resolutions, listed by a cache folder.

The files of the folder are not trusted: they are JSON, read with a bound on their size, and each
shard must be inside the folder. A fault anywhere is one error that names the file and the item.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn, SupportsIndex, TypedDict

from torch.utils.data import Dataset

from feedline.errors import InvalidValueError
from feedline.lazy import lazy
from feedline.torch.calculator import AspectName, BucketCalculator, Resolution, name_of_ratio
from feedline.words import path_shown, several

BucketKey = tuple[AspectName, Resolution]
"""The key of a bucket: the name of its aspect, and its resolution."""

MAX_FILE_BYTES = 2**30
"""The largest size of `metadata.json` and of each shard, in bytes."""

MAX_SIDE = 2**20
"""The largest width and height."""

_METADATA = "metadata.json"


class BucketGroup(TypedDict):
    """The items of one bucket."""

    indices: list[int]
    resolution: Resolution
    aspect_name: AspectName


class MultiresolutionDataset(Dataset[Any]):
    """The items of a cache folder, grouped into buckets of one aspect and one resolution.

    The folder holds `metadata.json`, an object whose `shards` lists the names of JSON files inside
    the folder; each of those is a list of items; an item is an object with

    - `bucket_resolution` or `crop_resolution`, `[width, height]`. If an item has both, the first
      counts: it says outright which bucket is meant.
    - `aspect_ratio`, width over height, which decides between tall, square and wide. If it is
      absent, that of the resolution counts.
    - anything else that a subclass needs.

    Items are numbered through all shards in the order in which they are listed. In `items` each
    has its `bucket_resolution` as a tuple and its `aspect_ratio`, given or not.

    This class does not read pixels: indexing it returns an item's metadata. A subclass overrides
    `load_item` to read what the metadata points to. Paths in items are as untrusted as the rest of
    the folder, and are the subclass's to check.

    Attributes:
        items: The metadata of every item.
        bucket_groups: For each bucket key, its `indices`, `resolution` and `aspect_name`.
        sorted_bucket_keys: The bucket keys by number of pixels, then by key.
        calculator: Decides the batch sizes.

    Args:
        cache_dir: The folder.
        calculator: Sizes batches by resolution; by default a `BucketCalculator("512p")`. The
            items' buckets are those in the folder, not those of the calculator.

    Raises:
        FileNotFoundError: The folder, its `metadata.json` or a shard does not exist.
        InvalidValueError: One of them is not what it should be.

    Examples:
        >>> import json, pathlib, tempfile
        >>> made = tempfile.TemporaryDirectory()
        >>> folder = pathlib.Path(made.name)
        >>> items = [{"crop_resolution": [640, 384]}, {"crop_resolution": [256, 256]}]
        >>> _ = (folder / "metadata.json").write_text(json.dumps({"shards": ["0.json"]}))
        >>> _ = (folder / "0.json").write_text(json.dumps(items))
        >>> dataset = MultiresolutionDataset(folder)
        >>> dataset.sorted_bucket_keys
        [('square', (256, 256)), ('wide', (640, 384))]
        >>> dataset.bucket_groups["wide", (640, 384)]["indices"]
        [0]
        >>> made.cleanup()
    """

    def __init__(
        self, cache_dir: str | os.PathLike[str], calculator: BucketCalculator | None = None
    ) -> None:
        self.cache_dir = _check_folder(cache_dir)
        self.calculator = BucketCalculator("512p") if calculator is None else calculator
        self.items: list[dict[str, Any]] = []
        groups: dict[BucketKey, BucketGroup] = {}
        for item, key in _read_items(self.cache_dir):
            name, resolution = key
            group = groups.setdefault(
                key, BucketGroup(indices=[], resolution=resolution, aspect_name=name)
            )
            group["indices"].append(len(self.items))
            self.items.append(item)
        if not self.items:
            raise InvalidValueError(
                f"{self.cache_dir / _METADATA}: its shards hold 0 items but must hold at least 1; "
                "build the cache again"
            )
        self.sorted_bucket_keys = sorted(groups, key=lambda key: (key[1][0] * key[1][1], key))
        self.bucket_groups = {key: groups[key] for key in self.sorted_bucket_keys}

    def __repr__(self) -> str:
        counts = f"{several(len(self), 'item')} in {several(len(self.bucket_groups), 'bucket')}"
        return f"<{type(self).__name__} {path_shown(self.cache_dir)}: {counts}>"

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: SupportsIndex) -> Any:
        # A copy, so that what a subclass adds to it does not pile up in `items`.
        return self.load_item(dict(self.items[index]))

    def load_item(self, item: dict[str, Any]) -> Any:
        """Return the sample that an item's metadata describes; here, the metadata itself.

        Subclasses override this to read the data. The dict is theirs to change.
        """
        return item

    @lazy
    def fingerprint(self) -> str:
        """A digest of every item's bucket, in order; it is the same on ranks that list the same
        items."""
        keys: list[str] = [""] * len(self)
        for (name, (width, height)), group in self.bucket_groups.items():
            for index in group["indices"]:
                keys[index] = f"{name} {width} {height}\n"
        digest = hashlib.blake2b(digest_size=16, person=b"feedline.multi.1")
        for key in keys:
            digest.update(key.encode())
        return digest.hexdigest()


def _check_folder(cache_dir: Any) -> Path:
    """Return the folder, or raise if it does not exist."""
    try:
        folder = Path(cache_dir)
    except TypeError:
        raise InvalidValueError(f"cache_dir={cache_dir!r} must be the path of a folder") from None
    if not folder.exists():
        raise FileNotFoundError(
            f"cache_dir={str(folder)!r} does not exist; check the path or build the cache first"
        )
    if not folder.is_dir():
        raise InvalidValueError(f"cache_dir={str(folder)!r} must be a folder")
    return folder


def _read_items(folder: Path) -> Iterator[tuple[dict[str, Any], BucketKey]]:
    """Yield every item of every shard with its bucket key."""
    for path in _shard_paths(folder):
        content = _read_json(path)
        if not isinstance(content, list):
            raise InvalidValueError(
                f"{path} holds {_kind(content)} but must hold a list of items; write it again"
            )
        for number, item in enumerate(content):
            yield _check_item(f"{path}, item {number}", item)


def _shard_paths(folder: Path) -> list[Path]:
    """Return the paths of the shards that the metadata names, in that order."""
    metadata = _locate(folder, _METADATA, "build the cache first")
    content = _read_json(metadata)
    names = content.get("shards") if isinstance(content, dict) else None
    if not isinstance(names, list):
        raise InvalidValueError(
            f"{metadata} must hold an object with a list of file names under 'shards'; "
            "build the cache again"
        )
    paths: dict[Path, Path] = {}
    for number, name in enumerate(names):
        origin = f"{metadata}, shard {number}"
        if not isinstance(name, str):
            raise InvalidValueError(f"{origin}: {_short(name)} must be a file name")
        path = _locate(folder, name, "copy the whole cache, or build it again", origin=origin)
        target = path.resolve()
        if target in paths:
            raise InvalidValueError(
                f"{origin}: {_short(name)} is listed twice, so its items would come twice; list "
                "each shard once"
            )
        paths[target] = path
    return list(paths.values())


def _locate(folder: Path, name: str, remedy: str, *, origin: str = "") -> Path:
    """Return the path of a plain file inside the folder, or raise."""
    subject = f"{origin}: {_short(name)}" if origin else str(folder / name)
    # Windows paths are the stricter reading: both kinds of slash separate, and drives count.
    parts = PureWindowsPath(name)
    if parts.drive or parts.root or ".." in parts.parts:
        raise InvalidValueError(
            f"{subject} must be a relative path without '..'; list files inside the folder only"
        )
    path = folder / name
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{subject} does not exist; {remedy}") from None
    except (OSError, RuntimeError, ValueError) as error:
        # A loop of links, a name that is too long, or one that no file can have.
        reason = getattr(error, "strerror", None) or error
        raise InvalidValueError(f"{subject} must be the name of a file ({reason})") from None
    if not target.is_relative_to(folder.resolve()):
        raise InvalidValueError(
            f"{subject} is a link to {target} but must stay inside {folder}; "
            "copy the file into the folder"
        )
    if not target.is_file():
        raise InvalidValueError(f"{subject} must be a plain file")
    return path


def _read_json(path: Path) -> Any:
    """Return what a JSON file holds, or raise."""
    num_bytes = path.stat().st_size
    if num_bytes > MAX_FILE_BYTES:
        raise InvalidValueError(
            f"{path} has {num_bytes} bytes but must have at most {MAX_FILE_BYTES}; "
            "split it into several shards"
        )
    try:
        return json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidValueError(f"{path} is nested too deeply to be a list of items") from None
    except ValueError as error:
        raise InvalidValueError(f"{path} must hold JSON, but {error}; write it again") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_item(origin: str, item: Any) -> tuple[dict[str, Any], BucketKey]:
    """Return an item with its resolution and aspect ratio filled in, and its bucket key."""
    if not isinstance(item, dict):
        raise InvalidValueError(f"{origin} is {_kind(item)} but must be an object")
    for field in ("bucket_resolution", "crop_resolution"):
        if item.get(field) is not None:
            resolution = _check_sides(f"{origin}: {field}", item[field])
            break
    else:
        raise InvalidValueError(
            f"{origin} has no resolution but must have 'bucket_resolution' or 'crop_resolution', "
            "[width, height]; build the cache again"
        )
    # The name of a resolution is found exactly, that of a given number as the float it is.
    ratio: Fraction | float
    if item.get("aspect_ratio") is None:
        ratio = Fraction(*resolution)
    else:
        ratio = _check_ratio(origin, item["aspect_ratio"])
    filled = {**item, "bucket_resolution": resolution, "aspect_ratio": float(ratio)}
    return filled, (name_of_ratio(ratio), resolution)


def _check_sides(origin: str, value: Any) -> Resolution:
    # `type` and not `isinstance`: JSON's true is an int in Python.
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(type(side) is int and 1 <= side <= MAX_SIDE for side in value)
    ):
        return value[0], value[1]
    raise InvalidValueError(
        f"{origin}={_short(value)} must be [width, height], two integers in [1, {MAX_SIDE}]; "
        "correct or remove the item"
    )


def _check_ratio(origin: str, value: Any) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value) and value > 0:
            return float(value)
    except OverflowError:
        pass
    raise InvalidValueError(
        f"{origin}: aspect_ratio={_short(value)} must be a finite number above 0; "
        "correct it or leave it out"
    )


def _kind(value: Any) -> str:
    """Return the JSON name of a value's type, with its article."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100


def _short(value: Any) -> str:
    """Return the shortened repr of a value from a file, which may have any size."""
    return _REPR.repr(value)
