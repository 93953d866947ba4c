// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/llama_moe/config.h"
#include "plugins/llama_moe/feed_forward.h"
#include "plugins/llama_moe/parameter_store.h"
#include "plugins/llama_moe/swiglu.h"
#include "plugins/llama_moe/token_exchange.h"

namespace bulkhead::llama_moe {

template <class T>
struct MixtureScratch {
    FeedForwardScratch<T> feedForward;
    Buffer<T> logits;   ///< [tokens, experts]; on the way back their gradient
    Buffer<T> sorted;   ///< rows at their source
    Buffer<T> grouped;  ///< rows at their experts
    Buffer<T> expertAct;
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
template <class T>
class Mixture {
  public:
    using Store = ParameterStore<T>;

    absl::Status open(const ModelConfig& config, const Device& device, size_t tokens, size_t unit,
                      size_t mixture, MixtureScratch<T>* scratch);

    /// Collective.
    absl::Status forward(Store& store, const MixtureWeights<const T>& w, const T* in, T* out,
                         size_t tokens);
    /// Collective.
    absl::Status backward(Store& store, const MixtureWeights<const T>& w,
                          const MixtureWeights<T>& dw, const T* in, T* dx, size_t tokens);

    /// Expert chosen by token t as its j-th, at [t * topK + j], in the last forward.
    const std::vector<int32_t>& chosen() const { return chosen_; }
    /// To other shards, since open.
    uint64_t sentBytes() const { return exchange_.sentBytes(); }

  private:
    void route(const MixtureWeights<const T>& w, size_t tokens);
    void chooseFor(const T* logits, const T* balance, int32_t* chosen, T* gates) const;
    absl::Status reserveGrouped();
    void addRouterGradient(const MixtureWeights<const T>& w, const MixtureWeights<T>& dw,
                           const T* dRows, T* dNormed, size_t tokens);
    T* groupedIn() { return alone() ? sortedIn_.data() : groupedIn_.data(); }
    bool alone() const { return device_.shards == 1; }

    ModelConfig config_;
    Device device_;
    size_t unit_ = 0;
    size_t mixture_ = 0;
    MixtureScratch<T>* scratch_ = nullptr;
    SwigluShape sharedShape_, expertShape_;
    TokenExchange<T> exchange_;
    std::vector<int32_t> chosen_;
    std::vector<T> gates_;
    Buffer<T> scale_, normed_, sharedH_, sharedAct_;
    Buffer<T> sortedIn_, groupedIn_, expertH_, expertAct_;
};

}  // namespace bulkhead::llama_moe
