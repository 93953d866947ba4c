// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/parameter_store.h"

#include <algorithm>

namespace bulkhead::llama_moe {

template <class T>
absl::Status ParameterStore<T>::open(const ModelSpec& spec, const Device& device,
                                     Placement placement) {
    spec_ = &spec;
    device_ = device;
    absl::StatusOr<Holding> holding = makeHolding(std::move(placement));
    if (!holding.ok()) return holding.status();
    current_ = *std::move(holding);
    const size_t units = spec.units.size();
    wholeUnits_.resize(units);
    wholeGradients_.resize(units);
    dense_.resize(units);
    denseGradient_.resize(units);
    size_t largestSlice = 0;
    for (size_t u = 0; u < units && device_.shards > 1; ++u) {
        const size_t slice = layout().units()[u].slice;
        BULKHEAD_RETURN_IF_ERROR(wholeUnits_[u].reserve(device_, slice * device_.shards));
        BULKHEAD_RETURN_IF_ERROR(wholeGradients_[u].reserve(device_, slice * device_.shards));
        largestSlice = std::max(largestSlice, slice);
    }
    BULKHEAD_RETURN_IF_ERROR(reduced_.reserve(device_, largestSlice));
    fresh_.assign(units, false);
    return useLayout();
}

template <class T>
absl::StatusOr<typename ParameterStore<T>::Holding> ParameterStore<T>::makeHolding(
    Placement placement) const {
    Holding holding;
    holding.layout = Layout(*spec_, device_.shard, device_.shards, std::move(placement));
    BULKHEAD_RETURN_IF_ERROR(holding.state.reserve(device_, 3 * holding.layout.count()));
    return holding;
}

template <class T>
absl::Status ParameterStore<T>::useLayout() {
    BULKHEAD_RETURN_IF_ERROR(gradient_.reserve(device_, layout().count()));
    for (size_t u = 0; u < dense_.size(); ++u) {
        const size_t begin = layout().units()[u].begin;
        const bool alone = device_.shards == 1;
        dense_[u] = alone ? parameters() + begin : wholeUnits_[u].data();
        denseGradient_[u] = alone ? gradient() + begin : wholeGradients_[u].data();
    }
    return absl::OkStatus();
}

template <class T>
void ParameterStore<T>::forgetWholeUnits() {
    std::fill(fresh_.begin(), fresh_.end(), false);
}

template <class T>
absl::Status ParameterStore<T>::gather(size_t unit) {
    if (device_.shards == 1 || fresh_[unit]) return absl::OkStatus();
    const UnitRegion& region = layout().units()[unit];
    BULKHEAD_RETURN_IF_ERROR(
        device_.allGather(parameters() + region.begin, wholeUnits_[unit].data(), region.slice));
    fresh_[unit] = true;
    return absl::OkStatus();
}

template <class T>
absl::Status ParameterStore<T>::clearGradient() {
    std::fill_n(gradient(), layout().count(), T(0));
    for (Buffer<T>& whole : wholeGradients_)
        if (whole.data() != nullptr) std::fill_n(whole.data(), whole.capacity(), T(0));
    return absl::OkStatus();
}

template <class T>
absl::Status ParameterStore<T>::reduceUnit(size_t unit) {
    if (device_.shards == 1) return absl::OkStatus();
    const UnitRegion& region = layout().units()[unit];
    Buffer<T>& whole = wholeGradients_[unit];
    BULKHEAD_RETURN_IF_ERROR(device_.reduceScatter(whole.data(), reduced_.data(), region.slice));
    T* slice = gradient() + region.begin;
    for (size_t i = 0; i < region.slice; ++i) slice[i] += reduced_.data()[i];
    std::fill_n(whole.data(), whole.capacity(), T(0));
    return absl::OkStatus();
}

template <class T>
absl::Status ParameterStore<T>::adoptLayout(Placement placement) {
    absl::StatusOr<Holding> holding = makeHolding(std::move(placement));
    if (!holding.ok()) return holding.status();
    current_ = *std::move(holding);
    previous_.reset();
    forgetWholeUnits();
    return useLayout();
}

template <class T>
absl::StatusOr<uint64_t> ParameterStore<T>::changeLayout(Placement placement) {
    if (previous_)
        return absl::FailedPreconditionError(
            "the last layout change is not settled; call settle_layout first");
    absl::StatusOr<Holding> holding = makeHolding(std::move(placement));
    if (!holding.ok()) return holding.status();
    copyStaying(*holding);
    absl::StatusOr<uint64_t> sent = moveExperts(*holding);
    if (!sent.ok()) return sent.status();
    previous_ = std::move(current_);
    current_ = *std::move(holding);
    touchedSinceChange_ = false;
    BULKHEAD_RETURN_IF_ERROR(useLayout());
    return sent;
}

template <class T>
void ParameterStore<T>::copyStaying(Holding& to) {
    for (size_t part = 0; part < 3; ++part) {
        const T* source = parameters() + part * layout().count();
        T* target = to.state.data() + part * to.layout.count();
        for (size_t u = 0; u < spec_->units.size(); ++u) {
            const UnitRegion& old = layout().units()[u];
            const UnitRegion& now = to.layout.units()[u];
            std::copy_n(source + old.begin, old.slice, target + now.begin);
            for (const size_t e : now.experts)
                if (old.expertAt[e] != kElsewhere)
                    std::copy_n(source + old.expertAt[e], spec_->units[u].expertCount,
                                target + now.expertAt[e]);
        }
    }
}

namespace {

/// Calls visit(unit, expert, from, to) for every expert that moves, in the order both ends pack.
template <class Visit>
void forMoves(const ModelSpec& spec, const Layout& old, const Layout& now, Visit&& visit) {
    for (size_t u = 0; u < spec.units.size(); ++u) {
        if (spec.units[u].mixture < 0) continue;
        const auto mixture = static_cast<size_t>(spec.units[u].mixture);
        for (size_t e = 0; e < spec.config.experts; ++e) {
            const auto from = static_cast<size_t>(old.shardsOf(mixture)[e]);
            const auto to = static_cast<size_t>(now.shardsOf(mixture)[e]);
            if (from != to) visit(u, e, from, to);
        }
    }
}

}  // namespace

template <class T>
absl::StatusOr<uint64_t> ParameterStore<T>::moveExperts(Holding& next) {
    const size_t shards = device_.shards;
    const size_t me = device_.shard;
    std::vector<size_t> sendCount(shards + 1), receiveCount(shards + 1);
    forMoves(*spec_, layout(), next.layout, [&](size_t u, size_t, size_t from, size_t to) {
        if (from == me) sendCount[to] += 3 * spec_->units[u].expertCount;
        if (to == me) receiveCount[from] += 3 * spec_->units[u].expertCount;
    });
    std::vector<size_t> sendAt(shards + 1), receiveAt(shards + 1);
    for (size_t r = 0; r < shards; ++r) {
        sendAt[r + 1] = sendAt[r] + sendCount[r];
        receiveAt[r + 1] = receiveAt[r] + receiveCount[r];
    }
    const uint64_t sent = sendAt[shards] * sizeof(T);
    Buffer<T> send, receive;
    BULKHEAD_RETURN_IF_ERROR(send.reserve(device_, sendAt[shards]));
    BULKHEAD_RETURN_IF_ERROR(receive.reserve(device_, receiveAt[shards]));
    forMoves(*spec_, layout(), next.layout, [&](size_t u, size_t e, size_t from, size_t to) {
        if (from != me) return;
        const size_t count = spec_->units[u].expertCount;
        for (size_t part = 0; part < 3; ++part, sendAt[to] += count)
            std::copy_n(expert(u, e) + part * layout().count(), count, send.data() + sendAt[to]);
    });
    for (size_t r = 0; r < shards; ++r) {
        sendCount[r] *= sizeof(T);
        receiveCount[r] *= sizeof(T);
    }
    BULKHEAD_RETURN_IF_ERROR(
        device_.allToAll(send.data(), sendCount.data(), receive.data(), receiveCount.data()));
    forMoves(*spec_, layout(), next.layout, [&](size_t u, size_t e, size_t from, size_t to) {
        if (to != me) return;
        const size_t count = spec_->units[u].expertCount;
        T* target = next.state.data() + next.layout.units()[u].expertAt[e];
        for (size_t part = 0; part < 3; ++part, receiveAt[from] += count)
            std::copy_n(receive.data() + receiveAt[from], count,
                        target + part * next.layout.count());
    });
    return sent;
}

template <class T>
absl::Status ParameterStore<T>::settleLayout(bool keep) {
    if (!keep) {
        if (!previous_)
            return absl::FailedPreconditionError("there is no older layout to go back to");
        if (touchedSinceChange_)
            return absl::FailedPreconditionError(
                "the state has changed since the layout did; only keep = 1 can settle it now");
        current_ = *std::move(previous_);
        BULKHEAD_RETURN_IF_ERROR(useLayout());
    }
    previous_.reset();
    return absl::OkStatus();
}

template class ParameterStore<float>;
template class ParameterStore<double>;

}  // namespace bulkhead::llama_moe
