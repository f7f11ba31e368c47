"""A real Slurm of one host with GPUs, inside a guest: munged, slurmctld and slurmd with files of their own.

Example: ``with slurm(Path("/tmp/s")): subprocess.run(["srun", "-n1", "true"])``. What it needs was seen with 22.05.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ADDRESS = "10.99.0.1"
CONTROLLERS = "+cpuset +cpu +memory +pids"
CONF = """\
ClusterName=t
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge/s
CredType=cred/munge
ProctrackType=proctrack/{proctrack}
TaskPlugin={task}
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={place}/ctld
SlurmdSpoolDir={place}/d
SlurmctldPidFile={place}/ctld.pid
SlurmdPidFile={place}/d.pid
SlurmctldLogFile={place}/ctld.log
SlurmdLogFile={place}/d.log
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0
TCPTimeout=20
MessageTimeout=60
SlurmctldTimeout=300
SlurmdTimeout=300
{node}
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


LIMIT_S = 60
"""For Slurm to come up, and to end."""


@contextlib.contextmanager
def slurm(place: Path, gpus: int, *, constrain: bool = False) -> Iterator[None]:
    """Run Slurm and set SLURM_CONF; with `constrain` tasks are confined to a cpuset (ConstrainCores)."""
    host = socket.gethostname()
    for name in ("ctld", "d", "munge"):
        (place / name).mkdir(parents=True)
    place.chmod(0o755)
    subprocess.run(["ip", "addr", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)
    with open("/etc/hosts", "a") as hosts:
        hosts.write(f"{ADDRESS} {host}\n")
    groups = Path("/sys/fs/cgroup")
    (groups / "cgroup.subtree_control").write_text(CONTROLLERS)
    (groups / "system.slice").mkdir(exist_ok=True)  # slurmd makes its scope there, and ends where it cannot
    (groups / "system.slice/cgroup.subtree_control").write_text(CONTROLLERS)
    start_munged(place / "munge")
    (place / "cgroup.conf").write_text(f"IgnoreSystemd=yes\n{'ConstrainCores=yes' if constrain else ''}\n")
    for i in range(gpus):  # character devices like /dev/null: of other files Slurm tells no task
        os.mknod(place / f"gpu{i}", 0o20666, os.makedev(1, 3))
    (place / "gres.conf").write_text(f"Name=gpu Flags=amd_gpu_env File={place}/gpu[0-{gpus - 1}]\n")
    seen = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    shape = seen.split(" ", 1)[1]
    conf = CONF.format(
        host=host,
        address=ADDRESS,
        place=place,
        proctrack="cgroup" if constrain else "linuxproc",
        task="task/affinity,task/cgroup" if constrain else "task/affinity",
        node=f"NodeName={host} NodeAddr={ADDRESS} {shape} Gres=gpu:{gpus} State=UNKNOWN",
    )
    (place / "slurm.conf").write_text(conf)
    os.environ["SLURM_CONF"] = str(place / "slurm.conf")
    for daemon in ("slurmctld", "slurmd"):
        subprocess.run([daemon], check=True, stdin=subprocess.DEVNULL)
    wait_until_idle(place)
    yield
    for name in ("d.pid", "ctld.pid", "munge/pid"):
        end(int((place / name).read_text()))


def start_munged(place: Path) -> None:
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o400)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    files = [
        f"--{name}={place}/{file}"
        for name, file in (
            ("key-file", "key"),
            ("socket", "s"),
            ("pid-file", "pid"),
            ("log-file", "log"),
            ("seed-file", "seed"),
        )
    ]
    as_munge = ["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups"]
    subprocess.run([*as_munge, "munged", *files, "--num-threads=2"], check=True)


def wait_until_idle(place: Path) -> None:
    gives_up_at = time.monotonic() + LIMIT_S
    state = ""
    while time.monotonic() < gives_up_at:
        state = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout.strip()
        if state == "idle":
            return
        time.sleep(0.1)
    raise RuntimeError(f"Slurm's node is {state!r}: {(place / 'd.log').read_text()[-1500:]}")


def end(pid: int) -> None:
    """End a daemon and wait until it is gone, as the next one takes its port."""
    daemon = os.pidfd_open(pid)
    signal.pidfd_send_signal(daemon, signal.SIGTERM)
    gone, _, _ = select.select([daemon], [], [], LIMIT_S)
    os.close(daemon)
    if not gone:
        raise RuntimeError(f"process {pid} of Slurm goes on after SIGTERM")
