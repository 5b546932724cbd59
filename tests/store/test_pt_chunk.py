"""`.pt` chunks: what torch saved comes back without torch, and nothing in a file is ever run."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from chunk_data import PLAIN_TYPES, counting, little_memory, with_flips, written
from examples import few_examples
from feedline.errors import (
    DamagedDataError,
    MissingDataError,
    StoreError,
    UnsafeDataError,
)
from feedline.store.pt_chunk import TUPLE_NAMES, open_pt
from folder_data import as_chunk, make_columns, member_spans, pt_bytes, same_columns, with_flags

torch = pytest.importorskip("torch")


def saved(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def loaded(path: Path) -> dict[str, Any]:
    """What torch itself reads, under our names; bfloat16 by its bits."""
    # Not weights_only, which warns of every protocol but 2; these files are ours.
    content = torch.load(path, weights_only=False)
    parts = content if isinstance(content, dict) else dict(zip(TUPLE_NAMES, content, strict=True))
    flat: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, dict):
            flat |= {f"{name}/{key}": tensor for key, tensor in part.items()}
        elif part is not None:
            flat[name] = part
    return {name: as_numpy(tensor) for name, tensor in flat.items()}


def as_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.contiguous().view(torch.int16)
        return tensor.numpy().view(np.uint16)
    return tensor.numpy()


def reads_as_torch(path: Path) -> None:
    chunk = open_pt(path)
    expected = loaded(path)
    assert list(chunk.arrays) == list(expected)
    same_columns(chunk.arrays, expected)


def tensor(type_name: str, *shape: int) -> Any:
    if type_name == "bfloat16":
        return torch.from_numpy(counting("float32", *shape)).to(torch.bfloat16)
    return torch.from_numpy(counting(type_name, *shape))


# Pickles by hand.


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    body = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(body)]) + body


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def dict_of(**parts: bytes) -> bytes:
    return b"}(" + b"".join(text(name) + part for name, part in parts.items()) + b"u"


def chunk_of(item: bytes) -> bytes:
    """The documented tuple with anything in the place of a tensor."""
    return tuple_of(dict_of(item=item), b"}", b"N", b"N", b"N")


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def storage(record: str = "0", kind: bytes = b"ctorch\nLongStorage\n", numel: int = 6) -> bytes:
    return tuple_of(text("storage"), kind, text(record), text("cpu"), number(numel)) + b"Q"


def tensor_of(
    of: bytes | None = None,
    offset: int = 0,
    shape: Sequence[int] = (3, 2),
    strides: Sequence[int] = (2, 1),
) -> bytes:
    sizes = [tuple_of(*map(number, values)) for values in (shape, strides)]
    hooks = b"ccollections\nOrderedDict\n)R"
    arguments = tuple_of(of or storage(), number(offset), *sizes, b"\x89", hooks)
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"R"


SIX = np.arange(6, dtype="<i8").tobytes()


def by_hand(path: Path, body: bytes, records: dict[str, bytes] | None = None) -> Path:
    return written(path, pt_bytes(pickled(body), {"0": SIX} if records is None else records))


def test_a_pickle_by_hand_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    """So the refusals below are for what was changed in it, and for nothing else."""
    path = by_hand(tmp_path / "a.pt", chunk_of(tensor_of()))
    assert open_pt(path).arrays["sequences/item"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/version", "3")
    reads_as_torch(path)


@pytest.mark.parametrize("name", [*PLAIN_TYPES, "bfloat16", "complex64", "complex128"])
def test_every_type_comes_back_as_torch_loads_it(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "a.pt", {"x": tensor(name, 5, 3, 2), "y": tensor(name, 5)})
    reads_as_torch(path)
    chunk = open_pt(path)
    assert [column.type_name for column in chunk.columns.values()] == [name, name]
    assert chunk.columns["x"].shape == (3, 2)
    assert (chunk.num_samples, chunk.num_bytes_held, chunk.num_files) == (5, 0, 1)


def test_the_documented_tuple_gives_a_column_for_each_tensor(tmp_path: Path) -> None:
    arrays = make_columns([3, 1, 4, 15])
    path = saved(tmp_path / "a.pt", as_chunk(arrays))
    same_columns(open_pt(path).arrays, arrays)
    reads_as_torch(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("type_name", ["int64", "uint16"])
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int, type_name: str) -> None:
    content = ({"item": tensor(type_name, 4, 3)}, {"label": tensor(type_name, 4)}, None, None, None)
    reads_as_torch(saved(tmp_path / "a.pt", content, pickle_protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_tables_with_more_tensors_than_short_memo_numbers_are_read(
    tmp_path: Path, protocol: int
) -> None:
    content = {f"column {number}": torch.arange(2) + number for number in range(300)}
    path = saved(tmp_path / "a.pt", content, pickle_protocol=protocol)
    reads_as_torch(path)


BASE = torch.arange(60)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"a": BASE[:20], "b": BASE[20:40], "c": BASE[30:50]}, id="one-storage"),
        pytest.param({"a": BASE.view(12, 5)[3:7, 1:4]}, id="slice"),
        pytest.param({"a": BASE[::3]}, id="steps"),
        pytest.param({"a": BASE.view(12, 5).T}, id="transposed"),
        pytest.param({"a": BASE.view(3, 4, 5).permute(2, 0, 1)}, id="permuted"),
        pytest.param({"a": BASE[:5].expand(4, 5)}, id="expanded"),
        pytest.param({"a": BASE[7:8].expand(60)}, id="expanded-number"),
        pytest.param({"a": BASE.view(12, 5), "b": BASE.view(12, 5)}, id="twice"),
        pytest.param({"a": BASE.view(torch.int32), "b": torch.arange(3)}, id="other-type"),
        pytest.param({"a": torch.zeros(0, 5)}, id="no-rows"),
        pytest.param({"a": torch.zeros(0)}, id="nothing"),
        pytest.param({"a": torch.zeros(5, 0, 3)}, id="no-values"),
        pytest.param({"a": BASE[60:], "b": BASE[:0]}, id="empty-slices"),
        pytest.param({"a": torch.arange(12).view(3, 4).to(memory_format=None)}, id="plain"),
        pytest.param(
            {"a": torch.arange(48).view(2, 3, 4, 2).to(memory_format=torch.channels_last)},
            id="channels-last",
        ),
        pytest.param({"a": torch.nn.Parameter(torch.arange(6.0).view(3, 2))}, id="parameter"),
        pytest.param({"a": torch.ones(3, requires_grad=True)}, id="with-gradient"),
        pytest.param(OrderedDict(b=torch.arange(3), a=torch.arange(3) + 1), id="ordered-dict"),
        pytest.param({"group": {"a": torch.arange(3)}, "b": torch.arange(3)}, id="dict-in-dict"),
        pytest.param(
            (OrderedDict(a=torch.arange(3)), {}, torch.arange(3), None, None), id="ordered-tuple"
        ),
        pytest.param(({"a": torch.arange(3)}, None, None, None, None), id="none-in-the-tuple"),
        pytest.param({"naïve ✓": torch.arange(3), "a.b": torch.arange(3)}, id="names"),
    ],
)
def test_views_and_containers_come_back_as_torch_loads_them(tmp_path: Path, content: Any) -> None:
    reads_as_torch(saved(tmp_path / "a.pt", content))


def test_a_conjugated_tensor_comes_back_as_torch_loads_it_or_is_refused(tmp_path: Path) -> None:
    """torch saves the values before conjugation, and a note that they are to be conjugated."""
    path = saved(tmp_path / "a.pt", {"a": torch.tensor([1 + 2j, 3 - 4j]).conj()})
    with contextlib.suppress(StoreError):
        reads_as_torch(path)


def test_a_negated_tensor_comes_back_as_torch_loads_it_or_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"a": torch.tensor([1 + 2j, 3 - 4j]).conj().imag})
    with contextlib.suppress(StoreError):
        reads_as_torch(path)


def test_values_repeated_inside_a_sample_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"a": torch.arange(2)[:, None].expand(2, 100)})
    with pytest.raises(DamagedDataError, match=r"a\.pt: each sample of 'a' has 800 bytes"):
        open_pt(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"a/b": torch.zeros(2), "a": {"b": torch.ones(2)}}, id="path"),
        pytest.param({1: torch.zeros(2), "1": torch.ones(2)}, id="number"),
    ],
)
def test_two_tensors_never_become_one_column(tmp_path: Path, content: Any) -> None:
    with pytest.raises(StoreError, match=r"a\.pt: "):
        open_pt(saved(tmp_path / "a.pt", content))


def test_arrays_cannot_be_written_to(tmp_path: Path) -> None:
    chunk = open_pt(saved(tmp_path / "a.pt", {"a": torch.arange(3), "b": torch.zeros(3, 0)}))
    for array in chunk.arrays.values():
        assert not array.flags.writeable


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    content = ({"item": tensor("int64", 4, 3)}, {"x": tensor("uint32", 4)}, None, None, None)
    path = saved(tmp_path / "a.pt", content)
    code = (
        "import sys; from pathlib import Path; from feedline.store.pt_chunk import open_pt\n"
        "print(open_pt(Path(sys.argv[1])).arrays['sequences/item'].sum())\n"
        "assert 'torch' not in sys.modules"
    )
    job = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(job, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "66"), done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(torch.ones(3), "contains a tensor", id="tensor"),
        pytest.param([torch.ones(3)], "contains a list of 1", id="list"),
        pytest.param((torch.ones(3),) * 4, "contains a tuple of 4", id="tuple-of-four"),
        pytest.param(({}, {}, [1], None, None), "sequence_ids is neither", id="numbers"),
        pytest.param({"a": "text"}, "a is neither", id="text"),
        pytest.param({"a": {"b": {"c": torch.ones(3)}}}, "a/b is not a tensor", id="deep"),
        pytest.param({"a": torch.tensor(3)}, "'a' has 0 axes", id="no-axis"),
        pytest.param(None, "contains a NoneType", id="none"),
    ],
)
def test_what_is_no_chunk_is_refused_with_what_it_is(
    tmp_path: Path, content: Any, message: str
) -> None:
    path = saved(tmp_path / "a.pt", content)
    with pytest.raises(DamagedDataError, match=rf"a\.pt: .*{message}"):
        open_pt(path)


@pytest.mark.parametrize("content", [{}, ({}, {}, None, None, None)], ids=["dict", "tuple"])
def test_a_chunk_without_tensors_has_no_number_of_samples(tmp_path: Path, content: Any) -> None:
    chunk = open_pt(saved(tmp_path / "a.pt", content))
    with pytest.raises(DamagedDataError, match=r"a\.pt: .*there are no columns"):
        _ = chunk.num_samples


def test_columns_of_other_lengths_have_no_number_of_samples(tmp_path: Path) -> None:
    chunk = open_pt(saved(tmp_path / "a.pt", {"a": torch.ones(3), "b": torch.ones(4)}))
    with pytest.raises(DamagedDataError, match=r"a\.pt: .*'a' has 3, 'b' has 4"):
        _ = chunk.num_samples


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"a": torch.eye(3).to_sparse()}, id="sparse"),
        pytest.param({"a": torch.nn.Linear(2, 2)}, id="module"),
        pytest.param({"a": np.float64(3)}, id="numpy"),
        pytest.param({"a": torch.ones(2).to(torch.float8_e4m3fn)}, id="float8"),
        pytest.param({"a": {1, 2}}, id="set"),
    ],
)
def test_what_needs_more_than_plain_tensors_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(UnsafeDataError, match=r"a\.pt: .*was not run"):
        open_pt(saved(tmp_path / "a.pt", content))


# Files that would do harm.

EXTENSION = 0x7B


def call(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + tuple_of(*arguments) + b"R"


def short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


HARM = {
    "system": lambda at: call("os", "system", text(f"mkdir {at}")),
    "posix": lambda at: call("posix", "mkdir", text(at)),
    "eval": lambda at: call("builtins", "eval", text(f"__import__('os').mkdir({at!r})")),
    "exec": lambda at: call("builtins", "exec", text(f"import os; os.mkdir({at!r})")),
    "subprocess": lambda at: call("subprocess", "call", b"](" + text("mkdir") + text(at) + b"e"),
    "stack-global": lambda at: short("os") + short("mkdir") + b"\x93" + tuple_of(text(at)) + b"R",
    "dotted-global": lambda at: (
        short("torch") + short("os.mkdir") + b"\x93" + tuple_of(text(at)) + b"R"
    ),
    "recalled-global": lambda at: b"cos\nmkdir\nq\x01h\x01" + tuple_of(text(at)) + b"R",
    "new-object": lambda at: b"cfolder_data\nTrap\n" + tuple_of(text(at)) + b"\x81",
    "new-object-by-name": lambda at: b"cfolder_data\nTrap\n)" + dict_of(target=text(at)) + b"\x92",
    "build": lambda at: b"cfolder_data\nTrap\n)\x81" + text(at) + b"b",
    "instance": lambda at: b"(" + text(at) + b"ios\nmkdir\n",
    "object": lambda at: b"(cos\nmkdir\n" + text(at) + b"o",
    "extension-1": lambda at: b"\x82\x7b" + tuple_of(text(at)) + b"R",
    "extension-2": lambda at: b"\x83\x7b\x00" + tuple_of(text(at)) + b"R",
    "extension-4": lambda at: b"\x84\x7b\x00\x00\x00" + tuple_of(text(at)) + b"R",
}
"""Pickles that make a folder, one for each way in which a pickle can call something."""

PLACES = {
    "alone": lambda harm: harm,
    "in-the-tuple": lambda harm: tuple_of(b"}", b"}", b"N", harm, b"N"),
    "for-a-tensor": chunk_of,
    "after-a-tensor": lambda harm: chunk_of(tensor_of() + harm + b"0"),
    "in-a-list": lambda harm: chunk_of(b"](" + harm + b"e"),
    "for-a-storage": lambda harm: chunk_of(tensor_of(harm)),
    "for-a-type": lambda harm: chunk_of(tensor_of(storage(kind=harm))),
    "for-a-key": lambda harm: b"}" + harm + b"Ns",
}


@pytest.fixture
def _known_extension() -> Any:
    copyreg.add_extension("os", "mkdir", EXTENSION)
    yield
    copyreg.remove_extension("os", "mkdir", EXTENSION)


@pytest.mark.usefixtures("_known_extension")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", HARM)
def test_pickles_that_call_something_are_refused_and_not_run(
    tmp_path: Path, way: str, place: str
) -> None:
    target = tmp_path / "proof"
    harm = HARM[way](str(target))
    path = by_hand(tmp_path / "a.pt", PLACES[place](harm))
    with pytest.raises(UnsafeDataError, match=r"a\.pt: its pickle .*was not run"):
        open_pt(path)
    assert not target.exists()
    if place == "alone":
        pickle.loads(b"\x80\x04" + harm + b".")
        assert target.exists(), "the payload would have shown itself"


class Harmful:
    """Unpickling this makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> Any:
        return exec, (f"import os; os.mkdir({self.target!r})",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_files_that_harm_those_who_load_them_are_refused(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "proof"
    sequences = {"item": torch.arange(3), "time": Harmful(target)}
    content = (sequences, {}, None, None, None)
    path = saved(tmp_path / "a.pt", content, pickle_protocol=max(2, protocol))
    if protocol < 2:
        path = written(path, pt_bytes(pickle.dumps(Harmful(target), protocol)))
    with pytest.raises(UnsafeDataError, match="was not run"):
        open_pt(path)
    assert not target.exists()
    if protocol >= 2:
        torch.load(path, weights_only=False)
        assert target.exists(), "the payload would have shown itself"


KNOWN = b"collections\nOrderedDict\n"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"c" + KNOWN + b")\x81", id="new-object"),
        pytest.param(b"c" + KNOWN + b")}\x92", id="new-object-by-name"),
        pytest.param(b"(i" + KNOWN, id="instance"),
        pytest.param(b"(c" + KNOWN + b"o", id="object"),
        pytest.param(b"P0\n", id="persistent-by-text"),
        pytest.param(b"ctorch.storage\nUntypedStorage.from_file\n", id="dotted-line"),
        pytest.param(b"ctorch\nload\n", id="torch-load"),
        pytest.param(b"ctorch._utils\n_rebuild_tensor\n", id="other-rebuild"),
        pytest.param(b"\x97", id="buffer"),
        pytest.param(b"\x8f", id="set"),
        pytest.param(b"\xff", id="unknown"),
    ],
)
def test_opcodes_and_names_that_tensors_do_not_need_are_refused(
    tmp_path: Path, body: bytes
) -> None:
    with pytest.raises(UnsafeDataError, match=r"a\.pt: its pickle .*was not run"):
        open_pt(by_hand(tmp_path / "a.pt", chunk_of(body)))


