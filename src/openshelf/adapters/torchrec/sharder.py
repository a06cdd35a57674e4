"""The sharder that puts tables in a Space, and the sharded module that it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openshelf.adapters.torchrec.checkpoint import check_state
from openshelf.adapters.torchrec.extra import embedding_types, embeddingbag, types
from openshelf.adapters.torchrec.kernel import CUSTOMIZED, TableLookup
from openshelf.adapters.torchrec.storage import Store
from openshelf.errors import BadInput, Mismatch
from openshelf.space import Space

_FUSED = embedding_types.EmbeddingComputeKernel.FUSED.value
_KIND = types.ShardingType


class TableSharder(embeddingbag.EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """In the place of TorchRec's EmbeddingBagCollectionSharder: tables are in `space`, where others can read them.

    A plan that says customized_kernel of some tables puts those there, and a plan that says it of none all that would
    be fused. `folder`: what names in the space begin with. `exist_ok`: tables that are there go on with their rows and
    states; without, NameTaken. `finite`: gradients that are infinite or no numbers are refused by BadInput.
    """

    def __init__(
        self,
        space: Space,
        *,
        fused_params: dict[str, Any] | None = None,
        folder: str = "",
        exist_ok: bool = False,
        finite: bool = True,
        **rest: Any,
    ) -> None:
        if not isinstance(space, Space):
            raise Mismatch(f"tables are in a Space, got {type(space).__name__}")
        super().__init__(fused_params=fused_params, **rest)
        self._store, self._finite = Store(space, folder, exist_ok), finite

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [_KIND.TABLE_WISE.value, _KIND.COLUMN_WISE.value, _KIND.TABLE_COLUMN_WISE.value, _KIND.ROW_WISE.value]

    def shard(self, module: Any, params: Any, env: Any, device: Any = None, module_fqn: str | None = None) -> Any:
        return ShardedTables(
            self._store,
            self._finite,
            module=module,
            table_name_to_parameter_sharding=_marked(params),
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )

    def reshard(self, *_: Any, **__: Any) -> Any:
        raise BadInput("tables in a space are not resharded in place: save a checkpoint, and load it by another plan")

    @property
    def sharded_module_type(self) -> Any:
        return ShardedTables


def _marked(params: dict[str, Any]) -> dict[str, Any]:
    """The plan with our mark on all fused tables, unless it has marks of its own."""
    chosen = {name for name, one in params.items() if one.compute_kernel == CUSTOMIZED.value}
    chosen = chosen or {name for name, one in params.items() if one.compute_kernel == _FUSED}
    if not chosen:
        kernels = sorted({one.compute_kernel for one in params.values()})
        raise BadInput(
            f"the plan has no table for the space: its tables {sorted(params)} have the kernels {kernels}, expected "
            f"{CUSTOMIZED.value!r} or {_FUSED!r} of some; say so in the plan, or use TorchRec's own sharder"
        )
    for name in chosen:
        if params[name].sharding_type == _KIND.DATA_PARALLEL.value:
            raise BadInput(
                f"the plan copies the table {name!r} to each process (data_parallel): in a space there is one"
            )
    return {
        name: replace(one, compute_kernel=CUSTOMIZED.value) if name in chosen else one for name, one in params.items()
    }


class ShardedTables(embeddingbag.ShardedEmbeddingBagCollection):  # type: ignore[misc]
    """TorchRec's sharded collection with look-ups of ours."""

    module_sharding_plan: Any
    _embedding_bag_configs: Any

    def __init__(self, store: Store, finite: bool, **rest: Any) -> None:
        self.__dict__["_store"], self.__dict__["_finite"] = store, finite  # before nn.Module is ready
        try:
            super().__init__(**rest)
        except BaseException:
            for kernel in self._table_kernels():
                kernel.discard(store)
            raise

    def _table_kernels(self) -> list[Any]:
        return [one for lookup in self.__dict__.get("_lookups", []) for one in getattr(lookup, "table_kernels", list)()]

    def _create_lookups(self) -> None:
        for sharding in self._embedding_shardings:
            if isinstance(sharding, embeddingbag.DpPooledEmbeddingSharding):
                self._lookups.append(sharding.create_lookup())
                continue
            kind = None  # as each sharding's create_lookup has it
            if isinstance(sharding, embeddingbag.RwPooledEmbeddingSharding):
                kind = _KIND.ROW_WISE
            elif isinstance(
                sharding, embeddingbag.TwRwPooledEmbeddingSharding | embeddingbag.GridPooledEmbeddingSharding
            ):
                kind = _KIND.TABLE_ROW_WISE
            lookup = TableLookup(
                self._store,
                self._finite,
                grouped_configs=sharding._grouped_embedding_configs_per_rank[sharding._rank],
                pg=sharding._pg,
                device=sharding._device,
                sharding_type=kind,
                env=sharding._env,
            )
            self._lookups.append(lookup)

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        """As for the fused kernel: ours has the same parameters and tensors. TorchRec leaves customized ones out."""
        plan = self.module_sharding_plan
        self.module_sharding_plan = {
            name: replace(one, compute_kernel=_FUSED) if one.compute_kernel == CUSTOMIZED.value else one
            for name, one in plan.items()
        }
        try:
            super()._initialize_torch_state(skip_registering)
        finally:
            self.module_sharding_plan = plan

    def reset_parameters(self) -> None:
        """Rows begin as the model says, but for tables that were there."""
        there = {name for kernel in self._table_kernels() for name, one in kernel.stored.items() if not one.new}
        every = self._embedding_bag_configs
        self._embedding_bag_configs = [one for one in every if one.name not in there]
        try:
            super().reset_parameters()
        finally:
            self._embedding_bag_configs = every

    @staticmethod
    def _pre_load_state_dict_hook(self: Any, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        shards = self._model_parallel_name_to_local_shards
        for name in shards:
            if self.module_sharding_plan[name].compute_kernel != CUSTOMIZED.value:
                continue
            config = self._table_name_to_config[name]
            check_state(state_dict, f"{prefix}embedding_bags.{name}.weight", config, shards[name], strict=bool(rest[1]))
        embeddingbag.ShardedEmbeddingBagCollection._pre_load_state_dict_hook(self, state_dict, prefix, *rest)
