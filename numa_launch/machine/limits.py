"""What this process may use: affinity, cpuset (cgroup v1 and v2), memory nodes and memory policy.

Example: under ``taskset -c 0-3`` on 16 CPUs, ``read_limits("", online, os.environ).affinity`` is {0, 1, 2, 3}.
Sources: proc(5) for status and numa_maps, kernel Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst.
"""

import os
import re
from collections.abc import Mapping

from numa_launch.idsets import parse_ids, parse_mask
from numa_launch.machine.files import read_first_line, read_text, read_value
from numa_launch.machine.handover import VARIABLE, parse_handover
from numa_launch.machine.model import Limits
from numa_launch.machine.nodes import CPU

# "default" and what mpol_to_str() of the kernel's mm/mempolicy.c prints: "bind:0-1", "prefer (many):0", "bind=static:0"
_POLICY = re.compile(r"[0-9a-f]+ ((?:prefer \(many\)|weighted interleave|[a-z_]+)[^ ]*)(?: |$)")

CPUSET_FILES = ("cpuset.{}.effective", "cpuset.effective_{}", "cpuset.{}")
"""cgroup v2, then v1: what is in force, then what was written."""


def read_limits(root: str, online: frozenset[int], environ: Mapping[str, str]) -> Limits:
    """Return what the process may use; the live one (root ``""``) as it was before a launcher of ours bound it."""
    status = read_text(f"{root}/proc/self/status")
    affinity = read_affinity(root, status, online)
    policy = current_policy = read_policy(root)
    cpuset = read_cpuset(root, "cpus")
    mems = [ids for ids in (status_ids(status, "Mems_allowed"), read_cpuset(root, "mems")) if ids is not None]
    memory_nodes = frozenset.intersection(*mems) if mems else None
    handover = None if root else parse_handover(environ.get(VARIABLE))
    if handover and affinity == handover.cpus and policy == handover.policy:
        affinity, policy = handover.cpus_before, handover.policy_before
    isolated = read_value(f"{root}{CPU}/isolated", parse_ids) or frozenset()
    return Limits(affinity, cpuset, memory_nodes, policy, isolated, current_policy)


def current_affinity(pid: int = 0) -> frozenset[int] | None:
    """Return the allowed CPUs of the calling thread, which what it starts inherits, or of a process's main thread.

    None where they cannot be read.
    """
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:
        return None


def read_affinity(root: str, status: str | None, online: frozenset[int]) -> frozenset[int] | None:
    """Return the allowed CPUs, None where they cannot be read; a capture without them allows everything online."""
    if not root and (live := current_affinity()) is not None:
        return live
    if status is None:
        return None if not root or os.path.lexists(f"{root}/proc/self/status") else online
    if root and "Cpus_allowed" not in status:
        return online
    return status_ids(status, "Cpus_allowed")


def status_ids(status: str | None, name: str) -> frozenset[int] | None:
    """Return the ids of ``<name>_list``, else of the mask ``<name>``, in a process's status; None where it has none."""
    for suffix, parse in (("_list", parse_ids), ("", parse_mask)):
        found = re.search(rf"^{name}{suffix}:(.*)$", status or "", re.MULTILINE)
        if found:
            try:
                return parse(found[1])
            except ValueError:
                return None
    return None


def read_policy(root: str, pid: int | None = None) -> str | None:
    """Return the memory policy of ``proc/self/numa_maps``, or of a PID's; None where it is there and cannot be read.

    On this host (root ``""``) it is the calling thread's, as the policy is a thread's: ``self`` is the main thread.
    """
    own = "thread-self" if not root and os.path.lexists("/proc/thread-self/numa_maps") else "self"
    path = f"{root}/proc/{pid or own}/numa_maps"
    line = read_first_line(path)
    if line is None:
        return None if os.path.lexists(path) else "default"
    found = _POLICY.match(line)
    return found[1] if found else None


def read_cpuset(root: str, kind: str) -> frozenset[int] | None:
    """Return the cpuset's ``cpus`` or ``mems`` of the nearest cgroup that has them; None where none has.

    In a container the path may be the host's, and is not there: then it is the nearest parent, the mount's root.
    """
    for mount, path in cpuset_places(read_text(f"{root}/proc/self/cgroup") or ""):
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:  # above the root of a cgroup namespace: the nearest that is here is that root
            parts = []
        for depth in range(len(parts), -1, -1):
            directory = "/".join([f"{root}/sys/fs/cgroup{mount}", *parts[:depth]])
            for name in CPUSET_FILES:
                ids = read_value(f"{directory}/{name.format(kind)}", parse_ids)
                if ids:
                    return ids
    return None


def cpuset_places(cgroups: str) -> list[tuple[str, str]]:
    """Return (directory below sys/fs/cgroup, path in it) where the cpuset may be, the v1 controller first.

    Lines are ``5:cpuset,cpu:/pod`` (v1) and ``0::/pod`` (v2, mounted on ``unified`` in a hybrid setup).
    """
    v1, v2 = [], []
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "cpuset" in controllers.split(","):
            v1 += [("/cpuset", path)] + ([(f"/{controllers}", path)] if controllers != "cpuset" else [])
        elif number == "0" and not controllers:
            v2 += [("", path), ("/unified", path)]
    return v1 + v2
