"""docs/formats/hosts.md names what is in etcd: every field of every record, and the lease."""

from __future__ import annotations

import pytest

from openshelf.membership import LEASE_S, Copy, Kept, Owner, Spec
from openshelf.membership.records import Segment
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "formats" / "hosts.md").read_text()


@pytest.mark.parametrize(
    ("key", "record"),
    [("spec", Spec), ("segments/N", Segment), ("names/NAME", Owner), ("kept/NAME", Kept), ("kept/NAME", Copy)],
)
def test_every_field_of_a_record_is_named(key: str, record: type[Spec | Segment | Owner | Kept | Copy]) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{key}` |")]
    assert not [field for field in record._fields if f"`{field}`" not in row]


def test_the_lease_is_as_long_as_the_page_says() -> None:
    assert f"the member's lease, of {LEASE_S} s" in PAGE
