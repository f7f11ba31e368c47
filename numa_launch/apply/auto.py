"""``get_auto_numa_nodes``: what automatic detection finds on this host.

Example: ``get_auto_numa_nodes()`` is ``[3, 3, 1, 1, 7, 7, 5, 5]`` on a DGX A100 in NPS4.
"""

import os

from numa_launch.apply.asked import what_switches_off
from numa_launch.config import LaunchConfig
from numa_launch.machine.read import read_machine
from numa_launch.plan.decide import plan


def get_auto_numa_nodes() -> list[int] | None:
    """Return the node of each visible GPU, by gpu index; None where auto mode would bind nothing here.

    Whether numactl is there plays no part. Raises PlatformError on other systems than Linux.
    """
    machine = read_machine()
    config = LaunchConfig(tensor_parallel_size=max(1, len(machine.visible)))
    if what_switches_off(config, os.environ) or not plan(machine, config).bound:
        return None
    return [gpu.node for gpu in machine.visible_gpus if gpu.node is not None]
