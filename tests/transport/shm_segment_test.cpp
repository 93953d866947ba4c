// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/shm_segment.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <thread>

#include "backend/runtime/transport/futex.h"

namespace bulkhead::runtime {
namespace {

class ShmSegmentTest : public ::testing::Test {
  protected:
    ShmSegmentTest() {
        identity_.token = 1;
        identity_.members = 2;
    }
    ~ShmSegmentTest() override { removeSegments(prefix_); }

    auto create() { return ShmSegment::create(prefix_ + ".a", identity_, 7, 3, 1000); }
    auto open() { return ShmView::open(prefix_ + ".a", identity_, 7, 3, 1000); }

    const std::string prefix_ = "bulkhead-segment-" + std::to_string(::getpid());
    MeshIdentity identity_;
};

TEST_F(ShmSegmentTest, AReaderSeesWhatWasPublishedAndTheOneBefore) {
    auto segment = create().value();
    auto view = open().value();
    for (uint32_t sequence = 1; sequence <= 3; ++sequence) {
        std::memset(segment->slot(sequence).data(), static_cast<int>('0' + sequence), 1000);
        segment->slotHeader(sequence).step = sequence;
        segment->slotHeader(sequence).pieces[1] = {0, 1000};
        segment->publish(sequence);
    }
    EXPECT_EQ(view->published().load(), 3u);
    for (uint32_t sequence = 2; sequence <= 3; ++sequence) {
        const ShmSlotHeader header = view->slotHeader(sequence);
        EXPECT_EQ(header.step, sequence);
        const auto bytes = view->piece(sequence, header.pieces[1]).value();
        EXPECT_EQ(static_cast<char>(bytes[999]), static_cast<char>('0' + sequence));
    }
}

TEST_F(ShmSegmentTest, APieceOutsideItsSlotIsRefused) {
    auto segment = create().value();
    auto view = open().value();
    EXPECT_TRUE(view->piece(1, {0, 1000}).ok());
    EXPECT_TRUE(absl::IsDataLoss(view->piece(1, {0, 1001}).status()));
    EXPECT_TRUE(absl::IsDataLoss(view->piece(1, {1001, 0}).status()));
    EXPECT_TRUE(absl::IsDataLoss(view->piece(1, {UINT64_MAX, 2}).status()));
    EXPECT_TRUE(absl::IsDataLoss(view->piece(1, {999, UINT64_MAX}).status()));
}

TEST_F(ShmSegmentTest, AnotherExchangeTokenOrIncarnationIsRefused) {
    EXPECT_TRUE(absl::IsNotFound(open().status()));
    auto segment = create().value();
    MeshIdentity other = identity_;
    other.token = 2;
    EXPECT_TRUE(
        absl::IsPermissionDenied(ShmView::open(prefix_ + ".a", other, 7, 3, 1000).status()));
    EXPECT_TRUE(
        absl::IsPermissionDenied(ShmView::open(prefix_ + ".a", identity_, 7, 4, 1000).status()));
    EXPECT_TRUE(open().ok());
}

TEST_F(ShmSegmentTest, AKilledWriterIsNoticedAndItsBytesStayReadable) {
    const pid_t child = ::fork();
    if (child == 0) {
        auto segment = create().value();
        std::memset(segment->slot(1).data(), 'x', 1000);
        segment->publish(1);
        while (true) ::pause();
    }
    absl::StatusOr<std::unique_ptr<ShmView>> view = open();
    while (!view.ok() || (*view)->published().load() != 1) {
        std::this_thread::yield();
        if (!view.ok()) view = open();
    }
    EXPECT_TRUE((*view)->writerAlive());
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_FALSE((*view)->writerAlive());
    EXPECT_EQ(static_cast<char>((*view)->piece(1, {0, 1000}).value()[999]), 'x');
    EXPECT_EQ(removeSegments(prefix_), 1u) << "the leftover of the kill";
    EXPECT_EQ(removeSegments(prefix_), 0u);
    EXPECT_EQ(removeSegments(""), 0u);
}

TEST_F(ShmSegmentTest, AFutexOnTheReadersMappingWakesAtPublish) {
    auto segment = create().value();
    auto view = open().value();
    const std::atomic<uint32_t> never{0};
    std::thread waiting([&] {
        while (view->published().load() == 0)
            futexWaitEither(view->published(), 0, never, 0, 3600 * kSecond);
    });
    segment->publish(1);
    waiting.join();
}

}  // namespace
}  // namespace bulkhead::runtime
