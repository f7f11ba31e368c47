"""Start a worker per GPU (or per node, or per CPU where there is one node) and print what each really got.

Example: ``scripts/run -- python scripts/workers.py``. Every line comes from inside a worker and shows what the kernel
says of it, not what was asked. With ``--cpus`` each worker gets its own CPU, which shows binding on any machine.
"""

import logging
import multiprocessing
import os
from multiprocessing.queues import SimpleQueue

import click

from numa_launch import LaunchConfig, configure_subprocess, read_machine
from numa_launch.observe.state import current_affinity_state


def worker(rank: int, lines: "SimpleQueue[tuple[int, str]]") -> None:
    """Say what this worker got."""
    lines.put((rank, current_affinity_state(f"worker {rank} (PID {os.getpid()})")))


@click.command()
@click.option("--workers", type=click.IntRange(min=1), help="How many.  [default: one per visible GPU, at least 2]")
@click.option("--cpus", is_flag=True, help="Bind worker i to the i-th CPU instead of its GPU's node.")
@click.option("--bind/--no-bind", default=None, help="As for numa-launch.")
def main(workers: int | None, cpus: bool, bind: bool | None) -> None:
    """Start workers with configure_subprocess and print what each really got."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    count = workers or max(2, len(read_machine().visible))
    usable = sorted(os.sched_getaffinity(0))
    lists = [str(usable[i % len(usable)]) for i in range(count)] if cpus else None
    config = LaunchConfig(numa_bind=bind, numa_bind_cpus=lists, tensor_parallel_size=count)
    context = multiprocessing.get_context("spawn")
    lines = context.SimpleQueue()
    processes = []
    for rank in range(count):
        with configure_subprocess(config, rank, context=context):
            process = context.Process(target=worker, args=(rank, lines))
            process.start()
        processes.append(process)
    for process in processes:
        process.join()
    said = []
    while not lines.empty():
        said.append(lines.get())
    for _, line in sorted(said):
        click.echo(line)
    failed = [process.name for process in processes if process.exitcode]
    if failed:
        raise click.ClickException(f"{', '.join(failed)} did not end well")


if __name__ == "__main__":
    main()
