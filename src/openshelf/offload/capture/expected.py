"""What a program takes for granted of its activations, and looks at each time: that a number is what it was told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from openshelf.errors import BadInput
from openshelf.offload.program.call import Call, OwnKernel, View
from openshelf.offload.program.program import Phase


@dataclasses.dataclass(frozen=True)
class Expected(OwnKernel):
    """The kernel of a call that raises unless its one argument, of one element, is `value`."""

    timed = False  # made-up values are not what is expected
    value: Any
    where: str

    def __str__(self) -> str:
        return "expected"

    @property
    def scratches(self) -> int:
        return 0

    @property
    def workspace(self) -> int:
        return 0

    def bind(self, tensors: list[Any], scratch: list[Any]) -> Callable[[], None]:
        (tensor,) = tensors

        def look() -> None:
            if tensor.item() != self.value:
                raise BadInput(
                    f"{self.where}: the model looks whether numbers are finite, and does something else if they are "
                    "not. The program is for finite ones, and these are not: call the plain model with such inputs, "
                    "or look for what makes them infinite"
                )

        return look


def expected(view: View, value: Any, phase: Phase, where: str) -> Call:
    return Call(Expected(value, where), (view,), {}, (), (view.storage,), (), phase, where)
