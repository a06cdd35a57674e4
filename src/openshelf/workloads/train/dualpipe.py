"""DualPipe (DeepSeek-V3): a forward chunk and a backward chunk of a MoE layer at once, so that all-to-alls hide.

Computing of one chunk runs while the tokens of the other travel. Two streams run in order, one of computing and one of
communication; a step waits for its stream and for what it needs from the other. CHUNK is that order, as in DeepSeek's
published profile. `attention_f` begins with the gradients of attention's weights of the chunk before, which nothing
waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPUTE = ("attention_f", "mlp_b", "mlp_w", "mlp_f", "attention_b")
TRAVEL = ("dispatch_b", "dispatch_f", "combine_b", "combine_f")
CHUNK: dict[str, tuple[str, ...]] = {
    "attention_f": ("combine_f'",),
    "dispatch_b": ("attention_b'",),
    "mlp_b": ("dispatch_b",),
    "dispatch_f": ("attention_f",),
    "mlp_w": (),
    "combine_b": ("mlp_b",),
    "mlp_f": ("dispatch_f",),
    "attention_b": ("combine_b",),
    "combine_f": ("mlp_f",),
}
"""What each part of a chunk waits for; with ' it is the chunk before."""


@dataclass(frozen=True)
class Chunk:
    """When each part of a chunk ran, and for how long computing waited for tokens on their way."""

    start_s: dict[str, float]
    end_s: dict[str, float]
    exposed_s: float


def overlapped(times: list[Mapping[str, float]]) -> list[Chunk]:
    """Chunks one after the other; `times` are seconds of every part."""
    ended: dict[str, float] = {}
    free = {"compute": 0.0, "travel": 0.0}
    made = []
    for each in times:
        start: dict[str, float] = {}
        end: dict[str, float] = {}
        exposed = 0.0
        for part, needs in CHUNK.items():
            stream = "compute" if part in COMPUTE else "travel"
            ready = max(
                (ended.get(need.rstrip("'"), 0.0) if need.endswith("'") else end[need] for need in needs), default=0.0
            )
            start[part] = max(free[stream], ready)
            if stream == "compute":
                exposed += start[part] - free[stream]
            end[part] = free[stream] = start[part] + each[part]
        ended = end
        made.append(Chunk(start, end, exposed))
    return made
