// SPDX-License-Identifier: GPL-3.0-only
// Texts of the Placement page, and the plan that is considered on it.
#include <gmock/gmock.h>

#include <QTest>

#include "app/models/placement.h"
#include "app/models/units.h"
#include "app/session/plan_desk.h"
#include "tests/app/support/cells.h"
#include "tests/app/support/sample_run.h"

namespace bulkhead::ui {
namespace {

using testing::HasSubstr;

class PlacementTest : public testing::Test {
  protected:
    PlacementTest() {
        model::RunState state;
        for (const model::Event& e : run.events(60)) model::apply(state, e);
        feed.reset(state);
    }
    Placement shown() const {
        std::optional<PlacementChange> change;
        if (const auto& p = desk.proposal()) change = {p->expertShard, p->domainShare, p->optimism};
        return placementOf(feed.state(), *planner::liveJob(feed.state()), change);
    }
    void propose(bool group = true) {
        planner::LiveOptions options;
        options.group = group;
        desk.propose(options);
        ASSERT_TRUE(desk.isPlanning());
        ASSERT_TRUE(QTest::qWaitFor([&] { return !desk.isPlanning(); }));
    }

    test::SampleRun run;
    RunFeed feed;
    PlanDesk desk{feed};
};

TEST_F(PlacementTest, WithoutAProposalOnlyWhatIsStandsThere) {
    const Placement p = shown();
    EXPECT_EQ(p.layers(), test::SampleRun::kMoeLayers);
    EXPECT_EQ(p.names[0], "Layer 1");
    EXPECT_FALSE(p.then.has_value());
    const auto gain = gainRows(p);
    EXPECT_EQ(gain[0][1].text, formatShare(0.5)) << "half of the sample's copies are remote";
    for (const auto& row : gain) EXPECT_EQ(row[2].text, noFigure()) << text(row[0]);
    const auto experts = expertRows(p, 0);
    ASSERT_EQ(experts.size(), 16u);
    EXPECT_EQ(text(experts[0][1]), "Shard 0");
    EXPECT_EQ(text(experts[15][1]), "Shard 1");
    EXPECT_EQ(experts[15][2].text, noFigure());
    EXPECT_TRUE(homeRows(p).empty());
    double load = 0;
    for (int e = 0; e < 16; ++e) load += p.share(2, e);
    EXPECT_NEAR(load, 16, 1e-9);
}

TEST_F(PlacementTest, ThePlannersPlanHasFewerRemoteCopiesAndTheRowsAddUp) {
    propose();
    ASSERT_TRUE(desk.proposal().has_value()) << desk.refusal();
    EXPECT_EQ(desk.proposal()->origin, PlanOrigin::kPlanner);
    const Placement p = shown();
    EXPECT_LT(p.preview.forecast.remote.mean, 0.9 * p.preview.remoteNow);
    const auto gain = gainRows(p);
    EXPECT_EQ(gain[1][5].tone, Tone::kGood);
    EXPECT_THAT(text(gain[1][3]), HasSubstr(" to ")) << "60 steps tell how much they differ";
    EXPECT_EQ(gain[1][4].text, formatShare(p.preview.forecast.remoteInSample));
    uint64_t moves = 0;
    double remote = 0;
    for (int l = 0; l < p.layers(); ++l) {
        for (int e = 0; e < p.experts(); ++e) moves += p.moves(l, e);
        remote += p.then->layers[static_cast<size_t>(l)].remote;
    }
    EXPECT_EQ(moves, p.preview.expertsMoved);
    EXPECT_NEAR(remote / p.layers(), p.preview.forecast.remote.mean, 0.01)
        << "layers are equally loaded";
    EXPECT_EQ(homeRows(p).size(), static_cast<size_t>(test::SampleRun::kDomains));
    EXPECT_THAT(previewWords(p).toStdString(), HasSubstr("of 96 experts move in each replica"));
}

TEST_F(PlacementTest, ALongSearchSaysHowFarItIsAndEndsWhenAskedTo) {
    constexpr int kPatienceMs = 60'000;
    planner::LiveOptions options;
    options.effort = 1e6;  // far more than the patience
    desk.propose(options);
    ASSERT_TRUE(QTest::qWaitFor([&] { return desk.progress().of > 0; }, kPatienceMs));
    EXPECT_LT(desk.progress().done, desk.progress().of);
    desk.stop();
    ASSERT_TRUE(QTest::qWaitFor([&] { return !desk.isPlanning(); }, kPatienceMs));
    ASSERT_NE(desk.front(), nullptr) << desk.refusal();
    EXPECT_TRUE(desk.front()->stopped);
    desk.propose(options);
    desk.drop();
    EXPECT_FALSE(desk.isPlanning());
    propose();
    EXPECT_FALSE(desk.front()->stopped) << "the search before it ended";
}

TEST(PlacementWords, OfASearchSayWhatWasFoundAndWhatMoreWouldBring) {
    const auto words = progressWords({3, 11, 0.482, 0.004}).toStdString();
    EXPECT_THAT(words, HasSubstr("Plan 3 of 10."));
    EXPECT_THAT(words, HasSubstr("Best so far: "));
    EXPECT_THAT(words, HasSubstr("As long a search again would bring about "));
    EXPECT_EQ(moreWords(-1), QString());
}

TEST_F(PlacementTest, AnExpertMovedByHandIsAProposalAndMovedBackIsNone) {
    desk.move(1, 3, 1);
    ASSERT_TRUE(desk.proposal().has_value());
    EXPECT_EQ(desk.proposal()->origin, PlanOrigin::kByHand);
    const Placement p = shown();
    EXPECT_TRUE(p.moves(1, 3));
    EXPECT_FALSE(p.moves(0, 3));
    EXPECT_EQ(p.preview.expertsMoved, 1u);
    EXPECT_EQ(p.preview.bytesMoved, 294'912u);
    EXPECT_EQ(text(expertRows(p, 1)[3][1]), "Shard 1");
    EXPECT_EQ(text(expertRows(p, 1)[3][2]), "Shard 0");
    EXPECT_EQ(text(layerRows(p)[1][5]), "1");
    EXPECT_GT(p.then->layers[1].load[1], p.now.layers[1].load[1]);
    desk.move(1, 3, 7);
    EXPECT_EQ(shown().preview.expertsMoved, 1u) << "there is no shard 7";
    desk.move(1, 3, 0);
    EXPECT_FALSE(desk.proposal().has_value());
}

TEST_F(PlacementTest, AProposalIsVoidOnceTheExpertsHaveMoved) {
    propose(false);
    desk.move(0, 0, 1);
    ASSERT_TRUE(desk.proposal().has_value());
    const Placement p = shown();
    const model::Action action = planner::planWith(p.job, desk.proposal()->expertShard, {}).action;
    feed.apply({run.moveExperts(action)});
    EXPECT_FALSE(desk.proposal().has_value());
    EXPECT_EQ(desk.voidSince(), 1u);
    feed.apply(run.nextStep());
    const auto rows = layoutRows(feed.state());
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(text(rows[0][3]), "Applied");
    EXPECT_EQ(text(rows[0][4]), "1");
    EXPECT_EQ(rows[0][7].text, formatShare(0.5));
    EXPECT_EQ(rows[0][9].text, formatShare(0.5));

    desk.proposeRollback();
    ASSERT_TRUE(desk.proposal().has_value()) << desk.refusal();
    EXPECT_EQ(desk.proposal()->expertShard, feed.state().model.expertShard);
}

TEST_F(PlacementTest, AnotherOfThePlannersPlansCanBeChosen) {
    propose();
    ASSERT_NE(desk.front(), nullptr);
    ASSERT_GE(desk.front()->points.size(), 3u);
    EXPECT_EQ(desk.chosen(), static_cast<int>(desk.front()->recommended));
    const auto rows = frontRows(*desk.front());
    EXPECT_EQ(text(rows[desk.front()->recommended][5]), "Recommended");
    EXPECT_EQ(text(rows[0][0]), "as it is");
    const int other = desk.front()->recommended == 1 ? 2 : 1;
    desk.choose(other);
    EXPECT_EQ(desk.chosen(), other);
    EXPECT_EQ(rows[static_cast<size_t>(other)][1].text,
              formatShare(shown().preview.forecast.remote.mean));
    desk.move(0, 0, 1 - shown().then->expertShard[0]);
    EXPECT_EQ(desk.chosen(), -1) << "by hand it is none of them";
    EXPECT_NE(desk.front(), nullptr);
    desk.choose(99);
    EXPECT_EQ(desk.chosen(), -1);
    feed.apply(
        {run.moveExperts(planner::planWith(shown().job, shown().then->expertShard, {}).action)});
    EXPECT_EQ(desk.front(), nullptr) << "it was for another layout";
}

TEST_F(PlacementTest, WhyThereIsNoneIsSaid) {
    desk.proposeRollback();
    EXPECT_FALSE(desk.proposal().has_value());
    EXPECT_THAT(std::string(desk.refusal().message()),
                HasSubstr("no expert of this job has moved"));
    model::RunState dense = feed.state();
    dense.model.moeLayers = 0;
    feed.reset(dense);
    EXPECT_TRUE(desk.refusal().ok()) << "another run was not asked yet";
    desk.propose({});
    EXPECT_FALSE(desk.isPlanning());
    EXPECT_THAT(std::string(desk.refusal().message()), HasSubstr("no experts to place"));
}

TEST_F(PlacementTest, AnAnswerForAnotherRunIsDropped) {
    desk.propose({});
    ASSERT_TRUE(desk.isPlanning());
    feed.reset(feed.state());
    EXPECT_FALSE(desk.isPlanning());
    propose();
    EXPECT_TRUE(desk.proposal().has_value());
    desk.drop();
    EXPECT_FALSE(desk.proposal().has_value());
}

}  // namespace
}  // namespace bulkhead::ui
