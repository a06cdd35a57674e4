"""A CUDA device, through torch: the only file that knows of CUDA. Not tested on one: there is none where this is built.

Array memory is neither pinned nor registered with the driver (a registered page is written behind the back of whoever
keeps spaces coherent), and a copy from plain memory would hold up the caller. So each queue has a thread, a CUDA stream
and two pinned buffers: one fills while the other is on its way. A copy begins after what its caller has launched on
torch's current stream.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from openshelf._dtypes import torch_module
from openshelf.errors import BadInput, Closed, Mismatch, NoRoom, UnknownName
from openshelf.space.copies import Bytes
from openshelf.space.transfer import Part

_STAGE = 4 << 20  # bytes of a pinned buffer


class CudaArena:
    """An Arena that is one tensor of bytes on the device."""

    def __init__(self, which: str, nbytes: int) -> None:
        torch = self._torch = torch_module()
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise UnknownName(
                f"no CUDA device: torch {torch.__version__} sees none; this needs an NVIDIA driver and a torch that "
                "was built with CUDA (see pytorch.org), or use Device('host', ...), which works everywhere"
            )
        if which and not (which.isdecimal() and int(which) < count):
            raise UnknownName(f"there is no device 'cuda:{which}'; this machine has cuda:0 to cuda:{count - 1}")
        self._device = f"cuda:{which or 0}"
        self.nbytes = nbytes
        try:
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise NoRoom(f"an arena of {nbytes} bytes on {self._device}: {error}; give a smaller budget") from None
        self.pointer: int = self._memory.data_ptr()

    def queue(self) -> CudaQueue:
        return CudaQueue(self._torch, self._device, self._memory)

    def numpy(self, offset: int, nbytes: int, taken: Any) -> Bytes:
        raise Mismatch(f"the host cannot load from {self._device}; use .torch(), or copy to the host's memory")

    def torch(self, offset: int, nbytes: int, taken: Any) -> Any:
        if nbytes == 0:
            return self._torch.empty(0, dtype=self._torch.uint8, device=self._device)
        return self._torch.as_tensor(_Range(self._memory, offset, nbytes, taken), device=self._device)


class _Range:
    """Device memory as torch takes it from others: the tensor holds this, and this holds `taken`."""

    def __init__(self, memory: Any, offset: int, nbytes: int, taken: Any) -> None:
        self._held = (memory, taken)
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (memory.data_ptr() + offset, False),
            "version": 3,
        }


class _Step:
    """A copy, a mark or a wait in a queue."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._over, self._process = threading.Event(), os.getpid()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            assert self._work is not None
            self._work()
        except Exception as error:  # told to who waits
            self._error = error
        self._work = None
        self._over.set()

    @property
    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout_s: float, /) -> bool:
        if not self.done and self._process != os.getpid():
            raise Closed("the copy was begun by the process that this one was forked from")
        if not self._over.wait(None if timeout_s < 0 else min(timeout_s, threading.TIMEOUT_MAX)):
            return False
        if self._error is not None:
            raise self._error
        return True


class CudaQueue:
    """A thread that copies through pinned buffers, on a stream of its own."""

    def __init__(self, torch: Any, device: str, memory: Any) -> None:
        self._torch, self._device, self._memory = torch, device, memory
        self._stream = torch.cuda.Stream(device)
        self._stages = [torch.empty(_STAGE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._passed = [torch.cuda.Event() for _ in range(2)]  # when the device is done with a buffer
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._giving, self._closed, self._process = threading.RLock(), False, os.getpid()
        self._thread = threading.Thread(target=_run, args=(self._steps,), name="openshelf-cuda", daemon=True)
        self._thread.start()

    def copy_in(self, offset: int, source: Bytes) -> Part:
        return self._add(lambda: self._in(offset, _tensor(self._torch, source)), launched=True)

    def copy_out(self, target: Bytes, offset: int) -> Part:
        return self._add(lambda: self._out(_tensor(self._torch, target), offset), launched=True)

    def copy_within(self, target: int, source: int, nbytes: int) -> Part:
        if target < source + nbytes and source < target + nbytes and nbytes:
            raise BadInput(f"a copy of {nbytes} bytes between ranges that overlap; copy through a third one")
        return self._add(lambda: self._within(target, source, nbytes), launched=True)

    def mark(self) -> Part:
        return self._add(lambda: None)

    def after(self, part: Part) -> None:
        self._add(lambda: _wait(part))

    def close(self) -> None:
        if self._process != os.getpid():
            return
        with self._giving:
            if not self._closed:
                self._steps.put(None)
            self._closed = True
        self._thread.join()

    def _add(self, work: Callable[[], None], launched: bool = False) -> _Step:
        # Kernels that the caller launched may still write what is copied out, or read what is overwritten.
        before = self._torch.cuda.current_stream(self._device).record_event() if launched else None

        def in_turn() -> None:
            if before is not None:
                self._stream.wait_event(before)
            work()

        step = _Step(in_turn)
        with self._giving:
            if self._closed:
                raise Closed("the device was closed; make another")
            self._steps.put(step)
        return step

    # In the thread

    def _in(self, offset: int, source: Any) -> None:
        for number, at in enumerate(range(0, len(source), _STAGE)):
            piece, stage, passed = source[at : at + _STAGE], self._stages[number % 2], self._passed[number % 2]
            passed.synchronize()
            stage[: len(piece)].copy_(piece)
            self._copy(self._memory[offset + at : offset + at + len(piece)], stage[: len(piece)])
            passed.record(self._stream)
        self._stream.synchronize()

    def _out(self, target: Any, offset: int) -> None:
        arriving: tuple[Any, Any, Any] | None = None
        for number, at in enumerate(range(0, len(target), _STAGE)):
            piece, passed = target[at : at + _STAGE], self._passed[number % 2]
            stage = self._stages[number % 2][: len(piece)]
            self._copy(stage, self._memory[offset + at : offset + at + len(piece)])
            passed.record(self._stream)
            if arriving:
                _arrive(*arriving)
            arriving = piece, stage, passed
        if arriving:
            _arrive(*arriving)

    def _within(self, target: int, source: int, nbytes: int) -> None:
        self._copy(self._memory[target : target + nbytes], self._memory[source : source + nbytes])
        self._stream.synchronize()

    def _copy(self, target: Any, source: Any) -> None:
        with self._torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)


def _run(steps: queue.SimpleQueue[_Step | None]) -> None:
    while (step := steps.get()) is not None:
        step.run()


def _arrive(piece: Any, stage: Any, passed: Any) -> None:
    passed.synchronize()
    piece.copy_(stage)


def _wait(part: Part) -> None:
    part.wait(-1.0)


def _tensor(torch: Any, data: Bytes) -> Any:
    """The same memory, by address: torch warns of read-only arrays, which are only read here."""
    if not data.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data), dtype=torch.uint8)
