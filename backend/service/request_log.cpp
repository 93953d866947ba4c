// SPDX-License-Identifier: Apache-2.0
#include "backend/service/request_log.h"

#include <google/protobuf/message.h>
#include <xxhash.h>

namespace bulkhead::service {
namespace {

constexpr size_t kLongestId = 64;

uint64_t hashOf(const google::protobuf::Message& request) {
    const std::string bytes = request.SerializeAsString();
    return XXH3_64bits(bytes.data(), bytes.size()) ^
           XXH3_64bits(request.GetDescriptor()->full_name().data(),
                       request.GetDescriptor()->full_name().size());
}

}  // namespace

absl::Status RequestLog::once(const std::string& id, const google::protobuf::Message& request,
                              google::protobuf::Message& response,
                              const std::function<absl::Status()>& action) {
    if (id.empty() || id.size() > kLongestId)
        return absl::InvalidArgumentError(
            "mutation.request_id must have 1 to 64 bytes; send a fresh random one");
    const uint64_t asked = hashOf(request);
    std::shared_ptr<Entry> entry;
    {
        MutexLock lock(mutex_);
        if (const auto it = entries_.find(id); it != entries_.end()) {
            entry = it->second;
            if (entry->request != asked)
                return absl::InvalidArgumentError(
                    "request id " + id +
                    " was used for another request; send a fresh id with every new one");
            answered_.wait(lock,
                           [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entry->done; });
            if (entry->status.ok()) response.ParseFromString(entry->response);
            return entry->status;
        }
        entry = std::make_shared<Entry>();
        entry->request = asked;
        entries_[id] = entry;
    }
    const absl::Status status = action();
    const MutexLock lock(mutex_);
    entry->done = true;
    entry->status = status;
    if (status.ok()) {
        entry->response = response.SerializeAsString();
        order_.push_back(id);
        if (order_.size() > kKept) {
            entries_.erase(order_.front());
            order_.pop_front();
        }
    } else {
        entries_.erase(id);
    }
    answered_.notify_all();
    return status;
}

}  // namespace bulkhead::service
