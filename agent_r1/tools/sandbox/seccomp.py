"""The seccomp filter: the system calls that a sandboxed program may not make.

    >>> len(assemble("x86_64")) % 8
    0

The filter is a deny list, so Python, its extension modules and their threads keep working. It denies what bypasses the
limits of a sandbox (memory that belongs to no process, new namespaces and mounts), address families that a network
namespace does not cover, and parts of the kernel that ordinary programs do not need. Calls newer than this list fail
with ENOSYS, as if they did not exist.

The filter is assembled here, outside the sandbox; `child.py` only installs the bytes.
"""

from __future__ import annotations

import errno
import functools
import struct

# Instructions of the classic Berkeley packet filter.
_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
# Offsets in `struct seccomp_data`. Both machines are little-endian: the low half of an argument comes first.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LAST_KNOWN_CALL = 469
"""`file_setattr`, Linux 6.17. Calls of the x32 ABI have higher numbers and are refused with the unknown ones."""

_NEW_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their FORCE: a full socket holds megabytes where the system allows large buffers."""

# Numbers on x86_64 and on aarch64; None where the machine does not have the call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Memory that counts for no process, or that outlives all of them.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),  # a page in a pipe stays when it is unmapped, and may be a part of a huge one
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Namespaces and mounts. `clone` is looked at below.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # Parts of the kernel with a long record of holes, or for administrators only.
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_CLONE, _SOCKET, _SOCKETPAIR, _SETSOCKOPT = (56, 220), (41, 198), (53, 199), (54, 208)
_CLONE3 = 435


def is_known_machine(machine: str) -> bool:
    """Whether there is a filter for this machine, as `os.uname().machine` names it."""
    return machine in _ARCHITECTURES


@functools.cache
def assemble(machine: str) -> bytes:
    """The filter for a machine: an array of `struct sock_filter`."""
    column = list(_ARCHITECTURES).index(machine)
    program = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, _ARCHITECTURES[machine], if_true=1),
        _refuse(errno.ENOSYS),  # 32-bit calls, which have other numbers
        _instruction(_LOAD_WORD, _NUMBER),
        _instruction(_JUMP_GREATER, _LAST_KNOWN_CALL, if_false=1),
        _refuse(errno.ENOSYS),
        # Its flags are in memory, where a filter cannot look. The C library then calls `clone`.
        _instruction(_JUMP_EQUAL, _CLONE3, if_false=1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += [_instruction(_JUMP_EQUAL, number, if_false=1), _refuse(errno.EPERM)]
    program += [
        _instruction(_JUMP_EQUAL, _CLONE[column], if_false=4),
        _instruction(_LOAD_WORD, _FIRST_ARGUMENT),
        _instruction(_JUMP_ANY_BIT, _NEW_NAMESPACE_FLAGS, if_false=1),
        _refuse(errno.EPERM),
        _allow(),
        *_families(_SOCKET[column], (_AF_UNIX, _AF_INET, _AF_INET6)),
        *_families(_SOCKETPAIR[column], (_AF_UNIX,)),
        *_buffer_sizes(_SETSOCKOPT[column]),
        _allow(),
    ]
    return b"".join(program)


def _families(number: int, allowed: tuple[int, ...]) -> list[bytes]:
    """For the call `number`: only these address families; the next instruction for any other call."""
    checks = [
        instruction for family in allowed for instruction in (_instruction(_JUMP_EQUAL, family, if_false=1), _allow())
    ]
    body = [_instruction(_LOAD_WORD, _FIRST_ARGUMENT), *checks, _refuse(errno.EAFNOSUPPORT)]
    return [_instruction(_JUMP_EQUAL, number, if_false=len(body)), *body]


def _buffer_sizes(number: int) -> list[bytes]:
    """For the call `number`: no larger buffers; the next instruction for any other call."""
    checks = [
        instruction
        for option in _BUFFER_SIZES
        for instruction in (_instruction(_JUMP_EQUAL, option, if_false=1), _refuse(errno.EPERM))
    ]
    body = [
        _instruction(_LOAD_WORD, _SECOND_ARGUMENT),
        _instruction(_JUMP_EQUAL, _SOL_SOCKET, if_true=1),
        _allow(),
        _instruction(_LOAD_WORD, _THIRD_ARGUMENT),
        *checks,
        _allow(),
    ]
    return [_instruction(_JUMP_EQUAL, number, if_false=len(body)), *body]


def _instruction(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _allow() -> bytes:
    return _instruction(_RETURN, _ALLOW)