def test_known_names_can_only_be_called_as_torch_calls_them(tmp_path: Path) -> None:
    for body in (
        b"ctorch\nLongStorage\n)R",
        b"c" + KNOWN + tuple_of(b"]") + b"R",
        b"ctorch\nint64\n" + tuple_of(text("x")) + b"R",
        b"ctorch.storage\nUntypedStorage\n" + tuple_of(number(2**50)) + b"R",
        text("torch") + b")R",
        b"c" + KNOWN + b"]R",
        b"]}b",
    ):
        with little_memory(), pytest.raises(DamagedDataError, match=r"a\.pt: .*is damaged"):
            open_pt(by_hand(tmp_path / "a.pt", chunk_of(body)))


# Files that lie about sizes.


def laughs(depth: int = 64) -> bytes:
    """A tuple of two tuples of two tuples …, small to write and endless to go through."""
    levels = (b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(depth))
    return b")" + b"".join(levels)


V3 = b"ctorch._utils\n_rebuild_tensor_v3\n"


def typed(
    of: bytes, kind: bytes, *, shape: bytes = b"K\3\x85", strides: bytes = b"K\1\x85"
) -> bytes:
    hooks = b"c" + KNOWN + b")R"
    return V3 + tuple_of(of, b"K\0", shape, strides, b"\x89", hooks, kind) + b"R"


