"""One process per run folder: a lock file beside the folder, valid across hosts.

`runs/quickstart` is locked by `runs/.quickstart.lock`, which names the host and the process and whose modification time
is refreshed every 20 seconds. A lock is stale and is taken over

- at once, when its process ran on this host and has ended;
- after ten minutes without a refresh, when its process is on another host and cannot be looked up from here.

The file appears complete (a hard link to a file that is already written), so two processes never both create it, also
on NFS. Where the file system has `flock`, it is held as well: a suspended process of another host keeps its lock, and
two processes cannot take over one stale lock at the same time.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_r1.errors import RunLockedError
from agent_r1.files import atomic_write

HEARTBEAT_SECONDS = 20.0
STALE_SECONDS = 600.0
_UNREADABLE_SECONDS = 10.0
"""How long a lock file may have no readable holder: without hard links its content is written after it appears."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
_ATTEMPTS = 50
_TOKEN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LockHolder:
    """The process that wrote a lock file."""

    host: str
    """Its host's name."""
    pid: int
    """Its process id on that host."""
    process_start: str
    """When that process started, in the kernel's ticks: process ids are reused."""
    boot: str
    """The boot of the host and the process-id namespace in which `pid` is valid."""
    since: str
    """When it took the lock."""
    token: str
    """Unique per lock."""

    @property
    def is_of_this_host(self) -> bool:
        """Whether its process can be looked up from here."""
        return self.boot == _boot() and self.host == platform.node()

    @property
    def is_running(self) -> bool:
        """Whether its process is alive; only for a holder of this host."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        started = _process_start(self.pid)
        return started is not None and (not self.process_start or started == self.process_start)


class FolderLock:
    """The lock of one folder. `lock_folder` takes it for a block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        real = folder.absolute().parent.resolve() / folder.name
        real = real.resolve() if real.is_symlink() else real
        self.path = real.with_name(f".{real.name}.lock")
        self._holder: LockHolder | None = None
        self._file: int | None = None
        self._released = threading.Event()

    def try_acquire(self) -> LockHolder | None:
        """Take the lock; returns None on success, else its holder. A stale lock is taken over."""
        own_holder = _this_process()
        candidate = self.path.with_name(f"{self.path.name}.{own_holder.token}")
        with atomic_write(self.path, partial=candidate):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = _write_holder(candidate, own_holder)
            try:
                blocking, file = self._place(candidate, file, own_holder)
            except BaseException:
                os.close(file)
                raise
            finally:
                candidate.unlink(missing_ok=True)
        if blocking is not None:
            os.close(file)
            return blocking
        self._holder, self._file = own_holder, file
        self._remove_old_candidates(os.fstat(file).st_mtime)
        self._released = threading.Event()
        threading.Thread(target=self._refresh, args=(file, self._released), daemon=True, name="run lock").start()
        return None

    def ensure_held(self) -> None:
        """Raise `RunLockedError` when another process has taken the lock over; a deleted lock file is written again."""
        if self._holder is None or self._is_in_place():
            return
        self._let_go()
        holder = self.try_acquire()
        if holder is not None:
            raise RunLockedError(f"{self.folder} was taken over while this run was live: {self.describe(holder)}")

    def release(self) -> None:
        """Release the lock."""
        if self._holder is not None and self._is_in_place():
            with suppress(OSError):
                self.path.unlink()
        self._let_go()

    def describe(self, holder: LockHolder) -> str:
        """Who holds the lock, and what to do."""
        is_own = holder.is_of_this_host and holder.pid == os.getpid()
        who = (
            "this process"
            if is_own
            else f"process {holder.pid} on host {holder.host}"
            if holder.pid
            else "a live process"
        )
        age = ""
        with suppress(OSError):
            age = f", last refreshed {max(0.0, time.time() - self.path.stat().st_mtime):.0f} s ago"
        rule = (
            ""
            if is_own or holder.is_of_this_host
            else f" A lock of another host is taken over after {STALE_SECONDS / 60:.0f} minutes without a refresh; if "
            f"you know that the process is gone, delete {self.path}."
        )
        return (
            f"{who} uses it{f' since {holder.since}' if holder.since else ''}{age}. Wait until it ends, stop it, or "
            f"choose another name.{rule}"
        )

    def _place(self, candidate: Path, file: int, own_holder: LockHolder) -> tuple[LockHolder | None, int]:
        """Make the candidate the lock file. Returns the other holder, if there is one, and the open lock file."""
        now = candidate.stat().st_mtime
        holder = own_holder
        for _ in range(_ATTEMPTS):
            created = _link(candidate, self.path, file, own_holder)
            if created is not None:
                return None, created
            other = _read(self.path)
            if other is None:  # released meanwhile
                continue
            holder = other
            if not _is_stale(self.path, holder, now):
                return holder, file
            if self._replace(candidate, holder):
                return None, file
        return holder, file

    def _remove_old_candidates(self, now: float) -> None:
        """Remove the candidates of processes that were killed before they had the lock, or just after that."""
        with suppress(OSError):
            for path in list(self.path.parent.iterdir()):
                name, _, token = path.name.rpartition(".")
                if name == self.path.name and _TOKEN.fullmatch(token):
                    holder = _read(path)
                    if holder is not None and _is_stale(path, holder, now):
                        path.unlink(missing_ok=True)

    def _replace(self, candidate: Path, stale: LockHolder) -> bool:
        """Take over a stale lock; False when it has changed, or a suspended process still holds it."""
        try:
            old = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            if not _flock(old) and not (stale.pid and stale.is_of_this_host):
                time.sleep(0.05)
                return False
            holder = _read(self.path)
            if holder is None or holder.token != stale.token or not os.path.samestat(os.fstat(old), self.path.stat()):
                return False
            candidate.replace(self.path)
        except FileNotFoundError:
            return False
        finally:
            os.close(old)
        return True

    def _is_in_place(self) -> bool:
        holder = _read(self.path)
        return holder is not None and self._holder is not None and holder.token == self._holder.token

    def _refresh(self, file: int, released: threading.Event) -> None:
        while not released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(file if os.utime in os.supports_fd else self.path)

    def _let_go(self) -> None:
        self._released.set()
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._holder = self._file = None


