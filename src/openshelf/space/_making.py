"""Making a space: its files, its backing, its addresses."""

from __future__ import annotations

import os
from pathlib import Path

from openshelf import _core
from openshelf.errors import AddressOccupied, NameTaken
from openshelf.space import _places
from openshelf.space._sizes import parse_size


def create(
    root: Path,
    name: str,
    size: int,
    backing: str | os.PathLike[str] | None,
    group: str | None,
    base: int | None,
    reserve: str | int | None,
) -> None:
    data = ""
    page_size = 4096
    if backing is not None:
        path = Path(backing).absolute()
        if path.is_dir():
            path = path / f"openshelf-{os.getuid()}-{name}.data"
        if path.is_file() and path.stat().st_size:
            raise NameTaken(f"the backing file {path} exists already and is not empty; remove it or give another")
        page_size = _places.page_size_of(path)
        data = str(path)
        if not data.startswith("/dev/"):
            _places.check_room(path.parent, size)
    else:
        _places.check_room(root, size + (4 << 20))
    span = parse_size(reserve) if reserve is not None else max(_places.GRAIN, 2 * size)
    span = max(-(-span // (1 << 30)) * (1 << 30), _core.SMALLEST_RESERVE)
    span = -(-span // _places.GRAIN) * _places.GRAIN if reserve is None else span
    directory = root / f".new-{os.getpid()}-{name}"
    occupied: AddressOccupied | None = None
    for choice in [base] if base is not None else _places.free_bases(root, span):
        directory.mkdir(mode=0o700)
        try:
            _core.Core.create(
                str(directory),
                name,
                _places.boot_id(),
                data,
                size,
                choice,
                span,
                page_size,
                0o660 if group else 0o600,
            )
            if group:
                files = [directory / "control", directory / "members", Path(data) if data else directory / "data"]
                _places.share_with(group, directory, files)
        except AddressOccupied as error:
            occupied = error
            _places.clear_debris(root)
            continue
        except BaseException:
            _places.clear_debris(root)
            if data and not data.startswith("/dev/"):
                Path(data).unlink(missing_ok=True)
            raise
        directory.rename(root / name)
        return
    raise occupied or AddressOccupied("all address ranges for spaces are taken; remove some space, or give base=")
