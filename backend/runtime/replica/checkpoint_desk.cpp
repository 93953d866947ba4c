// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/checkpoint_desk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

// Checkpoints whose shards never all reported; older ones are given up.
constexpr size_t kMostPending = 4;
constexpr int kNice = 5;

}  // namespace

CheckpointDesk::CheckpointDesk(CheckpointSettings settings, FileSystem& files, const Clock& clock,
                               Hooks hooks)
    : files_(files), clock_(clock), hooks_(std::move(hooks)), settings_(std::move(settings)) {}

void CheckpointDesk::update(const model::JobSpec& spec, const std::string& jobJson) {
    const MutexLock lock(mutex_);
    settings_.spec = spec;
    settings_.jobJson = jobJson;
}

std::string CheckpointDesk::folderOf(const StateSnapshot& snapshot) const {
    return (std::filesystem::path(settings_.spec.checkpointDir) /
            checkpointFolder(snapshot.lineage, snapshot.step, snapshot.layout,
                             settings_.rank.replica, settings_.incarnation))
        .string();
}

void CheckpointDesk::write(std::shared_ptr<const StateSnapshot> snapshot, std::string dataPosition,
                           std::vector<CommitRecord> records) {
    std::string folder;
    protocol::RankCheckpoint part;
    {
        const MutexLock lock(mutex_);
        folder = folderOf(*snapshot);
        part.rank = settings_.rank;
        part.incarnation = settings_.incarnation;
        const Key key{snapshot->step, snapshot->layout};
        if (isWhole(key)) {
            writer_.post([this, done = *whole_] { hooks_.done(done); });
            return;
        }
        if (writing_.contains(key) || finishing_.contains(key)) return;
        writing_.insert(key);
        if (settings_.rank.shard == 0) {
            Pending& entry = pending(key);
            entry.snapshot = snapshot;
            entry.dataPosition = std::move(dataPosition);
            entry.records = std::move(records);
        }
    }
    part.step = snapshot->step;
    part.layout = snapshot->layout;
    writer_.post([this, snapshot, folder, part]() mutable {
        const MonoNs start = clock_.now();
        absl::StatusOr<CheckpointFile> file =
            writeShardFile(files_, folder, part.rank.shard, *snapshot);
        part.ms = static_cast<double>(clock_.now() - start) / kMillisecond;
        part.ok = file.ok();
        if (file.ok()) {
            part.file = file->name;
            part.bytes = file->bytes;
            part.checksum = file->hash;
        } else {
            part.error = std::string(file.status().message());
            spdlog::error("checkpoint of step {}: {}", part.step, part.error);
            if (absl::IsInternal(file.status())) hooks_.damaged(file.status());
        }
        {
            const MutexLock lock(mutex_);
            writing_.erase({part.step, part.layout});
        }
        hooks_.shardWritten(part);
        if (part.rank.shard != 0) over(part.step);
    });
}

bool CheckpointDesk::isWhole(Key key) const {
    return whole_ && key == Key{whole_->step, whole_->layout};
}

CheckpointDesk::Pending& CheckpointDesk::pending(Key key) {
    Pending& entry = pending_[key];
    if (entry.parts.empty()) {
        entry.parts.resize(settings_.spec.shards);
        entry.begun = clock_.now();
    }
    while (pending_.size() > kMostPending && pending_.begin()->first != key)
        pending_.erase(pending_.begin());
    return entry;
}

void CheckpointDesk::shardReported(const protocol::RankCheckpoint& part) {
    {
        const MutexLock lock(mutex_);
        const Key key{part.step, part.layout};
        if (isWhole(key) || finishing_.contains(key)) return;
        Pending& entry = pending(key);
        if (part.rank.shard < 0 || static_cast<size_t>(part.rank.shard) >= entry.parts.size())
            return;
        entry.parts[static_cast<size_t>(part.rank.shard)] = part;
    }
    tryFinish({part.step, part.layout});
}

void CheckpointDesk::discard(const std::vector<std::string>& manifests) {
    const MutexLock lock(mutex_);
    if (whole_ && std::ranges::count(manifests, whole_->path) > 0) whole_.reset();
    writer_.post([this, directory = settings_.spec.checkpointDir, manifests] {
        for (const std::string& path : manifests) discardOwnCheckpoint(files_, directory, path);
    });
}

