"""Hugging Face transformers: a Cache that begins with what a KVPool has of the prompt and gives it what is missing.

`model.generate` is used as it is. The prefix is copied from the pool when the cache is made, layer by layer in the
background, while the layers before it compute; the prompt's new blocks go into the pool during the prefill, each layer
when it is computed. A Cache never sees tokens, so it is told them; what was generated is stored by `store`.

What is shared are keys and values of tokens, whatever a layer needs of them later, and states of recurrences where they
were saved. What depends on more than the tokens before it is refused: images, models that look ahead. Of models with an
encoder, `encode` shares what that makes of a whole input.
"""

from openshelf.adapters.transformers.cache import PooledCache
from openshelf.adapters.transformers.encode import encode
from openshelf.adapters.transformers.fingerprints import fingerprint
from openshelf.adapters.transformers.layer import PooledLayer
from openshelf.adapters.transformers.layout import layout_of

__all__ = ["PooledCache", "PooledLayer", "encode", "fingerprint", "layout_of"]
