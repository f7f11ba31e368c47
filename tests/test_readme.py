"""README.md names every option, reason and public name, so that it cannot fall behind."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import numa_launch
from numa_launch.cli.run import cli
from numa_launch.reasons import SENTENCES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("param", cli.params, ids=lambda param: str(param.name))
def test_every_option_and_its_variable(param: click.Parameter) -> None:
    assert all(
        option in README for option in (*param.opts, *param.secondary_opts) if option not in ("--verbose", "--quiet")
    )
    assert param.envvar is None or str(param.envvar) in README


@pytest.mark.parametrize("code", SENTENCES)
def test_every_reason_and_warning(code: str) -> None:
    assert f"`{code}`" in README


@pytest.mark.parametrize("name", [name for name in numa_launch.__all__ if name[0].islower()])
def test_every_public_function(name: str) -> None:
    assert name in README


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^scripts/[\w-]+", README, re.MULTILINE))))
def test_the_two_commands_are_there(command: str) -> None:
    assert (ROOT / command).is_file()


def test_the_version_has_its_changes() -> None:
    assert f"* {numa_launch.__version__}: " in README


def test_the_python_example_runs(tmp_path: Path) -> None:
    example = README.split("```python\n")[1].split("```")[0]
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run([sys.executable, tmp_path / "example.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(f"worker {rank}: policy " in done.stderr for rank in range(8))
