// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/catch_up.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kDeltaPatienceMs = 1500;
constexpr int kDeltaRounds = 4;

}  // namespace

CatchUp::CatchUp(RankId self, uint32_t shards, const Clock& clock, Hooks hooks)
    : self_(self),
      shards_(shards),
      clock_(clock),
      hooks_(std::move(hooks)),
      thread_([this] { run(); }) {}

CatchUp::~CatchUp() {
    stop();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CatchUp::stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.clear();
    if (fetch_ != nullptr) fetch_->cancel();
    fetch_.reset();
}

void CatchUp::fetch(const protocol::Fetch& order) {
    FetchOptions options;
    options.shard = self_.shard;
    options.token = order.token;
    options.lineage = order.lineage;
    options.step = order.snapshotStep;
    options.bytesPerSecond = order.bytesPerSecond / shards_;
    options.progress = hooks_.progress;
    options.cut = hooks_.cut;
    std::vector<FetchSource> sources;
    for (const protocol::Member& member : order.sources)
        if (static_cast<size_t>(self_.shard) < member.ranks.size())
            sources.push_back({member.contribution.replica,
                               member.ranks[static_cast<size_t>(self_.shard)].state});
    stop();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        fetch_ = std::make_shared<StateFetch>(std::move(options), clock_);
        sources_ = sources;
        jobs_.push_back([this, f = fetch_, sources] { pull(f, sources); });
    }
    changed_.notify_all();
}

void CatchUp::replay(const CommitRecord& record) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (fetch_ == nullptr) return;
        jobs_.push_back([this, f = fetch_, sources = sources_, record] {
            pullDelta(f, sources, record);
        });
    }
    changed_.notify_all();
}

void CatchUp::run() {
    for (;;) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        const Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
    }
}

void CatchUp::pull(const std::shared_ptr<StateFetch>& fetch, std::vector<FetchSource> sources) {
    absl::StatusOr<std::shared_ptr<const StateSnapshot>> state = fetch->run(sources);
    if (!state.ok()) return fail(fetch.get(), state.status(), sources);
    std::string parts;
    for (const auto& [replica, bytes] : fetch->bytesBySource())
        absl::StrAppend(&parts, parts.empty() ? "" : ", ", "r", replica, " ", bytes);
    spdlog::info("fetched the state of step {}: {} bytes ({})", (*state)->step,
                 (*state)->bytes.size(), parts);
    hooks_.state(*std::move(state));
}

void CatchUp::pullDelta(const std::shared_ptr<StateFetch>& fetch,
                        const std::vector<FetchSource>& sources, const CommitRecord& record) {
    absl::Status last;
    for (int round = 0; round < kDeltaRounds; ++round) {
        absl::StatusOr<Delta> delta = fetch->delta(record.step, sources, kDeltaPatienceMs);
        if (delta.ok() && delta->record != record)
            return fail(fetch.get(),
                        absl::DataLossError(absl::StrCat("a source applied another record for step ",
                                                         record.step)),
                        sources);
        if (delta.ok()) return hooks_.delta(*std::move(delta));
        last = delta.status();
        if (absl::IsNotFound(last) || absl::IsAborted(last)) break;
    }
    fail(fetch.get(), last, sources);
}

void CatchUp::fail(const StateFetch* fetch, const absl::Status& why,
                   const std::vector<FetchSource>& sources) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (fetch_.get() != fetch) return;  // replaced by a newer one
    }
    std::vector<int32_t> replicas;
    for (const FetchSource& source : sources) replicas.push_back(source.replica);
    hooks_.broke(why, std::move(replicas));
}

}  // namespace bulkhead::runtime
