// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llama_moe/config.h"
#include "plugins/llama_moe/device.h"
#include "plugins/llama_moe/layout.h"
#include "plugins/llama_moe/optimizer.h"

/// All arithmetic on device memory, behind one interface: whoever stands before it never touches
/// that memory, so that it may be a GPU's.
namespace bulkhead::llama_moe {

/// Two number types: A of activations and of whatever matrix products read, and its Master of
/// parameters, moments, gradients, the residual stream, router logits, gates and losses. On the CPU
/// they are one (float; double where gradients are checked), on a GPU bfloat16 and float.
template <class A>
struct MasterOf {
    using type = A;
};
template <>
struct MasterOf<Bf16> {
    using type = float;
};
template <class A>
using Master = typename MasterOf<A>::type;
template <class A>
constexpr bool kOneType = std::is_same_v<A, Master<A>>;

enum class Turn { kNo, kYes };

/// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, row-major; sums are in the Master. With m
/// or n 0 nothing happens; with k 0 C is scaled by beta.
template <class A>
struct Product {
    Turn turnA = Turn::kNo, turnB = Turn::kNo;
    size_t m = 0, n = 0, k = 0;
    const A* a = nullptr;
    size_t lda = 0;
    const A* b = nullptr;
    size_t ldb = 0;
    void* c = nullptr;  ///< of Master<A> if wide, else of A
    size_t ldc = 0;
    Master<A> alpha = 1, beta = 0;
    bool wide = false;
};

/// Causal grouped-query attention over samples of one length: a token sees its own chunk up to
/// itself. Rows of qkv are [queries, keys, values] of (heads, kvHeads, kvHeads) * headDim.
struct AttentionShape {
    size_t samples = 0;
    size_t sequence = 0;
    size_t heads = 0, kvHeads = 0, headDim = 0;
    size_t chunk = 0;     ///< at most `sequence`
    bool rotary = false;  ///< queries and keys are turned by their position in the sample
    size_t tokens() const { return samples * sequence; }
    size_t dim() const { return heads * headDim; }
    size_t width() const { return (heads + 2 * kvHeads) * headDim; }
};

/// Rows that lie grouped: those of group g from starts[g] to starts[g + 1].
struct Groups {
    const int32_t* starts = nullptr;  ///< [count + 1], device memory, 0 first
    size_t count = 0;
    size_t rows = 0;  ///< at least starts[count]
};

/// A matrix [in, out] for each group, so many elements apart.
template <class A>
struct GroupWeights {
    const A* first = nullptr;
    size_t apart = 0;
    size_t in = 0, out = 0;
};

/// Operations on memory of one device, in the order of the calls, each as large as a layer. They
/// may only have been started when they return; finish() waits and tells what went wrong. Rows are
/// tokens, matrices row-major without gaps. Not a number stays not a number. One thread at a time.
template <class A>
class Math {
  public:
    using T = Master<A>;

    explicit Math(const Device& device) : device_(device) {}
    virtual ~Math() = default;
    Math(const Math&) = delete;
    Math& operator=(const Math&) = delete;

    const Device& device() const { return device_; }

    /// Before all else: takes memory for micro-batches of up to `samples` samples of `sequence`
    /// tokens.
    virtual absl::Status open(const ModelConfig& config, size_t samples, size_t sequence) = 0;

    /// Between any two memories; ranges do not overlap. Host memory must stay as it is until
    /// finish().
    template <class V>
    void copy(V* to, const V* from, size_t count) {
        if (count > 0) keep(device_.copy(to, from, count));
    }
    template <class V>
    void zero(V* to, size_t count) {
        if (count > 0) keep(device_.zero(to, count));
    }
    /// Waits for all that was put before; the first error since the last finish.
    absl::Status finish() {
        ++waits_;
        keep(device_.synchronize());
        keep(check());
        return std::exchange(status_, absl::OkStatus());
    }

