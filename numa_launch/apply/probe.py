"""Try a backend's arguments before a worker's life depends on them, and fall back to what works.

Example: in a default Docker container ``Prober().arguments(...)`` gives ``--physcpubind=8-15`` and one warning that
memory policies are forbidden there. Each argument list is tried once in a process and remembered.
"""

import logging
import os
from typing import NamedTuple

from numa_launch.apply.backend import PROOF, Backend
from numa_launch.apply.numactl import candidates, memory_args, numactl_args
from numa_launch.bounded import HUNG, run_bounded
from numa_launch.errors import StrictError
from numa_launch.log import LOGGER, say_once
from numa_launch.machine.limits import current_affinity
from numa_launch.plan.model import Binding
from numa_launch.reasons import Note, note

TIME_LIMIT_S = 10


class Found(NamedTuple):
    """The arguments that work; `args` is empty where none do. `dropped` says what was given up, and why."""

    args: tuple[str, ...]
    dropped: Note | None = None


class Outcome(NamedTuple):
    """How a command ended: `problem` None is well, else one line; `hung` means that it had to be killed."""

    problem: str | None
    hung: bool = False


class Prober:
    """Runs ``numactl <arguments> true``, or the built-in backend so, and remembers what it said."""

    def __init__(self) -> None:
        self._outcomes: dict[object, Outcome] = {}
        self._accepted: dict[object, Found] = {}
        self._auto_failure: Note | None = None

    def arguments(self, backend: Backend, binding: Binding, *, auto: bool, strict: bool) -> Found:
        """Return the first arguments for the binding that the backend accepts, with one warning for what was dropped.

        In mode auto a binding that fails altogether leaves those after it unbound too. Raises StrictError where
        `strict` and anything would have to be dropped.
        """
        if auto and self._auto_failure and not strict:
            return Found((), self._auto_failure)
        affinity = current_affinity()
        key = (backend, binding, affinity, os.environ.get("LD_PRELOAD"))
        if key in self._accepted:
            return self._accepted[key]
        first_problem = None
        found = Found(())
        for args in (with_all(args, backend, binding, affinity) for args in candidates(binding)):
            outcome = self.outcome(backend.probe(args), affinity)
            if outcome.problem is None:
                found = Found(tuple(args))
                break
            first_problem = first_problem or outcome.problem
            if outcome.hung:
                break
        if first_problem is None:
            self._accepted[key] = found
            return found
        tried, fix = complaint(backend, binding, first_problem)
        why = f"{tried}; {fix or 'ask `numa-launch doctor`, or pass --no-bind'}"
        if strict:
            raise StrictError(f"cannot bind as planned: {why}")
        if auto and not found.args:
            self._auto_failure = dropped = note("probe-failed", why=why)._replace(fix=fix)
        else:
            dropped = note("binding-dropped", what=what_was_dropped(binding, found), why=why)._replace(fix=fix)
        say_once(logging.WARNING, dropped.message)
        return Found(found.args, dropped)

    def outcome(self, command: list[str], affinity: frozenset[int] | None) -> Outcome:
        """Return how the command ends, tried once in the same affinity and with the same LD_PRELOAD.

        A numactl that hung once is not waited for again, whatever its arguments.
        """
        around = (command[0], affinity, os.environ.get("LD_PRELOAD"))
        if around in self._outcomes:
            return self._outcomes[around]
        key = (*around, *command)
        if key not in self._outcomes:
            self._outcomes[key] = try_command(command)
            logging.getLogger(LOGGER).debug("tried %s: %s", " ".join(command), self._outcomes[key].problem or "well")
            if self._outcomes[key].hung:
                self._outcomes[around] = self._outcomes[key]
        return self._outcomes[key]


def with_all(args: list[str], backend: Backend, binding: Binding, affinity: frozenset[int] | None) -> list[str]:
    """Return the arguments with ``--all`` where a launcher of ours holds this process elsewhere than it may go.

    numactl's ``--cpunodebind`` needs none for that.
    """
    outside = affinity is not None and not binding.cpus <= affinity
    needed = backend.is_builtin or any(arg.startswith("--physcpubind") for arg in args)
    return ["--all", *args] if outside and needed else args


def try_command(command: list[str]) -> Outcome:
    """Run a backend's probe, at most TIME_LIMIT_S; an open pipe or a flood of output does not matter."""
    status, output = run_bounded(command, TIME_LIMIT_S)
    if status is None:
        # Somebody else reaps this process's children (SIGCHLD ignored, a thread in waitpid): ask for a proof instead.
        if PROOF not in output.splitlines() and command[-1] == "true":
            status, output = run_bounded([*command[:-1], "echo", PROOF], TIME_LIMIT_S)
        status = 0 if status in (None, 0) and PROOF in output.splitlines() else 1
    if status == HUNG:
        return Outcome(f"no answer in {TIME_LIMIT_S} s", hung=True)
    if status == 0:
        return Outcome(None)
    return Outcome(first_own_line(output) or f"exit status {status}")


def first_own_line(output: str) -> str | None:
    """Return the first line that is numactl's message: no usage page, no ``<9> is invalid``, no complaint of ld.so."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("usage:", "Usage:", "<", "ERROR: ld.so:"))]
    first = lines[0].removeprefix("numa-launch: ") if lines else ""
    return "".join(c if c.isprintable() else "?" for c in first[:200]) or None


def what_was_dropped(binding: Binding, found: Found) -> str:
    if not found.args:
        return "the process stays unbound"
    kept = f"only {' '.join(found.args)} is kept"
    return f"memory is not bound, {kept}" if memory_args(binding) else kept


def complaint(backend: Backend, binding: Binding, problem: str) -> tuple[str, str]:
    """Return what was tried with the backend's own words, and what would fix it, empty where they do not tell."""
    return f"{backend.name} {' '.join(numactl_args(binding))}: {problem}", remedy(problem)


def remedy(problem: str) -> str:
    """Return what would fix it, by the backend's own words."""
    problem = problem.lower()
    if "sched_setaffinity" in problem and "not permitted" in problem:
        return "allow sched_setaffinity to this process (in its seccomp profile or sandbox), or pass --no-bind"
    if "not permitted" in problem or "does not support numa" in problem or "without kernel support" in problem:
        return (
            "if this is a container, give it the capability SYS_NICE (docker run --cap-add SYS_NICE; Kubernetes: "
            "securityContext.capabilities.add), or pass --memory none"
        )
    if "out of range" in problem or "invalid" in problem:
        return "those nodes or CPUs are not this process's to use: compare `numa-launch topo` with its cpuset"
    if os.environ.get("LD_PRELOAD"):
        return "LD_PRELOAD is set and reaches what binds too: unset it, or set it inside the worker"
    return ""
