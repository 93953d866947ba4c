// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

/// Frames of the control channel: magic, version, length, xxh3 of the payload, all little-endian,
/// then the payload. Pure.
namespace bulkhead::runtime {

constexpr size_t kControlHeaderBytes = 20;

/// The header for `payload`, which follows it on the wire.
std::string controlHeader(std::string_view payload);

/// Cuts a byte stream back into messages. Never holds more than one message of at most
/// kMaxControlMessage (the first one: of at most `firstMessage`), and allocates for bytes that
/// came, not for bytes announced.
class ControlParser {
  public:
    explicit ControlParser(size_t firstMessage) : limit_(firstMessage) {}
    void append(std::string_view bytes) { buffer_.append(bytes); }
    /// The next whole message; empty optional when more bytes are needed. After an error (DataLoss,
    /// naming what was wrong) the stream is of no use.
    absl::Status next(std::optional<std::string>& message);

  private:
    std::string buffer_;
    size_t at_ = 0;
    size_t limit_;
};

}  // namespace bulkhead::runtime
