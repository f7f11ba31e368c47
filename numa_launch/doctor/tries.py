"""What only trying shows: system calls of memory policy in a child, the backend, the wrapper; and the host's settings.

Example: under Docker's default profile ``policy_set(machine, wanted=True).status`` is ``"warning"``; its fix names
SYS_NICE.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from numa_launch.apply.backend import Backend
from numa_launch.apply.builtin import number_of, set_mempolicy, system_call
from numa_launch.apply.probe import Prober
from numa_launch.apply.spawn import SHELL, WRAPPER, problem_of_shell, start_method_of, wrapper_problem
from numa_launch.apply.swap import Executable
from numa_launch.doctor.check import Check, not_checked
from numa_launch.idsets import format_ids
from numa_launch.machine.files import read_text
from numa_launch.machine.limits import current_affinity
from numa_launch.machine.model import Machine

CAP_SYS_NICE = 23
"""Its bit, from the kernel's uapi/linux/capability.h."""

GIVE_SYS_NICE = (
    "give it the capability SYS_NICE (Docker: --cap-add SYS_NICE; Kubernetes: securityContext.capabilities.add "
    "[SYS_NICE]; Slurm: in the settings of its container runtime), or pass --memory none"
)
ALLOW_IN_PROFILE = (
    "allow set_mempolicy, get_mempolicy and mbind in that profile (Docker: --security-opt seccomp=FILE; Kubernetes: "
    "securityContext.seccompProfile; Slurm: in the settings of its container runtime), or pass --memory none"
)
WIDEN_CPUSET = (
    "allow it that memory (Docker: --cpuset-mems; Kubernetes: the kubelet's Memory Manager; Slurm: --exclusive), or "
    "pass --memory none"
)
NUMBER_UNKNOWN = "not checked, as the system call's number is not known on this machine"
OTHER_KERNEL = "nothing to do on this kernel; pass --memory none to leave memory alone without trying"


class Confinement(NamedTuple):
    """What decides on a process's system calls, as /proc/self/status shows it; None: the file does not say."""

    filtered: bool | None
    has_sys_nice: bool | None


def confinement(status: str | None) -> Confinement:
    """Return the confinement that a status file tells of (proc_pid_status(5))."""
    mode = re.search(r"^Seccomp:\s*(\d)", status or "", re.MULTILINE)
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status or "", re.MULTILINE)
    return Confinement(
        filtered=mode[1] != "0" if mode else None,
        has_sys_nice=bool(int(capabilities[1], 16) >> CAP_SYS_NICE & 1) if capabilities else None,
    )


def error_in_child(call: Callable[[], None]) -> int:
    """Return the errno with which a call fails in a child of its own, 0 where it does not fail.

    A filter that kills the caller instead counts as EPERM.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return error.errno or errno.EAGAIN
    if not pid:
        try:
            call()
            os.write(writer, b"0")
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as said:
        code = said.read()
    with contextlib.suppress(ChildProcessError):  # somebody else reaps this process's children
        os.waitpid(pid, 0)
    return int(code) if code else errno.EPERM


def get_mempolicy() -> None:
    """Read the calling thread's memory policy; raises OSError where the kernel refuses."""
    system_call("get_mempolicy", None, None, 0, None, 0)


def why_refused(error: int, confined: Confinement) -> tuple[str, str]:
    """Return in words what refuses a memory policy with this errno, and what to do."""
    if error == errno.ENOSYS:
        return "this kernel or sandbox has no memory policies", OTHER_KERNEL
    if error == errno.EINVAL:
        return "the cpuset does not allow memory of that node", WIDEN_CPUSET
    if error != errno.EPERM:
        return os.strerror(error), OTHER_KERNEL
    if confined.filtered and confined.has_sys_nice:
        return "a seccomp filter forbids it, though the capability SYS_NICE is there", ALLOW_IN_PROFILE
    if confined.filtered:
        return "a seccomp filter forbids it to processes without the capability SYS_NICE", GIVE_SYS_NICE
    fix = "allow it there, or pass --memory none" if confined.has_sys_nice else GIVE_SYS_NICE
    return "a sandbox or security module forbids it", fix


def policy_set(machine: Machine, wanted: bool) -> Check:
    """Try to set a memory policy on a node that this process may use; `wanted`: it is not to be left alone."""
    nodes = memory_nodes(machine)
    if number_of("set_mempolicy") is None:
        return not_checked("policy-set", NUMBER_UNKNOWN)
    if not nodes:
        return Check("policy-set", "note", "no node's memory may be named here, so there is nothing to set")
    error = error_in_child(lambda: set_mempolicy("preferred", nodes[:1]))
    if not error:
        return Check("policy-set", "ok", "setting a memory policy is allowed")
    why, fix = why_refused(error, confinement(read_text("/proc/self/status")))
    message = f"setting a memory policy is refused ({os.strerror(error)}): {why}"
    return Check("policy-set", "warning" if wanted else "note", message, fix)


