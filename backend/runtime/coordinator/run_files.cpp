// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/run_files.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "backend/common/clock.h"
#include "backend/model/domain_text.h"
#include "backend/model/event_json.h"
#include "backend/model/job_file.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace fs = std::filesystem;
namespace {

uint32_t domainsOf(const model::JobSpec& spec) {
    return std::max<uint32_t>(1, static_cast<uint32_t>(spec.domains.size()));
}

constexpr const char* kTextFolder = "text";
constexpr const char* kSetAside = "set_aside";  ///< reason file of a run that another one continues
/// That file's words around the name of the other run.
constexpr absl::string_view kSupersedes[] = {"run ", " goes on from its checkpoint"};
constexpr const char* kCheckpointFolder = "checkpoints";
constexpr const char* kCheckpointLock = "controller.lock";

/// The place at which `path` lies now: it lay `below` names deep in a run's folder when it was
/// written. A run that was copied has its own, and leaves the other's alone.
std::string pathNow(const FileSystem& files, const std::string& runDir, const std::string& path,
                    int below) {
    fs::path old = fs::path(path).lexically_normal(), rest;
    for (int i = 0; i < below; ++i) {
        rest = rest.empty() ? old.filename() : old.filename() / rest;
        old = old.parent_path();
    }
    const fs::path home = fs::path(runDir).lexically_normal();
    if (old == home || old.empty()) return path;
    const std::string own = (home / rest).string();
    if (files.exists(own)) return own;
    const std::string beside = (home.parent_path() / old.filename() / rest).string();
    return !files.exists(path) && files.exists(beside) ? beside : path;
}

model::JobSpec specNow(const FileSystem& files, const std::string& runDir, model::JobSpec spec) {
    if (fs::path(spec.checkpointDir).filename() == kCheckpointFolder)
        spec.checkpointDir = pathNow(files, runDir, spec.checkpointDir, 1);
    for (model::DomainSpec& domain : spec.domains)
        for (std::string& path : domain.paths)
            if (fs::path(path).parent_path().filename() == kTextFolder)
                path = pathNow(files, runDir, path, 2);
    return spec;
}

std::vector<protocol::LogEntry> readWholeEntries(const FileSystem& files,
                                                 const std::string& runDir) {
    return atHome(files, runDir,
                  protocol::wholeEntries(files.read(runDir + "/commit.log").value_or("")));
}

/// They were logged by another run than the one of this identity.
bool isForeign(const std::vector<protocol::LogEntry>& entries, const std::string& id) {
    return !id.empty() && std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
        const auto* term = std::get_if<protocol::LogTerm>(&entry);
        return term != nullptr && !term->run.empty() && term->run != id;
    });
}

/// Those that no rollback has superseded, oldest first.
std::vector<protocol::LogCheckpoint> checkpointsOf(const std::vector<protocol::LogEntry>& entries) {
    std::vector<protocol::LogCheckpoint> checkpoints;
    for (const protocol::LogEntry& entry : entries) {
        if (const auto* checkpoint = std::get_if<protocol::LogCheckpoint>(&entry))
            checkpoints.push_back(*checkpoint);
        if (const auto* lineage = std::get_if<protocol::LogLineage>(&entry))
            std::erase_if(checkpoints, [&](const auto& c) { return c.step > lineage->fromStep; });
    }
    return checkpoints;
}

/// The checkpoints in a run's folder: those that its ranks wrote, and those of another run, which
/// somebody has put there. Where the run's identity is not sure, all of them are its own.
struct CheckpointsThere {
    std::vector<protocol::StoredCheckpoint> own;
    std::vector<protocol::StoredCheckpoint> foreign;
};

CheckpointsThere checkpointsThere(const FileSystem& files, const std::string& runDir,
                                  const model::JobSpec& spec,
                                  const std::vector<protocol::LogEntry>& entries) {
    CheckpointsThere there;
    const std::string id = runIdentity(files, runDir);
    const bool sure = !id.empty() && !isForeign(entries, id);
    for (protocol::StoredCheckpoint& s : storedCheckpoints(files, spec.checkpointDir))
        (sure && !s.run.empty() && s.run != id ? there.foreign : there.own).push_back(std::move(s));
    return there;
}

