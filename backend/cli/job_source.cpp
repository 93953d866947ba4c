// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/job_source.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "backend/cli/cli.h"
#include "backend/model/command_text.h"
#include "backend/model/job_file.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;

client::Failure badJob(std::string cause, std::string remedy) {
    return {client::FailureCode::kInvalid, "Cannot use this job", std::move(cause),
            std::move(remedy), false};
}

client::Failure badJob(const absl::Status& status) {
    return localFailure(client::FailureCode::kInvalid, "Cannot use this job",
                        std::string(status.message()));
}

/// Where the embedded demo lies: installed beside the programs, or in the sources we were built of.
fs::path demoFile() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    const fs::path installed =
        self.parent_path().parent_path() / "share/bulkhead/resources/jobs/demo.toml";
    if (!error && fs::exists(installed, error)) return installed;
    return fs::path(BULKHEAD_SOURCE_DIR) / "resources/jobs/demo.toml";
}

}  // namespace

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

bool JobSource::sets(const std::string& key) const {
    for (const std::string& one : set)
        if (one.rfind(key + "=", 0) == 0) return true;
    return false;
}

void addJobOptions(CLI::App& verb, JobSource& job) {
    verb.add_option("job,--job", job.file, "job file [the embedded demo]");
    verb.add_option("--replicas", job.replicas, "copies of the model")->check(CLI::PositiveNumber);
    verb.add_option("--shards", job.shards, "ranks of one replica")->check(CLI::PositiveNumber);
    verb.add_option("--steps", job.steps, "stop after so many")->check(CLI::NonNegativeNumber);
    verb.add_option("--seed", job.seed, "of the model and the data order")
        ->check(CLI::NonNegativeNumber);
    verb.add_option("--name", job.name, "of the job and its run");
    verb.add_option("--data", job.data, "folder of texts, each file or folder in it a domain");
    verb.add_option("--fault", job.faults, "e.g. kill:replica=2@step=50; may be repeated")
        ->allow_extra_args(false);
    verb.add_option("--set", job.set, "key=value of the job file, e.g. policies.lr=linear")
        ->allow_extra_args(false);
    verb.add_option("--resume", job.resume, "a checkpoint manifest, or an earlier run's id");
}

client::Result<client::JobText> readJob(const JobSource& job) {
    const fs::path file = job.file.empty() ? demoFile() : fs::path(job.file);
    std::ifstream in(file, std::ios::binary);
    if (!in) return badJob(file.string() + " cannot be read.", "Name a job file that is there.");
    client::JobText out;
    out.text.assign(std::istreambuf_iterator<char>(in), {});
    out.fileName = file.string();
    out.baseDir = fs::absolute(file).parent_path().string();
    out.resumeFrom = job.resume;
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
    out.overrides.insert(out.overrides.end(), job.set.begin(), job.set.end());
    return out;
}

}  // namespace bulkhead::cli
