// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/address.h"
#include "bench/gpu/measures.h"

namespace bulkhead::bench {
namespace {

constexpr int kMostTimes = 1000;

struct Setting {
    size_t replicas = 2;
    size_t bytes = 0;
    runtime::WireType wire = runtime::WireType::kFloat32;
    uint32_t blocks = 2;
};

/// Left by the replicas for this process, which shares the memory with them.
struct Told {
    double ms[kMostTimes];       ///< by replica 0
    char why[256];               ///< of one that failed; empty: none did
    std::atomic<uint32_t> left;  ///< so many map nothing of others any more
};

/// The replicas of one measurement, a process each, which read each other's memory of the first GPU
/// by CUDA IPC. This process never touches the GPU before: a driver does not survive a fork.
class Replicas {
  public:
    explicit Replicas(const Setting& setting) : setting_(setting) {
        static int serial = 0;
        const std::string prefix = absl::StrCat("bulkhead-bench-gpu-", ::getpid(), "-", serial++);
        for (size_t i = 0; i < setting.replicas; ++i) {
            listeners_.push_back(value(runtime::listenOn("127.0.0.1:0")));
            runtime::ExchangePeer peer;
            peer.replica = static_cast<int32_t>(i);
            peer.host = "here";
            peer.data = runtime::localAddress(listeners_[i].get());
            peer.shm = absl::StrCat(prefix, "-", i);
            group_.peers.push_back(peer);
        }
        group_.key = {1, 1, 1, 1};
        group_.secret = Secret::ofText("bench");
        group_.wire = setting.wire;
        group_.chunkTimeout = group_.connectTimeout = 30 * kSecond;
        told_ = static_cast<Told*>(::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        if (told_ == MAP_FAILED) die(absl::ResourceExhaustedError("mmap"));
    }
    ~Replicas() { ::munmap(told_, sizeof(Told)); }
    Replicas(const Replicas&) = delete;
    Replicas& operator=(const Replicas&) = delete;

    /// Milliseconds of an all-reduce, as replica 0 sees it.
    absl::StatusOr<std::vector<double>> measure(int times) {
        std::vector<pid_t> children;
        for (size_t i = 0; i < setting_.replicas; ++i) {
            const pid_t child = ::fork();
            if (child < 0) die(absl::ResourceExhaustedError("fork"));
            if (child == 0) {
                const absl::Status s = replica(i, times);
                if (!s.ok()) std::strncpy(told_->why, std::string(s.message()).c_str(), 255);
                ::_exit(s.ok() ? 0 : 1);
            }
            children.push_back(child);
        }
        bool all = true;
        for (const pid_t child : children) {
            int status = 0;
            (void)::waitpid(child, &status, 0);
            all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        if (!all)
            return absl::UnavailableError(told_->why[0] != 0 ? told_->why : "a replica was killed");
        return std::vector<double>(told_->ms, told_->ms + times);
    }

  private:
    absl::Status replica(size_t i, int times) {
        support::GpuPlugin plugin(BULKHEAD_CUDA_PLUGIN);
        if (const std::string why = plugin.whyNot(); !why.empty())
            return absl::UnavailableError(absl::StrCat("no GPU answers here: ", why));
        support::GpuRank rank(plugin, setting_.blocks);
        if (!rank.ok()) return absl::UnavailableError(plugin.error());
        const size_t count = setting_.bytes / sizeof(float);
        float* in = rank.floats(count);
        float* out = rank.floats(count);
        if (out == nullptr) return absl::ResourceExhaustedError(plugin.error());
        const SystemClock clock;
        runtime::ExchangeOptions options;
        options.job = "bench";
        options.replica = group_.peers[i].replica;
        options.listenFd = listeners_[i].get();
        options.device = {&plugin.plane(), rank.plane()};
        options.clock = &clock;
        auto exchange = runtime::makeExchange(options);
        if (!exchange.ok()) return exchange.status();
        group_.self = static_cast<int32_t>(i);
        absl::Status s = (*exchange)->configure(group_);
        const std::vector<double> ms = timed(times, [&] {
            if (s.ok()) s = (*exchange)->reduce(0, {in, count}, {out, count});
        });
        if (i == 0) std::copy(ms.begin(), ms.end(), told_->ms);
        (void)plugin.plane().leave(rank.plane());
        awaitOthers();
        return s;
    }
    /// Memory that others map must not go; whoever was killed maps nothing.
    void awaitOthers() {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        ++told_->left;
        while (told_->left < setting_.replicas && std::chrono::steady_clock::now() < until)
            ::usleep(1000);
    }

    const Setting setting_;
    runtime::ExchangeGroup group_;
    std::vector<UniqueFd> listeners_;
    Told* told_ = nullptr;
};

std::string sizeText(size_t bytes) {
    return bytes < kMiB ? absl::StrCat(bytes >> 10, " KiB") : absl::StrCat(bytes / kMiB, " MiB");
}

}  // namespace

void measureExchanges(int times, size_t most, Report& report) {
    for (const size_t replicas : {2, 4})
        for (const auto wire : {runtime::WireType::kFloat32, runtime::WireType::kBfloat16})
            for (const size_t bytes :
                 {size_t{1024}, kMiB, 16 * kMiB, 256 * kMiB, 1024 * kMiB})
                for (const uint32_t blocks : {2u, 16u}) {
                    if (bytes > most) continue;
                    const Spread s =
                        spreadOf(value(Replicas({replicas, bytes, wire, blocks}).measure(times)));
                    // Bytes that every replica reads and writes in the two halves, in and out of
                    // memory.
                    const double moved = static_cast<double>(bytes) *
                                         (1 + 1.0 / static_cast<double>(replicas) +
                                          2 * (1 - 1.0 / static_cast<double>(replicas))) *
                                         static_cast<double>(replicas);
                    report.row({absl::StrCat(
                                    "exchange, ", replicas, " replicas, ", sizeText(bytes),
                                    wire == runtime::WireType::kFloat32 ? " float32" : " bfloat16"),
                                std::to_string(blocks), number(moved / s.median / 1e6, 0), "",
                                cell(s, 3)});
                }
}

}  // namespace bulkhead::bench
