// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/metrics.h"

#include <gmock/gmock.h>
#include <prometheus/text_serializer.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>

namespace bulkhead::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::Not;

model::Event at(int64_t ns, uint64_t seq, model::EventBody body) {
    model::Event event;
    event.seq = seq;
    event.timeNs = ns;
    event.body = std::move(body);
    return event;
}

/// A job of two replicas with one step, one checkpoint and one node.
Observed trainingJob() {
    Observed observed;
    observed.up = true;
    observed.server.build = "9.9";
    observed.server.certificateEndsNs = 5'000'000'000;
    observed.server.leader = "train-1";
    observed.server.standbys = {"train-2", "train-3"};
    model::JobInfo job;
    job.id = "demo \"1\"";
    job.phase = model::JobPhase::kTraining;
    job.step = 41;
    job.steps = 100;
    job.replicas = 2;
    job.contributors = 1;
    observed.jobs.push_back(job);
    model::RunState& state = observed.states[job.id];
    model::RunStarted started;
    started.spec.replicas = 2;
    started.spec.shards = 1;
    model::apply(state, at(1'000'000'000, 1, started));
    model::StepCommitted commit;
    commit.record.lineage = 1;
    commit.record.step = 41;
    commit.loss = 2.5;
    commit.effectiveTime = 0.75;
    commit.stepMs = 250;
    model::apply(state, at(2'000'000'000, 2, commit));
    model::CheckpointWritten checkpoint;
    checkpoint.step = 40;
    model::apply(state, at(3'000'000'000, 3, checkpoint));
    state.typicalStepMs = 240;
    model::NodeView& node = state.nodes.emplace_back();
    node.node = "node0";
    node.slots = 8;
    node.state = model::NodeState::kLost;
    return observed;
}

std::string textOf(const Observed& observed) {
    return prometheus::TextSerializer().Serialize(metricFamilies(observed));
}

TEST(MetricsTest, AJobIsTold) {
    const std::string text = textOf(trainingJob());
    for (const char* line :
         {"bulkhead_daemon_up 1\n", "bulkhead_daemon_info{version=\"9.9\"} 1\n",
          "bulkhead_job_step{run=\"demo \\\"1\\\"\"} 41\n",
          "bulkhead_job_phase{run=\"demo \\\"1\\\"\",phase=\"training\"} 1\n",
          "bulkhead_job_phase{run=\"demo \\\"1\\\"\",phase=\"waiting\"} 0\n",
          "bulkhead_job_contributors{run=\"demo \\\"1\\\"\"} 1\n",
          "bulkhead_job_effective_training_time_ratio{run=\"demo \\\"1\\\"\"} 0.75\n",
          "bulkhead_job_step_seconds{run=\"demo \\\"1\\\"\"} 0.25\n",
          "bulkhead_job_last_commit_timestamp_seconds{run=\"demo \\\"1\\\"\"} 2\n",
          "bulkhead_job_checkpoint_step{run=\"demo \\\"1\\\"\"} 40\n",
          "bulkhead_job_replicas{run=\"demo \\\"1\\\"\",state=\"absent\"} 2\n",
          "bulkhead_node_up{run=\"demo \\\"1\\\"\",node=\"node0\"} 0\n",
          "# TYPE bulkhead_job_tokens_total counter\n"})
        EXPECT_THAT(text, HasSubstr(line));
}

TEST(MetricsTest, WithoutTheDaemonNothingIsSaidOfItsJobs) {
    Observed observed = trainingJob();
    observed.up = false;
    EXPECT_THAT(textOf(observed), HasSubstr("bulkhead_daemon_up 0\n"));
    EXPECT_THAT(textOf(observed), Not(HasSubstr("bulkhead_job")));
}

TEST(MetricsTest, AFigureThatIsNotKnownHasNoSeries) {
    Observed observed = trainingJob();
    observed.states.clear();
    EXPECT_THAT(textOf(observed), HasSubstr("bulkhead_job_step"));
    EXPECT_THAT(textOf(observed), Not(HasSubstr("bulkhead_job_loss")));
    observed.states["demo \"1\""] = {};
    EXPECT_THAT(textOf(observed), Not(HasSubstr("bulkhead_job_loss")));
    EXPECT_THAT(textOf(observed), Not(HasSubstr("bulkhead_job_checkpoint_step")));
}

/// A renamed metric would leave an alert that never fires.
TEST(MetricsTest, AlertsAndDashboardUseMetricsThatAreServed) {
    std::set<std::string> served;
    for (const auto& family : metricFamilies(trainingJob())) served.insert(family.name);
    for (const char* file : {"alerts.yml", "alerts_test.yml", "dashboard.json"}) {
        std::ifstream in(std::string(BULKHEAD_SOURCE_DIR) + "/resources/prometheus/" + file);
        const std::string text(std::istreambuf_iterator<char>(in), {});
        std::set<std::string> used;
        const std::regex name("\\bbulkhead_[a-z_]+\\b");
        for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it)
            used.insert(it->str());
        EXPECT_GT(used.size(), 2u) << file;
        EXPECT_THAT(used, IsSubsetOf(served)) << file;
    }
}

}  // namespace
}  // namespace bulkhead::cli
