"""Whatever is given for an argument of a device, its streams, blocks and replicas: no other library's exception."""

from __future__ import annotations

import numpy as np

from openshelf import Space
from openshelf.space import Device, place
from tests.junk import raw_errors, raw_errors_of_methods


def test_devices_streams_blocks_and_replicas(space: Space) -> None:
    assert raw_errors(lambda junk: Device(junk, "1MiB").close()) == []
    assert raw_errors(lambda junk: Device("host", junk).close()) == []
    with Device("host", "1MiB") as device:
        block, stream = device.take("64KiB"), device.stream()
        for call in (device.take, device.arrange, device.wait_for, block.numpy, block.torch):
            assert raw_errors(call) == []
        assert raw_errors(lambda junk: device.copy(block, junk)) == []
        assert raw_errors(lambda junk: device.copy(junk, np.ones(4))) == []
        good = {"event": stream.record(), "target": block, "source": np.ones(4), "dtype": "float32", "shape": (4,)}
        for thing in (space.put("a", np.ones(16)).on(device), stream, block):
            assert raw_errors_of_methods(thing, good, ("release", "close")) == []


def test_placements() -> None:
    for call in (place, lambda junk: place([junk]), lambda junk: place([(junk, 0, 1)]), lambda junk: place([], junk)):
        assert raw_errors(call) == []
