"""The hosts as a host's keeper last knew them: a file beside the host's part of a space.

Processes of the host read who the others are, and the next keeper goes on with the lease and the term of the last one,
also while etcd cannot be reached.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from openshelf import _files
from openshelf.errors import Corrupt
from openshelf.membership.base import Ticket, View

FILE = "hosts"


class Table(NamedTuple):
    """What the file holds."""

    view: View
    ticket: Ticket


def write_table(directory: str | os.PathLike[str], table: Table) -> None:
    """Whole, or not at all. FileNotFoundError if the directory is gone."""
    text = json.dumps({"view": table.view._asdict(), "ticket": table.ticket._asdict()})
    fresh = Path(directory) / f"{FILE}.{os.getpid()}"
    _files.write_own(fresh, text.encode() + b"\n")
    fresh.rename(Path(directory) / FILE)


def read_table(directory: str | os.PathLike[str]) -> Table | None:
    """None if there is none."""
    path = Path(directory) / FILE
    try:
        found = json.loads(_files.read_own(path))
        view, ticket = found["view"], found["ticket"]
        return Table(View(view["epoch"], tuple(view["hosts"]), tuple(view["terms"])), Ticket(**ticket))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"{path} cannot be read ({error}); end the keeper of this host and remove the file") from None
