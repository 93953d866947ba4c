// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "backend/common/threads.h"
#include "plugins/llama_moe/workload.h"

namespace bulkhead::test {

Model::Model(const ModelOptions& options)
    : options_(options),
      ranks_(options.shards, options.place == nullptr ? threadDeviceApi() : options.place->device),
      api_(llama_moe::workloadApi()),
      workloads_(options.shards) {
    host_.context = this;
    host_.log = [](void*, int32_t, const char*) {};
    host_.error = [](void* context, const char* line) {
        static Mutex mutex;
        const MutexLock lock(mutex);
        static_cast<Model*>(context)->error_ = line;
    };
    std::vector<bulkhead_status> statuses(options.shards);
    Shards::onEach(options.shards, [&](size_t s) {
        bulkhead_workload_config config{};
        config.struct_size = sizeof(config);
        config.host = &host_;
        config.device_api = ranks_.device(s).api;
        config.device = ranks_.device(s).device;
        config.group = ranks_.device(s).group;
        config.shard = static_cast<int32_t>(s);
        config.shards = static_cast<int32_t>(options.shards);
        config.model_toml = options.toml.c_str();
        config.model_dir = options.directory.c_str();
        config.sequence_length = options.sequence;
        config.micro_batch = options.microBatch;
        config.domains = options.domains;
        config.beta1 = 0.9f;
        config.beta2 = 0.95f;
        config.epsilon = 1e-8f;
        config.weight_decay = options.weightDecay;
        statuses[s] = options.place == nullptr
                          ? api_->create(&config, &workloads_[s])
                          : llama_moe::createOn(options.place->machine, &config, &workloads_[s]);
    });
    for (const bulkhead_status status : statuses) created_ = created_ && status == BULKHEAD_OK;
}

Model::~Model() {
    for (bulkhead_workload* workload : workloads_)
        if (workload != nullptr) api_->destroy(workload);
}

template <class Body>
void Model::onEach(Body&& body) {
    Shards::onEach(shards(), [&](size_t s) {
        EXPECT_EQ(body(s), BULKHEAD_OK) << "shard " << s << ": " << error_;
    });
}

bulkhead_model_info Model::info(size_t shard) const {
    bulkhead_model_info info{};
    info.struct_size = sizeof(info);
    EXPECT_EQ(api_->describe(workloads_[shard], &info), BULKHEAD_OK);
    return info;
}

void Model::initialise(uint64_t seed) {
    updates_ = 0;
    onEach([&](size_t s) { return api_->initialise(workloads_[s], seed); });
}

bulkhead_batch Model::Slice::batch() const {
    return {sizeof(bulkhead_batch),
            static_cast<uint32_t>(domains.size()),
            tokens.data(),
            domains.data(),
            0,
            0};
}

size_t Model::rounds(size_t samples) const {
    const size_t each = shards() * options_.microBatch;
    return std::max<size_t>(1, (samples + each - 1) / each);
}

Model::Slice Model::sliceOf(std::span<const Sample> samples, size_t round, size_t shard) const {
    const size_t begin = std::min((round * shards() + shard) * options_.microBatch, samples.size());
    const size_t end = std::min(begin + options_.microBatch, samples.size());
    Slice slice;
    for (size_t i = begin; i < end; ++i) {
        slice.tokens.insert(slice.tokens.end(), samples[i].tokens.begin(), samples[i].tokens.end());
        slice.domains.push_back(samples[i].domain);
    }
    return slice;
}

double Model::forwardBackward(std::span<const Sample> samples) {
    std::vector<double> losses(shards());
    onEach([&](size_t s) {
        for (size_t round = 0; round < rounds(samples.size()); ++round) {
            const Slice slice = sliceOf(samples, round, s);
            bulkhead_batch batch = slice.batch();
            batch.first = round == 0;
            batch.last = round + 1 == rounds(samples.size());
            const auto status = api_->forward_backward(workloads_[s], &batch, nullptr, nullptr);
            if (status != BULKHEAD_OK) return status;
        }
        bulkhead_metrics metrics{};
        metrics.struct_size = sizeof(metrics);
        const auto status = api_->metrics(workloads_[s], &metrics);
        losses[s] = metrics.loss_sum;
        return status;
    });
    return std::accumulate(losses.begin(), losses.end(), 0.0);
}

void Model::apply(float rate, uint64_t tokens) {
    ++updates_;
    const auto power = static_cast<double>(updates_);
    const bulkhead_update update{sizeof(bulkhead_update),
                                 updates_,
                                 rate,
                                 1.0f / static_cast<float>(tokens),
                                 static_cast<float>(1 - std::pow(0.9, power)),
                                 static_cast<float>(1 - std::pow(0.95, power))};
    onEach([&](size_t s) {
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        const auto status = api_->gradient(workloads_[s], &gradient, &count, &kind);
        return status != BULKHEAD_OK ? status : api_->apply(workloads_[s], gradient, &update);
    });
}

double Model::step(std::span<const Sample> samples, float rate) {
    const double loss = forwardBackward(samples);
    const uint64_t tokens = samples.size() * options_.sequence;
    apply(rate, tokens);
    return loss / static_cast<double>(tokens);
}

double Model::evaluate(std::span<const Sample> samples) {
    std::vector<bulkhead_metrics> metrics(shards());
    onEach([&](size_t s) {
        metrics[s].struct_size = sizeof(bulkhead_metrics);
        for (size_t round = 0; round < rounds(samples.size()); ++round) {
            const Slice slice = sliceOf(samples, round, s);
            const bulkhead_batch batch = slice.batch();
            const auto status = api_->evaluate(workloads_[s], &batch, &metrics[s]);
            if (status != BULKHEAD_OK) return status;
        }
        return BULKHEAD_OK;
    });
    double loss = 0;
    uint64_t tokens = 0;
    for (const auto& m : metrics) {
        loss += m.loss_sum;
        tokens += m.tokens;
    }
    return loss / static_cast<double>(tokens);
}

std::vector<uint64_t> Model::hashes() const {
    std::vector<uint64_t> hashes(shards());
    for (size_t s = 0; s < shards(); ++s)
        EXPECT_EQ(api_->hash(workloads_[s], &hashes[s]), BULKHEAD_OK);
    return hashes;
}

std::vector<std::vector<char>> Model::exportAll() const {
    std::vector<std::vector<char>> states;
    for (size_t s = 0; s < shards(); ++s) {
        auto& state = states.emplace_back(info(s).state_bytes);
        EXPECT_EQ(api_->export_state(workloads_[s], 0, state.size(), state.data()), BULKHEAD_OK);
    }
    return states;
}

void Model::importAll(const std::vector<std::vector<char>>& states, size_t piece) {
    onEach([&](size_t s) {
        for (size_t at = 0; at < states[s].size(); at += piece) {
            const size_t bytes = std::min(piece, states[s].size() - at);
            const auto status = api_->import_state(workloads_[s], at, bytes, states[s].data() + at);
            if (status != BULKHEAD_OK) return status;
        }
        return api_->imported(workloads_[s]);
    });
}

std::vector<int32_t> Model::layout() const {
    std::vector<int32_t> placement(size_t{info().moe_layers} * info().experts);
    EXPECT_EQ(
        api_->layout(workloads_[0], placement.data(), static_cast<uint32_t>(placement.size())),
        BULKHEAD_OK);
    return placement;
}

uint64_t Model::changeLayout(const std::vector<int32_t>& placement) {
    std::vector<uint64_t> moved(shards());
    onEach([&](size_t s) {
        return api_->change_layout(workloads_[s], placement.data(),
                                   static_cast<uint32_t>(placement.size()), &moved[s]);
    });
    return std::accumulate(moved.begin(), moved.end(), uint64_t{0});
}

void Model::adoptLayout(const std::vector<int32_t>& placement) {
    onEach([&](size_t s) {
        return api_->adopt_layout(workloads_[s], placement.data(),
                                  static_cast<uint32_t>(placement.size()));
    });
}

bulkhead_status Model::settle(int32_t keep) {
    bulkhead_status status = BULKHEAD_OK;
    for (bulkhead_workload* workload : workloads_)
        status = std::max(status, api_->settle_layout(workload, keep));
    return status;
}

uint64_t Model::deviceBytes(size_t shard) const {
    bulkhead_device_info info{};
    EXPECT_EQ(ranks_.device(shard).api->describe(ranks_.device(shard).device, &info), BULKHEAD_OK);
    return info.memory_used;
}

void Model::onDevice(const std::vector<float>& values, void** memory) const {
    const llama_moe::Device& device = ranks_.device(0);
    const size_t bytes = values.size() * sizeof(float);
    EXPECT_EQ(device.api->alloc(device.device, BULKHEAD_MEMORY_DEVICE, bytes, memory), BULKHEAD_OK);
    EXPECT_TRUE(device.copy(static_cast<float*>(*memory), values.data(), values.size()).ok());
    EXPECT_TRUE(device.synchronize().ok());
}

void Model::freeOnDevice(void* memory) const {
    EXPECT_TRUE(ranks_.device(0).synchronize().ok());
    ranks_.device(0).api->free(ranks_.device(0).device, memory);
}

std::vector<Sample> someText(size_t samples, uint32_t sequence, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Sample> text(samples);
    for (size_t k = 0; k < samples; ++k) {
        text[k].domain = static_cast<uint32_t>(k % 2);
        const int32_t stride = k % 2 == 0 ? 3 : 5;
        auto letter = static_cast<int32_t>(random() % 26);
        for (uint32_t t = 0; t <= sequence; ++t) {
            text[k].tokens.push_back('a' + letter);
            letter = (letter + (random() % 4 == 0 ? 1 : stride)) % 26;
        }
    }
    return text;
}

}  // namespace bulkhead::test
