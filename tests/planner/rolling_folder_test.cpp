// SPDX-License-Identifier: Apache-2.0
// A folder that an engine writes into while it is read: files half written, gone, renamed, hostile.
#include "backend/planner/import/rolling_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/planner/samples.h"

namespace bulkhead::planner {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Rolling : public testing::Test {
  protected:
    Rolling() { fs::create_directories(dir_); }
    ~Rolling() override { fs::remove_all(dir_); }

    static ImportOptions model() {
        ImportOptions options;
        options.model = ModelShape();
        options.model->experts = 4;
        options.model->topK = 2;
        return options;
    }
    void write(const std::string& name, const std::string& bytes, bool more = false) {
        std::ofstream(dir_ / name, more ? std::ios::app | std::ios::binary : std::ios::binary)
            << bytes;
    }
    /// A look brings these: the name and tokens or windows, or the refusal.
    std::vector<std::string> look(bool settled = false) {
        std::vector<std::string> out;
        const auto take = [&](const std::string& name, absl::StatusOr<Recording> it) {
            out.push_back(!it.ok()      ? std::string(it.status().message())
                          : it->routing ? model::concat(name, " ", it->routing->tokens(), " tokens")
                                        : model::concat(name, " ", totalCounts(*it).total()));
            return true;
        };
        EXPECT_TRUE(folder_.look(take, settled).ok());
        return out;
    }

