// SPDX-License-Identifier: Apache-2.0
#include "backend/model/command_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "backend/model/units.h"

namespace bulkhead::model {
namespace {

using testing::HasSubstr;

std::string faultError(std::string_view text) {
    const auto fault = parseFault(text);
    return fault.ok() ? "" : std::string(fault.status().message());
}
std::string actionError(std::string_view text) {
    const auto action = parseAction(text);
    return action.ok() ? "" : std::string(action.status().message());
}

TEST(FaultText, readsWhatItWrites) {
    for (const char* text :
         {"kill:replica=2@step=50", "kill:rank=r2s1@step=50/exchange", "hang:rank=r1s0,for=3s",
          "hang:replica=1", "slow:rank=r0s1,factor=4,for=10s", "slow:replica=0,factor=1.5",
          "cut:replica=3,for=5s", "cut:replica=3", "delay:replica=1,by=20ms",
          "delay:replica=1,by=20ms,for=2m", "flip-gradient:replica=1@step=30", "nan:replica=1",
          "nan:rank=r1s1", "flip-parameter:replica=1", "fill-disk:node=node0,for=10s",
          "kill-node:node=node1", "kill:replica=0@step=0/vote"}) {
        const auto fault = parseFault(text);
        ASSERT_TRUE(fault.ok()) << text << ": " << fault.status();
        EXPECT_EQ(formatFault(*fault), text);
    }
}

TEST(FaultText, setsTheFieldsItNames) {
    const auto fault = parseFault("slow:rank=r2s1,for=2.5s,factor=4@step=7/apply");
    ASSERT_TRUE(fault.ok()) << fault.status();
    EXPECT_EQ(fault->kind, FaultKind::kSlow);
    EXPECT_EQ(fault->replica, 2);
    EXPECT_EQ(fault->shard, 1);
    EXPECT_EQ(fault->durationMs, 2500u);
    EXPECT_DOUBLE_EQ(fault->factor, 4);
    EXPECT_EQ(fault->atStep, 7u);
    EXPECT_EQ(fault->atPhase, "apply");
    EXPECT_EQ(parseFault("kill:rank=r2s1")->kind, FaultKind::kKillRank);
    EXPECT_EQ(formatFault(*parseFault("kill:rank=2.1")), "kill:rank=r2s1");  // of older files
    EXPECT_EQ(parseFault("kill:replica=2")->kind, FaultKind::kKillReplica);
}

TEST(FaultText, saysWhichPartIsWrongAndWhatWasExpected) {
    EXPECT_EQ(faultError("kil:replica=2"), "unknown fault \"kil\"; did you mean \"kill\"?");
    EXPECT_THAT(faultError("explode"), HasSubstr("known: kill, hang, slow"));
    EXPECT_EQ(faultError("kill"), "kill: expected a target: replica= or rank=");
    EXPECT_EQ(faultError("kill:replica=x"), "replica=x: expected the number of a replica, from 0");
    EXPECT_EQ(faultError("kill:rank=2"), "rank=2: expected a rank, such as r2s1");
    EXPECT_EQ(faultError("kill:replica"), "\"replica\": expected key=value");
    EXPECT_EQ(faultError("kill:replica=1,"), "\"\": expected key=value");
    EXPECT_EQ(faultError("hang:rank=r1s0,for=3"),
              "for=3: expected a duration such as 500ms, 3s or 2m");
    EXPECT_EQ(faultError("hang:rank=r1s0,replica=2"), "hang: replica= is one target too many");
    EXPECT_EQ(faultError("kill:replica=2@step=50/lunch"),
              "phase \"lunch\": expected one of compute, exchange, vote, apply");
    EXPECT_EQ(faultError("kill:replica=2@50"), "@50: expected step=N or step=N/phase");
    EXPECT_EQ(faultError("slow:rank=r0s1"), "slow: expected factor= a number above 1, such as 4");
    EXPECT_EQ(faultError("slow:rank=r0s1,factor=0.5"),
              "slow: expected factor= a number above 1, such as 4");
    EXPECT_EQ(faultError("delay:replica=1"), "delay: expected by= a duration such as 20ms");
    EXPECT_THAT(faultError("kill:replica=1,for=3s"), HasSubstr("unknown key \"for\""));
    EXPECT_THAT(faultError("cut:rank=r1s0"), HasSubstr("unknown key \"rank\""));
    EXPECT_EQ(faultError("kill-node:node=a b"), "kill-node: expected node=NAME");
}

TEST(FaultText, takesAReplicaWithItsLetterAndARankOfAnOlderFile) {
    EXPECT_EQ(parseFault("kill:replica=r2")->replica, 2);
    EXPECT_EQ(formatFault(*parseFault("kill:rank=2.1")), "kill:rank=r2s1");
    EXPECT_EQ(parseAction("drain:replica=r2")->replica, 2);
    for (const char* rank : {"2", "r2", "r2.1", "2.1.0", "s1"})
        EXPECT_EQ(faultError(std::string("kill:rank=") + rank),
                  std::string("rank=") + rank + ": expected a rank, such as r2s1");
}

TEST(FaultText, survivesAnyText) {
    std::mt19937 random(5);
    const std::string alphabet = "kilhangcutrepl:=,@/.0123456789smfor-";
    int parsed = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string text = round % 2 == 0 ? "kill:replica=1@step=3" : "hang:rank=r1s0,for=3s";
        for (size_t n = random() % 4; n > 0; --n)
            text[random() % text.size()] = alphabet[random() % alphabet.size()];
        const auto fault = parseFault(text);
        (void)parseAction(text);
        if (!fault.ok()) continue;
        ++parsed;
        const auto again = parseFault(formatFault(*fault));
        ASSERT_TRUE(again.ok()) << text << " -> " << formatFault(*fault) << again.status();
        EXPECT_EQ(*again, *fault) << text;
    }
    EXPECT_GT(parsed, 1000);
    EXPECT_NE(faultError(std::string(100'000, 'a')), "");
    EXPECT_NE(faultError(""), "");
}

TEST(FaultText, speaksAsAnOperatorWould) {
    const auto say = [](std::string_view text) { return describe(*parseFault(text)); };
    EXPECT_EQ(say("kill:replica=2@step=50"), "Kill replica 2 when step 50 begins");
    EXPECT_EQ(say("kill:rank=r2s1@step=50/exchange"),
              "Kill rank r2s1 in the exchange phase of step 50");
    EXPECT_EQ(say("hang:rank=r1s0,for=3s"), "Stop rank r1s0 for 3 s (SIGSTOP)");
    EXPECT_EQ(say("hang:rank=r1s0"), "Stop rank r1s0 for good (SIGSTOP)");
    EXPECT_EQ(say("slow:rank=r0s1,factor=4,for=10s"), "Slow rank r0s1 down 4 times for 10 s");
    EXPECT_EQ(say("delay:replica=1,by=20ms"), "Delay the network of replica 1 by 20 ms");
    EXPECT_EQ(say("kill-node:node=node1"), "Kill node1 with every rank on it");
}

TEST(ActionText, readsWhatItWrites) {
    for (const char* text : {"drain:replica=2",
                             "cordon:node=node1",
                             "uncordon:node=node1",
                             "hold-rejoin:replica=2",
                             "release-rejoin:replica=2",
                             "restart:replica=2",
                             "pause",
                             "resume",
                             "checkpoint",
                             "stop",
                             "set-policy:lr=linear",
                             "set-policy:min_replicas=3",
                             "set-policy:recovery=restart_all",
                             "set-policy:parity_every_steps=auto",
                             "set-policy:parity_every_steps=8",
                             "layout:shards=0.1.1.0",
                             "capture-routing:tokens=4096",
                             "rule-experts",
                             "rule-experts:pin=0:3=shard1,forbid=1:2=shard0",
                             "dismiss-plan:step=40"}) {
        const auto action = parseAction(text);
        ASSERT_TRUE(action.ok()) << text << ": " << action.status();
        EXPECT_EQ(formatAction(*action), text);
        EXPECT_NE(describe(*action), "");
    }
}

TEST(ActionText, saysWhatIsWrong) {
    EXPECT_EQ(actionError("drian:replica=2"), "unknown action \"drian\"; did you mean \"drain\"?");
    EXPECT_EQ(actionError("drain"), "drain: expected replica=N");
    EXPECT_EQ(actionError("pause:replica=2"), "pause: unknown key \"replica\"; it takes none");
    EXPECT_THAT(actionError("set-policy:lr=cubic"),
                HasSubstr("expected one of none, linear, sqrt"));
    EXPECT_THAT(actionError("set-policy:min_replica=1"),
                HasSubstr("did you mean \"min_replicas\"?"));
    EXPECT_THAT(actionError("set-policy:min_replicas=0"), HasSubstr("expected 1 or more"));
    EXPECT_THAT(actionError("set-policy:parity_every_steps=often"), HasSubstr("or auto"));
    EXPECT_THAT(actionError("set-policy"), HasSubstr("such as lr=linear"));
    EXPECT_THAT(actionError("layout"), HasSubstr("shards="));
    EXPECT_THAT(actionError("layout:shards=0.x"), HasSubstr("0.1.1.0"));
    EXPECT_THAT(actionError("capture-routing"), HasSubstr("tokens= a number above 0"));
    EXPECT_THAT(actionError("rule-experts:pin=0.3"), HasSubstr("LAYER:EXPERT=shardN"));
    EXPECT_THAT(actionError("rule-experts:step=3"), HasSubstr("unknown key \"step\""));
    EXPECT_THAT(actionError("dismiss-plan"), HasSubstr("step= the step of the proposal"));
    EXPECT_THAT(actionError("capture-routing:tokens=-1"), HasSubstr("a number of tokens"));
    EXPECT_THAT(actionError("stop@step=4"), HasSubstr("no @step"));
}

TEST(HumanDuration, picksTheUnitAPersonWould) {
    EXPECT_EQ(humanDuration(0.42), "0.4 ms");
    EXPECT_EQ(humanDuration(350), "350 ms");
    EXPECT_EQ(humanDuration(2500), "2.5 s");
    EXPECT_EQ(humanDuration(250'000), "4 min 10 s");
    EXPECT_EQ(humanDuration(3'900'000), "1 h 5 min");
    EXPECT_EQ(humanDuration(2 * 86'400'000.0), "2 d");
    EXPECT_EQ(humanDuration(-1), "not measured");
    EXPECT_EQ(humanDuration(std::numeric_limits<double>::infinity()), "not measured");
    EXPECT_EQ(durationText(-1), "") << "a table has a dash there";
}

}  // namespace
}  // namespace bulkhead::model
