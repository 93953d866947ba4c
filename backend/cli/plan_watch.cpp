// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/follow.h"
#include "backend/cli/plan_files.h"
#include "backend/model/json.h"
#include "backend/planner/import/rolling_folder.h"
#include "backend/planner/live/serving_watch.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

struct WatchArguments {
    std::string folder;
    double every = 5;  ///< seconds
    bool once = false;
    ServingWatchOptions watch;
    PlanOptions plan;
};

/// Looks at a folder until it is interrupted, and says what comes of the plan in use.
class Watching {
  public:
    Watching(const Cli& cli, const WatchArguments& arguments, ServingWatch watch)
        : cli_(cli),
          arguments_(arguments),
          watch_(std::move(watch)),
          folder_(arguments.folder, importOptions()),
          inUse_(stampOf(arguments.plan.plan)),
          looked_(inUse_) {}

    int run() {
        const Interrupts interrupts;
        while (true) {
            followPlan();
            bool came = false;
            const auto status = folder_.look(
                [&](const std::string& name, absl::StatusOr<Recording> recording) {
                    came = take(name, recording) || came;
                    return interrupts.count() == 0;
                },
                arguments_.once);
            if (!status.ok() && wasThere_)
                tellAway(status);
            else if (!status.ok())
                return refusePlan(cli_, "Cannot watch " + arguments_.folder, status,
                                  "Name the folder that the engine records into.");
            if (came && interrupts.count() == 0)
                if (const int code = judge(); code != kOk) return code;
            if (arguments_.once && !came)
                tell({{"event", "waiting"}, {"why", "nothing was read"}}, "nothing was read");
            if (arguments_.once) return kOk;
            if (status.ok()) away_.clear();
            wasThere_ = true;
            wait(interrupts);
            if (interrupts.count() > 0) {
                tell({{"event", "stopped"}}, "stopped");
                return kOk;
            }
        }
    }

  private:
    ImportOptions importOptions() const {
        ImportOptions options;
        options.model = watch_.plan().shape;
        return options;
    }

    static std::filesystem::file_time_type stampOf(const std::string& path) {
        std::error_code error;
        return std::filesystem::last_write_time(path, error);
    }

