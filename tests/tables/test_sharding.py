"""The planner of tables over hosts."""

from __future__ import annotations

import pytest

from openshelf import Fabric
from openshelf.errors import BadInput, NoRoom
from openshelf.tables import Planned, Sharding, plan_tables

MIB = 1 << 20


def test_small_tables_stay_whole_and_large_ones_are_dealt_out() -> None:
    tables = {
        "large": Planned(rows=1 << 20, row_bytes=512, dim=128),
        "small": Planned(rows=1000, row_bytes=256, dim=64),
    }
    plan = plan_tables(tables, {0: 400 * MIB, 1: 400 * MIB})
    assert plan["small"].kind == "table"
    assert plan["large"].kind == "row"
    hosts = plan["large"].hosts_of(64)
    assert hosts.count(0) == hosts.count(1) == 32


def test_popular_blocks_are_shared_out_by_reads_not_by_bytes() -> None:
    reads = [100.0] + [1.0] * 31
    plan = plan_tables({"t": Planned(rows=1 << 20, row_bytes=512, dim=128, reads=reads)}, {0: 900 * MIB, 1: 900 * MIB})
    hosts = plan["t"].hosts_of(32)
    popular = hosts[0]
    assert hosts.count(popular) == 1  # the other host has all the rest


def test_room_is_kept_and_its_lack_is_an_error() -> None:
    table = {"t": Planned(rows=1 << 20, row_bytes=512, dim=128)}
    hosts = plan_tables(table, {0: 600 * MIB, 1: 100 * MIB})["t"].hosts_of(512)
    assert hosts.count(1) <= 100
    with pytest.raises(NoRoom, match="'t' of 536870912 bytes does not fit: left are"):
        plan_tables(table, {0: 200 * MIB, 1: 100 * MIB})


def test_slow_links_get_less() -> None:
    fabric = Fabric.load("dgx-h100-ib")
    plan = plan_tables(
        {"t": Planned(rows=1 << 20, row_bytes=512, dim=128)}, {0: 900 * MIB, 8: 900 * MIB}, fabric=fabric
    )
    hosts = plan["t"].hosts_of(32)
    assert hosts.count(0) == hosts.count(8) == 16  # equal links


def test_shares_say_how_many_rows_a_host_has() -> None:
    assert Sharding((0, 1), shares=(3, 1)).hosts_of(8) == [0] * 6 + [1] * 2
    assert Sharding((2, 0, 1)).hosts_of(6) == [2, 2, 0, 0, 1, 1]
    with pytest.raises(BadInput, match="shares are one number for each host"):
        Sharding((0, 1), shares=(1,)).hosts_of(2)
