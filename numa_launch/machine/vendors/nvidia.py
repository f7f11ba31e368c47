"""NVIDIA: PCI classes, CUDA's variables, ``/proc/driver/nvidia`` and NVML through the package nvidia-ml-py.

Example: ``ask(223)`` on a DGX H100 is eight dictionaries with the keys of gpus.json.
Sources: NVML API reference; CUDA C Programming Guide (environment variables); the driver's README (/proc interface).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numa_launch.idsets import format_ids
from numa_launch.machine.files import list_names, printable, read_text
from numa_launch.machine.gpu import Gpu
from numa_launch.machine.pci import normal_bdf
from numa_launch.machine.vendors.vendor import FileFacts, Library, Questions, UnansweredError, Vendor
from numa_launch.machine.visible import Visible, visible_by_lists
from numa_launch.reasons import Note, note

PROC = "/proc/driver/nvidia/gpus"

NO_PERMISSION = 4
NOT_SUPPORTED = {3, NO_PERMISSION, 6, 13, 21}
"""NVML's not supported, no permission, not found, function not found and no data: it just does not know."""

FIXES = {
    9: "load the kernel module nvidia",
    12: "install the driver's libnvidia-ml.so.1, or give it to the container (NVIDIA_DRIVER_CAPABILITIES=utility)",
    15: "reset that GPU, or reboot",
    18: "reload the kernel module nvidia, or reboot, so that it and the library are of one version",
}
"""NVML's error codes whose remedy is known."""

KINDS = ("Compute", "MPSCompute", "Graphics")
"""The kinds of process that NVML tells apart: the clients of an MPS server are not among the first."""


def explain(error: Any) -> str | None:
    """Return what an NVMLError says and what to do about it; None where it only means that nothing is known."""
    if error.value in NOT_SUPPORTED:
        return None
    return explained(error)


def explained(error: Any) -> str:
    return f"{str(error).rstrip('.')}: {FIXES.get(error.value, 'run nvidia-smi to see more')}"


def ask(highest_cpu: int) -> list[dict[str, Any]]:
    """Return what NVML knows of each GPU it counts (in PCI order, whatever CUDA_VISIBLE_DEVICES says)."""
    return [gpu_entry(index, questions, handle, highest_cpu) for index, questions, handle in opened_gpus()]


def ask_processes() -> list[dict[str, Any]]:
    """Return the processes that NVML sees on each GPU."""
    return [process_entry(questions, handle) for _, questions, handle in opened_gpus()]


