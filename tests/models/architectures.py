"""Every architecture that transformers has, by its own tables, as tiny models of random weights, and their inputs."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.models.built import Built, NotBuilt
from tests.models.inputs import BATCH, inputs_of
from tests.models.shrink import configs

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")
auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")

TABLES = {
    "base": "MODEL_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "text-classes": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "image-classes": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "sound-classes": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
}
GENERATIVE = ("causal", "seq2seq")
TOO_LARGE = 50_000_000  # weights: sizes that nobody knows how to make smaller


class TooLarge(NotBuilt):
    """Sizes that nobody knows how to make smaller."""


def names() -> list[str]:
    return [f"{table}:{kind}" for table in TABLES for kind in sorted(getattr(auto, TABLES[table]))]


def build(name: str) -> Built:
    """The smallest model of an architecture that runs."""
    table, kind = name.split(":")
    found = getattr(auto, TABLES[table])[kind]
    why: list[str] = []
    for cls_name in (found,) if isinstance(found, str) else found:
        cls = getattr(transformers, cls_name, None)
        for way, config, error in configs(kind) if cls is not None else ():
            if error is None:
                if table == "causal" and hasattr(config, "is_decoder"):
                    config.is_decoder = True  # of models that are encoders otherwise, as their pages say
                try:
                    return _running(table, _made(cls, config))
                except ImportError as caught:
                    raise NotBuilt(" ".join(str(caught).split())) from caught
                except TooLarge as caught:
                    why.append(f"{way}: {caught}")
                    if way == "depth":
                        break  # and its defaults are larger still
                except Exception as caught:  # every architecture has its own ways to dislike sizes
                    error = caught
            if error is not None:
                why.append(f"{way}: {type(error).__name__}: {error}")
    raise NotBuilt(" ".join(why[0].split()) if why else "transformers has no model of this name")


def _made(cls: Any, config: Any) -> Any:
    with torch.device("meta"):
        size = sum(one.numel() for one in cls(config).parameters())
    if size > TOO_LARGE:
        raise TooLarge(f"{size} weights, and no names of sizes that would make them fewer")
    torch.manual_seed(1)
    return cls(config).eval()


def _running(table: str, model: Any) -> Built:
    why: Exception | None = None
    for batch in inputs_of(model):
        try:
            labelled = _labelled(table, model, batch)
            with torch.no_grad():
                model(**labelled(0))
            return Built(model, labelled, None if table != "base" else loss_of)
        except Exception as error:
            why = why or error
    raise why or NotBuilt("no arguments that it takes")


def _labelled(table: str, model: Any, batch: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    """With labels, but for base models."""

    def batch_with(seed: int) -> dict[str, Any]:
        given = batch(seed)
        if table in ("causal", "masked"):
            return {**given, "labels": given["input_ids"].clone()}
        numbers = torch.Generator().manual_seed(seed)
        if table in ("seq2seq", "ctc"):
            return {**given, "labels": torch.randint(5, 30, (BATCH, 4), generator=numbers)}
        if table.endswith("classes"):
            classes = getattr(model.config, "num_labels", 2)
            return {**given, "labels": torch.randint(0, classes, (BATCH,), generator=numbers)}
        return given

    return batch_with


def loss_of(result: Any) -> Any:
    """Of a model that has no loss: all that it hands out has a part in it."""
    values = result.values() if isinstance(result, dict) else result
    found = [one for one in _tensors(list(values)) if one.is_floating_point() and one.requires_grad]
    return sum(one.float().square().mean() for one in found)


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """transformers has much to say of models that nobody trained."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
