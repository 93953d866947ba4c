// SPDX-License-Identifier: Apache-2.0
// Savings of a plan from a running job's own routing, predicted beside measured: the demo's model
// in 2 replicas of 4 shards, which stand for nodes, on four domains of text. Jobs in turn: some
// with the plan, from other parameters each, one without it, and one that is hurt while the plan is
// applied and goes back in the end. `./dev bench live [--settle STEPS] [--steps STEPS] [--runs N]`
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "backend/planner/live/live_plan.h"
#include "bench/demo_job.h"
#include "bench/report.h"

namespace bulkhead::bench {
namespace {

constexpr double kPatience = 900;  // seconds; the machine may be busy

struct Settings {
    Place place;
    uint64_t settle = 1000;  ///< steps before the plan is made; the router learns fast at first
    uint64_t steps = 200;    ///< ... and those after it
    uint32_t runs = 3;       ///< with the plan
};

std::string written(const std::string& path, const std::function<void(std::ostream&)>& line) {
    std::ofstream text(path, std::ios::trunc);
    for (int i = 0; i < 20000; ++i) line(text);
    return path;
}

/// English, C++, a table of figures, hashes.
void fourKinds(const Settings& settings, model::JobSpec& spec) {
    std::mt19937_64 random(1);
    const auto table = [&](std::ostream& out) {
        out << random() % 10000 << ';' << static_cast<double>(random() % 100000) / 100 << ';'
            << random() % 1000 << "\n";
    };
    const auto hex = [&](std::ostream& out) {
        for (int word = 0; word < 6; ++word) out << std::hex << random() % 0xffffffff << ' ';
        out << "\n";
    };
    const std::string& root = settings.place.root;
    const std::string& out = settings.place.out;
    spec.domains = {{"prose", {root + "/LICENSES"}},
                    {"code", {root + "/backend"}},
                    {"table", {written(out + "/table.txt", table)}},
                    {"hex", {written(out + "/hex.txt", hex)}}};
}

/// One of the jobs, and what the bench asks of it.
class LiveRun {
  public:
    LiveRun(const Settings& settings, const std::string& name, uint64_t seed = 1)
        : job_(value(DemoJob::start(settings.place.root, settings.place.out + "/live-" + name,
                                    [&](model::JobSpec& spec) {
                                        spec.seed = seed;
                                        spec.replicas = 2;
                                        spec.shards = 4;
                                        spec.samplesPerReplica = 8;
                                        fourKinds(settings, spec);
                                    }))) {}

    model::RunState state() { return job_->state(); }
    void until(const std::string& what, const std::function<bool(const model::RunState&)>& is) {
        need(job_->wait(what, kPatience, is));
    }
    void untilStep(uint64_t step) {
        until("step " + std::to_string(step), [&](const model::RunState& s) {
            return s.lastCommit && s.lastCommit->record.step >= step;
        });
    }
    void order(const model::Action& action) { need(job_->act(action)); }
    void order(model::ActionKind kind) {
        model::Action action;
        action.kind = kind;
        order(action);
    }
    /// The outcome of the n-th move, from 1.
    model::LayoutView moved(size_t n) {
        until("the experts' move", [&](const model::RunState& s) { return s.layouts.size() >= n; });
        return state().layouts[n - 1];
    }
    planner::LivePlan recommended() {
        return value(planner::recommendPlan(value(planner::liveJob(state())), {}));
    }
    model::TrafficSum trafficIn(uint64_t layout) {
        model::TrafficSum sum;
        for (const model::StepCommitted& s : committed(job_->events())) {
            if (s.record.layout != layout) continue;
            ++sum.steps;
            for (const uint64_t n : s.traffic.copies) sum.copies += n;
            for (const uint64_t n : s.traffic.remote) sum.remote += n;
            sum.bytes += s.traffic.bytes;
        }
        return sum;
    }
    std::vector<model::Event> events() { return job_->events(); }
    double lossAfter(uint64_t step) {
        double sum = 0;
        size_t n = 0;
        for (const model::StepCommitted& s : committed(job_->events()))
            if (s.record.step > step) {
                sum += s.loss;
                ++n;
            }
        return n > 0 ? sum / static_cast<double>(n) : 0;
    }
    int32_t pidOf(RankId rank) {
        const model::RankView* view = model::findRank(state_ = state(), rank);
        if (view == nullptr || view->pid <= 0) die(absl::NotFoundError("no such rank runs"));
        return view->pid;
    }

