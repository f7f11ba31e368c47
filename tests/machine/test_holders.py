"""Which processes hold which GPU: the real bindings on stub libraries, on laid hosts that have the driver's files."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.machine.holders import Holders, holders_below
from numa_launch.machine.read import read_machine
from tests.lay import TWO_NODES, Description, lay, put
from tests.live import allowed_cpus, build_preload, needs_namespaces, run_on, stub_of
from tests.machine.vendors.live import read_live, use_stub
from tests.stubs.build import AMDSMI, ROOT, needs_amdsmi, needs_compiler, stub_environment

Ask = Callable[..., Holders]
QUESTION = "nvmlDeviceGetComputeRunningProcesses"
SIGNS = {"nvidia": "proc/driver/nvidia/version", "amd": "dev/kfd"}


def lay_host(root: Path, machine: Description) -> Path:
    """Lay a machine with the sign of each vendor's driver."""
    for gpu in machine.get("gpus", []):
        vendor = gpu.get("vendor", "nvidia")
        if vendor in SIGNS:
            put(root / SIGNS[vendor], "")
    return lay(root, machine)


def gpus(*gpus: dict[str, Any], **more: Any) -> Description:
    return {**TWO_NODES, "gpus": [{"node": 0, **more, **gpu} for gpu in gpus]}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Ask:
    """Return a function that lays a host, lets the vendor's library describe its processes, and asks for them."""

    def lay_and_ask(machine: Description, library: str = "nvml", **settings: Any) -> Holders:
        vendor = "nvidia"
        if library == "amd_smi":
            monkeypatch.syspath_prepend(str(AMDSMI))
            vendor = "amd"
        text = stub_of(machine, vendor, **settings)
        use_stub(monkeypatch, request.getfixturevalue(library), tmp_path / "description", text)
        root = lay_host(tmp_path / "root", machine)
        return holders_below(str(root), read_live(root))

    return lay_and_ask


@needs_compiler
def test_every_kind_of_process_counts_once(ask: Ask) -> None:
    machine = gpus(
        {"compute": [4712, 4711], "mps": [50], "graphics": [4711]},
        {},
        {"compute": [4711, 4711], "graphics": [60]},
    )
    assert ask(machine) == ({50: (0,), 60: (2,), 4711: (0, 2), 4712: (0,)}, None)


@needs_compiler
def test_many_processes(ask: Ask) -> None:
    assert set(ask(gpus({"compute": list(range(1000, 1064))})).positions) == set(range(1000, 1064))


@needs_compiler
def test_positions_are_those_of_the_pci_addresses(ask: Ask) -> None:
    """The driver counts GPUs in another order here than the host does, which goes by address."""
    machine = gpus(
        {"bdf": "0001:20:00.0", "compute": [1]}, {"bdf": "0000:90:00.0", "compute": [2]}, {"bdf": "0000:10:00.0"}
    )
    assert ask(machine).positions == {1: (2,), 2: (1,)}


@needs_compiler
def test_numbers_that_are_no_processes_are_dropped(ask: Ask) -> None:
    assert ask(gpus({"compute": [0, 4711, 4294967295, 4194304]})) == ({4711: (0,)}, None)


@needs_compiler
def test_a_driver_that_lacks_the_newest_form_is_asked_by_the_one_before(ask: Ask) -> None:
    machine = gpus({"compute": [4711], "mps": [50]}, {"compute": [4712]})
    assert ask(machine, fail=[f"{QUESTION}_v3 13"]) == ({50: (0,), 4711: (0,), 4712: (1,)}, None)


@needs_compiler
def test_a_driver_of_before_r450_is_not_understood(ask: Ask) -> None:
    """The binding has no longer the form that such a driver knows."""
    assert ask(gpus({"compute": [4711], "mig": ["MIG-a"]}), "old_nvml") == ({}, None)


@needs_compiler
@pytest.mark.parametrize("status", [3, 4])
def test_what_is_not_supported_or_not_allowed_is_unknown(ask: Ask, status: int) -> None:
    machine = gpus({"compute": [4711], "graphics": [60]}, {"compute": [4712]})
    machine["gpus"][0]["fail"] = [f"{QUESTION}_v3 {status}", f"{QUESTION}_v2 {status}"]
    assert ask(machine) == ({60: (0,), 4712: (1,)}, None)


@needs_compiler
def test_a_gpu_that_this_process_may_not_open_is_left_out(ask: Ask) -> None:
    machine = gpus({"compute": [4711], "fail": "nvmlDeviceGetHandleByIndex_v2 4"}, {"compute": [4712]})
    assert ask(machine) == ({4712: (0,)}, None)  # nor is it one of the machine's


@needs_compiler
@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", f"{QUESTION}_v3"])
def test_a_lost_gpu_leaves_the_others_and_is_told_of(ask: Ask, function: str) -> None:
    machine = gpus(*({"compute": [4711 + i], "uuid": f"GPU-{i}"} for i in range(3)))
    for gpu in machine["gpus"][:2]:
        gpu["fail"] = [f"{function} 15", f"{QUESTION}_v2 15"]
    assert ask(machine) == ({4713: (2,)}, "NVML: GPU is lost: reset that GPU, or reboot")


@needs_compiler
def test_a_gpu_whose_address_is_nonsense_is_told_of(ask: Ask) -> None:
    machine = gpus({"compute": [4711]}, {"compute": [4712], "fail": "nvmlDeviceGetPciInfo_v3 15"})
    assert ask(machine) == ({4711: (0,)}, "NVML: GPU is lost: reset that GPU, or reboot")


