// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/embed/rank.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/protocol/sample_deal.h"
#include "backend/runtime/replica/corpus.h"
#include "backend/runtime/replica/embed/device_gradient.h"
#include "backend/runtime/replica/exit_code.h"
#include "backend/runtime/replica/rank_arguments.h"
#include "backend/runtime/replica/replica_rank.h"
#include "backend/runtime/transport/life_lock.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

// A program that does not come back from its step must not keep an expelled process alive.
constexpr auto kLeaveLimit = std::chrono::seconds(15);

/// The program's state and gradient as memory; what it does with them is its callbacks'.
class MemoryProgram final : public TrainingProgram {
  public:
    absl::Status allocate(const bulkhead_rank_sizes& sizes) {
        sizes_ = sizes;
        const auto take = [this](size_t bytes) {
            return heap_.allocate(std::max<size_t>(1, bytes));
        };
        absl::StatusOr<void*> state = take(sizes.state_bytes);
        if (!state.ok()) return state.status();
        state_ = *state;
        if (device_ != nullptr) return absl::OkStatus();
        for (std::span<float>* block : {&gradient_, &reduced_}) {
            absl::StatusOr<void*> memory = take(sizes.gradient_floats * sizeof(float));
            if (!memory.ok()) return memory.status();
            *block = {static_cast<float*>(*memory), sizes.gradient_floats};
        }
        return absl::OkStatus();
    }
    /// Before allocate(): gradient and sum are there.
    void useDevice(std::unique_ptr<DeviceGradient> device) {
        device_ = std::move(device);
        gradient_ = device_->gradient();
        reduced_ = device_->reduced();
    }
    bool onDevice() const { return device_ != nullptr; }
    void close() {
        if (device_ != nullptr) device_->close();
    }
    void set(const bulkhead_rank_program& calls) {
        calls_ = calls;
        if (calls.tensors != nullptr) tensors_ = std::make_shared<const std::string>(calls.tensors);
        const size_t placed = size_t{calls.moe_layers} * calls.experts;
        placement_.assign(calls.expert_shard, calls.expert_shard + placed);
    }
    void* stateMemory() const { return state_; }

    absl::Status build(const BuildOrder& order) override {
        return order.blank ? absl::OkStatus() : gather();
    }
    absl::Status warmUp() override {
        if (device_ != nullptr) return sumOfSquares(reduced_).status();  // it is zeros already
        std::ranges::fill(reduced_, 0.0F);
        return absl::OkStatus();
    }
    protocol::ModelDescribed describe() const override {
        protocol::ModelDescribed model;
        model.name = calls_.model;
        model.parameters = model.activeParameters = calls_.parameters;
        model.moeLayers = calls_.moe_layers;
        model.experts = calls_.experts;
        model.topK = calls_.top_k;
        model.expertShard = placement_;
        model.expertsFixed = !placement_.empty();
        return model;
    }
    void addExperts(const uint64_t* counts, size_t domains, int32_t shard, StepFigures& to) const {
        if (counts == nullptr || placement_.empty()) return;
        to.expertCounts.assign(counts, counts + placement_.size() * domains);
        to.traffic = trafficOf(to.expertCounts, domains, calls_.experts, placement_, shard);
    }

    uint64_t stateBytes() const override { return sizes_.state_bytes; }
    std::shared_ptr<const std::string> tensorTable() override { return tensors_; }
    uint64_t parameterBytes() const override { return sizes_.parameter_bytes; }
    absl::Status exportState(uint64_t offset, std::span<std::byte> to) override {
        if (absl::Status s = gather(); !s.ok()) return s;
        std::memcpy(to.data(), bytes() + offset, to.size());
        return absl::OkStatus();
    }
    absl::Status importState(uint64_t offset, std::span<const std::byte> from) override {
        // A partial write keeps the other bytes, which must be gathered first.
        if (from.size() < sizes_.state_bytes)
            if (absl::Status s = gather(); !s.ok()) return s;
        std::memcpy(bytes() + offset, from.data(), from.size());
        return absl::OkStatus();
    }
    absl::Status imported() override {
        gathered_ = true;
        return said(calls_.scatter(calls_.context), "taking a state over");
    }
    absl::StatusOr<std::vector<std::byte>> exportLocal(uint64_t step) override {
        const void* bytes = nullptr;
        uint64_t size = 0;
        if (absl::Status s = said(calls_.save_local(calls_.context, step, &bytes, &size),
                                  "handing local state over");
            !s.ok())
            return s;
        const auto* begin = static_cast<const std::byte*>(bytes);
        return std::vector<std::byte>(begin, begin + size);
    }
    absl::Status importLocal(std::span<const std::byte> from) override {
        return said(calls_.load_local(calls_.context, from.data(), from.size()),
                    "taking local state over");
    }
    absl::StatusOr<uint64_t> stateHash() override {
        if (absl::Status s = gather(); !s.ok()) return s;
        return bulkhead_state_hash(state_, sizes_.state_bytes);
    }

