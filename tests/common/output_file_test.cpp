// SPDX-License-Identifier: Apache-2.0
// A file that somebody asked for is there whole, or what was there before is.
#include "backend/common/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace bulkhead {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class OutputFileTest : public testing::Test {
  protected:
    OutputFileTest() : folder_(testing::TempDir() + "output_file_" + std::to_string(::getpid())) {
        fs::create_directories(folder_);
        std::ofstream(path_) << "old";
    }
    ~OutputFileTest() override { fs::remove_all(folder_); }
    static std::string content(const std::string& path) {
        std::ifstream in(path);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    std::vector<std::string> names() const {
        std::vector<std::string> out;
        for (const auto& entry : fs::directory_iterator(folder_))
            out.push_back(entry.path().filename().string());
        return out;
    }
    const std::string folder_;
    const std::string path_ = folder_ + "/file";
};

TEST_F(OutputFileTest, whatIsNotPublishedLeavesTheOldFileAndNothingElse) {
    {
        const auto file = OutputFile::create(path_, true);
        ASSERT_TRUE(file.ok()) << file.status();
        ASSERT_TRUE((*file)->append("half of the n").ok());
        EXPECT_EQ(content(path_), "old");
    }
    EXPECT_EQ(content(path_), "old");
    EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(OutputFileTest, aStreamThatCannotBeWrittenSaysSoAndTheOldFileStays) {
    struct rlimit before {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = before;
    small.rlim_cur = 1 << 16;
    const auto signals = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    {
        const auto file = OutputFile::create(path_, true);
        ASSERT_TRUE(file.ok()) << file.status();
        OutputStream out(**file);
        out << std::string(1 << 17, 'x') << 7 << std::flush;
        EXPECT_FALSE(out);
        EXPECT_TRUE(absl::IsResourceExhausted(out.status())) << out.status();
        EXPECT_THAT(std::string(out.status().message()), HasSubstr("make room"));
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    (void)std::signal(SIGXFSZ, signals);
    EXPECT_EQ(content(path_), "old");
    EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(OutputFileTest, aStreamWritesPiecesOfAnySize) {
    const std::string large(1 << 17, 'x');
    const auto file = OutputFile::create(path_, true);
    ASSERT_TRUE(file.ok()) << file.status();
    OutputStream out(**file);
    out << "a" << large << 7 << '\n' << std::flush;
    ASSERT_TRUE(out.status().ok()) << out.status();
    ASSERT_TRUE((*file)->publish().ok());
    EXPECT_EQ(content(path_), "a" + large + "7\n");
}

TEST_F(OutputFileTest, theFileBehindALinkIsReplacedAndKeepsItsMode) {
    ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
    fs::create_symlink("file", folder_ + "/link");
    ASSERT_TRUE(writeWhole(folder_ + "/link", "new").ok());
    EXPECT_TRUE(fs::is_symlink(folder_ + "/link"));
    EXPECT_EQ(content(path_), "new");
    EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0640));
}

TEST_F(OutputFileTest, whatIsNoFileIsWrittenToAndStays) {
    EXPECT_TRUE(writeWhole("/dev/null", "any").ok());
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    const absl::Status folder = writeWhole(folder_, "any");
    EXPECT_THAT(std::string(folder.message()), HasSubstr("Is a directory"));
}

TEST_F(OutputFileTest, aPartOfAnEarlierProcessOfTheSameNumberIsInNobodysWay) {
    std::ofstream(path_ + "." + std::to_string(::getpid()) + ".partial") << "part";
    ASSERT_TRUE(writeWhole(path_, "new").ok());
    EXPECT_EQ(content(path_), "new");
}

TEST_F(OutputFileTest, aProcessThatIsKilledLeavesNothingWhereFilesCanBeWithoutAName) {
    const int nameless = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0600);
    if (nameless >= 0) ::close(nameless);
    const pid_t child = ::fork();
    if (child == 0) {
        const auto file = OutputFile::create(path_, true);
        (void)(*file)->append("part");
        ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(content(path_), "old");
    EXPECT_THAT(names(), testing::SizeIs(nameless >= 0 ? 1 : 2));
}

TEST_F(OutputFileTest, whatIsNotToBeReplacedIsLeftAlone) {
    EXPECT_TRUE(absl::IsAlreadyExists(OutputFile::create(path_, false).status()));
}

TEST_F(OutputFileTest, whetherItCanBeWrittenIsToldWithoutATrace) {
    for (const std::string& path : {path_, folder_ + "/new", std::string("/dev/null")})
        EXPECT_TRUE(checkWritable(path).ok()) << path;
    EXPECT_EQ(content(path_), "old");
    for (const std::string& path :
         {folder_, folder_ + "/none/new", path_ + "/new", folder_ + "/" + std::string(250, 'x')})
        EXPECT_THAT(std::string(checkWritable(path).message()), HasSubstr("cannot write " + path));
    EXPECT_THAT(names(), ElementsAre("file"));
    ASSERT_EQ(::chmod(folder_.c_str(), 0555), 0);
    const pid_t other = ::fork();
    if (other == 0) {
        if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(3);
        ::_exit(checkWritable(path_).ok() ? 1 : 0);
    }
    int status = -1;
    ::waitpid(other, &status, 0);
    ::chmod(folder_.c_str(), 0755);
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace bulkhead
