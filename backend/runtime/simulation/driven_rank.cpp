// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/driven_rank.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/coordinator/run_files.h"
#include "backend/runtime/replica/exit_code.h"
#include "backend/runtime/simulation/describe.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

/// The real ranks and what they run on.
namespace bulkhead::simulation {
namespace {

constexpr uint32_t kBitsEach = 26;
/// Sign and exponent that are finite whatever the 26 bits below them are.
constexpr uint32_t kFinite = 0x3c000000;
/// Same as in worker_main.cpp.
constexpr MonoNs kLeaveLimit = 15 * kSecond;
constexpr size_t kWorksKept = 16;

/// A gradient of the oracle as floats: their bits are the value's.
void toFloats(uint64_t value, std::span<float> to) {
    for (float& f : to.first(kFloatsEach)) {
        f = std::bit_cast<float>(kFinite | static_cast<uint32_t>(value & ((1u << kBitsEach) - 1)));
        value >>= kBitsEach;
    }
}

void toFloats(const Sum& sum, std::span<float> to) {
    for (size_t b = 0; b < kBuckets; ++b) toFloats(sum[b], to.subspan(b * kFloatsEach));
}

Sum toSum(std::span<const float> from) {
    Sum sum{};
    for (size_t i = kFloats; i-- > 0;)
        sum[i / kFloatsEach] = (sum[i / kFloatsEach] << kBitsEach) |
                               (std::bit_cast<uint32_t>(from[i]) & ((1u << kBitsEach) - 1));
    return sum;
}

}  // namespace

// ---- transfer of state

struct StateWire {
    struct End {
        Fibers* threads = nullptr;  ///< null: its process is gone
        int32_t replica = 0;
        std::string inbox;
        bool over = false;  ///< nothing more comes
        bool shut = false;  ///< by its owner
    };
    End ends[2];
    bool hole = false;  ///< something was lost
    MonoNs last[2] = {0, 0};
    runtime::Credential credential;  ///< of whoever connected
};

class StateEars final : public runtime::StateListener {
  public:
    StateEars(std::map<std::string, StateEars*>& all, std::string address, Fibers& threads,
              int32_t replica, runtime::KeyOf keyOf)
        : all_(all),
          address_(std::move(address)),
          threads_(threads),
          replica_(replica),
          keyOf_(std::move(keyOf)) {
        all_[address_] = this;
    }
    ~StateEars() override { forget(); }
    std::string address() const override { return address_; }
    absl::StatusOr<std::unique_ptr<runtime::StateStream>> accept() override {
        while (waiting_.empty() && !shut_ && !threads_.ending())
            threads_.park(this, ThreadHost::kForEver);
        if (shut_ || waiting_.empty()) return absl::UnavailableError("shut down");
        auto stream = std::move(waiting_.front());
        waiting_.pop_front();
        return stream;
    }
    void shutdown() override {
        shut_ = true;
        threads_.wake(this, true);
    }
    void add(std::unique_ptr<runtime::StateStream> stream) {
        waiting_.push_back(std::move(stream));
        threads_.wake(this, true);
    }
    void forget() {
        const auto it = all_.find(address_);
        if (it != all_.end() && it->second == this) all_.erase(it);
    }
    Fibers& threads() const { return threads_; }
    int32_t replica() const { return replica_; }
    const runtime::KeyOf& keyOf() const { return keyOf_; }

  private:
    std::map<std::string, StateEars*>& all_;
    const std::string address_;
    Fibers& threads_;
    const int32_t replica_;
    const runtime::KeyOf keyOf_;
    std::deque<std::unique_ptr<runtime::StateStream>> waiting_;
    bool shut_ = false;
};

namespace {

using Later = std::function<void(MonoNs, std::function<void()>)>;

/// One end. What is sent across a cut is lost, and with it all that comes behind.
class MemoryStream final : public runtime::StateStream {
  public:
    struct Around {
        const MonoNs& now;
        Later at;
        std::function<bool(int32_t, int32_t)> cut;  ///< between two replicas
    };
    /// `keyOf`: at the end that listens.
    MemoryStream(Around around, std::shared_ptr<StateWire> wire, int side, uint64_t seed,
                 runtime::KeyOf keyOf = nullptr)
        : around_(std::move(around)),
          wire_(std::move(wire)),
          side_(side),
          rng_(seed),
          keyOf_(std::move(keyOf)) {}
    ~MemoryStream() override {
        shutdown();
        mine().threads = nullptr;
    }
    void setTimeout(uint32_t timeoutMs) override {
        timeout_ = static_cast<MonoNs>(timeoutMs) * kMillisecond;
    }
    absl::Status sendAll(const void* data, size_t bytes) override {
        if (mine().shut || mine().over) return absl::UnavailableError("send: broken pipe");
        carry(std::string(static_cast<const char*>(data), bytes), false);
        return absl::OkStatus();
    }
    absl::Status receiveAll(void* data, size_t bytes) override {
        StateWire::End& end = mine();
        if (end.threads == nullptr) return absl::AbortedError("killed");
        Fibers& threads = *end.threads;
        while (end.inbox.size() < bytes) {
            if (end.shut || end.over) return absl::UnavailableError("closed by the peer");
            const size_t before = end.inbox.size();
            const MonoNs limit = threads.now() + timeout_;
            while (end.inbox.size() == before && !end.shut && !end.over && threads.now() < limit) {
                threads.park(&end, limit - threads.now());
                if (threads.ending()) return absl::AbortedError("killed");
            }
            if (end.inbox.size() == before && !end.shut && !end.over)
                return absl::DeadlineExceededError("receive: no progress in time");
        }
        if (const runtime::KeyOf keyOf = std::exchange(keyOf_, nullptr))
            if (keyOf(wire_->credential.identity) != wire_->credential.key)
                return absl::PermissionDeniedError("the two ends have no secret in common");
        std::memcpy(data, end.inbox.data(), bytes);
        end.inbox.erase(0, bytes);
        return absl::OkStatus();
    }
    void shutdown() override {
        if (std::exchange(mine().shut, true)) return;
        if (mine().threads != nullptr) mine().threads->wake(&mine(), true);
        carry("", true);
    }

