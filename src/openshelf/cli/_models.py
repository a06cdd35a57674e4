"""A model as a command names it: a Python file that makes it, or a config.json of transformers."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from openshelf.errors import BadInput, MissingExtra

_MODULE = "openshelf_planned_model"


@dataclasses.dataclass(frozen=True)
class Named:
    """What a plan is made of. `weights`: the model, if it has any; or a folder that has some; or None."""

    model: Any
    inputs: Any
    optimizer: Any
    loss: Callable[[Any], Any] | None
    weights: Any


def load_model(path: Path, *, train: bool, batch: int | None, length: int | None) -> Named:
    """The model that `path` is of, in the mode for running or for training."""
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise BadInput(f"there is no file {str(path)!r}: give a Python file, a config.json, or a folder with one")
    if path.suffix == ".py":
        if batch is not None or length is not None:
            raise BadInput(f"--batch and --length go with a config: {path.name} makes its inputs itself")
        return _from_python(path, train)
    if path.suffix == ".json":
        return _from_config(path, train, 1 if batch is None else batch, 128 if length is None else length)
    raise BadInput(f"{str(path)!r} is neither a Python file (.py) nor a config of transformers (.json)")


def _from_python(path: Path, train: bool) -> Named:
    module = _imported(path)
    model = _made(path, module, "model")
    if not hasattr(model, "named_parameters"):
        raise BadInput(f"{path}: `model` is of type {type(model).__name__}, expected a torch.nn.Module")
    model.train(train)
    optimizer = None
    if train:
        optimizer = _made(path, module, "optimizer", model) if hasattr(module, "optimizer") else _adamw(model)
    weights = None if any(one.is_meta for one in model.parameters()) else model
    return Named(model, _made(path, module, "inputs"), optimizer, getattr(module, "loss", None), weights)


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses look there
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{path} cannot be imported: {_where(path, error)}") from error
    return module


def _made(path: Path, module: ModuleType, name: str, *args: Any) -> Any:
    """What the file has under this name; the result of it, if it is a function."""
    if not hasattr(module, name):
        raise BadInput(f"{path} has no `{name}`: it needs `model` and `inputs`, functions or variables")
    found = getattr(module, name)
    if not callable(found) or hasattr(found, "named_parameters"):  # a module of torch is callable too
        return found
    try:
        return found(*args)
    except Exception as error:
        raise BadInput(f"{name}() of {path} failed: {_where(path, error)}") from error


def _from_config(path: Path, train: bool, batch: int, length: int) -> Named:
    from openshelf.offload import torch

    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(
            f"{path} is a config of transformers: pip install transformers (openshelf[transformers])"
        ) from error
    auto: Any = transformers
    if batch < 1 or length < 1:
        raise BadInput(f"a batch has 1 or more rows of 1 or more tokens, got --batch {batch} --length {length}")
    try:
        config = auto.AutoConfig.from_pretrained(str(path))
        config.use_cache = False
        with torch.device("meta"):
            model = auto.AutoModelForCausalLM.from_config(config)
    except Exception as error:  # transformers' own checks of configs are of many kinds
        text = str(error).strip().split("\n")[0]
        raise BadInput(f"{path} is no config of a causal language model: {type(error).__name__}: {text}") from error
    model.train(train)
    ids = torch.arange(batch * length).remainder(config.vocab_size).reshape(batch, length)
    inputs = {"input_ids": ids, "labels": ids} if train else {"input_ids": ids}
    beside = path.parent if any(path.parent.glob("*.safetensors*")) else None
    return Named(model, inputs, _adamw(model) if train else None, None, beside)


def _adamw(model: Any) -> Any:
    from openshelf.offload import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def _where(path: Path, error: Exception) -> str:
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)]
    at = f"line {lines[-1]}: " if lines else ""
    return f"{at}{type(error).__name__}: {error}"
