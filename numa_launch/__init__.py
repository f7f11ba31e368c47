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

from numa_launch.config import LaunchConfig
from numa_launch.errors import ConfigError, MachineError, NumaLaunchError, PlatformError, StrictError
from numa_launch.plan import Binding, Plan, plan

if TYPE_CHECKING:
    from numa_launch.apply.auto import get_auto_numa_nodes
    from numa_launch.apply.current import CurrentBinding, bind_current_process
    from numa_launch.apply.spawn import configure_subprocess
    from numa_launch.machine import Machine, read_machine
    from numa_launch.observe.state import log_current_affinity_state

__version__ = "0.1.0"

__all__ = [
    "Binding",
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
    "get_auto_numa_nodes",
    "log_current_affinity_state",
    "plan",
    "read_machine",
]

# Imported where first used, as importing numa_launch should cost a program nothing. `plan` is not among them: its
# package has the same name, and would take its place.
_MODULE_OF = {
    "CurrentBinding": "numa_launch.apply.current",
    "Machine": "numa_launch.machine",
    "bind_current_process": "numa_launch.apply.current",
    "configure_subprocess": "numa_launch.apply.spawn",
    "get_auto_numa_nodes": "numa_launch.apply.auto",
    "log_current_affinity_state": "numa_launch.observe.state",
    "read_machine": "numa_launch.machine",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
