"""Run and train models larger than their memory, by a plan: docs/offload.md.

What needs torch is imported when it is first asked for: planning a Program, and moving bytes, do without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.offload._plan import Plan
from openshelf.offload._program import Op, Program, Storage
from openshelf.offload._rates import Lane, Rates
from openshelf.offload._steps import Detach, Prefetch, Run, Step, Store, Wait

if TYPE_CHECKING:
    from openshelf.offload._buckets import Buckets, buckets
    from openshelf.offload._compared import Check
    from openshelf.offload._decoder import Decoder, decode
    from openshelf.offload._model_plan import ModelPlan, plan
    from openshelf.offload._runner import Runner
    from openshelf.offload._wrap import Wrapped, wrap

_WITH_TORCH = {
    "Buckets": "_buckets",
    "Check": "_compared",
    "Decoder": "_decoder",
    "ModelPlan": "_model_plan",
    "Runner": "_runner",
    "Wrapped": "_wrap",
    "buckets": "_buckets",
    "decode": "_decoder",
    "plan": "_model_plan",
    "wrap": "_wrap",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)


__all__ = [
    "Buckets",
    "Check",
    "Decoder",
    "Detach",
    "Lane",
    "ModelPlan",
    "Op",
    "Plan",
    "Prefetch",
    "Program",
    "Rates",
    "Run",
    "Runner",
    "Step",
    "Storage",
    "Store",
    "Wait",
    "Wrapped",
    "buckets",
    "decode",
    "plan",
    "wrap",
]
