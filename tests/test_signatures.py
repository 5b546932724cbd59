"""Everything public says what it takes: real parameters, each of them named in its docstring."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from feedline.steps import StepScheduler
from feedline.torch import DataLoader
from public_names import callables, is_protocol

#: What really takes any number of arguments, and why.
OPEN_ENDED = {
    "feedline.plan.derive_key(names)": "a key is narrowed down by any names",
    "feedline.feed.Recorder.event(fields)": "an event has fields of its own",
    "feedline.runs.ConsumptionLog.event(fields)": "an event has fields of its own",
    "feedline.runs.RunLog.event(fields)": "an event has fields of its own",
}

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)+)", re.MULTILINE)
_NAME = re.compile(r"^    \*{0,2}(\w+):", re.MULTILINE)


def documented(docstring: str | None) -> set[str]:
    """Return the parameters that a docstring names."""
    text = inspect.cleandoc(docstring or "")
    return {name for section in _SECTION.findall(text) for name in _NAME.findall(section)}


def made() -> dict[str, Any]:
    """Return the public classes and functions that users call."""
    return {
        name: value
        for name, value in callables().items()
        if not is_protocol(value) and not is_built_in(value)
    }


def is_built_in(value: Any) -> bool:
    """Whether a class is made as those of Python are: a typed dict, or an error with a message."""
    if not isinstance(value, type) or not issubclass(value, dict | BaseException):
        return False
    return not inspect.isfunction(value.__init__)


def methods() -> Iterator[tuple[str, Any]]:
    """Yield the public methods of all public classes, and those functions themselves."""
    for name, value in callables().items():
        if not isinstance(value, type):
            yield name, value
            continue
        if name in made():
            yield name, value
        for method in dir(value):
            found = inspect.getattr_static(value, method)
            called = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            is_ours = str(getattr(called, "__module__", "")).startswith("feedline")
            if inspect.isfunction(called) and is_ours and not method.startswith("_"):
                yield f"{name}.{method}", called


@pytest.mark.parametrize("name", made())
def test_every_parameter_is_named_in_the_docstring(name: str) -> None:
    value = made()[name]
    missing = set(inspect.signature(value).parameters) - documented(value.__doc__)
    assert not missing, f"{name}: Args says nothing of {sorted(missing)}"


def test_no_parameter_hides_behind_stars() -> None:
    starred = {
        f"{name}({parameter.name})"
        for name, value in methods()
        for parameter in inspect.signature(value).parameters.values()
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    assert starred == set(OPEN_ENDED)


@pytest.mark.parametrize("name", made())
def test_a_docstring_names_no_parameter_that_is_not_there(name: str) -> None:
    value = made()[name]
    sections = re.findall(r"^Args:\n((?:[ ].*\n?|\n)+)", inspect.cleandoc(value.__doc__), re.M)
    named = {found for section in sections for found in _NAME.findall(section)}
    assert named <= set(inspect.signature(value).parameters)


@pytest.mark.parametrize(
    ("value", "parameters"),
    [
        (StepScheduler, {"ckpt_every_steps": None, "num_epochs": None, "peers": "auto"}),
        (DataLoader, {"num_workers": 0, "shuffle": None, "desync_timeout": 60.0}),
    ],
)
def test_completion_and_help_show_parameters_with_their_defaults(
    value: Any, parameters: dict[str, Any]
) -> None:
    found = inspect.signature(value).parameters
    assert {name: found[name].default for name in parameters} == parameters
    text = pydoc.plain(pydoc.render_doc(value))
    assert all(f"{name}: " in text for name in parameters)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_the_jax_room_says_what_it_takes() -> None:
    check = (
        "import inspect, feedline.jax as room; "
        "assert not inspect.signature(room.JaxPeers).parameters; "
        "assert repr(room.JaxPeers()) == '<JaxPeers: rank 0 of 1>', room.JaxPeers()"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment, timeout=120)
