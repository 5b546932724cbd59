"""The clock of a run, for processes of JAX. Needs `pip install feedline[jax]`."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "feedline.jax needs jax, which is not installed; install feedline[jax]", name="jax"
    ) from None

from feedline.jax.step_scheduler import JaxPeers, StepScheduler, StepSchedulerConfig

__all__ = ["JaxPeers", "StepScheduler", "StepSchedulerConfig"]
