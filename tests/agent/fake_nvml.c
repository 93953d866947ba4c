/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's management library as a driver may ship it: WHOLE tells everything of two GPUs; PARTIAL
   lacks functions and fails at others; EMPTY starts and has no GPU; BROKEN does not start. LIVE is
   like WHOLE, but the processes that the caller started compute on GPU B, which has an Xid and
   memory errors as soon as there are any; EIGHT is like WHOLE with eight of them, of which the
   second falls off the bus each time that the file BULKHEAD_FAKE_XID is there, and takes it away.
 */
#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void* device_t;
#define OK 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define EXPORT __attribute__((visibility("default")))

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#ifdef FAKE_EIGHT
#define GPUS 8
#else
#define GPUS 2
#endif
static int gpus[GPUS];
#ifdef FAKE_LIVE
static int seen;
#endif

EXPORT int nvmlInit_v2(void) {
#ifdef FAKE_BROKEN
    return 9; /* the driver is not loaded */
#else
    return OK;
#endif
}
EXPORT int nvmlShutdown(void) {
    return OK;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
#ifdef FAKE_EMPTY
    *count = 0;
#else
    *count = GPUS;
#endif
    return OK;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t* device) {
#ifdef FAKE_PARTIAL
    if (index == 1) return 15; /* the GPU is lost */
#endif
    *device = &gpus[index];
    return OK;
}
EXPORT int nvmlDeviceGetUUID(device_t device, char* uuid, unsigned length) {
    snprintf(uuid, length, "GPU-b0000000-0000-4000-8000-%012d", (int)((int*)device - gpus));
    return OK;
}

EXPORT int nvmlDeviceGetUtilizationRates(device_t device, unsigned* rates) {
#ifdef FAKE_PARTIAL
    (void)device;
    (void)rates;
    return NOT_SUPPORTED;
#else
    rates[0] = device == &gpus[0] ? 97 : 40;
    rates[1] = 50;
    return OK;
#endif
}
EXPORT int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long* memory) {
    (void)device;
    memory[0] = 80ull << 30;
    memory[1] = 50ull << 30;
    memory[2] = 30ull << 30;
    return OK;
}

#ifndef FAKE_PARTIAL
EXPORT int nvmlDeviceGetName(device_t device, char* name, unsigned length) {
    strncpy(name, device == &gpus[0] ? "GPU A" : "GPU B", length);
    return OK;
}
EXPORT int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned* celsius) {
    (void)device;
    *celsius = sensor == 0 ? 61 : 0;
    return OK;
}
EXPORT int nvmlDeviceGetPowerUsage(device_t device, unsigned* milliwatts) {
    (void)device;
    *milliwatts = 512500;
    return OK;
}
EXPORT int nvmlDeviceGetClockInfo(device_t device, int clock, unsigned* mhz) {
    (void)device;
    *mhz = clock == 1 ? 1980 : clock == 2 ? 2619 : 1;
    return OK;
}
EXPORT int nvmlDeviceGetTotalEccErrors(device_t device, int type, int since,
                                       unsigned long long* errors) {
    (void)device;
    *errors = type == 1 && since == 0 ? 0 : 77;
#ifdef FAKE_LIVE
    if (device == &gpus[1] && seen > 0) *errors = 2;
#endif
    return OK;
}

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
#ifdef FAKE_LIVE
static int pending;
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned* count,
                                                   struct process* list) {
    // Lists the children of all threads of the agent.
    unsigned many = 0;
    unsigned pid;
    DIR* threads = device == &gpus[1] ? opendir("/proc/self/task") : NULL;
    for (struct dirent* thread; threads != NULL && (thread = readdir(threads)) != NULL;) {
        char path[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/children", thread->d_name);
        FILE* children = fopen(path, "r");
        while (children != NULL && many < *count && fscanf(children, "%u", &pid) == 1) {
            list[many].pid = pid;
            list[many++].bytes = 3ull << 30;
        }
        if (children != NULL) fclose(children);
    }
    if (threads != NULL) closedir(threads);
    if (many > 0 && seen++ == 0) pending = 1;
    *count = many;
    return OK;
}
#else
/* GPU A: 20 of them, so that whoever asks has to ask again; the last one's memory is not told. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned* count,
                                                   struct process* list) {
    const unsigned many = device == &gpus[0] ? 20 : 1;
    const unsigned room = *count;
    unsigned i;
    *count = many;
    if (room < many) return INSUFFICIENT_SIZE;
    for (i = 0; i < many; ++i) {
        list[i].pid = 100 + i;
        list[i].bytes = i == 19 ? ~0ull : (unsigned long long)(i + 1) << 20;
    }
    return OK;
}
#endif

struct event {
    device_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
static int events;
#ifndef FAKE_LIVE
static int pending;
#endif
EXPORT int nvmlEventSetCreate(void** set) {
    *set = &events;
    return OK;
}
EXPORT int nvmlEventSetFree(void* set) {
    return set == &events ? OK : 2;
}
EXPORT int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void* set) {
    const int wanted = device == &gpus[1] && (types & 8) != 0 && set == &events;
#if !defined(FAKE_LIVE) && !defined(FAKE_EIGHT)
    if (wanted) pending = 2;
#endif
    return wanted || device == &gpus[0] ? OK : 2;
}
EXPORT int nvmlEventSetWait_v2(void* set, struct event* event, unsigned timeout) {
#ifdef FAKE_EIGHT
    const char* file = getenv("BULKHEAD_FAKE_XID");
    if (file != NULL && unlink(file) == 0) pending = 1;
#endif
    if (set != &events || timeout != 0 || pending == 0) return TIMEOUT;
    --pending;
    event->device = &gpus[1];
    event->type = 8;
    event->data = pending == 0 ? 79 : 31;
    return OK;
}
#endif