    DevicePlane dataPlane() const override {
        return device_ != nullptr ? device_->plane() : DevicePlane{};
    }
    std::span<float> gradient() override { return gradient_; }
    std::span<float> reduced() override { return reduced_; }
    absl::Status read(std::span<const float> at, std::span<float> to) override {
        if (device_ == nullptr) return TrainingProgram::read(at, to);
        return device_->copy(to.data(), at.data(), at.size_bytes());
    }
    absl::Status write(std::span<const float> from, std::span<float> at) override {
        if (device_ == nullptr) return TrainingProgram::write(from, at);
        return device_->copy(at.data(), from.data(), from.size_bytes());
    }
    void readSum(std::span<float> to, std::function<void(absl::Status)> done) override {
        if (device_ == nullptr) return TrainingProgram::readSum(to, std::move(done));
        device_->readSum(to, std::move(done));
    }
    void awaitSum() override {
        if (device_ != nullptr) device_->awaitSum();
    }
    void giveUpSum() override {
        if (device_ != nullptr) device_->giveUpSum();
    }
    void awaitCopies() override { awaitSum(); }
    const SharedHeap* peerMemory() const override { return device_ == nullptr ? &heap_ : nullptr; }
    absl::StatusOr<double> sumOfSquares(std::span<const float> values) override {
        const auto others = values.first(sizes_.other_floats);
        const auto rest = values.subspan(sizes_.other_floats);
        if (device_ == nullptr) return squaresOf(rest);
        absl::StatusOr<double> sum = squaresThere(rest);
        if (!sum.ok() || others.empty()) return sum;
        // They do not count, but whether they are finite does.
        absl::StatusOr<double> beside = squaresThere(others);
        return beside.ok() && std::isfinite(*beside) ? sum : beside;
    }
    absl::Status apply(const CommitRecord& record, std::span<const float> reduced) override {
        bulkhead_rank_update update{};
        update.step = record.step;
        update.updates = record.updates;
        update.samples = record.samples;
        update.gradient_scale = std::bit_cast<float>(record.gradScaleBits);
        update.lr_factor = std::bit_cast<float>(record.lrFactorBits);
        gathered_ = false;
        const absl::StatusOr<float*> sum = given(reduced);
        if (!sum.ok()) return sum.status();
        return said(calls_.update(calls_.context, *sum, &update), "the update");
    }

    absl::StatusOr<std::vector<int32_t>> expertShard() override { return std::vector<int32_t>{}; }
    absl::Status adoptLayout(const std::vector<int32_t>&) override { return noExperts(); }
    absl::StatusOr<uint64_t> moveLayout(const std::vector<int32_t>&) override {
        return noExperts();
    }
    absl::Status settleLayout(bool) override { return noExperts(); }
    /// The program's own wait for its siblings is not interrupted: watch() ends the process.
    void interrupt() override {}

