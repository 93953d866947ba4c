// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/threads.h"

namespace google::protobuf {
class Message;
}

namespace bulkhead::service {

/// Remembers the answers to mutating calls, so that a call repeated after a lost answer does
/// nothing twice. The oldest of kKept answers is forgotten; a refused call leaves nothing, asked
/// again it is judged anew. Thread: any.
class RequestLog {
  public:
    static constexpr size_t kKept = 1000;

    /// Runs `action`, which fills `response`, unless a call with this id has been answered or is
    /// being answered: then its answer is waited for and given again. InvalidArgument when the id
    /// is empty or too long, or was used for another request. Failures are not remembered.
    absl::Status once(const std::string& id, const google::protobuf::Message& request,
                      google::protobuf::Message& response,
                      const std::function<absl::Status()>& action);

  private:
    struct Entry {
        uint64_t request = 0;  ///< its hash: the log keeps no caller's bytes
        bool done = false;
        absl::Status status;
        std::string response;
    };

    Mutex mutex_;
    ConditionVariable answered_;
    std::unordered_map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
    std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
