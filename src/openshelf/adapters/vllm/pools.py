"""The pools that a process of an engine has open: one for each adapter, salt and rank, all of them the same memory."""

from __future__ import annotations

import functools
import hmac

from openshelf.adapters.vllm.extra import say_once
from openshelf.adapters.vllm.options import Options
from openshelf.errors import BadInput, Mismatch, OpenshelfError
from openshelf.kv import KVPool, Layout
from openshelf.space import Space


class Pools:
    """Opens the space at once; pools when they are asked for, the most recent thousand kept."""

    def __init__(self, options: Options, block_tokens: int) -> None:
        self._options, self._block_tokens = options, block_tokens
        if options.size is None:
            self._space = Space.open(options.space)
        elif "://" in options.space:
            self._space = Space.open(options.space, contribute=options.size)
        else:
            self._space = Space.create(options.space, options.size, exist_ok=True)
        self.of = functools.lru_cache(maxsize=1024)(self._open)

    def _open(self, layout: Layout, cache_salt: str) -> KVPool:
        """The pool of a layout, for requests with this cache_salt ("" for none), which only they find."""
        options, salt = self._options, self._options.salt.encode()
        if cache_salt:
            salt = hmac.digest(salt, cache_salt.encode(), "sha256")
        try:
            return KVPool(
                self._space, layout, self._block_tokens, name=options.pool, capacity=options.capacity,
                tenant=options.tenant, salt=salt, quota=options.quota,
            )  # fmt: skip
        except Mismatch as error:
            raise Mismatch(f"{error} (the option 'pool' of kv_connector_extra_config)") from None


def open_pools(options: Options, block_tokens: int, layout: Layout) -> Pools | None:
    """With the pool of a layout open. None, and a warning, if it is not to be had: an engine serves without. Wrong
    options raise."""
    try:
        pools = Pools(options, block_tokens)
        pools.of(layout, "")
        return pools
    except (BadInput, Mismatch):
        raise
    except OpenshelfError as error:
        say_once(f"the pool {options.pool!r} of the space {options.space!r} cannot be used, serving without", error)
        return None
