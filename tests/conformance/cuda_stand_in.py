"""torch.cuda played by the host, so that devices/cuda.py runs at all where there is no CUDA device.

It shows that the file's own steps are right (staging, order, errors). It says nothing about CUDA: here streams are
always done, and "device" memory is the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openshelf.space.devices import cuda


class Event:
    def synchronize(self) -> None: ...
    def record(self, stream: Any) -> None: ...


class Stream:
    def __init__(self, device: str) -> None: ...
    def synchronize(self) -> None: ...
    def wait_event(self, event: Event) -> None: ...
    def record_event(self) -> Event:
        return Event()


def empty(size: int, *, dtype: Any, device: str = "", pin_memory: bool = False) -> Any:
    if not device:
        return torch.empty(size, dtype=dtype)
    whole = torch.empty(size + 512, dtype=dtype)
    return whole[-whole.data_ptr() % 512 :][:size]


def as_tensor(source: Any, device: str) -> Any:
    """Torch holds the source of memory that it did not allocate."""
    shown = source.__cuda_array_interface__
    memory = (ctypes.c_uint8 * shown["shape"][0]).from_address(shown["data"][0])
    memory.source = source
    return torch.frombuffer(memory, dtype=torch.uint8)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the length of a test, the module's torch is this one."""
    played = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        OutOfMemoryError=MemoryError,
        Stream=Stream,
        Event=Event,
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda device: Stream(device),
    )
    module = SimpleNamespace(
        __version__="a stand-in",
        uint8=torch.uint8,
        empty=empty,
        as_tensor=as_tensor,
        frombuffer=torch.frombuffer,
        cuda=played,
    )
    monkeypatch.setattr(cuda, "torch_module", lambda: module)
