// SPDX-License-Identifier: Apache-2.0
// `bulkheadctl plan solve, evaluate, diff`: from a recording to a plan, and what is refused on the
// way.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "backend/cli/cli.h"
#include "backend/model/json.h"
#include "tests/cli/said.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Said typePlan(std::vector<std::string> words) {
    words.insert(words.begin(), "plan");
    return type(std::move(words));
}

/// 12 requests of 2 domains, 1 layer of 8 experts, top-2: domain d uses experts d, d + 2, d + 4, d
/// + 6.
class SolveVerbs : public ::testing::Test {
  protected:
    SolveVerbs() {
        fs::create_directories(dir_);
        std::ofstream out(routing_);
        out << R"({"routing": {"model": "m", "layers": 1, "experts": 8, "top_k": 2}})"
            << "\n";
        for (int r = 0; r < 12; ++r) {
            model::Json tokens = model::Json::array();
            for (int t = 0; t < 20; ++t)
                tokens.push_back({{(t % 4) * 2 + r % 2, ((t + 1) % 4) * 2 + r % 2}});
            out << model::Json{{"experts", tokens}, {"domain", r % 2 ? "b" : "a"}}.dump() << "\n";
        }
    }
    ~SolveVerbs() override { fs::remove_all(dir_); }

    const std::string dir_ = ::testing::TempDir() + "plan_verbs_" + std::to_string(::getpid());
    const std::string routing_ = dir_ + "/routing.jsonl", plan_ = dir_ + "/plan.json";
};

TEST_F(SolveVerbs, aPlanForEachDomainStandsBesideTheSharedOne) {
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--per-domain", "--effort", "0.1", "--out", plan_});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("STEP MS SHARED"));
    EXPECT_THAT(said.out, HasSubstr("from shared"));
    for (const char* name : {"plan.json", "plan.a.json", "plan.b.json"}) {
        const Said judged =
            typePlan({"evaluate", "--plan", dir_ + "/" + name, "--routing", routing_, "--json"});
        EXPECT_EQ(judged.code, cli::kOk) << name << judged.err;
    }
    const Said json = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--per-domain", "--effort", "0.1", "--json"});
    const auto parsed = model::parseJson(json.out);
    ASSERT_TRUE(parsed.ok()) << json.out << json.err;
    EXPECT_EQ((*parsed)["domains"].size(), 2u);
    EXPECT_EQ((*parsed)["switches"].size(), 3u);
    EXPECT_EQ(typePlan({"solve", "--routing", routing_, "--nodes", "2", "--per-domain", "--pin",
                        "0:0=gpu0"})
                  .code,
              cli::kUsage);
}

TEST_F(SolveVerbs, domainsWithLikeNamesGetAFileEach) {
    const std::vector<std::string> domains{"a/b", "a_b", "A/B", std::string(300, 'x'),
                                           std::string(300, 'x') + "y"};
    std::ofstream out(routing_);
    out << R"({"routing": {"model": "m", "layers": 1, "experts": 8, "top_k": 2}})"
        << "\n";
    for (int r = 0; r < 20; ++r) {
        model::Json tokens = model::Json::array();
        for (int t = 0; t < 10; ++t)
            tokens.push_back({{(t % 4) * 2 + r % 2, ((t + 1) % 4) * 2 + r % 2}});
        out << model::Json{{"experts", tokens}, {"domain", domains[r % 5]}}.dump() << "\n";
    }
    out.close();
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--per-domain", "--effort", "0.1", "--out", plan_});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    const std::string x(100, 'x');
    for (const auto& [name, domain] :
         {std::pair<std::string, std::string>{"plan.a_b.json", domains[0]},
          {"plan.a_b-2.json", domains[1]},
          {"plan.A_B-3.json", domains[2]},
          {"plan." + x + ".json", domains[3]},
          {"plan." + x + "-2.json", domains[4]}}) {
        EXPECT_THAT(said.out, HasSubstr("written to " + dir_ + "/" + name));
        std::ifstream in(dir_ + "/" + name);
        std::stringstream text;
        text << in.rdbuf();
        const auto json = model::parseJson(text.str());
        ASSERT_TRUE(json.ok()) << name;
        ASSERT_EQ((*json)["homes"].size(), 1u) << name;
        EXPECT_EQ((*json)["homes"][0]["domain"], domain) << name;
    }
}

