// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "plugins/llama_moe/feed_forward.h"
#include "plugins/llama_moe/parameter_store.h"
#include "plugins/llama_moe/swiglu.h"
#include "plugins/llama_moe/token_exchange.h"

namespace bulkhead::llama_moe {

template <class A>
struct MixtureScratch {
    FeedForwardScratch<A> feedForward;
    Buffer<Master<A>> logits;  ///< [tokens, experts]
    Narrowed<A> dLogits;
    Buffer<A> sorted;   ///< rows at their source
    Buffer<A> grouped;  ///< rows at their experts
    Buffer<A> expertAct;
};

template <class P>
struct MixtureWeights {
    P* norm = nullptr;
    P* router = nullptr;   ///< [dim, experts]
    P* balance = nullptr;  ///< [experts]
    SwigluWeights<P> shared;
};

/// The mixture: out = in + shared(n) + sum over the chosen e of expert_e(sigmoid(r_e) * n), with
/// n = norm(in) and r = n Wrouter. As in Llama 4 the gate scales the expert's input, through which
/// the router learns. The top-k of r + balance are chosen; `balance` takes no part in the gate.
///
/// Balance, without an auxiliary loss (Wang et al. 2024, arXiv 2408.15664): its "gradient" is how
/// many rows an expert got beyond an even share, so that the exchange of gradients sums it over all
/// replicas exactly; the optimizer then moves it one fixed step against the surplus's sign. It is a
/// parameter like others: in the state, in the hash.
template <class A>
class Mixture {
  public:
    using T = Master<A>;
    using Store = ParameterStore<A>;

    absl::Status open(const ModelConfig& config, Math<A>* math, size_t tokens, size_t unit,
                      size_t mixture, MixtureScratch<A>* scratch);

    /// Collective. The expert chosen by token t as its j-th will be at chosen[t * topK + j], device
    /// memory that backward() reads. With several shards waits for what was put on the device
    /// before.
    absl::Status forward(Store& store, const MixtureWeights<const A>& w, const T* in, T* out,
                         size_t tokens, int32_t* chosen);
    /// Collective. dx and `rounded` as in Attention.
    absl::Status backward(Store& store, const MixtureWeights<const A>& w,
                          const MixtureWeights<T>& dw, const T* in, T* dx, A* rounded,
                          size_t tokens);

    /// To other shards, since open.
    uint64_t sentBytes() const { return exchange_.sentBytes(); }

  private:
    void route(const MixtureWeights<const A>& w, size_t tokens);
    absl::Status reserveGrouped();
    void addRouterGradient(const MixtureWeights<const A>& w, const MixtureWeights<T>& dw,
                           const A* dRows, T* dNormed, size_t tokens);
    A* groupedIn() { return alone() ? sortedIn_.data() : groupedIn_.data(); }
    bool alone() const { return math_->device().shards == 1; }

    ModelConfig config_;
    Math<A>* math_ = nullptr;
    size_t unit_ = 0;
    size_t mixture_ = 0;
    MixtureScratch<A>* scratch_ = nullptr;
    SwigluShape sharedShape_, expertShape_;
    TokenExchange<A> exchange_;
    int32_t* chosen_ = nullptr;  ///< by the last forward
    Buffer<T> scale_, gates_;
    Buffer<A> normed_, sharedH_, sharedAct_;
    Buffer<A> sortedIn_, groupedIn_, expertH_, expertAct_;
};

}  // namespace bulkhead::llama_moe
