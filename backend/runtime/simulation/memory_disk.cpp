// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/memory_disk.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::simulation {
namespace {

absl::Status dead() {
    return absl::UnavailableError("the process is dead");
}

absl::Status missing(const std::string& path) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": no such file"));
}

/// A name needs room too.
constexpr uint64_t kNameBytes = 64;

absl::Status full(const char* what, const std::string& path) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot ", what, " ", path, ": No space left on device"));
}

}  // namespace

void MemoryDisk::leaveRoom(std::optional<uint64_t> bytes) {
    capacity_ = bytes ? std::optional(size() + *bytes) : std::nullopt;
}

uint64_t MemoryDisk::size() const {
    uint64_t bytes = 0;
    for (const auto& [path, inode] : names_) bytes += kNameBytes + inode->content.size();
    return bytes;
}

void MemoryDisk::flipBit(const std::string& path) {
    const auto it = names_.find(path);
    if (it == names_.end() || it->second->content.empty()) return;
    char& byte = it->second->content[rng_.below(it->second->content.size())];
    byte = static_cast<char>(byte ^ (1 << rng_.below(8)));
}

void MemoryDisk::sync(Inode& file) {
    file.synced = file.content.size();
    file.cut.clear();
}

void MemoryDisk::syncName(const std::string& path) {
    const auto it = names_.find(path);
    if (it == names_.end())
        durableNames_.erase(path);
    else
        durableNames_[path] = it->second;
}

void MemoryDisk::syncFolder(const std::string& folder, uint32_t machine) {
    std::erase_if(changed_, [&](const auto& change) {
        if (change.second != machine || folderOf(change.first) != folder) return false;
        syncName(change.first);
        return true;
    });
}

void MemoryDisk::lie(bool on) {
    lies_ = on;
    if (on) return;
    for (const auto& file : std::exchange(owedFiles_, {})) sync(*file);
    for (const std::string& folder : std::exchange(owedFolders_, {})) syncFolder(folder, 0);
}

void MemoryDisk::cutPower(uint32_t machine) {
    if (machine == 0) {
        owedFiles_.clear();
        owedFolders_.clear();
    }
    for (auto it = changed_.begin(); it != changed_.end();) {
        const auto& [path, by] = *it;
        if (by != machine) {
            ++it;
            continue;
        }
        const auto durable = durableNames_.find(path);
        if (rng_.chance(0.5) && durable == durableNames_.end())
            names_.erase(path);
        else if (durable != durableNames_.end() && rng_.chance(0.5))
            names_[path] = durable->second;
        syncName(path);
        it = changed_.erase(it);
    }
    std::set<Inode*> settled;
    for (const auto& [path, inode] : names_) {
        Inode& file = *inode;
        if (file.writer != machine || !settled.insert(&file).second) continue;
        if (!file.cut.empty() && rng_.chance(0.5)) {
            file.content.resize(file.synced);
            file.content += file.cut;
        } else if (file.content.size() > file.synced) {
            file.content.resize(file.synced + rng_.below(file.content.size() - file.synced + 1));
        }
        sync(file);
    }
}

class DiskUser::File final : public AppendFile {
  public:
    File(DiskUser& user, std::string path, std::shared_ptr<MemoryDisk::Inode> inode)
        : user_(user.self_), path_(std::move(path)), inode_(std::move(inode)) {}

    uint64_t size() const override { return inode_->content.size(); }

    absl::Status append(std::string_view bytes) override {
        DiskUser* user = *user_;
        if (user == nullptr || !user->alive_) return dead();
        const bool fits = user->disk_.fits(bytes.size());
        if (user->begin()) {
            if (!fits) return full("write", path_);  // cuts the written part off again
            write(*user, bytes);
            return absl::OkStatus();
        }
        write(*user, bytes.substr(0, user->disk_.rng_.below(bytes.size() + 1)));
        return dead();
    }

    absl::Status truncate(uint64_t size) override {
        DiskUser* user = *user_;
        if (user == nullptr || !user->begin()) return dead();
        if (size < inode_->synced) {
            inode_->cut.insert(0, inode_->content.substr(size, inode_->synced - size));
            inode_->synced = size;
        }
        inode_->content.resize(size);
        inode_->writer = user->machine_;
        return absl::OkStatus();
    }

    absl::Status sync() override {
        DiskUser* user = *user_;
        if (user == nullptr || !user->begin()) return dead();
        if (user->onWait) user->onWait();
        if (user->disk_.lies(user->machine_))
            user->disk_.owedFiles_.push_back(inode_);
        else
            user->disk_.sync(*inode_);
        if (user->onSync) user->onSync(path_);
        return absl::OkStatus();
    }

  private:
    void write(const DiskUser& user, std::string_view bytes) {
        inode_->content += bytes;
        inode_->writer = user.machine_;
    }

