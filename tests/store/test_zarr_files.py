"""What a zarr store may be made of: plain files, known codecs, chunks that decode to their size."""

from __future__ import annotations

import json
import os
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from feedline.errors import DamagedDataError, FeedlineError, UnsafeDataError
from feedline.packing.anndata import pack_anndata
from feedline.runs.inspection import inspect_path
from feedline.store import open_anndata
from feedline.store.decoded_size import check_decoded
from limited import run_limited
from zarr_damage import edit, read_all, set_chunks
from zarr_data import write_anndata

NUM_ROWS = 60
OPENERS: dict[str, Callable[[Path], Any]] = {
    "open_anndata": lambda path: read_all(path),
    "inspect": lambda path: inspect_path(path),
    "pack": lambda path: pack_anndata([path], path.parent / "packed.zarr"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    write_anndata(folder / "chunks", NUM_ROWS, chunks=(16,))
    write_anndata(folder / "shards", NUM_ROWS, chunks=(16,), shards=(64,))
    write_anndata(folder / "dense", NUM_ROWS, "dense", chunks=(10, 13))
    for name in ("chunks", "shards", "dense"):
        add_index(folder / name)
    return folder


def add_index(path: Path) -> None:
    """Make `obs` a table, which packing needs."""
    obs = zarr.open_group(path / "obs", mode="r+")
    version = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
    obs.attrs.update({**version, "_index": "name", "column-order": ["number"]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = np.array([f"row {n}" for n in range(NUM_ROWS)], dtype=object)
        obs.create_array("name", shape=NUM_ROWS, dtype=str)[:] = names


def test_what_the_damage_is_done_to_can_be_packed(sound: Path, tmp_path: Path) -> None:
    pack_anndata([sound / "chunks"], tmp_path / "packed.zarr")
    assert open_anndata(tmp_path / "packed.zarr").shape[0] == NUM_ROWS


@pytest.fixture
def copy_of(sound: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(sound / name, tmp_path / "m.zarr"))


def link_chunk(path: Path) -> None:
    outside = path.parent / "secret"
    (path / "X/data/c/0").rename(outside)
    (path / "X/data/c/0").symlink_to(outside)


def link_folder(path: Path) -> None:
    (path / "X/data").rename(path.parent / "elsewhere")
    (path / "X/data").symlink_to(path.parent / "elsewhere")


def link_header(path: Path) -> None:
    (path / "X/data/zarr.json").rename(path.parent / "header")
    (path / "X/data/zarr.json").symlink_to(path.parent / "header")


def make_pipe(path: Path) -> None:
    (path / "X/indptr/c/0").unlink()
    os.mkfifo(path / "X/indptr/c/0")


def link_device(path: Path) -> None:
    (path / "X/data/c/0").unlink()
    (path / "X/data/c/0").symlink_to("/dev/zero")


def pipe_header(path: Path) -> None:
    (path / "zarr.json").unlink()
    os.mkfifo(path / "zarr.json")


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("damage", [link_chunk, link_folder, link_header, make_pipe, link_device])
def test_links_pipes_and_devices_in_a_store_are_refused(
    damage: Callable[[Path], None], opener: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("chunks")
    damage(path)
    with pytest.raises(UnsafeDataError, match=r"m\.zarr/X/.* must be a plain (file|folder)"):
        OPENERS[opener](path)


def test_a_pipe_in_place_of_the_root_header_does_not_hang(copy_of: Callable[[str], Path]) -> None:
    path = copy_of("chunks")
    pipe_header(path)
    with pytest.raises(UnsafeDataError, match="plain file"):
        open_anndata(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("damage", ["pipe", "sparse file"])
def test_headers_beside_consolidated_ones_are_checked_too(
    damage: str, copy_of: Callable[[str], Path]
) -> None:
    # Found by fuzzing: zarr itself does not read these.
    path = copy_of("dense")
    zarr.consolidate_metadata(path)
    header = path / "X" / "zarr.json"
    if damage == "pipe":
        header.unlink()
        os.mkfifo(header)
    else:
        os.truncate(header, 2**36)
    with pytest.raises(FeedlineError, match=r"X/zarr\.json"):
        open_anndata(path)


def test_the_way_to_a_store_may_be_a_link(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "link.zarr").symlink_to(copy_of("chunks"))
    assert open_anndata(tmp_path / "link.zarr").shape[0] == NUM_ROWS


def write_v2(path: Path, **header: Any) -> None:
    """Write an array in zarr's second format by hand."""
    path.mkdir()
    given = {
        **{"zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "<f4", "order": "C"},
        **{"fill_value": 0, "filters": None, "compressor": None, **header},
    }
    (path / ".zarray").write_text(json.dumps(given))


# numcodecs may be told to allow pickles: then only we stand between a file and its code.
_PERMISSIVE = """
import numcodecs, numcodecs.registry, pickle, warnings
warnings.simplefilter("ignore")
from numcodecs.abc import Codec
class Loads(Codec):
    codec_id = "pickle"
    def __init__(self, **_): pass
    def encode(self, buf): raise NotImplementedError
    def decode(self, buf, out=None):
        return numpy.array(pickle.loads(bytes(buf)), dtype=object)
numcodecs.registry.codec_registry["pickle"] = Loads
from feedline.runs.inspection import inspect_path
"""


def test_a_pickle_filter_is_refused_before_zarr_sees_it(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    write_v2(tmp_path / "m", dtype="|O", filters=[{"id": "pickle"}], fill_value=None)
    (tmp_path / "m" / "0.0").write_bytes(code)
    printed = run_limited("inspect_path(path)", tmp_path / "m", imports=_PERMISSIVE, megabytes=1000)
    assert "refused: UnsafeDataError" in printed
    assert "'pickle'" in printed
    assert not mark.exists()


@pytest.mark.parametrize("codec", ["numcodecs.pickle", "zfpy", "x", "bitround"])
def test_unknown_codecs_are_refused(codec: str, copy_of: Callable[[str], Path]) -> None:
    path = copy_of("chunks")
    edit(path / "X" / "data", lambda h: h.update(codecs=[{"name": codec}]))
    with pytest.raises(UnsafeDataError, match=f"encoded with '{codec}'"):
        open_anndata(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_unknown_codecs_in_consolidated_headers_are_refused(
    zarr_format: Any, tmp_path: Path
) -> None:
    root = zarr.open_group(tmp_path / "m.zarr", mode="w", zarr_format=zarr_format)
    root.create_array("X", data=np.ones((4, 2), "f4"))
    zarr.consolidate_metadata(tmp_path / "m.zarr")
    name = "zarr.json" if zarr_format == 3 else ".zmetadata"
    header = tmp_path / "m.zarr" / name
    swap = ('"zstd"', '"evil"') if zarr_format == 3 else ('"blosc"', '"evil"')
    header.write_text(header.read_text().replace(*swap))
    with pytest.raises(UnsafeDataError, match="encoded with 'evil'"):
        open_anndata(tmp_path / "m.zarr")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("compressor", ["zstd", "blosc", "gzip", "none"])
def test_known_codecs_are_read(zarr_format: Any, compressor: str, tmp_path: Path) -> None:
    from zarr import codecs

    v3 = {"zstd": codecs.ZstdCodec, "blosc": codecs.BloscCodec, "gzip": codecs.GzipCodec}
    chosen: Any = None
    if compressor != "none":
        import numcodecs

        chosen = v3[compressor]() if zarr_format == 3 else numcodecs.get_codec({"id": compressor})
    values = np.arange(600, dtype="f4").reshape(200, 3)
    root = zarr.open_group(tmp_path / "m.zarr", mode="w", zarr_format=zarr_format)
    root.create_array("X", data=values, chunks=(50, 3), compressors=chosen)
    obs = root.create_group("obs")
    texts = np.array([f"name {number}" for number in range(200)], dtype=object)
    obs.create_array("text", shape=200, dtype=str, chunks=50, compressors=chosen)[:] = texts
    store = open_anndata(tmp_path / "m.zarr", obs=["text"])
    np.testing.assert_array_equal(store.fetch([slice(0, 200)]).take(np.arange(200)), values)
    assert store.obs["text"].tolist() == texts.tolist()


def zstd_bomb(num_blocks: int, declared: int | None) -> bytes:
    """A frame whose blocks each repeat one byte 128 Ki times, in 4 bytes."""
    frame = struct.pack("<I", 0xFD2FB528)
    frame += b"\0\x50" if declared is None else b"\xc0\x50" + struct.pack("<Q", declared)
    block, last = (struct.pack("<I", (2**17 << 3) | (1 << 1) | end)[:3] + b"\0" for end in (0, 1))
    return frame + block * (num_blocks - 1) + last


def gzip_bomb(num_mebibytes: int) -> bytes:
    """A stream that repeats what one mebibyte of zeros is packed to; its checksum is wrong."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, block = (
        packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    return first + block * (num_mebibytes - 1) + packer.flush()


BOMBS = {
    "zstd": zstd_bomb(2**14, None),
    "zstd that declares little": zstd_bomb(2**14, 24),
    "zstd that declares all": zstd_bomb(2**14, 2**31),
    "zstd in two frames": zstd_bomb(1, 2**17) + zstd_bomb(2**14, None),
    "blosc": struct.pack("<BBBBIII", 2, 1, 1, 4, 2**31 - 64, 2**20, 64) + bytes(48),
    "gzip": gzip_bomb(1024),
}
_READ = "from zarr_damage import read_all\nfrom feedline.runs.inspection import inspect_path\n"
_READ += "from feedline.store import open_anndata\nimport zarr, scipy.sparse\n"


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("place", ["X/data/c/0", "X/indptr/c/0"])
def test_a_chunk_that_decodes_to_gigabytes_is_refused(
    bomb: str, place: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("chunks")
    name = bomb.split()[0]
    if name != "zstd":
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": name}]
        options = {"level": 5} if name == "gzip" else _BLOSC
        codecs[1]["configuration"] = options
        edit(path / place.removesuffix("/c/0"), lambda header: header.update(codecs=codecs))
    (path / place).write_bytes(BOMBS[bomb])
    with pytest.raises(DamagedDataError, match=r"cannot be read \(it decodes to more than"):
        open_anndata(path)


_BLOSC = {"typesize": 4, "cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}


def test_a_bomb_that_comes_after_opening_is_refused_in_little_memory(
    copy_of: Callable[[str], Path],
) -> None:
    path = copy_of("shards")
    (path / "X/data/c/0").write_bytes(b"")
    bomb = BOMBS["zstd that declares little"]
    index = np.array([[0, len(bomb)]] * 4, "<u8").tobytes()
    import google_crc32c

    checksum = int(google_crc32c.value(index)).to_bytes(4, "little")
    (path / "X/data/c/0").write_bytes(bomb + index + checksum)
    printed = run_limited("read_all(path)", path, imports=_READ, megabytes=1500)
    assert "refused: DamagedDataError" in printed
    assert int(printed.rsplit("peak:", 1)[1]) < 600 * 2**20


@pytest.mark.parametrize(
    "columns", [2**32, 2**70, -1, 1.5], ids=["2**32", "2**70", "negative", "not an integer"]
)
@pytest.mark.parametrize("opener", OPENERS)
def test_rows_too_wide_for_memory_are_refused_at_once(
    columns: Any, opener: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("dense")
    edit(path / "X", lambda header: header.update(shape=[NUM_ROWS, columns]))
    with pytest.raises(FeedlineError, match=r"m\.zarr"):
        OPENERS[opener](path)


@pytest.mark.parametrize("columns", [2**32, 2**70, -1])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_sparse_matrix_with_too_many_columns_is_refused(
    columns: int, opener: str, copy_of: Callable[[str], Path]
) -> None:
    path = copy_of("shards")
    edit(path / "X", lambda header: header["attributes"].update(shape=[NUM_ROWS, columns]))
    with pytest.raises(FeedlineError, match=r"columns, which must be|number of rows and columns"):
        OPENERS[opener](path)


def test_a_row_of_very_many_chunks_is_refused(copy_of: Callable[[str], Path]) -> None:
    path = copy_of("dense")

    def widen(header: dict[str, Any]) -> None:
        header["shape"] = [NUM_ROWS, 2**26]
        set_chunks(header, [1, 1])

    edit(path / "X", widen)
    with pytest.raises(DamagedDataError, match="67108864 chunks in a row"):
        open_anndata(path)


@pytest.mark.filterwarnings("ignore")
def test_texts_of_a_false_count_are_refused(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "m.zarr", mode="w")
    root.create_array("X", data=np.ones((4, 2), "f4"))
    obs = root.create_group("obs")
    obs.create_array("text", shape=4, dtype=str, compressors=None)[:] = np.array(list("abcd"))
    chunk = next((tmp_path / "m.zarr/obs/text/c").iterdir())
    chunk.write_bytes(struct.pack("<I", 2**32 - 1) + chunk.read_bytes()[4:])
    with pytest.raises(DamagedDataError, match="4294967295 texts instead of 4"):
        open_anndata(tmp_path / "m.zarr", obs=["text"])


def test_a_matrix_that_is_written_anew_while_it_is_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    values = np.arange(120, dtype="f4").reshape(60, 2)
    zarr.open_group(path, mode="w").create_array("X", data=values, chunks=(8, 2))
    store = open_anndata(path)
    store.fetch([slice(0, 60)])
    zarr.open_group(path, mode="w").create_array("X", data=values + 1, chunks=(8, 2))
    with pytest.raises(DamagedDataError, match="was replaced while it was in use"):
        store.fetch([slice(0, 60)])


def test_a_matrix_that_was_only_touched_is_read_on(copy_of: Callable[[str], Path]) -> None:
    path = copy_of("shards")
    store = open_anndata(path)
    for file in path.rglob("*"):
        os.utime(file)
    assert store.fetch([slice(0, NUM_ROWS)]).num_rows == NUM_ROWS


def test_what_encoders_write_is_within_bounds() -> None:
    import numcodecs

    rng = np.random.default_rng(0)
    for size in (0, 1, 1000, 2**18, 2**21):
        for data in (rng.bytes(size), bytes(size), bytes(range(256)) * (size // 256)):
            for name in ("zstd", "blosc", "lz4", "gzip", "zlib"):
                if data or name not in ("lz4", "blosc"):
                    encoded = bytes(numcodecs.get_codec({"id": name}).encode(data))
                    check_decoded(encoded, name, len(data))
