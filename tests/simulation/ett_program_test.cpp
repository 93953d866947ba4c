// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "backend/model/what_if.h"

/// `bulkhead-sim ett` as a program: the figures are the library's, refusals name what may be given.
namespace bulkhead::simulation {
namespace {

struct Said {
    int code = -1;
    std::string out;  ///< and what it says on standard error
};

Said ett(const std::string& arguments) {
    const std::string command = BULKHEAD_SIM " ett " + arguments + " 2>&1";
    Said said;
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return said;
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
        said.out.append(buffer, n);
    const int status = ::pclose(pipe);
    said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return said;
}

void expectSame(const nlohmann::json& row, const model::WhatIf& scenario,
                const model::WhatIfResult& r) {
    EXPECT_EQ(row.at("effective"), r.effective);
    EXPECT_EQ(row.at("per_provisioned"), r.perProvisioned);
    EXPECT_EQ(row.at("error"), r.error);
    EXPECT_EQ(row.at("failures"), r.failures);
    EXPECT_EQ(row.at("mean_interval_s"), r.meanIntervalS);
    EXPECT_EQ(row.at("stall_s"), r.stallS);
    EXPECT_EQ(row.at("samples_redone"), r.samplesRedone);
    EXPECT_EQ(row.at("whole_job_lost"), r.wholeJobLost);
    for (size_t i = 0; i < model::kTimeLosses; ++i) {
        const auto name = model::timeLossName(static_cast<model::TimeLoss>(i));
        EXPECT_EQ(row.at("lost").at(std::string(name)), r.lost[i]) << name;
    }
    for (const model::WhatIfParameter& p : model::whatIfParameters())
        EXPECT_EQ(row.at("parameters").at(std::string(p.key)).at("value"), scenario.*p.field)
            << p.key;
}

TEST(EttProgram, GivesTheNumbersOfTheLibraryAndThePublishedPoints) {
    const Said said = ett("--json");
    ASSERT_EQ(said.code, 0) << said.out;
    const auto rows = nlohmann::json::parse(said.out).at("scenarios");
    ASSERT_EQ(rows.size(), model::whatIfPresets().size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const model::WhatIfPreset& p = model::whatIfPresets()[i];
        SCOPED_TRACE(p.name);
        EXPECT_EQ(rows[i].at("preset"), p.name);
        expectSame(rows[i], p.scenario, model::simulate(p.scenario, 54, 1));
        if (p.published > 0) {
            EXPECT_NEAR(rows[i].at("effective").get<double>(), p.published, 0.02);
        }
    }
}

TEST(EttProgram, ANumberThatIsSetChangesTheFiguresAndIsSaidToBeSet) {
    const Said said =
        ett("--preset bulkhead --set fetchGBps=0.01 --set spares=1 --days 5 --seed 3 "
            "--json");
    ASSERT_EQ(said.code, 0) << said.out;
    const auto out = nlohmann::json::parse(said.out);
    ASSERT_EQ(out.at("scenarios").size(), 1u);
    model::WhatIf s;
    for (const model::WhatIfPreset& p : model::whatIfPresets())
        if (p.name == "bulkhead") s = p.scenario;
    s.fetchGBps = 0.01;
    s.spares = 1;
    const auto& row = out.at("scenarios")[0];
    expectSame(row, s, model::simulate(s, 5, 3));
    EXPECT_EQ(row.at("parameters").at("fetchGBps").at("source"), "set on the command line");
    EXPECT_THAT(row.at("parameters").at("replicas").at("source").get<std::string>(),
                testing::HasSubstr("arXiv"));
}

TEST(EttProgram, TheTableNamesEveryPreset) {
    const Said said = ett("");
    EXPECT_EQ(said.code, 0);
    for (const model::WhatIfPreset& p : model::whatIfPresets())
        EXPECT_THAT(said.out, testing::HasSubstr(std::string(p.title)));
}

TEST(EttProgram, RefusalsNameTheKeyAndItsBounds) {
    const std::pair<const char*, const char*> refused[] = {
        {"--set fetchGBps=0", "fetchGBps is 0; expected a number from 0.001 to 1000 GB/s"},
        {"--set fetch=1", "fetch is no number of a scenario; one of: replicas spares"},
        {"--set fetchGBps", "expected KEY=VALUE"},
        {"--preset mine", "--preset mine: no such preset; one of: published_sync"},
        {"--days 0", "--days 0: expected more than 0"}};
    for (const auto& [arguments, words] : refused) {
        const Said said = ett(arguments);
        EXPECT_EQ(said.code, 2) << arguments;
        EXPECT_THAT(said.out, testing::HasSubstr(words));
    }
}

}  // namespace
}  // namespace bulkhead::simulation
