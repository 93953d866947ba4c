// SPDX-License-Identifier: Apache-2.0
#pragma once

// Precompiled for the targets that speak gRPC: parsing these takes most of their compile time.
#include <grpcpp/grpcpp.h>

#include "backend/proto/convert.h"
#include "bulkhead/v1/service.grpc.pb.h"
