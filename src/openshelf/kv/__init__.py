"""KVPool: one copy of a prefix's KV cache for every worker."""

from openshelf.kv._draft import Draft
from openshelf.kv._hit import Hit, LayerBlocks
from openshelf.kv._inspect import describe, pools
from openshelf.kv._keys import root_key
from openshelf.kv._layout import Layout
from openshelf.kv._pool import KVPool, Stored

__all__ = ["Draft", "Hit", "KVPool", "LayerBlocks", "Layout", "Stored", "describe", "pools", "root_key"]
