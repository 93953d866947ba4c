// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace bulkhead::runtime {
namespace {

/// Every start within a cache line, lengths around one and two: nothing missing, nothing beyond.
TEST(StreamCopy, CopiesJustWhatItShall) {
    constexpr size_t kRoom = 256;
    std::vector<std::byte> from(kRoom);
    for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i + 1);
    for (size_t offset = 0; offset < 66; ++offset)
        for (const size_t size : {0, 1, 63, 64, 65, 127, 128, 150}) {
            std::vector<std::byte> to(kRoom, std::byte{0xee});
            std::vector<std::byte> want = to;
            for (size_t i = 0; i < size; ++i) want[offset + i] = from[i + 3];
            streamCopy(to.data() + offset, from.data() + 3, size);
            ASSERT_EQ(to, want) << "offset " << offset << ", size " << size;
        }
}

}  // namespace
}  // namespace bulkhead::runtime
