"""A captured machine in one file, read as if it were a directory.

Example: ``with opened("host.tar.gz") as top:`` has its ``sys`` and ``proc`` below `top` while the block lasts.
"""

import contextlib
import importlib
import os
import posixpath
from collections.abc import Iterator
from typing import IO, Any, cast

from numa_launch.errors import MachineError
from numa_launch.machine.files import MAX_BYTES, list_names, top_of

MOST_MEMBERS = 400_000
MOST_BYTES = 512 << 20
MOST_AT_ONCE = 8 << 20
LONGEST_NAME = 500
"""More than any machine has: what is longer was made to fill the disk or the memory."""


@contextlib.contextmanager
def opened(root: str | os.PathLike[str]) -> Iterator[str]:
    """Give the directory below which the machine stands: `root` itself, or, for a tar file, its contents.

    They are unpacked into a temporary directory for the block. Raises MachineError, one sentence, where `root` is
    neither, or the file is broken.
    """
    top = top_of(root)
    if not os.path.isfile(top):
        if top and not os.path.isdir(top):
            problem = "is neither a directory nor a file" if os.path.exists(top) else "is not there"
            raise MachineError(f"{top} is no machine: it {problem}")
        yield top
        return
    import tempfile

    try:
        directory = tempfile.TemporaryDirectory(prefix="numa-launch-")
    except OSError as error:
        raise MachineError(f"{top} cannot be unpacked: {error.strerror}; set TMPDIR to a directory with room") from None
    with directory as made:
        unpacked = os.path.realpath(made)
        unpack(top, unpacked)
        machine = machine_in(unpacked)
        try:
            yield machine
        except MachineError as error:
            raise MachineError(str(error).replace(machine, top)) from None


def machine_in(unpacked: str) -> str:
    """Return where ``sys`` is: at the top, or in the only directory there, as people pack a directory whole."""
    names = list_names(unpacked)
    return os.path.join(unpacked, names[0]) if len(names) == 1 and names[0] not in ("sys", "proc") else unpacked


def unpack(file: str, to: str) -> None:
    """Write the files, directories and inner links of a tar file below `to`; anything else in it is left out."""
    import tarfile
    import zlib
    from lzma import LZMAError

    broken = (tarfile.TarError, EOFError, zlib.error, LZMAError, ValueError, OverflowError, RecursionError)
    try:
        with open(file, "rb") as packed, decompressed(packed) as stream:
            unpack_members(tarfile.TarFile(fileobj=cast(Any, Limited(stream))), to)
    except broken as error:
        problem = f"it is broken, or no tar file ({first_line(error)}); numa-launch capture makes one"
        raise MachineError(f"{file} is no machine: {problem}") from None
    except OSError as error:
        if error.errno is None:  # gzip's and bz2's own
            raise MachineError(f"{file} is no machine: it is broken ({first_line(error)})") from None
        raise MachineError(f"{file} cannot be unpacked: {error.strerror}") from None


def decompressed(packed: IO[bytes]) -> IO[bytes]:
    """Return the stream inside a file that gzip, bzip2 or xz made, else the file."""
    start = packed.read(6)
    packed.seek(0)
    for magic, module in ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\xfd7zXZ", "lzma")):
        if start.startswith(magic):
            return cast(IO[bytes], importlib.import_module(module).open(packed))
    return packed


class Limited:
    """A stream for tarfile that refuses to read far or much at once, whatever a header claims."""

    mode = "rb"

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def read(self, size: int) -> bytes:
        if size > MOST_AT_ONCE or self.stream.tell() > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES >> 20} MiB, or a header of {MOST_AT_ONCE >> 20}")
        return self.stream.read(size)

    def seek(self, position: int) -> int:
        if position > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES >> 20} MiB")
        return self.stream.seek(position)

    def tell(self) -> int:
        return self.stream.tell()


def unpack_members(tar: Any, to: str) -> None:
    """Write what is regular first, and links, through which nothing may be written, last."""
    links = []
    count = 0
    while (member := tar.next()) is not None:
        tar.members.clear()  # a list that would only grow
        count += 1
        if count > MOST_MEMBERS:
            raise ValueError(f"it holds more than {MOST_MEMBERS} files")
        name = posixpath.normpath(member.name)
        if name == "." or name.startswith(("/", "..")) or len(name) > LONGEST_NAME:
            continue
        path = os.path.join(to, name)
        if member.isdir():
            os.makedirs(path, exist_ok=True)
        elif member.isreg() and not member.issparse() and 0 <= member.size < MAX_BYTES:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as written:
                written.write(tar.extractfile(member).read())
        elif member.issym() and stays_inside(name, member.linkname):
            links.append((path, member.linkname))
    # To the very end, where a compressed file has its checksum, and one that was cut off has none.
    while tar.fileobj.read(1 << 20):
        pass
    for path, target in links:
        make_link(path, target)


def make_link(path: str, target: str) -> None:
    """Make a link, but not below another one: where that leads, `target` would count from elsewhere."""
    parent = os.path.dirname(path)
    if os.path.realpath(parent) == parent:
        os.makedirs(parent, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(target, path)


def stays_inside(name: str, target: str) -> bool:
    """Return whether a link leads below the top: up first and then down, as sysfs's own do."""
    down = target.lstrip("./") if target.startswith(".") else target
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return not target.startswith("/") and ".." not in down.split("/") and not (resolved + "/").startswith("../")


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(": ")
