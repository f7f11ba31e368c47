"""Start workers with configure_subprocess and print, from inside each, what the kernel says it really got.

Example: ``scripts/run -- python scripts/workers.py`` starts one per visible GPU, at least two. With ``--cpus`` worker i
gets the i-th CPU, which shows binding on any machine.
"""

import logging
import multiprocessing
import os

import click

from numa_launch import LaunchConfig, NumaLaunchError, configure_subprocess, read_machine
from numa_launch.observe.state import affinity_state


def worker(rank: int) -> None:
    """Say what this worker got, in one write so that lines do not mix."""
    line = affinity_state(f"worker {rank} (PID {os.getpid()})")
    os.write(1, f"{line}\n".encode())


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
    context = multiprocessing.get_context("spawn")
    processes = []
    try:
        config = LaunchConfig(numa_bind=bind, numa_bind_cpus=lists, tensor_parallel_size=count)
        for rank in range(count):
            with configure_subprocess(config, rank, context=context):
                process = context.Process(target=worker, args=(rank,))
                process.start()
            processes.append(process)
    except NumaLaunchError as error:
        raise click.ClickException(str(error)) from None
    finally:
        for process in processes:
            process.join()
    failed = [process.name for process in processes if process.exitcode]
    if failed:
        raise click.ClickException(f"{', '.join(failed)} did not end well")


if __name__ == "__main__":
    main()
