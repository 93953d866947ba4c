// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "backend/model/domain_text.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CorpusTest : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::path(::testing::TempDir()) / ("corpus_" + std::to_string(::getpid()));
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string write(const std::string& name, const std::string& text) {
        const fs::path path = folder_ / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << text;
        return path.string();
    }
    static std::string letters(size_t n) {
        std::string text;
        for (size_t i = 0; i < n; ++i) text += static_cast<char>('a' + i % 23);
        return text;
    }
    std::string error(const std::vector<model::DomainSpec>& domains) {
        auto corpus = Corpus::load(domains, 16, 1);
        return corpus.ok() ? "" : std::string(corpus.status().message());
    }
    fs::path folder_;
};

TEST_F(CorpusTest, aCopyIsTheSameCorpusWhateverBecomesOfTheOriginal) {
    write("tree/a.txt", letters(100));
    write("tree/deep/b.txt", letters(70));
    write("tree/picture", std::string("\0\1", 2));
    const std::vector<model::DomainSpec> here = {
        {"code", {(folder_ / "tree").string(), write("c.txt", letters(31))}},
        {"law/../x", {write("d.txt", letters(40))}}};
    auto original = Corpus::load(here, 16, 1);
    ASSERT_TRUE(original.ok()) << original.status();
    const auto copies = model::copyDomains(here, folder_ / "copy");
    ASSERT_TRUE(copies.ok()) << copies.status();
    for (const model::DomainSpec& domain : *copies)
        EXPECT_EQ(fs::path(domain.paths.at(0)).parent_path(), folder_ / "copy");
    write("tree/deep/b.txt", letters(71));
    auto edited = Corpus::load(here, 16, 1);
    auto copied = Corpus::load(*copies, 16, 1);
    ASSERT_TRUE(edited.ok() && copied.ok());
    EXPECT_EQ((*copied)->identity().hash(), (*original)->identity().hash());
    EXPECT_NE((*edited)->identity().hash(), (*original)->identity().hash());
    EXPECT_THAT((*edited)->identity().newest(), HasSubstr((folder_ / "tree/deep/b.txt").string()));
}

TEST_F(CorpusTest, aCopyThatFailsLeavesNothing) {
    const std::vector<model::DomainSpec> here = {{"a", {write("a.txt", letters(40))}},
                                                 {"b", {(folder_ / "none").string()}}};
    const auto missing = model::copyDomains(here, folder_ / "copy");
    EXPECT_THAT(std::string(missing.status().message()), HasSubstr("domain \"b\""));
    EXPECT_FALSE(fs::exists(folder_ / "copy"));
    const auto nowhere = model::copyDomains({here[0]}, folder_ / "a.txt");
    EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("data_copy_bytes"));
}

TEST_F(CorpusTest, everyWindowComesOnceInEachPassAndPassesDiffer) {
    const std::string path = write("a.txt", letters(16 * 40 + 9));
    auto corpus = Corpus::load({{"prose", {path}}}, 16, 7);
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    const uint64_t windows = (*corpus)->samplesPerPass(0);
    EXPECT_EQ(windows, 40u);
    std::vector<uint64_t> first;
    for (uint64_t pass = 0; pass < 3; ++pass) {
        std::set<uint64_t> offsets;
        std::vector<uint64_t> order;
        for (uint64_t i = 0; i < windows; ++i) {
            const uint64_t offset = (*corpus)->offsetOf(0, pass * windows + i);
            offsets.insert(offset);
            order.push_back(offset / 16);
            EXPECT_EQ((*corpus)->sample(0, pass * windows + i)->bytes.size(), 17u);
        }
        EXPECT_EQ(offsets.size(), windows);
        EXPECT_LE(*offsets.rbegin() + 17, 16u * 40 + 9);
        if (pass == 0) first = order;
        if (pass > 0) {
            EXPECT_NE(order, first);
        }
    }
}

