// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/rolling_folder.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "backend/model/names.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/returned_routing.h"

namespace bulkhead::planner {
namespace {

using model::concat;
namespace fs = std::filesystem;

constexpr size_t kMostLine = size_t{32} << 20;  ///< and what is read of lines at once
constexpr size_t kHead = 64;                    ///< bytes that tell a file from one after it
constexpr size_t kMostRanks = 4096;

/// Seconds and rank of "NAME_SECONDS_RANK.pt", what several ranks dump at one time.
bool ranked(const std::string& name, double& seconds, std::string& rank) {
    static const std::regex form(R"(.{1,200}_([0-9]{1,12}\.[0-9]{1,12})_([0-9]{1,6})\.pt)");
    std::smatch match;
    if (!std::regex_match(name, match, form)) return false;
    seconds = std::stod(match[1]);
    rank = match[2];
    return true;
}

/// Bytes of a file from `at` on, at most `most`; fewer where it ends.
absl::StatusOr<std::string> bytesOf(const fs::path& path, uint64_t at, size_t most) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return absl::NotFoundError(concat(path.string(), ": cannot be read, or is gone"));
    in.seekg(static_cast<std::streamoff>(at));
    std::string bytes(most, '\0');
    in.read(bytes.data(), static_cast<std::streamsize>(most));
    bytes.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    return bytes;
}

/// True when the first line is a response of a server.
bool beginsWithResponse(std::string_view bytes) {
    const auto json = parseJsonFile(bytes.substr(0, bytes.find('\n')), "");
    return json.ok() && json->is_object() && looksLikeResponse(*json);
}

Files inMemory(const std::string& name, std::string_view bytes) {
    Files files;
    files.names = {name};
    files.read = [bytes](std::string_view) { return std::string(bytes); };
    return files;
}

}  // namespace

uint64_t RollingFolder::Contents::add(uint64_t hash, uint64_t reading) {
    const auto [it, isNew] = readingOf_.try_emplace(hash, reading);
    if (!isNew) return it->second;
    oldest_.push_back(hash);
    if (oldest_.size() > kMostContents) {
        readingOf_.erase(oldest_.front());
        oldest_.pop_front();
    }
    return reading;
}

RollingFolder::RollingFolder(fs::path folder, const ImportOptions& options)
    : folder_(std::move(folder)) {
    describe(options);
}

void RollingFolder::describe(const ImportOptions& options) {
    options_ = options;
    options_.mostBytes = std::min(options_.mostBytes, kMostDump);
}

int64_t RollingFolder::Dump::changed() const {
    int64_t latest = 0;
    for (const File& file : files) latest = std::max(latest, file.state.second);
    return latest;
}

absl::StatusOr<std::vector<RollingFolder::Dump>> RollingFolder::list() const {
    std::vector<Dump> dumps;
    std::vector<std::pair<double, std::pair<std::string, File>>> ranks;
    size_t entries = 0;
    const auto fileAt = [&](const fs::path& path) {
        struct stat found {};
        File file;
        if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return file;
        file.name = path.lexically_relative(folder_).string();
        file.identity = {found.st_dev, found.st_ino};
        file.state = {static_cast<uint64_t>(found.st_size),
                      int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec};
        return file;
    };
    std::error_code error;
    fs::directory_iterator it(folder_, error);
    if (error)
        return absl::Status(error == std::errc::no_such_file_or_directory
                                ? absl::StatusCode::kNotFound
                                : absl::StatusCode::kUnavailable,
                            concat(folder_.string(), ": ", error.message()));
    for (; it != fs::directory_iterator(); it.increment(error)) {
        if (++entries > kMostDumps)
            return absl::ResourceExhaustedError(concat(folder_.string(), ": more than ", kMostDumps,
                                                       " files; remove those that were read"));
        const std::string name = it->path().filename().string();
        if (name.starts_with('.')) continue;
        std::error_code gone;
        Dump dump;
        dump.folder = it->is_directory(gone) && !it->is_symlink(gone);
        if (!dump.folder) {
            const File file = fileAt(it->path());
            double seconds = 0;
            std::string rank;
            if (file.name.empty()) continue;
            if (ranked(name, seconds, rank))
                ranks.push_back({seconds, {rank, file}});
            else
                dumps.push_back({{file}, false});
            continue;
        }
        for (fs::directory_iterator in(it->path(), gone);
             !gone && in != fs::directory_iterator() && dump.files.size() < kMostRanks;
             in.increment(gone))
            if (const File file = fileAt(in->path()); !file.name.empty())
                dump.files.push_back(file);
        std::sort(dump.files.begin(), dump.files.end(),
                  [](const File& a, const File& b) { return a.name < b.name; });
        if (!dump.files.empty()) dumps.push_back(std::move(dump));
    }
    if (error) return absl::UnavailableError(concat(folder_.string(), ": ", error.message()));
    // Ranks dump one after the other; the next dump begins where a rank comes again.
    std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return std::tie(a.first, a.second.second.name) < std::tie(b.first, b.second.second.name);
    });
    std::set<std::string> have;
    for (const auto& [seconds, ranked] : ranks) {
        if (have.empty() || have.contains(ranked.first)) {
            have.clear();
            dumps.emplace_back();
        }
        have.insert(ranked.first);
        dumps.back().files.push_back(ranked.second);
    }
    std::sort(dumps.begin(), dumps.end(), [](const Dump& a, const Dump& b) {
        return std::pair(a.changed(), a.files[0].name) < std::pair(b.changed(), b.files[0].name);
    });
    return dumps;
}

