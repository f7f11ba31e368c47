"""Lay a machine on disk from a compact description, as the case files have it.

Example: ``lay(tmp_path, {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}, "gpus": [{"node": 1}]})``.
A node may have ``mem_mb``; a GPU ``bdf``, ``vendor``, ``class``, ``node``, ``local_cpus``, ``physfn``, ``driver`` and
what stands in gpus.json: ``uuid``, ``name``, ``nvml_node``, ``nvml_cpus``, ``mig``.
"""

import json
from pathlib import Path
from typing import Any

from numa_launch.idsets import format_ids, parse_ids

VENDOR_IDS = {"nvidia": "0x10de", "amd": "0x1002", "intel": "0x8086"}
CLASSES = {"nvidia": "0x030200", "amd": "0x038000", "intel": "0x038000"}
LIBRARY_KEYS = {"uuid", "name", "nvml_node", "nvml_cpus", "mig"}

Description = dict[str, Any]


def put(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def mask(ids: frozenset[int]) -> str:
    """Return a kernel mask in words of 32 bits."""
    digits = f"{sum(1 << i for i in ids):x}"
    padded = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(padded[i : i + 8] for i in range(0, len(padded), 8))


def lay(root: Path, machine: Description) -> Path:
    """Write the machine's files below `root` and return it."""
    nodes = {int(i): parse_ids(node.get("cpus", "")) for i, node in machine["nodes"].items()}
    every = frozenset[int]().union(*nodes.values())
    online = parse_ids(machine["online"]) if "online" in machine else every
    lay_cpus(root / "sys/devices/system/cpu", machine, every, online, nodes)
    if not machine.get("no_node_dir"):
        lay_nodes(root / "sys/devices/system/node", machine, nodes, online)
    for position, gpu in enumerate(machine.get("gpus", [])):
        lay_gpu(root, position, gpu, nodes, online)
    lay_library(root, machine)
    lay_process(root, machine, online, nodes)
    return root


def core_of(machine: Description, cpu: int, count: int) -> frozenset[int]:
    siblings = machine.get("siblings", "none")
    if siblings == "adjacent":
        return frozenset({cpu - cpu % 2, cpu - cpu % 2 + 1})
    if siblings == "split":
        return frozenset({cpu % (count // 2), cpu % (count // 2) + count // 2})
    groups = [parse_ids(text) for text in siblings] if isinstance(siblings, list) else []
    return next((group for group in groups if cpu in group), frozenset({cpu}))


def lay_cpus(
    path: Path, machine: Description, every: frozenset[int], online: frozenset[int], nodes: dict[int, frozenset[int]]
) -> None:
    given = machine.get("packages", {str(i): format_ids(cpus) for i, cpus in nodes.items() if cpus})
    packages = {name: parse_ids(text) for name, text in given.items()}
    if not machine.get("no_online"):
        put(path / "online", format_ids(online))
    for cpu in every | online:
        own = path / f"cpu{cpu}"
        own.mkdir(parents=True, exist_ok=True)
        if cpu:
            put(own / "online", int(cpu in online))
        if cpu not in online:
            continue
        put(own / "topology/thread_siblings_list", format_ids(core_of(machine, cpu, max(every) + 1) & online))
        for name, cpus in packages.items():
            if cpu in cpus:
                put(own / "topology/physical_package_id", name)
                put(own / "topology/core_siblings_list", format_ids(cpus & online))
        for text in machine.get("l3", []):
            if cpu in parse_ids(text):
                put(own / "cache/index3/level", 3)
                put(own / "cache/index3/shared_cpu_list", text)
    if "highest_perf" in machine:
        put(path / "cpu0/acpi_cppc/highest_perf", machine["highest_perf"])
    if "isolated" in machine:
        put(path / "isolated", machine["isolated"])


def lay_nodes(path: Path, machine: Description, nodes: dict[int, frozenset[int]], online: frozenset[int]) -> None:
    put(path / "online", format_ids(nodes))
    for i, cpus in nodes.items():
        own = path / f"node{i}"
        put(own / "cpumap", mask(cpus & online))
        if not machine.get("no_cpulist"):
            put(own / "cpulist", format_ids(cpus))
        row = machine.get("distances", {}).get(str(i), {})
        put(own / "distance", " ".join(str(row.get(str(other), 10 if other == i else 20)) for other in sorted(nodes)))
        put(own / "meminfo", f"Node {i} MemTotal: {machine['nodes'][str(i)].get('mem_mb', 65536) * 1024} kB")


def address(position: int, gpu: Description) -> str:
    return str(gpu.get("bdf", f"0000:{16 + 16 * position:02x}:00.0"))


def lay_gpu(
    root: Path, position: int, gpu: Description, nodes: dict[int, frozenset[int]], online: frozenset[int]
) -> None:
    vendor, node = gpu.get("vendor", "nvidia"), gpu.get("node", -1)
    path = root / "sys/bus/pci/devices" / address(position, gpu)
    put(path / "vendor", VENDOR_IDS.get(vendor, vendor))
    put(path / "class", gpu.get("class", CLASSES.get(vendor, "0x030000")))
    put(path / "device", gpu.get("device", "0x2330"))
    put(path / "numa_node", node)
    put(path / "local_cpulist", gpu.get("local_cpus", format_ids(nodes.get(node, online) & online)))
    if "driver" in gpu:
        (path / "driver").symlink_to(f"../../drivers/{gpu['driver']}")
    if "physfn" in gpu:
        (path / "physfn").symlink_to(f"../{gpu['physfn']}")


def lay_library(root: Path, machine: Description) -> None:
    """Write gpus.json with the GPUs that the vendor's library knows, where it knows any."""
    said = [
        {
            "bdf": address(position, gpu),
            "uuid": gpu.get("uuid"),
            "name": gpu.get("name", "GPU"),
            "numa_node": gpu.get("nvml_node"),
            "cpu_affinity": gpu.get("nvml_cpus"),
            "mig": gpu.get("mig", []),
        }
        for position, gpu in enumerate(machine.get("gpus", []))
        if LIBRARY_KEYS & gpu.keys()
    ]
    if said:
        put(root / "gpus.json", json.dumps([{"index": i, **gpu} for i, gpu in enumerate(said)]))


def lay_process(root: Path, machine: Description, online: frozenset[int], nodes: dict[int, frozenset[int]]) -> None:
    put(root / "proc/cpuinfo", f"processor\t: 0\nmodel name\t: {machine.get('cpu_model', 'Generic CPU')}")
    cpus = machine.get("cpuset", format_ids(online))
    mems = machine.get("cpuset_mems", format_ids(i for i in nodes if machine["nodes"][str(i)].get("mem_mb", 1)))
    if {"allowed_cpus", "allowed_mems", "cpuset", "cpuset_mems"} & machine.keys():
        allowed, allowed_mems = machine.get("allowed_cpus", cpus), machine.get("allowed_mems", mems)
        put(
            root / "proc/self/status",
            f"Name:\tpython\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{allowed_mems}",
        )
    if {"cpuset", "cpuset_mems"} & machine.keys():
        if machine.get("cgroup_v1"):
            put(root / "proc/self/cgroup", "5:cpuset:/pod\n1:name=systemd:/pod")
            put(root / "sys/fs/cgroup/cpuset/pod/cpuset.effective_cpus", cpus)
            put(root / "sys/fs/cgroup/cpuset/pod/cpuset.effective_mems", mems)
        else:
            put(root / "proc/self/cgroup", "0::/pod")
            put(root / "sys/fs/cgroup/pod/cpuset.cpus.effective", cpus)
            put(root / "sys/fs/cgroup/pod/cpuset.mems.effective", mems)
    if "policy" in machine:
        put(root / "proc/self/numa_maps", f"00400000 {machine['policy']} file=/usr/bin/python3 mapped=1 N0=1")


TWO_NODES: Description = {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}
FOUR_GPUS: Description = {**TWO_NODES, "gpus": [{"node": 0}, {"node": 0}, {"node": 1}, {"node": 1}]}
