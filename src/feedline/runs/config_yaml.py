"""The YAML of run configs: mappings, lists, texts, numbers, true, false and null, and no more.

YAML has more than a config needs, and some of it does harm: aliases and merge keys let a few lines
stand for more than memory holds, tags name types, `1:30` is the number 90, and of two equal keys
the last one wins in silence. All of these are refused, with their line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from feedline.errors import InvalidValueError

_MAX_DEPTH = 32
_WORDS: dict[str, bool | None] = {"null": None, **dict.fromkeys(("true", "yes", "on"), True)}
_WORDS |= dict.fromkeys(("false", "no", "off"), False)
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None}
for _word, _value in _WORDS.items():
    _CONSTANTS |= dict.fromkeys((_word, _word.capitalize(), _word.upper()), _value)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_BASED = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+)")
_FLOAT = re.compile(r"([-+]?[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_MAX_DIGITS = 1000


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document, or raise an error of one line.

    Args:
        text: The document.

    Examples:
        >>> parse_yaml("data: {samples: 1_000}")
        {'data': {'samples': 1000}}
        >>> parse_yaml("a: &x [1]")
        Traceback (most recent call last):
            ...
        feedline.errors.InvalidValueError: line 1 has an anchor or an alias, which a config cannot \
have; write the value out
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "run configs need PyYAML, which is not installed; install feedline[cli]", name="yaml"
        ) from None
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        return _Reader(yaml, events).document()
    except InvalidValueError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidValueError(f"is not YAML ({reason:.300})") from None


class _Reader:
    def __init__(self, yaml: Any, events: Iterator[Any]) -> None:
        self._yaml = yaml
        self._events = events

    def document(self) -> Any:
        value: Any = None
        num_documents = 0
        for event in self._events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    raise _refused(event, "a second document", "keep one in each file")
            elif isinstance(event, self._yaml.NodeEvent):
                value = self._value(event, 0)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        yaml = self._yaml
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _refused(event, "an anchor or an alias", "write the value out")
        if event.tag is not None:
            raise _refused(event, f"the tag {event.tag!r:.60}", "remove it")
        if depth > _MAX_DEPTH:
            raise _refused(event, f"more than {_MAX_DEPTH} levels", "nest less")
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else _plain(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(inner, depth + 1) for inner in self._until(yaml.SequenceEndEvent)]
        found: dict[Any, Any] = {}
        for inner in self._until(yaml.MappingEndEvent):
            if not isinstance(inner, yaml.ScalarEvent):
                raise _refused(inner, "a key that is not a word", "use a word")
            key = self._value(inner, depth + 1)
            if not inner.style and inner.value == "<<":
                raise _refused(inner, "the merge key '<<'", "write the keys out")
            if key in found:
                raise _refused(inner, f"the key {key!r:.60} a second time", "remove one of them")
            found[key] = self._value(next(self._events), depth + 1)
        return found

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event


def _plain(event: Any) -> Any:
    """Return the value of a word without quotes."""
    text: str = event.value
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _BASED.fullmatch(text):
        digits = text.replace("_", "").lower()
        base = 2 if "b" in digits[:3] else 16 if "x" in digits[:3] else 8
        return int(digits, base)
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    if found := _INFINITE.fullmatch(text):
        return float("nan" if found[3] else f"{found[1]}inf")
    if _SEXAGESIMAL.fullmatch(text):
        raise _refused(event, f"{text!r:.60}, a number to the base 60", "quote it, or write it out")
    return text


def _refused(event: Any, what: str, remedy: str) -> InvalidValueError:
    line = event.start_mark.line + 1
    return InvalidValueError(f"line {line} has {what}, which a config cannot have; {remedy}")