    /// Counts the calls of finish().
    uint64_t waits() const { return waits_; }

    virtual void product(const Product<A>& product) = 0;

    /// y = x * gain / rms(x), rms over each row of `dim`; scale[row] keeps 1 / rms for the way
    /// back. `same` becomes x, unless it is null.
    virtual void normForward(const T* x, const A* gain, A* y, T* scale, T* same, size_t rows,
                             size_t dim, T epsilon) = 0;
    /// dx += the gradient through the norm, dGain += its gradient. `rounded` becomes dx rounded to
    /// A; where both types are one it is dx.
    virtual void normBackward(const T* dy, const T* x, const A* gain, const T* scale, T* dx,
                              A* rounded, T* dGain, size_t rows, size_t dim) = 0;

    /// Numbers that attention over `shape` keeps for the way back.
    virtual size_t keptOfAttention(const AttentionShape& shape) const = 0;
    /// mixed[tokens][dim]; turns queries and keys in `qkv` in place.
    virtual void attentionForward(const AttentionShape& shape, A* qkv, T* kept, A* mixed) = 0;
    /// dQkv becomes the gradient of qkv before it was turned.
    virtual void attentionBackward(const AttentionShape& shape, const A* qkv, const T* kept,
                                   const A* mixed, const A* dMixed, A* dQkv) = 0;

    /// act[rows,hidden] = silu(gate) * up, where h is [rows][gate hidden, up hidden].
    virtual void swigluForward(const A* h, A* act, size_t rows, size_t hidden) = 0;
    /// h becomes the gradient with respect to h.
    virtual void swigluBackward(A* h, const A* dAct, size_t rows, size_t hidden) = 0;

    /// The k experts with the largest logit + balance of each row, largest first, and the sigmoids
    /// of their logits.
    virtual void route(const T* logits, const A* balance, int32_t* chosen, T* gates, size_t rows,
                       size_t experts, size_t k) = 0;
    /// place[a]: where choice a stands among the `choices` sorted by expert, those of one expert in
    /// their order; starts[e]: how many come before expert e, for 0 to `experts`.
    virtual void sortByExpert(const int32_t* chosen, int32_t* place, int32_t* starts,
                              size_t choices, size_t experts) = 0;
    /// For each group, y[rows, out] = x[rows, in] * w.
    virtual void multiplyGroups(const Groups& groups, const A* x, const GroupWeights<A>& w,
                                A* y) = 0;
    /// For each group, dw += x^T * dy and dx = dy * w^T; dw lies as w does.
    virtual void multiplyGroupsBack(const Groups& groups, const A* x, const A* dy,
                                    const GroupWeights<A>& w, T* dw, A* dx) = 0;
    /// to[place[a]] = gates[a] * from[a / k] for every choice a of rows * k; gates null: 1.
    virtual void spread(const A* from, const int32_t* place, const T* gates, A* to, size_t rows,
                        size_t k, size_t dim) = 0;
    /// to[a / k] += from[place[a]], a ascending.
    virtual void collect(const A* from, const int32_t* place, T* to, size_t rows, size_t k,
                         size_t dim) = 0;
    /// The way back of spread and of the gates, from the gradients dSpread of what was spread out
    /// of `normed`: dNormed += its gradient, dLogits[rows,experts] becomes that of the logits.
    virtual void routeBackward(const A* dSpread, const int32_t* place, const A* normed,
                               const int32_t* chosen, const T* gates, A* dLogits, T* dNormed,
                               size_t rows, size_t experts, size_t k, size_t dim) = 0;
    /// surplus[e] += how many of the `choices` are e, less an even share.
    virtual void addSurplus(const int32_t* chosen, T* surplus, size_t choices, size_t experts) = 0;

