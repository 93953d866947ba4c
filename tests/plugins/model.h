// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bulkhead/workload.h"
#include "tests/plugins/gpu_place.h"
#include "tests/plugins/shards.h"

namespace bulkhead::test {

/// A model of a few thousand parameters: four layers, all kinds.
inline constexpr char kSmallModel[] = R"(
dim = 16
layers = 4
heads = 2
kv_heads = 1
attention_chunk = 8
ffn_hidden = 32
experts = 8
expert_hidden = 16
shared_hidden = 16
)";

struct ModelOptions {
    size_t shards = 1;
    std::string toml = kSmallModel;
    std::string directory = {};
    uint32_t sequence = 16;
    uint32_t microBatch = 4;  ///< samples a shard takes at once
    uint32_t domains = 2;
    float weightDecay = 0.1f;
    const GpuPlace* place = nullptr;  ///< null: the CPU
};

/// One sample of `sequence + 1` bytes.
struct Sample {
    std::vector<int32_t> tokens;
    uint32_t domain = 0;
};

/// A whole replica behind the C table: S shards, each call made by all of them at once.
class Model {
  public:
    explicit Model(const ModelOptions& options);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    size_t shards() const { return workloads_.size(); }
    bulkhead_workload* shard(size_t s) { return workloads_[s]; }
    const bulkhead_workload_api& api() const { return *api_; }
    /// The last line any shard reported.
    const std::string& error() const { return error_; }
    bool created() const { return created_; }
    bulkhead_model_info info(size_t shard = 0) const;

    void initialise(uint64_t seed);
    /// Samples are dealt over the shards in stretches of micro-batches; the first and the last call
    /// are marked so. Returns the summed loss of these samples.
    double forwardBackward(std::span<const Sample> samples);
    /// One whole step: gradient, scale by tokens, AdamW. Returns nats per token.
    double step(std::span<const Sample> samples, float rate = 1e-2f);
    void apply(float rate, uint64_t tokens);
    double evaluate(std::span<const Sample> samples);

    std::vector<uint64_t> hashes() const;
    std::vector<std::vector<char>> exportAll() const;
    void importAll(const std::vector<std::vector<char>>& states, size_t piece = 1000);
    std::vector<int32_t> layout() const;
    uint64_t changeLayout(const std::vector<int32_t>& placement);
    void adoptLayout(const std::vector<int32_t>& placement);
    bulkhead_status settle(int32_t keep);
    uint64_t deviceBytes(size_t shard) const;
    /// Memory of shard 0's device that holds `values`.
    void onDevice(const std::vector<float>& values, void** memory) const;
    void freeOnDevice(void* memory) const;

  private:
    struct Slice {
        std::vector<int32_t> tokens;
        std::vector<uint32_t> domains;
        bulkhead_batch batch() const;
    };
    Slice sliceOf(std::span<const Sample> samples, size_t round, size_t shard) const;
    size_t rounds(size_t samples) const;
    template <class Body>
    void onEach(Body&& body);

    ModelOptions options_;
    Shards ranks_;
    const bulkhead_workload_api* api_;
    bulkhead_host host_{};
    std::string error_;
    bool created_ = true;
    uint64_t updates_ = 0;
    std::vector<bulkhead_workload*> workloads_;
};

/// Sample k of a fixed pseudo-random walk over a few letters, of either domain.
std::vector<Sample> someText(size_t samples, uint32_t sequence, uint64_t seed = 1);

}  // namespace bulkhead::test