absl::StatusOr<std::vector<protocol::LogCheckpoint>> judgeCheckpoints(
    const FileSystem& files, const std::string& runDir, const model::JobSpec& spec,
    const std::vector<protocol::LogEntry>& entries) {
    return protocol::judgeStored(entries, spec.replicas + spec.spares, domainsOf(spec),
                                 checkpointsThere(files, runDir, spec, entries).own);
}

/// The newest on disk that the run wrote, whatever its log has given up: it may have been away.
std::optional<protocol::LogCheckpoint> newestGivenUp(
    const FileSystem& files, const std::string& runDir, const model::JobSpec& spec,
    const std::vector<protocol::LogEntry>& entries) {
    const std::string id = runIdentity(files, runDir);
    std::optional<protocol::LogCheckpoint> newest;
    for (const auto& stored : checkpointsThere(files, runDir, spec, entries).own) {
        if (id.empty() || stored.run != id) continue;
        auto found = protocol::byManifest(stored);
        if (found && (!newest || std::pair(newest->lineage, newest->step) <=
                                     std::pair(found->lineage, found->step)))
            newest = std::move(found);
    }
    return newest;
}

std::vector<std::string> runsOf(const FileSystem& files, const std::string& stateDir) {
    std::vector<std::string> runs = files.list(stateDir);
    std::erase_if(runs,
                  [&](const std::string& run) { return !isRun(files, stateDir + "/" + run); });
    return runs;
}

struct OwnManifest {
    std::string path;
    uint64_t step = 0;
    model::JobSpec spec;
};

/// The newest checkpoint of the run whose manifest can be read; of another run's that it began from
/// nothing is said here. A job without a job.json has told nobody where else to look than in its
/// log and in its own folder; `folder` is the one that a job.json names.
std::optional<OwnManifest> newestManifest(const FileSystem& files, const std::string& runDir,
                                          const std::string& folder = "") {
    std::vector<std::string> paths = listCheckpoints(
        files, folder.empty() ? absl::StrCat(runDir, "/", kCheckpointFolder) : folder);
    const auto entries = readWholeEntries(files, runDir);
    const std::string id = runIdentity(files, runDir);
    if (!isForeign(entries, id))
        for (const protocol::LogCheckpoint& c : checkpointsOf(entries)) paths.push_back(c.path);
    for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
        const auto manifest = readManifest(files, *path);
        if (!manifest.ok() || manifest->job != fs::path(runDir).filename()) continue;
        if (!id.empty() && !manifest->run.empty() && manifest->run != id) continue;
        auto spec = model::fromJsonText<model::JobSpec>(manifest->jobJson);
        if (spec.ok())
            return OwnManifest{*path, manifest->step, specNow(files, runDir, *std::move(spec))};
    }
    return std::nullopt;
}

absl::Status checkStates(const FileSystem& files, const std::string& path,
                         const CheckpointManifest& manifest) {
    constexpr const char* kRemedy =
        "; put back the file that was there, or resume another checkpoint";
    if (manifest.last.step != manifest.step)
        return absl::FailedPreconditionError(absl::StrCat(path, " says step ", manifest.step,
                                                          " and its last_record is of step ",
                                                          manifest.last.step, kRemedy));
    for (const CheckpointFile& file : manifest.files)
        if (const auto read = readShardFile(files, path, manifest, file.shard); !read.ok())
            return absl::FailedPreconditionError(absl::StrCat(read.status().message(), kRemedy));
    return absl::OkStatus();
}

/// A checkpoint whose run is gone: its manifest says the job, the state's files, and which samples
/// it has seen.
absl::StatusOr<FoundCheckpoint> byManifestAlone(const FileSystem& files, const std::string& path) {
    const auto manifest = readManifest(files, path);
    if (absl::IsDataLoss(manifest.status()))
        return absl::DataLossError(
            absl::StrCat(manifest.status().message(),
                         "; name the manifest.json of a checkpoint, or a run to go on from its "
                         "last checkpoint"));
    if (!manifest.ok()) return manifest.status();
    auto spec = model::fromJsonText<model::JobSpec>(manifest->jobJson);
    if (!spec.ok())
        return absl::DataLossError(
            absl::StrCat(path, ": its job: ", std::string(spec.status().message())));
    const fs::path above = fs::path(path).parent_path().parent_path();
    const auto all = storedCheckpoints(files, above.empty() ? "." : above.string());
    for (const auto& stored : all) {
        if (fs::path(stored.path).lexically_normal() != fs::path(path).lexically_normal()) continue;
        auto checkpoint = protocol::byManifest(stored);
        if (!checkpoint)  // of a damaged log nothing need be left
            for (auto& judged : protocol::judgeBehindDamage({}, spec->replicas + spec->spares,
                                                            domainsOf(*spec), all))
                if (judged.path == stored.path) checkpoint = std::move(judged);
        if (checkpoint) return FoundCheckpoint{*std::move(spec), *std::move(checkpoint)};
    }
    if (absl::Status s = checkStates(files, path, *manifest); !s.ok()) return s;
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": it was written without a controller and does not say which samples it has seen; resume "
        "its run, whose log does if it is whole"));
}

