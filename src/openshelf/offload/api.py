"""From a model to a plan and from a plan to a run: what users call."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf._sizes import flag, seconds_of, text_of, whole
from openshelf.errors import BadInput, CaptureFailed
from openshelf.fabric import Fabric
from openshelf.offload.capture.arguments import arguments_of
from openshelf.offload.capture.capture import capture, capture_training
from openshelf.offload.capture.captured import Captured
from openshelf.offload.capture.fake_kernels import OF_THIS_PROCESS, KernelStrides
from openshelf.offload.measure.operators import measured
from openshelf.offload.measure.transfers import CALIBRATING, rates_of
from openshelf.offload.planner.explain import no_such_storage
from openshelf.offload.planner.plan import Plan, make_plan
from openshelf.offload.planner.simulate import Times
from openshelf.offload.program.foreign import told_as
from openshelf.offload.program.out_forms import OtherStrides
from openshelf.offload.program.rates import Rates
from openshelf.offload.program.torch import torch
from openshelf.offload.run.compare import Check, compare
from openshelf.offload.run.footprint import footprint, resident
from openshelf.offload.run.runner import Runner
from openshelf.offload.weights.source import packed_from
from openshelf.space import format_size, parse_size


class ModelPlan:
    """A plan for one model, one shape of inputs and one budget. It can be printed, loaded and checked."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        example: tuple[tuple[Any, ...], dict[str, Any]],
        before: int | None = None,
        calibrated: int = 0,
    ) -> None:
        self.captured, self.plan, self._example = captured, plan, example
        self.expects = footprint(captured, plan, resident() if before is None else before, calibrated)
        self.outside = max(captured.outside, default=0)

    @property
    def peak(self) -> int:
        """Bytes that the run takes: the arena, and what torch takes beside it for one operator."""
        return self.plan.peak + self.outside

    @property
    def expected_peak(self) -> int:
        """Bytes that this process takes at most, all in all, to plan, load and run; `expects` says of what."""
        return self.expects.peak

    def load(self, source: Any, *, share: bool = False, folder: Path | str | None = None) -> Runner:
        """Brings the weights home and takes the arena: a callable that returns what the model would.

        `source`: the model, with its weights in memory; or a path: a safetensors checkpoint (file, index or folder),
        which is streamed into a packed file and kept there for next time, or what `Runner.save` wrote. `share`: weights
        are in host memory once for all processes of this machine that share them. `folder`: where packed and scratch
        files are made; by default the cache's.
        """
        if flag(share, "share") and isinstance(source, torch.nn.Module):
            raise BadInput("share=True needs a checkpoint that all processes can open: give load() its path")
        with told_as(BadInput, "the plan cannot be loaded"):
            packed = packed_from(self.captured, source, folder)
            return Runner(self.captured, self.plan, packed, share=share, folder=folder)

    def check(self, repeats: int = 5, folder: Path | str | None = None) -> Check:
        """Runs the plan on made-up weights, and compares time and memory with the prediction."""
        return compare(self.captured, self.plan, [self._example] * len(self.captured.inputs), repeats, folder)

    def explain(self, name: str) -> str:
        """Why a storage is where it is when; a parameter may be named as in the model."""
        text_of(name, "the name of a storage")
        for index, names in self.captured.names.items():
            if name in names:
                return self.plan.explain(self.captured.program.storages[index].name)
        storages = [storage.name for storage in self.captured.program.storages]
        if name not in storages:
            raise no_such_storage(name, [*(one for names in self.captured.names.values() for one in names), *storages])
        return self.plan.explain(name)

    def timeline(self) -> Times:
        """Predicted times with a span for all that compute and the lanes do."""
        return self.plan.timeline()

    def __str__(self) -> str:
        beside = f"beside   up to {format_size(self.outside)} that torch takes while one operator runs"
        return "\n  ".join([str(self.plan), beside, str(self.expects), *self._hurried()])

    def _hurried(self) -> list[str]:
        late, kinds = self.captured.hurried, len({call.signature for call in self.captured.calls})
        more = ", ..." if late[3:] else ""
        said = f"hurried  the time was over: {len(late)} of {kinds} kinds of operators were timed once, not in rounds"
        return [f"{said} ({', '.join(late[:3])}{more})"] if late else []


def plan(
    model: Any,
    inputs: Any,
    budget: str | int,
    *,
    optimizer: Any = None,
    train: bool = False,
    loss: Callable[[Any], Any] | None = None,
    micro: int = 1,
    clip: float | None = None,
    dram: str | int = 0,
    stay: bool = True,
    fabric: str | Fabric | Rates = "local",
    time_limit: float = 10.0,
    cache: bool = True,
) -> ModelPlan:
    """Plans to run `model`, or to train it, within `budget` bytes of memory.

    `inputs`: a tensor, a tuple of arguments, a dict of keyword arguments, or a tuple of both, like those of the calls
    to come; weights may be on the meta device. With `optimizer` (torch.optim SGD, Adam, AdamW, Adafactor, Muon) or
    `train` the plan is for whole steps of training; see `capture_training` for loss, micro and clip. `dram`: bytes of
    host memory, beside the budget, for what is not in use. `stay`: weights and states for which there is room stay in
    the arena from call to call; without, every call begins with an empty one. `fabric`: what the machine is; "local" is
    what `openshelf probe` found, or is measured in a second if it was never run. `time_limit`: seconds for timing
    operators, half of it at most, and for the search; each kind of operator is run twice in any case. NoRoom names the
    least budget that works.
    """
    before, begun = resident(), time.monotonic()
    room, host = parse_size(budget), 0 if str(dram).strip() == "0" else parse_size(dram)
    args, kwargs = arguments_of(inputs)
    train, stay, cache = flag(train, "train"), flag(stay, "stay"), flag(cache, "cache")
    micro, time_limit = whole(micro, "micro"), seconds_of(time_limit, "time_limit")
    trains = optimizer is not None or train or loss is not None
    if not trains and (micro != 1 or clip is not None):
        raise BadInput(f"micro={micro} and clip={clip} are for training: give an optimizer, a loss, or train=True")
    if trains:
        captured = _captured(
            lambda strides: capture_training(
                model, args, kwargs, loss=loss, optimizer=optimizer, micro=micro, clip=clip, strides=strides
            ),
            time_limit / 2,
        )
    else:
        captured = _captured(lambda strides: capture(model, args, kwargs, strides=strides), time_limit / 2)
    beside = max(captured.outside, default=0)
    left = max(time_limit - (time.monotonic() - begun), time_limit / 2)
    made = make_plan(
        captured.program, room - beside, rates_of(fabric), dram=host, stay=stay, time_limit=left, cache=cache,
        beside=beside,
    )  # fmt: skip
    calibrated = CALIBRATING if isinstance(fabric, str) and fabric == "local" else 0
    return ModelPlan(captured, made, (args, kwargs), before, calibrated)


def _captured(record: Callable[[KernelStrides], Captured], time_limit: float) -> Captured:
    """Captured and measured; captured once more if kernels lay results out otherwise than their fake forms did."""
    while True:
        try:
            captured = record(OF_THIS_PROCESS)
            with told_as(CaptureFailed, "the model was captured, and its operators cannot be timed"):
                return measured(captured, time_limit=time_limit, formats=True)
        except OtherStrides as error:
            if not OF_THIS_PROCESS.learn(error.found):
                raise
