"""The program inside the sandbox: it drops its rights, one after the other, and then runs another program.

`launch.py` passes this file's text to a new interpreter (`python -c`), `fork_server.py` to its server. It imports
little: importing `json`, `signal` or `typing` takes as long as starting the interpreter. It becomes two or three
processes:

    guard      waits; kills everything when its owner goes away, and reports it
    `- init    with namespaces: process 1, without network and with few files
       `- worker   no rights, hard limits: runs the program

A vulnerability of the kernel is one of this sandbox too, unless the system call filter blocks the way to it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mount, uts, ipc, pid, network
_NEW_USER = 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_SIGKILL = 9
_POLL_SECONDS, _COUNT_SECONDS = 0.5, 0.05


def confine(settings: dict[str, Any]) -> NoReturn:
    """Confine this process, then run the program."""
    owner = os.getppid()
    try:
        if settings["namespaces"]:
            _enter_namespaces()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        _tell(settings, "failed", str(error))
        os._exit(1)
    child = os.fork()
    if child == 0:
        _run_confined(settings)
    if settings["group"] is not None:
        os.close(settings["group"])
    _guard(settings, child, owner)


def _tell(settings: dict[str, Any], name: str, value: int | str = 1) -> None:
    """Write one line of JSON, for example `{"exit": 3}`."""
    plain = value if isinstance(value, int) else '"' + str(value).replace("\\", "/").replace('"', "'") + '"'
    try:  # noqa: SIM105 - contextlib takes long to import
        os.write(settings["reports"], f'{{"{name}": {plain}}}\n'.encode())
    except OSError:
        pass  # the owner is gone


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


# The guard


def _guard(settings: dict[str, Any], child: int, owner: int) -> NoReturn:
    """Wait until the child ends or the owner closes standard input; then kill whatever is left."""
    watched = select.poll()
    watched.register(0, 0)  # only the hang-up: the owner closed its end or died
    watched.register(os.pidfd_open(child), select.POLLIN)
    pause = 1000 * (_COUNT_SECONDS if settings["count"] else _POLL_SECONDS)
    status = None
    while status is None:
        events = watched.poll(pause)
        status = _reap(child)
        too_many = settings["count"] and len(_descendants()) > settings["processes"]
        if too_many or os.getppid() != owner or any(descriptor == 0 for descriptor, _ in events):
            break
    if status is not None and not settings["namespaces"]:
        _tell(settings, "exit", status)
    _kill_all(settings, child)
    _tell(settings, "gone")
    os._exit(0)


def _reap(child: int) -> int | None:
    """Reap ended processes, so that they are not counted; the child's exit code if it is among them."""
    while True:
        try:
            dead, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if dead == child:
            return os.waitstatus_to_exitcode(status)
        if dead == 0:
            return None


def _kill_all(settings: dict[str, Any], child: int) -> None:
    """Kill what the program started: process 1 of its namespace, else every process of its user id, or, where that is
    ours, every descendant."""
    if settings["namespaces"]:
        _kill(child)
    user = _own_user(settings)
    for _ in range(200):
        if user is not None and not settings["namespaces"]:
            _kill_user(user)
        elif not settings["namespaces"]:
            for process in _descendants():
                _kill(process)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _kill(process: int) -> None:
    try:  # noqa: SIM105
        os.kill(process, _SIGKILL)
    except ProcessLookupError:
        pass


