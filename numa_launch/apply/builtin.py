"""The built-in backend: set CPUs and memory policy by system call as numactl does, then become the command.

Example: ``python -I -S builtin.py --physcpubind=8-15 --preferred=1 -- python worker.py``.
The wrapper runs it once a worker where numactl is not there, so it imports nothing but os, sys and ctypes. Arguments
and refusals mean what numactl(8) means by them, but it never leaves the affinity that it finds, not even by
``--cpunodebind``, unless ``--all`` says so. Lists of ids are parsed here once more, as nothing of the package can be
imported. set_mempolicy(2), sched_setaffinity(2).
"""

import os
import sys

try:
    import ctypes
except ImportError:  # a Python built without it still binds CPUs
    ctypes = None  # type: ignore[assignment]

NUMBERS = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236},
}
"""Machine → numbers of the system calls."""

OTHER_NAMES = {"i686": "x86_64", "i586": "x86_64", "i386": "x86_64", "armv8l": "aarch64"}
"""What uname(2) says under the personality of 32 bits (setarch), where the calls of a 64-bit process are the same."""

MODES = {"preferred": 1, "membind": 2, "interleave": 3, "preferred-many": 5}
"""Policy → mode of set_mempolicy(2), from the kernel's uapi/linux/mempolicy.h."""

CPU_OPTIONS = ("physcpubind", "cpunodebind")

SYSTEM = "/sys/devices/system"
SIGNALS_IGNORED_BY_PYTHON = (13, 25)
"""SIGPIPE and SIGXFSZ, which no command should inherit so."""


class RefusedError(Exception):
    """The arguments cannot be put in force, or the command not started: one line, and the exit status."""

    def __init__(self, problem: str, status: int = 1) -> None:
        super().__init__(problem)
        self.status = status


def number_of(call: str) -> "int | None":
    """Return the number of a system call, None where it is not known."""
    machine = OTHER_NAMES.get(os.uname().machine, os.uname().machine)
    return NUMBERS.get(machine, {}).get(call) if sys.maxsize > 2**32 else None


