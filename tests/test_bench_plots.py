"""The pictures of the benchmarks say what the results say, and nothing else."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = sorted((ROOT / "docs" / "images").glob("bench-*.svg"))
PAGE = ROOT / "docs" / "benchmarks.md"
SVG = "{http://www.w3.org/2000/svg}"
REMEDY = "the results have changed since the plots were drawn: run `make bench-plots`"

each_picture = pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)


def content_of(path: Path) -> dict[str, Any]:
    """What a picture says, from its metadata."""
    found: dict[str, Any] = json.loads(ElementTree.parse(path).findtext(f"{SVG}metadata") or "")
    return found


def texts_of(path: Path) -> list[str]:
    return ["".join(text.itertext()).strip() for text in ElementTree.parse(path).iter(f"{SVG}text")]


def parts_of(content: Any, key: str) -> Iterator[dict[str, Any]]:
    """All dictionaries in a content that have this key."""
    if isinstance(content, dict):
        if key in content:
            yield content
        content = list(content.values())
    if isinstance(content, list):
        for part in content:
            yield from parts_of(part, key)


def results() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in RESULTS.glob("*.json")}


def figures_in(found: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The places of all measured figures; the size of a dataset is none."""
    if isinstance(found, dict | list):
        items = found.items() if isinstance(found, dict) else enumerate(found)
        for key, part in items:
            yield from figures_in(part, (*place, key))
    elif isinstance(found, int | float) and place[-1] != "n":
        yield place


def report_lines(verdict: str = "met|MISSED") -> set[str]:
    """The lines about targets in all reports."""
    pattern = re.compile(rf"^- ((?:{verdict}): .*)$", re.MULTILINE)
    return {
        line for path in RESULTS.glob("*.md") for line in pattern.findall(path.read_text("utf-8"))
    }


@pytest.fixture
def plots(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that draws, which needs matplotlib for the drawing alone."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    spec = importlib.util.spec_from_file_location("plots", ROOT / "benchmarks" / "plots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "plots", module)
    spec.loader.exec_module(module)
    return module


def test_pictures_in_documents_exist() -> None:
    named = set()
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"[\w./-]*bench-[\w-]+\.svg", document.read_text("utf-8")):
            assert (document.parent / link).resolve() in PICTURES, f"{link} in {document.name}"
            named.add(Path(link).name)
    assert named == {path.name for path in PICTURES}


@each_picture
def test_a_picture_refers_to_nothing_and_runs_nothing(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text) < 100_000
    assert "<!" not in text
    assert "@import" not in text
    for element in ElementTree.fromstring(text).iter():
        assert element.tag.removeprefix(SVG) not in {"script", "foreignObject", "image", "a"}
        for name, value in element.attrib.items():
            assert not name.startswith("on")
            if name.endswith("href"):
                assert value.startswith("#")
            assert all(link.startswith("#") for link in re.findall(r"url\((.*?)\)", value))


@each_picture
def test_numbers_of_a_picture_are_those_of_the_results(path: Path) -> None:
    found = results()
    numbers = list(parts_of(content_of(path), "source"))
    assert numbers
    for number in numbers:
        value: Any = found
        for key in number["source"]:
            value = value[key]
        assert number["value"] == value, REMEDY


@each_picture
def test_a_picture_is_the_one_of_the_last_results(path: Path, plots: ModuleType) -> None:
    expected = {picture.name: picture.content() for picture in plots.pictures()}
    assert content_of(path) == expected[path.stem], REMEDY


@each_picture
def test_a_picture_shows_what_it_says(path: Path) -> None:
    content, shown = content_of(path), texts_of(path)
    last = [text.split(" ", 1)[-1] for text in shown]  # behind the name of its curve
    for number in parts_of(content, "source"):
        assert number["text"] in shown + last
    for target in parts_of(content, "met"):
        assert target["text"] in shown
    assert content["caption"] in " ".join(shown)


def test_every_figure_is_in_a_picture() -> None:
    shown = {tuple(n["source"]) for path in PICTURES for n in parts_of(content_of(path), "source")}
    measured = {place for name, found in results().items() for place in figures_in(found, (name,))}
    assert shown == measured


