// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/find_checkpoint.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/model/event_json.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/checkpoint/checkpoint.h"

namespace bulkhead::interchange {
namespace {

constexpr const char* kManifest = "/manifest.json";

struct Found {
    std::string path;
    uint64_t lineage = 0, step = 0;
    int64_t unixNs = 0;
};

void add(const FileSystem& files, const std::string& path, std::vector<Found>& found) {
    const bool known =
        std::any_of(found.begin(), found.end(), [&](const Found& f) { return f.path == path; });
    const auto manifest = runtime::readManifest(files, path);
    if (!known && manifest.ok())
        found.push_back({path, manifest->lineage, manifest->step, manifest->unixNs});
}

bool isRun(const FileSystem& files, const std::string& folder) {
    return files.exists(folder + "/job.json") || files.exists(folder + "/commit.log");
}

/// Those of a run: in its folder, else where its job says. The job of a copied folder goes on
/// naming the original's.
std::vector<Found> ofRun(const FileSystem& files, const std::string& folder) {
    std::string place = folder + "/checkpoints";
    if (!files.exists(place))
        if (const auto text = files.read(folder + "/job.json"); text.ok())
            if (const auto spec = model::fromJsonText<model::JobSpec>(*text); spec.ok())
                place = spec->checkpointDir;
    std::vector<Found> found;
    if (place.empty()) return found;
    for (const std::string& path : runtime::listCheckpoints(files, place)) add(files, path, found);
    return found;
}

bool older(const Found& a, const Found& b) {
    return std::tie(a.lineage, a.step, a.path) < std::tie(b.lineage, b.step, b.path);
}

int64_t lastWrite(const std::vector<Found>& found) {
    int64_t last = -1;  // before any, also of those that do not say when
    for (const Found& f : found) last = std::max(last, f.unixNs);
    return last;
}

/// Those of the run below `folder` that wrote last.
std::vector<Found> ofLatest(const FileSystem& files, const std::string& folder) {
    std::vector<Found> latest;
    for (const std::string& name : files.list(folder)) {
        const std::string run = absl::StrCat(folder, "/", name);
        if (!isRun(files, run)) continue;
        std::vector<Found> found = ofRun(files, run);
        if (lastWrite(found) > lastWrite(latest)) latest = std::move(found);
    }
    return latest;
}

std::vector<Found> inFolder(const FileSystem& files, const std::string& folder) {
    std::vector<Found> found;
    if (files.exists(folder + kManifest)) {
        add(files, folder + kManifest, found);
        return found;
    }
    if (isRun(files, folder)) return ofRun(files, folder);
    for (const std::string& path : runtime::listCheckpoints(files, folder)) add(files, path, found);
    if (found.empty()) found = ofLatest(files, folder);
    if (found.empty()) found = ofLatest(files, folder + "/jobs");
    return found;
}

std::vector<Found> look(const FileSystem& files, const std::string& where,
                        const std::vector<std::string>& jobsFolders) {
    std::vector<Found> found;
    for (const std::string& jobs : jobsFolders) {
        if (where == "latest") {
            std::vector<Found> here = ofLatest(files, jobs);
            if (lastWrite(here) > lastWrite(found)) found = std::move(here);
        } else if (where.find('/') == std::string::npos && isRun(files, jobs + "/" + where)) {
            return ofRun(files, jobs + "/" + where);
        }
    }
    return found.empty() ? inFolder(files, where) : found;
}

}  // namespace

absl::StatusOr<std::string> findManifest(const FileSystem& files, const std::string& where,
                                         std::optional<uint64_t> step,
                                         const std::vector<std::string>& jobsFolders) {
    if (absl::EndsWith(where, ".json") && files.exists(where)) {
        const auto manifest = runtime::readManifest(files, where);
        if (!manifest.ok()) return manifest.status();
        if (!step || manifest->step == *step) return where;
        return absl::NotFoundError(
            absl::StrCat(where, " is of step ", manifest->step, ", not of step ", *step));
    }
    std::vector<Found> found = look(files, where, jobsFolders);
    std::sort(found.begin(), found.end(), older);
    if (found.empty())
        return absl::NotFoundError(absl::StrCat(
            "there is no checkpoint of \"", where, "\": looked for it as a folder and in ",
            absl::StrJoin(jobsFolders, ", "),
            "; name a checkpoint's folder, or a run with -f RUN-FILE or --jobs FOLDER"));
    if (!step) return found.back().path;
    std::vector<uint64_t> there;
    for (auto one = found.rbegin(); one != found.rend(); ++one) {
        if (one->step == *step) return one->path;
        if (there.empty() || there.back() != one->step) there.push_back(one->step);
    }
    return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ", *step, " of \"",
                                            where, "\"; those there are of step ",
                                            absl::StrJoin(there, ", ")));
}

}  // namespace bulkhead::interchange
