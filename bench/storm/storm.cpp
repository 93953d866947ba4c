// SPDX-License-Identifier: Apache-2.0
// Everything that can be done to a job from outside, at once and for half an hour, upon the
// programs as they are shipped: `./dev bench storm [--minutes M] [--seed S] [--asan]`. See
// README.md.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backend/model/json.h"
#include "bench/report.h"
#include "bench/storm/fleet.h"

namespace bulkhead::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Settings {
    Place place;
    std::string programs = "build/bin";
    double minutes = 30;
    uint64_t seed = 0;  ///< 0: drawn from the clock
    uint32_t replicas = 4;
    uint32_t shards = 2;
    double bound = 180;  ///< seconds from the healing of all faults to progress
    bool loopback = false;
    bool keep = false;
};

volatile std::sig_atomic_t interrupted = 0;

/// A break ends the storm early; the directory is kept.
struct Broke {
    std::string why;
};

struct Job {
    std::string id;
    std::string run;
    std::string phase;
    std::string why;
    uint64_t step = 0;
    uint32_t contributors = 0;
};

/// One thing done to the fleet. `begin` does it and returns what takes it back.
struct Strike {
    std::string name;
    double most;  ///< seconds it lasts at most
    std::function<std::function<void()>()> begin;
};

class Storm {
  public:
    explicit Storm(Settings settings)
        : settings_(std::move(settings)),
          random_(settings_.seed),
          dir_(fs::absolute(absl::StrCat(settings_.place.out, "/storm-", settings_.seed)).string()),
          fleet_({fs::absolute(settings_.programs).string(), dir_, 2, settings_.loopback}) {}

    int run();

  private:
    double upTo(double most) { return std::uniform_real_distribution<>(0, most)(random_); }
    uint32_t below(uint32_t n) {
        return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_);
    }
    uint32_t anAgent() { return 1 + below(fleet_.members() - 1); }
    void say(const std::string& what) {
        log_ << absl::StrFormat("%8.2f  ", since(began_)) << what << std::endl;
    }
    static double since(Clock::time_point at) { return Seconds(Clock::now() - at).count(); }

    std::optional<Job> look();
    template <class Condition>
    double await(const std::string& what, double bound, Condition condition);
    void begin();
    std::string startJob(const std::string& resume);
    std::string placement();
    std::vector<Strike> strikes();
    void round(uint32_t n);
    void operate();
    void awaitEnd(uint32_t member, pid_t pid);
    void settle(bool everybody);
    void stopAndResume();
    void stop();
    std::string judge();
    std::string summarise(const std::string& broke);

    Settings settings_;
    std::mt19937_64 random_;
    std::string dir_;
    Fleet fleet_;
    std::ofstream log_;
    Clock::time_point began_ = Clock::now();
    Job job_;
    std::vector<std::string> runs_;
    std::map<std::string, uint32_t> struck_;
    std::map<std::string, uint32_t> ordered_;
    std::vector<double> recoveries_;
    std::vector<double> returns_;  ///< until all replicas contribute
    std::set<int32_t> drained_;
    bool paused_ = false;
    uint32_t layers_ = 0;  ///< mixtures of the model, and experts of each
    uint32_t experts_ = 0;
    uint32_t placements_ = 0;
    uint64_t steps_ = 0;
    uint64_t compared_ = 0;
};

/// The job as its daemon tells it now; nothing while no daemon answers.
std::optional<Job> Storm::look() {
    const Ran ran = fleet_.ctl("--json jobs");
    if (ran.code != 0) return std::nullopt;
    std::optional<Job> found;
    size_t from = 0;
    while (from < ran.out.size()) {
        const size_t end = ran.out.find('\n', from);
        const auto json = model::parseJson(ran.out.substr(from, end - from));
        from = end == std::string::npos ? ran.out.size() : end + 1;
        if (!json.ok() || json->value("run", "") != job_.run) continue;
        found = Job{json->value("id", ""),
                    json->value("run", ""),
                    json->value("phase", ""),
                    json->value("why", ""),
                    json->value("step", uint64_t{0}),
                    json->value("contributors", 0u)};
    }
    if (found) {
        if (found->phase == "failed")
            throw Broke{absl::StrCat("the job failed at step ", found->step, ": ", found->why)};
        job_ = *found;
    }
    return found;
}

