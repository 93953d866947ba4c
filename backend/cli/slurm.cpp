// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/cli/cli.h"
#include "backend/cli/follow.h"
#include "backend/cli/go_on.h"
#include "backend/cli/job_options.h"
#include "backend/cli/session.h"
#include "backend/cli/slurm_nodes.h"
#include "backend/cli/slurm_script.h"
#include "backend/cli/text.h"
#include "backend/common/file_system.h"
#include "backend/model/job_file.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

struct SubmitOptions {
    SlurmScript script;
    client::JobSource job;
    bool print = false;
};

struct FollowOptions {
    client::JobSource job;
    std::string folder;     ///< orders that were given are noted in it
    std::string spareName;  ///< of the Slurm jobs for nodes in the place of lost ones; empty: none
    std::string spareFor;   ///< the controller that these connect to
    uint32_t everyS = 10;
};

/// Standard output of a shell command; FailedPrecondition naming it when it fails. What it says on
/// standard error goes to ours.
absl::StatusOr<std::string> outputOf(const std::vector<std::string>& words) {
    std::vector<std::string> quoted;
    for (const std::string& word : words) quoted.push_back(shellQuoted(word));
    FILE* pipe = ::popen(absl::StrJoin(quoted, " ").c_str(), "re");
    if (pipe == nullptr) return absl::ResourceExhaustedError("no process for " + words.front());
    std::string out;
    std::array<char, 4096> text;
    for (size_t n; (n = std::fread(text.data(), 1, text.size(), pipe)) > 0;)
        out.append(text.data(), n);
    const int status = ::pclose(pipe);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return out;
    return absl::FailedPreconditionError(
        absl::StrCat(words.front(), " failed",
                     WIFEXITED(status) && WEXITSTATUS(status) == 127
                         ? ": it is not there; run this where Slurm's commands are"
                         : "; it says why above"));
}

client::Failure slurmFailure(const std::string& title, const absl::Status& status) {
    return localFailure(client::FailureCode::kInvalid, title, std::string(status.message()));
}

/// The job as words of `slurm follow`, that read the same from any folder.
std::vector<std::string> wordsOf(const client::JobSource& job) {
    std::vector<std::string> words;
    const auto path = [](const std::string& text) {
        return text.empty() ? text : fs::absolute(text).lexically_normal().string();
    };
    if (job.command.empty())
        words.push_back(job.file.empty() ? client::demoJobFile() : path(job.file));
    else if (!job.file.empty())
        words.push_back(path(job.file));
    const std::pair<const char*, std::string> values[] = {
        {"--replicas", job.replicas}, {"--shards", job.shards}, {"--steps", job.steps},
        {"--seed", job.seed},         {"--name", job.name},     {"--data", path(job.data)},
        {"--resume", job.resume}};
    for (const auto& [option, value] : values)
        if (!value.empty()) words.insert(words.end(), {option, value});
    for (const std::string& fault : job.faults) words.insert(words.end(), {"--fault", fault});
    for (const std::string& one : job.set) words.insert(words.end(), {"--set", one});
    if (!job.command.empty()) words.push_back("--");
    words.insert(words.end(), job.command.begin(), job.command.end());
    return words;
}

/// Only we may enter it: secrets lie in it.
absl::Status makePrivate(const std::string& folder) {
    std::error_code error;
    if (fs::create_directories(folder, error)) ::chmod(folder.c_str(), 0700);
    struct stat info {};
    if (error || ::stat(folder.c_str(), &info) != 0)
        return absl::PermissionDeniedError(folder + " cannot be made: " + error.message() +
                                           "; name another with --state-dir");
    if ((info.st_mode & 077) != 0)
        return absl::PermissionDeniedError("others may enter " + folder + "; run chmod 700 " +
                                           folder);
    return absl::OkStatus();
}

