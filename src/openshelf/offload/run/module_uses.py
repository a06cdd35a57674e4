"""The weights of a model by storage, and which module uses which of them: seen while it runs once."""

from __future__ import annotations

from typing import Any, NamedTuple

from openshelf.offload.program.torch import torch
from openshelf.offload.run.emptied import Emptied, Forward

pytree: Any = torch.utils._pytree
Uses = tuple[str, tuple[int, ...]]  # a module's path, and the storages that it uses itself


class _Place(NamedTuple):
    path: str
    module: Any
    name: str
    real: Any
    empty: Any


class _Storage(NamedTuple):
    name: str
    nbytes: int
    places: list[_Place]


class Weights:
    """Parameters, by the storage that they are in; tied ones share it. They can be emptied and be put elsewhere."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.storages: list[_Storage] = []
        self._numbers: dict[int, int] = {}
        for path, module in model.named_modules():
            for name, one in module._parameters.items():
                if one is None:
                    continue
                storage = one.untyped_storage()
                number = self._numbers.setdefault(storage.data_ptr(), len(self.storages))
                if number == len(self.storages):
                    self.storages.append(_Storage(f"{path}.{name}".lstrip("."), int(storage.nbytes()), []))
                self.storages[number].places.append(_Place(path, module, name, one, None))

    def number(self, tensor: Any) -> int | None:
        return self._numbers.get(tensor.untyped_storage().data_ptr())

    def state(self) -> dict[str, Any]:
        """All parameters by all their names."""
        return {name: one.detach() for name, one in self._model.named_parameters(remove_duplicate=False)}

    def own(self, module: Any) -> list[int]:
        """Storages of the parameters that a module has itself."""
        return [
            number for number, one in enumerate(self.storages) if any(place.module is module for place in one.places)
        ]

    def empty(self, forward: Forward) -> Emptied:
        """Takes the parameters' memory away. Their shapes and strides stay known."""
        for storage in self.storages:
            for at, place in enumerate(storage.places):
                like = place.real
                view = (like.dtype, tuple(like.shape), tuple(like.stride()), like.storage_offset())
                storage.places[at] = place._replace(real=view)
        emptied = Emptied(self._model, forward)
        for storage in self.storages:
            for at, place in enumerate(storage.places):
                storage.places[at] = place._replace(empty=place.module._parameters[place.name])
        return emptied

    def put(self, number: int, arena: Any, offset: int) -> None:
        """Its parameters are in the arena, at `offset`, until they are taken."""
        first = arena.storage_offset() + offset
        for _, module, name, (dtype, shape, strides, begin), _ in self.storages[number].places:
            tensor = torch.empty(0, dtype=dtype)
            tensor.set_(arena.untyped_storage(), first // dtype.itemsize + begin, shape, strides)
            module._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)

    def take(self, number: int) -> None:
        for place in self.storages[number].places:
            place.module._parameters[place.name] = place.empty


class _Noting(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.weights = weights
        self.running: list[tuple[str, dict[int, None]]] = []
        self.order: list[tuple[str, dict[int, None]]] = []
        self.deepest: set[tuple[str, ...]] = set()

    def enter(self, path: str) -> None:
        self.running.append((path, {}))
        self.order.append(self.running[-1])
        self.deepest.add(tuple(path for path, _ in self.running))

    def leave(self) -> None:
        self.running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            number = self.weights.number(leaf) if isinstance(leaf, torch.Tensor) and not leaf.is_meta else None
            if number is not None:
                self._uses(number)
        return func(*args, **(kwargs or {}))

    def _uses(self, number: int) -> None:
        """The module that runs does; a weight of neither it nor a part of it was handed in, by one around it."""
        owners = [place.path for place in self.weights.storages[number].places]
        self.running[-1][1][number] = None
        for path, uses in reversed(self.running):
            if any(owner == path or owner.startswith(f"{path}." if path else "") for owner in owners):
                uses[number] = None
                return


def note_uses(
    model: Any, weights: Weights, args: Any, kwargs: Any
) -> tuple[Any, list[Uses], dict[str, tuple[int, ...]], list[tuple[str, ...]]]:
    """The model's result; uses in their order; what each module uses; and the modules that run within each other.

    A module that did not run is expected to use the parameters that it has itself.
    """
    noting = _Noting(weights)
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, path=path: noting.enter(path)))
        hooks.append(module.register_forward_hook(lambda *_: noting.leave(), always_call=True))
    try:
        with noting:
            result = model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    needs: dict[str, dict[int, None]] = {}
    for path, uses in noting.order:
        needs.setdefault(path, {}).update(uses)
    for path, module in model.named_modules():
        if path not in needs:
            needs[path] = dict.fromkeys(weights.own(module))
            noting.deepest.add((path,))
    order = [(path, tuple(uses)) for path, uses in noting.order if uses]
    return result, order, {path: tuple(uses) for path, uses in needs.items()}, sorted(noting.deepest)
