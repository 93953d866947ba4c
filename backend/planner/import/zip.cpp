// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/zip.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "backend/model/names.h"
#include "backend/planner/import/little_endian.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr uint32_t kEndSignature = 0x06054b50, kCentralSignature = 0x02014b50,
                   kLocalSignature = 0x04034b50;
constexpr size_t kEndSize = 22, kCentralSize = 46, kLocalSize = 30, kLongestComment = 65535;
constexpr uint16_t kEncrypted = 1, kStored = 0;
constexpr uint32_t kSeeZip64 = 0xffffffff;

constexpr std::array<uint32_t, 256> kCrcTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0xedb88320u : 0u);
        table[i] = c;
    }
    return table;
}();

uint32_t crc32(std::string_view bytes) {
    uint32_t c = ~0u;
    for (const char byte : bytes) c = kCrcTable[(c ^ static_cast<uint8_t>(byte)) & 0xff] ^ (c >> 8);
    return ~c;
}

/// Returns the offset of the end-of-central-directory record; npos when there is none.
size_t endRecord(std::string_view bytes) {
    if (bytes.size() < kEndSize) return std::string_view::npos;
    const size_t last = bytes.size() - kEndSize;
    const size_t first = last > kLongestComment ? last - kLongestComment : 0;
    for (size_t at = last + 1; at-- > first;)
        if (numberAt<uint32_t>(bytes, at) == kEndSignature) return at;
    return std::string_view::npos;
}

/// The data of an entry, from its central record at `at`; empty optional text on success.
struct Entry {
    std::string_view name, data;
    size_t next = 0;
    std::string problem;
};

Entry entryAt(std::string_view bytes, size_t at) {
    Entry entry;
    const auto fails = [&](std::string problem) {
        entry.problem = std::move(problem);
        return entry;
    };
    if (bytes.size() - at < kCentralSize || numberAt<uint32_t>(bytes, at) != kCentralSignature)
        return fails("no entry of the central directory where one should be");
    const auto flags = numberAt<uint16_t>(bytes, at + 8),
               method = numberAt<uint16_t>(bytes, at + 10);
    const auto crc = numberAt<uint32_t>(bytes, at + 16);
    const auto packed = numberAt<uint32_t>(bytes, at + 20),
               size = numberAt<uint32_t>(bytes, at + 24);
    const size_t nameLength = numberAt<uint16_t>(bytes, at + 28);
    const size_t more =
        size_t{numberAt<uint16_t>(bytes, at + 30)} + numberAt<uint16_t>(bytes, at + 32);
    const size_t local = numberAt<uint32_t>(bytes, at + 42);
    if (bytes.size() - at - kCentralSize < nameLength + more)
        return fails("the directory is cut off");
    entry.name = bytes.substr(at + kCentralSize, nameLength);
    entry.next = at + kCentralSize + nameLength + more;
    if ((flags & kEncrypted) != 0) return fails("it is encrypted");
    if (method != kStored || packed != size) return fails("it is compressed; torch.save stores");
    if (size == kSeeZip64 || local == kSeeZip64) return fails("it has zip64 sizes, over 4 GB");
    if (local > bytes.size() || bytes.size() - local < kLocalSize ||
        numberAt<uint32_t>(bytes, local) != kLocalSignature)
        return fails("its local header is missing");
    const size_t data = local + kLocalSize + numberAt<uint16_t>(bytes, local + 26) +
                        numberAt<uint16_t>(bytes, local + 28);
    if (data > bytes.size() || bytes.size() - data < size) return fails("its data is cut off");
    entry.data = bytes.substr(data, size);
    if (crc32(entry.data) != crc) return fails("its checksum is wrong; the file is damaged");
    return entry;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string_view, std::less<>>> openZip(
    std::string_view bytes, std::string_view file) {
    constexpr size_t kMostEntries = 100'000;
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(concat(file, ": ", words...));
    };
    const size_t end = endRecord(bytes);
    if (end == std::string_view::npos)
        return refuse("no zip end record; this is no torch.save file, or it is cut off");
    const size_t entries = numberAt<uint16_t>(bytes, end + 10);
    size_t at = numberAt<uint32_t>(bytes, end + 16);
    if (entries == 0xffff || at == kSeeZip64) return refuse("byte ", end, ": zip64 is not read");
    if (entries > kMostEntries || at > end)
        return refuse("byte ", end, ": the zip end record lies");
    std::map<std::string, std::string_view, std::less<>> out;
    uint64_t held = 0;
    for (size_t i = 0; i < entries; ++i) {
        const Entry entry = entryAt(bytes, at);
        const std::string name = model::shortened(entry.name, 120);
        if (!entry.problem.empty())
            return refuse("byte ", at, ": zip entry ", i,
                          name.empty() ? "" : concat(" (", name, ")"), ": ", entry.problem);
        held += entry.data.size();
        // Entries that overlap would have the same bytes read (and summed) again and again.
        if (held > bytes.size()) return refuse("byte ", at, ": zip entries overlap");
        if (!out.emplace(std::string(entry.name), entry.data).second)
            return refuse("byte ", at, ": two zip entries ", name);
        at = entry.next;
    }
    return out;
}

}  // namespace bulkhead::planner