TEST_F(SolveVerbs, aRouterThatTakesAnyReplicaFindsOneOfAnExpertOnAGpu) {
    std::ofstream out(routing_);
    out << R"({"routing": {"model": "m", "layers": 1, "experts": 16, "top_k": 2}})"
        << "\n";
    for (int r = 0; r < 24; ++r) {
        model::Json tokens = model::Json::array();
        for (int t = 0; t < 20; ++t) {
            const int n = (r * 20 + t) * 7919 % 1009, first = std::min(n % 8, n / 8 % 8);
            tokens.push_back({{first + r % 2 * 8, (first + 1 + n % 3) % 8 + r % 2 * 8}});
        }
        out << model::Json{{"experts", tokens}, {"domain", r % 2 ? "b" : "a"}}.dump() << "\n";
    }
    out.close();
    const Said said =
        typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2",
                  "--redundant", "8", "--router", "uniform", "--effort", "0.1", "--out", plan_});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    std::ifstream in(plan_);
    const auto json = model::parseJson(std::string{std::istreambuf_iterator<char>(in), {}});
    ASSERT_TRUE(json.ok());
    const auto firstSlot = (*json)["first_slot"].get<std::vector<size_t>>();
    const auto experts = (*json)["layers"][0]["expert_of_slot"].get<std::vector<uint32_t>>();
    ASSERT_EQ(experts.size(), 24u);
    for (size_t gpu = 0; gpu + 1 < firstSlot.size(); ++gpu) {
        const std::set<uint32_t> held(experts.begin() + static_cast<ptrdiff_t>(firstSlot[gpu]),
                                      experts.begin() + static_cast<ptrdiff_t>(firstSlot[gpu + 1]));
        EXPECT_EQ(held.size(), firstSlot[gpu + 1] - firstSlot[gpu]) << "GPU " << gpu;
    }
}

TEST_F(SolveVerbs, aPlaceThatCannotBeWrittenIsSaidBeforeTheSearch) {
    // The recording that is not there would be named first if anything was read.
    const std::vector<std::string> verb{"solve", "--routing", "/nowhere", "--nodes", "2"};
    for (const std::string& place :
         {dir_ + "/none/plan.json", dir_, dir_ + "/" + std::string(250, 'p')}) {
        std::vector<std::string> words = verb;
        words.insert(words.end(), {"--out", place});
        const Said said = typePlan(words);
        EXPECT_EQ(said.code, kInvalid) << said.err;
        EXPECT_THAT(said.err, HasSubstr("Cannot write the plan"));
        EXPECT_THAT(said.err, HasSubstr("--out"));
    }
    // A domain's own file is looked at too.
    fs::create_directories(dir_ + "/plan.b.json");
    const Said own = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                               "2", "--per-domain", "--out", plan_});
    EXPECT_EQ(own.code, kInvalid);
    EXPECT_THAT(own.err, HasSubstr("plan.b.json"));
    EXPECT_FALSE(fs::exists(plan_));
    EXPECT_FALSE(fs::exists(dir_ + "/plan.a.json"));
}

TEST_F(SolveVerbs, anInterruptWhileAFileIsReadIsSaid) {
    const std::string pipe = dir_ + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const auto read = [&] {
        ::signal(SIGINT, SIG_DFL);
        const int writer = ::open(pipe.c_str(), O_RDWR);  // that never writes
        std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            ::kill(::getpid(), SIGINT);
        }).detach();
        const std::vector<const char*> words{"bulkheadctl", "plan", "characterise", "--routing",
                                             pipe.c_str()};
        ::_exit(run(static_cast<int>(words.size()), words.data()) + writer);
    };
    EXPECT_EXIT(read(), testing::KilledBySignal(SIGINT), "interrupted; nothing was written");
}

TEST_F(SolveVerbs, aMixtureThatNamesADomainTwiceIsRefused) {
    std::ofstream(dir_ + "/mix.json") << R"([{"a": 1, "a": 5, "b": 1}])";
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--mix", dir_ + "/mix.json"});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err, HasSubstr("mix.json: "));
}

TEST_F(SolveVerbs, aMixtureThatCannotBePlannedForIsNamedInTheRemedy) {
    const auto solve = [&](const std::string& mix) {
        return typePlan(
            {"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2", "--mix", mix});
    };
    EXPECT_THAT(solve("unrecorded").err, HasSubstr("Leave --mix out, or: Record more"));
    EXPECT_THAT(solve(dir_ + "/none.json").err,
                HasSubstr("recorded, worst, unrecorded, or a JSON"));
    EXPECT_EQ(solve("").code, kUsage);
}