/// Seconds until it holds; breaks the storm when it does not within the bound.
template <class Condition>
double Storm::await(const std::string& what, double bound, Condition condition) {
    const auto from = Clock::now();
    std::optional<Job> last;
    while (true) {
        if (const auto job = look()) {
            last = job;
            if (condition(*job)) return since(from);
        }
        if (const std::string said = fleet_.complaints(); !said.empty()) throw Broke{said};
        if (interrupted != 0) throw Broke{"interrupted"};
        if (since(from) > bound)
            throw Broke{absl::StrCat(what, " did not come within ", number(bound, 0),
                                     " s, at step ", job_.step, ": ",
                                     last ? absl::StrCat(last->phase, ", ", last->contributors,
                                                         " contributors, ", last->why)
                                          : std::string("no daemon answers"))};
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // between two looks
    }
}

std::string Storm::startJob(const std::string& resume) {
    // A controller that has just come up may have no agents yet, and waits for them itself.
    const Ran ran =
        fleet_.ctl(absl::StrCat("--json start ", dir_, "/job.toml --name storm-", runs_.size() + 1,
                                resume.empty() ? "" : " --resume " + resume));
    const auto json = model::parseJson(ran.out.substr(0, ran.out.find('\n')));
    if (ran.code != 0 || !json.ok())
        throw Broke{absl::StrCat("the job could not be started (code ", ran.code, ") ", ran.out)};
    runs_.push_back(json->value("run", ""));
    job_ = {};
    job_.run = runs_.back();
    return job_.run;
}

void Storm::begin() {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    log_.open(dir_ + "/storm.log");
    std::ofstream text(dir_ + "/text.txt");
    for (int i = 0; i < 4000; ++i) text << "The " << random_() % 977 << " ships sail on.\n";
    std::ofstream(dir_ + "/job.toml")
        << "name = \"storm\"\nreplicas = " << settings_.replicas
        << "\nshards = " << settings_.shards << "\nseed = " << random_() % 100000
        << "\ncheckpoint_dir = \"" << fleet_.checkpoints()
        << "\"\n[model]\nsize = \"tiny\"\n[policies]\nmin_replicas = 1\nrestart_limit = 0\n"
           "checkpoint_every_steps = 20\n[timeouts]\norphan_ms = 60000\n[[domains]]\nname = "
           "\"ships\"\npaths = [\""
        << dir_ << "/text.txt\"]\n";
    need(fleet_.start());
    const auto from = Clock::now();
    while (fleet_.ctl("--json jobs").code != 0) {
        if (since(from) > settings_.bound) throw Broke{"the daemon did not come up"};
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // between two looks
    }
    startJob("");
    settle(true);
    const auto state = model::parseJson(fleet_.ctl("--json status").out);
    if (!state.ok()) throw Broke{"the job's state cannot be read"};
    layers_ = (*state)["model"].value("moe_layers", 0u);
    experts_ = (*state)["model"].value("experts", 0u);
}

