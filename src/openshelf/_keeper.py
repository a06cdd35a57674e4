"""The keeper's process. Run by path, with `python -I -S`: it loads the native core and nothing else, and so is there in
a few hundredths of a second. The key is read from the hosts file, never from the command line, which everybody sees."""

import argparse
import importlib
import importlib.util
import os
import re
import signal
import sys
import time
import types

_LOG_MOST = 4 << 20  # bytes


def _read_key(path: str) -> bytes:
    """The one line of the hosts file that is needed here; what reads the whole file checks that it has this form."""
    text = _files().read_own(path, 1 << 16, secret=True)
    found = re.search(rb"""^key:[ \t]*["']?([0-9a-fA-F]{64})["']?[ \t]*(#.*)?\r?$""", text, re.M)
    if not found:
        raise ValueError(f"the hosts file {path} has no line with `key: ` and 64 hex digits")
    return bytes.fromhex(found[1].decode())


def _files() -> types.ModuleType:
    """The package's own way to open files. It and its errors are found beside this script, without other imports."""
    if "openshelf" not in sys.modules:
        package = types.ModuleType("openshelf")
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules["openshelf"] = package
    return importlib.import_module("openshelf._files")


def _load(path: str) -> types.ModuleType:
    """The native core from its file."""
    _files()
    spec = importlib.util.spec_from_file_location("openshelf._core", path)
    assert spec is not None
    assert spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    sys.modules["openshelf._core"] = core
    spec.loader.exec_module(core)
    return core


def _detach(log: str, tell: bool) -> None:
    """Leaves the caller, who waits only for the process that ends here; what is printed goes to a private file."""
    if keeper := os.fork():
        if tell:
            os.write(1, b"%d\n" % keeper)
        os._exit(0)
    os.setsid()
    os.chdir("/")
    handle = _files().open_own(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.closerange(3, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description="Openshelf's keeper; `openshelf keeper` starts it.")
    for name in ("core", "boot-id"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--space", metavar="DIRECTORY", help="of one space with a flash tier; or, of a host:")
    for name in ("root", "file", "hosts"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--own", type=int)
    parser.add_argument("--linger", type=float, default=-1.0)
    parser.add_argument("--detach", metavar="LOG")
    parser.add_argument("--tell", action="store_true", help="print the number of the detached process")
    args = parser.parse_args()
    root = args.space or args.root
    if not root or not os.path.isdir(root):
        raise SystemExit(f"there is no directory {root} any more")
    if args.detach:
        _detach(args.detach, args.tell)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # native code waits: Python's own handler would never be run
    try:
        core = _load(args.core)
        if args.detach:
            core.bound_log(_LOG_MOST)
        if args.space:
            core.tier_keeper_run(args.space, args.boot_id, args.linger)
            return
        hosts = args.hosts.split(",")
        key = _read_key(args.file)
        print(f"{_now()} keeper of {hosts[args.own]}, process {os.getpid()}, spaces in {args.root}", flush=True)
        core.keeper_run(args.root, hosts, args.own, key, args.linger, args.boot_id)
        print(f"{_now()} keeper of {hosts[args.own]}, process {os.getpid()}, ended", flush=True)
    except Exception as error:
        # By these words it is known from one that was killed, which is started again.
        raise SystemExit(f"{_now()} the keeper ended: {type(error).__name__}: {error}") from None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    main()
