/* What a stub library answers, read from the text file that DRIVER_STUB names. One fact a line:

     count 3                        GPUs counted (default: as many as are described)
     fail nvmlInitWithFlags 18      this function returns that status; below a "gpu" line, for that GPU alone
     hang nvmlInitWithFlags         it never returns
     crash nvmlInitWithFlags        it ends the process
     calls /tmp/calls               every call's name is appended to that file
     gpu                            the facts that follow are of the next GPU
     bdf 0000:07:00.0 · uuid GPU-1 · name H100 · cpus 0-3,8 · node 2 · mig MIG-1 · serial 99
     compute 4711                   the PID of a process on it; so are mps and graphics
     sliced 1                       only its MIG slices tell their processes: slice i the i-th of each kind
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_GPUS 64
#define MOST_ACTIONS 64
#define MOST_CPUS 4096
#define MOST_PIDS 64

enum kind { COMPUTE, MPS, GRAPHICS, KINDS };

struct gpu {
    char bdf[64], uuid[96], name[96], cpus[1024], serial[64];
    int has_node, node, slices, sliced, holders[KINDS];
    unsigned pids[KINDS][MOST_PIDS];
    char mig[8][96];
};

struct action {
    char what[8], function[96];
    int gpu, status;
};

static struct gpu gpus[MOST_GPUS];
static struct action actions[MOST_ACTIONS];
static int described, counted = -1, action_count, is_read;
static char calls[256];

static void read_description(void) {
    char line[2048], key[32], value[1024];
    const char *path = getenv("DRIVER_STUB");
    FILE *file;
    if (is_read)
        return;
    is_read = 1;
    file = path ? fopen(path, "r") : NULL;
    if (!file)
        abort();
    while (fgets(line, sizeof line, file)) {
        struct gpu *gpu = described ? &gpus[described - 1] : NULL;
        value[0] = 0;
        if (sscanf(line, "%31s %1023[^\n]", key, value) < 1)
            continue;
        if (!strcmp(key, "gpu"))
            described++;
        else if (!strcmp(key, "count"))
            counted = atoi(value);
        else if (!strcmp(key, "calls"))
            strcpy(calls, value);
        else if (!strcmp(key, "fail") || !strcmp(key, "hang") || !strcmp(key, "crash")) {
            struct action *action = &actions[action_count++];
            strcpy(action->what, key);
            action->gpu = described - 1;
            sscanf(value, "%95s %d", action->function, &action->status);
        } else if (gpu && !strcmp(key, "bdf"))
            strcpy(gpu->bdf, value);
        else if (gpu && !strcmp(key, "uuid"))
            strcpy(gpu->uuid, value);
        else if (gpu && !strcmp(key, "name"))
            strcpy(gpu->name, value);
        else if (gpu && !strcmp(key, "cpus"))
            strcpy(gpu->cpus, value);
        else if (gpu && !strcmp(key, "serial"))
            strcpy(gpu->serial, value);
        else if (gpu && !strcmp(key, "mig"))
            strcpy(gpu->mig[gpu->slices++], value);
        else if (gpu && !strcmp(key, "sliced"))
            gpu->sliced = atoi(value);
        else if (gpu && !strcmp(key, "compute"))
            gpu->pids[COMPUTE][gpu->holders[COMPUTE]++] = strtoul(value, NULL, 10);
        else if (gpu && !strcmp(key, "mps"))
            gpu->pids[MPS][gpu->holders[MPS]++] = strtoul(value, NULL, 10);
        else if (gpu && !strcmp(key, "graphics"))
            gpu->pids[GRAPHICS][gpu->holders[GRAPHICS]++] = strtoul(value, NULL, 10);
        else if (gpu && !strcmp(key, "node")) {
            gpu->has_node = 1;
            gpu->node = atoi(value);
        }
    }
    fclose(file);
    if (counted < 0)
        counted = described;
}

/* What the description wants of this call: a status, 0 for the plain answer. gpu is -1 for what is of no GPU. */
static int wanted(const char *function, int gpu) {
    int i;
    read_description();
    if (calls[0]) {
        FILE *file = fopen(calls, "a");
        fprintf(file, "%s\n", function);
        fclose(file);
    }
    for (i = 0; i < action_count; i++)
        if (!strcmp(actions[i].function, function) && (actions[i].gpu < 0 || actions[i].gpu == gpu)) {
            if (!strcmp(actions[i].what, "hang"))
                for (;;)
                    pause();
            if (!strcmp(actions[i].what, "crash"))
                abort();
            return actions[i].status;
        }
    return 0;
}

static int has_cpu(const struct gpu *gpu, int cpu) {
    const char *at = gpu->cpus;
    while (*at) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (first <= cpu && cpu <= last)
            return 1;
        at = *end ? end + 1 : end;
    }
    return 0;
}