def opened_gpus() -> Iterator[tuple[int, Questions, Any]]:
    """Yield index and handle of each GPU, and what asks about it; a lost one has no handle.

    One that this process may not open is left out: NVML counts it, CUDA does not.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise UnansweredError(explained(error)) from None
    for index in range(count):
        questions = Questions(pynvml, (pynvml.NVMLError,), explain)
        handle = questions.ask("nvmlDeviceGetHandleByIndex", index)
        if NO_PERMISSION not in questions.refusals:
            yield index, questions, handle


def gpu_entry(index: int, questions: Questions, handle: Any, highest_cpu: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": index}
    if handle is not None:
        entry |= {
            "bdf": address(questions, handle),
            "uuid": uuid_of(questions, handle),
            "name": text_of(questions.ask("nvmlDeviceGetName", handle)),
            "numa_node": questions.ask("nvmlDeviceGetNumaNodeId", handle),
            "cpu_affinity": near_cpus(questions, handle, highest_cpu),
            "mig": [uuid for uuid in (uuid_of(questions, part) for part in slices(questions, handle)) if uuid],
        }
    return {**entry, "problem": questions.problem}


def process_entry(questions: Questions, handle: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"pids": []}
    if handle is not None:
        entry = {"bdf": address(questions, handle), "pids": sorted(holders(questions, handle))}
    return {**entry, "problem": questions.problem}


def holders(questions: Questions, handle: Any) -> set[int]:
    """Return the PIDs of the processes on a GPU; who may not see the whole of one in MIG mode may see its slices."""
    on_gpu = [processes(questions, kind, handle) for kind in KINDS]
    if on_gpu[0] is None:
        on_gpu += [processes(questions, kind, part) for part in slices(questions, handle) for kind in KINDS]
    return {process.pid for some in on_gpu for process in some or ()}


def processes(questions: Questions, kind: str, handle: Any) -> list[Any] | None:
    """Return the processes of a kind, by the newest form of the question that binding and driver know.

    The form without a number, in which new bindings mean the newest, is for the first bindings, which have no other.
    """
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    forms = [form for form in (f"{name}_v3", f"{name}_v2") if hasattr(questions.binding, form)] or [name]
    answers = (questions.ask(form, handle) for form in forms)
    return next((answer for answer in answers if answer is not None), None)


def address(questions: Questions, handle: Any) -> str | None:
    pci = questions.ask("nvmlDeviceGetPciInfo", handle)
    return questions.address(text_of(pci.busId) if pci else None)


def text_of(text: str | bytes | None) -> str | None:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def near_cpus(questions: Questions, handle: Any, highest_cpu: int) -> str | None:
    """Return the CPUs of the nearest node as a list; drivers before R450 know no scope and mean the node's too."""
    words = highest_cpu // 64 + 1
    mask = questions.ask("nvmlDeviceGetCpuAffinityWithinScope", handle, words, 0)
    if mask is None:
        mask = questions.ask("nvmlDeviceGetCpuAffinity", handle, words)
    bits = [64 * i + bit for i, word in enumerate(mask or ()) for bit in range(64) if word >> bit & 1]
    return format_ids(bits) or None


def uuid_of(questions: Questions, handle: Any) -> str | None:
    return text_of(questions.ask("nvmlDeviceGetUUID", handle))


def slices(questions: Questions, handle: Any) -> list[Any]:
    """Return the handles of the GPU's MIG slices, asked through it: a slice's own index says nothing of its parent."""
    if (questions.ask("nvmlDeviceGetMigMode", handle) or [0])[0] != 1:
        return []
    places = range(questions.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
    parts = (questions.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in places)
    return [part for part in parts if part is not None]


def read_facts(root: str, addresses: Sequence[str]) -> dict[str, FileFacts]:
    """Return what ``/proc/driver/nvidia/gpus/*/information`` says, by PCI address."""
    said = {}
    for name in list_names(f"{root}{PROC}"):
        lines = (read_text(f"{root}{PROC}/{name}/information") or "").splitlines()
        values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        uuid, minor = values.get("GPU UUID", ""), values.get("Device Minor", "")
        try:
            said[normal_bdf(name)] = FileFacts(
                # Before the first use of a GPU its UUID reads GPU-????????-....
                uuid=uuid if uuid and "?" not in uuid else None,
                name=printable(values.get("Model")) or None,
                device_node=f"/dev/nvidia{minor}" if minor.isascii() and minor.isdigit() else None,
            )
        except ValueError:
            continue
    return said


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    seen = visible_by_lists(gpus, environ, ["CUDA_VISIBLE_DEVICES"])
    return seen._replace(notes=device_order_note(gpus, environ) + seen.notes)


def device_order_note(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Note, ...]:
    """Return the warning due where CUDA may count the fastest GPU first instead of in PCI order."""
    models = {gpu.name for gpu in gpus}
    if None in models:
        models = {gpu.device for gpu in gpus}
    if len(models) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ()
    return (note("cuda-device-order"),)


VENDOR = Vendor(
    name="nvidia",
    pci_id="0x10de",
    classes=((0x0300, 0x0302),),
    variables=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    visible=visible,
    read_facts=read_facts,
    facts_path=f"{PROC}/{{bdf}}/information",
    library=Library(
        name="NVML",
        package="nvidia-ml-py",
        module="pynvml",
        ask=ask,
        signs=("/dev/nvidiactl", "/proc/driver/nvidia/version"),
        cpus_source="nvml-cpus",
        node_source="nvml-node",
        node_may_be_its_own=True,
        ask_processes=ask_processes,
    ),
)
