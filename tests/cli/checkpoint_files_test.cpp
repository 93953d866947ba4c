// SPDX-License-Identifier: Apache-2.0
// Checkpoints as files of others, as a person moves them: out of a run, and into the next one.
#include <gmock/gmock.h>

#include "backend/model/json.h"
#include "tests/cli/shell.h"
#include "tests/cli/whole_job.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointFilesTest : public WholeJobTest {
  protected:
    void SetUp() override {
        WholeJobTest::SetUp();
        std::ofstream(dir_ + "/small.toml") << smallJob().text;
    }
    /// In the test's folder.
    Ran ctl(const std::string& words) {
        return shellBoth("cd " + dir_ + " && " + kBin + "/bulkheadctl " + words);
    }
    /// The hashes of the state that step `step` of the run began from; its run file has its name.
    std::string hashesBefore(const std::string& run, uint64_t step) {
        const Ran ran = ctl("--json ledger " + run + " -f " + run + ".db --from " +
                            std::to_string(step) + " --to " + std::to_string(step));
        const auto row = model::parseJson(lastLine(ran.out));
        EXPECT_TRUE(row.ok()) << ran.out;
        return row.ok() ? row->value("hashes", std::string()) : "";
    }
};

TEST_F(CheckpointFilesTest, ARunGoesOnFromWhatWasExportedAndImportedAsFromItsCheckpoint) {
    // The machine decides how often it pays to compare hashes.
    const std::string up = "up small.toml --shards 2 --set policies.parity_every_steps=1 ";
    ASSERT_EQ(ctl(up + "--steps 5 --db first.db").code, 0);
    const Ran out =
        ctl("--json checkpoint export -f first.db --to safetensors --optimizer -o a.safetensors");
    ASSERT_EQ(out.code, 0) << out.out;
    EXPECT_EQ(model::parseJson(lastLine(out.out))->value("step", 0), 5);
    const Ran in = ctl("--json checkpoint import a.safetensors");
    ASSERT_EQ(in.code, 0) << in.out;
    const auto imported = model::parseJson(lastLine(in.out));
    const std::string hashes = (*imported)["state_hashes"][0].get<std::string>() + "," +
                               (*imported)["state_hashes"][1].get<std::string>();
    // A path in the working directory was refused once.
    const Ran moved =
        ctl(up + "--name moved --steps 8 --db moved.db --resume a.checkpoint/manifest.json");
    ASSERT_EQ(moved.code, 0) << moved.out;
    EXPECT_EQ(hashesBefore("moved", 6), hashes);
    EXPECT_EQ(ctl("ledger --check -f moved.db").code, 0) << "no other run was begun there";
    const Ran stayed = ctl(up +
                           "--name stayed --steps 8 --db stayed.db --resume $(ls -d "
                           "checkpoints/*/*step*5-*)/manifest.json");
    ASSERT_EQ(stayed.code, 0) << stayed.out;
    EXPECT_EQ(hashesBefore("moved", 8), hashesBefore("stayed", 8));
    EXPECT_NE(hashesBefore("moved", 8), hashes);
}

