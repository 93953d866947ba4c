// SPDX-License-Identifier: Apache-2.0
// The programs as a person uses them: a job on a daemon of its own, and a daemon that is hurt.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "backend/client/private_daemon.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"
#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"
#include "tests/support/small_disk.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(WholeJobTest, UpRunsAJobThroughAFaultAndItsLedgerAddsUp) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const Ran ran = shell(kBin + "/bulkheadctl --json up " + dir_ + "/small.toml --steps 30 --db " +
                          dir_ + "/run.db --fault kill:replica=1@step=5");
    EXPECT_EQ(ran.code, 0) << ran.out;
    const auto result = model::parseJson(lastLine(ran.out));
    ASSERT_TRUE(result.ok()) << ran.out;
    EXPECT_EQ(result->value("steps", 0), 30);
    EXPECT_EQ(result->value("faults", 0), 1);
    EXPECT_TRUE((*result)["ledger"].value("ok", false)) << ran.out;
    ASSERT_FALSE((*result)["incidents"].empty());
    EXPECT_EQ((*result)["incidents"][0].value("fault", 0), 1);
    const Ran check = shell(kBin + "/bulkheadctl ledger -f " + dir_ + "/run.db --check");
    EXPECT_EQ(check.code, 0) << check.out;
}

TEST_F(WholeJobTest, UpRunsAProgramOfOnesOwnWithoutAJobFile) {
    const std::string up = kBin + "/bulkheadctl --json up --replicas 2 --steps 30 --db " + dir_ +
                           "/run.db --set 'env=[\"TEST_EXPECTS=data\"]' " +
                           "--fault kill:replica=1@step=5 -- ./rank an\\ argument";
    std::filesystem::create_symlink(BULKHEAD_EMBEDDED_RANK, dir_ + "/rank");
    const Ran ran = shell("cd " + dir_ + " && " + up);
    EXPECT_EQ(ran.code, 0) << ran.out;
    const auto result = model::parseJson(lastLine(ran.out));
    ASSERT_TRUE(result.ok()) << ran.out;
    EXPECT_EQ(result->value("steps", 0), 30);
    EXPECT_TRUE((*result)["ledger"].value("ok", false)) << ran.out;
    EXPECT_EQ((*result)["incidents"].size(), 1u);
}

TEST_F(WholeJobTest, WhatAGpuSuffersIsTakenFromItsDriverToTheOperator) {
    // The driver's library is a fake, on whose GPU 1 every rank computes and which then fails.
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::string db = " -f " + dir_ + "/run.db";
    ::setenv("LD_LIBRARY_PATH", BULKHEAD_FAKE_DRIVER, 1);
    const pid_t up =
        spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db", dir_ + "/run.db"},
              dir_ + "/up.out");
    ::unsetenv("LD_LIBRARY_PATH");
    const std::string events = kBin + "/bulkheadctl --json events" + db + " --type ";
    EXPECT_TRUE(waitUntil([&] { return shell(events + "gpu_troubled").lines() >= 2; }));
    const std::string state = kBin + "/bulkheadctl show" + db;
    EXPECT_TRUE(waitUntil([&] { return shell(state).out.find("85.9 GB") != std::string::npos; }));
    ::kill(up, SIGINT);
    ::waitpid(up, nullptr, 0);

    const std::string told = shell(events + "gpu_troubled").out;
    const auto xid = model::parseJson(told.substr(0, told.find('\n')));
    ASSERT_TRUE(xid.ok()) << told;
    EXPECT_EQ((*xid)["severity"], "error");
    EXPECT_EQ((*xid)["body"]["gpu"], 1);
    EXPECT_EQ((*xid)["body"]["xid"], 79);
    EXPECT_EQ((*xid)["body"]["name"], "GPU B");
    EXPECT_FALSE((*xid)["body"]["ranks"].empty()) << "whose GPU it is";
    const auto ecc = model::parseJson(lastLine(told));
    ASSERT_TRUE(ecc.ok()) << told;
    EXPECT_EQ((*ecc)["body"]["ecc_uncorrected"], 2);
    EXPECT_FALSE((*ecc)["body"].contains("xid")) << "absent, not zero";

    const std::string shown = shell(state).out;
    EXPECT_THAT(shown,
                ::testing::ContainsRegex(
                    "1 +[-r0-9s ]+ GPU B +40 % +32.2/85.9 GB +61 C +51[23] W +1980 MHz +2619 MHz"));
    EXPECT_THAT(shown, HasSubstr("GPU 1 (GPU B) of node0: Xid 79: the GPU has fallen off"));
    EXPECT_THAT(read(dir_ + "/up.out"), HasSubstr("Xid 79")) << "said while it happens";
    const std::string samples = shell(events + "fleet_sampled").out;
    EXPECT_THAT(samples, HasSubstr("\"power_watts\":512.5"));
    EXPECT_THAT(samples, HasSubstr("\"gpus\":[1]")) << "the ranks' own GPU";
}

TEST_F(WholeJobTest, AJobOutlivesItsControllerAndAWatchFindsItAgain) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, 5); }));
    const pid_t controller = childOf(owner->pid(), "--role=controller");
    ASSERT_GT(controller, 0);
    ::kill(controller, SIGKILL);
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots >= 2; }));
    const uint64_t before = log.state->lastCommit->record.step;
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before + 5); }));
    EXPECT_EQ(log.state->lineage, 1u);  // nothing was rolled back
    watch.reset();
}

TEST_F(WholeJobTest, OptionsOfTheDaemonMayStandInAFile) {
    const auto start = [&](const std::string& text, const std::string& more = "") {
        std::ofstream(dir_ + "/d.toml") << text;
        return shellBoth(kBin + "/bulkheadd --config " + dir_ + "/d.toml --state-dir " + dir_ +
                         "/state " + more);
    };
    const std::pair<const char*, const char*> refused[] = {
        {"role = \"agent\"\nslot = 3\n", "d.toml:2: slot: no such option; did you mean \"slots\"?"},
        {"role = \"agent\"\nsupervised = true\n", "d.toml:2: supervised: no such option"},
        {"insecure = \"yes\"\n", "d.toml:1: insecure: expected true or false"},
        {"node = [\"a\"]\n", "d.toml:1: node: expected a string or whole number"},
        {"slots = \"x\"\n", "--slots"},
        {"slots = \n", "d.toml:1: not TOML"},
        {"role = \"agent\"\ncontroller = \"10.1.2.3:4\"\n", "--address: missing"},
        {"role = \"agent\"\nnode = \"../x\"\n", "--node: expected"}};
    for (const auto& [text, why] : refused) {
        const Ran ran = start(text);
        EXPECT_EQ(ran.code, 2) << text;
        EXPECT_EQ(ran.lines(), 1) << ran.out;
        EXPECT_THAT(ran.out, HasSubstr(why)) << text;
    }
    // The command line wins.
    EXPECT_THAT(start("worker = \"/a\"\nrole = \"agent\"\n", "--role controller --worker /b").out,
                HasSubstr("/b is not there"));
    EXPECT_THAT(shellBoth(kBin + "/bulkheadd --config /dev/zero").out,
                HasSubstr("/dev/zero: is a"));
}

