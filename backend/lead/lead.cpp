// SPDX-License-Identifier: Apache-2.0
#include "backend/lead/lead.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/common/clock.h"
#include "backend/common/file_system.h"
#include "etcd/rpc.grpc.pb.h"

namespace bulkhead::lead {
namespace {

namespace etcd = etcdserverpb;
using std::chrono::milliseconds;

/// Short enough that a job trains on within 5 s of a leader's death, long enough that etcd can
/// choose a leader of its own (1 to 2 s) without costing ours the lead.
constexpr int64_t kLeaseSeconds = 3;
constexpr MonoNs kMargin = 100 * kMillisecond;
constexpr milliseconds kRenewEvery{400};
constexpr milliseconds kLookEvery{200};  ///< of one that stands by
/// A member that has not answered by then is passed over for the next.
constexpr milliseconds kAnswerWithin{700};
constexpr milliseconds kReasonWithin{50};
constexpr uint64_t kMostCertificateBytes = 1 << 20;
/// The value of the last leader's key when that one gave the lead up in order.
constexpr const char* kGivenUp = "given up";

/// Also counts the time in which this machine slept.
MonoNs bootNow() {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return now.tv_sec * kSecond + now.tv_nsec;
}

/// The first key behind all that begin so.
std::string endOf(std::string prefix) {
    ++prefix.back();
    return prefix;
}

std::string nameOf(int64_t lease) {
    return absl::StrCat(absl::Hex(lease));
}

/// Holds when `key` has `value`, or, without one, does not exist.
void expect(etcd::TxnRequest& wanted, const std::string& key,
            const std::optional<std::string>& value) {
    etcd::Compare& one = *wanted.add_compare();
    one.set_key(key);
    one.set_target(value ? etcd::Compare::VALUE : etcd::Compare::CREATE);
    if (value)
        one.set_value(*value);
    else
        one.set_create_revision(0);
}

/// Holds when no candidate has `key`: it does not exist, or somebody wrote it by hand.
void expectNobody(etcd::TxnRequest& wanted, const std::string& key) {
    etcd::Compare& one = *wanted.add_compare();
    one.set_key(key);
    one.set_target(etcd::Compare::LEASE);
    one.set_lease(0);
}

void put(etcd::RequestOp& op, const std::string& key, std::string_view value, int64_t lease) {
    op.mutable_request_put()->set_key(key);
    op.mutable_request_put()->set_value(std::string(value));
    op.mutable_request_put()->set_lease(lease);
}

std::chrono::system_clock::time_point within(milliseconds time) {
    return std::chrono::system_clock::now() + time;
}

absl::Status statusOf(const grpc::Status& status) {
    return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace

/// Asks one member after another until one answers. Thread: one at a time.
class Lead::Etcd {
  public:
    struct Member {
        std::string address;
        std::shared_ptr<grpc::Channel> channel;
        std::unique_ptr<etcd::KV::Stub> kv;
        std::unique_ptr<etcd::Lease::Stub> lease;
    };

    static absl::StatusOr<std::unique_ptr<Etcd>> open(const LeadOptions& options) {
        const auto credentials = credentialsOf(options.certs);
        if (!credentials.ok()) return credentials.status();
        auto out = std::make_unique<Etcd>();
        for (const std::string& address : options.etcd) {
            grpc::ChannelArguments args;
            args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
            args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // an attempt's time
            args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
            args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
            args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
            const auto channel = grpc::CreateCustomChannel(address, *credentials, args);
            out->members_.push_back(
                {address, channel, etcd::KV::NewStub(channel), etcd::Lease::NewStub(channel)});
        }
        return out;
    }

    /// `ask(member, context)`, of each member once at most and not beyond `until`.
    template <class Ask>
    absl::Status call(MonoNs until, Ask ask) {
        absl::Status last = absl::DeadlineExceededError("no time is left to ask etcd");
        for (size_t n = 0; n < members_.size(); ++n) {
            const milliseconds left((until - bootNow()) / kMillisecond);
            if (left.count() <= 0) return last;
            Member& member = members_[at_];
            grpc::Status status;
            {
                grpc::ClientContext context;
                // gRPC looks after connections that are being made only while a call waits.
                context.set_wait_for_ready(true);
                context.set_deadline(within(std::min(left, kAnswerWithin)));
                status = ask(member, context);
            }
            if (status.ok()) return absl::OkStatus();
            // One that does not wait says why there is no connection.
            if (member.channel->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
                grpc::ClientContext context;
                context.set_deadline(within(kReasonWithin));
                status = ask(member, context);
                if (status.ok()) return absl::OkStatus();
            }
            last = absl::Status(
                statusOf(status).code(),
                absl::StrCat("etcd at ", member.address, ": ", status.error_message()));
            // It has answered, and another would answer the same.
            if (status.error_code() == grpc::StatusCode::NOT_FOUND) return last;
            at_ = (at_ + 1) % members_.size();
        }
        return last;
    }

  private:
    static absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentialsOf(
        const std::string& folder) {
        if (folder.empty()) return grpc::InsecureChannelCredentials();
        grpc::SslCredentialsOptions pem;
        for (const auto& [name, text] : {std::pair{"ca.pem", &pem.pem_root_certs},
                                         {"cert.pem", &pem.pem_cert_chain},
                                         {"key.pem", &pem.pem_private_key}}) {
            const std::string path = absl::StrCat(folder, "/", name);
            if (text != &pem.pem_root_certs && !std::filesystem::exists(path)) continue;
            auto read = readAtMost(path, kMostCertificateBytes);
            if (!read.ok())
                return absl::InvalidArgumentError(
                    absl::StrCat("--etcd-certs: ", read.status().message()));
            *text = *std::move(read);
        }
        return grpc::SslCredentials(pem);
    }

    std::vector<Member> members_;
    size_t at_ = 0;
};

Lead::Lead(LeadOptions options) : options_(std::move(options)) {}

Lead::Seen Lead::nothingSeen() {
    return {kGivenUp};
}

absl::Status Lead::connect() {
    auto etcd = Etcd::open(options_);
    if (!etcd.ok()) return etcd.status();
    etcd_ = *std::move(etcd);
    return absl::OkStatus();
}

absl::Status Lead::renew(MonoNs until) {
    int64_t ttl = 0;
    absl::Status status;
    if (lease_ == 0) {
        etcd::LeaseGrantResponse granted;
        status = etcd_->call(until, [&](auto& member, auto& context) {
            etcd::LeaseGrantRequest wanted;
            wanted.set_ttl(kLeaseSeconds);
            return member.lease->LeaseGrant(&context, wanted, &granted);
        });
        if (status.ok() && !granted.error().empty())
            status = absl::UnavailableError("etcd grants no lease: " + granted.error());
        lease_ = granted.id();
        ttl = granted.ttl();
    } else {
        etcd::LeaseKeepAliveResponse kept;
        status = etcd_->call(until, [&](auto& member, auto& context) {
            const auto stream = member.lease->LeaseKeepAlive(&context);
            etcd::LeaseKeepAliveRequest ours;
            ours.set_id(lease_);
            const bool answered = stream->Write(ours) && stream->Read(&kept);
            stream->WritesDone();
            if (answered) context.TryCancel();
            const grpc::Status ended = stream->Finish();
            if (answered) return grpc::Status::OK;
            return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : ended;
        });
        ttl = kept.ttl();
        if (status.ok() && ttl <= 0) status = absl::NotFoundError("its lease in etcd has ended");
    }
    if (absl::IsNotFound(status)) lease_ = 0;
    if (!status.ok()) return status;
    length_ = ttl * kSecond;
    return absl::OkStatus();
}

absl::StatusOr<bool> Lead::hold() {
    const MonoNs asked = bootNow();
    // A round that fails leaves nothing that was seen before it.
    const Seen before = std::exchange(seen_, nothingSeen());
    // One that leads has no use for an answer that comes when its lease has ended.
    const MonoNs leadsUntil = leadsUntilNs_;
    const MonoNs until = leadsUntil > 0 ? leadsUntil : asked + kLeaseSeconds * kSecond;
    if (absl::Status s = renew(until); !s.ok()) return s;
    // One that leads takes its own key back when somebody has deleted it.
    const std::optional<std::string> over = leadsUntil > 0 ? nameOf(lease_) : before.over;
    // Rounds that change nothing write nothing: etcd keeps what was written until it is compacted.
    etcd::TxnRequest wanted;
    expectNobody(wanted, leadKey());
    expect(wanted, lastKey(), over);
    put(*wanted.add_success(), leadKey(), options_.name, lease_);
    put(*wanted.add_success(), lastKey(), nameOf(lease_), 0);
    wanted.add_failure()->mutable_request_range()->set_key(leadKey());
    wanted.add_failure()->mutable_request_range()->set_key(lastKey());
    for (auto* ops : {wanted.mutable_success(), wanted.mutable_failure()}) {
        etcd::RangeRequest& all = *ops->Add()->mutable_request_range();
        all.set_key(candidates());
        all.set_range_end(endOf(candidates()));
        if (announced_ != lease_)
            put(*ops->Add(), candidates() + nameOf(lease_), options_.name, lease_);
    }
    etcd::TxnResponse answer;
    const absl::Status status = etcd_->call(until, [&](auto& member, auto& context) {
        return member.kv->Txn(&context, wanted, &answer);
    });
    if (absl::IsNotFound(status)) lease_ = 0;
    if (!status.ok()) return status;
    if (answer.responses_size() < 3)
        return absl::UnavailableError("etcd's answer is not what was asked for");
    announced_ = lease_;
    bool ours = answer.succeeded();
    if (!ours) {
        const auto& holders = answer.responses(0).response_range().kvs();
        const auto& lasts = answer.responses(1).response_range().kvs();
        const etcd::KeyValue holder = holders.empty() ? etcd::KeyValue() : holders[0];
        std::optional<std::string> last;
        if (!lasts.empty()) last = lasts[0].value();
        ours = holder.lease() == lease_;
        holder_ = holder.lease() == 0 ? "" : holder.value();
        if (!ours) seen_ = judge(holder.lease(), last, before, until);
    } else {
        holder_ = options_.name;
    }
    answeredAt_ = bootNow();
    if (ours) leadsUntilNs_ = asked + length_ - kMargin;
    std::vector<std::string> others;
    bool known = answer.responses_size() > 3;  // announced with this round
    for (const etcd::KeyValue& one : answer.responses(2).response_range().kvs()) {
        known = known || one.lease() == lease_;
        if (one.lease() != lease_ && one.lease() != 0) others.push_back(one.value());
    }
    if (!known) announced_ = 0;  // somebody has deleted the key
    std::sort(others.begin(), others.end());
    const MutexLock lock(mutex_);
    if (ours && standbys_ != others)
        spdlog::info("standing by: {}", others.empty() ? "nobody" : absl::StrJoin(others, ", "));
    standbys_ = std::move(others);
    return ours;
}

Lead::Seen Lead::judge(int64_t holder, const std::optional<std::string>& last, const Seen& before,
                       MonoNs until) {
    Seen seen = before;
    const int64_t of = before.lastSecondOf;
    if (holder == 0) {
        const MonoNs now = bootNow();
        if (absentSince_ == 0 || absent_ != last) {
            absent_ = last;
            absentSince_ = now;
        }
        const bool ranOut =
            of != 0 && last == nameOf(of) && now - before.lastSecondSince >= kSecond;
        const bool away = answeredAt_ != 0 && now - answeredAt_ >= length_;
        seen.over = ranOut || away || now - absentSince_ >= length_ ? last : kGivenUp;
        return seen;
    }
    absentSince_ = 0;
    etcd::LeaseTimeToLiveResponse left;
    const absl::Status status = etcd_->call(until, [&](auto& member, auto& context) {
        etcd::LeaseTimeToLiveRequest wanted;
        wanted.set_id(holder);
        return member.lease->LeaseTimeToLive(&context, wanted, &left);
    });
    if (!status.ok() || left.ttl() > 0) return nothingSeen();
    const MonoNs now = bootNow();
    // Below zero: it has gone between the two questions, by itself or by somebody's hand.
    if (left.ttl() == 0 && of != holder) seen = {kGivenUp, holder, now};
    seen.over = kGivenUp;
    if (seen.lastSecondOf == holder && now - seen.lastSecondSince >= kSecond)
        seen.over = nameOf(holder);
    return seen;
}

void Lead::end(const std::string& why) {
    spdlog::critical(
        "this controller does not lead any more and ends; jobs train on with another: {}", why);
    spdlog::default_logger()->flush();
    ::_exit(EXIT_FAILURE);
}

std::vector<std::string> Lead::standbys() const {
    const MutexLock lock(mutex_);
    return standbys_;
}

absl::StatusOr<std::unique_ptr<Lead>> Lead::await(LeadOptions options, const Pause& pause) {
    std::unique_ptr<Lead> lead(new Lead(std::move(options)));
    if (absl::Status s = lead->connect(); !s.ok()) return s;
    for (std::string told;;) {
        const auto held = lead->hold();
        std::string now = !held.ok() ? std::string(held.status().message()) : lead->holder_;
        if (held.ok() && *held) {
            // The answers may have taken longer than the lease.
            if (bootNow() >= lead->leadsUntilNs_) {
                lead->leadsUntilNs_ = 0;
                continue;
            }
            break;
        }
        if (std::exchange(told, now) != now) {
            if (held.ok() && now.empty())
                spdlog::info(
                    "stands by: nobody leads; takes the lead {} s from now, when no earlier "
                    "controller can believe that it does",
                    lead->length_ / kSecond);
            else if (held.ok())
                spdlog::info("stands by: {} leads", now);
            else
                spdlog::warn("stands by, and cannot ask who leads: {}", now);
        }
        if (!pause(kLookEvery)) return nullptr;
    }
    spdlog::info("leads, as {}", lead->options_.name);
    lead->keeper_ = Thread([raw = lead.get()] { raw->keep(); });
    return lead;
}

void Lead::keep() {
    for (std::string told;;) {
        {
            MutexLock lock(mutex_);
            wake_.wait_for(lock, kRenewEvery,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_; });
            if (ending_) return;
        }
        check();
        const auto held = hold();
        check();
        if (held.ok() && !*held) end(holder_.empty() ? "its key is gone" : holder_ + " leads");
        if (absl::IsNotFound(held.status())) end(std::string(held.status().message()));
        const std::string now(held.status().message());
        if (std::exchange(told, now) != now && !held.ok())
            spdlog::warn("the lead is not renewed: {}", now);
    }
}

void Lead::check() const {
    if (bootNow() < leadsUntilNs_) return;
    end(absl::StrCat("none of ", absl::StrJoin(options_.etcd, ", "),
                     " has renewed its lease in time, or this process was stopped"));
}

Lead::~Lead() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
        wake_.notify_all();
    }
    if (keeper_.joinable()) keeper_.join();
    if (lease_ == 0) return;
    const MonoNs until = bootNow() + kLeaseSeconds * kSecond;
    if (leadsUntilNs_ > 0) {
        etcd::TxnRequest wanted;
        etcd::TxnResponse answer;
        expect(wanted, lastKey(), nameOf(lease_));
        put(*wanted.add_success(), lastKey(), kGivenUp, 0);
        (void)etcd_->call(until, [&](auto& member, auto& context) {
            return member.kv->Txn(&context, wanted, &answer);
        });
    }
    etcd::LeaseRevokeResponse gone;
    (void)etcd_->call(until, [&](auto& member, auto& context) {
        etcd::LeaseRevokeRequest ours;
        ours.set_id(lease_);
        return member.lease->LeaseRevoke(&context, ours, &gone);
    });
}

}  // namespace bulkhead::lead