LIES = {
    "memo-number": b"r\0\0\0\x80",
    "memo-number-recalled": b"j\xff\xff\xff\xff",
    "text-of-2**60": b"\x8d" + (2**60).to_bytes(8, "little") + b"abc",
    "text-of-4-gigabytes": b"X\xff\xff\xff\xffabc",
    "integer-cut-short": b"\x8a\xffabc",
    "line-without-end": b"c" + b"a" * 1000,
    "laughs": laughs(),
    "laughs-as-key": b"}" + laughs() + b"Ns",
    "laughs-as-keys": b"}(" + laughs() + b"Nu",
    "laughs-as-shape": tensor_of()[:-1].replace(tuple_of(number(3), number(2)), laughs()) + b"R",
    "laughs-as-storage": laughs() + b"Q",
    "laughs-as-name": laughs() + laughs() + b"\x93",
    "laughs-as-function": laughs() + b")R",
    "list-in-itself": b"]q\1h\1a",
    "dict-in-itself": b"}q\1X\1\0\0\0ah\1s",
    "nothing-to-take": b"000",
    "no-mark": b"tttt",
    "no-items": b"ssss",
    "half-a-pair": b"}(Nu",
    "items-of-a-list": b"]NNs",
    "entries-of-a-dict": b"}Na",
    "frame-of-2**62": b"\x95" + (2**62).to_bytes(8, "little") + b"N",
    "no-end": b"N",
    "offset": tensor_of(offset=1),
    "offset-2**62": tensor_of(offset=2**62),
    "offset-2**63": tensor_of(offset=2**63),
    "offset-2**2000": tensor_of(offset=2**2000),
    "offset-negative": tensor_of(offset=-1),
    "offset-wraps": tensor_of(offset=2**61),
    "shape-too-long": tensor_of(shape=(4, 2)),
    "shape-petabytes": tensor_of(shape=(2**50, 2)),
    "shape-2**63": tensor_of(shape=(2**63, 2)),
    "shape-product-wraps": tensor_of(shape=(2**32, 2**32), strides=(0, 0)),
    "shape-negative": tensor_of(shape=(-3, 2)),
    "shape-twice-negative": tensor_of(shape=(-3, -2)),
    "shape-0-and-much": tensor_of(shape=(0, 2**61, 2**61), strides=(0, 0, 0)),
    "strides-too-long": tensor_of(strides=(2, 5)),
    "strides-2**62": tensor_of(strides=(2**62, 1)),
    "strides-2**63": tensor_of(strides=(2**63, 1)),
    "strides-wrap": tensor_of(strides=(2**61, 1)),
    "strides-negative": tensor_of(offset=5, strides=(-2, -1)),
    "strides-cancel": tensor_of(strides=(2**63, -(2**63))),
    "rows-that-repeat": tensor_of(shape=(3, 2**40), strides=(0, 0)),
    "more-axes-than-strides": tensor_of(shape=(1, 1, 1)),
    "more-strides-than-axes": tensor_of(shape=(3,)),
    "many-axes": tensor_of(shape=(1,) * 40, strides=(1,) * 40),
    "a-million-axes": tensor_of()[:-1].replace(
        tuple_of(number(3), number(2)), b"(" + b"K\1" * 10**5 + b"t"
    )
    + b"R",
    "shape-of-text": tensor_of().replace(tuple_of(number(3), number(2)), text("32")),
    "shape-of-bools": tensor_of().replace(tuple_of(number(3), number(2)), b"\x88\x88\x86"),
    "shape-of-floats": tensor_of().replace(number(3), b"G" + bytes(8)),
    "shape-none": tensor_of().replace(tuple_of(number(3), number(2)), b"N"),
    "shape-of-dict": tensor_of().replace(tuple_of(number(3), number(2)), b"}"),
    "few-arguments": b"ctorch._utils\n_rebuild_tensor_v2\n" + tuple_of(storage()) + b"R",
    "no-storage": tensor_of(b"N"),
    "text-for-a-storage": tensor_of(text("0")),
    "storage-without-type": tensor_of(storage(kind=b"ctorch.storage\nUntypedStorage\n")),
    "storage-with-a-function": tensor_of(storage(kind=b"ctorch._utils\n_rebuild_tensor_v2\n")),
    "storage-with-a-dtype": tensor_of(storage(kind=b"ctorch\nint64\n")),
    "storage-with-text": tensor_of(storage(kind=text("LongStorage"))),
    "storage-of-another-kind": tensor_of(storage().replace(b"storage", b"Storage")),
    "storage-of-four": tensor_of(tuple_of(text("storage"), b"N", b"N", b"N") + b"Q"),
    "storage-by-number": tensor_of(storage().replace(text("0"), number(0))),
    "typed-without-type": typed(storage(kind=b"ctorch.storage\nUntypedStorage\n"), b"N"),
    "typed-by-text": typed(storage(kind=b"ctorch.storage\nUntypedStorage\n"), text("int64")),
    "typed-by-a-storage-type": typed(storage(), b"ctorch\nLongStorage\n"),
    "typed-text-for-a-storage": typed(text("0"), b"ctorch\nint64\n"),
    "typed-none-for-a-storage": typed(b"N", b"ctorch\nint64\n"),
    "typed-with-few-arguments": V3 + tuple_of(storage(), b"K\0", b")", b")") + b"R",
    "parameter-of-nothing": b"ctorch._utils\n_rebuild_parameter\n)R",
    "record-missing": tensor_of(storage("1")),
    "record-empty": tensor_of(storage("")),
    "record-above": tensor_of(storage("../data.pkl")),
    "record-outside": tensor_of(storage("../../../../../../etc/passwd")),
    "record-absolute": tensor_of(storage("/etc/passwd")),
}


