// SPDX-License-Identifier: Apache-2.0
// Plans from the state of a running job.
#include <gmock/gmock.h>

#include "backend/model/expert_rules.h"
#include "backend/planner/live/live_file.h"
#include "backend/planner/live/live_plan.h"
#include "backend/planner/plan/plan_json.h"

namespace bulkhead::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two shards, two domains, one mixture of four experts: domain "a" uses 0 and 2, "b" 1 and 3.
model::RunState job() {
    model::RunState s;
    s.spec.shards = 2;
    s.spec.domains = {{"a", {}}, {"b", {}}};
    s.model.name = "tiny";
    s.model.moeLayers = 1;
    s.model.experts = 4;
    s.model.topK = 1;
    s.model.expertBytes = 1000;
    s.model.expertShard = {0, 0, 1, 1};
    s.experts.step = 9;
    s.experts.moeLayers = 1;
    s.experts.domains = 2;
    s.experts.experts = 4;
    s.experts.stretches = {{0, {40, 5, 45, 5, 5, 40, 5, 45}}, {8, {5, 0, 0, 0, 0, 5, 0, 0}}};
    model::StepPoint p;
    p.copies = 100;
    p.remoteCopies = 50;
    p.allToAllBytes = 6400;
    s.steps.push(p);
    return s;
}

Plan file() {
    Plan plan;
    plan.shape.layers = 1;
    plan.shape.experts = 4;
    plan.shape.topK = 1;
    plan.topology = flatTopology(2, 1);
    plan.firstSlot = {0, 2, 4};
    plan.layers = {{{3, 1, 0, 2}, {}}};
    plan.homes = {{"b", {1, 0}}, {"a", {0.25, 0.75}}};
    return plan;
}

absl::StatusOr<LivePlan> recommended(const model::RunState& state,
                                     const LiveOptions& options = {}) {
    const auto job = liveJob(state);
    if (!job.ok()) return job.status();
    return recommendPlan(*job, options);
}

TEST(LivePlan, SaysWhetherRoutingMoves) {
    model::RunState state = job();
    state.experts.step = 160;
    state.experts.stretches[1] = {150, state.experts.stretches[0].loads};
    const LivePreview still = recommended(state)->preview;
    EXPECT_DOUBLE_EQ(still.remoteOlder, still.remoteNewer);
    EXPECT_FALSE(routingMoves(still));
    state.experts.stretches[1].loads = {30, 15, 35, 15, 15, 30, 15, 35};
    const LivePreview moving = recommended(state)->preview;
    EXPECT_GT(moving.remoteNewer, moving.remoteOlder);
    EXPECT_TRUE(routingMoves(moving));
    EXPECT_GT(moving.forecast.remote.mean, moving.remoteOlder);
    EXPECT_LT(moving.forecast.remote.mean, moving.remoteNewer);
    // A few steps say nothing.
    state.experts.step = 152;
    EXPECT_FALSE(routingMoves(recommended(state)->preview));
}

TEST(LivePlan, APredictionAllowsForThePlanHavingBeenFittedToItsSteps) {
    model::RunState s = job();
    s.experts.step = 200;
    s.experts.stretches = {{100, {50, 0, 50, 0, 0, 50, 0, 50}},
                           {150, {50, 0, 50, 0, 0, 50, 0, 50}}};
    EXPECT_DOUBLE_EQ(recommended(s)->preview.forecast.optimism(), 0) << "either half says the same";
    // By turns domain a goes to experts 0 and 2, or to 0 and 1: a plan for either half leaves half
    // of the other half's copies remote, one for all of them a quarter.
    s.experts.stretches[1].loads = {50, 50, 0, 0, 0, 0, 50, 50};
    const LivePlan plan = *recommended(s);
    EXPECT_DOUBLE_EQ(plan.preview.forecast.optimism(), 0.25);
    EXPECT_DOUBLE_EQ(plan.preview.forecast.remote.mean, 0.25 + 0.25);
    EXPECT_DOUBLE_EQ(plan.action.predictedRemote, plan.preview.forecast.remote.mean);
    const LiveJob counts = *liveJob(s);
    const auto& a = plan.action;
    EXPECT_DOUBLE_EQ(
        planWith(counts, a.expertShard, a.domainShare, 0.25).preview.forecast.remote.mean, 0.5);
    EXPECT_DOUBLE_EQ(planWith(counts, a.expertShard, a.domainShare).preview.forecast.remote.mean,
                     0.25);
    // The layout in use was not made from these steps.
    EXPECT_DOUBLE_EQ(planWith(counts, counts.expertShard, {}, 0.25).preview.forecast.optimism(), 0);
    // The optimism is unknown while there are few steps.
    s.experts.step = 155;
    EXPECT_DOUBLE_EQ(recommended(s)->preview.forecast.optimism(), 0);
}

