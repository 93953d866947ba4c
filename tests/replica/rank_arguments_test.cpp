// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/rank_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/model/json.h"

namespace bulkhead::runtime {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A whole command line, in which `option` has another value; none when that is empty.
std::vector<std::string> line(const std::string& option = "", const std::string& value = "") {
    std::vector<std::pair<std::string, std::string>> values = {{"job", "j"},
                                                               {"job-file", "/nowhere/job.json"},
                                                               {"coordinator", "127.0.0.1:1"},
                                                               {"replica", "0"},
                                                               {"shard", "0"},
                                                               {"incarnation", "1"},
                                                               {"node", "here"},
                                                               {"address", "127.0.0.1"},
                                                               {"run-dir", "/nowhere"}};
    std::vector<std::string> args;
    for (auto& [name, given] : values) {
        if (name == option) given = value;
        if (given.empty()) continue;
        args.push_back("--" + name);
        args.push_back(given);
    }
    return args;
}

std::string whyNot(const std::vector<std::string>& args) {
    const auto options = readRankArguments(args);
    EXPECT_TRUE(absl::IsInvalidArgument(options.status())) << options.status();
    return std::string(options.status().message());
}

TEST(RankArguments, WhatIsMissingIsNamedWithWhoStartsWorkers) {
    for (const char* name : {"job", "job-file", "coordinator", "replica", "shard", "incarnation",
                             "node", "address", "run-dir"}) {
        const std::string why = whyNot(line(name));
        EXPECT_THAT(why, StartsWith("--" + std::string(name) + " is missing"));
        EXPECT_THAT(why, HasSubstr("bulkhead-worker --help"));
    }
}

TEST(RankArguments, TheFirstOfSeveralMistakesIsTold) {
    EXPECT_THAT(whyNot({"--replica", "many", "--unknown", "1"}), StartsWith("--job is missing"));
    std::vector<std::string> args = line("replica", "many");
    args.insert(args.end(), {"--unknown", "1"});
    EXPECT_THAT(whyNot(args), StartsWith("--replica many"));
}

TEST(RankArguments, ANumberIsZeroOrMore) {
    for (const char* name : {"replica", "shard", "incarnation"})
        for (const char* value : {"-1", "many", "1.5"})
            EXPECT_THAT(whyNot(line(name, value)),
                        StartsWith("--" + std::string(name) + " " + value + ": expected a number"));
    EXPECT_THAT(whyNot(line("replica", "0")), Not(HasSubstr("expected a number")));
}

TEST(RankArguments, WhatIsNotKnownIsRefusedByName) {
    std::vector<std::string> args = line();
    args.insert(args.end(), {"--unknown", "1"});
    EXPECT_THAT(whyNot(args), StartsWith("--unknown is not known"));
}

TEST(RankArguments, ALineIsOptionsEachWithItsValue) {
    EXPECT_THAT(whyNot({"job", "j"}), StartsWith("\"job\": expected --option VALUE"));
    EXPECT_THAT(whyNot({"--job"}), StartsWith("\"--job\": expected --option VALUE"));
}

/// In a job's folder, with secrets as an agent hands them down.
class WholeRankArguments : public testing::Test {
  protected:
    WholeRankArguments() {
        std::filesystem::create_directories(dir_);
        model::JobSpec spec;
        spec.shards = 2;
        std::ofstream(dir_ + "/job.json") << model::toJsonText(spec);
        std::ofstream(dir_ + "/id") << "the run\n";
    }
    ~WholeRankArguments() override { std::filesystem::remove_all(dir_); }
    absl::StatusOr<RankOptions> read(const std::string& shard) {
        UniqueFd pipe = *secretsPipe(secrets_);
        if (pipe.get() == kSecretsFd)
            (void)pipe.release();
        else
            EXPECT_EQ(::dup2(pipe.get(), kSecretsFd), kSecretsFd);
        ::setenv(kSecretsVariable, "1", 1);
        std::vector<std::string> args = line("shard", shard);
        for (std::string& arg : args)
            if (arg == "/nowhere/job.json") arg = dir_ + "/job.json";
        return readRankArguments(args);
    }
    const std::string dir_ = testing::TempDir() + "rank_arguments_" + std::to_string(::getpid());
    const RankSecrets secrets_{Secret::ofText("rank"), Secret::ofText("replica")};
};

TEST_F(WholeRankArguments, ARankKnowsItsJobItsRunAndItsSecrets) {
    const auto options = read("1");
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_EQ(options->job, "j");
    EXPECT_EQ(options->run, "the run");
    EXPECT_EQ(options->rank, (RankId{0, 1}));
    EXPECT_EQ(options->incarnation, 1u);
    EXPECT_EQ(options->spec.shards, 2u);
    EXPECT_TRUE(options->secrets.rank == secrets_.rank);
    EXPECT_TRUE(options->secrets.replica == secrets_.replica);
    EXPECT_FALSE(readRankArguments(line("shard", "1")).ok()) << "secrets are given once";
}

TEST_F(WholeRankArguments, WhatItsJobFileRulesOutIsRefused) {
    EXPECT_THAT(std::string(read("2").status().message()),
                StartsWith("--shard 2: the job has 2 shards"));
    std::ofstream(dir_ + "/job.json") << "{";
    EXPECT_THAT(std::string(read("1").status().message()), StartsWith(dir_ + "/job.json: "));
    std::filesystem::remove(dir_ + "/job.json");
    EXPECT_THAT(std::string(read("1").status().message()), StartsWith("--job-file " + dir_));
}

TEST(RankArguments, AProgramOfItsOwnIsToldWhichVariableAndWhoStartsIt) {
    ::unsetenv(protocol::rankVariable("job").c_str());
    const auto options = readRankEnvironment();
    ASSERT_TRUE(absl::IsInvalidArgument(options.status())) << options.status();
    const std::string why(options.status().message());
    EXPECT_THAT(why, StartsWith("BULKHEAD_JOB is missing"));
    EXPECT_THAT(why, HasSubstr("bulkheadctl up -- PROGRAM"));
    EXPECT_THAT(why, Not(HasSubstr("bulkhead-worker")));
}

}  // namespace
}  // namespace bulkhead::runtime
