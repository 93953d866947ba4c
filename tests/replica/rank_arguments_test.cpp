// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/rank_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

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
