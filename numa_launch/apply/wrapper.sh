#!/bin/sh
# Stands in for Python when multiprocessing spawns a worker: runs the real one under numactl or the built-in backend.
# Each step is an exec, so PID, arguments, open files and signals pass through.
#   NUMA_LAUNCH_WRAP_PYTHON   the Python to run
#   NUMA_LAUNCH_WRAP_PROGRAM  numactl's absolute path, or that of the Python that runs the built-in backend
#   NUMA_LAUNCH_WRAP_SCRIPT  the built-in backend's script, empty: numactl binds
#   NUMA_LAUNCH_WRAP_ARGS     its arguments, separated by blanks: options with lists of ids only
#   NUMA_LAUNCH_WRAP_ENV      how many of NUMA_LAUNCH_WRAP_ENV_1, _2, … there are: each NAME=VALUE of the environment
#                             whose name is none to a shell (BASH_FUNC_module%%), which the shell would drop
# Its own variables have names that nobody exports, so no variable of the worker changes but PWD, which shells keep true.
set -f
_numa_launch_python=${NUMA_LAUNCH_WRAP_PYTHON-}
_numa_launch_program=${NUMA_LAUNCH_WRAP_PROGRAM-}
_numa_launch_script=${NUMA_LAUNCH_WRAP_SCRIPT-}
_numa_launch_args=${NUMA_LAUNCH_WRAP_ARGS-}
_numa_launch_env=${NUMA_LAUNCH_WRAP_ENV-0}
unset NUMA_LAUNCH_WRAP_PYTHON NUMA_LAUNCH_WRAP_PROGRAM NUMA_LAUNCH_WRAP_SCRIPT
unset NUMA_LAUNCH_WRAP_ARGS NUMA_LAUNCH_WRAP_ENV

_numa_launch_refuse() {
    printf 'numa-launch: the wrapper %s; it is started by configure_subprocess only\n' "$1" >&2
    exit 2
}

[ -n "$_numa_launch_python" ] || _numa_launch_refuse 'lacks NUMA_LAUNCH_WRAP_PYTHON'
[ -n "$_numa_launch_program" ] || _numa_launch_refuse 'lacks NUMA_LAUNCH_WRAP_PROGRAM'
[ -n "$_numa_launch_args" ] || _numa_launch_refuse 'lacks NUMA_LAUNCH_WRAP_ARGS'
case $_numa_launch_args in
    *[!\ 0123456789abcdefghijklmnopqrstuvwxyz=,-]*) _numa_launch_refuse 'finds no arguments in NUMA_LAUNCH_WRAP_ARGS' ;;
esac
case $_numa_launch_env in
    '' | *[!0123456789]*) _numa_launch_refuse 'finds no number in NUMA_LAUNCH_WRAP_ENV' ;;
esac
for _numa_launch_arg in $_numa_launch_args; do
    case $_numa_launch_arg in
        --all) continue ;;
        --physcpubind=?* | --cpunodebind=?* | --membind=?* | --preferred=?* | --preferred-many=?* | --interleave=?*) ;;
        *) _numa_launch_refuse "does not know the argument $_numa_launch_arg" ;;
    esac
    case ${_numa_launch_arg#*=} in
        *[!0123456789,-]*) _numa_launch_refuse "finds no list of ids in $_numa_launch_arg" ;;
    esac
done

set -- "$_numa_launch_python" "$@"
if [ ! -x "$_numa_launch_program" ]; then
    printf 'numa-launch: %s is gone, so this worker runs unbound: install it again\n' "$_numa_launch_program" >&2
elif [ -z "$_numa_launch_script" ]; then
    set -- "$_numa_launch_program" $_numa_launch_args "$@"
elif [ -r "$_numa_launch_script" ]; then
    set -- "$_numa_launch_program" -I -S -X utf8 "$_numa_launch_script" $_numa_launch_args -- "$@"
else
    printf 'numa-launch: %s is gone, so this worker runs unbound: install it again\n' "$_numa_launch_script" >&2
fi
if [ "$_numa_launch_env" -gt 0 ] && command -v env >/dev/null; then
    while [ "$_numa_launch_env" -gt 0 ]; do
        eval "set -- \"\$NUMA_LAUNCH_WRAP_ENV_$_numa_launch_env\" \"\$@\"; unset NUMA_LAUNCH_WRAP_ENV_$_numa_launch_env"
        _numa_launch_env=$((_numa_launch_env - 1))
    done
    set -- env -- "$@"
fi
exec "$@"
