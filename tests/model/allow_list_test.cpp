// SPDX-License-Identifier: Apache-2.0
#include "backend/model/allow_list.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class AllowListTest : public testing::Test {
  protected:
    AllowListTest() {
        fs::create_directories(folder_ / "data" / "law");
        fs::create_directories(folder_ / "database");
        fs::create_directories(folder_ / "plugins");
        std::ofstream(folder_ / "database" / "secret.txt") << "secret";
    }
    ~AllowListTest() override { fs::remove_all(folder_); }

    std::string write(const std::string& text) {
        const fs::path file = folder_ / "allow.toml";
        std::ofstream(file, std::ios::trunc) << text;
        fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
        return file.string();
    }
    std::string at(const std::string& name) const { return (folder_ / name).string(); }
    AllowList list() const {
        return {{"sh"},         {at("plugins")}, {at("data")},
                {at("models")}, {at("ckpt")},    {"NCCL_*", "LANG"}};
    }
    std::string refusal(const JobSpec& spec) const {
        return std::string(checkAllowed(list(), spec, "allow.toml").message());
    }

    const fs::path folder_ =
        fs::canonical(testing::TempDir()) / ("allow_" + std::to_string(::getpid()));
};

TEST_F(AllowListTest, NoFileAllowsEverythingAndABadOneNothing) {
    const auto none = readAllowList(at("none.toml"));
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none->has_value());
    const auto good = readAllowList(write("commands = [\"python3\"]\ndata = [\"/data\"]\n"));
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_THAT((*good)->commands, testing::ElementsAre("python3"));
    EXPECT_THAT(std::string(readAllowList(write("comands = []\n")).status().message()),
                HasSubstr("allow.toml:1: unknown key \"comands\"; did you mean \"commands\"?"));
    EXPECT_THAT(std::string(readAllowList(write("\ndata = [\"here\"]\n")).status().message()),
                HasSubstr("allow.toml:2: data[0]: expected an absolute path, found \"here\""));
    const std::string file = write("");
    fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
    EXPECT_TRUE(absl::IsPermissionDenied(readAllowList(file).status()));
}

TEST_F(AllowListTest, PathsAreAllowedByFolderNotByTheirFirstLetters) {
    JobSpec spec;
    spec.domains = {{"law", {at("data/law")}}};
    EXPECT_EQ(refusal(spec), "") << "the built-in workload by its name";
    spec.checkpointDir = at("ckpt/nightly");
    EXPECT_EQ(refusal(spec), "");
    for (const std::string& path : {at("database/secret.txt"), at("data/../database/secret.txt"),
                                    std::string("/etc/passwd"), at("data/law/../../database")}) {
        spec.domains = {{"law", {path}}};
        EXPECT_THAT(refusal(spec), HasSubstr("domains.law")) << path;
    }
    fs::create_symlink(folder_ / "database", folder_ / "data" / "link");
    spec.domains = {{"law", {at("data/link/secret.txt")}}};
    EXPECT_THAT(refusal(spec), HasSubstr("is not allowed here; add it to data in allow.toml"));
    spec.domains.clear();
    EXPECT_TRUE(checkResume(list(), at("ckpt/run/m/manifest.json"), at("state"), "a").ok());
    EXPECT_TRUE(checkResume(list(), at("state/jobs/run/m.json"), at("state"), "a").ok());
    EXPECT_FALSE(checkResume(list(), at("state/../database/m.json"), at("state"), "a").ok());
    spec.checkpointDir = at("checkpoints");
    EXPECT_THAT(refusal(spec), HasSubstr("checkpoint_dir"));
    spec.checkpointDir.clear();
    spec.workload = at("plugins/ours.so");
    EXPECT_EQ(refusal(spec), "");
    spec.workload = at("plugins/../theirs.so");
    EXPECT_THAT(refusal(spec), HasSubstr("workload"));
    spec.workload = "llama_moe";
    spec.device = "/tmp/evil.so";
    EXPECT_THAT(refusal(spec), HasSubstr("device"));
}

TEST_F(AllowListTest, CommandsAreComparedAsTheFilesThatRun) {
    JobSpec spec;
    spec.command = {"sh", "-c", "true"};
    spec.env = {"NCCL_DEBUG=INFO", "LANG=C"};
    EXPECT_EQ(refusal(spec), "");
    fs::create_symlink("/bin/sh", folder_ / "shell");
    spec.command = {"./shell"};
    spec.directory = folder_.string();
    EXPECT_EQ(refusal(spec), "") << "the same program by another name";
    std::ofstream(folder_ / "sh") << "#!/bin/true\n";
    spec.command = {"./sh"};
    EXPECT_THAT(refusal(spec), HasSubstr("command: ./sh is not allowed here; add it to commands"));
    spec.command = {"no-such-program-anywhere"};
    EXPECT_THAT(refusal(spec), HasSubstr("command"));
    spec.command = {"sh"};
    spec.env = {"LD_PRELOAD=/tmp/evil.so"};
    EXPECT_THAT(refusal(spec),
                HasSubstr("env: LD_PRELOAD is not allowed here; add it to environment"));
    spec.env = {"LANGUAGE=de"};
    EXPECT_THAT(refusal(spec), HasSubstr("LANGUAGE"));
}

}  // namespace
}  // namespace bulkhead::model
