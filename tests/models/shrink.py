"""Any config of transformers, made tiny by the names and values of its fields, nested configs included.

No architecture is named here. A field's name says what it counts (layers, heads, widths), and a target for that count
replaces a larger value. Some ways are tried, from the smallest model to the one of the defaults: what a name does not
tell is left as it is, so sizes may not fit each other, and then a model that changes less often does.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

transformers: Any = importlib.import_module("transformers")

VOCABULARY, LAYERS = 96, 2
_NOT_COUNTS = re.compile(r"adapter_layers|feat_extract_layers|max_window_layers|kv_shared_layers|nextn|feature_layer")
_DEPTHS: dict[str, int] = {
    r"(^|_)(num|n)_.*layers?$|layers$|^n_layers?$|^depth$|num_blocks$|_depth$": LAYERS,
    r"(^|_)vocab(ulary)?_size": VOCABULARY,
}
_IMAGES: dict[str, int] = {r"^(image_size|pretrain_image_size|input_size)$": 32, r"^patch_size$": 4}


def _widths(width: int, heads: int, shared: int, head: int) -> dict[str, int]:
    """What a field is called, and what it becomes if it is larger. The first that matches counts."""
    return {
        r"(num_)?(key_value|kv)_heads$": shared,
        r"^mamba_(n|num)_heads$": 4,
        r"^mamba_(d_head|head_dim)$": width // 2,
        r"heads$|^n_head$": heads,
        r"^rotary_dim$": 4,
        r"(^|_)(head_dim|head_size|d_head|d_kv|attention_head_dim)$": head,
        r"per_tok(en)?$|top_?k$|^moe_k$|^moe_topk$": 2,
        r"experts$": 4,
        r"^(n_group|topk_group|n_shared_experts|num_expert_groups?)$": 1,
        r"max(imum)?_.*(position|length|len|tokens)|^n_positions$|^n_ctx$|context_length$": 256,
        r"(intermediate|ffn|feed_?forward|mlp).*(size|dim)$|^(d_ff|dff|n_inner|inner_dim)$": 2 * width,
        r"lora_rank$|^q_rank$|^kv_rank$|^lowrank": 16,
        r"(hidden|embed|embedding|model|projection|proj)_?(size|dim|dims)$|^(d_model|n_embd|dim|lru_width)$": width,
        r"^(output_dim|pooler_output_size|decoder_dim|codevector_dim|feature_dim|upsample_groups|width)$": width,
        r"(state_size|d_state)$": 8,
        r"sliding_window$|window_size$|local_attention|attention_chunk_size": 8,
    }


class Shrink:
    """One way to make configs smaller."""

    def __init__(self, name: str, rules: dict[str, int], *, head: int = 0, fills: bool = False) -> None:
        self.name, self._rules = name, [(re.compile(rule), target) for rule, target in rules.items()]
        self._head, self._fills = head, fills  # fields that the defaults leave out, too

    def config(self, made: Any) -> Any:
        """A new config of the same class."""
        config = type(made)(**self._fields(made))
        if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 1
        if getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0
        return config

    def _fields(self, made: Any) -> dict[str, Any]:
        fields = {}
        for name, value in vars(made).items():
            if isinstance(value, transformers.PreTrainedConfig):
                fields[name] = self.config(value)
            elif not isinstance(getattr(type(made), name, None), property) and not name.startswith("_"):
                changed = self._value(name, value, made)
                if changed is not value:
                    fields[name] = changed
        return fields

    def _value(self, name: str, value: Any, made: Any) -> Any:
        if isinstance(value, (list, tuple)) and value and len(value) == _depth(made) and self._rules:
            return type(value)(_kinds(list(value))[:LAYERS])
        if isinstance(value, list) and self._rules and re.search(r"layer_indices|layer_ids|_idxs$|indexes$", name):
            return [LAYERS - 1]
        if name == "rope_parameters" and "rope_type" in (value or {}) and self._head:
            return {**value, "mrope_section": [self._head // 4, self._head // 8, self._head // 8]}
        if isinstance(value, bool) or not (isinstance(value, int) or (value is None and self._fills)):
            return value
        if value is not None and re.search(r"token_(id|index)$", name):
            return value if value < VOCABULARY - 8 else VOCABULARY - 8 + hash_of(name) % 8
        if _NOT_COUNTS.search(name):
            return value
        for rule, target in self._rules:
            if rule.search(name):
                return target if value is None or value > target else value
        return value


def hash_of(name: str) -> int:
    return sum(name.encode())


def _depth(made: Any) -> int:
    depths = [getattr(made, name, None) for name in ("num_hidden_layers", "n_layer", "num_layers")]
    found = [one for one in depths if isinstance(one, int) and one > LAYERS]
    return found[0] if found else -1


def _kinds(values: list[Any]) -> list[Any]:
    """Different kinds of layers first, so that few layers have as many kinds as there are."""
    first = [values.index(one) for one in values]
    different = sorted(set(first))
    return [values[at] for at in different] + [one for at, one in enumerate(values) if at not in different]


WAYS = (
    Shrink("all", {**_DEPTHS, **_widths(32, 4, 2, 8), **_IMAGES}, head=8),
    Shrink("even", {**_DEPTHS, **_widths(32, 8, 8, 8), **_IMAGES}, head=8, fills=True),
    Shrink("wide", {**_DEPTHS, **_widths(64, 4, 4, 16)}, head=16),
    Shrink("depth", _DEPTHS),
    Shrink("defaults", {}),
)


def configs(kind: str) -> Iterator[tuple[str, Any, Exception | None]]:
    """Configs of an architecture, the smallest first; an error where there is none."""
    try:
        made = transformers.AutoConfig.for_model(kind)
    except Exception as error:  # its defaults do not fit each other
        yield "defaults", None, error
        return
    for way in WAYS:
        try:
            yield way.name, way.config(made), None
        except Exception as error:  # every architecture has its own ways to dislike sizes
            yield way.name, None, error