/// "steps is 300 and was 200; policies.min_replicas is ...".
std::string differences(const model::JobSpec& now, const model::JobSpec& before) {
    const model::Json after = model::toJson(now).flatten(), was = model::toJson(before).flatten();
    std::set<std::string> keys;
    for (const auto& [key, value] : after.items()) keys.insert(key);
    for (const auto& [key, value] : was.items()) keys.insert(key);
    const auto valueOf = [](const model::Json& all, const std::string& key) {
        return all.contains(key) ? all[key].dump() : "not there";
    };
    std::string text;
    for (const std::string& key : keys) {
        if (valueOf(after, key) == valueOf(was, key)) continue;
        absl::StrAppend(&text, text.empty() ? "" : "; ",
                        absl::StrReplaceAll(key.substr(1), {{"/", "."}}), " is ",
                        valueOf(after, key), " and was ", valueOf(was, key));
    }
    return text;
}

bool sameDomains(const model::JobSpec& a, const model::JobSpec& b) {
    return std::equal(a.domains.begin(), a.domains.end(), b.domains.begin(), b.domains.end(),
                      [](const auto& x, const auto& y) { return x.name == y.name; });
}

/// Its text lies in a run's folder, and is still there.
bool isCopied(const model::JobSpec& spec) {
    return !spec.domains.empty() &&
           std::all_of(spec.domains.begin(), spec.domains.end(), [](const auto& domain) {
               return domain.paths.size() == 1 && fs::exists(domain.paths[0]) &&
                      fs::path(domain.paths[0]).parent_path().filename() == kTextFolder;
           });
}

}  // namespace

absl::StatusOr<std::vector<protocol::LogEntry>> readLog(const FileSystem& files,
                                                        const std::string& runDir) {
    const auto bytes = files.read(runDir + "/commit.log");
    if (!bytes.ok()) return bytes.status();
    auto decoded = protocol::decodeLog(*bytes);
    if (!decoded.ok())
        return absl::Status(
            decoded.status().code(),
            absl::StrCat(runDir, "/commit.log: ", std::string(decoded.status().message())));
    return atHome(files, runDir, std::move(decoded->entries));
}

std::vector<protocol::LogEntry> atHome(const FileSystem& files, const std::string& runDir,
                                       std::vector<protocol::LogEntry> entries) {
    constexpr int kManifestBelow = 3;  // checkpoints, its own folder, the manifest
    const auto move = [&](std::string& path) {
        if (!path.empty()) path = pathNow(files, runDir, path, kManifestBelow);
    };
    for (protocol::LogEntry& entry : entries) {
        if (auto* checkpoint = std::get_if<protocol::LogCheckpoint>(&entry)) move(checkpoint->path);
        if (auto* lineage = std::get_if<protocol::LogLineage>(&entry)) move(lineage->resumeFrom);
        if (auto* dropped = std::get_if<protocol::LogCheckpointsDropped>(&entry))
            for (std::string& path : dropped->paths) move(path);
    }
    return entries;
}