TEST_F(WholeJobTest, ALogOfJsonHasAnObjectALineWhateverStandsInIt) {
    const std::string state = dir_ + "/a \"state\"";
    std::filesystem::create_directory(state);
    std::ofstream(state + "/runs.db").flush();
    const Ran ran = shellBoth(kBin + "/bulkheadd --log-format json --role controller --worker /b " +
                              "--state-dir '" + state + "'");
    EXPECT_EQ(ran.code, 2);
    std::istringstream lines(ran.out);
    std::vector<std::string> levels;
    std::string all;
    for (std::string line; std::getline(lines, line);) {
        const auto object = model::parseJson(line);
        ASSERT_TRUE(object.ok()) << line;
        levels.push_back(object->value("level", ""));
        all += object->value("message", "");
        EXPECT_THAT(object->value("time", ""),
                    ::testing::ContainsRegex("^20[0-9-]+T[0-9:]+\\.[0-9]+[+-][0-9:]+$"));
    }
    EXPECT_EQ(levels, (std::vector<std::string>{"error", "critical"}));
    EXPECT_THAT(all, HasSubstr("/a \"state\"/runs.db: empty"));
    EXPECT_THAT(all, HasSubstr("/b is not there"));
}

/// The socket's file is there a moment before anybody listens.
bool answers(client::Client& client) {
    return await<std::vector<model::JobInfo>>([&](auto reply) { client.listJobs(reply); }).ok();
}

TEST_F(WholeJobTest, AControllerThatIsToldToEndLeavesItsJobsToTheNext) {
    pid_t controller = role("controller");
    const std::string socket = dir_ + "/state/bulkhead.sock";
    const pid_t agent = role("agent");
    auto client = client::Client::open({"unix:" + socket, "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(waitUntil([&] { return answers(*client.value()); }));
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    uint64_t before = 5;
    for (const int signal : {SIGTERM, SIGHUP}) {
        ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before); }));
        const auto snapshots = log.snapshots;
        ::kill(controller, signal);
        int status = -1;
        ASSERT_EQ(::waitpid(controller, &status, 0), controller);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        controller = role("controller");
        ASSERT_TRUE(log.waitFor([&](auto& l) { return l.snapshots > snapshots; }));
        before = log.state->lastCommit->record.step + 5;
    }
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before); }));
    EXPECT_EQ(log.state->lineage, 1u);  // nothing was rolled back
    for (const auto& replica : log.state->replicas) EXPECT_EQ(replica.incarnation, 1u);
    watch.reset();
    const Ran stopped = shell(kBin + "/bulkheadctl -t unix:" + socket + " stop --yes");
    EXPECT_EQ(stopped.code, 0) << stopped.out;
    for (const pid_t pid : {agent, controller}) {
        ::kill(pid, SIGTERM);
        ::waitpid(pid, nullptr, 0);
    }
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, ASecretThatIsLostOverALiveRunIsAskedForAndNotMadeAnew) {
    const std::string state = dir_ + "/state";
    const std::string token = state + "/control.token";
    const pid_t agent = role("agent");  // waits for the secret
    pid_t controller = role("controller");
    const std::string socket = state + "/bulkhead.sock";
    auto client = client::Client::open({"unix:" + socket, "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(waitUntil([&] { return answers(*client.value()); }));
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, 5); }));
    ::kill(controller, SIGKILL);
    ::waitpid(controller, nullptr, 0);
    const auto refusal = [&] {
        return shellBoth(kBin + "/bulkheadd --role=controller --state-dir " + state);
    };
    std::filesystem::rename(token, token + ".away");
    const Ran gone = refusal();
    EXPECT_EQ(gone.code, 2) << gone.out;
    EXPECT_THAT(gone.out, AllOf(HasSubstr("is not there"), HasSubstr(job.value().id),
                                HasSubstr("put that file back"), HasSubstr("--new-secret")));
    EXPECT_FALSE(std::filesystem::exists(token));
    std::filesystem::create_symlink(dir_ + "/nothing", token);
    const Ran link = refusal();
    EXPECT_EQ(link.code, 2) << link.out;
    EXPECT_THAT(link.out, HasSubstr("is a link to nothing"));
    std::filesystem::remove(token);
    std::ofstream(token) << std::string(64, 'a') << "\n";
    std::filesystem::permissions(token, std::filesystem::perms(0600));
    const Ran other = refusal();
    EXPECT_EQ(other.code, 2) << other.out;
    EXPECT_THAT(other.out, HasSubstr("has another secret than before"));
    std::filesystem::rename(token + ".away", token);
    const uint64_t before = log.state->lastCommit->record.step;
    controller = role("controller");
    ASSERT_TRUE(log.waitFor([&](auto& l) { return stepped(l, before + 5); }));
    EXPECT_EQ(log.state->lineage, 1u);  // nothing was rolled back
    watch.reset();
    const Ran stopped = shell(kBin + "/bulkheadctl -t unix:" + socket + " stop --yes");
    EXPECT_EQ(stopped.code, 0) << stopped.out;
    for (const pid_t pid : {agent, controller}) {
        ::kill(pid, SIGTERM);
        ::waitpid(pid, nullptr, 0);
    }
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, TheControllersSecretIsChangedAsDocumentedAndNoStepIsLost) {
    const std::string state = dir_ + "/state";
    const std::string key = dir_ + "/west.key";
    const std::string ctl = kBin + "/bulkheadctl -t unix:" + state + "/bulkhead.sock ";
    auto client =
        client::Client::open({"unix:" + state + "/bulkhead.sock", "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    pid_t controller = 0, agent = 0;
    const auto begin = [&] {
        controller = role("controller");
        ASSERT_TRUE(waitUntil([&] { return answers(*client.value()); }));
        const Ran printed = shellBoth("umask 077; " + kBin + "/bulkheadd --state-dir " + state +
                                      " --print-agent-key west > " + key);
        ASSERT_EQ(printed.code, 0) << printed.out;
        agent =
            spawn({kBin + "/bulkheadd", "--role=agent", "--state-dir", dir_ + "/west", "--node",
                   "west", "--agent-key", key, "--controller", "unix:" + state + "/control.sock"},
                  dir_ + "/agent.out");
    };
    const auto end = [&] {
        for (const pid_t pid : {agent, controller}) {
            ::kill(pid, SIGTERM);
            ::waitpid(pid, nullptr, 0);
        }
    };
    /// Trains `more` steps, stops with a checkpoint and names run and last step.
    const auto trainAndStop = [&](const std::string& resume, uint64_t from) {
        client::JobText text = smallJob();
        text.resumeFrom = resume;
        const auto job =
            await<model::JobInfo>([&](auto reply) { client.value()->startJob(text, {}, reply); });
        EXPECT_TRUE(job.ok()) << job.failure().cause << job.failure().remedy;
        if (!job.ok()) return std::pair(std::string(), from);
        WatchLog log;
        const auto watch =
            client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        EXPECT_TRUE(log.waitFor([&](auto& l) { return stepped(l, from + 5); }));
        const Ran stopped = shellBoth(ctl + "stop --yes");
        EXPECT_EQ(stopped.code, 0) << stopped.out;
        const auto over = [](auto& l) { return l.state->phase == model::JobPhase::kFinished; };
        EXPECT_TRUE(log.waitFor(over));
        EXPECT_EQ(log.state->lineage, 1u) << "nothing was rolled back";
        const Ran ledger = shellBoth(ctl + "ledger --check " + job.value().run);
        EXPECT_EQ(ledger.code, 0) << ledger.out;
        return std::pair(job.value().run, log.state->lastCommit->record.step);
    };
    begin();
    const auto [first, last] = trainAndStop("", 0);
    const std::string secret = read(state + "/control.token");
    const std::string keyBefore = read(key);
    end();
    std::filesystem::remove(state + "/control.token");
    begin();
    EXPECT_NE(read(state + "/control.token"), secret);
    EXPECT_NE(read(key), keyBefore);
    const auto [second, stopped] = trainAndStop(first, last);
    EXPECT_EQ(lastCheckpoint(), stopped);
    const Ran steps = shellBoth(ctl + "export " + second + " --format csv | head -2");
    EXPECT_THAT(steps.out, HasSubstr("\n1," + std::to_string(last + 1) + ",")) << steps.out;
    end();
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, ARunWhoseFolderIsAwayLeavesItsPlaceFreeAndCanBeGivenUp) {
    const pid_t agent = role("agent");
    pid_t controller = role("controller");
    const std::string target = "unix:" + dir_ + "/state/bulkhead.sock";
    auto client = client::Client::open({target, "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE(waitUntil([&] { return answers(*client.value()); }));
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() > 0; }));
    ::kill(controller, SIGKILL);
    ::waitpid(controller, nullptr, 0);
    const std::string home = dir_ + "/state/jobs/" + job.value().run;
    std::filesystem::rename(home, dir_ + "/away");
    controller = role("controller");
    const std::string ctl = kBin + "/bulkheadctl -t " + target;
    ASSERT_TRUE(waitUntil(
        [&] { return shellBoth(ctl + " jobs").out.find("is not there") != std::string::npos; }));
    EXPECT_FALSE(std::filesystem::exists(home)) << "the folder could not be moved back";
    const Ran stopped = shellBoth(ctl + " stop --yes --without-checkpoint");
    EXPECT_EQ(stopped.code, 0) << stopped.out;
    EXPECT_THAT(stopped.out, HasSubstr("it was given up"));
    EXPECT_THAT(stopped.out, HasSubstr("All 2 ranks leave"));
    EXPECT_THAT(stopped.out, HasSubstr("what lies in the folder is not touched"));
    EXPECT_THAT(shellBoth(ctl + " jobs").out, HasSubstr("no jobs"));
    EXPECT_FALSE(std::filesystem::exists(home));
    for (const pid_t pid : {agent, controller}) {
        ::kill(pid, SIGTERM);
        ::waitpid(pid, nullptr, 0);
    }
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, PinsAndACaptureOutliveTheController) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.state && l.state->lastCommit; }));
    const auto act = [&](const model::Action& action) {
        return await<model::JobInfo>([&](auto reply) {
                   client.value()->act(job.value().id, action, {"", 0}, reply);
               })
            .ok();
    };
    model::Action pin;
    pin.kind = model::ActionKind::kRuleExperts;
    pin.rules = {{0, 1, 0, true}};
    ASSERT_TRUE(act(pin));
    model::Action capture;
    capture.kind = model::ActionKind::kCaptureRouting;
    capture.tokens = 20'000;
    ASSERT_TRUE(act(capture));
    const auto left = [](const WatchLog& l) { return l.state->captureLeft; };
    ASSERT_TRUE(log.waitFor([&](auto& l) { return left(l) > 0 && left(l) < 20'000; }));
    const pid_t controller = childOf(owner->pid(), "--role=controller");
    ASSERT_GT(controller, 0);
    ::kill(controller, SIGKILL);
    uint64_t atReturn = 0;
    ASSERT_TRUE(log.waitFor([&](auto& l) {
        atReturn = left(l);
        return l.snapshots >= 2;
    }));
    EXPECT_GT(atReturn, 0u) << "the job was too quick for this test";
    EXPECT_EQ(log.state->expertRules, pin.rules);
    ASSERT_TRUE(log.waitFor([&](auto& l) { return left(l) == 0; }));
    const uint64_t counted = log.state->experts.step;
    ASSERT_TRUE(log.waitFor([&](auto& l) { return l.state->experts.step > counted; }));
    watch.reset();
}

TEST_F(WholeJobTest, ADamagedCommitLogIsSaidAndTheCommandItNamesGoesOn) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::string up =
        kBin + "/bulkheadctl up " + dir_ + "/small.toml --db " + dir_ + "/run.db";
    const pid_t first = spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db",
                               dir_ + "/run.db", "--set", "policies.checkpoint_every_steps=3"},
                              dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 6; }));
    killAllThatName(dir_);
    ::waitpid(first, nullptr, 0);
    const uint64_t from = lastCheckpoint();
    std::string runDir;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        if (entry.is_directory()) runDir = entry.path();
    std::string log = read(runDir + "/commit.log");
    log[log.size() / 2] = static_cast<char>(log[log.size() / 2] ^ 1);
    std::ofstream(runDir + "/commit.log", std::ios::binary | std::ios::trunc) << log;

    const Ran refused = shellBoth(up);
    EXPECT_EQ(refused.code, 6) << refused.out;
    EXPECT_THAT(refused.out, HasSubstr("is damaged at byte"));
    const std::string command = "bulkheadctl up " + dir_ + "/small.toml --db " + dir_ +
                                "/run.db --resume " +
                                std::filesystem::path(runDir).filename().string();
    EXPECT_THAT(refused.out, HasSubstr(command));

    const Ran resumed = shellBoth(kBin + "/" + command + " --steps " + std::to_string(from + 2));
    EXPECT_EQ(resumed.code, 0) << resumed.out;
    EXPECT_THAT(resumed.out, HasSubstr(std::to_string(from + 2) + " steps"));
    const std::string left = std::filesystem::path(runDir).filename().string();
    const Ran runs = shell(kBin + "/bulkheadctl --json runs -f " + dir_ + "/run.db");
    EXPECT_THAT(runs.out, HasSubstr("\"phase\":\"superseded by " + left + "-2\""));
    EXPECT_EQ(shellBoth(up + " --steps 1").code, 0) << "what was resumed from is refused again";
}

