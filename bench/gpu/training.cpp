// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "backend/runtime/replica/device_copy.h"
#include "bench/gpu/measures.h"
#include "bulkhead/workload.h"
#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::bench {
namespace {

using llama_moe::gpu::Machine;
using llama_moe::gpu::MachineApi;
using llama_moe::gpu::MatrixProduct;

/// A model of resources/workloads/llama_moe.
struct Size {
    const char* name;
    double dim, chunk;
    double aim;  ///< percent of cuBLAS' rate
};
constexpr Size kBase{"base", 1024, 512, 35}, kLarge{"large", 2048, 512, 40};
constexpr double kSnapshotAim = 1;  ///< percent of a step
constexpr uint32_t kSequence = 2048, kSamples = 8, kMicroBatches = 4;
constexpr double kTokens = double{kSequence} * kSamples * kMicroBatches;
constexpr size_t kSide = 8192;
constexpr size_t kWorkspace = 32 * kMiB;

double since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

void* symbol(const char* path, const char* name) {
    void* object = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void* found = object == nullptr ? nullptr : ::dlsym(object, name);
    if (found == nullptr) die(absl::NotFoundError(absl::StrCat(path, ": ", ::dlerror())));
    return found;
}

/// TFLOP/s of bfloat16 products of large squares, by the library and the way the workload uses it.
double productRate(support::GpuPlugin& plugin, int times) {
    support::GpuRank rank(plugin);
    const auto* api = reinterpret_cast<llama_moe::gpu::GetMachine>(
        symbol(BULKHEAD_MODULE, BULKHEAD_LLAMA_MOE_GET_MACHINE))();
    Machine* machine = nullptr;
    if (api->open(plugin.host(), rank.allocate(kWorkspace), kWorkspace, &machine) != BULKHEAD_OK)
        die(absl::UnavailableError(plugin.error()));
    const size_t bytes = kSide * kSide * sizeof(Bf16);
    // Numbers as a model has them: a GPU multiplies zeros faster than it ever trains.
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(kSide * kSide);
    for (Bf16& v : values) v = narrow(normal(random));
    MatrixProduct product{};
    product.m = product.n = product.k = kSide;
    product.lda = product.ldb = product.ldc = kSide;
    product.alpha = 1;
    void* a = rank.allocate(bytes);
    void* b = rank.allocate(bytes);
    product.a = static_cast<const Bf16*>(a);
    product.b = static_cast<const Bf16*>(b);
    product.c = rank.allocate(bytes);
    if (product.c == nullptr || !rank.copy(a, values.data(), bytes) ||
        !rank.copy(b, values.data(), bytes))
        die(absl::ResourceExhaustedError(plugin.error()));
    const std::vector<double> ms = timed(times, [&] {
        api->product(machine, &product);
        (void)plugin.device().stream_synchronize(rank.device(), nullptr);
    });
    if (api->check(machine) != BULKHEAD_OK) die(absl::InternalError(plugin.error()));
    api->close(machine);
    return 2.0 * std::pow(static_cast<double>(kSide), 3) / spreadOf(ms).median / 1e9;
}

/// The workload alone on the GPU: a replica of one shard.
class Trainer {
  public:
    Trainer(support::GpuPlugin& plugin, const Size& size) : plugin_(plugin), rank_(plugin) {
        api_ = reinterpret_cast<bulkhead_workload_get_api_fn>(
            symbol(BULKHEAD_WORKLOAD, BULKHEAD_WORKLOAD_GET_API))(BULKHEAD_WORKLOAD_ABI);
        bulkhead_workload_config config{};
        config.struct_size = sizeof config;
        config.host = plugin.host();
        config.device_api = &plugin.device();
        config.device = rank_.device();
        config.shards = 1;
        const std::string model = absl::StrCat("size = \"", size.name, "\"");
        config.model_toml = model.c_str();
        config.model_dir = BULKHEAD_MODELS;
        config.sequence_length = kSequence;
        config.micro_batch = kSamples;
        config.domains = 1;
        config.beta1 = 0.9f;
        config.beta2 = 0.95f;
        config.epsilon = 1e-8f;
        config.weight_decay = 0.1f;
        must(api_->create(&config, &workload_));
        must(api_->initialise(workload_, 1));
        info_.struct_size = sizeof info_;
        must(api_->describe(workload_, &info_));
        // Skewed, as bytes of text are.
        std::mt19937 random(2);
        std::geometric_distribution<int32_t> byte(0.05);
        for (size_t i = 0; i < kSamples * (kSequence + 1); ++i)
            tokens_.push_back(std::min(byte(random), 255));
    }
    ~Trainer() {
        if (workload_ != nullptr) api_->destroy(workload_);
    }
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    const bulkhead_model_info& info() const { return info_; }
    /// Each snapshot took so long, from its order to its end.
    const std::vector<double>& snapshotMs() const { return snapshotMs_; }

    /// One that step() takes snapshots by, made as a rank makes it.
    std::unique_ptr<runtime::DeviceCopy> snapshots() {
        auto copy = value(runtime::DeviceCopy::create({&plugin_.device(), rank_.device(), &log_}));
        copy->makeRoom(info_.state_bytes);
        return copy;
    }

