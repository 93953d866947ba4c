// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/common/secret.h"
#include "backend/runtime/transport/data_frame.h"

struct evp_cipher_ctx_st;

namespace bulkhead::runtime {

/// The frames of one direction of one connection, numbered from 0: who has the key notices a frame
/// that was changed, left out, repeated, moved or made by somebody else. Headers and payloads that
/// stay readable have a tag of ChaCha20-Poly1305 over associated data alone, which costs little
/// more than a checksum; encrypted payloads have one of AES-256-GCM. One end seals, the other
/// opens, each with an object of its own. Thread: one at a time.
class FrameSeal {
  public:
    explicit FrameSeal(const Secret& key);

    /// Fills in the tags of the next frame. Returns what follows the header on the wire: `payload`,
    /// or, where header.protection says so, its ciphertext, which is kept until the next call.
    std::span<const std::byte> seal(FrameHeader& header, std::span<const std::byte> payload);

    /// The next frame's header is what was sealed.
    [[nodiscard]] bool open(const FrameHeader& header);
    /// The same of the payload behind the header that was opened last; decrypts it in place.
    [[nodiscard]] bool open(const FrameHeader& header, std::span<std::byte> payload);

  private:
    struct Free {
        void operator()(evp_cipher_ctx_st* context) const;
    };
    using Context = std::unique_ptr<evp_cipher_ctx_st, Free>;
    enum class Part : uint32_t { kHeader, kPayload };

    static Context contextOf(const char* cipher, const Secret& key);
    /// `out` null: `in` is associated data. False: the tag does not fit.
    bool run(evp_cipher_ctx_st* context, Part part, bool sealing, const std::byte* in, size_t size,
             std::byte* out, FrameTag& tag);

    Context readable_, encrypted_;
    uint64_t frame_ = 0;  ///< number of the one after
    std::vector<std::byte> ciphertext_;
};

}  // namespace bulkhead::runtime