TEST_F(SolveVerbs, whatIsNoFileIsRefusedWhereverAFileIsNamed) {
    const std::string catalogue = dir_ + "/endless.toml";
    fs::create_symlink("/dev/zero", catalogue);
    const std::vector<std::vector<std::string>> named{
        {"evaluate", "--routing", routing_, "--plan"},
        {"solve", "--routing", routing_, "--current"},
        {"solve", "--routing", routing_, "--topology"},
        {"export", "--to", "sglang", "--plan"}};
    for (std::vector<std::string> words : named)
        for (const std::string& path : {std::string("/dev/zero"), dir_ + "/"}) {
            words.push_back(path);
            const Said said = typePlan(words);
            EXPECT_EQ(said.code, kInvalid) << words[0] << " " << path << ": " << said.err;
            EXPECT_THAT(said.err, HasSubstr(path == "/dev/zero" ? "is a device" : "is a folder"));
            words.pop_back();
        }
    const Said model = typePlan({"characterise", "--routing", routing_, "--model", catalogue});
    EXPECT_EQ(model.code, kInvalid);
    EXPECT_THAT(model.err, HasSubstr("is a device"));
    // A pipe that nobody writes to is waited for a second at most.
    const std::string pipe = dir_ + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"characterise", "--routing", pipe},
          {"evaluate", "--routing", routing_, "--plan", pipe},
          {"solve", "--routing", routing_, "--topology", pipe},
          {"solve", "--routing", routing_, "--nodes", "2", "--mix", pipe}}) {
        const Said said = typePlan(words);
        EXPECT_EQ(said.code, kInvalid) << words[0] << said.err;
        EXPECT_THAT(said.err, HasSubstr("a pipe that no program writes to"));
    }
    const Said lines = [&] {
        std::ofstream(dir_ + "/large.jsonl") << "{";
        fs::resize_file(dir_ + "/large.jsonl", (uint64_t{1} << 30) + 1);
        return typePlan({"characterise", "--routing", dir_ + "/large.jsonl"});
    }();
    EXPECT_EQ(lines.code, kInvalid);
    EXPECT_THAT(lines.err, HasSubstr("1073741825 bytes of JSON Lines, at most 1073741824"));
    const Said large = [&] {
        std::ofstream(dir_ + "/large.json") << "{";
        fs::resize_file(dir_ + "/large.json", uint64_t{4} << 30);
        return typePlan({"evaluate", "--routing", routing_, "--plan", dir_ + "/large.json"});
    }();
    EXPECT_EQ(large.code, kInvalid);
    EXPECT_THAT(large.err, HasSubstr("more than 268435456 bytes"));
}

TEST_F(SolveVerbs, optionsThatAreNoNumbersAreRefusedAtOnce) {
    for (const char* option : {"--load-cap", "--home-cap", "--prefix", "--effort"})
        for (const char* value : {"nan", "-nan", "inf", "1e999"}) {
            const Said said = typePlan({"solve", "--routing", "/nowhere", "--nodes", "2",
                                        std::string(option) + "=" + value});
            EXPECT_EQ(said.code, kUsage) << option << " " << value << said.err;
            EXPECT_THAT(said.err, HasSubstr("expected a number")) << option;
        }
    for (const char* seed : {"--seed=-1", "--seed=18446744073709551616", "--seed=1.5"}) {
        const Said said = typePlan({"solve", "--routing", "/nowhere", "--nodes", "2", seed});
        EXPECT_EQ(said.code, kUsage) << seed << said.err;
    }
    EXPECT_EQ(
        typePlan({"solve", "--routing", "/nowhere", "--nodes", "2", "--seed=18446744073709551615"})
            .code,
        kNotFound);
    const Said rate = typePlan(
        {"evaluate", "--routing", "/nowhere", "--plan", "/nowhere", "--simulate", "--rate=nan"});
    EXPECT_EQ(rate.code, kUsage);
}

