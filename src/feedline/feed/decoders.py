"""Decoders by name: from the bytes of a file to an array.

What a file says of its size is compared with a bound before anything is decoded, so that a small
file cannot fill the memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, InvalidValueError
from feedline.store.extras import import_extra
from feedline.store.mapped import view
from feedline.store.npy_chunk import parse_header, read_header
from feedline.words import several

#: Makes an array of bytes, or a dict of them for several columns; see `DECODERS`.
Decoder = Callable[[bytes], Any]

#: The pixels of the largest image that is decoded; Pillow itself warns from a little more on.
MAX_PIXELS = 2**26

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
# Frames that tell the size: not tables, extensions or arithmetic conditions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WAV_TYPES = {
    (1, 8): "u1",
    (1, 16): "<i2",
    (1, 32): "<i4",
    (3, 32): "<f4",
    (3, 64): "<f8",
}
_PCM, _EXTENSIBLE = 1, 0xFFFE


def decode_jpeg(data: bytes) -> NDArray[Any]:
    """Return a JPEG image as uint8 of shape (height, width, 3); grey and CMYK become RGB."""
    _check_pixels(*_jpeg_size(data))
    return _as_rgb(_opened(data, "JPEG"))


def decode_png(data: bytes) -> NDArray[Any]:
    """Return a PNG image as it is stored: (height, width) if grey, else (height, width, channels).

    Values are uint8, or uint16 for grey of 16 bits. Palettes become RGB or RGBA.
    """
    _check_pixels(*_png_size(data))
    image = _opened(data, "PNG")
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    pixels = np.array(image)
    return pixels.astype(np.uint16) if image.mode == "I" else pixels


def decode_image(data: bytes) -> NDArray[Any]:
    """Return a JPEG or PNG image as uint8 of shape (height, width, 3)."""
    if data[:8] != _PNG:
        return decode_jpeg(data)
    _check_pixels(*_png_size(data))
    return _as_rgb(_opened(data, "PNG"))


def decode_wav(data: bytes) -> dict[str, Any]:
    """Return the samples of a WAV file, of shape (frames, channels), and its sample rate.

    Values are as stored: uint8, int16, int32 (also for 24 bits), float32 or float64.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise DamagedDataError(f"begins with {data[:12]!r} and must be a WAV file")
    chunks = _riff_chunks(data)
    if len(chunks.get(b"fmt ", b"")) < 16 or b"data" not in chunks:
        raise DamagedDataError("has no format or no data and must have both")
    head, values = chunks[b"fmt "], chunks[b"data"]
    kind, num_channels, rate, bits = (
        int.from_bytes(head[first:end], "little")
        for first, end in ((0, 2), (2, 4), (4, 8), (14, 16))
    )
    if kind == _EXTENSIBLE and len(head) >= 26:
        kind = int.from_bytes(head[24:26], "little")
    is_packed = (kind, bits) == (_PCM, 24)
    if not is_packed and (kind, bits) not in _WAV_TYPES:
        raise DamagedDataError(
            f"format {kind} with {several(bits, 'bit')} must be PCM of 8, 16, 24 or 32 bits, or "
            "floats of 32 or 64; convert it"
        )
    frame_bytes = num_channels * bits // 8
    if not frame_bytes or len(values) % frame_bytes:
        raise DamagedDataError(
            f"has {several(len(values), 'byte')} of data, which must be a multiple of "
            f"{frame_bytes}, the bytes of a frame of {several(num_channels, 'channel')}"
        )
    if is_packed:
        wide = np.zeros((len(values) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(values, np.uint8).reshape(-1, 3)
        found = wide.view("<i4")[:, 0] >> 8
    else:
        found = np.frombuffer(values, _WAV_TYPES[kind, bits]).copy()
    return {"": found.reshape(-1, num_channels), "sample_rate": rate}


def decode_npy(data: bytes) -> NDArray[Any]:
    """Return the array in the bytes of a `.npy` file; objects are refused, nothing is unpickled."""
    source = np.frombuffer(data, np.uint8)
    where = Path("npy")
    text, offset = read_header(where, source)
    array = view(source, path=where, what="data", offset=offset, **parse_header(where, text))
    if offset + array.nbytes != len(data):
        raise DamagedDataError(
            f"has {several(len(data), 'byte')} but its header describes {offset + array.nbytes}"
        )
    return array.copy()


#: The decoders by name. Those of images need Pillow, the extra `images`.
DECODERS: Mapping[str, Decoder] = {
    "image": decode_image,
    "jpeg": decode_jpeg,
    "npy": decode_npy,
    "png": decode_png,
    "wav": decode_wav,
}
_IMAGES = ("image", "jpeg", "png")
#: Those whose arrays differ in length by nature, so that batches always have lists of them.
LISTED = ("wav",)


def decoder_named(column: str, decoder: Any) -> Decoder:
    """Return a decoder by its name, or a function of the user's own; raise for anything else."""
    if callable(decoder):
        function: Decoder = decoder
        return function
    if not isinstance(decoder, str) or decoder not in DECODERS:
        raise InvalidValueError(
            f"decode[{column!r:.80}]={decoder!r:.80} must be one of "
            f"{', '.join(map(repr, DECODERS))}, or a function that takes bytes"
        )
    if decoder in _IMAGES:
        # Now, so that a missing library is told before the first batch.
        _pillow()
    return DECODERS[decoder]


def _pillow() -> Any:
    image = import_extra("PIL.Image", extra="images", what="JPEG and PNG images")
    image.preinit()
    return image


def _opened(data: bytes, kind: str) -> Any:
    try:
        image = _pillow().open(io.BytesIO(data), formats=(kind,))
    except OSError:
        # Pillow's own error shows an address, which is another one each time.
        raise DamagedDataError(f"is not a {kind} image, or is damaged") from None
    # Again: a file may tell several sizes. Nothing is decoded until the pixels are asked for.
    _check_pixels(*image.size)
    return image


def _as_rgb(image: Any) -> NDArray[Any]:
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise DamagedDataError(
            f"an image of {width} x {height} must have at most {MAX_PIXELS} pixels; make it smaller"
        )


def _png_size(data: bytes) -> tuple[int, int]:
    if data[:8] != _PNG or data[12:16] != b"IHDR" or len(data) < 24:
        raise DamagedDataError(f"begins with {data[:16]!r} and must be a PNG image")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    if data[:2] != _JPEG:
        raise DamagedDataError(f"begins with {data[:8]!r} and must be a JPEG image")
    place = 2
    while 0 <= (place := data.find(b"\xff", place)) <= len(data) - 9:
        marker = data[place + 1]
        if marker in _FRAMES:
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        # Fill bytes and markers without a length stand alone.
        is_alone = marker in (0x00, 0x01, 0xFF) or 0xD0 <= marker <= 0xD8
        length = 1 if is_alone else int.from_bytes(data[place + 2 : place + 4], "big") + 2
        place += max(1, length)
    raise DamagedDataError("does not tell its size; it is truncated or damaged")


def _riff_chunks(data: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a RIFF file by name; of several with one name, the first."""
    chunks: dict[bytes, bytes] = {}
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if size > len(data) - place - 8:
            raise DamagedDataError(
                f"chunk {name!r} has {several(size, 'byte')} but only {len(data) - place - 8} are "
                "left; the file is truncated"
            )
        chunks.setdefault(name, data[place + 8 : place + 8 + size])
        # Chunks begin at even places.
        place += 8 + size + size % 2
    return chunks
