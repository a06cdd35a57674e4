"""Inputs of any model of transformers: by the names of its arguments, and by what its config says of sizes.

A name may stand for several forms (sound as samples or as frames of features). All are tried, in order, and those that
the model takes are its inputs.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

BATCH, LENGTH, FIRST, LAST = 2, 19, 5, 80  # tokens that mean nothing special are from FIRST to LAST
TRIED = 16  # combinations of forms


class Maker:
    """Makes arguments, the same ones for the same seed."""

    def __init__(self, model: Any, seed: int) -> None:
        self.model, self.config = model, model.config
        self.numbers = torch.Generator().manual_seed(seed)

    def floats(self, *shape: int) -> Any:
        return torch.randn(shape, generator=self.numbers)

    def tokens(self, *shape: int) -> Any:
        return torch.randint(FIRST, LAST, shape, generator=self.numbers)

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that the config or one in it has."""
        for config in _configs(self.config):
            for name in names:
                if getattr(config, name, None) is not None:
                    return getattr(config, name)
        return default

    def pixels(self) -> tuple[int, int, int]:
        size = self.find("image_size", "input_size", "pretrain_image_size", default=64)
        if isinstance(size, dict):
            size = [size["height"], size["width"]]
        height, width = (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)
        return self.find("num_channels", "in_channels", "in_chans", default=3), height, width


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for one in vars(config).values():
        if isinstance(one, transformers.PreTrainedConfig):
            yield from _configs(one)


def _patches(make: Maker) -> int:
    size = make.find("patch_size", default=14)
    time = make.find("temporal_patch_size", default=1)
    return int(make.pixels()[0]) * int(time) * int(size if isinstance(size, int) else size[0]) ** 2


def _frames(make: Maker) -> list[Any]:
    bins = make.find("num_mel_bins", "feature_size", "input_dim", "n_mels", "input_feat_per_channel", default=80)
    longest = make.find("max_source_positions", default=100)
    return [
        lambda: make.floats(BATCH, bins, 2 * longest),
        lambda: make.floats(BATCH, 96, bins),
        lambda: make.floats(BATCH, bins, 96),
        lambda: make.floats(BATCH, 96, make.find("feature_projection_input_dim", default=160)),
    ]


def _samples(make: Maker) -> list[Any]:
    return [
        lambda: make.floats(BATCH, 4000),
        lambda: make.floats(BATCH, make.find("max_length", default=128), make.find("num_mel_bins", default=128)),
        lambda: make.floats(BATCH, make.find("audio_channels", default=1), 4000),
        lambda: make.floats(BATCH, 64, make.find("input_dim", default=80)),
        lambda: make.tokens(BATCH, LENGTH),
    ]


def _images(make: Maker) -> list[Any]:
    channels, height, width = make.pixels()
    frames = make.find("num_frames", default=2)
    return [
        lambda: make.floats(BATCH, channels, height, width),
        lambda: make.floats(BATCH, 3, 64, 64),
        lambda: make.floats(BATCH, 3, 224, 224),
        lambda: make.floats(BATCH, frames, channels, height, width),
        lambda: make.floats(16, _patches(make)),
        lambda: make.floats(BATCH, 2, channels, height, width),
    ]


def _past(make: Maker) -> list[Any]:
    length, lags = make.find("context_length", default=64), max(make.find("lags_sequence", default=[0]))
    channels = make.find("num_input_channels", "input_size", default=1)
    return [
        lambda: make.floats(BATCH, length, channels),
        lambda: make.floats(BATCH, length + lags),
        lambda: make.floats(BATCH, 512),
    ]


def _features(make: Maker) -> list[Any]:
    length, lags = make.find("context_length", default=64), max(make.find("lags_sequence", default=[0]))
    count = make.find("num_time_features", default=0)
    return [lambda: make.floats(BATCH, length + lags, count)]


def _hidden(make: Maker) -> list[Any]:
    width = make.find("hidden_size", "d_model", "embed_dim", default=32)
    return [lambda: make.floats(16, _patches(make)), lambda: make.floats(BATCH, LENGTH, width)]


Forms = Callable[[Maker], list[Callable[[], Any]]]
FORMS: dict[str, Forms] = {
    "input_ids": lambda make: [
        lambda: make.tokens(BATCH, LENGTH),
        lambda: make.tokens(BATCH, 4, LENGTH),
        lambda: make.tokens(BATCH, LENGTH, 8),
    ],
    "decoder_input_ids": lambda make: [lambda: make.tokens(BATCH, 7)],
    "pixel_values": _images,
    "prompt_pixel_values": _images,
    "prompt_masks": _images,
    "pixel_values_videos": lambda make: [
        lambda: make.floats(1, make.find("num_frames", "frames_per_clip", default=2), *make.pixels())
    ],
    "input_features": _frames,
    "audio_mel": _frames,
    "input_features_mask": lambda make: [lambda: torch.ones(BATCH, 96, dtype=torch.long)],
    "audio_mel_mask": lambda make: [lambda: torch.ones(BATCH, 96, dtype=torch.bool)],
    "input_values": _samples,
    "past_values": _past,
    "past_time_features": _features,
    "past_observed_mask": lambda make: [lambda: torch.ones_like(_past(make)[1]())],
    "past_values_padding": lambda make: [lambda: torch.zeros(BATCH, 512)],
    "freq": lambda make: [lambda: torch.zeros(BATCH, dtype=torch.long)],
    "hidden_states": _hidden,
    "inputs": lambda make: [lambda: make.floats(BATCH, LENGTH, make.find("d_model", default=32))],
    "inputs_embeds": _hidden,
    "latents": lambda make: [lambda: make.floats(BATCH, LENGTH, make.find("hidden_size", default=32))],
    "query_embeds": lambda make: [lambda: make.floats(BATCH, 4, make.find("hidden_size", default=32))],
    "qformer_input_ids": lambda make: [lambda: make.tokens(BATCH, LENGTH)],
    "grid_thw": lambda make: [lambda: torch.tensor([[1, 4, 4]])],
    "spatial_shapes": lambda make: [lambda: torch.tensor([[4, 4]] * BATCH)],
    "pixel_attention_mask": lambda make: [lambda: torch.ones(BATCH, 16, dtype=torch.long)],
    "bbox": lambda make: [lambda: torch.randint(0, 90, (BATCH, LENGTH, 4), generator=make.numbers).sort(-1).values],
}


def inputs_of(model: Any) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Functions from a seed to keyword arguments, by what may be tried."""
    signature = inspect.signature(type(model).forward).parameters
    required = [
        name for name, one in signature.items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD and name != "self"
    ]  # fmt: skip
    names = list(dict.fromkeys([*required, model.main_input_name]))
    names = [name for name in names if name in signature]
    names += [name for name in ("bbox",) if name in signature and name not in names]
    for wanted in (names, [*names, "decoder_input_ids"], [*names, "pixel_values"], [*names, "input_ids"]):
        if len(set(wanted)) != len(wanted) or any(name not in signature for name in wanted):
            continue
        if missing := [name for name in wanted if name not in FORMS]:
            raise LookupError(f"an argument {missing[0]!r}, which nobody knows how to make")
        counts = [range(len(FORMS[name](Maker(model, 0)))) for name in wanted]
        for chosen in itertools.islice(itertools.product(*counts), TRIED):
            yield functools.partial(_made, model, wanted, chosen)


def _made(model: Any, names: list[str], chosen: tuple[int, ...], seed: int) -> dict[str, Any]:
    make = Maker(model, seed)
    return {name: FORMS[name](make)[number]() for name, number in zip(names, chosen, strict=True)}
