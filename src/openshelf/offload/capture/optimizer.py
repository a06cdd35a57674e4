"""Updates of parameters as calls of a program: one for each parameter, right after its gradient is complete.

Most updates are elementwise, so they run in pieces, through a scratch as large as one piece; others run as a whole.
Pieces end where torch's own vector loops may end: a kernel that uses fused multiply-add in its vector loop and not for
the last few elements rounds those differently, and torch has a last few elements at the end of each thread's range.
With N threads, n elements are split in N ranges if there are 32768 or more; our pieces are whole multiples of 32768
from the beginning of a range.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from openshelf.errors import BadInput, CaptureFailed, Mismatch
from openshelf.offload.capture.update_rules import Rule, numbers, rule_of
from openshelf.offload.program.call import Call, OwnKernel, View, span
from openshelf.offload.program.torch import torch

GRAIN = 32768  # at::internal::GRAIN_SIZE


@dataclasses.dataclass(frozen=True)
class Update(OwnKernel):
    """The kernel of a call that updates a parameter: args are parameter, gradient, states."""

    rule: Rule
    item: int  # bytes of an element
    piece: int  # elements of the largest piece
    threads: int

    def __str__(self) -> str:
        return self.rule.name

    @property
    def scratches(self) -> int:
        return self.rule.scratch

    @property
    def workspace(self) -> int:
        return self.rule.scratch * self.piece * self.item

    def bind(self, tensors: list[Any], scratch: list[Any]) -> Callable[[], None]:
        param, grad, *states = tensors
        runs = []
        if self.rule.whole:
            runs.append((param, grad, tuple(states), ()))
        elif any(one.stride() != param.stride() for one in (grad, *states)):
            runs.append(
                (param, grad, tuple(states), tuple(one.as_strided(param.shape, param.stride()) for one in scratch))
            )
        else:
            flat = [one.as_strided((one.numel(),), (1,)) for one in (param, grad, *states)]
            for begin, end in pieces(param.numel(), self.threads):
                one, two, *rest = (tensor[begin:end] for tensor in flat)
                runs.append((one, two, tuple(rest), tuple(room[: end - begin] for room in scratch)))
        apply = self.rule.apply

        def update() -> None:
            for run in runs:
                apply(*run)

        return update


def pieces(count: int, threads: int) -> Iterator[tuple[int, int]]:
    """Where pieces of `count` elements begin and end, none longer than 32768 elements a thread."""
    ranges = min(threads, -(-count // GRAIN)) if count >= GRAIN else 1
    length = -(-count // ranges) if count else 0
    for first in range(0, count, length or 1):
        at, last = first, min(first + length, count)
        while at < last:
            whole = min((last - at) // GRAIN, threads) * GRAIN
            end = at + (whole or last - at)
            yield at, end
            at = end


class Updates:
    """The optimizer of a captured training step: rules and the count of steps.

    Its numbers are read before each run, for as long as it is there. It is not held: it would hold the parameters, of
    which the program has its own.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.rules = [rule_of(optimizer, group) for group in optimizer.param_groups]
        self.step = _steps_done(optimizer)
        self._seen, self._sizes = _versions(optimizer), _sizes(optimizer)
        self.threads = torch.get_num_threads()
        self._rule_of = {
            id(param): rule
            for group, rule in zip(optimizer.param_groups, self.rules, strict=True)
            for param in group["params"]
        }

    def need_parameters_of(self, parameters: Iterable[Any]) -> None:
        """BadInput if the optimizer has parameters that are none of these: they would never be updated."""
        optimizer, known = self._optimizer(), set(map(id, parameters))
        assert optimizer is not None, "asked while it is captured"
        others = [
            f"number {number} of group {at}, {str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}"
            for at, group in enumerate(optimizer.param_groups)
            for number, one in enumerate(group["params"])
            if id(one) not in known
        ]
        if others:
            raise BadInput(
                f"the optimizer has {len(others)} of {sum(self._sizes)} parameters that are not the model's "
                f"({'; '.join(others[:3])}{'; ...' if others[3:] else ''}): it is of another model, or was made before "
                "the model was given new parameters; make it anew from model.parameters()"
            )

    def need_same(self) -> None:
        """Mismatch if the optimizer was stepped, or given other states, since they were captured."""
        optimizer = self._optimizer()
        self._need_same_parameters(optimizer)
        if optimizer is not None and _versions(optimizer) != self._seen:
            raise Mismatch(
                "the optimizer was stepped, or loaded, since the plan was made, which holds its states of then: make a "
                "new plan"
            )

    def _need_same_parameters(self, optimizer: Any) -> None:
        if optimizer is not None and _sizes(optimizer) != self._sizes:
            raise Mismatch(
                f"the optimizer has groups of {_sizes(optimizer)} parameters now, and had {self._sizes} when the plan "
                "was made (add_param_group?): make a new plan"
            )

    def begin_step(self) -> None:
        """To be called before each run: one step more, and the numbers that go with it."""
        if torch.get_num_threads() != self.threads:
            raise BadInput(
                f"updates were captured for {self.threads} threads, torch has {torch.get_num_threads()} now, and would "
                "round differently: set_num_threads, or capture again"
            )
        optimizer = self._optimizer()
        self._need_same_parameters(optimizer)
        for rule, group in zip(self.rules, optimizer.param_groups if optimizer is not None else (), strict=False):
            now = rule_of(optimizer, group)
            if now.states != rule.states or now.scratch > rule.scratch:
                raise BadInput(
                    f"the optimizer has other options now than when the step was captured (momentum, weight_decay, "
                    f"amsgrad, ...), with which an update needs {now.states} and {now.scratch} temporaries, not "
                    f"{rule.states} and {rule.scratch}: capture again, with options that are not 0 if they are to vary"
                )
        self.step += 1
        for number, rule in enumerate(self.rules):
            if optimizer is not None:
                rule.group = numbers(optimizer.param_groups[number])
            rule.begin(self.step)

    def rule(self, param: Any) -> Rule | None:
        return self._rule_of.get(id(param))

    def states(self, param: Any) -> dict[str, Any]:
        """What the optimizer has of this parameter by now, None where it has nothing yet."""
        optimizer = self._optimizer()
        assert optimizer is not None, "asked after the capture"
        rule, state = self._rule_of[id(param)], optimizer.state.get(param, {})
        return {name: state.get(name) for name in rule.states_of(tuple(param.shape))}

    def call(self, rule: Rule, views: list[View], where: str) -> Call:
        """The call that updates views[0] by the gradient views[1] and states."""
        param, grad, *states = views
        threads, count = self.threads, math.prod(param.shape)
        alike = all(one.strides == param.strides for one in views)
        if rule.whole:
            alike, count = True, 0
        longest = max((end - begin for begin, end in pieces(count, threads)), default=0) if alike else span(param)
        kernel = Update(rule, param.dtype.itemsize, longest, threads)
        changes = (param.storage, *(one.storage for one in states))
        return Call(kernel, tuple(views), {}, (), (grad.storage,), changes, "update", where)


def _sizes(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _versions(optimizer: Any) -> list[tuple[str, int, int]]:
    """Different once a state has been changed in place or replaced."""
    return [
        (name, id(value), value._version)
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    ]


def _steps_done(optimizer: Any) -> int:
    """Steps that the optimizer has done; SGD does not count, but has a momentum from its first step on."""
    counts = {int(state["step"]) for state in optimizer.state.values() if "step" in state}
    if len(counts) > 1:
        raise CaptureFailed(f"parameters have had different numbers of steps ({sorted(counts)}): one program steps all")
    if counts:
        return counts.pop()
    return int(any(state.get("momentum_buffer") is not None for state in optimizer.state.values()))