absl::Status checkLog(const FileSystem& files, const std::string& runDir,
                      const model::JobSpec& spec, const std::vector<protocol::LogEntry>& entries,
                      const protocol::RecoveredState& recovered, const std::string& id,
                      bool knows) {
    using At = std::pair<uint64_t, uint64_t>;  // lineage, step
    const auto [stored, foreigners] = checkpointsThere(files, runDir, spec, entries);
    if (stored.empty() && !foreigners.empty())
        return absl::DataLossError(
            absl::StrCat("the checkpoints in ", spec.checkpointDir, " are another run's (",
                         foreigners[0].run, ") than ", runDir, "/id and commit.log say (", id,
                         "): put back the checkpoints, or these two files, that were there"));
    if (stored.empty()) {
        const auto newest = newestFolder(files, spec.checkpointDir);
        if (knows || !newest ||
            At(newest->lineage, newest->step) <= At(recovered.lineage, recovered.step))
            return absl::OkStatus();
        const absl::Status manifest = readManifest(files, newest->path + "/manifest.json").status();
        return absl::DataLossError(absl::StrCat(
            runDir, "/commit.log ends with step ", recovered.step, ", and ", newest->path,
            " has a checkpoint of step ", newest->step, " that cannot be used: ",
            manifest.ok() ? absl::string_view("a file of it is missing or cut off")
                          : manifest.message(),
            "; put the files back that were there, or move the folder away to train from step ",
            recovered.step, " on"));
    }
    std::map<At, const CommitRecord*> logged;
    for (const protocol::LogEntry& entry : entries)
        if (const auto* commit = std::get_if<protocol::LogCommit>(&entry))
            logged[{commit->record.lineage, commit->record.step}] = &commit->record;
    const protocol::StoredCheckpoint* newest = nullptr;
    bool foreign = false, behind = false;
    for (const protocol::StoredCheckpoint& s : stored) {
        const At at{s.last.lineage, s.last.step};
        if (newest == nullptr || At(newest->last.lineage, newest->last.step) < at) newest = &s;
        const auto it = logged.find(at);
        // The run's own of a step that was done again: its disk had lost that it was committed.
        const bool own = !id.empty() && s.run == id && recovered.run == id;
        foreign = foreign || (it != logged.end() && *it->second != s.last && !own) ||
                  (recovered.lineage != 0 && !s.run.empty() && !id.empty() && s.run != id);
        behind = behind || at > At(recovered.lineage, recovered.step);
    }
    if (!foreign && (knows || !behind)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        runDir, "/commit.log ",
        foreign                  ? "is another run's than the checkpoints in its folder"
        : recovered.lineage == 0 ? "has nothing of this run, which has checkpoints"
                                 : absl::StrCat("ends with step ", recovered.step,
                                                ", and the run has checkpoints of later ones"),
        ", the newest of step ", newest->last.step,
        ": put the file back that was there, or go on from that checkpoint in a new run: "
        "bulkheadctl start --resume ",
        newest->path));
}

absl::Status checkInPlace(const FileSystem& files, const std::string& runDir,
                          const model::JobSpec& spec,
                          const std::vector<protocol::LogEntry>& entries,
                          const std::vector<protocol::LogCheckpoint>& logged, bool settled) {
    if (logged.empty()) return absl::OkStatus();
    const auto whole = [&](const protocol::LogCheckpoint& c) {
        const auto manifest = readManifest(files, c.path);
        if (!manifest.ok()) return manifest.status();
        const absl::Status meant = checkIsMeant(c.path, *manifest, c.step, c.hashes);
        return meant.ok() ? checkFiles(files, c.path, *manifest) : meant;
    };
    const protocol::CheckpointBook book(logged);
    const protocol::LogCheckpoint& newest = *book.newest();
    const absl::Status lacks = whole(newest);
    if (lacks.ok()) return absl::OkStatus();
    // A log that lost its end names those that were removed since; later ones show that the folder
    // is in its place.
    std::optional<uint64_t> next;  // the newest step that can be gone on from
    if (const auto there = judgeCheckpoints(files, runDir, spec, entries); there.ok())
        for (const protocol::LogCheckpoint& c : *there)
            next = std::max(next, std::optional(c.step));
    for (const protocol::LogCheckpoint& c : logged)
        if (whole(c).ok()) next = std::max(next, std::optional(c.step));
    if (next && (settled || *next >= newest.step)) return absl::OkStatus();
    if (next)
        return absl::UnavailableError(absl::StrCat(
            "the newest of the run's checkpoints, of step ", newest.step,
            ", is not whole in its place: ", lacks.message(),
            "; if it is on its way back, the job goes on from it by itself, and else from step ",
            *next, " when nothing in ", spec.checkpointDir, " has changed for a minute"));
    const bool foreign = !checkpointsThere(files, runDir, spec, entries).foreign.empty();
    return absl::UnavailableError(absl::StrCat(
        "none of the run's checkpoints lies whole in its place (the newest, of step ", newest.step,
        ", is ", newest.path, ": ", lacks.message(), ")",
        foreign ? ", and what lies there is another run's" : "",
        ": mount the disk, or move the folder back to where it was, and the job goes on by itself; "
        "if they are lost for good, end this controller and move ",
        runDir, " away"));
}

