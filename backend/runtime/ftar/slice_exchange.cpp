// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/ftar/adaptive_timeout.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/ftar/reduction.h"
#include "backend/runtime/transport/rounds.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kSliceAlign = 16;       // floats: one cache line
constexpr size_t kSumPart = 256u << 10;  // floats: far less than the 10 ms an abort may take

/// Where member `index` of `members` owns [first, second) of `count` elements.
std::pair<size_t, size_t> sliceOf(size_t index, size_t members, size_t count) {
    const size_t each = (count + members - 1) / members;
    const size_t width = (each + kSliceAlign - 1) / kSliceAlign * kSliceAlign;
    return {std::min(count, index * width), std::min(count, (index + 1) * width)};
}

double milliseconds(MonoNs ns) {
    return static_cast<double>(ns) / static_cast<double>(kMillisecond);
}

/// Slice owners: each member sums its slice of a piece out of everybody's input in ascending order
/// of replicas, then everybody takes the finished slices. Every element is thus finished in one
/// place and copied out, whatever carries it.
class SliceExchange final : public Exchange {
  public:
    explicit SliceExchange(ExchangeOptions options) : options_(std::move(options)) {
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
            return absl::OkStatus();
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
        const bool direct = directly();
        if (status.ok() && direct) status = checkHeap(input, output);
        const size_t most = (direct ? options_.directBytes : options_.roundBytes) / sizeof(float);
        for (size_t at = 0; status.ok() && at < input.size(); at += most) {
            const size_t n = std::min(most, input.size() - at);
            status = reducePiece(bucket, input.subspan(at, n), output.subspan(at, n));
        }
        finish(start, status);
        return status;
    }

    void abort(const ExchangeKey& upTo, std::string_view reason) override {
        const std::lock_guard lock(mutex_);
        if (key_ <= upTo) abort_.raise(absl::AbortedError(std::string(reason)));
        if (abortedUpTo_ && upTo <= *abortedUpTo_) return;
        abortedUpTo_ = upTo;
        abortReason_ = std::string(reason);
    }

    uint64_t progress() const override { return progress_.load(std::memory_order_relaxed); }

    std::vector<FailedPeer> failedPeers() const override {
        const std::lock_guard lock(mutex_);
        return failed_;
    }

    ExchangeStats stats() const override {
        const std::lock_guard lock(mutex_);
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
        const std::lock_guard lock(mutex_);
        failed_.clear();
        stats_ = {};
        if (key < key_)
            return absl::InvalidArgumentError("an exchange older than the last one was configured");
        key_ = key;
        if (abortedUpTo_ && key <= *abortedUpTo_) {
            ready_ = false;
            return absl::AbortedError(abortReason_);
        }
        abort_.clear();
        return absl::OkStatus();
    }

    bool canKeep(const ExchangeGroup& next) const {
        if (next.key == group_.key && next.peers == group_.peers) return true;
        return next.key.attempt == 1 && next.key.term == group_.key.term &&
               next.key.epoch == group_.key.epoch && next.token == group_.token &&
               next.peers == group_.peers && next.self == group_.self &&
               next.transport == group_.transport;
    }

    /// From here on stats() counts.
    void startCounting() {
        base_ = rounds_->totals();
        waitsBefore_.assign(rounds_->waits().begin(), rounds_->waits().end());
    }

    absl::Status build() {
        MeshSpec spec;
        spec.group = absl::StrCat(options_.job, "/shard ", options_.shard);
        spec.identity.token = group_.token;
        spec.identity.term = group_.key.term;
        spec.identity.epoch = group_.key.epoch;
        spec.identity.step = group_.key.step;
        spec.identity.attempt = group_.key.attempt;
        spec.self = static_cast<size_t>(group_.self);
        for (const ExchangePeer& p : group_.peers)
            spec.peers.push_back({p.replica, p.incarnation, p.host, p.data, p.shm});
        spec.choice = group_.transport;
        spec.slotBytes = options_.roundBytes + kMaxMembers * sizeof(float) * kSliceAlign;
        spec.heap = options_.heap;
        spec.chunkBytes = options_.chunkBytes;
        spec.chunksInFlight = options_.chunksInFlight;
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
        rounds_.reset();
        mesh_ = std::move(*mesh);
        rounds_ = std::make_unique<Rounds>(*mesh_, context_);
        forgetOldHeaps();
        startCounting();
        const std::lock_guard lock(mutex_);
        if (mesh_->last() != mesh_->self())
            stats_.connectedLast = group_.peers[mesh_->last()].replica;
        return absl::OkStatus();
    }

    /// Everybody reads everybody's memory: no piece has to fit into a slot.
    bool directly() const {
        if (options_.heap == nullptr) return false;
        for (size_t i = 0; i < mesh_->size(); ++i)
            if (mesh_->tcp(i) != nullptr) return false;
        return true;
    }

