"""`openshelf top`, as a user types it, and what it computes from counts."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.cli.test_commands import answer, openshelf

from openshelf import Space
from openshelf.errors import BadInput, UnknownName
from openshelf.show.metrics import tier_metrics
from openshelf.show.tiers import rates, tier_bar, tier_view
from openshelf.space import tiers_of

MIB = 1 << 20
COUNTS: dict[str, Any] = {
    "capacity": 96 * MIB,
    "dram_budget": 32 * MIB,
    "dram_bytes": 24 * MIB,
    "flash_bytes": 48 * MIB,
    "empty_bytes": 24 * MIB,
    "pinned_bytes": MIB,
    "dirty_bytes": 2 * MIB,
    "vacant_bytes": 0,
    "faults": 100,
    "faults_in_dram": 50,
    "touch_hit_rate": 0.5,
    "asked_units": 10,
    "asked_in_dram": 10,
    "asked_hit_rate": 1.0,
    "exposed_wait_s": 1.5,
    "read_bytes": 10 * MIB,
    "written_bytes": 20 * MIB,
    "dropped_bytes": 30 * MIB,
    "read_ahead_bytes": 0,
    "errors": 0,
    "trouble": "",
    "durable": True,
    "commits": 3,
    "keeper": 0,
}


@pytest.fixture
def space(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """'demo': 32 MiB of dram, 96 MiB of flash; 4 MiB of it written, demoted, and one MiB of those prefetched."""
    monkeypatch.setenv("OPENSHELF_LINGER", "0.5")
    with Space.create("demo", dram="32MiB", flash=f"{tmp_path / 'shelf'}:96MiB") as made:
        array = made.put("a", np.ones((4, MIB), np.uint8))
        array.demote().wait()
        array[0].prefetch().wait()
        yield made
    Space.remove("demo")


def test_rates_are_differences_over_seconds() -> None:
    later = COUNTS | {
        "faults": 140,
        "faults_in_dram": 60,
        "asked_units": 18,
        "asked_in_dram": 12,
        "exposed_wait_s": 1.75,
        "read_bytes": 14 * MIB,
        "written_bytes": 20 * MIB,
        "dropped_bytes": 31 * MIB,
        "read_ahead_bytes": 6 * MIB,
    }
    now = rates(COUNTS, later, 0.5)
    assert now["read_bytes_per_s"] == 8 * MIB
    assert now["written_bytes_per_s"] == 0
    assert now["dropped_bytes_per_s"] == 2 * MIB
    assert now["read_ahead_bytes_per_s"] == 12 * MIB
    assert now["faults_per_s"] == 80
    assert now["asked_units_per_s"] == 16
    assert now["exposed_wait"] == 0.5
    assert now["touch_hit_rate"] == 0.25
    assert now["asked_hit_rate"] == 0.25


def test_where_nothing_happened_there_is_no_hit_rate() -> None:
    now = rates(COUNTS, COUNTS, 1)
    assert now["touch_hit_rate"] is None
    assert now["asked_hit_rate"] is None
    assert now["faults_per_s"] == 0


def test_a_space_made_again_has_no_negative_rates() -> None:
    now = rates(COUNTS, COUNTS | {"faults": 1, "faults_in_dram": 0, "read_bytes": 0, "exposed_wait_s": 0.0}, 1)
    assert min(rate for rate in now.values() if rate is not None) == 0


def test_a_bar_has_all_tiers_and_its_width() -> None:
    assert tier_bar(COUNTS, 8).plain == "██▓▓▓▓░░"
    assert tier_bar(COUNTS | {"dram_bytes": 1, "flash_bytes": 1}, 8).plain == "█▓░░░░░░"
    full = COUNTS | {"dram_bytes": 32 * MIB, "flash_bytes": 64 * MIB}
    assert len(tier_bar(full, 7).plain) == 7


def test_the_view_tells_trouble_and_that_no_keeper_runs() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tier_view("demo", COUNTS | {"errors": 2, "trouble": "the disk is [full]"}, rates(COUNTS, COUNTS, 1)))
    text = console.export_text()
    for part in ("demo", "no keeper", "durable, 3 flushes", "24 MiB of 32 MiB", "2, the last: the disk is [full]"):
        assert part in text


def test_once_as_json_is_one_object_with_counts_and_rates(space: Space) -> None:
    done = openshelf("top", "demo", "--once", "--json", "--interval", "0.1")
    assert done.stdout.count("\n") == 1, done.stderr
    found = json.loads(done.stdout)
    (shown,) = found["spaces"]
    assert shown["name"] == "demo"
    assert shown["keeper_runs"]
    tiers = shown["tiers"]
    assert tiers["dram_budget"] == 32 * MIB
    assert tiers["dram_bytes"] + tiers["flash_bytes"] + tiers["empty_bytes"] == tiers["capacity"] == 96 * MIB
    assert tiers["written_bytes"] >= 4 * MIB
    assert shown["rates"]["written_bytes_per_s"] == 0
    assert found["interval_s"] >= 0.1
    assert answer("top", "--once", "--interval", "0.01")["spaces"][0]["name"] == "demo"


def test_once_as_text_shows_the_space_and_stat_its_tiers(space: Space) -> None:
    text = openshelf("top", "--once", "--interval", "0.05").stdout
    assert "demo" in text
    assert "of 32 MiB" in text
    stat = openshelf("stat", "demo").stdout
    assert "flash files" in stat
    assert "of 96 MiB in all" in stat


def test_what_is_described_is_what_the_file_says(space: Space) -> None:
    described, read = space.describe()["tiers"], tiers_of("demo")["demo"]
    assert described.pop("faults_how") in ("full", "user", "none")
    assert described == read
    assert described["asked_hit_rate"] == described["asked_in_dram"] / described["asked_units"]
    assert described["asked_units"] >= 16
    assert described["read_s"] > 0
    assert described["written_s"] > 0


def test_looking_opens_nothing(space: Space) -> None:
    before = space.describe()["members"]
    openshelf("top", "demo", "--once", "--interval", "0.01")
    assert space.describe()["members"] == before


def test_it_goes_on_until_it_is_interrupted_and_ends_quietly(space: Space) -> None:
    command = [sys.executable, "-c", "import sys; from openshelf.cli import main; sys.exit(main())", "top"]
    with subprocess.Popen(
        [*command, "--json", "--interval", "0.05"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        times = [json.loads(top.stdout.readline())["time"] for _ in range(3)]
        assert times == sorted(times)
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
        assert top.stderr.read() == ""


def test_a_reader_that_has_seen_enough_is_no_error(space: Space) -> None:
    command = f"{sys.executable} -c 'import sys; from openshelf.cli import main; sys.exit(main())' top"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} --json --interval 0.02 | head -n 1"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_space_is_an_error_with_the_nearest_name(space: Space) -> None:
    done = openshelf("top", "demmo", "--once")
    assert done.returncode == 1
    assert "did you mean 'demo'" in done.stderr
    assert json.loads(openshelf("top", "demmo", "--json").stdout)["error"] == "UnknownName"
    with pytest.raises(UnknownName):
        tiers_of("demmo")


def test_without_spaces_it_says_how_to_make_one(home: Path) -> None:
    done = openshelf("top")
    assert done.returncode == 0
    assert "no spaces with a flash tier" in done.stdout
    assert answer("top", "--once", "--interval", "0.01")["spaces"] == []


def test_a_space_without_a_flash_tier_is_not_shown(home: Path) -> None:
    with Space.create("plain", dram="16MiB") as plain:
        assert tiers_of() == {}
        assert "tiers" not in plain.describe()
        with pytest.raises(BadInput, match="has no flash tier"):
            tiers_of("plain")


def test_a_damaged_one_is_shown_with_the_reason(space: Space, home: Path) -> None:
    (home / "other").mkdir()
    (home / "other" / "tiers").write_bytes(b"nonsense")
    assert "truncated" in tiers_of()["other"]["error"]
    assert "truncated" in openshelf("top", "--once", "--interval", "0.01").stdout
    found = answer("top", "--once", "--interval", "0.01")["spaces"]
    assert [one["name"] for one in found] == ["demo", "other"]
    assert "openshelf:tier_errors_total" in tier_metrics(tiers_of())


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "1e9"])
def test_an_impossible_interval_is_refused(home: Path, interval: str) -> None:
    done = openshelf("top", f"--interval={interval}")
    assert done.returncode == 1
    assert "0.01 to 86400" in done.stderr


def test_metrics_are_well_formed(space: Space) -> None:
    started = time.monotonic()
    text = openshelf("top", "--prometheus", "--interval", "60").stdout
    assert time.monotonic() - started < 30
    sample = re.compile(r'^openshelf:[a-z_]+\{space="demo"\} [0-9.e+-]+$')
    for line in text.splitlines():
        assert line.startswith("# ") or sample.match(line), line
    assert f'openshelf:tier_dram_budget_bytes{{space="demo"}} {32 * MIB}\n' in text
    assert text.count("# TYPE") == tier_metrics({}).count("# TYPE")
