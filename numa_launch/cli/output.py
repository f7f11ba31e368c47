"""Write a file that the user names, whole or not at all.

Example: ``write_file("plan.svg", content)``; ``-`` is stdout.
"""

import errno
import os
import sys
import tempfile

import click


def write_file(path: str, content: bytes) -> None:
    """Write the file, or stdout for ``-``; raises click.FileError with the reason where that cannot be."""
    if path == "-" and sys.stdout is None:
        raise click.FileError(path, "stdout is closed")
    try:
        if path == "-":
            sys.stdout.buffer.write(content)
        else:
            write(path, content)
    except BrokenPipeError:
        raise  # as for all other output
    except OSError as error:
        raise click.FileError(path, error.strerror) from None


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
            os.chmod(part.name, os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o666 & ~umask())
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise


def umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
