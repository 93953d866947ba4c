/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BULKHEAD_DATA_PLANE_H_
#define BULKHEAD_DATA_PLANE_H_

#include "bulkhead/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * How the exchange between replicas (FTAR) has a device copy and add while the CPU drives it: a
 * second table that a device plugin may export beside its own. Sums are ((s0 + s1) + s2) + ... in
 * float32, the same bits on every device.
 *
 * An epoch is one membership of the exchange. Memory of other ranks is reached within an epoch and
 * never touched after it, though it may stay mapped for the next; an abort ends the epoch at the
 * next chunk and leaves every source whole.
 *
 * One thread at a time per plane; `abort` from any. Errors as in device.h; `why` is the last one's
 * line, and lives until the next call.
 */

#define BULKHEAD_DATA_PLANE_ABI 1u

/** So many of a device's multiprocessors an exchange may take. While one may run, that is from the
 *  last micro-batch's backward pass on, a workload's kernels that would fill the device leave them
 *  free, or else they wait for each other. */
#define BULKHEAD_EXCHANGE_PROCESSORS 8u

typedef struct bulkhead_plane bulkhead_plane;

/** Where memory of a rank is, for a rank in another process of the same host. Opaque. */
typedef struct bulkhead_place {
    unsigned char bytes[88];
} bulkhead_place;

typedef struct bulkhead_sum {
    uint32_t struct_size;
    uint32_t sources;        /* 1 to 64; one source makes it a copy */
    const void* const* from; /* device memory, staging memory, or what `reach` gave */
    uint64_t narrow_sources; /* bit s: source s holds bfloat16, else float32 */
    void* to;
    uint64_t count;    /* elements */
    int32_t narrow_to; /* 1: the sum is stored as bfloat16 */
    int32_t rounded;   /* 1: every source and the sum are rounded to bfloat16, however stored */
} bulkhead_sum;

typedef struct bulkhead_data_plane_api {
    uint32_t abi_version; /* BULKHEAD_DATA_PLANE_ABI */
    uint32_t struct_size;

    /* `blocks`: of the kernel that copies and adds; 0: as the plugin thinks best for the link, at
       most BULKHEAD_EXCHANGE_PROCESSORS full of them. */
    bulkhead_status (*open)(bulkhead_device* device, uint32_t blocks, bulkhead_plane** out);
    void (*close)(bulkhead_plane* plane);
    const char* (*why)(const bulkhead_plane* plane);

    /* Host memory that the device reads and writes too; lives as long as the plane. */
    bulkhead_status (*staging)(bulkhead_plane* plane, size_t bytes, void** out);

    /* Closes the epoch before and opens the next; only then do calls work after an abort. */
    bulkhead_status (*enter)(bulkhead_plane* plane);
    /* After it nothing of other ranks is mapped here. Enter and leave wait for the kernel's end. */
    bulkhead_status (*leave)(bulkhead_plane* plane);

    /* `memory` is of kind BULKHEAD_MEMORY_PEER. */
    bulkhead_status (*place)(bulkhead_plane* plane, const void* memory, size_t bytes,
                             bulkhead_place* out);
    /* BULKHEAD_INVALID when there are not so many bytes at that place. All that an epoch reads is
       reached before the first `finish` of an epoch with members here, which unmaps what they do
       not name any more. The first `reach` after it comes when every member is known to have
       returned from its own: PEER memory that was freed in epochs before, and that they may have
       mapped until then, is given to others now. */
    bulkhead_status (*reach)(bulkhead_plane* plane, const bulkhead_place* place, size_t bytes,
                             const void** out);

    /* Returns when it is on its way; sums may be done in any order. */
    bulkhead_status (*submit)(bulkhead_plane* plane, const bulkhead_sum* sum);
    /* Returns when all that was submitted is done. */
    bulkhead_status (*finish)(bulkhead_plane* plane, uint32_t timeout_ms);
    /* Lets the kernel end until the next submit. */
    bulkhead_status (*park)(bulkhead_plane* plane);
    /* From any thread: what waits in this epoch returns BULKHEAD_ABORTED, now and until `enter`. */
    void (*abort)(bulkhead_plane* plane);
} bulkhead_data_plane_api;

/** Returns NULL when the plugin does not serve this version. */
typedef const bulkhead_data_plane_api* (*bulkhead_data_plane_get_api_fn)(uint32_t abi_version);
#define BULKHEAD_DATA_PLANE_GET_API "bulkhead_data_plane_get_api"

#ifdef __cplusplus
}
#endif

#endif /* BULKHEAD_DATA_PLANE_H_ */
