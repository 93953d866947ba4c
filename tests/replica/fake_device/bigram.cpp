// SPDX-License-Identifier: Apache-2.0
// The smallest workload that learns: which byte follows which. It computes on the CPU, but its
// parameters and gradient are the device's and reached through its table only, so that it runs on
// any device and gives the same numbers on all.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "bulkhead/state_hash.h"
#include "bulkhead/workload.h"

struct bulkhead_workload {
    static constexpr size_t kBytes = 256;                // there are
    static constexpr size_t kWeights = kBytes * kBytes;  // logits of the next one, by this one

    bulkhead_workload_config config{};
    float* state = nullptr;     ///< device: weights, then their momentum
    float* gradient = nullptr;  ///< device, kind PEER
    float* parts = nullptr;     ///< device: this shard's sums, then those of all; of several shards
    std::vector<float> sum = std::vector<float>(kWeights);
    std::vector<float> work = std::vector<float>(2 * kWeights);  ///< a copy of the state
    std::vector<double> domainLoss;
    std::vector<uint64_t> domainTokens;

    bulkhead_status copy(void* to, const void* from, size_t bytes) const {
        const bulkhead_device_api& api = *config.device_api;
        const bulkhead_status status = api.copy(config.device, to, from, bytes, nullptr);
        return status == BULKHEAD_OK ? api.stream_synchronize(config.device, nullptr) : status;
    }
};

namespace {

using Workload = bulkhead_workload;

bulkhead_status refuse(const bulkhead_workload_config& config, const char* why) {
    config.host->error(config.host->context, why);
    return BULKHEAD_INVALID;
}

void destroy(Workload* w) {
    if (w == nullptr) return;
    w->config.device_api->free(w->config.device, w->state);
    w->config.device_api->free(w->config.device, w->gradient);
    w->config.device_api->free(w->config.device, w->parts);
    delete w;
}

bulkhead_status create(const bulkhead_workload_config* config, Workload** out) {
    auto* w = new Workload;
    w->config = *config;
    w->domainLoss.resize(config->domains);
    w->domainTokens.resize(config->domains);
    const auto alloc = [&](bulkhead_memory kind, size_t floats, float** at) {
        return config->device_api->alloc(config->device, kind, floats * sizeof(float),
                                         reinterpret_cast<void**>(at));
    };
    if (alloc(BULKHEAD_MEMORY_DEVICE, 2 * Workload::kWeights, &w->state) != BULKHEAD_OK ||
        alloc(BULKHEAD_MEMORY_PEER, Workload::kWeights, &w->gradient) != BULKHEAD_OK ||
        (config->shards > 1 && alloc(BULKHEAD_MEMORY_DEVICE,
                                     (1 + static_cast<size_t>(config->shards)) * Workload::kWeights,
                                     &w->parts) != BULKHEAD_OK)) {
        destroy(w);
        return BULKHEAD_OUT_OF_MEMORY;
    }
    *out = w;
    return BULKHEAD_OK;
}

bulkhead_status describe(Workload*, bulkhead_model_info* out) {
    const uint32_t size = out->struct_size;
    *out = {};
    out->struct_size = size;
    std::strncpy(out->name, "bigram", sizeof out->name - 1);
    out->parameters = out->active_parameters = Workload::kWeights;
    out->vocabulary = Workload::kBytes;
    out->state_bytes = 2 * Workload::kWeights * sizeof(float);
    out->gradient_count = Workload::kWeights;
    return BULKHEAD_OK;
}

bulkhead_status parameters(Workload*, bulkhead_parameter*, uint32_t, uint32_t* count) {
    *count = 0;
    return BULKHEAD_OK;
}

bulkhead_status initialise(Workload* w, uint64_t seed) {
    uint64_t random = seed + 1;
    for (size_t i = 0; i < w->work.size(); ++i) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        const bool weight = i < Workload::kWeights;
        w->work[i] = weight ? 0.01f * static_cast<float>(random >> 40) / (1 << 24) : 0.0f;
    }
    return w->copy(w->state, w->work.data(), w->work.size() * sizeof(float));
}