TEST_F(CorpusTest, theSeedDecidesTheOrderAndTheContentTheHash) {
    const std::string path = write("a.txt", letters(999));
    auto one = Corpus::load({{"prose", {path}}}, 16, 1);
    auto same = Corpus::load({{"prose", {path}}}, 16, 1);
    auto other = Corpus::load({{"prose", {path}}}, 16, 2);
    bool differs = false;
    for (uint64_t i = 0; i < 20; ++i) {
        EXPECT_EQ((*one)->offsetOf(0, i), (*same)->offsetOf(0, i));
        differs |= (*one)->offsetOf(0, i) / 16 != (*other)->offsetOf(0, i) / 16;
    }
    EXPECT_TRUE(differs);
    EXPECT_EQ((*one)->identity().hash(), (*other)->identity().hash());
    write("a.txt", letters(998) + "!");
    EXPECT_NE((*Corpus::load({{"prose", {path}}}, 16, 1))->identity().hash(),
              (*one)->identity().hash());
}

TEST_F(CorpusTest, aFolderIsReadInNameOrderAndNamesWhatItLeavesOut) {
    write("d/b.txt", std::string(20, 'b'));
    write("d/a/z.txt", std::string(20, 'a'));
    write("d/empty.txt", "");
    write("d/picture.bin", std::string("\x89P\0G", 4));
    auto corpus = Corpus::load({{"code", {(folder_ / "d").string()}}}, 39, 1);
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    EXPECT_EQ((*corpus)->sample(0, 0)->bytes, std::string(20, 'a') + std::string(20, 'b'));
    ASSERT_EQ((*corpus)->leftOut().size(), 2u);
    EXPECT_THAT((*corpus)->leftOut()[0], HasSubstr("empty.txt: empty"));
    EXPECT_THAT((*corpus)->leftOut()[1], HasSubstr("picture.bin: not text"));
}

TEST_F(CorpusTest, refusesWhatItCannotTrainOnAndNamesIt) {
    EXPECT_THAT(error({}), HasSubstr("no domain"));
    EXPECT_THAT(error({{"x", {folder_.string() + "/absent"}}}), HasSubstr("absent"));
    EXPECT_THAT(error({{"x", {write("empty", "")}}}), HasSubstr("empty: the file is empty"));
    EXPECT_THAT(error({{"x", {write("short", "0123456789")}}}), HasSubstr("one sample needs 17"));
    fs::create_directories(folder_ / "hollow");
    EXPECT_THAT(error({{"x", {(folder_ / "hollow").string()}}}),
                HasSubstr("no text in this folder"));
    if (::geteuid() != 0) {
        const std::string secret = write("secret", letters(100));
        ::chmod(secret.c_str(), 0);
        EXPECT_THAT(error({{"x", {secret}}}), HasSubstr("secret"));
    }
}

TEST(Lease, everyShardRunsTheSameNumberOfMicroBatches) {
    const std::vector<SampleRange> lease = {{0, 10, 13}, {2, 4, 8}};
    EXPECT_EQ(microBatches(lease, 3, 2), 2u);
    EXPECT_EQ(microBatches({}, 3, 2), 0u);
}

/// Runs that were begun by an earlier build go on: another order would give samples twice.
TEST(Permute, theOrderOfSamplesIsThatOfEveryBuild) {
    const auto order = [](uint64_t seed, uint32_t domain, uint64_t pass) {
        std::string out;
        for (uint64_t i = 0; i < 10; ++i)
            out += std::to_string(permute(i, 10, passKey(seed, domain, pass)));
        return out;
    };
    EXPECT_EQ(order(1, 0, 0), "1037546298");
    EXPECT_EQ(order(1, 1, 0), "6581274903");
    EXPECT_EQ(order(7, 2, 3), "0135267849");
}

TEST(Permute, isABijectionOfEverySize) {
    for (const uint64_t size : {1ull, 2ull, 3ull, 17ull, 64ull, 1000ull}) {
        std::set<uint64_t> seen;
        for (uint64_t i = 0; i < size; ++i) {
            const uint64_t at = permute(i, size, 42);
            EXPECT_LT(at, size);
            seen.insert(at);
        }
        EXPECT_EQ(seen.size(), size);
    }
}

}  // namespace
}  // namespace bulkhead::runtime
