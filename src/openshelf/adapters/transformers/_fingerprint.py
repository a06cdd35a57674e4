"""A name for a model's weights that is equal in every process and differs wherever the KV cache would.

All weights are hashed, not a sample of them: a fine-tuned copy may differ in one matrix. SHA-256 makes about a GiB a
second, once a process; who has a name and a revision to trust gives that instead.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from openshelf.errors import BadInput
from openshelf.space._dtypes import torch_module

# Where a model came from and how it is run do not change what it computes; dtype is part of the Layout.
_NOT_OF_THE_MODEL = frozenset(
    {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"}
)


def fingerprint(model: Any) -> str:
    """The model's type and 128 bits of a SHA-256 over its configuration and all its weights."""
    torch = torch_module()
    digest = hashlib.sha256(b"OSFHFM1\0")
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        if not hasattr(weight, "data_ptr"):
            digest.update(f"\0{name}\0{weight!r}".encode())
            continue
        if weight.device.type == "meta":
            raise BadInput(f"the weight {name!r} is not loaded (device 'meta'): give name=, a name for the weights")
        digest.update(f"\0{name}\0{weight.dtype}\0{tuple(weight.shape)}\0".encode())
        flat = weight.detach().cpu().contiguous().reshape(-1)
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return f"{model.config.model_type}-{digest.hexdigest()[:32]}"