TEST_F(SolveVerbs, tooManyRedundantExpertsAreRefusedWithHowManyThereMayBe) {
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--redundant", "4294967295"});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err,
                HasSubstr("4294967295 redundant experts; at most 8, which is every expert "
                          "on every node"));
    for (const auto& [redundant, code] : {std::pair{"8", kOk}, {"10", kInvalid}})
        EXPECT_EQ(typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2",
                            "--effort", "0.1", "--redundant", redundant})
                      .code,
                  code)
            << redundant;
}

TEST_F(SolveVerbs, aPlanNamesItsRecordingAndAMethodThatFallsBackSaysSo) {
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--algorithm", "eplb_hierarchical", "--out", plan_});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("no router groups: eplb_hierarchical is then the same"));
    std::ifstream in(plan_);
    std::stringstream text;
    text << in.rdbuf();
    const auto json = model::parseJson(text.str());
    ASSERT_TRUE(json.ok());
    EXPECT_THAT((*json)["origin"]["source"].get<std::string>(), HasSubstr(routing_));
}

TEST_F(SolveVerbs, solveThenEvaluateThenDiff) {
    // So few requests say little of the mixture of domains to come, and a cap on load would keep
    // the plan from giving each domain a node.
    const std::string cap = "--load-cap=2";
    const Said solved = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                  "2", "--objective", "sends", "--seed", "1", cap, "--out", plan_});
    ASSERT_EQ(solved.code, cli::kOk) << solved.err;
    EXPECT_THAT(solved.out, HasSubstr("recommended"));
    const Said judged = typePlan({"evaluate", "--plan", plan_, "--routing", routing_, "--json"});
    ASSERT_EQ(judged.code, cli::kOk) << judged.err;
    const auto json = model::parseJson(judged.out);
    ASSERT_TRUE(json.ok());
    EXPECT_DOUBLE_EQ((*json)["copies_per_token"], 0);  // each domain has a node of its own
    EXPECT_DOUBLE_EQ((*json)["sends_per_token"], 0);
    for (const char* key : {"node_load_max_over_mean", "gpu_load_max_over_mean", "balancedness"})
        EXPECT_GT((*json)[key].get<double>(), 0) << key;
    EXPECT_EQ((*json)["bytes_by_level"].size(), 2u);
    const Said same = typePlan({"diff", "--plan", plan_, "--with", plan_});
    EXPECT_EQ(same.code, cli::kOk);
    EXPECT_THAT(same.out, HasSubstr("0 experts move in 0 layers"));
    const Said kept = typePlan({"solve", "--routing", routing_, "--current", plan_, cap, "--json"});
    ASSERT_EQ(kept.code, cli::kOk) << kept.err;
    EXPECT_THAT(kept.out, HasSubstr("\"changes\":false"));
    const Said served =
        typePlan({"evaluate", "--plan", plan_, "--routing", routing_, "--simulate", "--json"});
    EXPECT_THAT(served.out, HasSubstr("\"bytes_per_output_token\":0.0"));
}

TEST_F(SolveVerbs, aPlanOfAnotherModelIsRefusedAndNotRun) {
    const Said solved = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                  "2", "--effort", "0.1", "--out", plan_});
    ASSERT_EQ(solved.code, cli::kOk) << solved.err;
    std::stringstream text;
    text << std::ifstream(plan_).rdbuf();
    auto plan = model::parseJson(text.str()).value();
    for (const auto& [topK, why] :
         {std::pair{1, "top_k: the plan is for 1 experts a token, the recording has 2"},
          {0, "shape.top_k: must be 1 to the 8 experts, found 0"}}) {
        plan["shape"]["top_k"] = topK;
        std::ofstream(plan_) << plan.dump();
        const Said said = typePlan({"evaluate", "--plan", plan_, "--routing", routing_});
        EXPECT_EQ(said.code, cli::kInvalid) << topK;
        EXPECT_THAT(said.err, HasSubstr(why));
    }
    plan["shape"]["top_k"] = 2;
    plan["shape"]["layer_numbers"] = {1, 2};
    std::ofstream(plan_) << plan.dump();
    for (const char* engine : {"sglang", "trtllm", "ascend", "bulkhead"}) {
        const Said said = typePlan({"export", "--plan", plan_, "--to", engine});
        EXPECT_EQ(said.code, cli::kInvalid) << engine;
        EXPECT_THAT(said.err, HasSubstr("shape.layer_numbers: 2 for 1 layers"));
    }
}