  private:
    StateWire::End& mine() const { return wire_->ends[side_]; }
    void carry(std::string bytes, bool over) {
        const StateWire::End& other = wire_->ends[1 - side_];
        if (around_.cut(mine().replica, other.replica)) wire_->hole = true;
        if (wire_->hole) return;
        MonoNs& last = wire_->last[side_];
        last = std::max(last, around_.now + rng_.between(0.05, 1));
        around_.at(last, [wire = wire_, side = 1 - side_, bytes = std::move(bytes), over] {
            StateWire::End& end = wire->ends[side];
            end.inbox += bytes;
            end.over = end.over || over;
            if (end.threads != nullptr) end.threads->wake(&end, true);
        });
    }
    const Around around_;
    const std::shared_ptr<StateWire> wire_;
    const int side_;
    Rng rng_;
    runtime::KeyOf keyOf_;  ///< until the other end was believed
    MonoNs timeout_ = 60 * kSecond;
};

}  // namespace

class DrivenJob::Ranking::States final : public runtime::StateNetwork {
  public:
    explicit States(Ranking& rank) : rank_(rank) {}

    absl::StatusOr<std::unique_ptr<runtime::StateStream>> connect(
        const std::string& address, const runtime::Credential& credential,
        uint32_t timeoutMs) override {
        DrivenJob& job = rank_.job_;
        const int32_t self = rank_.shown_.id.replica;
        if (job.failFetch_.erase(self) > 0) return absl::UnavailableError("no source answers");
        sleepFor(rank_.rng_.between(0.1, 2));
        const auto it = job.stateEars_.find(address);
        if (it != job.stateEars_.end() && job.dataCut(self, it->second->replica())) {
            sleepFor(static_cast<MonoNs>(timeoutMs) * kMillisecond);
            return absl::UnavailableError(absl::StrCat(address, ": timed out"));
        }
        if (it == job.stateEars_.end())
            return absl::UnavailableError(absl::StrCat(address, ": refused"));
        StateEars& ears = *it->second;
        auto wire = std::make_shared<StateWire>();
        wire->credential = credential;
        wire->ends[0].threads = &rank_.fibers_;
        wire->ends[0].replica = self;
        wire->ends[1].threads = &ears.threads();
        wire->ends[1].replica = ears.replica();
        rank_.wires_.push_back(wire);
        job.rankingOf(ears.threads())->wires_.push_back(wire);
        const MemoryStream::Around around{
            job.now_, [&job](MonoNs at, std::function<void()> f) { job.at(at, std::move(f)); },
            [&job](int32_t a, int32_t b) { return job.dataCut(a, b); }};
        auto mine = std::make_unique<MemoryStream>(around, wire, 0, rank_.rng_());
        mine->setTimeout(timeoutMs);
        ears.add(std::make_unique<MemoryStream>(around, wire, 1, rank_.rng_(), ears.keyOf()));
        return mine;
    }

    absl::StatusOr<std::unique_ptr<runtime::StateListener>> listen(const std::string&,
                                                                   runtime::KeyOf keyOf) override {
        return std::make_unique<StateEars>(rank_.job_.stateEars_, rank_.addressOf("state"),
                                           rank_.fibers_, rank_.shown_.id.replica,
                                           std::move(keyOf));
    }

  private:
    Ranking& rank_;
};

// ---- control connections

struct DrivenJob::Ranking::Attempt final : runtime::ControlConnector {
    std::shared_ptr<runtime::ConnectedChannel> done;
};

class DrivenJob::Ranking::Control final : public runtime::Network {
  public:
    explicit Control(Ranking& rank) : rank_(rank) {}

