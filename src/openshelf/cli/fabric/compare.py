"""How `openshelf fabric compare` and `derived` look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from openshelf.cli._screen import console
from openshelf.show import format_time
from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.fabric import Derived, Priced


def print_compare(priced: Sequence[Priced], title: str) -> None:
    """The table; a star marks what is beyond the sizes that a protocol's figures are known at."""
    names = list(dict.fromkeys(each.protocol for each in priced))
    kinds = {each.protocol: each.semantics for each in priced}
    table = Table("bytes", *(f"{name}\n({kinds[name]})" for name in names), title=title, title_justify="left")
    for nbytes in sorted({each.nbytes for each in priced}):
        row = {each.protocol: each for each in priced if each.nbytes == nbytes}
        cells = [format_time(row[name].seconds) + ("*" if row[name].beyond else "") for name in names]
        table.add_row(format_size(nbytes), *cells)
    screen = console()
    screen.print(table)
    note = "modelled from published and assumed figures; * beyond the sizes that the figures are known at"
    screen.print(note, markup=False, highlight=False)


def print_derived(found: Sequence[Derived]) -> None:
    """Published beside computed, and how many were missed."""
    table = Table("figure", "kind", "unit", "published", "computed", "error", "from")
    for each in found:
        published = f"{each.low:g}" if each.low == each.high else f"{each.low:g} to {each.high:g}"
        computed = "not known" if each.computed is None else f"{each.computed:.4g}"
        error = "" if each.error is None else f"{each.error:+.1%}{'' if each.met else ' missed'}"
        table.add_row(each.what, each.kind, each.unit, published, computed, error, each.inputs)
    screen = console()
    screen.print(table)
    missed = [each.what for each in found if not each.met]
    screen.print(f"missed by more than 15 %, or not to be computed: {'; '.join(missed)}", markup=False, highlight=False)