def policy_read() -> Check:
    """Try to read the memory policy by system call; nothing of ours depends on it, as numa_maps shows it too."""
    if number_of("get_mempolicy") is None:
        return not_checked("policy-read", NUMBER_UNKNOWN)
    error = error_in_child(get_mempolicy)
    if not error:
        return Check("policy-read", "ok", "reading the memory policy is allowed")
    why, _ = why_refused(error, confinement(read_text("/proc/self/status")))
    return Check("policy-read", "note", f"get_mempolicy is refused, so numa_maps is read instead: {why}")


def preferred_many(prober: Prober, machine: Machine, backend: Backend | None, may_set: Check, wanted: bool) -> Check:
    """Try what an EngineCore over several nodes is bound with in mode auto; `wanted`: the plan has one."""
    nodes = memory_nodes(machine)
    if backend is None:
        return not_checked("preferred-many", "not checked, as there is no backend")
    if may_set.status not in ("ok", "not checked"):
        return not_checked("preferred-many", "not checked, as no memory policy can be set (policy-set)")
    problem = backend_problem(prober, backend, f"--preferred-many={format_ids(nodes)}")
    if problem is None:
        return Check("preferred-many", "ok", f"{backend.name} can prefer several nodes on this kernel")
    kernel_can = not error_in_child(lambda: set_mempolicy("preferred-many", nodes))
    newer = "take Linux 5.15 or newer with numactl 2.0.15 or newer, or pass --memory interleave or none"
    return Check(
        "preferred-many",
        "warning" if wanted else "note",
        f"{backend.name} cannot prefer several nodes here ({problem}), so EngineCores over several leave memory alone",
        "pass --backend builtin, as the kernel itself can" if kernel_can else newer,
    )


def backend_problem(prober: Prober, backend: Backend, *args: str) -> str | None:
    """Return what keeps the backend from running with these arguments, None where it runs; each is tried once."""
    return prober.outcome(backend.probe(args), current_affinity()).problem


def memory_nodes(machine: Machine) -> list[int]:
    return [node.id for node in machine.nodes if machine.has_memory(node.id) and machine.may_use_memory_of(node.id)]


def ld_preload(prober: Prober, backend: Backend | None) -> Check:
    """Try whether what LD_PRELOAD loads into every process spares the shell and the backend."""
    preload = os.environ.get("LD_PRELOAD")
    if not preload:
        return Check("ld-preload", "ok", "LD_PRELOAD is not set")
    problems = {SHELL: problem_of_shell()}
    if backend:
        problems[backend.program] = backend_problem(prober, backend)
    for program, problem in problems.items():
        if problem:
            message = f"LD_PRELOAD={preload} reaches {os.path.basename(program)} too and ends it ({problem})"
            return Check("ld-preload", "fail", message, "set it inside the worker instead")
    return Check("ld-preload", "note", f"LD_PRELOAD={preload} reaches sh and the backend too; they were tried and work")


def start_method() -> Check:
    """Look at multiprocessing's default without fixing it."""
    import multiprocessing

    method = start_method_of(multiprocessing)
    if method == "spawn":
        return Check("start-method", "ok", "multiprocessing starts workers by spawn")
    message = f"multiprocessing's default here is {method}, whose workers cannot be bound from outside"
    fix = 'use multiprocessing.get_context("spawn"), or call numa_launch.bind_current_process in the worker'
    return Check("start-method", "note", message, fix)


def wrapper(python: Executable) -> Check:
    """Try the script that stands in for Python when a worker is spawned."""
    problem = wrapper_problem(python)
    if problem is None:
        return Check("wrapper", "ok", f"{WRAPPER} can be executed")
    return Check("wrapper", "fail", problem.what, problem.fix, problem.code)


def numa_balancing() -> Check:
    message = "automatic NUMA balancing is on: it unmaps pages to see who uses them, needlessly for bound workers"
    fix = "measure with sysctl kernel.numa_balancing=0"
    return setting("numa-balancing", "kernel/numa_balancing", message, fix)


def zone_reclaim() -> Check:
    message = "zone_reclaim_mode is set: a node that is full drops its file cache before it takes memory elsewhere"
    fix = "sysctl vm.zone_reclaim_mode=0, unless that is wanted"
    return setting("zone-reclaim", "vm/zone_reclaim_mode", message, fix)


def setting(name: str, file: str, message: str, fix: str) -> Check:
    """Return a note where a setting of the kernel is other than 0."""
    path = f"/proc/sys/{file}"
    value = read_text(path)
    if value is None and not os.path.lexists(path):
        return Check(name, "ok", "this kernel has no such setting")
    if value is None:
        return Check(name, "note", f"{path} cannot be read")
    return Check(name, "ok", f"{path} is 0") if value.strip() == "0" else Check(name, "note", message, fix)
