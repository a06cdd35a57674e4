"""KVPool: one copy of a prefix's KV cache for every worker."""

from openshelf.kv.draft import Draft
from openshelf.kv.hit import Hit, LayerBlocks
from openshelf.kv.inspect import describe, pools
from openshelf.kv.keys import root_key
from openshelf.kv.layout import Layout
from openshelf.kv.pool import KVPool, Stored

__all__ = ["Draft", "Hit", "KVPool", "LayerBlocks", "Layout", "Stored", "describe", "pools", "root_key"]
