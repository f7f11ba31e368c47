"""DECIDE: machine + config -> a binding per process, with its reasons. No I/O, no clock, no environment.

Example: ``plan(read_machine("captured/dgx-a100"), LaunchConfig(tensor_parallel_size=8)).processes[1].nodes == (3,)``.
"""

from numa_launch.plan.decide import plan
from numa_launch.plan.model import Binding, Circumstances, Plan, Process

__all__ = ["Binding", "Circumstances", "Plan", "Process", "plan"]
