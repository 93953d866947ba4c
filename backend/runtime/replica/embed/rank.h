/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BULKHEAD_RANK_H_
#define BULKHEAD_RANK_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A rank inside a program in any language: replica_rank.h for a program whose state and gradient
 * are flat memory of the library's, the gradient perhaps a device's. The package `bulkhead` of
 * Python calls this; docs/python.md says what happens when.
 *
 *     rank = bulkhead_rank_attach(error, sizeof error);
 *     bulkhead_rank_memory(rank, &sizes, &memory);       // lay out state and gradient in it
 *     bulkhead_rank_start(rank, &program);
 *     while (bulkhead_rank_next(rank, &work) == BULKHEAD_RANK_STEP) {
 *         // compute the gradient of work.ranges, calling bulkhead_rank_gradient_ready()
 *         bulkhead_rank_computed(rank, &figures);
 *     }
 *     bulkhead_rank_close(rank);
 *
 * One rank in a process, and `shards` processes in a replica: each has a part of the state and of
 * the gradient, which is exchanged with the same shard's of the other replicas. What they compute
 * together, and by which connections, is the program's: all ranks of a replica are given the same
 * steps in the same order, and begin one when all of them are ready. gather, scatter and update
 * must not wait for a sibling: a rank that catches up is alone. When one ends, agents end the
 * others.
 *
 * All functions are called on one thread, which lives as long as the
 * process: it holds the life lock. The callbacks run on it, inside bulkhead_rank_next(). A function
 * that returns int returns 0, or else bulkhead_rank_error() says what is wrong and
 * bulkhead_rank_exit_code() with which code the process should end.
 */

typedef struct bulkhead_rank bulkhead_rank;

/** What the job says; pointers live as long as the rank. */
typedef struct {
    const char* job;    /**< the run's id */
    const char* device; /**< as the job says: "cpu", "auto" or a plugin's name */
    int32_t replica, shard;
    const char* address; /**< an IP of this rank's node, for its listeners */
    const char* run_dir; /**< a folder of the run on this node */
    uint32_t replicas, shards, incarnation;
    uint32_t sequence_length;     /**< tokens per sample */
    uint32_t samples_per_replica; /**< per step, all shards together */
    uint32_t progress_floor_ms;   /**< a rank without progress for so long counts as stuck, */
    uint32_t progress_multiple;   /**< or for so many times a step, whichever is longer */
    uint64_t seed;
    uint32_t domains;
    const char* const* domain_names;
} bulkhead_rank_job;

typedef struct {
    uint64_t state_bytes;     /**< of this shard; equal on all replicas */
    uint64_t parameter_bytes; /**< of them, at the state's begin */
    uint64_t gradient_floats;
    uint64_t other_floats; /**< of them, at its begin: summed like it, outside its norm */
    /** 1: the program computes on the job's device, the one that this process sees, and the
     * gradient lies there if the device can exchange it: by no way through the host. */
    uint32_t on_device;
} bulkhead_rank_sizes;

/** Zeroed, aligned to 64 bytes, as long as the process lives: a model goes on lying in it. */
typedef struct {
    void* state;
    float* gradient;    /**< the caller's to write while a step is computed, and only then */
    uint32_t on_device; /**< 1: the gradient is memory of the device; the state is the host's */
} bulkhead_rank_blocks;

/** One update of the state: mean gradient = sum x gradient_scale. */
typedef struct {
    uint64_t step;
    uint64_t updates; /**< this one counted */
    uint64_t samples; /**< in the sum */
    float gradient_scale;
    float lr_factor; /**< of the job's policy, while replicas are missing; else 1 */
} bulkhead_rank_update;

/** A callback returns 0, or anything else to end the rank: its own words are its own matter. */
typedef struct {
    uint32_t struct_size;
    void* context;
    /** The state memory is to be what the state is; what lies there for good needs nothing. */
    int (*gather)(void* context);
    /** The state memory was written by the library: it is what the state is now. */
    int (*scatter)(void* context);
    /** One update from `sum`, which is gradient_floats long, lies where the gradient does, and in
     *  host memory may be overwritten. On a device it is done when this returns. Equal state, sum
     *  and update must give equal state, bit for bit. */
    int (*update)(void* context, float* sum, const bulkhead_rank_update* update);
    /** What this replica keeps for itself, as it was when `step` had been applied and nothing of
     *  the next one was computed: `*bytes` until the next call. Part of this replica's
     *  checkpoints, of no hash, and given to no other replica. */
    int (*save_local)(void* context, uint64_t step, const void** bytes, uint64_t* size);
    /** After scatter(), of a checkpoint that this replica wrote. */
    int (*load_local)(void* context, const void* bytes, uint64_t size);
    /** The sum of the squares of `count` floats of the device, in a fixed order, in float64. Called
     *  only where the gradient is on a device; else it may be NULL. */
    int (*sum_of_squares)(void* context, const float* values, uint64_t count, double* out);
    const char* model;   /**< its name, for people */
    uint64_t parameters; /**< their number, for people */
    uint64_t data_hash;  /**< must agree across the job; 0 agrees with anything */
    const char* data;    /**< what was hashed, for when it does not agree */
    const char* tensors; /**< the tensor table of the state (docs/checkpoints.md), or NULL */
    /** Mixture layers, experts in each, and experts that a token chooses in each; 0: there are
     * none. */
    uint32_t moe_layers, experts, top_k;
    const int32_t* expert_shard; /**< [moe_layers][experts]: where each lies, and stays */
} bulkhead_rank_program;