@pytest.mark.parametrize("lie", LIES)
def test_tables_that_lie_are_refused_at_no_cost(tmp_path: Path, lie: str) -> None:
    body = LIES[lie]
    content = b"\x80\x02" + body if lie == "no-end" else pickled(chunk_of(body))
    path = written(tmp_path / "a.pt", pt_bytes(content, {"0": SIX}))
    with little_memory(), pytest.raises((DamagedDataError, UnsafeDataError), match=r"a\.pt: "):
        open_pt(path)


def test_the_claimed_length_of_a_storage_costs_nothing(tmp_path: Path) -> None:
    """What counts is the record that is in the file."""
    path = by_hand(tmp_path / "a.pt", chunk_of(tensor_of(storage(numel=2**50))))
    with little_memory():
        array = open_pt(path).arrays["sequences/item"]
    assert array.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_samples_that_repeat_by_stride_0_cost_nothing(tmp_path: Path) -> None:
    path = by_hand(tmp_path / "a.pt", chunk_of(tensor_of(shape=(2**40, 2), strides=(0, 1))))
    with little_memory():
        array = open_pt(path).arrays["sequences/item"]
    assert array.shape == (2**40, 2)
    assert array[2**40 - 1].tolist() == [0, 1]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"X\0\0\x40\0" + b"\xff" * 2**22, id="text"),
        pytest.param(b"c" + b"a" * 2**22 + b"\nb\n", id="module"),
        pytest.param(b"c" + b"\xff" * 2**22 + b"\nb\n", id="bytes-for-a-module"),
        pytest.param(tensor_of(storage("r" * 2**22)), id="record"),
        pytest.param(dict_of(**{"k" * 2**22: b"N"}), id="key"),
    ],
)
def test_messages_stay_short_however_long_the_names_in_a_file(tmp_path: Path, body: bytes) -> None:
    path = by_hand(tmp_path / "a.pt", chunk_of(body))
    with pytest.raises(StoreError, match=r"a\.pt: ") as caught:
        open_pt(path)
    assert len(str(caught.value)) < 10_000


