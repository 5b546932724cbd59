"""Targets for data that others wrote: shards, and the indexes that we keep beside them.

What is damaged gets the right checksums again, or else little would come past them.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import tarfile
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from mutations import NUMBERS, damage_bytes, damage_json, damage_tree, damage_value

import feedline
from feedline.store.foreign.crc32c import masked_crc32c

WRITTEN = Path(__file__).resolve().parent.parent / "formats"
_INDEX = b"feedline index 1"


def use_shards(folder: Path, rng: Random) -> None:
    """Read all of a folder of shards, or of one of them."""
    path = folder
    if rng.random() < 0.3:
        path = rng.choice([file for file in sorted(folder.iterdir()) if file.is_file()])
    store = feedline.open(path)
    repr(store)
    for values in store[:].values():
        assert len(values) == len(store)
    store[len(store) // 2]


def _damage_index(rng: Random, data: bytes) -> bytes:
    """Return an index with faults, signed anew."""
    start = len(_INDEX) + 24
    size = int.from_bytes(data[start - 8 : start], "little")
    header, payload = json.loads(data[start : start + size]), data[start + size :]
    if rng.random() < 0.5:
        header = damage_value(rng, header)
    else:
        payload = damage_bytes(rng, payload)
    if isinstance(header, dict):
        header["payload"] = blake2b(payload, digest_size=16).hexdigest()
    encoded = json.dumps(header).encode()
    digest = blake2b(encoded, digest_size=16).digest()
    return _INDEX + digest + len(encoded).to_bytes(8, "little") + encoded + payload


def _damage_shards(rng: Random, folder: Path, damage: Any) -> None:
    """Damage one of the files of a folder, decoded if it is compressed, or its index."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    path = rng.choice(files)
    data = path.read_bytes()
    if rng.random() < 0.25:
        path.write_bytes(damage_bytes(rng, data))
    elif data.startswith(_INDEX):
        path.write_bytes(_damage_index(rng, data))
    elif data.startswith(b"\x1f\x8b"):
        path.write_bytes(gzip.compress(damage(rng, gzip.decompress(data)), 1))
    else:
        path.write_bytes(damage(rng, data))


# WebDataset


def make_webdataset(folder: Path) -> None:
    shutil.copytree(WRITTEN / "webdataset" / "data", folder / "written")
    shutil.rmtree(folder / "written" / ".feedline-index", ignore_errors=True)
    (folder / "forms").mkdir()
    forms = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    for number, form in enumerate(forms):
        content = _tar(form)
        (folder / "forms" / f"{number}.tar").write_bytes(content)
        (folder / f"packed-{number}").mkdir()
        (folder / f"packed-{number}" / "x.tar.gz").write_bytes(gzip.compress(content))
    shutil.copytree(folder / "forms", folder / "indexed")
    feedline.open(folder / "indexed")