@needs_compiler
def test_the_whole_of_a_gpu_in_mig_mode_tells_the_processes_of_its_slices(ask: Ask) -> None:
    assert ask(gpus({"compute": [1, 2], "mig": ["MIG-a", "MIG-b"]}, {"compute": [3]})).positions == {1: (0,), 2: (0,)}


@needs_compiler
def test_who_may_not_see_the_whole_is_told_by_the_slices(ask: Ask) -> None:
    machine = gpus({"compute": [11, 12], "mps": [50], "mig": ["MIG-a", "MIG-b"], "sliced": 1})
    assert ask(machine) == ({11: (0,), 12: (0,), 50: (0,)}, None)


@needs_compiler
def test_a_library_that_hangs_or_crashes_is_a_problem(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numa_launch.machine.driver.TIME_LIMIT_S", 1)
    assert ask(gpus({}), hang=f"{QUESTION}_v3") == (
        {},
        "NVML: it gave no answer in 1 s: look for GPU errors in dmesg",
    )
    assert ask(gpus({}), crash=f"{QUESTION}_v3").problem == (
        "NVML: it crashed (signal 6): look for GPU errors in dmesg"
    )


def amd(*each: dict[str, Any]) -> Description:
    return gpus(*each, vendor="amd", **{"class": "0x120000"})


@needs_amdsmi
def test_amd(ask: Ask) -> None:
    assert ask(amd({"compute": [4711]}, {"compute": [4712, 4711, 0]}), "amd_smi") == ({4711: (0, 1), 4712: (1,)}, None)


@needs_amdsmi
@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (2, None),
        (10, None),
        (8, "AMD SMI: AMDSMI_STATUS_TIMEOUT - Timeout in API call: run amd-smi list to see more"),
    ],
)
def test_amd_a_question_that_fails_leaves_the_others(ask: Ask, status: int, problem: str | None) -> None:
    machine = amd({"compute": [4711], "fail": f"amdsmi_get_gpu_process_list {status}"}, {"compute": [4712]})
    assert ask(machine, "amd_smi") == ({4712: (1,)}, problem)


BINDINGS = {
    "structures": "[types.SimpleNamespace(pid=4711)]",
    "dictionaries": "[{'name': 'python', 'pid': 4711}]",
    "handles": "[object()]",
    "no numbers": "[{'pid': 'N/A'}, {}, None]",
    "no list": "'N/A'",
}


@pytest.mark.parametrize("binding", BINDINGS)
def test_amd_what_a_binding_of_another_version_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binding: str
) -> None:
    (tmp_path / "amdsmi.py").write_text(f"""
import types
class AmdSmiException(Exception): ...
def amdsmi_init(): ...
def amdsmi_get_processor_handles(): return [1]
def amdsmi_get_gpu_device_bdf(handle): return "0000:10:00.0"
def amdsmi_get_gpu_process_list(handle): return {BINDINGS[binding]}
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    root = lay_host(tmp_path / "root", amd({}))
    known = binding in ("structures", "dictionaries")
    assert holders_below(str(root), read_live(root)) == ({4711: (0,)} if known else {}, None)


@pytest.mark.parametrize("vendor", ["amd", "nvidia"])
def test_a_missing_library_or_package_is_said(tmp_path: Path, vendor: str) -> None:
    root = lay_host(tmp_path, gpus({"vendor": vendor}))
    missing = {
        "amd": "AMD SMI: the Python package amdsmi is missing: pip install amdsmi",
        "nvidia": "NVML: NVML Shared Library Not Found: install the driver's libnvidia-ml.so.1",
    }
    held, problem = holders_below(str(root), read_machine(root, environ={}))
    assert held == {} and str(problem).startswith(missing[vendor])


@pytest.mark.parametrize("found", [[], [{"vendor": "intel"}], [{"vendor": "nvidia"}], [{"vendor": "amd"}]])
def test_nobody_is_asked_without_gpus_or_without_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[dict[str, Any]]
) -> None:
    """Of the four hosts none has a driver's sign, and the one without GPUs would not be asked if it had."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # so that a child would show as a problem
    root = lay(tmp_path, gpus(*found))
    if not found:
        put(root / SIGNS["nvidia"], "")
    assert holders_below(str(root), read_machine(root, environ={})) == ({}, None)


@needs_namespaces
def test_on_a_host_with_gpus(nvml: Path, tmp_path: Path) -> None:
    machine = gpus({"compute": [4711]}, {"compute": [4712], "mps": [4711]})
    root = lay_host(tmp_path / "root", machine)
    (tmp_path / "description").write_text(stub_of(machine))
    program = (
        "from numa_launch.machine.read import read_machine\n"
        "from numa_launch.machine.holders import gpu_holders\nprint(*gpu_holders(read_machine()))"
    )
    done = run_on(
        root,
        sys.executable,
        "-c",
        program,
        env={**stub_environment(nvml, tmp_path / "description"), "PYTHONPATH": str(ROOT)},
        cpus=allowed_cpus(machine),
        preload=build_preload(tmp_path / "preload"),
    )
    assert (done.stdout, done.stderr) == ("{4711: (0, 1), 4712: (1,)} None\n", "")


def test_a_host_without_gpus_loads_nothing_that_asks() -> None:
    program = (
        "import sys\nfrom numa_launch.machine.holders import gpu_holders\n"
        "from numa_launch.machine.model import Limits, Machine\n"
        "print(gpu_holders(Machine((), frozenset(), Limits(None))), 'numa_launch.machine.driver' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Holders(positions={}, problem=None) False\n"
