// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/rank_arguments.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "backend/common/file_system.h"
#include "backend/model/event_json.h"
#include "backend/runtime/protocol/messages.h"

namespace bulkhead::runtime {
namespace {

absl::StatusOr<std::string> readText(const std::string& option, const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in)
        return absl::InvalidArgumentError(
            absl::StrCat(option, " ", path, ": ", std::strerror(errno)));
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

/// Named values, each to be asked for once; `--NAME` of a command line, or BULKHEAD_NAME of the
/// environment.
class Arguments {
  public:
    static absl::StatusOr<Arguments> ofLine(const std::vector<std::string>& args) {
        Arguments out;
        for (size_t i = 0; i < args.size(); i += 2) {
            if (!args[i].starts_with("--") || i + 1 == args.size())
                return absl::InvalidArgumentError(
                    absl::StrCat("\"", args[i], "\": expected --option VALUE; ", out.remedy()));
            out.values_[args[i].substr(2)] = args[i + 1];
        }
        return out;
    }
    static Arguments ofEnvironment() {
        Arguments out;
        out.line_ = false;
        return out;
    }

    std::string text(const std::string& name) {
        const char* variable = line_ ? nullptr : std::getenv(protocol::rankVariable(name).c_str());
        if (variable != nullptr) return variable;
        const auto it = values_.find(name);
        if (it == values_.end()) {
            fail(absl::StrCat(spell(name), " is missing"));
            return {};
        }
        std::string value = it->second;
        values_.erase(it);
        return value;
    }
    template <class T>
    T number(const std::string& name) {
        T value = 0;
        const std::string given = text(name);
        if (!absl::SimpleAtoi(given, &value) || value < 0)
            fail(absl::StrCat(spell(name), " ", given, ": expected a number, 0 or more"));
        return value;
    }
    absl::Status finish() {
        if (status_.ok() && !values_.empty())
            fail(absl::StrCat("--", values_.begin()->first, " is not known"));
        return status_;
    }
    std::string spell(const std::string& name) const {
        return line_ ? absl::StrCat("--", name) : protocol::rankVariable(name);
    }

  private:
    std::string remedy() const {
        return line_ ? "agents start workers, people do not: see bulkhead-worker --help"
                     : "agents start this program: bulkheadctl up -- PROGRAM ARGUMENTS";
    }
    void fail(const std::string& why) {
        if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(why, "; ", remedy()));
    }
    bool line_ = true;
    std::map<std::string, std::string> values_;
    absl::Status status_;
};

absl::StatusOr<RankOptions> readRank(Arguments arguments) {
    RankOptions options;
    options.job = arguments.text("job");
    const std::string jobFile = arguments.text("job-file");
    options.coordinator = arguments.text("coordinator");
    options.rank.replica = arguments.number<int32_t>("replica");
    options.rank.shard = arguments.number<int32_t>("shard");
    options.incarnation = arguments.number<uint32_t>("incarnation");
    options.node = arguments.text("node");
    options.address = arguments.text("address");
    options.runDir = arguments.text("run-dir");
    if (const char* note = std::getenv(protocol::rankVariable("controller-note").c_str()))
        options.controllerNote = note;
    if (absl::Status s = arguments.finish(); !s.ok()) return s;
    // Beside the job's file; without it checkpoints do not name their run.
    const std::string id = folderOf(jobFile) + "/id";
    options.run = std::string(absl::StripAsciiWhitespace(readText("", id).value_or("")));
    absl::StatusOr<RankSecrets> secrets = inheritSecrets();
    if (!secrets.ok()) return secrets.status();
    options.secrets = *secrets;
    absl::StatusOr<std::string> job = readText(arguments.spell("job-file"), jobFile);
    if (!job.ok()) return job.status();
    absl::StatusOr<model::JobSpec> spec = model::fromJsonText<model::JobSpec>(*job);
    if (!spec.ok())
        return absl::InvalidArgumentError(
            absl::StrCat(jobFile, ": ", std::string(spec.status().message())));
    options.spec = *std::move(spec);
    if (static_cast<uint32_t>(options.rank.shard) >= options.spec.shards)
        return absl::InvalidArgumentError(absl::StrCat(arguments.spell("shard"), " ",
                                                       options.rank.shard, ": the job has ",
                                                       options.spec.shards, " shards"));
    return options;
}

}  // namespace

absl::StatusOr<RankOptions> readRankArguments(const std::vector<std::string>& args) {
    absl::StatusOr<Arguments> arguments = Arguments::ofLine(args);
    if (!arguments.ok()) return arguments.status();
    return readRank(*std::move(arguments));
}

absl::StatusOr<RankOptions> readRankEnvironment() {
    return readRank(Arguments::ofEnvironment());
}

}  // namespace bulkhead::runtime
