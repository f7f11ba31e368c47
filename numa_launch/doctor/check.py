"""A check's result as data.

Example: ``Check("nodes", "ok", "2 nodes with CPUs: 0-1")``.
"""

from typing import Literal, NamedTuple

from numa_launch.reasons import Note

Status = Literal["ok", "note", "warning", "fail", "not checked"]

ORDER: tuple[Status, ...] = ("fail", "warning", "note", "ok", "not checked")
"""The worst first."""


class Check(NamedTuple):
    """What was found: a `fail` keeps processes unbound, a `warning` makes them less bound than planned.

    `name` is stable; `code` is the reason's in plans and logs, where there is one; `fix` says what to do, if anything.
    """

    name: str
    status: Status
    message: str
    fix: str = ""
    code: str | None = None


def of_note(name: str, status: Status, said: Note) -> Check:
    return Check(name, status, said.what, said.fix, said.code)


NOT_CHECKED = "not checked, as only the host itself can show it"


def not_checked(name: str, why: str = NOT_CHECKED) -> Check:
    return Check(name, "not checked", why)
