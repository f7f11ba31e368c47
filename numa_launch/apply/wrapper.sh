#!/bin/sh
# Stands in for Python when multiprocessing spawns a worker: runs the real one under numactl.
# Each step is an exec, so PID, arguments, open files and signals pass through.
#   NUMA_LAUNCH_WRAP_PYTHON   the Python to run
#   NUMA_LAUNCH_WRAP_NUMACTL  numactl's absolute path
#   NUMA_LAUNCH_WRAP_ARGS     its arguments, separated by blanks: options with lists of ids only
set -f
python=${NUMA_LAUNCH_WRAP_PYTHON-}
numactl=${NUMA_LAUNCH_WRAP_NUMACTL-}
arguments=${NUMA_LAUNCH_WRAP_ARGS-}
unset NUMA_LAUNCH_WRAP_PYTHON NUMA_LAUNCH_WRAP_NUMACTL NUMA_LAUNCH_WRAP_ARGS
IFS=' '

refuse() {
    printf 'numa-launch: the wrapper %s; it is started by configure_subprocess only\n' "$1" >&2
    exit 2
}

[ -n "$python" ] || refuse 'lacks NUMA_LAUNCH_WRAP_PYTHON'
[ -n "$numactl" ] || refuse 'lacks NUMA_LAUNCH_WRAP_NUMACTL'
[ -n "$arguments" ] || refuse 'lacks NUMA_LAUNCH_WRAP_ARGS'
for argument in $arguments; do
    case $argument in
        --all) continue ;;
        --physcpubind=?* | --cpunodebind=?* | --membind=?* | --preferred=?* | --preferred-many=?* | --interleave=?*) ;;
        *) refuse "does not know the argument $argument" ;;
    esac
    case ${argument#*=} in
        *[!0123456789,-]*) refuse "finds no list of ids in $argument" ;;
    esac
done

if [ ! -x "$numactl" ]; then
    printf 'numa-launch: %s is gone, so this worker runs unbound: install numactl again\n' "$numactl" >&2
    exec "$python" "$@"
fi
exec "$numactl" $arguments "$python" "$@"
