"""KVPool: KV-cache blocks in a Space, one copy for every reader.

A prompt is cut into blocks of some tokens; a block is found by a key that stands for the model, the tenant and every
token up to its end. Native code (`native/kv/pool.hpp`) does everything that must be fast or survive kill -9; this is
what people see of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import astuple
from types import TracebackType
from typing import Any, NamedTuple

from openshelf import _core
from openshelf._sizes import flag, text_of, whole
from openshelf.errors import BadInput, Closed, Mismatch, NotPermitted
from openshelf.kv import buffers
from openshelf.kv.background import later
from openshelf.kv.draft import Draft
from openshelf.kv.geometry import Geometry
from openshelf.kv.hit import Hit
from openshelf.kv.inspect import facts_of
from openshelf.kv.keys import MOST_TOKENS, root_key
from openshelf.kv.layout import Layout
from openshelf.kv.open import open_or_make, open_there
from openshelf.kv.other_hosts import other_hosts_of
from openshelf.space import Address, Handle, Space, address_of, arrive, open_address, parse_size, send


class Stored(NamedTuple):
    """What became of a put, in blocks: there already, stored now, and declined for lack of room."""

    blocks: int
    present: int
    stored: int
    declined: int


class KVPool(Handle):
    """KV-cache blocks of one layout and tenant, in memory that all processes with this pool's `name` share.

    The first process makes the pool, of `capacity` (by default nine tenths of the longest free run of the space);
    the others open it. Pools of other models with blocks of the same size may share a name: they share room, never
    blocks. `tenant` and its secret `salt` keep prompts of different customers apart; `quota` bounds what one may
    occupy. `verify` compares tokens as well as keys. Thread-safe. A forked process may go on using it.
    """

    def __init__(
        self,
        space: Space,
        layout: Layout,
        block_tokens: int = 16,
        *,
        name: str = "kv",
        capacity: str | int | None = None,
        tenant: str = "",
        salt: bytes = b"",
        quota: str | int | None = None,
        verify: bool = False,
    ) -> None:
        if not isinstance(layout, Layout):
            raise Mismatch(f"a KVPool needs a Layout (by hand, or Layout.from_config), got {type(layout).__name__}")
        block_tokens = whole(block_tokens, "block_tokens")
        if not 1 <= block_tokens <= MOST_TOKENS:
            raise BadInput(f"a block has 1 to {MOST_TOKENS} tokens, got {block_tokens}")
        verify = flag(verify, "verify")
        self._attach(
            space, open_or_make(space, layout, block_tokens, name, capacity), layout, block_tokens, name, verify
        )
        self._enter_tenant(tenant, salt, quota)

    def _attach(
        self, space: Space, native: _core.KVCore, layout: Layout, block_tokens: int, name: str, verify: bool
    ) -> None:
        self.layout, self.block_tokens, self.name, self.verify = layout, block_tokens, name, verify
        self._native: _core.KVCore | None = native
        self._in = space._native
        self._stake = space._stake  # keeps a temporary space
        self._others = other_hosts_of(space, native, name)
        self._geometry = Geometry(layout, block_tokens)

    def _enter_tenant(self, tenant: str, salt: bytes, quota: str | int | None) -> None:
        if not isinstance(salt, bytes):
            raise Mismatch(f"a tenant's salt is bytes, got {type(salt).__name__}")
        self.tenant = text_of(tenant, "a tenant")
        blocks = None if quota is None else max(1, parse_size(quota) // self._geometry.block_bytes)
        self._tenant = self._core.tenant(tenant, blocks)
        self._root = root_key(self.layout, self.block_tokens, tenant, salt)

    def for_tenant(self, tenant: str, salt: bytes = b"", quota: str | int | None = None) -> KVPool:
        """The same pool as another tenant has it. A `quota` given here holds from now on, for all processes."""
        other = object.__new__(KVPool)
        other.__dict__.update(self.__dict__)
        other._enter_tenant(tenant, salt, quota)
        return other

    def __reduce__(self) -> Any:
        """Pickled as its name and address, with the root of the tenant's keys, which is as secret as the salt."""
        return send(_arrived, self._address)

    def _address(self) -> tuple[Any, ...]:
        self._core  # noqa: B018 - raises if it was closed
        layout = astuple(self.layout)
        return address_of(self._in), self.name, layout, self.block_tokens, self.tenant, self._root, self.verify

    @property
    def _core(self) -> _core.KVCore:
        if self._native is None:
            raise Closed("this KVPool was closed; make it again")
        return self._native

    # Reading

    def match(self, tokens: Any) -> Hit:
        """The longest cached prefix, whole blocks of it, held while it is open. Takes no lock; a miss has length 0.

        On several hosts, what this one misses is fetched from another that has it, once for all its processes.
        """
        given = buffers.token_array(tokens)
        if self._others is None:
            return Hit(self._core.match(self._root, given, self.verify), self._geometry)
        blocks = len(given) // self.block_tokens
        found = self._core.match(self._root, given, self.verify, False)
        if len(found) < blocks and self._others.fetch(self._core.draft_to_fetch(self._root, given, self._tenant)):
            found = self._core.match(self._root, given, self.verify, False)
        found.prefetch()
        found.count(blocks)
        return Hit(found, self._geometry)

    def match_async(self, tokens: Any) -> Future[Hit]:
        """A match in the background: it may take a while to fetch from another host."""
        return later("match", self.match, tokens)

    def match_many(self, prompts: Iterable[Any]) -> list[Hit]:
        """A hit for every prompt."""
        return [self.match(tokens) for tokens in _several(prompts)]

    def present(self, tokens: Any) -> int:
        """How many tokens of the prompt `match` would find now, on any host; holds nothing and counts as no use."""
        return self._blocks(buffers.token_array(tokens)) * self.block_tokens

    def _blocks(self, given: Any) -> int:
        here = self._core.present(self._root, given)
        if self._others is None or here == len(given) // self.block_tokens:
            return here
        return here + self._others.blocks(here, _core.kv_keys(self._root, given, self.block_tokens)[32 * here :])

    def contains(self, tokens: Any) -> bool:
        """Whether all whole blocks of the prompt are there; or, for text or bytes, a plain value of that key."""
        if isinstance(tokens, str | bytes):
            here = self._core.present_value(self._root, _key(tokens))
            return here or (self._others is not None and self._others.has_value(self._name_key(tokens)))
        given = buffers.token_array(tokens)
        return self._blocks(given) == len(given) // self.block_tokens

    # Writing

    def put(self, tokens: Any, kv: Any, *, start: int = 0, ttl: float | None = None) -> Stored:
        """Stores the blocks of a prompt that are not there yet, evicting others; or says that it declined some.

        `kv`: an array or CPU tensor of Layout.shape, or a list of one for every layer (Layout.layer_shape, or a pair of
        keys and values), of the tokens from `start` on. A last block that is not full is left out. `ttl`: seconds after
        which the blocks are not found any more; a later put renews them. With text or bytes for a key instead
        of tokens: a plain value, stored whole or declined; a key that is there keeps its value.
        """
        if isinstance(tokens, str | bytes):
            return Stored(*self._core.put_value(self._root, _key(tokens), _flat(kv), self._tenant, _ttl(ttl)))
        given = buffers.token_array(tokens)
        first = buffers.blocks_in(start, self.block_tokens, "start")
        blocks = len(given) // self.block_tokens
        if first > blocks:
            raise BadInput(f"start={start} is beyond the prompt of {len(given)} tokens")
        addresses, kept = buffers.all_pieces(self.layout, kv, (blocks - first) * self.block_tokens, False)
        stored = self._core.put(
            self._root, given, self._tenant, _ttl(ttl), first, self._geometry.piece_bytes, addresses
        )  # fmt: skip
        del kept
        return Stored(*stored)

    def put_many(self, prompts: Iterable[tuple[Any, Any]], *, ttl: float | None = None) -> list[Stored]:
        """A put for every pair of tokens and KV cache."""
        pairs = list(_several(prompts))
        if wrong := [pair for pair in pairs if not isinstance(pair, tuple | list) or len(pair) != 2]:
            raise Mismatch(f"put_many takes pairs of tokens and KV cache, got {type(wrong[0]).__name__}")
        return [self.put(tokens, kv, ttl=ttl) for tokens, kv in pairs]

    def put_async(self, tokens: Any, kv: Any, *, start: int = 0, ttl: float | None = None) -> Future[Stored]:
        """A put in the background, one after another; the KV cache must not change until it is done."""
        return later("put", self.put, tokens, kv, start=start, ttl=ttl)

    def draft(self, tokens: Any, *, ttl: float | None = None) -> Draft:
        """Room for the blocks that are not there yet, to be filled layer by layer: draft.put_layer()."""
        native = self._core.draft(self._root, buffers.token_array(tokens), self._tenant, _ttl(ttl))
        return Draft(native, self)

    # Plain values

    def get(self, key: str | bytes) -> bytes | None:
        """A copy of a plain value, or None."""
        self._fetch_value(key)
        return self._core.get_value(self._root, _key(key))

    def get_into(self, key: str | bytes, buffer: Any) -> int | None:
        """Copies a plain value into a writable buffer; its size, or None. BadInput if the buffer is too small."""
        self._fetch_value(key)
        flat = _flat(buffer)
        if memoryview(flat).readonly:
            raise NotPermitted("the buffer is read-only and cannot be written into")
        return self._core.get_into(self._root, _key(key), flat)

    def first_of(self, keys: Iterable[str | bytes]) -> int | None:
        """The number of the first of these keys that has a plain value here, or None. On several hosts, the others are
        asked for the very first key only."""
        for number, key in enumerate(_several(keys)):
            if self.contains(key) if number == 0 else self._core.present_value(self._root, _key(key)):
                return number
        return None

    def _fetch_value(self, key: str | bytes) -> None:
        if self._others is None or self._core.present_value(self._root, _key(key)):
            return
        self._others.fetch_value(
            self._name_key(key),
            lambda nbytes: self._core.draft_value(self._root, _key(key), nbytes, self._tenant, 0),
        )

    def _name_key(self, key: str | bytes) -> bytes:
        return _core.kv_name_key(self._root, _key(key))

    # Keeping and dropping

    def pin(self, tokens: Any) -> int:
        """Keeps what is cached of a prompt until `unpin` or `clear`, whoever ends; how many tokens that is.

        On several hosts: on this one, which fetches what it misses.
        """
        with self.match(tokens):
            return self._core.stick(self._root, buffers.token_array(tokens), True) * self.block_tokens

    def unpin(self, tokens: Any) -> None:
        """Ends every `pin` along a prompt, on this host."""
        self._core.stick(self._root, buffers.token_array(tokens), False)

    def evict(self, tokens: Any, *, keep: int = 0) -> int:
        """Drops a prompt's blocks from its end back to one that is held, pinned or continued by another prompt, but not
        the first `keep` tokens; or a plain value. On all hosts that are up. How many blocks went."""
        others = self._others
        if isinstance(tokens, str | bytes):
            gone = self._core.evict_value(self._root, _key(tokens))
            return gone + (others.evict_value(self._name_key(tokens)) if others else 0)
        kept = min(max(0, -(-whole(keep, "keep") // self.block_tokens)), 1 << 31)
        given = buffers.token_array(tokens)
        gone = self._core.evict(self._root, given, kept)
        return gone + (others.evict(_core.kv_keys(self._root, given, self.block_tokens), kept) if others else 0)

    def clear(self, tenant: str | None = None) -> int:
        """Drops all blocks of a tenant, or of all, pinned ones included, but what is held now. On all hosts that are
        up. How many blocks went."""
        gone = self._core.clear(None if tenant is None else text_of(tenant, "a tenant"))
        return gone + (self._others.clear(tenant) if self._others else 0)

    # The whole

    def stats(self) -> dict[str, Any]:
        """Capacity and use in blocks, how many are in dram and on flash, and what was asked, found, stored, fetched,
        evicted and declined so far, by all processes of this host."""
        return facts_of(self._core)

    def check(self) -> dict[str, int]:
        """Walks all blocks and counts what should not be: leaked, orphaned, unfindable or miscounted ones."""
        return self._core.audit()

    def flush(self) -> None:
        """Of a durable space: what was put before is there after a restart or a power cut. Waits for the disk; of the
        whole space, as Space.flush(). BadInput if the space is not durable."""
        self._core.flush()

    def close(self) -> None:
        """Forgets this handle; a second call does nothing. Hits stay valid; puts that wait in the background fail. In a
        durable space it flushes first."""
        native, self._native, self._others = self._native, None, None
        self._stake = None
        vars(self).pop("_in", None)  # it would keep the space mapped
        if native is not None and native.durable and not native.read_only:
            native.flush()

    def __enter__(self) -> KVPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native is None:
            return "KVPool(closed)"
        return f"KVPool({self.name!r}, {self.layout.model!r}, block_tokens={self.block_tokens})"


def _arrived(
    address: Address, name: str, layout: tuple[Any, ...], block_tokens: int, tenant: str, root: bytes, verify: bool
) -> Any:
    def opened() -> KVPool:
        space, pool, what = open_address(address), object.__new__(KVPool), Layout(*layout)
        pool._attach(space, open_there(space, what, block_tokens, name), what, block_tokens, name, verify)
        pool.tenant, pool._root = tenant, root
        pool._tenant = pool._core.tenant(tenant, None)
        return pool

    return arrive(opened)


def _several(given: Any) -> Iterable[Any]:
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise Mismatch(f"expected a list, got {type(given).__name__}")
    return given


def _key(key: str | bytes) -> bytes:
    if not isinstance(key, str | bytes):
        raise Mismatch(f"a plain value's key is text or bytes, got {type(key).__name__}")
    return text_of(key, "a key").encode() if isinstance(key, str) else key


def _flat(value: Any) -> Any:
    """Something with a contiguous buffer."""
    if buffers.is_tensor(value):
        value = value.detach().numpy()
    try:
        view = memoryview(value)
    except TypeError:
        raise Mismatch(f"a plain value is bytes or an array, got {type(value).__name__}") from None
    if not view.c_contiguous:
        raise Mismatch("a plain value is contiguous bytes; this array is strided")
    return value


def _ttl(seconds: float | None) -> int:
    if seconds is None:
        return 0
    if not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise BadInput(f"ttl is seconds from now, more than 0, or None for no end; got {seconds!r}")
    return max(1, int(seconds * 1e9))
