/* SPDX-License-Identifier: Apache-2.0 */
/* A program of its own as the rank of a job, by bulkhead/rank.h alone: it fits one value per domain
 * sample's mean by gradient descent, and tells its gradient in pieces out of order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/runtime/replica/embed/rank.h"

enum { kFloats = 1000 };

static const char kTensors[] =
    "{\"version\": 1, \"model\": \"fit\", \"state_bytes\": 4008, \"tensors\": ["
    "{\"name\": \"weights\", \"kind\": \"parameter\", \"dtype\": \"F32\", \"shape\": [10, 100],"
    " \"offset\": 0},"
    "{\"name\": \"optimizer.updates\", \"kind\": \"optimizer\", \"path\": [\"optimizer\","
    " \"updates\"], \"dtype\": \"F64\", \"shape\": [], \"offset\": 4000}]}";

typedef struct {
    float* weights; /* in the state's memory */
    double updates; /* beside it: gathered and scattered */
    unsigned char* state;
    struct {
        int32_t replica;
        uint64_t step;
    } local; /* of this replica alone */
} Fit;

static int gather(void* context) {
    Fit* fit = context;
    memcpy(fit->state + kFloats * sizeof(float), &fit->updates, sizeof fit->updates);
    return 0;
}

static int scatter(void* context) {
    Fit* fit = context;
    memcpy(&fit->updates, fit->state + kFloats * sizeof(float), sizeof fit->updates);
    return 0;
}

static int update(void* context, float* sum, const bulkhead_rank_update* of) {
    Fit* fit = context;
    for (int i = 0; i < kFloats; ++i)
        fit->weights[i] -= 0.1f * of->lr_factor * of->gradient_scale * sum[i];
    memset(sum, 0, kFloats * sizeof *sum); /* as it may; who replays gets another copy */
    fit->updates += 1;
    return fit->updates == (double)of->updates ? 0
                                               : 1; /* a state that missed one, or has one twice */
}

static int saveLocal(void* context, uint64_t step, const void** bytes, uint64_t* size) {
    Fit* fit = context;
    fit->local.step = step;
    *bytes = &fit->local;
    *size = sizeof fit->local;
    return 0;
}

static int loadLocal(void* context, const void* bytes, uint64_t size) {
    Fit* fit = context;
    const int32_t own = fit->local.replica;
    if (size != sizeof fit->local) return 1;
    memcpy(&fit->local, bytes, size);
    char line[80];
    snprintf(line, sizeof line, "r%d has the local state of r%d after step %d", own,
             fit->local.replica, (int)fit->local.step);
    bulkhead_rank_log(0, line);
    return 0;
}

static int ended(bulkhead_rank* rank, const char* why) {
    bulkhead_rank_log(1, why);
    const int code = bulkhead_rank_exit_code(rank);
    bulkhead_rank_close(rank);
    return code;
}

int main(void) {
    char error[256];
    bulkhead_rank* rank = bulkhead_rank_attach(error, sizeof error);
    if (rank == NULL) {
        fprintf(stderr, "%s\n", error);
        return 2;
    }
    bulkhead_rank_job job;
    bulkhead_rank_describe(rank, &job);
    const char* expected = getenv("TEST_EXPECTS");
    if (expected == NULL || strcmp(expected, job.domain_names[0]) != 0) {
        bulkhead_rank_log(1, "the job's env did not come");
        return 5;
    }
    const bulkhead_rank_sizes sizes = {kFloats * sizeof(float) + sizeof(double),
                                       kFloats * sizeof(float), kFloats, 0, 0};
    bulkhead_rank_blocks blocks;
    if (bulkhead_rank_memory(rank, &sizes, &blocks) != 0)
        return ended(rank, bulkhead_rank_error(rank));
    Fit fit = {blocks.state, 0, blocks.state, {job.replica, 0}};
    for (int i = 0; i < kFloats; ++i) fit.weights[i] = (float)i;
    bulkhead_rank_program program = {sizeof program, &fit, gather, scatter, update, saveLocal,
                                     loadLocal,      NULL, "fit",  kFloats, 1,      "numbers",
                                     kTensors,       0,    0,      0,       NULL};
    if (bulkhead_rank_start(rank, &program) != 0) return ended(rank, bulkhead_rank_error(rank));
    bulkhead_rank_work work;
    int outcome;
    while ((outcome = bulkhead_rank_next(rank, &work)) == BULKHEAD_RANK_STEP) {
        memset(blocks.gradient, 0, kFloats * sizeof(float));
        bulkhead_rank_figures figures = {0, 0, NULL, NULL, 0, NULL, NULL, NULL};
        for (uint32_t r = 0; r < work.range_count; ++r)
            for (uint64_t index = work.ranges[r].begin; index < work.ranges[r].end; ++index) {
                const float target =
                    (float)bulkhead_rank_place(rank, work.ranges[r].domain, index, 10);
                for (int i = 0; i < kFloats; ++i) blocks.gradient[i] += fit.weights[i] - target;
                figures.loss += (fit.weights[0] - target) * (fit.weights[0] - target);
                ++figures.tokens;
            }
        bulkhead_rank_gradient_ready(rank, 0, kFloats / 4);
        bulkhead_rank_gradient_ready(rank, kFloats / 2, kFloats);
        bulkhead_rank_gradient_ready(rank, kFloats / 4, kFloats / 2);
        bulkhead_rank_progress(rank, 1);
        bulkhead_rank_computed(rank, &figures);
    }
    if (outcome == BULKHEAD_RANK_FAILED) return ended(rank, bulkhead_rank_error(rank));
    bulkhead_rank_close(rank);
    return outcome == BULKHEAD_RANK_LEFT ? 0 : bulkhead_rank_exit_code(rank);
}
