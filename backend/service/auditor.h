// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/access/audit_log.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"

namespace google::protobuf {
class Message;
}

namespace bulkhead::service {

struct Caller;

/// Writes the audit on a thread of its own, all that waits at once, so that a change waits for the
/// disk at most twice, however many sign in. Changes are in it before they are answered; refusals
/// and sign-ins a moment later, at most kBurst at once and then one a second of each: of those
/// beyond only the number is kept. An audit that cannot be written stops nobody: the log says so,
/// once until it can, and its entries wait for that, kMostWaiting at most: an entry tells how many
/// more there were. Thread: any.
class Auditor {
  public:
    static constexpr int kBurst = 20;
    static constexpr size_t kMostWaiting = 10'000;
    static constexpr std::chrono::milliseconds kTryAgain{1000};

    /// Null `log`: nothing is kept.
    Auditor(access::AuditLog* log, const Clock& clock);
    ~Auditor();  ///< when everything is written

    /// A call that changes something, after it did or did not. Waits for the disk.
    void changed(const Caller& caller, const google::protobuf::Message& request,
                 const google::protobuf::Message& response, const absl::Status& status);
    /// `caller` null: nobody known. Does not wait.
    void refused(const std::string& peer, const Caller* caller, const std::string& call,
                 const google::protobuf::Message* request, const absl::Status& status);
    /// Kept for the first call of a connection over TCP. Does not wait.
    void called(const Caller& caller);

  private:
    /// Lets kBurst through, then one a second.
    struct Allowance {
        double left = kBurst;
        int64_t atNs = 0;
        uint64_t withheld = 0;
        bool take(int64_t nowNs);
    };
    model::AuditEntry entry(const std::string& peer, const Caller* caller) const;
    void post(Allowance Auditor::*of, model::AuditEntry entry);
    void run();
    model::AuditEntry gap(uint64_t lost) const;
    void note(const absl::Status& written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void keepForLater(std::vector<model::AuditEntry> unwritten)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    access::AuditLog* const log_;
    const Clock& clock_;
    Mutex mutex_;
    ConditionVariable posting_;
    ConditionVariable written_;
    std::vector<model::AuditEntry> waiting_
        ABSL_GUARDED_BY(mutex_);  ///< at most 2 * kBurst are let through at once, beside changes
    uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;  ///< before `waiting_`
    bool failing_ ABSL_GUARDED_BY(mutex_) = false;
    uint64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of those posted; written, if that can be
    Allowance refusals_ ABSL_GUARDED_BY(mutex_);
    Allowance signIns_ ABSL_GUARDED_BY(mutex_);
    std::unordered_set<std::string> known_ ABSL_GUARDED_BY(mutex_);  ///< connections that signed in
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace bulkhead::service
