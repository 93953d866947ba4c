// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "backend/common/threads.h"
#include "backend/runtime/ftar/adaptive_timeout.h"
#include "backend/runtime/ftar/algorithm.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/rounds.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kSlotMargin = kMaxMembers * 128;  // its pieces begin at cache lines

/// Memberships, their connections, aborts and figures; the algorithms do the sums.
class MeshExchange final : public Exchange {
  public:
    explicit MeshExchange(ExchangeOptions options)
        : options_(std::move(options)), staging_(options_.device) {
        context_.clock = options_.clock;
        context_.abort = &abort_;
        context_.faults = options_.faults;
        context_.heaps = &heaps_;
        context_.arrived = [this] { progress_.fetch_add(1, std::memory_order_relaxed); };
    }

    bool usable() const { return abort_.ok(); }

    absl::Status configure(const ExchangeGroup& group) override {
        if (absl::Status s = check(group); !s.ok()) return s;
        if (absl::Status s = enter(group.key); !s.ok()) return s;
        const bool keep = ready_ && canKeep(group);
        group_ = group;
        timeout_.setFloor(group.chunkTimeout);
        if (keep) {
            startCounting();
            return deviceStale_ ? enterDevice() : absl::OkStatus();
        }
        ready_ = false;
        const absl::Status built = build();
        ready_ = built.ok();
        return built;
    }

    absl::Status reduce(uint32_t bucket, std::span<const float> input,
                        std::span<float> output) override {
        if (!ready_)
            return absl::FailedPreconditionError("reduce() needs a successful configure() before");
        if (input.size() != output.size())
            return absl::InvalidArgumentError(
                absl::StrCat("input has ", input.size(), " elements, output ", output.size()));
        const MonoNs start = options_.clock->now();
        absl::Status status;
        if (abort_.raised()) status = abort_.why();
        if (status.ok()) status = checkHeap(input, output);
        if (status.ok())
            status = algorithmFor(input.size_bytes())
                         .run({group_.key.step, group_.key.attempt, bucket}, input, output);
        if (options_.device) status.Update(restDevice(status.ok()));
        finish(start, status);
        return status;
    }

    void abort(const ExchangeKey& upTo, std::string_view reason) override {
        const MutexLock lock(mutex_);
        if (key_ <= upTo) {
            abort_.raise(absl::AbortedError(std::string(reason)));
            if (options_.device) options_.device.api->abort(options_.device.plane);
        }
        if (abortedUpTo_ && upTo <= *abortedUpTo_) return;
        abortedUpTo_ = upTo;
        abortReason_ = std::string(reason);
    }

    uint64_t progress() const override { return progress_.load(std::memory_order_relaxed); }

    std::vector<FailedPeer> failedPeers() const override {
        const MutexLock lock(mutex_);
        return failed_;
    }

    ExchangeStats stats() const override {
        const MutexLock lock(mutex_);
        return stats_;
    }

  private:
    absl::Status check(const ExchangeGroup& group) const {
        if (group.peers.empty() || group.peers.size() > kMaxMembers)
            return absl::InvalidArgumentError(absl::StrCat("an exchange has 1 to ", kMaxMembers,
                                                           " peers, not ", group.peers.size()));
        if (group.self < 0 || static_cast<size_t>(group.self) >= group.peers.size())
            return absl::InvalidArgumentError(
                absl::StrCat("self = ", group.self, " is no index into the peers"));
        if (group.algorithm == Algorithm::kRing && group.transport == PeerChoice::kShm)
            return absl::InvalidArgumentError("a ring runs over TCP, not over shared memory");
        for (size_t i = 1; i < group.peers.size(); ++i)
            if (group.peers[i - 1].replica >= group.peers[i].replica)
                return absl::InvalidArgumentError("peers must ascend by replica");
        const ExchangePeer& me = group.peers[static_cast<size_t>(group.self)];
        if (me.replica != options_.replica || me.incarnation != options_.incarnation)
            return absl::InvalidArgumentError(absl::StrCat(
                "peers[", group.self, "] is replica ", me.replica, " incarnation ", me.incarnation,
                ", we are ", options_.replica, " incarnation ", options_.incarnation));
        return absl::OkStatus();
    }

    /// Makes `key` current unless an abort covers it already.
    absl::Status enter(const ExchangeKey& key) {
        const MutexLock lock(mutex_);
        failed_.clear();
        stats_ = {};
        if (key < key_)
            return absl::InvalidArgumentError("an exchange older than the last one was configured");
        key_ = key;
        if (abortedUpTo_ && key <= *abortedUpTo_) {
            ready_ = false;
            return absl::AbortedError(abortReason_);
        }
        deviceStale_ = deviceStale_ || abort_.raised();
        abort_.clear();
        return absl::OkStatus();
    }