    absl::Status checkHeap(std::span<const float> input, std::span<float> output) const {
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

    absl::Status reducePiece(uint32_t bucket, std::span<const float> in, std::span<float> out) {
        const size_t members = mesh_->size();
        const size_t self = mesh_->self();
        const RoundTag tag{group_.key.step, group_.key.attempt, bucket};
        std::vector<Rounds::Give> give(members);
        std::vector<Rounds::Get> get(members);
        const auto [mineBegin, mineEnd] = sliceOf(self, members, in.size());
        for (size_t i = 0; i < members; ++i) {
            const auto [begin, end] = sliceOf(i, members, in.size());
            give[i].bytes = std::as_bytes(in.subspan(begin, end - begin));
            get[i] = {(mineEnd - mineBegin) * sizeof(float), nullptr};
        }
        if (absl::Status s = round(tag, give, get); !s.ok()) return s;

        std::vector<const float*> sources(members);
        for (size_t i = 0; i < members; ++i)
            sources[i] = i == self ? in.data() + mineBegin
                                   : reinterpret_cast<const float*>(rounds_->got(i).data());
        if (absl::Status s = sum(std::move(sources), out.subspan(mineBegin, mineEnd - mineBegin));
            !s.ok())
            return s;

        for (size_t i = 0; i < members; ++i) {
            const auto [begin, end] = sliceOf(i, members, in.size());
            give[i].bytes = std::as_bytes(out.subspan(mineBegin, mineEnd - mineBegin));
            get[i] = {(end - begin) * sizeof(float),
                      reinterpret_cast<std::byte*>(out.data() + begin)};
        }
        return round(tag, give, get);
    }

    /// In parts, so that an abort ends a long sum too.
    absl::Status sum(std::vector<const float*> sources, std::span<float> out) const {
        for (size_t at = 0; at < out.size(); at += kSumPart) {
            if (at > 0 && abort_.raised()) return abort_.why();
            const size_t n = std::min(kSumPart, out.size() - at);
            sumInOrder(sources, out.data() + at, n);
            for (const float*& source : sources) source += n;
        }
        return absl::OkStatus();
    }

    absl::Status round(const RoundTag& tag, std::span<const Rounds::Give> give,
                       std::span<const Rounds::Get> get) {
        absl::Status status = rounds_->run(tag, give, get, timeout_.current());
        if (status.ok()) timeout_.observe(rounds_->lastWait());
        return status;
    }

    void finish(MonoNs start, const absl::Status& status) {
        if (!status.ok()) {
            ready_ = false;
            recordFailures(rounds_->failures());
        }
        const Rounds::Totals& now = rounds_->totals();
        const std::lock_guard lock(mutex_);
        if (status.ok()) ++stats_.buckets;
        stats_.bytesSent = now.bytesSent - base_.bytesSent;
        stats_.bytesReceived = now.bytesReceived - base_.bytesReceived;
        stats_.staleFrames = now.staleFrames - base_.staleFrames;
        stats_.wallMs += milliseconds(options_.clock->now() - start);
        for (size_t i = 0; i < waitsBefore_.size(); ++i) {
            const double waited = milliseconds(rounds_->waits()[i] - waitsBefore_[i]);
            if (waited <= stats_.waitedMs) continue;
            stats_.waitedMs = waited;
            stats_.waitedOn = group_.peers[i].replica;
        }
    }

    void recordFailures(const std::vector<MeshFailure>& failures) {
        const std::lock_guard lock(mutex_);
        for (const MeshFailure& f : failures)
            failed_.push_back(
                {group_.peers[f.peer].replica, static_cast<PeerFault>(f.fault), f.detail});
    }

    const ExchangeOptions options_;
    MeshContext context_;
    AbortSignal abort_;
    ExchangeGroup group_;
    bool ready_ = false;
    HeapReader heaps_;  ///< kept over memberships: the same peers' memory is mapped once
    std::unique_ptr<PeerMesh> mesh_;
    std::unique_ptr<Rounds> rounds_;
    Rounds::Totals base_;
    std::vector<MonoNs> waitsBefore_;
    AdaptiveTimeout timeout_;
    std::atomic<uint64_t> progress_{0};

    mutable std::mutex mutex_;
    ExchangeKey key_{0, 0, 0, 0};  // guarded by mutex_, as all below
    std::optional<ExchangeKey> abortedUpTo_;
    std::string abortReason_;
    std::vector<FailedPeer> failed_;
    ExchangeStats stats_;
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
    auto exchange = std::make_unique<SliceExchange>(std::move(options));
    if (!exchange->usable()) return absl::InternalError("the kernel gave no eventfd");
    return exchange;
}

}  // namespace bulkhead::runtime
