// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace bulkhead::llama_moe {
namespace {

/// exp(x), within two units in the last place, from -87 to 88 and clamped outside. Written so that
/// loops over it vectorise: e^x = 2^n * e^r with |r| <= ln(2) / 2, e^r by its Taylor polynomial.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
}
inline double exponential(double x) {
    return std::exp(x);
}

template <class T>
T largest(const T* x, size_t n) {
    T most = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : most)
    for (size_t i = 0; i < n; ++i) most = most < x[i] ? x[i] : most;
    return most;
}

/// x becomes exp(x - largest(x)); returns the sum.
template <class T>
T exponentiate(T* x, size_t n, T most) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; ++i) {
        x[i] = exponential(x[i] - most);
        sum += x[i];
    }
    return sum;
}

template <class T>
void scale(T* x, size_t n, T factor) {
    for (size_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

template <class T>
T dot(const T* a, const T* b, size_t n) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

template <class T>
void addScaled(T* __restrict y, const T* __restrict x, T factor, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

template <class T>
void scaled(T* __restrict y, const T* __restrict x, T factor, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

template <class T>
void chooseExperts(const T* logits, const T* balance, int32_t* chosen, T* gates, size_t experts,
                   size_t k) {
    for (size_t j = 0; j < k; ++j) {
        size_t best = experts;
        T most = -std::numeric_limits<T>::infinity();
        for (size_t e = 0; e < experts; ++e) {
            const bool taken = std::find(chosen, chosen + j, static_cast<int32_t>(e)) != chosen + j;
            // The first free expert is taken even if nothing compares, as with not-a-number.
            if (taken || (best < experts && !(logits[e] + balance[e] > most))) continue;
            best = e;
            most = logits[e] + balance[e];
        }
        chosen[j] = static_cast<int32_t>(best);
        gates[j] = T(1) / (T(1) + exponential(-logits[best]));
    }
}

template <class T>
void normForward(const T* x, const T* gain, T* y, T* scales, size_t rows, size_t dim, T epsilon) {
    for (size_t row = 0; row < rows; ++row) {
        const T* __restrict in = x + row * dim;
        T* __restrict out = y + row * dim;
        const T mean = dot(in, in, dim) / static_cast<T>(dim);
        const T inverse = T(1) / std::sqrt(mean + epsilon);
        scales[row] = inverse;
        for (size_t i = 0; i < dim; ++i) out[i] = in[i] * inverse * gain[i];
    }
}

template <class T>
void normBackward(const T* dy, const T* x, const T* gain, const T* scales, T* dx, T* dGain,
                  size_t rows, size_t dim) {
    for (size_t row = 0; row < rows; ++row) {
        const T* __restrict in = x + row * dim;
        const T* __restrict up = dy + row * dim;
        T* __restrict down = dx + row * dim;
        T* __restrict gradient = dGain;
        const T inverse = scales[row];
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < dim; ++i) sum += up[i] * gain[i] * in[i];
        const T back = sum * inverse * inverse * inverse / static_cast<T>(dim);
        for (size_t i = 0; i < dim; ++i) {
            down[i] += inverse * gain[i] * up[i] - back * in[i];
            gradient[i] += up[i] * in[i] * inverse;
        }
    }
}

template <class T>
void ropeTable(T* cosine, T* sine, size_t positions, size_t headDim, double theta) {
    const size_t pairs = headDim / 2;
    for (size_t t = 0; t < positions; ++t)
        for (size_t i = 0; i < pairs; ++i) {
            const double angle =
                static_cast<double>(t) *
                std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(headDim));
            cosine[t * pairs + i] = static_cast<T>(std::cos(angle));
            sine[t * pairs + i] = static_cast<T>(std::sin(angle));
        }
}

template <class T>
void rope(T* x, size_t rows, size_t stride, size_t heads, size_t headDim, size_t positions,
          const T* cosine, const T* sine, T sign) {
    const size_t pairs = headDim / 2;
    for (size_t row = 0; row < rows; ++row) {
        const T* __restrict c = cosine + row % positions * pairs;
        const T* __restrict s = sine + row % positions * pairs;
        for (size_t head = 0; head < heads; ++head) {
            T* __restrict low = x + row * stride + head * headDim;
            T* __restrict high = low + pairs;
            for (size_t i = 0; i < pairs; ++i) {
                const T a = low[i];
                const T b = high[i];
                low[i] = a * c[i] - b * (sign * s[i]);
                high[i] = b * c[i] + a * (sign * s[i]);
            }
        }
    }
}

template <class T>
void causalSoftmax(T* x, size_t rows, size_t columns, size_t stride, size_t firstValid) {
    for (size_t row = 0; row < rows; ++row) {
        T* line = x + row * stride;
        const size_t valid = firstValid + row;
        const T sum = exponentiate(line, valid, largest(line, valid));
        scale(line, valid, T(1) / sum);
        std::fill(line + valid, line + columns, T(0));
    }
}

template <class T>
void causalSoftmaxBackward(const T* p, size_t pStride, T* dp, size_t dpStride, size_t rows,
                           size_t columns, size_t firstValid) {
    for (size_t row = 0; row < rows; ++row) {
        const T* __restrict line = p + row * pStride;
        T* __restrict out = dp + row * dpStride;
        const size_t valid = firstValid + row;
        const T sum = dot(line, out, valid);
        for (size_t i = 0; i < valid; ++i) out[i] = line[i] * (out[i] - sum);
        std::fill(out + valid, out + columns, T(0));
    }
}

template <class T>
void swigluForward(const T* h, T* act, size_t rows, size_t hidden) {
    for (size_t row = 0; row < rows; ++row) {
        const T* __restrict gate = h + row * 2 * hidden;
        const T* __restrict up = gate + hidden;
        T* __restrict out = act + row * hidden;
#pragma omp simd
        for (size_t i = 0; i < hidden; ++i)
            out[i] = gate[i] / (T(1) + exponential(-gate[i])) * up[i];
    }
}

template <class T>
void swigluBackward(T* h, const T* dAct, size_t rows, size_t hidden) {
    for (size_t row = 0; row < rows; ++row) {
        T* __restrict gate = h + row * 2 * hidden;
        T* __restrict up = gate + hidden;
        const T* __restrict d = dAct + row * hidden;
#pragma omp simd
        for (size_t i = 0; i < hidden; ++i) {
            const T s = T(1) / (T(1) + exponential(-gate[i]));
            const T silu = gate[i] * s;
            const T dGate = d[i] * up[i] * (s + silu * (T(1) - s));
            up[i] = d[i] * silu;
            gate[i] = dGate;
        }
    }
}

template <class T>
void crossEntropy(T* logits, const int32_t* targets, double* loss, size_t rows, size_t classes) {
    for (size_t row = 0; row < rows; ++row) {
        T* line = logits + row * classes;
        const auto target = static_cast<size_t>(targets[row]);
        const T most = largest(line, classes);
        const T wanted = line[target] - most;
        const T sum = exponentiate(line, classes, most);
        loss[row] = std::log(static_cast<double>(sum)) - static_cast<double>(wanted);
        scale(line, classes, T(1) / sum);
        line[target] -= T(1);
    }
}

// A type cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define BULKHEAD_INSTANTIATE(T)                                                                    \
    template T dot<T>(const T*, const T*, size_t);                                                 \
    template void addScaled<T>(T*, const T*, T, size_t);                                           \
    template void scaled<T>(T*, const T*, T, size_t);                                              \
    template void chooseExperts<T>(const T*, const T*, int32_t*, T*, size_t, size_t);              \
    template void normForward<T>(const T*, const T*, T*, T*, size_t, size_t, T);                   \
    template void normBackward<T>(const T*, const T*, const T*, const T*, T*, T*, size_t, size_t); \
    template void ropeTable<T>(T*, T*, size_t, size_t, double);                                    \
    template void rope<T>(T*, size_t, size_t, size_t, size_t, size_t, const T*, const T*, T);      \
    template void causalSoftmax<T>(T*, size_t, size_t, size_t, size_t);                            \
    template void causalSoftmaxBackward<T>(const T*, size_t, T*, size_t, size_t, size_t, size_t);  \
    template void swigluForward<T>(const T*, T*, size_t, size_t);                                  \
    template void swigluBackward<T>(T*, const T*, size_t, size_t);                                 \
    template void crossEntropy<T>(T*, const int32_t*, double*, size_t, size_t);
// NOLINTEND(bugprone-macro-parentheses)
BULKHEAD_INSTANTIATE(float)
BULKHEAD_INSTANTIATE(double)

}  // namespace bulkhead::llama_moe
