"""Measure what numa-launch costs: ratios taken side by side in one run, as absolute times of a busy host say little.

Example: ``scripts/bench --json``. Each row has what was measured, its limit, and whether it holds; exit 1 where not.
"""

import json
import logging
import multiprocessing
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import click

from numa_launch import LaunchConfig, configure_subprocess, plan, read_machine
from numa_launch.apply.backend import BUILTIN, FLAGS
from numa_launch.cli.show import wide_console
from tests.live import build_preload, can_unshare, run_on
from tests.stubs.build import build_nvml, describe, stub_environment

PYTHON = sys.executable
NUMA_LAUNCH = str(pathlib.Path(PYTHON).with_name("numa-launch"))


def nothing() -> None:
    """What a no-op worker does."""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio_of_pairs(left: Callable[[], object], right: Callable[[], object], pairs: int) -> float:
    """Return the median of left ÷ right over alternating pairs, the order changing from pair to pair."""
    left(), right()
    ratios = []
    for i in range(pairs):
        if i % 2:
            right_s, left_s = seconds(right), seconds(left)
        else:
            left_s, right_s = seconds(left), seconds(right)
        ratios.append(left_s / right_s)
    return statistics.median(ratios)


def runs(*command: str) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True)


def a_cpu() -> str:
    return str(min(os.sched_getaffinity(0)))


def context_ms() -> float:
    """Return the median time to enter and leave configure_subprocess, its arguments already probed."""
    config = LaunchConfig(numa_bind_cpus=[a_cpu()])

    def enter() -> None:
        with configure_subprocess(config, 0) as binding:
            assert binding.bound

    enter()
    return statistics.median(seconds(enter) for _ in range(2000)) * 1e3


def spawn_ratio(pairs: int, workers: int = 16) -> float:
    """Return bound ÷ plain of starting and joining no-op workers."""
    context = multiprocessing.get_context("spawn")
    config = LaunchConfig(numa_bind_cpus=[",".join(map(str, sorted(os.sched_getaffinity(0))))] * workers)

    def start(bound: bool) -> None:
        processes = []
        for rank in range(workers):
            process = context.Process(target=nothing)
            if bound:
                with configure_subprocess(config, rank):
                    process.start()
            else:
                process.start()
            processes.append(process)
        for process in processes:
            process.join()
            assert process.exitcode == 0

    return ratio_of_pairs(lambda: start(True), lambda: start(False), pairs)


def copies_ratio(pairs: int, copies: int = 64) -> float:
    """Return ``--nproc`` ÷ subprocess.Popen of starting copies of a Python: until the last is, probing included."""
    command = (PYTHON, "-c", "pass")

    def ours() -> float:
        asked = (NUMA_LAUNCH, "-v", "--bind", "--map", "rank", "--nproc", str(copies), "--", *command)
        said = subprocess.run(asked, check=True, capture_output=True, text=True).stderr
        found = re.search(rf"{copies} ranks started in ([0-9.]+) s", said)
        assert found and said.count("--cpunodebind") >= copies, said
        return float(found[1])

    def plain() -> float:
        started: list[subprocess.Popen[bytes]] = []
        taken_s = seconds(lambda: started.extend(subprocess.Popen(command) for _ in range(copies)))
        for process in started:
            process.wait()
        return taken_s

    ours(), plain()
    ratios = []
    for i in range(pairs):
        if i % 2:
            plain_s, ours_s = plain(), ours()
        else:
            ours_s, plain_s = ours(), plain()
        ratios.append(ours_s / plain_s)
    return statistics.median(ratios)


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def big_machine(root: pathlib.Path, nodes: int, cpus: int, gpus: int) -> None:
    """Lay a captured machine with SMT siblings, L3 caches, packages and GPUs."""
    each = cpus // nodes
    write(root / "sys/devices/system/cpu/online", f"0-{cpus - 1}")
    for node in range(nodes):
        first, last = node * each, node * each + each - 1
        path = root / f"sys/devices/system/node/node{node}"
        write(path / "cpulist", f"{first}-{last}")
        write(path / "meminfo", f"Node {node} MemTotal:  65536000 kB")
        write(path / "distance", " ".join("10" if other == node else "20" for other in range(nodes)))
        for cpu in range(first, last + 1):
            cpu_path = root / f"sys/devices/system/cpu/cpu{cpu}"
            write(cpu_path / "topology/thread_siblings_list", f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}")
            write(cpu_path / "topology/core_siblings_list", f"{first}-{last}")
            write(cpu_path / "topology/physical_package_id", f"{node}")
            write(cpu_path / "cache/index3/level", "3")
            write(cpu_path / "cache/index3/shared_cpu_list", f"{first}-{last}")
    for gpu in range(gpus):
        path = root / f"sys/bus/pci/devices/{gpu:04x}:01:00.0"
        node = gpu * nodes // gpus
        write(path / "vendor", "0x10de")
        write(path / "class", "0x030200")
        write(path / "numa_node", f"{node}")
        write(path / "local_cpulist", f"{node * each}-{node * each + each - 1}")


