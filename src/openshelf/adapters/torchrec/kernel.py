"""The kernel of a group of shards, and the look-up that makes it: TorchRec's own for everything that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openshelf.adapters.torchrec.extra import embedding_lookup, embedding_types, kernels, slices, torch
from openshelf.adapters.torchrec.group import TableGroup
from openshelf.adapters.torchrec.optimizers import rule_of
from openshelf.adapters.torchrec.storage import Part, Store, Stored
from openshelf.errors import BadInput

CUSTOMIZED = embedding_types.EmbeddingComputeKernel.CUSTOMIZED_KERNEL
_MEAN = kernels.PoolingMode.MEAN


class TableKernel(kernels.BaseBatchedEmbeddingBag, kernels.FusedOptimizerModule):  # type: ignore[misc]
    """As TorchRec's BatchedFusedEmbeddingBag, with tables of a Space in the place of FBGEMM's."""

    def __init__(self, config: Any, pg: Any, device: Any, sharding_type: Any, store: Store, finite: bool) -> None:
        super().__init__(config, pg, device, sharding_type)
        if device is not None and device.type not in ("cpu", "meta"):
            raise BadInput(f"tables in a space are read by the CPU; the model is sharded for {device}")
        shards: dict[str, list[Any]] = {}
        for one in config.embedding_tables:
            shards.setdefault(one.name, []).append(one)
        rule = rule_of(config.fused_params or {}, list(shards))
        self.stored: dict[str, Stored] = {}
        try:
            for name, some in shards.items():
                self.stored[name] = store.stored(some, rule)
        except BaseException:
            self.discard(store)
            raise
        parts = {name: iter(one.parts) for name, one in self.stored.items()}
        ordered: list[Part] = [next(parts[one.name]) for one in config.embedding_tables]
        self._emb_module = TableGroup(ordered, self._feature_table_map, rule, self._pooling is _MEAN, finite)
        self._optim = self._optimizer()
        if all(one.new for one in self.stored.values()):
            self.init_parameters()

    def _optimizer(self, **of_one: Any) -> Any:
        """TorchRec's, whose states are on the tables' memory."""
        made = kernels.EmbeddingFusedOptimizer(self._config, self._emb_module, self._pg, **of_one)
        for states in made.state.values():
            for key, sharded in states.items():
                table, _, name = key.rpartition(".")
                for at, part in enumerate(self.stored[table].parts):
                    state = part.states[next(iter(part.states)) if name == "momentum1" else name]
                    if state.is_contiguous():
                        continue
                    if not hasattr(sharded, "local_shards"):
                        raise BadInput(
                            f"the table {table!r} has states of Adam: state dicts have them as ShardedTensor only"
                        )
                    sharded.local_shards()[at].tensor = state
        return made

    def discard(self, store: Store) -> None:
        """Takes back the tables that were made."""
        for one in self.stored.values():
            if one.new:
                store.space.delete(one.table.name)

    def forward(self, features: Any) -> Any:
        if features.variable_stride_per_key():
            raise BadInput(
                "tables in a space need the same number of bags of each feature; batches vary by feature here"
            )
        weights = features.weights_or_none()
        if weights is not None and not weights.is_floating_point():
            weights = None
        return self._emb_module(features.values(), features.offsets(), weights)

    @property
    def emb_module(self) -> TableGroup:
        return self._emb_module

    @property
    def fused_optimizer(self) -> Any:
        return self._optim

    def named_parameters_by_table(self) -> Iterator[tuple[str, Any]]:
        """Each table as one parameter: all its rows here."""
        for name, one in self.stored.items():
            dim = one.table.dim
            weight = slices.TableBatchedEmbeddingSlice(one.rows.view(-1), 0, one.rows.numel(), -1, dim)
            weight._in_backward_optimizers = [self._optimizer(create_for_table=name, param_weight_for_table=weight)]
            yield name, weight

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        for name, tensor in self.named_split_embedding_weights(prefix, recurse, remove_duplicate):
            param = torch.nn.Parameter(tensor, requires_grad=False)
            param._in_backward_optimizers = [kernels.EmptyFusedOptimizer()]
            yield name, param

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        yield from ()


class TableLookup(embedding_lookup.GroupedPooledEmbeddingsLookup):  # type: ignore[misc]
    """TorchRec's look-up, which makes a TableKernel of groups that are marked as customized."""

    def __init__(self, store: Store, finite: bool, **rest: Any) -> None:
        self.__dict__["_store"], self.__dict__["_finite"] = store, finite  # before nn.Module is ready
        super().__init__(**rest)

    def _create_embedding_kernel(self, config: Any, device: Any, pg: Any, sharding_type: Any, env: Any) -> Any:
        if config.compute_kernel != CUSTOMIZED:
            return super()._create_embedding_kernel(config, device, pg, sharding_type, env)
        return TableKernel(config, pg, device, sharding_type, self._store, self._finite)

    def table_kernels(self) -> list[TableKernel]:
        return [one for one in self._emb_modules if isinstance(one, TableKernel)]
