"""The captured machines, where they are: what lstopo, lscpu and numactl read from the same files.

They are not part of the project (their licences are not ours); without them these tests are left out.
"""

import functools
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from numa_launch.cli.topo import topo_json
from numa_launch.idsets import parse_ids
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from numa_launch.machine.topology import Topology, read_topology

MACHINES = Path(__file__).parents[3] / "shared/machines"


def cases(pattern: str = "*") -> list[Path | ParameterSet]:
    if MACHINES.exists():
        return [*sorted(MACHINES.glob(f"{pattern}.json"))]
    return [pytest.param(MACHINES, marks=pytest.mark.skip(reason="no captured machines beside the project"))]


def unpack(file: Path, to: Path) -> Path:
    with tarfile.open(file.parent / f"{file.stem}.tar.gz") as tar:
        tar.extractall(to, filter="fully_trusted")
    return to if (to / "sys").exists() else next(path for path in to.iterdir() if path.is_dir())


@functools.cache
def captured(file: Path) -> tuple[Machine, Topology]:
    """Return a captured machine, unpacked and read once."""
    with tempfile.TemporaryDirectory() as directory:
        root = unpack(file, Path(directory))
        machine = read_machine(root, environ={})
        return machine, read_topology(root, machine)


def sets(texts: Any) -> set[frozenset[int]]:
    return {parse_ids(text) for text in (texts.values() if isinstance(texts, dict) else texts)}


@pytest.mark.parametrize("file", cases(), ids=lambda path: path.stem)
def test_a_capture_is_read_as_others_read_it(file: Path) -> None:
    wanted = json.loads(file.read_text())
    got = topo_json(*captured(file))
    nodes = wanted["nodes"] or {"0": {"cpus": got["online_cpus"]}}
    assert {str(node["id"]): parse_ids(node["cpus"]) for node in got["nodes"]} == {
        i: parse_ids(node["cpus"]) for i, node in nodes.items()
    }
    known = {i: node["memory_kb"] for i, node in nodes.items() if node.get("memory_kb") is not None}
    assert known.items() <= {str(node["id"]): node["memory_kb"] for node in got["nodes"]}.items()
    for key, texts in (("cores", got["cores"]), ("l3", got["l3"]), ("sockets", [p["cpus"] for p in got["packages"]])):
        if wanted.get(key):
            assert len(texts) == len(sets(texts))
            assert sets(texts) == sets(wanted[key])
    if "gpus" in wanted:
        assert [(gpu["bdf"], gpu["node"]) for gpu in got["gpus"]] == [
            (gpu["bdf"], gpu["node"]) for gpu in wanted["gpus"]
        ]
