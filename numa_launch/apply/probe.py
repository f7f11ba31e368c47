"""Try numactl's arguments before a worker's life depends on them, and fall back to what works.

Example: in a default Docker container ``Prober().arguments(binding)`` gives ``["--physcpubind=8-15"]`` and one warning
that memory policies are forbidden there. Each argument list is tried once in a process and remembered.
"""

import logging
import os
import signal
from typing import NamedTuple

from numa_launch.apply.numactl import candidates, memory_args, numactl_args
from numa_launch.errors import StrictError
from numa_launch.log import say_once
from numa_launch.machine.limits import current_affinity
from numa_launch.machine.model import Note
from numa_launch.plan.model import Binding
from numa_launch.plan.reasons import note, warning

TIME_LIMIT_S = 10


class Found(NamedTuple):
    """The arguments that work; `args` is empty where none do. `dropped` says what was given up, and why."""

    args: tuple[str, ...]
    dropped: Note | None = None


class Prober:
    """Runs ``numactl <arguments> true`` and remembers what it said."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, tuple[str, ...], frozenset[int] | None], str | None] = {}
        self._auto_failure: Found | None = None

    def arguments(self, numactl: str, binding: Binding, *, auto: bool, strict: bool) -> Found:
        """Return the first arguments for the binding that numactl accepts, with one warning for what was dropped.

        In mode auto a binding that fails altogether leaves those after it unbound too. Raises StrictError where
        `strict` and anything would have to be dropped.
        """
        if auto and self._auto_failure:
            return self._auto_failure
        affinity = current_affinity()
        first_problem = None
        found = Found(())
        for args in (with_all(args, binding, affinity) for args in candidates(binding)):
            problem = self.problem(numactl, args, affinity)
            if problem is None:
                found = Found(tuple(args))
                break
            first_problem = first_problem or problem
        if first_problem is None:
            return found
        if strict:
            raise StrictError(f"cannot bind as planned: {complaint(binding, first_problem)}")
        why = complaint(binding, first_problem)
        if auto and not found.args:
            dropped = note("probe-failed", why=why)
            self._auto_failure = Found((), dropped)
        else:
            dropped = warning("binding-dropped", what=what_was_dropped(binding, found), why=why)
        say_once(logging.WARNING, dropped.message)
        return Found(found.args, dropped)

    def preload_problem(self, preload: str) -> str | None:
        """Return why ``sh``, which runs the wrapper, does not survive the LD_PRELOAD in force; None where it does."""
        key = (preload, (), None)
        if key not in self._problems:
            self._problems[key] = try_arguments(["/bin/sh", "-c", ":"])
        return self._problems[key]

    def problem(self, numactl: str, args: list[str], affinity: frozenset[int] | None) -> str | None:
        """Return numactl's first own line where it refuses the arguments, None where it takes them."""
        key = (numactl, tuple(args), affinity)
        if key not in self._problems:
            self._problems[key] = try_arguments([numactl, *args, "true"])
        return self._problems[key]


def with_all(args: list[str], binding: Binding, affinity: frozenset[int] | None) -> list[str]:
    """Return the arguments with ``--all`` where a launcher of ours holds this process elsewhere than it may go."""
    outside = affinity is not None and not binding.cpus <= affinity
    return ["--all", *args] if outside and any(arg.startswith("--physcpubind") for arg in args) else args


def try_arguments(command: list[str]) -> str | None:
    """Run the command, at most TIME_LIMIT_S; return None where it ends well, else one line that says why not."""
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as output:
        try:
            # Its own group, so that what a hanging numactl started ends with it; a file: nobody waits for a pipe.
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            return f"{error.strerror or error}"
        try:
            status = child.wait(TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"no answer in {TIME_LIMIT_S} s"
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if status == 0:
            return None
        output.seek(0)
        return first_own_line(output.read(65536).decode("utf-8", "replace")) or f"exit status {status}"


def first_own_line(output: str) -> str | None:
    """Return the first line that is numactl's message: no usage page, no ``<9> is invalid``."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("usage:", "Usage:", "<"))]
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200]) if lines else None


def what_was_dropped(binding: Binding, found: Found) -> str:
    if not found.args:
        return "the process stays unbound"
    kept = f"only {' '.join(found.args)} is kept"
    return f"memory is not bound, {kept}" if memory_args(binding) else kept


def complaint(binding: Binding, problem: str) -> str:
    """Return what was tried, numactl's own words and what would fix it."""
    return f"numactl {' '.join(numactl_args(binding))}: {problem}; {remedy(problem)}"


def remedy(problem: str) -> str:
    """Return what would fix it, by numactl's own words (FACTS.md section 3)."""
    problem = problem.lower()
    if "not permitted" in problem or "does not support numa" in problem or "without kernel support" in problem:
        return (
            "if this is a container, give it the capability SYS_NICE (docker run --cap-add SYS_NICE; Kubernetes: "
            "securityContext.capabilities.add), or pass --memory none"
        )
    if "out of range" in problem or "invalid" in problem:
        return "those nodes or CPUs are not this process's to use: compare `numa-launch topo` with its cpuset"
    if os.environ.get("LD_PRELOAD"):
        return "LD_PRELOAD is set and reaches numactl too: unset it, or set it inside the worker"
    return "run that with `true` behind it to see more, or pass --no-bind"