    /// With `snapshots`, one is taken meanwhile, as for a joiner.
    void step(runtime::DeviceCopy* snapshots = nullptr) {
        const std::vector<uint32_t> domains(kSamples);
        if (snapshots != nullptr) begin(*snapshots);
        for (uint32_t i = 0; i < kMicroBatches; ++i) {
            const bulkhead_batch batch{sizeof batch,   kSamples, tokens_.data(),
                                       domains.data(), i == 0,   i + 1 == kMicroBatches};
            must(api_->forward_backward(workload_, &batch, nullptr, nullptr));
        }
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        must(api_->gradient(workload_, &gradient, &count, &kind));
        double squares = 0;
        must(api_->sum_of_squares(workload_, gradient, &squares));
        ++updates_;
        if (snapshots != nullptr) snapshots->await();
        const auto power = static_cast<double>(updates_);
        const bulkhead_update update{sizeof update,
                                     updates_,
                                     1e-4f,
                                     static_cast<float>(1 / kTokens),
                                     static_cast<float>(1 - std::pow(0.9, power)),
                                     static_cast<float>(1 - std::pow(0.95, power))};
        must(api_->apply(workload_, gradient, &update));
        must(plugin_.device().stream_synchronize(rank_.device(), nullptr));
    }

    void hash() {
        uint64_t value = 0;
        must(api_->hash(workload_, &value));
    }

  private:
    void begin(runtime::DeviceCopy& snapshots) {
        snapshot_ = {};  // as when its last reader is done with it
        snapshots.snapshot(
            info_.state_bytes,
            [this](uint64_t at, uint64_t bytes, void* piece, bulkhead_stream* stream) {
                return api_->export_state_on(workload_, at, bytes, piece, stream);
            },
            &snapshot_,
            [this, begun = std::chrono::steady_clock::now()](const absl::Status& status) {
                need(status);
                snapshotMs_.push_back(since(begun));
            });
    }
    void must(bulkhead_status status) {
        if (status != BULKHEAD_OK) die(absl::InternalError(plugin_.error()));
    }
    support::GpuPlugin& plugin_;
    support::GpuRank rank_;
    const bulkhead_workload_api* api_ = nullptr;
    bulkhead_workload* workload_ = nullptr;
    bulkhead_model_info info_{};
    runtime::PluginLog log_;
    runtime::StateBytes snapshot_;
    std::vector<double> snapshotMs_;
    std::vector<int32_t> tokens_;
    uint64_t updates_ = 0;
};

/// Operations of a token: two for each parameter it meets and each pass (one there, two back), and
/// attention over its average number of keys: four for each of the stream's width there.
double flopsOfToken(const Size& size, const bulkhead_model_info& info) {
    const double full = info.layers / 4, chunked = info.layers - full;
    const double keys = full * (kSequence + 1) / 2 + chunked * (size.chunk + 1) / 2;
    return 6.0 * static_cast<double>(info.active_parameters) + 3 * 4 * size.dim * keys;
}

/// Milliseconds of a step, as a row; and the share of `products` TFLOP/s that it makes, as a bar.
Spread measureSteps(Trainer& trainer, const Size& size, double products, int times,
                    Report& report) {
    trainer.step();
    const Spread ms = spreadOf(timed(times, [&] { trainer.step(); }));
    const double tokens = kTokens / ms.median * 1e3;
    const double flops = tokens * flopsOfToken(size, trainer.info()) / 1e12;
    report.row({absl::StrCat("llama_moe ", size.name, ", 4 x 8 x 2048 tokens a step"), cell(ms),
                number(tokens, 0), number(flops, 0), number(100 * flops / products, 0)});
    report.atLeast(absl::StrCat("llama_moe ", size.name, ", of cuBLAS' rate"),
                   100 * flops / products, size.aim, "%");
    return ms;
}

}  // namespace

void measureTraining(support::GpuPlugin& plugin, int times, Report& report) {
    const double products = productRate(plugin, times);
    report.row({"cuBLAS, bfloat16 squares of 8192", "", "", number(products, 0), "100"});
    {
        Trainer trainer(plugin, kBase);
        const double step = measureSteps(trainer, kBase, products, times, report).median;
        const auto start = std::chrono::steady_clock::now();
        const std::unique_ptr<runtime::DeviceCopy> snapshots = trainer.snapshots();
        const double pinned = since(start);
        const Spread with = spreadOf(timed(times, [&] { trainer.step(snapshots.get()); }));
        const double more = 100 * (with.median / step - 1);
        report.row({absl::StrCat("base with a snapshot of ", trainer.info().state_bytes / kMiB,
                                 " MiB in the step: ", number(more, 1), " % more"),
                    cell(with)});
        report.row(
            {"from the order of that snapshot to its end", cell(spreadOf(trainer.snapshotMs()))});
        report.row({"taking pinned memory for it, once", number(pinned, 0)});
        report.row({"a hash of that state, as parity asks for it",
                    cell(spreadOf(timed(times, [&] { trainer.hash(); })))});
        report.atMost("a snapshot in a step of base, beside the step", more, kSnapshotAim, "%");
    }
    Trainer trainer(plugin, kLarge);
    (void)measureSteps(trainer, kLarge, products, times, report);
}

}  // namespace bulkhead::bench
