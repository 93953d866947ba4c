// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "backend/common/clock.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/address.h"
#include "bench/gpu/measures.h"

namespace bulkhead::bench {
namespace {

struct Setting {
    size_t replicas = 2;
    size_t bytes = 0;
    runtime::WireType wire = runtime::WireType::kFloat32;
    uint32_t blocks = 2;
};

/// The replicas of one measurement, all on the first GPU.
class Replicas {
  public:
    Replicas(support::GpuPlugin& plugin, const Setting& setting) : setting_(setting) {
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
        for (size_t i = 0; i < setting.replicas; ++i) add(plugin, i);
    }

    /// Milliseconds of an all-reduce, as replica 0 sees it.
    std::vector<double> measure(int times) {
        std::vector<double> ms;
        std::vector<std::thread> threads;
        for (size_t i = 0; i < setting_.replicas; ++i)
            threads.emplace_back([&, i] {
                runtime::ExchangeGroup group = group_;
                group.self = static_cast<int32_t>(i);
                need(exchanges_[i]->configure(group));
                const size_t count = setting_.bytes / sizeof(float);
                const std::vector<double> mine = timed(times, [&] {
                    need(exchanges_[i]->reduce(0, {in_[i], count}, {out_[i], count}));
                });
                if (i == 0) ms = mine;
            });
        for (std::thread& t : threads) t.join();
        return ms;
    }

  private:
    void add(support::GpuPlugin& plugin, size_t i) {
        ranks_.push_back(std::make_unique<support::GpuRank>(plugin, setting_.blocks));
        if (!ranks_[i]->ok()) die(absl::UnavailableError(plugin.error()));
        in_.push_back(ranks_[i]->floats(setting_.bytes / sizeof(float)));
        out_.push_back(ranks_[i]->floats(setting_.bytes / sizeof(float)));
        if (out_[i] == nullptr) die(absl::ResourceExhaustedError(plugin.error()));
        runtime::ExchangeOptions options;
        options.job = "bench";
        options.replica = group_.peers[i].replica;
        options.listenFd = listeners_[i].get();
        options.device = {&plugin.plane(), ranks_[i]->plane()};
        options.clock = &clock_;
        exchanges_.push_back(value(runtime::makeExchange(options)));
    }

    const Setting setting_;
    const SystemClock clock_;
    runtime::ExchangeGroup group_;
    std::vector<UniqueFd> listeners_;
    std::vector<std::unique_ptr<support::GpuRank>> ranks_;
    std::vector<float*> in_, out_;
    std::vector<std::unique_ptr<runtime::Exchange>> exchanges_;
};

}  // namespace

void measureExchanges(support::GpuPlugin& plugin, int times, Report& report) {
    for (const size_t replicas : {2, 4})
        for (const auto wire : {runtime::WireType::kFloat32, runtime::WireType::kBfloat16})
            for (const size_t bytes : {16 * kMiB, 64 * kMiB, 256 * kMiB})
                for (const uint32_t blocks : {2u, 16u}) {
                    const Spread s =
                        spreadOf(Replicas(plugin, {replicas, bytes, wire, blocks}).measure(times));
                    // What every replica reads and writes in the two halves, in and out of memory.
                    const double moved = static_cast<double>(bytes) *
                                         (1 + 1.0 / static_cast<double>(replicas) +
                                          2 * (1 - 1.0 / static_cast<double>(replicas))) *
                                         static_cast<double>(replicas);
                    report.row(
                        {absl::StrCat("exchange, ", replicas, " replicas, ", bytes / kMiB, " MiB ",
                                      wire == runtime::WireType::kFloat32 ? "float32" : "bfloat16"),
                         std::to_string(blocks), number(moved / s.median / 1e6, 0), "", cell(s)});
                }
}

}  // namespace bulkhead::bench
