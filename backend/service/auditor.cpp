// SPDX-License-Identifier: Apache-2.0
#include "backend/service/auditor.h"

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/server_context.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "backend/model/names.h"
#include "backend/service/gate.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using model::AuditEntry;

constexpr size_t kMostRequest = 2048;
constexpr size_t kMostWords = 512;
constexpr size_t kMostConnections = 4096;

std::string textField(const Message& message, const char* name) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return {};
    return message.GetReflection()->GetString(message, field);
}

v1::Mutation mutationOf(const Message& message) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName("mutation");
    if (field == nullptr || field->message_type() != v1::Mutation::descriptor()) return {};
    v1::Mutation out;
    out.CopyFrom(message.GetReflection()->GetMessage(message, field));
    return out;
}

/// Cuts text that callers choose.
std::string cut(const std::string& text, size_t most) {
    return model::shortened(model::printable(text), most);
}

/// With long fields cut: a request of 2 MB is not printed to keep 2 KiB of it.
std::string textOf(const Message& request) {
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    printer.SetExpandAny(true);
    printer.SetTruncateStringFieldLongerThan(kMostRequest);
    std::string text;
    printer.PrintToString(request, &text);
    return text;
}

void describe(AuditEntry& entry, const Message& request) {
    entry.call = methodOf(request);
    entry.object = cut(textField(request, "job"), kMostWords);
    if (entry.object.empty()) entry.object = cut(textField(request, "node"), kMostWords);
    const v1::Mutation mutation = mutationOf(request);
    entry.by = cut(mutation.by(), kMostWords);
    entry.revision = mutation.expected_revision();
    entry.request = cut(textOf(request), kMostRequest);
}

/// Effect of a call that was done.
std::string effectOf(const Message& response) {
    if (response.GetDescriptor() == v1::NodeList::descriptor()) return "";
    if (response.GetDescriptor() != v1::JobInfo::descriptor())
        return cut(response.ShortDebugString(), kMostWords);
    v1::JobInfo job;
    job.CopyFrom(response);
    return model::concat("job ", cut(job.id(), kMostWords), " at revision ", job.revision(),
                         ", step ", job.step());
}

void conclude(AuditEntry& entry, const absl::Status& status) {
    entry.outcome = status.ok() ? "ok" : absl::StatusCodeToString(status.code());
    entry.message = cut(std::string(status.message()), kMostWords);
}

}  // namespace

bool Auditor::Allowance::take(int64_t nowNs) {
    left = std::min<double>(kBurst, left + static_cast<double>(nowNs - atNs) / kSecond);
    atNs = nowNs;
    if (left < 1) {
        ++withheld;
        return false;
    }
    left -= 1;
    return true;
}

Auditor::Auditor(access::AuditLog* log, const Clock& clock) : log_(log), clock_(clock) {
    refusals_.atNs = signIns_.atNs = clock.now();
    if (log_ != nullptr) thread_ = std::thread([this] { run(); });
}

Auditor::~Auditor() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
    }
    posting_.notify_all();
    if (thread_.joinable()) thread_.join();
}

AuditEntry Auditor::entry(const std::string& peer, const Caller* caller) const {
    AuditEntry out;
    out.timeNs = clock_.unixNs();
    out.peer = cut(peer, kMostWords);
    if (caller != nullptr) {
        out.principal = caller->name;
        out.via = caller->via;
    }
    return out;
}

void Auditor::changed(const Caller& caller, const Message& request, const Message& response,
                      const absl::Status& status) {
    if (log_ == nullptr) return;
    AuditEntry kept = entry(caller.peer, &caller);
    describe(kept, request);
    conclude(kept, status);
    if (status.ok()) kept.message = effectOf(response);
    MutexLock lock(mutex_);
    waiting_.push_back(std::move(kept));
    const uint64_t mine = ++posted_;
    posting_.notify_one();
    written_.wait(
        lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return failing_ || done_ >= mine; });
}

void Auditor::refused(const std::string& peer, const Caller* caller, const std::string& call,
                      const Message* request, const absl::Status& status) {
    if (log_ == nullptr) return;
    AuditEntry kept = entry(peer, caller);
    kept.call = call;
    // Nothing of a request is read for a caller whom nobody knows.
    if (caller != nullptr && request != nullptr) describe(kept, *request);
    conclude(kept, status);
    post(&Auditor::refusals_, std::move(kept));
}

void Auditor::called(const Caller& caller) {
    if (log_ == nullptr || caller.via == "socket") return;
    {
        const MutexLock lock(mutex_);
        if (!known_.insert(caller.name + " " + caller.peer).second) return;
        if (known_.size() > kMostConnections) known_.clear();
    }
    AuditEntry kept = entry(caller.peer, &caller);
    kept.call = "sign in";
    kept.outcome = "ok";
    post(&Auditor::signIns_, std::move(kept));
}

void Auditor::post(Allowance Auditor::*of, AuditEntry entry) {
    const MutexLock lock(mutex_);
    Allowance& allowance = this->*of;
    if (!allowance.take(clock_.now())) return;
    entry.repeated = std::exchange(allowance.withheld, 0);
    waiting_.push_back(std::move(entry));
    ++posted_;
    posting_.notify_one();
}

void Auditor::run() {
    MutexLock lock(mutex_);
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ending_ || (!waiting_.empty() && !failing_);
    };
    for (bool last = false; !last;) {
        if (failing_)
            posting_.wait_for(lock, kTryAgain, due);
        else
            posting_.wait(lock, due);
        last = ending_;
        if (waiting_.empty()) continue;
        std::vector<AuditEntry> all = std::exchange(waiting_, {});
        const uint64_t lost = lost_;
        const uint64_t upTo = posted_;
        lock.unlock();
        if (lost > 0) all.insert(all.begin(), gap(lost));
        const absl::Status status = log_->add(all);
        if (lost > 0) all.erase(all.begin());
        lock.lock();
        note(status);
        done_ = upTo;
        if (status.ok())
            lost_ -= lost;
        else
            keepForLater(std::move(all));
        written_.notify_all();
    }
    if (!waiting_.empty())
        spdlog::error("{} entries of the audit are lost", lost_ + waiting_.size());
}

AuditEntry Auditor::gap(uint64_t lost) const {
    AuditEntry out = entry("", nullptr);
    out.call = "audit";
    out.outcome = absl::StatusCodeToString(absl::StatusCode::kDataLoss);
    out.message = model::concat(lost, " entries that came while it could not be written are lost.");
    out.repeated = lost;
    return out;
}

void Auditor::note(const absl::Status& written) {
    if (!written.ok() && !failing_)
        spdlog::error("the audit is not kept: {}", std::string(written.message()));
    if (written.ok() && failing_) spdlog::info("the audit is kept again");
    failing_ = !written.ok();
}

void Auditor::keepForLater(std::vector<AuditEntry> unwritten) {
    unwritten.insert(unwritten.end(), std::make_move_iterator(waiting_.begin()),
                     std::make_move_iterator(waiting_.end()));
    const size_t over = unwritten.size() - std::min(unwritten.size(), kMostWaiting);
    lost_ += over;
    unwritten.erase(unwritten.begin(), unwritten.begin() + static_cast<ptrdiff_t>(over));
    waiting_ = std::move(unwritten);
}

}  // namespace bulkhead::service
