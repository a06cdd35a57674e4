"""Models as people bring them: each computes what plain PyTorch computes, bit for bit, or is refused with a reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.models import table
from tests.models.outcomes import KINDS, Outcome, outcome, rows_of

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")

# A dozen of all there are. The others, and all of these again, are in `make soak`.
SOME = [
    ("inference", "net:recommender"), ("inference", "base:deberta"), ("inference", "base:wav2vec2"),
    ("inference", "seq2seq:t5"), ("inference", "causal:mamba"), ("inference", "image-classes:mobilenet_v2"),
    ("training", "net:lstm"), ("training", "net:speech"), ("training", "causal:falcon"), ("training", "masked:bert"),
    ("training", "seq2seq:bart"), ("training", "image-classes:resnet"),
]  # fmt: skip
ACCEPTED = {"inference": 0.94, "training": 0.85, "decode": 0.85, "pool": 0.85}


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_model_computes_what_plain_torch_does(kind: str, name: str) -> None:
    assert outcome(kind, name) == Outcome("equal")


def test_refusal_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome("training", "base:wav2vec2")  # it draws which frames to mask, and which layers to leave out
    assert found.what == "refused"
    assert re.search(r"modeling_wav2vec2\.py:\d+", found.why)


def test_every_architecture_of_transformers_is_tried() -> None:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    names = {name for _, name in rows_of(["inference"])}
    assert names >= {f"base:{kind}" for kind in MODEL_MAPPING_NAMES}
    assert len([name for name in names if name.startswith("net:")]) == 15
    assert {name for _, name in SOME} <= names


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_all_models_are_right_or_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    subprocess.run([sys.executable, "-m", "tests.models", "--kind", kind, "--json", path], check=False)
    found = {name: kinds[kind] for name, kinds in table.read(path).items()}
    assert {name: one for name, one in found.items() if one.what in ("wrong", "raw")} == {}
    tried = [one for one in found.values() if one.counts]
    assert sum(one.what == "equal" for one in tried) >= ACCEPTED[kind] * len(tried) > 0
    assert all(len(one.why) > 40 for one in tried if one.what == "refused")