TEST_F(WholeJobTest, AJobFileThatWasEditedIsRefusedAndOneThatIsGoneIsMadeAnew) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::vector<std::string> up = {kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db",
                                         dir_ + "/run.db"};
    std::vector<std::string> first = up;
    first.insert(first.end(), {"--set", "policies.checkpoint_every_steps=3"});
    pid_t job = spawn(first, dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 6; }));
    killAllThatName(dir_);
    ::waitpid(job, nullptr, 0);
    std::string file;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        if (entry.is_directory()) file = entry.path() / "job.json";
    const std::string written = read(file);
    std::string edited = written;
    const std::string key = "\"checkpoint_every_steps\":3";
    ASSERT_NE(edited.find(key), std::string::npos) << edited;
    std::ofstream(file) << edited.replace(edited.find(key), key.size(),
                                          "\"checkpoint_every_steps\":5");
    const Ran refused =
        shellBoth(kBin + "/bulkheadctl up " + dir_ + "/small.toml --db " + dir_ + "/run.db");
    EXPECT_EQ(refused.code, 6) << refused.out;
    EXPECT_THAT(refused.out, HasSubstr(file + " was edited since its checkpoint of step "));
    EXPECT_THAT(refused.out, HasSubstr("policies.checkpoint_every_steps is 5 and was 3"));

    std::filesystem::remove(file);
    const uint64_t from = lastCheckpoint();
    job = spawn(up, dir_ + "/second.out");
    EXPECT_TRUE(waitUntil([&] { return lastCheckpoint() > from; })) << read(dir_ + "/second.out");
    ::kill(job, SIGINT);
    ::waitpid(job, nullptr, 0);
    EXPECT_EQ(read(file), written);
    EXPECT_THAT(read(dir_ + "/run.db.state/daemon.log"),
                HasSubstr(file + " is missing; the job in"));
}

