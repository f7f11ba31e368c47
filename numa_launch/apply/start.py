"""From a process's plan to what it is started with: the backend's command line, and the variables handed over.

Example: ``Starter(machine, "auto", False, Backend("/usr/bin/numactl")).start(binding).backend`` is
``["/usr/bin/numactl", "--cpunodebind=1", "--preferred=1"]``.
"""

import logging
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from numa_launch.apply.backend import Backend
from numa_launch.apply.outcome import applied, handover_variable, numactl_needed
from numa_launch.apply.probe import Prober
from numa_launch.config import Mode
from numa_launch.idsets import format_ids
from numa_launch.log import LOGGER
from numa_launch.machine.model import Machine
from numa_launch.plan.model import Binding


class Start(NamedTuple):
    """What stands before a command, empty where it stays unbound, and the variables to add to its environment."""

    backend: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


class Starter:
    """Tries each binding's arguments before a process's life depends on them."""

    def __init__(self, machine: Machine, mode: Mode, strict: bool, backend: Backend | None) -> None:
        self._machine = machine
        self._auto = mode == "auto"
        self._strict = strict
        self._backend = backend
        self._prober = Prober()

    def start(self, binding: Binding, over_all: bool = False) -> Start:
        """Return what to start the process with, and log it.

        Raises ConfigError where no backend may serve, and StrictError where `strict` and it would be bound less.
        """
        if not binding.bound:
            return Start()
        if self._backend is None:
            raise numactl_needed()
        found = self._prober.arguments(self._backend, binding, auto=self._auto, strict=self._strict)
        if not found.args:
            return Start()
        bound = applied(binding, found)
        no_rank = " over all visible GPUs, as there is no rank" if over_all else ""
        said = f"{described(bound, no_rank)}: {self._backend.name} {shlex.join(found.args)}"
        logging.getLogger(LOGGER).info("%s", said)
        return Start((*self._backend.command, *found.args), handover_variable(self._machine, bound))


def described(binding: Binding, also: str) -> str:
    """Return one line that says where a process is bound."""
    memory = f", memory {binding.memory_policy} {format_ids(binding.memory_nodes)}" if binding.memory_policy else ""
    return f"{binding.name}{also}: node {format_ids(binding.nodes)}, CPUs {format_ids(binding.cpus)}{memory}"