  private:
    std::unique_ptr<DemoJob> job_;
    model::RunState state_;
};

struct Planned {
    model::LayoutView view;
    model::TrafficSum after;  ///< of all steps in the new layout
    model::TrafficSum last;
    double optimism = 0;
    double predictedBytes = 0;
    double loss = 0;
    double off() const { return after.remoteShare() / view.predictedRemote - 1; }
};

Planned planned(const Settings& settings, uint64_t seed) {
    LiveRun run(settings, "planned", seed);
    run.untilStep(settings.settle);
    const planner::LivePlan plan = run.recommended();
    run.order(plan.action);
    if (const auto view = run.moved(1); !view.ok) die(absl::InternalError(view.why));
    run.untilStep(settings.settle + settings.steps);
    const model::RunState s = run.state();
    const model::LayoutView& view = s.layouts.back();
    return {view,
            run.trafficIn(view.layout),
            model::latestTraffic(s),
            plan.preview.forecast.optimism(),
            plan.preview.bytesPerStepPredicted,
            run.lossAfter(settings.settle)};
}

/// Share of results within the range that a plan's forecast gave.
struct Held {
    int plans = 0, remote = 0, load = 0;
    double remoteWide = 0, loadWide = 0, off = 0;  ///< sums; off: squares, relative
};

/// A plan every 50 steps from the last 100, held against the 100 that came: routing does not depend
/// on where experts lie, so a job without a plan tells.
Held heldAgainst(const std::vector<model::Event>& events) {
    constexpr uint64_t kEvery = 50;
    constexpr uint64_t kWindow = model::ExpertView::kStretch * model::ExpertView::kStretches;
    struct Promise {
        uint64_t due;
        planner::LivePlan plan;
    };
    std::vector<Promise> open;
    model::RunState state;
    uint64_t next = kWindow;
    Held held;
    for (const model::Event& event : events) {
        model::apply(state, event);
        const auto* loads = std::get_if<model::ExpertLoads>(&event.body);
        if (loads == nullptr || loads->step < next) continue;
        next = loads->step + kEvery;
        const planner::LiveJob job = value(planner::liveJob(state));
        for (const Promise& promise : open) {
            if (promise.due > loads->step) break;
            const planner::LiveForecast &said = promise.plan.preview.forecast,
                                        came =
                                            planner::planWith(job, promise.plan.action.expertShard,
                                                              promise.plan.action.domainShare)
                                                .preview.forecast;
            const auto in = [](double x, const planner::Range& range) {
                return range.low <= x && x <= range.high;
            };
            const double remote = came.remoteInSample;
            ++held.plans;
            held.remote += in(remote, said.remote);
            held.load += in(came.loadInSample, said.load);
            held.remoteWide += said.remote.high - said.remote.low;
            held.loadWide += said.load.high - said.load.low;
            held.off += (said.remote.mean / remote - 1) * (said.remote.mean / remote - 1);
        }
        std::erase_if(open, [&](const Promise& it) { return it.due <= loads->step; });
        open.push_back({loads->step + kWindow, value(planner::recommendPlan(job, {}))});
    }
    return held;
}

struct Unplanned {
    double loss = 0;
    Held held;
};

Unplanned unplanned(const Settings& settings) {
    LiveRun run(settings, "unplanned");
    run.untilStep(settings.settle + settings.steps);
    return {run.lossAfter(settings.settle), heldAgainst(run.events())};
}

struct Hurt {
    bool oldLayoutStayed = false;
    double backMs = 0;  ///< from the kill to the first commit with the replica again
    model::LayoutView applied, rolledBack;
    double remoteInTheEnd = 0;
};

/// A shard is killed while its siblings wait for its experts; then the plan is applied again, and
/// rolled back.
Hurt hurt(const Settings& settings) {
    LiveRun run(settings, "hurt");
    run.untilStep(settings.settle);
    const planner::LivePlan plan = run.recommended();
    run.order(model::ActionKind::kPause);
    run.until("the pause",
              [](const model::RunState& s) { return s.phase == model::JobPhase::kPaused; });
    const int32_t victim = run.pidOf({1, 2});
    ::kill(victim, SIGSTOP);
    run.order(plan.action);
    ::kill(victim, SIGKILL);
    Hurt out;
    out.oldLayoutStayed = !run.moved(1).ok && run.state().layout == 0;
    run.order(model::ActionKind::kResume);
    run.until("the lost replica", [](const model::RunState& s) {
        return !s.incidents.empty() && s.incidents.back().rejoinMs > 0;
    });
    out.backMs = run.state().incidents.back().rejoinMs;
    const auto settle = [&] {
        run.untilStep(run.state().lastCommit->record.step + model::LayoutView::kWindow + 5);
    };
    run.order(plan.action);
    if (const auto view = run.moved(2); !view.ok) die(absl::InternalError(view.why));
    settle();
    out.applied = run.state().layouts.back();
    run.order(value(planner::planBefore(run.state())).action);
    if (const auto view = run.moved(3); !view.ok) die(absl::InternalError(view.why));
    settle();
    out.rolledBack = run.state().layouts.back();
    out.remoteInTheEnd = model::latestTraffic(run.state()).remoteShare();
    return out;
}

std::string list(const std::vector<double>& values) {
    std::string text;
    for (const double x : values) text += (text.empty() ? "" : ", ") + number(x);
    return text;
}

double megabytes(const model::TrafficSum& sum) {
    return static_cast<double>(sum.bytes) / static_cast<double>(std::max<uint64_t>(1, sum.steps)) /
           1e6;
}

int bench(const Settings& settings) {
    std::vector<Planned> runs;
    for (uint64_t seed = 1; seed <= settings.runs; ++seed) runs.push_back(planned(settings, seed));
    const Planned& plan = runs.front();
    const auto [without, held] = unplanned(settings);
    const Hurt broken = hurt(settings);
    const model::LayoutView& v = plan.view;

    Report report("live", {"2 replicas x 4 shards, four kinds of text", "before",
                           "in the counted steps", "predicted", "after", "last 50 steps"});
    report.note("a plan after " + std::to_string(settings.settle) + " steps, " +
                std::to_string(settings.steps) + " steps with it; it moves " +
                std::to_string(v.expertsMoved) + " experts, " +
                number(static_cast<double>(v.bytesMoved) / 1e6) + " MB");
    std::vector<double> fall, off;
    for (const Planned& p : runs) {
        const double before = p.view.before.remoteShare(), after = p.after.remoteShare();
        fall.push_back((1 - after / before) * 100);
        off.push_back(std::abs(p.off()) * 100);
        report.row({"remote copies %, from seed " + number(static_cast<double>(off.size()), 0),
                    number(before * 100), number((p.view.predictedRemote - p.optimism) * 100),
                    number(p.view.predictedRemote * 100), number(after * 100),
                    number(p.last.remoteShare() * 100)});
    }
    report.row({"all-to-all MB a step, from seed 1", number(megabytes(v.before), 3), "",
                number(plan.predictedBytes / 1e6, 3), number(megabytes(plan.after), 3),
                number(megabytes(plan.last), 3)});
    const auto row = [&](const std::string& what, const std::string& figure) {
        report.row({what, figure, "", "", "", ""});
    };
    row("loss of these steps without and with it",
        number(without, 3) + " and " + number(plan.loss, 3));
    row("a shard killed in the middle of the apply",
        std::string(broken.oldLayoutStayed ? "the old layout stays" : "the layout is torn") +
            ", replica back after " + number(broken.backMs, 0) + " ms");
    row("applied again, then rolled back: remote copies %",
        number(broken.applied.after.remoteShare() * 100) + ", " +
            number(broken.remoteInTheEnd * 100));
    row("measured away from predicted, of each run %", list(off));
    const double plans = std::max(1, held.plans);
    row("plans held against the 100 steps after them, every 50 steps",
        number(held.plans, 0) + "; remote copies " + number(100 * std::sqrt(held.off / plans)) +
            " % off (root mean square)");
    row("what came lay in the 5 to 95 % of remote copies, of load %",
        number(100 * held.remote / plans, 0) + ", " + number(100 * held.load / plans, 0));
    row("such a range is wide, remote copies %, load",
        number(100 * held.remoteWide / plans) + ", " + number(held.loadWide / plans, 3));
    report.atLeast("remote copies fall, the least of any run",
                   *std::min_element(fall.begin(), fall.end()), 15, "%");
    report.atMost("measured away from predicted, median of the runs", spreadOf(off).median, 3, "%");
    report.atMost("loss beside the run without a plan", plan.loss - without, 0.02, "nats");
    report.atLeast("kill -9 in the middle of the apply survived", broken.oldLayoutStayed, 1, "");
    report.atMost("rolled back: remote copies away from where they were",
                  std::abs(broken.remoteInTheEnd / broken.applied.before.remoteShare() - 1) * 100,
                  3, "%");
    return report.finish(settings.place.out);
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    bulkhead::bench::Settings settings;
    CLI::App app{"What a live plan saves, predicted beside measured"};
    bulkhead::bench::addPlace(app, settings.place);
    app.add_option("--settle", settings.settle, "steps before the plan is made")
        ->capture_default_str();
    app.add_option("--steps", settings.steps, "steps after it")->capture_default_str();
    app.add_option("--runs", settings.runs, "jobs with the plan")
        ->check(CLI::Range(1, 100))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    return bulkhead::bench::bench(settings);
}
