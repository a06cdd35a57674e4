"""The law of MoE exchanges: tokens to the ranks of their experts (dispatch), and what came of them back (combine).

A phase of t tokens a rank, over u units (ranks of one domain, or nodes), takes

    launch + waits x hop + t x ((token**3 + (remote bytes of a token / rate)**3)**(1/3))

A token costs its rank's processors `token_s` however far it goes; bytes leave over the wires at the same time, so the
longer of the two counts, and where they are near each other both do a little. A token is sent once to each unit that
has one of its experts, or, where kernels send early, once for each expert. Experts are taken to be hit evenly.
One-sided kernels store into the peers' memory, raise a flag at each and look for the flags of all: they wait u - 1
times. Two-sided ones make lists, agree on room and send: they wait as a tree does, log2(u) times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from openshelf.fabric.wiring.network import Values

_TOGETHER = 3.0
BYTES = {
    "bfloat16": 2.0, "float16": 2.0, "fp8": 1 + 4 / 128, "fp8_block": 1 + 4 / 128, "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32, "none": 0.0,
}  # fmt: skip
"""Bytes of a value, with its share of a scale: of 128 values in fp8, of 32 in mxfp8 and mxfp4, of 16 in nvfp4."""


def reached(units: int, topk: int, experts: int) -> float:
    """How many of the units have at least one of a token's `topk` different experts, on average."""
    here, more = divmod(experts, units)  # of which so many units have one more

    def some(own: int) -> float:
        return 1 - math.comb(max(0, experts - own), topk) / math.comb(experts, topk)

    return more * some(here + 1) + (units - more) * some(here)


def remote_copies(units: int, topk: int, experts: int, each_expert: bool = False) -> float:
    """Copies of a token that leave its unit: one for each unit reached, or for each expert."""
    return (topk if each_expert else reached(units, topk, experts)) * (units - 1) / units


@dataclass(frozen=True)
class Tokens:
    """What a phase has to carry: so many tokens of every rank, so many bytes of each that leave, among units."""

    tokens: int
    units: int
    remote_bytes: float
    one_sided: bool = False

    @property
    def waits(self) -> float:
        return self.units - 1 if self.one_sided else math.log2(self.units)


@dataclass(frozen=True)
class Phase:
    """The constants of one phase of a kernel."""

    launch_s: float
    hop_s: float
    token_s: float
    s_per_byte: float

    def seconds(self, load: Tokens) -> float:
        return float(_seconds(np.log(self.constants), _columns([load]))[0])

    @property
    def constants(self) -> Values:
        return np.array([self.launch_s, self.hop_s, self.token_s, self.s_per_byte])


def fit_phase(rows: Sequence[tuple[Tokens, float]], start: Phase, hold_rate: bool = False) -> Phase:
    """Constants from (load, seconds); `start` is where the search begins, and what holds where rows say nothing."""
    columns, measured = _columns([load for load, _ in rows]), np.array([seconds for _, seconds in rows])
    first = np.log(start.constants)
    rate = first[3:]
    free = first[:3] if hold_rate else first

    def off(constants: Values) -> Values:
        every = np.concatenate([constants, rate]) if hold_rate else constants
        return np.asarray(np.log(_seconds(every, columns) / measured))

    found = descend(off, free)
    return Phase(*np.exp(np.concatenate([found, rate]) if hold_rate else found).tolist())


def descend(off: Callable[[Values], Values], start: Values, pull: float = 0.05) -> Values:
    """The point where the errors `off` are least, large ones counting less, and a little pulled to where it began.

    Levenberg and Marquardt's method, with derivatives by differences: a handful of constants.
    """

    def felt(point: Values) -> Values:
        errors = off(point)
        return np.concatenate([errors / np.sqrt(np.maximum(np.abs(errors), 0.05)), pull * (point - start)])

    point, damping = start, 1e-2
    errors = felt(point)
    for _ in range(100):
        slopes = np.stack([(felt(point + 1e-5 * axis) - errors) / 1e-5 for axis in np.eye(len(point))], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(point)), -slopes.T @ errors)
        tried = point + np.clip(step, -1, 1)
        then = felt(tried)
        gain = float(errors @ errors - then @ then)
        if gain > 0:
            point, errors, damping = tried, then, damping / 3
            if gain < 1e-9:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return point


def _columns(loads: Sequence[Tokens]) -> Values:
    return np.array([(each.tokens, each.waits, each.remote_bytes) for each in loads], float).T


def _seconds(constants: Values, columns: Values) -> Values:
    launch_s, hop_s, token_s, s_per_byte = np.exp(constants)
    tokens, waits, remote = columns
    each = (token_s**_TOGETHER + (remote * s_per_byte) ** _TOGETHER) ** (1 / _TOGETHER)
    return np.asarray(launch_s + waits * hop_s + tokens * each)
