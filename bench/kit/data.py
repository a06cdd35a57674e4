"""Data that is not part of the repository: in the directory that OPENSHELF_DATA names, or beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("OPENSHELF_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