def test_every_figure_and_target_of_object_storage_comes_into_its_picture(
    plots: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEEDLINE_BENCH_ROWS", "1000")
    remote, measure = (importlib.import_module(name) for name in ("remote", "measure"))
    keys = {"cold": ("rate", "first"), "warm": ("rate", "first"), "local folder": ("rate", "first")}
    keys |= {"obstore alone": ("rate",), "obstore, CRC-32, files": ("rate",)}
    keys |= {"resume": ("resume", "bytes")}
    keys |= {f"nodes, {count}": ("bytes",) for count in remote.NODES}
    for name in remote.PEERS:
        keys |= {f"{name}, {n} workers": ("rate", "first", "resume") for n in remote.WORKERS}
    values = iter(range(1, 100))
    figures = {name: {key: float(next(values)) for key in keys[name]} for name in keys}
    figures["resume"]["bytes"] = 1.0
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    text, checks = remote.report(figures)
    measure.finish("remote", text, figures, checks)
    of_remote = importlib.import_module("plotted_remote").of_remote
    (content,) = (picture.content() for picture in of_remote())
    shown = {tuple(number["source"]) for number in parts_of(content, "source")}
    assert shown == set(figures_in({"remote": figures}, ()))
    lines = re.findall(r"^- (.*)$", (tmp_path / "remote.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(target["line"] for target in parts_of(content, "met")) == sorted(lines)
    assert {line.split(":")[0] for line in lines} == {"met", "MISSED"}


def test_every_figure_and_target_of_packing_comes_into_its_pictures(
    plots: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pack, measure = (importlib.import_module(name) for name in ("pack", "measure"))
    names = [
        f"{kind}, {order}, {name}"
        for kind in pack.KINDS
        for name in pack.OURS
        for order in pack.ORDERS
    ]
    peers = [f"{kind}, in order, {name}" for kind in pack.KINDS for name in pack.PEERS]
    values = iter(range(1, 200))
    figures: dict[str, Any] = {
        "writers": {
            name: {key: float(next(values)) for key in ("rate", "rows", "memory")[: 3 - is_peer]}
            for is_peer, some in enumerate((names, peers))
            for name in some
        },
        "rows": {f"{10**power}": {"cost": float(next(values))} for power in (5, 6, 7)},
        "terabyte": {name: float(next(values)) for name in (*pack.NEEDS, "network")},
    }
    for part in ("sizes", "needs"):
        figures[part] = {
            f"{size}": {name: float(next(values)) for name in pack.NEEDS}
            for size in (2**29, 2**30, 2**31)
        }
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    text, checks = pack.report(figures, 2**31, 1)
    assert "that is extrapolated" in text
    assert "Single runs" in text
    measure.finish("pack", text, figures, checks)
    contents = [one.content() for one in importlib.import_module("plotted_pack").of_pack()]
    shown = {tuple(number["source"]) for number in parts_of(contents, "source")}
    assert shown == set(figures_in({"pack": figures}, ()))
    lines = re.findall(r"^- (.*)$", (tmp_path / "pack.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(target["line"] for target in parts_of(contents, "met")) == sorted(lines)
    assert {line.split(":")[0] for line in lines} == {"met", "MISSED"}


def test_every_target_is_in_a_picture() -> None:
    shown = {target["line"] for path in PICTURES for target in parts_of(content_of(path), "met")}
    assert shown == report_lines()


def test_missed_targets_are_shown_as_missed() -> None:
    for target in (t for path in PICTURES for t in parts_of(content_of(path), "met")):
        assert target["text"].endswith("MISSED") == (not target["met"])
        if target["line"].startswith("MISSED"):
            assert not target["met"]


def test_missed_targets_are_those_that_the_page_names() -> None:
    missed = {line.removeprefix("MISSED: ") for line in report_lines("MISSED")}
    section = PAGE.read_text("utf-8").partition("## What is missed")[2]
    assert set(re.findall(r"`([^`]+)`", section)) == missed


def test_peers_on_the_page_are_those_that_are_pinned() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    for name, file in (("torch", "dev"), ("grain", "bench"), ("annbatch", "annbatch")):
        pins = (ROOT / "requirements" / f"{file}.txt").read_text("utf-8")
        (version,) = re.findall(rf"^{name}==(.*)$", pins, re.MULTILINE)
        assert f"{name} {version}" in page
