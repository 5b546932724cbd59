"""The counts of Lightning's loops, taken from the loader.

Everything here that is Lightning's is private there; `lightning.PRIVATE` names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from feedline.errors import PlanMismatchError
from feedline.feed import IterableLoader, LoaderWrapper, PlannedLoader
from feedline.feed.loader import return_to
from feedline.torch.in_lightning import place_in

_COUNTS = ("ready", "started", "processed", "completed")


def is_ours(loader: Any) -> bool:
    """Whether a loader is one of Feedline's."""
    return isinstance(loader, PlannedLoader | IterableLoader | LoaderWrapper)


def stateful(combined: Any) -> list[Any]:
    """Return the loaders that have a state, as Lightning finds them."""
    names = ("state_dict", "load_state_dict")
    return [one for one in combined.flattened if all(hasattr(one, name) for name in names)]


def has_ours(states: list[Any]) -> bool:
    """Whether one of these states is of a loader of Feedline's."""
    return any(map(_is_of_ours, map(_of_first_rank, states)))


def is_closed(loops: dict[str, Any]) -> bool:
    """Whether Lightning has saved between two epochs."""
    counts = loops["epoch_progress"]["current"]
    return bool(counts["ready"] == counts["processed"])


def check_between_steps(loops: dict[str, Any]) -> None:
    """Raise if Lightning alone has saved within a step, with a batch that may be untrained."""
    counts = loops["epoch_loop.batch_progress"]["current"]
    if counts["ready"] != counts["processed"]:
        raise PlanMismatchError(
            f"the checkpoint was saved within the step of batch {counts['processed']}, by a run "
            "without FeedlineCallback, so that batch would be lost; use a checkpoint from between "
            "two steps, and add the callback to every run",
            {"num_batches": (counts["ready"], counts["processed"])},
        )


def _is_of_ours(state: Any) -> bool:
    return isinstance(state, Mapping) and "cursor" in state


def _of_first_rank(state: Any) -> Any:
    return state["ranks"][0] if isinstance(state, Mapping) and "ranks" in state else state


def state_of(loader: Any, num_trained: int) -> Any:
    """Return the state of a loader after the batches of its pass that were trained on."""
    if not is_ours(loader):
        return loader.state_dict()
    # Lightning fetches ahead if there is no length, and an error may come before a step's end.
    num_delivered = 0 if loader.delivered is None else loader.delivered.number + 1
    state = loader.state_before(max(num_delivered - num_trained, 0))
    if isinstance(loader, IterableLoader) and loader.peers.world_size > 1:
        return {"ranks": loader.peers.gather(state, 60.0)}
    return state


def align(loops: dict[str, Any], states: list[Any], counts_batches: bool) -> int:
    """Let the saved progress of Lightning say what the loader says; return the batches it counts.

    A run that `max_steps` has stopped counts its epoch as done, and one that was saved on the last
    step of an epoch does not, unless Lightning finds out itself.

    Args:
        loops: The saved state of the loops.
        states: The saved states of the loaders.
        counts_batches: Whether this release counts the batch in whose end a checkpoint is saved.
    """
    epochs, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    num_done, epoch = batches["current"]["processed"], epochs["current"]["processed"]
    places = [place_in(one) for one in map(_of_first_rank, states) if _is_of_ours(one)]
    # The last batch may have been fetched, and not trained on.
    is_last = batches["is_last_batch"] and batches["current"]["ready"] == num_done
    if len(places) == 1:
        place = places[0]
        has_ended = place.has_ended or (place.has_begun and is_last)
        is_amid, epoch = place.has_begun and not has_ended, place.epoch + has_ended
    else:
        # Of several, Lightning knows which one ends the epoch.
        started, is_amid = epochs["current"]["started"], bool(num_done) and not is_last
        epoch = started - 1 if is_amid else max(started - (started > epoch and not is_last), epoch)
    target = dict(zip(_COUNTS, (epoch + is_amid, epoch + is_amid, epoch, epoch), strict=True))
    for name, count in target.items():
        epochs["total"][name] += count - epochs["current"][name]
        epochs["current"][name] = count
    batches["is_last_batch"] = False
    if not is_amid:
        batches["current"] = dict.fromkeys(_COUNTS, 0)
    if not is_amid or not counts_batches:
        for part in (batches["total"], batches["current"]):
            part.update(dict.fromkeys(_COUNTS, part["processed"]))
    return num_done if is_amid else 0


