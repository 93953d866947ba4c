// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "backend/common/file_system.h"

namespace bulkhead::interchange {

/// Files by path, folders by what lies in them. Never full, never torn.
class MemoryFiles final : public FileSystem {
  public:
    std::map<std::string, std::string> content;

    bool exists(const std::string& path) const override {
        return content.contains(path) || !list(path).empty();
    }
    absl::StatusOr<std::string> read(const std::string& path) const override {
        const auto found = content.find(path);
        if (found == content.end()) return absl::NotFoundError("cannot read " + path);
        return found->second;
    }
    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override {
        const auto found = content.find(path);
        if (found == content.end()) return absl::NotFoundError("cannot read " + path);
        const std::string& all = found->second;
        if (offset > all.size() || to.size() > all.size() - offset)
            return absl::OutOfRangeError(path + " ends too early");
        if (!to.empty()) std::memcpy(to.data(), all.data() + offset, to.size());
        return absl::OkStatus();
    }
    absl::StatusOr<uint64_t> size(const std::string& path) const override {
        const auto found = content.find(path);
        if (found == content.end()) return absl::NotFoundError("cannot read " + path);
        return found->second.size();
    }
    std::vector<std::string> list(const std::string& folder) const override {
        std::vector<std::string> names;
        const std::string top = folder + "/";
        for (auto it = content.lower_bound(top); it != content.end(); ++it) {
            if (!absl::StartsWith(it->first, top)) break;
            const std::string rest = it->first.substr(top.size());
            const std::string name = rest.substr(0, rest.find('/'));
            if (names.empty() || names.back() != name) names.push_back(name);
        }
        return names;
    }
    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override {
        return std::make_unique<File>(&content[path]);
    }
    absl::Status rename(const std::string& from, const std::string& to) override {
        std::map<std::string, std::string> moved;
        for (const auto& [path, bytes] : content) {
            const bool one = path == from || absl::StartsWith(path, from + "/");
            moved[one ? to + path.substr(from.size()) : path] = bytes;
        }
        content = std::move(moved);
        return absl::OkStatus();
    }
    absl::Status remove(const std::string& path) override {
        content.erase(path);
        return absl::OkStatus();
    }
    absl::Status makeFolder(const std::string&) override { return absl::OkStatus(); }
    absl::Status removeFolder(const std::string& path) override {
        std::erase_if(content,
                      [&](const auto& file) { return absl::StartsWith(file.first, path + "/"); });
        return absl::OkStatus();
    }
    absl::Status syncFolder(const std::string&) override { return absl::OkStatus(); }
    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override {
        return absl::UnavailableError(path + ": no locks here");
    }

  private:
    class File final : public AppendFile {
      public:
        explicit File(std::string* bytes) : bytes_(*bytes) {}
        uint64_t size() const override { return bytes_.size(); }
        absl::Status append(std::string_view more) override {
            bytes_ += more;
            return absl::OkStatus();
        }
        absl::Status truncate(uint64_t size) override {
            bytes_.resize(size);
            return absl::OkStatus();
        }
        absl::Status sync() override { return absl::OkStatus(); }

      private:
        std::string& bytes_;
    };
};

}  // namespace bulkhead::interchange
