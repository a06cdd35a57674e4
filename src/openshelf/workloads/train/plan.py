"""A plan of training: degrees, batches, schedule, recomputation, what is sharded and what is offloaded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Literal, get_args

from openshelf.errors import BadInput
from openshelf.workloads.train.model import Model

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "interleaved", "dualpipe"]
OFFLOADS = ("weights", "optimizer", "activations")
_WORDS = {
    "schedule": get_args(Schedule), "recompute": get_args(Recompute), "dtype": ("bfloat16", "float16", "fp8", "nvfp4"),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Degrees of data, tensor, context, pipeline and expert parallelism, and how a step is done.

    `sequence_parallel` splits by `tp` what tensor parallelism repeats. `interleave` is the number of chunks of layers
    of each stage. `overlap` hides what can be hidden of data-parallel and tensor-parallel communication.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    sequence_parallel: bool = False
    schedule: Schedule = "1f1b"
    interleave: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    offload: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    flash: bool = True
    overlap: bool = False

    @property
    def accelerators(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def micro_batches(self) -> int:
        return self.global_batch // (self.dp * self.micro_batch)

    def check(self, model: Model, count: int | None = None) -> None:
        """Raises BadInput with everything that does not divide."""
        wrong = self._of_wrong_kind() or [
            f"{name} is {value}; expected 1 or more"
            for name, value in vars(self).items()
            if isinstance(value, Integral) and not isinstance(value, bool) and name != "zero" and value < 1
        ]
        if not wrong:
            wrong = [text for text, fails in self.rules(model, count) if fails]
        if wrong:
            raise BadInput(f"the plan does not fit {model.name!r}: " + "; ".join(wrong))

    def _of_wrong_kind(self) -> list[str]:
        """A half sequence, a name that is none: what would be computed with, or left out in silence."""
        wrong = []
        for each in fields(self):
            value, kind = getattr(self, each.name), type(each.default)
            if kind is int and (isinstance(value, bool) or not isinstance(value, Integral)):
                wrong.append(f"{each.name} is {value!r:.60}; expected a whole number")
            elif kind is bool and not isinstance(value, bool):
                wrong.append(f"{each.name} is {value!r:.60}; expected True or False")
            elif each.name in _WORDS and not (isinstance(value, str) and value in _WORDS[each.name]):
                wrong.append(f"{each.name} is {value!r:.60}; expected one of {', '.join(_WORDS[each.name])}")
            elif kind is tuple and not (isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)):
                wrong.append(f"{each.name} is {value!r:.60}; expected a tuple of {', '.join(OFFLOADS)}")
        return wrong

    def rules(self, model: Model, count: int | None) -> list[tuple[str, bool]]:
        """What a plan has to keep, and whether it does not."""
        chunks = self.pp * self.interleave
        per = self.dp * self.micro_batch
        unknown = [name for name in self.offload if name not in OFFLOADS]
        split = f"{self.dp} x {self.tp} x {self.pp} x {self.cp}"
        return [
            (f"dp x tp x pp x cp is {split} = {self.accelerators}, and there are {count} accelerators",
             count is not None and self.accelerators != count),
            (f"{model.heads} heads do not divide by tp {self.tp}", model.heads % self.tp != 0),
            (f"a feed-forward part of {model.ffn} does not divide by tp {self.tp}", model.ffn % self.tp != 0),
            (f"{model.layers} layers are fewer than pp x interleave, {chunks}", model.layers < chunks),
            (f"a batch of {self.global_batch} does not divide by dp x micro_batch, {per}",
             self.global_batch % per != 0),
            (f"a sequence of {model.seq} does not divide by 2 x cp, {2 * self.cp}",
             self.cp > 1 and model.seq % (2 * self.cp) != 0),
            (f"{model.experts} experts do not divide by ep {self.ep}",
             self.ep > 1 and (not model.experts or model.experts % self.ep != 0)),
            (f"ep {self.ep} does not divide dp x tp x cp, {self.dp * self.tp * self.cp}",
             self.dp * self.tp * self.cp % self.ep != 0),
            ("interleave is of the schedule 'interleaved'", self.interleave > 1 and self.schedule != "interleaved"),
            (f"interleaving wants a number of micro-batches that divides by pp {self.pp}; {self.micro_batches} came",
             self.schedule == "interleaved" and self.interleave > 1 and self.micro_batches % self.pp != 0),
            (f"DualPipe wants an even pp and at least 2 x pp micro-batches; pp {self.pp}, {self.micro_batches} came",
             self.schedule == "dualpipe" and (self.pp % 2 != 0 or self.micro_batches < 2 * self.pp)),
            (f"zero is {self.zero}; expected 0 to 3", not 0 <= self.zero <= 3),
            (f"zero {self.zero} with pp {self.pp}: gradients and weights are kept over micro-batches, use zero 1",
             self.zero > 1 and self.pp > 1),
            (f"offload of {', '.join(unknown)}; there is {', '.join(OFFLOADS)}", bool(unknown)),
        ]  # fmt: skip