absl::StatusOr<Recording> RollingFolder::read(const Dump& dump) const {
    uint64_t bytes = 0;
    for (const File& file : dump.files) bytes += file.state.first;
    if (bytes > options_.mostBytes)
        return absl::ResourceExhaustedError(
            concat(dump.files[0].name, ": ", bytes, " bytes of one dump, at most ",
                   options_.mostBytes, " are read; dump more often"));
    if (dump.folder)
        return importRecording(folder_ / fs::path(dump.files[0].name).parent_path(), options_);
    if (dump.files.size() == 1) return importRecording(folder_ / dump.files[0].name, options_);
    std::vector<std::string> names;
    for (const File& file : dump.files) names.push_back(file.name);
    return importRanks(names, filesOf(folder_, options_.mostBytes), options_);
}

std::vector<uint64_t> RollingFolder::contentsOf(const std::vector<File>& files) const {
    constexpr size_t kPiece = 1 << 20;
    uint64_t left = options_.mostBytes;
    std::vector<uint64_t> made;
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                        &XXH3_freeState);
    for (const File& file : files) {
        XXH3_64bits_reset(hash.get());
        for (uint64_t at = 0;;) {
            const auto bytes = bytesOf(folder_ / file.name, at, kPiece);
            if (!bytes.ok() || bytes->size() > left) return {};
            if (bytes->empty()) break;
            XXH3_64bits_update(hash.get(), bytes->data(), bytes->size());
            at += bytes->size();
            left -= bytes->size();
        }
        made.push_back(XXH3_64bits_digest(hash.get()));
    }
    return made;
}

bool RollingFolder::takeLines(const std::string& name, std::string_view text, const Known& from,
                              uint64_t line, const Take& take) {
    const auto nextOf = [](std::string_view& rest) {
        const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
        const std::string_view one = rest.substr(0, end);
        rest.remove_prefix(end);
        return one;
    };
    const auto isBlank = [](std::string_view one) {
        return one.find_first_not_of(" \t\r\n") == std::string_view::npos;
    };
    const auto cameBefore = [&](std::string_view one) {
        return lines_.add(XXH3_64bits(one.data(), one.size()), from.reading) != from.reading;
    };
    // A copy holds nothing new; the same request may well come again among others.
    bool isNew = false;
    for (std::string_view rest = text; !rest.empty();)
        if (const std::string_view one = nextOf(rest); !isBlank(one)) isNew |= !cameBefore(one);
    if (!isNew) return true;
    auto recording = importFile("r.jsonl", inMemory("r.jsonl", text), options_);
    if (recording.ok()) {
        recording->source = concat((folder_ / name).string(), " from line ", line);
        return take(name, std::move(recording));
    }
    // One that is bad does not spoil the others.
    while (!text.empty()) {
        const std::string_view one = nextOf(text);
        ++line;
        if (isBlank(one)) continue;
        auto alone = importFile("r.jsonl", inMemory("r.jsonl", one), options_);
        const std::string place = concat((folder_ / name).string(), " line ", line);
        if (alone.ok())
            alone->source = place;
        else
            alone = absl::Status(alone.status().code(),
                                 concat(place, ": ", std::string(alone.status().message())));
        if (!take(name, std::move(alone))) return false;
    }
    return true;
}

