// SPDX-License-Identifier: Apache-2.0
// A controller as a process of its own that can be told to die by SIGKILL at a chosen moment. It
// reads commands from its standard input, one a line, and answers each with "ok ..." or
// "error ..."; every event goes out as "event RUN JSON" once history has it.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/daemon/history_sink.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"
#include "backend/runtime/coordinator/controller.h"

namespace {

namespace protocol = bulkhead::protocol;
namespace model = bulkhead::model;
namespace runtime = bulkhead::runtime;

bulkhead::Mutex outMutex;

void say(const std::string& line) {
    const bulkhead::MutexLock lock(outMutex);
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
}

/// The moment to die at: the n-th time that `point` comes by. Armed by the main thread, watched on
/// the controller's.
class Crash {
  public:
    void arm(const std::string& point, int times) {
        const bulkhead::MutexLock lock(mutex_);
        point_ = point;
        left_ = times;
    }
    void input(const protocol::Input& in) {
        const bulkhead::MutexLock lock(mutex_);
        if (left_ == 0) return;
        if (const auto* received = std::get_if<protocol::Received>(&in)) {
            if (const auto* beat = std::get_if<protocol::Beat>(&received->message))
                pass(absl::StrCat("phase-", std::string(bulkhead::enumName(beat->phase))));
            if (const auto* vote = std::get_if<protocol::ReplicaVote>(&received->message))
                pass(vote->attempt > 1 ? "vote-again" : "vote");
            if (std::holds_alternative<protocol::FetchProgress>(received->message))
                pass("fetching");
            if (const auto* report = std::get_if<protocol::Report>(&received->message))
                if (report->following) pass("following");
        }
        if (std::holds_alternative<protocol::RecordDurable>(in)) pass("durable");
        if (std::holds_alternative<protocol::RankExited>(in)) pass("exit-heard");
        if (justCommitted_) pass("applying");
        justCommitted_ = false;
    }
    void action(const protocol::Action& action) {
        const bulkhead::MutexLock lock(mutex_);
        if (left_ == 0) return;
        if (const auto* log = std::get_if<protocol::AppendLog>(&action)) {
            if (std::holds_alternative<protocol::LogCommit>(log->entry)) pass("append");
            if (std::holds_alternative<protocol::LogOrders>(log->entry)) pass("orders");
        }
        if (const auto* send = std::get_if<protocol::SendReplica>(&action)) {
            if (std::holds_alternative<protocol::Commit>(send->message)) pass("commit-to-one");
            if (std::holds_alternative<protocol::Quorum>(send->message)) pass("quorum-to-one");
        }
        if (std::holds_alternative<protocol::StartReplica>(action)) pass("start");
        if (const auto* emit = std::get_if<protocol::Emit>(&action)) {
            namespace fact = protocol::fact;
            if (std::holds_alternative<fact::StepCommitted>(emit->fact)) {
                pass("commits-sent");
                justCommitted_ = true;
            }
            if (std::holds_alternative<fact::RunFinished>(emit->fact)) pass("finished");
            if (std::holds_alternative<fact::StepRedone>(emit->fact)) pass("redo");
            if (std::holds_alternative<fact::IncidentOpened>(emit->fact)) pass("incident");
            if (std::holds_alternative<fact::IncidentClosed>(emit->fact)) pass("incident-closed");
            if (std::holds_alternative<fact::OperatorAnswered>(emit->fact)) pass("answer");
        }
    }

  private:
    void pass(const std::string& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (point == point_ && --left_ == 0) ::kill(::getpid(), SIGKILL);
    }

    bulkhead::Mutex mutex_;
    std::string point_ ABSL_GUARDED_BY(mutex_);
    int left_ ABSL_GUARDED_BY(mutex_) = 0;
    bool justCommitted_ ABSL_GUARDED_BY(mutex_) = false;
};

class Sink final : public runtime::EventSink {
  public:
    explicit Sink(bulkhead::daemon::HistorySink& history) : history_(history) {}
    void onEvent(const std::string& run, const model::Event& event) override {
        history_.onEvent(run, event);
        say(absl::StrCat("event ", run, " ", model::toJsonText(event)));
    }
    std::string lost(const std::string& run) const override { return history_.lost(run); }

