"""Run and train models larger than their memory, by a plan: docs/offload.md."""

from openshelf.offload._model_plan import Check, ModelPlan, plan
from openshelf.offload._plan import Plan
from openshelf.offload._program import Op, Program, Storage
from openshelf.offload._rates import Lane, Rates
from openshelf.offload._runner import Runner
from openshelf.offload._steps import Detach, Prefetch, Run, Step, Store, Wait
from openshelf.offload._wrap import Wrapped, wrap

__all__ = [
    "Check",
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
    "plan",
    "wrap",
]
