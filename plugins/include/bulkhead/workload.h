/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BULKHEAD_WORKLOAD_H_
#define BULKHEAD_WORKLOAD_H_

#include <stddef.h>
#include <stdint.h>

#include "bulkhead/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The workload ABI, plain C: one shard of one replica's model. The host owns the loop, the data,
 * the exchange between replicas and every decision; the workload owns the arithmetic.
 *
 * State of a shard is one flat run of bytes (parameters, then optimizer state, then whatever else
 * decides the next step), so that it can be hashed, copied, sent and checkpointed by byte range
 * without the host knowing its meaning. The gradient of a shard is one flat run of float32, summed
 * over tokens, not divided. Equal state, equal gradient and equal `bulkhead_update` give equal
 * state, bit for bit, on every machine that runs the same binary.
 *
 * One thread calls at a time, except group_abort on the group and export_state_on. No exception
 * leaves.
 */

#define BULKHEAD_WORKLOAD_ABI 5u

typedef struct bulkhead_workload bulkhead_workload;

typedef struct bulkhead_workload_config {
    uint32_t struct_size;
    const bulkhead_host* host;
    const bulkhead_device_api* device_api;
    bulkhead_device* device;
    bulkhead_group* group; /* the replica's ranks; its size is `shards`; outlives the workload */
    int32_t shard;
    int32_t shards;
    const char* model_toml;   /* the job's [model] table; unknown keys are an error */
    const char* model_dir;    /* where names in it, such as size = "tiny", are looked up */
    uint32_t sequence_length; /* tokens per sample */
    uint32_t micro_batch;     /* samples per forward_backward, at most */
    uint32_t domains;         /* data domains, for metrics */
    float beta1, beta2, epsilon, weight_decay; /* AdamW */
} bulkhead_workload_config;

typedef struct bulkhead_model_info {
    uint32_t struct_size;
    char name[64];
    uint64_t parameters;        /* of the whole model */
    uint64_t active_parameters; /* that one token meets */
    uint32_t layers;
    uint32_t moe_layers;
    uint32_t experts; /* routed experts per mixture layer */
    uint32_t top_k;
    uint32_t vocabulary;
    uint64_t expert_bytes;   /* parameters and optimizer state of one expert of one layer */
    uint64_t state_bytes;    /* of this shard under the current layout */
    uint64_t gradient_count; /* float32s of this shard under the current layout */
} bulkhead_model_info;

/** One named tensor of the whole model, for reports and tests. */
typedef struct bulkhead_parameter {
    char name[96];     /* "layers.3.moe.experts.5.w1" */
    int32_t layer;     /* -1: none */
    int32_t moe_layer; /* -1: dense */
    int32_t expert;    /* -1: dense */
    uint64_t count;    /* elements */
} bulkhead_parameter;

/** A stretch of one named tensor of the whole model, in this shard's state under its current
 * layout. Elements are float32 and lie row by row. */
typedef struct bulkhead_state_tensor {
    char name[96];   /* as bulkhead_parameter.name */
    char moment[16]; /* "": the parameter itself; else which of the optimizer's: "exp_avg" */
    uint32_t dimensions;
    uint64_t shape[4]; /* of the whole tensor */
    uint64_t first;    /* elements [first, first + count) of it are here */
    uint64_t count;
    uint64_t offset; /* of element `first` in the state, in bytes */
} bulkhead_state_tensor;

/** One micro-batch of this shard, in host memory. */
typedef struct bulkhead_batch {
    uint32_t struct_size;
    uint32_t samples;       /* <= micro_batch; 0: take part in the collectives only */
    const int32_t* tokens;  /* [samples][sequence_length + 1]: inputs, and targets one later */
    const uint32_t* domain; /* [samples] */
    int32_t first;          /* 1: the gradient and the metrics start from zero */
    int32_t last;           /* 1: gradient_ready is called as parts become final */
} bulkhead_batch;

/** Sums over the micro-batches since `first`, of this shard's own tokens. The arrays are the
 *  caller's memory; NULL: not wanted. */
typedef struct bulkhead_metrics {
    uint32_t struct_size;
    uint64_t tokens;
    double loss_sum;           /* nats */
    double* domain_loss_sum;   /* [domains] */
    uint64_t* domain_tokens;   /* [domains] */
    uint64_t* expert_counts;   /* [moe_layers][domains][experts]: tokens routed */
    uint64_t all_to_all_bytes; /* sent to the group's other ranks for the experts, all passes */
} bulkhead_metrics;

/** [begin, end) of the gradient is final and will not change until the next `first`. Called on the
 *  computing thread, in descending order of begin; the calls together tile the whole gradient. */
typedef void (*bulkhead_gradient_ready)(void* context, uint64_t begin, uint64_t end);

/** How one reduced gradient g changes the state: AdamW on g * gradient_scale. All from the commit
 *  record's bits, so equal everywhere. */
typedef struct bulkhead_update {
    uint32_t struct_size;
    uint64_t updates; /* this is the updates-th update, from 1 */
    float learning_rate;
    float gradient_scale;
    float bias_correction1; /* 1 - beta1^updates */
    float bias_correction2;
} bulkhead_update;