    const std::shared_ptr<DiskUser*> user_;
    const std::string path_;
    const std::shared_ptr<MemoryDisk::Inode> inode_;
};

class DiskUser::Lock final : public FileLock {
  public:
    Lock(DiskUser& user, std::string path) : user_(user.self_), path_(std::move(path)) {}
    ~Lock() override {
        DiskUser* user = *user_;
        if (user != nullptr && user->locks_.erase(path_) > 0) user->disk_.locked_.erase(path_);
    }

  private:
    const std::shared_ptr<DiskUser*> user_;
    const std::string path_;
};

void DiskUser::die() {
    alive_ = false;
    for (const std::string& path : std::exchange(locks_, {})) disk_.locked_.erase(path);
    *self_ = nullptr;
}

bool DiskUser::begin() {
    if (!alive_) return false;
    if (lastOperations_ == 0 || --lastOperations_ > 0) return true;
    alive_ = false;
    if (onDeath) onDeath();
    return false;
}

bool DiskUser::exists(const std::string& path) const {
    return disk_.names_.contains(path);
}

absl::StatusOr<std::string> DiskUser::read(const std::string& path) const {
    const auto it = disk_.names_.find(path);
    if (it == disk_.names_.end()) return missing(path);
    return it->second->content;
}

absl::Status DiskUser::read(const std::string& path, uint64_t offset,
                            std::span<std::byte> to) const {
    const auto it = disk_.names_.find(path);
    if (it == disk_.names_.end()) return missing(path);
    const std::string& content = it->second->content;
    if (content.size() < offset + to.size())
        return absl::OutOfRangeError(absl::StrCat(path, " ends too early"));
    std::memcpy(to.data(), content.data() + offset, to.size());
    return absl::OkStatus();
}

absl::StatusOr<uint64_t> DiskUser::size(const std::string& path) const {
    const auto it = disk_.names_.find(path);
    if (it == disk_.names_.end()) return missing(path);
    return it->second->content.size();
}

std::vector<std::string> DiskUser::list(const std::string& folder) const {
    std::vector<std::string> names;
    const std::string prefix = folder + "/";
    for (auto it = disk_.names_.lower_bound(prefix);
         it != disk_.names_.end() && it->first.starts_with(prefix); ++it) {
        const std::string name =
            it->first.substr(prefix.size(), it->first.find('/', prefix.size()) - prefix.size());
        if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
}

absl::StatusOr<std::unique_ptr<AppendFile>> DiskUser::open(const std::string& path) {
    if (!begin()) return dead();
    if (!exists(path) && !disk_.fits(kNameBytes)) return full("open", path);
    if (onOpen && !onOpen()) return full("open", path);
    auto& inode = disk_.names_[path];
    if (inode == nullptr) {
        inode = std::make_shared<MemoryDisk::Inode>();
        disk_.change(path, machine_);
    }
    return std::make_unique<File>(*this, path, inode);
}

absl::Status DiskUser::rename(const std::string& from, const std::string& to) {
    if (!begin()) return dead();
    const auto it = disk_.names_.find(from);
    if (it == disk_.names_.end()) return missing(from);
    disk_.names_[to] = std::move(it->second);
    disk_.names_.erase(from);
    disk_.change(from, machine_);
    disk_.change(to, machine_);
    return absl::OkStatus();
}

absl::Status DiskUser::remove(const std::string& path) {
    if (!begin()) return dead();
    if (disk_.names_.erase(path) == 0) return missing(path);
    disk_.change(path, machine_);
    return absl::OkStatus();
}

/// A name of its own would only tell whether somebody had made it: every folder is there.
absl::Status DiskUser::makeFolder(const std::string&) {
    return begin() ? absl::OkStatus() : dead();
}

/// File by file: it may die between two.
absl::Status DiskUser::removeFolder(const std::string& path) {
    const std::string prefix = path + "/";
    for (;;) {
        const auto it = disk_.names_.lower_bound(prefix);
        if (it == disk_.names_.end() || !it->first.starts_with(prefix)) return absl::OkStatus();
        const std::string file = it->first;
        if (absl::Status s = remove(file); !s.ok()) return s;
    }
}

absl::Status DiskUser::syncFolder(const std::string& folder) {
    if (!begin()) return dead();
    if (disk_.lies(machine_))
        disk_.owedFolders_.insert(folder);
    else
        disk_.syncFolder(folder, machine_);
    return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> DiskUser::lock(const std::string& path) {
    if (!begin()) return dead();
    if (!disk_.locked_.insert(path).second)
        return absl::FailedPreconditionError(absl::StrCat(path, " is held by another process"));
    locks_.insert(path);
    return std::make_unique<Lock>(*this, path);
}

}  // namespace bulkhead::simulation
