// SPDX-License-Identifier: Apache-2.0
// A file named on a command line is read up to a limit, of any kind.
#include "backend/common/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/small_disk.h"

namespace bulkhead {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ReadAtMost : public testing::Test {
  protected:
    ReadAtMost() : folder_(testing::TempDir() + "read_at_most_" + std::to_string(::getpid())) {
        fs::create_directories(folder_);
    }
    ~ReadAtMost() override { fs::remove_all(folder_); }
    std::string file(const std::string& bytes) const {
        const std::string path = folder_ + "/file";
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    const std::string folder_;
};

TEST_F(ReadAtMost, aFileComesWholeUpToTheLimitAndNotBeyond) {
    const std::string path = file("12345");
    EXPECT_EQ(readAtMost(path, 5).value(), "12345");
    EXPECT_EQ(readAtMost(file(""), 5).value(), "");
    const auto larger = readAtMost(file("123456"), 5);
    EXPECT_EQ(larger.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(larger.status().message(), HasSubstr("more than 5 bytes"));
}

TEST_F(ReadAtMost, aFileOfFourGigabytesIsRefusedWithoutBeingRead) {
    const std::string path = file("");
    fs::resize_file(path, uint64_t{4} << 30);
    EXPECT_EQ(readAtMost(path, 1000).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ReadAtMost, aDeviceAndAFolderAreNoFiles) {
    const auto device = readAtMost("/dev/zero", 1000), folder = readAtMost(folder_, 1000);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(device.status().message(), HasSubstr("/dev/zero: is a device"));
    EXPECT_EQ(folder.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(folder.status().message(), HasSubstr("is a folder"));
    EXPECT_EQ(readAtMost(folder_ + "/none", 1000).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReadAtMost, aFolderOrAPipeInThePlaceOfAFileOfOursIsAnErrorAtOnce) {
    const std::string pipe = folder_ + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::byte piece[4];
    for (const auto& [path, what] :
         {std::pair(folder_, "it is a folder"), {pipe, "it is a pipe"}}) {
        EXPECT_THAT(std::string(diskFiles().read(path).status().message()), HasSubstr(what));
        EXPECT_THAT(std::string(diskFiles().read(path, 0, piece).message()), HasSubstr(what));
    }
    EXPECT_EQ(diskFiles().read(file("12345")).value(), "12345");
    EXPECT_TRUE(absl::IsNotFound(diskFiles().read(folder_ + "/none").status()));
}

TEST_F(ReadAtMost, whatSaysWhoMayDoWhatIsAFileOfOursThatNobodyElseWrites) {
    const std::string path = file("anna");
    EXPECT_EQ(readTrusted(path, 4).value(), "anna");
    EXPECT_EQ(readTrusted(path, 3).status().code(), absl::StatusCode::kResourceExhausted);
    const std::string link = folder_ + "/link";
    fs::create_symlink(path, link);
    EXPECT_EQ(readTrusted(link, 4).value(), "anna");
    ::chmod(path.c_str(), 0620);
    for (const std::string& name : {path, link}) {
        const auto open = readTrusted(name, 4);
        EXPECT_EQ(open.status().code(), absl::StatusCode::kPermissionDenied) << name;
        EXPECT_THAT(open.status().message(), HasSubstr("chmod go-w"));
    }
    const std::string pipe = folder_ + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_EQ(readTrusted(pipe, 4).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(readTrusted(folder_ + "/none", 4).status().code(), absl::StatusCode::kNotFound);
    if (::geteuid() != 0) return;  // only root can give a file away
    ::chmod(path.c_str(), 0644);
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    const auto others = readTrusted(link, 4);
    EXPECT_EQ(others.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(others.status().message(), HasSubstr("belongs to another user (65534)"));
}

TEST_F(ReadAtMost, ofAPipeThatNeverEndsNoMoreIsTakenThanTheLimit) {
    const std::string path = folder_ + "/pipe";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t writer = ::fork();
    if (writer == 0) {
        ::signal(SIGPIPE, SIG_IGN);
        std::ofstream out(path, std::ios::binary);
        const std::string some(1000, 'x');
        uint64_t wrote = 0;
        while (out.write(some.data(), 1000).flush()) wrote += 1000;
        (void)!::write(told[1], &wrote, sizeof wrote);
        ::_exit(0);
    }
    constexpr uint64_t kMost = 3'000'000, kPipeHolds = 1 << 20;
    EXPECT_EQ(readAtMost(path, kMost).status().code(), absl::StatusCode::kResourceExhausted);
    uint64_t wrote = 0;
    ASSERT_EQ(::read(told[0], &wrote, sizeof wrote), ssize_t{sizeof wrote});
    EXPECT_LE(wrote, kMost + kPipeHolds);
    ::waitpid(writer, nullptr, 0);
    ::close(told[0]);
    ::close(told[1]);
}

TEST_F(ReadAtMost, whatAPipeBringsUntilItEndsIsWhole) {
    const std::string path = folder_ + "/pipe";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const std::string sent(2'500'000, 'y');
    const pid_t writer = ::fork();
    if (writer == 0) {
        std::ofstream(path, std::ios::binary) << sent;
        ::_exit(0);
    }
    EXPECT_EQ(readAtMost(path, sent.size()).value(), sent);
    ::waitpid(writer, nullptr, 0);
}

TEST_F(ReadAtMost, aPipeThatNobodyWritesIsRefused) {
    const std::string path = folder_ + "/pipe";
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    const auto read = readAtMost(path, 1000);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(read.status().message(), HasSubstr("a pipe that no program writes to"));
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::close(ends[1]);
    EXPECT_EQ(readAtMost("/dev/fd/" + std::to_string(ends[0]), 1000).value(), "")
        << "its writer ended without a word";
    ::close(ends[0]);
}

TEST_F(ReadAtMost, whatMayNotBeReadIsNotSaidToBeMissing) {
    const std::string path = file("secret");
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    const pid_t reader = ::fork();
    if (reader == 0) {
        if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
        ::_exit(absl::IsPermissionDenied(readAtMost(path, 1000).status()) ? 0 : 1);
    }
    int status = 0;
    ::waitpid(reader, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FullDisk, IsNamedWithWhatRoomItHas) {
    std::string disk = testing::TempDir() + "full_" + std::to_string(::getpid());
    fs::create_directories(disk);
    const absl::Status mounted = support::mountSmallDisk(disk);
    ASSERT_TRUE(mounted.ok()) << mounted;
    disk = fs::canonical(disk).string();
    const std::string path = disk + "/log";
    const auto append = [&]() -> absl::Status {
        const auto log = diskFiles().open(path);
        return log.ok() ? (*log)->append(std::string(9 << 20, 'x')) : log.status();
    };
    const absl::Status full = append();
    EXPECT_TRUE(absl::IsResourceExhausted(full));
    EXPECT_EQ(full.message(), "cannot write " + path +
                                  ": No space left on device (the file system at " + disk +
                                  " has 0 of 8 MiB free)");
    EXPECT_EQ(roomAt(disk + "/not/there"),
              " (the file system at " + disk + " has 8 of 8 MiB free)");
    ::umount(disk.c_str());
    fs::remove(disk);
}

/// Opening a pipe waits for a process at its other end.
TEST(FileSystemPipes, APipeInAFilesPlaceIsNamedAndNobodyWaits) {
    const std::string path = testing::TempDir() + "/pipe_" + std::to_string(::getpid());
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    for (const absl::Status& s :
         {diskFiles().open(path).status(), diskFiles().read(path).status()}) {
        EXPECT_TRUE(absl::IsDataLoss(s)) << s;
        EXPECT_THAT(std::string(s.message()), testing::HasSubstr(path + ": it is a pipe"));
    }
    ::unlink(path.c_str());
}

}  // namespace
}  // namespace bulkhead
