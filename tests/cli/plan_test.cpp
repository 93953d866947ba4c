// SPDX-License-Identifier: Apache-2.0
// `bulkheadctl plan` as typed: reports, JSON, conversion, and refusals that name the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/cli/cli.h"
#include "backend/model/json.h"
#include "backend/planner/export/engine_files.h"
#include "backend/planner/plan/plan_json.h"
#include "tests/cli/said.h"
#include "tests/planner/samples.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::cli {
namespace {

using testing::HasSubstr;
namespace samples = planner::samples;

class PlanVerbs : public testing::Test {
  protected:
    PlanVerbs() : folder_(testing::TempDir() + "/plan_verbs") {
        std::filesystem::create_directories(folder_);
    }
    ~PlanVerbs() override { std::filesystem::remove_all(folder_); }
    std::string file(const std::string& name, const std::string& bytes) const {
        const std::string path = (folder_ / name).string();
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    std::filesystem::path folder_;
};

TEST_F(PlanVerbs, characteriseReportsUnderThePapersFindings) {
    const std::string path = file("r.jsonl", samples::requestLines());
    const Said text = type({"plan", "characterise", "--routing", path});
    EXPECT_EQ(text.code, kOk) << text.err;
    EXPECT_THAT(text.out, HasSubstr("Finding 3: decode uses the experts that prefill used"));
    const Said json = type({"plan", "characterise", "--routing", path, "--json"});
    const auto parsed = model::parseJson(json.out);
    ASSERT_TRUE(parsed.ok()) << json.out;
    EXPECT_EQ((*parsed)["tokens"], 3);
    EXPECT_EQ((*parsed)["layers"][0]["layer"], 3);
}

TEST_F(PlanVerbs, filesOfSeveralDomainsAreLabelledOnTheCommandLine) {
    const std::string path = file("r.json", samples::vllmResponse());
    const Said said = type({"plan", "characterise", "--routing", "code=" + path, "--routing",
                            "chat=" + path, "--json"});
    ASSERT_EQ(said.code, kOk) << said.err;
    const auto parsed = model::parseJson(said.out);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ((*parsed)["domains"][1]["name"], "chat");
    EXPECT_DOUBLE_EQ((*parsed)["domain_matrix"]["cosine"][0][1], 1.0);
}

TEST_F(PlanVerbs, importWritesWhatItReadsBackTheSame) {
    const std::string dump = file("d.pt", planner::tokenDump());
    const std::string lines = (folder_ / "d.jsonl").string();
    const Said said = type({"plan", "import", "--routing", dump, "-o", lines});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.err, HasSubstr("1 MoE layers x 3 experts, 4 tokens of 3 requests"));
    EXPECT_THAT(said.err, HasSubstr("note: Physical ids became logical"));
    const Said again = type({"plan", "import", "--routing", lines});
    std::ifstream in(lines);
    std::stringstream first;
    first << in.rdbuf();
    EXPECT_EQ(again.out, first.str());
}

TEST_F(PlanVerbs, aCatalogueOfOneModelNeedsNoName) {
    const std::string routing = file("r.jsonl", samples::requestLines());
    const auto model = [](const std::string& name) {
        return "[[models]]\nname = \"" + name +
               "\"\nlayers = 4\nhidden = 64\nffn = 128\nvocab = 256\n"
               "attention = { heads = 4, kv_heads = 2, head_dim = 16 }\n"
               "moe = { experts = 4, top_k = 2, width = 32, first_layer = 2 }\n";
    };
    const std::string one = file("one.toml", model("tiny")),
                      two = file("two.toml", model("tiny") + model("small"));
    const auto characterise = [&](const std::string& name) {
        return type({"plan", "characterise", "--routing", routing, "--model", name});
    };
    // The recording's MoE layers are 3 and 4, those of the model 2 and 3.
    for (const std::string& name : {one, one + "#tiny", two + "#tiny"})
        EXPECT_THAT(characterise(name).err,
                    HasSubstr("its MoE layer 0 is layer 3, that of the model tiny is layer 2"))
            << name;
    EXPECT_EQ(characterise(two).code, kInvalid);
    EXPECT_THAT(characterise(two).err, HasSubstr("two.toml has 2 models / write "));
    EXPECT_THAT(characterise(two).err, HasSubstr("#NAME with one of tiny, small"));
}

TEST_F(PlanVerbs, countsKeepTheirModelThroughAnImport) {
    file("meta_info.json", samples::metaInfo());
    file("rank0.safetensors", samples::ranksOf(0));
    const std::string lines = (folder_ / "c.jsonl").string();
    ASSERT_EQ(
        type({"plan", "import", "--routing", (folder_ / "meta_info.json").string(), "-o", lines})
            .code,
        kOk);
    const Said solved =
        type({"plan", "solve", "--routing", lines, "--nodes", "2", "--gpus-per-node", "1",
              "--effort", "0.1", "--out", (folder_ / "p.json").string()});
    ASSERT_EQ(solved.code, kOk) << solved.err;
    std::ifstream in(folder_ / "p.json");
    std::stringstream text;
    text << in.rdbuf();
    const auto plan = planner::parsePlan(text.str(), "p.json");
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->shape.topK, 2u);
    EXPECT_EQ(plan->shape.layerNumbers, (std::vector<uint32_t>{3, 4}));
}

