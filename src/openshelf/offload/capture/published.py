"""What transformers knows of a model's checkpoints: other names, and tensors that its model has in one.

Checkpoints of Mixtral have a tensor for each matrix of each expert, and the model has one for all of a layer. What
turns the ones into the others is transformers' own; here is what it needs to be asked later, when the model is gone.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

from openshelf.offload.program.torch import torch


@dataclasses.dataclass(frozen=True)
class Published:
    """A model of transformers without its tensors, which are on the meta device here.

    `transforms` are its WeightRenamings and WeightConverters, in order. These may ask the model for a parameter.
    """

    transforms: tuple[Any, ...]
    base_model_prefix: str
    config: Any
    tensors: dict[str, Any]

    def get_parameter(self, name: str) -> Any:
        return self.tensors[name]


def published_of(model: Any) -> Published | None:
    """None for what is no model of transformers: its checkpoints have the names that it has."""
    if "transformers.modeling_utils" not in sys.modules:
        return None
    modeling: Any = importlib.import_module("transformers.modeling_utils")
    model = next(iter(model.modules()))  # itself, whatever stands in its place
    if not isinstance(model, modeling.PreTrainedModel):
        return None
    mapping: Any = importlib.import_module("transformers.conversion_mapping")
    tensors = {
        name: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
        for name, one in model.state_dict().items()
        if isinstance(one, torch.Tensor)
    }
    transforms = tuple(mapping.get_model_conversion_mapping(model))
    return Published(transforms, model.base_model_prefix, model.config, tensors)
