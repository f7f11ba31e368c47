"""The files of this host that a plan for it needs, without what names the host or its users.

Example: ``capture_host(None, {})["sys/devices/system/node/node0/cpulist"]`` is ``"0-7"`` and a line end.
What this process may use is written anew, as the files themselves name users and jobs (cgroup paths) or hold more
than is needed (/proc/self/status, /proc/cpuinfo).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from numa_launch.idsets import format_ids
from numa_launch.machine.answers import GPUS_FILE, SILENCE_FILE, gpus_json
from numa_launch.machine.files import list_names, read_text
from numa_launch.machine.gpus import Ask, Found, given, read_gpus
from numa_launch.machine.limits import read_limits
from numa_launch.machine.model import Limits
from numa_launch.machine.nodes import CPU, NODE, node_ids, numbered, read_nodes
from numa_launch.machine.pci import DEVICES, read_pci_gpus
from numa_launch.machine.read import driver_of, read_online, require_linux
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import Vendor

ALL_CPUS_FILES = ("possible", "present", "isolated", "kernel_max")
ALL_NODES_FILES = ("online", "possible", "has_cpu", "has_memory")
CPU_FILES = (
    ("online",),
    ("acpi_cppc/highest_perf",),
    ("topology/thread_siblings_list", "topology/core_cpus_list", "topology/thread_siblings"),
    ("topology/core_siblings_list", "topology/package_cpus_list", "topology/core_siblings"),
    ("topology/physical_package_id",),
    ("topology/core_id",),
)
CACHE_FILES = (("level",), ("type",), ("size",), ("shared_cpu_list", "shared_cpu_map"))
"""Of each group, the first that a kernel has."""

PCI_FILES = ("class", "vendor", "device", "numa_node", "local_cpulist")
CPU_MODEL = re.compile(r"(?:processor|vendor_id|cpu family|model|model name|stepping|cpu|CPU \w+)[ \t]*:.*\n")


def capture_host(vendor: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file of this host, by its path below the capture's top.

    `vendor` says whose GPUs count (None: the host's first). Raises PlatformError on other systems than Linux.
    """
    require_linux()
    return capture_below("", vendor, environ, driver_of(""))


def capture_below(top: str, vendor: str | None, environ: Mapping[str, str], ask: Ask) -> dict[str, str]:
    """Return the files of the machine below `top` (``""``: this host), whose driver `ask` asks."""
    online = read_online(top)
    found = read_gpus(top, read_nodes(top, online), vendor, ask)
    limits = read_limits(top, online, environ)
    paths = [*node_paths(top), *cpu_paths(top), *gpu_paths(top, found, all_vendors=vendor is not None)]
    texts = ((path, read_text(f"{top}{path}")) for path in paths)
    files = {path: text for path, text in texts if text is not None}
    files |= {path: own_lines(text, "MemTotal") for path, text in files.items() if path.endswith("/meminfo")}
    files[f"{CPU}/online"] = format_ids(online)
    files["/proc/cpuinfo"] = first_cpu(read_text(f"{top}/proc/cpuinfo", most=8192) or "")
    files |= limit_files(limits) | answer_files(found)
    return {path.lstrip("/"): f"{text.rstrip()}\n" for path, text in sorted(files.items())}


def node_paths(top: str) -> Iterator[str]:
    for name in ALL_NODES_FILES if node_ids(top) else ():
        yield f"{NODE}/{name}"
    for node in node_ids(top):
        for name in ("cpulist", "cpumap", "distance", "meminfo"):
            yield f"{NODE}/node{node}/{name}"


def cpu_paths(top: str) -> Iterator[str]:
    for name in ALL_CPUS_FILES:
        yield f"{CPU}/{name}"
    for cpu in numbered(list_names(f"{top}{CPU}"), "cpu"):
        own = f"{CPU}/cpu{cpu}"
        yield from first_ones(top, own, CPU_FILES)
        for index in numbered(list_names(f"{top}{own}/cache"), "index"):
            yield from first_ones(top, f"{own}/cache/index{index}", CACHE_FILES)


def first_ones(top: str, directory: str, groups: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield of each group the path of the first file that is there."""
    for group in groups:
        paths = (f"{directory}/{name}" for name in group)
        yield from [path for path in paths if read_text(f"{top}{path}") is not None][:1]


def gpu_paths(top: str, found: Found, all_vendors: bool) -> Iterator[str]:
    """Yield the files of the GPUs.

    Those that this process was not given are left out. So are vendors before the one chosen: they have no GPU for this
    process, and would be chosen when the capture is read.
    """
    vendors = list(VENDORS.values())
    first = vendors.index(found.vendor) if found.vendor and found.gpus and not all_vendors else 0
    for vendor in vendors[first:]:
        for bdf in addresses(top, vendor, found):
            for name in PCI_FILES:
                yield f"{DEVICES}/{bdf}/{name}"
            if vendor.facts_path:
                yield vendor.facts_path.format(bdf=bdf)


def addresses(top: str, vendor: Vendor, found: Found) -> list[str]:
    """Return the PCI addresses of the vendor's GPUs, those that its library named with them."""
    pci = read_pci_gpus(top, vendor.pci_id, vendor.classes)
    if vendor == found.vendor and found.answer.gpus is not None:
        return sorted({device.bdf for device in pci} | {gpu.bdf for gpu in found.gpus if gpu.bdf})
    return [device.bdf for device in given(top, pci, vendor.read_facts(top, [device.bdf for device in pci]))]


def own_lines(text: str, word: str) -> str:
    return "\n".join(line for line in text.splitlines() if word in line)


def first_cpu(cpuinfo: str) -> str:
    """Return what /proc/cpuinfo says of the first CPU's model; some kernels put serial numbers into that file."""
    return "".join(CPU_MODEL.findall(cpuinfo.partition("\n\n")[0] + "\n"))


def limit_files(limits: Limits) -> dict[str, str]:
    """Return files that say what this process may use; what is unknown here reads as unknown there."""
    status = [f"Cpus_allowed_list:\t{'unknown' if limits.affinity is None else format_ids(limits.affinity)}"]
    if limits.memory_nodes is not None:
        status.append(f"Mems_allowed_list:\t{format_ids(limits.memory_nodes)}")
    files = {
        "/proc/self/status": "\n".join(status),
        "/proc/self/numa_maps": f"00400000 {limits.policy}" if limits.policy else "unknown",
    }
    if limits.cpuset is not None:
        files["/proc/self/cgroup"] = "0::/captured"
        files["/sys/fs/cgroup/captured/cpuset.cpus.effective"] = format_ids(limits.cpuset)
        if limits.memory_nodes is not None:
            files["/sys/fs/cgroup/captured/cpuset.mems.effective"] = format_ids(limits.memory_nodes)
    return files


def answer_files(found: Found) -> dict[str, str]:
    """Return what the vendor's library said, or why it did not."""
    answer = found.answer
    if found.vendor is None:
        return {}
    if answer.gpus is not None:
        return {f"/{GPUS_FILE}": json.dumps(gpus_json(answer.gpus, found.vendor.name), indent=1)}
    if answer.problem:
        silent = {"vendor": found.vendor.name, "problem": answer.problem, "serious": answer.serious}
        return {f"/{SILENCE_FILE}": json.dumps(silent, indent=1)}
    return {}
