// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/workload_program.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "backend/runtime/checkpoint/tensor_table.h"
#include "backend/runtime/collectives/cpu_device.h"
#include "backend/runtime/protocol/sample_deal.h"
#include "backend/runtime/replica/worker/device_choice.h"

namespace bulkhead::runtime {
namespace {

// A sibling that is silent for so long inside a collective is lost, whatever the agent says.
constexpr uint32_t kGroupTimeoutMs = 30'000;

constexpr size_t kWarmingFloats = 1 << 20;
constexpr uint64_t kRestoredPiece = 16 << 20;  // bytes, of a state on its way back into use

struct ReadyContext {
    std::function<void(uint64_t, uint64_t)> ready;
};

void onReady(void* context, uint64_t begin, uint64_t end) {
    static_cast<ReadyContext*>(context)->ready(begin, end);
}

template <size_t N>
std::string textOf(const char (&name)[N]) {
    return {name, ::strnlen(name, N)};
}

TensorPart partOf(const bulkhead_state_tensor& told) {
    TensorPart part;
    part.name = textOf(told.name);
    if (const std::string moment = textOf(told.moment); !moment.empty()) {
        part.kind = TensorKind::kOptimizer;
        part.path = {"optimizer", "state", part.name, moment};
        part.name = absl::StrCat("optimizer.state.", part.name, ".", moment);
    }
    part.dtype = "F32";
    const size_t dimensions = std::min<size_t>(told.dimensions, std::size(told.shape));
    part.shape.assign(told.shape, told.shape + dimensions);
    part.offset = told.offset;
    part.box = {.flat = true, .begin = {told.first}, .extent = {told.count}};
    return part;
}

}  // namespace

WorkloadProgram::WorkloadProgram(const model::JobSpec& spec, RankId rank, std::string modelDir,
                                 const Corpus* corpus)
    : spec_(spec), rank_(rank), modelDir_(std::move(modelDir)), corpus_(corpus) {}

absl::StatusOr<std::unique_ptr<WorkloadProgram>> WorkloadProgram::create(
    const model::JobSpec& spec, RankId rank, const std::string& modelDir, const Corpus* corpus) {
    std::unique_ptr<WorkloadProgram> program(new WorkloadProgram(spec, rank, modelDir, corpus));
    absl::StatusOr<const bulkhead_workload_api*> api = loadWorkload(spec.workload, pluginFolders());
    if (!api.ok()) return api.status();
    absl::StatusOr<ChosenDevice> device =
        chooseDevice(spec.device, **api, program->log_, pluginFolders());
    if (!device.ok()) return device.status();
    if (!device->instead.empty())
        spdlog::info("device: the CPU computes, since {}", device->instead);
    program->api_ = *api;
    program->device_.api = device->api;
    program->device_.device = device->device;
    bulkhead_device_info info{};
    if (absl::Status s =
            program->log_.check(device->api->describe(device->device, &info), "device");
        !s.ok())
        return s;
    program->apart_ = info.memory_is_host == 0;
    if (program->apart_) program->openPlane(device->planeApi);
    return program;
}

/// Without one, gradients are staged: slower, but right.
void WorkloadProgram::openPlane(const bulkhead_data_plane_api* api) {
    if (api == nullptr) return;
    const absl::Status opened = log_.check(api->open(device_.device, 0, &plane_), "exchange");
    if (opened.ok()) {
        planeApi_ = api;
        return;
    }
    plane_ = nullptr;
    spdlog::warn("gradients go through host memory: {}", std::string(opened.message()));
}

std::string WorkloadProgram::deviceName() const {
    return absl::StrCat(device_.api->name, plane_ != nullptr ? ", exchanging there" : "");
}

WorkloadProgram::~WorkloadProgram() {
    states_.reset();
    sums_.reset();
    if (plane_ != nullptr) planeApi_->close(plane_);
    forgetKept();
    freeMemory();
    if (workload_ != nullptr) api_->destroy(workload_);
    {
        const MutexLock lock(groupMutex_);
        if (group_ != nullptr) device_.api->group_destroy(group_);
        group_ = nullptr;
    }
    if (device_.device != nullptr) device_.api->close(device_.device);
}

absl::Status WorkloadProgram::build(const BuildOrder& order) {
    absl::Status s = createGroup(order);
    if (s.ok()) s = createWorkload();
    if (s.ok() && !order.expertShard.empty()) s = adoptLayout(order.expertShard);
    // A blank one too: by any parameters its warming up routes tokens to all experts, by zeros to
    // one.
    if (s.ok()) s = log_.check(api_->initialise(workload_, spec_.seed), "initialise");
    if (s.ok()) s = bindMemory();
    if (!s.ok() || !apart_) return s;
    // Now, while nothing runs on the device: taking pinned memory may wait for what does.
    for (std::unique_ptr<DeviceCopy>* copier : {&states_, &sums_}) {
        absl::StatusOr<std::unique_ptr<DeviceCopy>> made = DeviceCopy::create(device_);
        if (!made.ok()) return made.status();
        *copier = *std::move(made);
    }
    if (copiesBeside()) states_->makeRoom(info_.state_bytes);
    return s;
}

absl::Status WorkloadProgram::warmUp() {
    std::vector<std::pair<uint32_t, uint64_t>> samples;
    for (uint64_t i = 0; i < spec_.microBatch; ++i) samples.emplace_back(0, i);
    if (absl::Status s = fillBatch(samples, 0); !s.ok()) return s;
    bulkhead_batch batch{};
    batch.struct_size = sizeof(batch);
    batch.samples = static_cast<uint32_t>(domains_.size());
    batch.tokens = tokens_.data();
    batch.domain = domains_.data();
    batch.first = batch.last = 1;
    absl::Status staging;
    ReadyContext context{[&](uint64_t begin, uint64_t end) {
        if (staging.ok()) staging = gradientStands(begin, end);
    }};
    absl::Status s =
        log_.check(api_->forward_backward(workload_, &batch, onReady, &context), "warming up");
    if (s.ok()) s = staging;
    const size_t some = std::min(reduced_.size(), kWarmingFloats);
    if (s.ok()) s = write(std::vector<float>(some), reduced_.first(some));
    return s.ok() ? sumOfSquares(reduced_).status() : s;
}

absl::Status WorkloadProgram::createGroup(const BuildOrder& order) {
    std::vector<bulkhead_peer> peers;
    for (const protocol::RankEndpoint& rank : order.ranks)
        peers.push_back({rank.host.c_str(), rank.data.c_str(), rank.shm.c_str()});
    const std::string name = absl::StrCat(spec_.name, "-r", rank_.replica, "i", order.incarnation);
    bulkhead_group_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.rank = rank_.shard;
    desc.size = static_cast<int32_t>(peers.size());
    desc.name = name.c_str();
    desc.peers = peers.data();
    desc.timeout_ms = kGroupTimeoutMs;
    std::ranges::copy(order.groupSecret.words, desc.secret);
    desc.listen_fd = order.listenFd;
    bulkhead_group* group = nullptr;
    if (absl::Status s = log_.check(device_.api->group_create(device_.device, &desc, &group),
                                    "the replica's group");
        !s.ok())
        return s;
    const MutexLock lock(groupMutex_);
    group_ = group;
    if (interrupted_) device_.api->group_abort(group_);
    return absl::OkStatus();
}

absl::Status WorkloadProgram::createWorkload() {
    bulkhead_workload_config config{};
    config.struct_size = sizeof(config);
    config.host = log_.host();
    config.device_api = device_.api;
    config.device = device_.device;
    {
        const MutexLock lock(groupMutex_);
        config.group = group_;
    }
    config.shard = rank_.shard;
    config.shards = static_cast<int32_t>(spec_.shards);
    config.model_toml = spec_.modelToml.c_str();
    const std::string sizes = absl::StrCat(modelDir_, "/", api_->name);
    config.model_dir = sizes.c_str();
    config.sequence_length = spec_.sequenceLength;
    config.micro_batch = spec_.microBatch;
    config.domains = corpus_->domains();
    config.beta1 = static_cast<float>(spec_.optimizer.beta1);
    config.beta2 = static_cast<float>(spec_.optimizer.beta2);
    config.epsilon = static_cast<float>(spec_.optimizer.epsilon);
    config.weight_decay = static_cast<float>(spec_.optimizer.weightDecay);
    return log_.check(api_->create(&config, &workload_), absl::StrCat("workload ", spec_.workload));
}

void WorkloadProgram::freeMemory() {
    for (void** memory : {&movedGradient_, &hostReduced_, &deviceReduced_, &deviceDelta_}) {
        if (*memory != nullptr) device_.api->free(device_.device, *memory);
        *memory = nullptr;
    }
}

absl::Status WorkloadProgram::bindMemory() {
    freeMemory();
    tensors_.reset();
    info_ = {};
    info_.struct_size = sizeof(info_);
    uint64_t count = 0;
    bulkhead_memory kind = BULKHEAD_MEMORY_DEVICE;
    absl::Status s = log_.check(api_->describe(workload_, &info_), "describe");
    if (s.ok())
        s = log_.check(api_->gradient(workload_, &deviceGradient_, &count, &kind), "gradient");
    const size_t bytes = count * sizeof(float);
    const auto alloc = [&](bulkhead_memory where, void** out) {
        if (!s.ok()) return;
        const absl::StatusOr<void*> memory = device_.take(where, bytes, "buffers");
        s = memory.status();
        if (s.ok()) *out = *memory;
    };
    alloc(BULKHEAD_MEMORY_PEER, &deviceReduced_);
    const bool staged = apart_ && plane_ == nullptr;
    if (staged) alloc(BULKHEAD_MEMORY_HOST, &hostReduced_);
    const bulkhead_memory needed = staged ? BULKHEAD_MEMORY_HOST : BULKHEAD_MEMORY_PEER;
    const bool moved = apart_ && kind != needed;
    if (moved) alloc(needed, &movedGradient_);
    if (!s.ok()) return s;
    gradient_ = {moved ? static_cast<float*>(movedGradient_) : deviceGradient_, count};
    reduced_ = {static_cast<float*>(staged ? hostReduced_ : deviceReduced_), count};
    const bool onCpu = device_.api == cpuDeviceApi(BULKHEAD_DEVICE_ABI);
    peerMemory_ = onCpu && kind == BULKHEAD_MEMORY_PEER ? cpuDeviceHeap(device_.device) : nullptr;
    return absl::OkStatus();
}

std::shared_ptr<const std::string> WorkloadProgram::tensorTable() {
    uint32_t count = 0;
    if (tensors_ != nullptr || api_->state_tensors == nullptr ||
        api_->state_tensors(workload_, nullptr, 0, &count) != BULKHEAD_OK)
        return tensors_;
    std::vector<bulkhead_state_tensor> told(count);
    if (api_->state_tensors(workload_, told.data(), count, &count) != BULKHEAD_OK) return nullptr;
    TensorTable table;
    table.model = info_.name;
    table.stateBytes = info_.state_bytes;
    for (const bulkhead_state_tensor& one : told) table.tensors.push_back(partOf(one));
    return tensors_ = std::make_shared<const std::string>(tensorTableText(table));
}

std::vector<uint32_t> WorkloadProgram::mixtureLayers() const {
    uint32_t count = 0;
    if (api_->parameters(workload_, nullptr, 0, &count) != BULKHEAD_OK) return {};
    std::vector<bulkhead_parameter> parameters(count);
    if (api_->parameters(workload_, parameters.data(), count, &count) != BULKHEAD_OK) return {};
    std::vector<uint32_t> layers(info_.moe_layers);
    for (const bulkhead_parameter& p : parameters)
        if (p.layer >= 0 && p.moe_layer >= 0 && static_cast<size_t>(p.moe_layer) < layers.size())
            layers[static_cast<size_t>(p.moe_layer)] = static_cast<uint32_t>(p.layer);
    return layers;
}

protocol::ModelDescribed WorkloadProgram::describe() const {
    protocol::ModelDescribed model;
    model.name = info_.name;
    model.parameters = info_.parameters;
    model.activeParameters = info_.active_parameters;
    model.layers = info_.layers;
    model.moeLayers = info_.moe_layers;
    model.experts = info_.experts;
    model.topK = info_.top_k;
    model.mixtureLayers = mixtureLayers();
    model.expertBytes = info_.expert_bytes;
    return model;
}

absl::StatusOr<StepFigures> WorkloadProgram::compute(const Work& work, ReplicaRank* rank) {
    const auto samples = protocol::dealSamples(work.ranges, spec_.shards,
                                               work.domainShare)[static_cast<size_t>(rank_.shard)];
    // Even with nothing to compute the collectives and a zero gradient are owed.
    const uint64_t batches =
        std::max<uint64_t>(1, microBatches(work.ranges, spec_.shards, spec_.microBatch));
    absl::Status staging;
    std::vector<RoutedSample> routed;
    ReadyContext context{[&](uint64_t begin, uint64_t end) {
        if (staging.ok()) staging = gradientStands(begin, end);
        rank->gradientReady(work.generation, begin, end);
    }};
    for (uint64_t i = 0; i < batches; ++i) {
        if (absl::Status s = fillBatch(samples, i * spec_.microBatch); !s.ok()) return s;
        bulkhead_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.samples = static_cast<uint32_t>(domains_.size());
        batch.tokens = tokens_.data();
        batch.domain = domains_.data();
        batch.first = i == 0;
        batch.last = i + 1 == batches;
        const auto start = std::chrono::steady_clock::now();
        absl::Status s = log_.check(api_->forward_backward(workload_, &batch, onReady, &context),
                                    absl::StrCat("step ", work.step));
        if (s.ok()) s = staging;
        if (s.ok()) s = addRouting(samples, i * spec_.microBatch, work.routedTokens, routed);
        if (!s.ok()) return s;
        rank->microBatchDone(
            std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
    }
    absl::StatusOr<StepFigures> sums = figures();
    if (sums.ok()) sums->routed = std::move(routed);
    return sums;
}

absl::Status WorkloadProgram::addRouting(const std::vector<std::pair<uint32_t, uint64_t>>& samples,
                                         size_t first, uint32_t tokens,
                                         std::vector<RoutedSample>& routed) {
    const size_t perSample = size_t{spec_.sequenceLength} * info_.moe_layers * info_.top_k;
    if (perSample == 0) return absl::OkStatus();
    for (uint32_t i = 0; i < domains_.size(); ++i) {
        if (routed.size() * spec_.sequenceLength >= tokens) break;
        const auto& [domain, sample] = samples[first + i];
        routed.push_back({domain, sample, std::vector<uint32_t>(perSample)});
        absl::Status s =
            log_.check(api_->routing(workload_, i, routed.back().experts.data()), "routing");
        if (!s.ok()) return s;
    }
    return absl::OkStatus();
}

absl::Status WorkloadProgram::fillBatch(const std::vector<std::pair<uint32_t, uint64_t>>& samples,
                                        size_t first) {
    tokens_.clear();
    domains_.clear();
    for (size_t i = first; i < std::min(samples.size(), first + spec_.microBatch); ++i) {
        absl::StatusOr<Sample> sample = corpus_->sample(samples[i].first, samples[i].second);
        if (!sample.ok()) return sample.status();
        for (const char c : sample->bytes) tokens_.push_back(static_cast<unsigned char>(c));
        domains_.push_back(sample->domain);
    }
    return absl::OkStatus();
}

absl::StatusOr<StepFigures> WorkloadProgram::figures() {
    StepFigures figures;
    figures.domainLossSum.resize(corpus_->domains());
    figures.domainTokens.resize(corpus_->domains());
    figures.expertCounts.resize(size_t{info_.moe_layers} * corpus_->domains() * info_.experts);
    bulkhead_metrics metrics{};
    metrics.struct_size = sizeof(metrics);
    metrics.domain_loss_sum = figures.domainLossSum.data();
    metrics.domain_tokens = figures.domainTokens.data();
    metrics.expert_counts = figures.expertCounts.data();
    if (absl::Status s = log_.check(api_->metrics(workload_, &metrics), "metrics"); !s.ok())
        return s;
    figures.lossSum = metrics.loss_sum;
    figures.tokens = metrics.tokens;
    absl::StatusOr<std::vector<int32_t>> placement = expertShard();
    if (!placement.ok()) return placement.status();
    figures.traffic =
        trafficOf(figures.expertCounts, corpus_->domains(), info_.experts, *placement, rank_.shard);
    figures.traffic.bytes = metrics.all_to_all_bytes;
    return figures;
}

/// A part of it is final on the default stream: it is where the exchange reads it when this
/// returns.
absl::Status WorkloadProgram::gradientStands(uint64_t begin, uint64_t end) {
    if (!apart_) return absl::OkStatus();
    if (movedGradient_ != nullptr)
        return device_.copy(static_cast<float*>(movedGradient_) + begin, deviceGradient_ + begin,
                            (end - begin) * sizeof(float), "gradient copy");
    return device_.wait("gradient");
}

absl::Status WorkloadProgram::read(std::span<const float> at, std::span<float> to) {
    return device_.copy(to.data(), at.data(), at.size_bytes(), "reading back");
}

absl::Status WorkloadProgram::write(std::span<const float> from, std::span<float> at) {
    return device_.copy(at.data(), from.data(), from.size_bytes(), "writing");
}

absl::StatusOr<const float*> WorkloadProgram::onDevice(std::span<const float> values) {
    const bool there = values.data() == gradient_.data() || values.data() == reduced_.data();
    if (!apart_ || (plane_ != nullptr && there)) return values.data();
    void** to = plane_ != nullptr ? &deviceDelta_ : &deviceReduced_;
    if (*to == nullptr) {
        absl::StatusOr<void*> memory =
            device_.take(BULKHEAD_MEMORY_DEVICE, values.size_bytes(), "room for a sum");
        if (!memory.ok()) return memory.status();
        *to = *memory;
    }
    if (absl::Status s = device_.copy(*to, values.data(), values.size_bytes(), "sum copy"); !s.ok())
        return s;
    return static_cast<const float*>(*to);
}

absl::Status WorkloadProgram::exportState(uint64_t offset, std::span<std::byte> to) {
    return log_.check(api_->export_state(workload_, offset, to.size(), to.data()), "export");
}

void WorkloadProgram::snapshot(StateBytes* to, std::function<void(absl::Status)> done) {
    if (!copiesBeside()) return TrainingProgram::snapshot(to, std::move(done));
    // The update before may still run there, and its stream is not the snapshot's.
    if (absl::Status s = device_.wait("snapshot"); !s.ok()) return done(s);
    states_->snapshot(
        info_.state_bytes,
        [this](uint64_t at, uint64_t bytes, void* piece, bulkhead_stream* stream) {
            return api_->export_state_on(workload_, at, bytes, piece, stream);
        },
        to, std::move(done));
}

void WorkloadProgram::readSum(std::span<float> to, std::function<void(absl::Status)> done) {
    if (plane_ == nullptr) return TrainingProgram::readSum(to, std::move(done));
    sums_->begin(reduced_, to, std::move(done));
}

void WorkloadProgram::awaitSum() {
    if (sums_ != nullptr) sums_->await();
}

void WorkloadProgram::giveUpSum() {
    if (sums_ != nullptr) sums_->giveUp();
}

StateBytes WorkloadProgram::stateRoom(uint64_t bytes) {
    return states_ != nullptr ? states_->lend(bytes) : TrainingProgram::stateRoom(bytes);
}

void WorkloadProgram::awaitCopies() {
    if (states_ != nullptr) states_->await();
    awaitSum();
}

absl::Status WorkloadProgram::keepState() {
    if (!copiesBeside()) return TrainingProgram::keepState();
    absl::Status s;
    if (keptBytes_ != info_.state_bytes) {
        forgetKept();
        absl::StatusOr<void*> memory =
            device_.take(BULKHEAD_MEMORY_DEVICE, info_.state_bytes, "room to keep the state");
        if (!memory.ok()) return memory.status();
        kept_ = *memory;
        keptBytes_ = info_.state_bytes;
    }
    s = log_.check(api_->export_state_on(workload_, 0, keptBytes_, kept_, nullptr), "keeping");
    if (s.ok()) s = device_.wait("keeping");
    return s;
}

absl::Status WorkloadProgram::restoreKept() {
    if (kept_ == nullptr) return TrainingProgram::restoreKept();
    std::vector<std::byte> piece(std::min<uint64_t>(keptBytes_, kRestoredPiece));
    for (uint64_t at = 0; at < keptBytes_; at += piece.size()) {
        const size_t bytes = std::min<uint64_t>(piece.size(), keptBytes_ - at);
        absl::Status s = device_.copy(piece.data(), static_cast<const std::byte*>(kept_) + at,
                                      bytes, "restoring");
        if (s.ok()) s = importState(at, std::span(piece).first(bytes));
        if (!s.ok()) return s;
    }
    return imported();
}

void WorkloadProgram::forgetKept() {
    TrainingProgram::forgetKept();
    if (kept_ != nullptr) device_.api->free(device_.device, kept_);
    kept_ = nullptr;
    keptBytes_ = 0;
}

absl::Status WorkloadProgram::importState(uint64_t offset, std::span<const std::byte> from) {
    awaitCopies();
    return log_.check(api_->import_state(workload_, offset, from.size(), from.data()), "import");
}

absl::Status WorkloadProgram::imported() {
    return log_.check(api_->imported(workload_), "import");
}

absl::StatusOr<uint64_t> WorkloadProgram::stateHash() {
    uint64_t hash = 0;
    if (absl::Status s = log_.check(api_->hash(workload_, &hash), "hash"); !s.ok()) return s;
    return hash;
}

absl::StatusOr<double> WorkloadProgram::sumOfSquares(std::span<const float> reduced) {
    absl::StatusOr<const float*> sum = onDevice(reduced);
    if (!sum.ok()) return sum.status();
    double squares = 0;
    if (absl::Status s = log_.check(api_->sum_of_squares(workload_, *sum, &squares), "squares");
        !s.ok())
        return s;
    return squares;
}

absl::Status WorkloadProgram::apply(const CommitRecord& record, std::span<const float> reduced) {
    absl::StatusOr<const float*> sum = onDevice(reduced);
    if (!sum.ok()) return sum.status();
    if (states_ != nullptr) states_->await();
    bulkhead_update update{};
    update.struct_size = sizeof(update);
    update.updates = record.updates;
    update.learning_rate = std::bit_cast<float>(record.learningRateBits);
    update.gradient_scale = std::bit_cast<float>(record.gradScaleBits);
    update.bias_correction1 = std::bit_cast<float>(record.biasCorrection1Bits);
    update.bias_correction2 = std::bit_cast<float>(record.biasCorrection2Bits);
    absl::Status s =
        log_.check(api_->apply(workload_, *sum, &update), absl::StrCat("update ", record.step));
    // The next exchange may write the sum at once.
    if (s.ok() && apart_) s = device_.wait("update");
    return s;
}

absl::StatusOr<std::vector<int32_t>> WorkloadProgram::expertShard() {
    std::vector<int32_t> placement(size_t{info_.moe_layers} * info_.experts);
    if (placement.empty()) return placement;
    if (absl::Status s = log_.check(
            api_->layout(workload_, placement.data(), static_cast<uint32_t>(placement.size())),
            "layout");
        !s.ok())
        return s;
    return placement;
}

absl::Status WorkloadProgram::adoptLayout(const std::vector<int32_t>& expertShard) {
    awaitCopies();
    if (absl::Status s = log_.check(api_->adopt_layout(workload_, expertShard.data(),
                                                       static_cast<uint32_t>(expertShard.size())),
                                    "layout");
        !s.ok())
        return s;
    return bindMemory();
}

absl::StatusOr<uint64_t> WorkloadProgram::moveLayout(const std::vector<int32_t>& expertShard) {
    awaitCopies();
    uint64_t moved = 0;
    if (absl::Status s =
            log_.check(api_->change_layout(workload_, expertShard.data(),
                                           static_cast<uint32_t>(expertShard.size()), &moved),
                       "moving experts");
        !s.ok())
        return s;
    if (absl::Status s = bindMemory(); !s.ok()) return s;
    return moved;
}

absl::Status WorkloadProgram::settleLayout(bool keep) {
    awaitCopies();
    if (absl::Status s = log_.check(api_->settle_layout(workload_, keep), "layout"); !s.ok())
        return s;
    return keep ? absl::OkStatus() : bindMemory();
}

void WorkloadProgram::interrupt() {
    interrupted_ = true;
    const MutexLock lock(groupMutex_);
    if (group_ != nullptr) device_.api->group_abort(group_);
}

}  // namespace bulkhead::runtime