def _kill_user(user: int) -> None:
    helper = os.fork()
    if helper == 0:
        try:
            os.setresuid(user, user, user)
            os.kill(-1, _SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(helper, 0)


def _descendants() -> list[int]:
    """Every process below this one, orphans included: this process adopts them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes longer to import than the rest of this file
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    descendants = list(children.get(os.getpid(), []))
    for process in descendants:
        descendants.extend(children.get(process, []))
    return descendants


# Before the program runs


def _run_confined(settings: dict[str, Any]) -> NoReturn:
    try:
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        _join_group(settings)
        if settings["namespaces"]:
            _build_root(settings)
        _drop_rights(settings)
        if settings["namespaces"]:
            _prctl(_PR_SET_DUMPABLE, 0)
            worker = os.fork()
            if worker:
                _act_as_init(settings, worker)
        # A change of user cleared both.
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        _prctl(_PR_SET_DUMPABLE, 1)
        os.chdir("/tmp" if settings["namespaces"] else settings["folder"])
        _set_limits(settings)
        if settings["count"]:
            os.nice(10)  # the guard must win the race against a fork bomb
        _filter_calls(settings["filter"])
    except OSError as error:
        _tell(settings, "failed", str(error))
        os._exit(1)
    _tell(settings, "ready")
    program = compile(settings["program"], "<sandbox>", "exec")
    exec(program, {"__name__": "sandbox_program", "settings": settings})
    os._exit(0)


def _join_group(settings: dict[str, Any]) -> None:
    """Enter the session's control group; the guard stays outside, where the group's limits cannot kill it."""
    if settings["group"] is None:
        return
    try:
        os.write(settings["group"], b"0")
    except OSError as error:
        raise OSError(error.errno, f"joining the cgroup: {error.strerror}") from None
    os.close(settings["group"])


def _filter_calls(program: bytes) -> None:
    """Install the system call filter, an array of eight-byte instructions, for this process and its children."""
    if not program:
        return
    instructions = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    described = Program(len(program) // 8, ctypes.addressof(instructions))
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(described), 0, 0)
    _check(result, "seccomp")


def _act_as_init(settings: dict[str, Any], worker: int) -> NoReturn:
    """Process 1 of the namespace: when it ends, the kernel kills all others there."""
    while True:
        dead, status = os.wait()
        if dead == worker:
            _tell(settings, "exit", os.waitstatus_to_exitcode(status))
            os._exit(0)


def _enter_namespaces() -> None:
    if _libc.unshare(_NEW_NAMESPACES) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEW_USER | _NEW_NAMESPACES), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)


def _build_root(settings: dict[str, Any]) -> None:
    """Make a root folder in memory with the system's and the interpreter's files, read-only, and its own /tmp."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    os.mkdir("/tmp/old")  # noqa: PTH102
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: its number is not known on {os.uname().machine}")
    _check(_libc.syscall(number, b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    os.mkdir("/tmp")  # noqa: PTH102
    # A file costs the kernel about a kilobyte besides its content.
    room = f"size={settings['disk_bytes']},nr_inodes={settings['disk_bytes'] // 4096}"
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,{room}")
    for path in settings["visible"]:  # after /tmp: an interpreter may be installed there
        _show(path)
    for device in ("null", "zero", "full", "random", "urandom"):
        _bind(f"/old/dev/{device}", f"/dev/{device}")
    os.symlink("/tmp", "/dev/shm")  # noqa: PTH211
    os.mkdir("/proc")  # noqa: PTH102
    try:  # noqa: SIM105
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | 8)
    except OSError:
        pass  # a container that hides parts of its own /proc does not allow one inside
    _check(_libc.umount2(b"/old", _MNT_DETACH), "umount")
    os.rmdir("/old")  # noqa: PTH106
    _make_read_only("/", recursive=False)


def _show(path: str) -> None:
    """Make a file or folder of the host visible at its own path, read-only; a link stays a link."""
    old = "/old" + path
    if os.path.islink(old):  # noqa: PTH114
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        os.symlink(os.readlink(old), path)  # noqa: PTH115, PTH211
    elif os.path.exists(old):  # noqa: PTH110
        _bind(old, path)
        _make_read_only(path, recursive=True)


def _bind(source: str, target: str) -> None:
    folder = target if os.path.isdir(source) else os.path.dirname(target)  # noqa: PTH112, PTH120
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    if folder != target:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(source, target, None, _MS_BIND | _MS_REC)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {target}")


def _make_read_only(path: str, *, recursive: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(32))
    _check(result, f"mount_setattr {path}")


def _own_user(settings: dict[str, Any]) -> int | None:
    """The program's unique user id, or None where it keeps ours: only root can change its user id."""
    return settings["user"] if settings["own_user"] and os.getuid() == 0 else None


def _drop_rights(settings: dict[str, Any]) -> None:
    """No new privileges, no capabilities, and as root another user id."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    user = _own_user(settings)
    if user is not None:
        if not settings["namespaces"]:
            os.chmod(settings["folder"], 0o777)  # noqa: PTH101
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _set_limits(settings: dict[str, Any]) -> None:
    processes = settings["processes"] + settings["processes_of_user"]
    limits = {
        resource.RLIMIT_CPU: (settings["cpu_seconds"], settings["cpu_seconds"] + 1),
        resource.RLIMIT_AS: (settings["memory_bytes"],) * 2,
        resource.RLIMIT_FSIZE: (settings["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (settings["open_files"],) * 2,
        resource.RLIMIT_NPROC: (processes,) * 2,
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (65536, 65536),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (1024, 1024),
    }
    for kind, (soft, hard) in limits.items():
        present = resource.getrlimit(kind)[1]  # a limit that is already lower cannot be raised
        top = hard if present == resource.RLIM_INFINITY else min(hard, present)
        resource.setrlimit(kind, (min(soft, top), top))


if __name__ == "__main__":
    confine(eval(sys.argv[1]))  # a Python literal