def system_call(call: str, *arguments: object) -> None:
    """Make a system call; raises OSError where the kernel refuses, or the call cannot be made from here (ENOSYS)."""
    if ctypes is None:
        raise OSError(38, "this Python has no ctypes")
    number = number_of(call)
    if number is None:
        raise OSError(38, f"the system call's number is not known on {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    if libc.syscall(ctypes.c_long(number), *words):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def set_mempolicy(policy: str, nodes: "tuple[int, ...] | list[int]") -> None:
    """Set the calling thread's memory policy, a key of MODES; raises OSError where the kernel does not take it."""
    words = max(nodes) // 64 + 1
    bits = sum(1 << node for node in nodes)
    # The kernel reads one bit less than maxnode says, and little-endian words are bytes in order.
    system_call("set_mempolicy", MODES[policy], bits.to_bytes(8 * words, "little"), words * 64 + 1)


def reset_mempolicy() -> None:
    """Give the calling thread the kernel's default memory policy; raises OSError where the kernel does not take it."""
    system_call("set_mempolicy", 0, None, 0)


def main(arguments: "list[str]") -> None:
    """Put the arguments in force and become the command; raises RefusedError where that cannot be."""
    options, command = split(arguments)
    if not command or not command[0]:
        raise RefusedError("a command is needed behind the arguments")
    every = "all" in options
    for option, text in options.items():
        if option in CPU_OPTIONS:
            cpus = cpus_named(text, every) if option == "physcpubind" else cpus_of_nodes(text, every)
            try:
                os.sched_setaffinity(0, cpus)
            except OSError as error:
                raise RefusedError(f"sched_setaffinity: {error.strerror}") from None
        elif option in MODES:
            nodes = ids_in_range(text, "node", usable_nodes())
            if option == "preferred" and len(nodes) > 1:
                raise RefusedError(f"--preferred={text} is invalid: it takes exactly one node")
            try:
                set_mempolicy(option, nodes)
            except OSError as error:
                raise RefusedError(f"setting {option}: {error.strerror}") from None
    become(command)


def split(arguments: "list[str]") -> "tuple[dict[str, str], list[str]]":
    """Return the options, in their order, and the command: what follows ``--`` or the last option."""
    options: dict[str, str] = {}
    for at, argument in enumerate(arguments):
        if argument == "--":
            return options, arguments[at + 1 :]
        if not argument.startswith("-"):
            return options, arguments[at:]
        name, _, text = argument[2:].partition("=")
        known = name in MODES or name in CPU_OPTIONS
        if argument != "--all" and not (argument.startswith("--") and known):
            raise RefusedError(f"unrecognized option {argument}")
        options[name] = text
    return options, []


def cpus_named(text: str, every: bool) -> "list[int]":
    allowed = ids_in(f"{SYSTEM}/cpu/possible") if every else own_ids("Cpus_allowed_list")
    return ids_in_range(text, "cpu", os.sched_getaffinity(0) if allowed is None else allowed)


def cpus_of_nodes(text: str, every: bool) -> "set[int]":
    """Return the online CPUs of the nodes; refuses those outside the affinity, which numactl would leave."""
    online = ids_in(f"{SYSTEM}/cpu/online")
    cpus: set[int] = set()
    for node in ids_in_range(text, "node", usable_nodes()):
        cpus |= ids_in(f"{SYSTEM}/node/node{node}/cpulist") or set()
    cpus = cpus if online is None else cpus & online
    outside = sorted(cpus - os.sched_getaffinity(0))
    if outside and not every:
        raise RefusedError(f"node argument {text} is out of range: cpu {outside[0]} is outside this process's affinity")
    return cpus


def usable_nodes() -> "set[int]":
    """Return the nodes with memory that this process may take it from."""
    nodes = ids_in(f"{SYSTEM}/node/has_memory") or set()
    allowed = own_ids("Mems_allowed_list")
    return nodes if allowed is None else nodes & allowed


def ids_in_range(text: str, what: str, allowed: "set[int]") -> "list[int]":
    """Return the ids of a list, each of which is allowed."""
    ids: list[int] = []
    for first, last in ranges(text):
        for i in range(first, last + 1):
            if i not in allowed:
                raise RefusedError(f"{what} argument {i} is out of range (of {text[:200]})")
            ids.append(i)
    return ids


def ranges(text: str) -> "list[tuple[int, int]]":
    """Return the ranges of a list such as ``0-3,8``."""
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        digits = first + last
        if not (first and last and digits.isascii() and digits.isdigit()) or len(digits) > 20 or int(first) > int(last):
            raise RefusedError(f"<{text[:200]}> is invalid: it is no list of ids such as 0-3,8")
        found.append((int(first), int(last)))
    return found


def ids_of(text: str) -> "set[int]":
    """Return the ids of a list that the kernel wrote, which may be empty."""
    return {i for first, last in ranges(text) for i in range(first, last + 1)} if text else set()


def ids_in(path: str) -> "set[int] | None":
    """Return the ids of a kernel's list file, None where it cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
    except (OSError, ValueError):
        return None
    return ids_of(text)


def own_ids(name: str) -> "set[int] | None":
    """Return a list of this process's status, offline CPUs included; None where it has none."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            text = next((line.partition(":")[2].strip() for line in status if line.startswith(f"{name}:")), "")
    except OSError:
        return None
    return ids_of(text) if text else None


def become(command: "list[str]") -> None:
    """Become the command with the environment and signals that this process was started with."""
    for number in SIGNALS_IGNORED_BY_PYTHON if ctypes else ():
        ctypes.CDLL(None).signal(number, None)
    restore_locale()
    name = command[0]
    problem = RefusedError(f"{name}: command not found", 127)
    directories = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(":")
    for path in (os.path.join(directory, name) for directory in directories):
        error = attempt(path, command)
        if error.errno == 8:  # ENOEXEC: a script without #!, which execvp(3) gives to the shell
            error = attempt("/bin/sh", ["/bin/sh", path, *command[1:]])
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            problem = RefusedError(f"{name}: {error.strerror}", 126)
    raise problem


def attempt(path: str, command: "list[str]") -> OSError:
    """Execute the file; it only returns where that fails, with the error."""
    try:
        os.execv(path, command)
    except OSError as error:
        return error


def restore_locale() -> None:
    """Put LC_CTYPE back as it was, which Python sets in the C locale."""
    if "LC_CTYPE" not in os.environ:
        return
    try:
        with open("/proc/self/environ", "rb") as started_with:
            given = [value[9:] for value in started_with.read().split(b"\0") if value.startswith(b"LC_CTYPE=")]
    except OSError:
        return
    if given:
        os.environb[b"LC_CTYPE"] = given[0]
    else:
        del os.environ["LC_CTYPE"]


def heed_interrupts() -> None:
    """Let an interrupt end this process without a traceback, as it ends any other program."""
    if ctypes is None:
        return
    signal = ctypes.CDLL(None).signal
    signal.restype = ctypes.c_void_p
    if signal(2, None) == 1:  # it was ignored, and stays so
        signal(2, ctypes.c_void_p(1))


if __name__ == "__main__":
    heed_interrupts()
    try:
        main(sys.argv[1:])
    except RefusedError as refused:
        sys.stderr.write(f"numa-launch: {refused}\n")
        sys.exit(refused.status)