TEST_F(SolveVerbs, diffListsWhatMovesAndTheRestAsACount) {
    const std::string other = dir_ + "/other.json";
    model::Json layers = model::Json::array(), turned = model::Json::array(),
                numbers = model::Json::array();
    for (uint32_t layer = 0; layer < 6; ++layer) {
        numbers.push_back(2 * layer + 1);
        layers.push_back({{"expert_of_slot", {0, 1, 2, 3, 4, 5, 6, 7}}});
        turned.push_back({{"expert_of_slot", {7, 0, 1, 2, 3, 4, 5, 6}}});
    }
    model::Json plan{{"format", "bulkhead.plan"},
                     {"version", 1},
                     {"shape",
                      {{"layers", 6},
                       {"experts", 8},
                       {"top_k", 2},
                       {"expert_bytes", 1000000},
                       {"layer_numbers", numbers}}},
                     {"first_slot", {0, 1, 2, 3, 4, 5, 6, 7, 8}},
                     {"topology",
                      {{"levels",
                        {{{"name", "host"},
                          {"count", 8},
                          {"link", {{"bytes_per_second", 1e10}, {"seconds", 0}}}}}}}},
                     {"layers", layers}};
    std::ofstream(plan_) << plan.dump();
    plan["layers"] = turned;
    std::ofstream(other) << plan.dump();
    const Said said = typePlan({"diff", "--plan", plan_, "--with", other});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("LAYER  EXPERT  FROM GPU  TO GPU"));
    EXPECT_THAT(said.out, HasSubstr("1      0       0         1"));
    EXPECT_THAT(said.out, HasSubstr("and 8 more; --json has all of them"));
    EXPECT_THAT(said.out, HasSubstr("48 experts move in 6 layers; 48 slots fetch 48.0 MB, 0.0 MB "
                                    "of it from another node; 600.0 us on the slowest GPU"));
    const auto json =
        model::parseJson(typePlan({"diff", "--plan", plan_, "--with", other, "--json"}).out)
            .value();
    ASSERT_EQ(json["layers"].size(), 6u);
    EXPECT_EQ(json["layers"][5]["layer"], 11);
    EXPECT_EQ(json["layers"][5]["experts"][7],
              (model::Json{{"expert", 7}, {"from", {7}}, {"to", {0}}}));
}

TEST_F(SolveVerbs, countsAloneTellLoadAndNothingElse) {
    const std::string counts = dir_ + "/counts.jsonl";
    std::ofstream out(counts);
    for (int domain = 0; domain < 2; ++domain) {
        model::Json rows = model::Json::array();
        for (int layer = 0; layer < 24; ++layer) {
            rows.push_back(model::Json::array());
            for (int e = 0; e < 32; ++e) rows.back().push_back(e % 2 == domain ? 50 : 0);
        }
        out << model::Json{{"counts", rows}, {"domain", domain ? "b" : "a"}}.dump() << "\n";
    }
    out.close();
    const std::vector<std::string> solve{"solve", "--routing",       counts,  "--nodes",
                                         "2",     "--gpus-per-node", "2",     "--effort",
                                         "0.05",  "--json",          "--out", plan_};
    const Said nameless = typePlan(solve);
    EXPECT_EQ(nameless.code, cli::kInvalid);
    EXPECT_THAT(nameless.err, HasSubstr("name its model"));
    auto named = solve;
    named.insert(named.end(), {"--model", "gpt-oss-20b"});
    const Said solved = typePlan(named);
    ASSERT_EQ(solved.code, cli::kOk) << solved.err;
    const auto front = model::parseJson(solved.out);
    ASSERT_TRUE(front.ok());
    for (const model::Json& point : (*front)["points"])
        if (point["name"] == (*front)["recommended"]) {
            EXPECT_DOUBLE_EQ(point["copies_per_token"], 0);  // each domain has a node of its own
        }
    std::stringstream plan;
    plan << std::ifstream(plan_).rdbuf();
    EXPECT_THAT(plan.str(), HasSubstr("tokens drawn from its counts"));
    EXPECT_THAT(plan.str(), HasSubstr("\"tokens_drawn\":true"));
    EXPECT_THAT((*front)["notes"].dump(), HasSubstr("tokens were drawn"));
    const Said judged = typePlan({"evaluate", "--plan", plan_, "--routing", counts});
    ASSERT_EQ(judged.code, cli::kOk) << judged.err;
    EXPECT_THAT(judged.out, HasSubstr("sends per token     -"));
    EXPECT_THAT(judged.out, HasSubstr("-: the recording has counts only"));
    const Said told = typePlan({"evaluate", "--plan", plan_, "--routing", counts, "--json"});
    const auto json = model::parseJson(told.out);
    ASSERT_TRUE(json.ok()) << told.err;
    EXPECT_EQ((*json)["scored_on"], "counts");
    EXPECT_DOUBLE_EQ((*json)["node_load_max_over_mean"], 1);  // 800 tokens a node and layer
    EXPECT_DOUBLE_EQ((*json)["balancedness"], 1);
    for (const char* key : {"copies_per_token", "sends_per_token", "bytes_by_level", "step"})
        EXPECT_TRUE((*json)[key].is_null()) << key;
    const Said served = typePlan({"evaluate", "--plan", plan_, "--routing", counts, "--simulate"});
    EXPECT_EQ(served.code, cli::kInvalid);
    EXPECT_THAT(served.err, HasSubstr("Cannot serve this recording"));
}

