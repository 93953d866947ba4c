// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "plugins/llama_moe/math.h"
#include "plugins/llama_moe/swiglu.h"

namespace bulkhead::llama_moe {

/// Memory that feed-forward layers use during one call.
template <class A>
struct FeedForwardScratch {
    Buffer<A> dAct;
    Buffer<Master<A>> dNormed;
};

template <class P>
struct FeedForwardWeights {
    P* norm = nullptr;
    SwigluWeights<P> swiglu;
};

/// The dense feed-forward: out = in + swiglu(norm(in)). Keeps what its way back needs.
template <class A>
class FeedForward {
  public:
    using T = Master<A>;

    absl::Status open(const ModelConfig& config, Math<A>* math, size_t tokens,
                      FeedForwardScratch<A>* scratch);
    void forward(const FeedForwardWeights<const A>& w, const T* in, T* out, size_t tokens);
    /// dx and `rounded` as in Attention.
    void backward(const FeedForwardWeights<const A>& w, const FeedForwardWeights<T>& dw,
                  const T* in, T* dx, A* rounded, size_t tokens);

  private:
    Math<A>* math_ = nullptr;
    SwigluShape shape_;
    T epsilon_ = 0;
    FeedForwardScratch<A>* scratch_ = nullptr;
    Buffer<T> scale_;
    Buffer<A> normed_, h_, act_;
};

}  // namespace bulkhead::llama_moe