  private:
    /// A joiner replays sums that belong to the store, until it trains.
    absl::StatusOr<float*> given(std::span<const float> sum) {
        if (device_ != nullptr) return device_->there(sum);
        if (sum.data() == reduced_.data()) {
            replayed_ = {};
            return reduced_.data();
        }
        replayed_.assign(sum.begin(), sum.end());
        return replayed_.data();
    }
    /// Lanes, because one sum would wait for itself at every value.
    static double squaresOf(std::span<const float> values) {
        std::array<double, 8> lanes{};
        size_t i = 0;
        for (; i + lanes.size() <= values.size(); i += lanes.size())
            for (size_t k = 0; k < lanes.size(); ++k)
                lanes[k] += static_cast<double>(values[i + k]) * values[i + k];
        for (size_t k = 0; i < values.size(); ++i, ++k)
            lanes[k] += static_cast<double>(values[i]) * values[i];
        double sum = 0;
        for (const double lane : lanes) sum += lane;
        return sum;
    }
    absl::StatusOr<double> squaresThere(std::span<const float> values) {
        double sum = 0;
        const int answer =
            calls_.sum_of_squares(calls_.context, values.data(), values.size(), &sum);
        if (absl::Status s = said(answer, "summing squares"); !s.ok()) return s;
        return sum;
    }
    std::byte* bytes() const { return static_cast<std::byte*>(state_); }
    static absl::Status noExperts() {
        return absl::UnimplementedError("this program has no experts to move");
    }
    static absl::Status said(int answer, const char* what) {
        if (answer == 0) return absl::OkStatus();
        return absl::InternalError(absl::StrCat(what, " failed in the program"));
    }
    absl::Status gather() {
        if (gathered_) return absl::OkStatus();
        absl::Status s = said(calls_.gather(calls_.context), "handing the state over");
        gathered_ = s.ok();
        return s;
    }

    SharedHeap heap_;  // peers of the host read gradient and sum where they are
    std::unique_ptr<DeviceGradient> device_;  ///< null: gradient and sum are in the heap
    bulkhead_rank_sizes sizes_{};
    bulkhead_rank_program calls_{};
    std::shared_ptr<const std::string> tensors_;
    std::vector<int32_t> placement_;  ///< [moeLayer][expert]; the program's own matter
    void* state_ = nullptr;
    std::span<float> gradient_;
    std::span<float> reduced_;
    std::vector<float> replayed_;  ///< a sum from before it trained
    bool gathered_ = false;        ///< the state memory is what the state is
};

/// Passes signals from the handler to the watch thread. The program may have started threads that
/// do not block a signal, so that waiting for a blocked one would not do.
std::array<int, 2> signalPipe = {-1, -1};

struct SignalSeen {
    int signal = 0;
    int value = 0;
};

void onSignal(int signal, siginfo_t* info, void*) {
    const int kept = errno;
    const SignalSeen seen{signal, info->si_value.sival_int};
    [[maybe_unused]] const ssize_t n = ::write(signalPipe[1], &seen, sizeof seen);
    errno = kept;
}

