// SPDX-License-Identifier: Apache-2.0
#include "backend/common/ledger_chain.h"

#include <gtest/gtest.h>

#include <limits>

namespace bulkhead {
namespace {

StepLink someStep() {
    StepLink step;
    step.record.lineage = 1;
    step.record.step = 7;
    step.record.contributors = {{0, 1, {{0, 4, 8}}}, {2, 3, {{1, 0, 2}}}};
    step.record.samples = 6;
    step.loss = 2.5;
    step.gradNorm = 0.125;
    step.parity = {{{11, 12}, {0, 2}, {1, 3}}};
    return step;
}

// Runs of today are checked by the programs of tomorrow. When this fails, what was hashed has
// changed: older run files would be called forged.
TEST(LedgerChain, LinksStayAsTheyWere) {
    const std::string lineage = chainLink("", LineageLink{1, 0});
    EXPECT_EQ(lineage, "8ad0218cbba4420a475b2f6c7b2ebd4e6bc9c39b751be76cc78af7b3d76c78fe");
    EXPECT_EQ(chainLink(lineage, someStep()),
              "5cb9b87bb04400dd61f1cfa4ab2c4cf72ad8362bd4d2a25e2bf006cb6bb25da8");
    EXPECT_EQ(chainLink(lineage, QuarantineLink{{1, 2, 3}}),
              "4f4864a7075bd457d7d07c64799dcc635f346844028627de08d6136d00857b7a");
    EXPECT_EQ(chainLink(lineage, ParityDispute{1, 6, 4, 1, 0, someStep().parity, {2}}),
              "d6e1ec769930513bfdd37e7b66748896c7c4ee43412dd1e97b14beb4687412f4");
}

TEST(LedgerChain, EveryPartOfAStepCounts) {
    const std::string link = chainLink("", someStep());
    EXPECT_NE(chainLink(link, someStep()), link);
    StepLink other = someStep();
    other.record.contributors[1].ranges[0].end = 3;
    EXPECT_NE(chainLink("", other), link);
    other = someStep();
    other.loss += 1e-15;
    EXPECT_NE(chainLink("", other), link);
    other = someStep();
    other.parity[0].incarnations[1] = 4;
    EXPECT_NE(chainLink("", other), link);
}

TEST(LedgerChain, WhatIsNotFiniteIsOneValue) {
    StepLink step = someStep();
    step.loss = std::numeric_limits<double>::quiet_NaN();
    const std::string link = chainLink("", step);
    step.loss = -std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(chainLink("", step), link);
    step.loss = std::numeric_limits<double>::infinity();
    EXPECT_EQ(chainLink("", step), link);
}

}  // namespace
}  // namespace bulkhead
