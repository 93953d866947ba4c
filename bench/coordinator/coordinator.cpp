// SPDX-License-Identifier: Apache-2.0
// Cost of losing the controller for the live demo job: kill -9 at random moments of a step, a
// new one after the supervisor's pause, the time until the next step is committed.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "backend/model/job_file.h"
#include "backend/model/json.h"
#include "bench/report.h"
#include "tests/support/job_host.h"
#include "tests/support/outside_controller.h"

namespace bulkhead::bench {
namespace {

using std::chrono::milliseconds;

/// Waits as long as the daemon's supervisor does before it starts a child again.
constexpr milliseconds kSupervisorPause{200};

struct Settings : Place {
    int kills = 12;
    uint64_t seed = 1;
};

class Bench {
  public:
    explicit Bench(const Settings& settings)
        : settings_(settings),
          random_(settings.seed),
          host_(emptied(settings.out + "/coordinator-job")),
          controller_(host_.dir(), host_.socket(), "bulkhead-worker", host_.tape()) {}

    void run(Report& report) {
        need(host_.ready());
        const auto spec = value(model::readJobFile(settings_.root + "/resources/jobs/demo.toml"));
        controller_.start();
        const std::string answer = controller_.ask("start " + model::toJsonText(spec));
        if (!answer.starts_with("ok ")) need(absl::InternalError(answer));
        run_ = answer.substr(3);
        awaitStep(30);
        std::vector<double> outages;
        std::vector<double> steps;
        for (int i = 1; i <= settings_.kills; ++i) {
            awaitStep(step() + 5 + random_() % 10);
            // Anywhere within the step.
            const double stepMs = host_.tape().state(run_).lastCommit->stepMs;
            std::this_thread::sleep_for(
                milliseconds(random_() % static_cast<uint64_t>(std::max(1.0, stepMs))));
            const double outageMs = killOnce();
            outages.push_back(outageMs);
            steps.push_back(stepMs);
            report.row(
                {std::to_string(i), number(stepMs), number(outageMs), number(outageMs - stepMs)});
        }
        const Spread outage = spreadOf(outages);
        report.note(absl::StrCat(
            "kill to first commit: median ", number(outage.median), " ms (", number(outage.min),
            "-", number(outage.max), "), of it ", kSupervisorPause.count(),
            " ms the supervisor's pause; a step takes ", number(spreadOf(steps).median), " ms"));
        report.note(absl::StrCat("processes started: ", started(), " for ",
                                 spec.replicas * spec.shards, " ranks"));
        report.atMost("kill to first commit, worst", outage.max, 2000, "ms");
    }

  private:
    static support::JobHostOptions emptied(const std::string& folder) {
        std::filesystem::remove_all(folder);
        std::filesystem::create_directories(folder);
        support::JobHostOptions options;
        options.dir = folder;
        options.withController = false;
        return options;
    }
    uint64_t step() {
        const auto state = host_.tape().state(run_);
        return state.lastCommit ? state.lastCommit->record.step : 0;
    }
    void awaitStep(uint64_t step) {
        need(host_.tape().awaitState(
            run_, "step",
            [step](const model::RunState& s) {
                return s.lastCommit && s.lastCommit->record.step >= step;
            },
            120 * kSecond));
    }
    /// A step counts as the next when the next coordinator has committed it itself.
    double killOnce() {
        const int64_t at = SystemClock().unixNs();
        controller_.killNow();
        std::this_thread::sleep_for(kSupervisorPause);
        ++term_;
        controller_.start();
        const auto committed = [this](const model::RunState& s) {
            return s.lastCommit && s.lastCommit->record.term == term_;
        };
        need(host_.tape().awaitState(run_, "the next commit", committed, 60 * kSecond));
        for (const model::Event& e : host_.tape().events(run_))
            if (const auto* c = std::get_if<model::StepCommitted>(&e.body);
                c != nullptr && c->record.term == term_)
                return static_cast<double>(e.timeNs - at) / 1e6;
        return 0;
    }
    size_t started() {
        size_t n = 0;
        for (const model::Event& e : host_.tape().events(run_))
            n += std::holds_alternative<model::RankStarted>(e.body);
        return n;
    }

    const Settings& settings_;
    std::mt19937_64 random_;
    support::JobHost host_;
    support::OutsideController controller_;
    std::string run_;
    uint64_t term_ = 1;
};

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    using namespace bulkhead::bench;
    Settings settings;
    CLI::App app("What the loss of the coordinator costs, on the live demo job");
    addPlace(app, settings);
    app.add_option("--seed", settings.seed);
    app.add_option("--kills", settings.kills)->check(CLI::Range(1, 1000));
    CLI11_PARSE(app, argc, argv);
    settings.out = std::filesystem::absolute(settings.out);
    Report report("coordinator", {"#", "step ms", "kill to commit ms", "lost ms"});
    Bench(settings).run(report);
    return report.finish(settings.out);
}
