"""Read a laid machine with the vendor's real binding on a stub library.

Example: ``read_live(lay(tmp_path, machine), {"LOCAL_RANK": "0"})`` asks as on a live host, in a child process.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from numa_launch.machine.model import Machine
from numa_launch.machine.read import driver_of, read_below
from tests.stubs.build import stub_environment


def use_stub(monkeypatch: pytest.MonkeyPatch, library: Path, description: Path, text: str) -> None:
    """Let this process's children find the stub library, which answers what the text says."""
    description.write_text(text)
    for name, value in stub_environment(library, description).items():
        monkeypatch.setenv(name, value)


def read_live(root: Path, environ: Mapping[str, str] | None = None, vendor: str | None = None) -> Machine:
    """Return the machine below `root` as if it were this one, its driver asked."""
    return read_below(str(root), vendor, environ or {}, driver_of(str(root)))