TEST_F(SolveVerbs, rulesNameLayersAsTheModelNumbersThem) {
    std::string text = (std::stringstream() << std::ifstream(routing_).rdbuf()).str();
    text.replace(text.find("\"layers\": 1"), 11, "\"layers\": 1, \"layer_numbers\": [3]");
    std::ofstream(routing_) << text;
    std::vector<std::string> words{"solve",    "--routing", routing_, "--nodes",  "2",
                                   "--effort", "0.1",       "--pin",  "3:0=gpu3", "--gpus-per-node",
                                   "2",        "--out",     plan_};
    const Said solved = typePlan(words);
    ASSERT_EQ(solved.code, cli::kOk) << solved.err;
    const auto plan =
        model::parseJson((std::stringstream() << std::ifstream(plan_).rdbuf()).str()).value();
    const auto slots = plan["layers"][0]["expert_of_slot"].get<std::vector<uint32_t>>();
    EXPECT_TRUE(slots[6] == 0 || slots[7] == 0);
    words[8] = "0:0=gpu3";
    const Said other = typePlan(words);
    EXPECT_EQ(other.code, cli::kInvalid);
    EXPECT_THAT(other.err, HasSubstr("layer 0 has no experts; those that do are 3"));
    words[8] = "3:0=gpu9";
    EXPECT_THAT(typePlan(words).err, HasSubstr("layer 3, expert 0 pinned to gpu9: there are"));
}

TEST_F(SolveVerbs, aPlanFromDrawnTokensSaysSo) {
    typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2", "--effort",
              "0.1", "--out", plan_});
    std::stringstream text;
    text << std::ifstream(plan_).rdbuf();
    auto plan = model::parseJson(text.str()).value();
    EXPECT_EQ(plan["origin"]["tokens_drawn"], false);
    plan["origin"]["tokens_drawn"] = true;
    std::ofstream(plan_) << plan.dump();
    const Said said = typePlan({"evaluate", "--plan", plan_, "--routing", routing_});
    EXPECT_THAT(said.out, HasSubstr("plan.json was made from tokens drawn from counts"));
    const Said json = typePlan({"evaluate", "--plan", plan_, "--routing", routing_, "--json"});
    EXPECT_THAT(json.out, HasSubstr("\"plan_tokens_drawn\":true"));
    EXPECT_THAT(said.out, HasSubstr("plan.json was made from these requests"));
    EXPECT_THAT(json.out, HasSubstr("\"own_requests\":true"));
    EXPECT_THAT(json.out, HasSubstr("\"scored_on\":\"tokens\""));
}

TEST_F(SolveVerbs, optionsThatWouldBeIgnoredAreRefused) {
    ASSERT_EQ(typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2",
                        "--effort", "0.1", "--out", plan_})
                  .code,
              cli::kOk);
    const std::vector<std::vector<std::string>> ignored{
        {"--current", plan_, "--redundant", "4"},
        {"--current", plan_, "--topology", "h100-4x8"},
        {"--current", plan_, "--nodes", "2"},
        {"--current", plan_, "--gpus-per-node", "2"},
        {"--current", plan_, "--keep-groups"},
        {"--current", plan_, "--algorithm", "lpt"},
        {"--current", plan_, "--per-domain"},
        {"--topology", "h100-4x8", "--nodes", "2"},
        {"--nodes", "2", "--algorithm", "lpt", "--effort", "2"},
    };
    for (std::vector<std::string> words : ignored) {
        words.insert(words.begin(), {"solve", "--routing", routing_});
        const Said said = typePlan(words);
        EXPECT_EQ(said.code, cli::kUsage) << words[5] << said.out;
        EXPECT_THAT(said.err, HasSubstr("has no effect beside"));
        EXPECT_THAT(said.err, HasSubstr("give one or the other"));
    }
    const Said said = typePlan(
        {"solve", "--routing", routing_, "--nodes", "2", "--per-domain", "--objective", "balance"});
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("made for sends or copies, not for balance"));
}

