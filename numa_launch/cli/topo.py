"""``numa-launch topo``: the machine, for people and (``--json``) for programs.

Example: ``numa-launch topo --json --root captured/dgx-h100``.
"""

from typing import Any

import click

from numa_launch.cli.options import vendor_option
from numa_launch.cli.show import SCHEMA, dump, gpu_json, prepare_tables, table_of, wide_console
from numa_launch.idsets import format_ids
from numa_launch.machine.archive import opened
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import Topology, read_topology

MOST_DISTANCES = 16
"""A table of distances between more nodes than this is left to --json."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR|FILE", help="Show the machine captured in DIR or FILE.")
@vendor_option
def topo(as_json: bool, root: str | None, vendor: str | None) -> None:
    """Show nodes, CPUs, memory, GPUs and what this process may use."""
    if not as_json and root is None:
        prepare_tables()
    with opened("/" if root is None else root) as where:
        machine = read_machine(where or "/", vendor=vendor)
        topology = read_topology(where or "/", machine)
    if as_json:
        dump(topo_json(machine, topology))
    else:
        print_topo(machine, topology)


def topo_json(machine: Machine, topology: Topology) -> dict[str, Any]:
    """Return one object of schema 1; a GPU that is not visible has no index."""
    index_of = {position: index for index, position in enumerate(machine.visible)}
    return {
        "schema": SCHEMA,
        "nodes": [
            {
                "id": node.id,
                "cpus": format_ids(node.cpus),
                "usable_cpus": format_ids(machine.usable_cpus_of(node.id)),
                "memory_kb": node.memory_kb,
                "distances": {str(other): distance for other, distance in topology.distances[node.id].items()},
            }
            for node in machine.nodes
        ],
        "packages": [{"id": package, "cpus": format_ids(cpus)} for package, cpus in topology.packages],
        "cores": [format_ids(cpus) for cpus in topology.cores],
        "l3": [format_ids(cpus) for cpus in topology.l3],
        "online_cpus": format_ids(machine.online),
        "gpus": [
            {
                **gpu_json(index_of.get(position), gpu),
                "vendor": gpu.vendor,
                "class": gpu.pci_class,
                "visible": position in index_of,
            }
            for position, gpu in enumerate(machine.gpus)
        ],
    }


def print_topo(machine: Machine, topology: Topology) -> None:
    console = wide_console()
    console.print(
        f"{counted(len(machine.nodes), 'node')}, {counted(len(topology.packages), 'package')}, "
        f"{counted(len(topology.cores), 'core')}, {counted(len(machine.online), 'CPU')}, "
        f"{counted(len(machine.gpus), 'GPU')}"
    )
    index_of = {position: index for index, position in enumerate(machine.visible)}
    nodes = table_of("node", "CPUs", "usable CPUs", "memory", "GPUs")
    for node in machine.nodes:
        here = [index_of.get(i) for i, gpu in enumerate(machine.gpus) if gpu.node == node.id]
        hidden = f" ({here.count(None)} hidden)" if None in here else ""
        memory = "unknown" if node.memory_kb is None else f"{node.memory_kb / 2**20:.1f} GiB"
        usable = format_ids(machine.usable_cpus_of(node.id))
        gpus = " ".join(str(index) for index in here if index is not None) + hidden
        nodes.add_row(str(node.id), format_ids(node.cpus) or "none", usable or "none", memory, gpus.strip())
    console.print(nodes)
    if len(machine.nodes) > MOST_DISTANCES:
        console.print(f"\ndistances between {len(machine.nodes)} nodes: see --json")
    elif len(machine.nodes) > 1 and all(topology.distances.values()):
        distances = table_of("distance", *(str(node.id) for node in machine.nodes))
        for node_id, row in topology.distances.items():
            distances.add_row(str(node_id), *map(str, row.values()))
        console.print()
        console.print(distances)
    if machine.gpus:
        names = ["name"] if any(gpu.name for gpu in machine.gpus) else []
        gpus_table = table_of("GPU", "address", "vendor", *names, "node", "known from")
        for position, gpu in enumerate(machine.gpus):
            node_text = "unknown" if gpu.node is None else str(gpu.node)
            shown = str(index_of.get(position, "hidden"))
            name = [gpu.name or ""] if names else []
            gpus_table.add_row(shown, gpu.bdf or "", gpu.vendor or "", *name, node_text, gpu.source or "")
        console.print()
        console.print(gpus_table)
    if machine.gap and "driver-silent" not in {said.code for said in machine.notes}:
        console.print(f"\nnote: {machine.gap}")
    for said in machine.notes:
        console.print(f"warning: {said.message} ({said.code})")


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
