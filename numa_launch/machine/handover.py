"""What a launcher of ours tells the process it started: what it set there, and what was allowed before.

Example: ``NUMA_LAUNCH_BOUND="8-15;prefer:1;0-15;default"`` says that CPUs 8-15 and policy ``prefer:1`` were set on a
process that might use CPUs 0-15 with policy ``default``. A library call inside that still finds exactly what was set
plans from what was allowed before; anything else was done by somebody else, and is respected.
"""

from typing import NamedTuple

from numa_launch.idsets import format_ids, parse_ids

VARIABLE = "NUMA_LAUNCH_BOUND"


class Handover(NamedTuple):
    """`cpus` and `policy` as set on the process; `cpus_before` and `policy_before` as they were.

    Policies are as numa_maps shows them.
    """

    cpus: frozenset[int]
    policy: str
    cpus_before: frozenset[int]
    policy_before: str

    def __str__(self) -> str:
        return f"{format_ids(self.cpus)};{self.policy};{format_ids(self.cpus_before)};{self.policy_before}"


def parse_handover(text: str | None) -> Handover | None:
    """Return what the variable says; None where it is unset or no launcher of ours wrote it."""
    fields = (text or "").split(";")
    if len(fields) != 4:
        return None
    try:
        return Handover(parse_ids(fields[0]), fields[1], parse_ids(fields[2]), fields[3])
    except ValueError:
        return None
