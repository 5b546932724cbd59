"""TFRecord files written by hand: records with checksums, and protobuf messages in any form."""

from __future__ import annotations

import struct
from collections.abc import Iterable

POLYNOMIAL = 0x82F63B78


def plain_crc32c(data: bytes) -> int:
    """Return a CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    """Return a checksum as TFRecord files store it."""
    crc = plain_crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def file_of(records: Iterable[bytes]) -> bytes:
    """Return a TFRecord file."""
    framed = []
    for record in records:
        length = struct.pack("<Q", len(record))
        framed.append(length + masked(length) + record + masked(record))
    return b"".join(framed)


def varint(number: int) -> bytes:
    """Return an integer as protobuf writes it; negative ones take ten bytes."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    """Return a field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def strings(*values: bytes) -> bytes:
    """Return a feature of strings."""
    return field(1, b"".join(field(1, value) for value in values))


def floats(*values: float) -> bytes:
    """Return a feature of packed floats."""
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def integers(*values: int) -> bytes:
    """Return a feature of packed integers."""
    return field(3, field(1, b"".join(map(varint, values))))


def unpacked_integers(*values: int) -> bytes:
    """Return a feature of integers with a tag each."""
    return field(3, b"".join(b"\x08" + varint(value) for value in values))


def unpacked_floats(*values: float) -> bytes:
    """Return a feature of floats with a tag each."""
    return field(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))


def example(*features: tuple[str, bytes]) -> bytes:
    """Return an Example."""
    entries = [field(1, field(1, name.encode()) + field(2, value)) for name, value in features]
    return field(1, b"".join(entries))
