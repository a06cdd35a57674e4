"""Accelerators as operator times need them: rates and memory as sold, from accelerators.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

from openshelf.errors import UnknownName
from openshelf.fabric import nearest
from openshelf.twin.ops.kinds import MATHS

_FILE = Path(__file__).parent / "accelerators.yaml"


@dataclass(frozen=True)
class Accelerator:
    """What one can do at most: operations per second by dtype, bytes per second of its memory, bytes of it."""

    name: str
    flop_per_s: dict[str, float] = field(hash=False)
    memory_bytes_per_s: float
    memory_bytes: float
    aliases: tuple[str, ...] = ()
    memory: str = "hbm"
    """hbm or gddr."""

    def has(self, dtype: str) -> bool:
        """Whether it computes in a dtype, at a rate of its own."""
        return MATHS.get(dtype, dtype) in self.flop_per_s

    def peak(self, dtype: str) -> float:
        """Operations per second of a dtype; the widest that there is where the dtype has no rate of its own."""
        name = MATHS.get(dtype, dtype)
        return self.flop_per_s.get(name) or self.flop_per_s["bfloat16"]


@cache
def accelerators() -> dict[str, Accelerator]:
    """Every accelerator that comes with the package, by name."""
    made = {}
    for name, each in yaml.safe_load(_FILE.read_text()).items():
        rates = {dtype: float(rate) for dtype, rate in each["flop_per_s"].items()}
        memory = float(each["memory_bytes_per_s"]), float(each["memory_bytes"])
        made[name] = Accelerator(name, rates, *memory, tuple(each.get("aliases", ())), each.get("memory", "hbm"))
    return made


def accelerator(name: str) -> Accelerator:
    """One by its name or an alias; raises UnknownName with the nearest ones."""
    found = accelerators()
    if name in found:
        return found[name]
    for each in found.values():
        if name.lower() in each.aliases:
            return each
    raise UnknownName(f"there is no accelerator {name!r}; there is {', '.join(found)}{nearest(name, list(found))}")


def memory_of(name: str) -> str:
    """The kind of memory of an accelerator; "" of one that is not known."""
    found = accelerators().get(name)
    return found.memory if found else ""
