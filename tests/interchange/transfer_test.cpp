// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/interchange/find_checkpoint.h"
#include "backend/interchange/safetensors.h"
#include "tests/interchange/sample.h"

namespace bulkhead::interchange {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TransferTest : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            (fs::path(::testing::TempDir()) / ("move_" + std::to_string(::getpid()))).string();
        fs::create_directories(folder_);
        manifest_ = writeSample(diskFiles(), folder_ + "/made");
    }
    void TearDown() override { fs::remove_all(folder_); }

    ExportOrder order(bool optimizer) const {
        ExportOrder one;
        one.manifest = manifest_;
        one.out = folder_ + "/f.safetensors";
        one.optimizer = optimizer;
        one.replace = true;
        return one;
    }
    ImportOrder back() const {
        ImportOrder one;
        one.file = folder_ + "/f.safetensors";
        one.out = folder_ + "/back";
        one.unixNs = 5;
        return one;
    }
    std::string exportRefusal(const ExportOrder& one) const {
        return std::string(exportCheckpoint(diskFiles(), one).status().message());
    }
    std::string importRefusal(const ImportOrder& one) const {
        return std::string(importCheckpoint(diskFiles(), one).status().message());
    }
    static std::string read(const std::string& path) { return *diskFiles().read(path); }
    SafetensorsHeader header() const {
        const auto read = readSafetensorsHeader(diskFiles(), folder_ + "/f.safetensors");
        EXPECT_TRUE(read.ok()) << read.status();
        return *read;
    }
    template <class T>
    std::vector<T> valuesOf(const std::string& name) const {
        const SafetensorsHeader h = header();
        for (const SafetensorsEntry& entry : h.entries) {
            if (entry.name != name) continue;
            std::vector<T> values((entry.end - entry.begin) / sizeof(T));
            EXPECT_TRUE(diskFiles()
                            .read(folder_ + "/f.safetensors", h.dataBegin + entry.begin,
                                  std::as_writable_bytes(std::span(values)))
                            .ok());
            return values;
        }
        return {};
    }
    /// Edits the file's data of one tensor, which is of T.
    template <class T>
    void setValue(const std::string& name, T value) const {
        const SafetensorsHeader h = header();
        std::fstream file(folder_ + "/f.safetensors",
                          std::ios::in | std::ios::out | std::ios::binary);
        for (const SafetensorsEntry& entry : h.entries)
            if (entry.name == name) {
                file.seekp(static_cast<std::streamoff>(h.dataBegin + entry.begin));
                file.write(reinterpret_cast<const char*>(&value), sizeof value);
            }
    }
    std::vector<std::string> namesIn(const std::string& folder) const {
        return diskFiles().list(folder);
    }

    std::string folder_, manifest_;
};

TEST_F(TransferTest, tensorsOfTwoShardsAreOneEachAndComeBackToTheSameStates) {
    const auto done = exportCheckpoint(diskFiles(), order(true));
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->run, "sample");
    EXPECT_EQ(done->step, 7u);
    EXPECT_THAT(valuesOf<float>("rows"), ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(valuesOf<int16_t>("columns"), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    EXPECT_THAT(valuesOf<double>("flat"), ElementsAre(0, .5, 1, 1.5, 2, 2.5, 3, 3.5));
    EXPECT_EQ(valuesOf<uint16_t>("bias"), valuesOf<uint16_t>("head.bias")) << "a tied one";
    EXPECT_THAT(valuesOf<float>("optimizer.state.rows.exp_avg"),
                ElementsAre(101, 102, 103, 104, 105, 106));
    const auto metadata = header().metadata;
    EXPECT_EQ(metadata.at("bulkhead.run"), "sample");
    EXPECT_EQ(metadata.at("bulkhead.step"), "7");
    EXPECT_EQ(metadata.at("bulkhead.model"), "Sample");
    EXPECT_THAT(metadata.at("bulkhead.numbers"),
                HasSubstr(R"("optimizer.param_groups.0.lr":0.25)"));

    const auto imported = importCheckpoint(diskFiles(), back());
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->shards, 2u);
    EXPECT_EQ(imported->changed, "");
    for (const char* file : {"shard-0.state", "shard-1.state", "shard-0.tensors.json"})
        EXPECT_EQ(read(folder_ + "/back/" + file), read(folder_ + "/made/" + file)) << file;
    const auto was = *runtime::readManifest(diskFiles(), manifest_);
    const auto is = *runtime::readManifest(diskFiles(), imported->manifest);
    EXPECT_EQ(is.last, was.last);
    EXPECT_EQ(is.dataPosition, was.dataPosition);
    EXPECT_EQ(is.files[1].hash, was.files[1].hash);
    EXPECT_EQ(is.run, "imported") << "it is no checkpoint of the run's own";
    EXPECT_THAT(namesIn(folder_), ElementsAre("back", "f.safetensors", "made"));

    setValue("rows", 8.5f);
    ImportOrder again = back();
    again.replace = true;
    const auto changed = importCheckpoint(diskFiles(), again);
    ASSERT_TRUE(changed.ok()) << "whoever changed it knows why";
    EXPECT_EQ(changed->changed, metadata.at("bulkhead.state_hash"));
    again.freshOptimizer = true;
    EXPECT_EQ(importCheckpoint(diskFiles(), again)->changed, "") << "it is another state anyway";
}