std::vector<Strike> Storm::strikes() {
    const auto nothing = [] {};
    std::vector<Strike> all;
    all.push_back({"kill workers", 0, [this, nothing] {
                       std::vector<pid_t> pids = fleet_.workers(anAgent());
                       std::shuffle(pids.begin(), pids.end(), random_);
                       const size_t n = std::min<size_t>(pids.size(), 1 + below(3));
                       for (size_t i = 0; i < n; ++i) ::kill(pids[i], SIGKILL);
                       return nothing;
                   }});
    all.push_back({"stop a worker", 8, [this, nothing]() -> std::function<void()> {
                       const std::vector<pid_t> pids = fleet_.workers(anAgent());
                       if (pids.empty()) return nothing;
                       const pid_t pid = pids[below(static_cast<uint32_t>(pids.size()))];
                       ::kill(pid, SIGSTOP);
                       return [this, pid] {
                           // Its number may be another's by now.
                           for (uint32_t m = 1; m < fleet_.members(); ++m)
                               for (const pid_t mine : fleet_.workers(m))
                                   if (mine == pid) ::kill(pid, SIGCONT);
                       };
                   }});
    all.push_back({"kill an agent", 6, [this] {
                       const uint32_t m = anAgent();
                       fleet_.signalMember(m, SIGKILL);
                       return [this, m] { fleet_.startMember(m); };
                   }});
    all.push_back({"stop an agent", 8, [this] {
                       const uint32_t m = anAgent();
                       fleet_.signalMember(m, SIGSTOP);
                       return [this, m] { fleet_.signalMember(m, SIGCONT); };
                   }});
    all.push_back({"kill the controller", 6, [this] {
                       fleet_.signalMember(Fleet::kController, SIGKILL);
                       return [this] { fleet_.startMember(Fleet::kController); };
                   }});
    all.push_back({"stop the controller", 8, [this] {
                       fleet_.signalMember(Fleet::kController, SIGSTOP);
                       return [this] { fleet_.signalMember(Fleet::kController, SIGCONT); };
                   }});
    all.push_back({"end the controller", 6, [this] {
                       const pid_t pid = fleet_.pid(Fleet::kController);
                       fleet_.signalMember(Fleet::kController, SIGTERM);
                       return [this, pid] {
                           awaitEnd(Fleet::kController, pid);
                           fleet_.startMember(Fleet::kController);
                       };
                   }});
    all.push_back({"kill a node", 8, [this] {
                       const uint32_t m = anAgent();
                       fleet_.signalMember(m, SIGKILL);
                       for (const pid_t pid : fleet_.workers(m)) ::kill(pid, SIGKILL);
                       return [this, m] { fleet_.startMember(m); };
                   }});
    all.push_back({"kill every worker", 0, [this, nothing] {
                       for (uint32_t m = 1; m < fleet_.members(); ++m)
                           for (const pid_t pid : fleet_.workers(m)) ::kill(pid, SIGKILL);
                       return nothing;
                   }});
    if (fleet_.canCut())
        all.push_back({"cut a node", 10, [this] {
                           const uint32_t m = anAgent();
                           fleet_.cut(m, true);
                           return [this, m] { fleet_.cut(m, false); };
                       }});
    if (fleet_.canFill())
        for (const bool checkpoints : {true, false})
            all.push_back({checkpoints ? "fill the checkpoints' disk" : "fill the history's disk",
                           8, [this, checkpoints] {
                               fleet_.fill(checkpoints, true);
                               return [this, checkpoints] { fleet_.fill(checkpoints, false); };
                           }});
    if (fleet_.canJump())
        all.push_back({"jump a clock", 10, [this] {
                           const uint32_t m = below(fleet_.members());
                           const auto by = static_cast<int64_t>(upTo(14400)) - 7200;
                           fleet_.jump(m, by);
                           return [this, m] { fleet_.jump(m, 0); };
                       }});
    return all;
}

/// A file that puts every expert on another shard than the file before.
std::string Storm::placement() {
    model::Json place;
    ++placements_;
    for (uint32_t layer = 0; layer < layers_; ++layer) {
        model::Json row = model::Json::array();
        for (uint32_t e = 0; e < experts_; ++e) row.push_back((e + placements_) % settings_.shards);
        place["expert_shard"].push_back(row);
    }
    const std::string file = dir_ + "/placement.json";
    std::ofstream(file) << model::dumpJson(place);
    return file;
}

/// The life `pid` of a member, which was told to end, ends.
void Storm::awaitEnd(uint32_t member, pid_t pid) {
    for (const auto from = Clock::now(); pid != 0 && fleet_.pid(member) == pid;) {
        if (since(from) > settings_.bound)
            throw Broke{absl::StrCat(fleet_.name(member), " got SIGTERM and did not end")};
        fleet_.signalMember(member, SIGCONT);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // between two looks
    }
}

/// An operator's order in the midst of it; refusals are answers too.
void Storm::operate() {
    const uint32_t what = below(5);
    std::string order;
    if (what == 0) {
        order = "checkpoint --yes";
    } else if (what == 1) {
        order = "pause --yes";
        paused_ = true;
    } else if (what == 2) {
        const auto replica = static_cast<int32_t>(below(settings_.replicas));
        order = absl::StrCat("drain ", replica, " --yes");
        drained_.insert(replica);
    } else {
        order = "layout " + placement() + " --yes";
    }
    const Ran ran = fleet_.ctl(order);
    const std::string verb = order.substr(0, order.find(' '));
    say(absl::StrCat(order, ": code ", ran.code));
    ++ordered_[ran.code == 0 ? verb : verb + ", refused"];
}

/// All faults are healed, and all orders that hold the job back are taken back.
void Storm::settle(bool everybody) {
    for (const int32_t replica : drained_)
        await("release", settings_.bound, [&](const Job&) {
            return fleet_.ctl(absl::StrCat("release ", replica, " --yes")).code != 3;
        });
    drained_.clear();
    if (paused_)
        await("resume", settings_.bound,
              [&](const Job&) { return fleet_.ctl("resume --yes").code != 3; });
    paused_ = false;
    std::optional<uint64_t> from;
    const double seconds = await("progress", settings_.bound, [&](const Job& job) {
        if (!from || job.step < *from) from = job.step;  // a rollback
        return job.step >= *from + 3;
    });
    recoveries_.push_back(seconds);
    if (!everybody) return;
    returns_.push_back(await("every replica", 2 * settings_.bound, [&](const Job& job) {
        return job.contributors >= settings_.replicas;
    }));
}

