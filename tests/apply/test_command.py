"""Finding COMMAND as a shell does."""

import os
from pathlib import Path

import pytest

from numa_launch.apply.command import check_command, find_numactl
from numa_launch.errors import CommandError


def program(path: Path, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def test_the_first_executable_on_path(tmp_path: Path) -> None:
    program(tmp_path / "a/tool", 0o644)
    second = program(tmp_path / "b/tool")
    assert check_command("tool", {"PATH": f"{tmp_path}/a:{tmp_path}/b"}) == second
    assert check_command(second, {}) == second


@pytest.mark.parametrize(
    ("name", "status"), [("none", 127), ("", 127), ("plain", 126), ("./none", 127), ("a/b/c", 127), ("folder", 127)]
)
def test_what_cannot_be_executed(tmp_path: Path, name: str, status: int) -> None:
    program(tmp_path / "plain", 0o644)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandError) as caught:
        check_command(name, {"PATH": str(tmp_path)})
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)


def test_a_directory_by_its_path_is_126(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="directory") as caught:
        check_command(str(tmp_path), {})
    assert caught.value.exit_status == 126


def test_numactl_is_found_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "numactl")
    monkeypatch.chdir(tmp_path)
    assert find_numactl({"PATH": "."}) == str(tmp_path / "numactl")
    assert find_numactl({"PATH": "/nowhere"}) is None
    assert find_numactl({"PATH": ""}) == os.path.abspath("numactl")