    const fs::path dir_ = testing::TempDir() + "rolling_" + std::to_string(::getpid());
    RollingFolder folder_{dir_, model()};
};

TEST_F(Rolling, aDumpIsReadOnceItStaysAsItIs) {
    const std::string dump = samples::requestLines();
    write("a.jsonl", dump.substr(0, dump.size() / 2));
    EXPECT_THAT(look(), IsEmpty());
    write("a.jsonl", dump.substr(dump.size() / 2), true);
    EXPECT_THAT(look(), IsEmpty());
    EXPECT_THAT(look(), ElementsAre("a.jsonl 3 tokens"));
    EXPECT_THAT(look(), IsEmpty());
    fs::rename(dir_ / "a.jsonl", dir_ / "b.jsonl");
    EXPECT_THAT(look(), IsEmpty()) << "a renamed file is no new one";
    write("b.jsonl", samples::countLines());
    look();
    EXPECT_THAT(look(), ElementsAre(HasSubstr("experts"))) << "another model, in its place";
    EXPECT_THAT(look(), IsEmpty()) << "said once";
}

TEST_F(Rolling, responsesAreReadAsTheyCome) {
    const std::string one = samples::vllmResponse() + "\n";
    write("r.jsonl", one.substr(0, 30));
    EXPECT_THAT(look(), IsEmpty());
    write("r.jsonl", one.substr(30) + one + one.substr(0, 10), true);
    EXPECT_THAT(look(), ElementsAre("r.jsonl 6 tokens"));
    EXPECT_THAT(look(), IsEmpty());
    fs::rename(dir_ / "r.jsonl", dir_ / "r.jsonl.1");
    write("r.jsonl.1", one.substr(10) + "{\"choices\": 7}\n" + one, true);
    write("r.jsonl", " " + one);  // another line, as that of an engine with another id
    std::vector<std::string> said = look();
    std::sort(said.begin(), said.end());
    ASSERT_EQ(said.size(), 4u);
    EXPECT_THAT(said[0], HasSubstr("r.jsonl.1 line 4"));
    EXPECT_EQ(said[1], "r.jsonl 3 tokens");
    EXPECT_EQ(said[2], "r.jsonl.1 3 tokens");
    EXPECT_EQ(said[3], "r.jsonl.1 3 tokens");
    write("r.jsonl", samples::npyResponse() + "\n");  // cut and written anew: same inode
    EXPECT_THAT(look(), ElementsAre("r.jsonl 3 tokens"));
}

TEST_F(Rolling, whatWasReadIsKnownByItsContent) {
    folder_.describe({});
    write("a.jsonl", samples::requestLines());
    write("b.pt", statDump());
    EXPECT_EQ(look(true).size(), 2u);
    const auto later = fs::last_write_time(dir_ / "a.jsonl") + std::chrono::hours(1);
    for (const char* name : {"a.jsonl", "b.pt"}) fs::last_write_time(dir_ / name, later);
    fs::copy_file(dir_ / "a.jsonl", dir_ / "copy.jsonl");
    fs::copy_file(dir_ / "b.pt", dir_ / "copy.pt");
    EXPECT_THAT(look(true), IsEmpty()) << "touched and copied";
    fs::remove(dir_ / "a.jsonl");
    look(true);
    fs::copy_file(dir_ / "copy.jsonl", dir_ / "back.jsonl");
    EXPECT_THAT(look(true), IsEmpty()) << "though the first one is gone";
    write("copy.jsonl", samples::countLines());
    EXPECT_EQ(look(true).size(), 1u) << "another content under the name";
}

TEST_F(Rolling, aResponseThatWasReadInAnotherFileIsNotReadAgain) {
    const std::string one = samples::vllmResponse() + "\n";
    write("r.jsonl", one + one);
    EXPECT_THAT(look(), ElementsAre("r.jsonl 6 tokens"));
    fs::copy_file(dir_ / "r.jsonl", dir_ / "copy.jsonl");
    fs::last_write_time(dir_ / "r.jsonl",
                        fs::last_write_time(dir_ / "r.jsonl") + std::chrono::hours(1));
    EXPECT_THAT(look(), IsEmpty());
    write("copy.jsonl", " " + one, true);
    EXPECT_THAT(look(), ElementsAre("copy.jsonl 3 tokens")) << "the new line alone";
    write("more.jsonl", one + "  " + one);
    EXPECT_THAT(look(), ElementsAre("more.jsonl 6 tokens")) << "a request that came again";
}

TEST_F(Rolling, ranksOfOneTimeAreOneDumpAndTheNextIsAnother) {
    folder_.describe({});
    write("recorder_1716000000.25_0.pt", passDump(0, {1, 2, 3}));
    write("recorder_1716000000.31_1.pt", passDump(1, {10, 20, 30}));
    write("recorder_1716000060.11_0.pt", passDump(0, {1, 1, 1}));
    EXPECT_THAT(look(), IsEmpty());
    EXPECT_THAT(look(),
                ElementsAre("recorder_1716000000.25_0.pt 66", "recorder_1716000060.11_0.pt 3"));
    fs::remove(dir_ / "recorder_1716000000.25_0.pt");
    look();
    EXPECT_THAT(look(), IsEmpty()) << "what is left of a dump that was read is not read again";
    write("recorder_1716000060.19_1.pt", passDump(1, {5, 5, 5}));
    look();
    EXPECT_THAT(look(), ElementsAre("recorder_1716000060.19_1.pt 15"));
}

TEST_F(Rolling, foldersAreDumpsToo) {
    fs::create_directories(dir_ / "one");
    write("one/meta.json", samples::requestsMeta());
    write("one/a.npy", samples::npyIds());
    EXPECT_THAT(look(), IsEmpty());
    EXPECT_THAT(look(), ElementsAre("one/a.npy 3 tokens"));
    fs::create_directories(dir_ / "empty");
    EXPECT_THAT(look(true), IsEmpty());
}

TEST_F(Rolling, whateverLiesThereIsRefusedAndTheRestIsRead) {
    ASSERT_EQ(::mkfifo((dir_ / "pipe.pt").c_str(), 0600), 0);
    fs::create_symlink("/dev/zero", dir_ / "zero.pt");
    fs::create_symlink(dir_, dir_ / "loop");
    write(".hidden.jsonl", samples::requestLines());
    write("none.pt", "");
    write("half.pt", statDump().substr(0, 100));
    write("noise.bin", "\x01\x02\x03");
    write("good.jsonl", samples::requestLines());
    fs::resize_file(dir_ / "noise.bin", kMostDump + 1);
    std::vector<std::string> said = look(true);
    std::sort(said.begin(), said.end());
    ASSERT_EQ(said.size(), 4u) << testing::PrintToString(said);
    EXPECT_EQ(said[0], "good.jsonl 3 tokens");
    EXPECT_THAT(said[1], HasSubstr("half.pt"));
    EXPECT_THAT(said[2], HasSubstr("noise.bin: 268435457 bytes of one dump"));
    EXPECT_THAT(said[3], HasSubstr("none.pt"));
}

TEST_F(Rolling, aLineThatIsTooLongIsPassedOver) {
    const std::string one = samples::vllmResponse() + "\n";
    write("r.jsonl", one);
    EXPECT_THAT(look(), ElementsAre("r.jsonl 3 tokens"));
    write("r.jsonl", std::string(40 << 20, ' ') + "\n" + one, true);
    EXPECT_THAT(look(), ElementsAre(HasSubstr("r.jsonl line 2: more than 33554432 bytes"),
                                    "r.jsonl 3 tokens"));
}

TEST_F(Rolling, aFolderThatIsNotThereIsSaid) {
    const auto status =
        RollingFolder(dir_ / "none", {}).look([](const auto&, const auto&) { return true; });
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("none"));
}

TEST_F(Rolling, aFileThatVanishesIsOneMessageAtMost) {
    write("a.pt", statDump());
    look();
    fs::remove(dir_ / "a.pt");
    EXPECT_THAT(look(), IsEmpty());
}

}  // namespace
}  // namespace bulkhead::planner