TEST_F(CheckpointFilesTest, AProgramOfOnesOwnHasItsTensorsByName) {
    std::filesystem::create_symlink(BULKHEAD_EMBEDDED_RANK, dir_ + "/rank");
    const std::string up = "up --replicas 1 --set 'env=[\"TEST_EXPECTS=data\"]' ";
    ASSERT_EQ(ctl(up + "--steps 4 --db run.db -- ./rank").code, 0);
    ASSERT_EQ(ctl("checkpoint export -f run.db --to safetensors -o w.safetensors").code, 0);
    // Not by a reader of ours.
    const Ran read = shell("cd " + dir_ + R"( && /usr/bin/python3 -c '
import json, struct
file = open("w.safetensors", "rb")
header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
print(header["__metadata__"]["bulkhead.step"], header["weights"]["dtype"], header["weights"]["shape"])
begin, end = header["weights"]["data_offsets"]
print(len(struct.unpack("<1000f", file.read()[begin:end])), len(header))
')");
    EXPECT_EQ(read.out, "4 F32 [10, 100]\n1000 2\n");
    EXPECT_EQ(ctl("checkpoint export -f run.db --to safetensors -o w.safetensors").code, 4);
    EXPECT_THAT(ctl("checkpoint import w.safetensors").out,
                HasSubstr("Name a checkpoint of the same model by --like."));
    ASSERT_EQ(ctl("checkpoint import w.safetensors --like latest -f run.db").code, 0);
    const Ran next =
        ctl(up + "--steps 6 --db next.db --resume w.checkpoint/manifest.json -- ./rank");
    EXPECT_EQ(next.code, 0) << next.out;
    EXPECT_EQ(ctl("checkpoint export -f run.db --to torch --step 9").code, 5);
}

TEST_F(CheckpointFilesTest, NoExportIsWrittenOverWhatOneIsMadeFrom) {
    ASSERT_EQ(ctl("up small.toml --shards 2 --steps 5 --db run.db").code, 0);
    const std::string from = shell("ls -d " + dir_ + "/checkpoints/*/*step*5-*").out;
    const std::string checkpoint = from.substr(0, from.find('\n'));
    const auto states = [&] { return shell("cksum " + checkpoint + "/*").out; };
    const std::string before = states();
    for (const char* of : {"/shard-0.state", "/manifest.json"}) {
        std::filesystem::remove(dir_ + "/link");
        std::filesystem::create_symlink(checkpoint + of, dir_ + "/link");
        for (const std::string& out : {dir_ + "/link", checkpoint + of}) {
            const Ran ran = ctl("checkpoint export -f run.db --to safetensors --force -o " + out);
            EXPECT_NE(ran.code, 0) << out;
            EXPECT_THAT(ran.out, HasSubstr("Choose another place")) << out;
        }
    }
    EXPECT_EQ(states(), before);
    for (const char* of : {"run.db", "small.toml"})
        EXPECT_EQ(ctl("checkpoint export -f run.db --to torch --force -o " + std::string(of)).code,
                  4);
    EXPECT_EQ(ctl("ledger --check -f run.db").code, 0);
}

TEST_F(CheckpointFilesTest, AResumedRunGoesRoundWhatIsDamagedAndIsRefusedWhenNothingIsWhole) {
    const std::string up = "up small.toml --shards 2 --set policies.checkpoint_every_steps=2 ";
    ASSERT_EQ(ctl(up + "--steps 6 --name first --db run.db").code, 0);
    /// A byte of the state of shard 1 in each checkpoint whose folder's name has `word`.
    const auto damage = [&](const std::string& word) {
        size_t damaged = 0;
        for (const auto& at : std::filesystem::recursive_directory_iterator(dir_ + "/checkpoints"))
            if (at.path().filename() == "shard-1.state" &&
                at.path().parent_path().filename().string().find(word) != std::string::npos) {
                std::fstream file(at.path(), std::ios::binary | std::ios::in | std::ios::out);
                file.seekp(1000);
                file.put('!');
                ++damaged;
            }
        return damaged;
    };
    ASSERT_GE(damage("step000000006"), 1u);
    const Ran next = ctl(up + "--steps 8 --name next --db run.db --resume first");
    EXPECT_EQ(next.code, 0) << next.out;
    const Ran began = ctl("--json events next -f run.db --type run_started");
    EXPECT_THAT(began.out, HasSubstr("step000000004")) << "the one of step 6 is damaged";

    ASSERT_GE(damage("step"), 2u);
    const Ran refused = ctl(up + "--steps 8 --name none --db run.db --resume first");
    EXPECT_EQ(refused.code, 4) << refused.out;
    EXPECT_THAT(refused.out, HasSubstr("shard-1.state"));
    EXPECT_THAT(ctl("runs -f run.db").out, Not(HasSubstr("none"))) << "nothing was begun";
}

}  // namespace
}  // namespace bulkhead::testing
