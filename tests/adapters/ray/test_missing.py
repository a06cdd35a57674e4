"""Without Ray the adapter says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from openshelf.errors import MissingExtra


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "openshelf.adapters.ray.extra", raising=False)
    with pytest.raises(MissingExtra, match="pip install ray"):
        importlib.import_module("openshelf.adapters.ray.extra")
