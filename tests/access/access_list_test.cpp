// SPDX-License-Identifier: Apache-2.0
#include "backend/access/access_list.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "backend/access/watched_file.h"
#include "backend/common/digest.h"

namespace bulkhead::access {
namespace {

using ::testing::HasSubstr;

TEST(AccessList, IsReadAsItIsWritten) {
    AccessList list;
    list.put({"bob", Role::kViewer, false, {}, "", ""});
    list.put({"anna", Role::kOperator, true, {sha256Hex("secret")}, "Anna Ng", "2027-01-31"});
    list.put({"bob", Role::kAdmin, false, {}, "", ""});
    const auto read = AccessList::parse(list.text(), "access.toml");
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->principals().size(), 2u);
    EXPECT_EQ(read->text(), list.text());
    EXPECT_EQ(read->named("bob")->role, Role::kAdmin);
    ASSERT_NE(read->withToken("secret"), nullptr);
    EXPECT_EQ(read->withToken("secret")->name, "anna");
    EXPECT_EQ(read->withToken("Secret"), nullptr);
    EXPECT_EQ(read->withCertificate("Anna Ng")->name, "anna");
    EXPECT_EQ(read->withCertificate("anna"), nullptr) << "her certificate has another name";
    EXPECT_EQ(read->withCertificate("bob")->name, "bob");
    EXPECT_EQ(*expiryOf(*read->named("anna")), 1801353600);
}

TEST(AccessList, SaysWhatIsWrongAndWhere) {
    const std::pair<const char*, const char*> cases[] = {
        {"[[principal]]\nname = \"a\"\n", "access.toml:1: role: missing"},
        {"[[principal]]\nname = \"a/b\"\nrole = \"viewer\"\n",
         "access.toml:2: name: expected up to"},
        {"[[principal]]\nname = \"a\"\nrole = \"root\"\n",
         "access.toml:3: role: expected one of viewer, operator, admin, found \"root\""},
        {"[[principal]]\nname = \"a\"\nrole = \"viewer\"\ntoken = \"x\"\n",
         "unknown key \"token\""},
        {"[[principal]]\nname = \"a\"\nrole = \"viewer\"\ntokens = [\"plain\"]\n",
         "access.toml:4: tokens: expected the SHA-256"},
        {"[[principal]]\nname = \"a\"\nrole = \"viewer\"\nexpires = \"2027-02-30\"\n",
         "access.toml:4: expires: expected a day"},
        {"[[principal]]\nname = \"a\"\nrole = \"viewer\"\n[[principal]]\nname = \"a\"\nrole = "
         "\"admin\"\n",
         "access.toml:5: name: expected each name once"},
        {"[[principal]]\nname = \"a\"\nrole = \"viewer\"\n[[principal]]\nname = \"b\"\nrole = "
         "\"admin\"\ncertificate = \"a\"\n",
         "certificate: expected each common name once"},
        {"principal = 7\n", "expected [[principal]] tables"},
        {"[people]\n", "expected [[principal]], found \"people\""},
    };
    for (const auto& [text, expected] : cases) {
        const auto list = AccessList::parse(text, "access.toml");
        ASSERT_FALSE(list.ok()) << text;
        EXPECT_THAT(std::string(list.status().message()), HasSubstr(expected));
    }
}

class WatchedFileTest : public ::testing::Test {
  protected:
    WatchedFileTest() {
        std::string pattern = ::testing::TempDir() + "bulkhead-access-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
    }
    ~WatchedFileTest() override { std::filesystem::remove_all(dir_); }
    std::string path() const { return dir_ + "/access.toml"; }
    using File = WatchedFile<AccessList>;
    auto open(File::WhenRemoved removed = File::WhenRemoved::kNothing) const {
        return File::open(path(), removed, &AccessList::read);
    }
    void write(const std::string& text) {
        // A file of its own each time, as the tools write it.
        std::ofstream(path() + ".new") << text;
        ::chmod((path() + ".new").c_str(), 0600);
        std::filesystem::rename(path() + ".new", path());
    }
    std::string dir_;
};

TEST_F(WatchedFileTest, IsReadAgainWhenItChangesAndKeepsTheLastThatCouldBeUsed) {
    auto file = open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE((*file)->now()->principals().empty());
    write("[[principal]]\nname = \"anna\"\nrole = \"viewer\"\n");
    EXPECT_NE((*file)->now()->named("anna"), nullptr);
    write("[[principal]\n");
    EXPECT_NE((*file)->now()->named("anna"), nullptr);
    write("[[principal]]\nname = \"bob\"\nrole = \"viewer\"\n");
    EXPECT_EQ((*file)->now()->named("anna"), nullptr);
    std::filesystem::remove(path());
    EXPECT_TRUE((*file)->now()->principals().empty()) << "nobody, once it is gone";
}

TEST_F(WatchedFileTest, WhatTakesAwayGoesOnWhenItsFileIsRemoved) {
    auto file = open(File::WhenRemoved::kContentBefore);
    ASSERT_TRUE(file.ok()) << file.status();
    write("[[principal]]\nname = \"anna\"\nrole = \"viewer\"\n");
    EXPECT_NE((*file)->now()->named("anna"), nullptr);
    std::filesystem::remove(path());
    EXPECT_NE((*file)->now()->named("anna"), nullptr);
    write("");
    EXPECT_EQ((*file)->now()->named("anna"), nullptr) << "an empty file says so";
}

TEST_F(WatchedFileTest, OneThatOthersMayWriteIsRefused) {
    write("");
    ::chmod(path().c_str(), 0620);
    const auto file = open();
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("chmod go-w"));
}

}  // namespace
}  // namespace bulkhead::access
