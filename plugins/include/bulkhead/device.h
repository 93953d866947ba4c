/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BULKHEAD_DEVICE_H_
#define BULKHEAD_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The device ABI, plain C: where memory lives, how it is copied, and how the ranks of one replica
 * communicate. The CPU device is built in; others are shared objects that export
 * `bulkhead_device_get_api`. A workload allocates and communicates through this table only.
 *
 * Rules for every function here: no exception leaves it; it is called from any one thread at a time
 * per object unless said otherwise; on anything but BULKHEAD_OK it has told `host->error` one line
 * of cause and remedy. Strings are UTF-8 and live as long as the call, unless said otherwise.
 */

#define BULKHEAD_DEVICE_ABI 2u

typedef enum bulkhead_status {
    BULKHEAD_OK = 0,
    BULKHEAD_ABORTED = 1, /* an abort ended the wait; results are undefined */
    BULKHEAD_INVALID = 2, /* the caller's arguments or configuration are wrong */
    BULKHEAD_OUT_OF_MEMORY = 3,
    BULKHEAD_UNAVAILABLE = 4, /* no such device, driver or peer here */
    BULKHEAD_TIMED_OUT = 5,
    BULKHEAD_INTERNAL = 6
} bulkhead_status;

typedef enum bulkhead_dtype {
    BULKHEAD_F32 = 0,
    BULKHEAD_BF16 = 1,
    BULKHEAD_F64 = 2,
    BULKHEAD_I32 = 3,
    BULKHEAD_U8 = 4
} bulkhead_dtype;

typedef enum bulkhead_memory {
    BULKHEAD_MEMORY_DEVICE = 0,
    BULKHEAD_MEMORY_HOST = 1, /* reachable by CPU and device; pinned where that means something */
    BULKHEAD_MEMORY_PEER = 2  /* device memory that ranks of other replicas may read where it is */
} bulkhead_memory;

/** What a plugin may call back. `error` keeps the last line for the caller; both are thread-safe.
 *  `severity` is 0 info, 1 warning, 2 error. */
typedef struct bulkhead_host {
    void* context;
    void (*log)(void* context, int32_t severity, const char* line);
    void (*error)(void* context, const char* line);
} bulkhead_host;

typedef struct bulkhead_device bulkhead_device;
typedef struct bulkhead_stream bulkhead_stream; /* NULL is the default stream */
typedef struct bulkhead_group bulkhead_group;

typedef struct bulkhead_device_info {
    char name[64];
    uint64_t memory_total;  /* bytes; 0 when the device cannot say */
    uint64_t memory_used;   /* bytes allocated through this table */
    int32_t memory_is_host; /* 1: the CPU may read and write device memory as it is */
} bulkhead_device_info;

/** One rank of a group as its peers reach it. */
typedef struct bulkhead_peer {
    const char* host; /* equal strings: shared memory works between the two */
    const char* data; /* "ip:port" */
    const char* shm;  /* prefix of shared-memory names, unique per incarnation */
} bulkhead_peer;

typedef struct bulkhead_group_desc {
    uint32_t struct_size;
    int32_t rank;
    int32_t size;
    const char* name;                /* equal on all ranks, unique per replica incarnation */
    const bulkhead_peer* peers;      /* `size` of them, by rank */
    uint32_t timeout_ms;             /* no progress for so long: BULKHEAD_TIMED_OUT */
    void (*progress)(void* context); /* may be NULL; called often inside waits and transfers */
    void* progress_context;
    uint64_t secret[4]; /* equal on all ranks; a peer that does not know it is refused */
    int32_t listen_fd;  /* -1, or a listening socket bound to peers[rank].data that the group may
                           accept on while it is created; it stays the caller's */
} bulkhead_group_desc;

typedef struct bulkhead_device_api {
    uint32_t abi_version; /* BULKHEAD_DEVICE_ABI */
    uint32_t struct_size; /* sizeof(bulkhead_device_api) of the plugin */
    const char* name;     /* "cpu", "cuda"; lives for ever */

    bulkhead_status (*open)(const bulkhead_host* host, int32_t index, bulkhead_device** out);
    void (*close)(bulkhead_device* device); /* after everything made from it is gone */
    bulkhead_status (*describe)(bulkhead_device* device, bulkhead_device_info* out);

    /* Memory is aligned to 64 bytes at least and zeroed. free(NULL) does nothing. */
    bulkhead_status (*alloc)(bulkhead_device* device, bulkhead_memory kind, size_t bytes,
                             void** out);
    void (*free)(bulkhead_device* device, void* memory);

    bulkhead_status (*stream_create)(bulkhead_device* device, bulkhead_stream** out);
    void (*stream_destroy)(bulkhead_device* device, bulkhead_stream* stream);
    /* Returns when all work put on the stream before is done. */
    bulkhead_status (*stream_synchronize)(bulkhead_device* device, bulkhead_stream* stream);

    /* Any mix of kinds; ranges do not overlap. Like stream_synchronize it may be called by several
       threads at a time, each with a stream of its own. */
    bulkhead_status (*copy)(bulkhead_device* device, void* to, const void* from, size_t bytes,
                            bulkhead_stream* stream);
    bulkhead_status (*zero)(bulkhead_device* device, void* to, size_t bytes,
                            bulkhead_stream* stream);
    /* to[i] = from[0][i] + from[1][i] + ... in that order, accumulated in float32 (F64: double). */
    bulkhead_status (*reduce_copy)(bulkhead_device* device, void* to, const void* const* from,
                                   int32_t sources, size_t count, bulkhead_dtype from_type,
                                   bulkhead_dtype to_type, bulkhead_stream* stream);

    /* Collective over the members; returns when all are connected, or times out. */
    bulkhead_status (*group_create)(bulkhead_device* device, const bulkhead_group_desc* desc,
                                    bulkhead_group** out);
    void (*group_destroy)(bulkhead_group* group);
    /* From any thread, any time before group_destroy: every wait of this rank in the group ends
       with BULKHEAD_ABORTED, now and later. Promises liveness, never a valid result. */
    void (*group_abort)(bulkhead_group* group);

    /* to[size * count] = every rank's from[count], by rank. */
    bulkhead_status (*all_gather)(bulkhead_group* group, const void* from, void* to, size_t count,
                                  bulkhead_dtype type, bulkhead_stream* stream);
    /* to[count] = sum over ranks, in rank order, of their from[my rank * count ...]. */
    bulkhead_status (*reduce_scatter)(bulkhead_group* group, const void* from, void* to,
                                      size_t count, bulkhead_dtype type, bulkhead_stream* stream);
    /* Sends send_bytes[r] bytes to rank r, packed in rank order in `from`; receives recv_bytes[r]
       from r, packed likewise in `to`. Both arrays have `size` entries, in host memory, and must
       match pairwise. */
    bulkhead_status (*all_to_all)(bulkhead_group* group, const void* from, const size_t* send_bytes,
                                  void* to, const size_t* recv_bytes, bulkhead_stream* stream);
    bulkhead_status (*barrier)(bulkhead_group* group);
} bulkhead_device_api;

/** The one symbol of a device plugin; returns NULL when it does not serve this version. */
typedef const bulkhead_device_api* (*bulkhead_device_get_api_fn)(uint32_t abi_version);
#define BULKHEAD_DEVICE_GET_API "bulkhead_device_get_api"

#ifdef __cplusplus
}
#endif

#endif /* BULKHEAD_DEVICE_H_ */
