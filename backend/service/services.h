// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "backend/service/context.h"

namespace grpc {
class Service;
}

namespace bulkhead::service {

// One for each service of service.proto. `context` must outlive it.
std::unique_ptr<grpc::Service> makeServerService(const Context& context);
std::unique_ptr<grpc::Service> makeJobsService(const Context& context);
std::unique_ptr<grpc::Service> makeWatchService(const Context& context);
std::unique_ptr<grpc::Service> makeRunsService(const Context& context);

}  // namespace bulkhead::service