void CheckpointDesk::tryFinish(Key key) {
    MutexLock lock(mutex_);
    const auto it = pending_.find(key);
    if (it == pending_.end() || it->second.snapshot == nullptr) return;
    const auto& parts = it->second.parts;
    if (!std::all_of(parts.begin(), parts.end(), [](const auto& p) { return p.has_value(); }))
        return;
    Pending whole = std::move(it->second);
    pending_.erase(it);
    finishing_.insert(key);
    lock.unlock();
    writer_.post([this, step = key.first, whole = std::move(whole)] { finish(step, whole); });
}

CheckpointManifest CheckpointDesk::manifestOf(const Pending& pending) const {
    CheckpointManifest m;
    m.job = settings_.job;
    m.run = settings_.run;
    m.step = pending.snapshot->step;
    m.lineage = pending.snapshot->lineage;
    m.term = pending.snapshot->last.term;
    m.layout = pending.snapshot->layout;
    m.expertShard = pending.snapshot->expertShard;
    m.replica = settings_.rank.replica;
    m.shards = settings_.spec.shards;
    m.seed = settings_.spec.seed;
    m.corpusHash = settings_.corpusHash;
    m.dataPosition = pending.dataPosition;
    m.jobJson = settings_.jobJson;
    m.last = pending.snapshot->last;
    m.records = pending.records;
    m.unixNs = clock_.unixNs();
    for (const auto& part : pending.parts)
        m.files.push_back({part->rank.shard, part->file, part->bytes, part->checksum});
    return m;
}

void CheckpointDesk::finish(uint64_t step, Pending pending) {
    protocol::CheckpointDone done;
    std::string folder;
    CheckpointManifest manifest;
    {
        const MutexLock lock(mutex_);
        folder = folderOf(*pending.snapshot);
        done.replica = settings_.rank.replica;
        done.incarnation = settings_.incarnation;
        done.ok = !forbidden_;
        if (forbidden_) done.error = "the replica was put out";
        manifest = manifestOf(pending);
    }
    done.step = step;
    done.layout = pending.snapshot->layout;
    for (const auto& part : pending.parts) {
        if (!part->ok && done.ok) done.error = part->error;
        done.ok = done.ok && part->ok;
        done.bytes += part->bytes;
        done.hashes.push_back(part->checksum);
    }
    if (done.ok) {
        absl::StatusOr<std::string> path = writeManifest(files_, folder, manifest);
        done.ok = path.ok();
        if (path.ok()) {
            done.path = *path;
            discardUnfinished(files_, folder);
        } else {
            done.error = std::string(path.status().message());
        }
    }
    if (!done.ok) discardCheckpoint(files_, folder);
    done.ms = static_cast<double>(clock_.now() - pending.begun) / kMillisecond;
    if (done.ok)
        spdlog::info("checkpoint of step {}: {} bytes in {:.0f} ms", step, done.bytes, done.ms);
    else
        spdlog::error("no checkpoint of step {}: {}", step, done.error);
    {
        const MutexLock lock(mutex_);
        finishing_.erase({step, done.layout});
        if (done.ok) whole_ = done;
    }
    hooks_.done(done);
    over(step);
}

void CheckpointDesk::over(uint64_t step) {
    {
        const MutexLock lock(mutex_);
        lastOver_ = std::max(lastOver_, step);
    }
    changed_.notify_all();
}

void CheckpointDesk::forbid() {
    const MutexLock lock(mutex_);
    forbidden_ = true;
}

bool CheckpointDesk::await(uint64_t step, std::chrono::milliseconds patience) {
    MutexLock lock(mutex_);
    return changed_.wait_for(
        lock, patience, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lastOver_ >= step; });
}

CheckpointThread::CheckpointThread() : thread_([this] { run(); }) {}

CheckpointThread::~CheckpointThread() {
    {
        const MutexLock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CheckpointThread::post(std::function<void()> job) {
    {
        const MutexLock lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
}

void CheckpointThread::drain() {
    MutexLock lock(mutex_);
    changed_.wait(
        lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return jobs_.empty() && !busy_; });
}

void CheckpointThread::run() {
    lowerThreadPriority(kNice);
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || !jobs_.empty();
        });
        if (jobs_.empty()) return;
        std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        busy_ = true;
        lock.unlock();
        job();
        job = nullptr;
        lock.lock();
        busy_ = false;
        changed_.notify_all();
    }
}

}  // namespace bulkhead::runtime
