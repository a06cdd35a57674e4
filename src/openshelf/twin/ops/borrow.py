"""What near shapes say about one that was not measured: universal kriging in a neighbourhood.

A weighted mean of the nearest rows and a linear trend through them, with weights that fall exponentially with distance
(Matheron 1963). Between two points on a line it is the straight line between them, so it makes up no waves, as splines
and wide kernels do where kernels switch. The constants are the scales of a kind of operator, the same for every
accelerator.
"""

from __future__ import annotations

import numpy as np

from openshelf.twin.ops.kinds import Floats

_NUGGET = 3e-3  # how much of the variance between rows is noise
_RIDGE = 1e-6  # a trend in a coordinate in which the neighbours do not differ is none
_AT_ONCE = 256


def borrowed(known: Floats, values: Floats, wanted: Floats, neighbours: int) -> Floats:
    """Values at `wanted` points; points are rows of coordinates that are divided by their scales."""
    count = min(neighbours, len(known))
    made = np.empty(len(wanted))
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        away = _apart(part[:, None, :], known[None])
        nearest = np.argpartition(away, count - 1, axis=1)[:, :count]
        weights = _weights(known[nearest] - part[:, None, :], np.take_along_axis(away, nearest, axis=1))
        made[start : start + _AT_ONCE] = (weights * values[nearest]).sum(axis=1)
    return made


def _apart(one: Floats, other: Floats) -> Floats:
    made: Floats = np.abs(one - other).sum(axis=-1)
    return made


def _weights(points: Floats, away: Floats) -> Floats:
    queries, count, dimensions = points.shape
    trend = 1 + dimensions
    matrix = np.zeros((queries, count + trend, count + trend))
    matrix[:, :count, :count] = np.exp(-_apart(points[:, :, None, :], points[:, None, :, :]))
    matrix[:, range(count), range(count)] += _NUGGET
    matrix[:, :count, count] = matrix[:, count, :count] = 1
    matrix[:, :count, count + 1 :] = points
    matrix[:, count + 1 :, :count] = points.transpose(0, 2, 1)
    matrix[:, range(count, count + trend), range(count, count + trend)] = -_RIDGE
    right = np.zeros((queries, count + trend, 1))
    right[:, :count, 0] = np.exp(-away)
    right[:, count] = 1
    made: Floats = np.linalg.solve(matrix, right)[:, :count, 0]
    return made
