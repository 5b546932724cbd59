"""A Ray cluster: tasks on it, a bounded number at once, and what to say when they fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from feedline.errors import FeedlineError, InvalidValueError, PackError
from feedline.store.extras import import_ray
from feedline.words import several

Key = TypeVar("Key")
# Of tasks whose worker or node died.
_MAX_RETRIES = 10


@dataclass(frozen=True)
class _Failed:
    """What a task returns in place of a result: Ray prints errors that nobody has asked for."""

    error: FeedlineError


class Cluster:
    """Runs functions as tasks, each on one core.

    Args:
        ray: The module, which is connected.
        task_bytes: The memory that a task takes; 0 if it is little.
        num_tasks: The most tasks at once; by default twice the number of cores.
        error: What is raised if a task is lost for good.
        remedy: What its message ends with.
    """

    def __init__(
        self,
        ray: Any,
        *,
        task_bytes: int,
        num_tasks: int | None,
        error: type[FeedlineError] = PackError,
        remedy: str = "finished work is kept; see to the nodes, and pack again to resume",
    ) -> None:
        self._ray = ray
        self._num_tasks = num_tasks
        self._error, self._remedy = error, remedy
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        largest = int(max((node.get("memory", 0) for node in nodes), default=0))
        if task_bytes > largest:
            raise InvalidValueError(
                f"memory_budget={task_bytes} must be at most {largest}, the memory of the largest "
                "node, because each task takes so much; use a smaller one"
            )
        # Sent to the cluster once.
        self._attempt = ray.remote(_attempt)
        self._options = {"num_cpus": 1, "memory": task_bytes, "max_retries": _MAX_RETRIES}

    @property
    def max_waiting(self) -> int:
        """How many tasks to submit at once; nodes may come and go."""
        return self._num_tasks or 2 * int(self._ray.cluster_resources().get("CPU", 1))

    def put(self, value: Any) -> Any:
        """Return a reference to a value that tasks share."""
        return self._ray.put(value)

    def can_hold(self, value: Any) -> bool:
        """Whether a value can be sent to other processes."""
        try:
            self._ray.cloudpickle.dumps(value)
        except Exception:
            # A store of the user's own may have anything in it.
            return False
        return True

    def submit(self, function: Callable[..., Any], *arguments: Any, num_returns: int = 1) -> Any:
        """Begin a task; return a reference to its result, or one for each."""
        options = {**self._options, "name": function.__name__, "num_returns": num_returns}
        return self._attempt.options(**options).remote(function, num_returns, *arguments)

    def get(self, reference: Any) -> Any:
        """Return the result of a task, or raise its error."""
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise self._error(
                f"a task was lost {several(_MAX_RETRIES + 1, 'time')} ({error!s:.500}); "
                f"{self._remedy}"
            ) from None
        if isinstance(found, _Failed):
            raise found.error
        return found

    def results(self, calls: Iterator[tuple[Key, Any]]) -> Iterator[tuple[Key, Any]]:
        """Yield the results of tasks as they come; no more are begun than may wait."""
        waiting: dict[Any, Key] = {}
        try:
            while True:
                call = next(calls, None) if len(waiting) < self.max_waiting else None
                if call is not None:
                    waiting[call[1]] = call[0]
                if not waiting:
                    return
                # What is done is noted at once, also while there is room for more.
                seconds = None if call is None else 0
                for reference in self._ray.wait(list(waiting), timeout=seconds)[0]:
                    key = waiting.pop(reference)
                    yield key, self.get(reference)
        finally:
            for reference in waiting:
                self._ray.cancel(reference)

    def in_order(self, calls: Iterator[Any]) -> Iterator[Any]:
        """Yield the results of tasks in their order; no more are begun than may wait."""
        waiting: deque[Any] = deque()
        try:
            while True:
                call = next(calls, None) if len(waiting) < self.max_waiting else None
                if call is not None:
                    waiting.append(call)
                elif not waiting:
                    return
                else:
                    yield self.get(waiting.popleft())
        finally:
            for reference in waiting:
                self._ray.cancel(reference)


def _attempt(function: Callable[..., Any], num_returns: int, *arguments: Any) -> Any:
    """Return what a function returns; if it fails for a reason of ours, that in each place."""
    try:
        return function(*arguments)
    except FeedlineError as error:
        failed = _Failed(error)
        return failed if num_returns == 1 else (failed,) * num_returns


@contextmanager
def connected() -> Iterator[Any]:
    """Connect to Ray, as `ray.init()` does, unless the process is connected already."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    ray.init(log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()
