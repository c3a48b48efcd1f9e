"""Atomic file writes. On failure the partial file is removed and a `StorageError` names the path, the free space and a
fix."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agent_r1.errors import AgentR1Error, StorageError

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_ADVICE = {
    errno.ENOSPC: "Free some space there",
    errno.EDQUOT: "Free some space there, or have your quota raised",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
}


@contextmanager
def atomic_write(place: Path, *, partial: Path | None = None, num_bytes: int | None = None) -> Iterator[None]:
    """Within this block a failed write is a `StorageError`; `num_bytes`, if known, is the size of `place`.

    When the block raises, `partial` (the file or folder that is written before it is complete) is removed, so that it
    does not keep a full disk full.
    """
    try:
        with ExitStack() as stack:
            if partial is not None:
                stack.callback(_remove, partial)
            yield
            stack.pop_all()
    except AgentR1Error:  # raised on purpose: a file that cannot be read, or a write that was explained already
        raise
    except Exception as error:  # libraries wrap a failed write in errors of their own
        failed = _failed_write(error)
        if failed is None:
            raise
        raise StorageError(_message(place, failed, num_bytes)) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers, also after a crash, see either the old or the new content. Of two processes that
    write at once the later one wins."""
    PreparedFile(path, content).publish()


class PreparedFile:
    """The new content of a file, on the disk beside it: `publish` puts it in the place of the old one at once.

    prepared = PreparedFile(path, content)  # the slow half of `write_atomically`
    prepared.publish()                      # or prepared.discard()
    """

    def __init__(self, path: Path, content: str | bytes) -> None:
        self.path = path
        data = content.encode() if isinstance(content, str) else content
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with atomic_write(path, partial=self._partial, num_bytes=len(data)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                file = opened.enter_context(self._partial.open("wb"))
                is_locked = _lock(file.fileno(), wait=False)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                # As long as it is open, its lock tells others that it belongs to a live process.
                self._open = opened.pop_all() if is_locked else ExitStack()

    def publish(self) -> None:
        """Put the new content in the place of the file."""
        with self._open, atomic_write(self.path, partial=self._partial):
            self._partial.replace(self.path)

    def discard(self) -> None:
        """Remove what was written."""
        with self._open:
            _remove(self._partial)


def remove_leftovers(folder: Path, *, is_shared: bool = False) -> None:
    """Remove the partial files and folders that killed processes have left directly in a folder, to which no live
    process writes. A folder that was moved away and not replaced yet is moved back.

    With `is_shared`, live processes may write files there: theirs stay.
    """
    for partial in list(folder.glob(".?*.partial")):
        if not is_shared or _is_abandoned(partial):
            _remove(partial)
    for old in [path for path in folder.glob(".?*.old") if path.is_dir()]:
        place = old.with_name(old.name[1:].removesuffix(".old"))
        if place.exists():
            _remove(old)
        else:
            old.rename(place)


def _is_abandoned(partial: Path) -> bool:
    """Whether the process that wrote a partial file has ended: the file is not locked any more."""
    try:
        descriptor = os.open(partial, os.O_RDONLY)
    except OSError:  # it was published
        return False
    try:
        return _lock(descriptor, wait=False)
    finally:
        os.close(descriptor)


def is_gguf(path: str | Path) -> bool:
    """Whether this is a GGUF file that exists."""
    return Path(path).suffix == ".gguf" and Path(path).is_file()


def replace_folder(new: Path, place: Path) -> None:
    """Move the folder `new` to `place`, durably. The old folder is removed only after that. Of two processes that
    replace it at once the later one wins."""
    old = place.with_name(f".{place.name}.old")
    with locked_folder(place.parent):
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        try:
            new.rename(place)
        except OSError:
            if old.exists():
                old.rename(place)
            raise
        shutil.rmtree(old, ignore_errors=True)
        flush(place.parent)


@contextmanager
def locked_folder(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Within the block no other process holds the lock of `folder`, which ends with the process that holds it.

    Gives False where there is no lock: another process has it and `wait` is false, or the system has no `flock`.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def kept_working_folder() -> Iterator[Callable[[], None]]:
    """For foreign code: after the block, or a call of what it gives, the working folder is the one from before. A
    tool that has changed it must not move the files of a run, whose paths may be relative."""
    before = Path.cwd()

    def restore() -> None:
        with suppress(OSError):  # it was deleted
            os.chdir(before)

    try:
        yield restore
    finally:
        restore()


def flush(path: Path) -> None:
    """Write a file's content, or a folder's entries, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(place: Path) -> int:
    """The free space on the disk of a file or folder, which need not exist yet."""
    for folder in (place, *place.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return 0


def size_in_words(num_bytes: float) -> str:
    """A human-readable size.

    >>> size_in_words(15_285_056_768), size_in_words(400_000)
    ('15.3 GB', '400 kB')
    """
    unit = 0
    while num_bytes >= 1000 and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    digits = 1 if unit and num_bytes < 100 else 0
    return f"{num_bytes:.{digits}f} {_UNITS[unit]}"


def _failed_write(error: Exception) -> OSError | None:
    """The operating system's error; None for an error that is not about writing.

    torch raises an error of its zip writer after the failed write, and libraries in Rust raise their own exceptions,
    which end in `(os error 28)`.
    """
    for candidate in (error, error.__context__):
        if isinstance(candidate, OSError):
            return candidate
    code = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(code[1]), os.strerror(int(code[1]))) if code else None


def _message(place: Path, failed: OSError, num_bytes: int | None) -> str:
    needs = "" if num_bytes is None else f", and it needs {size_in_words(num_bytes)}"
    advice = _ADVICE.get(failed.errno or 0, "Make it writable, or choose another place")
    return (
        f"{place} cannot be written ({failed.strerror or failed}): {size_in_words(free_bytes(place))} are free "
        f"there{needs}. {advice}"
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
