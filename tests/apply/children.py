"""What spawned children of the tests run: they send what the kernel says of them through a queue."""

import multiprocessing
import os
from multiprocessing.queues import SimpleQueue
from typing import Any

from numa_launch import LaunchConfig, configure_subprocess
from numa_launch.machine.limits import read_policy


def state() -> dict[str, Any]:
    """Return what this process is: its CPUs, policy, PID, our variables, and multiprocessing's spawn executable."""
    from multiprocessing import spawn

    return {
        "cpus": sorted(os.sched_getaffinity(0)),
        "policy": read_policy(""),
        "pid": os.getpid(),
        "variables": sorted(name for name in os.environ if name.startswith("NUMA_LAUNCH")),
        "environ": dict(os.environ),
        "executable": os.fsdecode(spawn.get_executable()),
    }


def report(queue: "SimpleQueue[Any]", tag: Any = None) -> None:
    queue.put((tag, state()))


def fail(queue: "SimpleQueue[Any]") -> None:
    os._exit(7)


def engine(queue: "SimpleQueue[Any]", config: LaunchConfig, depth: int) -> None:
    """Start this process's own two workers, or another engine first, from the config it was given."""
    context = multiprocessing.get_context("spawn")
    queue.put(("engine", state()))
    processes = []
    for rank in range(2):
        with configure_subprocess(config, rank, context=context):
            process = context.Process(target=report, args=(queue, rank))
            process.start()
        processes.append(process)
    if depth:
        with configure_subprocess(config, 0, process_kind="EngineCore", context=context):
            process = context.Process(target=engine, args=(queue, config, depth - 1))
            process.start()
        processes.append(process)
    for process in processes:
        process.join()