    /// Rows of a table, by token.
    virtual void embed(const A* table, const int32_t* tokens, T* out, size_t rows, size_t dim) = 0;
    /// dTable[v] += the rows order[starts[v]] to order[starts[v + 1]] of dOut, for each of the
    /// kVocabulary tokens.
    virtual void embedBackward(const T* dOut, const int32_t* order, const int32_t* starts,
                               T* dTable, size_t dim) = 0;
    /// Cross-entropy in nats: loss[row] = -log softmax(logits)[target]; dLogits, which may be
    /// `logits`, becomes the gradient.
    virtual void crossEntropy(T* logits, const int32_t* targets, double* loss, A* dLogits,
                              size_t rows, size_t classes) = 0;

    virtual void add(T* to, const T* from, size_t count) = 0;
    /// Rounds to A. Never called where both types are one.
    virtual void narrow(const T* from, A* to, size_t count) = 0;
    /// One update; `image` gets the parameters rounded to A, and is null where both types are one.
    /// Waits only for a layout that differs from the last.
    virtual absl::Status adamW(const AdamW<T>& rule, const Layout& layout, const T* reduced,
                               const StateRuns<T>& state, A* image) = 0;
    /// Waits. In double, in an order that depends on nothing but the layout.
    virtual absl::StatusOr<double> sumOfSquares(const Layout& layout, const T* reduced) = 0;
    /// Waits. bulkhead_state_hash() of `bytes` bytes of device memory, which `state` is the start
    /// of an allocation of.
    virtual absl::StatusOr<uint64_t> stateHash(const void* state, size_t bytes) = 0;

    /// From now on an exchange of gradients may run on the device, or none does.
    virtual void besideExchange(bool) {}

  protected:
    /// The error that the operations have run into since the last call; asked when all is done.
    virtual absl::Status check() { return absl::OkStatus(); }
    void keep(const absl::Status& status) { status_.Update(status); }

  private:
    const Device device_;
    absl::Status status_;
    uint64_t waits_ = 0;
};

/// y[rows,out] = x[rows,in] * w[in,out] + beta * y
template <class A, class Y>
void multiply(Math<A>& math, const A* x, const A* w, Y* y, size_t rows, size_t in, size_t out,
              Master<A> beta) {
    math.product({Turn::kNo, Turn::kNo, rows, out, in, x, in, w, out, y, out, 1, beta,
                  std::is_same_v<Y, Master<A>>});
}

/// dx[rows,in] = dy[rows,out] * w^T + beta * dx
template <class A, class Y>
void multiplyBack(Math<A>& math, const A* dy, const A* w, Y* dx, size_t rows, size_t in, size_t out,
                  Master<A> beta) {
    math.product({Turn::kNo, Turn::kYes, rows, in, out, dy, out, w, out, dx, in, 1, beta,
                  std::is_same_v<Y, Master<A>>});
}

/// dw[in,out] += x^T * dy
template <class A>
void addWeightGradient(Math<A>& math, const A* x, const A* dy, Master<A>* dw, size_t rows,
                       size_t in, size_t out) {
    if (rows == 0) return;
    math.product({Turn::kYes, Turn::kNo, in, out, rows, x, in, dy, out, dw, out, 1, 1, true});
}

/// Values of the Master as products read them: where both types are one the values themselves, else
/// rounded into memory of its own.
template <class A>
class Narrowed {
  public:
    absl::Status reserve(const Device& device, size_t count) {
        return kOneType<A> ? absl::OkStatus() : memory_.reserve(device, count);
    }
    /// The narrow form of `wide` goes here.
    A* of(Master<A>* wide) const {
        if constexpr (kOneType<A>)
            return wide;
        else
            return memory_.data();
    }
    const A* fill(Math<A>& math, const Master<A>* wide, size_t count) const {
        if constexpr (kOneType<A>) {
            return wide;
        } else {
            math.narrow(wide, memory_.data(), count);
            return memory_.data();
        }
    }

  private:
    Buffer<A> memory_;
};

}  // namespace bulkhead::llama_moe
