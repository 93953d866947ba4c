// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/worker_options.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "backend/model/event_json.h"

namespace bulkhead::runtime {
namespace {

absl::StatusOr<std::string> readText(const std::string& option, const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in)
        return absl::InvalidArgumentError(
            absl::StrCat(option, " ", path, ": ", std::strerror(errno)));
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

constexpr const char* kRemedy = "agents start workers, people do not: see bulkhead-worker --help";

class Arguments {
  public:
    absl::Status parse(const std::vector<std::string>& args) {
        for (size_t i = 0; i < args.size(); i += 2) {
            if (!args[i].starts_with("--") || i + 1 == args.size())
                return absl::InvalidArgumentError(
                    absl::StrCat("\"", args[i], "\": expected --option VALUE; ", kRemedy));
            values_[args[i].substr(2)] = args[i + 1];
        }
        return absl::OkStatus();
    }
    std::string text(const std::string& name) {
        const auto it = values_.find(name);
        if (it == values_.end()) {
            fail(absl::StrCat("--", name, " is missing"));
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
        if (status_.ok() && (!absl::SimpleAtoi(given, &value) || value < 0))
            fail(absl::StrCat("--", name, " ", given, ": expected a number, 0 or more"));
        return value;
    }
    absl::Status finish() {
        if (status_.ok() && !values_.empty())
            fail(absl::StrCat("--", values_.begin()->first, " is not known"));
        return status_;
    }

  private:
    void fail(const std::string& why) {
        if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(why, "; ", kRemedy));
    }
    std::map<std::string, std::string> values_;
    absl::Status status_;
};

}  // namespace

std::string workerUsage() {
    return "usage: bulkhead-worker --job ID --job-file FILE --coordinator ADDRESS --token-file "
           "FILE --replica R --shard S --incarnation I --node NAME --address IP --run-dir DIR\n"
           "One rank of one replica. Agents start it; what to train comes with the job.\n"
           "Exit codes: 0 left as asked, 1 internal error, 2 usage, 3 expelled, 4 no coordinator,\n"
           "5 this job cannot run, 6 a rank of its replica was lost.";
}

absl::StatusOr<RankOptions> readWorkerOptions(const std::vector<std::string>& args) {
    Arguments arguments;
    if (absl::Status s = arguments.parse(args); !s.ok()) return s;
    RankOptions options;
    options.job = arguments.text("job");
    const std::string jobFile = arguments.text("job-file");
    options.coordinator = arguments.text("coordinator");
    const std::string tokenFile = arguments.text("token-file");
    options.rank.replica = arguments.number<int32_t>("replica");
    options.rank.shard = arguments.number<int32_t>("shard");
    options.incarnation = arguments.number<uint32_t>("incarnation");
    options.node = arguments.text("node");
    options.address = arguments.text("address");
    options.runDir = arguments.text("run-dir");
    if (absl::Status s = arguments.finish(); !s.ok()) return s;
    absl::StatusOr<std::string> token = readText("--token-file", tokenFile);
    if (!token.ok()) return token.status();
    options.token = std::string(absl::StripAsciiWhitespace(*token));
    absl::StatusOr<std::string> job = readText("--job-file", jobFile);
    if (!job.ok()) return job.status();
    absl::StatusOr<model::JobSpec> spec = model::fromJsonText<model::JobSpec>(*job);
    if (!spec.ok())
        return absl::InvalidArgumentError(
            absl::StrCat(jobFile, ": ", std::string(spec.status().message())));
    options.spec = *std::move(spec);
    if (static_cast<uint32_t>(options.rank.shard) >= options.spec.shards)
        return absl::InvalidArgumentError(absl::StrCat(
            "--shard ", options.rank.shard, ": the job has ", options.spec.shards, " shards"));
    return options;
}

}  // namespace bulkhead::runtime