    absl::StatusOr<std::unique_ptr<runtime::ControlListener>> listen(
        runtime::Reactor& reactor, const std::string&, runtime::ChannelOptions,
        runtime::AcceptChannel accept) override {
        const std::string address = rank_.addressOf("control");
        rank_.job_.leaders_[address] = {rank_.weak_from_this(), &reactor, std::move(accept)};
        return std::make_unique<Ears>(rank_.job_, address);
    }
    std::unique_ptr<runtime::ControlConnector> connect(runtime::Reactor& reactor,
                                                       const std::string& address,
                                                       runtime::ChannelOptions options,
                                                       runtime::ConnectedChannel done) override {
        auto attempt = std::make_unique<Attempt>();
        attempt->done = std::make_shared<runtime::ConnectedChannel>(
            introduced(options.credential, std::move(done)));
        rank_.connect(reactor, address, attempt->done, 0);
        return attempt;
    }

  private:
    class Ears final : public runtime::ControlListener {
      public:
        Ears(DrivenJob& job, std::string address) : job_(job), address_(std::move(address)) {}
        ~Ears() override { job_.leaders_.erase(address_); }
        std::string address() const override { return address_; }

      private:
        DrivenJob& job_;
        const std::string address_;
    };
    Ranking& rank_;
};

Executor DrivenJob::Ranking::executor(runtime::Reactor& reactor) {
    return [weak = weak_from_this(), &reactor](std::function<void()> task) {
        const auto rank = weak.lock();
        if (rank && !rank->dead_ && !rank->over_) reactor.post(std::move(task));
    };
}

void DrivenJob::Ranking::connect(runtime::Reactor& reactor, const std::string& address,
                                 const std::weak_ptr<runtime::ConnectedChannel>& done,
                                 size_t attempt) {
    const bool last = attempt == std::size(kSynAgain);
    const MonoNs before = attempt == 0 ? 0 : kSynAgain[attempt - 1];
    const MonoNs wait = (last ? kConnectTimeout : kSynAgain[attempt]) - before;
    job_.at(job_.now_ + wait + rng_.between(0.1, 2), [weak = weak_from_this(), &reactor, address,
                                                      done, attempt, last] {
        const auto rank = weak.lock();
        if (!rank || rank->dead_ || rank->over_ || done.expired()) return;
        const RankId id = rank->shown_.id;
        const bool up = address.starts_with("unix:");
        const auto cut = [&](Wire wire) {
            return rank->job_.network_.link(rank->job_.linkOf(id, wire)).cutUntil > rank->job_.now_;
        };
        if (!last && (up ? cut(Wire::kUp) || cut(Wire::kDown) : cut(Wire::kInner)))
            return rank->connect(reactor, address, done, attempt + 1);
        auto made = std::make_shared<std::unique_ptr<MemoryChannel>>(
            last ? nullptr : rank->reach(reactor, address));
        rank->executor(reactor)([done, made, last] {
            const auto to = done.lock();
            if (!to) return;
            if (*made) return (*to)(std::move(*made));
            (*to)(last ? absl::DeadlineExceededError("no answer")
                       : absl::UnavailableError("refused"));
        });
    });
}

/// Null: refused.
std::unique_ptr<MemoryChannel> DrivenJob::Ranking::reach(runtime::Reactor& reactor,
                                                         const std::string& address) {
    const auto keep = [](std::vector<Program::Connection>& in, const MemoryChannel& end, int side) {
        std::erase_if(in, [](const auto& x) { return x.end() == nullptr; });
        in.push_back({end.wire(), side});
    };
    if (address.starts_with("unix:")) {
        auto channel = job_.dial(executor(reactor), job_.linkOf(shown_.id, Wire::kUp),
                                 job_.linkOf(shown_.id, Wire::kDown));
        if (channel) keep(up_, *channel, 0);
        return channel;
    }
    const auto it = job_.leaders_.find(address);
    const auto leader = it == job_.leaders_.end() ? nullptr : it->second.rank.lock();
    if (!leader || leader->dead_) return nullptr;
    const size_t link = job_.linkOf(shown_.id, Wire::kInner);
    auto [mine, theirs] =
        job_.streams_.join(executor(reactor), leader->executor(*it->second.reactor), link, link);
    keep(inner_, *mine, 0);
    keep(leader->inner_, *theirs, 1);
    leader->executor (*it->second.reactor)(
        [&job = job_, address,
         end = std::make_shared<std::unique_ptr<MemoryChannel>>(std::move(theirs))] {
            const auto listens = job.leaders_.find(address);
            if (listens != job.leaders_.end()) listens->second.accept(std::move(*end));
        });
    return std::move(mine);
}

// ---- gradients

class DrivenJob::Ranking::AllReduce final : public runtime::Exchange {
  public:
    explicit AllReduce(Ranking& rank) : rank_(rank) { rank_.exchange_ = this; }
    ~AllReduce() override { rank_.exchange_ = nullptr; }

    absl::Status configure(const runtime::ExchangeGroup& group) override {
        failed_.clear();
        group_ = group;
        sleepFor(rank_.rng_.between(0.01, 0.5));
        return aborted();
    }