/// Folder of this program.
std::string ownFolder() {
    std::error_code error;
    return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

int submit(const Cli& cli, SubmitOptions options) {
    constexpr const char* kTitle = "Cannot submit this job";
    SlurmScript& script = options.script;
    const bool agentsOnly = !script.controller.empty();
    if (agentsOnly && script.keys.empty())
        return fail(cli, slurmFailure(kTitle, absl::InvalidArgumentError(
                                                  "--controller needs keys of the nodes; name "
                                                  "their folder with --keys")));
    if (!agentsOnly) {
        const auto text = client::readJob(options.job);
        if (!text.ok()) return fail(cli, text.failure());
        if (text.value().overrides.empty())
            if (const auto spec =
                    model::parseJob(text.value().text, text.value().fileName, text.value().baseDir);
                !spec.ok())
                return fail(cli, slurmFailure(kTitle, spec.status()));
    }
    const std::string file = fs::path(options.job.file).stem().string();
    script.name = !options.job.name.empty() ? options.job.name : !file.empty() ? file : "bulkhead";
    if (script.folder.empty()) script.folder = defaultStateDir() + "/slurm/" + script.name;
    for (std::string* path : {&script.folder, &script.keys})
        if (!path->empty()) *path = fs::absolute(*path).lexically_normal().string();
    script.bin = ownFolder();
    script.job = wordsOf(options.job);
    if (absl::Status s = checkScript(script); !s.ok()) return fail(cli, slurmFailure(kTitle, s));
    const std::string text = agentsOnly ? agentsScript(script) : jobScript(script);
    if (options.print) {
        std::printf("%s", text.c_str());
        return kOk;
    }
    if (absl::Status s = makePrivate(script.folder); !s.ok())
        return fail(cli, slurmFailure(kTitle, s));
    const std::string batch = script.folder + (agentsOnly ? "/agents.sbatch" : "/job.sbatch");
    SlurmScript spare = script;
    spare.nodes = 1;
    for (const auto& [path, content] :
         {std::pair{batch, text},
          {script.folder + "/" + kSpareScript, agentsOnly ? "" : agentsScript(spare)}})
        if (absl::Status s =
                content.empty() ? absl::OkStatus() : writeDurably(diskFiles(), path, content);
            !s.ok())
            return fail(cli, slurmFailure(kTitle, s));
    const auto said = outputOf({"sbatch", "--parsable", batch});
    if (!said.ok()) return fail(cli, slurmFailure(kTitle, said.status()));
    const std::string number = said->substr(0, said->find_first_of(";\n"));
    const std::string output = script.folder + "/slurm-" + number + ".out";
    if (cli.json)
        std::printf("%s\n",
                    model::dumpJson({{"slurm_job", number}, {"script", batch}, {"output", output}})
                        .c_str());
    else
        std::printf("Slurm job %s; its output: %s\n", number.c_str(), output.c_str());
    return kOk;
}

/// Returns when the daemon answers; the failure when it does not within the limit.
std::optional<client::Failure> awaitDaemon(Session& session) {
    constexpr std::chrono::seconds kLimit{60};
    struct Answer {
        std::promise<std::optional<client::Failure>> promise;
        std::once_flag once;
        void set(std::optional<client::Failure> failure) {
            std::call_once(once, [&] { promise.set_value(std::move(failure)); });
        }
    };
    const auto answer = std::make_shared<Answer>();
    auto future = answer->promise.get_future();
    client::JobsHandlers handlers;
    handlers.onJobs = [answer](const std::vector<model::JobInfo>&) { answer->set(std::nullopt); };
    handlers.onDisconnected = [answer](client::Failure failure, client::SteadyTime) {
        if (!failure.retryable) answer->set(std::move(failure));
    };
    const auto watch = session.client().watchJobs(std::move(handlers));
    if (future.wait_for(kLimit) == std::future_status::ready) return future.get();
    return client::Failure{client::FailureCode::kUnreachable, "The controller does not answer",
                           "Nothing was heard of it for 60 s.", "Its own lines say why.", true};
}

/// The job that was cut off, else one that goes on behind the newest run, else a new one. One that
/// was cut off may have been stopped before this process looked: that is its end.
client::Result<model::JobInfo> startOrGoOn(Session& session, client::JobSource source) {
    const bool named = !source.file.empty() || !source.command.empty();
    const auto left = named ? leftOrEnded(session) : leftUnfinished(session);
    if (!left.ok()) return left.failure();
    if (left.value() && left.value()->phase == model::JobPhase::kFailed)
        return client::Failure{
            client::FailureCode::kInvalid,
            "The run " + left.value()->id + " cannot be gone on with", left.value()->why + ".",
            "Mend that, or go on from its last checkpoint with --resume " + left.value()->id + ".",
            false};
    if (left.value()) {
        const bool ended = left.value()->phase == model::JobPhase::kFinished;
        std::fprintf(stderr, "bulkheadctl: %s: %s at step %llu\n", left.value()->id.c_str(),
                     ended ? "ended" : "recovered",
                     static_cast<unsigned long long>(left.value()->step));
        return *left.value();
    }
    if (!named)
        return client::Failure{client::FailureCode::kNotFound, "There is nothing to follow",
                               "No job runs on this daemon.", "Name a job file to start one.",
                               false};
    const auto newest = newestRun(session);
    if (!newest.ok()) return newest.failure();
    if (source.resume.empty() && newest.value()) source.resume = newest.value()->id;
    const auto from = resumedFrom(session, source.resume);
    if (!from.ok()) return from.failure();
    source.resume = from.value();
    const auto text = client::readJob(source);
    if (!text.ok()) return text.failure();
    if (!source.resume.empty())
        std::fprintf(stderr, "bulkheadctl: going on behind %s\n", source.resume.c_str());
    return session.await<model::JobInfo>(
        [&](client::Client& c, auto reply) { c.startJob(text.value(), {}, std::move(reply)); });
}

/// Brings a job to what Slurm says of its nodes, again and again.
class SlurmWatch {
  public:
    SlurmWatch(const Cli& cli, const FollowOptions& options, std::string job)
        : cli_(cli),
          options_(options),
          job_(std::move(job)),
          file_(options.folder + "/slurm-orders") {
        given_ = parseOrders(diskFiles().read(file_).value_or(""));
    }

    void look(const model::RunState& state) {
        std::vector<std::string> names;
        for (const model::NodeView& node : state.nodes) names.push_back(node.node);
        if (names.empty()) return;
        const auto text = outputOf({"sinfo", "--noheader", "--Node", "--format=%N|%T|%E",
                                    "--nodes=" + absl::StrJoin(names, ",")});
        if (!text.ok()) return say(std::string(text.status().message()));
        const std::vector<SlurmNode> nodes = parseSinfo(*text);
        const SlurmOrders before = given_;
        given_ = settled(nodes, state, std::move(given_));
        for (const SlurmOrder& order : ordersFor(nodes, state, given_))
            if (carryOut(order)) note(given_, order.action);
        for (const std::string& node : nodesToReplace(nodes, state, given_)) replace(node);
        if (given_ == before) return;
        if (absl::Status s = writeDurably(diskFiles(), file_, ordersText(given_)); !s.ok())
            say(std::string(s.message()));
    }

  private:
    /// Each thing once, however often it is so.
    void say(const std::string& what) {
        if (said_.insert(what).second) std::fprintf(stderr, "bulkheadctl: %s\n", what.c_str());
    }

    /// A drain that would leave too few replicas to train is not carried out: Slurm lets jobs end
    /// on a node that it drains.
    bool carryOut(const SlurmOrder& order) {
        auto session = Session::open(cli_, order.by);
        if (!session.ok()) return false;
        const auto preflight =
            session.value()->await<model::Preflight>([&](client::Client& c, auto reply) {
                c.preflight(job_, order.action, std::move(reply));
            });
        if (!preflight.ok()) return false;
        const model::Preflight& p = preflight.value();
        const bool pauses = order.action.kind == model::ActionKind::kDrain && p.pauses;
        if (!p.allowed || pauses) {
            say(absl::StrCat(order.by, "; not done: ", p.title, ": ",
                             pauses ? p.effect : p.refusal));
            return false;
        }
        const auto done =
            session.value()->await<model::JobInfo>([&](client::Client& c, auto reply) {
                c.act(job_, order.action, {"", p.revision}, std::move(reply));
            });
        if (done.ok()) std::printf("%s: %s\n", order.by.c_str(), p.title.c_str());
        std::fflush(stdout);
        return done.ok();
    }

    void replace(const std::string& node) {
        if (options_.spareName.empty()) return;
        const auto said = outputOf({"sbatch", "--parsable", "--job-name=" + options_.spareName,
                                    options_.folder + "/" + kSpareScript, options_.spareFor});
        if (!said.ok()) return say(std::string(said.status().message()));
        given_.replaced.insert(node);
        std::printf("%s is lost: Slurm job %s is to bring a node in its place\n", node.c_str(),
                    said->substr(0, said->find_first_of(";\n")).c_str());
        std::fflush(stdout);
    }

    const Cli& cli_;
    const FollowOptions& options_;
    const std::string job_;
    const std::string file_;
    SlurmOrders given_;
    std::set<std::string> said_;
};

int follow(const Cli& cli, const FollowOptions& options) {
    auto opened = Session::open(cli);
    if (!opened.ok()) return fail(cli, opened.failure());
    Session& session = *opened.value();
    if (const auto failure = awaitDaemon(session)) return fail(cli, *failure);
    const auto job = startOrGoOn(session, options.job);
    if (!job.ok()) return fail(cli, job.failure());
    const Interrupts interrupts;
    Follower follower(session.client(), {.job = job.value().id, .replay = ""}, cli.json,
                      Shows::kNotable);
    SlurmWatch slurm(cli, options, job.value().id);
    for (auto next = Steady::now(); !follower.tick();) {
        if (interrupts.count() > 0) return kInterrupted;
        if (Steady::now() < next) continue;
        slurm.look(follower.state());
        next = Steady::now() + std::chrono::seconds(options.everyS);
    }
    if (const auto failure = follower.failure()) return fail(cli, *failure);
    const model::RunFinished ended = *follower.state().finished;
    if (!ended.ok) return fail(cli, runFailed(ended));
    std::printf("%s ended at step %llu: %s\n", job.value().run.c_str(),
                static_cast<unsigned long long>(ended.step), ended.why.c_str());
    return kOk;
}

void addSubmit(CLI::App& slurm, Cli& cli) {
    CLI::App* verb = slurm.add_subcommand(
        "submit",
        "Submit a job to Slurm: the controller on the first node, an agent on every node");
    const auto options = std::make_shared<SubmitOptions>();
    SlurmScript& script = options->script;
    addJobOptions(*verb, options->job);
    verb->add_option("-N,--nodes", script.nodes, "whole nodes")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    verb->add_option("--time", script.time, "limit, as sbatch reads it [the partition's]");
    verb->add_option("-p,--partition", script.partition, "Slurm's partition [its default]");
    verb->add_option("--sbatch", script.directives,
                     "further option of sbatch, e.g. --sbatch=--account=ml; may be repeated")
        ->allow_extra_args(false);
    verb->add_option("--checkpoint-before", script.checkpointBefore,
                     "seconds before the time limit in which the job is stopped with a checkpoint")
        ->check(CLI::Range(10, 86400))
        ->capture_default_str();
    verb->add_flag("--until-done", script.untilDone,
                   "queue it again when the time limit has stopped it");
    verb->add_option("--state-dir", script.folder,
                     "the job's state, on storage that every node sees [~/.local/state/bulkhead/"
                     "slurm/NAME]");
    verb->add_option("--address", script.address,
                     "where nodes reach each other, with the node's name as %N, e.g. %N-ib")
        ->capture_default_str();
    verb->add_option("--slots", script.slots, "ranks of a node at most [its GPUs, else its CPUs]")
        ->check(CLI::PositiveNumber);
    verb->add_option("--port", script.port,
                     "of the controller [20000 and the last four digits of the Slurm job]");
    verb->add_option("--controller", script.controller,
                     "HOST:PORT of a controller that runs: bring it nodes, without a job");
    verb->add_option("--keys", script.keys,
                     "with --controller: folder with NODE.key for each node, of bulkheadd "
                     "--print-agent-key NODE");
    verb->add_flag("--print", options->print, "print the script, and do nothing");
    verb->callback([&cli, options] {
        cli.chosen = [&cli, options] {
            options->job.command = cli.command;
            return submit(cli, *options);
        };
    });
}

void addFollow(CLI::App& slurm, Cli& cli) {
    CLI::App* verb = slurm.add_subcommand("follow",
                                          "Tell a running job what Slurm says of its nodes; in a "
                                          "Slurm job, start it or go on with it");
    const auto options = std::make_shared<FollowOptions>();
    addJobOptions(*verb, options->job);
    verb->add_option("--folder", options->folder, "where what was ordered is noted")->required();
    verb->add_option("--spare-name", options->spareName,
                     "name of Slurm jobs that bring nodes in the place of lost ones [none]");
    verb->add_option("--spare-for", options->spareFor, "HOST:PORT that their agents connect to");
    verb->add_option("--every", options->everyS,
                     "seconds from one look at Slurm's nodes to the next")
        ->check(CLI::Range(1, 3600))
        ->capture_default_str();
    verb->callback([&cli, options] {
        cli.chosen = [&cli, options] {
            options->job.command = cli.command;
            return follow(cli, *options);
        };
    });
}

}  // namespace

void addSlurm(CLI::App& app, Cli& cli) {
    CLI::App* slurm = app.add_subcommand("slurm", "Jobs on the nodes of a Slurm cluster");
    slurm->require_subcommand(1);
    addSubmit(*slurm, cli);
    addFollow(*slurm, cli);
}

}  // namespace bulkhead::cli
