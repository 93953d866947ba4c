// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace bulkhead {

/// 256 bits that prove who somebody is, or keep bytes from others. A secret is never printed: no
/// message to people, event or run file has one. Thread: a value.
struct Secret {
    std::array<uint64_t, 4> words{};

    Secret() = default;  // no aggregate: its words are not taken from a list of another struct's
    /// The system draws it. Aborts when the system has no random numbers to give.
    static Secret random();
    /// HKDF-Extract (RFC 5869) with SHA-256 of a secret that a person keeps in a file.
    static Secret ofText(std::string_view text);

    /// Another secret, which tells nothing of this one: HKDF-Expand (RFC 5869) with SHA-256, one
    /// block. Equal for equal `purpose`.
    Secret derive(std::string_view purpose) const;
    /// Takes as long whatever differs.
    bool operator==(const Secret& other) const;

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("word0", self.words[0]);
        visit("word1", self.words[1]);
        visit("word2", self.words[2]);
        visit("word3", self.words[3]);
    }
};

}  // namespace bulkhead