absl::StatusOr<std::vector<model::LogLink>> logLinks(const FileSystem& files,
                                                     const std::string& runDir) {
    // Before the log: of a run that trains, a checkpoint that is made meanwhile is of a later step.
    const auto manifest = newestManifest(files, runDir);
    const auto entries = readLog(files, runDir);
    if (!entries.ok()) return entries.status();
    if (entries->empty())
        return absl::DataLossError(runDir + "/commit.log: it is empty, expected the run's steps");
    if (isForeign(*entries, runIdentity(files, runDir)))
        return absl::DataLossError(runDir + "/commit.log: it is another run's");
    if (entries->size() == 1 && std::holds_alternative<protocol::LogFinished>(entries->front()))
        return absl::NotFoundError(runDir + "/commit.log: it was set aside");
    std::vector<model::LogLink> links;
    std::string before;
    uint64_t step = 0, most = 0;
    const auto follow = [&](const auto& entry) {
        if constexpr (requires { entry.link; }) {
            const bool follows = entry.link.empty()
                                     ? before.empty()
                                     : chainLink(before, protocol::chained(entry)) == entry.link;
            before = entry.link;
            return follows;
        }
        return true;
    };
    for (const protocol::LogEntry& entry : *entries) {
        if (const auto* commit = std::get_if<protocol::LogCommit>(&entry)) {
            step = commit->record.step;
            most = std::max(most, step);
            links.push_back({commit->record.lineage, step, commit->link});
        }
        if (const auto* lineage = std::get_if<protocol::LogLineage>(&entry))
            most = std::max(most, lineage->fromStep);
        if (!std::visit(follow, entry))
            return absl::DataLossError(
                absl::StrCat(runDir, "/commit.log: its chain is broken at or behind step ", step));
    }
    if (manifest && manifest->step > most)
        return absl::DataLossError(absl::StrCat(runDir, "/commit.log: it ends with step ", most,
                                                ", and the run has a checkpoint of step ",
                                                manifest->step));
    return links;
}

absl::StatusOr<std::vector<protocol::LogCheckpoint>> checkpointsOnDisk(const FileSystem& files,
                                                                       const std::string& runDir,
                                                                       const model::JobSpec& spec) {
    const auto entries = readLog(files, runDir);
    if (!entries.ok()) return entries.status();
    return judgeCheckpoints(files, runDir, spec, *entries);
}

std::string makeRunId(const std::string& name, int64_t unixNs) {
    std::string id;
    for (const char c : name.substr(0, 40))
        id += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ? c : '-';
    const time_t seconds = unixNs / kSecond;
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    char stamp[32];
    std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
    return absl::StrCat(id.empty() ? "run" : id, "-", stamp);
}

absl::StatusOr<std::unique_ptr<FileLock>> lockRun(FileSystem& files, const std::string& runDir) {
    auto lock = files.lock(runDir + "/term.lock");
    if (absl::IsFailedPrecondition(lock.status()))
        return absl::FailedPreconditionError(absl::StrCat(
            "another coordinator runs the job in ", runDir, "; stop it first, or attach to it"));
    return lock;
}

std::string checkpointLock(const std::string& checkpointDir) {
    return absl::StrCat(checkpointDir, "/", kCheckpointLock);
}

absl::StatusOr<std::unique_ptr<FileLock>> lockCheckpoints(FileSystem& files,
                                                          const std::string& checkpointDir) {
    if (absl::Status s = files.makeFolder(checkpointDir); !s.ok()) return s;
    const std::string path = checkpointLock(checkpointDir);
    auto lock = files.lock(path);
    if (absl::IsFailedPrecondition(lock.status()))
        return absl::FailedPreconditionError(
            absl::StrCat("a job runs already whose checkpoints go to ", checkpointDir,
                         " (its controller holds ", path,
                         "): is this run, or its state directory, a copy of one that is in use? "
                         "Stop that job, or resume from a checkpoint in a new run"));
    return lock;
}

std::string checkpointsBelow(const std::string& checkpointDir, const std::string& run) {
    return absl::StrCat(checkpointDir, "/", run);
}

