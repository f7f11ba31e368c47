"""The whole command line on a host that has GPUs: laid /sys and /proc in a mount namespace, real bindings on stubs.

What the shared cases say of a captured machine holds there too, and a capture made there prints what the host prints.
"""

import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numa_launch.cli import status_of
from numa_launch.machine.vendors import VENDORS
from tests.cli.test_run import NUMA_LAUNCH
from tests.host import needs_numactl
from tests.lay import TWO_NODES, Description, lay, put
from tests.live import allowed_cpus, build_preload, needs_namespaces, run_on, stub_of
from tests.plan.test_cases import cases, check_case
from tests.stubs.build import AMDSMI, stub_environment

pytestmark = [needs_namespaces, needs_numactl]

Live = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_preload(tmp_path_factory.mktemp("preload"))


@pytest.fixture
def live(preload: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Live:
    """Return a function that lays a machine and runs numa-launch on it, with its vendor's library there."""

    def run(
        machine: Description,
        *args: str,
        env: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        **settings: Any,
    ) -> Any:
        root = lay(tmp_path / "root", machine)
        for path, text in (files or {}).items():
            put(root / path, text)
        vendors = [gpu.get("vendor", "nvidia") for gpu in machine.get("gpus", [])]
        vendor = next((name for name in VENDORS if name in vendors), "nvidia")
        description = tmp_path / "description"
        description.write_text(stub_of(machine, vendor, **settings))
        amd = vendor == "amd" and AMDSMI.exists()
        library = request.getfixturevalue("amd_smi" if amd else "nvml")
        environ = {**stub_environment(library, description, AMDSMI if amd else None), **(env or {})}
        return run_on(root, NUMA_LAUNCH, *args, env=environ, cpus=allowed_cpus(machine), preload=preload)

    return run


@pytest.mark.parametrize("case", cases("machines", "visible"))
def test_the_cases_hold_live(live: Live, case: dict[str, Any]) -> None:
    done = live(case["machine"], "--dry-run", "--json", *case["args"], "--", "true", env=case["env"])
    check_case(case["expect"], done.returncode, done.stdout, done.stderr)


GPUS = [{"node": 1, "uuid": f"GPU-{i}{i}", "name": "H100", "nvml_cpus": "8-15", "mig": []} for i in range(4)]
GPUS[3]["mig"] = ["MIG-a", "MIG-b"]
RICH: Description = {
    **TWO_NODES,
    "gpus": GPUS,
    "siblings": "adjacent",
    "l3": ["0-7", "8-15"],
    "cpuset": "0-13",
    "cpuset_mems": "0-1",
    "isolated": "3",
    "distances": {"0": {"0": 10, "1": 21}, "1": {"0": 21, "1": 10}},
}

MACHINES: dict[str, tuple[Description, dict[str, Any]]] = {
    "rich": (RICH, {}),
    "sources that disagree": ({**TWO_NODES, "gpus": [{"node": 0, "nvml_cpus": "8-15"}]}, {}),
    "a driver that fails": ({**TWO_NODES, "gpus": [{"node": 0}, {"node": -1}]}, {"fail": "nvmlInitWithFlags 18"}),
    "a GPU that is lost": (
        {**TWO_NODES, "gpus": [{"node": 0}, {"node": 1, "fail": "nvmlDeviceGetHandleByIndex_v2 15"}]},
        {},
    ),
    "a container without GPUs": ({**TWO_NODES, "gpus": [{"node": 0}, {"node": 1}]}, {"count": 0}),
    "narrowed by taskset": ({**TWO_NODES, "gpus": [{"node": 0}], "allowed_cpus": "2-5", "allowed_mems": "0-1"}, {}),
    "a memory policy": ({**TWO_NODES, "gpus": [{"node": 0}], "policy": "bind:0"}, {}),
    "priority cores": (
        {
            "nodes": {"0": {"cpus": "0-31"}, "1": {"cpus": "32-63"}},
            "cpu_model": "Intel(R) Xeon(R) 6776P",
            "highest_perf": 46,
            "gpus": [{"node": 0}, {"node": 1}],
        },
        {},
    ),
    "kernel without NUMA": ({"nodes": {"0": {"cpus": "0-7"}}, "no_node_dir": True, "gpus": [{"node": -1}]}, {}),
    "memory-only and memory-less nodes": (
        {
            "nodes": {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7", "mem_mb": 0}, "2": {"cpus": ""}},
            "gpus": [{"node": 1}, {"node": 2, "local_cpus": ""}],
        },
        {},
    ),
    "no GPU": (TWO_NODES, {}),
    "AMD": ({**TWO_NODES, "gpus": [{"vendor": "amd", "class": "0x120000", "node": i} for i in (0, 1)]}, {}),
    "Intel": ({**TWO_NODES, "gpus": [{"vendor": "intel", "node": i} for i in (0, 1)]}, {}),
    "several vendors": ({**TWO_NODES, "gpus": [{"node": 1}, {"vendor": "amd", "node": 0}]}, {}),
    "old kernel": ({**TWO_NODES, "gpus": [{"node": 0}], "no_cpulist": True, "no_online": True}, {}),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_capture_prints_what_the_host_prints(
    live: Live, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, settings = MACHINES[name]
    file = str(tmp_path / "captured.tar.gz")
    done = live(machine, "capture", file, **settings)
    assert done.returncode == 0, done.stderr
    for args in (["topo"], ["--dry-run", "--json"]):
        on_host = live(machine, *args, **settings)
        assert (status_of([*args, "--root", file]), *capsys.readouterr()) == (
            on_host.returncode,
            on_host.stdout,
            on_host.stderr,
        )
        assert on_host.stdout


@pytest.mark.parametrize("text", ["GPU-22,MIG-a", "MIG-GPU-33/1/0"])
def test_a_capture_knows_uuids_and_slices(
    live: Live, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "captured.tar.gz")
    live(RICH, "capture", file)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    on_host = live(RICH, "--dry-run", "--bind")
    assert status_of(["--dry-run", "--bind", "--root", file]) == 0
    assert capsys.readouterr().out == on_host.stdout
    assert "mode explicit: bound" in on_host.stdout


SECRETS = ("alice", "node17.example", "16531220", "job_4711")
JOB = "user.slice/alice/job_4711"


def test_a_capture_names_nobody(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "captured.tar.gz"
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon\n\nSerial\t\t: 16531220beef\nMachine: alice's",
        "proc/sys/kernel/hostname": "node17.example",
        "proc/self/cgroup": f"0::/{JOB}",
        f"sys/fs/cgroup/{JOB}/cpuset.cpus.effective": "2-5",
    }
    done = live(RICH, "capture", str(file), env={"USER": "alice", "HOSTNAME": "node17.example"}, files=files)
    assert done.returncode == 0, done.stderr
    with tarfile.open(file) as tar:
        members = {member: tar.extractfile(member) for member in tar.getmembers()}
        texts = {member.name: content.read().decode() for member, content in members.items() if content}
    assert len(texts) == len(members)
    assert not [name for name, text in texts.items() if any(secret in name + text for secret in SECRETS)]
    for member in members:
        assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
    assert texts["proc/cpuinfo"] == "processor\t: 0\nmodel name\t: Xeon\n"
    assert texts["sys/fs/cgroup/captured/cpuset.cpus.effective"] == "2-5\n"
    assert json.loads(texts["gpus.json"])[3]["mig"] == ["MIG-a", "MIG-b"]


def test_the_driver_is_not_asked_where_nothing_depends_on_it(live: Live, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for args in (["--no-bind"], ["--map", "rank", "--nproc", "2", "--dry-run"], ["--dry-run"]):
        done = live(RICH, *args, "--", "true", calls=calls)
        assert done.returncode == 0, done.stderr
        assert calls.exists() == ("--dry-run" in args)
        calls.unlink(missing_ok=True)
