// SPDX-License-Identifier: GPL-3.0-only
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "app/models/fleet_figures.h"
#include "app/models/map_layout.h"
#include "app/models/units.h"
#include "tests/app/support/made_fleet.h"

namespace bulkhead::ui {
namespace {

constexpr QSize kView(1264, 560);

model::RunState bare(const std::vector<int>& ranksOf) {
    model::RunState state;
    for (size_t r = 0; r < ranksOf.size(); ++r) {
        auto& replica = state.replicas.emplace_back();
        replica.replica = static_cast<int32_t>(r);
        replica.state = model::ReplicaState::kTraining;
        for (int s = 0; s < ranksOf[r]; ++s) {
            auto& rank = state.ranks.emplace_back();
            rank.rank = {replica.replica, s};
            rank.pid = 1;
            rank.sampledNs = 1;
            rank.phase = model::RankPhase::kCompute;
        }
    }
    return state;
}

/// Every rank has a cell of at least kLeastCell pixels within its replica's block, and a click
/// there means that rank, or the aggregate it is in.
void expectSound(const FleetShape& shape, QSize view, uint32_t stride = 1) {
    const MapLayout layout(shape, view);
    ASSERT_GT(layout.levels(), 0);
    for (const int i : {0, layout.levels() / 2, layout.levels() - 1}) {
        SCOPED_TRACE(i);
        const QRect world(QPoint(), layout.world(i));
        for (uint32_t place = 0; place < shape.ranks.size(); place += stride) {
            const QRect cell = layout.cell(i, place);
            ASSERT_GE(cell.width(), MapLayout::kLeastCell);
            ASSERT_GE(cell.height(), MapLayout::kLeastCell);
            ASSERT_TRUE(layout.block(i, shape.replicaAt(place)).contains(cell)) << place;
            ASSERT_TRUE(world.contains(cell));
            for (const QPoint& at : {cell.topLeft(), cell.bottomRight()}) {
                const MapHit hit = layout.hit(i, at);
                ASSERT_TRUE(hit.place) << place;
                ASSERT_EQ(layout.unitOf(i, *hit.place), layout.unitOf(i, place));
                ASSERT_TRUE(layout.at(i).aggregated || *hit.place == place);
            }
        }
        EXPECT_FALSE(layout.hit(i, {-1, -1}).replica);
        EXPECT_FALSE(layout.hit(i, world.bottomRight() + QPoint(1, 1)).replica);
    }
}

bool fitsInto(const MapLayout& layout, QSize view) {
    const QSize world = layout.world(0);
    return world.width() <= view.width() && world.height() <= view.height();
}

TEST(MapLayout, AFleetWithoutReplicasHasNoLevels) {
    const MapLayout layout(fleetShape({}), kView);
    EXPECT_EQ(layout.levels(), 0);
    EXPECT_FALSE(layout.hit(0, {5, 5}).replica);
    EXPECT_TRUE(layout.world(0).isEmpty());
}

TEST(MapLayout, ReplicasWithoutRanksHaveEmptyBlocks) {
    const FleetShape shape = fleetShape(bare({0, 0, 0}));
    const MapLayout layout(shape, kView);
    ASSERT_GT(layout.levels(), 0);
    const MapHit hit = layout.hit(0, layout.block(0, 1).center());
    EXPECT_EQ(hit.replica, 1u);
    EXPECT_FALSE(hit.place);
}

TEST(MapLayout, FewRanksHaveLargeCells) {
    for (const auto& ranks : std::vector<std::vector<int>>{{1}, {2, 2}, {2, 2, 2, 2}}) {
        const FleetShape shape = fleetShape(bare(ranks));
        const MapLayout layout(shape, kView);
        EXPECT_TRUE(fitsInto(layout, kView));
        EXPECT_GE(layout.cell(0, 0).width(), 100);
        EXPECT_GE(layout.cell(0, 0).height(), 60);
        expectSound(shape, kView);
    }
}

TEST(MapLayout, TheLargestFleetFitsOnOneScreenAndEveryRankHasItsCellWhenZoomed) {
    const model::RunState state = test::madeFleet({12, 8192, 8});
    const FleetShape shape = fleetShape(state);
    ASSERT_EQ(shape.ranks.size(), 98304u);
    for (const QSize& view : {kView, QSize(690, 230)}) {
        const MapLayout layout(shape, view);
        EXPECT_TRUE(fitsInto(layout, view));
        EXPECT_TRUE(layout.at(0).aggregated);
        // In the large view a unit is a node, in the small one it is several.
        EXPECT_TRUE(view != kView || layout.at(0).starts.size() == 12 * 1024 + 1);
        EXPECT_FALSE(layout.at(layout.levels() - 1).aggregated);
        EXPECT_GE(layout.cell(layout.levels() - 1, 5).width(), 100);
        expectSound(shape, view, 37);
    }
}

TEST(MapLayout, EachLevelIsLargerThanTheOneBefore) {
    for (const int perNode : {1, 8, 8192}) {
        const FleetShape shape = fleetShape(test::madeFleet({3, 8192, perNode}));
        const MapLayout layout(shape, kView);
        for (int i = 1; i < layout.levels(); ++i) {
            EXPECT_GT(layout.world(i).width(), layout.world(i - 1).width()) << perNode << ' ' << i;
            EXPECT_GT(layout.world(i).height(), layout.world(i - 1).height())
                << perNode << ' ' << i;
        }
    }
}

TEST(MapLayout, AnyFleetFitsAndIsSound) {
    using test::FleetSize;
    for (const auto& [size, view, stride] :
         {std::tuple{FleetSize{1, 98304, 98304}, kView, 101u},
          std::tuple{FleetSize{1, 98304, 1}, kView, 101u},
          std::tuple{FleetSize{2, 16384, 7}, QSize(300, 200), 37u},
          std::tuple{FleetSize{12, 8192, 8192}, kView, 101u},
          std::tuple{FleetSize{1024, 2, 2}, kView, 1u},
          std::tuple{FleetSize{4096, 24, 8}, kView, 37u},
          std::tuple{FleetSize{3, 1000, 64}, QSize(1, 1), 1u}}) {
        SCOPED_TRACE(testing::Message()
                     << size.replicas << " x " << size.ranks << ", nodes of " << size.gpusPerNode);
        const FleetShape shape = fleetShape(test::madeFleet(size));
        EXPECT_TRUE(view.width() == 1 || fitsInto(MapLayout(shape, view), view));
        expectSound(shape, view, stride);
    }
}

TEST(MapLayout, ReplicasOfUnequalSizeHaveCellsOfEqualSize) {
    const FleetShape shape = fleetShape(bare({1, 700, 0, 33}));
    const MapLayout layout(shape, kView);
    EXPECT_TRUE(fitsInto(layout, kView));
    EXPECT_EQ(layout.cell(0, 0).size(), layout.cell(0, 700).size());
    expectSound(shape, kView);
}

TEST(FleetShape, NodesThatReplicasShareAndRanksWithoutNodeHaveTheirPlaces) {
    model::RunState state = bare({4, 2});
    for (const size_t i : {0u, 2u, 4u}) state.ranks[i].node = "shared";
    state.ranks[1].node = "own";
    const FleetShape shape = fleetShape(state);
    ASSERT_EQ(shape.groups.size(), 5u);
    EXPECT_EQ(shape.groups[0].node, "shared");
    EXPECT_EQ(shape.groups[0].count, 2u) << "though another rank lies between";
    EXPECT_EQ(shape.groups[1].node, "own");
    EXPECT_EQ(shape.groups[2].node, "");
    EXPECT_EQ(shape.groups[3].node, "shared");
    EXPECT_EQ(shape.placeOf({0, 2}), 1u);
    EXPECT_EQ(shape.placeOf({1, 1}), 5u);
    EXPECT_FALSE(shape.placeOf({1, 2}));
    EXPECT_FALSE(shape.placeOf({7, 0}));
    EXPECT_TRUE(shape.fits(state));
    expectSound(shape, kView);
    const auto match = findRanks(shape, "SHARED");
    ASSERT_TRUE(match);
    EXPECT_EQ(match->count, 3u);
    EXPECT_EQ(match->replica, 0);
    EXPECT_EQ(match->shard, 0);
}

TEST(FleetShape, ARankThatMovesOrComesAsksForANewShape) {
    model::RunState state = bare({2, 2});
    const FleetShape shape = fleetShape(state);
    state.ranks[3].tokensPerSecond = 5;
    EXPECT_TRUE(shape.fits(state));
    state.ranks[3].node = "elsewhere";
    EXPECT_FALSE(shape.fits(state));
    state = bare({2, 3});
    EXPECT_FALSE(shape.fits(state));
    state = bare({2, 2, 0});
    EXPECT_FALSE(shape.fits(state));
}

TEST(FleetShape, RanksOfAReplicaThatNobodyListsAreShown) {
    model::RunState state = bare({2, 2});
    state.replicas.erase(state.replicas.begin());
    const FleetShape shape = fleetShape(state);
    ASSERT_EQ(shape.replicas.size(), 2u);
    EXPECT_EQ(shape.replicas[0].replica, 0);
    EXPECT_TRUE(shape.fits(state));
    EXPECT_EQ(fleetFigures(state, shape, FleetFigure::kState).conditions[0], RankCondition::kOut);
}

TEST(FleetFigures, AConditionIsTheReplicasUnlessTheRankIsWorse) {
    model::RunState state = bare({4, 1, 1});
    state.ranks[1].beatAgeMs = state.spec.timeouts.heartbeatMs;
    state.ranks[2].progressAgeMs = state.spec.timeouts.progressFloorMs;
    state.ranks[3].pid = 0;
    state.replicas[1].state = model::ReplicaState::kReplaying;
    state.replicas[2].state = model::ReplicaState::kDrained;
    state.ranks[5].pid = 0;
    const FleetFigures f = fleetFigures(state, fleetShape(state), FleetFigure::kState);
    const std::vector<RankCondition> wanted = {RankCondition::kTraining,  RankCondition::kLate,
                                               RankCondition::kLate,      RankCondition::kGone,
                                               RankCondition::kReplaying, RankCondition::kOut};
    EXPECT_EQ(f.conditions, wanted);
    const auto worst = worstRanks(f, 5);
    ASSERT_EQ(worst.size(), 5u) << "the one in training is no outlier";
    EXPECT_EQ(worst[0], 3u);
    EXPECT_EQ(worst[1], 1u);
}

TEST(FleetFigures, LettersAndWordsOfConditionsDiffer) {
    std::set<QString> words;
    std::set<QChar> letters;
    for (int i = 0; i < kRankConditions; ++i) {
        words.insert(label(static_cast<RankCondition>(i)));
        letters.insert(letter(static_cast<RankCondition>(i)));
    }
    EXPECT_EQ(words.size(), static_cast<size_t>(kRankConditions));
    EXPECT_EQ(letters.size(), static_cast<size_t>(kRankConditions));
}

TEST(FleetFigures, ThroughputIsJudgedByTheMedianAndTheSlowestIsTheWorst) {
    model::RunState state = bare({5});
    for (size_t i = 0; i < 4; ++i)
        state.ranks[i].tokensPerSecond = i == 2 ? 40 : 100 + static_cast<double>(i);
    const FleetFigures f = fleetFigures(state, fleetShape(state), FleetFigure::kThroughput);
    EXPECT_FLOAT_EQ(f.badness[2], 1) << "less than half of the median";
    EXPECT_FLOAT_EQ(f.badness[3], 0);
    EXPECT_EQ(f.badness[4], FleetFigures::kNone);
    EXPECT_EQ(f.known, 4u);
    EXPECT_EQ(figureWords(f, 4), noFigure());
    EXPECT_EQ(figureWords(f, 2), formatTokenRate(40));
    const auto worst = worstRanks(f, 2);
    EXPECT_EQ(worst, (std::vector<uint32_t>{2, 0}));
    EXPECT_EQ(worstOf(f, 0, 5), 2u) << "an aggregate shows its worst rank";
    EXPECT_EQ(worstOf(f, 3, 2), 3u) << "a rank without figure is not worse than one with";
}

TEST(FleetFigures, ALostRankIsTheWorstByAnyFigureThatItDoesNotTell) {
    model::RunState state = bare({4});
    for (auto& rank : state.ranks) rank.tokensPerSecond = 100;
    state.ranks[0].tokensPerSecond = 10;
    state.ranks[1].pid = 0;
    state.ranks[3].tokensPerSecond = std::nullopt;
    const FleetFigures f = fleetFigures(state, fleetShape(state), FleetFigure::kThroughput);
    EXPECT_FLOAT_EQ(f.badness[1], 1);
    EXPECT_EQ(f.badness[3], FleetFigures::kNone) << "it lives";
    EXPECT_EQ(figureWords(f, 1), label(RankCondition::kGone));
    EXPECT_EQ(worstOf(f, 0, 4), 1u) << "an aggregate does not hide it";
    EXPECT_EQ(worstRanks(f, 2), (std::vector<uint32_t>{1, 0}));
}

TEST(FleetFigures, AFleetThatStandsStillOrTellsNothingHasAScaleToo) {
    model::RunState state = bare({3});
    for (auto& rank : state.ranks) rank.tokensPerSecond = 0;
    const FleetShape shape = fleetShape(state);
    for (int i = 0; i < kFleetFigures; ++i) {
        const FleetFigures f = fleetFigures(state, shape, static_cast<FleetFigure>(i));
        for (const float b : f.badness) EXPECT_TRUE(b == FleetFigures::kNone || (b >= 0 && b <= 1));
        EXPECT_FALSE(std::isnan(f.scale.best) || std::isnan(f.scale.worst));
    }
}

TEST(FleetFigures, TemperaturesAreThoseOfTheRanksOwnGpus) {
    const model::RunState state = test::madeFleet({2, 16, 8});
    const FleetShape shape = fleetShape(state);
    const FleetFigures f = fleetFigures(state, shape, FleetFigure::kTemperature);
    EXPECT_EQ(f.known, 32u);
    const auto& gpus = model::findNode(state, shape.groups[1].node)->sample->gpus;
    EXPECT_FLOAT_EQ(f.values[8 + 3], static_cast<float>(*gpus[3].temperatureCelsius));
}

TEST(FleetFigures, ARecentErrorIsWorseThanAnOldOneAndNoneIsGood) {
    model::RunState state = bare({4});
    state.lastEventNs = 7'200'000'000'000;
    state.ranks[1].lastExit = model::RankExited{{0, 1}, 1, 5, 0, 9, false};
    state.ranks[1].exitedNs = state.lastEventNs - 3'600'000'000'000;
    state.ranks[2].lastExit = model::RankExited{{0, 2}, 1, 5, 0, 15, true};
    state.ranks[2].exitedNs = state.lastEventNs;
    state.gpuTroubles.push({state.lastEventNs - 5'000'000'000,
                            model::GpuTroubled{"n", 0, "", 79, std::nullopt, 0, {{0, 3}}}});
    const FleetFigures f = fleetFigures(state, fleetShape(state), FleetFigure::kLastError);
    EXPECT_FLOAT_EQ(f.badness[0], 0);
    EXPECT_FLOAT_EQ(f.badness[2], 0) << "it was stopped on request";
    EXPECT_GT(f.badness[1], 0);
    EXPECT_FLOAT_EQ(f.badness[3], 1);
    EXPECT_EQ(worstRanks(f, 5), (std::vector<uint32_t>{3, 1}));
}

TEST(FleetFigures, ATextFindsARankAReplicaANodeOrPartOfItsName) {
    const FleetShape shape = fleetShape(test::madeFleet({12, 16, 8}));
    EXPECT_FALSE(findRanks(shape, "  "));
    EXPECT_EQ(findRanks(shape, "r3s5")->count, 1u);
    EXPECT_EQ(findRanks(shape, "R3S5")->shard, 5);
    EXPECT_EQ(findRanks(shape, "r3s99")->count, 0u);
    EXPECT_EQ(findRanks(shape, "r3s99")->replica, -1);
    EXPECT_EQ(findRanks(shape, "r3")->count, 16u);
    EXPECT_EQ(findRanks(shape, "r3s")->count, 16u) << "half typed";
    EXPECT_EQ(findRanks(shape, "r3")->shard, -1);
    EXPECT_EQ(findRanks(shape, "gpu-00001")->count, 8u);
    EXPECT_EQ(findRanks(shape, "gpu-0001")->count, 80u) << "10 to 19";
    EXPECT_EQ(findRanks(shape, "nobody")->count, 0u);
}

TEST(FleetFigures, TheWordsOfARankHaveEveryFigure) {
    const model::RunState state = test::madeFleet({1, 8, 8});
    const QString words = rankWords(state, {0, 1});
    EXPECT_TRUE(words.startsWith("r0s1 on gpu-00000: Late"));
    for (int i = 1; i < kFleetFigures; ++i)
        EXPECT_TRUE(words.contains(label(static_cast<FleetFigure>(i)) + ": ")) << i;
    EXPECT_EQ(rankWords(state, {5, 5}), QString());
}

}  // namespace
}  // namespace bulkhead::ui
