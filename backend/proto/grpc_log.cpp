// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/grpc_log.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <cstdio>
#include <cstring>

namespace bulkhead::proto {

void quietGrpcLog() {
    gpr_set_log_function([](gpr_log_func_args* line) {
        if (line->severity == GPR_LOG_SEVERITY_ERROR &&
            std::strstr(line->message, "assertion failed") != nullptr)
            std::fprintf(stderr, "gRPC %s:%d: %s\n", line->file, line->line, line->message);
    });
}

void keepGrpc() {
    ::grpc_init();
}

}  // namespace bulkhead::proto