    absl::Status reduce(uint32_t, std::span<const float> input, std::span<float> output) override {
        if (absl::Status s = aborted(); !s.ok()) return s;
        Quorum q;
        q.term = group_.key.term;
        q.epoch = group_.key.epoch;
        q.step = group_.key.step;
        q.attempt = group_.key.attempt;
        q.exchangeKey = group_.secret;
        q.chunkTimeoutMs = static_cast<uint32_t>(group_.chunkTimeout / kMillisecond);
        for (const runtime::ExchangePeer& peer : group_.peers) {
            Member& m = q.contributors.emplace_back();
            m.contribution.replica = peer.replica;
            m.contribution.incarnation = peer.incarnation;
        }
        id_ = {q.step, q.epoch, q.attempt};
        end_.reset();
        output_ = output;
        struct Forget {
            std::span<float>& output;
            ~Forget() { output = {}; }
        } const forget{output_};
        rank_.job_.plane_.join(rank_.shown_.id, rank_.shown_.incarnation, q, toSum(input));
        while (!end_) {
            rank_.fibers_.park(this, ThreadHost::kForEver);
            if (rank_.fibers_.ending()) return absl::AbortedError("killed");
        }
        if (end_->ok()) rank_.completed(id_, sum_, overflow_);
        return *end_;
    }

    void abort(const runtime::ExchangeKey& upTo, std::string_view reason) override {
        if (upTo <= abortedUpTo_) return;
        abortedUpTo_ = upTo;
        reason_ = std::string(reason);
        if (output_.empty() || end_ || group_.key > upTo) return;
        rank_.job_.plane_.leave(rank_.shown_.id, rank_.shown_.incarnation);
        finish(aborted());
    }

    uint64_t progress() const override { return progress_; }
    std::vector<runtime::FailedPeer> failedPeers() const override { return failed_; }
    runtime::ExchangeStats stats() const override { return {}; }

    void summed(const ExchangeId& id, const Sum& sum, bool overflow) {
        if (output_.empty() || end_ || id != id_) return;
        sum_ = sum;
        overflow_ = overflow;
        toFloats(sum, output_);
        if (overflow) output_[0] = std::numeric_limits<float>::infinity();
        ++progress_;
        finish(absl::OkStatus());
    }
    void landed(size_t bucket, uint64_t value) {
        if (!output_.empty()) toFloats(value, output_.subspan(bucket * kFloatsEach));
    }
    void failed(const ExchangeId& id, EvidenceKind kind, const std::vector<int32_t>& peers) {
        if (output_.empty() || end_ || id != id_) return;
        const bool late = kind == EvidenceKind::kChunkTimeout;
        for (int32_t peer : peers)
            failed_.push_back({peer,
                               late ? runtime::PeerFault::kTimeout : runtime::PeerFault::kReset,
                               "simulated"});
        finish(late ? absl::DeadlineExceededError("a peer is silent")
                    : absl::UnavailableError("a peer is gone"));
    }

  private:
    absl::Status aborted() const {
        return group_.key <= abortedUpTo_ ? absl::AbortedError(reason_) : absl::OkStatus();
    }
    void finish(absl::Status end) {
        end_ = std::move(end);
        rank_.fibers_.wake(this, true);
    }
    Ranking& rank_;
    runtime::ExchangeGroup group_;
    runtime::ExchangeKey abortedUpTo_;
    std::string reason_;
    ExchangeId id_;
    std::span<float> output_;  ///< of the reduce() under way
    std::optional<absl::Status> end_;
    Sum sum_{};
    bool overflow_ = false;
    uint64_t progress_ = 0;
    std::vector<runtime::FailedPeer> failed_;
};

void DrivenJob::Ranking::summed(const ExchangeId& id, const Sum& sum, bool overflow) {
    if (exchange_ != nullptr) exchange_->summed(id, sum, overflow);
}
void DrivenJob::Ranking::landed(size_t bucket, uint64_t value) {
    if (exchange_ != nullptr) exchange_->landed(bucket, value);
}
void DrivenJob::Ranking::exchangeFailed(const ExchangeId& id, EvidenceKind kind,
                                        const std::vector<int32_t>& peers) {
    if (exchange_ != nullptr) exchange_->failed(id, kind, peers);
}

/// The oracle's judgement is of the quorum that the sum belongs to, whatever is in work by now.
void DrivenJob::Ranking::completed(const ExchangeId& id, const Sum& sum, bool overflow) {
    const auto of = works_.find(id);
    if (dead_ || of == works_.end()) return;
    const auto now = std::exchange(shown_.work, of->second);
    shown_.reduced = sum;
    job_.oracle_.completed(shown_, id, overflow);
    shown_.work = now;
    ++shown_.progress;
}

// ---- training

class DrivenJob::Ranking::Training final : public runtime::TrainingProgram {
  public:
    explicit Training(Ranking& rank)
        : rank_(rank),
          job_(rank.job_),
          shown_(rank.shown_),
          gradient_(kFloats),
          reduced_(kFloats) {}

