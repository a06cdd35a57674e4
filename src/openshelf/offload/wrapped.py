"""A module in the place of a model: planned at its first call, run from flash ever after."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from openshelf.errors import BadInput, CaptureFailed
from openshelf.offload.api import ModelPlan, plan
from openshelf.offload.capture.hooks import need_no_hooks
from openshelf.offload.capture.plain_weights import need_plain_weights
from openshelf.offload.capture.tree import flatten, key_of
from openshelf.offload.program.torch import torch
from openshelf.offload.run.arena import SharedArena
from openshelf.offload.run.by_module import ByModule
from openshelf.offload.run.emptied import Emptied, Forward, values_of
from openshelf.offload.run.runner import Runner
from openshelf.offload.weights.packed import Packed
from openshelf.offload.weights.source import need_weights, packed_state, state_of
from openshelf.space import parse_size


class Wrapped(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Calls a model within a budget. Each form and shape of arguments is planned at its first call; all share an arena.

    The weights leave memory at the first call: the model that was given is empty then, and refuses to be called itself,
    until `unwrap()` gives them back. What else the model has, its config say, is found here too.
    """

    def __init__(
        self, model: Any, budget: str | int, folder: Path | str | None, fallback: str | None, **options: Any
    ) -> None:
        super().__init__()
        if fallback is not None and (not isinstance(fallback, str) or fallback != "modules"):
            raise BadInput(f"fallback is 'modules', or None for an error, got {fallback!r}")
        if not isinstance(model, torch.nn.Module):
            raise BadInput(f"a model is a torch.nn.Module, got {type(model).__name__}")
        need_plain_weights(model)
        need_weights(model)
        self._fallback = fallback
        self.model, self._answering = model, Forward(model)
        self._budget, self._folder, self._options = parse_size(budget), folder, options
        self._begin()

    def _begin(self) -> None:
        self.by_module: ByModule | None = None  # once there was something that cannot be planned
        self._plans: dict[Any, ModelPlan] = {}
        self._packed: Packed | None = None
        self._emptied: Emptied | None = None
        self._arena = SharedArena()
        self._loaded: tuple[Any, Runner] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.by_module is None:
            try:
                return self._run(args, kwargs)(*args, **kwargs)
            except CaptureFailed:
                if self._fallback is None or self._packed is not None:  # weights are in the order of a plan already
                    raise
            self.by_module = ByModule(self.model, self._budget, self._folder, self._answering)
        return self.by_module(*args, **kwargs)

    def plan_of(self, *args: Any, **kwargs: Any) -> ModelPlan:
        """The plan for such arguments; it is made if there is none yet."""
        form = self._form(args, kwargs)
        if form not in self._plans:
            with self._answering.answers():
                self._plans[form] = plan(self.model, (args, kwargs), self._budget, **self._options)
        return self._plans[form]

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own `generate`, each call of the model within the budget.

        Each token has a longer cache, and so a plan of its own: `offload.decode` has one for all lengths.
        """
        with self._answering.answers(_signed(self.forward, type(self.model).forward)):
            return self.model.generate(*args, **kwargs)

    def unwrap(self) -> Any:
        """The model, with its weights in memory as before, and as calls have changed them. This can be called anew."""
        if self.by_module is not None:
            self.by_module.give_back()
        elif self._emptied is not None:
            value, changed = self._values()
            if self._loaded is not None:
                self._loaded[1].close()
            self._arena.release()
            self._emptied.give_back(value)
            for name, buffer in self.model.named_buffers():
                if name in changed:
                    with torch.no_grad():
                        buffer.copy_(changed[name])
        self._begin()
        return self.model

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own, at any time: copies of the weights, in memory, as they are now."""
        found = self.model.state_dict(*args, **kwargs)
        emptied, prefix = self._is_empty(), kwargs.get("prefix", args[1] if len(args) > 1 else "")
        if emptied:
            value, changed = self._values()
            for name in state_of(self.model):
                if prefix + name in found and (found[prefix + name].is_meta or name in changed):
                    found[prefix + name] = value(name)
        return found

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_empty():
            raise BadInput("the weights left memory at the first call: unwrap() before load_state_dict")
        return self.model.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "model" not in self._modules:
                raise
            return getattr(self.model, name)

    def _is_empty(self) -> bool:
        return self._emptied is not None or (self.by_module is not None and self.by_module.is_empty)

    def _values(self) -> tuple[Callable[[str], Any], dict[str, Any]]:
        """Weights by name as they are now; and those that calls have changed."""
        packed = self._packed if self.by_module is None else self.by_module.packed
        assert packed is not None
        changed = {} if self._loaded is None else self._loaded[1].changed_state()
        there = values_of(packed)
        return lambda name: changed[name] if name in changed else there(name), changed

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a plan is for: such arguments, and whether each module trains."""
        return _form(args, kwargs), tuple(module.training for module in self.model.modules())

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Runner:
        """What runs such arguments."""
        need_no_hooks(self.model)
        form = self._form(args, kwargs)
        if self._loaded is None or self._loaded[0] != form:
            self._loaded = (form, self._load(args, kwargs))
        return self._loaded[1]

    def _load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Runner:
        made = self.plan_of(*args, **kwargs)
        if self._loaded is not None and self._loaded[1].changes_state:
            raise BadInput(
                "this model changes its own state (buffers, or weights in training), which is in a run for another "
                "form or shape of arguments and would be lost: call it with the same shapes, or plan each and hand the "
                "state on (run.save)"
            )
        if self._packed is None:
            self._packed = packed_state(made.captured, state_of(self.model), self._folder, whole=True)
            self._emptied = Emptied(self.model, self._answering)
        if self._loaded is not None:
            (_, run), self._loaded = self._loaded, None
            run.close()
        arena = self._arena.of(made.plan.peak)
        return Runner(made.captured, made.plan, self._packed, folder=self._folder, arena=arena)


def _signed(forward: Any, own: Any) -> Any:
    """`forward` with the signature of the model's own, which generate() looks at."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    parameters = list(inspect.signature(own).parameters.values())[1:]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


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
