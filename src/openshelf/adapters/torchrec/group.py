"""A group of tables as one module, in the place of FBGEMM's SplitTableBatchedEmbeddingBagsCodegen.

All bags of all tables are read in one call, into the columns of one result. The backward pass changes rows at once,
with the bits of FBGEMM's fused CPU kernels.
"""

from __future__ import annotations

from typing import Any

from openshelf.adapters.torchrec.extra import torch
from openshelf.adapters.torchrec.optimizers import Rule
from openshelf.adapters.torchrec.storage import Part
from openshelf.errors import BadInput
from openshelf.tables import Table, bag_many


class TableGroup(torch.nn.Module):  # type: ignore[misc]
    """`features`: for each feature the number of its part."""

    def __init__(self, parts: list[Part], features: list[int], rule: Rule, mean: bool, finite: bool) -> None:
        super().__init__()
        self.parts, self.features, self.rule, self.mean, self.finite = parts, features, rule, mean, finite
        ends = torch.tensor([parts[number].table.dim for number in features]).cumsum(0).tolist()
        self.columns = list(zip([0, *ends[:-1]], ends, strict=True))
        owners: dict[int, tuple[Table, list[int]]] = {}
        for at, number in enumerate(features):
            owners.setdefault(id(parts[number].table), (parts[number].table, []))[1].append(at)
        self.owners = list(owners.values())  # each table, and its features
        # Autograd calls backward() only of what a tensor with gradients went into; the rows themselves are none.
        self._entry = torch.zeros((), requires_grad=True)

    def forward(self, indices: Any, offsets: Any, per_sample_weights: Any = None) -> Any:
        return _Pooled.apply(self, indices, offsets, per_sample_weights, self._entry)

    # What TorchRec's optimizers and state dicts ask of FBGEMM's module

    def split_embedding_weights(self) -> list[Any]:
        return [part.rows for part in self.parts]

    def get_optimizer_state(self) -> list[dict[str, Any]]:
        """Adam's states of a row are beside each other, and TorchRec takes only contiguous tensors. It gets others,
        which nobody touches, and kernel.py puts the real ones in their places."""
        return [
            {key: one if one.is_contiguous() else torch.empty(one.shape) for key, one in part.states.items()}
            for part in self.parts
        ]

    def get_learning_rate(self) -> float:
        return self.rule.lr

    def set_learning_rate(self, lr: float) -> None:
        self.rule = self.rule._replace(lr=float(lr))

    def set_optimizer_step(self, step: int) -> None:
        for part in self.parts:
            part.table._core.set_steps(int(step))

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        if not set(params_dict) <= {"lr", "eps"}:
            raise BadInput(f"lr and eps of tables in a space can be changed, got {sorted(params_dict)}")
        lr, eps = (float(params_dict.get(key, getattr(self.rule, key))) for key in ("lr", "eps"))
        self.rule = self.rule._replace(lr=lr, eps=eps)

    # Bags

    def read(self, ids: Any, offsets: Any, weights: Any) -> Any:
        bags, bounds = self.split(offsets)
        out = torch.empty((bags, self.columns[-1][1]))
        bag_many(
            [self.parts[number].table for number in self.features],
            [self.ids(number, ids[first:last]) for number, first, last in self.each(bounds)],
            [offsets[at * bags : (at + 1) * bags] - bounds[at] for at in range(len(self.features))],
            "sum",
            None if weights is None else [weights[first:last] for _, first, last in self.each(bounds)],
            out=[out[:, first:last] for first, last in self.columns],
        )
        if self.mean:  # FBGEMM multiplies by the reciprocal
            factors = 1 / torch.diff(offsets).clamp(min=1).float().view(len(self.features), bags)
            for (first, last), factor in zip(self.columns, factors, strict=True):
                out[:, first:last] *= factor[:, None]
        return out

    def update(self, ids: Any, offsets: Any, weights: Any, gradient: Any) -> None:
        """One step of each table, with the gradients of all its features."""
        bags, bounds = self.split(offsets)
        if weights is not None and self.mean:
            lengths = torch.diff(offsets)
            weights = weights * (1 / lengths.float()).repeat_interleave(lengths)
        for table, mine in self.owners:
            spans = [(bounds[at], bounds[at + 1]) for at in mine]
            some = _joined(
                [self.ids(self.features[at], ids[first:last]) for at, (first, last) in zip(mine, spans, strict=True)]
            )
            by = None if weights is None else _joined([weights[first:last] for first, last in spans])
            shifts = torch.tensor([last - first for first, last in spans]).cumsum(0).tolist()
            starts = _joined(
                [
                    offsets[at * bags : (at + 1) * bags] - (last - shift)
                    for at, (_, last), shift in zip(mine, spans, shifts, strict=True)
                ]
            )
            rows = _joined([gradient[:, first:last] for first, last in (self.columns[at] for at in mine)])
            table._core.update(
                _given(some), rows.data_ptr(), rows.stride(0), len(rows), _given(starts), len(starts),
                self.mean and by is None, 0 if by is None else by.data_ptr(), 0, self.rule.settings, not self.finite, 0,
            )  # fmt: skip

    def split(self, offsets: Any) -> tuple[int, list[int]]:
        """How many bags each feature has, and where the ids of each begin; last, where those of the last end."""
        bags = (len(offsets) - 1) // len(self.features)
        return bags, (offsets[::bags].tolist() if bags else [0] * (len(self.features) + 1))

    def each(self, bounds: list[int]) -> list[tuple[int, int, int]]:
        return list(zip(self.features, bounds, bounds[1:], strict=False))

    def ids(self, number: int, ids: Any) -> Any:
        first = self.parts[number].first
        return ids + first if first else ids


def _joined(tensors: list[Any]) -> Any:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _given(numbers: Any) -> tuple[int, int, int]:
    return numbers.data_ptr(), numbers.element_size(), numbers.numel()


class _Pooled(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, group: TableGroup, ids: Any, offsets: Any, weights: Any, entry: Any) -> Any:
        ids, offsets = ids.contiguous(), offsets.contiguous()
        weights = None if weights is None else weights.detach().float()
        ctx.group = group
        ctx.save_for_backward(ids, offsets, *(() if weights is None else (weights,)))
        return group.read(ids, offsets, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        group: TableGroup = ctx.group
        ids, offsets, *rest = ctx.saved_tensors
        weights = rest[0] if rest else None
        gradient = gradient.float().contiguous()
        of_weights = _of_weights(group, ids, offsets, gradient) if ctx.needs_input_grad[3] else None
        group.update(ids, offsets, weights, gradient)
        return None, None, None, of_weights, torch.zeros(())


def _of_weights(group: TableGroup, ids: Any, offsets: Any, gradient: Any) -> Any:
    """Each weight's gradient, from the rows as they are before the update."""
    bags, bounds = group.split(offsets)
    lengths = torch.diff(offsets)
    parts = []
    for at, (number, first, last) in enumerate(group.each(bounds)):
        begin, end = group.columns[at]
        mine = gradient[:, begin:end].repeat_interleave(lengths[at * bags : (at + 1) * bags], 0)
        parts.append((group.parts[number].table.lookup(group.ids(number, ids[first:last])) * mine).sum(1))
    found = torch.cat(parts)
    return found / lengths.float().repeat_interleave(lengths) if group.mean else found
