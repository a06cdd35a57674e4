"""The cost model and the simulator never disagree on a single transfer; rings and laws are in test_library.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openshelf.fabric import Fabric, presets, switches
from openshelf.twin import Twin

FABRICS = {name: fabric for name in presets() if (fabric := Fabric.load(name)).topology}
STORING = replace(
    FABRICS["dgx-h100-ib"],
    switches=tuple(
        replace(each, forwarding="store-and-forward")
        for each in (*FABRICS["dgx-h100-ib"].switches, switches()["quantum-2"])
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(FABRICS)), st.integers(1, 1 << 32), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_one_transfer_has_one_price(name: str, nbytes: int, source: int, target: int) -> None:
    fabric = FABRICS[name]
    source, target = source % fabric.network.endpoints, target % fabric.network.endpoints
    if source != target:
        priced = fabric.send(nbytes, source, target).seconds
        assert Twin(fabric).send(source, target, nbytes) == pytest.approx(priced, rel=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 1 << 32), st.integers(1, 255))
def test_switches_that_store_whole_messages_have_one_price_too(nbytes: int, target: int) -> None:
    fabric = STORING
    assert fabric.network.whole_messages
    priced = fabric.send(nbytes, 0, target).seconds
    assert Twin(fabric).send(0, target, nbytes) == pytest.approx(priced, rel=1e-9)
    assert priced > FABRICS["dgx-h100-ib"].send(nbytes, 0, target).seconds