/** Samples [begin, end) of a domain. */
typedef struct {
    uint32_t domain;
    uint64_t begin, end;
} bulkhead_rank_range;

typedef struct {
    uint32_t domain;
    uint64_t index;
} bulkhead_rank_sample;

/** Pointers are good until the next call. */
typedef struct {
    uint64_t step;
    uint32_t range_count;
    const bulkhead_rank_range* ranges; /**< all of this replica */
    uint64_t sample_count;
    const bulkhead_rank_sample* samples; /**< this rank's part of them: each sample is one rank's,
                                            and nobody has more than samples / shards, rounded up */
    const char* why;                     /**< when the rank is to leave; else NULL */
} bulkhead_rank_work;

/** Sums over what this rank computed of the step. */
typedef struct {
    double loss; /**< over tokens, nats where a loss has a unit */
    uint64_t tokens;
    const double* domain_loss; /**< by domain; NULL: not told */
    const uint64_t* domain_tokens;
    uint32_t scalars; /**< figures of the user's own, at most 32 */
    const char* const* scalar_names;
    const double* scalar_values;   /**< means over this rank's contribution */
    const uint64_t* expert_counts; /**< [moe_layers][domains][experts]: how often each was chosen */
} bulkhead_rank_figures;

enum {
    BULKHEAD_RANK_STEP = 0,
    BULKHEAD_RANK_LEFT = 1,     /**< in order: the job ended, or this replica is not wanted */
    BULKHEAD_RANK_EXPELLED = 2, /**< another incarnation took its place */
    BULKHEAD_RANK_ORPHANED = 3, /**< no coordinator for too long; a checkpoint was written */
    BULKHEAD_RANK_FAILED = -1
};

#define BULKHEAD_RANK_API __attribute__((visibility("default")))

/** The version of the library, as "0.2.0". */
BULKHEAD_RANK_API const char* bulkhead_rank_version(void);

/** Reads what the agent said in the environment (variables BULKHEAD_...), takes the life lock and
 *  handles SIGTERM: the rank leaves in order. NULL with a line in `error` when this process was not
 *  started by an agent, or has attached before. */
BULKHEAD_RANK_API bulkhead_rank* bulkhead_rank_attach(char* error, size_t size);
BULKHEAD_RANK_API void bulkhead_rank_describe(const bulkhead_rank* rank, bulkhead_rank_job* out);

/** Once, before bulkhead_rank_start(). */
BULKHEAD_RANK_API int bulkhead_rank_memory(bulkhead_rank* rank, const bulkhead_rank_sizes* sizes,
                                           bulkhead_rank_blocks* out);
/** Connects; `program` and what it points to live until bulkhead_rank_close(). */
BULKHEAD_RANK_API int bulkhead_rank_start(bulkhead_rank* rank,
                                          const bulkhead_rank_program* program);

/** Blocks; what it returns is one of the enumeration above. */
BULKHEAD_RANK_API int bulkhead_rank_next(bulkhead_rank* rank, bulkhead_rank_work* out);
/** Floats [begin, end) of the gradient are final, on a device too: whatever wrote them is done.
 *  Calls tile the gradient, in any order. */
BULKHEAD_RANK_API void bulkhead_rank_gradient_ready(bulkhead_rank* rank, uint64_t begin,
                                                    uint64_t end);
/** A part of the step took so long: progress, without which a rank counts as stuck. */
BULKHEAD_RANK_API void bulkhead_rank_progress(bulkhead_rank* rank, uint64_t nanoseconds);
/** The whole gradient stands. */
BULKHEAD_RANK_API void bulkhead_rank_computed(bulkhead_rank* rank,
                                              const bulkhead_rank_figures* figures);

/** This rank is to leave: what is being computed is for nothing, and siblings may be gone. Whoever
 *  is still in a step calls bulkhead_rank_next(), which says how it ends. */
BULKHEAD_RANK_API int bulkhead_rank_leaving(const bulkhead_rank* rank);

/** Of the last function that failed. */
BULKHEAD_RANK_API const char* bulkhead_rank_error(const bulkhead_rank* rank);
/** How the process should end: README.md of runtime/replica lists the codes. */
BULKHEAD_RANK_API int bulkhead_rank_exit_code(const bulkhead_rank* rank);
/** Tells the controller, ahead of an exit with code 5, that no restart can help. */
BULKHEAD_RANK_API void bulkhead_rank_hopeless(bulkhead_rank* rank, const char* why);
/** Closes connections and ends the library's threads. Only the error, the exit code and the memory
 *  stay. */
BULKHEAD_RANK_API void bulkhead_rank_close(bulkhead_rank* rank);

/** The place in a domain's data, of `size` samples, that index `index` of a lease stands for: in
 * each pass (size consecutive indices from a multiple of it) every place comes once, in an order
 * drawn from the job's seed, the domain and the pass. */
BULKHEAD_RANK_API uint64_t bulkhead_rank_place(const bulkhead_rank* rank, uint32_t domain,
                                               uint64_t index, uint64_t size);
/** A line in the rank's log, as the library's own; critical: the reason of its end. */
BULKHEAD_RANK_API void bulkhead_rank_log(int critical, const char* line);

#ifdef __cplusplus
}
#endif

#endif /* BULKHEAD_RANK_H_ */
