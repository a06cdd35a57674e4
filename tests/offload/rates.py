"""The machine that most tests of offload plan for: a disk and host memory of ordinary speed."""

from __future__ import annotations

from openshelf.offload import Lane, Rates

RATES = Rates(*(Lane(2e9, 1e-4),) * 2, *(Lane(8e9),) * 2)
