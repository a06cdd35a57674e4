"""vLLM: a KV connector that shares prefixes between engines through a KVPool, layer by layer.

vLLM loads it by its name: `KVTransferConfig(kv_connector="OpenshelfConnector",
kv_connector_module_path="openshelf.adapters.vllm", kv_role="kv_both", kv_connector_extra_config={"space": "kv"})`.

A connector is made twice. In the scheduler it looks prompts up, holds what it found until it is read, and plans what is
copied in a step; in each worker it copies. A pool's block is a vLLM block, byte for byte, so whatever an attention
backend packs into its pages stays as it is. Only the CPU backend is supported, with one kind of full attention.
"""

from openshelf.adapters.vllm.connector import OpenshelfConnector
from openshelf.adapters.vllm.layout import layout_of

__all__ = ["OpenshelfConnector", "layout_of"]