def plan_big(root: pathlib.Path, gpus: int) -> None:
    made = plan(read_machine(root, environ={}), LaunchConfig(tensor_parallel_size=gpus))
    assert made.bound and len(made.processes) == gpus + 1


def live_topo(root: pathlib.Path) -> Callable[[], object]:
    """Return what runs topo on a host with eight GPUs whose driver is asked in a child, through the real binding."""
    big_machine(root, nodes=2, cpus=64, gpus=8)
    gpus = [{"bdf": f"{gpu:04x}:01:00.0", "uuid": f"GPU-{gpu}", "name": "H100", "cpus": "0-31"} for gpu in range(8)]
    description = root / "description"
    description.write_text(describe(gpus))
    env = stub_environment(build_nvml(root / "nvml"), description)
    preload = build_preload(root / "preload")

    def run() -> None:
        done = run_on(root, NUMA_LAUNCH, "topo", env=env, cpus="0-63", preload=preload)
        assert done.returncode == 0 and "H100" in done.stdout, done.stderr

    return run


def rows(pairs: int) -> list[dict[str, object]]:
    """Return a row of every promise: what, measured, limit, unit, and whether it holds."""
    found: list[tuple[str, float, float, str]] = [
        ("configure_subprocess entered and left, already probed", context_ms(), 0.15, "ms"),
        ("16 no-op workers, bound ÷ plain", spawn_ratio(pairs), 1.10, "ratio"),
        ("64 copies started by --nproc, bound ÷ subprocess.Popen", copies_ratio(pairs), 1.3, "ratio"),
        (
            "numa-launch -- true ÷ python -c 'import click'",
            ratio_of_pairs(runs(NUMA_LAUNCH, "-q", "--", "true"), runs(PYTHON, "-c", "import click"), 2 * pairs),
            1.5,
            "ratio",
        ),
        (
            "import numa_launch ÷ python -c 'import dataclasses, enum'",
            ratio_of_pairs(
                runs(PYTHON, "-c", "import numa_launch"), runs(PYTHON, "-c", "import dataclasses, enum"), 2 * pairs
            ),
            1.5,
            "ratio",
        ),
    ]
    builtin = runs(PYTHON, *FLAGS, BUILTIN, f"--physcpubind={min(os.sched_getaffinity(0))}", "--", "true")
    ratio = ratio_of_pairs(builtin, runs(PYTHON, "-S", "-E", "-c", "pass"), 4 * pairs)
    found.append(("built-in backend -- true ÷ python -S -E -c pass", ratio, 1.8, "ratio"))
    with tempfile.TemporaryDirectory() as directory:
        if can_unshare() and shutil.which("cc"):
            topo = live_topo(pathlib.Path(directory) / "live")
            ratio = ratio_of_pairs(topo, runs(PYTHON, "-c", "import click"), pairs)
            found.append(("topo of 8 GPUs, their driver asked ÷ python -c 'import click'", ratio, 4, "ratio"))
        else:
            click.echo("topo of GPUs is left out: no mount namespaces, or no C compiler", err=True)
        half, whole, double = (pathlib.Path(directory) / name for name in ("half", "whole", "double"))
        for root, nodes in ((half, 64), (whole, 128), (double, 256)):
            big_machine(root, nodes, 32 * nodes, nodes // 2)
        plan_ms = statistics.median(seconds(lambda: plan_big(whole, 64)) for _ in range(pairs)) * 1e3
        found += [
            ("plan of 64 GPUs, 128 nodes, 4,096 CPUs", plan_ms, 150, "ms"),
            (
                "the same, 256 nodes ÷ 128 nodes",
                ratio_of_pairs(lambda: plan_big(double, 128), lambda: plan_big(whole, 64), pairs),
                2.3,
                "ratio",
            ),
            (
                "topo --json of 128 nodes, 4,096 CPUs",
                statistics.median(seconds(runs(NUMA_LAUNCH, "topo", "--json", "--root", str(whole))) for _ in range(5)),
                1.0,
                "s",
            ),
        ]
    return [
        {"what": what, "measured": round(value, 3), "limit": limit, "unit": unit, "holds": value <= limit}
        for what, value, limit, unit in found
    ]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--pairs", type=click.IntRange(min=3), default=15, show_default=True, help="Pairs a ratio is made of.")
def main(as_json: bool, pairs: int) -> None:
    """Measure and print; exit 1 where a limit does not hold."""
    logging.disable()  # a block that starts nothing, as one is timed here, is warned about
    click.echo("measuring, for about a minute", err=True)
    table = rows(pairs)
    if as_json:
        click.echo(json.dumps(table, indent=1))
    else:
        from rich import box
        from rich.table import Table

        shown = Table("what", "measured", "must be", "holds", box=box.SIMPLE_HEAD, pad_edge=False)
        for row in table:
            shown.add_row(
                str(row["what"]),
                f"{row['measured']} {row['unit']}",
                f"≤ {row['limit']} {row['unit']}",
                "yes" if row["holds"] else "NO",
            )
        wide_console().print(shown)
    raise SystemExit(0 if all(row["holds"] for row in table) else 1)


if __name__ == "__main__":
    main()
