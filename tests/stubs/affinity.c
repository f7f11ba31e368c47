/* Preloaded: sched_getaffinity answers with the CPUs in FAKE_AFFINITY, for hosts with more CPUs than this one. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {
    const char *at = getenv("FAKE_AFFINITY");
    memset(set, 0, size);
    while (at && *at) {
        char *end;
        long cpu = strtol(at, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : cpu;
        if (last >= (long)size * 8) {
            errno = EINVAL;
            return -1;
        }
        for (; cpu <= last; cpu++)
            CPU_SET_S(cpu, size, set);
        at = *end ? end + 1 : end;
    }
    return 0;
}
