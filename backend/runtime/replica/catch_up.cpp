// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/catch_up.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kDeltaPatienceMs = 1500;
constexpr int kDeltaRounds = 4;

}  // namespace

CatchUp::CatchUp(RankId self, uint32_t shards, StateNetwork& network, const Clock& clock,
                 Hooks hooks)
    : self_(self),
      shards_(shards),
      network_(network),
      clock_(clock),
      hooks_(std::move(hooks)),
      thread_([this] { run(); }) {}

CatchUp::~CatchUp() {
    stop();
    {
        const MutexLock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CatchUp::stop() {
    const MutexLock lock(mutex_);
    if (fetch_ != nullptr) fetch_->cancel();
    fetch_.reset();
    deltas_.clear();
    wanted_ = complete_ = false;
}

FetchOptions CatchUp::optionsOf(const protocol::Fetch& order) const {
    FetchOptions options;
    options.shard = self_.shard;
    options.key = order.key;
    options.lineage = order.lineage;
    options.step = order.snapshotStep;
    options.layout = order.layout;
    options.bytesPerSecond = order.bytesPerSecond / shards_;
    options.progress = hooks_.progress;
    options.room = hooks_.stateRoom;
    options.cut = hooks_.cut;
    options.network = &network_;
    options.connections = network_.connections();
    return options;
}

void CatchUp::fetch(const protocol::Fetch& order) {
    std::vector<FetchSource> sources;
    for (const protocol::Member& member : order.sources)
        if (static_cast<size_t>(self_.shard) < member.ranks.size())
            sources.push_back({member.contribution.replica,
                               member.ranks[static_cast<size_t>(self_.shard)].state});
    {
        const MutexLock lock(mutex_);
        sources_ = std::move(sources);
        retry_ = true;
        if (fetch_ != nullptr && step_ == order.snapshotStep && layout_ == order.layout) {
            fetch_->setKey(order.key);
            wanted_ = !complete_;
        } else {
            if (fetch_ != nullptr) fetch_->cancel();
            deltas_.clear();
            fetch_ = std::make_shared<StateFetch>(optionsOf(order), clock_);
            step_ = order.snapshotStep;
            layout_ = order.layout;
            wanted_ = true;
            complete_ = false;
        }
    }
    changed_.notify_all();
}

void CatchUp::replay(const CommitRecord& record) {
    {
        const MutexLock lock(mutex_);
        if (fetch_ == nullptr) return;
        deltas_.push_back(record);
    }
    changed_.notify_all();
}

void CatchUp::recycle(Floats memory) {
    const MutexLock lock(mutex_);
    if (fetch_ != nullptr) fetch_->recycle(std::move(memory));
}

void CatchUp::run() {
    for (;;) {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || wanted_ || (complete_ && retry_ && !deltas_.empty());
        });
        if (stopping_) return;
        if (wanted_) {
            lock.unlock();
            pull();
            continue;
        }
        const CommitRecord record = deltas_.front();
        lock.unlock();
        pullDelta(record);
    }
}

void CatchUp::pull() {
    std::shared_ptr<StateFetch> fetch;
    std::vector<FetchSource> sources;
    {
        const MutexLock lock(mutex_);
        wanted_ = false;
        fetch = fetch_;
        sources = sources_;
    }
    if (fetch == nullptr) return;
    absl::StatusOr<std::shared_ptr<const StateSnapshot>> state = fetch->run(sources);
    if (!state.ok()) return fail(fetch, state.status(), sources);
    std::string parts;
    for (const auto& [replica, bytes] : fetch->bytesBySource())
        absl::StrAppend(&parts, parts.empty() ? "" : ", ", "r", replica, " ", bytes);
    {
        const MutexLock lock(mutex_);
        if (fetch_ != fetch) return;
        wanted_ = false;
        complete_ = true;
    }
    spdlog::info("fetched the state of step {}: {} bytes ({})", (*state)->step,
                 (*state)->bytes.size(), parts);
    hooks_.state(*std::move(state));
}

void CatchUp::pullDelta(const CommitRecord& record) {
    std::shared_ptr<StateFetch> fetch;
    std::vector<FetchSource> sources;
    {
        const MutexLock lock(mutex_);
        fetch = fetch_;
        sources = sources_;
    }
    if (fetch == nullptr) return;
    absl::Status last;
    for (int round = 0; round < kDeltaRounds; ++round) {
        absl::StatusOr<Delta> delta = fetch->delta(record.step, sources, kDeltaPatienceMs);
        last = delta.status();
        if (delta.ok() && delta->record != record)
            last = absl::DataLossError(
                absl::StrCat("a source applied another record for step ", record.step));
        if (last.ok()) {
            {
                const MutexLock lock(mutex_);
                if (fetch_ != fetch || deltas_.empty()) return;
                deltas_.pop_front();
            }
            return hooks_.delta(*std::move(delta));
        }
        if (absl::IsNotFound(last) || absl::IsAborted(last) || absl::IsDataLoss(last)) break;
    }
    fail(fetch, last, sources);
}

void CatchUp::fail(const std::shared_ptr<StateFetch>& fetch, const absl::Status& why,
                   const std::vector<FetchSource>& sources) {
    {
        const MutexLock lock(mutex_);
        if (fetch_ != fetch) return;  // replaced by another
        const bool same = std::equal(
            sources.begin(), sources.end(), sources_.begin(), sources_.end(),
            [](const FetchSource& a, const FetchSource& b) { return a.address == b.address; });
        if (!same) return;  // others were named meanwhile and are tried next
        retry_ = false;
    }
    std::vector<int32_t> replicas;
    for (const FetchSource& source : sources) replicas.push_back(source.replica);
    hooks_.broke(why, std::move(replicas));
}

}  // namespace bulkhead::runtime
