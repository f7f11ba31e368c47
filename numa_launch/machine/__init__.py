"""READ: what the host is, and what this process may use of it.

Example: ``read_machine().nodes[0].cpus``; ``read_machine("captured/dgx-a100")`` reads a captured host.
"""

from numa_launch.machine.model import Gpu, Limits, Machine, Node
from numa_launch.machine.read import read_machine

__all__ = ["Gpu", "Limits", "Machine", "Node", "read_machine"]
