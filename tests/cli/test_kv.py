"""`openshelf kv`, as a user types it, and the metrics it prints."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import answer, openshelf

import openshelf as osf
from openshelf.kv import Layout, describe, pools
from openshelf.show.metrics import kv_metrics

LAYOUT = Layout(model="m", layers=2, heads=2, head_dim=8, dtype="float32")


@pytest.fixture
def space(home: Path) -> osf.Space:
    """With one pool: 4 blocks stored, 6 asked for, 4 found."""
    space = osf.Space.create("demo", dram="64MiB")
    pool = osf.KVPool(space, LAYOUT, capacity="1MiB", tenant='a "tenant"', salt=b"salt")
    tokens = np.arange(96)
    kv = np.ones((2, 2, 64, 2, 8), np.float32)
    pool.put(tokens[:64], kv)
    with pool.match(tokens) as hit:
        assert hit.length == 64
    return space


def test_kv_ls_and_stat_count_blocks(space: osf.Space) -> None:
    (listed,) = answer("kv", "ls", "demo")
    assert listed["pool"] == "kv"
    assert listed["blocks"] == 4
    found = answer("kv", "stat", "demo")
    assert (found["stored_blocks"], found["queried_blocks"], found["hit_blocks"]) == (4, 6, 4)
    assert found["tenants"]['a "tenant"']["blocks"] == 4
    assert "66.7%" in openshelf("kv", "stat", "demo").stdout
    assert "66.7%" in openshelf("kv", "ls", "demo").stdout
    assert pools(space) == ["kv"]
    assert describe(space)["blocks"] == 4


def test_kv_stat_of_no_pool_says_which_there_are(space: osf.Space) -> None:
    done = openshelf("kv", "stat", "demo", "--pool", "other")
    assert done.returncode == 1
    assert "no pool 'other'" in done.stderr
    assert "'kv'" in done.stderr


def test_metrics_are_well_formed_and_count_tokens(space: osf.Space) -> None:
    text = openshelf("kv", "stat", "demo", "--prometheus").stdout
    sample = re.compile(r'^openshelf:[a-z_]+\{[a-z]+="(?:[^"\\]|\\.)*"(?:,[a-z]+="(?:[^"\\]|\\.)*")*\} [0-9.e+-]+$')
    for line in text.splitlines():
        assert line.startswith("# ") or sample.match(line), line
    assert 'openshelf:prefix_cache_hits_total{space="demo",pool="kv"} 64\n' in text
    assert 'openshelf:prefix_cache_queries_total{space="demo",pool="kv"} 96\n' in text
    assert r'tenant="a \"tenant\""' in text
    assert kv_metrics({"x": []}).count("# TYPE") == 14
