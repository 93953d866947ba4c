// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/parameter_store.h"

#include <algorithm>

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {

template <class A>
absl::Status ParameterStore<A>::open(const ModelSpec& spec, Math<A>* math, Placement placement) {
    spec_ = &spec;
    math_ = math;
    absl::StatusOr<Holding> holding = makeHolding(std::move(placement));
    if (!holding.ok()) return holding.status();
    current_ = *std::move(holding);
    const size_t units = spec.units.size(), shards = device().shards;
    wholeUnits_.resize(units);
    wholeGradients_.resize(units);
    dense_.resize(units);
    denseGradient_.resize(units);
    size_t largestSlice = 0;
    for (size_t u = 0; u < units && shards > 1; ++u) {
        const size_t slice = layout().units()[u].slice;
        BULKHEAD_RETURN_IF_ERROR(wholeUnits_[u].reserve(device(), slice * shards));
        BULKHEAD_RETURN_IF_ERROR(wholeGradients_[u].reserve(device(), slice * shards));
        largestSlice = std::max(largestSlice, slice);
    }
    BULKHEAD_RETURN_IF_ERROR(reduced_.reserve(device(), largestSlice));
    BULKHEAD_RETURN_IF_ERROR(piece_.reserve(device(), std::min(kPiece, layout().count())));
    fresh_.assign(units, false);
    return useLayout();
}

template <class A>
absl::StatusOr<typename ParameterStore<A>::Holding> ParameterStore<A>::makeHolding(
    Placement placement) const {
    Holding holding;
    holding.layout = Layout(*spec_, device().shard, device().shards, std::move(placement));
    const size_t count = holding.layout.count();
    BULKHEAD_RETURN_IF_ERROR(holding.state.reserve(device(), 3 * count));
    BULKHEAD_RETURN_IF_ERROR(holding.image.reserve(device(), count));
    return holding;
}

template <class A>
absl::Status ParameterStore<A>::useLayout() {
    BULKHEAD_RETURN_IF_ERROR(gradient_.reserve(device(), layout().count()));
    refreshImage();
    for (size_t u = 0; u < dense_.size(); ++u) {
        const size_t begin = layout().units()[u].begin;
        const bool alone = device().shards == 1;
        dense_[u] = alone ? weights() + begin : wholeUnits_[u].data();
        denseGradient_[u] = alone ? gradient() + begin : wholeGradients_[u].data();
    }
    return math_->finish();
}

template <class A>
void ParameterStore<A>::refreshImage() {
    current_.image.fill(*math_, parameters(), layout().count());
    imageIsOld_ = false;
}

template <class A>
absl::Status ParameterStore<A>::read(size_t offset, size_t bytes, void* to) {
    math_->copy(static_cast<char*>(to), reinterpret_cast<const char*>(parameters()) + offset,
                bytes);
    return math_->finish();
}

template <class A>
absl::Status ParameterStore<A>::readOn(size_t offset, size_t bytes, void* to,
                                       bulkhead_stream* stream) {
    const auto* state = reinterpret_cast<const char*>(parameters());
    return fromDevice(device().api->copy(device().device, to, state + offset, bytes, stream),
                      "copy");
}

template <class A>
absl::Status ParameterStore<A>::write(size_t offset, size_t bytes, const void* from) {
    touchedSinceChange_ = imageIsOld_ = true;
    math_->copy(reinterpret_cast<char*>(parameters()) + offset, static_cast<const char*>(from),
                bytes);
    return math_->finish();
}

template <class A>
absl::StatusOr<uint64_t> ParameterStore<A>::hash() {
    return math_->stateHash(parameters(), stateCount() * sizeof(T));
}

template <class A>
absl::Status ParameterStore<A>::apply(const AdamW<T>& rule, const T* reduced) {
    A* image = kOneType<A> ? nullptr : current_.image.of(parameters());
    touchedSinceChange_ = true;
    return math_->adamW(rule, layout(), reduced, runs(), image);
}

template <class A>
void ParameterStore<A>::forgetWholeUnits() {
    if (imageIsOld_) refreshImage();
    std::fill(fresh_.begin(), fresh_.end(), false);
}

template <class A>
absl::Status ParameterStore<A>::gather(size_t unit) {
    if (device().shards == 1 || fresh_[unit]) return absl::OkStatus();
    const UnitRegion& region = layout().units()[unit];
    BULKHEAD_RETURN_IF_ERROR(
        device().allGather(weights() + region.begin, wholeUnits_[unit].data(), region.slice));
    fresh_[unit] = true;
    return absl::OkStatus();
}

template <class A>
void ParameterStore<A>::clearGradient() {
    math_->zero(gradient(), layout().count());
    for (Buffer<T>& whole : wholeGradients_)
        if (whole.data() != nullptr) math_->zero(whole.data(), whole.capacity());
}

template <class A>
absl::Status ParameterStore<A>::reduceUnit(size_t unit) {
    if (device().shards == 1) return absl::OkStatus();
    const UnitRegion& region = layout().units()[unit];
    Buffer<T>& whole = wholeGradients_[unit];
    BULKHEAD_RETURN_IF_ERROR(device().reduceScatter(whole.data(), reduced_.data(), region.slice));
    math_->add(gradient() + region.begin, reduced_.data(), region.slice);
    math_->zero(whole.data(), whole.capacity());
    return absl::OkStatus();
}

template <class A>
absl::Status ParameterStore<A>::adoptLayout(Placement placement) {
    absl::StatusOr<Holding> holding = makeHolding(std::move(placement));
    if (!holding.ok()) return holding.status();
    current_ = *std::move(holding);
    previous_.reset();
    forgetWholeUnits();
    return useLayout();
}

template <class A>
absl::StatusOr<uint64_t> ParameterStore<A>::changeLayout(Placement placement) {
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

template <class A>
void ParameterStore<A>::copyStaying(Holding& to) {
    for (size_t part = 0; part < 3; ++part) {
        const T* source = parameters() + part * layout().count();
        T* target = to.state.data() + part * to.layout.count();
        for (size_t u = 0; u < spec_->units.size(); ++u) {
            const UnitRegion& old = layout().units()[u];
            const UnitRegion& now = to.layout.units()[u];
            math_->copy(target + now.begin, source + old.begin, old.slice);
            for (const size_t e : now.experts)
                if (old.expertAt[e] != kElsewhere)
                    math_->copy(target + now.expertAt[e], source + old.expertAt[e],
                                spec_->units[u].expertCount);
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

template <class A>
absl::StatusOr<uint64_t> ParameterStore<A>::moveExperts(Holding& next) {
    const size_t shards = device().shards;
    const size_t me = device().shard;
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
    BULKHEAD_RETURN_IF_ERROR(send.reserve(device(), sendAt[shards]));
    BULKHEAD_RETURN_IF_ERROR(receive.reserve(device(), receiveAt[shards]));
    forMoves(*spec_, layout(), next.layout, [&](size_t u, size_t e, size_t from, size_t to) {
        if (from != me) return;
        const size_t count = spec_->units[u].expertCount;
        for (size_t part = 0; part < 3; ++part, sendAt[to] += count)
            math_->copy(send.data() + sendAt[to],
                        parameters() + layout().units()[u].expertAt[e] + part * layout().count(),
                        count);
    });
    for (size_t r = 0; r < shards; ++r) {
        sendCount[r] *= sizeof(T);
        receiveCount[r] *= sizeof(T);
    }
    BULKHEAD_RETURN_IF_ERROR(
        device().allToAll(send.data(), sendCount.data(), receive.data(), receiveCount.data()));
    forMoves(*spec_, layout(), next.layout, [&](size_t u, size_t e, size_t from, size_t to) {
        if (to != me) return;
        const size_t count = spec_->units[u].expertCount;
        T* target = next.state.data() + next.layout.units()[u].expertAt[e];
        for (size_t part = 0; part < 3; ++part, receiveAt[from] += count)
            math_->copy(target + part * next.layout.count(), receive.data() + receiveAt[from],
                        count);
    });
    BULKHEAD_RETURN_IF_ERROR(math_->finish());
    return sent;
}

template <class A>
absl::Status ParameterStore<A>::settleLayout(bool keep) {
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

BULKHEAD_FOR_NUMBERS(ParameterStore)

}  // namespace bulkhead::llama_moe
