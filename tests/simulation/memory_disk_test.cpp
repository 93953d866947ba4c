// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/memory_disk.h"

#include <gtest/gtest.h>

#include <set>

/// The simulated disk keeps what it must and may lose the rest; many seeds show each case.
namespace bulkhead::simulation {
namespace {

constexpr uint64_t kSeeds = 200;

TEST(MemoryDisk, APowerCutLeavesAnyPrefixOfWhatWasNotSynced) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        MemoryDisk disk(seed);
        {
            DiskUser user(disk);
            auto file = *user.open("/a/log");
            ASSERT_TRUE(file->append("ab").ok());
            ASSERT_TRUE(file->sync().ok());
            ASSERT_TRUE(user.syncFolder("/a").ok());
            ASSERT_TRUE(file->append("cd").ok());
        }
        disk.cutPower();
        seen.insert(*DiskUser(disk).read("/a/log"));
    }
    EXPECT_EQ(seen, (std::set<std::string>{"ab", "abc", "abcd"}));
}

TEST(MemoryDisk, ANameIsSafeOnlyOnceItsFolderIsSynced) {
    std::set<bool> seen;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        MemoryDisk disk(seed);
        DiskUser user(disk);
        ASSERT_TRUE((*user.open("/a/new"))->sync().ok());
        user.die();
        disk.cutPower();
        seen.insert(DiskUser(disk).exists("/a/new"));
    }
    EXPECT_EQ(seen, (std::set<bool>{false, true}));
}

TEST(MemoryDisk, AFileWrittenDurablyIsTheOldOrTheNewOne) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        MemoryDisk disk(seed);
        {
            DiskUser user(disk);
            ASSERT_TRUE(writeDurably(user, "/a/term", "1").ok());
            user.dieAfter(seed % 7);
            if (writeDurably(user, "/a/term", "2").ok()) seen.insert("done");
        }
        disk.cutPower();
        seen.insert(*DiskUser(disk).read("/a/term"));
    }
    EXPECT_EQ(seen, (std::set<std::string>{"1", "2", "done"}));
}

TEST(MemoryDisk, ADiskThatLiesLosesWhatItSaidWasSafeUnlessItComesToWriteIt) {
    for (const bool comes : {false, true}) {
        std::set<std::string> seen;
        for (uint64_t seed = 0; seed < kSeeds; ++seed) {
            MemoryDisk disk(seed);
            DiskUser user(disk);
            ASSERT_TRUE(writeDurably(user, "/a/term", "1").ok());
            disk.lie(true);
            ASSERT_TRUE(writeDurably(user, "/a/term", "2").ok());
            if (comes) disk.lie(false);
            user.die();
            disk.cutPower();
            seen.insert(*DiskUser(disk).read("/a/term"));
        }
        EXPECT_EQ(seen, comes ? std::set<std::string>{"2"} : (std::set<std::string>{"", "1", "2"}));
    }
}

TEST(MemoryDisk, AMachineTakesOnlyItsOwnAlong) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        MemoryDisk disk(seed);
        DiskUser here(disk, 1), there(disk, 2);
        const auto write = [](DiskUser& user, const std::string& path) {
            return (*user.open(path))->append("x").ok();
        };
        ASSERT_TRUE(write(here, "/a/here") && write(there, "/a/there"));
        ASSERT_TRUE(there.syncFolder("/a").ok()) << "nobody else's names";
        here.die();
        disk.cutPower(1);
        EXPECT_EQ(*there.read("/a/there"), "x");
        seen.insert(there.exists("/a/here") ? *there.read("/a/here") : "none");
    }
    EXPECT_EQ(seen, (std::set<std::string>{"none", "", "x"}));
}

TEST(MemoryDisk, ALockGoesWithItsProcess) {
    MemoryDisk disk(1);
    DiskUser first(disk);
    DiskUser second(disk);
    const auto held = first.lock("/a/lock");
    ASSERT_TRUE(held.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(second.lock("/a/lock").status()));
    first.die();
    EXPECT_TRUE(second.lock("/a/lock").ok());
}

}  // namespace
}  // namespace bulkhead::simulation