TEST_F(WholeJobTest, AnotherTextThanTheCheckpointsIsRefusedUntilItIsPutBack) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::vector<std::string> up = {kBin + "/bulkheadctl",
                                         "up",
                                         dir_ + "/small.toml",
                                         "--db",
                                         dir_ + "/run.db",
                                         "--set",
                                         "policies.checkpoint_every_steps=3"};
    pid_t job = spawn(up, dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 6; }));
    killAllThatName(dir_);
    ::waitpid(job, nullptr, 0);
    std::filesystem::path run;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        if (entry.is_directory()) run = entry.path();
    const std::string copy = run / "text" / "0-t.txt";
    ASSERT_TRUE(std::filesystem::exists(copy));
    std::ofstream(copy) << std::string(40000, 'b');

    job = spawn(up, dir_ + "/second.out");
    const std::string ctl = kBin + "/bulkheadctl -t unix:" + dir_ + "/run.db.state/bulkhead.sock ";
    EXPECT_TRUE(waitUntil([&] {
        const std::string out = shell(ctl + "status").out;
        return out.find("reads a training text of hash ") != std::string::npos &&
               out.find("what changed last: " + copy) != std::string::npos;
    })) << shell(ctl + "status").out;
    const uint64_t from = lastCheckpoint();
    std::ofstream(copy) << std::string(40000, 'a');
    EXPECT_TRUE(waitUntil([&] { return lastCheckpoint() > from; })) << shell(ctl + "status").out;
    ::kill(job, SIGINT);
    ::waitpid(job, nullptr, 0);

    std::ofstream(copy) << std::string(40000, 'b');
    const Ran resumed = shellBoth(kBin + "/bulkheadctl up " + dir_ + "/small.toml --db " + dir_ +
                                  "/run.db --resume " + run.filename().string());
    EXPECT_EQ(resumed.code, 4) << resumed.out;
    EXPECT_THAT(resumed.out, HasSubstr("/manifest.json was trained on a text of hash "));
    EXPECT_THAT(resumed.out, HasSubstr("what changed last: " + copy)) << "not a copy of it";
    size_t runs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        runs += entry.is_directory();
    EXPECT_EQ(runs, 1u) << "nothing was begun";
}

TEST_F(WholeJobTest, WithoutItsLogOrItsRunAJobGoesOnFromTheNewestCheckpointThereIs) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const pid_t first = spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db",
                               dir_ + "/run.db", "--set", "policies.checkpoint_every_steps=3"},
                              dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 12; }));
    killAllThatName(dir_);
    ::waitpid(first, nullptr, 0);
    std::filesystem::path run;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        if (entry.is_directory()) run = entry.path();
    uint64_t newest = 0;
    std::filesystem::path manifest;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
        if (entry.path().filename() != "manifest.json") continue;
        const auto text = model::parseJson(read(entry.path()));
        ASSERT_TRUE(text.ok()) << entry.path();
        if ((*text)["step"].get<uint64_t>() < newest) continue;
        newest = (*text)["step"].get<uint64_t>();
        manifest = entry.path();
    }
    ASSERT_GE(newest, 9u);
    const std::filesystem::path kept = std::filesystem::path(dir_) / "kept";
    std::filesystem::create_directory(kept);
    std::filesystem::copy(manifest.parent_path(), kept / "last",
                          std::filesystem::copy_options::recursive);

    std::filesystem::resize_file(run / "commit.log",
                                 std::filesystem::file_size(run / "commit.log") / 3);
    const pid_t second =
        spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db", dir_ + "/run.db"},
              dir_ + "/second.out");
    const std::string lineages =
        kBin + "/bulkheadctl --json events --type lineage_opened -f " + dir_ + "/run.db";
    EXPECT_TRUE(waitUntil([&] {
        return shell(lineages).out.find("\"from_step\":" + std::to_string(newest)) !=
               std::string::npos;
    })) << shell(lineages).out;
    killAllThatName(dir_);
    ::waitpid(second, nullptr, 0);

    std::filesystem::remove_all(dir_ + "/run.db.state");
    std::filesystem::remove_all(dir_ + "/checkpoints");
    const Ran resumed = shellBoth(kBin + "/bulkheadctl up " + dir_ + "/small.toml --db " + dir_ +
                                  "/other.db --resume " + (kept / "last/manifest.json").string() +
                                  " --steps " + std::to_string(newest + 2));
    EXPECT_EQ(resumed.code, 0) << resumed.out;
    EXPECT_THAT(resumed.out, HasSubstr(std::to_string(newest + 2) + " steps"));
}

TEST_F(WholeJobTest, AnOlderCheckpointUnderANewersNameIsSaidAndGoneRound) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const pid_t first = spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db",
                               dir_ + "/run.db", "--set", "policies.checkpoint_every_steps=3"},
                              dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 9; }));
    killAllThatName(dir_);
    ::waitpid(first, nullptr, 0);
    const uint64_t from = lastCheckpoint();
    std::map<uint64_t, std::filesystem::path> folders;  // by the step in their name, "l1-s9-..."
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_))
        if (entry.path().filename() == "manifest.json") {
            const auto manifest = model::parseJson(read(entry.path()));
            ASSERT_TRUE(manifest.ok()) << entry.path();
            folders[(*manifest)["step"].get<uint64_t>()] = entry.path().parent_path();
        }
    // Nothing is said of one that the log had not come to name.
    std::string log;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/run.db.state/jobs"))
        if (entry.is_directory()) log = read(entry.path() / "commit.log");
    std::erase_if(folders, [&](const auto& folder) {
        if (log.find(folder.second.filename()) != std::string::npos) return false;
        std::filesystem::remove_all(folder.second);
        return true;
    });
    ASSERT_GE(folders.size(), 2u);
    const auto newest = std::prev(folders.end());
    const auto older = std::prev(newest);
    std::filesystem::remove_all(newest->second);
    std::filesystem::copy(older->second, newest->second, std::filesystem::copy_options::recursive);

    const pid_t second =
        spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db", dir_ + "/run.db"},
              dir_ + "/second.out");
    EXPECT_TRUE(waitUntil([&] { return lastCheckpoint() > from; }));
    ::kill(second, SIGINT);
    ::waitpid(second, nullptr, 0);
    EXPECT_THAT(
        shell(kBin + "/bulkheadctl --json events -f " + dir_ + "/run.db --type lineage_opened").out,
        HasSubstr("holds step " + std::to_string(older->first) +
                  " where the job's log has one of step " + std::to_string(newest->first)));
}

