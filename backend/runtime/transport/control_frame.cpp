// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/control_frame.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {
namespace {

constexpr uint32_t kFrameMagic = 0x4c434b42;  // "BKCL"
constexpr uint32_t kFrameVersion = 1;

struct Header {
    uint32_t magic = kFrameMagic;
    uint32_t version = kFrameVersion;
    uint32_t length = 0;
    uint32_t checksum[2] = {};  // two words, so that the struct has no padding
};
static_assert(sizeof(Header) == kControlHeaderBytes);

absl::Status broken(const std::string& why) {
    return absl::DataLossError(absl::StrCat("control frame: ", why));
}

}  // namespace

std::string controlHeader(std::string_view payload) {
    Header header;
    header.length = static_cast<uint32_t>(payload.size());
    const uint64_t sum = XXH3_64bits(payload.data(), payload.size());
    std::memcpy(header.checksum, &sum, sizeof sum);
    return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

absl::Status ControlParser::next(std::optional<std::string>& message) {
    message.reset();
    if (buffer_.size() - at_ < sizeof(Header)) return absl::OkStatus();
    Header header;
    std::memcpy(&header, buffer_.data() + at_, sizeof header);
    if (header.magic != kFrameMagic) return broken("the peer does not speak this protocol");
    if (header.version != kFrameVersion)
        return broken(absl::StrCat("version ", header.version, ", expected ", kFrameVersion));
    if (header.length > limit_)
        return broken(
            absl::StrCat("announces ", header.length, " bytes, at most ", limit_, " are accepted"));
    if (buffer_.size() - at_ - sizeof header < header.length) return absl::OkStatus();
    const char* payload = buffer_.data() + at_ + sizeof header;
    uint64_t sum = 0;
    std::memcpy(&sum, header.checksum, sizeof sum);
    if (XXH3_64bits(payload, header.length) != sum) return broken("wrong checksum");
    message.emplace(payload, header.length);
    limit_ = kMaxControlMessage;
    at_ += sizeof header + header.length;
    if (at_ == buffer_.size()) {
        buffer_.clear();
        at_ = 0;
    } else if (at_ > (size_t{1} << 16)) {
        buffer_.erase(0, at_);
        at_ = 0;
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