def _tar(form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for number in range(6):
            for ending in ("txt", "seg.png")[: 1 + number % 2]:
                info = tarfile.TarInfo(f"{'deep/' * (25 * (number % 2))}{number}.{ending}")
                info.size = 100 * number
                archive.addfile(info, io.BytesIO(bytes([number]) * info.size))
    return buffer.getvalue()


def damage_webdataset(rng: Random, folder: Path) -> None:
    _damage_shards(rng, folder, _damage_tar)


def _damage_tar(rng: Random, data: bytes) -> bytes:
    """Return a tar file with faults in some headers, whose checksums are right."""
    content = bytearray(data)
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    for at in rng.sample(headers, min(len(headers), rng.choice((1, 1, 2, 5)))):
        header = content[at : at + 512]
        kind = rng.randrange(5)
        if kind == 0:
            header[156:157] = rng.choice((b"0", b"\0", *(bytes([c]) for c in b"1234567LKxXgSVMD?")))
        elif kind == 1:
            header[124:136] = b"%011o\0" % (rng.choice(NUMBERS) % 8**11)
        elif kind == 2:
            header[124:136] = rng.choice((b"\x80", b"\xff")) + rng.randbytes(11)
        elif kind == 3:
            # What follows may be the content of an extended header.
            body = damage_bytes(rng, bytes(content[at + 512 : at + 1024])).ljust(512, b"\0")
            content[at + 512 : at + 1024] = body[:512]
        else:
            header[: rng.choice((100, 512))] = damage_bytes(rng, bytes(header))[:100]
        header = header[:512].ljust(512, b"\0")
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        content[at : at + 512] = header
    return bytes(content)


# TFRecord


def make_tfrecord(folder: Path) -> None:
    shutil.copytree(WRITTEN / "tfrecord" / "data", folder / "written")
    shutil.rmtree(folder / "written" / ".feedline-index", ignore_errors=True)
    files = sorted((folder / "written").iterdir())
    for number, file in enumerate(files[:2]):
        (folder / f"one-{number}").mkdir()
        shutil.copy(file, folder / f"one-{number}" / "x.tfrecord")
    (folder / "records").mkdir()
    records = [b"hello", b"", bytes(range(256))]
    (folder / "records" / "x.tfrecord").write_bytes(_framed(records))
    for name in ("one-0", "records"):
        shutil.copytree(folder / name, folder / f"indexed-{name}")
        feedline.open(folder / f"indexed-{name}")


def damage_tfrecord(rng: Random, folder: Path) -> None:
    _damage_shards(rng, folder, _damage_records)


def _damage_records(rng: Random, data: bytes) -> bytes:
    """Return a file with faults in some records, whose checksums are right."""
    records, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        records.append(data[at + 12 : at + 12 + length])
        at += length + 16
    for number in rng.sample(range(len(records)), min(len(records), rng.choice((1, 1, 3)))):
        records[number] = damage_bytes(rng, records[number])
    return _framed(records)


def _framed(records: list[bytes]) -> bytes:
    parts = []
    for record in records:
        length = len(record).to_bytes(8, "little")
        parts += [length, _checksum(length), record, _checksum(record)]
    return b"".join(parts)


def _checksum(data: bytes) -> bytes:
    memory = np.frombuffer(data, np.uint8)
    return int(masked_crc32c(memory, [0], [len(data)])[0]).to_bytes(4, "little")


def make_huggingface(folder: Path) -> None:
    """Copy a dataset that `save_to_disk` wrote, and one in a folder of splits."""
    saved = WRITTEN / "huggingface" / "data"
    shutil.copytree(saved, folder / "saved" / "data")
    shutil.copytree(saved, folder / "dict" / "data" / "train")
    (folder / "dict" / "data" / "dataset_dict.json").write_text('{"splits": ["train"]}')


def damage_huggingface(rng: Random, folder: Path) -> None:
    """Damage what the JSON files say, or any file."""
    if rng.random() < 0.3:
        path = rng.choice([*folder.rglob("state.json"), *folder.rglob("dataset_dict.json")])
        path.write_bytes(damage_json(rng, path.read_bytes()))
    else:
        damage_tree(rng, folder)


def use_huggingface(folder: Path, rng: Random) -> None:
    """Read all of a dataset."""
    store = feedline.open(folder / "data", split=rng.choice((None, "train")))
    repr(store)
    for values in store[:].values():
        assert len(values) == len(store)


# Megatron


def make_megatron(folder: Path) -> None:
    (folder / "written").mkdir()
    for ending in (".bin", ".idx"):
        shutil.copy(WRITTEN / "megatron" / f"data{ending}", folder / "written" / f"x{ending}")
    (folder / "small").mkdir()
    sizes, documents = np.array([2, 0, 3], "<i4"), np.array([0, 2, 3], "<i8")
    starts = np.array([0, 8, 8], "<i8")
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(sizes), len(documents))
    tables = sizes.tobytes() + starts.tobytes() + documents.tobytes() + b"\x00\x01\x00"
    (folder / "small" / "x.idx").write_bytes(header + tables)
    np.arange(5, dtype="<i4").tofile(folder / "small" / "x.bin")


def damage_megatron(rng: Random, folder: Path) -> None:
    path = folder / f"x.{rng.choice(['bin', 'idx', 'idx', 'idx'])}"
    data = bytearray(path.read_bytes())
    if path.suffix == ".idx" and rng.random() < 0.6:
        # A number in the header or in a table.
        place = rng.randrange(9, max(10, len(data) - 8))
        data[place : place + 8] = (rng.choice(NUMBERS) & (2**64 - 1)).to_bytes(8, "little")
        path.write_bytes(data)
    else:
        path.write_bytes(damage_bytes(rng, bytes(data)))


def use_megatron(folder: Path, rng: Random) -> None:
    window = rng.choice([None, None, None, 4])
    ending = "bin" if window else rng.choice(["bin", "idx"])
    store = feedline.open(folder / f"x.{ending}", window=window)
    repr(store)
    for values in store[:].values():
        assert len(values) == len(store)


#: How each is made, damaged and used, and its share of the cases.
FOREIGN: dict[str, tuple[Any, Any, Any, int]] = {
    "webdataset": (make_webdataset, damage_webdataset, use_shards, 10),
    "tfrecord": (make_tfrecord, damage_tfrecord, use_shards, 10),
    "huggingface": (make_huggingface, damage_huggingface, use_huggingface, 5),
    "megatron": (make_megatron, damage_megatron, use_megatron, 5),
}
