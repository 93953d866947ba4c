// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "plugins/llama_moe/config.h"
#include "plugins/llama_moe/device.h"
#include "plugins/llama_moe/swiglu.h"

namespace bulkhead::llama_moe {

/// Memory that feed-forward layers use during one call.
template <class T>
struct FeedForwardScratch {
    Buffer<T> dAct, dNormed;
};

template <class P>
struct FeedForwardWeights {
    P* norm = nullptr;
    SwigluWeights<P> swiglu;
};

/// The dense feed-forward: out = in + swiglu(norm(in)). Keeps what its way back needs.
template <class T>
class FeedForward {
  public:
    absl::Status open(const ModelConfig& config, const Device& device, size_t tokens,
                      FeedForwardScratch<T>* scratch);
    void forward(const FeedForwardWeights<const T>& w, const T* in, T* out, size_t tokens);
    /// dx holds the gradient of `out` and becomes that of `in`.
    void backward(const FeedForwardWeights<const T>& w, const FeedForwardWeights<T>& dw,
                  const T* in, T* dx, size_t tokens);

  private:
    ModelConfig config_;
    SwigluShape shape_;
    FeedForwardScratch<T>* scratch_ = nullptr;
    Buffer<T> scale_, normed_, h_, act_;
};

}  // namespace bulkhead::llama_moe
