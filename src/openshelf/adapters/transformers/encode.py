"""`encode`: what a model's encoder makes, from a pool where some worker made it before."""

from __future__ import annotations

from typing import Any

from openshelf.adapters.transformers.encoder import has_encoder, inputs_of_encoder, shared_states
from openshelf.adapters.transformers.known import known_as
from openshelf.adapters.transformers.layout import inner_model
from openshelf.errors import BadInput, Mismatch
from openshelf.kv import KVPool


def encode(pool: KVPool, model: Any, inputs: Any, *, ttl: float | None = None) -> Any:
    """For one call of a model with an encoder: `model.generate(**inputs, encoder_outputs=encode(pool, model, inputs))`.

    `inputs`: what the tokenizer made, or tokens. A row that the pool has, with the same padding, is copied from there.
    The encoder computes the others, and they are in the pool afterwards, for `ttl` seconds if that is given. Only whole
    rows are shared. `shared_rows` of the result says how many came from the pool.
    """
    if not isinstance(pool, KVPool):
        raise Mismatch(f"encode needs a KVPool, got {type(pool).__name__}")
    model = inner_model(model)
    if not has_encoder(model.config):
        raise BadInput(f"{model.config.model_type} has no encoder: give generate a PooledCache(pool, model, inputs)")
    known = known_as(model, pool.layout)
    assert known.encoder is not None
    if pool.layout.head_dim != known.encoder.width or not pool.layout.latent:
        raise Mismatch("the pool's layout is not that of this model's encoder: use layout_of(model)")
    states, rows = shared_states(pool, model, inputs_of_encoder(model, inputs), ttl)
    made = known.encoder.kind(last_hidden_state=states)
    made.shared_rows = rows
    return made
