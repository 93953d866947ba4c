// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/frame_seal.h"

#include <openssl/evp.h>

#include <cstring>

namespace bulkhead::runtime {
namespace {

constexpr size_t kSigned = offsetof(FrameHeader, headerTag);

}  // namespace

void FrameSeal::Free::operator()(evp_cipher_ctx_st* context) const {
    ::EVP_CIPHER_CTX_free(context);
}

FrameSeal::Context FrameSeal::contextOf(const char* cipher, const Secret& key) {
    Context context(::EVP_CIPHER_CTX_new());
    EVP_CIPHER* const fetched = ::EVP_CIPHER_fetch(nullptr, cipher, nullptr);
    const Secret own = key.derive(cipher);
    ::EVP_CipherInit_ex(context.get(), fetched, nullptr,
                        reinterpret_cast<const unsigned char*>(own.words.data()), nullptr, 1);
    ::EVP_CIPHER_free(fetched);
    return context;
}

FrameSeal::FrameSeal(const Secret& key)
    : readable_(contextOf("ChaCha20-Poly1305", key)), encrypted_(contextOf("AES-256-GCM", key)) {}

bool FrameSeal::run(evp_cipher_ctx_st* context, Part part, bool sealing, const std::byte* in,
                    size_t size, std::byte* out, FrameTag& tag) {
    unsigned char nonce[12];
    const auto which = static_cast<uint32_t>(part);
    std::memcpy(nonce, &frame_, sizeof frame_);
    std::memcpy(nonce + sizeof frame_, &which, sizeof which);
    int length = 0;
    if (::EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce, sealing ? 1 : 0) != 1)
        return false;
    if (!sealing &&
        ::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, sizeof tag.words, tag.words) != 1)
        return false;
    if (::EVP_CipherUpdate(context, reinterpret_cast<unsigned char*>(out), &length,
                           reinterpret_cast<const unsigned char*>(in), static_cast<int>(size)) != 1)
        return false;
    unsigned char rest[16];
    if (::EVP_CipherFinal_ex(context, rest, &length) != 1) return false;
    return !sealing ||
           ::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, sizeof tag.words, tag.words) == 1;
}

std::span<const std::byte> FrameSeal::seal(FrameHeader& header,
                                           std::span<const std::byte> payload) {
    std::span<const std::byte> wire = payload;
    if (!payload.empty() && header.protection == Protection::kReadable)
        run(readable_.get(), Part::kPayload, true, payload.data(), payload.size(), nullptr,
            header.payloadTag);
    if (!payload.empty() && header.protection == Protection::kEncrypted) {
        ciphertext_.resize(payload.size());
        run(encrypted_.get(), Part::kPayload, true, payload.data(), payload.size(),
            ciphertext_.data(), header.payloadTag);
        wire = ciphertext_;
    }
    run(readable_.get(), Part::kHeader, true, reinterpret_cast<const std::byte*>(&header), kSigned,
        nullptr, header.headerTag);
    ++frame_;
    return wire;
}

bool FrameSeal::open(const FrameHeader& header) {
    FrameTag tag = header.headerTag;
    const bool right = run(readable_.get(), Part::kHeader, false,
                           reinterpret_cast<const std::byte*>(&header), kSigned, nullptr, tag);
    ++frame_;
    return right;
}

bool FrameSeal::open(const FrameHeader& header, std::span<std::byte> payload) {
    if (payload.empty() || header.protection == Protection::kNone) return true;
    const bool encrypted = header.protection == Protection::kEncrypted;
    FrameTag tag = header.payloadTag;
    --frame_;  // of the header that was opened
    const bool right =
        run(encrypted ? encrypted_.get() : readable_.get(), Part::kPayload, false, payload.data(),
            payload.size(), encrypted ? payload.data() : nullptr, tag);
    ++frame_;
    return right;
}

}  // namespace bulkhead::runtime