def begin_epoch(fit_loop: Any, loaders: list[Any], *, skips: bool) -> None:
    """Let Lightning begin an epoch, the next one if nothing is left of this one."""
    progress = fit_loop.epoch_progress
    if skips:
        for part in (progress.total, progress.current):
            part.ready = part.started = part.processed = part.completed = part.processed + 1
    fit_loop.epoch_loop.batch_progress.reset_on_run()
    for loop in (fit_loop, fit_loop.epoch_loop, fit_loop.epoch_loop.val_loop):
        loop._restarting = False
        if hasattr(loop, "reset_restart_stage"):
            loop.reset_restart_stage()
    tell_epoch(fit_loop, loaders)


def begin_anew(fit_loop: Any, loaders: list[Any]) -> None:
    """Let loaders that another run has left in a later epoch begin the one that Lightning is in."""
    epoch = fit_loop.epoch_progress.current.processed
    ours = list(filter(is_ours, loaders))
    if any(place_in(one.state_dict()).has_begun for one in ours):
        # Somebody has loaded a state into it; Lightning will move it, and that is an error.
        return
    if any(one.epoch != epoch for one in ours):
        tell_epoch(fit_loop, ours)
        iter(fit_loop._data_fetcher)


def tell_epoch(fit_loop: Any, loaders: list[Any]) -> None:
    """Move loaders to the epoch that Lightning is in."""
    for loader in filter(is_ours, loaders):
        loader.set_epoch(fit_loop.epoch_progress.current.processed)


def has_ended(loader: Any) -> bool:
    """Whether a loader of ours has nothing left of its epoch."""
    return is_ours(loader) and bool(loader.next_epoch != loader.epoch)


def resume_epoch(fit_loop: Any, loaders: list[Any]) -> None:
    """Let Lightning go on with an epoch that some of its loaders may have ended before others."""
    ended = {id(one): one.state_dict() for one in loaders if has_ended(one)}
    combined = fit_loop._combined_loader
    if combined._mode == "max_size_cycle":
        for loader in loaders:
            if id(loader) in ended:
                loader.set_epoch(loader.next_epoch)
        ended = {}
    # One that Lightning has begun again in this epoch starts over: Lightning will tell it.
    tell_epoch(fit_loop, loaders)
    iter(fit_loop._data_fetcher)
    for number, loader in enumerate(combined.flattened):
        if id(loader) in ended:
            # It gives nothing more until the next epoch, and its state says so.
            combined._iterator.iterators[number] = iter(())
            return_to(loader, ended[id(loader)])


def num_left(trainer: Any, num_done: int) -> float:
    """Return the number of batches that are left of this epoch, after those that are done."""
    combined, limit = trainer.fit_loop._combined_loader, trainer.limit_train_batches
    left = [_left_of(one, limit, num_done) for one in combined.flattened]
    if combined._mode == "min_size":
        return min(left)
    lengths = [_length(one) for one in combined.flattened]
    return max(one for one, length in zip(left, lengths, strict=True) if length == max(lengths))


def _left_of(loader: Any, limit: float, num_done: int) -> float:
    length = _length(loader)
    left = length - num_done
    if is_ours(loader) and length < math.inf:
        left = 0 if num_done and has_ended(loader) else loader.num_batches_left()
    if isinstance(limit, int):
        return max(min(left, limit - num_done), 0)
    # A fraction of the epoch, as it is with these ranks.
    return left if length == math.inf else max(int(length * limit) - (length - left), 0)


def limited(loader: Any, limit: float) -> float:
    """Return the number of batches that Lightning takes from a loader in a whole epoch."""
    return _left_of(loader, limit, 0)


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return math.inf


def set_length(trainer: Any, num_batches: float) -> None:
    """Tell Lightning how many batches this epoch has."""
    trainer.fit_loop.max_batches = num_batches
    interval = trainer.val_check_interval
    if num_batches < math.inf and isinstance(interval, float) and trainer.val_check_batch:
        trainer.val_check_batch = max(1, int(num_batches * interval))
