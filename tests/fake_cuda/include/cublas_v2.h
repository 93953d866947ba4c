/* SPDX-License-Identifier: Apache-2.0 */
/* As much of cuBLAS's interface as plugins/llama_moe/cuda calls, for builds without its toolkit. */
#ifndef BULKHEAD_FAKE_CUBLAS_V2_H_
#define BULKHEAD_FAKE_CUBLAS_V2_H_

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct cublasContext* cublasHandle_t;
typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
typedef enum { CUDA_R_32F = 0, CUDA_R_16BF = 14 } cudaDataType_t;
typedef enum { CUBLAS_COMPUTE_32F = 68 } cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1 } cublasGemmAlgo_t;

extern "C" {
const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int processors);
cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t turnA,
                               cublasOperation_t turnB, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* a, cudaDataType_t typeA, int64_t lda,
                               const void* b, cudaDataType_t typeB, int64_t ldb, const void* beta,
                               void* c, cudaDataType_t typeC, int64_t ldc,
                               cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
}

#endif
