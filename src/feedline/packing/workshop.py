"""The folder `<folder>.partial`, in which packing works until it is complete.

    folder.partial/
        lock            held while a process packs
        journal.jsonl   the parameters, and what is finished
        data/           becomes `folder` at the end; what was there before changes places with it
        spills/         rows on their way through a shuffle
        old/            what was at `folder` before, where the system cannot exchange folders
    folder.partial.done the journal of a complete run, while the rest is removed

Only `data` ever gets a `metadata.json`, when everything else is on disk. The journal goes last:
whoever finds it knows whether the run was complete, whenever that was killed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import InvalidValueError, PackError
from feedline.packing.exchange import exchange
from feedline.packing.rows import SourceFault
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.remote.urls import local_folder
from feedline.store.writing import remove, reported, sync
from feedline.words import several

# Of the journal and the spills: a run of another version is not resumed.
_VERSION = 3
_FORMAT = "feedline.pack"
_ENTRIES = {"lock", "journal.jsonl", "data", "spills", "old"}


Entry = dict[str, Any]


class Journal:
    """A file of JSON lines; appended lines are on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with reported(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def append(self, *entries: Entry) -> None:
        """Add lines, all with one sync."""
        lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        with self._lock, reported(self._path):
            view = memoryview(lines)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Product(NamedTuple):
    """The product of packing: how to recognise it, and what to say about anything else."""

    is_at: Callable[[Path], bool]
    refusal: str
    #: Whether an interrupted run can be resumed, and so is kept.
    can_resume: bool = True


def _is_packed_folder(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    if (folder / MANIFEST_NAME).is_file():
        return True
    parts = list(folder.iterdir())
    return bool(parts) and all((part / MANIFEST_NAME).is_file() for part in parts)


_PACKED_FOLDER = Product(
    _is_packed_folder,
    f"has no {MANIFEST_NAME}, so it is not a packed folder and is not replaced",
)


class Workshop:
    """Opens, locks and finally publishes the folder in which packing works.

    Args:
        folder: The target folder.
        overwrite: Replace an existing product.
        product: The kind of product; nothing else is ever replaced.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool,
        product: Product = _PACKED_FOLDER,
    ) -> None:
        self.folder = Path(os.path.abspath(local_folder("folder", folder)))
        if not self.folder.name:
            raise InvalidValueError(f"folder={str(folder)!r} must not be the root of a disk")
        self._overwrite = overwrite
        self._product = product
        self._partial = self.folder.with_name(self.folder.name + ".partial")
        self.data = self._partial / "data"
        self.spills = self._partial / "spills"
        self._old = self._partial / "old"
        self._journal_path = self._partial / "journal.jsonl"
        self._done_path = self._partial.with_name(self._partial.name + ".done")
        self.journal: Journal
        self.entries: list[Entry] = []
        #: Whether the folder is complete and in its place: a run was interrupted after that.
        self.is_published = False
        if not self._partial.exists() and not os.path.lexists(self._done_path):
            self._check_target()

    def _check_target(self) -> None:
        """Raise if the target exists and must not be replaced."""
        if not os.path.lexists(self.folder):
            return
        if not self._overwrite:
            raise PackError(
                f"{self.folder}: already exists; choose another folder, or replace it with "
                "overwrite=True"
            )
        if not self._product.is_at(self.folder):
            raise PackError(
                f"{self.folder}: {self._product.refusal}; choose another folder, or remove it"
            )

    @property
    def begun_with(self) -> dict[str, Any]:
        """The parameters of an interrupted run, which `opened` will compare; none without one."""
        for path in (self._journal_path, self._done_path):
            header = _header_of(path)
            if header is not None and header.get("version") == _VERSION:
                found = header.get("parameters")
                return found if isinstance(found, dict) else {}
        return {}

    @contextmanager
    def opened(self, parameters: dict[str, Any], *, resume: bool) -> Iterator[None]:
        """Lock the folder and read its journal, or begin one; the parameters must be the same.

        At the end the folder is removed, unless an error leaves work that can be resumed.
        """
        with reported(self._partial, remedy="choose a folder that can be created and written"):
            lock = self._take_lock()
        try:
            with reported(self._partial):
                if others := sorted(set(os.listdir(self._partial)) - _ENTRIES):
                    raise PackError(
                        f"{self._partial}: holds {others[0]!r:.80}, which packing did not write; "
                        "remove it, or choose another folder"
                    )
                if self._old.exists() and not self.folder.exists():
                    # Killed between the two renames of an exchange: nothing was lost.
                    os.rename(self._old, self.folder)
                self._take_over(parameters, resume=resume)
                if not self.is_published:
                    self._check_target()
                if self.entries:
                    self._check_parameters(parameters)
                else:
                    self._begin(parameters)
            self.journal = Journal(self._journal_path)
            with closing(self.journal):
                try:
                    yield
                except BaseException as error:
                    # Some faults only another source or other arguments can mend.
                    is_final = isinstance(error, SourceFault | InvalidValueError)
                    if is_final or not self._product.can_resume:
                        self._clear()
                    raise
                self._clear()
        finally:
            self._leave_empty()
            os.close(lock)

    def _take_over(self, parameters: dict[str, Any], *, resume: bool) -> None:
        """Read the journal of an interrupted run; nothing is taken over that is not certain."""
        if self._done_path.exists() and not self._journal_path.exists():
            if _header_of(self._done_path) is None:
                raise PackError(
                    f"{self._done_path}: was not written by packing; move it, or choose another "
                    "folder"
                )
            os.rename(self._done_path, self._journal_path)
        entries = _read_journal(self._journal_path)
        sealed = next((entry["sealed"] for entry in reversed(entries) if "sealed" in entry), None)
        header = {"format": _FORMAT, "version": _VERSION, "parameters": parameters}
        if sealed is None:
            self.entries = entries if resume and self._product.can_resume else []
        elif _is_folder(self.folder, sealed):
            self.is_published = resume and entries[0] == header
            self.entries = entries if self.is_published else []
            if not self.is_published:
                # That run is complete, and this is another one: only its leftovers are here.
                self._remove_leftovers()
                remove(self._journal_path)
        elif resume and self._product.can_resume and _is_folder(self.data, sealed):
            self.entries = entries

    def publish(self) -> None:
        """Move the finished data to its place; what was there before stays until that moment."""
        sealed = {"inode": os.stat(self.data).st_ino}
        self.journal.append({"sealed": sealed})
        with reported(self.folder):
            self._check_target()
            sync([self._partial])
            if not self.folder.exists():
                os.rename(self.data, self.folder)
            elif not exchange(self.data, self.folder):
                self._replace()
            self.is_published = True
            sync([self._partial, self.folder.parent])

    def _replace(self) -> None:
        """Put the data in place of the folder, in two steps: the next run mends what is between."""
        remove(self._old)
        os.rename(self.folder, self._old)
        try:
            os.rename(self.data, self.folder)
        except BaseException:
            os.rename(self._old, self.folder)
            raise

    def _clear(self) -> None:
        self.journal.close()
        with reported(self._partial):
            self._remove_leftovers()
            if self.is_published:
                # It outlives even the folder that it is in: until nothing is left to remove.
                os.replace(self._journal_path, self._done_path)
            else:
                remove(self._journal_path)

    def _remove_leftovers(self) -> None:
        for path in (self._old, self.data, self.spills):
            remove(path)

    def _take_lock(self) -> int:
        path = self._partial / "lock"
        # Not in the loop: a parent that cannot be made now cannot be made later.
        self._partial.parent.mkdir(parents=True, exist_ok=True)
        while True:
            self._partial.mkdir(exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # Another process has just finished and removed the folder.
            if not _try_lock(descriptor):
                os.close(descriptor)
                raise PackError(
                    f"{self._partial}: another process is packing to {self.folder.name}; wait for "
                    "it, or choose another folder"
                )
            with suppress(FileNotFoundError):
                # If not, the lock is on a file that was removed in between.
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)

    def _leave_empty(self) -> None:
        """Remove the folder with its lock, unless something is in it."""
        # Another process may come in between: then the folder is its own.
        with suppress(OSError):
            if set(os.listdir(self._partial)) <= {"lock"}:
                remove(self._partial / "lock")
                self._partial.rmdir()
                if self.is_published:
                    remove(self._done_path)

    def _check_parameters(self, parameters: dict[str, Any]) -> None:
        version = self.entries[0].get("version")
        if version != _VERSION:
            raise PackError(
                f"{self._partial}: was begun by another release of feedline (its journal has "
                f"version {version!r:.80}, not {_VERSION}); resume with that release, or start "
                "over with resume=False"
            )
        differences = _list_differences(self.entries[0].get("parameters", {}), parameters)
        if differences:
            raise PackError(
                f"{self._partial}: was begun with other parameters: {'; '.join(differences):.800}; "
                "use the same to resume, or start over with resume=False"
            )

    def _begin(self, parameters: dict[str, Any]) -> None:
        # The journal first: without it, nobody takes over what is left of the rest.
        for path in (self._journal_path, self.data, self.spills):
            remove(path)
        header = {"format": _FORMAT, "version": _VERSION, "parameters": parameters}
        with closing(Journal(self._journal_path)) as journal:
            journal.append(header)
        sync([self._partial, self._partial.parent])
        self.entries = [header]


def check_apart(paths: Iterable[Path], folder: Path, *, may_hold: bool = True) -> None:
    """Raise if a source is in the folder to write, or contains that folder."""
    target = folder.resolve()
    for path in (path.resolve() for path in paths):
        if path.is_relative_to(target) or (not may_hold and target.is_relative_to(path)):
            beside = "" if may_hold else ", nor contain it"
            raise InvalidValueError(
                f"source={str(path)!r} must not be in folder={str(folder)!r}{beside}; choose "
                "another folder"
            )


def _is_folder(path: Path, sealed: Any) -> bool:
    """Whether this is the folder that was sealed, wherever it was moved since."""
    try:
        return isinstance(sealed, dict) and os.stat(path).st_ino == sealed.get("inode")
    except FileNotFoundError:
        return False


def _header_of(path: Path) -> Entry | None:
    """Return the first line of a journal; None if this is something else."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.readline(2**24))
    except (OSError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) and header.get("format") == _FORMAT else None


def _read_journal(path: Path) -> list[Entry]:
    """Return the complete lines of a journal; an incomplete last line is removed from the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    entries: list[Entry] = []
    num_good = 0
    for line in data.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        entries.append(entry)
        num_good += len(line)
    if num_good < len(data):
        with reported(path):
            os.truncate(path, num_good)
    return entries


def _list_differences(begun: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each parameter that has changed."""
    lines = []
    for name in dict.fromkeys([*begun, *now]):
        before, after = begun.get(name), now.get(name)
        if before == after:
            continue
        if name == "source" and isinstance(before, dict) and isinstance(after, dict):
            lines.append(_source_difference(before, after))
        else:
            lines.append(f"{name}={before!r:.120}, now {after!r:.120}")
    return lines


def _source_difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before.get("kind") != after.get("kind") or "files" not in before:
        return f"source of kind {before.get('kind')!r}, now another {after.get('kind')!r}"
    if [file[0] for file in before["files"]] != [file[0] for file in after["files"]]:
        num_before, num_after = len(before["files"]), len(after["files"])
        return f"source of {several(num_before, 'file')}, now {several(num_after, 'other file')}"
    changed = [b for b, a in zip(before["files"], after["files"], strict=True) if a != b]
    return f"source {changed[0][0]} has changed since (its size or time)"


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
