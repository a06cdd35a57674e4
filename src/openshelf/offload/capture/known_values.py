"""Values that are known while nothing is computed: positions, masks and other small tensors that follow from shapes.

Models look at some of them (is this mask all true?) to choose a kernel, and a program has to hold the choice that the
model makes. What follows from shapes and constants alone is computed beside the recording. What follows from an
integer input, a padding mask say, is known from the example: if the model asks for it, the program is good for that
value of the input only, and the input is in `asked`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from openshelf.offload.program.call import View, map_views, span, views_of
from openshelf.offload.program.torch import torch

LARGEST = 1 << 20  # bytes of a storage whose value is worth knowing


class KnownValues:
    """The values of storages, as far as they are known, and the inputs that they follow from."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Any, frozenset[int]]] = {}
        self.asked: dict[int, Any] = {}  # input storage -> its value, one dimension, all of the storage

    def tell(self, view: View, value: Any, is_input: bool = False) -> None:
        """The storage of `view` holds `value`, and nothing else."""
        if value.untyped_storage().nbytes() <= LARGEST and not value.is_meta:
            with unrecorded():
                flat = torch.empty(_elements(view), dtype=view.dtype)
                flat.as_strided(view.shape, view.strides, view.offset).copy_(value)
            self._values[view.storage] = (flat, frozenset([view.storage] if is_input else []))

    def forget(self, storages: tuple[int, ...]) -> None:
        for one in storages:
            self._values.pop(one, None)

    def follow(self, func: Any, args: Any, kwargs: Any, makes: tuple[View | None, ...]) -> None:
        """A call without side effects: if all it reads is known, so is what it makes."""
        sources = self._sources((args, kwargs))
        small = all(view is not None and _elements(view) * view.dtype.itemsize <= LARGEST for view in makes)
        if sources is None or not small or torch.Tag.nondeterministic_seeded in func.tags:
            return
        with unrecorded():
            args, kwargs = map_views((args, kwargs), self._tensor)
            result = func(*args, **kwargs)
        for view, value in zip(makes, result if isinstance(result, (list, tuple)) else (result,), strict=True):
            assert view is not None
            self.tell(view, value)
            if view.storage in self._values:  # a small result may be a view of something large
                self._values[view.storage] = (self._values[view.storage][0], sources)

    def scalar(self, view: View) -> Any:
        """The one element of a view as a Python number; None if it is not known."""
        sources = self._sources(view)
        if sources is None:
            return None
        self.asked.update((one, self._values[one][0]) for one in sources)
        with unrecorded():
            return self._tensor(view).item()

    def _sources(self, value: Any) -> frozenset[int] | None:
        found: frozenset[int] = frozenset()
        for view in views_of(value):
            if view.storage not in self._values:
                return None
            found |= self._values[view.storage][1]
        return found

    def _tensor(self, view: View) -> Any:
        flat = self._values[view.storage][0]
        return flat.view(view.dtype).as_strided(view.shape, view.strides, view.offset)


def _elements(view: View) -> int:
    return 0 if 0 in view.shape else view.offset + span(view)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Tensors in here are real ones, and nobody records them."""
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        yield


@contextlib.contextmanager
def not_traced() -> Iterator[None]:
    """transformers' models ask whether a tensor is a fake one, and leave out short cuts then: told that it is not, they
    do what they do when they run."""
    module: Any = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    before = module.is_fake_tensor
    module.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        module.is_fake_tensor = before
