"""A user's hooks: a captured model runs them once, while it is captured, and never again.

Hooks of torch itself and of transformers are part of what a model computes (norms of weights, outputs that are asked
for) and are captured with it. What a user registers to see or change what passes by would be missed without a word.
"""

from __future__ import annotations

from typing import Any

from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload.program.torch import torch

_FORWARD = {"_forward_pre_hooks": "forward pre-hook", "_forward_hooks": "forward hook"}
_BACKWARD = {"_backward_pre_hooks": "backward pre-hook", "_backward_hooks": "backward hook"}
_KNOWN = ("torch.", "transformers.", "openshelf.")


def need_no_hooks(model: Any, *, training: bool = False) -> None:
    """CaptureFailed if a user has hooks on modules; for training, on parameters too."""
    found = [
        *(f"a {what} on every module, {_name(hook)}" for what, hook in _everywhere()),
        *_of_modules(model, {**_FORWARD, **_BACKWARD}),
        *(_of_parameters(model) if training else ()),
    ]
    if found:
        raise CaptureFailed(
            f"{'; '.join(found[:3])}{'; ...' if found[3:] else ''}: it would run while the model is captured, and "
            "never again: remove it, put what it does in a module's forward, or use wrap(..., fallback='modules'), "
            "where forward hooks run"
        )


def need_no_backward_hooks(model: Any) -> None:
    """BadInput: module by module there are no gradients."""
    if found := _of_modules(model, _BACKWARD):
        raise BadInput(
            f"{'; '.join(found[:3])}: module by module there are no gradients, so that it would never run: remove it"
        )


def _of_modules(model: Any, kinds: dict[str, str]) -> list[str]:
    return [
        f"{path or 'the model'} has a {what}, {_name(hook)}"
        for path, module in model.named_modules()
        for table, what in kinds.items()
        for hook in getattr(module, table).values()
        if _is_users(hook)
    ]


def _of_parameters(model: Any) -> list[str]:
    return [
        f"the parameter {name!r} has a hook, {_name(hook)}"
        for name, one in model.named_parameters()
        for table in (one._backward_hooks, one._post_accumulate_grad_hooks)
        for hook in (table or {}).values()
        if _is_users(hook)
    ]


def _everywhere() -> list[tuple[str, Any]]:
    module: Any = torch.nn.modules.module
    return [
        (what, hook)
        for table, what in {**_FORWARD, **_BACKWARD}.items()
        for hook in getattr(module, f"_global{table}").values()
        if _is_users(hook)
    ]


def _is_users(hook: Any) -> bool:
    function = getattr(hook, "func", hook)  # of a partial
    where = getattr(function, "__module__", None) or type(function).__module__
    return not where.startswith(_KNOWN)


def _name(hook: Any) -> str:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__qualname__", type(function).__qualname__))
