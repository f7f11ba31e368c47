"""``get_auto_numa_nodes``: what automatic detection finds on this host.

Example: ``get_auto_numa_nodes()`` is ``[3, 3, 1, 1, 7, 7, 5, 5]`` on a DGX A100 in NPS4.
"""

from numa_launch.config import LaunchConfig
from numa_launch.machine.read import read_machine
from numa_launch.plan.auto import skip_reason
from numa_launch.plan.model import Circumstances


def get_auto_numa_nodes() -> list[int] | None:
    """Return the node of each visible GPU, by gpu index; None where auto mode would bind nothing here.

    Whether numactl is there plays no part. Raises PlatformError on other systems than Linux.
    """
    machine = read_machine()
    if skip_reason(machine, LaunchConfig(), Circumstances()):
        return None
    nodes = [gpu.node for gpu in machine.visible_gpus if gpu.node is not None and machine.node_of_id[gpu.node].cpus]
    return nodes if len(nodes) == len(machine.visible_gpus) else None