@contextmanager
def lock_folder(
    folder: Path, *, wait: bool = False, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[FolderLock]:
    """Within this block no other process uses the folder. Raises `RunLockedError`, which names the other one; with
    `wait`, waits for it instead and calls `on_wait` once."""
    lock = FolderLock(folder)
    pause = 0.05
    while (holder := lock.try_acquire()) is not None:
        if not wait:
            raise RunLockedError(f"the folder {folder} is locked: {lock.describe(holder)}")
        if pause == 0.05:
            on_wait(f"waiting for {folder}: {lock.describe(holder)}")
        time.sleep(pause)
        pause = min(2.0, 2 * pause)
    try:
        yield lock
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a live process uses the folder."""
    lock = FolderLock(folder)
    holder = _read(lock.path)
    return holder is not None and not _is_stale(lock.path, holder, time.time())


def remove_stale_lock(folder: Path) -> None:
    """Remove the lock file of a process that has ended. Only for folders whose users all wait for the lock: this
    process holds it for a moment."""
    lock = FolderLock(folder)
    if lock.path.exists() and lock.try_acquire() is None:
        lock.release()


def _is_stale(path: Path, holder: LockHolder, now: float) -> bool:
    """Whether the process that wrote a lock file has ended, or counts as ended."""
    if holder.pid and holder.is_of_this_host:
        return not holder.is_running
    try:
        age = now - path.stat().st_mtime  # both times are the file server's
    except FileNotFoundError:
        return True
    return age > (STALE_SECONDS if holder.pid else _UNREADABLE_SECONDS)


def _this_process() -> LockHolder:
    return LockHolder(
        host=platform.node(),
        pid=os.getpid(),
        process_start=_process_start(os.getpid()) or "",
        boot=_boot(),
        since=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        token=uuid.uuid4().hex,
    )


def _boot() -> str:
    """This boot of this host and this process-id namespace; only the host's name where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def _process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot; "" if unknown, None if it has ended."""
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        # The command's name may hold blanks and brackets; the fields after it are state, ..., start time (field 22).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _write_holder(path: Path, holder: LockHolder) -> int:
    """Create the file, write the holder and take its `flock`; returns the open file."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
    try:
        os.write(file, (json.dumps(asdict(holder)) + "\n").encode())
        os.fsync(file)
        _flock(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _link(candidate: Path, path: Path, file: int, holder: LockHolder) -> int | None:
    """Create `path` with the candidate's content unless it exists; returns the open lock file."""
    try:
        os.link(candidate, path)
    except FileExistsError:
        return None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        return file
    try:
        created = _write_holder(path, holder)
    except FileExistsError:
        return None
    os.close(file)
    return created


def _read(path: Path) -> LockHolder | None:
    """The holder that a lock file names, process 0 when it cannot be read; None without a file."""
    try:
        return LockHolder(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        return LockHolder(host="", pid=0, process_start="", boot="", since="", token="")


def _flock(file: int) -> bool:
    """Lock the file until it is closed; False when another process has. Without `flock`, always True."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
