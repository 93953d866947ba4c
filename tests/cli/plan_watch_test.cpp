// SPDX-License-Identifier: Apache-2.0
// `bulkheadctl plan watch`: responses come in, the plan's range is left, a plan is proposed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "backend/cli/cli.h"
#include "backend/model/json.h"
#include "tests/cli/said.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// 1 layer of 16 experts, top-2; kind k of 4 uses experts that are k modulo 4, or, once the service
/// has changed, the four from 4 k on.
std::vector<int> tokenOf(int kind, int t, bool changed) {
    const auto expert = [&](int i) { return changed ? kind * 4 + i % 4 : (i % 4) * 4 + kind; };
    return {expert(t), expert(t + 1)};
}

class WatchVerb : public ::testing::Test {
  protected:
    WatchVerb() {
        fs::create_directories(folder_);
        std::ofstream out(routing_);
        out << R"({"routing": {"model": "m", "layers": 1, "experts": 16, "top_k": 2}})"
            << "\n";
        for (int r = 0; r < 32; ++r) {
            model::Json tokens = model::Json::array();
            for (int t = 0; t < 20; ++t) tokens.push_back({tokenOf(r % 4, t + r, false)});
            out << model::Json{{"experts", tokens}}.dump() << "\n";
        }
        out.close();
        const Said solved = typeIn({"solve", "--routing", routing_, "--nodes", "4",
                                    "--gpus-per-node", "1", "--effort", "0.1", "--out", plan_});
        EXPECT_EQ(solved.code, kOk) << solved.err;
    }
    ~WatchVerb() override { fs::remove_all(dir_); }

    static Said typeIn(std::vector<std::string> words) {
        words.insert(words.begin(), "plan");
        return type(std::move(words));
    }
    /// Responses like those of vLLM.
    void respond(int requests, bool changed) {
        std::ofstream out(folder_ + "/responses.jsonl", std::ios::app);
        for (int r = 0; r < requests; ++r) {
            model::Json rows = model::Json::array();
            for (int t = 0; t < 20; ++t) rows.push_back({tokenOf(r % 4, t + r, changed)});
            out << model::Json{{"id", "r" + std::to_string(r)},
                               {"choices", {{{"index", 0}, {"routed_experts", rows}}}},
                               {"prompt_routed_experts", model::Json::array({rows[0]})}}
                       .dump()
                << "\n";
        }
    }

    const std::string dir_ = ::testing::TempDir() + "plan_watch_" + std::to_string(::getpid()),
                      folder_ = dir_ + "/engine", routing_ = dir_ + "/routing.jsonl",
                      plan_ = dir_ + "/plan.json", next_ = dir_ + "/next.json";
};

TEST_F(WatchVerb, proposesAPlanWhenTheRangeIsLeft) {
    respond(40, false);
    Said said = typeIn({"watch", folder_, "--plan", plan_, "--once", "--out", next_});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("sends 0.000"));
    EXPECT_THAT(said.out, Not(HasSubstr("left")));
    EXPECT_FALSE(fs::exists(next_));
    fs::remove(folder_ + "/responses.jsonl");
    respond(40, true);
    said = typeIn({"watch", folder_, "--plan", plan_, "--once", "--out", next_, "--json"});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr(R"("event":"proposed")"));
    ASSERT_TRUE(fs::exists(next_));
    EXPECT_THAT(said.out, HasSubstr("expected on requests not seen"));
    std::ifstream in(next_);
    const std::string next{std::istreambuf_iterator<char>(in), {}};
    EXPECT_THAT(next, HasSubstr("expected on requests not seen"));
    EXPECT_THAT(next, Not(HasSubstr("saves")));
    said = typeIn({"watch", folder_, "--plan", plan_, "--once"});
    EXPECT_THAT(said.out, HasSubstr("with the plan before"));
    EXPECT_THAT(said.out, HasSubstr("(expert size assumed)"));
    EXPECT_EQ(fs::status(next_).permissions(), fs::status(plan_).permissions()) << "as of solve";
    said = typeIn({"watch", folder_, "--plan", next_, "--once"});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, Not(HasSubstr("left")));
}

