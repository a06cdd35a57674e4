"""TableBag: a table as a module of torch, in the place of nn.EmbeddingBag.

The optimizer is the table's own. The backward pass applies gradients to the rows at once, as FBGEMM's fused kernels do:
no gradient of the whole table is ever made, and torch's optimizers do not see its rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from openshelf._sizes import flag, whole
from openshelf.errors import BadInput, Mismatch, OutOfRange
from openshelf.tables.arguments import mode_of, numbers_of
from openshelf.tables.optimizers import Optimizer
from openshelf.tables.table import Table, check_offsets


class TableBag(nn.Module):  # type: ignore[misc]
    """Bags of a table's rows, with the arguments and results of nn.EmbeddingBag, as float32.

    In training mode with gradients on, the backward pass updates the rows in place: `optimizer`, or the one that the
    table was made with. Without either, or in eval mode, rows only are read. `per_sample_weights` get gradients as any
    tensor does. `padding_idx`: ids that count for nothing.
    """

    def __init__(
        self,
        table: Table,
        mode: str = "mean",
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        optimizer: Optimizer | None = None,
        consistent: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(table, Table):
            raise Mismatch(f"a TableBag needs a Table, got {type(table).__name__}")
        mode_of(mode)
        if padding_idx is not None:
            rows, given = table.rows, whole(padding_idx, "padding_idx")
            if not -rows <= given < rows:
                raise OutOfRange(f"padding_idx {given} is out of range for the table {table.name!r} ({rows} rows)")
            padding_idx = given + rows if given < 0 else given
        self.table, self.mode, self.padding_idx = table, mode, padding_idx
        self.include_last_offset = flag(include_last_offset, "include_last_offset")
        self.consistent = flag(consistent, "consistent")
        self.optimizer = table.optimizer if optimizer is None else optimizer
        # Autograd calls backward() only of what a tensor with gradients went into; the rows themselves are none.
        self._entry = torch.zeros((), requires_grad=True)

    @property
    def embedding_dim(self) -> int:
        return self.table.dim

    @property
    def num_embeddings(self) -> int:
        return self.table.rows

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        ids, starts, weights = self._flat(input, offsets, per_sample_weights)
        trains = self.training and torch.is_grad_enabled() and self.optimizer is not None
        if weights is not None and self.mode != "sum":
            raise BadInput(f"per_sample_weights go with mode='sum', not with {self.mode!r}")
        entry = self._entry if trains else self._entry.detach()
        result: Tensor = _Bag.apply(self, ids, starts, weights, entry)
        return result

    def _flat(
        self, input: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, starts and weights of one dimension each, without padding."""
        for what, given in (("ids", input), ("offsets", offsets), ("per_sample_weights", weights)):
            if not isinstance(given, Tensor) and (given is not None or what == "ids"):
                raise Mismatch(f"{what} of a TableBag are a tensor, got {type(given).__name__}")
        if weights is not None and weights.shape != input.shape:
            raise Mismatch(
                f"per_sample_weights have the shape {tuple(weights.shape)}, the ids {tuple(input.shape)}: expected one "
                "weight for each id"
            )
        if input.dim() == 2:
            if offsets is not None:
                raise BadInput("ids of two dimensions are bags already, one a row: leave offsets out")
            bags, length = input.shape
            starts = torch.arange(bags, dtype=torch.int64) * length
            ids = input.reshape(-1)
            weights = None if weights is None else weights.reshape(-1)
        elif input.dim() == 1:
            if offsets is None or offsets.dim() != 1:
                raise BadInput("ids of one dimension need offsets of one: where each bag begins")
            ids, starts = input, offsets
            if self.include_last_offset:
                if not len(starts) or int(starts[-1]) != len(ids):
                    raise BadInput(f"with include_last_offset the last offset is the number of ids, {len(ids)}")
                starts = starts[:-1]
            check_offsets(starts, len(ids))
        else:
            raise Mismatch(f"ids of bags have one dimension (with offsets) or two, got {input.dim()}")
        if self.padding_idx is None:
            return ids, starts, weights
        kept = ids != self.padding_idx
        before = torch.zeros(len(ids) + 1, dtype=torch.int64)
        torch.cumsum(kept, 0, out=before[1:])
        return ids[kept], before[starts.long()], None if weights is None else weights[kept]

    def extra_repr(self) -> str:
        return f"{self.table!r}, mode={self.mode!r}"


class _Bag(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, module: TableBag, ids: Tensor, starts: Tensor, weights: Tensor | None, entry: Tensor
    ) -> Tensor:
        table = module.table
        factors = None if weights is None else weights.detach()
        ctx.module, ctx.winners = module, None
        out: Tensor
        if ctx.needs_input_grad[4] and module.mode == "max":
            out, ctx.winners = _maxima(table, ids, starts, module.consistent)
        else:
            out = table.bag(ids, starts, module.mode, factors, consistent=module.consistent)
        ctx.save_for_backward(ids, starts, *(() if weights is None else (weights,)))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        module: TableBag = ctx.module
        ids, starts, *rest = ctx.saved_tensors
        weights = rest[0] if rest else None
        gradient = gradient.float().contiguous()
        of_weights = None
        if weights is not None and ctx.needs_input_grad[3]:  # before the rows change
            lengths = torch.diff(starts, append=starts.new_tensor([len(ids)]))
            bags = torch.repeat_interleave(torch.arange(len(starts)), lengths)
            rows = module.table.lookup(ids, consistent=module.consistent)
            of_weights = (rows * gradient[bags]).sum(1).to(weights.dtype)
        if ctx.needs_input_grad[4]:
            if ctx.winners is not None:
                _update_maxima(module, ids, starts, ctx.winners, gradient)
            else:
                module.table.update_bags(
                    ids, starts, gradient, module.optimizer, mode=module.mode, weights=weights
                )  # fmt: skip
        return None, None, None, of_weights, torch.zeros(()) if ctx.needs_input_grad[4] else None


def _maxima(table: Table, ids: Tensor, starts: Tensor, consistent: bool) -> tuple[Tensor, Tensor]:
    """Bags, and for each of their numbers the position of the id whose row has it; -1 in an empty bag."""
    winners = torch.empty((len(starts), table.dim), dtype=torch.int64)
    results: list[Any] = []
    request = table._bag_request(ids, starts, "max", None, None, False, consistent, results, winners)
    table._read([request], 0)
    return results[0], winners


def _update_maxima(module: TableBag, ids: Tensor, starts: Tensor, winners: Tensor, gradient: Tensor) -> None:
    """A maximum's gradient goes to the row that it came from; rows that gave none stay as they are."""
    found, bags = numbers_of(ids, "ids"), len(starts)
    begins = numbers_of(starts, "offsets")
    module.table._apply(
        found.given, gradient.data_ptr(), bags, begins.given, bags, False, 0, winners.data_ptr(), module.optimizer,
        True, 0,
    )  # fmt: skip
