/* A libamd_smi.so that answers from a description (description.h). The other functions that the binding wants to find
   are added when it is built, each returning AMDSMI_STATUS_NOT_SUPPORTED. Types as amd_smi/amdsmi.h has them. */
#include "description.h"
#include <stdint.h>

#define NOT_SUPPORTED 2

static int index_of(void *handle) { return (int)((struct gpu *)handle - gpus); }

int amdsmi_init(uint64_t flags) { return wanted("amdsmi_init", -1); }
int amdsmi_shut_down(void) { return wanted("amdsmi_shut_down", -1); }

/* A socket for each GPU, as on a host of OAM modules. */
int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
    int status = wanted("amdsmi_get_socket_handles", -1), i;
    *count = counted;
    for (i = 0; sockets && i < counted; i++)
        sockets[i] = &gpus[i];
    return status;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **processors) {
    int status = wanted("amdsmi_get_processor_handles", index_of(socket));
    *count = 1;
    if (processors)
        processors[0] = socket;
    return status;
}

int amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bdf) {
    int status = wanted("amdsmi_get_gpu_device_bdf", index_of(handle));
    unsigned domain, bus, device, function;
    sscanf(gpus[index_of(handle)].bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function);
    *bdf = (uint64_t)domain << 16 | bus << 8 | device << 3 | function;
    return status;
}

struct asic {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    char rest[256];
} __attribute__((packed));

int amdsmi_get_gpu_asic_info(void *handle, struct asic *info) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted("amdsmi_get_gpu_asic_info", index_of(handle));
    strcpy(info->market_name, gpu->name);
    strcpy(info->asic_serial, gpu->serial);
    return status;
}

struct enumeration {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[256];
};

int amdsmi_get_gpu_enumeration_info(void *handle, struct enumeration *info) {
    int status = wanted("amdsmi_get_gpu_enumeration_info", index_of(handle));
    strcpy(info->hip_uuid, gpus[index_of(handle)].uuid);
    return status;
}

int amdsmi_topo_get_numa_node_number(void *handle, uint32_t *node) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted("amdsmi_topo_get_numa_node_number", index_of(handle));
    *node = gpu->node;
    return status ? status : gpu->has_node ? 0 : NOT_SUPPORTED;
}

int amdsmi_get_gpu_topo_numa_affinity(void *handle, int32_t *node) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted("amdsmi_get_gpu_topo_numa_affinity", index_of(handle));
    *node = gpu->node;
    return status ? status : gpu->has_node ? 0 : NOT_SUPPORTED;
}

struct process {
    char name[256];
    uint32_t pid, padding;
    uint64_t memory;
    char engine_usage[64], memory_usage[64], container_name[256];
    uint32_t cu_occupancy, rest[11];
};

int amdsmi_get_gpu_process_list(void *handle, uint32_t *most, struct process *processes) {
    const struct gpu *gpu = &gpus[index_of(handle)];
    int status = wanted("amdsmi_get_gpu_process_list", index_of(handle)), i;
    *most = gpu->holders[COMPUTE];
    for (i = 0; i < gpu->holders[COMPUTE]; i++)
        processes[i].pid = gpu->pids[COMPUTE][i];
    return status;
}
