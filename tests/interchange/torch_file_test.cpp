// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "backend/common/file_system.h"
#include "backend/planner/import/torch_file.h"

namespace bulkhead::interchange {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TorchFileTest : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::path(::testing::TempDir()) / ("torch_" + std::to_string(::getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }
    std::string path() const { return (folder_ / "f.pt").string(); }

    void write(const TorchValue& root, uint64_t zip64From = 0xffffffff) {
        auto out = OutputFile::create(path(), true);
        ASSERT_TRUE(out.ok()) << out.status();
        const auto bytesOf = [](size_t i) -> absl::StatusOr<std::vector<std::byte>> {
            return std::vector<std::byte>(24, static_cast<std::byte>(i + 1));
        };
        const absl::Status written =
            writeTorchFile(**out, root, 2, bytesOf, {{"bulkhead.json", "{}"}}, zip64From);
        ASSERT_TRUE(written.ok()) << written;
        ASSERT_TRUE((*out)->publish().ok());
    }
    fs::path folder_;
};

TorchValue sampleRoot() {
    TorchValue root;
    TorchValue::Dict model;
    model.ordered = true;
    model["w"].value = TorchTensor{"I64", {3}, 0};
    model["again"].value = TorchTensor{"I64", {3}, 0};
    model["v"].value = TorchTensor{"I32", {2, 3}, 1};
    root.at({"model"}).value = std::move(model);
    root.at({"lr"}) = TorchValue::ofNumber("0.25");
    root.at({"most"}) = TorchValue::ofNumber("\"inf\"");
    root.at({"step"}) = TorchValue::ofNumber("7000000000");
    root.at({"none"}) = TorchValue::ofNumber("null");
    root.at({"betas", uint64_t{0}}) = TorchValue::ofNumber("1");
    root.at({"betas", uint64_t{1}}) = TorchValue::ofNumber("2");
    root.at({"words"}) = TorchValue::ofJson(R"(["a", "b"])");
    root.at({"empty"}) = TorchValue::ofJson("{}");
    return root;
}

TEST_F(TorchFileTest, anotherReaderFindsWhatWasWritten) {
    write(sampleRoot());
    const auto bytes = diskFiles().read(path());
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    const auto file = planner::TorchFile::open(*bytes, "f.pt");
    ASSERT_TRUE(file.ok()) << file.status();
    const planner::PickleDict* root = *file->dict();
    EXPECT_EQ(*file->integer(*root, "step", ""), 7000000000);
    EXPECT_EQ(*file->integers(*root, "betas", "", 9), (std::vector<int64_t>{1, 2}));
    const planner::Pickle& pickle = file->pickle();
    const auto* model = std::get_if<planner::PickleDict>(&pickle.find(*root, "model")->value);
    ASSERT_NE(model, nullptr);
    const auto v = file->tensor(*model, "v", "model");
    ASSERT_TRUE(v.ok() && v->has_value()) << v.status();
    EXPECT_EQ((*v)->shape(), (std::vector<uint64_t>{2, 3}));
    std::vector<int64_t> values(6);
    (*v)->integers(0, values);
    EXPECT_EQ(values[5], 0x02020202);
    EXPECT_TRUE(file->tensor(*model, "again", "model")->has_value());
}

TEST_F(TorchFileTest, sizesOfMoreThan32BitsHaveTheirOwnRecords) {
    // Records of 64 bits begin at 20 bytes instead of 4 GB; Python's zipfile checks every record
    // and checksum.
    write(sampleRoot(), 20);
    const std::string check =
        "/usr/bin/python3 -c 'import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); "
        "sys.exit(0 if z.testzip() is None and z.read(\"archive/data/1\") == bytes([2] * 24) and "
        "z.read(\"archive/version\") == b\"3\\n\" else 1)' " +
        path();
    EXPECT_EQ(std::system(check.c_str()), 0);
}

TEST_F(TorchFileTest, aTensorsBytesLieAtAMultipleOf64) {
    write(sampleRoot());
    const std::string bytes = *diskFiles().read(path());
    for (const char first : {'\1', '\2'}) EXPECT_EQ(bytes.find(std::string(24, first)) % 64, 0u);
}

TEST(TorchFile, aDtypeWithoutAStorageIsNamedWithTheRemedy) {
    EXPECT_TRUE(checkTorchDtype("w", "BF16").ok());
    EXPECT_THAT(std::string(checkTorchDtype("w", "F8_E4M3").message()),
                HasSubstr("w has dtype F8_E4M3"));
    EXPECT_THAT(std::string(checkTorchDtype("w", "F8_E4M3").message()),
                HasSubstr("; export --to safetensors"));
}

}  // namespace
}  // namespace bulkhead::interchange