TEST_F(SolveVerbs, aNewRecordingsDomainsGetHomesInTheReplannedPlan) {
    ASSERT_EQ(typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node", "2",
                        "--effort", "0.1", "--out", plan_})
                  .code,
              cli::kOk);
    std::stringstream text;
    text << std::ifstream(routing_).rdbuf();
    std::string other = text.str();
    for (size_t at; (at = other.find("\"domain\":\"a\"")) != other.npos;)
        other.replace(at, 12, "\"domain\":\"c\"");
    const std::string later = dir_ + "/later.jsonl", next = dir_ + "/next.json";
    std::ofstream(later) << other;
    for (const char* objective : {"balance", "copies", "sends", "bytes", "latency"}) {
        const Said said = typePlan({"solve", "--routing", later, "--current", plan_, "--objective",
                                    objective, "--out", next});
        ASSERT_EQ(said.code, cli::kOk) << said.err;
        for (const char* column : {"BYTES/TOKEN", "EXPERTS MS BY TOKENS", "BY ACTIVATED",
                                   "MOVES MB", "SECONDS", "in use", "after"})
            EXPECT_THAT(said.out, HasSubstr(column));
        const auto plan =
            model::parseJson((std::stringstream() << std::ifstream(next).rdbuf()).str());
        ASSERT_TRUE(plan.ok());
        ASSERT_EQ((*plan)["homes"].size(), 2u);
        EXPECT_EQ((*plan)["homes"][0]["domain"], "c");
        EXPECT_EQ((*plan)["homes"][1]["domain"], "b");
        EXPECT_EQ((*plan)["origin"]["objective"], objective);
        EXPECT_THAT((*plan)["origin"]["source"].get<std::string>(), HasSubstr("later.jsonl"));
    }
}

TEST_F(SolveVerbs, everyObjectiveIsShownAndSlotsThatDoNotDivideAreAnnounced) {
    const std::vector<std::string> words{"solve", "--routing",   routing_, "--nodes",
                                         "2",     "--effort",    "0.1",    "--gpus-per-node",
                                         "2",     "--redundant", "2"};
    const Said said = typePlan(words);
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    for (const char* column : {"SENDS/TOKEN", "COPIES/TOKEN", "BYTES/TOKEN", "BALANCEDNESS",
                               "PADDED MS", "EXPERTS MS BY TOKENS", "BY ACTIVATED"})
        EXPECT_THAT(said.out, HasSubstr(column));
    EXPECT_THAT(said.out, HasSubstr("10 slots do not divide over 4 GPUs"));
    EXPECT_THAT(said.out, HasSubstr("--redundant 0 or 4 would"));
    auto json = words;
    json.emplace_back("--json");
    const auto parsed = model::parseJson(typePlan(json).out);
    ASSERT_TRUE(parsed.ok());
    ASSERT_EQ((*parsed)["notes"].size(), 2u);
    EXPECT_THAT((*parsed)["notes"][0].get<std::string>(), HasSubstr("small for this model"));
    const model::Json& expected = (*parsed)["forecast"]["expected"]["sends_per_token"];
    EXPECT_LE(expected["p5"], expected["mean"]);
    EXPECT_LE(expected["mean"], expected["p95"]);
    EXPECT_THAT(said.out, HasSubstr("ON REQUESTS NOT SEEN"));
    EXPECT_TRUE((*parsed)["points"][0].contains("weighed_bytes_per_token"));
}

