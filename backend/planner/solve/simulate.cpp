// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "backend/planner/evaluate/serving_gpus.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

constexpr uint64_t kMostSimulated = 64'000'000;

double percentile95(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto at = static_cast<ptrdiff_t>(values.size() * 95 / 100);
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return values[static_cast<size_t>(at)];
}

struct Active {
    uint32_t range = 0;
    uint32_t gpu = 0;
    uint64_t next = 0;  ///< token to come, from the range's first
};

class Server {
  public:
    Server(const RoutingView& view, const Plan& plan, const ServingOptions& options)
        : view_(view),
          plan_(plan),
          options_(options),
          nodes_(plan.topology.nodes()),
          random_(options.seed),
          waiting_(nodes_),
          places_(nodes_, 0),
          gpuBusy_(plan.topology.gpus(), 0),
          work_(nodes_, 0) {
        for (uint32_t layer = 0; layer < plan.shape.layers; ++layer)
            serving_.emplace_back(plan, layer);
        const RoutingView heads = headOf(view, options.prefix);
        const TokenSample sample =
            sampleOf(heads, kMostSimulated / (uint64_t{plan.shape.layers} * plan.shape.topK));
        const HomeCosts costs = homeCosts(sample, routesOf(plan));
        for (size_t i = 0; i < costs.sends.size(); ++i)
            cost_.push_back(options.sends * costs.sends[i] + options.copies * costs.copies[i]);
        for (const TokenRange& head : heads.ranges) head_.push_back(head.tokens);
        double at = 0;
        for (size_t r = 0; r < view.ranges.size(); ++r)
            arrival_.push_back(at += -std::log(random_.unit()) / options.requestsPerSecond);
        expertBytes_ = options.step.expertBytes > 0 ? options.step.expertBytes
                                                    : static_cast<double>(plan.shape.expertBytes);
        if (expertBytes_ <= 0) expertBytes_ = 3 * options.step.bytesPerCopy * 1408;
    }

    ServingOutcome run() {
        while (arrived_ < view_.ranges.size() || !active_.empty() || queued() > 0) {
            admit();
            if (active_.empty()) {
                now_ = std::max(now_, arrival_[arrived_]);
                continue;
            }
            step();
        }
        out_.requests = view_.ranges.size();
        out_.seconds = now_;
        const auto tokens = static_cast<double>(std::max<uint64_t>(out_.outputTokens, 1));
        out_.bytesPerOutputToken = bytes_ / tokens;
        out_.secondsPerOutputToken =
            std::accumulate(perToken_.begin(), perToken_.end(), 0.0) / tokens;
        out_.paddedSecondsPerOutputToken = padded_ / tokens;
        out_.secondsPerOutputTokenP95 = percentile95(std::move(perToken_));
        out_.queueSeconds =
            std::accumulate(waits_.begin(), waits_.end(), 0.0) / static_cast<double>(waits_.size());
        out_.queueSecondsP95 = percentile95(std::move(waits_));
        return out_;
    }

  private:
    size_t queued() const {
        size_t sum = 0;
        for (const auto& queue : waiting_) sum += queue.size();
        return sum;
    }

    uint32_t route(uint32_t range) const {
        const double mean = std::accumulate(work_.begin(), work_.end(), 0.0) / nodes_;
        const auto tokens = static_cast<double>(view_.ranges[range].tokens);
        uint32_t best = nodes_, emptiest = 0;
        for (uint32_t n = 0; n < nodes_; ++n) {
            if (work_[n] < work_[emptiest]) emptiest = n;
            if (work_[n] + tokens > options_.homeCap * (mean + tokens)) continue;
            if (best == nodes_ || cost_[range * nodes_ + n] < cost_[range * nodes_ + best])
                best = n;
        }
        return best == nodes_ ? emptiest : best;
    }

    void admit() {
        for (; arrived_ < view_.ranges.size() && arrival_[arrived_] <= now_; ++arrived_) {
            const uint32_t node = route(static_cast<uint32_t>(arrived_));
            waiting_[node].push_back(static_cast<uint32_t>(arrived_));
            work_[node] += static_cast<double>(view_.ranges[arrived_].tokens);
        }
        for (uint32_t n = 0; n < nodes_; ++n)
            while (!waiting_[n].empty() && places_[n] < options_.placesPerNode) {
                const uint32_t range = waiting_[n].front();
                waiting_[n].pop_front();
                ++places_[n];
                const auto first = gpuBusy_.begin() + n * plan_.topology.gpusPerNode();
                const auto gpu = std::min_element(first, first + plan_.topology.gpusPerNode());
                ++*gpu;
                active_.push_back({range, static_cast<uint32_t>(gpu - gpuBusy_.begin()), 0});
                waits_.push_back(now_ - arrival_[range]);
            }
    }

