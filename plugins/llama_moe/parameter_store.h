// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llama_moe/layout.h"
#include "plugins/llama_moe/math.h"
#include "plugins/llama_moe/model_spec.h"

namespace bulkhead::llama_moe {

/// This shard's parameters, optimizer moments and gradient, and the whole dense units while they
/// are in use. State is one run: parameters, first moments, second moments, each of
/// layout().count().
///
/// Dense gradients gather in whole units and become part of the shard's gradient in reduceUnit, by
/// a sum over the shards; gradients of experts are the shard's own from the start. With one shard
/// whole units are the shard's memory itself and nothing is copied.
///
/// Products read the parameters as A: where that is a type of its own, an image of them lies beside
/// the state, refreshed whenever state was written.
///
/// Not thread-safe. What is marked collective must be called by all shards in the same order.
template <class A>
class ParameterStore {
  public:
    using T = Master<A>;

    /// `spec` and `math` outlive the store.
    absl::Status open(const ModelSpec& spec, Math<A>* math, Placement placement);

    const ModelSpec& spec() const { return *spec_; }
    Math<A>& math() const { return *math_; }
    const Layout& layout() const { return current_.layout; }

    /// Device memory, as all that follows.
    T* parameters() { return current_.state.data(); }
    size_t stateCount() const { return 3 * current_.layout.count(); }
    T* gradient() { return gradient_.data(); }

    /// Parameters and moments from the seed; the same numbers whatever the shards and the layout.
    absl::Status initialise(uint64_t seed);
    /// Bytes of the state, from or to host memory; returns when they are there.
    absl::Status read(size_t offset, size_t bytes, void* to);
    /// The same, put on `stream`; from any thread, while nobody changes the state.
    absl::Status readOn(size_t offset, size_t bytes, void* to, bulkhead_stream* stream);
    absl::Status write(size_t offset, size_t bytes, const void* from);
    /// bulkhead_state_hash() of the state.
    absl::StatusOr<uint64_t> hash();
    /// One update from the reduced gradient.
    absl::Status apply(const AdamW<T>& rule, const T* reduced);
    /// Whole units will be gathered again before use. All shards must call it at the same place, or
    /// some would gather and others not: so at the start of each step, never because of what
    /// happened to one shard's state alone.
    void forgetWholeUnits();

    /// Collective, unless gathered since the last forgetWholeUnits. Makes dense(unit) the unit's
    /// whole dense run.
    absl::Status gather(size_t unit);
    const A* dense(size_t unit) const { return dense_[unit]; }
    /// The place of the first of the experts placed here; the others follow as the layout says.
    const A* firstExpert(size_t unit) const { return weights() + expertsBegin(unit); }

    /// Gradients are zero afterwards.
    void clearGradient();
    T* denseGradient(size_t unit) { return denseGradient_[unit]; }
    T* firstExpertGradient(size_t unit) { return gradient_.data() + expertsBegin(unit); }
    /// Collective. Adds the unit's dense gradients of all shards to the slices of the shards; what
    /// gathered here is zero again.
    absl::Status reduceUnit(size_t unit);

    /// Collective. Takes this placement; contents are undefined until state is written.
    absl::Status adoptLayout(Placement placement);
    /// Collective. Moves parameters and moments; the old copies stay until settleLayout. Returns
    /// the bytes this shard sent. FailedPrecondition when an earlier change is not settled.
    absl::StatusOr<uint64_t> changeLayout(Placement placement);
    /// Drops the old copies, or goes back to them. FailedPrecondition when there is nothing to go
    /// back to, or parameters were touched since.
    absl::Status settleLayout(bool keep);

  private:
    static constexpr size_t kPiece = size_t{1} << 21;  ///< elements on the way at once, at most
    struct Holding {
        Layout layout;
        Buffer<T> state;
        Narrowed<A> image;  ///< of the parameters
    };

    const Device& device() const { return math_->device(); }
    const A* weights() const { return current_.image.of(current_.state.data()); }
    StateRuns<T> runs() {
        const size_t count = layout().count();
        return {parameters(), parameters() + count, parameters() + 2 * count};
    }
    size_t expertsBegin(size_t unit) const {
        const UnitRegion& region = layout().units()[unit];
        return region.begin + region.slice;
    }
    absl::StatusOr<Holding> makeHolding(Placement placement) const;
    absl::Status useLayout();
    void refreshImage();
    void copyStaying(Holding& to);
    absl::StatusOr<uint64_t> moveExperts(Holding& to);
    absl::Status writeTensor(const Tensor& tensor, const std::string& name, uint64_t seed,
                             size_t begin, size_t end, T* to);

    const ModelSpec* spec_ = nullptr;
    Math<A>* math_ = nullptr;
    Holding current_;
    std::optional<Holding> previous_;
    bool touchedSinceChange_ = false;
    bool imageIsOld_ = true;
    Buffer<T, BULKHEAD_MEMORY_HOST> piece_;  ///< on the way between host and device
    Buffer<T, BULKHEAD_MEMORY_PEER> gradient_;
    std::vector<Buffer<A>> wholeUnits_;
    std::vector<Buffer<T>> wholeGradients_;
    Buffer<T> reduced_;
    std::vector<const A*> dense_;
    std::vector<T*> denseGradient_;
    std::vector<bool> fresh_;
};

}  // namespace bulkhead::llama_moe
