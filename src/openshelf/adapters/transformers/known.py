"""What a model was when its layout was made, so that nobody stores what another one computed under its name.

Weights that were changed or replaced (an optimizer's step, load_state_dict, functional_call), modules put in, hooks,
settings and training: all of them are seen at the next call, by identity and torch's version counters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openshelf.adapters.transformers.encoder import Encoded, has_encoder, probe_encoder
from openshelf.adapters.transformers.fingerprints import fingerprint, foreign_hooks, settings_of
from openshelf.adapters.transformers.kept import Kept
from openshelf.adapters.transformers.probe import Tried, probe, probe_padding
from openshelf.adapters.transformers.reach import changing_buffers, reach_of
from openshelf.errors import BadInput, Mismatch
from openshelf.kv import Layout

_ATTRIBUTE = "_openshelf_known"


class Known:
    """A model that was tried, as it is now. `names`: of the layouts that were made for it; `reach`: see reach.py;
    `kept`, `needs_positions`, `one_by_one`: see probe.py; `encoder`: of one that has an encoder, see encoder.py."""

    reach: int | None
    encoder: Encoded | None

    def __init__(self, model: Any) -> None:
        check_mode(model)
        self.reach, self.encoder = None, None
        if has_encoder(model.config):
            self.encoder = probe_encoder(model)
            self.kept, self.needs_positions, self.one_by_one = Tried(Kept((), ()), False, False)
        else:
            self.reach = reach_of(model)
            self.kept, self.needs_positions, self.one_by_one = probe(model)
        self._padding: str | None = None
        self.names: set[tuple[str, str]] = set()
        self._modules = list(model.named_modules())
        left_out = changing_buffers(model)
        self._tensors = [
            (name, holder, tensor, _version(tensor), tensor.data_ptr())
            for path, module in self._modules
            for holder in (module._parameters, module._buffers)
            for name, tensor in holder.items()
            if tensor is not None and f"{path}.{name}".lstrip(".") not in left_out
        ]
        self._shapes = [self._shape(module) for _, module in self._modules]
        self._rotary = {path for path, module in self._modules if self.reach is not None and _rotates(module)}
        self._settings = dict(self._all_settings())
        self._config = repr(model.config.to_dict())

    @staticmethod
    def _shape(module: Any) -> tuple[Any, ...]:
        hooks = foreign_hooks(module) if module._forward_hooks or module._forward_pre_hooks else ()
        return (*map(id, module._modules.values()), *map(id, hooks), id(vars(module).get("forward")))

    def _all_settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, module in self._modules:
            if path not in self._rotary:  # these keep how long the last call was
                yield path, settings_of(module)

    def changed(self, model: Any, *, thoroughly: bool) -> str:
        """What is no more as it was, "" if nothing. Settings and the configuration only if `thoroughly`."""
        for name, holder, tensor, version, address in self._tensors:
            if holder.get(name) is not tensor or _version(tensor) != version or tensor.data_ptr() != address:
                return f"the weight {name!r} was changed"
        for (path, module), shape in zip(self._modules, self._shapes, strict=True):
            if module.training:
                return f"{path or 'it'} is in training mode, expected evaluation mode (model.eval)"
            if self._shape(module) != shape:
                return f"{path or 'it'} was given another module, hook or forward"
        if thoroughly:
            for path, settings in self._all_settings():
                if settings != self._settings[path]:
                    return f"a setting of {path or 'the model'} was changed"
            if repr(model.config.to_dict()) != self._config:
                return "its configuration was changed"
        return ""

    def check_padding(self, model: Any) -> None:
        """BadInput unless padding on the left of a prompt changes nothing of it. Tried at the first time."""
        if self._padding is None:
            self._padding = probe_padding(model, self.kept)
        if self._padding:
            raise BadInput(
                f"{model.config.model_type} is not the same for padded prompts: {self._padding}. Give prompts of the "
                "same length, or run them one by one"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of the model, or one from a file, is not known


def _version(tensor: Any) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _rotates(module: Any) -> bool:
    return getattr(module, "rope_type", None) is not None


def check_mode(model: Any) -> None:
    """BadInput unless the model computes the same of the same tokens each time."""
    if any(module.training for module in model.modules()):
        raise BadInput(
            "the model is in training mode, in which it may drop or add at random: put it into evaluation mode first"
        )


def learn(model: Any) -> Known | None:
    """Tries the model and remembers how it is. A model that is not loaded, or in training, is left for later."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.device.type == "meta" for tensor in tensors) or any(module.training for module in model.modules()):
        return None
    known: Known | None = getattr(model, _ATTRIBUTE, None)
    if known is None or known.changed(model, thoroughly=True):
        known = Known(model)
        setattr(model, _ATTRIBUTE, known)
    return known


def known_as(model: Any, layout: Layout) -> Known:
    """How it was when this layout was made. Raises if the layout is another model's, or if the model has changed."""
    known = getattr(model, _ATTRIBUTE, None)
    if known is None:
        check_mode(model)
        if re.fullmatch(r".*-[0-9a-f]{32}", layout.model) and (name := fingerprint(model)) != layout.model:
            raise Mismatch(f"the pool is for the model {layout.model}, this one is {name}: use layout_of(model)")
        known = learn(model)
        if known is None:
            raise BadInput("the model's weights are not loaded (device 'meta')")
        known.names.add((layout.model, layout.adapter))
    if why := known.changed(model, thoroughly=True):
        raise BadInput(
            f"the model is not what it was when its layout was made: {why}. Undo it, or make layout_of(model) and the "
            "pool anew"
        )
    if (layout.model, layout.adapter) not in known.names:
        names = ", ".join(sorted(name for name, _ in known.names))
        raise Mismatch(
            f"the pool is for the model {layout.model!r} and the adapter {layout.adapter!r}, layout_of(model) gave "
            f"{names}: use it"
        )
    found: Known = known
    return found
