// SPDX-License-Identifier: Apache-2.0
// The workload ABI over Workload: no exception and no C++ type leaves.
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "plugins/llama_moe/gpu/module.h"
#include "plugins/llama_moe/workload.h"

namespace bulkhead::llama_moe {
namespace {

constexpr char kCuda[] = "cuda";

Workload& in(bulkhead_workload* workload) {
    return *reinterpret_cast<Workload*>(workload);
}

bulkhead_status codeOf(const absl::Status& status) {
    switch (status.code()) {
        case absl::StatusCode::kOk:
            return BULKHEAD_OK;
        case absl::StatusCode::kAborted:
            return BULKHEAD_ABORTED;
        case absl::StatusCode::kInvalidArgument:
        case absl::StatusCode::kNotFound:
        case absl::StatusCode::kFailedPrecondition:
            return BULKHEAD_INVALID;
        case absl::StatusCode::kResourceExhausted:
            return BULKHEAD_OUT_OF_MEMORY;
        case absl::StatusCode::kUnavailable:
            return BULKHEAD_UNAVAILABLE;
        case absl::StatusCode::kDeadlineExceeded:
            return BULKHEAD_TIMED_OUT;
        default:
            return BULKHEAD_INTERNAL;
    }
}

/// Runs `body`, tells the host what went wrong (unless the device already has), returns the code.
template <class Body>
bulkhead_status guard(const bulkhead_host* host, Body&& body) {
    const auto tell = [host](const std::string& line) {
        if (host != nullptr && host->error != nullptr) host->error(host->context, line.c_str());
    };
    try {
        const absl::Status status = body();
        if (!status.ok() && !toldHost(status)) tell(std::string(status.message()));
        return codeOf(status);
    } catch (const std::bad_alloc&) {
        tell("out of host memory; use a smaller model or micro_batch");
        return BULKHEAD_OUT_OF_MEMORY;
    } catch (const std::exception& e) {
        tell(std::string("llama_moe failed: ") + e.what());
        return BULKHEAD_INTERNAL;
    }
}

template <class Body>
bulkhead_status call(bulkhead_workload* workload, Body&& body) {
    return guard(in(workload).host(), [&] { return body(in(workload)); });
}

bulkhead_status create(const bulkhead_workload_config* config, bulkhead_workload** out) {
    const gpu::MachineApi* machine = nullptr;
    if (std::strcmp(config->device_api->name, kCuda) == 0) {
        const auto found = cudaMachine();
        if (!found.ok()) return guard(config->host, [&] { return found.status(); });
        machine = *found;
    }
    return createOn(machine, config, out);
}

void destroy(bulkhead_workload* workload) {
    delete &in(workload);
}

bulkhead_status describe(bulkhead_workload* workload, bulkhead_model_info* out) {
    return call(workload, [&](Workload& w) {
        w.describe(out);
        return absl::OkStatus();
    });
}

bulkhead_status parameters(bulkhead_workload* workload, bulkhead_parameter* out, uint32_t capacity,
                           uint32_t* count) {
    return call(workload, [&](Workload& w) {
        *count = w.parameters(out, capacity);
        return absl::OkStatus();
    });
}

bulkhead_status initialise(bulkhead_workload* workload, uint64_t seed) {
    return call(workload, [&](Workload& w) { return w.initialise(seed); });
}

bulkhead_status forwardBackward(bulkhead_workload* workload, const bulkhead_batch* batch,
                                bulkhead_gradient_ready ready, void* context) {
    return call(workload, [&](Workload& w) { return w.forwardBackward(*batch, ready, context); });
}

bulkhead_status evaluate(bulkhead_workload* workload, const bulkhead_batch* batch,
                         bulkhead_metrics* metrics) {
    return call(workload, [&](Workload& w) { return w.evaluate(*batch, metrics); });
}

bulkhead_status metrics(bulkhead_workload* workload, bulkhead_metrics* out) {
    return call(workload, [&](Workload& w) { return w.metrics(out); });
}

bulkhead_status gradient(bulkhead_workload* workload, float** out, uint64_t* count,
                         bulkhead_memory* kind) {
    return call(workload, [&](Workload& w) {
        *out = w.gradient();
        *count = w.gradientCount();
        *kind = BULKHEAD_MEMORY_PEER;
        return absl::OkStatus();
    });
}

bulkhead_status sumOfSquares(bulkhead_workload* workload, const float* reduced, double* out) {
    return call(workload, [&](Workload& w) {
        const absl::StatusOr<double> sum = w.sumOfSquares(reduced);
        if (sum.ok()) *out = *sum;
        return sum.status();
    });
}

bulkhead_status apply(bulkhead_workload* workload, const float* reduced,
                      const bulkhead_update* update) {
    return call(workload, [&](Workload& w) { return w.apply(reduced, *update); });
}

bulkhead_status exportState(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                            void* to) {
    return call(workload, [&](Workload& w) { return w.exportState(offset, bytes, to); });
}

bulkhead_status exportStateOn(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                              void* to, bulkhead_stream* stream) {
    return call(workload, [&](Workload& w) { return w.exportStateOn(offset, bytes, to, stream); });
}

bulkhead_status importState(bulkhead_workload* workload, uint64_t offset, uint64_t bytes,
                            const void* from) {
    return call(workload, [&](Workload& w) { return w.importState(offset, bytes, from); });
}

bulkhead_status imported(bulkhead_workload* workload) {
    return call(workload, [&](Workload& w) {
        w.imported();
        return absl::OkStatus();
    });
}

bulkhead_status hash(bulkhead_workload* workload, uint64_t* out) {
    return call(workload, [&](Workload& w) {
        const absl::StatusOr<uint64_t> hash = w.hash();
        if (hash.ok()) *out = *hash;
        return hash.status();
    });
}

bulkhead_status layout(bulkhead_workload* workload, int32_t* out, uint32_t capacity) {
    return call(workload, [&](Workload& w) { return w.layout(out, capacity); });
}

bulkhead_status adoptLayout(bulkhead_workload* workload, const int32_t* expertShard,
                            uint32_t count) {
    return call(workload, [&](Workload& w) { return w.adoptLayout(expertShard, count); });
}

bulkhead_status changeLayout(bulkhead_workload* workload, const int32_t* expertShard,
                             uint32_t count, uint64_t* bytesMoved) {
    return call(workload, [&](Workload& w) {
        auto moved = w.changeLayout(expertShard, count);
        if (moved.ok() && bytesMoved != nullptr) *bytesMoved = *moved;
        return moved.status();
    });
}

bulkhead_status settleLayout(bulkhead_workload* workload, int32_t keep) {
    return call(workload, [&](Workload& w) { return w.settleLayout(keep != 0); });
}

bulkhead_status routing(bulkhead_workload* workload, uint32_t sample, uint32_t* out) {
    return call(workload, [&](Workload& w) { return w.routing(sample, out); });
}

bulkhead_status stateTensors(bulkhead_workload* workload, bulkhead_state_tensor* out,
                             uint32_t capacity, uint32_t* count) {
    return call(workload, [&](Workload& w) {
        *count = w.stateTensors(out, capacity);
        return absl::OkStatus();
    });
}

int32_t computesOn(const char* device) {
    if (device == nullptr) return 0;
    return std::strcmp(device, "cpu") == 0 ||
           (std::strcmp(device, kCuda) == 0 && cudaMachine().ok());
}

constexpr bulkhead_workload_api kApi = {
    .abi_version = BULKHEAD_WORKLOAD_ABI,
    .struct_size = sizeof(bulkhead_workload_api),
    .name = "llama_moe",
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .parameters = parameters,
    .initialise = initialise,
    .forward_backward = forwardBackward,
    .evaluate = evaluate,
    .metrics = metrics,
    .gradient = gradient,
    .sum_of_squares = sumOfSquares,
    .apply = apply,
    .export_state = exportState,
    .import_state = importState,
    .imported = imported,
    .hash = hash,
    .layout = layout,
    .adopt_layout = adoptLayout,
    .change_layout = changeLayout,
    .settle_layout = settleLayout,
    .routing = routing,
    .computes_on = computesOn,
    .export_state_on = exportStateOn,
    .state_tensors = stateTensors,
};

}  // namespace

bulkhead_status createOn(const gpu::MachineApi* machine, const bulkhead_workload_config* config,
                         bulkhead_workload** out) {
    return guard(config->host, [&] {
        if (config->struct_size < sizeof(bulkhead_workload_config))
            return absl::InvalidArgumentError(
                "the host speaks an older workload ABI; rebuild host and plugin together");
        auto workload = Workload::create(*config, machine);
        if (workload.ok()) *out = reinterpret_cast<bulkhead_workload*>(workload->release());
        return workload.status();
    });
}

const bulkhead_workload_api* workloadApi() {
    return &kApi;
}

}  // namespace bulkhead::llama_moe
