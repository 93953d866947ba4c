/* SPDX-License-Identifier: Apache-2.0 */
/* The ABI from C: headers that compile as C, and one step of the built plugin over a device of
 * malloc. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bulkhead/data_plane.h"
#include "bulkhead/device.h"
#include "bulkhead/state_hash.h"
#include "bulkhead/workload.h"

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "line %d does not hold: %s\n", __LINE__, #condition); \
            return 1;                                                             \
        }                                                                         \
    } while (0)

static char last_error[256];

static void keep_error(void* context, const char* line) {
    (void)context;
    snprintf(last_error, sizeof(last_error), "%s", line);
}
static void no_log(void* context, int32_t severity, const char* line) {
    (void)context;
    (void)severity;
    (void)line;
}

static bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    (void)device;
    memset(out, 0, sizeof(*out));
    out->memory_is_host = 1;
    return BULKHEAD_OK;
}
static bulkhead_status allocate(bulkhead_device* device, bulkhead_memory kind, size_t bytes,
                                void** out) {
    const size_t whole = (bytes + 63) / 64 * 64;
    (void)device;
    (void)kind;
    *out = aligned_alloc(64, whole);
    if (*out == NULL) return BULKHEAD_OUT_OF_MEMORY;
    memset(*out, 0, whole);
    return BULKHEAD_OK;
}
static void release(bulkhead_device* device, void* memory) {
    (void)device;
    free(memory);
}
static bulkhead_status copy(bulkhead_device* device, void* to, const void* from, size_t bytes,
                            bulkhead_stream* stream) {
    (void)device;
    (void)stream;
    memcpy(to, from, bytes);
    return BULKHEAD_OK;
}

static bulkhead_status zero(bulkhead_device* device, void* to, size_t bytes,
                            bulkhead_stream* stream) {
    (void)device;
    (void)stream;
    memset(to, 0, bytes);
    return BULKHEAD_OK;
}
static bulkhead_status synchronize(bulkhead_device* device, bulkhead_stream* stream) {
    (void)device;
    (void)stream;
    return BULKHEAD_OK;
}

static int hash_is_of_the_exported_bytes(const bulkhead_workload_api* api,
                                         bulkhead_workload* workload) {
    bulkhead_model_info info = {0};
    uint64_t hash = 0;
    void* state = NULL;
    info.struct_size = sizeof(info);
    CHECK(api->describe(workload, &info) == BULKHEAD_OK);
    CHECK(info.state_bytes > 2 * BULKHEAD_STATE_PIECE);
    state = malloc(info.state_bytes);
    CHECK(api->export_state(workload, 0, info.state_bytes, state) == BULKHEAD_OK);
    CHECK(api->hash(workload, &hash) == BULKHEAD_OK);
    CHECK(hash == bulkhead_state_hash(state, info.state_bytes));
    free(state);
    return 0;
}

static int step(const bulkhead_workload_api* api, bulkhead_workload* workload) {
    enum { kTokens = 17 };
    int32_t tokens[kTokens];
    const uint32_t domain = 0;
    bulkhead_batch batch = {sizeof(batch), 1, tokens, &domain, 1, 1};
    bulkhead_metrics metrics = {sizeof(metrics), 0, 0, NULL, NULL, NULL, 0};
    bulkhead_update update = {sizeof(update), 1, 1e-2f, 1.0f / 16, 0.1f, 0.05f};
    uint64_t before = 0, after = 0, count = 0;
    double first = 0, squares = 0;
    float* gradient = NULL;
    bulkhead_memory kind;
    for (int i = 0; i < kTokens; ++i) tokens[i] = 'a' + i % 5;

    CHECK(api->forward_backward(workload, &batch, NULL, NULL) == BULKHEAD_OK);
    CHECK(api->metrics(workload, &metrics) == BULKHEAD_OK);
    CHECK(metrics.tokens == 16);
    first = metrics.loss_sum / 16;
    CHECK(first > 4.0 && first < 8.0);
    CHECK(api->gradient(workload, &gradient, &count, &kind) == BULKHEAD_OK);
    CHECK(api->sum_of_squares(workload, gradient, &squares) == BULKHEAD_OK);
    CHECK(squares > 0 && isfinite(squares));
    CHECK(api->hash(workload, &before) == BULKHEAD_OK);
    CHECK(api->apply(workload, gradient, &update) == BULKHEAD_OK);
    CHECK(api->hash(workload, &after) == BULKHEAD_OK);
    CHECK(before != after);
    metrics.tokens = 0;
    metrics.loss_sum = 0;
    CHECK(api->evaluate(workload, &batch, &metrics) == BULKHEAD_OK);
    CHECK(metrics.loss_sum / 16 < first);
    return 0;
}

int main(int argc, char** argv) {
    static const bulkhead_host host = {NULL, no_log, keep_error};
    bulkhead_device_api device;
    bulkhead_workload_config config;
    bulkhead_workload* workload = NULL;
    bulkhead_workload_get_api_fn get_api = NULL;
    const bulkhead_workload_api* api = NULL;
    void* library = NULL;
    int failed = 0;

    CHECK(argc == 2);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    *(void**)&get_api = dlsym(library, BULKHEAD_WORKLOAD_GET_API);
    CHECK(get_api != NULL);
    CHECK(get_api(BULKHEAD_WORKLOAD_ABI + 1) == NULL);
    api = get_api(BULKHEAD_WORKLOAD_ABI);
    CHECK(api != NULL);
    CHECK(api->abi_version == BULKHEAD_WORKLOAD_ABI);
    CHECK(api->struct_size == sizeof(bulkhead_workload_api));
    CHECK(strcmp(api->name, "llama_moe") == 0);

    memset(&device, 0, sizeof(device));
    device.abi_version = BULKHEAD_DEVICE_ABI;
    device.struct_size = sizeof(device);
    device.name = "plain";
    device.describe = describe;
    device.alloc = allocate;
    device.free = release;
    device.copy = copy;
    device.zero = zero;
    device.stream_synchronize = synchronize;
    memset(&config, 0, sizeof(config));
    config.struct_size = sizeof(config);
    config.host = &host;
    config.device_api = &device;
    config.shards = 1;
    config.model_toml =
        "dim = 16\nlayers = 2\nheads = 2\nkv_heads = 1\nattention_chunk = 8\n"
        "ffn_hidden = 16\nexperts = 4\nexpert_hidden = 8\nshared_hidden = 8";
    config.sequence_length = 16;
    config.micro_batch = 1;
    config.domains = 1;
    config.beta1 = 0.9f;
    config.beta2 = 0.95f;
    config.epsilon = 1e-8f;

    config.struct_size = 8;
    CHECK(api->create(&config, &workload) == BULKHEAD_INVALID);
    CHECK(strstr(last_error, "older workload ABI") != NULL);
    config.struct_size = sizeof(config);
    CHECK(api->create(&config, &workload) == BULKHEAD_OK);
    CHECK(api->initialise(workload, 1) == BULKHEAD_OK);
    failed = hash_is_of_the_exported_bytes(api, workload) || step(api, workload);
    api->destroy(workload);
    return failed;
}
