"""What importing costs, which way the packages may import each other, and that other systems can import them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import numa_launch

PACKAGE = Path(numa_launch.__file__).parent
LAYERS = ["machine", "plan", "apply", "observe", "launchers", "bench", "doctor", "cli"]
MODULES = sorted(PACKAGE.rglob("*.py"))


def python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_numa_launch_loads_nothing_heavy() -> None:
    loaded = python("import sys, numa_launch; print(*sys.modules)").split()
    heavy = {"click", "rich", "psutil", "subprocess", "multiprocessing", "logging", "pynvml", "amdsmi", "json"}
    assert not heavy & set(loaded)


def test_the_command_line_loads_no_table_before_it_prints_one() -> None:
    loaded = python(
        "import sys, click; before = set(sys.modules); import numa_launch.cli; print(*set(sys.modules) - before)"
    )
    assert not {"rich", "psutil", "multiprocessing", "json", "subprocess"} & set(loaded.split())


def test_every_public_name_is_there() -> None:
    for name in numa_launch.__all__:
        assert getattr(numa_launch, name) is not None
    with pytest.raises(AttributeError):
        _ = numa_launch.no_such_name


def test_plan_stays_a_function_whatever_is_imported() -> None:
    program = "import numa_launch, numa_launch.apply.spawn, numa_launch.cli; print(callable(numa_launch.plan))"
    assert python(program) == "True"


def imported_by(module: Path) -> set[str]:
    """Return the dotted names that a module imports, the names taken from a package with it."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def layer_of(parts: tuple[str, ...]) -> int:
    """Return a layer's number; the modules at the top, which all may use, are below the first."""
    return LAYERS.index(parts[0]) if parts and parts[0] in LAYERS else -1


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(module: Path) -> None:
    parts = module.relative_to(PACKAGE).parts
    if parts in (("__init__.py",), ("__main__.py",), ("ray.py",)):
        return
    for name in imported_by(module):
        if name.startswith("numa_launch."):
            assert layer_of(tuple(name.split(".")[1:])) <= layer_of(parts), name


@pytest.mark.parametrize("module", sorted((PACKAGE / "plan").glob("*.py")), ids=lambda path: path.name)
def test_a_plan_has_no_io_no_clock_and_no_environment(module: Path) -> None:
    impure = {"os", "sys", "time", "subprocess", "logging", "pathlib", "io", "random", "multiprocessing"}
    reads = {"numa_launch.machine.read", "numa_launch.machine.files", "numa_launch.log"}
    assert not {name for name in imported_by(module) if name.split(".")[0] in impure or name in reads}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is_for(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_another_system_can_import_everything_and_is_told_on_use() -> None:
    program = """
import sys
sys.platform = "darwin"
import os, random  # which needs register_at_fork, as it finds a fork here
for name in ("sched_getaffinity", "sched_setaffinity", "register_at_fork"):
    delattr(os, name)
import numa_launch, numa_launch.cli
for name in numa_launch.__all__:
    getattr(numa_launch, name)
config = numa_launch.LaunchConfig()
for use in (
    lambda: numa_launch.read_machine(),
    lambda: numa_launch.configure_subprocess(config, 0).__enter__(),
    lambda: numa_launch.bind_current_process(config, 0),
    lambda: numa_launch.get_auto_numa_nodes(),
    lambda: numa_launch.process_pool(config, 2),
    lambda: numa_launch.current_binding(),
):
    try:
        use()
    except numa_launch.PlatformError as error:
        print(error)
numa_launch.log_current_affinity_state("here")
"""
    assert python(program).splitlines() == ["numa-launch binds on Linux only"] * 6
