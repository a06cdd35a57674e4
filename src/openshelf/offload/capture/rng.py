"""Where torch's generator is while a model is recorded: nothing is drawn then, but the program will draw in its order.

A program draws each number once, in the order of its calls. Code that sets the generator back to draw the same numbers
again (a checkpoint around dropout), or that seeds it, would get others from the program: that is refused. Setting it
back for code that draws nothing is not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy

from openshelf.errors import CaptureFailed
from openshelf.offload.program.torch import torch


def draws_numbers(kernel: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws from a generator: attention is marked as if it did, and does so with dropout only."""
    if torch.Tag.nondeterministic_seeded not in kernel.tags:
        return False
    for position, argument in enumerate(kernel._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(given != 0.0)
    return True


class Draws:
    """Counts calls that draw. `at` is what the generator would have drawn by now; None after a seed."""

    def __init__(self) -> None:
        self.total = 0
        self.at: int | None = 0
        self._states: list[tuple[Any, int | None]] = []  # handed out, and where the generator was

    def draw(self, where: str) -> None:
        if self.at != self.total:
            raise CaptureFailed(
                f"{where}: draws random numbers after the generator was set back or seeded by the model (a checkpoint "
                "around dropout does): a program draws each number once. Leave checkpoints out, a plan computes again "
                "what has no room by itself"
            )
        self.total += 1
        self.at = self.total

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While in here it is seen when code asks for the generator's state, and sets it."""
        module = torch.random
        get, put, seeds = module.get_rng_state, module.set_rng_state, (module.manual_seed, module.seed)

        def get_state() -> Any:
            self._states.append((get(), self.at))
            return self._states[-1][0]

        def set_state(state: Any) -> None:
            put(state)
            self.at = next((at for known, at in self._states if known is state), None)

        def seeded(function: Any) -> Any:
            def seed(*args: Any) -> Any:
                self.at = None
                return function(*args)

            return seed

        before, others = get(), (random.getstate(), numpy.random.get_state(legacy=False))
        names = ("get_rng_state", "set_rng_state", "manual_seed", "seed")
        try:
            for place in (torch, module):
                for name, new in zip(names, (get_state, set_state, *map(seeded, seeds)), strict=True):
                    setattr(place, name, new)
            yield
            _need_none_drawn(*others)
        finally:
            random.setstate(others[0])
            numpy.random.set_state(others[1])
            for place in (torch, module):
                for name, old in zip(names, (get, put, *seeds), strict=True):
                    setattr(place, name, old)
            put(before)


def _need_none_drawn(python: Any, numpys: Any) -> None:
    """A program has what was drawn beside torch as constants: it would be the same in every call."""
    now = numpy.random.get_state(legacy=False)
    drawn = [
        *(["Python's random"] if random.getstate() != python else []),
        *(["numpy.random"] if repr(now) != repr(numpys) else []),
    ]
    if drawn:
        raise CaptureFailed(
            f"the model draws from {' and '.join(drawn)} when it is called, and a program would have the same numbers "
            "in every call: draw with torch, or leave out what draws (transformers' models of speech mask frames so in "
            "training: config.apply_spec_augment=False)"
        )