/// Adds the gradient of one sample and returns its loss in nats.
double learn(Workload* w, const int32_t* tokens) {
    double loss = 0;
    float p[Workload::kBytes];
    for (uint32_t i = 0; i < w->config.sequence_length; ++i) {
        const auto row = static_cast<size_t>(tokens[i]) * Workload::kBytes;
        const auto next = static_cast<size_t>(tokens[i + 1]);
        float all = 0;
        for (size_t b = 0; b < Workload::kBytes; ++b) all += p[b] = std::exp(w->work[row + b]);
        for (size_t b = 0; b < Workload::kBytes; ++b) w->sum[row + b] += p[b] / all;
        w->sum[row + next] -= 1;
        loss -= std::log(p[next] / all);
    }
    return loss;
}

/// Every shard learns from samples of its own, and all have the same sum in the end.
bulkhead_status addShards(Workload* w) {
    const auto shards = static_cast<size_t>(w->config.shards);
    if (shards == 1) return BULKHEAD_OK;
    constexpr size_t kBytes = Workload::kWeights * sizeof(float);
    bulkhead_status s = w->copy(w->parts, w->sum.data(), kBytes);
    if (s == BULKHEAD_OK)
        s = w->config.device_api->all_gather(w->config.group, w->parts,
                                             w->parts + Workload::kWeights, Workload::kWeights,
                                             BULKHEAD_F32, nullptr);
    std::vector<float> all(shards * Workload::kWeights);
    if (s == BULKHEAD_OK) s = w->copy(all.data(), w->parts + Workload::kWeights, shards * kBytes);
    for (size_t i = 0; i < Workload::kWeights; ++i) {
        w->sum[i] = all[i];
        for (size_t r = 1; r < shards; ++r) w->sum[i] += all[r * Workload::kWeights + i];
    }
    return s;
}

bulkhead_status forwardBackward(Workload* w, const bulkhead_batch* batch,
                                bulkhead_gradient_ready ready, void* context) {
    if (batch->first != 0) {
        std::fill(w->sum.begin(), w->sum.end(), 0.0f);
        std::fill(w->domainLoss.begin(), w->domainLoss.end(), 0.0);
        std::fill(w->domainTokens.begin(), w->domainTokens.end(), 0u);
    }
    if (const bulkhead_status s = w->copy(w->work.data(), w->state, w->work.size() * sizeof(float));
        s != BULKHEAD_OK)
        return s;
    for (uint32_t i = 0; i < batch->samples; ++i) {
        w->domainLoss[batch->domain[i]] +=
            learn(w, batch->tokens + size_t{i} * (w->config.sequence_length + 1));
        w->domainTokens[batch->domain[i]] += w->config.sequence_length;
    }
    if (batch->last == 0) return BULKHEAD_OK;
    if (const bulkhead_status s = addShards(w); s != BULKHEAD_OK) return s;
    constexpr size_t kHalf = Workload::kWeights / 2;
    for (const size_t begin : {kHalf, size_t{0}}) {
        const bulkhead_status s =
            w->copy(w->gradient + begin, w->sum.data() + begin, kHalf * sizeof(float));
        if (s != BULKHEAD_OK) return s;
        ready(context, begin, begin + kHalf);
    }
    return BULKHEAD_OK;
}

bulkhead_status evaluate(Workload* w, const bulkhead_batch*, bulkhead_metrics*) {
    return refuse(w->config, "bigram does not evaluate");
}

bulkhead_status metrics(Workload* w, bulkhead_metrics* out) {
    for (size_t d = 0; d < w->domainLoss.size(); ++d) {
        out->loss_sum += w->domainLoss[d];
        out->tokens += w->domainTokens[d];
        if (out->domain_loss_sum != nullptr) out->domain_loss_sum[d] = w->domainLoss[d];
        if (out->domain_tokens != nullptr) out->domain_tokens[d] = w->domainTokens[d];
    }
    return BULKHEAD_OK;
}

bulkhead_status gradient(Workload* w, float** out, uint64_t* count, bulkhead_memory* kind) {
    *out = w->gradient;
    *count = Workload::kWeights;
    *kind = BULKHEAD_MEMORY_PEER;
    return BULKHEAD_OK;
}

/// BULKHEAD_BIGRAM_SUMS: so many sums of squares can be had; any number where it is not set.
bulkhead_status sumOfSquares(Workload* w, const float* reduced, double* out) {
    static int had = 0;
    const char* most = std::getenv("BULKHEAD_BIGRAM_SUMS");
    if (most != nullptr && ++had > std::atoi(most)) return BULKHEAD_INTERNAL;
    std::vector<float> values(Workload::kWeights);
    const bulkhead_status s = w->copy(values.data(), reduced, values.size() * sizeof(float));
    *out = 0;
    for (const float v : values) *out += double{v} * v;
    return s;
}