  private:
    bulkhead::daemon::HistorySink& history_;
};

std::string answer(const absl::Status& status) {
    return status.ok() ? "ok" : absl::StrCat("error ", std::string(status.message()));
}

template <class T>
std::string answer(const absl::StatusOr<T>& result) {
    return result.ok() ? absl::StrCat("ok ", *result) : answer(result.status());
}

class Commands {
  public:
    Commands(runtime::Controller& controller, bulkhead::daemon::HistorySink& history, Crash& crash)
        : controller_(controller), history_(history), crash_(crash) {}

    std::string obey(const std::string& verb, const std::string& rest) {
        if (verb == "start") return start(rest);
        if (verb == "crash") {
            const size_t space = rest.find(' ');
            crash_.arm(rest.substr(0, space),
                       space == std::string::npos ? 1 : std::stoi(rest.substr(space)));
            return "ok";
        }
        const std::string run = controller_.list().at(0).run;
        if (verb == "inject") {
            const auto fault = model::parseFault(rest);
            if (!fault.ok()) return answer(fault.status());
            return answer(controller_.inject(run, *fault, 0, "", "test"));
        }
        if (verb == "act") {
            const auto action = model::fromJsonText<model::Action>(rest);
            if (!action.ok()) return answer(action.status());
            return answer(controller_.act(run, *action, 0, "", "test"));
        }
        if (verb == "policies") return "ok " + model::toJsonText(controller_.status(run)->policies);
        if (verb == "cordoned") {
            std::string names;
            for (const auto& node : controller_.nodes())
                if (node.state == model::NodeState::kCordoned) names += node.node + " ";
            return "ok " + names;
        }
        return "error unknown command " + verb;
    }

  private:
    std::string start(const std::string& json) {
        const auto spec = model::fromJsonText<model::JobSpec>(json);
        if (!spec.ok()) return answer(spec.status());
        const auto run = history_.open(spec->name);
        if (!run.ok()) return answer(run.status());
        return answer(controller_.start(*spec, {*run, ""}));
    }

    runtime::Controller& controller_;
    bulkhead::daemon::HistorySink& history_;
    Crash& crash_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s DIR SOCKET TOKEN WORKER\n", argv[0]);
        return 2;
    }
    spdlog::set_default_logger(spdlog::stderr_logger_mt("controller"));  // answers go to stdout
    const std::string dir = argv[1];
    const bulkhead::SystemClock clock;
    Crash crash;
    bulkhead::daemon::HistorySink history(dir + "/runs.db", dir + "/state", clock);
    Sink sink(history);
    runtime::ControllerOptions options;
    options.stateDir = dir + "/state";
    options.listen = {argv[2]};
    options.token = argv[3];
    options.workerPath = argv[4];
    options.version = "test";
    options.probe = {[&](const protocol::Input& in) { crash.input(in); },
                     [&](const protocol::Action& a) { crash.action(a); }};
    auto controller = runtime::Controller::create(std::move(options), clock, &sink);
    if (!controller.ok()) {
        say(answer(controller.status()));
        return 1;
    }
    const auto taken = (*controller)
                           ->recover([&](const std::string& run) { return history.resume(run); },
                                     history.withoutEnd());
    say(taken.ok() ? "ok " + absl::StrJoin(*taken, " ") : answer(taken.status()));
    Commands commands(**controller, history, crash);
    for (std::string line; std::getline(std::cin, line);) {
        const size_t space = line.find(' ');
        const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
        say(commands.obey(line.substr(0, space), rest));
    }
    controller->reset();
    history.flush();
    return 0;
}
