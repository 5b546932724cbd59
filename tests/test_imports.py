"""Imports run one way between the rooms, and `import feedline` stays light."""

import ast
import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = "feedline"
SOURCE = Path(__file__).resolve().parent.parent / "src" / PACKAGE

# {errors, lazy, words} ← plain_file ← {plan, store} ← {feed, packing} ← {steps, chunks} ← runs
# ← {torch, jax, report} ← {trainers, compat, testing} ← cli
LAYERS = (
    ("errors", "lazy", "words"),
    ("plain_file",),
    ("plan", "store"),
    ("feed", "packing"),
    ("steps", "chunks"),
    ("runs",),
    ("torch", "jax", "report"),
    ("trainers", "compat", "testing"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# `feedline/__init__.py` is no room. It may offer what is framework-free; only cli may import it.
ROOT = "__init__"
MAY_IMPORT = {room: {r for r in LAYER_OF if LAYER_OF[r] < LAYER_OF[room]} for room in LAYER_OF}
MAY_IMPORT["cli"].add(ROOT)
MAY_IMPORT[ROOT] = {room for room in LAYER_OF if LAYER_OF[room] <= LAYER_OF["steps"]}

FRAMEWORKS = (
    *("torch", "torchdata", "torchvision", "lightning", "jax", "jaxlib", "flax", "tensorflow"),
    *("pandas", "polars", "pyarrow", "zarr", "scipy", "sklearn", "anndata", "h5py", "datasets"),
    *("PIL", "ray"),
)
FRAMEWORK_FREE = {
    *(ROOT, "errors", "lazy", "plain_file", "words", "plan", "store", "packing", "feed"),
    *("steps", "chunks", "runs", "testing"),
}

# What a room may import inside functions, once it is needed: each is an extra.
ON_DEMAND = {
    "store": {"pyarrow", "scipy", "zarr"},
    "packing": {"h5py", "pyarrow", "ray", "zarr"},
    "chunks": {"torch", "jax"},
    "runs": {"yaml"},
}

# Where names moved to: a table in a module of the room where users know them. Only such a table may
# name a room above its own, with the imports beside it that type checkers read; and the one table
# of the adapters of frameworks and of logs.
TABLE = "_MOVED"
ADAPTERS = ("feed/adapters.py", "_ADAPTERS")

# Rooms that may import nothing outside of Feedline but the standard library and these.
ONLY_THIRD_PARTY: dict[str, set[str]] = {
    ROOT: {"numpy"},
    "errors": set(),
    "lazy": set(),
    "plan": {"numpy"},
}


def forbidden_imports(source: Path) -> list[str]:
    """One line for each import under the package directory `source` that the layers forbid."""
    found = []
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        room = relative.parts[0].removesuffix(".py")
        if room not in MAY_IMPORT:
            found.append(f"{relative}: {room!r} is not a room; move the file or add a layer")
            continue
        for line, target, is_on_demand in imported_modules(path, source):
            if reason := objection(room, target, is_on_demand):
                found.append(f"{relative}:{line}: {room} imports {target}, but {reason}")
    return found


def imported_modules(path: Path, source: Path) -> Iterator[tuple[int, str, bool]]:
    """Everything that the file imports: line, absolute dotted name, and whether in a function.

    `from a import b` yields `a.b`, whether b is a module or a name in one. So does the name of a
    module of a room that is written as text, unless it stands in a table of names that moved.
    """
    package = (PACKAGE, *path.relative_to(source).parent.parts)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, functions) for n in ast.walk(f)}
    name = ADAPTERS[1] if path.relative_to(source).as_posix() == ADAPTERS[0] else TABLE
    tabled = {id(n) for part in tables_of_moved_names(tree, name) for n in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in tabled:
            continue
        for line, name in names_imported_by(node, package):
            yield line, name, id(node) in inside


def tables_of_moved_names(tree: ast.Module, name: str) -> list[ast.AST]:
    """The dict of strings that a module assigns, at its top, to the name of such tables.

    The imports of just these names under `if TYPE_CHECKING:` belong to it.
    """
    found: list[ast.AST] = []
    names: set[str] = set()
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Dict() as table):
                if target == name:
                    found.append(table)
                    names = set(ast.literal_eval(table))
    for statement in tree.body:
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
                imports = [part for part in body if isinstance(part, ast.ImportFrom)]
                found += [i for i in imports if {alias.name for alias in i.names} <= names]
    return found


