"""The Layout of a transformers model's cache, and which models have one that can be shared."""

from __future__ import annotations

from typing import Any

from openshelf.adapters.transformers.encoder import has_encoder
from openshelf.adapters.transformers.extra import torch
from openshelf.adapters.transformers.fingerprints import fingerprint
from openshelf.adapters.transformers.kept import Kept
from openshelf.adapters.transformers.known import learn
from openshelf.adapters.transformers.layer import PooledLayer, StateLayer, layers_for
from openshelf.adapters.transformers.reach import reach_of
from openshelf.errors import BadInput, Mismatch
from openshelf.kv import Layout


def layout_of(model: Any, *, name: str | None = None, adapter: str | None = None, **given: Any) -> Layout:
    """The Layout of a model's cache, for KVPool(space, layout); of a model with an encoder, of what that makes.

    `name` stands for the weights and their revision; without it all weights are hashed, a second for each GiB.
    `adapter` names a LoRA adapter; by default those that are active now. Two short calls of the model try whether its
    cache can be shared at all. After a change of the model, a PooledCache refuses it until it has another layout.
    """
    model = inner_model(model)
    if not has_encoder(model.config):
        check_config(model.config)
        check_modules(model)
    if adapter is None:
        adapter = ",".join(_active_adapters(model))
    given = {"dtype": str(model.dtype).removeprefix("torch."), "adapter": adapter, **given}
    if not has_encoder(model.config):
        reach_of(model)  # raises where the keys may depend on more than tokens
    given["model"] = fingerprint(model) if name is None else name
    known = learn(model)
    if known is None:
        return _layout_of_config(model.config, given)
    layout = Layout(**{**(known.encoder or known.kept).layout(), **given})
    known.names.add((layout.model, layout.adapter))
    return layout


def _layout_of_config(config: Any, given: dict[str, Any]) -> Layout:
    """Of a model that cannot be tried yet: only where its configuration tells the shapes of what it keeps."""
    if has_encoder(config):
        raise BadInput(
            f"what the encoder of {config.model_type} makes is known when it has run once: load its weights, and put "
            "it into evaluation mode (model.eval) before"
        )
    plain = all(isinstance(layer, PooledLayer) and not isinstance(layer, StateLayer) for layer in layers_for(config))
    if not plain or getattr(config, "kv_lora_rank", None):
        raise BadInput(
            f"what {config.model_type} keeps in its cache is known when it has run once: load its weights, and put it "
            "into evaluation mode (model.eval) before"
        )
    return Layout.from_config(config, **{"order": "khtd", **given})


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


def check_layout(layout: Layout, config: Any, kept: Kept) -> None:
    """Raises unless a pool of this layout can hold the cache of a model that keeps this."""
    ours = {"latent": False, "order": "kthd", **kept.layout()}
    if (layout.latent, layout.order) != (ours["latent"], ours["order"]):
        names = ["latent" if latent else repr(order) for latent, order in (
            (ours["latent"], ours["order"]), (layout.latent, layout.order)
        )]  # fmt: skip
        raise Mismatch(
            f"{config.model_type} needs a layout with the order {names[0]}, the pool's is {names[1]}: use "
            "layout_of(model)"
        )
    if layout.layers != ours["layers"]:
        raise Mismatch(
            f"the model has {ours['layers']} layers, the pool's layout {layout.layers}: is it another model's?"
        )
    if (layout.heads, layout.head_dim) != (ours["heads"], ours["head_dim"]):
        raise Mismatch(
            f"the model's keys in layer 0 have {ours['heads']} heads of {ours['head_dim']}, the pool's layout "
            f"{layout.heads} of {layout.head_dim}: is it another model's? Use layout_of(model)"
        )


def check_config(config: Any) -> None:
    """BadInput, saying why, unless the cache depends on tokens only, and its layers are of kinds that are known.

    A model that takes images, too, does where it is given none; its calls are looked at."""
    kind = getattr(config, "model_type", type(config).__name__)
    if not hasattr(config, "get_text_config"):
        raise Mismatch(f"a configuration of transformers is needed (model.config), got {type(config).__name__}")
    if has_encoder(config):
        raise BadInput(
            f"{kind} has an encoder: what its decoder keeps depends on what the encoder was given, not on the "
            "decoder's tokens alone, so a PooledCache cannot have it. Share the encoder's work: "
            "model.generate(**inputs, encoder_outputs=encode(pool, model, inputs))"
        )
    layers_for(config)


def check_modules(model: Any) -> None:
    """BadInput if a module remembers the call before: generate goes on from a prefix with the last prompt's."""
    for name, module in model.named_modules():
        if hasattr(module, "rope_deltas"):
            raise BadInput(
                f"{name or 'the model'} keeps how far the last call's images moved positions, and would use it for a "
                "prefix from the pool: not supported; the text model inside it is"
            )