absl::Status claimCheckpoints(FileSystem& files, const std::string& folder) {
    for (const std::string& name : files.list(folder))
        if (name != kCheckpointLock)
            return absl::InvalidArgumentError(
                absl::StrCat(folder,
                             " is in use already, by a run of the same name or for something else; "
                             "choose another name for this run, or another checkpoint_dir"));
    const absl::Status made = files.makeFolder(folder);
    if (made.ok() || absl::IsResourceExhausted(made)) return made;
    return absl::InvalidArgumentError(
        absl::StrCat("no checkpoint can be written: ", made.message(),
                     "; set checkpoint_dir to a folder that can be made and written"));
}

std::string runIdentity(const FileSystem& files, const std::string& runDir) {
    const std::string id =
        std::string(absl::StripAsciiWhitespace(files.read(runDir + "/id").value_or("")));
    const bool whole = id.size() == 32 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
                           return std::isxdigit(c);
                       });
    return whole ? id : "";
}

absl::Status writeIdentity(FileSystem& files, const std::string& runDir, const std::string& id) {
    return writeDurably(files, runDir + "/id", id + "\n");
}

absl::Status checkRunId(const std::string& run) {
    const bool plain = !run.empty() && run.size() <= 80 && run[0] != '.' &&
                       std::all_of(run.begin(), run.end(), [](unsigned char c) {
                           return std::isalnum(c) || c == '-' || c == '_' || c == '.';
                       });
    if (plain) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", run, "\" cannot name a run; use up to 80 letters, digits, '-', '_' and '.'"));
}

bool isUnfinished(const FileSystem& files, const std::string& runDir) {
    const auto entries = readWholeEntries(files, runDir);
    return isForeign(entries, runIdentity(files, runDir)) ||
           std::none_of(entries.begin(), entries.end(), [](const auto& entry) {
               return std::holds_alternative<protocol::LogFinished>(entry);
           });
}

std::string supersededText(const std::string& by) {
    return absl::StrCat(kSupersedes[0], by, kSupersedes[1]);
}

std::string supersededBy(const FileSystem& files, const std::string& runDir) {
    const std::string text = files.read(runDir + "/" + kSetAside).value_or("");
    absl::string_view by = absl::StripAsciiWhitespace(text);
    const bool said =
        absl::ConsumePrefix(&by, kSupersedes[0]) && absl::ConsumeSuffix(&by, kSupersedes[1]);
    return said && checkRunId(std::string(by)).ok() ? std::string(by) : "";
}

absl::Status setAside(FileSystem& files, const std::string& runDir, const std::string& by) {
    const std::string why = supersededText(by);
    const std::string path = runDir + "/commit.log";
    if (absl::Status s = files.rename(path, path + ".damaged"); !s.ok() && !absl::IsNotFound(s))
        return s;
    if (absl::Status s = writeDurably(files, runDir + "/" + kSetAside, why + "\n"); !s.ok())
        return s;
    return writeDurably(files, path,
                        std::string(protocol::kLogHeader) +
                            protocol::encodeEntry(protocol::LogFinished{false, why}));
}

absl::Status checkNotSetAside(const FileSystem& files, const std::string& runDir) {
    const auto why = files.read(runDir + "/" + kSetAside);
    if (!why.ok()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "it was set aside: ", absl::StripAsciiWhitespace(*why),
        ", and its log was put back since; both would train on the same samples. To take it up all "
        "the same, remove ",
        runDir, "/", kSetAside));
}

bool isRun(const FileSystem& files, const std::string& runDir) {
    return files.exists(runDir + "/job.json") ||
           !protocol::wholeEntries(files.read(runDir + "/commit.log").value_or("")).empty() ||
           !listCheckpoints(files, absl::StrCat(runDir, "/", kCheckpointFolder)).empty();
}

std::vector<std::string> unfinishedRuns(const FileSystem& files, const std::string& stateDir) {
    std::vector<std::string> unfinished;
    for (const std::string& run : runsOf(files, stateDir))
        if (isUnfinished(files, stateDir + "/" + run)) unfinished.push_back(run);
    return unfinished;
}

std::pair<uint64_t, uint64_t> newestLogged(const FileSystem& files, const std::string& runDir) {
    std::pair<uint64_t, uint64_t> newest;
    for (const protocol::LogEntry& entry : readWholeEntries(files, runDir)) {
        if (const auto* commit = std::get_if<protocol::LogCommit>(&entry))
            newest.first = commit->record.step;
        if (const auto* lineage = std::get_if<protocol::LogLineage>(&entry))
            newest.first = lineage->fromStep;
        if (const auto* checkpoint = std::get_if<protocol::LogCheckpoint>(&entry))
            newest.second = checkpoint->step;
    }
    return newest;
}