    /// Tokens of a step: the whole prefix of a request that has just got its place, else one.
    void step() {
        tokens_.clear();
        for (const Active& a : active_) {
            const uint64_t count = a.next == 0 ? head_[a.range] : 1;
            for (uint64_t i = 0; i < count; ++i)
                tokens_.push_back({view_.ranges[a.range].firstToken + a.next + i, a.gpu});
        }
        double plain = options_.overheadSeconds, padded = options_.overheadSeconds;
        for (uint32_t layer = 0; layer < plan_.shape.layers; ++layer)
            layerTime(layer, plain, padded);
        now_ += plain;
        ++out_.steps;
        for (Active& a : active_) {
            const bool gives = a.next > 0;
            a.next += gives ? 1 : head_[a.range];
            if (gives) {
                ++out_.outputTokens;
                perToken_.push_back(plain);
                padded_ += padded;
            }
        }
        std::erase_if(active_, [&](const Active& a) {
            const TokenRange& range = view_.ranges[a.range];
            if (a.next < range.tokens) return false;
            const uint32_t node = a.gpu / plan_.topology.gpusPerNode();
            --places_[node];
            --gpuBusy_[a.gpu];
            work_[node] -= static_cast<double>(range.tokens);
            return true;
        });
    }

    void layerTime(uint32_t layer, double& plain, double& padded) {
        const uint32_t topK = plan_.shape.topK, each = plan_.topology.gpusPerNode();
        sends_.assign(size_t{nodes_} * nodes_, 0);
        gpuTokens_.assign(plan_.topology.gpus(), 0);
        activated_.assign(plan_.topology.gpus(), 0);
        used_.assign(size_t{plan_.topology.gpus()} * plan_.shape.experts, 0);
        std::vector<uint16_t> ids(topK);
        std::vector<uint32_t> seen(nodes_, 0);
        uint32_t stamp = 0;
        for (const auto& [token, homeGpu] : tokens_) {
            view_.routing->readLayer(layer, token, ids);
            const uint32_t home = homeGpu / each;
            ++stamp;
            for (uint16_t expert : ids) {
                const uint32_t gpu = serving_[layer].gpu(home, expert, token), node = gpu / each;
                gpuTokens_[gpu] += 1;
                uint8_t& used = used_[size_t{gpu} * plan_.shape.experts + expert];
                activated_[gpu] += !used;
                used = 1;
                if (options_.step.deduplicated && seen[node] == stamp) continue;
                seen[node] = stamp;
                sends_[home * nodes_ + node] += 1;
            }
        }
        const ExchangeTime exchange =
            exchangeTime(sends_, plan_.topology, options_.step.bytesPerCopy);
        for (uint32_t i = 0; i < sends_.size(); ++i)
            if (i / nodes_ != i % nodes_) bytes_ += 2 * sends_[i] * options_.step.bytesPerCopy;
        const double experts = std::max(*std::max_element(gpuTokens_.begin(), gpuTokens_.end()) *
                                            expertBytes_ / options_.step.flopsPerSecond,
                                        *std::max_element(activated_.begin(), activated_.end()) *
                                            expertBytes_ / options_.step.readBytesPerSecond);
        plain += 2 * exchange.plain + experts;
        padded += 2 * exchange.padded + experts;
    }

    const RoutingView& view_;
    const Plan& plan_;
    const ServingOptions& options_;
    uint32_t nodes_;
    Random random_;
    std::vector<ServingGpus> serving_;
    std::vector<double> cost_;     ///< ranges x nodes
    std::vector<uint64_t> head_;   ///< [range] tokens prefilled
    std::vector<double> arrival_;  ///< [range] seconds
    std::vector<std::deque<uint32_t>> waiting_;
    std::vector<uint32_t> places_;  ///< [node] taken
    std::vector<uint32_t> gpuBusy_;
    std::vector<double> work_;  ///< [node] tokens of requests routed there and not done
    std::vector<Active> active_;
    std::vector<std::pair<uint64_t, uint32_t>> tokens_;
    std::vector<double> sends_, gpuTokens_, activated_;
    std::vector<uint8_t> used_;
    size_t arrived_ = 0;
    double now_ = 0, bytes_ = 0, padded_ = 0, expertBytes_ = 0;
    std::vector<double> perToken_, waits_;
    ServingOutcome out_;
};

}  // namespace

absl::StatusOr<ServingOutcome> simulateServing(const RoutingView& view, const Plan& plan,
                                               const ServingOptions& options) {
    const ModelShape& shape = view.routing->shape();
    if (shape.layers != plan.shape.layers || shape.experts != plan.shape.experts)
        return absl::InvalidArgumentError(
            absl::StrCat("the plan is for ", plan.shape.layers, " layers of ", plan.shape.experts,
                         " experts, the recording has ", shape.layers, " of ", shape.experts));
    if (!(options.requestsPerSecond > 0) || options.placesPerNode == 0 ||
        !(options.prefix > 0 && options.prefix < 1))
        return absl::InvalidArgumentError(
            "requests a second and places must be more than 0, the prefix between 0 and 1");
    RoutingView served = view;
    std::erase_if(served.ranges, [](const TokenRange& range) { return range.tokens < 2; });
    if (served.ranges.empty())
        return absl::InvalidArgumentError(
            "no request has two tokens: nothing to prefill and decode");
    return Server(served, plan, options).run();
}

}  // namespace bulkhead::planner
