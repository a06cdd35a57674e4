"""Without TorchRec its adapter says what to install. With it: the other tests here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from openshelf.errors import MissingExtra


@pytest.mark.parametrize("package", ["torchrec", "fbgemm_gpu"])
def test_a_package_that_is_not_installed_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, "fbgemm_gpu", ModuleType("fbgemm_gpu"))  # it comes first
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "openshelf.adapters.torchrec.extra", raising=False)
    with pytest.raises(MissingExtra, match=rf"found no {package}.*openshelf\[torchrec\]"):
        importlib.import_module("openshelf.adapters.torchrec.extra")
