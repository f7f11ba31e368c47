"""What this process found out about its host, kept on the config.

Example: ``detect(config, variables).machine`` is read once; later calls, and the child that gets the pickled config,
reuse it.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from numa_launch.config import KEPT, LaunchConfig
from numa_launch.machine.files import read_text
from numa_launch.machine.handover import VARIABLE
from numa_launch.machine.limits import current_affinity, read_limits, read_policy
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.vendors import VARIABLES, visible_gpus

NAMES = (*VARIABLES, VARIABLE)
"""Every variable that a detection depends on."""


class Origin(NamedTuple):
    """A process of a boot of a kernel, for good: PIDs come again, on other hosts too."""

    pid: int
    started_at: str
    boot: str


class Detected(NamedTuple):
    """A machine as process `origin` found it, with that affinity and policy and under these variables.

    An `inherited` one has the nodes and visible GPUs of an ancestor's.
    """

    origin: Origin
    affinity: frozenset[int] | None
    policy: str | None
    variables: Mapping[str, str]
    machine: Machine
    inherited: bool = False


_latest: Detected | None = None
_foreign: dict[int, tuple[Any, Detected]] = {}
"""id → (config of somebody else's, what was found for it); it holds the config, so that the id stays its own."""


MOST_FOREIGN = 64
"""Some make a new object each time they are asked for their parallel_config."""

_own: Origin | None = None


def own_origin() -> Origin:
    """Return this process's identity, read once in a process."""
    global _own
    if _own is None or _own.pid != os.getpid():
        _own = origin_of(os.getpid())
    return _own


def variables_now() -> dict[str, str]:
    """Return those of NAMES that are set."""
    return {name: value for name in NAMES if (value := os.environ.get(name)) is not None}


def detect(config: Any, variables: Mapping[str, str]) -> Detected:
    """Return what is known of the machine, read anew only where this process has changed since it last read it.

    A descendant of the process that read it reuses nodes and visible GPUs, also where it sees fewer GPUs itself; what
    it may use is its own.
    """
    global _latest
    affinity, policy, origin = current_affinity(), read_policy(""), own_origin()
    holder = holder_of(config)
    kept = kept_on(holder)
    inherited = bool(kept and (kept.inherited if kept.origin == origin else is_ancestor(kept.origin)))
    for known in (kept,) if inherited else (kept, _latest):
        if known and (origin, affinity, policy, variables) == known[:4]:
            return keep(holder, known)
    if kept and inherited:
        machine = replace(kept.machine, limits=read_limits("", kept.machine.online, variables))
        return keep(holder, Detected(origin, affinity, policy, variables, machine, inherited))
    _latest = Detected(origin, affinity, policy, variables, read_machine(environ=variables))
    return keep(holder, _latest)


def with_own_gpus(machine: Machine, variables: Mapping[str, str]) -> Machine:
    """Return the machine with the GPUs that these variables leave visible."""
    visible = visible_gpus(machine.gpus, variables)
    return replace(machine, visible=visible.positions, visible_by=visible.by)


def holder_of(config: Any) -> Any:
    return config if isinstance(config, LaunchConfig) else getattr(config, "parallel_config", None)


def kept_on(holder: Any) -> Detected | None:
    """Return what was found for this config: here, or by the parent that pickled it."""
    if id(holder) in _foreign:
        return _foreign[id(holder)][1]
    return getattr(holder, KEPT, None)


def keep(holder: Any, detected: Detected) -> Detected:
    """Keep it where it shows to nobody: in LaunchConfig's own place, for others' configs in this process."""
    if isinstance(holder, LaunchConfig):
        setattr(holder, KEPT, detected)
    elif holder is not None:
        if id(holder) not in _foreign:  # what a parent let it carry here; while a block of ours is open it stays
            getattr(holder, "__dict__", {}).pop(KEPT, None)
        _foreign[id(holder)] = (holder, detected)
        if len(_foreign) > MOST_FOREIGN:
            del _foreign[next(iter(_foreign))]
    return detected


@contextmanager
def carried(config: Any, detected: Detected | None) -> Iterator[None]:
    """Let others' configs carry it while the block lasts, in which multiprocessing pickles them."""
    holder = holder_of(config)
    place = getattr(holder, "__dict__", None)
    if detected is None or isinstance(holder, LaunchConfig) or not isinstance(place, dict) or KEPT in place:
        yield
        return
    place[KEPT] = detected
    try:
        yield
    finally:
        place.pop(KEPT, None)


def origin_of(pid: int) -> Origin:
    """Return the process's identity; where /proc does not say, it is nobody's ancestor."""
    return Origin(pid, stat_field(pid, 22), (read_text("/proc/sys/kernel/random/boot_id") or "").strip())


def stat_field(pid: int, number: int) -> str:
    """Return a field of /proc/<pid>/stat, counted as proc(5) does; the second, the name, may hold anything."""
    _, _, rest = (read_text(f"/proc/{pid}/stat") or "").rpartition(") ")
    fields = rest.split()
    return fields[number - 3] if len(fields) > number - 3 else ""


def is_ancestor(origin: Origin) -> bool:
    pid = os.getpid()
    while (parent := stat_field(pid, 4)).isdigit() and parent != "0":
        pid = int(parent)
        if pid == origin.pid:
            return bool(origin.started_at) and origin_of(pid) == origin
    return False