def names_imported_by(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of what one statement or call imports, if it does."""
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, alias.name) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            # One leading dot is this package itself, each further dot its parent.
            anchor = package[: len(package) - level + 1] if level else ()
            base = ".".join((*anchor, *([module] if module else [])))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)
        case ast.Call(
            func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield node.lineno, importlib.util.resolve_name(name, ".".join(package))
        case ast.Constant(value=str(name)):
            top, *rest = name.split(".")
            if top == PACKAGE and rest and rest[0] in LAYER_OF and all(map(str.isidentifier, rest)):
                yield node.lineno, name


def objection(room: str, target: str, is_on_demand: bool) -> str | None:
    """Why the room must not import the target, or None if it may."""
    top, *rest = target.split(".")
    if top == PACKAGE:
        # A name that is no room is an attribute of `feedline/__init__.py`.
        other = rest[0] if rest and rest[0] in LAYER_OF else ROOT
        if other == room or other in MAY_IMPORT[room]:
            return None
        return f"{room} may import {sorted(MAY_IMPORT[room]) or 'no room'}"
    if is_on_demand and top in ON_DEMAND.get(room, ()):
        return None
    if room in FRAMEWORK_FREE and top in FRAMEWORKS:
        return f"{room} is framework-free"
    allowed = ONLY_THIRD_PARTY.get(room)
    if allowed is None or top in sys.stdlib_module_names or top in allowed:
        return None
    return f"{room} may import the standard library and {sorted(allowed) or 'nothing else'}"


def test_no_room_imports_what_the_layers_forbid() -> None:
    assert (SOURCE / "plan").is_dir(), "the walk would prove nothing"
    assert forbidden_imports(SOURCE) == []


def shadowed_names(source: Path) -> list[str]:
    """The names that a package offers and that a module of its own would replace once imported."""
    found = []
    for path in source.rglob("__init__.py"):
        modules = {p.stem for p in path.parent.iterdir() if p.is_dir() or p.suffix == ".py"}
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                    offered = {ast.literal_eval(name) for name in names}
                    found += [f"{path.parent.name}.{name}" for name in offered & modules]
    return sorted(found)


@pytest.mark.parametrize("room", ["store", "packing"])
def test_no_module_bears_the_name_of_what_its_package_offers(room: str) -> None:
    assert shadowed_names(SOURCE / room) == []


def test_a_module_that_bears_such_a_name_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "packing/__init__.py", "__all__ = ['pack', 'other']")
    write(tmp_path, "packing/pack.py", "")
    write(tmp_path, "packing/other/__init__.py", "")
    assert shadowed_names(tmp_path) == ["packing.other", "packing.pack"]


def write(source: Path, name: str, code: str) -> None:
    path = source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param("plan/a.py", "import feedline.store", id="sibling"),
        pytest.param("plan/a.py", "from feedline.steps import clock", id="sibling-from"),
        pytest.param("plan/a.py", "from feedline import store", id="sibling-from-root"),
        pytest.param("plan/a.py", "from .. import errors, store", id="sibling-relative"),
        pytest.param("plan/a.py", "from ..store import x", id="sibling-relative-module"),
        pytest.param("plan/__init__.py", "from ..store import x", id="relative-in-init"),
        pytest.param("plan/deep/a.py", "from ...store import x", id="relative-in-subpackage"),
        pytest.param("plan/a.py", "import feedline", id="root-from-below"),
        pytest.param("plan/a.py", "from feedline import *", id="root-star"),
        pytest.param("plan/a.py", "import attrs", id="plan-third-party"),
        pytest.param("plan/a.py", "import numpy.typing, torch", id="second-of-two"),
        pytest.param("plan/a.py", "def f():\n    import torch", id="inside-function"),
        pytest.param("plan/a.py", "if False:\n    from scipy.sparse import x", id="inside-if"),
        pytest.param("plan/a.py", "__import__('jax')", id="dunder-import"),
        pytest.param(
            "plan/a.py", "import importlib\nimportlib.import_module('torch.nn')", id="importlib"
        ),
        pytest.param("plan/a.py", "import_module('..store', __package__)", id="importlib-relative"),
        pytest.param("store/a.py", "from feedline.plan import x", id="store-plan"),
        pytest.param("store/a.py", "from feedline.packing import x", id="store-packing"),
        pytest.param("packing/a.py", "from feedline.feed import x", id="packing-feed"),
        pytest.param("packing/a.py", "import h5py", id="packing-h5py-at-once"),
        pytest.param("store/a.py", "PLACES = {'x': 'feedline.packing'}", id="another-table"),
        pytest.param(
            "store/a.py", "def f():\n    _MOVED = {'x': 'feedline.packing'}", id="table-inside"
        ),
        pytest.param("store/a.py", "find('feedline.packing.packer')", id="room-as-text"),
        pytest.param("store/a.py", "def f():\n    import torch.nn", id="store-torch"),
        pytest.param("store/a.py", "import zarr", id="store-zarr"),
        pytest.param("store/a.py", "import pyarrow", id="store-pyarrow-at-once"),
        pytest.param("plan/a.py", "def f():\n    import pyarrow", id="plan-pyarrow"),
        pytest.param("steps/a.py", "import jax.numpy as jnp", id="steps-jax"),
        pytest.param("steps/a.py", "from feedline.chunks import x", id="steps-chunks"),
        pytest.param("chunks/a.py", "from anndata import AnnData", id="chunks-anndata"),
        pytest.param("chunks/a.py", "from feedline.runs import x", id="chunks-runs"),
        pytest.param("feed/a.py", "from feedline.runs import x", id="feed-runs"),
        pytest.param("feed/a.py", "from ..torch import x", id="feed-torch-room"),
        pytest.param("torch/a.py", "import feedline.jax", id="torch-jax-room"),
        pytest.param("report/a.py", "from feedline import cli", id="report-cli"),
        pytest.param("errors.py", "from .plan import x", id="errors-plan"),
        pytest.param("errors.py", "import numpy", id="errors-numpy"),
        pytest.param("__init__.py", "from .torch import x", id="root-torch-room"),
        pytest.param("__init__.py", "import torch", id="root-torch"),
        pytest.param("attic/a.py", "", id="unknown-room"),
        pytest.param("attic.py", "", id="unknown-file"),
    ],
)
def test_a_forbidden_import_is_reported(tmp_path: Path, name: str, code: str) -> None:
    write(tmp_path, name, code)
    reported = forbidden_imports(tmp_path)
    assert len(reported) == 1
    assert reported[0].startswith(str(Path(name)))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("plan/a.py", "import math\nimport numpy as np\nfrom numpy.typing import NDArray"),
        ("plan/a.py", "from __future__ import annotations"),
        ("plan/a.py", "from feedline.errors import FeedlineError"),
        ("plan/a.py", "from .. import errors\nfrom ..errors import FeedlineError"),
        ("plan/a.py", "from . import seeds\nfrom .seeds import x\nimport feedline.plan.seeds"),
        ("plan/__init__.py", "from . import seeds\nfrom .seeds import x"),
        ("plan/deep/a.py", "from .. import seeds\nfrom ..seeds import x"),
        ("plan/a.py", "torch = 'import torch'  # import torch"),
        ("plan/a.py", "from importlib import import_module\nimport_module('.seeds')"),
        ("store/a.py", "import numpy\nimport fsspec\nfrom feedline import errors"),
        ("store/a.py", "def f():\n    import pyarrow.parquet\n    import rich"),
        ("store/__init__.py", "_MOVED = {'x': 'feedline.packing'}\n__getattr__ = f(_MOVED)"),
        ("store/a.py", "FORMAT = 'feedline.folder'"),
        ("packing/a.py", "from feedline.store import x\ndef f():\n    import h5py"),
        ("feed/a.py", "from feedline import plan, store"),
        ("chunks/a.py", "from ..plan import x"),
        ("torch/a.py", "import torch\nfrom torch.utils.data import Dataset\nimport feedline.feed"),
        ("jax/a.py", "import jax\nfrom feedline.chunks import x"),
        ("report/a.py", "from feedline.plan import x"),
        ("cli/a.py", "from feedline import __version__, report, torch"),
        ("__main__.py", "from feedline.cli import main"),
        ("errors.py", "from typing import Any"),
        ("__init__.py", "from feedline.plan import x\nfrom . import errors"),
    ],
)
def test_an_allowed_import_is_not_reported(tmp_path: Path, name: str, code: str) -> None:
    write(tmp_path, name, code)
    assert forbidden_imports(tmp_path) == []


def test_a_report_names_file_line_room_and_target(tmp_path: Path) -> None:
    write(tmp_path, "plan/a.py", "import math\n\nimport torch\n")
    path = Path("plan", "a.py")
    assert forbidden_imports(tmp_path) == [
        f"{path}:3: plan imports torch, but plan is framework-free"
    ]


def frameworks_imported_by(statement: str, stand_ins: Path, *path: Path) -> set[str]:
    """The frameworks that a fresh interpreter has imported after running the statement.

    Empty modules stand in for the frameworks, so the answer does not depend on which of them are
    installed: not even an import inside `try: ... except ImportError` escapes.
    """
    for name in FRAMEWORKS:
        write(stand_ins, f"{name}.py", "")
    check = f"{statement}\nimport sys\nprint(*sorted(set({FRAMEWORKS!r}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", check],
        cwd=stand_ins,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (stand_ins, *path, SOURCE.parent))),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "feedline",
        "feedline.errors",
        "feedline.plan",
        "feedline.store",
        "feedline.packing",
        "feedline.feed",
        "feedline.runs",
    ],
)
def test_importing_feedline_imports_no_framework(tmp_path: Path, module: str) -> None:
    assert frameworks_imported_by(f"import {module}", tmp_path) == set()


def test_importing_the_torch_room_imports_no_trainer() -> None:
    check = (
        "import sys, feedline.torch, feedline.trainers; "
        "sys.exit(any(name.startswith('feedline.trainers.') for name in sys.modules))"
    )
    path = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    assert subprocess.run([sys.executable, "-c", check], env=path).returncode == 0


def test_a_framework_imported_by_a_package_is_seen(tmp_path: Path) -> None:
    code = "try:\n    import torch\nexcept ImportError:\n    torch = None\nfrom zarr import *"
    write(tmp_path / "packages", "heavy/__init__.py", code)
    seen = frameworks_imported_by("import heavy", tmp_path / "stand_ins", tmp_path / "packages")
    assert seen == {"torch", "zarr"}


def undocumented_names(module: ModuleType) -> list[str]:
    """The names in the module's `__all__` that do not exist or have no docstring of their own."""
    return [name for name in module.__all__ if not is_documented(module, name)]


def is_documented(module: ModuleType, name: str) -> bool:
    value = getattr(module, name, None)
    if inspect.isclass(value):
        # A dataclass without a docstring is given its signature as one.
        doc = vars(value).get("__doc__") or ""
        return bool(doc) and not doc.startswith(f"{value.__name__}(")
    if inspect.isroutine(value) or inspect.ismodule(value):
        return bool(value.__doc__)
    return name in documented_constants(Path(module.__file__ or "").parent)


def documented_constants(directory: Path) -> set[str]:
    """The module-level names in the directory's files that a string literal follows.

    A constant cannot carry a docstring, so the documentation takes the string after it.
    """
    names = set()
    for path in directory.rglob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, after in itertools.pairwise(body):
            match statement, after:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str())),
                ):
                    names.add(name)
    return names


@pytest.mark.parametrize("room", ["plan", "store", "packing", "feed", "runs"])
def test_every_public_name_of_a_room_exists_and_has_a_docstring(room: str) -> None:
    module = importlib.import_module(f"feedline.{room}")
    assert module.__all__
    assert undocumented_names(module) == []


def test_a_missing_name_or_docstring_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        from dataclasses import dataclass
        from typing import Literal

        __all__ = ["Bare", "Told", "absent", "bare", "told", "BARE", "TOLD", "Alias"]

        @dataclass
        class Bare:
            x: int

        class Told:
            '''Told.'''

        def bare(): ...

        def told():
            '''Told.'''

        BARE = 1
        TOLD: int = 1
        '''Told.'''
        Alias = Literal["a"]
        '''Told.'''
    """
    write(tmp_path, "made_up_for_docstrings/__init__.py", inspect.cleandoc(code))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("made_up_for_docstrings")
    assert undocumented_names(module) == ["Bare", "absent", "bare", "BARE"]
