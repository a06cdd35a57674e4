"""A name for a model that is equal in every process and differs wherever the KV cache would.

All weights are hashed, not a sample of them: a fine-tuned copy may differ in one matrix. Buffers that are not saved,
the kinds of the modules and their settings are hashed, too, since they may be changed after a model was made. SHA-256
makes about a GiB a second, once a process; who has a name and a revision to trust gives that instead.
"""

from __future__ import annotations

import hashlib
from typing import Any

from openshelf.adapters.transformers.digest import feed
from openshelf.adapters.transformers.reach import changing_buffers
from openshelf.errors import BadInput

# Where a model came from and how it is run do not change what it computes; dtype is part of the Layout.
_NOT_OF_THE_MODEL = frozenset(
    {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"}
)
_NOT_OF_A_MODULE = frozenset({"training", "name_or_path", "gradient_checkpointing", "max_seq_len_cached"})
_SETTINGS = (bool, int, float, str)
_OURS = ("openshelf.", "transformers.utils.output_capturing")  # they look at what is computed, and leave it


def fingerprint(model: Any) -> str:
    """The model's type and 128 bits of a SHA-256 over its configuration, its modules and all its weights.

    BadInput, naming the weight or module, where it cannot tell what the model computes."""
    digest = hashlib.sha256(b"OSFHFM2\0")
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
    feed(digest, "the configuration", config)
    for name, module in model.named_modules():
        _check_computed_by_its_kind(name or "the model", module)
        feed(digest, name, [f"{type(module).__module__}.{type(module).__qualname__}", settings_of(module)])
    weights = dict(model.state_dict(keep_vars=True))  # copies lose what tensors keep beside their bytes
    left_out = changing_buffers(model)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name not in left_out:
            weights.setdefault(name, buffer)
    for name, weight in sorted(weights.items()):
        feed(digest, f"the weight {name!r}", weight)
    return f"{model.config.model_type}-{digest.hexdigest()[:32]}"


def settings_of(module: Any) -> dict[str, Any]:
    """A module's plain values: its scaling, an epsilon, whether it is causal."""
    return {
        name: value
        for name, value in vars(module).items()
        if type(value) in _SETTINGS and name not in _NOT_OF_A_MODULE and not name.startswith("_")
    }


def foreign_hooks(module: Any) -> list[Any]:
    """Hooks that may change what a module takes or returns: neither ours nor those by which transformers looks on."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return [hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith(_OURS)]


def _check_computed_by_its_kind(name: str, module: Any) -> None:
    """BadInput if something that cannot be hashed stands between a module's weights and what it returns."""
    remedy = "give name=, a name for the model that differs wherever what it computes does"
    if hooks := foreign_hooks(module):
        raise BadInput(f"{name} has a hook, {hooks[0]!r}, that may change what the model computes: {remedy}")
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):  # accelerate's only moves tensors
        raise BadInput(f"{name} has a forward of its own, {vars(module)['forward']!r}: {remedy}")