TEST_F(WholeJobTest, KilledWholeTheSameCommandGoesOnFromTheLastCheckpoint) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::vector<std::string> command = {kBin + "/bulkheadctl",
                                              "--json",
                                              "up",
                                              dir_ + "/small.toml",
                                              "--set",
                                              "policies.checkpoint_every_steps=3",
                                              "--db",
                                              dir_ + "/run.db"};
    const pid_t first = spawn(command, dir_ + "/first.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 6; }));
    killAllThatName(dir_);
    ::waitpid(first, nullptr, 0);
    const uint64_t from = lastCheckpoint();

    const pid_t second = spawn(command, dir_ + "/second.out");
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() > from; }));
    ::kill(second, SIGHUP);
    int status = -1;
    ASSERT_EQ(::waitpid(second, &status, 0), second);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    const auto result = model::parseJson(lastLine(read(dir_ + "/second.out")));
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE((*result)["ledger"].value("ok", false)) << read(dir_ + "/second.out");
    EXPECT_EQ((*result)["ledger"].value("steps", uint64_t{0}), result->value("steps", uint64_t{1}));
    // One run with two lives in it.
    EXPECT_EQ(shell(kBin + "/bulkheadctl --json runs -f " + dir_ + "/run.db").lines(), 1);
    const Ran opened = shell(kBin + "/bulkheadctl --json events -f " + dir_ +
                             "/run.db --type lineage_opened,run_started");
    EXPECT_EQ(opened.lines(), 3) << opened.out;  // it started once
    const auto lineage = model::parseJson(lastLine(opened.out));
    ASSERT_TRUE(lineage.ok());
    // The newest checkpoint may not have been in the commit log yet.
    EXPECT_GE((*lineage)["body"].value("from_step", uint64_t{0}), 3u) << opened.out;
    EXPECT_LE((*lineage)["body"].value("from_step", from + 1), from) << opened.out;
    EXPECT_EQ(shell(kBin + "/bulkheadctl ledger --check -f " + dir_ + "/run.db").code, 0);

    const std::string end = std::to_string(result->value("steps", uint64_t{0}) + 2);
    const std::string up = kBin + "/bulkheadctl up " + dir_ + "/small.toml --resume latest --db ";
    const Ran resumed = shellBoth(up + dir_ + "/run.db --steps " + end);
    EXPECT_EQ(resumed.code, 0) << resumed.out;
    EXPECT_THAT(resumed.out, HasSubstr(end + " steps"));
    const Ran nothing = shellBoth(up + dir_ + "/new.db");
    EXPECT_EQ(nothing.code, 5) << nothing.out;
    EXPECT_THAT(nothing.out, HasSubstr("There is no run to go on from"));
}

TEST_F(WholeJobTest, GivenUpItLeavesNoRankBehindWhateverBecameOfItsFolder) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    const std::string out = dir_ + "/up.out";
    const pid_t up = spawn({kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--set",
                            "policies.checkpoint_every_steps=3", "--db", dir_ + "/run.db"},
                           out);
    ASSERT_TRUE(waitUntil([&] { return lastCheckpoint() >= 3; }));
    const std::string ranks = dir_ + "/run.db.state/jobs/";
    EXPECT_THAT(processesThatName(ranks), ::testing::SizeIs(2));
    std::filesystem::remove_all(dir_ + "/run.db.state");
    ASSERT_TRUE(
        waitUntil([&] { return read(out).find("put back what was there") != std::string::npos; }));
    ::kill(up, SIGTERM);
    ::kill(up, SIGINT);
    ASSERT_EQ(::waitpid(up, nullptr, 0), up);
    EXPECT_THAT(processesThatName(ranks), ::testing::IsEmpty());
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, ACampaignIsFollowedToItsVerdictWhichTheRunFileKeeps) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    std::ofstream(dir_ + "/c.toml")
        << "name = \"calm\"\nduration = \"3s\"\nkeep_training = 1\n[pass]\nmin_injected = 1\n"
           "[[faults]]\nat = \"0s\"\nfault = \"nan:replica=any\"\n"
           "[[faults]]\nat = \"1s\"\nfault = \"kill:replica=1\"\n";
    auto owner = daemon();
    const std::string ctl = kBin + "/bulkheadctl --target " + owner->target() + " ";
    {
        auto client = client::Client::open({owner->target(), "", "tester", kForever});
        ASSERT_TRUE(client.ok());
        const auto job = await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        WatchLog log;
        const auto watch =
            client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        ASSERT_TRUE(log.waitFor([](auto& l) {
            return l.state && l.state->lastCommit && model::contributors(*l.state) == 2;
        }));
    }
    const Ran ran = shell(ctl + "--json campaign run " + dir_ + "/c.toml --yes");
    EXPECT_EQ(ran.code, 0) << ran.out;
    const auto verdict = model::parseJson(lastLine(ran.out));
    ASSERT_TRUE(verdict.ok()) << ran.out;
    EXPECT_EQ(verdict->value("outcome", ""), "passed");
    EXPECT_EQ(verdict->value("injected", 0), 2);
    owner->stop();

    const std::string file = " -f " + dir_ + "/runs.db";
    const Ran list = shell(kBin + "/bulkheadctl campaign list" + file);
    EXPECT_THAT(list.out, HasSubstr("calm"));
    EXPECT_THAT(list.out, HasSubstr("passed"));
    const Ran shown =
        shell(kBin + "/bulkheadctl campaign show" + file + " --html " + dir_ + "/report.html");
    EXPECT_EQ(shown.code, 0) << shown.out;
    EXPECT_THAT(shown.out, HasSubstr("the commit log tiles the data"));
    EXPECT_THAT(read(dir_ + "/report.html"), HasSubstr("Kill replica 1"));
}

TEST_F(WholeJobTest, AScratchStateIsThereAfterACrashAndNotAfterAGoodEnd) {
    client::PrivateDaemonOptions options;
    options.program = kBin + "/bulkheadd";
    options.stateDir = dir_ + "/demo";
    options.runFile = dir_ + "/runs.db";
    options.scratch = true;
    {
        auto first = client::PrivateDaemon::create(options);
        ASSERT_TRUE(first.ok()) << first.failure().cause;
        // While it lives, a second one finds a place of its own.
        auto second = client::PrivateDaemon::create(options);
        ASSERT_TRUE(second.ok()) << second.failure().cause;
        EXPECT_NE(second.value()->stateDir(), options.stateDir);
        killAllThatName(options.stateDir);
    }
    EXPECT_TRUE(std::filesystem::exists(options.stateDir));
    {
        auto third = client::PrivateDaemon::create(options);
        ASSERT_TRUE(third.ok()) << third.failure().cause;
        EXPECT_EQ(third.value()->stateDir(), options.stateDir);
    }
    EXPECT_FALSE(std::filesystem::exists(options.stateDir));
}

