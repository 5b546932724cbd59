"""The state of a loader in Orbax checkpoints. Needs the extra `feedline[orbax]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp

from feedline.errors import CursorFormatError, InvalidValueError

_FILE = "feedline.json"
_NEEDS = ("state_dict", "load_state_dict")


class LoaderHandler(ocp.AsyncCheckpointHandler):
    """Saves what `LoaderSave` has, and restores it for `LoaderRestore`.

    The state is the same in every process, so one file has it, however many processes there are,
    and however many restore it.

    Examples:
        >>> LoaderHandler()  # doctest: +ELLIPSIS
        <feedline.trainers.orbax.LoaderHandler object at ...>
    """

    def __init__(self) -> None:
        self._json = ocp.JsonCheckpointHandler(_FILE)

    async def async_save(
        self, directory: Any, item: Any = None, args: LoaderSave | None = None
    ) -> Any:
        """Begin to write the state that the loader had when the arguments were made."""
        assert args is not None
        return await self._json.async_save(directory, args=ocp.args.JsonSave(args.state))

    def save(self, directory: Any, item: Any = None, args: LoaderSave | None = None) -> None:
        """Write the state that the loader had when the arguments were made."""
        assert args is not None
        self._json.save(directory, args=ocp.args.JsonSave(args.state))

    def restore(
        self, directory: Any, item: Any = None, args: LoaderRestore | None = None
    ) -> Mapping[str, Any]:
        """Load the state into the loader, and return it; an error changes nothing."""
        if not (directory / _FILE).exists():
            raise CursorFormatError(
                f"{directory} has no {_FILE}, so it is not the state of a loader; name the item "
                "that was saved with LoaderSave"
            )
        state: Mapping[str, Any] = self._json.restore(directory)
        if args is not None and args.loader is not None:
            args.loader.load_state_dict(state)
        return state

    def finalize(self, directory: Any) -> None:
        """Do nothing: the file is whole once it is written."""

    def close(self) -> None:
        """Release what writes the file."""
        self._json.close()


@ocp.args.register_with_handler(LoaderHandler, for_save=True)
@dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """Saves the state of a loader, as it is now, in an Orbax checkpoint.

    Pass it beside the other items, in every process, as
    `ocp.args.Composite(params=ocp.args.StandardSave(params), data=LoaderSave(loader))`. What the
    loader delivers while the checkpoint is written does not change it.

    Args:
        loader: A loader, or a clock such as `StepScheduler`.

    Examples:
        >>> from feedline.jax import DataLoader
        >>> LoaderSave(DataLoader(range(8), batch_size=2)).state["epoch"]
        0
    """

    loader: Any

    def __post_init__(self) -> None:
        _check(self.loader)
        self.state = self.loader.state_dict()


@ocp.args.register_with_handler(LoaderHandler, for_restore=True)
@dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """Loads the state of a loader from an Orbax checkpoint, on any number of processes.

    Args:
        loader: The loader that resumes; None only returns the state.

    Examples:
        >>> LoaderRestore().loader is None
        True
    """

    loader: Any = None

    def __post_init__(self) -> None:
        if self.loader is not None:
            _check(self.loader)


def _check(loader: Any) -> None:
    lacks = [name for name in _NEEDS if not callable(getattr(loader, name, None))]
    if lacks:
        raise InvalidValueError(
            f"loader={loader!r:.80} must have {' and '.join(lacks)}; pass a loader, such as "
            "feedline.jax.DataLoader"
        )