    absl::Status onDevice(bulkhead_status status) const {
        if (status == BULKHEAD_OK) return absl::OkStatus();
        return absl::InternalError(
            absl::StrCat("device: ", options_.device.api->why(options_.device.plane)));
    }

    /// A membership is an epoch of the device; one that was aborted does nothing more.
    absl::Status enterDevice() {
        if (!options_.device) return absl::OkStatus();
        deviceStale_ = false;
        return onDevice(options_.device.api->enter(options_.device.plane));
    }

    /// Between two buckets the device is others'; after a failure nothing of peers is read.
    absl::Status restDevice(bool ok) {
        const auto& [api, plane] = options_.device;
        if (!ok) api->abort(plane);
        return onDevice(api->park(plane));
    }

    bool canKeep(const ExchangeGroup& next) const {
        if (next.key == group_.key && next.peers == group_.peers) return true;
        return next.key.attempt == 1 && next.key.term == group_.key.term &&
               next.key.epoch == group_.key.epoch && next.secret == group_.secret &&
               next.peers == group_.peers && next.self == group_.self &&
               next.transport == group_.transport && next.connections == group_.connections &&
               next.wire == group_.wire && next.algorithm == group_.algorithm;
    }

    /// Restarts the figures of stats().
    void startCounting() {
        base_ = rounds_->totals();
        waitsBefore_.assign(rounds_->waits().begin(), rounds_->waits().end());
    }

    absl::Status build() {
        MeshSpec spec;
        // Members that would add differently do not meet.
        spec.group = absl::StrCat(
            options_.job, "/shard ", options_.shard, "/wire ", static_cast<int>(group_.wire),
            "/algorithm ", static_cast<int>(group_.algorithm), options_.device ? "/device" : "");
        spec.secret = group_.secret;
        spec.identity.term = group_.key.term;
        spec.identity.epoch = group_.key.epoch;
        spec.identity.step = group_.key.step;
        spec.identity.attempt = group_.key.attempt;
        spec.self = static_cast<size_t>(group_.self);
        for (const ExchangePeer& p : group_.peers)
            spec.peers.push_back({p.replica, p.incarnation, p.host, p.data, p.shm});
        spec.choice = group_.algorithm == Algorithm::kRing ? PeerChoice::kTcp : group_.transport;
        spec.slotBytes = roundBytes() + kSlotMargin;
        spec.heap = options_.heap;
        spec.tcp = {options_.chunkBytes, options_.chunksInFlight, options_.protection};
        spec.connections = group_.connections;
        spec.listenFd = options_.listenFd;
        spec.timeout = group_.connectTimeout;
        std::vector<MeshFailure> failures;
        absl::StatusOr<std::unique_ptr<PeerMesh>> mesh =
            PeerMesh::connect(std::move(spec), context_, failures);
        if (!mesh.ok()) {
            recordFailures(failures);
            return mesh.status();
        }
        // Only now does the old mesh go: all living members of the new one have left the old one's
        // waits, so that nobody mistakes its end for our death.
        direct_.reset();
        ring_.reset();
        hierarchical_.reset();
        rounds_.reset();
        mesh_ = std::move(*mesh);
        rounds_ = std::make_unique<Rounds>(*mesh_, context_);
        if (absl::Status s = makeAlgorithms(); !s.ok()) return s;
        forgetOldHeaps();
        timeout_.connected(group_.connectTimeout);
        startCounting();
        const MutexLock lock(mutex_);
        if (mesh_->last() != mesh_->self())
            stats_.connectedLast = group_.peers[mesh_->last()].replica;
        return absl::OkStatus();
    }

    size_t roundBytes() const { return options_.roundBytes * group_.connections; }

    absl::Status makeAlgorithms() {
        work_ = {mesh_.get(),  rounds_.get(),       &abort_, &timeout_, group_.wire,
                 roundBytes(), options_.directBytes};
        if (options_.device) {
            if (absl::Status s = enterDevice(); !s.ok()) return s;
            auto made = makeDeviceDirect(work_, options_.device, staging_);
            if (made.ok()) direct_ = std::move(*made);
            return made.status();
        }
        direct_ = makeDirect(work_);
        if (mesh_->segment() == nullptr) ring_ = makeRing(work_);
        hierarchical_ = makeHierarchical(work_);
        return absl::OkStatus();
    }

    AllReduce& algorithmFor(size_t bytes) {
        Algorithm algorithm = options_.device ? Algorithm::kDirect : group_.algorithm;
        if (algorithm == Algorithm::kAuto)
            algorithm = choose({mesh_->size(), ring_ != nullptr, hierarchical_ != nullptr}, bytes);
        if (algorithm == Algorithm::kRing) return *ring_;
        return algorithm == Algorithm::kHierarchical && hierarchical_ ? *hierarchical_ : *direct_;
    }

