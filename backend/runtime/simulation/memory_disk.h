// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/common/file_system.h"
#include "backend/runtime/simulation/rng.h"

namespace bulkhead::simulation {

/// A disk in memory that keeps after a power cut what a disk must keep, and of the rest what chance
/// leaves: a prefix of what was appended, an older name, a cut that never was. Processes use it by
/// a DiskUser each. Several machines may share it: then it never loses power itself, and what a
/// process has not synced is in the memory of its machine, and goes with that. Deterministic.
class MemoryDisk {
  public:
    explicit MemoryDisk(uint64_t seed) : rng_(seed) {}

    /// A machine loses power: what was not synced from there may be gone or torn. None of its users
    /// may be alive.
    void cutPower(uint32_t machine = 0);
    /// Its own machine's, number 0: from now on a sync there says that it is done, and does
    /// nothing. When that ends, all that was synced meanwhile is safe.
    void lie(bool on);
    /// A bit of a file flips, if there is one.
    void flipBit(const std::string& path);

    /// Leaves room for so many bytes more; nullopt: for any number. A write that does
    /// not fit fails; what was removed or cut off makes room.
    void leaveRoom(std::optional<uint64_t> bytes);

  private:
    friend class DiskUser;
    struct Inode {
        std::string content;
        uint64_t synced = 0;  ///< bytes from the front that a power cut leaves alone
        std::string cut;      ///< synced bytes that stood behind `content` before it was cut
        uint32_t writer = 0;  ///< the machine that wrote last
    };
    using Names = std::map<std::string, std::shared_ptr<Inode>>;

    void change(const std::string& path, uint32_t machine) { changed_[path] = machine; }
    void sync(Inode& file);
    void syncName(const std::string& path);
    void syncFolder(const std::string& folder, uint32_t machine);
    bool lies(uint32_t machine) const { return lies_ && machine == 0; }
    uint64_t size() const;
    bool fits(uint64_t bytes) const { return !capacity_ || size() + bytes <= *capacity_; }

    std::optional<uint64_t> capacity_;
    Names names_;
    Names durableNames_;
    std::map<std::string, uint32_t> changed_;  ///< names that are not durable: by which machine
    std::set<std::string> locked_;
    bool lies_ = false;
    // These it said were safe:
    std::vector<std::shared_ptr<Inode>> owedFiles_;
    std::set<std::string> owedFolders_;
    Rng rng_;
};

/// One process's view of the disk: everything it does fails once it is dead.
class DiskUser final : public FileSystem {
  public:
    explicit DiskUser(MemoryDisk& disk, uint32_t machine = 0) : disk_(disk), machine_(machine) {}
    ~DiskUser() override { die(); }

    /// Its locks fall; what it has written stays.
    void die();
    /// It dies in the course of the next operation but `operations`, which may be done in part.
    void dieAfter(uint64_t operations) { lastOperations_ = operations + 1; }
    bool alive() const { return alive_; }

    /// Called when dieAfter() has struck, from inside the operation.
    std::function<void()> onDeath;
    /// Called before a sync: time may pass in it.
    std::function<void()> onWait;
    /// Called before a file is opened to be written; false: there is no room for it.
    std::function<bool()> onOpen;
    /// Called after a sync that has succeeded.
    std::function<void(const std::string& path)> onSync;

    bool exists(const std::string& path) const override;
    absl::StatusOr<std::string> read(const std::string& path) const override;
    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override;
    absl::StatusOr<uint64_t> size(const std::string& path) const override;
    std::vector<std::string> list(const std::string& folder) const override;
    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override;
    absl::Status rename(const std::string& from, const std::string& to) override;
    absl::Status remove(const std::string& path) override;
    absl::Status makeFolder(const std::string& path) override;
    absl::Status removeFolder(const std::string& path) override;
    absl::Status syncFolder(const std::string& folder) override;
    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  private:
    class File;
    class Lock;
    /// False: the process is dead, or dies with this operation.
    bool begin();

    MemoryDisk& disk_;
    const uint32_t machine_;  ///< that it runs on
    bool alive_ = true;
    uint64_t lastOperations_ = 0;  ///< 0: not about to die
    std::set<std::string> locks_;
    std::shared_ptr<DiskUser*> self_ = std::make_shared<DiskUser*>(this);  ///< for what outlives it
};

}  // namespace bulkhead::simulation
