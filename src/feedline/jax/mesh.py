"""Which processes of a JAX run share data, and their batches as global arrays over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from feedline.errors import DesyncError, InvalidValueError
from feedline.feed import Peers
from feedline.feed.delegation import asked_of
from feedline.feed.peers import find_peers
from feedline.jax.peers import JaxPeers
from feedline.lazy import lazy
from feedline.words import several

#: Parts of the rows of a global batch, by number.
Parts = frozenset[int]


def data_ranks(parts: Mapping[int, Parts]) -> dict[int, int]:
    """Return the data rank of each process, from the parts of the rows that it holds.

    Processes that hold the same rows, such as those along a model-parallel axis, are one rank: they
    get the same batches. If two share only some rows, no batch of either is right.

    Args:
        parts: The parts of the global batch that each process holds, by its index.

    Examples:
        >>> halves = frozenset({0, 1}), frozenset({2, 3})
        >>> data_ranks({0: halves[0], 1: halves[0], 2: halves[1], 3: halves[1]})
        {0: 0, 1: 0, 2: 1, 3: 1}
    """
    distinct = sorted(set(parts.values()), key=sorted)
    owners: dict[int, Parts] = {}
    for held in distinct:
        for part in held:
            other = owners.setdefault(part, held)
            if other is not held:
                a, b = (min(p for p in parts if parts[p] == group) for group in (other, held))
                raise InvalidValueError(
                    f"sharding: processes {a} and {b} hold some of the same rows of a batch, but "
                    "not all, so neither can be given a batch of its own; arrange the devices of "
                    "the mesh so that two processes hold the same rows or none in common, as "
                    "jax.make_mesh does"
                )
    if len({len(held) for held in distinct}) > 1:
        sizes = ", ".join(f"process {process}: {len(parts[process])}" for process in sorted(parts))
        raise InvalidValueError(
            f"sharding: processes hold differently many rows of a batch ({sizes:.200}), but all "
            "get batches of one size; use a mesh with equally many devices of each process"
        )
    ranks = {held: rank for rank, held in enumerate(distinct)}
    return {process: ranks[held] for process, held in parts.items()}


def row_parts(sharding: NamedSharding) -> dict[int, Parts]:
    """Return the parts of the rows of a global batch that each process holds."""
    num_parts = sharding.num_devices
    held: dict[int, set[int]] = {}
    indices: Mapping[Any, Any] = sharding_of(sharding, 1).devices_indices_map((num_parts,))
    for device, index in indices.items():
        held.setdefault(device.process_index, set()).update(range(num_parts)[index[0]])
    return {process: frozenset(parts) for process, parts in held.items()}


def sharding_of(sharding: NamedSharding, num_axes: int) -> NamedSharding:
    """Return the sharding of an array that may have fewer axes than the spec names."""
    spec = sharding.spec
    if len(spec) <= num_axes:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[:num_axes]))


class Placement:
    """Where batches go: over a mesh, or to the device of this process.

    Nothing is asked of JAX before it is needed: `jax.distributed.initialize` may come later.

    Args:
        sharding: How a batch lies on devices, its rows along the first axis; `"auto"` for rows over
            all devices of the run; None for arrays of this process alone.

    Examples:
        >>> Placement("auto").put({"x": np.arange(4)}, 4)["x"].tolist()
        [0, 1, 2, 3]
    """

    def __init__(self, sharding: NamedSharding | str | None) -> None:
        is_auto = isinstance(sharding, str) and sharding == "auto"
        if not is_auto and sharding is not None and not isinstance(sharding, NamedSharding):
            raise InvalidValueError(
                f"sharding={sharding!r:.80} must be 'auto', None, or a NamedSharding, such as "
                "NamedSharding(mesh, PartitionSpec('data'))"
            )
        self._given = sharding
        self._shardings: dict[int, NamedSharding] = {}

    def __repr__(self) -> str:
        return f"Placement({self._given!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        # Devices cannot be copied.
        return self

    @property
    def is_global(self) -> bool:
        """Whether batches are global arrays."""
        return self._given is not None

    @property
    def is_given(self) -> bool:
        """Whether the sharding was given, so that JAX was started."""
        return isinstance(self._given, NamedSharding)

    @lazy
    def sharding(self) -> NamedSharding | None:
        """The sharding of a batch; None for arrays of this process alone."""
        if isinstance(self._given, str):
            mesh = Mesh(np.array(jax.devices()), ("data",))
            return NamedSharding(mesh, PartitionSpec("data"))
        return self._given

    @lazy
    def _place(self) -> tuple[int, int, int, int]:
        """The data rank of this process, the number of ranks, the row shards of each, and the
        number of processes."""
        if self.sharding is None:
            return jax.process_index(), jax.process_count(), 1, jax.process_count()
        parts = row_parts(self.sharding)
        ranks, here = data_ranks(parts), jax.process_index()
        if here not in ranks:
            raise InvalidValueError(
                f"sharding: process {here} has no device in the mesh, so it cannot get batches; "
                "use a mesh with devices of every process that makes a loader"
            )
        shard = sharding_of(self.sharding, 1).shard_shape((self.sharding.num_devices,))[0]
        return ranks[here], len(set(ranks.values())), len(parts[here]) // shard, len(ranks)

    @property
    def rank(self) -> int:
        """The data rank of this process."""
        return self._place[0]

    @property
    def num_ranks(self) -> int:
        """The number of groups of processes that get different data."""
        return self._place[1]

    @property
    def shares_data(self) -> bool:
        """Whether some processes get the same batches."""
        return self._place[1] < self._place[3]

    def check_batch_size(self, batch_size: int) -> None:
        """Raise unless a batch of one rank can be divided over its devices."""
        num_shards = self._place[2]
        if batch_size % num_shards:
            raise InvalidValueError(
                f"batch_size={batch_size} must be a multiple of {num_shards}: the sharding divides "
                f"the rows of each process over {several(num_shards, 'shard')}; use another "
                "batch_size or mesh, or sharding=None for arrays of this process alone"
            )

    def put(self, batch: Any, num_rows: int) -> Any:
        """Return a batch on its devices; the copies may still be under way.

        Args:
            batch: Dicts and tuples of numpy arrays.
            num_rows: The number of samples in it.
        """
        found, tree = jax.tree_util.tree_flatten_with_path(batch, is_leaf=_is_leaf)
        arrays = [as_number(jax.tree_util.keystr(path), value) for path, value in found]
        if self.sharding is None:
            return jax.tree_util.tree_unflatten(tree, jax.device_put(arrays))
        for (path, _), array in zip(found, arrays, strict=True):
            if array.shape[:1] != (num_rows,):
                raise InvalidValueError(
                    f"batch{jax.tree_util.keystr(path)} has the shape {array.shape} but must have "
                    f"{several(num_rows, 'row')}, one for each sample, as on the other processes; "
                    "return such arrays, or use sharding=None"
                )
        self.check_batch_size(num_rows)
        shardings = [self._sharding_of(array.ndim) for array in arrays]
        if jax.process_count() == 1:
            return jax.tree_util.tree_unflatten(tree, jax.device_put(arrays, shardings))
        # The shape is given, because it could also be that of replicated rows.
        rows = num_rows * self.num_ranks
        put = [
            jax.make_array_from_process_local_data(
                sharding, np.asarray(array), (rows, *array.shape[1:])
            )
            for array, sharding in zip(arrays, shardings, strict=True)
        ]
        return jax.tree_util.tree_unflatten(tree, put)

    def _sharding_of(self, num_axes: int) -> NamedSharding:
        if num_axes not in self._shardings:
            assert self.sharding is not None
            self._shardings[num_axes] = sharding_of(self.sharding, num_axes)
        return self._shardings[num_axes]


def _is_leaf(value: Any) -> bool:
    # Lists of texts or of arrays of differing shapes, which no device takes.
    return isinstance(value, list)


def as_number(name: str, value: Any) -> Any:
    """Return a value as an array that a device can hold, or raise an error that names it.

    Without `jax_enable_x64`, JAX makes int32 of int64 and wraps what does not fit, silently.

    Examples:
        >>> as_number("['x']", np.arange(3)).dtype.name
        'int64'
    """
    array = np.asarray(value) if isinstance(value, bool | int | float | np.generic) else value
    is_array = isinstance(array, np.ndarray | jax.Array)
    if is_array and array.dtype.kind in "mM":
        array = array.view(np.int64)
    if not is_array or array.dtype.kind in "OSU":
        raise InvalidValueError(
            f"batch{name} is {_kind_of(value)}, which no device can hold; leave it out, by "
            "feedline.open(..., columns=[...]) for a store, or make an array of one shape of it"
        )
    kept = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and kept != array.dtype and array.size:
        low, high = int(array.min()), int(array.max())
        bounds = np.iinfo(kept)
        if low < bounds.min or high > bounds.max:
            worst = high if high > bounds.max else low
            raise InvalidValueError(
                f"batch{name} has the value {worst}, which must be in [{bounds.min}, "
                f"{bounds.max}]: JAX makes {kept} of {array.dtype} here; call "
                "jax.config.update('jax_enable_x64', True) first, or leave it out"
            )
    return array


def _kind_of(value: Any) -> str:
    if isinstance(value, list) and value:
        return f"a list of {type(value[0]).__name__}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return f"of type {type(value).__name__}"


class MeshPeers:
    """The data ranks of a JAX run: groups of processes that hold the same rows of a batch.

    All processes compare plans and agree with each other, also those that share data.

    Args:
        placement: Where batches go.

    Examples:
        >>> peers = MeshPeers(Placement("auto"))
        >>> peers.rank, peers.world_size
        (0, 1)
    """

    is_known = False

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def __repr__(self) -> str:
        return f"MeshPeers({self._placement!r})"

    @property
    def rank(self) -> int:
        """The data rank of this process."""
        self._check()
        return self._placement.rank

    @property
    def world_size(self) -> int:
        """The number of groups of processes that get different data."""
        self._check()
        return self._placement.num_ranks

    @property
    def reached(self) -> Peers:
        """All processes of the run."""
        return JaxPeers() if jax.process_count() > 1 else find_peers()

    def _check(self) -> None:
        """Raise if several processes were launched that do not know of each other."""
        if jax.process_count() == 1 and (found := find_peers()).world_size > 1:
            raise DesyncError(
                f"this process is rank {found.rank} of {found.world_size} in the group of another "
                "framework, but jax.process_count() is 1; call jax.distributed.initialize first, "
                "or pass num_replicas and rank, with sharding=None"
            )

    maximum = asked_of("reached", "maximum", "Return the largest value of all processes.")
    gather = asked_of("reached", "gather", "Return the values of all processes, by index.")