bulkhead_status apply(Workload* w, const float* reduced, const bulkhead_update* update) {
    std::vector<float> values(Workload::kWeights);
    const size_t bytes = w->work.size() * sizeof(float);
    bulkhead_status s = w->copy(values.data(), reduced, values.size() * sizeof(float));
    if (s == BULKHEAD_OK) s = w->copy(w->work.data(), w->state, bytes);
    if (s != BULKHEAD_OK) return s;
    float* momentum = w->work.data() + Workload::kWeights;
    for (size_t i = 0; i < values.size(); ++i) {
        momentum[i] = w->config.beta1 * momentum[i] + values[i] * update->gradient_scale;
        w->work[i] -= 400 * update->learning_rate * momentum[i];
    }
    return w->copy(w->state, w->work.data(), bytes);
}

std::byte* stateBytes(Workload* w) {
    return reinterpret_cast<std::byte*>(w->state);
}
void say(Workload* w, uint64_t bytes, const char* line) {
    if (bytes == w->work.size() * sizeof(float))
        w->config.host->log(w->config.host->context, 0, line);
}
bulkhead_status exportState(Workload* w, uint64_t offset, uint64_t bytes, void* to) {
    say(w, bytes, "the whole state is exported, and all wait");
    return w->copy(to, stateBytes(w) + offset, bytes);
}
bulkhead_status exportStateOn(Workload* w, uint64_t offset, uint64_t bytes, void* to,
                              bulkhead_stream* stream) {
    say(w, bytes,
        stream == nullptr ? "the whole state is kept on the device"
                          : "the whole state is exported beside training");
    return w->config.device_api->copy(w->config.device, to, stateBytes(w) + offset, bytes, stream);
}
bulkhead_status importState(Workload* w, uint64_t offset, uint64_t bytes, const void* from) {
    return w->copy(stateBytes(w) + offset, from, bytes);
}
bulkhead_status imported(Workload*) {
    return BULKHEAD_OK;
}
/// Takes so many milliseconds longer as BULKHEAD_TEST_HASH_MS says: a state that is large.
bulkhead_status hash(Workload* w, uint64_t* out) {
    if (const char* ms = std::getenv("BULKHEAD_TEST_HASH_MS"))
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(ms)));
    const size_t bytes = w->work.size() * sizeof(float);
    const bulkhead_status s = w->copy(w->work.data(), w->state, bytes);
    *out = bulkhead_state_hash(w->work.data(), bytes);
    return s;
}

// It has no experts.
bulkhead_status layout(Workload*, int32_t*, uint32_t) {
    return BULKHEAD_OK;
}
bulkhead_status adoptLayout(Workload*, const int32_t*, uint32_t) {
    return BULKHEAD_OK;
}
bulkhead_status changeLayout(Workload* w, const int32_t*, uint32_t, uint64_t*) {
    return refuse(w->config, "bigram has no experts to move");
}
bulkhead_status settleLayout(Workload*, int32_t) {
    return BULKHEAD_OK;
}
bulkhead_status routing(Workload*, uint32_t, uint32_t*) {
    return BULKHEAD_OK;
}
int32_t computesOn(const char*) {
    return 1;
}

const bulkhead_workload_api kApi = {BULKHEAD_WORKLOAD_ABI,
                                    sizeof(bulkhead_workload_api),
                                    "bigram",
                                    create,
                                    destroy,
                                    describe,
                                    parameters,
                                    initialise,
                                    forwardBackward,
                                    evaluate,
                                    metrics,
                                    gradient,
                                    sumOfSquares,
                                    apply,
                                    exportState,
                                    importState,
                                    imported,
                                    hash,
                                    layout,
                                    adoptLayout,
                                    changeLayout,
                                    settleLayout,
                                    routing,
                                    computesOn,
                                    exportStateOn,
                                    nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const bulkhead_workload_api*
bulkhead_workload_get_api(uint32_t version) {
    return version == BULKHEAD_WORKLOAD_ABI ? &kApi : nullptr;
}
