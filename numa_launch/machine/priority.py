"""Priority cores (Intel Priority Core Turbo): the CPUs that run fastest on a few known models.

Example: on a Xeon 6776P whose cpu0 has highest_perf 46, CPUs 0, 1, 16, 17, 32, 33, … are priority cores.
Anything else, unreadable or unequal, has none.
"""

from numa_launch.machine.files import read_text, read_value
from numa_launch.machine.nodes import CPU

STRIDE_OF_SKU = {"6776P": (46, 16), "6774P": (46, 16), "6962P": (44, 18)}
"""Model → (cpu0's acpi_cppc/highest_perf, stride): a CPU is a priority core when ``id % stride`` is 0 or 1."""


def read_priority_cpus(root: str, online: frozenset[int]) -> frozenset[int]:
    """Return the priority cores among the online CPUs, none on every other machine."""
    start = read_text(f"{root}/proc/cpuinfo", most=8192) or ""
    models = [line for line in start.splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2] if models else ""
    for sku, (highest_perf, stride) in STRIDE_OF_SKU.items():
        if sku in model and read_value(f"{root}{CPU}/cpu0/acpi_cppc/highest_perf", int) == highest_perf:
            return frozenset(cpu for cpu in online if cpu % stride in (0, 1))
    return frozenset()
