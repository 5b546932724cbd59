"""Arrays as tensors that share their memory."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


def as_tensor(array: NDArray[Any], type_name: str) -> torch.Tensor:
    """Return an array as a tensor of a column's type, without a copy."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if type_name == "bfloat16" else tensor