TEST_F(PlanVerbs, refusalsNameThePlaceAndHaveTheirExitCodes) {
    const std::string bad = file("bad.jsonl",
                                 "{\"routing\":{\"layers\":1,\"experts\":4,\"top_k\":2}}\n"
                                 "{\"experts\":[[[0,9]]]}\n");
    const Said said = type({"plan", "characterise", "--routing", bad});
    EXPECT_EQ(said.code, kInvalid);
    EXPECT_THAT(said.err, HasSubstr("bad.jsonl:2: experts[0][0][1]: expert 9, expected 0 to 3"));
    EXPECT_EQ(type({"plan", "characterise", "--routing", "/nowhere.pt"}).code, kNotFound);
    const std::string good = file("r.jsonl", samples::requestLines());
    const Said model = type({"plan", "characterise", "--routing", good, "--model", "Qwen3"});
    EXPECT_EQ(model.code, kNotFound);
    EXPECT_THAT(model.err, HasSubstr("there are Llama-2-7B"));
    EXPECT_EQ(type({"plan", "characterise", "--routing", good, "--model", "gpt-oss-20b"}).code,
              kInvalid);
    EXPECT_EQ(type({"plan"}).code, kUsage);
    EXPECT_EQ(type({"plan", "import", "--routing", good, "-o", "/nowhere/x"}).code, kInvalid);
}

TEST_F(PlanVerbs, aPlanLeavesAsEveryEnginesFile) {
    planner::Plan made;
    made.shape.layers = 2;
    made.shape.experts = 4;
    made.shape.topK = 2;
    made.shape.layerNumbers = {3, 4};
    made.topology = planner::flatTopology(2, 1);
    made.firstSlot = {0, 3, 6};
    made.layers = {{{2, 0, 1, 3, 0, 2}, {}}, {{3, 2, 1, 0, 3, 1}, {}}};
    const std::string plan = file("plan.json", planner::formatPlan(made) + "\n");
    const Said sglang = type({"plan", "export", "--plan", plan, "--to", "sglang"});
    ASSERT_EQ(sglang.code, kOk) << sglang.err;
    const auto location = planner::readSglangLocation(sglang.out, "out");
    ASSERT_TRUE(location.ok()) << location.status();
    EXPECT_EQ(location->expertOfSlot.size(), 5u) << "the model's layers 3 and 4 route";
    EXPECT_THAT(sglang.err, HasSubstr("--ep-num-redundant-experts 2"));
    const Said trtllm = type({"plan", "export", "--plan", plan, "--to", "trtllm"});
    const auto balancer = planner::readTrtllmBalancer(trtllm.out, "out");
    ASSERT_TRUE(balancer.ok()) << balancer.status();
    EXPECT_EQ(balancer->expertOfSlot[0], location->expertOfSlot[3]);
    const Said vllm = type({"plan", "export", "--plan", plan, "--to", "vllm"});
    ASSERT_EQ(vllm.code, kOk) << vllm.err;
    EXPECT_EQ(model::parseJson(vllm.out).value(), (model::Json{{"num_redundant_experts", 2}}));
    EXPECT_THAT(vllm.err, HasSubstr("vLLM 0.32 cannot be given this placement"));
    const Said own = type({"plan", "export", "--plan", plan, "--to", "bulkhead"});
    std::ifstream in(plan);
    std::stringstream text;
    text << in.rdbuf();
    EXPECT_EQ(own.out, text.str());
    EXPECT_EQ(type({"plan", "export", "--plan", file("x", "{}"), "--to", "ascend"}).code, kInvalid);
    EXPECT_EQ(type({"plan", "export", "--plan", "/nowhere", "--to", "ascend"}).code, kNotFound);
}

TEST_F(PlanVerbs, theRealRecordingFromTheCommandLine) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const Said said =
        type({"plan", "characterise", "--routing", path->string(), "--model", "DeepSeek-V2-Lite"});
    ASSERT_EQ(said.code, kOk) << said.err;
    EXPECT_THAT(said.out, HasSubstr("DeepSeek-V2-Lite"));
    EXPECT_THAT(said.out, HasSubstr("26 MoE layers x 64 experts, top 6; 16810 tokens of 108"));
}

}  // namespace
}  // namespace bulkhead::cli