TEST_F(WatchVerb, proposesNothingOfWhichTheForecastExpectsNothing) {
    // Experts by chance: a plan made from these requests saves 3 % on them and nothing on others.
    std::minstd_rand random(7);
    std::ofstream out(folder_ + "/responses.jsonl");
    for (int r = 0; r < 40; ++r) {
        model::Json rows = model::Json::array();
        for (int t = 0; t < 20; ++t) {
            const auto first = random() % 16, more = 1 + random() % 15;
            rows.push_back({{first, (first + more) % 16}});
        }
        out << model::Json{{"id", "n" + std::to_string(r)},
                           {"choices", {{{"index", 0}, {"routed_experts", rows}}}},
                           {"prompt_routed_experts", model::Json::array({rows[0]})}}
                   .dump()
            << "\n";
    }
    out.close();
    const Said said = typeIn({"watch", folder_, "--plan", plan_, "--once", "--out", next_});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("left: sends"));
    EXPECT_THAT(said.out, HasSubstr("no better plan: sends"));
    EXPECT_THAT(said.out, HasSubstr("2.0% less is asked for"));
    EXPECT_FALSE(fs::exists(next_));
}

TEST_F(WatchVerb, goesOnUntilItIsInterrupted) {
    respond(10, false);
    std::ofstream(folder_ + "/junk.pt") << "junk";
    std::thread engine([this] {
        for (int i = 0; i < 50 && !fs::exists(next_); ++i) {
            respond(20, true);
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
        }
        ::kill(::getpid(), SIGINT);
    });
    const Said said =
        typeIn({"watch", folder_, "--plan", plan_, "--every", "0.1", "--out", next_, "--json"});
    engine.join();
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr(R"("event":"refused")"));
    EXPECT_THAT(said.out, HasSubstr(R"("event":"proposed")"));
    EXPECT_THAT(said.out, HasSubstr(R"("event":"stopped")"));
    EXPECT_TRUE(fs::exists(next_));
    for (size_t at = 0; at < said.out.size();) {
        const size_t end = said.out.find('\n', at);
        EXPECT_TRUE(model::parseJson(said.out.substr(at, end - at)).ok());
        at = end + 1;
    }
}

TEST_F(WatchVerb, watchesThePlanBeforeWhileTheFileIsAwayOrBroken) {
    const std::string beside = plan_ + ".beside", other = dir_ + "/other.json";
    std::ifstream in(routing_);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.replace(text.find(R"("experts": 16)"), 13, R"("experts": 32)");
    std::ofstream(routing_) << text;
    ASSERT_EQ(typeIn({"solve", "--routing", routing_, "--nodes", "4", "--gpus-per-node", "1",
                      "--effort", "0.1", "--out", other})
                  .code,
              kOk);
    respond(10, false);
    std::thread operating([&] {
        const auto told = [&](const char* what) {
            const char* const out = "/proc/self/fd/1";  // a file, once typeIn() has begun
            for (int i = 0; i < 100; ++i) {
                std::ifstream in(fs::is_regular_file(out) ? out : "/dev/null");
                const std::string text{std::istreambuf_iterator<char>(in), {}};
                if (text.find(what) != std::string::npos) return;
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
            }
        };
        told(" tokens: ");
        fs::rename(plan_, beside);
        told("No such file");
        std::ofstream(plan_) << "{";
        told("not JSON");
        fs::copy_file(other, plan_, fs::copy_options::overwrite_existing);
        told("the plan is for 1 layers of 32 experts");
        fs::rename(folder_, folder_ + ".away");
        told("nothing can be read");
        fs::rename(folder_ + ".away", folder_);
        fs::rename(beside, plan_);
        fs::last_write_time(plan_, fs::file_time_type::clock::now());
        told("has changed");
        ::kill(::getpid(), SIGINT);
    });
    const Said said = typeIn({"watch", folder_, "--plan", plan_, "--every", "0.1"});
    operating.join();
    EXPECT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("the plan before is watched on"));
}

TEST_F(WatchVerb, refusalsNameWhatIsWrong) {
    Said said = typeIn({"watch", dir_ + "/none", "--plan", plan_, "--once"});
    EXPECT_EQ(said.code, kNotFound);
    EXPECT_THAT(said.err, HasSubstr("none"));
    said = typeIn({"watch", folder_, "--plan", plan_, "--once", "--out", dir_ + "/none/next.json"});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err, HasSubstr("none/next.json"));
    said = typeIn({"watch", folder_, "--plan", routing_, "--once"});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_EQ(typeIn({"watch", folder_}).code, kUsage);
}

}  // namespace
}  // namespace bulkhead::cli
