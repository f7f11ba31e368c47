"""Fixtures: a machine laid on disk, and an environment without any launcher's variables."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numa_launch import log
from numa_launch.machine import driver
from numa_launch.machine.model import Machine
from numa_launch.machine.read import read_machine
from tests.lay import Description, lay
from tests.stubs.build import build_amdsmi, build_nvml

LAUNCHERS = (
    "CUDA_",
    "FLUX_",
    "HIP_",
    "LOCAL_",
    "MPI_",
    "MV2_",
    "NUMA_LAUNCH",
    "OMPI_",
    "PALS_",
    "PMI",
    "RANK",
    "ROCR_",
    "SLURM_",
    "WORLD_SIZE",
    "ZE_",
)


@pytest.fixture(autouse=True, scope="session")
def heed_interrupts() -> None:
    """Undo what a shell does to its background jobs, which this test run may be: what tests start heeds SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what a launcher of the test run itself may have set out of the environment."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    """Let each test see the notes that are said once in a process."""
    log._said.clear()
    yield
    log._said.clear()


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """Undo what a command line that a test runs in this process does to the logger."""
    logger = logging.getLogger(log.LOGGER)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def nobody_asked_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test ask a driver of its own: a process asks once."""
    monkeypatch.setattr(driver, "_answers", {})


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a stub libnvidia-ml.so.1."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of one of an old driver."""
    return build_nvml(tmp_path_factory.mktemp("old-nvml"), old=True)


@pytest.fixture(scope="session")
def amd_smi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a stub libamd_smi.so."""
    return build_amdsmi(tmp_path_factory.mktemp("amdsmi"))


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Machine]:
    """Return a function that lays a described machine and reads it, under the variables given."""

    def lay_and_read(description: Description, environ: dict[str, str] | None = None, **options: Any) -> Machine:
        return read_machine(lay(tmp_path / "root", description), environ=environ or {}, **options)

    return lay_and_read


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each guest took, and each scenario in it."""
    from tests.vm.conftest import TIMES

    for name, seconds in TIMES.items():
        terminalreporter.write_line(f"guest {name}: {seconds:.0f} s")