    /// Where all read everybody's memory, they must find everything there.
    absl::Status checkHeap(std::span<const float> input, std::span<float> output) const {
        if (options_.heap == nullptr) return absl::OkStatus();
        for (size_t i = 0; i < mesh_->size(); ++i)
            if (mesh_->tcp(i) != nullptr) return absl::OkStatus();
        if (options_.heap->find(std::as_bytes(input)) && options_.heap->find(std::as_bytes(output)))
            return absl::OkStatus();
        return absl::InvalidArgumentError("input or output is not in the heap that peers read");
    }

    void forgetOldHeaps() {
        std::vector<uint64_t> heaps;
        for (size_t i = 0; i < mesh_->size(); ++i)
            if (mesh_->view(i) != nullptr) heaps.push_back(mesh_->view(i)->heap());
        heaps_.keepOnly(heaps);
    }

    void finish(MonoNs start, const absl::Status& status) {
        if (status.ok()) {
            timeout_.summed();
        } else {
            ready_ = false;
            recordFailures(rounds_->failures());
        }
        const Rounds::Totals& now = rounds_->totals();
        const double took = inMs(options_.clock->now() - start);
        const MutexLock lock(mutex_);
        if (status.ok()) ++stats_.buckets;
        stats_.bytesSent = now.bytesSent - base_.bytesSent;
        stats_.bytesReceived = now.bytesReceived - base_.bytesReceived;
        stats_.staleFrames = now.staleFrames - base_.staleFrames;
        stats_.wallMs += took;
        for (size_t i = 0; i < waitsBefore_.size(); ++i) {
            const double waited = inMs(rounds_->waits()[i] - waitsBefore_[i]);
            if (waited <= stats_.waitedMs) continue;
            stats_.waitedMs = waited;
            stats_.waitedOn = group_.peers[i].replica;
        }
    }

    void recordFailures(const std::vector<MeshFailure>& failures) {
        const MutexLock lock(mutex_);
        for (const MeshFailure& f : failures)
            failed_.push_back(
                {group_.peers[f.peer].replica, static_cast<PeerFault>(f.fault), f.detail});
    }

    const ExchangeOptions options_;
    MeshContext context_;
    AbortSignal abort_;
    ExchangeGroup group_;
    bool ready_ = false;
    bool deviceStale_ = false;  ///< an abort ended the device's epoch, the connections stand
    StagingPool staging_;
    HeapReader heaps_;  ///< kept over memberships: the same peers' memory is mapped once
    std::unique_ptr<PeerMesh> mesh_;
    std::unique_ptr<Rounds> rounds_;
    AllReduceContext work_;
    std::unique_ptr<AllReduce> direct_, ring_, hierarchical_;
    Rounds::Totals base_;
    std::vector<MonoNs> waitsBefore_;
    AdaptiveTimeout timeout_;
    std::atomic<uint64_t> progress_{0};

    mutable Mutex mutex_;
    ExchangeKey key_ ABSL_GUARDED_BY(mutex_){0, 0, 0, 0};
    std::optional<ExchangeKey> abortedUpTo_ ABSL_GUARDED_BY(mutex_);
    std::string abortReason_ ABSL_GUARDED_BY(mutex_);
    std::vector<FailedPeer> failed_ ABSL_GUARDED_BY(mutex_);
    ExchangeStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exchange>> makeExchange(ExchangeOptions options) {
    if (options.clock == nullptr)
        return absl::InvalidArgumentError("ExchangeOptions.clock is null");
    if (options.chunkBytes == 0 || options.chunkBytes > kMaxChunkBytes)
        return absl::InvalidArgumentError(
            absl::StrCat("chunkBytes = ", options.chunkBytes, ", expected 1 to ", kMaxChunkBytes));
    if (options.chunksInFlight == 0)
        return absl::InvalidArgumentError("chunksInFlight must be at least 1");
    options.roundBytes = options.roundBytes / sizeof(float) * sizeof(float);
    if (options.roundBytes == 0 || options.roundBytes > (size_t{1} << 30))
        return absl::InvalidArgumentError("roundBytes must be 4 bytes to 1 GiB");
    options.directBytes = options.directBytes / sizeof(float) * sizeof(float);
    if (options.directBytes == 0) return absl::InvalidArgumentError("directBytes is below 4");
    auto exchange = std::make_unique<MeshExchange>(std::move(options));
    if (!exchange->usable()) return absl::InternalError("the kernel gave no eventfd");
    return exchange;
}

}  // namespace bulkhead::runtime
