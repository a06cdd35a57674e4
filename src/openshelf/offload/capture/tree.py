"""Values that cross the API, taken apart into tensors and constants and put together again, with nothing lost.

torch's pytrees lose what a class does not register: transformers' form of a DynamicCache leaves out how many tokens a
sliding window has seen, and registering a form changes what every other user of pytrees in the process gets. So values
are taken apart here by what they are made of: containers by their items, objects by all of their attributes (what
`copy.copy` would copy). A class that keeps state elsewhere, or that is not known to be a plain record, is refused.

Containers that can be changed are numbered. What a model does to those that it was given (a cache that grows) is done
to the caller's own, and an object that is in a value twice is one object in the copy.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy

from openshelf.errors import BadInput
from openshelf.offload.program.torch import torch

_CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type, types.FunctionType,
    types.BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    torch.Generator,
)  # fmt: skip
PLAIN = (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)


@dataclasses.dataclass(frozen=True)
class Tree:
    """The form of a value. `cls` None: the next leaf. `parts` are by `keys`, `more` is what else the class needs.

    `number` is that of a container which can be changed; with no class it stands for the one of that number, one of
    the caller's if `given`.
    """

    cls: Any = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Tree, ...] = ()
    more: Any = None
    number: int | None = None
    given: bool = False


LEAF = Tree()
Contents = tuple[tuple[Any, ...], tuple[Any, ...], Any]  # keys, values, what else the class needs


@dataclasses.dataclass
class Flat:
    """A value taken apart: leaves, where each is, the form, and the containers that can be changed."""

    leaves: list[Any]
    paths: list[str]
    tree: Tree
    objects: list[Any]


def flatten(value: Any) -> Flat:
    """BadInput if something in it could not be put together as it was."""
    flattener = Flattener()
    tree = flattener.apart(value)
    return Flat(flattener.leaves, flattener.paths, tree, flattener.objects)


class Flattener:
    """Takes values apart, one after the other; `given` are objects that are named by their numbers instead.

    `once`: a tensor that comes again is no leaf of its own, but the first one again.
    """

    def __init__(self, given: Iterable[Any] = (), *, once: bool = False) -> None:
        self.leaves: list[Any] = []
        self.paths: list[str] = []
        self.objects: list[Any] = []
        self._given = {id(one): number for number, one in enumerate(given)}
        self._numbers: dict[int, int] = {}
        self._tensors: dict[int, int] | None = {} if once else None

    def apart(self, value: Any, path: str = "") -> Tree:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if is_constant(value):
            return self._leaf(value, path)
        if id(value) in self._given:
            return Tree(number=self._given[id(value)], given=True)
        if id(value) in self._numbers:
            return Tree(number=self._numbers[id(value)])
        keys, values, more = contents(value, path)
        number = None
        if not isinstance(value, tuple):
            number = self._numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        named = isinstance(value, (dict, list, tuple, collections.deque)) and not _is_output(value)
        parts = tuple(
            self.apart(one, f"{path}[{key!r}]" if named else f"{path}.{key}")
            for key, one in zip(keys, values, strict=True)
        )
        return Tree(type(value), keys, parts, more, number)

    def _tensor(self, value: Any, path: str) -> Tree:
        if type(value) not in PLAIN:
            raise BadInput(
                f"{path or 'the value'} is a {name_of(type(value))}, a tensor with something of its own that plain "
                "tensors have not: only plain tensors can be handed on"
            )
        if self._tensors is None:
            return self._leaf(value, path)
        if id(value) in self._tensors:
            return Tree(number=-1 - self._tensors[id(value)])
        self._tensors[id(value)] = len(self.leaves)
        return self._leaf(value, path)

    def _leaf(self, value: Any, path: str) -> Tree:
        self.leaves.append(value)
        self.paths.append(path)
        return LEAF


class Builder:
    """Puts values together, in the order in which they were taken apart."""

    def __init__(self, leaves: list[Any], given: list[Any], into: list[Any] | None = None) -> None:
        self._leaves, self._next, self._given, self._into = leaves, 0, given, into
        self._objects: dict[int, Any] = {}

    def build(self, tree: Tree) -> Any:
        if tree.cls is None:
            if tree.number is None:
                self._next += 1
                return self._leaves[self._next - 1]
            if tree.given:
                return self._given[tree.number]
            return self._objects[tree.number] if tree.number >= 0 else self._leaves[-1 - tree.number]
        if tree.number is None:
            return _tuple(tree.cls, tree.keys, [self.build(one) for one in tree.parts])
        made = tree.cls.__new__(tree.cls) if self._into is None else self._into[tree.number]
        self._objects[tree.number] = made
        fill(made, (tree.keys, tuple(self.build(one) for one in tree.parts), tree.more))
        return made

    def rest(self) -> list[Any]:
        """Leaves that no tree has taken."""
        return self._leaves[self._next :]


def unflatten(tree: Tree, leaves: list[Any]) -> Any:
    return Builder(leaves, []).build(tree)


def refilled(flat: Flat, leaves: list[Any]) -> Any:
    """The value with other leaves: its containers stay who they are, but for tuples."""
    return Builder(leaves, [], flat.objects).build(flat.tree)


def contents(value: Any, path: str = "") -> Contents:
    """What a container or object is made of: keys, values, and what else its class needs."""
    cls = type(value)
    if cls in (list, tuple):
        return tuple(range(len(value))), tuple(value), None
    if cls in (dict, collections.OrderedDict, collections.defaultdict):
        if not all(map(is_constant, value)):
            raise BadInput(
                f"{path or 'the value'} is a dict with keys that are no constants, which cannot be handed on"
            )
        return tuple(value), tuple(value.values()), getattr(value, "default_factory", None)
    if cls is collections.deque:
        return tuple(range(len(value))), tuple(value), value.maxlen
    if isinstance(value, tuple) and (hasattr(cls, "_fields") or getattr(cls, "n_fields", -1) == len(value)):
        more = vars(value) if hasattr(value, "__dict__") else {}
        return (*range(len(value)), *more), (*value, *more.values()), None
    state = vars(value) if _is_output(value) else _state(value, path)
    keys = tuple(sorted(state))
    if not _is_output(value):
        return keys, tuple(state[key] for key in keys), None
    items = tuple(collections.OrderedDict.keys(value))
    if any(collections.OrderedDict.__getitem__(value, key) is not state.get(key) for key in items):
        raise BadInput(f"{path or 'the value'} is a {name_of(cls)} whose items are not its attributes: set both alike")
    return keys, tuple(state[key] for key in keys), items


def fill(value: Any, made_of: Contents) -> None:
    """Makes a container that can be changed, blank or not, one of these contents."""
    keys, values, more = made_of
    if isinstance(value, list):
        value[:] = values
    elif isinstance(value, collections.deque):
        value.__init__(values, more)  # type: ignore[misc]  # the only way to set maxlen
    elif _is_output(value):
        vars(value).clear()
        vars(value).update(zip(keys, values, strict=True))
        collections.OrderedDict.clear(value)
        for key in more:
            collections.OrderedDict.__setitem__(value, key, vars(value)[key])
    elif isinstance(value, dict):
        value.clear()
        value.update(zip(keys, values, strict=True))
        if isinstance(value, collections.defaultdict):
            value.default_factory = more
    else:
        if hasattr(value, "__dict__"):
            vars(value).clear()
        for key, one in zip(keys, values, strict=True):
            object.__setattr__(value, key, one)  # also of frozen dataclasses


def _tuple(cls: Any, keys: tuple[Any, ...], values: list[Any]) -> Any:
    count = sum(isinstance(key, int) for key in keys)
    if not hasattr(cls, "_fields"):
        return cls(values)
    made = tuple.__new__(cls, values[:count])
    for key, one in zip(keys[count:], values[count:], strict=True):
        object.__setattr__(made, key, one)
    return made


def _state(value: Any, path: str) -> Mapping[str, Any]:
    """All attributes of an object that is nothing but these."""
    cls, why = type(value), ""
    where = f"{path or 'the value'} is a {name_of(cls)}"
    if cls.__module__ == "numpy":
        raise BadInput(f"{where}: models are given tensors, torch.from_numpy(array) makes one")
    if not _is_record(cls):
        raise BadInput(
            f"{where}, which is not known to be a plain record: tensors, numbers, strings, lists, tuples, dicts, "
            "dataclasses and transformers' caches can be handed on (a cache? then call it with use_cache=False)"
        )
    for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"):
        if getattr(cls, name, None) is not getattr(object, name, None):
            why = f"it has a {name} of its own"
    try:
        reduced: tuple[Any, ...] = object.__reduce_ex__(value, 2)  # type: ignore[assignment]  # a str from others only
    except TypeError as error:
        why = str(error)
    else:
        make, args, state, *items = reduced
        if make.__name__ != "__newobj__" or args != (cls,) or any(one is not None for one in items):
            why = "it is more than its attributes"
    if why:
        raise BadInput(f"{where}, whose state cannot be handed on whole: {why}")
    in_dict, in_slots = state if isinstance(state, tuple) else (state, None)
    return {**(in_dict or {}), **(in_slots or {})}


def _is_record(cls: Any) -> bool:
    return (
        dataclasses.is_dataclass(cls)
        or cls in torch.utils._pytree.SUPPORTED_NODES
        or any(one.__module__.startswith("transformers.") for one in cls.__mro__)
    ) and not issubclass(cls, torch.nn.Module)


def _is_output(value: Any) -> bool:
    """A ModelOutput of transformers: a dict whose items are its attributes, too."""
    module: Any = sys.modules.get("transformers.utils.generic")
    return module is not None and isinstance(value, module.ModelOutput)


def is_constant(value: Any) -> bool:
    """Whether it never changes, or is known by who it is, as functions are."""
    module: Any = sys.modules.get("transformers.configuration_utils")
    return (
        type(value) in _CONSTANTS
        or isinstance(value, (enum.Enum, type, numpy.generic))
        or (type(value) is frozenset and all(map(is_constant, value)))
        or (module is not None and isinstance(value, module.PreTrainedConfig))
    )


def key_of(value: Any) -> Any:
    """Equal for constants that do the same: 1, 1.0 and True do not promote alike, and 0.0 is not -0.0."""
    return type(value), repr(value) if isinstance(value, (float, complex, slice)) else value


def name_of(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
