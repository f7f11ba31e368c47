"""``numa-launch topo``: the machine, for people and (``--json``) for programs.

Example: ``numa-launch topo --json --root captured/dgx-h100``.
"""

from typing import TYPE_CHECKING, Any

import click

from numa_launch.cli.boxes import print_boxes
from numa_launch.cli.options import svg_option, vendor_option
from numa_launch.cli.output import write_file
from numa_launch.cli.scene import boxes_of, memory_text, shown_gpus
from numa_launch.cli.show import SCHEMA, dump, gpu_json, prepare_tables, table_of, wide_console
from numa_launch.idsets import format_ids
from numa_launch.machine.archive import opened
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import Topology, read_topology
from numa_launch.reasons import counted

if TYPE_CHECKING:
    from rich.console import Console

MOST_DISTANCES = 16
"""A table of distances between more nodes than this is left to --json."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--root", metavar="DIR|FILE", help="Show the machine captured in DIR or FILE.")
@svg_option("Also draw the machine into FILE.")
@vendor_option
def topo(as_json: bool, root: str | None, svg: str | None, vendor: str | None) -> None:
    """Show nodes, CPUs, memory, GPUs and what this process may use."""
    if not as_json and root is None:
        prepare_tables()
    with opened("/" if root is None else root) as where:
        machine = read_machine(where or "/", vendor=vendor)
        topology = read_topology(where or "/", machine)
    if svg is not None:
        from numa_launch.cli.svg import picture

        write_file(svg, picture(machine).encode())
    if svg == "-":
        return
    if as_json:
        dump(topo_json(machine, topology))
    else:
        print_topo(machine, topology, wide_console())


def topo_json(machine: Machine, topology: Topology) -> dict[str, Any]:
    """Return one object of schema 1; a GPU that is not visible has no index."""
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
                **gpu_json(shown.gpu_index, shown.gpu),
                "vendor": shown.gpu.vendor,
                "class": shown.gpu.pci_class,
                "visible": shown.gpu_index is not None,
            }
            for shown in shown_gpus(machine)
        ],
    }


def print_topo(machine: Machine, topology: Topology, console: "Console") -> None:
    """Print the machine as boxes in a terminal, as a table elsewhere."""
    console.print(
        f"{counted(len(machine.nodes), 'node')}, {counted(len(topology.packages), 'package')}, "
        f"{counted(len(topology.cores), 'core')}, {counted(len(machine.online), 'CPU')}, "
        f"{counted(len(machine.gpus), 'GPU')}"
    )
    if console.is_terminal:
        print_boxes(console, boxes_of(machine))
    else:
        print_nodes(console, machine)
    print_distances(console, machine, topology)
    print_gpus(console, machine)
    if machine.gap and "driver-silent" not in {said.code for said in machine.notes}:
        console.print(f"\nnote: {machine.gap}")
    for said in machine.notes:
        console.print(f"warning: {said.message} ({said.code})")


def print_nodes(console: "Console", machine: Machine) -> None:
    nodes = table_of("node", "CPUs", "usable CPUs", "memory", "GPUs")
    gpus = shown_gpus(machine)
    for node in machine.nodes:
        here = [shown.gpu_index for shown in gpus if shown.gpu.node == node.id]
        hidden = f" ({here.count(None)} hidden)" if None in here else ""
        usable = format_ids(machine.usable_cpus_of(node.id))
        visible = " ".join(str(index) for index in here if index is not None) + hidden
        memory = memory_text(node.memory_kb) + (", not yours" if machine.withholds_memory_of(node.id) else "")
        nodes.add_row(str(node.id), format_ids(node.cpus) or "none", usable or "none", memory, visible.strip())
    console.print(nodes)


def print_distances(console: "Console", machine: Machine, topology: Topology) -> None:
    """Print the distances between all nodes, of many between those with CPUs, where a line has room for them."""
    nodes = [node.id for node in machine.nodes]
    shown = nodes if len(nodes) <= MOST_DISTANCES else list(machine.nodes_with_cpus)
    if len(shown) < 2 or not all(topology.distances.values()):
        return
    distances = table_of("distance", *map(str, shown))
    for node in shown:
        distances.add_row(str(node), *(str(topology.distances[node][other]) for other in shown))
    console.print()
    if len(shown) > MOST_DISTANCES or console.measure(distances).maximum > console.width:
        console.print(f"distances between {len(nodes)} nodes: see --json")
    else:
        console.print(distances)


def print_gpus(console: "Console", machine: Machine) -> None:
    if machine.gpus:
        names = ["name"] if any(gpu.name for gpu in machine.gpus) else []
        gpus_table = table_of("GPU", "address", "vendor", *names, "node", "known from")
        for shown in shown_gpus(machine):
            gpu = shown.gpu
            node_text = "unknown" if gpu.node is None else str(gpu.node)
            name = [gpu.name or ""] if names else []
            gpus_table.add_row(shown.label, gpu.bdf or "", gpu.vendor or "", *name, node_text, gpu.source or "")
        console.print()
        console.print(gpus_table)
