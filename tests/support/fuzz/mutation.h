// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace bulkhead::fuzz {

/// Changes bytes at random, the same way for the same seed: flips, numbers at the edges, pieces cut
/// out, doubled, or taken from another input, digits of text replaced.
class Mutator {
  public:
    explicit Mutator(uint64_t seed) : random_(seed) {}

    std::string mutate(std::string bytes, const std::vector<std::string>& others) {
        const uint64_t changes = 1 + below(6);
        for (uint64_t i = 0; i < changes; ++i) change(bytes, others);
        return bytes;
    }
    uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

  private:
    void change(std::string& bytes, const std::vector<std::string>& others) {
        constexpr size_t kLongest = size_t{64} << 10;
        const size_t at = below(bytes.size() + 1);
        const size_t length = std::min<size_t>(below(24) + 1, bytes.size() - at);
        switch (below(8)) {
            case 0:
                if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
                return;
            case 1:
                if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
                return;
            case 2:
                return number(bytes, at);
            case 3:
                bytes.erase(at, length);
                return;
            case 4:
                if (bytes.size() < kLongest) bytes.insert(at, bytes.substr(at, length));
                return;
            case 5: {
                const std::string& other = others[below(others.size())];
                const size_t from = below(other.size() + 1);
                if (bytes.size() < kLongest) bytes.insert(at, other.substr(from, below(64)));
                return;
            }
            case 6:
                if (below(8) == 0) bytes.resize(at);
                return;
            default:
                return digits(bytes, at);
        }
    }
    /// Overwrites 1, 2, 4 or 8 bytes by a number that readers trip over.
    void number(std::string& bytes, size_t at) {
        constexpr uint64_t kEdges[] = {0,
                                       1,
                                       0x7f,
                                       0x80,
                                       0xff,
                                       0x7fff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       0x7fffffffffffffff,
                                       ~uint64_t{0}};
        uint64_t value = kEdges[below(std::size(kEdges))] + below(3) - 1;
        const size_t width = size_t{1} << below(4);
        for (size_t i = 0; i < width && at + i < bytes.size(); ++i, value >>= 8)
            bytes[at + i] = static_cast<char>(value & 0xff);
    }
    /// Replaces the next digit of a text by other words.
    void digits(std::string& bytes, size_t at) {
        static const std::vector<std::string> kWords = {"0",
                                                        "-1",
                                                        "18446744073709551616",
                                                        "1e308",
                                                        "9223372036854775807",
                                                        "null",
                                                        "[]",
                                                        "{}",
                                                        "\"x\"",
                                                        "true",
                                                        "4294967296",
                                                        "65536",
                                                        "[[[]]]",
                                                        "\xff"};
        const size_t found = bytes.find_first_of("0123456789", at);
        if (found == std::string::npos) return;
        bytes.replace(found, 1, kWords[below(kWords.size())]);
    }

    std::mt19937_64 random_;
};

}  // namespace bulkhead::fuzz
