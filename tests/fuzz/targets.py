"""One target for each format: what is sound, how it is damaged, and what is then done with it.

Sound files are written by our own writers, or by those whose files we read.
"""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
from foreign_targets import FOREIGN
from mutations import damage_bytes, damage_json, damage_tree, damage_value
from record_targets import RECORDS

import feedline
from feedline.plan import Cursor, SamplePlan, Shuffled
from feedline.report import report_logs, write_report
from feedline.runs import ConsumptionLog, audit_logs
from feedline.runs.audit import audit_config
from feedline.runs.inspection import compare, inspect_path
from feedline.runs.run_config import RunConfig
from feedline.store import FolderStore, Store, open_anndata, verify

Damage = Callable[[Random, Path], None]


@dataclass(frozen=True)
class Target:
    """A format: `make` writes sound data below a folder, each in a folder of its own."""

    make: Callable[[Path], None]
    damage: Damage
    use: Callable[[Path, Random], None]
    #: The share of cases it gets, beside the others.
    weight: int = 10


def _use_store(store: Any) -> None:
    num_samples = len(store)
    repr(store)
    if num_samples:
        for place in (0, num_samples - 1, num_samples // 2):
            store[place]
        store[: min(num_samples, 5)]


def _only(folder: Path) -> Path:
    return next(path for path in sorted(folder.iterdir()))


def _damage_only(rng: Random, folder: Path) -> None:
    path = _only(folder)
    path.write_bytes(damage_bytes(rng, path.read_bytes()))


def _arrays(num_rows: int = 12) -> dict[str, Any]:
    return {
        "x": np.arange(num_rows, dtype=np.int64),
        "y": np.linspace(0, 1, num_rows * 3, dtype=np.float32).reshape(num_rows, 3),
    }


# .pt, and the zip around it


def _make_pt(folder: Path) -> None:
    import torch

    for name, content in {
        "dict": {name: torch.from_numpy(array) for name, array in _arrays().items()},
        "nested": ({"item": torch.arange(6)}, {"item": torch.arange(6)}, *[torch.arange(6)] * 3),
        "checkpoint": {"loader": {"epoch": 1, "cursor": _cursor().to_json()}, "lr": 0.5},
    }.items():
        (folder / name).mkdir(parents=True)
        torch.save(content, folder / name / "x.pt")


def _damage_pt(rng: Random, folder: Path) -> None:
    path = _only(folder)
    if rng.random() < 0.4:
        _damage_only(rng, folder)
        return
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    chosen = rng.randrange(len(members))
    if rng.random() < 0.7:
        chosen = next(n for n, (name, _) in enumerate(members) if name.endswith("data.pkl"))
    name, data = members[chosen]
    kind = rng.randrange(10)
    if kind == 0:
        members.append((name, data))
    elif kind == 1:
        members.pop(chosen)
    elif kind == 2:
        members[chosen] = (name, _random_pickle(rng))
    else:
        members[chosen] = (name, damage_bytes(rng, data))
    method = rng.choice((zipfile.ZIP_STORED,) * 6 + (zipfile.ZIP_DEFLATED, 12, 14))
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    if rng.random() < 0.1:
        _damage_only(rng, folder)


def _random_pickle(rng: Random) -> bytes:
    if rng.random() < 0.5:
        code = b"\x80\x04]\x94"
        for level in range(rng.choice((3, 30, 100))):
            code += b"]\x94(" + (b"h" + bytes([level])) * rng.choice((1, 2, 5)) + b"e"
        return code + b"."
    opcodes = b"}])(.Nabehjqrstu\x85\x86\x87\x88\x89\x8c\x90\x91\x92\x93\x94\x95QRcX"
    return b"\x80\x02" + bytes(rng.choice(opcodes) for _ in range(rng.randrange(60))) + b"."


def _use_pt(folder: Path, rng: Random) -> None:
    path = _only(folder)
    for use in (lambda: _use_store(feedline.open(path)), lambda: inspect_path(path)):
        _attempt(use)


def _attempt(use: Callable[[], Any]) -> None:
    """Do one thing of several; a refusal is as good as success."""
    from feedline.errors import FeedlineError

    try:
        use()
    except FeedlineError as error:
        # What is said must be printable in one line of bounded length.
        if len(str(error)) > 20_000:
            raise AssertionError(f"a message of {len(str(error))} characters") from None


# safetensors, .npy, tokens, tables


def _pack_files(folder: Path, format_: str, ending: str) -> None:
    feedline.pack(_arrays(), folder / "packed", format=format_, progress=False)
    (folder / "one").mkdir()
    found = next(file for file in sorted((folder / "packed").rglob(f"*{ending}")))
    shutil.copy(found, folder / "one" / f"x{ending}")
    shutil.rmtree(folder / "packed")


def _make_safetensors(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _pack_files(folder, "safetensors", ".safetensors")


def _damage_safetensors(rng: Random, folder: Path) -> None:
    path = _only(folder)
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    if rng.random() < 0.7 and 8 + size <= len(data):
        header = damage_json(rng, data[8 : 8 + size])
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    else:
        _damage_only(rng, folder)


def _make_npy(folder: Path) -> None:
    for name, array in {
        **_arrays(),
        "f": np.asfortranarray(np.ones((4, 3))),
        "b": np.ones(5, bool),
    }.items():
        (folder / name).mkdir(parents=True)
        np.save(folder / name / "x.npy", array)


def _damage_npy(rng: Random, folder: Path) -> None:
    path = _only(folder)
    data = path.read_bytes()
    if rng.random() < 0.6:
        header = bytearray(data[10:128])
        text = header.decode("latin-1")
        pieces = [
            "(3L",
            "((",
            "9" * 50,
            "(" * 90,
            "'<f8'",
            "'|O'",
            "(-1,)",
            "(2**70,)",
            "\\x",
            "\0",
        ]
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(pieces) + text[place + rng.randrange(12) :]
        encoded = text.encode("latin-1")
        length = len(encoded).to_bytes(2, "little")
        path.write_bytes(data[:8] + length + encoded + data[128:])
    else:
        _damage_only(rng, folder)


def _use_file(folder: Path, rng: Random) -> None:
    path = _only(folder)
    _attempt(lambda: _use_store(feedline.open(path)))
    if path.suffix == ".npy":
        _attempt(lambda: _use_store(feedline.open(path, window=rng.choice((1, 3, 2**40)))))
        config = {"batch_size": 2, "data": {"lengths": str(path)}}
        _attempt(lambda: RunConfig.from_dict(config).num_steps)


def _make_tokens(folder: Path) -> None:
    (folder / "plain").mkdir(parents=True)
    np.arange(500, dtype=np.uint16).tofile(folder / "plain" / "x.bin")


def _use_tokens(folder: Path, rng: Random) -> None:
    path = _only(folder)
    window, stride = (rng.choice((1, 2, 7, 64, 500, 2**31, 2**62)) for _ in range(2))
    dtype = rng.choice(("uint16", "int32", "float16", "O", "V9", "x"))
    _attempt(lambda: _use_store(feedline.open(path, window=window, stride=stride, dtype=dtype)))


def _make_tables(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table(
        {
            "x": np.arange(12),
            "y": pa.FixedSizeListArray.from_arrays(np.arange(36, dtype=np.float32), 3),
            **{"text": ["a", "é", None] * 4, "view": pa.array(["v" * 20] * 12, pa.string_view())},
            **{"tokens": [[1], [], [2, 3]] * 4, "pairs": [[[1, 2]], [[3, 4], [5, 6]]] * 6},
            **{"record": [{"a": n, "b": b"b"} for n in range(12)], "null": [True, None] * 6},
            "when": pa.array(range(12), pa.timestamp("ms")),
        }
    )
    kinds = ("parquet", "arrow", "feather", "stream", "words", "plain", "plain_stream")
    for name in kinds:
        (folder / name).mkdir(parents=True)
    # Their batches are opened together.
    plain = table.drop_columns(["view", "null", "pairs"])
    with pa.ipc.new_file(folder / "plain" / "x.arrow", plain.schema) as writer:
        writer.write_table(plain, max_chunksize=5)
    with pa.ipc.new_stream(folder / "plain_stream" / "x.arrow", plain.schema) as writer:
        writer.write_table(plain, max_chunksize=3)
    with pa.ipc.new_stream(folder / "stream" / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    words = pa.table({"word": pa.array(["a", "b", "a", None] * 3).dictionary_encode()})
    pyarrow.feather.write_feather(words, folder / "words" / "x.feather", compression="uncompressed")
    pyarrow.parquet.write_table(table, folder / "parquet" / "x.parquet", row_group_size=5)
    with pa.ipc.new_file(folder / "arrow" / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    pyarrow.feather.write_feather(table, folder / "feather" / "x.feather", compression="lz4")


def _use_loader(store: Store) -> None:
    """Read the first batches of a shuffle, which come from all chunks."""
    loader = feedline.DataLoader(store, 7, shuffle=True, num_threads=0)
    for batch in islice(loader, 4):
        for values in batch.values():
            _ = values if isinstance(values, list) else values.tolist()


def _use_table(folder: Path, rng: Random) -> None:
    path = _only(folder)
    _attempt(lambda: _use_store(feedline.open(path)))
    _attempt(lambda: _use_loader(feedline.open(path)))
    if rng.random() < 0.3:
        _attempt(lambda: feedline.pack(path, folder / "out", progress=False))


# folders of chunks


def _make_folders(folder: Path) -> None:
    for format_ in ("npy", "pt", "safetensors", "parquet"):
        arrays = _arrays()
        if format_ == "pt":
            arrays = {"sequences/item": arrays["y"], "start_positions": arrays["x"]}
        place = "targets/" if format_ == "pt" else ""
        arrays[f"{place}text"] = ["a", "é", None] * 4
        arrays[f"{place}tokens"] = [[1], [], [2, 3]] * 4
        arrays[f"{place}when"] = np.arange(12).astype("M8[s]")
        (folder / format_).mkdir(parents=True)
        feedline.pack(
            arrays, folder / format_ / "data", format=format_, chunk_samples=5, progress=False
        )


def _damage_folder(rng: Random, folder: Path) -> None:
    if rng.random() < 0.7:
        path = folder / "data" / "metadata.json"
        path.write_bytes(damage_json(rng, path.read_bytes()))
    else:
        damage_tree(rng, folder)


def _use_folder(folder: Path, rng: Random) -> None:
    path = folder / "data"
    _attempt(lambda: _use_store(FolderStore(path, verify=rng.random() < 0.3)))
    _attempt(lambda: FolderStore(path).fingerprint)
    _attempt(lambda: inspect_path(path))
    if rng.random() < 0.3:
        _attempt(lambda: verify(path, progress=False, num_threads=1))
    if rng.random() < 0.3:
        _attempt(lambda: feedline.pack(path, folder / "out", format="npy", progress=False))


# zarr


def _make_zarr(folder: Path) -> None:
    import scipy.sparse as sp
    import zarr

    values = np.where(np.arange(60 * 7).reshape(60, 7) % 3, 0, np.arange(60)[:, None] + 1.0)
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("sparse", 3, {"chunks": (16,), "shards": (64,)}),
        ("chunks", 2, {"chunks": (16,)}),
        ("dense3", 3, {"chunks": (4, 5), "shards": (12, 10)}),
        ("dense2", 2, {"chunks": (7, 3)}),
    ]
    for name, zarr_format, layout in kinds:
        path = folder / name / "m.zarr"
        path.parent.mkdir(parents=True)
        root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        if name.startswith("dense"):
            array = root.create_array("X", shape=values.shape, dtype="f4", **layout)
            array[:] = values
            array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        else:
            matrix = sp.csr_matrix(values)
            group = root.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
            group.attrs.update({"shape": list(matrix.shape)})
            for part in ("data", "indices"):
                found = getattr(matrix, part)
                group.create_array(part, shape=found.shape, dtype=found.dtype, **layout)[:] = found
            group.create_array("indptr", data=matrix.indptr)
        obs = root.create_group("obs")
        version = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
        obs.attrs.update({**version, "_index": "name", "column-order": ["number", "label"]})
        obs.create_array("number", data=np.arange(60))
        names = np.array([f"row {n}" for n in range(60)], dtype=object)
        obs.create_array("name", shape=60, dtype=str, chunks=20)[:] = names
        label = obs.create_group("label")
        label.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0"})
        label.create_array("codes", data=(np.arange(60) % 3).astype(np.int8))
        label.create_array("categories", data=np.array([10, 20, 30]))
        if name in ("chunks", "dense3"):
            zarr.consolidate_metadata(path)


def _use_zarr(folder: Path, rng: Random) -> None:
    path = folder / "m.zarr"

    def read() -> None:
        store = open_anndata(path, obs=["number", "label", "name"])
        num_rows = min(store.shape[0], 50)
        rows = store.fetch(np.arange(num_rows)).take(np.arange(num_rows))
        _ = rows.copy()

    _attempt(read)
    choice = rng.random()
    if choice < 0.1:
        _attempt(lambda: inspect_path(path))
    elif choice < 0.2:
        from feedline.packing.anndata import pack_anndata

        _attempt(lambda: pack_anndata([path], folder / "out.zarr", progress=False))


# cursors and states


def _cursor() -> Cursor:
    segment = _plan().segment(world_size=2, batch_size=3)
    return segment.cursor(2)


def _plan() -> SamplePlan:
    return SamplePlan(order=Shuffled(num_samples=100, seed=1))


def _make_states(folder: Path) -> None:
    cursor = _cursor()
    clock = {"step": 3, "epoch": 0, "num_batches": 3, "dp_size": 2, "local_batch_size": 3}
    for name, state in {
        "cursor": cursor.to_dict(),
        "loader": {"epoch": 0, "cursor": cursor.to_json()},
        "clock": {**clock, "dataloader": {"epoch": 0, "cursor": cursor.to_json()}},
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "x.json").write_text(json.dumps(state))


def _damage_state(rng: Random, folder: Path) -> None:
    from feedline.plan.frozen import fingerprint_of

    path = _only(folder)
    if rng.random() < 0.5:
        path.write_bytes(damage_json(rng, path.read_bytes()))
        return
    # With a fingerprint that is right, so that what comes after it is reached.
    state = _cursor().to_dict()
    for key in ("history", "epoch", "changes", "fields"):
        if rng.random() < 0.6:
            state[key] = damage_value(rng, json.loads(json.dumps(state[key])))
    try:
        state["fingerprint"] = fingerprint_of(state["fields"])
        text = json.dumps(state)
    except (TypeError, ValueError, RecursionError, AttributeError):
        return
    path.write_text(text)


_CONFIG = {"seed": 1, "ranks": 2, "batch_size": 3, "data": {"samples": 100}}


def _use_state(folder: Path, rng: Random) -> None:
    path = _only(folder)
    _attempt(lambda: Cursor.load(path))

    def inspect() -> None:
        found = inspect_path(path)
        json.dumps(found.facts, default=str)
        if found.cursor is not None:
            compare(found.cursor, RunConfig.from_dict(_CONFIG))
            segment = _plan().resume(found.cursor, world_size=2, batch_size=3)
            if segment.num_batches > segment.num_done:
                segment.batch(0, segment.num_done)

    _attempt(inspect)


# logs


def _make_logs(folder: Path) -> None:
    for number, num_ranks in enumerate((1, 2)):
        for rank in range(num_ranks):
            path = folder / f"run{number}" / "logs" / f"rank{rank}.log"
            info = {"num_samples": 24, "tail": "drop", "batch_size": 4}
            if number:
                info = {"sources": {"a": 10, "b": 14}, "weights": {"a": 1, "b": 2}, **info}
            with ConsumptionLog(path, rank=rank, world_size=num_ranks, run="r", info=info) as log:
                log.event("start", has_clock=bool(number), place=0, places_per_batch=1)
                for epoch in range(2):
                    for batch in range(3):
                        ids = (np.arange(4) * num_ranks + rank + batch * 4 * num_ranks) % 24
                        step = epoch * 3 + batch
                        log.record(epoch=epoch, step=step, batch=batch, ids=ids, wait=0.1)
                    log.event("epoch_end", epoch=epoch, step=step, num_dropped=0)
                log.event("resume", step=2, has_clock=True, place=2, places_per_batch=1)
                log.record(epoch=0, step=2, batch=2, ids=[1], is_real=[False])
                log.event("stop")


def _damage_log(rng: Random, folder: Path) -> None:
    from feedline.runs.log_records import framed, read_frames

    path = rng.choice(sorted(folder.rglob("*.log")))
    data = path.read_bytes()
    if rng.random() < 0.25:
        path.write_bytes(damage_bytes(rng, data))
        return
    # With checksums that are right, so that what comes after them is reached.
    line, _, _ = data.partition(b"\n")
    header = json.loads(line)
    header.pop("crc32")
    records = [content for _, content in read_frames(path)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        if rng.random() < 0.4:
            kept = header.pop("format")
            header = {"format": kept, **_mapping(damage_value(rng, header))}
        elif records:
            number = rng.randrange(len(records))
            content = records[number]
            if content[:1] == b"\2" and rng.random() < 0.8:
                content = b"\2" + damage_json(rng, content[1:])
            else:
                content = damage_bytes(rng, content)
            records[number] = content
            if rng.random() < 0.2:
                records.insert(rng.randrange(len(records)), rng.choice(records))
    text = json.dumps(header, separators=(",", ":"))
    check = f'{text[:-1]},"crc32":"{crc32(text.encode()):08x}"}}\n'
    path.write_bytes(check.encode() + b"".join(map(framed, records)))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _use_logs(folder: Path, rng: Random) -> None:
    path = folder / "logs"
    _attempt(lambda: audit_logs([path]))
    _attempt(lambda: inspect_path(path))
    choice = rng.random()
    if choice < 0.15:
        values = {"seed": 1, "batch_size": 4, "tail": rng.choice(("drop", "pad", "even"))}
        config = RunConfig.from_dict({**values, "data": {"samples": 24}})
        _attempt(lambda: audit_config([path], config))
    elif choice < 0.25:
        _attempt(lambda: write_report(report_logs([path]), folder / "report.html"))


# configs


_YAML = """seed: 3
ranks: 4
batch_size: 8
grad_acc_steps: 2
tail: even
data:
  mixture:
    - {name: web, samples: 1000, weight: 2.0}
    - {name: books, samples: 50}
  phases:
    - {epoch: 1, weights: {web: 1, books: 3}}
"""
_YAMLS = {
    "mixture": _YAML,
    "samples": "batch_size: 4\ndata: {samples: 1_000}\n",
    "buckets": "batch_size: 4\ndata:\n  mode: interleaved\n  buckets:\n"
    "    - {name: a, samples: 10, batch_size: 2}\n    - {name: b, samples: 20}\n",
    "chunks": "batch_size: 4\ndata: {chunks: {num_chunks: 9, chunk_size: 7, preload: 2}}\n",
}


def _make_yaml(folder: Path) -> None:
    for name, text in _YAMLS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "run.yaml").write_text(text)


_SNIPPETS = [
    *(
        "&a ",
        "*a",
        "<<: *a",
        "!!python/name:os.system ",
        "!x ",
        "1:30:00",
        "- ",
        "? ",
        ": ",
        "---\n",
    ),
    *(
        "[" * 200,
        "{" * 200,
        "|\n",
        ">\n",
        "'",
        '"',
        "#",
        "%YAML 9.9\n",
        "\t",
        "\x00",
        "é",
        "\u202e",
    ),
    *("9" * 5000, "1e400", ".nan", ".inf", "-.inf", "0x" + "f" * 300, "null", "true", "2024-01-01"),
    *(
        "-1",
        "0",
        "18446744073709551616",
        "1_0",
        "~",
        "\r",
        "\x85",
        "\u2028",
        "@",
        "`",
        ",",
        "]",
        "}",
    ),
    *("samples: 9223372036854775807", "tail: exact", "folder: /dev", "lengths: /dev/zero", "../x"),
    *(
        "epochs: 4611686018427387904",
        "preload: 99999999999",
        "temperature: 1.0e-300",
        "weight: 1.0e+300",
    ),
]


def _damage_yaml(rng: Random, folder: Path) -> None:
    path = _only(folder)
    text = path.read_text()
    if rng.random() < 0.2:
        path.write_bytes(damage_bytes(rng, text.encode()))
        return
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        number = rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0:
            lines.insert(number, rng.choice(lines))
        elif kind == 1:
            lines.pop(number)
        elif kind == 2:
            key, colon, _ = lines[number].partition(":")
            lines[number] = f"{key}{colon} {rng.choice(_SNIPPETS)}"
        else:
            place = rng.randrange(len(lines[number]) + 1)
            lines[number] = lines[number][:place] + rng.choice(_SNIPPETS) + lines[number][place:]
        text = "\n".join(lines) or "x"
    path.write_text(text, errors="surrogatepass")


def _use_yaml(folder: Path, rng: Random) -> None:
    path = _only(folder)

    def load() -> None:
        config = RunConfig.load(path)
        _ = config.num_steps
        repr(config)
        segment = config.segment(0)
        if segment.num_batches and config.batch_size < 10_000:
            segment.batch(config.ranks - 1, segment.num_batches - 1)

    _attempt(load)


# text to pack


def _make_text(folder: Path) -> None:
    for name in ("csv", "jsonl"):
        (folder / name).mkdir(parents=True)
    rows = "".join(f'{n},{n / 2},"text, {n}"\n' for n in range(20))
    (folder / "csv" / "x.csv").write_text("a,b,c\n" + rows)
    lines = [json.dumps({"a": n, "b": [n, 1.5], "c": f"t{n}"}) for n in range(20)]
    (folder / "jsonl" / "x.jsonl").write_text("\n".join(lines) + "\n")


def _damage_text(rng: Random, folder: Path) -> None:
    path = _only(folder)
    lines = path.read_bytes().split(b"\n")
    if rng.random() < 0.5:
        number = rng.randrange(len(lines))
        pieces = [
            b'"',
            b",",
            b"\0",
            b"\xff\xfe",
            b"\r",
            b"1e999",
            b"9" * 400,
            b"{",
            b"[" * 500,
            b"",
        ]
        pieces += [b'{"a": {"b": 1}}', b'{"a": null}', b'{"a": 1, "a": 2}', b"\xef\xbb\xbf", b"nan"]
        place = rng.randrange(len(lines[number]) + 1)
        lines[number] = lines[number][:place] + rng.choice(pieces) + lines[number][place:]
        path.write_bytes(b"\n".join(lines))
    else:
        _damage_only(rng, folder)


def _use_text(folder: Path, rng: Random) -> None:
    path = _only(folder)
    shuffle = rng.random() < 0.3
    options: dict[str, Any] = {"columns": ["a", "b"]} if rng.random() < 0.7 else {}
    _attempt(
        lambda: feedline.pack(
            path, folder / "out", shuffle=shuffle, progress=False, num_threads=1, **options
        )
    )


# .h5ad, which is opened in a process of its own


def _make_h5ad(folder: Path) -> None:
    import h5py

    (folder / "dense").mkdir(parents=True)
    with h5py.File(folder / "dense" / "x.h5ad", "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        file["X"] = np.arange(60, dtype="f4").reshape(20, 3)
        file["X"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        for name, size in (("obs", 20), ("var", 3)):
            group = file.create_group(name)
            group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
            group.attrs.update({"_index": "_index"})
            group.attrs["column-order"] = np.array([], dtype=h5py.string_dtype())
            names = np.array([f"{name}{n}" for n in range(size)], dtype=object)
            group.create_dataset("_index", data=names, dtype=h5py.string_dtype())


def _use_h5ad(folder: Path, rng: Random) -> None:
    from feedline.packing.anndata import checking, pack_anndata

    # A file that hangs the HDF5 library is refused when this is over; a case has 20 seconds.
    checking.SILENT_SECONDS = 5.0
    _attempt(lambda: pack_anndata([_only(folder)], folder / "out.zarr", progress=False))


TARGETS = {
    "pt": Target(_make_pt, _damage_pt, _use_pt, weight=20),
    "safetensors": Target(_make_safetensors, _damage_safetensors, _use_file, weight=20),
    "npy": Target(_make_npy, _damage_npy, _use_file, weight=20),
    "tables": Target(_make_tables, _damage_only, _use_table, weight=10),
    "tokens": Target(_make_tokens, _damage_only, _use_tokens, weight=4),
    "folders": Target(_make_folders, _damage_folder, _use_folder, weight=15),
    "zarr": Target(_make_zarr, damage_tree, _use_zarr, weight=5),
    "states": Target(_make_states, _damage_state, _use_state, weight=20),
    "logs": Target(_make_logs, _damage_log, _use_logs, weight=12),
    "configs": Target(_make_yaml, _damage_yaml, _use_yaml, weight=12),
    "text": Target(_make_text, _damage_text, _use_text, weight=3),
    "h5ad": Target(_make_h5ad, _damage_only, _use_h5ad, weight=1),
}
TARGETS |= {name: Target(*parts) for name, parts in FOREIGN.items()}
TARGETS |= {name: Target(*parts) for name, parts in RECORDS.items()}