bool RollingFolder::readLines(const File& file, Known& known, const Take& take) {
    while (known.at < file.state.first) {
        auto text = bytesOf(folder_ / file.name, known.at, kMostLine);
        if (!text.ok()) return take(file.name, text.status());
        const size_t end = known.skips ? text->find('\n') : text->rfind('\n');
        if (end == std::string::npos) {
            if (text->size() < kMostLine) return true;  // its last line is still being written
            if (!known.skips &&
                !take(file.name, absl::ResourceExhaustedError(concat(
                                     (folder_ / file.name).string(), " line ", known.line + 1,
                                     ": more than ", kMostLine, " bytes; it is passed over"))))
                return false;
            known.skips = true;
            known.at += text->size();
            continue;
        }
        text->resize(end + 1);
        const uint64_t line = known.line;
        known.at += text->size();
        known.line += static_cast<uint64_t>(std::count(text->begin(), text->end(), '\n'));
        const bool skipped = std::exchange(known.skips, false);
        if (!skipped && !takeLines(file.name, *text, known, line, take)) return false;
    }
    return true;
}

bool RollingFolder::asLines(const File& file, bool same, const Take& take, bool& stop) {
    Known& known = known_[file.identity];
    if (!known.lines && !file.name.ends_with(".jsonl")) return false;
    const auto begin = bytesOf(folder_ / file.name, 0, known.lines ? kHead : kMostLine);
    if (!begin.ok()) return true;  // it is gone again
    if (known.lines && (!begin->starts_with(known.head) || file.state.first < known.at)) {
        known = Known();  // another one is in its place
        known.seen = file.state;
        known.lines = true;
    }
    if (!known.lines) {
        if (begin->find('\n') == std::string::npos) return !same;
        if (!beginsWithResponse(*begin)) return false;
        known.lines = true;
    }
    if (known.head.empty()) known.head = begin->substr(0, kHead);
    if (known.reading == 0) known.reading = ++readings_;
    stop = !readLines(file, known, take);
    known.read = file.state;
    return true;
}

absl::Status RollingFolder::look(const Take& take, bool settled) {
    const auto dumps = list();
    if (!dumps.ok()) return dumps.status();
    std::map<Identity, Known> known;
    for (const Dump& dump : *dumps)
        for (const File& file : dump.files)
            if (const auto it = known_.find(file.identity); it != known_.end())
                known.insert(std::move(*it));
    known_ = std::move(known);
    bool stop = false;
    for (const Dump& dump : *dumps) {
        Dump unread{{}, dump.folder};
        bool same = true;
        for (const File& file : dump.files) {
            Known& it = known_[file.identity];
            same = same && (it.seen == file.state || settled);
            it.seen = file.state;
            if (it.read != file.state) unread.files.push_back(file);
        }
        if (unread.files.empty()) continue;
        if (!dump.folder && dump.files.size() == 1 && asLines(dump.files[0], same, take, stop)) {
            if (stop) break;
            continue;
        }
        if (!same) continue;
        for (const File& file : unread.files) known_[file.identity].read = file.state;
        // A rank that comes late is one more dump; a folder is read as a whole.
        const Dump& whole = dump.folder ? dump : unread;
        const std::vector<uint64_t> contents = contentsOf(unread.files);
        if (!contents.empty() && std::all_of(contents.begin(), contents.end(),
                                             [&](uint64_t hash) { return files_.contains(hash); }))
            continue;
        auto recording = read(whole);
        if (recording.ok())
            for (const uint64_t hash : contents) files_.add(hash, 0);
        if (!take(whole.files[0].name, std::move(recording))) break;
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
