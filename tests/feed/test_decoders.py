"""Bytes of real files become arrays, and damaged or hostile ones one clear error."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import tracemalloc
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import feedline
from feedline.errors import DamagedDataError, InvalidValueError, SampleError, UnsafeDataError
from feedline.feed.decoders import DECODERS, MAX_PIXELS, decoder_named
from feedline.store import Lists
from sample_data import jpeg_bytes, npy_bytes, photo, png_bytes, wav_bytes, write_samples


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_jpeg_becomes_rgb(options: dict[str, Any]) -> None:
    pixels = photo(24, 40)
    found = DECODERS["jpeg"](jpeg_bytes(pixels, **options))
    assert found.shape == (24, 40, 3)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - pixels).mean() < 4
    found[0, 0] = 0  # it can be written to


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_a_jpeg_without_rgb_becomes_rgb(mode: str) -> None:
    data = saved(Image.fromarray(photo(8, 9)).convert(mode), "JPEG")
    assert DECODERS["jpeg"](data).shape == (8, 9, 3)


def test_a_jpeg_with_a_thumbnail_has_its_own_size() -> None:
    thumbnail = jpeg_bytes(photo(300, 400))[:60_000]
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = jpeg_bytes(photo(8, 9))
    assert DECODERS["jpeg"](data[:2] + segment + data[2:]).shape == (8, 9, 3)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (photo(6, 5), photo(6, 5)),
        (photo(6, 5, channels=4), photo(6, 5, channels=4)),
        (photo(6, 5, channels=1), photo(6, 5, channels=1)),
        (np.arange(30, dtype=np.uint16).reshape(6, 5) * 2000,) * 2,
        (np.eye(6, dtype=np.bool_), np.eye(6, dtype=np.uint8) * 255),
    ],
    ids=["rgb", "rgba", "grey", "grey of 16 bits", "black and white"],
)
def test_a_png_is_as_it_is_stored(pixels: NDArray[Any], expected: NDArray[Any]) -> None:
    found = DECODERS["png"](png_bytes(pixels))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_a_palette_becomes_rgb() -> None:
    image = Image.fromarray(photo(6, 5)).quantize(8)
    found = DECODERS["png"](saved(image, "PNG"))
    np.testing.assert_array_equal(found, np.array(image.convert("RGB")))
    clear = DECODERS["png"](saved(image, "PNG", transparency=0))
    assert clear.shape == (6, 5, 4)


def test_an_image_of_either_kind_becomes_rgb() -> None:
    grey = png_bytes(photo(6, 5, channels=1))
    assert DECODERS["image"](grey).shape == (6, 5, 3)
    assert DECODERS["image"](jpeg_bytes(photo(6, 5))).shape == (6, 5, 3)


def png_header(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    chunks = [head, b"IDAT" + body, b"IEND"]
    framed = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def large_jpeg(width: int, height: int) -> bytes:
    data = bytearray(jpeg_bytes(photo(8, 8)))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def two_sizes() -> bytes:
    """Return a JPEG that tells a small size first, and then a large one."""
    data = large_jpeg(60_000, 60_000)
    small = jpeg_bytes(photo(8, 8))
    place, start = small.index(b"\xff\xc0"), data.index(b"\xff\xc0")
    length = int.from_bytes(small[place + 2 : place + 4], "big") + 2
    return data[:start] + small[place : place + length] + data[start:]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("png", png_header(60_000, 60_000)),
        ("png", png_header(2**31 - 1, 2**31 - 1)),
        ("image", png_header(60_000, 60_000)),
        ("jpeg", large_jpeg(60_000, 60_000)),
        ("jpeg", two_sizes()),
        ("png", png_header(8193, 8193)),
    ],
)
def test_an_image_that_would_fill_the_memory_is_refused_before_it_is_decoded(
    name: str, data: bytes
) -> None:
    DECODERS["image"](jpeg_bytes(photo(2, 2)))
    tracemalloc.start()
    try:
        with pytest.raises((DamagedDataError, Image.DecompressionBombError)):
            DECODERS[name](data)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "kind"), [("png", "PNG"), ("jpeg", "JPEG")])
def test_an_image_that_pillow_does_not_know_is_damaged(name: str, kind: str) -> None:
    data = bytearray(SOUND[name])
    place = 24 if name == "png" else data.index(b"\xff\xc0") + 4
    data[place] = 200
    with pytest.raises(DamagedDataError, match=f"is not a {kind} image, or is damaged"):
        DECODERS[name](bytes(data))


def test_the_error_of_a_large_image_names_the_bound() -> None:
    with pytest.raises(DamagedDataError, match=rf"8193 x 8193 must have at most {MAX_PIXELS}"):
        DECODERS["png"](png_header(8193, 8193))


@pytest.mark.parametrize("kind", ["u1", "<i2", "<i4", "<f4", "<f8"])
@pytest.mark.parametrize("is_extensible", [False, True])
def test_a_wav_file_keeps_its_type(kind: str, is_extensible: bool) -> None:
    samples = (np.arange(12) - 3).astype(kind).reshape(6, 2)
    found = DECODERS["wav"](raw_wav(samples.tobytes(), samples.dtype, is_extensible))
    assert found["sample_rate"] == 8000
    assert found[""].dtype == samples.dtype
    np.testing.assert_array_equal(found[""], samples)


def raw_wav(data: bytes, dtype: np.dtype[Any], is_extensible: bool = False) -> bytes:
    kind = 3 if dtype.kind == "f" else 1
    width = dtype.itemsize
    tag = 0xFFFE if is_extensible else kind
    head = struct.pack("<HHIIHH", tag, 2, 8000, 16_000 * width, 2 * width, 8 * width)
    if is_extensible:
        head += struct.pack("<HHIH14s", 22, 8 * width, 3, kind, b"")
    parts = [(b"LIST", b"odd"), (b"fmt ", head), (b"data", data)]
    body = b"".join(n + struct.pack("<I", len(p)) + p + b"\0" * (len(p) % 2) for n, p in parts)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def test_a_wav_file_of_24_bits_becomes_int32() -> None:
    values = np.array([0, 1, -1, 2**23 - 1, -(2**23), 77])
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(3)
        out.setframerate(44_100)
        out.writeframes(b"".join(int(v).to_bytes(3, "little", signed=True) for v in values))
    found = DECODERS["wav"](file.getvalue())
    assert found[""].dtype == np.int32
    assert found[""].tolist() == values.reshape(3, 2).tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 4), np.float32),
        np.array(["2020-01-01"], "datetime64[s]"),
    ],
)
def test_npy_bytes_become_their_array(array: NDArray[Any]) -> None:
    found = DECODERS["npy"](npy_bytes(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


class Runs:
    """Would run code if it were unpickled."""

    def __reduce__(self) -> Any:
        return (sys.exit, (1,))


def test_npy_bytes_with_objects_are_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([Runs()], dtype=object), allow_pickle=True)
    with pytest.raises(UnsafeDataError, match="Python objects"):
        DECODERS["npy"](file.getvalue())


def test_npy_bytes_that_ask_for_much_memory_are_refused() -> None:
    data = npy_bytes(np.zeros(2)).replace(b"(2,), }            ", b"(2000000000000,), }")
    with pytest.raises(DamagedDataError, match="needs bytes"):
        DECODERS["npy"](data)


SOUND = {
    "jpeg": jpeg_bytes(photo(16, 16)),
    "png": png_bytes(photo(16, 16)),
    "image": png_bytes(photo(16, 16)),
    "wav": wav_bytes(np.arange(40, dtype=np.int16).reshape(-1, 2)),
    "npy": npy_bytes(np.arange(40)),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", SOUND)
def test_damaged_files_are_an_error_or_an_array_of_bounded_size(name: str) -> None:
    rng = np.random.default_rng(0)
    sound = SOUND[name]
    num_errors = 0
    for case in range(300):
        data = bytearray(sound)
        if case % 2:
            del data[int(rng.integers(len(data))) :]
        for place in rng.integers(0, max(1, len(data)), int(rng.integers(1, 6))):
            data[place : place + 1] = bytes([int(rng.integers(256))])
        try:
            DECODERS[name](bytes(data))
        except (ValueError, OSError, SyntaxError, EOFError, struct.error, TypeError, KeyError):
            num_errors += 1
        except Image.DecompressionBombError:
            num_errors += 1
    assert num_errors > 100


@pytest.mark.parametrize("decoder", ["gif", 7, None])
def test_an_unknown_decoder_is_refused(decoder: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"decode\['x'\]=.*must be one of 'image', 'jpeg'"):
        decoder_named("x", decoder)


def test_a_loader_decodes_columns_by_name(tmp_path: Path) -> None:
    clips = [np.arange(2 * n, dtype=np.int16).reshape(-1, 2) for n in range(1, 7)]
    store = write_samples(
        tmp_path,
        {
            "id": np.arange(6),
            "photo": [jpeg_bytes(photo(8 + n % 2, 9, n)) for n in range(6)],
            "mask": [png_bytes(photo(8, 9, n, channels=1)) for n in range(6)],
            "clip": [wav_bytes(clip, rate=8000 + n) for n, clip in enumerate(clips)],
            "own": [str(n).encode() for n in range(6)],
        },
        chunk_samples=4,
    )
    decode = {"photo": "jpeg", "mask": "png", "clip": "wav", "own": int}
    with feedline.DataLoader(store, batch_size=3, decode=decode) as loader:
        batches = list(loader)
    assert list(batches[0]) == ["id", "photo", "mask", "clip", "own", "clip/sample_rate"]
    assert [image.shape for image in batches[0]["photo"]] == [(8, 9, 3), (9, 9, 3), (8, 9, 3)]
    assert batches[1]["mask"].shape == (3, 8, 9)
    assert isinstance(batches[1]["clip"], Lists)
    np.testing.assert_array_equal(batches[1]["clip"][2], clips[5])
    assert batches[1]["clip/sample_rate"].tolist() == [8003, 8004, 8005]
    assert batches[1]["own"].tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        ({"id": "npy"}, "column 'id' is int64 but must be a column of bytes; there is 'file'"),
        ({"nothing": "npy"}, "column 'nothing' does not exist"),
        ({"file": "mp3"}, r"decode\['file'\]='mp3' must be one of"),
        (["file"], "must be a dict"),
    ],
)
def test_a_decoder_that_does_not_fit_its_column_is_refused(
    decode: Any, text: str, tmp_path: Path
) -> None:
    store = write_samples(tmp_path, {"id": np.arange(3), "file": [b"a", b"b", b"c"]})
    with pytest.raises(InvalidValueError, match=text):
        feedline.DataLoader(store, decode=decode)


def test_an_image_without_pillow_says_what_to_install(tmp_path: Path) -> None:
    write_samples(tmp_path, {"file": [b"a"]})
    check = (
        "import sys; sys.modules['PIL'] = None; sys.modules['PIL.Image'] = None\n"
        "import feedline\n"
        f"store = feedline.open({str(tmp_path)!r})\n"
        "try:\n    feedline.DataLoader(store, decode={'file': 'png'})\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "install feedline[images]" in done.stdout


def test_the_error_of_a_column_survives_pickling(tmp_path: Path) -> None:
    store = write_samples(tmp_path, {"file": [b"a", b"b"]})
    with (
        feedline.DataLoader(store, decode={"file": "png"}) as loader,
        pytest.raises(SampleError, match=r"chunk-000000, row 0: sample 0: column 'file'") as caught,
    ):
        next(iter(loader))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert isinstance(caught.value.__cause__, DamagedDataError)


@pytest.mark.parametrize("sample_transform", [None, lambda sample, rng: sample])
def test_a_decoder_does_not_take_the_place_of_another_column(
    sample_transform: Any, tmp_path: Path
) -> None:
    store = write_samples(tmp_path, {"file": [b"1", b"2"], "file/rate": np.array([7, 8])})
    loader = feedline.DataLoader(
        store,
        decode={"file": lambda value: {"": len(value), "rate": 1}},
        sample_transform=sample_transform,
    )
    with pytest.raises(SampleError, match="gives 'file/rate', but that is a column too"):
        list(loader)
