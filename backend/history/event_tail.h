// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/model/event.h"

namespace bulkhead::history {

/// The events of one run that were accepted and are not in the database yet, in two files beside it
/// ("<file>-tail-<run>-a", "-b"), so that batching costs a killed writer nothing. Written, not
/// synced: what a power cut takes is the batches' to lose. Thread: externally serialised.
class EventTail {
  public:
    /// Opens or makes the files; what a killed writer left stays until clear(). `uuid` is of the
    /// run: another database may have been put beside them. Unavailable with the system's reason.
    static absl::StatusOr<std::unique_ptr<EventTail>> open(FileSystem& files,
                                                           const std::string& file, int64_t runId,
                                                           const std::string& uuid);
    ~EventTail();

    /// Returns the events found at opening, by seq, each once. A write that was cut short ends its
    /// file; a file of another run or another version of the program counts as empty.
    std::vector<model::Event> takeLeft() { return std::move(left_); }

    /// Survives a kill of this process once it returned OK.
    absl::Status add(const model::Event& event);
    /// Everything added so far goes into one batch; what is added from now on does not.
    void turn();
    /// The batch is in the database.
    void drop();
    /// Everything is.
    void clear();
    /// Removes the files with the object: the run ended in order.
    void removeAtEnd() { remove_ = true; }

  private:
    struct Part {
        std::string path;
        std::unique_ptr<AppendFile> file;
    };
    EventTail(FileSystem& files, uint64_t version) : files_(files), version_(version) {}
    static void empty(Part& part);

    FileSystem& files_;
    const uint64_t version_;  ///< of the program and of the run
    std::array<Part, 2> parts_;
    size_t active_ = 0;
    std::vector<model::Event> left_;
    bool remove_ = false;
};

}  // namespace bulkhead::history
