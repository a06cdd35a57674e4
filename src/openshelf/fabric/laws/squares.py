"""Least squares with no constant below its bound, and which constants the rows determine.

Lawson and Hanson's active-set method (Solving Least Squares Problems, 1974): a dozen columns and some hundred rows, so
that no package is needed for it.
"""

from __future__ import annotations

import numpy as np

from openshelf.fabric.wiring.network import Values

_LOOSE = 0.5
"""A constant whose relative standard error is larger is not determined by the rows."""


def bounded(matrix: Values, target: Values, least: Values) -> Values:
    """The x of at least `least` for which matrix x is nearest to target."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    return np.asarray(least + _not_negative(matrix / scale, target - matrix @ least) / scale)


def _not_negative(matrix: Values, target: Values) -> Values:
    count = matrix.shape[1]
    found, free = np.zeros(count), np.zeros(count, bool)
    for _ in range(10 * count):
        gain = np.where(free, -np.inf, matrix.T @ (target - matrix @ found))
        if gain.max() <= 1e-10:
            break
        free[int(gain.argmax())] = True
        while free.any():
            tried = np.zeros(count)
            tried[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            wrong = free & (tried <= 0)
            if not wrong.any():
                found = tried
                break
            part = float(np.min(found[wrong] / np.maximum(found[wrong] - tried[wrong], 1e-300)))
            found = found + part * (tried - found)
            free &= found > 1e-14
            found[~free] = 0.0
    return found


def determined(matrix: Values, constants: Values) -> list[bool]:
    """Whether rows whose relative errors are matrix x - 1 say what each constant is.

    A constant is not determined if it may be exchanged for others without changing any row, or if the rows' own
    scatter leaves it uncertain by more than half.
    """
    if not len(matrix):
        return [False] * len(constants)
    scaled = matrix * constants
    left = float(np.sqrt(np.mean((scaled.sum(axis=1) - 1) ** 2)))
    _, size, way = np.linalg.svd(scaled, full_matrices=True)
    size = np.concatenate([size, np.zeros(len(way) - len(size))])
    seen = size > 1e-6 * max(float(size.max()), 1e-300)
    blind = (way[~seen] ** 2).sum(axis=0)
    error = max(left, 1e-3) * np.sqrt(((way[seen] / size[seen, None]) ** 2).sum(axis=0))
    return [bool(blind[i] < 1e-6 and error[i] < _LOOSE and constants[i] > 0) for i in range(len(constants))]
