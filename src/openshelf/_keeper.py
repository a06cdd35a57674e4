"""The keeper's process. Run by path, with `python -I -S`: it loads the native core and nothing else, and so is there in
a few hundredths of a second. The key is read from the hosts file, never from the command line, which everybody sees."""

import argparse
import importlib
import importlib.util
import os
import re
import signal
import sys
import threading
import time
import types
from typing import Any

_LOG_MOST = 4 << 20  # bytes
_FIRST_S = 0.5  # for a first word with etcd
_LISTEN_S = 0.1  # how late a caller's hint may be heard


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


class _Mender:
    """Runs `openshelf hosts mend` when copies of arrays may have to be made again: a process of its own, with all of
    the package. So it is also for what others left undone that were killed."""

    _BEGIN_S, _AGAIN_S, _SELDOM_S = 3, 10, 600  # after the keeper's start, after a failure, without a reason

    def __init__(self, args: argparse.Namespace) -> None:
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        run = "import signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, []); from openshelf.cli import main; "
        url = f"etcd://{args.etcd}/{args.agreed}"
        self._command = [sys.executable, "-c", run + "sys.exit(main())", "hosts", "mend", url, "--hosts", args.file]
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        own = {"OPENSHELF_DIR": args.root, "OPENSHELF_HOST": args.hosts, "PYTHONPATH": path}
        self._environment = {**os.environ, **own}
        self._terms: tuple[int, ...]
        self._subprocess = importlib.import_module("subprocess")  # it takes a while, and most keepers need none
        self._due, self._terms = time.monotonic() + self._BEGIN_S, ()
        self._process: Any = None

    def step(self, terms: tuple[int, ...]) -> None:
        """Called again and again, with the members."""
        now = time.monotonic()
        if any(was and was != is_ for was, is_ in zip(self._terms, terms, strict=False)):
            self._due = now
        self._terms = terms
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self._due = min(self._due, now + (self._AGAIN_S if code else self._SELDOM_S))
        if self._process is None and now >= self._due:
            self._due = float("inf")
            quiet = self._subprocess.DEVNULL
            self._process = self._subprocess.Popen(self._command, env=self._environment, stdin=quiet, stdout=quiet)


class _Agreement:
    """The list of hosts that the keeper goes by, as the hosts agree on it in etcd. A thread follows it."""

    def __init__(self, core: types.ModuleType, args: argparse.Namespace) -> None:
        self._membership = importlib.import_module("openshelf.membership")
        self._core, self._directory = core, os.path.join(args.root, f"{args.agreed}@{args.hosts}")
        table = self._membership.read_table(self._directory)
        if table is None:
            raise ValueError(f"{self._directory} has no list of members; open the space in some process first")
        self.roster: Any = core.Roster(list(table.view.hosts), args.realm)
        self._show(table)
        self._agreed = self._membership.Agreed(self._membership.Etcd(args.etcd.split(",")), args.agreed, args.realm)
        self._agent = self._membership.Agent(self._agreed, args.hosts, table, self._follow, self._say)
        self._thread = threading.Thread(target=self._run, name="openshelf-members", daemon=True)
        self._stop, self._stepped = False, threading.Event()
        self._mender = _Mender(args) if args.mend else None

    def begin(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # they are for the native loop
        self._thread.start()
        self._stepped.wait(_FIRST_S)  # the others may have given this host up; it serves without etcd if it must

    def end(self) -> None:
        """The others need not wait until the lease has ended, if nobody here works any more."""
        self._stop = True
        try:
            if self._core.live_members(self._directory, False):
                return  # the next keeper goes on with the same term
            self._agreed.resign(self._agent.table.ticket)
        except Exception as error:
            self._say(f"the lease was left to end by itself: {error}")

    def _run(self) -> None:
        while not self._stop:
            try:
                self._agent.step()
                self._stepped.set()
                if self._agent.over:
                    break
                if self._mender:
                    self._mender.step(self._agent.table.view.terms)
                self._wait(self._membership.LEASE_S / 3)
            except Exception as error:  # no room for the file, say; a keeper that stopped trying would be given up
                self._say(f"{type(error).__name__}: {error}")
                time.sleep(1)
        if self._agent.over:  # a part that is made anew has another keeper
            os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self, seconds: float) -> None:
        """Until etcd has news, or a caller says that there are some, or the time is over."""
        deadline = time.monotonic() + seconds
        while not self._stop and not self.roster.asked() and (left := deadline - time.monotonic()) > 0:
            if self._agent.wait(min(left, _LISTEN_S)):
                return

    def _follow(self, table: Any) -> None:
        self._membership.write_table(self._directory, table)  # first: who sees the epoch finds the list
        self._show(table)

    def _show(self, table: Any) -> None:
        self.roster.change(list(table.view.hosts), list(table.view.terms), table.view.epoch)

    def _say(self, text: str) -> None:
        print(f"{_now()} members: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Openshelf's keeper; `openshelf keeper` starts it.")
    for name in ("core", "boot-id"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--space", metavar="DIRECTORY", help="of one space with a flash tier; or, of a host:")
    for name in ("root", "file", "hosts"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--own", type=int)
    parser.add_argument("--etcd", help="servers in which the hosts agree; --hosts is the own one then")
    parser.add_argument("--agreed", metavar="SPACE")
    parser.add_argument("--realm", type=int, default=0)
    parser.add_argument("--mend", action="store_true", help="the space has replicas")
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
        key = _read_key(args.file)
        hosts = args.hosts.split(",")
        agreement = _Agreement(core, args) if args.etcd else None
        roster = agreement.roster if agreement else core.Roster(hosts)
        host = hosts[0 if agreement else args.own]
        if agreement:
            agreement.begin()
        print(f"{_now()} keeper of {host}, process {os.getpid()}, spaces in {args.root}", flush=True)
        core.keeper_run(args.root, roster, args.own, key, args.linger, args.boot_id, args.agreed or "")
        if agreement:
            agreement.end()
        print(f"{_now()} keeper of {host}, process {os.getpid()}, ended", flush=True)
    except Exception as error:
        # By these words it is known from one that was killed, which is started again.
        raise SystemExit(f"{_now()} the keeper ended: {type(error).__name__}: {error}") from None


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


if __name__ == "__main__":
    main()