    /// Signals end a sleep, unless they come just before it.
    void wait(const Interrupts& interrupts) const {
        const auto until =
            std::chrono::steady_clock::now() + std::chrono::duration<double>(arguments_.every);
        while (interrupts.count() == 0 && std::chrono::steady_clock::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }

    void tell(const model::Json& json, const std::string& text) const {
        std::printf("%s\n", cli_.json ? model::dumpJson(json).c_str() : text.c_str());
        std::fflush(stdout);
    }

    /// Reads the plan again where another one was put in its place. While that one cannot be used,
    /// or the file is away, the plan before is watched on.
    void followPlan() {
        const auto stamp = stampOf(arguments_.plan.plan);
        if (std::exchange(looked_, stamp) == stamp || stamp == inUse_) return;
        auto plan = readPlan(arguments_.plan.plan);
        if (plan.ok())
            if (absl::Status fits = checkFit(*plan, watch_.plan().shape); !fits.ok())
                plan = absl::InvalidArgumentError(
                    absl::StrCat(arguments_.plan.plan, ": ", std::string(fits.message())));
        auto watch = plan.ok() ? ServingWatch::create(*std::move(plan), arguments_.watch)
                               : absl::StatusOr<ServingWatch>(plan.status());
        if (!watch.ok()) {
            const std::string why(watch.status().message());
            return tell({{"event", "refused"}, {"file", arguments_.plan.plan}, {"why", why}},
                        absl::StrCat("the plan before is watched on: ", why));
        }
        inUse_ = stamp;
        watch_ = *std::move(watch);
        folder_.describe(importOptions());
        tell({{"event", "plan"}, {"plan", arguments_.plan.plan}},
             arguments_.plan.plan + " has changed; it is watched from now on");
    }

    /// Says each reason once, since a folder may be mounted again.
    void tellAway(const absl::Status& status) {
        const std::string why(status.message());
        if (std::exchange(away_, why) != why)
            tell({{"event", "waiting"}, {"why", why}}, "nothing can be read: " + why);
    }

    /// True when it was of use.
    bool take(const std::string& name, const absl::StatusOr<Recording>& recording) {
        const absl::Status status = recording.ok() ? watch_.add(*recording) : recording.status();
        if (status.ok()) return true;
        const std::string why(status.message());
        tell({{"event", "refused"}, {"file", name}, {"why", why}},
             absl::StrCat("passed over ", name, ": ", why));
        return false;
    }

    int judge() {
        const auto figures = watch_.figures();
        if (!figures.ok()) {
            const std::string why(figures.status().message());
            tell({{"event", "waiting"}, {"why", why}}, "no figures yet: " + why);
            return kOk;
        }
        show(*figures);
        return figures->left.empty() ? kOk : propose(*figures);
    }

    void show(const ServingFigures& it) const {
        const auto& expected = watch_.plan().forecast.expected;
        model::Json json{{"event", "figures"},
                         {"tokens", it.tokens},
                         {"enough", it.enough},
                         {"sends_per_token", nullptr},
                         {"copies_per_token", nullptr},
                         {"node_load_max_over_mean", it.nodeLoad},
                         {"gpu_load_max_over_mean", it.gpuLoad},
                         {"promised", model::toJson(expected)},
                         {"left", it.left}};
        std::string text = absl::StrFormat("%d tokens:", it.tokens);
        const auto figure = [&](const char* what, double found, const Range& range) {
            absl::StrAppend(
                &text, text.ends_with(':') ? " " : ", ",
                absl::StrFormat("%s %.3f (%.3f to %.3f)", what, found, range.low, range.high));
        };
        if (it.sends) {
            json["sends_per_token"] = *it.sends;
            json["copies_per_token"] = *it.copies;
            figure("sends", *it.sends, expected.sends);
            figure("copies", *it.copies, expected.copies);
        }
        figure("node load", it.nodeLoad, expected.nodeLoad);
        figure("GPU load", it.gpuLoad, expected.gpuLoad);
        if (!it.enough) text += "; too few yet to say more";
        if (!it.left.empty()) absl::StrAppend(&text, "; left: ", it.left);
        tell(json, text);
    }

    int propose(const ServingFigures& figures) {
        watch_.rest();
        const auto recording = orDrawTokens(watch_.recent(), arguments_.plan.seed);
        if (!recording.ok()) return fail(cli_, recording.failure());
        FrontOptions wanted;
        wanted.objective = watch_.counted()
                               ? Objective::kBalance
                               : enumFromName<Objective>(watch_.plan().origin.objective)
                                     .value_or(Objective::kSends);
        wanted.homeCap = arguments_.plan.homeCap;
        const auto made = replannedFrom(watch_.plan(), arguments_.plan, recording.value(), wanted);
        if (!made.ok())
            return refusePlan(cli_, "Cannot plan from what came", made.status(),
                              "Watch for longer: --window.");
        Replan replan = made->made;
        const ExpectedSaving saving = expectedSaving(figures, replan.plan.forecast);
        const bool pays = replan.changes && saving.pays();
        if (pays)
            replan.reason = absl::StrFormat("%s; experts move in %d of %d layers", saving.text(),
                                            replan.layersChanged, replan.plan.shape.layers);
        else if (replan.changes)
            replan.reason =
                absl::StrFormat("%s; %.1f%% less is asked for", saving.text(), kLeastSaving * 100);
        const std::string& out = arguments_.plan.out;
        if (pays && !out.empty()) {
            replan.plan.origin.reason = replan.reason;
            const auto status = writePlan(replan.plan, out);
            if (!status.ok()) return refuseOut(cli_, status);
        }
        tell({{"event", pays ? "proposed" : "kept"},
              {"why", figures.left},
              {"reason", replan.reason},
              {"figure", saving.figure},
              {"found", saving.found},
              {"expected", saving.expected},
              {"before", replan.before},
              {"after", replan.after},
              {"migration", model::toJson(replan.migration)},
              {"forecast", model::toJson(replan.plan.forecast)},
              {"out", pays ? out : ""}},
             pays
                 ? absl::StrFormat(
                       "proposed: %s; %d slots to fetch, %.1f MB%s; %s%s", replan.reason,
                       replan.migration.slots, replan.migration.bytes / 1e6,
                       replan.migration.bytesAssumed ? " (expert size assumed)" : "",
                       forecastText(replan.plan.forecast), out.empty() ? "" : "; written to " + out)
                 : absl::StrCat("no better plan: ", replan.reason));
        return kOk;
    }

    const Cli& cli_;
    const WatchArguments& arguments_;
    ServingWatch watch_;
    RollingFolder folder_;
    std::filesystem::file_time_type inUse_, looked_;  ///< when the plan's file was written
    bool wasThere_ = false;                           ///< the folder, once
    std::string away_;  ///< reason told that the folder cannot be read
};

int watchFolder(const Cli& cli, const WatchArguments& arguments) {
    if (auto status = checkOut(arguments.plan.out); !status.ok()) return refuseOut(cli, status);
    auto plan = readPlan(arguments.plan.plan);
    auto watch = plan.ok() ? ServingWatch::create(*std::move(plan), arguments.watch)
                           : absl::StatusOr<ServingWatch>(plan.status());
    if (!watch.ok())
        return refusePlan(cli, "Cannot watch this plan", watch.status(),
                          "Make one with: bulkheadctl plan solve");
    return Watching(cli, arguments, *std::move(watch)).run();
}

}  // namespace

void addPlanWatch(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<WatchArguments>();
    CLI::App* verb = plan.add_subcommand(
        "watch", "Whether a plan that serves keeps its promise, from recordings as they come");
    verb->add_option("folder", o->folder,
                     "that an engine records into: SGLang's dumps, responses with routing as JSON "
                     "Lines, any other recording")
        ->required();
    verb->add_option("--plan", o->plan.plan,
                     "plan in use; when the file changes, the new plan is watched")
        ->required();
    verb->add_option("--out", o->plan.out,
                     "write what is proposed here, the latest over the others");
    verb->add_option("--every", o->every, "seconds between two looks")
        ->check(within(0.1, 86400))
        ->capture_default_str();
    verb->add_flag("--once", o->once, "read what is there, say what comes of it, and end");
    verb->add_option("--window", o->watch.window,
                     "tokens that count [as many as the plan was made from]")
        ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
    verb->add_option("--drift", o->watch.drift,
                     "part by which a figure may be above the promised range")
        ->check(within(0.0, 100.0))
        ->capture_default_str();
    verb->add_option("--seed", o->plan.seed, "of the new plan")
        ->check(seedNumber())
        ->capture_default_str();
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return watchFolder(cli, *o); }; });
}

}  // namespace bulkhead::cli
