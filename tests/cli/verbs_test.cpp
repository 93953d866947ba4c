// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "backend/cli/cli.h"
#include "backend/client/job_source.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"
#include "backend/service/job_text.h"
#include "tests/cli/said.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/rpc/run_file.h"

namespace bulkhead::testing {
namespace {

using cli::Said;
using cli::type;
using ::testing::HasSubstr;
using ::testing::Not;

class VerbsTest : public RpcTest {
  protected:
    VerbsTest() {
        const int null = ::open("/dev/null", O_RDONLY);
        ::dup2(null, STDIN_FILENO);
        ::close(null);
        backend_.addJob("demo").phase = model::JobPhase::kTraining;
    }
    Said ask(std::vector<std::string> words) {
        words.insert(words.begin(), {"--target", "unix:" + socket()});
        return type(std::move(words));
    }
    /// Two shards, two domains, a mixture of four experts: "a" uses 0 and 2, "b" 1 and 3.
    void describeExperts(std::vector<uint32_t> mixtureLayers = {}) {
        model::RunStarted started;
        started.spec.shards = 2;
        started.spec.domains = {{"a", {}}, {"b", {}}};
        backend_.emit("demo", started);
        model::ModelDescribed described;
        described.model.name = "tiny";
        described.model.moeLayers = 1;
        described.model.experts = 4;
        described.model.topK = 1;
        described.model.expertShard = {0, 0, 1, 1};
        described.model.mixtureLayers = std::move(mixtureLayers);
        backend_.emit("demo", described);
        backend_.emit("demo", model::ExpertLoads{9, 1, 2, 4, {45, 5, 45, 5, 5, 45, 5, 45}});
    }
    void serveWithHistory(uint64_t steps) {
        writeRun(dir_ + "/runs.db", madeUpRun(steps), clock_);
        service::ServerOptions options = unixOptions();
        options.history = dir_ + "/runs.db";
        serve(options);
    }
};

TEST_F(VerbsTest, SlurmFollowWithoutAJobThatRunsOrIsNamedStartsNone) {
    backend_.addJob("demo").phase = model::JobPhase::kFinished;
    serve(unixOptions());
    const Said said = ask({"slurm", "follow", "--folder", dir_});
    EXPECT_EQ(said.code, cli::kNotFound);
    EXPECT_THAT(said.err, HasSubstr("No job runs"));
}

TEST_F(VerbsTest, AccessAndCertificatesAreMadeShownAndTakenAway) {
    const std::string list = dir_ + "/access.toml";
    const auto access = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {"access", "--access", list});
        return type(std::move(words));
    };
    EXPECT_THAT(access({"list"}).out, HasSubstr("names nobody"));
    // A file without a folder lies in the working directory.
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(dir_);
    const Said added = access({"add", "robot", "--role", "operator", "--token-out", "robot.token"});
    std::filesystem::current_path(before);
    ASSERT_EQ(added.code, 0) << added.err;
    EXPECT_EQ(access({"add", "anna", "--faults", "--expires", "2027-01-31"}).code, 0);
    EXPECT_EQ(access({"add", "anna", "--expires", "soon"}).code, cli::kInvalid);
    EXPECT_EQ(access({"add", "a/b"}).code, cli::kInvalid);
    EXPECT_EQ(access({"remove", "nobody"}).code, cli::kNotFound);
    const Said all = access({"list"});
    EXPECT_THAT(all.out, HasSubstr("robot  operator  no      1"));
    EXPECT_THAT(all.out, HasSubstr("2027-01-31"));

    service::ServerOptions options = tcpOptions();
    options.tokenFile.clear();
    options.access = list;
    serve(options);
    const std::vector<std::string> there{"--target", server_->addresses().front(), "--token-file",
                                         dir_ + "/robot.token", "jobs"};
    EXPECT_EQ(type(there).code, 0);
    EXPECT_EQ(access({"remove", "robot"}).code, 0);
    EXPECT_EQ(type(there).code, cli::kToken);

