"""A data loader for JAX, its processes, and the clock of a run. Needs the extra `feedline[jax]`."""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "feedline.jax needs jax, which is not installed; install feedline[jax]", name="jax"
    ) from None

from feedline.jax.loader import DataLoader
from feedline.jax.mesh import MeshPeers
from feedline.jax.peers import JaxPeers
from feedline.steps import StepScheduler, StepSchedulerConfig

__all__ = ["DataLoader", "JaxPeers", "MeshPeers", "StepScheduler", "StepSchedulerConfig"]