typedef struct bulkhead_workload_api {
    uint32_t abi_version; /* BULKHEAD_WORKLOAD_ABI */
    uint32_t struct_size;
    const char* name; /* "llama_moe"; lives for ever */

    /* Collective over the group. BULKHEAD_INVALID with one line naming the key, what was expected
       and what to do, when the configuration is wrong or the model does not fit the shard count. */
    bulkhead_status (*create)(const bulkhead_workload_config* config, bulkhead_workload** out);
    void (*destroy)(bulkhead_workload* workload);

    bulkhead_status (*describe)(bulkhead_workload* workload, bulkhead_model_info* out);
    /* Fills at most `capacity`; *count is how many there are. */
    bulkhead_status (*parameters)(bulkhead_workload* workload, bulkhead_parameter* out,
                                  uint32_t capacity, uint32_t* count);

    /* Fresh parameters and optimizer state; independent of the number of shards and the layout. */
    bulkhead_status (*initialise)(bulkhead_workload* workload, uint64_t seed);

    /* Collective. Adds to the shard's gradient. The batch is copied; what was put on the device's
       default stream may still run when the call returns, but for the parts that `ready` was told
       of. What then goes wrong is told by the next call that waits: metrics, sum_of_squares, hash,
       routing, evaluate, and exports and imports do. */
    bulkhead_status (*forward_backward)(bulkhead_workload* workload, const bulkhead_batch* batch,
                                        bulkhead_gradient_ready ready, void* ready_context);
    /* Collective. Loss only; touches neither gradient nor state. Sums are added to *metrics. */
    bulkhead_status (*evaluate)(bulkhead_workload* workload, const bulkhead_batch* batch,
                                bulkhead_metrics* metrics);
    bulkhead_status (*metrics)(bulkhead_workload* workload, bulkhead_metrics* out);
    /* The local gradient, in memory of kind *kind; valid until the next layout change. */
    bulkhead_status (*gradient)(bulkhead_workload* workload, float** out, uint64_t* count,
                                bulkhead_memory* kind);

    /* `reduced` has gradient_count float32s in device memory. Not collective. The sum is in double
       and in an order that depends on nothing but the layout. */
    bulkhead_status (*sum_of_squares)(bulkhead_workload* workload, const float* reduced,
                                      double* out);
    /* May return before it is done: who reads the state on a stream of its own, or frees `reduced`,
       waits for the default stream first. */
    bulkhead_status (*apply)(bulkhead_workload* workload, const float* reduced,
                             const bulkhead_update* update);

    /* State by byte range, to and from host memory. After the last import call `imported` once
       (collective) before anything else. */
    bulkhead_status (*export_state)(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                                    void* to);
    bulkhead_status (*import_state)(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                                    const void* from);
    bulkhead_status (*imported)(bulkhead_workload* workload);
    /* bulkhead_state_hash() of the state bytes (bulkhead/state_hash.h), wherever it is computed. */
    bulkhead_status (*hash)(bulkhead_workload* workload, uint64_t* out);

    /* Expert placement: shard of expert e of mixture layer l at [l * experts + e]. */
    bulkhead_status (*layout)(bulkhead_workload* workload, int32_t* out, uint32_t capacity);
    /* Before state is imported: sizes follow this placement, contents are undefined. Collective. */
    bulkhead_status (*adopt_layout)(bulkhead_workload* workload, const int32_t* expert_shard,
                                    uint32_t count);
    /* Collective. Moves weights and optimizer state; the old copies stay until settle_layout.
     *bytes_moved is what this shard sent. */
    bulkhead_status (*change_layout)(bulkhead_workload* workload, const int32_t* expert_shard,
                                     uint32_t count, uint64_t* bytes_moved);
    /* keep 1: the new layout stays. keep 0: back to the old one, as if nothing had moved; only
       valid before the next apply. */
    bulkhead_status (*settle_layout)(bulkhead_workload* workload, int32_t keep);

    /* Experts that the tokens of sample `sample` of the last forward_backward chose: writes
       [sequence_length][moe_layers][top_k] numbers. For reports; changes nothing. */
    bulkhead_status (*routing)(bulkhead_workload* workload, uint32_t sample, uint32_t* out);

    /* 1: it computes on devices of that name (bulkhead_device_api.name). Asked before create. */
    int32_t (*computes_on)(const char* device);

    /* As export_state, but put on `stream` and done when that is; `to` is memory of kind HOST or
       DEVICE. Until then the host calls nothing that changes the state; everything else goes on
       meanwhile, so this one function may be called on other threads than the rest. NULL:
       export_state does as well, because it waits for no device. */
    bulkhead_status (*export_state_on)(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                                       void* to, bulkhead_stream* stream);

    /* What the state's bytes are, so that checkpoints can be read by others. Fills at most
       `capacity`; *count is how many there are. NULL: nobody is told. */
    bulkhead_status (*state_tensors)(bulkhead_workload* workload, bulkhead_state_tensor* out,
                                     uint32_t capacity, uint32_t* count);
} bulkhead_workload_api;

/** The one symbol of a workload plugin; returns NULL when it does not serve this version. */
typedef const bulkhead_workload_api* (*bulkhead_workload_get_api_fn)(uint32_t abi_version);
#define BULKHEAD_WORKLOAD_GET_API "bulkhead_workload_get_api"

#ifdef __cplusplus
}
#endif

#endif /* BULKHEAD_WORKLOAD_H_ */