TEST(LivePlan, ARangeTellsHowMuchStretchesOfStepsDiffer) {
    model::RunState s = job();
    s.experts.step = 100;
    s.experts.stretches.clear();
    for (uint64_t i = 0; i < 10; ++i)
        s.experts.stretches.push_back({10 * i, {400, 50, 450, 50, 50, 400, 50, 450}});
    const LiveForecast same = recommended(s)->preview.forecast;
    ASSERT_TRUE(same.hasRange);
    EXPECT_EQ(same.stretches, 10u);
    EXPECT_NEAR(same.remote.mean, 200.0 / 1900, 1e-9);
    EXPECT_NEAR(same.remote.low, same.remote.mean, 1e-6);
    EXPECT_NEAR(same.remote.high, same.remote.mean, 1e-6);
    EXPECT_NEAR(same.load.high, same.loadInSample, 1e-6);
    EXPECT_TRUE(forecastNotes(same).empty());
    // By turns one domain has more, and its tokens keep to their experts less.
    for (size_t i = 0; i < 10; i += 2)
        s.experts.stretches[i].loads = {500, 100, 550, 100, 50, 350, 50, 400};
    const LiveForecast varies = recommended(s)->preview.forecast;
    EXPECT_LT(varies.remote.low, varies.remote.mean - 0.01);
    EXPECT_GT(varies.remote.high, varies.remote.mean + 0.01);
    EXPECT_GT(varies.load.high, varies.load.mean + 0.01);
    EXPECT_GT(varies.load.mean, varies.loadInSample) << "the plan is made from these steps";
    for (auto& [from, loads] : s.experts.stretches)
        for (uint64_t& n : loads) n /= 60;
    EXPECT_THAT(forecastNotes(recommended(s)->preview.forecast),
                ElementsAre(HasSubstr("few tokens were counted for this model")));
    s.experts.stretches.resize(3);
    const LiveForecast young = recommended(s)->preview.forecast;
    EXPECT_FALSE(young.hasRange);
    EXPECT_EQ(young.remote.low, young.remote.high);
    EXPECT_THAT(forecastNotes(young), testing::Contains(HasSubstr("the counts of 40 steps")));
}

/// The more of the larger domain's experts are on one shard, the fewer copies are remote and the
/// fuller it is, above all in the stretches that have most of that domain.
TEST(LivePlan, KeepsTheLoadCapByTheUpperEndOfItsRange) {
    model::RunState s = job();
    s.model.experts = s.experts.experts = 6;
    s.model.expertShard = {0, 0, 0, 1, 1, 1};
    s.experts.step = 120;
    s.experts.stretches.clear();
    for (uint64_t i = 0; i < 12; ++i) {
        const uint64_t a = i % 2 ? 11 : 9;
        s.experts.stretches.push_back({10 * i,
                                       {80 * a, 5 * a, 60 * a, 5 * a, 40 * a, 5 * a,  //
                                        100, 400, 100, 300, 100, 200}});
    }
    LiveOptions options;
    options.loadCap = 2;
    const LiveForecast loose = recommended(s, options)->preview.forecast;
    ASSERT_LT(loose.load.high, 2);
    ASSERT_GT(loose.load.high, loose.loadInSample + 0.05);
    options.loadCap = (loose.loadInSample + loose.load.high) / 2;
    const LiveForecast careful = recommended(s, options)->preview.forecast;
    EXPECT_LE(careful.load.high, options.loadCap);
    EXPECT_GT(careful.remote.mean, loose.remote.mean) << "its price";
    s.experts.stretches.resize(3);
    const LiveForecast young = recommended(s, options)->preview.forecast;
    ASSERT_FALSE(young.hasRange);
    EXPECT_NEAR(young.remote.mean, loose.remote.mean, 0.02) << "the counted steps keep the cap";
}

