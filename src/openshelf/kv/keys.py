"""The root of a pool's keys: what two prompts must share, besides their tokens, to share blocks.

docs/formats/kv.md has the bytes. Keys of blocks are made of it by native code (`native/kv/hash.hpp`); nothing
depends on Python's hash().
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from openshelf._dtypes import element_type
from openshelf._sizes import text_of, whole
from openshelf.errors import BadInput, Mismatch
from openshelf.kv.layout import Layout

VERSION = 1
MOST_TOKENS = 4096  # of a block


def describe(layout: Layout, block_tokens: int, tenant: str) -> bytes:
    """Everything that keeps blocks apart, in a form that has only one reading."""
    head = struct.pack(
        "<8sIIIIIIII4s",
        b"OSFKVR1\0",
        layout.layers,
        layout.heads,
        layout.head_dim,
        element_type(layout.dtype).code,
        int(layout.latent),
        layout.rank,
        layout.ranks,
        block_tokens,
        layout.order.encode(),
    )
    texts = (text.encode() for text in (layout.model, layout.adapter, tenant))
    return head + b"".join(struct.pack("<I", len(text)) + text for text in texts)


def root_key(layout: Layout, block_tokens: int, tenant: str = "", salt: bytes = b"") -> bytes:
    """32 bytes: HMAC-SHA256 of the description under the tenant's salt."""
    if not isinstance(layout, Layout) or not isinstance(salt, bytes):
        raise Mismatch(f"expected a Layout and bytes for a salt, got {type(layout).__name__}, {type(salt).__name__}")
    if not 1 <= whole(block_tokens, "block_tokens") <= MOST_TOKENS:
        raise BadInput(f"a block has 1 to {MOST_TOKENS} tokens, got {block_tokens}")
    text_of(tenant, "a tenant")
    return hmac.new(salt, describe(layout, block_tokens, tenant), hashlib.sha256).digest()
