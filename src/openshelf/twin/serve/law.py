"""StepLaw: a few constants that turn Work into seconds of an engine's step.

Shares of what is sold (bandwidth, links) and of what the operators' laws say (computing), a time for each kernel and
each all-reduce, and each engine's host time. A step with prompts is no CUDA graph: its kernels are launched one by
one. They are fitted on measured serving settings (fitting.py); those that come with the package are in law.yaml, with
their error. Where two limits meet, the time is their norm of power 3, near to the larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from openshelf.twin.serve.work import Work

_FILE = Path(__file__).parent / "law.yaml"
ENGINES = ("trtllm", "sglang", "vllm")


@dataclass(frozen=True)
class StepLaw:
    """The constants. Those that are tuples are by engine, in the order of ENGINES.

    `host_s` a step, `sequence_s` a sequence in it, `eager_s` a kernel of a step with prompts. From a request's arrival
    to its first step: `entry_s`, `entry_operator_s` a kernel; `far_entry_s` with other clients than InferenceX's.
    """

    memory: float = 0.8
    compute: float = 0.85
    expert_memory: float = 0.7
    expert_compute: float = 0.9
    kv_memory: float = 0.75
    attention: float = 0.9
    links: float = 0.6
    spread: float = 1.0
    operator_s: float = 4e-6
    reduce_s: float = 10e-6
    newer: float = 0.7
    host_s: tuple[float, ...] = (1e-3, 1e-3, 1e-3)
    sequence_s: tuple[float, ...] = (1e-5, 1e-5, 1e-5)
    eager_s: tuple[float, ...] = (1e-5, 1e-5, 1e-5)
    entry_s: tuple[float, ...] = (0.03, 0.03, 0.03)
    far_entry_s: tuple[float, ...] = (0.03, 0.03, 0.03)
    entry_operator_s: tuple[float, ...] = (5e-5, 5e-5, 5e-5)
    errors: dict[str, float] = field(default_factory=dict, compare=False)

    def steady(self, work: Work) -> Any:
        """What a step takes however small it is, on the accelerator."""
        pace = np.where(work.blackwell, self.newer, 1.0)
        return pace * (work.operators * self.operator_s + work.reduces * self.reduce_s)

    def dense(self, work: Work, tokens: Any) -> Any:
        """Everything but attention and the host, for so many tokens of all ranks."""
        own = tokens / work.ranks
        linear = _both(work.linear_s / self.memory, work.linear_token_s * own / self.compute)
        share = 1 - (1 - np.minimum(work.experts_used / work.experts, 1 - 1e-9)) ** (tokens**self.spread)
        expert = _both(work.experts_s * share / self.expert_memory, work.expert_token_s * tokens / self.expert_compute)
        moved = (work.moved_token_s * own + work.expert_moved_s * tokens) + work.reduce_token_s * own / self.links
        return linear + expert + moved + self.steady(work)

    def decode(self, work: Work, sequences: Any, context: Any) -> Any:
        """Attention of so many sequences of one token each, which look at so many."""
        seen = context + work.windowed_share * (np.minimum(context, work.window) - context)
        each = np.maximum(sequences / work.ranks, np.minimum(sequences, 1.0)) * seen
        return _both(work.kv_s * each / self.kv_memory, work.kv_compute_s * each / self.attention)

    def prefill(self, work: Work, tokens: Any, before: Any) -> Any:
        """Attention of a prompt's tokens, which also look at those before them."""
        whole = before + tokens / 2
        seen = whole + work.windowed_share * (np.minimum(whole, work.window) - whole)
        return work.prefill_s * tokens * seen / self.attention

    def entry(self, work: Work, engine: Any, far: Any = False) -> Any:
        """From a request's arrival to its first step: outside of the accelerator, but longer where a step has more
        kernels."""
        base = np.where(far, np.array(self.far_entry_s)[engine], np.array(self.entry_s)[engine])
        return base + work.operators * np.array(self.entry_operator_s)[engine]

    def eager(self, work: Work, engine: Any) -> Any:
        """What a step with prompts takes more, as its kernels are launched one by one."""
        return work.operators * np.array(self.eager_s)[engine]

    def host(self, engine: Any, sequences: Any) -> Any:
        """What a step takes on the host, that nothing hides."""
        return np.array(self.host_s)[engine] + np.array(self.sequence_s)[engine] * sequences


def _both(one: Any, other: Any) -> Any:
    return (one**3 + other**3) ** (1 / 3)


@cache
def shipped() -> StepLaw:
    """The constants that come with the package."""
    plain: dict[str, Any] = yaml.safe_load(_FILE.read_text())
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    return StepLaw(**values)
