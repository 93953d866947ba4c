// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cblas.h>

#include <cstddef>
#include <type_traits>

#include "absl/synchronization/mutex.h"
#include "plugins/llama_moe/math.h"

/// Matrix products, row-major, float or double, on one thread.
namespace bulkhead::llama_moe {

/// Held during every product. OpenBLAS built for one thread shares its work memory within a
/// process, so two ranks that are threads of one process (tests run them so) would mix their
/// operands. A worker has one computing thread and never waits here.
inline absl::Mutex blasMutex(absl::kConstInit);

/// A rank is one of many processes on its cores: OpenBLAS must not start threads of its own where
/// the installed variant could.
inline void useOneThread() {
    openblas_set_num_threads(1);
}

/// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, as Product says.
template <class T>
void gemm(Turn turnA, Turn turnB, size_t m, size_t n, size_t k, T alpha, const T* a, size_t lda,
          const T* b, size_t ldb, T beta, T* c, size_t ldc) {
    if (m == 0 || n == 0) return;
    const auto blas = [](size_t value) { return static_cast<blasint>(value); };
    const auto op = [](Turn t) { return t == Turn::kYes ? CblasTrans : CblasNoTrans; };
    const auto run = [&](auto* function) {
        function(CblasRowMajor, op(turnA), op(turnB), blas(m), blas(n), blas(k), alpha, a,
                 blas(lda), b, blas(ldb), beta, c, blas(ldc));
    };
    const absl::MutexLock lock(&blasMutex);
    if constexpr (std::is_same_v<T, float>)
        run(&cblas_sgemm);
    else
        run(&cblas_dgemm);
}

}  // namespace bulkhead::llama_moe