    const auto certs = [&](std::vector<std::string> words) {
        words.insert(words.begin(), {"certs", "--authority", dir_ + "/authority"});
        return type(std::move(words));
    };
    EXPECT_EQ(certs({"issue", "anna", "--out", dir_ + "/anna"}).code, cli::kNotFound);
    EXPECT_EQ(certs({"init"}).code, 0);
    EXPECT_EQ(certs({"init"}).code, cli::kRefused);
    EXPECT_EQ(certs({"issue", "anna", "--out", dir_ + "/anna"}).code, 0);
    EXPECT_EQ(certs({"check", dir_ + "/anna"}).code, 0);
    EXPECT_EQ(certs({"check", dir_}).code, cli::kNotFound);
    EXPECT_EQ(certs({"renew", dir_ + "/anna"}).code, 0);
    EXPECT_EQ(certs({"revoke", "bob"}).code, cli::kNotFound);
    EXPECT_EQ(certs({"revoke", "anna"}).code, 0);
    EXPECT_THAT(certs({"list"}).out, HasSubstr("revoked"));
}

TEST_F(VerbsTest, MetricsAreThoseOfEveryJob) {
    serve(unixOptions());
    describeExperts();
    backend_.addJob("other");
    const Said said = ask({"metrics", "--once"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("bulkhead_daemon_up 1\n"));
    EXPECT_THAT(said.out, HasSubstr("bulkhead_job_phase{run=\"demo\",phase=\"training\"} 1\n"));
    EXPECT_THAT(said.out, HasSubstr("bulkhead_job_replicas{run=\"demo\",state=\"failed\"} 0\n"));
    EXPECT_THAT(said.out, HasSubstr("bulkhead_job_step{run=\"other\"} 0\n"));
    const Said taken = ask({"metrics", "--listen", "nowhere"});
    EXPECT_EQ(taken.code, cli::kInvalid);
    EXPECT_THAT(taken.err, HasSubstr("--listen"));
}

TEST_F(VerbsTest, NothingOrNonsenseIsAUsageError) {
    EXPECT_EQ(type({}).code, cli::kUsage);
    EXPECT_EQ(type({"nonsense"}).code, cli::kUsage);
    EXPECT_EQ(type({"drain"}).code, cli::kUsage);
    EXPECT_EQ(type({"drain", "two"}).code, cli::kUsage);
}

TEST_F(VerbsTest, HelpNamesTheExitCodes) {
    const Said said = type({"--help"});
    EXPECT_EQ(said.code, cli::kOk);
    EXPECT_THAT(said.out, HasSubstr("Exit codes"));
}

TEST_F(VerbsTest, WithoutADaemonCauseAndRemedyAreOneLine) {
    const Said said = ask({"jobs"});
    EXPECT_EQ(said.code, cli::kUnreachable);
    EXPECT_EQ(said.out, "");
    EXPECT_THAT(said.err, HasSubstr("Nobody answers at unix:"));
    EXPECT_THAT(said.err, HasSubstr(" / "));
    EXPECT_EQ(std::count(said.err.begin(), said.err.end(), '\n'), 1);
}

TEST_F(VerbsTest, JobsAsJsonIsOneObjectALine) {
    serve(unixOptions());
    const Said said = ask({"jobs", "--json"});
    ASSERT_EQ(said.code, cli::kOk);
    const auto job = model::fromJsonText<model::JobInfo>(said.out);
    ASSERT_TRUE(job.ok()) << said.out;
    EXPECT_EQ(job->id, "demo");
}

TEST_F(VerbsTest, NodesAreListedWithoutAJob) {
    serve(unixOptions());
    EXPECT_THAT(ask({"nodes"}).out,
                ::testing::ContainsRegex("west +10.0.0.7 +cordoned +3 of 8 +2 of 4"));
    const auto node = model::fromJsonText<model::NodeInfo>(ask({"nodes", "--json"}).out);
    ASSERT_TRUE(node.ok());
    EXPECT_EQ(node->gpus, 4u);
}

TEST_F(VerbsTest, ALostNodeIsForgotten) {
    serve(unixOptions());
    const Said said = ask({"nodes", "forget", "west"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_EQ(backend_.changed, std::pair(std::string("forget"), false));
    EXPECT_THAT(said.out, HasSubstr("west")) << "the nodes that are left";
    ask({"nodes", "forget", "west", "--machine-is-off"});
    EXPECT_EQ(backend_.changed, std::pair(std::string("forget"), true));
    EXPECT_EQ(ask({"nodes", "forget", "east"}).code, cli::kNotFound);
    for (const char* name : {"", "a/b", "w\xff", "we\x1b[31mst"}) {
        const Said refused = ask({"nodes", "forget", name});
        EXPECT_EQ(refused.code, cli::kUsage) << refused.err;
        EXPECT_THAT(refused.err, HasSubstr("expected up to 64 letters"));
    }
}

TEST_F(VerbsTest, ANodeIsCordonedWithoutAJob) {
    serve(unixOptions());
    backend_.addJob("demo").phase = model::JobPhase::kFinished;
    const Said said = ask({"cordon", "west"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_EQ(said.out, "Cordon node west: done\n");
    EXPECT_EQ(backend_.changed, std::pair(std::string("cordon"), false));
    EXPECT_EQ(ask({"uncordon", "west", "--dry-run"}).code, cli::kOk);
    EXPECT_EQ(backend_.changed.first, "cordon") << "nothing is done";
    EXPECT_EQ(ask({"cordon", "east"}).code, cli::kNotFound);
}

TEST_F(VerbsTest, AJobThatIsNotThereIsNotFound) {
    serve(unixOptions());
    EXPECT_EQ(ask({"status", "nope"}).code, cli::kNotFound);
}

TEST_F(VerbsTest, StatusShowsTheStateOfNow) {
    serve(unixOptions());
    backend_.emit("demo", note("all is well"));
    const Said said = ask({"status", "--json"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    const auto state = model::fromJsonText<model::RunState>(said.out);
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(state->explanation, "all is well");
}

TEST_F(VerbsTest, APlanForARunningJobNeedsItsCounts) {
    serve(unixOptions());
    for (const char* verb : {"preview", "apply", "rollback"}) {
        const Said said = ask({"plan", verb});
        EXPECT_EQ(said.code, cli::kRefused) << verb;
        EXPECT_THAT(said.err, HasSubstr("Cannot plan for job demo")) << verb;
        EXPECT_THAT(said.err, HasSubstr("not been built yet")) << verb;
    }
    EXPECT_EQ(ask({"plan", "preview", "--plan", "/no/such/plan.json"}).code, cli::kInvalid);
    EXPECT_THAT(ask({"plan", "history"}).out, HasSubstr("no expert has moved"));
}

TEST_F(VerbsTest, APreviewKeepsToPinsAndAnApplyTakesThemAlong) {
    serve(unixOptions());
    describeExperts();
    const Said free = ask({"plan", "preview"});
    EXPECT_THAT(free.out, HasSubstr("10.0 % predicted")) << free.err;
    const Said pinned = ask({"plan", "preview", "--pin", "0:0=shard0", "--forbid", "0:2=shard0"});
    EXPECT_THAT(pinned.out, HasSubstr("50.0 % predicted")) << pinned.err;
    EXPECT_TRUE(backend_.actions().empty());
    const Said applied = ask({"plan", "apply", "-y", "--pin", "0:0=shard1"});
    ASSERT_EQ(applied.code, cli::kOk) << applied.err;
    ASSERT_EQ(backend_.actions().size(), 1u);
    EXPECT_EQ(backend_.actions()[0].kind, model::ActionKind::kChangeLayout);
    EXPECT_EQ(backend_.actions()[0].expertShard[0], 1);
    EXPECT_EQ(backend_.actions()[0].rules, (std::vector<model::ExpertRule>{{0, 0, 1, true}}));
    for (const char* pin : {"0:4=shard0", "0:0=shard2", "1:0=shard0", "0:0=gpu1"}) {
        const Said said = ask({"plan", "preview", "--pin", pin});
        EXPECT_EQ(said.code, cli::kInvalid) << pin;
        EXPECT_THAT(said.err, HasSubstr("Check --plan, --pin and --forbid.")) << pin;
    }
}

TEST_F(VerbsTest, RulesNameLayersAsTheModelNumbersThem) {
    serve(unixOptions());
    describeExperts({3});
    const Said said = ask({"plan", "rules", "--pin", "3:1=shard1", "--json"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_EQ(backend_.actions().back().rules, (std::vector<model::ExpertRule>{{0, 1, 1, true}}));
    EXPECT_THAT(said.out, HasSubstr("\"layer\":3"));
    EXPECT_THAT(said.out, HasSubstr("\"mixture\":0"));
    for (const char* option : {"--pin", "--free"}) {
        const std::string rule = std::string("0:1") + (option[2] == 'p' ? "=shard1" : "");
        const Said other = ask({"plan", "rules", option, rule});
        EXPECT_EQ(other.code, cli::kInvalid) << option;
        EXPECT_THAT(other.err, HasSubstr("layer 0 has no experts; those that do are 3")) << option;
    }
    const Said full =
        ask({"plan", "rules", "--pin", "3:0=shard1", "--pin", "3:1=shard1", "--pin", "3:2=shard1"});
    EXPECT_THAT(full.err, HasSubstr("expert 0 of layer 3 is pinned to shard 1"));
}

TEST_F(VerbsTest, RulesOfAJobAreListedChangedAndFreed) {
    serve(unixOptions());
    EXPECT_THAT(ask({"plan", "rules"}).err, HasSubstr("not been built yet"));
    describeExperts();
    EXPECT_THAT(ask({"plan", "rules"}).out, HasSubstr("no expert is pinned"));
    EXPECT_TRUE(backend_.actions().empty()) << "asking changes nothing";
    const Said said = ask({"plan", "rules", "--pin", "0:1=shard1", "--forbid", "0:3=shard0"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("not kept yet; the next plan moves it"));
    model::OperatorActed acted{backend_.actions().back(), "", "", "done"};
    ASSERT_EQ(acted.action.kind, model::ActionKind::kRuleExperts);
    backend_.emit("demo", acted);
    EXPECT_EQ(ask({"plan", "rules", "--pin", "0:1=shard0"}).code, cli::kOk);
    EXPECT_EQ(backend_.actions().back().rules,
              (std::vector<model::ExpertRule>{{0, 3, 0, false}, {0, 1, 0, true}}));
    EXPECT_EQ(ask({"plan", "rules", "--free", "0:3"}).code, cli::kOk);
    EXPECT_EQ(backend_.actions().back().rules, (std::vector<model::ExpertRule>{{0, 1, 1, true}}));
    EXPECT_THAT(ask({"plan", "rules", "--free", "0:2"}).err, HasSubstr("neither pinned nor"));
    EXPECT_THAT(ask({"plan", "rules", "--free", "2"}).err, HasSubstr("expected LAYER:EXPERT,"));
    const Said full = ask({"plan", "rules", "--pin", "0:0=shard1", "--pin", "0:2=shard1"});
    EXPECT_EQ(full.code, cli::kInvalid);
    EXPECT_THAT(full.err, HasSubstr("with it 3 are, and the shard holds 2 experts"));
    EXPECT_EQ(ask({"plan", "rules", "--clear"}).code, cli::kOk);
    EXPECT_TRUE(backend_.actions().back().rules.empty());
}

TEST_F(VerbsTest, APlanThatWaitsIsDismissed) {
    serve(unixOptions());
    EXPECT_EQ(ask({"plan", "dismiss"}).code, cli::kRefused);
    model::PlanProposed plan;
    plan.step = 40;
    backend_.emit("demo", plan);
    EXPECT_THAT(ask({"plan", "history"}).out, HasSubstr("waiting"));
    EXPECT_EQ(ask({"plan", "dismiss"}).code, cli::kOk);
    ASSERT_EQ(backend_.actions().size(), 1u);
    EXPECT_EQ(backend_.actions()[0].step, 40u);
}

TEST_F(VerbsTest, EveryVerbStandsInTheTableOfWhatTheConsoleDoes) {
    std::ifstream file(BULKHEAD_SOURCE_DIR "/docs/console.md");
    const std::string table{std::istreambuf_iterator<char>(file), {}};
    std::istringstream lines(type({"completion", "bash"}).out);
    int verbs = 0;
    for (std::string line; std::getline(lines, line);) {
        const size_t end = line.find(") COMPREPLY");
        const size_t begin = line.find_first_not_of(' ');
        if (end == std::string::npos || line[begin] == '*') continue;
        ++verbs;
        EXPECT_THAT(table, HasSubstr("`" + line.substr(begin, end - begin) + "`"));
    }
    EXPECT_GT(verbs, 20);
}

TEST_F(VerbsTest, TwoRunsAreComparedSideBySide) {
    serveWithHistory(20);
    const Said said = ask({"compare", "latest", "latest"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, ::testing::ContainsRegex("STEPS +20 +20"));
    EXPECT_EQ(ask({"compare", "latest", "nope"}).code, cli::kNotFound);
    EXPECT_EQ(ask({"compare", "latest"}).code, cli::kUsage);
}

TEST_F(VerbsTest, WhatTakesSomethingAwayIsRefusedUnlessConfirmed) {
    serve(unixOptions());
    const Said refused = ask({"drain", "2"});
    EXPECT_EQ(refused.code, cli::kRefused);
    EXPECT_THAT(refused.err, HasSubstr("--yes"));
    EXPECT_TRUE(backend_.calls().empty());
    const Said done = ask({"drain", "2", "--yes"});
    EXPECT_EQ(done.code, cli::kOk) << done.err;
    ASSERT_EQ(backend_.calls().size(), 1u);
    // The revision of the pre-flight that was shown goes with the action.
    EXPECT_NE(backend_.calls()[0].expectedRevision, 0u);
}

TEST_F(VerbsTest, ADryRunTellsAndDoesNothing) {
    serve(unixOptions());
    const Said said = ask({"restart", "1", "--dry-run", "--json"});
    EXPECT_EQ(said.code, cli::kOk);
    EXPECT_TRUE(model::fromJsonText<model::Preflight>(said.out).ok()) << said.out;
    EXPECT_TRUE(backend_.calls().empty());
}

TEST_F(VerbsTest, EveryActionHasItsVerb) {
    serve(unixOptions());
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"drain", "1", "-y"},
                                               {"hold", "1", "-y"},
                                               {"release", "1"},
                                               {"restart", "1", "-y"},
                                               {"cordon", "node0", "-y"},
                                               {"uncordon", "node0"},
                                               {"pause"},
                                               {"resume"},
                                               {"checkpoint"},
                                               {"stop", "-y"},
                                               {"policy", "set", "lr", "linear", "-y"}}) {
        const Said said = ask(words);
        EXPECT_EQ(said.code, cli::kOk) << words[0] << ": " << said.err;
    }
    EXPECT_EQ(backend_.calls().size(), 11u);
}

TEST_F(VerbsTest, AFaultIsReadPreflightedConfirmedAndNumbered) {
    serve(unixOptions());
    EXPECT_EQ(ask({"fault", "kil:replica=2"}).code, cli::kInvalid);
    EXPECT_EQ(ask({"fault", "kill:replica=2"}).code, cli::kRefused);
    const Said said = ask({"--json", "fault", "kill:replica=2", "--yes"});
    EXPECT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_EQ(said.out, "{\"fault\":1}\n");
}

TEST_F(VerbsTest, ACampaignIsReadLookedAtAndConfirmedBeforeItRuns) {
    serve(unixOptions());
    const std::string file = dir_ + "/c.toml";
    EXPECT_EQ(ask({"campaign", "run", file}).code, cli::kInvalid);
    std::ofstream(file) << "duration = \"1m\"\n";
    EXPECT_EQ(ask({"campaign", "run", file, "--duration", "1 minute"}).code, cli::kInvalid);
    const Said refused = ask({"campaign", "run", file});
    EXPECT_EQ(refused.code, cli::kRefused);
    EXPECT_THAT(refused.err, HasSubstr("--yes"));
    EXPECT_TRUE(backend_.calls().empty());
    const Said dry = ask({"campaign", "run", file, "--seed", "4", "--dry-run", "--json"});
    EXPECT_EQ(dry.code, cli::kOk);
    const auto seen = model::fromJsonText<model::CampaignPreflight>(dry.out);
    ASSERT_TRUE(seen.ok()) << dry.out;
    EXPECT_EQ(seen->campaign.seed, 4u);
    const Said left = ask({"campaign", "run", file, "--yes", "--detach", "--json"});
    EXPECT_EQ(left.out, "{\"campaign\":1}\n") << left.err;
}

TEST_F(VerbsTest, FollowingACampaignEndsWithItsVerdictAsExitCode) {
    serve(unixOptions());
    std::ofstream(dir_ + "/c.toml") << "duration = \"1m\"\n";
    for (const auto outcome : {model::CampaignOutcome::kPassed, model::CampaignOutcome::kFailed}) {
        const uint64_t id = outcome == model::CampaignOutcome::kPassed ? 1 : 2;
        model::CampaignStarted started;
        started.campaign = id;
        started.name = "calm";
        model::CampaignEnded ended{id, outcome, "", {}};
        ended.verdicts.push_back({model::CampaignCheck::kStall, model::VerdictState::kFailed, 9000,
                                  5000, "9 s, at most 5 s"});
        backend_.emit("demo", started);
        backend_.emit("demo", ended);
        const Said said = ask({"campaign", "run", dir_ + "/c.toml", "--yes"});
        EXPECT_EQ(said.code, id == 1 ? cli::kOk : cli::kRunFailed) << said.err;
        EXPECT_THAT(said.out, HasSubstr("9 s, at most 5 s"));
        EXPECT_THAT(said.out, HasSubstr(id == 1 ? "(calm) passed" : "(calm) failed"));
    }
    EXPECT_EQ(ask({"campaign", "stop"}).code, cli::kNotFound);
}

TEST_F(VerbsTest, ARunWithoutCampaignsSaysSo) {
    serveWithHistory(3);
    EXPECT_EQ(ask({"campaign", "list"}).out, "no campaigns\n");
    EXPECT_EQ(ask({"campaign", "show"}).code, cli::kNotFound);
}

TEST_F(VerbsTest, AJobFileThatIsNotThereIsInvalid) {
    serve(unixOptions());
    const Said said = ask({"start", dir_ + "/none.toml"});
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("none.toml"));
}

TEST_F(VerbsTest, StartAppliesWhatTheCommandLineChanges) {
    serve(unixOptions());
    std::ofstream(dir_ + "/text.txt") << std::string(10000, 'x');
    std::ofstream(dir_ + "/job.toml") << "name = \"mine\"\nreplicas = 2\nshards = 1\n"
                                      << "[[domains]]\nname = \"t\"\npaths = [\"text.txt\"]\n";
    const Said said =
        ask({"start", dir_ + "/job.toml", "--replicas", "3", "--name", "other", "--fault",
             "kill:replica=2@step=5", "--set", "policies.lr=linear", "--json"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    const auto job = model::fromJsonText<model::JobInfo>(said.out);
    ASSERT_TRUE(job.ok());
    EXPECT_EQ(job->id, "other");
    EXPECT_EQ(job->replicas, 3u);
    const Said wrong = ask({"start", dir_ + "/job.toml", "--set", "policies.lr=square"});
    EXPECT_EQ(wrong.code, cli::kInvalid);
    EXPECT_THAT(wrong.err, HasSubstr("policies.lr"));
}

TEST_F(VerbsTest, WhatStandsBehindTwoDashesIsTheProgramOfAJob) {
    serve(unixOptions());
    const Said said = ask({"start", "--name", "mine", "--json", "--", "python3", "train.py"});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("\"mine\""));
    EXPECT_THAT(ask({"jobs", "--", "python3"}).err, HasSubstr("-- is for up, start"));
    EXPECT_THAT(ask({"start", "--"}).err, HasSubstr("expects a program"));
}

TEST(JobSource, AProgramsArgumentsReachTheJobAsTheyAre) {
    client::JobSource source;
    source.command = {"python3", "--json", "a \"b\" \\ c\n\x01\tä"};
    const auto job = client::readJob(source);
    ASSERT_TRUE(job.ok());
    const auto spec = service::parseJobText(job.value().text, job.value().fileName,
                                            job.value().baseDir, job.value().overrides);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->command, source.command);
    EXPECT_EQ(spec->directory, std::filesystem::current_path().string());
    EXPECT_EQ(spec->shards, 1u);
}

TEST(JobSource, FaultsThatAnOverrideWouldDropAreRefused) {
    client::JobSource source;
    source.faults = {"kill:replica=1@step=5"};
    source.set = {"faults=\"on\""};
    const auto job = client::readJob(source);
    ASSERT_FALSE(job.ok());
    EXPECT_THAT(job.failure().cause, HasSubstr("would take the place of --fault"));
}

TEST_F(VerbsTest, RunsShowEventsLedgerAndExportReadTheHistory) {
    serveWithHistory(5);
    EXPECT_THAT(ask({"runs"}).out, HasSubstr("demo"));
    EXPECT_THAT(ask({"show"}).out, HasSubstr("step 5"));
    const Said events = ask({"events", "--type", "step_committed", "--json"});
    EXPECT_EQ(std::count(events.out.begin(), events.out.end(), '\n'), 5);
    const Said ledger = ask({"ledger", "--json"});
    EXPECT_EQ(std::count(ledger.out.begin(), ledger.out.end(), '\n'), 5);
    EXPECT_THAT(ask({"ledger"}).out, HasSubstr("LOSS"));
    const Said check = ask({"ledger", "--check"});
    EXPECT_EQ(check.code, cli::kOk);
    EXPECT_THAT(check.out, HasSubstr("40 samples committed exactly once"));
    const Said csv = ask({"export", "--format", "csv"});
    EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 6);
    const std::string file = dir_ + "/out.jsonl";
    EXPECT_EQ(ask({"export", "--what", "events", "-o", file}).code, cli::kOk);
    std::ifstream in(file);
    size_t lines = 0;
    for (std::string line; std::getline(in, line);) ++lines;
    EXPECT_EQ(lines, 7u);
    std::ofstream(file) << "old";
    EXPECT_EQ(ask({"export", "nope", "-o", file}).code, cli::kNotFound);
    EXPECT_EQ(readAtMost(file, 100).value(), "old") << "what was there is replaced whole or not";
    EXPECT_EQ(ask({"show", "nope"}).code, cli::kNotFound);
    EXPECT_EQ(ask({"export", "--what", "events", "--format", "csv"}).code, cli::kInvalid);
}

TEST_F(VerbsTest, AStartThatIsInterruptedSaysWhatMayHaveComeOfIt) {
    backend_.onStart = [](const service::Call& call) {
        ::kill(::getpid(), SIGINT);
        while (!call.gaveUp()) std::this_thread::yield();
    };
    serve(unixOptions());
    const Said said = ask({"start", "--name", "late"});
    EXPECT_EQ(said.code, cli::kInterrupted);
    EXPECT_THAT(said.err, HasSubstr("it starts it all the same"));
    EXPECT_THAT(said.err, HasSubstr("stop --job ID --without-checkpoint"));
}

TEST_F(VerbsTest, AReplayEndsByItself) {
    serveWithHistory(5);
    const Said said = ask({"replay", "--speed", "1000", "--events", "--json"});
    EXPECT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("run_finished"));
}

TEST_F(VerbsTest, CompletionKnowsEveryVerb) {
    for (const std::string shell : {"bash", "zsh", "fish"}) {
        const Said said = type({"completion", shell});
        EXPECT_EQ(said.code, cli::kOk);
        for (const char* verb :
             {"up", "drain", "fault", "campaign", "export", "replay", "completion"})
            EXPECT_THAT(said.out, HasSubstr(verb)) << shell;
    }
    EXPECT_EQ(type({"completion", "csh"}).code, cli::kUsage);
}

}  // namespace
}  // namespace bulkhead::testing