TEST_F(TransferTest, withoutTheOptimizerItIsTheModelAloneAndNeedsACheckpointLikeIt) {
    ASSERT_TRUE(exportCheckpoint(diskFiles(), order(false)).ok());
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : header().entries) names.push_back(entry.name);
    EXPECT_THAT(names,
                ::testing::UnorderedElementsAre("rows", "columns", "flat", "bias", "head.bias"));
    EXPECT_THAT(importRefusal(back()), HasSubstr("name a checkpoint of the same model by --like"));

    setValue("rows", 50.0f);
    ImportOrder like = back();
    like.like = manifest_;
    auto imported = importCheckpoint(diskFiles(), like);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_THAT(imported->optimizer, HasSubstr("as in"));
    std::string expected = read(folder_ + "/made/shard-0.state");
    const size_t head = expected.size() - 512;
    const float value = 50;
    expected.replace(head, 4, reinterpret_cast<const char*>(&value), 4);
    EXPECT_EQ(read(folder_ + "/back/shard-0.state").substr(head), expected.substr(head));

    like.freshOptimizer = like.replace = true;
    imported = importCheckpoint(diskFiles(), like);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->optimizer, "begins anew");
    expected.replace(head + 256, 16, 16, '\0');
    expected.replace(head + 320, 16, 16, '\0');
    EXPECT_EQ(read(folder_ + "/back/shard-0.state").substr(head), expected.substr(head))
        << "the moment and its presence are gone, the learning rate stays";
}

TEST_F(TransferTest, whatDoesNotFitIsRefusedByNameAndLeavesNothing) {
    ASSERT_TRUE(exportCheckpoint(diskFiles(), order(true)).ok());
    const std::string whole = read(folder_ + "/f.safetensors");
    const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
        std::string changed = whole;
        const size_t at = changed.find(from);
        ASSERT_NE(at, std::string::npos) << from;
        ASSERT_EQ(from.size(), to.size());
        changed.replace(at, from.size(), to);
        std::ofstream(folder_ + "/f.safetensors", std::ios::binary) << changed;
        EXPECT_THAT(importRefusal(back()), HasSubstr(words)) << to;
        EXPECT_THAT(importRefusal(back()), HasSubstr("; ")) << "names a remedy";
        EXPECT_FALSE(fs::exists(folder_ + "/back"));
    };
    refused("\"flat\":{", "\"flax\":{", "tensor \"flax\" is not the model's");
    refused("\"shape\":[3,2]", "\"shape\":[2,3]", "is F32 [2, 3], expected F32 [3, 2]");
    refused(R"("dtype":"BF16")", R"("dtype": "F16")", "is F16 [4], expected BF16 [4]");
    refused(R"(param_groups.0.lr\":0.25)", R"(param_groups.0.lr\":[01])", "bulkhead.numbers");
    refused(R"(param_groups.0.lr\":0.25)", R"(param_groups.0.lx\":0.25)",
            "\"optimizer.param_groups.0.lx\" is not the model's");
    refused(R"(\"state_bytes\":512)", R"(\"state_bytes\":9e9)", "state_bytes");
    refused("bulkhead.manifest", "bulkhead.manifes_", "does not say of which job it is");
    std::ofstream(folder_ + "/f.safetensors", std::ios::binary) << whole;
    setValue("head.bias", uint16_t{9});
    EXPECT_THAT(importRefusal(back()),
                HasSubstr("\"head.bias\" and \"bias\" are one in the model"));
    EXPECT_THAT(namesIn(folder_), ElementsAre("f.safetensors", "made"));
}

TEST_F(TransferTest, aTableThatWantsMoreMemoryThanItsFileHasIsALie) {
    std::vector<TensorTable> tables = {sampleTable(0), sampleTable(1)};
    ASSERT_TRUE(exportCheckpoint(diskFiles(), order(true)).ok());
    std::string whole = read(folder_ + "/f.safetensors");
    const std::string from = R"(\"state_bytes\":512)", to = R"(\"state_bytes\":999999999999)";
    whole.replace(whole.find(from), from.size(), to);
    // The header has become longer by as much.
    uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof length);
    length += to.size() - from.size();
    std::memcpy(whole.data(), &length, sizeof length);
    std::ofstream(folder_ + "/f.safetensors", std::ios::binary) << whole;
    EXPECT_THAT(importRefusal(back()), HasSubstr("state_bytes is 999999999999, expected at most"));
}

