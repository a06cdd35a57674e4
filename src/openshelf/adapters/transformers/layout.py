"""The Layout of a transformers model's cache, and which models have one that can be shared."""

from __future__ import annotations

from typing import Any

from openshelf.adapters.transformers.extra import caches, torch
from openshelf.adapters.transformers.fingerprints import fingerprint
from openshelf.adapters.transformers.known import learn
from openshelf.adapters.transformers.rope import reach_of
from openshelf.errors import BadInput, Mismatch
from openshelf.kv import Layout


def layout_of(model: Any, *, name: str | None = None, adapter: str | None = None, **given: Any) -> Layout:
    """The Layout of a model's cache, for KVPool(space, layout).

    `name` stands for the weights and their revision; without it all weights are hashed, a second for each GiB.
    `adapter` names a LoRA adapter; by default those that are active now. Two short calls of the model try whether its
    cache can be shared at all. After a change of the model, a PooledCache refuses it until it has another layout.
    """
    model = inner_model(model)
    check_config(model.config)
    if adapter is None:
        adapter = ",".join(_active_adapters(model))
    given = {"dtype": str(model.dtype).removeprefix("torch."), "order": "khtd", "adapter": adapter, **given}
    reach_of(model)  # raises where the keys may depend on more than tokens
    layout = Layout.from_config(model.config, model=fingerprint(model) if name is None else name, **given)
    learn(model, layout)
    return layout


def inner_model(model: Any) -> Any:
    """The model itself, of one that torch.compile made. Mismatch if it is none."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise Mismatch(
            f"a model of transformers is needed, got {type(model).__name__}: hooks on it make sure that the cache gets "
            "what that model computed of the very tokens"
        )
    return model


def _active_adapters(model: Any) -> list[str]:
    """Of a model of transformers, where it is a method that raises if there are none, or of PEFT's own."""
    active = getattr(model, "active_adapters", [])
    if callable(active):
        active = active() if getattr(model, "_hf_peft_config_loaded", False) else []
    return list(active)


def check_layout(layout: Layout, config: Any) -> None:
    """Raises unless a pool of this layout can hold the cache of a model of this configuration."""
    layers = check_config(config)
    if layout.latent or layout.order != "khtd":
        order = "latent" if layout.latent else repr(layout.order)
        raise Mismatch(
            f"transformers has its cache in the order 'khtd', the pool's layout is {order}: use layout_of(model)"
        )
    if layers != layout.layers:
        raise Mismatch(f"the model has {layers} layers, the pool's layout {layout.layers}: is it another model's?")


def check_config(config: Any) -> int:
    """How many layers. BadInput, saying why, unless each keeps keys and values of all tokens, and of tokens only."""
    kind = getattr(config, "model_type", type(config).__name__)
    if not hasattr(config, "get_text_config"):
        raise Mismatch(f"a configuration of transformers is needed (model.config), got {type(config).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        raise BadInput(f"{kind} has an encoder: its cache depends on more than the tokens, which is not supported")
    if config.get_text_config() is not config:
        raise BadInput(f"{kind} takes more than text, and its tokens do not tell which image it was: not supported")
    if getattr(config, "kv_lora_rank", None):
        raise BadInput(
            f"{kind} has latent attention, whose keys and values differ in size in transformers: not supported"
        )
    layers = caches.DynamicCache(config=config).layers
    for number, layer in enumerate(layers):
        if type(layer) is not caches.DynamicLayer:
            raise BadInput(
                f"layer {number} of {kind} has a {type(layer).__name__}: only full attention is supported, no sliding "
                "windows, linear or hybrid attention"
            )
    return len(layers)
