"""Run and train models larger than their memory, by a plan: docs/offload.md.

Most names here are for users. Benchmarks and the tour also measure (`calibrate`, `measured`, `simulate`) and stream
weights themselves (`Homes`, `Mover`, `Packed`, `pack_state`). What needs torch is imported when it is first asked for:
planning a Program does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.simulate import Change, Span, simulate
from openshelf.offload.program.lifetimes import lifetimes
from openshelf.offload.program.program import Op, Program, Storage
from openshelf.offload.program.rates import Lane, Rates
from openshelf.offload.program.steps import Detach, Prefetch, Run, Step, Store, Wait

if TYPE_CHECKING:
    from openshelf.offload.api import ModelPlan, plan
    from openshelf.offload.capture.arguments import arguments_of
    from openshelf.offload.decoder.decoder import Decoder, decode
    from openshelf.offload.measure.operators import measured
    from openshelf.offload.measure.transfers import calibrate
    from openshelf.offload.move.homes import Homes
    from openshelf.offload.move.mover import Mover
    from openshelf.offload.program.torch import torch
    from openshelf.offload.run.buckets import Buckets, buckets
    from openshelf.offload.run.compare import Check
    from openshelf.offload.run.runner import Runner
    from openshelf.offload.weights.pack import pack_state
    from openshelf.offload.weights.packed import Packed
    from openshelf.offload.wrapped import Wrapped, wrap

_LATER = {
    "Buckets": "run.buckets",
    "Check": "run.compare",
    "Decoder": "decoder.decoder",
    "Homes": "move.homes",
    "ModelPlan": "api",
    "Mover": "move.mover",
    "Packed": "weights.packed",
    "Runner": "run.runner",
    "Wrapped": "wrapped",
    "arguments_of": "capture.arguments",
    "buckets": "run.buckets",
    "calibrate": "measure.transfers",
    "decode": "decoder.decoder",
    "measured": "measure.operators",
    "pack_state": "weights.pack",
    "plan": "api",
    "torch": "program.torch",
    "wrap": "wrapped",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = [
    "Buckets",
    "Change",
    "Check",
    "Decoder",
    "Detach",
    "Homes",
    "Lane",
    "ModelPlan",
    "Mover",
    "Op",
    "Packed",
    "Plan",
    "Prefetch",
    "Program",
    "Rates",
    "Run",
    "Runner",
    "Span",
    "Step",
    "Storage",
    "Store",
    "Wait",
    "Wrapped",
    "arguments_of",
    "buckets",
    "calibrate",
    "decode",
    "lifetimes",
    "make_plan",
    "measured",
    "pack_state",
    "plan",
    "simulate",
    "torch",
    "wrap",
]