absl::Status catchSignals() {
    if (::pipe2(signalPipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
        return absl::UnavailableError(absl::StrCat("no pipe for signals: ", std::strerror(errno)));
    struct sigaction action {};
    action.sa_sigaction = onSignal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    for (const int signal : {SIGTERM, protocol::endFaultSignal()})
        ::sigaction(signal, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    return absl::OkStatus();
}

/// SIGTERM becomes an orderly leave; a process whose program never comes back is ended.
void watch(const std::stop_token& stop, ReplicaRank* rank) {
    constexpr std::chrono::milliseconds kTick{100};
    std::chrono::milliseconds waited{0};
    while (!stop.stop_requested()) {
        pollfd poll{signalPipe[0], POLLIN, 0};
        (void)::poll(&poll, 1, static_cast<int>(kTick.count()));
        SignalSeen seen;
        while (::read(signalPipe[0], &seen, sizeof seen) == sizeof seen) {
            if (seen.signal == SIGTERM) rank->requestLeave();
            if (seen.signal == protocol::endFaultSignal())
                rank->endFault(static_cast<uint64_t>(seen.value));
        }
        if (rank->leaving()) waited += kTick;
        if (waited < kLeaveLimit) continue;
        spdlog::critical("the program did not come back in time; leaving without it");
        ::_exit(kExitExpelled);
    }
}

std::atomic<bool> running{false};

/// A program that ends without a word has its connections closed by its end, and by nothing before
/// it: the exit code says more. Threads of the library do not live to see statics destroyed.
void endAtOnce(int status, void*) {
    if (!running) return;
    std::fflush(nullptr);
    ::_exit(status);
}

void logAsAWorkerDoes() {
    auto logger =
        std::make_shared<spdlog::logger>("rank", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%H:%M:%S.%e %l %v");
    spdlog::set_default_logger(std::move(logger));
}

}  // namespace
}  // namespace bulkhead::runtime

using namespace bulkhead::runtime;

struct bulkhead_rank {
    RankOptions options;
    std::vector<const char*> domainNames;
    bulkhead::SystemClock clock;
    MemoryProgram program;
    std::unique_ptr<ReplicaRank> rank;
    std::jthread watchdog;
    Work work;
    std::vector<bulkhead_rank_range> ranges;
    std::vector<bulkhead_rank_sample> samples;
    std::string error;
    int exitCode = kExitInternal;

    int failed(const absl::Status& why, int code) {
        error = std::string(why.message());
        exitCode = code;
        return BULKHEAD_RANK_FAILED;
    }
};

const char* bulkhead_rank_version(void) {
    return BULKHEAD_VERSION;
}

bulkhead_rank* bulkhead_rank_attach(char* error, size_t size) {
    const auto refuse = [&](const absl::Status& why) -> bulkhead_rank* {
        std::snprintf(error, size, "%s", std::string(why.message()).c_str());
        return nullptr;
    };
    if (signalPipe[0] != -1)
        return refuse(absl::AlreadyExistsError("this process has attached before; it is one rank"));
    absl::StatusOr<RankOptions> options = readRankEnvironment();
    if (!options.ok()) return refuse(options.status());
    logAsAWorkerDoes();
    if (absl::Status s = holdLifeLock(); !s.ok())
        spdlog::warn("the death of this rank will be noticed late: {}", std::string(s.message()));
    if (absl::Status s = catchSignals(); !s.ok()) return refuse(s);
    ::on_exit(endAtOnce, nullptr);
    auto rank = std::make_unique<bulkhead_rank>();
    rank->options = *std::move(options);
    rank->options.device = "cpu";
    for (const auto& domain : rank->options.spec.domains)
        rank->domainNames.push_back(domain.name.c_str());
    return rank.release();
}

void bulkhead_rank_describe(const bulkhead_rank* rank, bulkhead_rank_job* out) {
    const RankOptions& o = rank->options;
    *out = {};
    out->job = o.job.c_str();
    out->device = o.spec.device.c_str();
    out->replica = o.rank.replica;
    out->shard = o.rank.shard;
    out->address = o.address.c_str();
    out->run_dir = o.runDir.c_str();
    out->replicas = o.spec.replicas;
    out->shards = o.spec.shards;
    out->incarnation = o.incarnation;
    out->sequence_length = o.spec.sequenceLength;
    out->samples_per_replica = o.spec.samplesPerReplica;
    out->progress_floor_ms = o.spec.timeouts.progressFloorMs;
    out->progress_multiple = o.spec.timeouts.progressMultiple;
    out->seed = o.spec.seed;
    out->domains = static_cast<uint32_t>(rank->domainNames.size());
    out->domain_names = rank->domainNames.data();
}

int bulkhead_rank_memory(bulkhead_rank* rank, const bulkhead_rank_sizes* sizes,
                         bulkhead_rank_blocks* out) {
    const std::string& wanted = rank->options.spec.device;
    if (sizes->on_device != 0 && wanted != "cpu") {
        const std::string name = wanted == "auto" ? "cuda" : wanted;
        auto device = DeviceGradient::create(name, sizes->gradient_floats);
        if (device.ok())
            rank->program.useDevice(*std::move(device));
        else
            spdlog::warn("gradients go through host memory: {}",
                         std::string(device.status().message()));
        rank->options.device = name + (device.ok() ? ", exchanging there" : "");
    }
    if (absl::Status s = rank->program.allocate(*sizes); !s.ok())
        return rank->failed(s, kExitInternal);
    out->state = rank->program.stateMemory();
    out->gradient = rank->program.gradient().data();
    out->on_device = rank->program.onDevice() ? 1 : 0;
    return 0;
}

int bulkhead_rank_start(bulkhead_rank* rank, const bulkhead_rank_program* program) {
    if (program->struct_size != sizeof *program)
        return rank->failed(
            absl::InvalidArgumentError("the caller was built for another version of this library"),
            kExitBadJob);
    if (rank->program.onDevice() && program->sum_of_squares == nullptr)
        return rank->failed(
            absl::InvalidArgumentError("a gradient on a device needs sum_of_squares()"),
            kExitBadJob);
    rank->program.set(*program);
    rank->options.corpusHash = program->data_hash;
    rank->options.corpusNewest = program->data;
    auto started = ReplicaRank::start(rank->options, &rank->program, rank->clock);
    if (!started.ok()) return rank->failed(started.status(), kExitInternal);
    rank->rank = *std::move(started);
    rank->watchdog = std::jthread(watch, rank->rank.get());
    running = true;
    return 0;
}

int bulkhead_rank_next(bulkhead_rank* rank, bulkhead_rank_work* out) {
    absl::StatusOr<Work> work = rank->rank->next();
    rank->exitCode = exitCodeOf(work);
    if (!work.ok()) {
        if (rank->exitCode == kExitBadJob)
            rank->rank->reportHopeless(std::string(work.status().message()));
        return rank->failed(work.status(), rank->exitCode);
    }
    rank->work = *std::move(work);
    rank->ranges.clear();
    for (const bulkhead::SampleRange& r : rank->work.ranges)
        rank->ranges.push_back({r.domain, r.begin, r.end});
    const RankOptions& options = rank->options;
    const auto dealt = bulkhead::protocol::dealSamples(rank->work.ranges, options.spec.shards,
                                                       rank->work.domainShare);
    rank->samples.clear();
    for (const auto& [domain, index] : dealt[static_cast<size_t>(options.rank.shard)])
        rank->samples.push_back({domain, index});
    *out = {};
    out->sample_count = rank->samples.size();
    out->samples = rank->samples.data();
    out->step = rank->work.step;
    out->range_count = static_cast<uint32_t>(rank->ranges.size());
    out->ranges = rank->ranges.data();
    if (!rank->work.finished) return BULKHEAD_RANK_STEP;
    out->step = rank->rank->appliedStep();
    out->why = rank->work.why.c_str();
    switch (rank->work.end) {
        case RankEnd::kLeft:
            return BULKHEAD_RANK_LEFT;
        case RankEnd::kExpelled:
            return BULKHEAD_RANK_EXPELLED;
        case RankEnd::kOrphaned:
            break;
    }
    return BULKHEAD_RANK_ORPHANED;
}

void bulkhead_rank_gradient_ready(bulkhead_rank* rank, uint64_t begin, uint64_t end) {
    rank->rank->gradientReady(rank->work.generation, begin, end);
}

void bulkhead_rank_progress(bulkhead_rank* rank, uint64_t nanoseconds) {
    rank->rank->microBatchDone(static_cast<bulkhead::MonoNs>(nanoseconds));
}

void bulkhead_rank_computed(bulkhead_rank* rank, const bulkhead_rank_figures* figures) {
    StepFigures out;
    out.lossSum = figures->loss;
    out.tokens = figures->tokens;
    const size_t domains = rank->domainNames.size();
    if (figures->domain_loss != nullptr && figures->domain_tokens != nullptr) {
        out.domainLossSum.assign(figures->domain_loss, figures->domain_loss + domains);
        out.domainTokens.assign(figures->domain_tokens, figures->domain_tokens + domains);
    }
    for (uint32_t i = 0; i < figures->scalars && i < bulkhead::Scalar::kMost; ++i)
        out.scalars.push_back({figures->scalar_names[i], figures->scalar_values[i]});
    rank->program.addExperts(figures->expert_counts, domains, rank->options.rank.shard, out);
    rank->rank->computed(rank->work.generation, std::move(out));
}

int bulkhead_rank_leaving(const bulkhead_rank* rank) {
    return rank->rank != nullptr && rank->rank->leaving() ? 1 : 0;
}

const char* bulkhead_rank_error(const bulkhead_rank* rank) {
    return rank->error.c_str();
}

int bulkhead_rank_exit_code(const bulkhead_rank* rank) {
    return rank->exitCode;
}

void bulkhead_rank_hopeless(bulkhead_rank* rank, const char* why) {
    if (rank->rank != nullptr) rank->rank->reportHopeless(why);
}

void bulkhead_rank_close(bulkhead_rank* rank) {
    rank->watchdog = {};
    rank->rank.reset();
    rank->program.close();
    running = false;
    std::signal(SIGTERM, SIG_DFL);  // nobody reads the pipe any more
}

uint64_t bulkhead_rank_place(const bulkhead_rank* rank, uint32_t domain, uint64_t index,
                             uint64_t size) {
    return permute(index % size, size, passKey(rank->options.spec.seed, domain, index / size));
}

void bulkhead_rank_log(int critical, const char* line) {
    spdlog::log(critical != 0 ? spdlog::level::critical : spdlog::level::info, "{}", line);
}
