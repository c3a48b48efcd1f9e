"""Read files of a run folder and nothing else.

A run folder may come from somebody else, so what is in it is not trusted: a file that is a link, or lies behind one, is
refused, as is everything that is not a regular file. Names come from listings, never from requests.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agent_r1.errors import DataError

_HAS_DIR_FD = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


@dataclass(frozen=True, slots=True)
class Signature:
    """Changes when a file is rewritten."""

    size: int
    """In bytes."""
    mtime_ns: int
    """When it was last written."""


def open_inside(folder: Path, *names: str) -> BinaryIO:
    """Open `folder/name/...` for reading. `FileNotFoundError` when it is not there, `DataError` for links, devices and
    names that leave the folder."""
    if not names or any(name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name for name in names):
        raise DataError(f"{'/'.join(names)!r:.100} is not the name of a file of {folder}")
    try:
        descriptor = _open_at(folder, names) if _HAS_DIR_FD else _open_resolved(folder, names)
    except (FileNotFoundError, NotADirectoryError) as error:
        if folder.joinpath(*names[:1]).is_symlink():
            raise DataError(_link_message(folder, names)) from error
        raise FileNotFoundError(str(error)) from error
    except OSError as error:
        if any(folder.joinpath(*names[:depth]).is_symlink() for depth in range(1, len(names) + 1)):
            raise DataError(_link_message(folder, names)) from error
        raise DataError(f"{folder.joinpath(*names)} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{folder.joinpath(*names)} is not a regular file; it is not read")
    return os.fdopen(descriptor, "rb")


def read_inside(folder: Path, name: str, *, max_bytes: int) -> bytes | None:
    """The content of a file in the folder; None when there is none. `DataError` when it is larger."""
    try:
        with open_inside(folder, name) as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    if len(content) > max_bytes:
        raise DataError(f"{folder / name} is larger than {max_bytes:,} bytes; it is not read")
    return content


def list_inside(folder: Path, subfolder: str, suffix: str) -> tuple[dict[str, Signature], list[str]]:
    """The regular files in a subfolder that end in `suffix`, and what was left out, in words."""
    place = folder / subfolder
    if place.is_symlink():
        return {}, [_link_message(folder, (subfolder,))]
    files: dict[str, Signature] = {}
    problems: list[str] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.endswith(suffix) or entry.name.startswith("."):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # deleted meanwhile
                    continue
                if stat.S_ISREG(status.st_mode):
                    files[entry.name] = Signature(status.st_size, status.st_mtime_ns)
                elif stat.S_ISLNK(status.st_mode):
                    problems.append(_link_message(folder, (subfolder, entry.name)))
    except (FileNotFoundError, NotADirectoryError):
        return {}, []
    except OSError as error:
        return {}, [f"{place} cannot be read: {error.strerror or error}"]
    return files, sorted(problems)


def signature_of(file: BinaryIO) -> Signature:
    """The signature of an open file."""
    status = os.fstat(file.fileno())
    return Signature(status.st_size, status.st_mtime_ns)


def _open_at(folder: Path, names: tuple[str, ...]) -> int:
    """Open component by component, none of which may be a link."""
    holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=holder)
            os.close(holder)
            holder = inner
        # O_NONBLOCK: opening a pipe must not wait for its writer.
        return os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=holder)
    finally:
        os.close(holder)


def _open_resolved(folder: Path, names: tuple[str, ...]) -> int:
    """Where the system cannot open relative to a folder: compare the resolved path."""
    path = folder.joinpath(*names)
    if path.resolve() != folder.resolve().joinpath(*names):
        raise DataError(_link_message(folder, names))
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def _link_message(folder: Path, names: tuple[str, ...]) -> str:
    return f"{folder.joinpath(*names)} is a link or lies behind one; links inside run folders are not followed"
