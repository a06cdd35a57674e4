"""Files that anybody may have written, given to commands: an error that says what is wrong, whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openshelf.cli import main

STRANGE = {
    "deep": b"[" * 100_000, "deep objects": b'{"a":' * 100_000, "a deep row": b'{"hash_ids":' + b"[" * 100_000,
    "no text": b"\xff\xfe{}\n", "columns, and no text": b"a,b\n\xff,\0\n", "empty": b"", "zeros": b"\0\0\0",
    "a list": b"[]", "a number": b"7", "a huge number": b"1" * 10_000, "NaN": b"NaN",
    "infinities": b'{"data": {"all_reduce n=8": [[Infinity, 1], [1e400, 1]]}, "hidden_size": 1e400, "0": [1e400]}',
    "a long field": b'a,b\n"' + b"x" * 200_000, "a long line": b"a," * 200_000 + b"\n",
}  # fmt: skip
COMMANDS = {
    "groups.json": ("twin", "run", "dgx-a100-ib", "--et", "FILE", "--groups", "FILE"),
    "measured.json": ("fabric", "fit", "FILE"),
    "requests.jsonl": ("twin", "serve", "--trace", "FILE", "--model", "llama3.1-8b", "--fabric", "dgx-h100-ib"),
    "requests.csv": ("twin", "serve", "--trace", "FILE", "--model", "llama3.1-8b", "--fabric", "dgx-h100-ib"),
    "config.json": ("twin", "train", "dgx-h100-ib", "--batch", "8", "--model", "FILE"),
    "operators.csv": ("twin", "ops", "fit", "FILE"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_files_of_strangers_end_commands_with_a_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    for what, content in STRANGE.items():
        file.write_bytes(content)
        command = [str(file) if word == "FILE" else word for word in COMMANDS[name]]
        assert main([*command, "--json"]) == 1, what
        assert json.loads(capsys.readouterr().out)["message"], what