TEST_F(TransferTest, nothingIsWrittenOverUnlessThatIsWanted) {
    ASSERT_TRUE(exportCheckpoint(diskFiles(), order(true)).ok());
    const std::string before = read(folder_ + "/f.safetensors");
    ExportOrder again = order(false);
    again.replace = false;
    EXPECT_THAT(exportRefusal(again), HasSubstr("f.safetensors exists; "));
    EXPECT_EQ(read(folder_ + "/f.safetensors"), before);
    ASSERT_TRUE(importCheckpoint(diskFiles(), back()).ok());
    EXPECT_THAT(importRefusal(back()), HasSubstr("back exists; "));
    ImportOrder over = back();
    over.replace = true;
    EXPECT_TRUE(importCheckpoint(diskFiles(), over).ok());
    std::ofstream(folder_ + "/back/notes.txt") << "mine";
    EXPECT_THAT(importRefusal(over), HasSubstr("back holds notes.txt, which is no part"));
    EXPECT_EQ(read(folder_ + "/back/notes.txt"), "mine");
    fs::remove(folder_ + "/back/notes.txt");
    EXPECT_TRUE(importCheckpoint(diskFiles(), over).ok());
    over.out = folder_ + "/made";
    EXPECT_THAT(importRefusal(over), HasSubstr("made is a checkpoint that a run wrote"));
    fs::create_directories(folder_ + "/mine");
    over.out = folder_ + "/mine";
    EXPECT_THAT(importRefusal(over), HasSubstr("mine exists and is no checkpoint"));
    EXPECT_TRUE(fs::exists(folder_ + "/mine"));
    EXPECT_THAT(namesIn(folder_), ElementsAre("back", "f.safetensors", "made", "mine"));
}

TEST_F(TransferTest, aDamagedOrOlderCheckpointLeavesNoFile) {
    const auto refused = [&](const char* words) {
        EXPECT_THAT(exportRefusal(order(false)), HasSubstr(words));
        EXPECT_FALSE(fs::exists(folder_ + "/f.safetensors"));
    };
    std::fstream file(folder_ + "/made/shard-1.state",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    file.close();
    refused("shard-1.state is damaged: the hash of its state");
    fs::remove(folder_ + "/made/shard-1.tensors.json");
    refused(
        "shard-1.tensors.json is not there: this checkpoint does not say which tensors it holds");
    refused("; go on from it for one step");
    EXPECT_THAT(namesIn(folder_), ElementsAre("made"));
}

TEST_F(TransferTest, copiesThatDifferAreRefusedByNameAndOneShardCanBeTakenAlone) {
    std::vector<std::vector<std::byte>> states = {sampleState(0), sampleState(1)};
    states[1][192] = std::byte{1};
    manifest_ =
        writeSample(diskFiles(), folder_ + "/other", {sampleTable(0), sampleTable(1)}, states);
    EXPECT_THAT(exportRefusal(order(false)), HasSubstr("bias is not the same in shards 0 and 1"));
    ExportOrder alone = order(false);
    alone.shard = 1;
    ASSERT_EQ(exportRefusal(alone), "");
    EXPECT_THAT(valuesOf<float>("rows"), ElementsAre(5, 6));
    EXPECT_EQ(header().metadata.at("bulkhead.shard"), "1");
    alone.shard = 2;
    EXPECT_THAT(exportRefusal(alone), HasSubstr("has shards 0 to 1, and none of number 2"));
}

TEST_F(TransferTest, aCheckpointIsFoundByFolderRunAndStep) {
    const std::string run = folder_ + "/jobs/sample";
    fs::create_directories(run + "/checkpoints");
    std::ofstream(run + "/job.json") << "{}";
    fs::rename(folder_ + "/made", run + "/checkpoints/l0002-step000000007-layout0-r0-i1");
    const std::string path = run + "/checkpoints/l0002-step000000007-layout0-r0-i1";
    const std::vector<std::string> jobs = {folder_ + "/jobs"};
    for (const std::string& where :
         {std::string("sample"), std::string("latest"), run, path, folder_, folder_ + "/jobs",
          run + "/checkpoints", path + "/manifest.json"}) {
        const auto found = findManifest(diskFiles(), where, 7, jobs);
        ASSERT_TRUE(found.ok()) << where << ": " << found.status();
        EXPECT_EQ(*found, path + "/manifest.json") << where;
    }
    EXPECT_THAT(std::string(findManifest(diskFiles(), "sample", 8, jobs).status().message()),
                HasSubstr("no checkpoint of step 8 of \"sample\"; those there are of step 7"));
    EXPECT_THAT(
        std::string(findManifest(diskFiles(), "other", std::nullopt, jobs).status().message()),
        HasSubstr("there is no checkpoint of \"other\""));
}

}  // namespace
}  // namespace bulkhead::interchange
