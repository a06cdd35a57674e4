"""A module in the place of a model: planned at its first call, run from flash ever after."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from openshelf._core import DeviceArena
from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload._by_module import ByModule
from openshelf.offload._model_plan import ModelPlan, plan
from openshelf.offload._packed import Packed
from openshelf.offload._runner import Runner, packed_state, state_of
from openshelf.offload._torch import torch
from openshelf.offload._tree import flatten, key_of
from openshelf.space import parse_size


class Wrapped(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Calls a model within a budget. Each form and shape of arguments is planned at its first call; all share an arena.

    The weights leave memory at the first call: the model that was given is empty then, and must not be called itself.
    """

    def __init__(
        self, model: Any, budget: str | int, folder: Path | str | None, fallback: str | None, **options: Any
    ) -> None:
        super().__init__()
        if fallback not in (None, "modules"):
            raise BadInput(f"fallback is 'modules', or None for an error, got {fallback!r}")
        self._fallback = fallback
        self.by_module: ByModule | None = None  # once there was something that cannot be planned
        self.model = model
        self._budget, self._folder, self._options = parse_size(budget), folder, options
        self._plans: dict[Any, ModelPlan] = {}
        self._packed: Packed | None = None
        self._arena: DeviceArena | None = None
        self._loaded: tuple[Any, Runner] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.by_module is None:
            form = self._form(args, kwargs)
            try:
                if self._loaded is None or self._loaded[0] != form:
                    self._loaded = (form, self._load(form, args, kwargs))
                return self._loaded[1](*args, **kwargs)
            except CaptureFailed:
                if self._fallback is None or self._packed is not None:  # weights are in the order of a plan already
                    raise
            self.by_module = ByModule(self.model, self._budget, self._folder)
        return self.by_module(*args, **kwargs)

    def plan_of(self, *args: Any, **kwargs: Any) -> ModelPlan:
        """The plan for such arguments; it is made if there is none yet."""
        form = self._form(args, kwargs)
        if form not in self._plans:
            self._plans[form] = plan(self.model, (args, kwargs), self._budget, **self._options)
        return self._plans[form]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._need_weights("state_dict")
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._need_weights("load_state_dict")
        return super().load_state_dict(*args, **kwargs)

    def _need_weights(self, what: str) -> None:
        if self._packed is not None or self.by_module is not None:
            raise BadInput(f"the weights left memory at the first call: {what} before that, or wrap the model anew")

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a plan is for: such arguments, and whether each module trains."""
        return _form(args, kwargs), tuple(module.training for module in self.model.modules())

    def _load(self, form: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Runner:
        made = self.plan_of(*args, **kwargs)
        if self._loaded is not None and self._loaded[1].changes_state:
            raise BadInput(
                "this model changes its own state (buffers, or weights in training), which is in a run for another "
                "form or shape of arguments and would be lost: call it with the same shapes, or plan each and hand the "
                "state on (run.save)"
            )
        if self._packed is None:
            self._packed = packed_state(made.captured, state_of(self.model), self._folder, whole=True)
            _empty(self.model)
        if self._loaded is not None:
            (_, run), self._loaded = self._loaded, None
            run.close()
        if self._arena is None or self._arena.nbytes < made.plan.peak:
            self._arena = None  # the old one goes first
            self._arena = DeviceArena(max(made.plan.peak, 4096))
        return Runner(made.captured, made.plan, self._packed, folder=self._folder, arena=self._arena)


def _empty(model: Any) -> None:
    """Takes the parameters' memory away; those that are tied stay so. Buffers are small, and stay."""
    known: dict[int, tuple[Any, Any]] = {}  # the old one is kept until all are replaced: its id is not given out again
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
                module._parameters[name] = known.setdefault(id(parameter), (parameter, empty))[1]


def _form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Equal for arguments that one plan fits."""
    flat = flatten((args, dict(sorted(kwargs.items()))))
    known = tuple(
        (tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else key_of(one) for one in flat.leaves
    )
    return known, flat.tree


def wrap(
    model: Any,
    budget: str | int,
    *,
    folder: Path | str | None = None,
    fallback: Literal["modules"] | None = None,
    **options: Any,
) -> Wrapped:
    """`model`, to be called as before, in at most `budget` bytes of memory; `options` are those of plan().

    What cannot be planned because it depends on values raises CaptureFailed, which names module and line. With
    fallback="modules" such a model runs without a plan: weights, which alone are counted then, come and go with the
    modules that use them.
    """
    return Wrapped(model, budget, folder, fallback, **options)
