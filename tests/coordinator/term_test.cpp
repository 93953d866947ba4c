// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/term_file.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace bulkhead::runtime {
namespace {

class TermTest : public testing::Test {
  protected:
    TermTest() {
        char name[] = "/tmp/bulkhead-term-XXXXXX";
        dir_ = ::mkdtemp(name);
    }
    ~TermTest() override { std::filesystem::remove_all(dir_); }
    std::string dir_;
};

TEST_F(TermTest, EveryLifeGetsAHigherNumber) {
    for (uint64_t expected = 1; expected <= 3; ++expected) {
        const auto term = Term::mint(diskFiles(), dir_);
        ASSERT_TRUE(term.ok()) << term.status();
        EXPECT_EQ(term->number(), expected);
    }
}

TEST_F(TermTest, TwoCoordinatorsCannotLiveAtOnce) {
    const auto first = Term::mint(diskFiles(), dir_);
    ASSERT_TRUE(first.ok());
    const auto second = Term::mint(diskFiles(), dir_);
    EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
    EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(dir_));
}

TEST_F(TermTest, ADamagedFileIsNotGuessedAt) {
    std::ofstream(dir_ + "/term") << "seven";
    EXPECT_TRUE(absl::IsDataLoss(Term::mint(diskFiles(), dir_).status()));
    std::ofstream(dir_ + "/term", std::ios::trunc).close();
    EXPECT_TRUE(absl::IsDataLoss(Term::mint(diskFiles(), dir_).status())) << "empty is damaged too";
}

}  // namespace
}  // namespace bulkhead::runtime
