// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/import/import.h"

/// A folder that an engine writes recordings into while it serves.
namespace bulkhead::planner {

/// Largest dump, all of its files together, and folder.
inline constexpr uint64_t kMostDump = uint64_t{256} << 20;
inline constexpr size_t kMostDumps = 10'000;
/// Files, and lines, whose content is remembered.
inline constexpr size_t kMostContents = 100'000;

/// Looks for recordings that are new. One is a file of a form that is known (import.h); the files
/// that ranks of SGLang's recorder write at one time, "NAME_SECONDS_RANK.pt"; a folder in it, as
/// importRecording() reads; or some whole lines more of a ".jsonl" file of responses
/// (returned_routing.h). All but such lines are read when they have not changed since the look
/// before, so that a file that is still being written is let alone. Files are known by their
/// inode, and what was read by its content: a file that is renamed, touched or copied is not read
/// again, nor are lines of responses that were all read in other files. Hidden files and what is
/// neither file nor folder are passed over. Remembers some bytes for each file that is there and a
/// hash of each of the latest kMostContents files and lines. Thread: one.
class RollingFolder {
  public:
    /// The name, and what is in it or why it cannot be read.
    using Take = std::function<bool(const std::string& name, absl::StatusOr<Recording> recording)>;

    /// `options` as for each recording; `mostBytes` is kMostDump at most.
    RollingFolder(std::filesystem::path folder, const ImportOptions& options);

    /// Gives what is new to `take`, the oldest first, each once for each time that it changed,
    /// until `take` says false. `settled`: without waiting for a second look. NotFound,
    /// ResourceExhausted beyond kMostDumps, or Unavailable when the folder cannot be listed.
    [[nodiscard]] absl::Status look(const Take& take, bool settled = false);

    /// Recordings are read with these from now on.
    void describe(const ImportOptions& options);

  private:
    using Identity = std::pair<uint64_t, uint64_t>;  ///< device, inode
    using State = std::pair<uint64_t, int64_t>;      ///< bytes, nanosecond of the last change
    struct File {
        std::string name;  ///< relative to the folder
        Identity identity;
        State state;
    };
    struct Dump {
        std::vector<File> files;
        bool folder = false;
        int64_t changed() const;
    };
    struct Known {
        State seen, read;           ///< at the last look, and when it was read
        bool lines = false;         ///< responses, read as they come
        bool skips = false;         ///< a line that is too long is passed over
        uint64_t at = 0, line = 0;  ///< bytes and lines that were read
        std::string head;           ///< with which the file began
        uint64_t reading = 0;       ///< number of the reading that its lines belong to; 0: none
    };
    /// Hashes of content with the reading that each was met in first; forgets the oldest.
    class Contents {
      public:
        bool contains(uint64_t hash) const { return readingOf_.contains(hash); }
        /// Remembers it unless it is known; the reading in which it was met first.
        uint64_t add(uint64_t hash, uint64_t reading);

      private:
        std::unordered_map<uint64_t, uint64_t> readingOf_;
        std::deque<uint64_t> oldest_;
    };
    absl::StatusOr<std::vector<Dump>> list() const;
    absl::StatusOr<Recording> read(const Dump& dump) const;
    /// XXH3 of each file's bytes; empty when one cannot be read, or all are more than is read.
    std::vector<uint64_t> contentsOf(const std::vector<File>& files) const;
    /// True for a file of responses, whose new lines then were read, at `stop` no further.
    bool asLines(const File& file, bool same, const Take& take, bool& stop);
    /// False once `take` wants no more.
    bool readLines(const File& file, Known& known, const Take& take);
    bool takeLines(const std::string& name, std::string_view text, const Known& from, uint64_t line,
                   const Take& take);

    std::filesystem::path folder_;
    ImportOptions options_;
    std::map<Identity, Known> known_;
    Contents files_, lines_;
    uint64_t readings_ = 0;
};

}  // namespace bulkhead::planner
