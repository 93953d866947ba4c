// SPDX-License-Identifier: Apache-2.0
#include "backend/client/job_source.h"

#include <google/protobuf/stubs/common.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/str_format.h"
#include "backend/common/file_system.h"
#include "backend/model/command_text.h"
#include "backend/model/job_file.h"

namespace bulkhead::client {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostJobBytes = 1 << 20;

Failure badJob(std::string cause, std::string remedy) {
    return {FailureCode::kInvalid, "Cannot use this job", std::move(cause), std::move(remedy),
            false};
}

Failure badJob(const absl::Status& status) {
    return localFailure(FailureCode::kInvalid, "Cannot use this job",
                        std::string(status.message()));
}

/// Counted from 1; 0: all of it is UTF-8.
size_t firstLineThatIsNoText(std::string_view text) {
    for (size_t line = 1; !text.empty(); ++line) {
        const std::string_view one = text.substr(0, text.find('\n'));
        if (!google::protobuf::internal::IsStructurallyValidUTF8(one.data(),
                                                                 static_cast<int>(one.size())))
            return line;
        text.remove_prefix(std::min(one.size() + 1, text.size()));
    }
    return 0;
}

/// Quotes it as a TOML string.
std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        const auto code = static_cast<unsigned char>(c);
        out += code < 0x20 || code == 0x7f ? absl::StrFormat("\\u%04x", code) : std::string(1, c);
    }
    return out + "\"";
}

}  // namespace

std::string demoJobFile() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    const fs::path installed =
        self.parent_path().parent_path() / "share/bulkhead/resources/jobs/demo.toml";
    if (!error && fs::exists(installed, error)) return installed.string();
    return BULKHEAD_SOURCE_DIR "/resources/jobs/demo.toml";
}

Result<JobText> readJob(const JobSource& job) {
    JobText out;
    out.resumeFrom = job.resume;
    if (job.file.empty() && !job.command.empty()) {
        out.fileName = "command";
        out.baseDir = fs::current_path().string();
    } else {
        const fs::path file = job.file.empty() ? demoJobFile() : job.file;
        auto text = readAtMost(file.string(), kMostJobBytes);
        if (!text.ok())
            return badJob(std::string(text.status().message()), "Name a job file that is there.");
        if (const size_t line = firstLineThatIsNoText(*text); line > 0)
            return badJob(absl::StrFormat("%s:%d: expected text in UTF-8, found other bytes",
                                          file.string(), line),
                          "Save the file as UTF-8.");
        out.text = *std::move(text);
        out.fileName = file.string();
        out.baseDir = fs::absolute(file).parent_path().string();
    }
    if (!job.command.empty()) {
        std::string list;
        for (const std::string& word : job.command)
            list += (list.empty() ? "" : ", ") + quoted(word);
        out.overrides.push_back("command=[" + list + "]");
        out.overrides.push_back("directory=" + quoted(fs::current_path().string()));
    }
    const std::pair<const char*, const std::string*> simple[] = {{"replicas", &job.replicas},
                                                                 {"shards", &job.shards},
                                                                 {"steps", &job.steps},
                                                                 {"seed", &job.seed}};
    for (const auto& [key, value] : simple)
        if (!value->empty()) out.overrides.push_back(std::string(key) + "=" + *value);
    if (!job.name.empty()) out.overrides.push_back("name=" + quoted(job.name));
    if (!job.faults.empty()) {
        std::string list;
        for (const std::string& fault : job.faults) {
            if (const auto parsed = model::parseFault(fault); !parsed.ok())
                return badJob(parsed.status());
            list += (list.empty() ? "" : ", ") + quoted(fault);
        }
        out.overrides.push_back("faults=[" + list + "]");
    }
    if (!job.data.empty()) {
        const auto domains = model::domainsOfFolder(fs::absolute(job.data));
        if (!domains.ok()) return badJob(domains.status());
        std::string list;
        for (const model::DomainSpec& domain : *domains) {
            std::string paths;
            for (const std::string& path : domain.paths)
                paths += (paths.empty() ? "" : ", ") + quoted(path);
            list += (list.empty() ? "" : ", ") + ("{name=" + quoted(domain.name)) + ", paths=[" +
                    paths + "]}";
        }
        out.overrides.push_back("domains=[" + list + "]");
    }
    for (const std::string& set : job.set)
        if (!job.faults.empty() && set.starts_with("faults="))
            return badJob("--set " + set + " would take the place of --fault.",
                          "Leave it out: --fault allows faults.");
    out.overrides.insert(out.overrides.end(), job.set.begin(), job.set.end());
    return out;
}

}  // namespace bulkhead::client
