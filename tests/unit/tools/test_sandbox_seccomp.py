"""The filter of system calls, run by a small interpreter: also for machines that we do not have."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1.tools.sandbox import seccomp
from agent_r1.tools.sandbox.seccomp import assemble, is_known_machine

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW = 0x7FFF0000


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> str:
    """What the filter says to a call: "allowed", or the name of the error."""
    chosen = MACHINES[machine] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, chosen, 0, *(arguments + (0,) * 6)[:6])
    program = list(struct.iter_unpack("<HBBI", assemble(machine)))
    place, value = 0, 0
    while True:
        code, if_true, if_false, operand = program[place]
        if code == 0x06:
            return "allowed" if operand == ALLOW else errno.errorcode[operand & 0xFFFF]
        if code == 0x20:
            [value] = struct.unpack_from("<I", data, operand)
            taken = 0
        else:
            holds = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[code]
            taken = if_true if holds else if_false
        place += 1 + taken


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_are_allowed(machine: str) -> None:
    ordinary = {"x86_64": (0, 1, 9, 59, 202, 257, 318), "aarch64": (63, 64, 222, 221, 98, 56, 278)}
    for number in ordinary[machine]:  # read, write, mmap, execve, futex, openat, getrandom
        assert verdict(machine, number) == "allowed"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_is_refused(machine: str) -> None:
    column = list(MACHINES).index(machine)
    for name, numbers in seccomp._REFUSED.items():
        number = numbers[column]
        if number is not None:
            assert verdict(machine, number) == "EPERM", name


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_clone_is_allowed_without_new_namespaces(machine: str, clone: int) -> None:
    thread = 0x003D0F00
    assert verdict(machine, clone, thread) == "allowed"
    assert verdict(machine, clone, 17) == "allowed"
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, 17 | flag) == "EPERM"
    assert verdict(machine, 435, 0) == "ENOSYS"


@pytest.mark.parametrize(("machine", "one", "pair"), [("x86_64", 41, 53), ("aarch64", 198, 199)])
def test_sockets_are_unix_and_internet(machine: str, one: int, pair: int) -> None:
    allowed = [family for family in range(64) if verdict(machine, one, family) == "allowed"]
    assert allowed == [1, 2, 10]
    assert [family for family in range(64) if verdict(machine, pair, family) == "allowed"] == [1]
    assert verdict(machine, one, 40) == "EAFNOSUPPORT"  # vsock


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 54), ("aarch64", 208)])
def test_buffers_of_sockets_cannot_grow(machine: str, number: int) -> None:
    for option in (7, 8, 32, 33):
        assert verdict(machine, number, 3, 1, option) == "EPERM"
        assert verdict(machine, number, 3, 6, option) == "allowed"  # an option of TCP
    assert verdict(machine, number, 3, 1, 2) == "allowed"  # SO_REUSEADDR


@given(st.sampled_from(sorted(MACHINES)), st.integers(470, 2**32 - 1))
def test_newer_calls_and_those_of_x32_do_not_exist(machine: str, number: int) -> None:
    assert verdict(machine, number) == "ENOSYS"


@given(st.sampled_from(sorted(MACHINES)), st.integers(0, 2**32 - 1), st.sampled_from([0x40000003, 0x40000028, 0]))
def test_calls_of_another_architecture_do_not_exist(machine: str, number: int, architecture: int) -> None:
    assert verdict(machine, number, architecture=architecture) == "ENOSYS"


def test_other_machines_have_no_filter() -> None:
    assert is_known_machine("x86_64")
    assert not is_known_machine("riscv64")


@pytest.mark.parametrize(
    ("column", "header"),
    [(0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), (1, "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_system_headers(column: int, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"this machine has no {header}")
    lines = Path(header).read_text()
    known = {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+)\s+(\d+)$", lines, re.MULTILINE)}
    named = {
        **seccomp._REFUSED,
        "clone": seccomp._CLONE,
        "socket": seccomp._SOCKET,
        "socketpair": seccomp._SOCKETPAIR,
        "setsockopt": seccomp._SETSOCKOPT,
    }
    wrong = {
        name: numbers[column] for name, numbers in named.items() if known.get(name, numbers[column]) != numbers[column]
    }
    assert wrong == {}