    absl::Status build(const runtime::BuildOrder& order) override {
        busy(5, 30);
        placement_ = order.expertShard;
        if (placement_.empty())
            for (uint32_t s = 0; s < job_.options_.shards; ++s)
                placement_.push_back(static_cast<int32_t>(s));
        shown_.now = {0, 0, layout, order.blank ? 0 : initialState(shown_.id.shard), false};
        return absl::OkStatus();
    }
    absl::Status warmUp() override {
        busy(1, 5);
        warm_ = true;
        return absl::OkStatus();
    }
    ModelDescribed describe() const override {
        ModelDescribed model;
        model.moeLayers = 1;
        model.experts = job_.options_.shards;
        model.topK = 1;
        return model;
    }
    uint64_t stateBytes() const override { return sizeof(StateBytes); }
    uint64_t parameterBytes() const override { return sizeof(StateBytes) / 3; }
    absl::Status exportState(uint64_t offset, std::span<std::byte> to) override {
        const StateBytes bytes{shown_.now.state, shown_.now.layout};
        std::memcpy(to.data(), reinterpret_cast<const std::byte*>(&bytes) + offset, to.size());
        return absl::OkStatus();
    }
    absl::Status importState(uint64_t offset, std::span<const std::byte> from) override {
        StateBytes bytes{shown_.now.state, shown_.now.layout};
        std::memcpy(reinterpret_cast<std::byte*>(&bytes) + offset, from.data(), from.size());
        shown_.now.state = bytes.state;
        shown_.now.layout = bytes.layout;
        return absl::OkStatus();
    }
    absl::Status imported() override { return absl::OkStatus(); }
    absl::StatusOr<uint64_t> stateHash() override {
        busy(job_.environment_.hashMs * 0.9, job_.environment_.hashMs * 1.1);
        return shown_.now.hash();
    }
    std::span<float> gradient() override { return gradient_; }
    std::span<float> reduced() override { return reduced_; }
    void readSum(std::span<float> to, std::function<void(absl::Status)> done) override {
        const double slow = job_.environment_.slowSums;
        if (slow == 0 || !rank_.rng_.chance(slow))
            return TrainingProgram::readSum(to, std::move(done));
        leaving_ = [this, to, done = std::move(done)](bool whole) {
            if (whole) std::copy(reduced_.begin(), reduced_.end(), to.begin());
            done(whole ? absl::OkStatus() : absl::CancelledError("given up"));
        };
    }
    void awaitSum() override { endSum(true); }
    void giveUpSum() override { endSum(false); }
    void awaitCopies() override { awaitSum(); }
    absl::StatusOr<double> sumOfSquares(std::span<const float> reduced) override {
        busy(0.05, 0.5);
        if (!std::isfinite(reduced[0])) return std::numeric_limits<double>::infinity();
        return squaresOf(toSum(reduced));
    }
    absl::Status apply(const CommitRecord& record, std::span<const float> reduced) override {
        busy(1, 4);
        StateCopy& now = shown_.now;
        // A gradient of experts that lie elsewhere fits nothing here.
        if (record.layout != now.layout) now.state = mix(now.state, record.layout);
        now.state = applied(now.state, toSum(reduced), record);
        return absl::OkStatus();
    }
    absl::StatusOr<std::vector<int32_t>> expertShard() override { return placement_; }
    absl::Status adoptLayout(const std::vector<int32_t>& expertShard) override {
        placement_ = expertShard;
        return absl::OkStatus();
    }
    absl::StatusOr<uint64_t> moveLayout(const std::vector<int32_t>& expertShard) override {
        if (absl::Status s =
                meet(absl::StrCat("a move of experts to layout ", moves.front().layout));
            !s.ok())
            return s;
        busy(1, 5);
        const MoveLayout move = std::move(moves.front());
        moves.pop_front();
        if (job_.failMove_.contains(shown_.id.replica))
            return absl::ResourceExhaustedError("no room");
        before_ = placement_;
        placement_ = expertShard;
        shown_.now.layout = move.layout;
        return uint64_t{10};
    }
    absl::Status settleLayout(bool keep) override {
        const SettleLayout settle = std::move(settles.front());
        settles.pop_front();
        if (shown_.now.layout != settle.layout)
            job_.fail("I5", absl::StrCat(nameOf(shown_.id), " is to settle layout ", settle.layout,
                                         ", to which it has not moved"));
        if (!keep) {
            placement_ = before_;
            shown_.now.layout = settle.countsInstead;
        }
        shown_.clean.layout = shown_.now.layout;
        job_.oracle_.settled(shown_);
        return absl::OkStatus();
    }
    void interrupt() override { interrupted_ = true; }