TEST_F(WholeJobTest, AJobTrainsOnWhateverBecomesOfItsText) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    for (const bool copied : {true, false}) {
        client::JobText text = smallJob();
        text.overrides = {copied ? "name=copied" : "name=read-in-place"};
        if (!copied) text.overrides.push_back("data_copy_bytes=0");
        const auto job =
            await<model::JobInfo>([&](auto reply) { client.value()->startJob(text, {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        WatchLog log;
        auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        ASSERT_TRUE(log.waitFor([](auto& l) {
            return l.state && model::contributors(*l.state) == 2 && l.state->lastCommit;
        }));
        std::ofstream(dir_ + "/text.txt", std::ios::app) << "an edit";
        ASSERT_TRUE(await<uint64_t>([&](auto reply) {
                        client.value()->inject(job.value().id, *model::parseFault("kill:replica=1"),
                                               {}, reply);
                    }).ok());
        if (copied)
            EXPECT_TRUE(log.waitFor([](auto& l) {
                return !l.state->incidents.empty() && l.state->incidents[0].rejoinMs > 0;
            }));
        else
            EXPECT_TRUE(log.waitFor([&](auto& l) {
                const std::string all = model::toJsonText(*l.state);
                return all.find("what changed last: " + dir_ + "/text.txt") != std::string::npos;
            }));
        watch.reset();
        ASSERT_TRUE(await<model::JobInfo>([&](auto reply) {
                        client.value()->stopJob(job.value().id, false, {}, reply);
                    }).ok());
    }
}

TEST_F(WholeJobTest, AJobThatCannotRunIsOneLineAndAnExitCode) {
    std::ofstream(dir_ + "/text.txt") << std::string(40000, 'a');
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    const std::pair<std::string, const char*> jobs[] = {
        {"--set workload=nonesuch", "unknown workload \"nonesuch\""},
        {"--set model.layerz=3", "unknown key layerz"},
        {"--set 'model.layers=\"x\"'", "layers must be a whole number"},
        {"--shards 3 --set samples_per_replica=6", "experts must be a multiple"}};
    for (const auto& [change, said] : jobs) {
        const Ran ran =
            shellErrors(kBin + "/bulkheadctl up " + dir_ + "/small.toml --steps 3 " + change);
        EXPECT_EQ(ran.code, 1) << change << ": " << ran.out;
        EXPECT_THAT(ran.out, HasSubstr(said));
        EXPECT_EQ(ran.lines(), 1) << ran.out;
    }
}

TEST_F(WholeJobTest, AFullStateFolderTakesTheOrdersThatEndAJob) {
    const std::string disk = dir_ + "/state", ballast = disk + "/ballast";
    std::filesystem::create_directory(disk);
    const absl::Status mounted = support::mountSmallDisk(disk);
    ASSERT_TRUE(mounted.ok()) << mounted;
    const auto fill = [&] {
        std::ofstream file(ballast, std::ios::binary);
        for (const std::string zeros(1 << 12, '\0'); file.write(zeros.data(), 1 << 12).flush();) {
        }
    };
    auto owner = daemon();
    const std::string ctl = kBin + "/bulkheadctl -t " + owner->target() + " ";
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    for (const bool checkpoint : {true, false}) {
        client::JobText text = smallJob();
        text.overrides = {checkpoint ? "name=kept" : "name=dropped"};
        const auto job =
            await<model::JobInfo>([&](auto reply) { client.value()->startJob(text, {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        const std::string of = " --yes --job " + job.value().id;
        WatchLog log;
        auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        ASSERT_TRUE(log.waitFor([](auto& l) {
            return l.state && l.state->lastCommit && l.state->lastCommit->record.step >= 3;
        }));
        fill();
        ASSERT_TRUE(waitUntil([&] {
            return shell(ctl + "status " + job.value().id).out.find("No space left") !=
                   std::string::npos;
        })) << shellBoth(ctl + "status " + job.value().id).out;
        const Ran drain = shellBoth(ctl + "drain 1" + of);
        EXPECT_EQ(drain.code, 4) << drain.out;
        EXPECT_THAT(drain.out, HasSubstr("No space left"));
        const Ran pause = shellBoth(ctl + "pause" + of);
        EXPECT_EQ(pause.code, 0) << pause.out;
        EXPECT_THAT(pause.out, HasSubstr("the job is paused: it pauses when there is room"));
        EXPECT_EQ(shellBoth(ctl + "resume" + of).code, 0);
        const Ran stop = shellBoth(ctl + "stop" + of + (checkpoint ? "" : " --without-checkpoint"));
        EXPECT_EQ(stop.code, 0) << stop.out;
        EXPECT_THAT(stop.out, HasSubstr("the job is stopping: it"));
        EXPECT_THAT(stop.out, HasSubstr("No space left"));
        EXPECT_TRUE(
            checkpoint || waitUntil([&] {
                return shell("pgrep -f '[b]ulkhead-worker --job " + job.value().id + "'").code == 1;
            }))
            << "no rank is left, though the disk is still full";
        std::filesystem::remove(ballast);
        ASSERT_TRUE(log.waitFor([](auto& l) { return l.state->finished.has_value(); }));
        EXPECT_TRUE(log.state->finished->ok) << log.state->finished->why;
        EXPECT_TRUE(!checkpoint || lastCheckpoint() == log.state->lastCommit->record.step);
        watch.reset();
        EXPECT_THAT(shell(ctl + "events " + job.value().id).out,
                    HasSubstr("the run's files can be used again; the job goes on"));
    }
    owner->stop();
    ::umount(disk.c_str());
}

TEST_F(WholeJobTest, AControllerOnAFullHistoryDiskServesAndCatchesUp) {
    const std::string disk = dir_ + "/disk", ballast = disk + "/ballast";
    std::filesystem::create_directory(disk);
    const absl::Status mounted = support::mountSmallDisk(disk);
    ASSERT_TRUE(mounted.ok()) << mounted;
    client::PrivateDaemonOptions options;
    options.program = kBin + "/bulkheadd";
    options.stateDir = dir_ + "/state";
    options.runFile = disk + "/runs.db";
    auto owner = client::PrivateDaemon::create(options);
    ASSERT_TRUE(owner.ok()) << owner.failure().cause;
    const std::string target = owner.value()->target();
    const std::string ctl = kBin + "/bulkheadctl -t " + target + " ";
    auto client = client::Client::open({target, "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    ASSERT_TRUE(
        waitUntil([&] { return shell(ctl + "jobs").out.find("training") != std::string::npos; }));
    {
        std::ofstream file(ballast, std::ios::binary);
        for (const std::string zeros(1 << 12, '\0'); file.write(zeros.data(), 1 << 12).flush();) {
        }
    }
    const auto lacks = [&](const char* phase) {
        const Ran jobs = shell(ctl + "jobs");
        return jobs.out.find(phase) != std::string::npos &&
               jobs.out.find("; history ends with event ") != std::string::npos &&
               jobs.out.find("no room left on the disk") != std::string::npos;
    };
    ASSERT_TRUE(waitUntil([&] { return lacks("training"); })) << shell(ctl + "jobs").out;
    ::kill(childOf(owner.value()->pid(), "--role=controller"), SIGKILL);
    ASSERT_TRUE(waitUntil([&] { return lacks("training"); })) << shell(ctl + "jobs").out;
    ASSERT_EQ(shell(ctl + "stop --yes").code, 0);
    ASSERT_TRUE(waitUntil([&] { return lacks("finished"); })) << shell(ctl + "jobs").out;
    std::filesystem::remove(ballast);
    ASSERT_TRUE(
        waitUntil([&] { return shell(ctl + "runs").out.find("finished") != std::string::npos; }));
    EXPECT_EQ(shell(ctl + "jobs").out.find("history"), std::string::npos);
    const Ran ledger = shellBoth(ctl + "ledger " + job.value().run + " --check");
    EXPECT_EQ(ledger.code, 0) << ledger.out;
    EXPECT_THAT(ledger.out, HasSubstr("held against the commit log up to step"));
    owner.value()->stop();
    ::umount(disk.c_str());
}

TEST_F(WholeJobTest, APoliteSignalToTheLastHolderLosesNoStep) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    client::JobText text = smallJob();
    text.overrides = {"replicas=1"};
    const auto job =
        await<model::JobInfo>([&](auto reply) { client.value()->startJob(text, {}, reply); });
    ASSERT_TRUE(job.ok()) << job.failure().cause;
    WatchLog log;
    const auto watch = client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) {
        return l.state && l.state->lastCommit && l.state->lastCommit->record.step >= 5;
    }));
    const model::RankView* rank = model::findRank(*log.state, {0, 0});
    ASSERT_NE(rank, nullptr);
    ::kill(rank->pid, SIGTERM);
    ASSERT_TRUE(log.waitFor([](auto& l) {
        const model::ReplicaView* r = model::findReplica(*l.state, 0);
        return r != nullptr && r->incarnation == 2 && r->state == model::ReplicaState::kTraining;
    }));
    std::istringstream told(shell(kBin + "/bulkheadctl --json events -f " + dir_ +
                                  "/runs.db --type step_committed,lineage_opened")
                                .out);
    uint64_t committed = 0, from = 0;
    for (std::string line; from == 0 && std::getline(told, line);) {
        const auto event = model::parseJson(line);
        ASSERT_TRUE(event.ok()) << line;
        const auto& body = (*event)["body"];
        if (body.value("type", "") == "step_committed")
            committed = body["record"].value("step", uint64_t{0});
        else
            from = body.value("from_step", uint64_t{0});
    }
    EXPECT_GE(committed, 5u);
    EXPECT_EQ(from, committed) << "no step is computed again";
}

TEST_F(WholeJobTest, AFolderInThePlaceOfAnAgentsLockIsSaidOnceAndEndsIt) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    const std::string lock = dir_ + "/run.db.state/agents/node0/agent.lock";
    std::filesystem::create_directories(lock);
    const Ran ran = shellErrors(kBin + "/bulkheadctl up " + dir_ + "/small.toml --steps 3 --db " +
                                dir_ + "/run.db");
    EXPECT_EQ(ran.code, 6) << ran.out;
    EXPECT_EQ(ran.lines(), 1) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr(lock));
}

/// It has the sockets and the files until it has given back its memory.
TEST_F(WholeJobTest, TheControllerOfAKilledDaemonIsWaitedFor) {
    const std::string state = dir_ + "/state";
    std::filesystem::create_directory(state);
    int held[2];
    ASSERT_EQ(::pipe(held), 0);
    const pid_t old = ::fork();
    if (old == 0) {
        const int fd = ::open((state + "/bulkhead.sock.lock").c_str(), O_RDWR | O_CREAT, 0600);
        if (::flock(fd, LOCK_EX | LOCK_NB) == 0) (void)!::write(held[1], "y", 1);
        for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(held[0], &byte, 1), 1);
    for (const int end : held) ::close(end);
    const std::string stat = read("/proc/" + std::to_string(old) + "/stat");
    std::istringstream fields(stat.substr(stat.rfind(") ") + 2));
    std::string started;
    for (int field = 3; field <= 22; ++field) fields >> started;
    std::ofstream(state + "/daemon.lock") << "1 0\n" << old << " " << started << "\n";

    client::PrivateDaemonOptions options;
    options.program = kBin + "/bulkheadd";
    options.stateDir = state;
    options.runFile = dir_ + "/runs.db";
    auto next =
        std::async(std::launch::async, [&] { return client::PrivateDaemon::create(options); });
    const std::string waits = "waits for process " + std::to_string(old);
    while (next.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready)
        if (read(state + "/daemon.log").find(waits) != std::string::npos) break;
    EXPECT_THAT(read(state + "/daemon.log"), HasSubstr(waits));
    ::kill(old, SIGKILL);
    const auto daemon = next.get();
    EXPECT_TRUE(daemon.ok()) << daemon.failure().cause;
    ::waitpid(old, nullptr, 0);
}

/// It writes a last checkpoint before it ends.
TEST_F(WholeJobTest, TheDaemonOfAnUpThatWasKilledIsWaitedFor) {
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    const std::vector<std::string> up = {kBin + "/bulkheadctl", "up", dir_ + "/small.toml", "--db",
                                         dir_ + "/run.db"};
    for (int i = 0; i < 3; ++i) {
        const pid_t first = spawn(up, dir_ + "/first.out");
        ASSERT_TRUE(waitUntil(
            [&] { return read(dir_ + "/first.out").find("training") != std::string::npos; }));
        ::kill(first, SIGKILL);
        ::waitpid(first, nullptr, 0);
        const Ran again = shellBoth(kBin + "/bulkheadctl up " + dir_ +
                                    "/small.toml --steps 5 --db " + dir_ + "/run.db");
        EXPECT_EQ(again.code, 0) << again.out;
    }
}

TEST_F(WholeJobTest, ASecondDaemonOnTheSameStateIsRefused) {
    const auto owner = daemon();
    const Ran second = shell(kBin + "/bulkheadd --state-dir " + dir_ + "/state 2>&1");
    EXPECT_EQ(second.code, 2);
    EXPECT_THAT(second.out, HasSubstr("another daemon uses the state directory"));
    EXPECT_FALSE(owner->ended());
}

TEST_F(WholeJobTest, AnAgentWithTheKeyOfItsNodeNeedsNoSecretOfTheController) {
    const std::string daemon = kBin + "/bulkheadd --state-dir " + dir_;
    const std::string key = dir_ + "/west.key";
    ASSERT_EQ(shell("umask 077; printf 'the-secret-of-a-controller' > " + dir_ + "/secret").code,
              0);
    const Ran printed = shellBoth("umask 077; " + daemon + "/state --control-token " + dir_ +
                                  "/secret --print-agent-key west > " + key);
    ASSERT_EQ(printed.code, 0) << printed.out;
    const Ran another = shellBoth(daemon + "/west --role=agent --node east --agent-key " + key);
    EXPECT_EQ(another.code, 2);
    EXPECT_THAT(another.out, HasSubstr("it is the key of node west, and this is node east"));
    const std::string ctl = kBin + "/bulkheadctl --target unix:" + dir_ + "/state/bulkhead.sock ";
    // Its ranks connect where it did, not to the wildcard that the controller listens on.
    const std::string port = std::to_string(freePort());
    std::ofstream(dir_ + "/controller.toml")
        << "role = \"controller\"\ncontrol-token = \"" << dir_
        << "/secret\"\ncontrol-listen = [\"0.0.0.0:" << port << "\"]\n";
    std::ofstream(dir_ + "/agent.toml") << "role = \"agent\"\nnode = \"east\"\naddress = "
                                           "\"localhost\"\ncontroller = \"localhost:"
                                        << port << "\"\n";
    const Ran trained =
        shellBoth(daemon + "/state --config " + dir_ + "/controller.toml & c=$!; " + daemon +
                  "/west --config " + dir_ + "/agent.toml --node west --agent-key " + key +
                  " & a=$!; trap 'kill $c $a' EXIT; until " + ctl +
                  "jobs 2>/dev/null; do kill -0 $c || exit 9; sleep 0.1; done; " + ctl +
                  "start --replicas 1 --shards 1 --steps 3 --set policies.min_replicas=1 && " +
                  ctl + "watch");
    EXPECT_EQ(trained.code, 0) << trained.out;
    EXPECT_THAT(trained.out, HasSubstr("step 3/3"));
}

TEST_F(WholeJobTest, ADrainedNodeIsEmptiedReplicaByReplicaAndTheJobTrainsOn) {
    spawn({kBin + "/bulkheadd", "--state-dir", dir_ + "/state", "--agents", "2", "--slots", "2"},
          dir_ + "/daemon.out");
    const auto ctl = [&](const std::string& verb) {
        return shellBoth(kBin + "/bulkheadctl " + verb + " --target unix:" + dir_ +
                         "/state/bulkhead.sock </dev/null");
    };
    const auto says = [&](const std::string& verb, const std::string& what) {
        return ctl(verb).out.find(what) != std::string::npos;
    };
    std::ofstream(dir_ + "/small.toml") << smallJob().text;
    ASSERT_TRUE(waitUntil([&] { return says("nodes", "node0") && says("nodes", "node1"); }));
    ASSERT_EQ(ctl("start " + dir_ + "/small.toml").code, 0);
    ASSERT_TRUE(waitUntil([&] { return says("jobs", "2/2 replicas"); })) << ctl("status").out;

    const Ran drained = ctl("nodes drain node0");
    EXPECT_EQ(drained.code, 0) << drained.out;
    EXPECT_THAT(drained.out, HasSubstr("node0 is empty; it stays cordoned"));
    EXPECT_THAT(drained.out, HasSubstr("of small trains elsewhere"));
    EXPECT_THAT(ctl("nodes").out, ::testing::ContainsRegex("node0 .*cordoned +0 of 2"));
    EXPECT_THAT(ctl("nodes").out, HasSubstr("2 of 2"));
    EXPECT_TRUE(says("jobs", "training")) << ctl("jobs").out;

    const Ran full = ctl("nodes drain node1");
    EXPECT_EQ(full.code, 4) << full.out;
    EXPECT_THAT(full.out, HasSubstr("needs 1 slots, and the other nodes have 0"));
    EXPECT_TRUE(says("jobs", "2/2 replicas")) << "nobody left for nowhere";
    EXPECT_EQ(ctl("nodes drain nowhere").code, 5);
    EXPECT_EQ(ctl("stop --yes").code, 0);
    ASSERT_TRUE(waitUntil([&] { return says("jobs", "finished"); }));
    EXPECT_EQ(ctl("ledger --check").code, 0) << ctl("ledger --check").out;
    killAllThatName(dir_);
}

TEST_F(WholeJobTest, ANewRunOnAnOldHistorySaysHowToGoOnWithTheOldOne) {
    const std::string up = kBin + "/bulkheadctl up --replicas 1 --shards 1 --name one --steps 3 " +
                           "--set policies.min_replicas=1 --db " + dir_ + "/run.db";
    const Ran first = shellBoth(up);
    EXPECT_EQ(first.code, 0) << first.out;
    EXPECT_THAT(first.out, Not(HasSubstr("--resume")));
    const Ran second = shellBoth(up);
    EXPECT_EQ(second.code, 0) << second.out;
    EXPECT_THAT(second.out,
                HasSubstr("to go on with one, which ended at step 3, add --resume one"));
}

TEST_F(WholeJobTest, AStartRefusedForItsCheckpointFolderLeavesNothing) {
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    client::JobText text = smallJob();
    const auto start = [&](const std::string& folder) {
        text.overrides = {"checkpoint_dir=\"" + folder + "\"", "steps=3"};
        return await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(text, {}, reply); });
    };
    const std::filesystem::path here = dir_;
    std::ofstream(here / "file") << "mine";
    std::filesystem::create_directories(here / "mine" / "small" / "x");
    std::filesystem::create_directories(here / "named");
    std::ofstream(here / "named" / "small") << "mine";
    for (const std::string& folder : {dir_ + "/file", dir_ + "/file/below", dir_ + "/mine",
                                      dir_ + "/named", std::string("/proc/not-there")}) {
        const auto refused = start(folder);
        ASSERT_FALSE(refused.ok()) << folder;
        EXPECT_EQ(refused.failure().code, client::FailureCode::kInvalid) << folder;
        EXPECT_THAT(refused.failure().cause, HasSubstr(folder));
        EXPECT_THAT(refused.failure().remedy, HasSubstr("checkpoint_dir"));
    }
    EXPECT_TRUE(std::filesystem::is_empty(here / "state" / "jobs"));
    EXPECT_EQ(read(dir_ + "/named/small"), "mine");
    EXPECT_TRUE(std::filesystem::exists(here / "mine" / "small" / "x"));
    const auto runs = await<std::vector<model::RunInfo>>(
        [&](auto reply) { client.value()->listRuns("", reply); });
    ASSERT_TRUE(runs.ok()) << runs.failure().cause;
    EXPECT_TRUE(runs.value().empty());
    const auto started = start(dir_ + "/checkpoints");
    ASSERT_TRUE(started.ok()) << started.failure().cause;
    EXPECT_EQ(started.value().id, "small") << "the name is free";
}