absl::StatusOr<model::JobSpec> readSpec(const FileSystem& files, const std::string& runDir) {
    const std::string path = runDir + "/job.json";
    const auto text = files.read(path);
    std::string wrong;
    if (absl::IsNotFound(text.status()))
        wrong = path + " is missing";
    else if (!text.ok())
        wrong = std::string(text.status().message());
    else if (absl::StripAsciiWhitespace(*text).empty())
        wrong = path + " is empty";
    if (wrong.empty()) {
        auto spec = model::fromJsonText<model::JobSpec>(*text);
        if (spec.ok() && !spec->name.empty()) return specNow(files, runDir, *std::move(spec));
        wrong = absl::StrCat(
            path, " is damaged: ", spec.ok() ? "it names no job" : spec.status().message());
    }
    if (auto manifest = newestManifest(files, runDir)) {
        spdlog::warn("{}; the job in {} counts", wrong, manifest->path);
        return std::move(manifest->spec);
    }
    return absl::DataLossError(
        absl::StrCat(wrong, ", and no checkpoint of the run names its job; put the file back"));
}

absl::Status checkUnedited(const FileSystem& files, const std::string& runDir,
                           const model::JobSpec& spec) {
    // All of them may have been written and none logged when everything was killed.
    const auto manifest = newestManifest(files, runDir, spec.checkpointDir);
    if (!manifest) return absl::OkStatus();
    const std::string changes = differences(spec, manifest->spec);
    if (changes.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(runDir, "/job.json was edited since its checkpoint of step ", manifest->step,
                     ": ", changes, "; put it back, or remove it to go on as the checkpoint says"));
}

absl::Status checkUnedited(const FileSystem& files, const std::string& runDir,
                           const model::JobSpec& spec, const model::RunState& past) {
    if (past.spec.name.empty()) return absl::OkStatus();  // history does not know the run's begin
    const std::string changes = differences(spec, specNow(files, runDir, past.spec));
    if (changes.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        runDir, "/job.json was edited since the run began: ", changes, "; put it back"));
}

absl::StatusOr<FoundCheckpoint> findCheckpoint(const FileSystem& files, const std::string& stateDir,
                                               const std::string& from,
                                               const std::vector<std::string>& without) {
    const std::string runDir = stateDir + "/" + from;
    const bool isRun = checkRunId(from).ok() && bulkhead::runtime::isRun(files, runDir);
    const std::vector<std::string> runs = isRun ? std::vector{from} : runsOf(files, stateDir);
    for (const std::string& run : runs) {
        const std::string dir = stateDir + "/" + run;
        const auto log = readLog(files, dir);
        if (absl::IsFailedPrecondition(log.status())) {  // another build can read more of it
            if (isRun) return log.status();
            continue;
        }
        const auto spec = readSpec(files, dir);
        const auto entries = readWholeEntries(files, dir);
        if (isForeign(entries, runIdentity(files, dir))) {
            const auto own = isRun ? newestManifest(files, dir) : std::nullopt;
            if (own) return byManifestAlone(files, own->path);
            continue;
        }
        if (!spec.ok()) {
            if (isRun) return spec.status();
            continue;
        }
        protocol::CheckpointBook book;
        const auto state =
            protocol::recoverState(entries, spec->replicas + spec->spares, domainsOf(*spec));
        const auto onDisk = judgeCheckpoints(files, dir, *spec, entries);
        if (state.ok() && onDisk.ok()) {
            for (const auto& list : {state->checkpoints, *onDisk})
                for (const protocol::LogCheckpoint& c : list) book.add(c);
            for (const std::string& path : state->unusable) book.remove(path);
        } else {  // entries in its middle are damaged; what the others name is there
            book = protocol::CheckpointBook(checkpointsOf(entries));
            for (const protocol::LogCheckpoint& c : protocol::judgeBehindDamage(
                     entries, spec->replicas + spec->spares, domainsOf(*spec),
                     checkpointsThere(files, dir, *spec, entries).own))
                book.add(c);
        }
        if (isRun)
            for (const std::string& path : without) book.remove(path);
        for (; const protocol::LogCheckpoint* newest = book.newest(); book.remove(newest->path)) {
            const auto manifest = readManifest(files, newest->path);
            const bool another =
                manifest.ok() &&
                !checkIsMeant(newest->path, *manifest, newest->step, newest->hashes).ok();
            if ((isRun || newest->path == from) && files.exists(newest->path) && !another)
                return FoundCheckpoint{*spec, *newest};
        }
    }
    if (isRun) {
        const auto log = readLog(files, runDir);
        if (!log.ok()) return log.status();
        const auto spec = readSpec(files, runDir);
        if (spec.ok())
            if (auto found = newestGivenUp(files, runDir, *spec, *log))
                return FoundCheckpoint{*spec, *std::move(found)};
        for (auto entry = log->rbegin(); entry != log->rend(); ++entry)
            if (const auto* checkpoint = std::get_if<protocol::LogCheckpoint>(&*entry))
                return absl::NotFoundError(absl::StrCat(
                    "none of the checkpoints of run ", from, " lies in its place; put back ",
                    checkpoint->path, " (step ", checkpoint->step,
                    ", the last one that was logged) or an earlier one, and try again"));
        if (const auto left = spec.ok() ? newestFolder(files, spec->checkpointDir) : std::nullopt)
            return absl::NotFoundError(absl::StrCat(
                "run ", from, " has no checkpoint that can be used: what is left in ", left->path,
                " is not whole, or does not say which samples it has seen; put back "
                "what was there"));
        return absl::NotFoundError(
            absl::StrCat("run ", from, " has no checkpoint; start it anew instead"));
    }
    if (!files.exists(from))
        return absl::NotFoundError(absl::StrCat("\"", from, "\" is neither a run of ", stateDir,
                                                " nor the manifest of a checkpoint"));
    return byManifestAlone(files, from);
}

