// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llama_moe/decoder.h"
#include "plugins/llama_moe/parameter_store.h"

namespace bulkhead::llama_moe {

/// One shard's model whatever its activations are made of; masters and gradients are float32. What
/// each function does is said where it is implemented, in ParameterStore and Decoder.
class ShardModel {
  public:
    virtual ~ShardModel() = default;

    virtual const Layout& layout() const = 0;
    virtual Sums emptySums() const = 0;
    virtual size_t samples() const = 0;
    virtual absl::Status routing(size_t sample, uint32_t* out) = 0;

    virtual absl::Status initialise(uint64_t seed) = 0;
    virtual void clearGradient() = 0;
    virtual void forgetWholeUnits() = 0;
    virtual absl::Status forward(const Batch& batch) = 0;
    virtual absl::Status backward(bool last, const Ready& ready) = 0;
    virtual absl::Status settle(Sums* sums) = 0;
    virtual uint64_t sentBytes() const = 0;

    virtual float* gradient() = 0;
    virtual absl::StatusOr<double> sumOfSquares(const float* reduced) = 0;
    virtual absl::Status apply(const AdamW<float>& rule, const float* reduced) = 0;

    virtual absl::Status read(size_t offset, size_t bytes, void* to) = 0;
    virtual absl::Status readOn(size_t offset, size_t bytes, void* to, bulkhead_stream* stream) = 0;
    virtual absl::Status write(size_t offset, size_t bytes, const void* from) = 0;
    virtual absl::StatusOr<uint64_t> hash() = 0;

    virtual absl::Status adoptLayout(Placement placement) = 0;
    virtual absl::StatusOr<uint64_t> changeLayout(Placement placement) = 0;
    virtual absl::Status settleLayout(bool keep) = 0;
};

template <class A>
class ShardModelOf final : public ShardModel {
  public:
    explicit ShardModelOf(std::unique_ptr<Math<A>> math) : math_(std::move(math)) {}

    /// Opens the math, the ParameterStore and the Decoder.
    absl::Status open(const ModelSpec& spec, Placement placement, size_t samples, size_t sequence,
                      size_t domains) {
        BULKHEAD_RETURN_IF_ERROR(math_->open(spec.config, samples, sequence));
        BULKHEAD_RETURN_IF_ERROR(store_.open(spec, math_.get(), std::move(placement)));
        return decoder_.open(&store_, samples, sequence, domains);
    }

    const Layout& layout() const override { return store_.layout(); }
    Sums emptySums() const override { return decoder_.emptySums(); }
    size_t samples() const override { return decoder_.samples(); }
    absl::Status routing(size_t sample, uint32_t* out) override {
        return decoder_.routing(sample, out);
    }

    absl::Status initialise(uint64_t seed) override { return store_.initialise(seed); }
    void clearGradient() override { store_.clearGradient(); }
    void forgetWholeUnits() override { store_.forgetWholeUnits(); }
    absl::Status forward(const Batch& batch) override { return decoder_.forward(batch); }
    absl::Status backward(bool last, const Ready& ready) override {
        return decoder_.backward(last, ready);
    }
    absl::Status settle(Sums* sums) override { return decoder_.settle(sums); }
    uint64_t sentBytes() const override { return decoder_.sentBytes(); }

    float* gradient() override { return store_.gradient(); }
    absl::StatusOr<double> sumOfSquares(const float* reduced) override {
        return math_->sumOfSquares(store_.layout(), reduced);
    }
    absl::Status apply(const AdamW<float>& rule, const float* reduced) override {
        return store_.apply(rule, reduced);
    }

    absl::Status read(size_t offset, size_t bytes, void* to) override {
        return store_.read(offset, bytes, to);
    }
    absl::Status readOn(size_t offset, size_t bytes, void* to, bulkhead_stream* stream) override {
        return store_.readOn(offset, bytes, to, stream);
    }
    absl::Status write(size_t offset, size_t bytes, const void* from) override {
        return store_.write(offset, bytes, from);
    }
    absl::StatusOr<uint64_t> hash() override { return store_.hash(); }

    absl::Status adoptLayout(Placement placement) override {
        return store_.adoptLayout(std::move(placement));
    }
    absl::StatusOr<uint64_t> changeLayout(Placement placement) override {
        return store_.changeLayout(std::move(placement));
    }
    absl::Status settleLayout(bool keep) override { return store_.settleLayout(keep); }

  private:
    std::unique_ptr<Math<A>> math_;  // outlives both
    ParameterStore<A> store_;
    Decoder<A> decoder_;
};

}  // namespace bulkhead::llama_moe