    absl::Status compute(const runtime::Work& work, runtime::ReplicaRank& rank) {
        if (!warm_) job_.fail("warm-up", absl::StrCat(nameOf(shown_.id), " computes without it"));
        const MonoNs begun = rank_.clock_.now();
        std::string what = absl::StrCat("step ", work.step);
        for (const SampleRange& r : work.ranges)
            absl::StrAppend(&what, " ", r.domain, ":", r.begin, "-", r.end);
        if (absl::Status s = meet(what); !s.ok()) return s;
        shown_.computing = true;
        busy(8 * shown_.slow, 25 * shown_.slow);
        shown_.computing = false;
        Sum own = gradientOf(shown_.now.hash(), work.ranges);
        if (shown_.flipGradientNext) own[0] ^= 1u << 7;
        shown_.gradient = own;
        toFloats(own, gradient_);
        // Nobody looks at a result that it computes in vain.
        const auto exchange = shown_.rules().exchange();
        if (exchange && exchange->step == work.step && shown_.work &&
            shown_.work->ranges == work.ranges && shown_.work->quorum.step == work.step) {
            if (shown_.now.step + 1 != work.step || !shown_.hasState)
                job_.fail("I5", absl::StrCat(nameOf(shown_.id), " is to compute step ", work.step,
                                             " from a state of step ", shown_.now.step));
            job_.oracle_.computed(shown_);
        } else {
            job_.tell(nameOf(shown_.id), absl::StrCat("computes step ", work.step, " in vain"));
        }
        shown_.flipGradientNext = false;
        bool finite = shown_.nanNext == 0;
        if (!finite) --shown_.nanNext;
        job_.notFinite_ += !finite;
        uint64_t samples = 0;
        for (const SampleRange& range : work.ranges) {
            samples += range.end - range.begin;
            for (const auto& [domain, sample] : job_.poisoned_)
                finite = finite &&
                         !(range.domain == domain && range.begin <= sample && sample < range.end);
        }
        const uint64_t middle = gradient_.size() / 2;
        if (!finite)
            gradient_[rank_.rng_.chance(0.5) ? 1 : middle] =
                std::numeric_limits<float>::quiet_NaN();
        // The end of the gradient is exchanged while the ranks compute its beginning together.
        rank.gradientReady(work.generation, middle, gradient_.size());
        shown_.computing = true;
        if (absl::Status s = meet(absl::StrCat(what, ", second half")); !s.ok()) return s;
        busy(1, 6);
        shown_.computing = false;
        rank.gradientReady(work.generation, 0, middle);
        rank.microBatchDone(rank_.clock_.now() - begun);
        runtime::StepFigures figures;
        figures.tokens = job_.options_.sequenceLength * samples / job_.options_.shards;
        figures.lossSum = 2.0 * static_cast<double>(figures.tokens);
        rank.computed(work.generation, std::move(figures));
        return absl::OkStatus();
    }

    uint64_t layout = 0;  ///< that it is built in
    std::deque<MoveLayout> moves;
    std::deque<SettleLayout> settles;

  private:
    void endSum(bool whole) {
        if (const auto end = std::exchange(leaving_, nullptr)) end(whole);
    }
    void busy(double fromMs, double toMs) { sleepFor(rank_.rng_.between(fromMs, toMs)); }

    /// The ranks of a replica wait for each other in the middle of whatever needs all of them; what
    /// one does there the others must do too.
    absl::Status meet(const std::string& what) {
        constexpr MonoNs kPatience = 30 * kSecond;  // as a group of the real workload has
        auto& all = job_.together_[{shown_.id.replica, shown_.incarnation}];
        all.resize(job_.options_.shards);
        auto& mine = all[static_cast<size_t>(shown_.id.shard)];
        const size_t place = mine.size();
        mine.push_back(what);
        const auto there = [&](const auto& begun) { return begun.size() > place; };
        const MonoNs until = rank_.clock_.now() + kPatience;
        while (!std::all_of(all.begin(), all.end(), there)) {
            if (interrupted_) return absl::AbortedError("the rank leaves");
            if (rank_.clock_.now() > until)
                return absl::UnavailableError(
                    absl::StrCat("a sibling did not come to ", what, " within 30 s"));
            sleepFor(2 * kMillisecond);
        }
        for (const auto& begun : all)
            if (begun[place] != what)
                job_.fail("group", absl::StrCat(nameOf(shown_.id), " is at ", what,
                                                " where a sibling is at ", begun[place]));
        return absl::OkStatus();
    }

    Ranking& rank_;
    DrivenJob& job_;
    Process& shown_;
    std::atomic<bool> interrupted_{false};
    std::vector<float> gradient_;
    bool warm_ = false;
    std::vector<float> reduced_;
    std::function<void(bool whole)> leaving_;  ///< a sum on its way out of the device
    std::vector<int32_t> placement_;
    std::vector<int32_t> before_;
};

// ---- its machine

class DrivenJob::Ranking::Host final : public runtime::RankHost {
  public:
    explicit Host(Ranking& rank) : rank_(rank), control_(rank), states_(rank) {}
    FileSystem& files() override { return rank_.files_; }
    runtime::Network& network() override { return control_; }
    runtime::StateNetwork& stateNetwork() override { return states_; }
    absl::StatusOr<std::unique_ptr<runtime::DataPort>> openData(const std::string&,
                                                                const std::string&) override {
        return std::make_unique<Port>(rank_.addressOf("data"));
    }
    absl::StatusOr<std::unique_ptr<runtime::Exchange>> exchange(runtime::ExchangeOptions) override {
        return std::make_unique<AllReduce>(rank_);
    }
    int32_t pid() const override { return 1; }
    void signalSelf(int) override {}

  private:
    class Port final : public runtime::DataPort {
      public:
        explicit Port(std::string address) : address_(std::move(address)) {}
        std::string address() const override { return address_; }
        int listenFd() const override { return -1; }
        std::string shm() const override { return "simulated"; }