def test_keys_that_all_have_one_hash_are_refused(tmp_path: Path) -> None:
    """Python hashes integers modulo 2**61 - 1, so many such keys in a dict take for ever."""
    keys = b"".join(number(key * (2**61 - 1)) + tensor_of() for key in range(1, 40))
    with pytest.raises(StoreError, match=r"a\.pt: "):
        open_pt(by_hand(tmp_path / "a.pt", b"}(" + keys + b"u"))


def test_a_large_table_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pt", pt_bytes(b"N" * (2**26 + 1)))
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.pt: .*67108865 bytes"):
        open_pt(path)


# Files that are not as torch.save writes them.

GOOD = pickled(chunk_of(tensor_of()))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone\.pt"):
        open_pt(tmp_path / "gone.pt")


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    content = pt_bytes(GOOD, {"0": SIX}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedDataError, match=r"a\.pt: .*compressed"):
        open_pt(written(tmp_path / "a.pt", content))


@pytest.mark.parametrize("name", ["archive/data.pkl", "archive/data/0", "archive/byteorder"])
def test_encrypted_members_are_refused(tmp_path: Path, name: str) -> None:
    content = with_flags(pt_bytes(GOOD, {"0": SIX}), name, 1)
    with pytest.raises(DamagedDataError, match=rf"a\.pt: '{name}'"):
        open_pt(written(tmp_path / "a.pt", content))