absl::Status checkFits(const std::string& from, const FoundCheckpoint& found,
                       const model::JobSpec& spec) {
    if (found.spec.shards == spec.shards) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(from, " was written with ", found.spec.shards, " shards and the job has ",
                     spec.shards, "; resume it with --shards ", found.spec.shards));
}

absl::Status checkStates(const FileSystem& files, const std::string& manifest) {
    const auto read = readManifest(files, manifest);
    return read.ok() ? checkStates(files, manifest, *read) : read.status();
}

std::vector<model::DomainSpec> textOf(const model::JobSpec& spec, const model::JobSpec& earlier) {
    return isCopied(earlier) && sameDomains(earlier, spec) ? earlier.domains : spec.domains;
}

absl::Status takeText(model::JobSpec& spec, const std::string& runDir,
                      const model::JobSpec* earlier) {
    if (earlier != nullptr) spec.domains = textOf(spec, *earlier);
    if (!spec.command.empty() || spec.dataCopyBytes == 0 || spec.domains.empty())
        return absl::OkStatus();
    const absl::StatusOr<uint64_t> bytes = model::dataBytes(spec);
    if (!bytes.ok()) return bytes.status();
    if (*bytes > spec.dataCopyBytes) {
        spdlog::info(
            "{} bytes of training text are read where they are (data_copy_bytes = {}): leave them "
            "as they are while the job runs",
            *bytes, spec.dataCopyBytes);
        return absl::OkStatus();
    }
    auto copied = model::copyDomains(spec.domains, runDir + "/" + kTextFolder);
    if (!copied.ok()) return copied.status();
    spec.domains = *std::move(copied);
    return absl::OkStatus();
}

absl::Status checkText(const FileSystem& files, const model::JobSpec& spec,
                       const std::string& manifest) {
    if (!spec.command.empty()) return absl::OkStatus();  // only its ranks know their data
    const auto read = readManifest(files, manifest);
    const auto bytes = model::dataBytes(spec);
    const uint64_t most = std::max(spec.dataCopyBytes, model::JobSpec().dataCopyBytes);
    if (!read.ok() || !bytes.ok() || *bytes > most) return absl::OkStatus();
    model::TextIdentity identity;
    for (const model::DomainSpec& domain : spec.domains) {
        const auto text = model::readDomain(domain);
        if (!text.ok()) return text.status();
        identity.add(domain.name, *text);
    }
    return checkSameText(manifest, *read, identity.hash(), identity.newest());
}

uint64_t corpusHashOf(const FileSystem& files,
                      const std::vector<protocol::LogCheckpoint>& checkpoints) {
    for (auto it = checkpoints.rbegin(); it != checkpoints.rend(); ++it)
        if (const auto manifest = readManifest(files, it->path); manifest.ok())
            return manifest->corpusHash;
    return 0;
}

}  // namespace bulkhead::runtime
