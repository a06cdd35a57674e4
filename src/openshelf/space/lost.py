"""Lost: what arrives in place of a handle that cannot be opened where it was sent.

Nothing raises while it is unpickled. A Pool of multiprocessing unpickles in loops of its own, which end then, and
whoever waits for an answer waits for ever. So the reason is raised by the first use, which is in the user's own code.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from openshelf import errors


class Lost:
    """Raises the reason wherever it is used."""

    __slots__ = ("_kind", "_message")

    def __init__(self, kind: str, message: str) -> None:
        self._kind, self._message = kind, message

    def _raise(self, *arguments: Any, **options: Any) -> NoReturn:
        found = getattr(errors, self._kind, errors.OpenshelfError)
        raise found(self._message)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody looks what it can do
            raise AttributeError(name)
        self._raise()

    def __reduce__(self) -> Any:
        return Lost, (self._kind, self._message)

    def __repr__(self) -> str:
        return f"Lost({self._kind}: {self._message})"


_OPERATORS = {name for name, value in vars(np.lib.mixins.NDArrayOperatorsMixin).items() if callable(value)}
_USES = {"getitem", "setitem", "delitem", "len", "iter", "contains", "bool", "int", "float", "enter", "exit"}
_USES |= {"array", "array_ufunc", "array_function", "dlpack", "dlpack_device"}
for _name in _OPERATORS | {f"__{use}__" for use in _USES}:
    setattr(Lost, _name, Lost._raise)
Lost.__hash__ = object.__hash__  # type: ignore[method-assign]
