// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/threads.h"

namespace bulkhead::lead {

struct LeadOptions {
    std::vector<std::string> etcd;  ///< host:port of each member
    /// Folder with ca.pem, and cert.pem and key.pem if members ask for them; empty: plain text.
    std::string certs;
    std::string cluster;  ///< controllers of one cluster stand by for each other
    std::string name;     ///< of this candidate, for people
};

/// The lead among controllers that share a state directory: the key bulkhead/lead/CLUSTER in etcd
/// with a lease, which one of them has at a time. Each has a key bulkhead/candidate/CLUSTER/LEASE
/// with its name. A leader that may have lost it ends its process at once, as kill -9
/// would: its ranks wait for the next controller.
///
/// Safety. The lease is counted from before the request that renewed it, by this machine's clock:
/// it ends here before it ends in etcd, unless this clock is slower than etcd's by more than the
/// margin. A process that was stopped meanwhile is kept from acting on what it believed before by
/// check(), by FencedFiles, and by ranks and agents, which have gone to another controller.
/// The key may also be gone without its lease having run out: deleted or revoked by hand. So
/// bulkhead/last/CLUSTER, which has no lease, names the last one that led, and a candidate takes a
/// lead that nobody has at once only when that one gave it up in order, the candidate saw the whole
/// last second of its lease, or etcd answered the candidate nothing for the length of a lease.
/// Otherwise it waits for that long first.
class Lead {
  public:
    /// Waits so long; false: it is to stand by no more.
    using Pause = std::function<bool(std::chrono::milliseconds)>;
    /// Returns when this process leads; null when `pause` said so before. Says in the log who leads
    /// meanwhile and when etcd does not answer. InvalidArgument for certificates or addresses that
    /// cannot be used.
    static absl::StatusOr<std::unique_ptr<Lead>> await(LeadOptions options, const Pause& pause);
    /// Gives the lead up: another has it at once.
    ~Lead();

    /// Ends the process unless it leads. Thread: any; asks nobody.
    void check() const;
    /// Ends the process. Thread: any.
    [[noreturn]] static void end(const std::string& why);
    /// Names of the other candidates, in order. Thread: any.
    std::vector<std::string> standbys() const;

  private:
    class Etcd;
    explicit Lead(LeadOptions options);
    absl::Status connect();
    /// One round: renews the lease, or takes one, and then the key if nobody has it. True: this
    /// candidate has it. NotFound: the lease has ended.
    absl::StatusOr<bool> hold();
    absl::Status renew(MonoNs until);
    /// A round leaves a candidate with this knowledge of the one that leads, or led.
    struct Seen {
        /// The value of lastKey() with which the lead may be taken next time; none: no such key.
        std::optional<std::string> over;
        int64_t lastSecondOf = 0;    ///< a lease that was seen in its last second...
        MonoNs lastSecondSince = 0;  ///< ...first at this time
    };
    static Seen nothingSeen();
    /// After a round that found the lead with `holder` (a lease; 0: with nobody) and `last`.
    Seen judge(int64_t holder, const std::optional<std::string>& last, const Seen& before,
               MonoNs until);
    void keep();

    std::string leadKey() const { return "bulkhead/lead/" + options_.cluster; }
    std::string lastKey() const { return "bulkhead/last/" + options_.cluster; }
    std::string candidates() const { return "bulkhead/candidate/" + options_.cluster + "/"; }

    const LeadOptions options_;
    std::unique_ptr<Etcd> etcd_;
    int64_t lease_ = 0;
    MonoNs answeredAt_ = 0;  ///< the last round that succeeded; 0: none
    MonoNs length_ = 0;      ///< of the lease, as granted
    int64_t announced_ = 0;  ///< the lease of the key with its name
    Seen seen_ = nothingSeen();
    std::optional<std::string>
        absent_;              ///< the last leader, when its key was first seen to be gone...
    MonoNs absentSince_ = 0;  ///< ...at this time; 0: the lead is with somebody
    std::atomic<int64_t> leadsUntilNs_{0};
    std::string holder_;  ///< the name of the leader, as last heard; empty: nobody leads
    mutable Mutex mutex_;
    std::vector<std::string> standbys_ ABSL_GUARDED_BY(mutex_);
    ConditionVariable wake_;
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    Thread keeper_;
};

}  // namespace bulkhead::lead
