/* SPDX-License-Identifier: Apache-2.0 */
/* As much of a CUDA driver as is asked whether a GPU answers. */
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuGetErrorName(int code, const char** text);
int cuGetErrorString(int code, const char** text);

int cuInit(unsigned flags) {
    (void)flags;
#ifdef FAKE_BROKEN
    return 803;
#else
    return 0;
#endif
}

int cuDeviceGetCount(int* count) {
#ifdef FAKE_TWO
    *count = 2;
#else
    *count = 0;
#endif
    return 0;
}

int cuGetErrorName(int code, const char** text) {
    *text = code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuGetErrorString(int code, const char** text) {
    *text = code == 803 ? "system has unsupported display driver" : "unknown error";
    return 0;
}
