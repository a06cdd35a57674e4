"""What each kernel gives: tests of hosts, litmus and tiers, in guests; the table is in build/machines/kernels.md.

Suites that a run leaves out keep their cells from the run before (kernels.json), so the table can be made in parts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest

from tests.machines.guest import PATIENCE, TREE, Guest, place
from tests.machines.prepare import KERNELS

_SUITES = {
    "coherent views": "tests/space/hosts/test_sharing.py",
    "litmus": "tests/space/hosts/coherence/test_litmus.py",
    "histories, faults": "tests/space/hosts/coherence/test_histories.py tests/space/hosts/coherence/test_faults.py",
    "hosts": "tests/space/hosts --ignore=tests/space/hosts/coherence --ignore=tests/space/hosts/harness "
    "--deselect=tests/space/hosts/test_sharing.py",
    "tiers": "tests/space/tiers",
}
_LIMIT_S = 3600.0  # of a suite that takes a minute or two without emulation
_MODULES = "virtio_blk ext4 bridge veth sch_netem sch_tbf cls_bpf act_bpf"


def _counts(out: str) -> dict[str, int]:
    """Of pytest's last line."""
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", out.strip().splitlines()[-1] if out.strip() else "")
    return {kind: int(number) for number, kind in found}


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, dict[str, str]]]:
    """By kernel and suite; written when all that were asked for have run."""
    kept = place() / "kernels.json"
    found: dict[str, dict[str, str]] = {kernel: {} for kernel in KERNELS}
    for kernel, cells in (json.loads(kept.read_text()) if kept.exists() else {}).items():
        found[kernel] |= cells
    yield found
    kept.write_text(json.dumps(found, indent=1))
    lines = ["| kernel | " + " | ".join(_SUITES) + " |", "|---" * (1 + len(_SUITES)) + "|"]
    for kernel, cells in found.items():
        lines.append(f"| {kernel} | " + " | ".join(cells.get(suite, "not run") for suite in _SUITES) + " |")
    table = "\n".join(lines) + "\n"
    (place() / "kernels.md").write_text(table)
    print(f"\n{table}")


@pytest.fixture(scope="module")
def disk() -> Iterator[str]:
    path = place() / f"run/suites-{os.getpid()}.img"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    yield str(path)
    path.unlink()


@pytest.mark.parametrize("suite", _SUITES)
def test_a_suite_passes_in_a_guest(suite: str, kernel: str, disk: str, rows: dict[str, dict[str, str]]) -> None:
    rows[kernel][suite] = "did not end"
    drive = f"driver=file,node-name=d0,filename={disk},cache.direct=on,aio=threads"
    devices = ["-blockdev", drive, "-device", "virtio-blk-pci,drive=d0"]
    with Guest("suite", kernel, "3G", "2", devices=devices) as guest:
        guest.run(
            f"ip link set lo up; for module in {_MODULES}; do modprobe $module; done; "
            "mke2fs -q -t ext4 /dev/vda && mkdir -p /mnt/disk && mount /dev/vda /mnt/disk && mkdir /mnt/disk/tmp"
        )
        surroundings = f"PYTHONDONTWRITEBYTECODE=1 TMPDIR=/mnt/disk/tmp OPENSHELF_TEST_PATIENCE={PATIENCE}"
        pytests = f"-m pytest -rfE --tb=short -m 'not soak' {_SUITES[suite]}"
        command = f"cd {TREE}; {surroundings} timeout {_LIMIT_S:.0f} .venv/bin/python {pytests} 2>&1"
        code, out = guest.end(guest.begin(command), _LIMIT_S + 60)
        (place() / f"suite-{kernel}-{re.sub('[^a-z]+', '-', suite)}.txt").write_text(out)
        counts = _counts(out)
        rows[kernel][suite] = ", ".join(f"{number} {kind}" for kind, number in counts.items()) or f"ended with {code}"
        assert code == 0, out[-5000:]
        assert counts.get("passed"), out
