// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llama_moe/device.h"
#include "plugins/llama_moe/layout.h"
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
/// Not thread-safe. What is marked collective must be called by all shards in the same order.
template <class T>
class ParameterStore {
  public:
    /// `spec` outlives the store.
    absl::Status open(const ModelSpec& spec, const Device& device, Placement placement);

    const ModelSpec& spec() const { return *spec_; }
    const Device& device() const { return device_; }
    const Layout& layout() const { return current_.layout; }

    T* parameters() { return current_.state.data(); }
    T* firstMoments() { return parameters() + layout().count(); }
    T* secondMoments() { return firstMoments() + layout().count(); }
    size_t stateCount() const { return 3 * current_.layout.count(); }
    T* gradient() { return gradient_.data(); }

    /// Parameters and moments from the seed; the same numbers whatever the shards and the layout.
    void initialise(uint64_t seed);
    /// State was written: there is no way back from a layout change any more.
    void touched() { touchedSinceChange_ = true; }
    /// Whole units will be gathered again before use. All shards must call it at the same place, or
    /// some would gather and others not: so at the start of each step, never because of what
    /// happened to one shard's state alone.
    void forgetWholeUnits();

    /// Collective, unless gathered since the last forgetWholeUnits. Makes dense(unit) the unit's
    /// whole dense run.
    absl::Status gather(size_t unit);
    const T* dense(size_t unit) const { return dense_[unit]; }
    /// Of an expert placed here.
    const T* expert(size_t unit, size_t expert) const {
        return current_.state.data() + layout().units()[unit].expertAt[expert];
    }

    /// Gradients are zero afterwards.
    absl::Status clearGradient();
    T* denseGradient(size_t unit) { return denseGradient_[unit]; }
    T* expertGradient(size_t unit, size_t expert) {
        return gradient_.data() + layout().units()[unit].expertAt[expert];
    }
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
    struct Holding {
        Layout layout;
        Buffer<T> state;
    };

    absl::StatusOr<Holding> makeHolding(Placement placement) const;
    absl::Status useLayout();
    void copyStaying(Holding& to);
    absl::StatusOr<uint64_t> moveExperts(Holding& to);

    const ModelSpec* spec_ = nullptr;
    Device device_;
    Holding current_;
    std::optional<Holding> previous_;
    bool touchedSinceChange_ = false;
    Buffer<T, BULKHEAD_MEMORY_PEER> gradient_;
    std::vector<Buffer<T>> wholeUnits_;
    std::vector<Buffer<T>> wholeGradients_;
    Buffer<T> reduced_;
    std::vector<const T*> dense_;
    std::vector<T*> denseGradient_;
    std::vector<bool> fresh_;
};

}  // namespace bulkhead::llama_moe