void Storm::round(uint32_t n) {
    std::vector<Strike> all = strikes();
    std::shuffle(all.begin(), all.end(), random_);
    all.resize(1 + below(4));
    struct Lasting {
        Clock::time_point until;
        std::function<void()> heal;
        std::string name;
    };
    std::vector<Lasting> lasting;
    const bool operates = below(2) == 0;
    for (const Strike& strike : all) {
        const double lasts = strike.most > 0 ? 0.2 + upTo(strike.most) : 0;
        say(absl::StrFormat("round %u, step %u: %s for %.1f s", n, job_.step, strike.name, lasts));
        ++struck_[strike.name];
        std::function<void()> heal = strike.begin();
        lasting.push_back({Clock::now() + std::chrono::milliseconds(static_cast<int>(lasts * 1e3)),
                           std::move(heal), strike.name});
        if (operates) operate();
    }
    while (!lasting.empty()) {
        const auto next = std::min_element(lasting.begin(), lasting.end(),
                                           [](auto& a, auto& b) { return a.until < b.until; });
        std::this_thread::sleep_until(next->until);
        next->heal();
        say("healed: " + next->name);
        lasting.erase(next);
    }
    for (uint32_t m = 0; m < fleet_.members(); ++m) {
        // A strike may have healed what another had killed meanwhile.
        fleet_.startMember(m);
        fleet_.signalMember(m, SIGCONT);
    }
    settle(n % 3 == 0);
    say(absl::StrFormat("round %u: goes on at step %u after %.1f s, %u contribute", n, job_.step,
                        recoveries_.back(), job_.contributors));
}

void Storm::stop() {
    await("stop", settings_.bound, [&](const Job& job) {
        return job.phase == "finished" || fleet_.ctl("stop --yes").code == 0;
    });
    await("the end of a stopped job", settings_.bound,
          [](const Job& job) { return job.phase == "finished"; });
}

void Storm::stopAndResume() {
    stop();
    const uint64_t last = job_.step;
    const std::string from = job_.run;
    say(absl::StrCat("stopped at step ", last, ", resuming"));
    startJob(from);
    await("the first step of a resumed job", settings_.bound,
          [&](const Job& job) { return job.step > last; });
    ++ordered_["stop and resume"];
    // The disk is as full as the storm makes it, not as full of what nobody goes back to.
    if (runs_.size() > 2) fs::remove_all(fs::path(fleet_.checkpoints()) / runs_[runs_.size() - 3]);
    settle(false);
}

/// Every run's ledger, from the file alone and its commit logs; what is off, or nothing.
std::string Storm::judge() {
    uint64_t lastStep = 0;
    for (const std::string& run : runs_) {
        const Ran ran =
            shell(absl::StrCat(settings_.programs, "/bulkheadctl --json ledger ", run,
                               " --check -f ", fleet_.history(), " --jobs ", fleet_.jobs()));
        std::ofstream(absl::StrCat(dir_, "/ledger-", run, ".json")) << ran.out;
        const auto report = model::parseJson(ran.out);
        if (!report.ok() || !report->contains("findings"))
            return absl::StrCat("the ledger of ", run, " cannot be checked: code ", ran.code);
        for (const auto& finding : (*report)["findings"])
            return absl::StrCat("the ledger of ", run, ": ", finding.value("what", ""));
        if (ran.code != 0) return absl::StrCat("the ledger of ", run, ": code ", ran.code);
        if (!report->contains("log_step") || (*report)["log_step"].is_null())
            return absl::StrCat("the ledger of ", run, " had no commit log to be held against");
        if (report->value("open", 0) != 0 && run == runs_.back())
            say(absl::StrCat(run, " leaves ", report->value("open", 0), " samples handed back"));
        const uint64_t last = report->value("last_step", uint64_t{0});
        // A resumed run begins where the one before it ended.
        if (last < lastStep || report->value("steps", uint64_t{0}) != last - lastStep)
            return absl::StrCat(run, " has ", report->value("steps", uint64_t{0}), " steps up to ",
                                last, " and began after ", lastStep);
        lastStep = last;
        steps_ = last;
        compared_ += report->value("compared", uint64_t{0});
        const auto& parity = (*report)["parity"];
        std::vector<std::string> all;
        for (uint32_t r = 0; r < settings_.replicas; ++r) all.push_back(absl::StrCat("r", r));
        if (run == runs_.back() &&
            (parity.empty() || parity.back().get<std::string>().find(absl::StrCat(
                                   absl::StrJoin(all, " "), " agree")) == std::string::npos))
            return absl::StrCat("the last comparison of ", run, " is not of all replicas: ",
                                parity.empty() ? "none" : parity.back().get<std::string>());
    }
    return "";
}

