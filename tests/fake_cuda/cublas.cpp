// SPDX-License-Identifier: Apache-2.0
// As much of cuBLAS as plugins/llama_moe/cuda calls, on the fake runtime: arguments are checked as
// the real one does, or ought to, before the product is put on the stream.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>

#include "plugins/common/bfloat16.h"
#include "tests/fake_cuda/fake_cuda.h"

struct cublasContext {
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;
    int math = 0;
};

namespace bulkhead::fake_cuda {
namespace {

constexpr int kProcessors = 16;  // as runtime.cpp says

struct Matrix {
    const void* at;
    int64_t rows, columns, stride;  ///< column-major
    uint64_t element;               ///< bytes

    const char* begin() const { return static_cast<const char*>(at); }
    const char* end() const {
        return begin() + static_cast<uint64_t>(stride * (columns - 1) + rows) * element;
    }
};

/// All of it is memory that a GPU can reach, and its strides are possible.
bool sound(const Matrix& matrix) {
    if (matrix.stride < std::max<int64_t>(1, matrix.rows)) return false;
    if (matrix.rows == 0 || matrix.columns == 0) return true;
    if (reinterpret_cast<uintptr_t>(matrix.at) % matrix.element != 0) return false;
    cudaPointerAttributes first{}, last{};
    return cudaPointerGetAttributes(&first, matrix.begin()) == cudaSuccess &&
           cudaPointerGetAttributes(&last, matrix.end() - 1) == cudaSuccess &&
           first.type != cudaMemoryTypeUnregistered && last.type != cudaMemoryTypeUnregistered;
}

bool apart(const Matrix& a, const Matrix& b) {
    return a.end() <= b.begin() || b.end() <= a.begin();
}

struct Product {
    bool turnA, turnB, wide;
    int64_t m, n, k;
    const Bf16* a;
    int64_t lda;
    const Bf16* b;
    int64_t ldb;
    void* c;
    int64_t ldc;
    float alpha, beta;

    void run() const {
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < m; ++i) {
                float sum = 0;
                for (int64_t l = 0; l < k; ++l)
                    sum += widen(a[turnA ? l + i * lda : i + l * lda]) *
                           widen(b[turnB ? j + l * ldb : l + j * ldb]);
                put(i + j * ldc, alpha * sum);
            }
    }

  private:
    void put(int64_t at, float value) const {
        auto* wideC = static_cast<float*>(c) + at;
        auto* narrowC = static_cast<Bf16*>(c) + at;
        // With beta 0 what stands there is not read: it may be not a number.
        if (beta != 0) value += beta * (wide ? *wideC : widen(*narrowC));
        if (wide)
            *wideC = value;
        else
            *narrowC = narrow(value);
    }
};

const Kernel kProduct{[](unsigned, void** arguments) -> std::function<void()> {
    return [product = *static_cast<const Product*>(arguments[0])] { product.run(); };
}};

}  // namespace
}  // namespace bulkhead::fake_cuda

using namespace bulkhead::fake_cuda;

extern "C" {

const char* cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_INVALID_VALUE   ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "another status of cuBLAS";
}
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    handle->workspace = nullptr;  // as cuBLAS does
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
    const Matrix all{workspace, static_cast<int64_t>(bytes), 1, static_cast<int64_t>(bytes), 1};
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 || !sound(all))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math = static_cast<int>(mode);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int processors) {
    return processors < 0 || processors > kProcessors ? CUBLAS_STATUS_INVALID_VALUE
                                                      : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t turnA,
                               cublasOperation_t turnB, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* a, cudaDataType_t typeA, int64_t lda,
                               const void* b, cudaDataType_t typeB, int64_t ldb, const void* beta,
                               void* c, cudaDataType_t typeC, int64_t ldc,
                               cublasComputeType_t compute, cublasGemmAlgo_t) {
    // Products are the same again only in a workspace of the caller's, and sums are in float32 only
    // where the halves of a sum may not be rounded.
    if (handle->workspace == nullptr ||
        (handle->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) == 0 ||
        typeA != CUDA_R_16BF || typeB != CUDA_R_16BF ||
        (typeC != CUDA_R_16BF && typeC != CUDA_R_32F) || compute != CUBLAS_COMPUTE_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || alpha == nullptr || beta == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool turnedA = turnA == CUBLAS_OP_T, turnedB = turnB == CUBLAS_OP_T;
    const bool wide = typeC == CUDA_R_32F;
    const Matrix matrixA{a, turnedA ? k : m, turnedA ? m : k, lda, 2};
    const Matrix matrixB{b, turnedB ? n : k, turnedB ? k : n, ldb, 2};
    const Matrix matrixC{c, m, n, ldc, wide ? 4u : 2u};
    if (!sound(matrixA) || !sound(matrixB) || !sound(matrixC)) return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
    if (k > 0 && (!apart(matrixA, matrixC) || !apart(matrixB, matrixC)))
        return CUBLAS_STATUS_INVALID_VALUE;
    Product product{turnedA,
                    turnedB,
                    wide,
                    m,
                    n,
                    k,
                    static_cast<const bulkhead::Bf16*>(a),
                    lda,
                    static_cast<const bulkhead::Bf16*>(b),
                    ldb,
                    c,
                    ldc,
                    *static_cast<const float*>(alpha),
                    *static_cast<const float*>(beta)};
    void* arguments[] = {&product};
    return cudaLaunchKernel(&kProduct, dim3(1), dim3(32), arguments, 0, handle->stream) ==
                   cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
