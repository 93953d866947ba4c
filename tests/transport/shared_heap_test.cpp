// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/shared_heap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

namespace bulkhead::runtime {
namespace {

std::span<const std::byte> bytesOf(const void* at, size_t size) {
    return {static_cast<const std::byte*>(at), size};
}

TEST(SharedHeap, MemoryIsZeroedAlignedAndFoundWhereItLies) {
    SharedHeap heap;
    auto* memory = static_cast<std::byte*>(heap.allocate(1000).value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(memory[i], std::byte{0});
    ASSERT_TRUE(heap.find(bytesOf(memory + 10, 990)));
    EXPECT_EQ(heap.find(bytesOf(memory + 10, 990))->offset, 10u);
    EXPECT_FALSE(heap.find(bytesOf(memory + 10, 991))) << "one byte too long";
    int outside = 0;
    EXPECT_FALSE(heap.find(bytesOf(&outside, sizeof outside)));
    EXPECT_FALSE(heap.free(&outside));
    EXPECT_TRUE(heap.free(memory));
    EXPECT_FALSE(heap.find(bytesOf(memory, 1)));
}

TEST(SharedHeap, MoreThanThereIsIsRefused) {
    SharedHeap heap;
    EXPECT_TRUE(absl::IsResourceExhausted(heap.allocate(size_t{1} << 60).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(heap.allocate(~size_t{0}).status()));
}

TEST(SharedHeap, AReaderSeesWhatAnotherProcessWritesAndKeepsItWhenThatIsKilled) {
    int place[2], go[2];
    ASSERT_EQ(::pipe(place), 0);
    ASSERT_EQ(::pipe(go), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        SharedHeap heap;
        auto* memory = static_cast<char*>(heap.allocate(1 << 20).value());
        std::strcpy(memory + 4096, "retained");
        const HeapPlace where = *heap.find(bytesOf(memory + 4096, 9));
        const uint64_t id = heap.id();
        (void)!::write(place[1], &where, sizeof where);
        (void)!::write(place[1], &id, sizeof id);
        char end;
        (void)!::read(go[0], &end, 1);
        ::_exit(0);
    }
    HeapPlace where;
    uint64_t id = 0;
    ASSERT_EQ(::read(place[0], &where, sizeof where), static_cast<ssize_t>(sizeof where));
    ASSERT_EQ(::read(place[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    HeapReader reader;
    const auto seen = reader.at(child, id, where, 9);
    ASSERT_TRUE(seen.ok()) << seen.status();
    EXPECT_STREQ(reinterpret_cast<const char*>(seen->data()), "retained");
    EXPECT_TRUE(absl::IsDataLoss(reader.at(child, id, where, 2 << 20).status()));
    EXPECT_TRUE(absl::IsDataLoss(HeapReader().at(child, id + 1, where, 9).status()))
        << "another heap";
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_STREQ(reinterpret_cast<const char*>(seen->data()), "retained");
    EXPECT_TRUE(reader.at(child, id, where, 9).ok()) << "it is mapped";
    EXPECT_TRUE(absl::IsUnavailable(HeapReader().at(child, id, where, 9).status()));
    for (const int fd : {place[0], place[1], go[0], go[1]}) ::close(fd);
}

TEST(SharedHeap, AFileThatCouldShrinkUnderItsReaderIsRefused) {
    const int fd = ::memfd_create("not-sealed", MFD_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, 8192), 0);
    HeapReader reader;
    EXPECT_TRUE(absl::IsDataLoss(reader.at(::getpid(), 1, {fd, 1, 0}, 8).status()));
    ::close(fd);
}

TEST(SharedHeap, ForgetsHeapsThatAreNotKept) {
    SharedHeap heap;
    void* memory = heap.allocate(64).value();
    const HeapPlace where = *heap.find(bytesOf(memory, 64));
    HeapReader reader;
    ASSERT_TRUE(reader.at(::getpid(), heap.id(), where, 64).ok());
    heap.free(memory);
    EXPECT_TRUE(reader.at(::getpid(), heap.id(), where, 64).ok()) << "mapped before it was freed";
    reader.keepOnly({});
    EXPECT_FALSE(reader.at(::getpid(), heap.id(), where, 64).ok());
}

}  // namespace
}  // namespace bulkhead::runtime