int Storm::run() {
    std::printf("storm: seed %llu, in %s\n", static_cast<unsigned long long>(settings_.seed),
                dir_.c_str());
    std::fflush(stdout);
    std::string broke;
    try {
        begin();
        say(absl::StrCat("network: ", fleet_.network(), "; disks: ", fleet_.disks(),
                         "; clocks: ", fleet_.clocks()));
        for (uint32_t n = 1; since(began_) < settings_.minutes * 60; ++n) {
            round(n);
            if (n % 8 == 0) stopAndResume();
        }
        settle(true);
        const uint64_t whole = job_.step;
        await("steps of all", settings_.bound,
              [&](const Job& job) { return job.step > whole + 2; });
        stop();
        for (uint32_t m = fleet_.members(); m-- > 0;) {
            const pid_t pid = fleet_.pid(m);
            fleet_.signalMember(m, SIGTERM);
            awaitEnd(m, pid);
        }
        broke = judge();
        if (broke.empty()) broke = fleet_.complaints();
    } catch (const Broke& b) {
        broke = b.why;
    }
    if (!broke.empty()) {
        say("BROKE: " + broke);
        std::fprintf(stderr,
                     "storm: broke at step %llu: %s\nstorm: seed %llu; logs, run file and commit "
                     "log are kept in %s\n",
                     static_cast<unsigned long long>(job_.step), broke.c_str(),
                     static_cast<unsigned long long>(settings_.seed), dir_.c_str());
        return 1;
    }
    Report report("storm", {"strike or order", "times"});
    report.note(absl::StrCat("seed ", settings_.seed, ", ", number(since(began_) / 60), " min, ",
                             settings_.replicas, " replicas of ", settings_.shards,
                             " shards, 2 agents; ", steps_, " steps in ", runs_.size(), " runs, ",
                             compared_, " parity checks agree"));
    report.note("network: " + fleet_.network());
    report.note("disks: " + fleet_.disks());
    report.note("clocks: " + fleet_.clocks());
    for (const auto& [name, times] : struck_) report.row({name, std::to_string(times)});
    for (const auto& [name, times] : ordered_)
        report.row({"operator: " + name, std::to_string(times)});
    const Spread recovery = spreadOf(recoveries_);
    const Spread back = spreadOf(returns_);
    report.note(
        absl::StrFormat("three steps after all is healed: median %.1f s, most %.1f s; all "
                        "replicas back after that: median %.1f s, most %.1f s",
                        recovery.median, recovery.max, back.median, back.max));
    report.atMost("progress after the last fault is healed, the slowest", recovery.max,
                  settings_.bound, "s");
    report.atMost("all replicas contribute, the slowest", back.max, 2 * settings_.bound, "s");
    report.atLeast("steps committed, each once, none left out", static_cast<double>(steps_), 1, "");
    const int code = report.finish(settings_.place.out);
    fleet_.end();
    if (!settings_.keep) fs::remove_all(dir_);
    return code;
}

int main(int argc, char** argv) {
    Settings settings;
    CLI::App app{"A storm of faults upon the programs as they are shipped."};
    addPlace(app, settings.place);
    app.add_option("--programs", settings.programs, "folder of bulkheadd and bulkheadctl")
        ->capture_default_str();
    app.add_option("--minutes", settings.minutes, "how long")->capture_default_str();
    app.add_option("--seed", settings.seed, "of the strikes [drawn from the clock]");
    app.add_option("--replicas", settings.replicas, "of the job")->capture_default_str();
    app.add_option("--shards", settings.shards, "of a replica")->capture_default_str();
    app.add_option("--bound", settings.bound, "seconds until progress after all is healed")
        ->capture_default_str();
    app.add_flag("--loopback", settings.loopback, "no network namespaces");
    app.add_flag("--keep", settings.keep, "keep the directory also when all went well");
    CLI11_PARSE(app, argc, argv);
    if (settings.seed == 0)
        settings.seed = static_cast<uint64_t>(
            std::chrono::system_clock::now().time_since_epoch().count() / 1000000 % 1000000000);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
        ::signal(signal, [](int) { interrupted = 1; });
    Storm storm(std::move(settings));
    return storm.run();
}

}  // namespace
}  // namespace bulkhead::bench

int main(int argc, char** argv) {
    return bulkhead::bench::main(argc, argv);
}