@pytest.mark.parametrize("order", [b"big", b"", b"little ", b"LITTLE", b"\0" * 100])
def test_other_byte_orders_are_refused(tmp_path: Path, order: bytes) -> None:
    content = pt_bytes(GOOD, {"0": SIX}, byteorder=order)
    with pytest.raises(DamagedDataError, match=r"a\.pt: is big-endian"):
        open_pt(written(tmp_path / "a.pt", content))


def test_files_from_before_the_byte_order_was_written_are_read(tmp_path: Path) -> None:
    content = pt_bytes(GOOD, {"0": SIX}, byteorder=None)
    chunk = open_pt(written(tmp_path / "a.pt", content))
    assert chunk.arrays["sequences/item"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_files_of_torch_before_zip_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(
        DamagedDataError, match=r"a\.pt: is not a torch.save archive .*save it again"
    ):
        open_pt(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PK", id="two-bytes"),
        pytest.param(b"PK\5\6" + bytes(18), id="empty-zip"),
        pytest.param(b"PK" + bytes(10_000), id="zeros"),
        pytest.param(pickle.dumps({"a": 1}), id="pickle"),
        pytest.param(pt_bytes(GOOD)[:50] + b"PK\5\6" + b"\xff" * 18, id="lying-directory"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    with little_memory(), pytest.raises(DamagedDataError, match=r"a\.pt: "):
        open_pt(written(tmp_path / "a.pt", content))


def test_a_zip_file_without_or_with_two_tables_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data/0", SIX)
    with pytest.raises(DamagedDataError, match=r"a\.pt: .*0 tables of tensors"):
        open_pt(tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt", "a") as archive:
        archive.writestr("archive/data.pkl", GOOD)
        archive.writestr("other/data.pkl", GOOD)
    with pytest.raises(DamagedDataError, match=r"a\.pt: .*2 tables of tensors"):
        open_pt(tmp_path / "a.pt")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", as_chunk(make_columns(range(4))))
    content = path.read_bytes()
    lengths = {*range(0, len(content), 37), *range(len(content) - 120, len(content))}
    for length in sorted(lengths):
        with pytest.raises(DamagedDataError, match=r"a\.pt: "):
            open_pt(written(path, content[:length]))


@functools.cache
def fragile(path: Path) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A file that has all that torch writes: views, both kinds of types, None, a parameter.

    Also where its members are.
    """
    shared = torch.arange(24)
    content = (
        {"item": shared.view(4, 6)[:, 1:3], "flags": tensor("uint16", 4, 2)},
        OrderedDict(label=torch.nn.Parameter(torch.arange(4.0))),
        shared[:4],
        None,
        torch.arange(4, dtype=torch.bfloat16),
    )
    return saved(path, content).read_bytes(), member_spans(path)


@few_examples(3)
@given(data=st.data())
def test_flipped_bytes_around_the_values_give_arrays_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.pt"
    content, spans = fragile(path)
    values = [span for name, span in spans.items() if "/data/" in name]
    around = [at for at in range(len(content)) if not any(a <= at < b for a, b in values)]
    # Most bytes around values are padding, so one flip in two is in the table of tensors.
    table = range(*next(span for name, span in spans.items() if name.endswith("data.pkl")))
    places = st.sampled_from(around) | st.sampled_from(table)
    flips = data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=3))
    written(path, with_flips(content, flips))
    with contextlib.suppress(StoreError), little_memory():
        chunk = open_pt(path)
        for array in chunk.arrays.values():
            array.sum()


FRAGMENTS = [
    *(b"N", b")", b"]", b"}", b"(", b"t", b"\x85", b"\x86", b"\x87", b"u", b"s", b"e", b"a"),
    *(b"R", b"Q", b"K\0", b"K\1", b"K\3", b"\x88", b"\x94", b"q\0", b"h\0", b"q\1", b"h\1"),
    *(b"\x93", b".", number(2**63), number(-1), text("0"), text("storage"), text("torch")),
    *(
        b"ctorch\nLongStorage\n",
        b"ctorch\nint64\n",
        b"c" + KNOWN,
        b"ctorch.storage\nUntypedStorage\n",
    ),
    *(b"ctorch._utils\n_rebuild_tensor_v2\n", V3, b"ctorch._utils\n_rebuild_parameter\n"),
    *(storage(), tensor_of(), text("storage") + b"ctorch\nLongStorage\n" + text("0") + b"NN"),
    *(
        tuple_of(storage(), b"K\0", b")", b")", b"N", b"N", b"N"),
        tuple_of(b"N", b"K\0", b")", b")"),
    ),
    *(tuple_of(b"N", b"K\0", b")", b")", b"N", b"N", b"ctorch\nint64\n"), dict_of(a=tensor_of())),
]


FUNCTIONS = [part for part in FRAGMENTS if part.startswith(b"c")]
TUPLES = [part for part in FRAGMENTS if part.endswith(b"t")]
calls = st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(TUPLES), st.just(b"R")).map(b"".join)


@few_examples(3)
@given(parts=st.lists(st.sampled_from(FRAGMENTS) | calls, max_size=14))
def test_any_sequence_of_known_opcodes_gives_arrays_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = by_hand(tmp_path_factory.getbasetemp() / "any.pt", b"".join(parts))
    with contextlib.suppress(StoreError), little_memory():
        for array in open_pt(path).arrays.values():
            assert array.nbytes < 1000
