"""Vendor libraries that answer from a description, built with the C compiler for the vendors' own Python bindings.

Example: ``describe([{"bdf": "0000:07:00.0", "node": 1}], hang=["nvmlInitWithFlags"])`` is such a description; a process
with the environment ``stub_environment(library, file)`` gets its answers from ``pynvml`` or ``amdsmi``.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent
ROOT = Path(__file__).parents[2]
AMDSMI = ROOT / ".venv/beside/amdsmi"
"""AMD's binding has a directory of its own: beside Ray, in one environment, it breaks Ray's start."""

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
needs_amdsmi = pytest.mark.skipif(not AMDSMI.exists() or shutil.which("cc") is None, reason="no amdsmi, or no cc")


def compile_library(directory: Path, name: str, source: str, *flags: str) -> Path:
    """Return the directory in which the library of this name now is."""
    directory.mkdir(parents=True, exist_ok=True)
    code = directory / "stub.c"
    code.write_text(source)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-w", f"-I{SOURCES}", *flags, "-o", str(directory / name), str(code)],
        check=True,
    )
    return directory


def build_nvml(directory: Path, old: bool = False) -> Path:
    """Build libnvidia-ml.so.1; an `old` one lacks what drivers before R450 do."""
    flags = ["-DOLD"] if old else []
    return compile_library(directory, "libnvidia-ml.so.1", (SOURCES / "nvml.c").read_text(), *flags)


def build_amdsmi(directory: Path) -> Path:
    """Build libamd_smi.so with every symbol that the binding looks up when it is imported."""
    source = (SOURCES / "amdsmi.c").read_text()
    wanted = set(
        re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", (AMDSMI / "amdsmi/amdsmi_wrapper.py").read_text())
    )
    assert len(wanted) > 100
    others = sorted(name for name in wanted if f"int {name}(" not in source)
    source += "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in others)
    return compile_library(directory, "libamd_smi.so", source)


def describe(gpus: Sequence[Mapping[str, Any]], **settings: Any) -> str:
    """Return a description: of each GPU its facts by key, ``mig`` and ``fail`` (and the like) being lists."""
    lines = list(lines_of(settings))
    for gpu in gpus:
        lines += ["gpu", *lines_of(gpu)]
    return "\n".join(lines) + "\n"


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    lists = {key: value if isinstance(value, list) else [value] for key, value in facts.items()}
    pairs = [(key, value) for key, values in lists.items() for value in values]
    return [f"{key} {value}" for key, value in pairs if value is not None]


def stub_environment(library: Path, description: Path, python_path: Path | None = None) -> dict[str, str]:
    """Return the variables under which a process finds the library, and the library its answers."""
    paths = [str(library), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    variables = {"LD_LIBRARY_PATH": ":".join(paths), "DRIVER_STUB": str(description)}
    return {**variables, "PYTHONPATH": str(python_path)} if python_path else variables
