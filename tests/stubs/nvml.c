/* A libnvidia-ml.so.1 that answers from a description (description.h). -DOLD leaves out what drivers before R450 lack.
   Types and status codes as the NVML API reference has them. */
#include "description.h"

#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7

struct slice {
    int parent, number;
};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

static struct slice slices[MOST_GPUS * 8];

static int is_slice(void *handle) {
    return (struct slice *)handle >= slices && (struct slice *)handle < slices + MOST_GPUS * 8;
}

static int index_of(void *handle) {
    if (is_slice(handle))
        return ((struct slice *)handle)->parent;
    return (int)((struct gpu *)handle - gpus);
}

static int text(const char *from, char *to, unsigned length) {
    if (!from[0])
        return NOT_SUPPORTED;
    if (strlen(from) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) { return wanted("nvmlInitWithFlags", -1); }

const char *nvmlErrorString(int status) {
    switch (status) {
    case 9:
        return "Driver Not Loaded";
    case 15:
        return "GPU is lost";
    case 18:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int status = wanted("nvmlDeviceGetCount_v2", -1);
    *count = counted;
    return status;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int status = wanted("nvmlDeviceGetHandleByIndex_v2", index);
    *handle = &gpus[index];
    return status;
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *info) {
    int status = wanted("nvmlDeviceGetPciInfo_v3", index_of(handle));
    return status ? status : text(gpus[index_of(handle)].bdf, info->busId, sizeof info->busId);
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    int status = wanted("nvmlDeviceGetUUID", index_of(handle));
    struct slice *slice = handle;
    if (status)
        return status;
    if (is_slice(handle))
        return text(gpus[slice->parent].mig[slice->number], uuid, length);
    return text(gpus[index_of(handle)].uuid, uuid, length);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    int status = wanted("nvmlDeviceGetName", index_of(handle));
    return status ? status : text(gpus[index_of(handle)].name, name, length);
}

/* Nobody asks for it; where one did, captures would show it. */
int nvmlDeviceGetSerial(void *handle, char *serial, unsigned length) {
    return text(gpus[index_of(handle)].serial, serial, length);
}

static int affinity(const char *function, void *handle, unsigned words, unsigned long *mask) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted(function, index_of(handle));
    unsigned cpu;
    if (status)
        return status;
    if (!gpu->cpus[0])
        return NOT_SUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    for (cpu = 0; cpu < MOST_CPUS; cpu++)
        if (has_cpu(gpu, cpu)) {
            if (cpu / 64 >= words)
                return INSUFFICIENT_SIZE;
            mask[cpu / 64] |= 1UL << cpu % 64;
        }
    return 0;
}

int nvmlDeviceGetCpuAffinity(void *handle, unsigned words, unsigned long *mask) {
    return affinity("nvmlDeviceGetCpuAffinity", handle, words, mask);
}

/* The first form of the question has entries of PID and memory; later ones have the MIG instances too. */
typedef struct {
    unsigned pid;
    unsigned long long memory;
} OldProcessInfo;

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpuInstance, computeInstance;
} ProcessInfo;

/* The PIDs for this handle, and how many; a negative number is a status. */
static int pids_of(const char *function, void *handle, enum kind kind, const unsigned **pids) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted(function, index_of(handle)), number = is_slice(handle) ? ((struct slice *)handle)->number : -1;
    *pids = gpu->pids[kind] + (number < 0 ? 0 : number);
    if (status)
        return -status;
    if (number < 0)
        return gpu->sliced ? -NO_PERMISSION : gpu->holders[kind];
    return number < gpu->holders[kind];
}

/* A count that is too small is answered with the right one. */
#define PROCESSES(function, kind, Info)                                                                                \
    int function(void *handle, unsigned *count, Info *infos) {                                                         \
        const unsigned *pids;                                                                                          \
        int i, there = pids_of(#function, handle, kind, &pids), fits = there >= 0 && (unsigned)there <= *count;        \
        if (there < 0)                                                                                                 \
            return -there;                                                                                             \
        *count = there;                                                                                                \
        for (i = 0; fits && i < there; i++)                                                                            \
            infos[i] = (Info){.pid = pids[i], .memory = 1 << 20};                                                      \
        return fits ? 0 : INSUFFICIENT_SIZE;                                                                           \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, COMPUTE, OldProcessInfo)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, OldProcessInfo)

#ifndef OLD
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, ProcessInfo)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, ProcessInfo)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, ProcessInfo)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, ProcessInfo)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, ProcessInfo)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, ProcessInfo)

int nvmlDeviceGetCpuAffinityWithinScope(void *handle, unsigned words, unsigned long *mask, unsigned scope) {
    return affinity("nvmlDeviceGetCpuAffinityWithinScope", handle, words, mask);
}

int nvmlDeviceGetNumaNodeId(void *handle, unsigned *node) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted("nvmlDeviceGetNumaNodeId", index_of(handle));
    *node = gpu->node;
    return status ? status : gpu->has_node ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    *current = *pending = gpus[index_of(handle)].slices > 0;
    return wanted("nvmlDeviceGetMigMode", index_of(handle));
}

/* Seven places, whatever is in them; the slices lie in the odd ones. */
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    *count = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned place, void **slice) {
    int parent = index_of(handle), number = place / 2;
    struct slice *own = &slices[parent * 8 + number];
    if (place % 2 == 0 || number >= gpus[parent].slices)
        return NOT_FOUND;
    own->parent = parent;
    own->number = number;
    *slice = own;
    return 0;
}
#endif
