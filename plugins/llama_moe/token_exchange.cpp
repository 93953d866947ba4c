// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/token_exchange.h"

#include <algorithm>

namespace bulkhead::llama_moe {

template <class T>
void TokenExchange<T>::open(const Device& device, size_t experts, size_t rowWidth) {
    device_ = device;
    experts_ = experts;
    width_ = rowWidth;
    counts_.resize(experts);
    next_.resize(experts);
    allCounts_.resize(experts * device.shards);
    sendBytes_.resize(device.shards);
    receiveBytes_.resize(device.shards);
}

template <class T>
absl::Status TokenExchange<T>::plan(const int32_t* expertOf, size_t rows, const int32_t* shardOf) {
    planSorted(expertOf, rows, shardOf);
    return planGrouped(shardOf);
}

template <class T>
void TokenExchange<T>::planSorted(const int32_t* expertOf, size_t rows, const int32_t* shardOf) {
    std::fill(counts_.begin(), counts_.end(), 0);
    for (size_t i = 0; i < rows; ++i) ++counts_[static_cast<size_t>(expertOf[i])];
    size_t at = 0;
    for (size_t shard = 0; shard < device_.shards; ++shard) {
        const size_t begin = at;
        for (size_t e = 0; e < experts_; ++e) {
            if (static_cast<size_t>(shardOf[e]) != shard) continue;
            next_[e] = at;
            at += static_cast<size_t>(counts_[e]);
        }
        sendBytes_[shard] = (at - begin) * width_ * sizeof(T);
    }
    place_.resize(rows);
    for (size_t i = 0; i < rows; ++i) place_[i] = next_[static_cast<size_t>(expertOf[i])]++;
}

template <class T>
absl::Status TokenExchange<T>::planGrouped(const int32_t* shardOf) {
    if (device_.shards > 1)
        BULKHEAD_RETURN_IF_ERROR(device_.allGather(counts_.data(), allCounts_.data(), experts_));
    else
        std::copy(counts_.begin(), counts_.end(), allCounts_.begin());
    std::fill(receiveBytes_.begin(), receiveBytes_.end(), size_t{0});
    groups_.clear();
    groupedRows_ = 0;
    for (size_t e = 0; e < experts_; ++e) {
        if (static_cast<size_t>(shardOf[e]) != device_.shard) continue;
        Group group{e, groupedRows_, 0};
        for (size_t source = 0; source < device_.shards; ++source) {
            const auto rows = static_cast<size_t>(allCounts_[source * experts_ + e]);
            group.rows += rows;
            receiveBytes_[source] += rows * width_ * sizeof(T);
        }
        groupedRows_ += group.rows;
        groups_.push_back(group);
    }
    if (device_.shards == 1) return absl::OkStatus();
    // A little more than asked for, so that a drifting router does not allocate every step.
    const size_t wanted = groupedRows_ * width_;
    return wanted <= packed_.capacity() ? absl::OkStatus()
                                        : packed_.reserve(device_, wanted + wanted / 4);
}

template <class T>
template <class Visit>
void TokenExchange<T>::forStretches(Visit&& visit) const {
    size_t packed = 0;
    for (size_t source = 0; source < device_.shards; ++source)
        for (const Group& group : groups_) {
            size_t grouped = group.begin;
            for (size_t earlier = 0; earlier < source; ++earlier)
                grouped += static_cast<size_t>(allCounts_[earlier * experts_ + group.expert]);
            const auto rows = static_cast<size_t>(allCounts_[source * experts_ + group.expert]);
            visit(packed, grouped, rows);
            packed += rows;
        }
}

template <class T>
absl::Status TokenExchange<T>::toExperts(const T* sorted, T* grouped) {
    if (device_.shards == 1) {
        if (sorted != grouped) std::copy_n(sorted, sortedRows() * width_, grouped);
        return absl::OkStatus();
    }
    BULKHEAD_RETURN_IF_ERROR(
        device_.allToAll(sorted, sendBytes_.data(), packed_.data(), receiveBytes_.data()));
    countSent(sendBytes_);
    forStretches([&](size_t from, size_t to, size_t rows) {
        std::copy_n(packed_.data() + from * width_, rows * width_, grouped + to * width_);
    });
    return absl::OkStatus();
}

template <class T>
absl::Status TokenExchange<T>::fromExperts(const T* grouped, T* sorted) {
    if (device_.shards == 1) {
        if (sorted != grouped) std::copy_n(grouped, sortedRows() * width_, sorted);
        return absl::OkStatus();
    }
    forStretches([&](size_t to, size_t from, size_t rows) {
        std::copy_n(grouped + from * width_, rows * width_, packed_.data() + to * width_);
    });
    countSent(receiveBytes_);
    return device_.allToAll(packed_.data(), receiveBytes_.data(), sorted, sendBytes_.data());
}

template <class T>
void TokenExchange<T>::countSent(const std::vector<size_t>& bytes) {
    for (size_t shard = 0; shard < bytes.size(); ++shard)
        if (shard != device_.shard) sent_ += bytes[shard];
}

template class TokenExchange<float>;
template class TokenExchange<double>;

}  // namespace bulkhead::llama_moe
