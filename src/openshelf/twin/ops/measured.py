"""Measured rows of one kind, accelerator and words, ready to be borrowed from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from openshelf.errors import UnknownName
from openshelf.twin.ops.accelerators import Accelerator, accelerator
from openshelf.twin.ops.borrow import borrowed
from openshelf.twin.ops.kinds import Floats
from openshelf.twin.ops.laws import fit_law
from openshelf.twin.ops.table import OpTable


class Measured:
    """Rows with the law that is fitted to them. `exact` has the seconds of every shape that was measured."""

    def __init__(self, table: OpTable, device: Accelerator, words: Mapping[str, str]) -> None:
        self.kind, self.device, self.words = table.kind, device, words
        columns = {name: table.sizes[name] for name in self.kind.sizes}
        self.low = {name: float(column.min()) for name, column in columns.items()}
        self.high = {name: float(column.max()) for name, column in columns.items()}
        self.law = fit_law(self.kind, columns, table.seconds, device, words)
        self._points = self._at(columns)
        self._off = np.log(table.seconds / self.law.seconds(self.kind, columns, device, words))
        self._seconds = table.seconds
        shapes = zip(*(columns[name].tolist() for name in self.kind.sizes), strict=True)
        self.exact: dict[tuple[float, ...], float] = dict(zip(shapes, table.seconds.tolist(), strict=True))

    def near(self, sizes: Mapping[str, Floats]) -> tuple[Floats, NDArray[np.bool_]]:
        """Seconds by the law and by how far near rows are off it; and whether a shape is beyond the measured range."""
        inside = {name: sizes[name].clip(self.low[name], self.high[name]) for name in self.kind.sizes}
        outside = np.any([inside[name] != sizes[name] for name in self.kind.sizes], axis=0)
        wanted = self._at(inside)
        off = borrowed(self._points, self._off, wanted, self.kind.neighbours)
        law = self.law.seconds(self.kind, sizes, self.device, self.words)
        if self.kind.nearest:
            at_edge = law if not outside.any() else self.law.seconds(self.kind, inside, self.device, self.words)
            own = np.log(self._seconds[self._nearest(wanted)] / at_edge)
            off += self.kind.nearest * (own - off)
        return law * np.exp(off), outside

    def nearest(self, sizes: Mapping[str, Floats]) -> Floats:
        """What a simple table look-up would say: the nearest row's seconds."""
        return self._seconds[self._nearest(self._at(sizes))]

    def _nearest(self, wanted: Floats) -> NDArray[np.int64]:
        """The row that is nearest to each point."""
        return np.array([np.abs(self._points - point).sum(axis=1).argmin() for point in wanted], np.int64)

    def _at(self, sizes: Mapping[str, Floats]) -> Floats:
        made: Floats = self.kind.coordinates(sizes) / np.array(self.kind.scales)
        return made


def device_of(name: str) -> Accelerator:
    """The accelerator of a table. One that the package does not know needs no rates of its own: the law that is fitted
    to its rows makes up for any."""
    try:
        return accelerator(name)
    except UnknownName:
        return Accelerator(name, {"bfloat16": 1e15, "fp8": 2e15, "nvfp4": 4e15}, 4e12, 0.0)
