"""The optimizer of a group of tables, from TorchRec's fused parameters. Parameters that only say how a GPU caches rows
mean nothing here; those that would change results and are not built are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openshelf.adapters.torchrec.extra import configs
from openshelf.errors import BadInput
from openshelf.tables import SGD, Adagrad, Adam, RowwiseAdagrad

_KIND = configs.EmbOptimType
KINDS = {
    _KIND.EXACT_SGD: SGD,
    _KIND.EXACT_ADAGRAD: Adagrad,
    _KIND.EXACT_ROWWISE_ADAGRAD: RowwiseAdagrad,
    _KIND.ADAM: Adam,
}
STATES = {SGD: (), Adagrad: ("sum",), RowwiseAdagrad: ("sum",), Adam: ("exp_avg", "exp_avg_sq")}
_UNCHANGED: dict[str, Any] = {  # what a parameter must be, if it is there: that which FBGEMM has without it
    "weight_decay": 0.0,
    "gradient_clipping": False,
    "max_norm": 0.0,
    "counter_based_regularization": None,
    "cowclip_regularization": None,
    "global_weight_decay": None,
    "output_dtype": configs.SparseType.FP32,
}


class Rule(NamedTuple):
    """One optimizer. The learning rate may be 0, as schedules have it, so it is no Optimizer of openshelf.tables."""

    kind: type[SGD] | type[Adagrad] | type[RowwiseAdagrad] | type[Adam]
    lr: float
    eps: float
    betas: tuple[float, float]

    @property
    def settings(self) -> tuple[float, float, float, float]:
        return self.lr, self.eps, *self.betas

    def of_a_table(self) -> SGD | Adagrad | RowwiseAdagrad | Adam:
        """What a table is made with: it says which state rows have, and what updates by others do."""
        lr = self.lr or 1.0
        if self.kind is SGD:
            return SGD(lr)
        if self.kind is Adam:
            return Adam(lr, self.betas, self.eps)
        return Adagrad(lr, self.eps) if self.kind is Adagrad else RowwiseAdagrad(lr, self.eps)


def rule_of(fused: dict[str, Any], tables: list[str]) -> Rule:
    """As FBGEMM's table-batched embeddings take these parameters; BadInput if it is something else here."""
    kind = fused.get("optimizer", _KIND.EXACT_SGD)
    if kind not in KINDS:
        known = ", ".join(sorted(one.name for one in KINDS))
        raise BadInput(f"the tables {tables} have the optimizer {kind}: tables in a space have {known}")
    for name, expected in _UNCHANGED.items():
        if name in fused and fused[name] != expected:
            raise BadInput(
                f"the tables {tables} have {name}={fused[name]!r}: tables in a space have {expected!r} only; leave it "
                "out, or give these tables the fused kernel"
            )
    lr = float(fused.get("learning_rate", 0.01))
    if not 0 <= lr < float("inf"):
        raise BadInput(f"the tables {tables} have the learning rate {lr}: expected a finite one that is not negative")
    return Rule(KINDS[kind], lr, float(fused.get("eps", 1e-8)), (fused.get("beta1", 0.9), fused.get("beta2", 0.999)))
