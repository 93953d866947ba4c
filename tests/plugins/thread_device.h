// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <memory>
#include <vector>

#include "bulkhead/device.h"

namespace bulkhead::test {

/// A device whose groups are threads of this process, so that a test of a workload needs no
/// transport. Memory is counted: a workload that leaks fails the test that asks.
const bulkhead_device_api* threadDeviceApi();

/// Meeting point of the ranks of one group. Collectives copy from the peers' own memory between two
/// barriers; sums go in rank order.
struct Meeting {
    explicit Meeting(int size)
        : barrier(size), from(static_cast<size_t>(size)), sizes(static_cast<size_t>(size)) {}
    std::barrier<> barrier;
    std::vector<const void*> from;
    std::vector<const size_t*> sizes;
};

/// One rank's end of a meeting, in the shape the ABI passes around.
class GroupEnd {
  public:
    GroupEnd(std::shared_ptr<Meeting> meeting, int rank, int size)
        : meeting_(std::move(meeting)), rank_(rank), size_(size) {}
    bulkhead_group* handle() { return reinterpret_cast<bulkhead_group*>(this); }
    Meeting& meeting() { return *meeting_; }
    size_t rank() const { return static_cast<size_t>(rank_); }
    size_t size() const { return static_cast<size_t>(size_); }

  private:
    std::shared_ptr<Meeting> meeting_;
    int rank_;
    int size_;
};

}  // namespace bulkhead::test
