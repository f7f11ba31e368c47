"""Refuse the memory-policy system calls as Docker's default profile does without CAP_SYS_NICE; needs no root.

Example: ``python tests/vm/seccomp.py numactl --membind=0 true`` ends with 1 and "Operation not permitted".
Source: seccomp(2); linux/filter.h for the instructions.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": (237, 238, 239), "aarch64": (235, 236, 237)}
"""mbind, set_mempolicy and get_mempolicy."""

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NO_NEW_PRIVS, SECCOMP, MODE_FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_memory_policy() -> None:
    """Install the filter on the calling thread; what it starts inherits it. Raises OSError where the kernel refuses."""
    numbers = NUMBERS[platform.machine()]
    code = [(LOAD, 0, 0, 0)]
    code += [(JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    code += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    program = Program(len(code), ctypes.cast(ctypes.create_string_buffer(packed, len(packed)), ctypes.c_char_p))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((NO_NEW_PRIVS, 1, 0, 0, 0), (SECCOMP, MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    refuse_memory_policy()
    os.execvp(sys.argv[1], sys.argv[1:])
