"""What a pack takes of memory, temporary disk, files and network, before it is begun."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.errors import check_choice, check_integer
from feedline.packing.settings import DEFAULT_CHUNK_BYTES, DEFAULT_MEMORY, ENGINES, check_memory
from feedline.words import one_line

# Python with what packing imports, its threads, and what allocators hold back.
_PROCESS_BYTES = 2**28
# Beside each row on its way through a shuffle: its key; on a cluster also its size, where bytes
# decide where chunks end.
_KEY_BYTES, _SIZE_BYTES = 8, 8
_MAX_RANGES = 4096
# Of a range of keys in a temporary file: where it begins, and the lengths of its arrays.
_RANGE_BYTES = 64


@one_line
@dataclass(frozen=True, kw_only=True)
class PackNeeds:
    """What a pack takes, as the formulas of its engine have it.

    Args:
        memory: The most memory that is in use on a node, in bytes.
        disk: The most bytes in temporary files, on storage that all nodes share.
        read: The bytes that all processes read from files, most of them from the page cache where
            that is large enough.
        written: The bytes that they write to files.
        moved: The most bytes that go from task to task through Ray's object store. What does not
            fit there, Ray writes to local disks: at most these bytes, which are not in `disk` and
            `written`.
        network: The most bytes that go through each node's network, if all storage is elsewhere.
        num_blocks: The number of temporary files.
        piece_bytes: The bytes that are read from a temporary file at once.
    """

    memory: int
    disk: int
    read: int
    written: int
    moved: int
    network: int
    num_blocks: int
    piece_bytes: int


def pack_needs(
    num_bytes: int,
    num_rows: int,
    *,
    source_bytes: int | None = None,
    engine: str = "ray",
    shuffle: bool = True,
    num_nodes: int = 1,
    num_cores: int = 1,
    memory_budget: int = DEFAULT_MEMORY,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> PackNeeds:
    """Return what it takes to pack so many bytes, without looking at any data.

    `benchmarks/pack.py` compares it with what is measured at three sizes. Columns of one shape take
    a little less than this, because the size of each row is known. A column of lists or texts takes
    8 bytes for each row beside its values.

    Args:
        num_bytes: The bytes of all rows in memory.
        num_rows: The number of rows.
        source_bytes: The bytes of the files of the source, by default the same.
        engine: "ray" or "local".
        shuffle: Whether rows are shuffled. In order it is the most that a cluster takes: what it
            can read from the source row by row goes through no temporary files.
        num_nodes: The number of nodes; 1 for this machine.
        num_cores: The cores of each node: so many tasks run at once.
        memory_budget: As for `pack`; of each task on a cluster.
        chunk_bytes: The bytes of a chunk.

    Examples:
        >>> needs = pack_needs(10**12, 10**9, num_nodes=100, num_cores=16, memory_budget=2**32)
        >>> needs.num_blocks, needs.piece_bytes
        (1893, 141842)
        >>> round(needs.disk / 1e12, 2), round(needs.written / 1e12, 2)
        (1.12, 2.02)
    """
    check_choice("engine", engine, ENGINES)
    num_bytes = check_integer("num_bytes", num_bytes, 1)
    num_rows = check_integer("num_rows", num_rows, 1)
    given = num_bytes if source_bytes is None else check_integer("source_bytes", source_bytes, 1)
    num_nodes = check_integer("num_nodes", num_nodes, 1)
    num_cores = check_integer("num_cores", num_cores, 1)
    chunk_bytes = check_integer("chunk_bytes", chunk_bytes, 1)
    budget = check_memory(memory_budget)
    is_cluster = engine == "ray"
    beside = (_KEY_BYTES if shuffle else 0) + (_SIZE_BYTES if is_cluster else 0)
    held = num_bytes + beside * num_rows if shuffle or is_cluster else 0
    # A task reads a part, deals blocks of it, and later fills chunks from its range in each block.
    num_tasks = num_nodes * num_cores if is_cluster else 1
    block_bytes = budget // 8 if is_cluster else budget // 4
    num_blocks = -(-held // block_bytes)
    num_ranges = min(_MAX_RANGES, max(1, -(-16 * held // budget))) if shuffle else 1
    is_ranged = is_cluster and shuffle
    disk = held + (_RANGE_BYTES * num_blocks * num_ranges if is_ranged else 0)
    # Tasks write some chunks each. A range that two of them need is read by both.
    num_groups = min(-(-num_bytes // chunk_bytes), max(4 * num_tasks, 2 * held // budget))
    again = (num_groups - 1) * held // num_ranges + beside * num_rows if is_ranged else 0
    written = num_bytes + disk
    read = given + disk + again + num_bytes
    moved = num_bytes if is_cluster else 0
    in_writing = num_tasks * min(chunk_bytes, num_bytes) if is_cluster else 0
    return PackNeeds(
        memory=(num_cores if is_cluster else 1) * (budget + _PROCESS_BYTES),
        disk=disk + in_writing,
        read=read,
        written=written,
        moved=moved,
        network=-(-(read + written + moved) // num_nodes),
        num_blocks=num_blocks,
        piece_bytes=-(-block_bytes // num_ranges) if held else 0,
    )
