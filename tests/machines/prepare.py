"""prepare.py FOLDER: what guests need, fetched from Debian and unpacked there; nothing but QEMU is installed.

The newest kernels of the two lines that Debian 12 offers are taken. What a guest runs besides (Python, the project) it
sees in the root of this machine: tests/machines/guest.py.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = ("6.1", "6.12")
_TOOLS = (
    "busybox-static kmod libkmod2 ndctl daxctl libndctl6 libdaxctl1 libcxl1 libiniparser1 libtraceevent1 libtracefs1"
)
_XZ, _ZSTD, _ELF = b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x7fELF"


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def _install() -> None:
    _run(["apt-get", "update", "-qq"])  # kernels come and go
    if not (shutil.which("qemu-system-x86_64") and shutil.which("zstd")):
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "qemu-system-x86", "zstd"])


def _unpack(packages: list[str], to: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # apt fetches as another user
        _run(["apt-get", "download", "-qq", *packages], Path(folder))
        for package in sorted(Path(folder).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(to)])


def _tools(place: Path) -> None:
    """The root of a guest's tools, laid over this machine's, where /bin and /lib are links: all is below usr/."""
    with tempfile.TemporaryDirectory() as folder:
        unpacked, tools = Path(folder), place / "tools"
        _unpack(_TOOLS.split(), unpacked)
        for part, to in (("usr", "usr"), ("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("etc", "etc")):
            if (unpacked / part).is_dir() and not (unpacked / part).is_symlink():
                shutil.copytree(unpacked / part, tools / to, symlinks=True, dirs_exist_ok=True)
    for name in ("modprobe", "insmod", "depmod"):
        link = tools / "usr/sbin" / name
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to("../bin/kmod")


def _newest(line: str) -> str:
    """The package of the newest kernel of a line, such as 6.1."""
    found = _run(["apt-cache", "search", "--names-only", rf"^linux-image-{re.escape(line)}[.][.+0-9deb-]*-amd64$"])
    names = [row.split()[0] for row in found.splitlines()]
    if not names:
        raise SystemExit(f"apt offers no linux-image-{line}*-amd64; run apt-get update, on Debian 12")
    return max(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def _kernel(place: Path, line: str) -> None:
    """The image without its compressed wrapper, which QEMU boots at once (PVH), and the modules."""
    root = place / f"kernel-{line}"
    _unpack([_newest(line)], root)
    (packed,) = (root / "boot").glob("vmlinuz-*")
    (place / f"vmlinux-{line}").write_bytes(_image(packed.read_bytes()))
    (modules,) = (root / "lib/modules").iterdir()
    libraries = place / "tools/usr/lib/x86_64-linux-gnu"
    command = [
        "env",
        f"LD_LIBRARY_PATH={libraries}",
        str(place / "tools/usr/sbin/depmod"),
        "-b",
        str(root),
        modules.name,
    ]
    _run(command)


def _image(data: bytes) -> bytes:
    for magic in (_XZ, _ZSTD):
        at = data.find(magic)
        while at >= 0:
            if (image := _unpacked(magic, data[at:])).startswith(_ELF):
                return image
            at = data.find(magic, at + 1)
    raise SystemExit("no image was found in the kernel's file")


def _unpacked(magic: bytes, data: bytes) -> bytes:
    if magic == _ZSTD:  # what follows the image is no error of ours
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False).stdout
    try:
        return lzma.LZMADecompressor().decompress(data)
    except lzma.LZMAError:
        return b""


def main() -> None:
    place = Path(sys.argv[1]).resolve()
    if (place / "ready").exists():
        return
    _install()
    shutil.rmtree(place, ignore_errors=True)
    (place / "run").mkdir(parents=True)
    _tools(place)
    for line in KERNELS:
        _kernel(place, line)
    (place / "ready").touch()


if __name__ == "__main__":
    main()
