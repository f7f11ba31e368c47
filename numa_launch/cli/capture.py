"""``numa-launch capture FILE.tar.gz``: this host in one file, to plan for it elsewhere or to report a bug.

Example: ``ssh node numa-launch capture - > node.tar.gz``, then ``numa-launch --dry-run --root node.tar.gz``.
"""

import errno
import gzip
import io
import os
import sys
import tarfile
import tempfile

import click

from numa_launch.cli.options import vendor_option
from numa_launch.machine.capture import capture_host


@click.command()
@click.argument("file", metavar="FILE.tar.gz", type=click.Path(dir_okay=False, allow_dash=True))
@vendor_option
def capture(file: str, vendor: str | None) -> None:
    """Write this host into one file, for --root FILE.

    It holds the topology, the models and UUIDs of the GPUs and what this process may use: no serial number, no host
    name, no user name. An older FILE is replaced; - is stdout:

        ssh node17 numa-launch capture - > node17.tar.gz
    """
    files = capture_host(vendor, os.environ)
    packed = pack(files)
    if file == "-" and sys.stdout is None:
        raise click.FileError(file, "stdout is closed")
    try:
        if file == "-":
            sys.stdout.buffer.write(packed)
            return
        write(file, packed)
    except OSError as error:
        raise click.FileError(file, error.strerror) from None
    click.echo(f"{file}: {len(files)} files, {max(1, len(packed) // 1000)} kB", err=True)


def pack(files: dict[str, str]) -> bytes:
    """Return a tar.gz of the files, which says nothing of who made it and when."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def write(path: str, content: bytes) -> None:
    """Write the file whole or not at all; a device, a pipe, or a file that cannot be replaced is written into."""
    if os.path.isfile(path) or not os.path.exists(path):
        try:
            replace(os.path.realpath(path), content)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY) or not os.path.isfile(path):
                raise
    with open(path, "wb") as out:
        out.write(content)


def replace(path: str, content: bytes) -> None:
    """Put a new file in the place of what is there."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=".numa-launch-", delete=False) as part:
        try:
            part.write(content)
            part.flush()
            os.chmod(part.name, 0o666 & ~umask())
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


def umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