TEST_F(WholeJobTest, ADaemonWithAnAllowListStartsNoJobThatUsesAnythingElse) {
    ASSERT_EQ(shell("umask 077; mkdir -p " + dir_ + "/state; printf 'data = [\"" + dir_ +
                    "/text.txt\"]\ncheckpoints = [\"" + dir_ + "/checkpoints\"]\n' > " + dir_ +
                    "/state/allow.toml")
                  .code,
              0);
    const auto owner = daemon();
    auto client = client::Client::open({owner->target(), "", "tester", kForever});
    ASSERT_TRUE(client.ok());
    const auto start = [&](const std::vector<std::string>& overrides, const std::string& resume) {
        client::JobText text = smallJob();
        text.overrides = overrides;
        text.resumeFrom = resume;
        return await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(text, {}, reply); });
    };
    for (const auto& [key, value, resume] :
         {std::tuple{"workload", "workload=\"/tmp/evil.so\"", ""},
          {"domains.t", "domains=[{name=\"t\", paths=[\"/etc/passwd\"]}]", ""},
          {"checkpoint_dir", "checkpoint_dir=\"/tmp\"", ""},
          {"model.file", "model.file=\"/etc/hostname\"", ""},
          {"resume", "steps=3", "/etc/manifest.json"}}) {
        const auto refused = start({value}, resume);
        ASSERT_FALSE(refused.ok()) << value;
        EXPECT_EQ(refused.failure().code, client::FailureCode::kRefused) << value;
        EXPECT_THAT(refused.failure().cause, HasSubstr(key));
        EXPECT_THAT(refused.failure().cause, HasSubstr("is not allowed here"));
    }
    EXPECT_TRUE(start({"steps=3"}, "").ok());
}

