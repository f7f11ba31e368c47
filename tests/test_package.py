"""What ships: the wrapper's run bit, the types marker, and nothing at the top level that does not belong there."""

import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT_OUT = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "__pycache__", "build", "dist", ".*_cache")
WRAPPER = "numa_launch/apply/wrapper.sh"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build wheel and sdist of a copy, without the network, and return where they are."""
    copy = tmp_path_factory.mktemp("build") / "copy"
    shutil.copytree(ROOT, copy, ignore=KEPT_OUT)
    out = copy.parent / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.getinfo(WRAPPER).external_attr >> 16 & stat.S_IXUSR
        names = archive.namelist()
    assert "numa_launch/py.typed" in names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "numa_launch").rglob("*.py")}
    assert modules <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"numa_launch"}


def test_the_sdist(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        top = sdist.name.removesuffix(".tar.gz")
        assert archive.getmember(f"{top}/{WRAPPER}").mode & stat.S_IXUSR
        assert archive.getmember(f"{top}/LICENSE")


def test_the_top_level() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    top = {name.split("/")[0] for name in listed.stdout.splitlines()}
    allowed = {"numa_launch", "scripts", "tests", "README.md", "LICENSE", "pyproject.toml"}
    assert {name for name in top if not name.startswith(".")} <= allowed


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("[!_]*")), ids=lambda path: path.name)
def test_scripts_without_an_ending_are_programs(script: Path) -> None:
    if not script.suffix and script.is_file():
        assert script.stat().st_mode & stat.S_IXUSR