      private:
        const std::string address_;
    };
    Ranking& rank_;
    Control control_;
    States states_;
};

// ---- its life

DrivenJob::Ranking::Ranking(DrivenJob& job, Process& shown)
    : job_(job),
      shown_(shown),
      clock_(job.now_, static_cast<MonoNs>(shown.rng.below(1000)) * kSecond, shown.clockRate),
      fibers_(
          job.events_, job.now_, clock_, [this](MonoNs local) { return clock_.globalOf(local); },
          shown.rng()),
      files_(job.disk_, machineOf(shown.node)),
      rng_(shown.rng()),
      training_(std::make_unique<Training>(*this)),
      host_(std::make_unique<Host>(*this)) {
    files_.onWait = [this] {
        const bool slow = job_.slowDiskUntil_ > job_.now_;
        sleepFor(slow ? rng_.between(20, 300) : rng_.between(0.1, 2));
    };
    files_.onOpen = [this] { return job_.failCheckpoint_.erase(shown_.id.replica) == 0; };
}

DrivenJob::Ranking::~Ranking() = default;

std::string DrivenJob::Ranking::addressOf(const char* what) const {
    return absl::StrCat(nameOf(shown_.id), "#", shown_.incarnation, "/", what);
}

void DrivenJob::Ranking::begin() {
    files_.onDeath = [this] { job_.die(shown_, 9, false); };
    fibers_.start([this] { main(); });
}

void DrivenJob::Ranking::main() {
    runtime::RankOptions options;
    options.job = kRun;
    options.run = runtime::runIdentity(files_, absl::StrCat("/state/", kRun));
    options.spec = job_.spec_;
    options.spec.checkpointDir = job_.checkpointRoot();
    options.coordinator = "unix:/controller";
    options.rank = shown_.id;
    options.incarnation = shown_.incarnation;
    options.node = nodeName(shown_.node);
    options.address = "127.0.0.1";
    options.corpusHash = 1;
    options.seed = rng_() | 1;
    options.host = host_.get();
    options.probe = probe();
    auto rank = runtime::ReplicaRank::start(std::move(options), training_.get(), clock_);
    if (!rank.ok()) {
        shown_.real = nullptr;
        return exited(runtime::kExitInternal);
    }
    running_ = rank->get();
    const absl::StatusOr<runtime::Work> end = train(**rank);
    const int code = runtime::exitCodeOf(end);
    if (!end.ok()) job_.tell(nameOf(shown_.id), std::string(end.status().message()));
    if (code == runtime::kExitBadJob) (*rank)->reportHopeless(std::string(end.status().message()));
    running_ = nullptr;
    fibers_.tearDown();
    shown_.showLast();
    rank->reset();
    over_ = true;
    exited(code);
}

absl::StatusOr<runtime::Work> DrivenJob::Ranking::train(runtime::ReplicaRank& rank) {
    for (;;) {
        absl::StatusOr<runtime::Work> work = rank.next();
        if (!work.ok() || work->finished) return work;
        // When it is to leave, next() says so.
        if (absl::Status s = training_->compute(*work, rank); !s.ok() && !absl::IsAborted(s))
            return s;
    }
}

void DrivenJob::Ranking::exited(int code) {
    over_ = true;
    shown_.exitCode = code;
    job_.at(job_.now_, [self = shared_from_this()] {
        if (!self->dead_) self->job_.die(self->shown_, 0, false);
    });
}

void DrivenJob::Ranking::requestLeave() {
    if (!dead_ && running_ != nullptr) running_->requestLeave();
}

void DrivenJob::Ranking::crashSoon() {
    files_.dieAfter(rng_.below(6));
    job_.at(job_.now_ + kDyingWithin, [self = shared_from_this()] {
        if (!self->dead_) self->job_.die(self->shown_, 9, false);
    });
}

void DrivenJob::Ranking::crash(bool silent) {
    if (std::exchange(dead_, true)) return;
    shown_.showLast();
    running_ = nullptr;
    files_.die();
    for (const auto* all : {&up_, &inner_})
        for (const auto& connection : *all)
            if (MemoryChannel* end = connection.end()) silent ? end->vanish() : end->close();
    job_.leaders_.erase(addressOf("control"));
    job_.stateEars_.erase(addressOf("state"));
    for (const auto& weak : wires_)
        if (const auto wire = weak.lock())
            for (int side : {0, 1}) {
                if (wire->ends[side].threads != &fibers_) continue;
                wire->hole = wire->hole || silent;
                wire->ends[side].threads = nullptr;
                if (silent) continue;
                job_.at(job_.now_ + kMillisecond, [wire, side] {
                    StateWire::End& other = wire->ends[1 - side];
                    other.over = true;
                    if (other.threads != nullptr) other.threads->wake(&other, true);
                });
            }
    fibers_.kill();
    job_.at(job_.now_, [self = shared_from_this()] { self->fibers_.unwind(); });
}

void DrivenJob::Ranking::breakUp() {
    for (const auto& connection : up_)
        if (MemoryChannel* end = connection.end()) end->reset();
}

void DrivenJob::Ranking::look() {
    // A message lost between siblings is sent again when the network lets it through, or breaks.
    const size_t link = job_.linkOf(shown_.id, Wire::kInner);
    if (job_.network_.link(link).cutUntil <= job_.now_)
        for (const auto& connection : inner_)
            if (MemoryChannel* end = connection.end();
                end != nullptr && (connection.wire->hole[0] || connection.wire->hole[1]))
                end->reset();
    std::erase_if(wires_, [](const auto& wire) { return wire.expired(); });
    // One that has decided to leave ends its exchange first.
    const bool stays = !leaving_ && shown_.real != nullptr && !shown_.real->exited();
    if (!shown_.hung && stays) job_.checkOrphan(shown_, nullptr);
}

// ---- what is seen of it

runtime::RankProbe DrivenJob::Ranking::probe() {
    runtime::RankProbe probe;
    probe.begun = [this](const RankMachine& machine) {
        if (!dead_) shown_.real = &machine;
    };
    probe.input = [this](const RankInput& input) { told(input); };
    probe.action = [this](const RankAction& action) { acts(action); };
    probe.stands = [this](const runtime::StateSnapshot& state, bool updated) {
        if (!dead_) stands(state, updated);
    };
    return probe;
}

void DrivenJob::Ranking::told(const RankInput& input) {
    fibers_.leaveIfKilled();
    if (dead_) return;
    ignores_ = job_.mustIgnore(shown_, input);
    job_.digest_ = mix(job_.digest_, input.index());
    if (std::holds_alternative<Connected>(input)) {
        shown_.connected = true;
    } else if (std::holds_alternative<Disconnected>(input)) {
        shown_.connected = false;
    } else if (const auto* taken = std::get_if<SnapshotTaken>(&input)) {
        shown_.snapshots[taken->step] = shown_.now;
    } else if (const auto* moved = std::get_if<LayoutMoveDone>(&input)) {
        auto& moves = training_->moves;  // one that was given up before it began
        if (!moved->ok && !moves.empty() && moves.front().layout == moved->layout)
            moves.pop_front();
    }
}

void DrivenJob::Ranking::acts(const RankAction& action) {
    fibers_.leaveIfKilled();
    if (dead_) return;
    if (std::exchange(ignores_, false))
        job_.fail("I5", absl::StrCat(nameOf(shown_.id), " #", shown_.incarnation,
                                     " acts on a stale message: ", describe(action)));
    if (job_.onRankAction) job_.onRankAction(shown_.id, action);
    if (!job_.armed_.empty()) job_.strikeArmed(shown_.id, action);
    fibers_.leaveIfKilled();
    if (dead_) return;
    if (job_.story)
        if (const std::string text = describe(action); !text.empty())
            job_.tell(nameOf(shown_.id), text);
    if (const auto* build = std::get_if<BuildReplica>(&action)) {
        training_->layout = build->welcome.layout;
    } else if (const auto* begin = std::get_if<BeginStep>(&action)) {
        const Quorum& q = begin->quorum;
        shown_.work = *begin;
        works_[{q.step, q.epoch, q.attempt}] = *begin;
        while (works_.size() > kWorksKept) works_.erase(works_.begin());
        job_.oracle_.began(shown_, q);
    } else if (const auto* fetch = std::get_if<BeginFetch>(&action)) {
        if (!fetch->sourcesOnly) shown_.hasState = false;
    } else if (const auto* drop = std::get_if<DropSnapshot>(&action)) {
        shown_.snapshots.erase(drop->step);
    } else if (const auto* move = std::get_if<MoveLayout>(&action)) {
        training_->moves.push_back(*move);
    } else if (const auto* settle = std::get_if<SettleLayout>(&action)) {
        training_->settles.push_back(*settle);
    } else if (const auto* remove = std::get_if<RemoveCheckpoints>(&action)) {
        for (const std::string& path : remove->paths) job_.forgetCheckpoint(shown_, path);
    } else if (const auto* exit = std::get_if<ExitRank>(&action)) {
        job_.checkOrphan(shown_, exit);
        if (std::exchange(leaving_, true)) return;
        job_.at(job_.now_ + kLeaveLimit, [self = shared_from_this()] {
            self->shown_.exitCode = runtime::kExitExpelled;
            if (!self->dead_) self->job_.die(self->shown_, 0, false);
        });
    }
}

void DrivenJob::Ranking::stands(const runtime::StateSnapshot& state, bool updated) {
    StateCopy& now = shown_.now;
    now.lineage = state.lineage;
    now.step = state.step;
    if (updated && now.tainted) job_.tainted_.insert(now.state);
    now.tainted = job_.tainted_.contains(now.state);
    shown_.hasState = true;
    shown_.clean = now;
    ++shown_.progress;
    if (updated)
        job_.oracle_.applied(shown_, state.last, false);
    else
        job_.oracle_.stood(shown_, true);
    if (!updated && job_.flipCopy_.erase(shown_.id.replica) > 0) job_.flip(shown_);
}

}  // namespace bulkhead::simulation
