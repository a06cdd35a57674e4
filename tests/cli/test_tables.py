"""`openshelf tables`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import answer, openshelf

import openshelf as osf
from openshelf.tables import RowwiseAdagrad, Uniform


@pytest.fixture
def space(home: Path) -> osf.Space:
    """With one table, one row of which was updated."""
    space = osf.Space.create("demo", dram="16MiB")
    table = osf.Table.create(space, "users", rows=1000, dim=8, init=Uniform(0, 1, 1), optimizer=RowwiseAdagrad(0.1))
    table.update([3], np.ones((1, 8)))
    return space


def test_tables_ls_and_stat_count_rows(space: osf.Space) -> None:
    (listed,) = answer("tables", "ls", "demo")
    assert (listed["table"], listed["rows"], listed["dtype"]) == ("users", 1000, "float32")
    found = answer("tables", "stat", "demo", "users")
    assert (found["updated_rows"], found["steps"], found["optimizer"]["kind"]) == (1, 1, "rowwise_adagrad")
    assert "1,000" in openshelf("tables", "ls", "demo").stdout
    assert "1,000 of 8 numbers, float32" in openshelf("tables", "stat", "demo", "users").stdout


def test_a_table_without_an_optimizer_has_none(space: osf.Space) -> None:
    osf.Table.create(space, "two\nlines", rows=3, dim=2)
    assert [one["optimizer"]["kind"] for one in answer("tables", "ls", "demo")] == ["none", "rowwise_adagrad"]
    (line,) = (one for one in openshelf("tables", "ls", "demo").stdout.splitlines() if "none" in one)
    assert "two\\nlines" in line
    shown = openshelf("tables", "stat", "demo", "two\nlines").stdout
    assert "none" in shown
    assert "sgd" not in shown


def test_tables_go_to_files_and_come_back(space: osf.Space, tmp_path: Path) -> None:
    file = str(tmp_path / "users.safetensors")
    assert answer("tables", "export", "demo", "users", file, "--key", "emb")["rows"] == 1000
    made = answer("tables", "import", "demo", "copy", file, "--key", "emb", "--dtype", "float16")
    assert (made["rows"], made["dtype"]) == (1000, "float16")
    rows = osf.Table.open(space, "users").lookup(range(1000))
    assert np.allclose(osf.Table.open(space, "copy").lookup(range(1000)), rows, atol=1e-3)


def test_an_unknown_table_is_named(space: osf.Space, tmp_path: Path) -> None:
    done = openshelf("tables", "stat", "demo", "items")
    assert done.returncode == 1
    assert "no table 'items' in the space 'demo'; there is: 'users'" in done.stderr
    done = openshelf("tables", "import", "demo", "items", str(tmp_path / "none.npy"))
    assert done.returncode == 1
    assert "there is no file" in done.stderr


def test_a_file_that_is_none_is_refused_in_one_line(space: osf.Space, tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()
    done = openshelf("tables", "import", "demo", "items", str(tmp_path / "empty.pt"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "empty.pt is no .pt file" in done.stderr
    done = openshelf("tables", "export", "demo", "users", str(tmp_path / "none" / "a.npy"), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "BadInput"
