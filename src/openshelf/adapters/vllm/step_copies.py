"""What the scheduler tells the workers of one step. vLLM carries it to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from openshelf.adapters.vllm.extra import base
from openshelf.kv import Layout


@dataclass
class Copy:
    """The beginning of a request's tokens, whole blocks of it, and vLLM's number of each block.

    To load, from token `start` on. The layout is that of rank 0; every worker puts in its own."""

    request: str
    layout: Layout
    cache_salt: str
    tokens: list[int]
    blocks: list[int]
    start: int = 0


@dataclass
class StepCopies(base.KVConnectorMetadata):  # type: ignore[misc]  # vllm is not there when mypy runs
    """Loads begin in this step, and are over in a later one; saves are of what this step computes."""

    loads: list[Copy] = field(default_factory=list)
    saves: list[Copy] = field(default_factory=list)
