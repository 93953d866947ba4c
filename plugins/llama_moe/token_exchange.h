// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/llama_moe/math.h"

namespace bulkhead::llama_moe {

/// Brings rows to the shards of their experts and back. Nothing is dropped: an expert takes as many
/// rows as chose it. At the source rows are sorted by (shard, expert, row); at the shard of the
/// experts they lie grouped by expert, within one by (source, row). With one shard both orders are
/// one and nothing is copied when both ends name the same memory.
template <class A>
class TokenExchange {
  public:
    /// Allocates memory for plans of up to `rows` rows.
    absl::Status open(Math<A>* math, size_t experts, size_t rowWidth, size_t rows);

    /// Collective. Row i goes to expert expertOf[i], in device memory; shardOf is by expert, in
    /// host memory. Afterwards the accessors below hold until the next plan. With one shard the
    /// device alone makes the plan; with several, the host, which waits for expertOf.
    absl::Status plan(const int32_t* expertOf, size_t rows, const int32_t* shardOf);

    /// Where row i stands among the sorted, in device memory.
    const int32_t* place() const { return place_.data(); }
    size_t sortedRows() const { return rows_; }
    /// Numbers of the experts of this shard, ascending.
    Groups groups() const { return {starts_.data(), groupCount_, groupedRows_}; }
    /// That this shard sent to others, since open.
    uint64_t sentBytes() const { return sent_; }

    /// Collective.
    absl::Status toExperts(const A* sorted, A* grouped);
    absl::Status fromExperts(const A* grouped, A* sorted);

  private:
    void countSent(const std::vector<size_t>& bytes);
    void planSorted(const int32_t* shardOf);
    absl::Status gatherCounts();
    absl::Status planGrouped(const int32_t* shardOf);
    struct Group {
        size_t expert = 0;
        size_t begin = 0;  ///< row
    };
    size_t countOf(size_t source, size_t expert) const {
        return static_cast<size_t>(counts_.data()[source * experts_ + expert]);
    }
    /// Calls visit(packedRow, groupedRow, rows) for each stretch of received rows.
    template <class Visit>
    void forStretches(Visit&& visit) const;

    Math<A>* math_ = nullptr;
    size_t shard_ = 0, shards_ = 1;
    size_t experts_ = 0;
    size_t width_ = 0;
    size_t rows_ = 0;
    size_t groupedRows_ = 0, groupCount_ = 0;
    Buffer<int32_t, BULKHEAD_MEMORY_HOST> expertOnHost_, placeOnHost_;  ///< with several shards
    Buffer<int32_t> place_, starts_;
    Buffer<int32_t, BULKHEAD_MEMORY_HOST> startsOnHost_;
    Buffer<int32_t, BULKHEAD_MEMORY_HOST> counts_;  ///< [source][expert]
    Buffer<int32_t> ownCounts_, allCounts_;         ///< for the collective; with several shards
    std::vector<size_t> next_;
    std::vector<size_t> sendBytes_, receiveBytes_;
    std::vector<Group> groups_;  ///< with several shards
    Buffer<A> packed_;
    uint64_t sent_ = 0;
};

}  // namespace bulkhead::llama_moe
