// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/workload.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/cpu_math.h"
#include "plugins/llama_moe/gpu/gpu_math.h"

namespace bulkhead::llama_moe {
namespace {

template <size_t N>
void copyName(char (&to)[N], const std::string& from) {
    const size_t size = std::min(from.size(), N - 1);
    std::memcpy(to, from.data(), size);
    to[size] = '\0';
}

/// Adds `from` to what of `to` is wanted.
void addTo(bulkhead_metrics* to, const Sums& from) {
    to->tokens += std::accumulate(from.domainTokens.begin(), from.domainTokens.end(), uint64_t{0});
    to->loss_sum += std::accumulate(from.domainLoss.begin(), from.domainLoss.end(), 0.0);
    const auto add = [](const auto& values, auto* sums) {
        if (sums == nullptr) return;
        for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
    };
    add(from.domainLoss, to->domain_loss_sum);
    add(from.domainTokens, to->domain_tokens);
    add(from.expertCounts, to->expert_counts);
    // A host older than this figure has no room for it.
    if (to->struct_size >= offsetof(bulkhead_metrics, all_to_all_bytes) + sizeof(uint64_t))
        to->all_to_all_bytes += from.sentBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> Workload::create(const bulkhead_workload_config& config,
                                                           const gpu::MachineApi* machine) {
    std::unique_ptr<Workload> workload(new Workload);
    if (absl::Status s = workload->open(config, machine); !s.ok()) return s;
    return workload;
}

absl::Status Workload::open(const bulkhead_workload_config& config,
                            const gpu::MachineApi* machine) {
    config_ = config;
    host_ = config.host;
    useOneThread();
    if (config.shards < 1 || config.shard < 0 || config.shard >= config.shards)
        return absl::InvalidArgumentError(
            absl::StrCat("shard must be from 0 to ", config.shards - 1, ", but is ", config.shard));
    if (config.domains == 0)
        return absl::InvalidArgumentError("there must be at least 1 domain of data");
    bulkhead_device_info info{};
    BULKHEAD_RETURN_IF_ERROR(
        fromDevice(config.device_api->describe(config.device, &info), "describe"));
    if (machine == nullptr && info.memory_is_host == 0)
        return absl::InvalidArgumentError(
            absl::StrCat("llama_moe computes on the CPU here, but the memory of device \"",
                         info.name, "\" is out of its reach; set device = \"cpu\""));
    absl::StatusOr<ModelConfig> model =
        readModelConfig(config.model_toml == nullptr ? "" : config.model_toml,
                        config.model_dir == nullptr ? "" : config.model_dir);
    if (!model.ok()) return model.status();
    const auto shards = static_cast<size_t>(config.shards);
    BULKHEAD_RETURN_IF_ERROR(checkFits(*model, shards, config.micro_batch, config.sequence_length));
    spec_ = describeModel(*model);
    const Device device{config.device_api,
                        config.device,
                        config.group,
                        static_cast<size_t>(config.shard),
                        shards,
                        info.memory_is_host != 0};
    BULKHEAD_RETURN_IF_ERROR(
        machine == nullptr
            ? makeModel<float>(std::make_unique<CpuMath<float>>(device))
            : makeModel<Bf16>(std::make_unique<GpuMath>(device, machine, config.host)));
    sums_ = evaluation_ = model_->emptySums();
    config_.model_toml = config_.model_dir = nullptr;  // the caller's, gone after the call
    return absl::OkStatus();
}

template <class A>
absl::Status Workload::makeModel(std::unique_ptr<Math<A>> math) {
    const size_t shards = math->device().shards;
    auto model = std::make_unique<ShardModelOf<A>>(std::move(math));
    absl::Status opened = model->open(spec_, defaultPlacement(spec_, shards), config_.micro_batch,
                                      config_.sequence_length, config_.domains);
    model_ = std::move(model);
    return opened;
}

void Workload::describe(bulkhead_model_info* out) const {
    const ModelConfig& model = spec_.config;
    copyName(out->name, absl::StrCat("llama_moe/", model.name));
    out->parameters = spec_.parameters();
    out->active_parameters = spec_.activeParameters();
    out->layers = static_cast<uint32_t>(model.layers);
    out->moe_layers = static_cast<uint32_t>(model.mixtureLayers());
    out->experts = static_cast<uint32_t>(model.experts);
    out->top_k = static_cast<uint32_t>(model.topK);
    out->vocabulary = static_cast<uint32_t>(kVocabulary);
    out->expert_bytes = 0;
    for (const Unit& unit : spec_.units)
        out->expert_bytes =
            std::max<uint64_t>(out->expert_bytes, 3 * unit.expertCount * sizeof(float));
    out->state_bytes = stateBytes();
    out->gradient_count = gradientCount();
}

uint32_t Workload::parameters(bulkhead_parameter* out, uint32_t capacity) const {
    uint32_t count = 0;
    const auto add = [&](const Unit& unit, const std::string& name, int32_t expert,
                         const Tensor& tensor) {
        if (count < capacity) {
            copyName(out[count].name, name);
            out[count].layer = unit.layer;
            out[count].moe_layer = expert < 0 ? -1 : unit.mixture;
            out[count].expert = expert;
            out[count].count = tensor.count();
        }
        ++count;
    };
    for (const Unit& unit : spec_.units) {
        for (const Tensor& tensor : unit.dense) add(unit, unit.prefix() + tensor.name, -1, tensor);
        const size_t experts = unit.mixture < 0 ? 0 : spec_.config.experts;
        for (size_t e = 0; e < experts; ++e)
            for (const Tensor& tensor : unit.expert)
                add(unit, absl::StrCat(unit.prefix(), "moe.experts.", e, ".", tensor.name),
                    static_cast<int32_t>(e), tensor);
    }
    return count;
}

uint32_t Workload::stateTensors(bulkhead_state_tensor* out, uint32_t capacity) const {
    constexpr const char* kMoments[] = {"", "exp_avg", "exp_avg_sq"};
    const Layout& layout = model_->layout();
    uint32_t written = 0;
    const auto add = [&](const std::string& name, const Tensor& tensor, size_t first, size_t count,
                         size_t at) {
        for (size_t run = 0; run < std::size(kMoments); ++run, ++written) {
            if (written >= capacity) continue;
            bulkhead_state_tensor& to = out[written] = {};
            copyName(to.name, name);
            copyName(to.moment, kMoments[run]);
            if (tensor.rows > 1) to.shape[to.dimensions++] = tensor.rows;
            to.shape[to.dimensions++] = tensor.cols;
            to.first = first;
            to.count = count;
            to.offset = (run * layout.count() + at) * sizeof(float);
        }
    };
    for (size_t u = 0; u < spec_.units.size(); ++u) {
        const Unit& unit = spec_.units[u];
        const UnitRegion& region = layout.units()[u];
        const size_t from = static_cast<size_t>(config_.shard) * region.slice;
        for (const Tensor& tensor : unit.dense) {
            const size_t begin = std::max(from, tensor.offset);
            const size_t end = std::min(from + region.slice, tensor.offset + tensor.count());
            if (begin < end)
                add(unit.prefix() + tensor.name, tensor, begin - tensor.offset, end - begin,
                    region.begin + begin - from);
        }
        for (const size_t e : region.experts)
            for (const Tensor& tensor : unit.expert)
                add(absl::StrCat(unit.prefix(), "moe.experts.", e, ".", tensor.name), tensor, 0,
                    tensor.count(), region.expertAt[e] + tensor.offset);
    }
    return written;
}

absl::Status Workload::initialise(uint64_t seed) {
    BULKHEAD_RETURN_IF_ERROR(model_->initialise(seed));
    model_->clearGradient();
    return absl::OkStatus();
}

absl::Status Workload::checkBatch(const bulkhead_batch& batch) const {
    if (batch.samples > config_.micro_batch)
        return absl::InvalidArgumentError(absl::StrCat(
            "a micro-batch has at most ", config_.micro_batch, " samples, not ", batch.samples));
    const size_t width = config_.sequence_length + size_t{1};
    for (size_t s = 0; s < batch.samples; ++s) {
        if (batch.domain[s] >= config_.domains)
            return absl::InvalidArgumentError(absl::StrCat("the domain of sample ", s,
                                                           " must be below ", config_.domains,
                                                           ", but is ", batch.domain[s]));
        for (size_t t = s * width; t < (s + 1) * width; ++t)
            if (static_cast<uint32_t>(batch.tokens[t]) >= kVocabulary)
                return absl::InvalidArgumentError(
                    absl::StrCat("token ", t - s * width, " of sample ", s,
                                 " must be a byte, from 0 to 255, but is ", batch.tokens[t]));
    }
    return absl::OkStatus();
}

absl::Status Workload::forwardBackward(const bulkhead_batch& batch, bulkhead_gradient_ready ready,
                                       void* context) {
    BULKHEAD_RETURN_IF_ERROR(checkBatch(batch));
    if (batch.first != 0) {
        BULKHEAD_RETURN_IF_ERROR(model_->settle(&sums_));
        model_->forgetWholeUnits();
        model_->clearGradient();
        sums_.clear();
    }
    const Batch samples{batch.samples, batch.tokens, batch.domain};
    const uint64_t sent = model_->sentBytes();
    BULKHEAD_RETURN_IF_ERROR(model_->forward(samples));
    Ready tell;
    if (ready != nullptr) tell = [=](size_t begin, size_t end) { ready(context, begin, end); };
    BULKHEAD_RETURN_IF_ERROR(model_->backward(batch.last != 0, tell));
    sums_.sentBytes += model_->sentBytes() - sent;
    return absl::OkStatus();
}

absl::Status Workload::routing(uint32_t sample, uint32_t* out) {
    if (sample >= model_->samples())
        return absl::InvalidArgumentError(absl::StrCat("the last micro-batch has ",
                                                       model_->samples(), " samples; there is no ",
                                                       sample, " to tell the routing of"));
    return model_->routing(sample, out);
}

absl::Status Workload::evaluate(const bulkhead_batch& batch, bulkhead_metrics* metrics) {
    BULKHEAD_RETURN_IF_ERROR(checkBatch(batch));
    BULKHEAD_RETURN_IF_ERROR(model_->settle(&sums_));
    evaluation_.clear();
    model_->forgetWholeUnits();
    const uint64_t sent = model_->sentBytes();
    BULKHEAD_RETURN_IF_ERROR(model_->forward({batch.samples, batch.tokens, batch.domain}));
    BULKHEAD_RETURN_IF_ERROR(model_->settle(&evaluation_));
    evaluation_.sentBytes = model_->sentBytes() - sent;
    addTo(metrics, evaluation_);
    return absl::OkStatus();
}

absl::Status Workload::metrics(bulkhead_metrics* out) {
    BULKHEAD_RETURN_IF_ERROR(model_->settle(&sums_));
    out->tokens = 0;
    out->loss_sum = 0;
    const auto clear = [](auto* values, size_t count) {
        if (values != nullptr) std::fill_n(values, count, 0);
    };
    clear(out->domain_loss_sum, sums_.domainLoss.size());
    clear(out->domain_tokens, sums_.domainTokens.size());
    clear(out->expert_counts, sums_.expertCounts.size());
    if (out->struct_size >= offsetof(bulkhead_metrics, all_to_all_bytes) + sizeof(uint64_t))
        out->all_to_all_bytes = 0;
    addTo(out, sums_);
    return absl::OkStatus();
}

absl::Status Workload::apply(const float* reduced, const bulkhead_update& update) {
    if (!(update.bias_correction1 > 0.0f) || !(update.bias_correction2 > 0.0f))
        return absl::InvalidArgumentError("bias corrections must be above 0: 1 - beta^updates");
    const AdamW<float> rule{config_.beta1,
                            config_.beta2,
                            config_.epsilon,
                            config_.weight_decay,
                            update.learning_rate,
                            update.gradient_scale,
                            update.bias_correction1,
                            update.bias_correction2,
                            static_cast<float>(spec_.config.balanceRate)};
    return model_->apply(rule, reduced);
}

absl::Status Workload::checkRange(uint64_t offset, uint64_t bytes) const {
    if (offset <= stateBytes() && bytes <= stateBytes() - offset) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("bytes ", offset, " to ", offset + bytes,
                                                   " are not within the state of ", stateBytes(),
                                                   " bytes"));
}

absl::Status Workload::exportState(uint64_t offset, uint64_t bytes, void* to) {
    BULKHEAD_RETURN_IF_ERROR(checkRange(offset, bytes));
    return model_->read(offset, bytes, to);
}

absl::Status Workload::exportStateOn(uint64_t offset, uint64_t bytes, void* to,
                                     bulkhead_stream* stream) {
    BULKHEAD_RETURN_IF_ERROR(checkRange(offset, bytes));
    return model_->readOn(offset, bytes, to, stream);
}

absl::Status Workload::importState(uint64_t offset, uint64_t bytes, const void* from) {
    BULKHEAD_RETURN_IF_ERROR(checkRange(offset, bytes));
    return model_->write(offset, bytes, from);
}

absl::Status Workload::layout(int32_t* out, uint32_t capacity) const {
    const Placement& placement = model_->layout().placement();
    if (capacity < placement.size())
        return absl::InvalidArgumentError(absl::StrCat(
            "a layout of this model has ", placement.size(), " entries, not ", capacity));
    std::copy(placement.begin(), placement.end(), out);
    return absl::OkStatus();
}

absl::StatusOr<Placement> Workload::checkPlacement(const int32_t* expertShard,
                                                   uint32_t count) const {
    const size_t wanted = spec_.config.mixtureLayers() * spec_.config.experts;
    if (count != wanted)
        return absl::InvalidArgumentError(absl::StrCat("a layout of this model needs ", wanted,
                                                       " entries (mixture layers x experts), not ",
                                                       count));
    for (size_t i = 0; i < wanted; ++i)
        if (expertShard[i] < 0 || expertShard[i] >= config_.shards)
            return absl::InvalidArgumentError(absl::StrCat(
                "expert ", i % spec_.config.experts, " of mixture layer ", i / spec_.config.experts,
                " must be on a shard from 0 to ", config_.shards - 1, ", not ", expertShard[i]));
    return Placement(expertShard, expertShard + wanted);
}

absl::Status Workload::adoptLayout(const int32_t* expertShard, uint32_t count) {
    absl::StatusOr<Placement> placement = checkPlacement(expertShard, count);
    if (!placement.ok()) return placement.status();
    return model_->adoptLayout(*std::move(placement));
}

absl::StatusOr<uint64_t> Workload::changeLayout(const int32_t* expertShard, uint32_t count) {
    absl::StatusOr<Placement> placement = checkPlacement(expertShard, count);
    if (!placement.ok()) return placement.status();
    return model_->changeLayout(*std::move(placement));
}

}  // namespace bulkhead::llama_moe
