// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/llama_moe/device.h"

namespace bulkhead::llama_moe {

/// Brings rows to the shards of their experts and back. Nothing is dropped: an expert takes as many
/// rows as chose it. At the source rows are sorted by (shard, expert, row); at the shard of the
/// experts they lie grouped by expert, within one by (source, row). With one shard both orders are
/// one and nothing is copied when both ends name the same memory.
template <class T>
class TokenExchange {
  public:
    struct Group {
        size_t expert = 0;
        size_t begin = 0;  ///< row
        size_t rows = 0;
    };

    void open(const Device& device, size_t experts, size_t rowWidth);

    /// Collective. Row i goes to expert expertOf[i]; shardOf is by expert. Afterwards the accessors
    /// below hold until the next plan.
    absl::Status plan(const int32_t* expertOf, size_t rows, const int32_t* shardOf);

    /// Where row i stands among the sorted.
    size_t place(size_t row) const { return place_[row]; }
    size_t sortedRows() const { return place_.size(); }
    size_t groupedRows() const { return groupedRows_; }
    /// Experts of this shard, ascending.
    const std::vector<Group>& groups() const { return groups_; }
    /// That this shard sent to others, since open.
    uint64_t sentBytes() const { return sent_; }

    /// Collective.
    absl::Status toExperts(const T* sorted, T* grouped);
    absl::Status fromExperts(const T* grouped, T* sorted);

  private:
    void countSent(const std::vector<size_t>& bytes);
    void planSorted(const int32_t* expertOf, size_t rows, const int32_t* shardOf);
    absl::Status planGrouped(const int32_t* shardOf);
    /// Calls visit(packedRow, groupedRow, rows) for each stretch of received rows.
    template <class Visit>
    void forStretches(Visit&& visit) const;

    Device device_;
    size_t experts_ = 0;
    size_t width_ = 0;
    size_t groupedRows_ = 0;
    std::vector<size_t> place_;
    std::vector<int32_t> counts_;     ///< own rows, by expert
    std::vector<int32_t> allCounts_;  ///< [source][expert]
    std::vector<size_t> next_;
    std::vector<size_t> sendBytes_, receiveBytes_;
    std::vector<Group> groups_;
    Buffer<T> packed_;
    uint64_t sent_ = 0;
};

}  // namespace bulkhead::llama_moe
