"""``numa-launch capture FILE.tar.gz``: this host in one file, to plan for it elsewhere or to report a bug.

Example: ``ssh node numa-launch capture - > node.tar.gz``, then ``numa-launch --dry-run --root node.tar.gz``.
"""

import gzip
import io
import os
import tarfile

import click

from numa_launch.cli.options import vendor_option
from numa_launch.cli.output import write_file
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
    write_file(file, packed)
    if file != "-":
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
