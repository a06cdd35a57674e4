"""The class that vLLM makes: its calls, passed on to the half that this process is."""

from __future__ import annotations

import importlib
from typing import Any

from openshelf.adapters.vllm.extra import base, say_once
from openshelf.adapters.vllm.layout import check_engine
from openshelf.adapters.vllm.options import Options
from openshelf.adapters.vllm.scheduler import Scheduler
from openshelf.adapters.vllm.step_copies import StepCopies
from openshelf.adapters.vllm.worker import Worker


class OpenshelfConnector(base.KVConnectorBase_V1):  # type: ignore[misc]  # vllm is not there when mypy runs
    """Shares prefixes through a KVPool. Options of kv_connector_extra_config: see `Options`. Trouble with the pool
    stops no request: it is logged once."""

    _cache_hit_source = base.CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_engine(vllm_config)
        transfer = vllm_config.kv_transfer_config
        options = Options.read(transfer.kv_connector_extra_config)
        if role == base.KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy == "fail":
                say_once("kv_load_failure_policy is 'fail'", "a request whose blocks are gone fails; set 'recompute'")
            loads, saves = transfer.is_kv_consumer, transfer.is_kv_producer
            self._scheduler = Scheduler(vllm_config, kv_cache_config, options, loads=loads, saves=saves)
        else:
            group = importlib.import_module("vllm.distributed.parallel_state").get_tp_group()
            self._worker = Worker(kv_cache_config, options, group.rank_in_group)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not saved is computed

    # The scheduler's calls

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        found = self._scheduler.matched(request, num_computed_tokens)
        return found, found > 0  # loaded before the request is scheduled

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.done(set(connector_output.finished_recving or ()), connector_output.invalid_block_ids)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.forget(request.request_id)
        return False, None

    # A worker's calls

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.begin(self._planned())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: what a request begins with was there before it was scheduled."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._worker.save(layer_name, self._planned())

    def wait_for_save(self) -> None:
        self._worker.end()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.loaded()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.failed()

    def _planned(self) -> StepCopies:
        step = self._get_connector_metadata()
        assert isinstance(step, StepCopies)
        return step