TEST(LivePlan, IsMadeFromTheJobsOwnCounts) {
    const auto plan = recommended(job());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const LivePreview& p = plan->preview;
    EXPECT_DOUBLE_EQ(p.remoteMeasured, 0.5);
    EXPECT_DOUBLE_EQ(p.remoteNow, 0.5);
    EXPECT_DOUBLE_EQ(p.forecast.remote.mean, 0.1);
    EXPECT_DOUBLE_EQ(p.bytesPerStepPredicted, 1280);
    EXPECT_EQ(p.expertsMoved, 2u);
    EXPECT_EQ(p.bytesMoved, 2000u);
    EXPECT_EQ(plan->action.kind, model::ActionKind::kChangeLayout);
    EXPECT_DOUBLE_EQ(plan->action.predictedRemote, 0.1);
    const auto& e = plan->action.expertShard;
    EXPECT_EQ(e[0], e[2]);
    EXPECT_EQ(e[1], e[3]);
    EXPECT_NE(e[0], e[1]);
    const auto& share = plan->action.domainShare;
    EXPECT_EQ(share[static_cast<size_t>(e[0])], 1000u);
    EXPECT_EQ(share[2 + static_cast<size_t>(e[1])], 1000u);
}

TEST(LivePlan, KeepsToPinsAndBans) {
    model::RunState s = job();
    for (const model::ExpertRule& rule :
         {model::ExpertRule{0, 0, 1, true}, model::ExpertRule{0, 0, 0, false},
          model::ExpertRule{0, 2, 1, false}}) {
        s.expertRules = {rule};
        const auto plan = recommended(s);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto& e = plan->action.expertShard;
        EXPECT_EQ(model::brokenRule(s.expertRules, e, 4), nullptr) << model::ruleText(rule);
        EXPECT_EQ(std::count(e.begin(), e.end(), 0), 2) << "each shard holds as many as before";
        EXPECT_DOUBLE_EQ(plan->preview.forecast.remote.mean, 0.1) << "as good on the other shard";
    }
    s.expertRules = {{0, 0, 0, true}, {0, 2, 1, true}};
    const auto apart = recommended(s);
    ASSERT_TRUE(apart.ok());
    EXPECT_GT(apart->preview.forecast.remote.mean, 0.4) << "what belongs together is pinned apart";
}

TEST(LivePlan, RefusesRulesThatCannotBeKept) {
    model::RunState s = job();
    const auto refusal = [&] { return std::string(recommended(s).status().message()); };
    s.expertRules = {{0, 0, 1, true}, {0, 1, 1, true}, {0, 2, 1, true}};
    EXPECT_THAT(refusal(), HasSubstr("with it 3 are, and the shard holds 2 experts"));
    s.expertRules = {{0, 0, 0, false}, {0, 1, 0, false}, {0, 2, 0, false}};
    EXPECT_THAT(refusal(), HasSubstr("layer 0: no slot is left for expert"));
    s.expertRules = {{0, 0, 2, true}};
    EXPECT_THAT(refusal(), HasSubstr("a replica has 2 shards"));
    s.expertRules = {{0, 3, 1, true}};
    EXPECT_THAT(std::string(planFromFile(*liveJob(s), file(), {}).status().message()),
                HasSubstr("expert 3 of mixture layer 0 is pinned to shard 1, which this plan"));
}

TEST(LivePlan, WithoutGroupingSamplesGoAnywhere) {
    LiveOptions options;
    options.group = false;
    const auto plan = recommended(job(), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->action.domainShare.empty());
    EXPECT_EQ(plan->preview.expertsMoved, 0u);
    EXPECT_TRUE(plan->preview.homes.empty());
}

