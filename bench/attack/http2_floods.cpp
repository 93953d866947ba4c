// SPDX-License-Identifier: Apache-2.0
#include "bench/attack/http2_floods.h"

#include <cstdint>
#include <string_view>

namespace bulkhead::bench {
namespace {

constexpr size_t kBytes = 300'000;
enum Type : uint8_t { kData, kHeaders, kReset = 3, kSettings, kPing = 6, kContinuation = 9 };
constexpr uint8_t kHeadersEnd = 4;
constexpr uint8_t kLast = 1;

void number(std::string& out, size_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
}

std::string frame(Type type, uint8_t flags, uint32_t stream, std::string_view payload) {
    std::string out;
    number(out, payload.size(), 3);
    out += static_cast<char>(type);
    out += static_cast<char>(flags);
    number(out, stream, 4);
    return out.append(payload);
}

/// A header that the other end keeps in its table; `name` and `value` of less than 127 bytes.
std::string header(std::string_view name, std::string_view value) {
    std::string out = "\x40";
    for (const std::string_view text : {name, value}) {
        out += static_cast<char>(text.size());
        out += text;
    }
    return out;
}

const std::string kBegin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, 0, 0, "");
const std::string kEmptyRequest(5, '\0');
const std::string kMethodAndScheme = "\x83\x86";  // POST, http

std::string firstHeaders() {
    return kMethodAndScheme + header(":path", "/bulkhead.v1.Server/GetInfo") +
           header(":authority", "x") + header("te", "trailers") +
           header("content-type", "application/grpc");
}

/// The same from the table: four headers in four bytes.
std::string nextHeaders() {
    return kMethodAndScheme + "\xc1\xc0\xbf\xbe";
}

std::string calls(bool reset) {
    std::string out = kBegin;
    for (uint32_t stream = 1; out.size() < kBytes; stream += 2) {
        out += frame(kHeaders, kHeadersEnd, stream, stream == 1 ? firstHeaders() : nextHeaders());
        if (reset) out += frame(kReset, 0, stream, {"\0\0\0\x8", 4});
    }
    return out;
}

/// Each with its request; after http2SignIn().
std::string wholeCalls(bool reset) {
    std::string out;
    for (uint32_t stream = 3; out.size() < kBytes; stream += 2) {
        out += frame(kHeaders, kHeadersEnd, stream, kMethodAndScheme + "\xc2\xc1\xc0\xbf\xbe");
        out += frame(kData, kLast, stream, kEmptyRequest);
        if (reset) out += frame(kReset, 0, stream, {"\0\0\0\x8", 4});
    }
    return out;
}

std::string endless(std::string begin, const std::string& piece) {
    while (begin.size() < kBytes) begin += piece;
    return begin;
}

std::string largeHeaders() {
    std::string block;
    for (int i = 0; i < 100; ++i) block += header("k", std::string(100, 'v'));
    return endless(kBegin + frame(kHeaders, 0, 1, firstHeaders()),
                   frame(kContinuation, 0, 1, block));
}

std::string largeRequest() {
    std::string length(1, '\0');
    number(length, 1900 << 10, 4);
    return endless(
        kBegin + frame(kHeaders, kHeadersEnd, 1, firstHeaders()) + frame(kData, 0, 1, length),
        frame(kData, 0, 1, std::string(16 << 10, 'x')));
}

}  // namespace

std::vector<Http2Flood> http2Floods() {
    return {{"calls opened and reset", calls(true)},
            {"calls opened", calls(false)},
            {"PING", endless(kBegin, frame(kPing, 0, 0, "12345678"))},
            {"SETTINGS", endless(kBegin, frame(kSettings, 0, 0, ""))},
            {"headers without end", largeHeaders()},
            {"a request of 1.9 MB", largeRequest()}};
}

std::string http2SignIn(const std::string& token) {
    return kBegin +
           frame(kHeaders, kHeadersEnd, 1,
                 firstHeaders() + header("authorization", "Bearer " + token)) +
           frame(kData, kLast, 1, kEmptyRequest);
}

std::vector<Http2Flood> http2FloodsOfCallers() {
    return {{"calls opened and reset", wholeCalls(true)},
            {"calls", wholeCalls(false)},
            {"PING", endless("", frame(kPing, 0, 0, "12345678"))},
            {"SETTINGS", endless("", frame(kSettings, 0, 0, ""))}};
}

}  // namespace bulkhead::bench