TEST_F(WholeJobTest, SeveralWhoChangeTheAccessFileAtOnceTakeTurns) {
    const std::string verb = kBin + "/bulkheadctl access --access " + dir_ + "/a.toml ";
    ASSERT_EQ(shell("for i in 1 2 3 4 5 6 7 8; do " + verb + "add p$i & done; wait; " + verb +
                    "remove p1 & " + verb + "remove p2 & wait")
                  .code,
              0);
    const Ran ran = shell(verb + "list");
    for (const char* name : {"p3", "p4", "p5", "p6", "p7", "p8"})
        EXPECT_THAT(ran.out, HasSubstr(std::string("\n") + name + " ")) << ran.out;
    EXPECT_THAT(ran.out, Not(HasSubstr("\np1 ")));
    EXPECT_THAT(ran.out, Not(HasSubstr("\np2 ")));
}

TEST_F(WholeJobTest, AskedToEndADaemonWritesACheckpointFirst) {
    auto owner = daemon();
    {
        auto client = client::Client::open({owner->target(), "", "tester", kForever});
        ASSERT_TRUE(client.ok());
        const auto job = await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(smallJob(), {}, reply); });
        ASSERT_TRUE(job.ok()) << job.failure().cause;
        WatchLog log;
        const auto watch =
            client.value()->watch({.job = job.value().id, .replay = ""}, log.handlers());
        ASSERT_TRUE(log.waitFor([](auto& l) { return l.state && l.state->lastCommit; }));
    }
    owner->stop();
    const Ran events = shell(kBin + "/bulkheadctl events -f " + dir_ +
                             "/runs.db --json --type checkpoint_written,run_finished");
    EXPECT_THAT(events.out, HasSubstr("\"type\":\"checkpoint_written\""));
    const auto last = model::parseJson(lastLine(events.out));
    ASSERT_TRUE(last.ok()) << events.out;
    EXPECT_EQ((*last)["body"].value("type", ""), "run_finished");
    EXPECT_TRUE((*last)["body"].value("ok", false));
}

}  // namespace
}  // namespace bulkhead::testing
