"""Bind GPU workers to the NUMA node of their GPU: right, safe, visible and measured.

Example::

    from numa_launch import LaunchConfig, configure_subprocess

    config = LaunchConfig(tensor_parallel_size=8)
    for rank in range(8):
        with configure_subprocess(config, rank):
            context.Process(target=worker, args=(rank,)).start()
"""

import importlib
from typing import TYPE_CHECKING, Any

import numa_launch.plan  # noqa: F401  first: imported later it would take the place of the function `plan` below
from numa_launch.errors import ConfigError, MachineError, NumaLaunchError, PlatformError, StrictError

if TYPE_CHECKING:
    from numa_launch.apply.auto import get_auto_numa_nodes
    from numa_launch.apply.current import CurrentBinding, bind_current_process
    from numa_launch.apply.spawn import configure_subprocess
    from numa_launch.config import LaunchConfig
    from numa_launch.launchers.pool import process_pool
    from numa_launch.launchers.srun import srun_options
    from numa_launch.machine.model import Machine
    from numa_launch.machine.read import read_machine
    from numa_launch.observe.state import BindingState, current_binding, log_current_affinity_state
    from numa_launch.plan.model import Binding, Plan

__version__ = "0.1.0"

__all__ = [
    "Binding",
    "BindingState",
    "ConfigError",
    "CurrentBinding",
    "LaunchConfig",
    "Machine",
    "MachineError",
    "NumaLaunchError",
    "Plan",
    "PlatformError",
    "StrictError",
    "bind_current_process",
    "configure_subprocess",
    "current_binding",
    "get_auto_numa_nodes",
    "log_current_affinity_state",
    "plan",
    "process_pool",
    "read_machine",
    "srun_options",
]

_MODULE_OF = {
    "Binding": "numa_launch.plan.model",
    "BindingState": "numa_launch.observe.state",
    "CurrentBinding": "numa_launch.apply.current",
    "LaunchConfig": "numa_launch.config",
    "Machine": "numa_launch.machine.model",
    "Plan": "numa_launch.plan.model",
    "bind_current_process": "numa_launch.apply.current",
    "configure_subprocess": "numa_launch.apply.spawn",
    "current_binding": "numa_launch.observe.state",
    "get_auto_numa_nodes": "numa_launch.apply.auto",
    "log_current_affinity_state": "numa_launch.observe.state",
    "process_pool": "numa_launch.launchers.pool",
    "read_machine": "numa_launch.machine.read",
    "srun_options": "numa_launch.launchers.srun",
}
"""Where the public names come from, when first used: importing numa_launch should cost a program nothing."""


def plan(machine: "Machine", config: "LaunchConfig") -> "Plan":
    """Return the binding of each process that a host starts: one EngineCore and its workers a local shard.

    `machine` is what read_machine returned. Raises ConfigError where an explicit binding cannot be planned (a node
    without CPUs, an index past the end, a GPU whose node is unknown), and StrictError where `config.strict` and a
    process may use no CPU of its nodes.
    """
    from numa_launch.plan.decide import plan as decide

    return decide(machine, config)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
