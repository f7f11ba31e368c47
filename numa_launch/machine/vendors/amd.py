"""AMD: PCI classes, ROCm's variables, and AMD SMI through the package amdsmi.

Example: ``ask(127)`` on a host with eight MI300X is eight dictionaries with the keys of gpus.json.
Sources: AMD SMI library reference; ROCm documentation (GPU isolation); kernel Documentation/gpu/amdgpu.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from numa_launch.machine.files import read_value
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.pci import DEVICES, render_node
from numa_launch.machine.vendors.vendor import FileFacts, Library, Questions, UnansweredError, Vendor
from numa_launch.machine.visible import Visible, visible_by_lists

NOT_SUPPORTED = {2, 3, 10, 31, 40}
"""AMD SMI's not supported, not yet implemented, no permission, not found and no data."""

UNKNOWN_NODE = 0xFFFFFFFF


def explain(error: Any) -> str | None:
    """Return what an AmdSmiException says and what to do about it; None where it only means that nothing is known."""
    return None if getattr(error, "err_code", None) in NOT_SUPPORTED else explained(error)


def explained(error: Any) -> str:
    said = error.get_error_info() if hasattr(error, "get_error_info") else str(error)
    return f"{' '.join(said.split())}: run amd-smi list to see more"


def ask(highest_cpu: int) -> list[dict[str, Any]]:
    """Return what AMD SMI knows of each GPU."""
    return [gpu_entry(index, questions, handle) for index, (questions, handle) in enumerate(opened_gpus())]


def ask_processes() -> list[dict[str, Any]]:
    """Return the processes that AMD SMI sees on each GPU."""
    return [process_entry(questions, handle) for questions, handle in opened_gpus()]


def opened_gpus() -> list[tuple[Questions, Any]]:
    """Return the handle of each GPU, and what asks about it."""
    try:
        import amdsmi
    except (KeyError, AttributeError, OSError) as error:  # what its import raises without the library, or with another
        missing = "is missing" if isinstance(error, KeyError) else f"is of another version ({error})"
        raise UnansweredError(f"the system library libamd_smi.so {missing}: install ROCm's amd-smi-lib") from None
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException as error:
        raise UnansweredError(explained(error)) from None
    return [(Questions(amdsmi, (amdsmi.AmdSmiException,), explain), handle) for handle in handles]


def gpu_entry(index: int, questions: Questions, handle: Any) -> dict[str, Any]:
    asic = questions.ask("amdsmi_get_gpu_asic_info", handle) or {}
    return {
        "index": index,
        "bdf": address(questions, handle),
        "uuid": hip_uuid(questions, handle, asic),
        "name": known(asic.get("market_name")),
        "numa_node": near_node(questions, handle),
        "problem": questions.problem,
    }


def process_entry(questions: Questions, handle: Any) -> dict[str, Any]:
    said = questions.ask("amdsmi_get_gpu_process_list", handle)
    pids = [pid_of(process) for process in said] if isinstance(said, list) else []
    return {
        "bdf": address(questions, handle),
        "pids": [pid for pid in pids if isinstance(pid, int)],
        "problem": questions.problem,
    }


def pid_of(process: Any) -> Any:
    """Return a process's PID: bindings give dictionaries, or, before ROCm 6.2, the library's own structures."""
    return process.get("pid") if isinstance(process, dict) else getattr(process, "pid", None)


def address(questions: Questions, handle: Any) -> str | None:
    return questions.address(questions.ask("amdsmi_get_gpu_device_bdf", handle))


def known(text: Any) -> str | None:
    """Return a text of the library's, None where it has none."""
    return text if isinstance(text, str) and text not in ("", "N/A") else None


def hip_uuid(questions: Questions, handle: Any, asic: Mapping[str, Any]) -> str | None:
    """Return the UUID by which ROCR_VISIBLE_DEVICES names the GPU: ``GPU-`` and the 16 digits of its unique id.

    Before ROCm 6.4 only the chip's number says it, in another form.
    """
    numbered = questions.ask("amdsmi_get_gpu_enumeration_info", handle) or {}
    uuid = known(numbered.get("hip_uuid"))
    if uuid and uuid.startswith("GPU-"):
        return uuid
    try:
        return f"GPU-{int(known(asic.get('asic_serial')) or '', 16):016x}"
    except ValueError:
        return None


def near_node(questions: Questions, handle: Any) -> int | None:
    """Return the node of the CPUs near the GPU, by the first of two functions that knows it."""
    for name in ("amdsmi_topo_get_numa_node_number", "amdsmi_get_gpu_topo_numa_affinity"):
        node = questions.ask(name, handle)
        if isinstance(node, int) and 0 <= node < UNKNOWN_NODE:
            return node
    return None


def read_facts(root: str, addresses: Sequence[str]) -> dict[str, FileFacts]:
    """Return each GPU's UUID from amdgpu's ``unique_id`` in sysfs, and its device node, by PCI address."""
    said = {}
    for bdf in addresses:
        unique = read_value(f"{root}{DEVICES}/{bdf}/unique_id", lambda text: f"{int(text, 16):016x}")
        said[bdf] = FileFacts(uuid=unique and f"GPU-{unique}", device_node=render_node(root, bdf))
    return said


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return what ROCR_VISIBLE_DEVICES leaves, and of that what HIP_VISIBLE_DEVICES, else CUDA's variable, leaves."""
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    return visible_by_lists(gpus, environ, ["ROCR_VISIBLE_DEVICES", hip])


VENDOR = Vendor(
    name="amd",
    pci_id="0x1002",
    # An Instinct host's integrated graphics (0x0300) is not a worker's GPU.
    classes=((0x0380, 0x1200, 0x0302), (0x0300,)),
    variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    visible=visible,
    read_facts=read_facts,
    facts_path=f"{DEVICES}/{{bdf}}/unique_id",
    library=Library(
        name="AMD SMI",
        package="amdsmi",
        module="amdsmi",
        ask=ask,
        signs=("/dev/kfd",),
        cpus_source=None,
        node_source="amd-node",
        ask_processes=ask_processes,
    ),
)
