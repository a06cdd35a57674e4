"""Recording: every operator that torch would run, in the order in which it would run it, without running any.

The model's own Python code runs once, on tensors without memory (`FakeTensorMode`), under a dispatch mode that sits
below autograd: it sees what kernels would be called with, backward included, after torch has taken composite operators
apart and chosen among kernels. So there is no second opinion on what the model does, and a program run call by call has
the bytes that the model has. (`torch.export` sees almost the same, but models look whether they are exported and do
something else then: transformers' attention makes a mask instead of asking for a causal kernel: another calculation.)

Fake tensors share storages as real ones would: aliases, views and in-place results need no analysis.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openshelf.errors import CaptureFailed
from openshelf.offload.capture.decompositions import REFUSED_BACKWARD, check_backward, masks
from openshelf.offload.capture.expected import expected
from openshelf.offload.capture.fake_kernels import FAKES, KernelStrides
from openshelf.offload.capture.known_values import KnownValues, unrecorded
from openshelf.offload.capture.rng import Draws, draws_numbers
from openshelf.offload.program.call import Call, View
from openshelf.offload.program.program import Kind, Phase
from openshelf.offload.program.torch import torch

FakeTensor: Any = torch._subclasses.FakeTensor
fake_errors: Any = torch._subclasses.fake_tensor
StorageWeakRef: Any = torch.multiprocessing.reductions.StorageWeakRef
aten: Any = torch.ops.aten

# What schemas do not say: these arguments are changed.
CHANGED = {"aten::native_batch_norm": {"running_mean", "running_var"}}
OURS = Path(__file__).parents[1]
CALLER = str(Path(__file__).with_name("capture.py"))
NOT_THE_MODELS = tuple(f"{one}{os.sep}" for one in (Path(torch.__file__).parent, OURS))  # code in these folders
RESHAPES_STORAGE = {"aten::resize_", "aten::resize_as_", "aten::set_", "aten::resize", "aten::_resize_output_"}


class Stored:
    """A storage while it is being recorded: what will be a `Storage` of the program."""

    def __init__(self, ref: Any, nbytes: int, name: str, kind: Kind, given: bool, value: Any = None) -> None:
        self.ref = ref  # weak, and keeps its number from being used again
        self.nbytes, self.name, self.kind, self.given, self.value = nbytes, name, kind, given, value
        self.kept = False


class Recorder(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """`calls` and `stored` grow while it is entered; `fakes` is the mode that its tensors belong to."""

    def __init__(self, strides: KernelStrides) -> None:
        super().__init__()
        self._strides = strides
        self.fakes = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
        self.calls: list[Call] = []
        self.stored: list[Stored] = []
        self.known = KnownValues()
        self.phase: Phase = "forward"
        self._numbers: dict[int, int] = {}
        self._modules: list[str] = []
        self._nodes: dict[int, str] = {}  # autograd's number of a node -> where its forward was
        self.bases: dict[int, Any] = {}  # a real storage -> its fake one, as a tensor of one dimension
        self.constants: dict[int, Any] = {}  # real tensors that are no part of the model, by storage of the program
        self.training = False
        self.draws = Draws()
        self.failed_in = ""  # the innermost module that was left by an exception

    def new(self, like: Any, name: str, kind: Kind, given: bool = True) -> Any:
        """A fake tensor with its own storage: dense strides are kept, others become contiguous."""
        with unrecorded(), self.fakes:
            strides = like.stride() if _dense(like) else torch.empty(like.shape).stride()
            fake = torch.empty_strided(like.shape, strides, dtype=like.dtype, device="cpu")
        self.store(fake, name, kind, given)
        return fake

    def store(self, fake: Any, name: str, kind: Kind, given: bool, value: Any = None) -> int:
        storage = fake.untyped_storage()
        ref = StorageWeakRef(storage)
        number = self._numbers[ref.cdata] = len(self.stored)
        self.stored.append(Stored(ref, int(storage.nbytes()), name, kind, given, value))
        return number

    def number(self, tensor: Any) -> int | None:
        """The storage of a fake tensor, None if it has none yet."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def view(self, tensor: Any) -> View:
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            lazily = "that is conjugated or negated lazily (complex numbers)"
            kind = lazily if tensor.layout == torch.strided else f"of layout {tensor.layout}"
            raise CaptureFailed(
                f"{self.where()}: a tensor {kind} has no place in an arena, only dense, strided ones have"
            )
        number = self.number(tensor)
        if number is None:
            raise CaptureFailed(f"{self.where()}: a tensor was made where it could not be seen: {tensor}")
        return View(number, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    def enter_module(self, path: str) -> None:
        self._modules.append(path)

    def leave_module(self) -> None:
        path = self._modules.pop()
        if sys.exc_info()[0] is not None and not self.failed_in:
            self.failed_in = path or "the model"

    def where(self) -> str:
        """The innermost module and source line, of the forward operator also while its backward runs."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._nodes.get(node._sequence_nr(), "") or str(node.name())
        module = self._modules[-1] if self._modules else ""
        return f"{module} {_source_line()}".strip()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name in RESHAPES_STORAGE:
            raise CaptureFailed(f"{self.where()}: {func} changes the size of a tensor, a plan needs it fixed")
        if func is aten.lift_fresh.default and not isinstance(args[0], FakeTensor):
            func, args = aten.clone.default, args[:1]  # the program takes a copy, which may be changed
        args, kwargs = _with_tensors(self._fake, (args, kwargs))
        node = torch._C._current_autograd_node()
        if node is None:
            self._nodes[torch.autograd._get_sequence_nr() - 1] = self.where()
        else:
            check_backward(node, self.where())
            if masks(func, node, args):
                with self:
                    return torch.where(args[0], args[1], 0.0)
        taken = self._views((args, kwargs))
        if func is aten._local_scalar_dense.default:
            found = self.known.scalar(taken[0][0], self.where())
            if found is not None:
                value, assumed = found
                if assumed:
                    self.add(expected(taken[0][0], value, self.phase, self.where()))
                return value
        result = self._strides.laid_out(func, taken, self._faked(func, args, kwargs, taken))
        if func._schema.is_mutable and torch.Tag.inplace_view not in func.tags:
            self._need_same_sizes(func, (args, kwargs), taken)
        self._record(func, taken, result)
        return result

    def _faked(self, func: Any, args: Any, kwargs: Any, taken: Any) -> Any:
        """What the call makes, without memory; if the shape follows from values, by these."""
        try:
            return FAKES.get(func, func)(*args, **kwargs)
        except fake_errors.DynamicOutputShapeException:
            found = self.known.shaped(func, taken, self.where())
            if found is None:
                raise
        with unrecorded(), self.fakes:
            made = tuple(torch.empty_strided(one.shape, one.stride(), dtype=one.dtype) for one in found)
        return made if len(func._schema.returns) > 1 else made[0]

    def _need_same_sizes(self, func: Any, tensors: Any, taken: Any) -> None:
        """An `out` of another shape is resized, silently if it is empty."""
        sizes = [
            (one.untyped_storage().nbytes(), self.stored[self.view(one).storage].nbytes)
            for one in torch.utils._pytree.tree_leaves(tensors)
            if isinstance(one, torch.Tensor)
        ]
        if any(now != before for now, before in sizes) or self._views(tensors) != taken:
            raise CaptureFailed(
                f"{self.where()}: {func} changes the size of a tensor, a plan needs it fixed: give `out` one of the "
                "result's shape"
            )

    def _fake(self, tensor: Any) -> Any:
        if isinstance(tensor, FakeTensor):
            return tensor
        if tensor._is_zerotensor():
            raise CaptureFailed(f"{self.where()}: {REFUSED_BACKWARD['SgnBackward0']}")
        if self.training and tensor.requires_grad:
            raise CaptureFailed(
                f"{self.where()}: a tensor of shape {tuple(tensor.shape)} requires gradients and is not found among "
                "the model's parameters, or was kept beside them (in a list, in an attribute), where training would "
                "not reach it: use the registered parameter itself"
            )
        storage = tensor.untyped_storage()
        with unrecorded():
            if storage._cdata not in self.bases:
                whole = torch.empty(0, dtype=tensor.dtype).set_(
                    storage, 0, (storage.nbytes() // tensor.dtype.itemsize,)
                ) if not tensor.is_meta else tensor  # fmt: skip
                with self.fakes:
                    base = torch.empty(storage.nbytes() // tensor.dtype.itemsize, dtype=tensor.dtype, device="cpu")
                self.bases[storage._cdata] = base
                number = self.store(base, f"constant.{len(self.constants)}", "buffer", True, whole)
                self.constants[number] = tensor  # holds the storage, so that its number is not given out again
                if not tensor.is_meta:
                    self.known.tell(self.view(base), whole)
            with self.fakes:
                base = self.bases[storage._cdata].view(tensor.dtype)
                return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _views(self, value: Any) -> Any:
        return _with_tensors(self.view, value)

    def _record(self, func: Any, taken: tuple[Any, Any], result: Any) -> None:
        args, kwargs = taken
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        fresh = [isinstance(one, torch.Tensor) and self.number(one) is None for one in results]
        for number, (one, new) in enumerate(zip(results, fresh, strict=True)):
            if new and self.number(one) is None:  # two results may share one
                name = f"{func._schema.name.split('::')[-1]}.{len(self.calls)}"
                self.store(one, f"{name}.{number}" if number else name, "activation", False)
        reads, changes = _touched(func._schema, args, kwargs)
        if torch.Tag.inplace_view in func.tags or not (any(fresh) or changes):
            return
        makes = tuple(self.view(one) if new else None for one, new in zip(results, fresh, strict=True))
        self.calls.append(Call(func, args, kwargs, makes, reads, changes, self.phase, self.where()))
        if any(one in self.constants for one in changes):
            raise CaptureFailed(
                f"{self.where()}: {func} changes a tensor that is no parameter, buffer or input, so no call after this "
                "one would see the change: make it a buffer (register_buffer)"
            )
        if draws_numbers(func, args, kwargs) and kwargs.get("generator") is None:
            self.draws.draw(self.where())
        if changes:
            self.known.forget(changes)
        else:
            self.known.follow(func, args, kwargs, makes)

    def add(self, call: Call) -> None:
        """A call that is no operator of torch."""
        self.calls.append(call)


def _touched(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Storages that a call reads, and those that it changes."""
    reads: dict[int, None] = {}
    changes: dict[int, None] = {}
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        written = written or argument.name in CHANGED.get(schema.name, ())
        leaves = torch.utils._pytree.tree_leaves(value)
        (changes if written else reads).update((one.storage, None) for one in leaves if isinstance(one, View))
    return tuple(one for one in reads if one not in changes), tuple(changes)


def _dense(tensor: Any) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _with_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """A copy of arguments or results of an operator, tensors changed. Much quicker than torch's tree_map_only."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([_with_tensors(change, one) for one in value])
    if kind is dict:
        return {key: _with_tensors(change, one) for key, one in value.items()}
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list, dict)):
        return torch.utils._pytree.tree_map_only(torch.Tensor, change, value)
    return value


@functools.cache
def _is_the_models(file: str) -> bool:
    return not file.startswith(NOT_THE_MODELS)


def _source_line() -> str:
    """Of the model's code; "" if that is all torch's own, up to where it was called from."""
    frame: Any = sys._getframe(1)
    while frame is not None and (file := frame.f_code.co_filename) != CALLER:
        if _is_the_models(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def watch_modules(model: Any, recorder: Recorder) -> Callable[[], None]:
    """Tell the recorder which module is running; returns what ends that."""
    hooks = []
    for path, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, path=path: recorder.enter_module(path)))
        hooks.append(module.register_forward_hook(lambda *_: recorder.leave_module(), always_call=True))

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end
