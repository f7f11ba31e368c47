"""What workers of a pool run in the tests; it imports little, as each worker imports it again."""

import os
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

from tests.vm.truth import allowed_cpus, policy


def state(_: object = None) -> dict[str, Any]:
    """Return this worker's rank as it is told, and what the kernel shows of it."""
    return {
        "rank": os.environ["LOCAL_RANK"],
        "cpus": allowed_cpus("/proc/self"),
        "policy": policy(),
        "pid": os.getpid(),
        "wrap": [name for name in os.environ if name.startswith("NUMA_LAUNCH_WRAP")],
    }


def state_held(reached: str, release: str) -> dict[str, Any]:
    """Write the rank into one named pipe, and return the state once the other is written to."""
    with open(reached, "w") as pipe:
        pipe.write(os.environ["LOCAL_RANK"])
    with open(release) as pipe:
        pipe.read()
    return state()


def add_line(path: str) -> None:
    """Add a line with rank, CPUs and PID to a file, in one write."""
    now = state()
    with open(path, "a") as file:
        file.write(f"{now['rank']} {now['cpus']} {now['pid']}\n")


class OwnProcess(SpawnProcess):
    """A process of a user's own context."""

    def run(self) -> None:
        os.environ["RUN_BY"] = type(self).__name__
        super().run()


class OwnContext(SpawnContext):
    """A user's own context that spawns."""

    Process = OwnProcess


def run_by(_: object = None) -> str | None:
    return os.environ.get("RUN_BY")


def send_cpus(results: "SimpleQueue[tuple[int, str]]", rank: int) -> None:
    results.put((rank, allowed_cpus("/proc/self")))
