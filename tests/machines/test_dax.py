"""A space whose memory is a DAX device, which two guests have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.guest import Guest

_DEVICE = "/dev/dax0.0"
_MODULES = "for module in nfit nd_pmem dax_pmem device_dax; do modprobe $module; done"
_MAKE = "ndctl create-namespace -f -e namespace0.0 -m devdax -M mem -a 2M"  # -M mem: its last page is no kernel's


@pytest.fixture
def memory() -> Iterator[Path]:
    """Memory that several guests have as a device: 128 MiB, of which the kernel keeps 2."""
    path = Path(f"/dev/shm/openshelf-machines-{os.getpid()}")
    with path.open("wb") as file:
        file.truncate(128 << 20)
    yield path
    path.unlink()


def _with_device(name: str, kernel: str, memory: Path) -> Guest:
    backend = f"memory-backend-file,id=shared,share=on,mem-path={memory},size=128M,align=2M"
    devices = ["-object", backend, "-device", "nvdimm,id=nv0,memdev=shared"]
    return Guest(name, kernel, "768M,slots=2,maxmem=8G", machine="q35,nvdimm=on", devices=devices)


def _up(guest: Guest, first: bool) -> None:
    guest.run(f"{_MODULES}; {_MAKE if first else 'true'} && test -c {_DEVICE}")


def _try(guest: Guest, *arguments: str) -> str:
    return guest.run(guest.python("dax_worker.py", *arguments))


def test_a_space_on_a_device_does_what_any_space_does(kernel: str, memory: Path) -> None:
    with _with_device("dax", kernel, memory) as guest:
        _up(guest, first=True)
        assert _try(guest, "work").splitlines()[-1] == "all is well"


def test_a_device_has_one_space_whichever_guest_asks(kernel: str, memory: Path) -> None:
    with _with_device("second", kernel, memory) as second:
        with _with_device("first", kernel, memory) as first:
            _up(first, first=True)
            _up(second, first=False)
            assert _try(first, "create", "one") == "made\n"
            assert "NameTaken: the device /dev/dax0.0 is the memory of the space 'one'" in _try(first, "create", "two")
            assert "made on another host, or before the last boot" in _try(second, "create", "two")
            assert _try(first, "remove", "one") == "removed\n"
            assert _try(second, "create", "two") == "made\n"
            assert "made on another host" in _try(first, "create", "one")
            assert _try(second, "remove", "two") == "removed\n"
            assert _try(first, "create", "one") == "made\n"
        # The first one's power is gone. Only a person knows that it will not come back.
        refused = _try(second, "create", "two")
        assert "made on another host" in refused
        assert "free it: openshelf rm /dev/dax0.0" in refused
        assert _try(second, "remove", _DEVICE) == "removed\n"
        assert _try(second, "create", "two") == "made\n"
        assert "NotPermitted" in _try(second, "remove", _DEVICE)
        assert "remove that space by its name" in _try(second, "remove", _DEVICE)