TEST_F(SolveVerbs, aBaselineCanBePlannedAndCompared) {
    const Said said = typePlan({"solve", "--routing", routing_, "--nodes", "2", "--gpus-per-node",
                                "2", "--algorithm", "round_robin", "--out", plan_});
    ASSERT_EQ(said.code, cli::kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("round_robin"));
    EXPECT_THAT(said.out, HasSubstr("the plan that --algorithm names"));
    const auto plan = model::parseJson((std::stringstream() << std::ifstream(plan_).rdbuf()).str());
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ((*plan)["origin"]["algorithm"], "round_robin");
    EXPECT_EQ((*plan)["layers"][0]["expert_of_slot"], (model::Json{0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST_F(SolveVerbs, pinnedAndForbiddenExpertsAreWhereTheyMayBe) {
    std::vector<std::string> words{
        "solve",    "--routing", routing_,    "--nodes",         "2", "--effort", "0.1", "--pin",
        "0:0=gpu3", "--pin",     "0:1=node0", "--gpus-per-node", "2", "--out",    plan_};
    const Said solved = typePlan(words);
    ASSERT_EQ(solved.code, cli::kOk) << solved.err;
    std::stringstream text;
    text << std::ifstream(plan_).rdbuf();
    const auto plan = model::parseJson(text.str());
    ASSERT_TRUE(plan.ok());
    const auto slots = (*plan)["layers"][0]["expert_of_slot"].get<std::vector<uint32_t>>();
    ASSERT_EQ(slots.size(), 8u);  // 2 a GPU
    EXPECT_TRUE(slots[6] == 0 || slots[7] == 0);
    EXPECT_NE(std::find(slots.begin(), slots.begin() + 4, 1u), slots.begin() + 4);
    words.insert(words.end(), {"--forbid", "0:0=node1"});
    Said said = typePlan(words);
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("layer 0, expert 0 pinned to gpu3: the expert is forbidden"));
    words.back() = "0:0";
    said = typePlan(words);
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("LAYER:EXPERT=gpuN"));
}

TEST_F(SolveVerbs, aFileOfATopologyNeedsNoExtension) {
    const std::string hall = "plan_verbs_hall_" + std::to_string(::getpid());
    std::ofstream(hall) << "[[level]]\nname = \"host\"\ncount = 2\ngigabytes_per_second = "
                           "450\nmicroseconds = 2\n[[level]]\nname = \"network\"\ncount = "
                           "2\ngigabytes_per_second = 50\nmicroseconds = 6\n";
    const Said said = typePlan(
        {"solve", "--routing", routing_, "--topology", hall, "--effort", "0.1", "--out", plan_});
    fs::remove(hall);
    EXPECT_EQ(said.code, kOk) << said.err;
}

TEST_F(SolveVerbs, theRecordingIsNotWrittenOver) {
    const auto size = fs::file_size(routing_);
    const Said said =
        typePlan({"solve", "--routing", "chat=" + routing_, "--nodes", "2", "--out", routing_});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err, HasSubstr("is the recording to be read"));
    EXPECT_EQ(fs::file_size(routing_), size);
}

TEST_F(SolveVerbs, anEmptyNameOfAPlanIsRefused) {
    const Said said = typePlan({"evaluate", "--plan", "", "--routing", routing_});
    EXPECT_NE(said.code, kOk);
    EXPECT_THAT(said.err, HasSubstr("Cannot read the plan"));
}

TEST_F(SolveVerbs, refusalsNameWhatIsWrong) {
    Said said = typePlan({"solve", "--routing", dir_ + "/none", "--nodes", "2"});
    EXPECT_NE(said.code, cli::kOk);
    EXPECT_THAT(said.err, HasSubstr("none"));
    said = typePlan({"solve", "--routing", routing_});
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("neither --nodes nor --topology"));
    said = typePlan({"solve", "--routing", routing_, "--nodes", "3"});
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("do not divide over 3 nodes"));
    said = typePlan({"solve", "--routing", routing_, "--topology", "moon"});
    EXPECT_EQ(said.code, cli::kNotFound);
    EXPECT_THAT(said.err, HasSubstr("h100-4x8"));
    std::ofstream(plan_) << "{\"format\": \"bulkhead.plan\", \"version\": 1, \"layers\": [";
    said = typePlan({"evaluate", "--plan", plan_, "--routing", routing_});
    EXPECT_EQ(said.code, cli::kInvalid);
    EXPECT_THAT(said.err, HasSubstr("plan.json"));
    EXPECT_EQ(typePlan({"solve"}).code, cli::kUsage);
}

}  // namespace
}  // namespace bulkhead::cli
