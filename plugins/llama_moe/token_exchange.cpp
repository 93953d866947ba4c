// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/token_exchange.h"

#include <algorithm>

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {

template <class A>
absl::Status TokenExchange<A>::open(Math<A>* math, size_t experts, size_t rowWidth, size_t rows) {
    math_ = math;
    const Device& device = math->device();
    shard_ = device.shard;
    shards_ = device.shards;
    experts_ = experts;
    width_ = rowWidth;
    next_.resize(experts);
    sendBytes_.resize(shards_);
    receiveBytes_.resize(shards_);
    BULKHEAD_RETURN_IF_ERROR(place_.reserve(device, rows));
    BULKHEAD_RETURN_IF_ERROR(starts_.reserve(device, experts + 1));
    if (shards_ == 1) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(expertOnHost_.reserve(device, rows));
    BULKHEAD_RETURN_IF_ERROR(placeOnHost_.reserve(device, rows));
    BULKHEAD_RETURN_IF_ERROR(startsOnHost_.reserve(device, experts + 1));
    BULKHEAD_RETURN_IF_ERROR(counts_.reserve(device, experts * shards_));
    BULKHEAD_RETURN_IF_ERROR(ownCounts_.reserve(device, experts));
    return allCounts_.reserve(device, experts * shards_);
}

template <class A>
absl::Status TokenExchange<A>::plan(const int32_t* expertOf, size_t rows, const int32_t* shardOf) {
    rows_ = rows;
    if (shards_ == 1) {
        groupCount_ = experts_;
        groupedRows_ = rows;
        math_->sortByExpert(expertOf, place_.data(), starts_.data(), rows, experts_);
        return absl::OkStatus();
    }
    math_->copy(expertOnHost_.data(), expertOf, rows);
    BULKHEAD_RETURN_IF_ERROR(math_->finish());
    planSorted(shardOf);
    BULKHEAD_RETURN_IF_ERROR(gatherCounts());
    return planGrouped(shardOf);
}

template <class A>
void TokenExchange<A>::planSorted(const int32_t* shardOf) {
    const int32_t* expertOf = expertOnHost_.data();
    int32_t* counts = counts_.data() + shard_ * experts_;
    std::fill_n(counts, experts_, 0);
    for (size_t i = 0; i < rows_; ++i) ++counts[expertOf[i]];
    size_t at = 0;
    for (size_t shard = 0; shard < shards_; ++shard) {
        const size_t begin = at;
        for (size_t e = 0; e < experts_; ++e) {
            if (static_cast<size_t>(shardOf[e]) != shard) continue;
            next_[e] = at;
            at += static_cast<size_t>(counts[e]);
        }
        sendBytes_[shard] = (at - begin) * width_ * sizeof(A);
    }
    int32_t* place = placeOnHost_.data();
    for (size_t i = 0; i < rows_; ++i)
        place[i] = static_cast<int32_t>(next_[static_cast<size_t>(expertOf[i])]++);
    math_->copy(place_.data(), place, rows_);
}

template <class A>
absl::Status TokenExchange<A>::gatherCounts() {
    math_->copy(ownCounts_.data(), counts_.data() + shard_ * experts_, experts_);
    BULKHEAD_RETURN_IF_ERROR(
        math_->device().allGather(ownCounts_.data(), allCounts_.data(), experts_));
    math_->copy(counts_.data(), allCounts_.data(), experts_ * shards_);
    return math_->finish();
}

template <class A>
absl::Status TokenExchange<A>::planGrouped(const int32_t* shardOf) {
    std::fill(receiveBytes_.begin(), receiveBytes_.end(), size_t{0});
    groups_.clear();
    groupedRows_ = 0;
    for (size_t e = 0; e < experts_; ++e) {
        if (static_cast<size_t>(shardOf[e]) != shard_) continue;
        startsOnHost_.data()[groups_.size()] = static_cast<int32_t>(groupedRows_);
        groups_.push_back({e, groupedRows_});
        for (size_t source = 0; source < shards_; ++source) {
            groupedRows_ += countOf(source, e);
            receiveBytes_[source] += countOf(source, e) * width_ * sizeof(A);
        }
    }
    groupCount_ = groups_.size();
    startsOnHost_.data()[groupCount_] = static_cast<int32_t>(groupedRows_);
    math_->copy(starts_.data(), startsOnHost_.data(), groupCount_ + 1);
    // A little more than asked for, so that a drifting router does not allocate every step.
    const size_t wanted = groupedRows_ * width_;
    return wanted <= packed_.capacity() ? absl::OkStatus()
                                        : packed_.reserve(math_->device(), wanted + wanted / 4);
}

template <class A>
template <class Visit>
void TokenExchange<A>::forStretches(Visit&& visit) const {
    size_t packed = 0;
    for (size_t source = 0; source < shards_; ++source)
        for (const Group& group : groups_) {
            size_t grouped = group.begin;
            for (size_t earlier = 0; earlier < source; ++earlier)
                grouped += countOf(earlier, group.expert);
            const size_t rows = countOf(source, group.expert);
            visit(packed, grouped, rows);
            packed += rows;
        }
}

template <class A>
absl::Status TokenExchange<A>::toExperts(const A* sorted, A* grouped) {
    if (shards_ == 1) {
        if (sorted != grouped) math_->copy(grouped, sorted, rows_ * width_);
        return absl::OkStatus();
    }
    BULKHEAD_RETURN_IF_ERROR(
        math_->device().allToAll(sorted, sendBytes_.data(), packed_.data(), receiveBytes_.data()));
    countSent(sendBytes_);
    forStretches([&](size_t from, size_t to, size_t rows) {
        math_->copy(grouped + to * width_, packed_.data() + from * width_, rows * width_);
    });
    return absl::OkStatus();
}

template <class A>
absl::Status TokenExchange<A>::fromExperts(const A* grouped, A* sorted) {
    if (shards_ == 1) {
        if (sorted != grouped) math_->copy(sorted, grouped, rows_ * width_);
        return absl::OkStatus();
    }
    forStretches([&](size_t to, size_t from, size_t rows) {
        math_->copy(packed_.data() + to * width_, grouped + from * width_, rows * width_);
    });
    countSent(receiveBytes_);
    return math_->device().allToAll(packed_.data(), receiveBytes_.data(), sorted,
                                    sendBytes_.data());
}

template <class A>
void TokenExchange<A>::countSent(const std::vector<size_t>& bytes) {
    for (size_t shard = 0; shard < bytes.size(); ++shard)
        if (shard != shard_) sent_ += bytes[shard];
}

BULKHEAD_FOR_NUMBERS(TokenExchange)

}  // namespace bulkhead::llama_moe