TEST(LivePlan, TakesAPlanMadeElsewhere) {
    const auto plan = planFromFile(*liveJob(job()), file(), {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_THAT(plan->action.expertShard, ElementsAre(1, 0, 1, 0));
    EXPECT_THAT(plan->action.domainShare, ElementsAre(250, 750, 1000, 0));
    EXPECT_NEAR(plan->preview.forecast.remote.mean, (0.1 + 0.1 * 0.75 + 0.9 * 0.25) / 2, 1e-9);
}

TEST(LivePlan, OfAJobGoesToAFileAndComesBack) {
    const auto job = liveJob(planner::job());
    ASSERT_TRUE(job.ok());
    const std::vector<int32_t> placement{1, 0, 1, 0};
    const std::vector<uint32_t> share{250, 750, 1000, 0};
    const auto plan = fileOf(*job, planner::job().model, placement, share);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto read = parsePlan(formatPlan(*plan), "plan.json");
    ASSERT_TRUE(read.ok()) << read.status();
    const auto back = planFromFile(*job, *read, {});
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->action.expertShard, placement);
    EXPECT_EQ(back->action.domainShare, share);
}

TEST(LivePlan, SaysWhichShardAFileCannotTellOf) {
    model::RunState s = job();
    s.model.moeLayers = s.experts.moeLayers = 2;
    s.model.expertShard.insert(s.model.expertShard.end(), {0, 0, 0, 1});
    for (auto& [from, loads] : s.experts.stretches) loads.insert(loads.end(), 8, 1);
    const auto job = liveJob(s);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_THAT(std::string(fileOf(*job, s.model, job->expertShard, {}).status().message()),
                HasSubstr("shard 0 holds 3 experts of mixture 1 and 2 of the first"));
}

TEST(LivePlan, RefusesAPlanThatIsNotForThisJob) {
    const auto refusal = [](const Plan& plan) {
        return std::string(planFromFile(*liveJob(job()), plan, {}).status().message());
    };
    Plan plan = file();
    plan.topology = flatTopology(4, 1);
    EXPECT_THAT(refusal(plan), HasSubstr("4 GPUs, a replica of the job has 2 shards"));
    plan = file();
    plan.shape.experts = 8;
    EXPECT_THAT(refusal(plan), HasSubstr("1 layers of 8 experts, the job has 1 of 4"));
    plan = file();
    plan.firstSlot = {0, 3, 6};
    EXPECT_THAT(refusal(plan), HasSubstr("2 redundant experts"));
    plan = file();
    plan.homes.pop_back();
    EXPECT_THAT(refusal(plan), HasSubstr("no home for domain \"a\""));
}

TEST(LivePlan, SaysWhatAPlacementMadeByHandWouldDo) {
    const auto job = liveJob(planner::job());
    ASSERT_TRUE(job.ok()) << job.status();
    // Expert 2 to shard 0, samples wherever they were: three of four experts there.
    const LivePlan plan = planWith(*job, {0, 0, 0, 1}, {});
    EXPECT_EQ(plan.preview.expertsMoved, 1u);
    EXPECT_DOUBLE_EQ(plan.preview.forecast.remote.mean, 0.5);
    const auto figures = layerFigures(*job, {0, 0, 0, 1}, {});
    ASSERT_EQ(figures.size(), 1u);
    EXPECT_DOUBLE_EQ(figures[0].remote, 0.5);
    EXPECT_THAT(figures[0].load, ElementsAre(1.5, 0.5));
    EXPECT_DOUBLE_EQ(figures[0].maxOverMean(), 1.5);
    // "a" on shard 0, so that its 5 for expert 3 leave it; "b" on 1: all leave but those for 3.
    EXPECT_DOUBLE_EQ(layerFigures(*job, {0, 0, 0, 1}, {1000, 0, 0, 1000})[0].remote,
                     (5 + 45 + 5 + 5) / 200.0);
}

TEST(LivePlan, GoesBackToWhereThingsWere) {
    model::RunState s = job();
    EXPECT_THAT(std::string(planBefore(s).status().message()), HasSubstr("no expert of this job"));
    const auto plan = recommended(s);
    ASSERT_TRUE(plan.ok());
    model::apply(s, {1, 0, model::Severity::kNotice,
                     model::LayoutChanged{1, 1, true, 4000, plan->action.expertShard, "",
                                          plan->action.domainShare, 0.1}});
    const auto back = planBefore(s);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->action.expertShard, s.model.expertShard);
    EXPECT_TRUE(back->action.domainShare.empty());
    EXPECT_DOUBLE_EQ(back->preview.remoteNow, 0.1);
    EXPECT_DOUBLE_EQ(back->preview.forecast.remote.mean, 0.5);
}

TEST(LivePlan, SaysWhyThereIsNoneYet) {
    const auto refusal = [](const model::RunState& s) {
        return std::string(recommended(s).status().message());
    };
    EXPECT_THAT(refusal({}), HasSubstr("not been built yet"));
    model::RunState s = job();
    s.experts.stretches.clear();
    EXPECT_THAT(refusal(s), HasSubstr("no expert has been counted"));
    s = job();
    s.model.moeLayers = 0;
    EXPECT_THAT(refusal(s), HasSubstr("tiny has no experts"));
}

}  // namespace
}  // namespace bulkhead::planner
