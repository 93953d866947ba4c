// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/campaign_file.h"

#include <gmock/gmock.h>

namespace bulkhead::campaign {
namespace {

using testing::HasSubstr;

constexpr const char* kHead = "duration = \"1m\"\n";
constexpr const char* kKill = "[[faults]]\nat = \"0s\"\nfault = \"kill:replica=1\"\n";

std::string problem(const std::string& text) {
    const auto parsed = parseCampaign(text, "dir/c.toml");
    return parsed.ok() ? "" : std::string(parsed.status().message());
}

TEST(CampaignFile, isCalledAsTheFileUnlessItSaysItsName) {
    const auto parsed = parseCampaign(std::string(kHead) + kKill, "dir/calm.toml");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->file.name, "calm");
    EXPECT_EQ(parsed->file.settle, "60s");
    EXPECT_EQ(parsed->file.faults.size(), 1u);
}

struct Bad {
    const char* text;
    const char* words;
};
class BadCampaignFile : public testing::TestWithParam<Bad> {};

TEST_P(BadCampaignFile, saysFileLineKeyAndWhatWasExpected) {
    EXPECT_THAT(problem(GetParam().text), HasSubstr(GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadCampaignFile,
    testing::Values(
        Bad{"duration = ", "c.toml:1: not TOML"},
        Bad{"duration = \"1m\"\nrate = 1\n",
            "c.toml:2: unknown key \"rate\"; did you mean \"rates\"?"},
        Bad{"[[faults]]\nat = \"0s\"\nfault = \"nan:replica=1\"\n",
            "duration: expected a duration such as 500ms, 30s or 15m, found nothing"},
        Bad{"duration = \"1m\"\n", "faults: expected a [[faults]] or a [[rates]]"},
        Bad{"duration = \"15\"\n[[faults]]\nat = \"0s\"\nfault = \"nan:replica=1\"\n",
            "c.toml:1: duration: expected a duration"},
        Bad{"duration = \"1m\"\n[[faults]]\nat = \"0s\"\nfault = \"explode:replica=1\"\n",
            "c.toml:4: faults[0].fault: unknown fault \"explode\""},
        Bad{"duration = \"1m\"\n[[faults]]\nat = \"0s\"\nfault = \"kill:replica=1@step=4\"\n",
            "c.toml:4: faults[0].fault: expected no @step"},
        Bad{"duration = \"1m\"\n[[faults]]\nat = \"70s\"\nfault = \"nan:replica=1\"\n",
            "c.toml:3: faults[0].at: expected less than the duration 1m, found \"70s\""},
        Bad{"duration = \"1m\"\n[[rates]]\nevery = \"10ms\"\nfault = \"nan:replica=1\"\n",
            "c.toml:3: rates[0].every: expected a mean spacing of at least 1s"},
        Bad{"duration = \"1m\"\n[[rates]]\nevery = \"9s\"\nat = \"1s\"\nfault = "
            "\"nan:replica=1\"\n",
            "rates[0].at: belongs under [[faults]]"},
        Bad{"duration = \"1m\"\n[[rates]]\nevery = \"9s\"\nphase = \"lunch\"\n"
            "fault = \"nan:replica=1\"\n",
            "c.toml:4: rates[0].phase: expected one of compute, exchange, vote, apply, any"},
        Bad{"duration = \"1m\"\n[[rates]]\nevery = \"9s\"\nphase = \"vote\"\n"
            "fault = \"kill-node:node=any\"\n",
            "a fault of a node waits for no phase"},
        Bad{"duration = \"1m\"\n[pass]\nmax_stall = 5\n[[faults]]\nat = \"0s\"\n"
            "fault = \"nan:replica=1\"\n",
            "c.toml:3: pass.max_stall: expected a string, found 5"},
        Bad{"duration = \"1m\"\n[pass]\nmin_injected = 0\n[[faults]]\nat = \"0s\"\n"
            "fault = \"nan:replica=1\"\n",
            "c.toml:3: pass.min_injected: expected a part above 0"},
        Bad{"duration = \"1m\"\n[pass]\nmin_effective_time = 80\n[[faults]]\nat = \"0s\"\n"
            "fault = \"nan:replica=1\"\n",
            "c.toml:3: pass.min_effective_time: expected a part from 0 to 1"}));

TEST(CampaignFile, anyStandsForATargetAndNothingElse) {
    const Target target{"2", "r2s1", "node7"};
    EXPECT_EQ(aimed("kill:replica=any", target), "kill:replica=2");
    EXPECT_EQ(aimed("hang:rank=any,for=3s", target), "hang:rank=r2s1,for=3s");
    EXPECT_EQ(aimed("kill-node:node=any", target), "kill-node:node=node7");
    EXPECT_EQ(aimed("kill-node:node=anything", target), "kill-node:node=anything");
}

}  // namespace
}  // namespace bulkhead::campaign
