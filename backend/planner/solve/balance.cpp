// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {

namespace {

constexpr int kMostReliefs = 16;

uint32_t slotsOf(const BalanceShape& shape) {
    return std::accumulate(shape.slotsOfGpu.begin(), shape.slotsOfGpu.end(), 0u);
}

/// Exact best packing of groups into nodes of equal count: the smallest possible fullest node.
class GroupPacking {
  public:
    GroupPacking(std::vector<double> load, uint32_t nodes)
        : load_(std::move(load)),
          node_(nodes, 0),
          count_(nodes, 0),
          each_(static_cast<uint32_t>(load_.size()) / nodes) {
        std::sort(load_.rbegin(), load_.rend());
        place(0, 0);
    }
    double fullest() const { return best_; }
    bool finished() const { return visited_ < kMost; }

  private:
    static constexpr uint32_t kMost = 3'000'000;

    void place(size_t group, double fullest) {
        if (fullest >= best_ || ++visited_ >= kMost) return;
        if (group == load_.size()) {
            best_ = fullest;
            return;
        }
        for (size_t n = 0; n < node_.size(); ++n) {
            if (count_[n] == each_) continue;
            node_[n] += load_[group];
            ++count_[n];
            place(group + 1, std::max(fullest, node_[n]));
            node_[n] -= load_[group];
            if (--count_[n] == 0) break;  // empty nodes are alike
        }
    }

    std::vector<double> load_;
    std::vector<double> node_;
    std::vector<uint32_t> count_;
    uint32_t each_;
    double best_ = INFINITY;
    uint32_t visited_ = 0;
};

/// The least that the heaviest replica can carry when `load` may have `extra` more replicas: giving
/// each next one to whoever has most for each of its own is optimal for that.
double leastReplica(std::span<const double> load, uint32_t extra) {
    std::vector<uint32_t> count(load.size(), 1);
    const auto most = [&] {
        size_t best = 0;
        for (size_t e = 1; e < load.size(); ++e)
            if (load[e] / count[e] > load[best] / count[best]) best = e;
        return best;
    };
    for (; extra > 0; --extra) ++count[most()];
    return load[most()] / count[most()];
}

}  // namespace

absl::Status checkBalanceShape(const BalanceShape& shape) {
    const uint32_t slots = slotsOf(shape);
    const auto gpus = static_cast<uint32_t>(shape.slotsOfGpu.size());
    if (shape.nodes == 0 || gpus % shape.nodes != 0)
        return absl::InvalidArgumentError(
            absl::StrCat(gpus, " GPUs do not divide over ", shape.nodes, " nodes"));
    if (slots < shape.experts)
        return absl::InvalidArgumentError(
            absl::StrCat(slots, " slots cannot hold ", shape.experts, " experts"));
    if (shape.groups < 1 || shape.experts % shape.groups != 0)
        return absl::InvalidArgumentError(
            absl::StrCat(shape.groups, " groups do not divide ", shape.experts, " experts"));
    if (shape.groups == 1) return absl::OkStatus();
    if (shape.groups % shape.nodes != 0)
        return absl::InvalidArgumentError(absl::StrCat(
            shape.groups, " router groups do not divide over ", shape.nodes, " nodes"));
    const uint32_t each = gpus / shape.nodes;
    for (uint32_t n = 0; n < shape.nodes; ++n) {
        const auto first = shape.slotsOfGpu.begin() + n * each;
        if (std::accumulate(first, first + each, 0u) * shape.nodes != slots)
            return absl::InvalidArgumentError(
                absl::StrCat("node ", n, " has another number of slots than the others"));
    }
    return absl::OkStatus();
}

Balancer::Balancer(BalanceShape shape, bool relieve)
    : shape_(std::move(shape)), relieves_(relieve) {
    firstSlot_.assign(1, 0);
    for (uint32_t slots : shape_.slotsOfGpu) firstSlot_.push_back(firstSlot_.back() + slots);
    expertsByNode_.resize(shape_.experts);
    std::iota(expertsByNode_.begin(), expertsByNode_.end(), 0);
    load_.resize(shape_.experts);
    replicas_.resize(shape_.experts);
    items_.reserve(firstSlot_.back());
    slots_.resize(firstSlot_.back());
    gpuLoad_.resize(shape_.slotsOfGpu.size());
    used_.resize(shape_.slotsOfGpu.size());
}

void Balancer::balance(std::span<const double> load, std::span<uint32_t> expertOfSlot) {
    for (uint32_t e = 0; e < shape_.experts; ++e) load_[e] = static_cast<float>(load[e]);
    const uint32_t parts = shape_.groups > 1 ? shape_.nodes : 1;
    if (parts > 1) packGroups(load);
    const auto gpus = static_cast<uint32_t>(shape_.slotsOfGpu.size()) / parts;
    const uint32_t experts = shape_.experts / parts;
    for (uint32_t part = 0; part < parts; ++part) {
        const uint32_t firstGpu = part * gpus;
        replicate({expertsByNode_.data() + size_t{part} * experts, experts},
                  firstSlot_[firstGpu + gpus] - firstSlot_[firstGpu]);
        packItems(firstGpu, gpus);
        if (relieves_) relieve(firstGpu, gpus);
    }
    for (size_t s = 0; s < slots_.size(); ++s) expertOfSlot[s] = slots_[s].expert;
}

void Balancer::packGroups(std::span<const double> load) {
    const uint32_t size = shape_.experts / shape_.groups;
    std::vector<double> sums(shape_.groups, 0);
    for (uint32_t e = 0; e < shape_.experts; ++e) sums[e / size] += load[e];
    const std::vector<uint32_t> capacity(shape_.nodes, shape_.groups / shape_.nodes);
    const std::vector<uint32_t> nodeOfGroup = packEvenly(sums, capacity, relieves_);
    size_t next = 0;
    for (uint32_t n = 0; n < shape_.nodes; ++n)
        for (uint32_t g = 0; g < shape_.groups; ++g)
            for (uint32_t i = 0; nodeOfGroup[g] == n && i < size; ++i)
                expertsByNode_[next++] = g * size + i;
}

/// Items of one node (or of all): every expert, then whoever has most for each replica again.
void Balancer::replicate(std::span<const uint32_t> experts, uint32_t slots) {
    for (uint32_t e : experts) replicas_[e] = 1;
    const auto share = [&](uint32_t e) { return load_[e] / static_cast<float>(replicas_[e]); };
    const auto less = [&](uint32_t a, uint32_t b) {
        const float x = share(a), y = share(b);
        return x < y || (x == y && a > b);
    };
    uint32_t extra = slots - static_cast<uint32_t>(experts.size());
    if (extra > 0) {
        heap_.assign(experts.begin(), experts.end());
        std::make_heap(heap_.begin(), heap_.end(), less);
        for (; extra > 0; --extra) {
            std::pop_heap(heap_.begin(), heap_.end(), less);
            ++replicas_[heap_.back()];
            std::push_heap(heap_.begin(), heap_.end(), less);
        }
    }
    items_.clear();
    for (uint32_t e : experts)
        for (uint32_t i = 0; i < replicas_[e]; ++i) items_.push_back({share(e), e});
    std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
        return a.load > b.load || (a.load == b.load && a.expert < b.expert);
    });
}

/// Heaviest first, each to the emptiest GPU that has a slot left.
void Balancer::packItems(uint32_t firstGpu, uint32_t gpus) {
    heap_.clear();
    for (uint32_t g = firstGpu; g < firstGpu + gpus; ++g) {
        gpuLoad_[g] = 0;
        used_[g] = 0;
        if (shape_.slotsOfGpu[g] > 0) heap_.push_back(g);
    }
    const auto more = [&](uint32_t a, uint32_t b) {
        return gpuLoad_[a] > gpuLoad_[b] || (gpuLoad_[a] == gpuLoad_[b] && a > b);
    };
    for (const Item& item : items_) {
        std::pop_heap(heap_.begin(), heap_.end(), more);
        const uint32_t g = heap_.back();
        slots_[firstSlot_[g] + used_[g]++] = item;
        gpuLoad_[g] += item.load;
        if (used_[g] == shape_.slotsOfGpu[g])
            heap_.pop_back();
        else
            std::push_heap(heap_.begin(), heap_.end(), more);
    }
}

/// The one swap with the fullest GPU that leaves the larger of the two smallest.
bool Balancer::relieveOnce(uint32_t firstGpu, uint32_t gpus) {
    const auto begin = gpuLoad_.begin() + firstGpu;
    const auto full =
        static_cast<uint32_t>(std::max_element(begin, begin + gpus) - gpuLoad_.begin());
    float best = gpuLoad_[full] * (1 - 1e-5f);
    uint32_t bestMine = 0, bestTheirs = 0, bestGpu = full;
    for (uint32_t g = firstGpu; g < firstGpu + gpus; ++g) {
        const float gap = gpuLoad_[full] - gpuLoad_[g];
        if (g == full || gpuLoad_[full] - gap / 2 >= best) continue;
        for (uint32_t i = firstSlot_[full]; i < firstSlot_[full + 1]; ++i)
            for (uint32_t j = firstSlot_[g]; j < firstSlot_[g + 1]; ++j) {
                const float shift = slots_[i].load - slots_[j].load;
                const float larger = std::max(gpuLoad_[full] - shift, gpuLoad_[g] + shift);
                if (larger >= best) continue;
                best = larger;
                bestMine = i;
                bestTheirs = j;
                bestGpu = g;
            }
    }
    if (bestGpu == full) return false;
    const float shift = slots_[bestMine].load - slots_[bestTheirs].load;
    gpuLoad_[full] -= shift;
    gpuLoad_[bestGpu] += shift;
    std::swap(slots_[bestMine], slots_[bestTheirs]);
    return true;
}

void Balancer::relieve(uint32_t firstGpu, uint32_t gpus) {
    for (int i = 0; i < kMostReliefs && relieveOnce(firstGpu, gpus); ++i) {
    }
}

std::vector<uint32_t> packEvenly(std::span<const double> load, std::span<const uint32_t> capacity,
                                 bool relieve) {
    BalanceShape shape{
        static_cast<uint32_t>(load.size()), 1, {capacity.begin(), capacity.end()}, 1};
    std::vector<uint32_t> itemOfSlot(load.size()), binOfItem(load.size());
    Balancer(shape, relieve).balance(load, itemOfSlot);
    uint32_t slot = 0;
    for (uint32_t bin = 0; bin < capacity.size(); ++bin)
        for (uint32_t i = 0; i < capacity[bin]; ++i) binOfItem[itemOfSlot[slot++]] = bin;
    return binOfItem;
}

double balancednessOf(std::span<const double> load, std::span<const uint32_t> expertOfSlot,
                      std::span<const uint32_t> slotsOfGpu) {
    std::vector<uint32_t> replicas(load.size(), 0);
    for (uint32_t e : expertOfSlot) ++replicas[e];
    double fullest = 0, total = 0;
    uint32_t slot = 0;
    for (uint32_t slots : slotsOfGpu) {
        double sum = 0;
        for (uint32_t i = 0; i < slots; ++i, ++slot)
            sum += load[expertOfSlot[slot]] / replicas[expertOfSlot[slot]];
        fullest = std::max(fullest, sum);
        total += sum;
    }
    return fullest > 0 ? total / static_cast<double>(slotsOfGpu.size()) / fullest : 1;
}

double balanceBound(std::span<const double> load, const BalanceShape& shape) {
    const double total = std::accumulate(load.begin(), load.end(), 0.0);
    const auto gpus = static_cast<uint32_t>(shape.slotsOfGpu.size());
    const double mean = total / gpus;
    double fullest = mean;
    const uint32_t extra = slotsOf(shape) - shape.experts;
    if (shape.groups > 1) {
        const uint32_t size = shape.experts / shape.groups;
        std::vector<double> sums(shape.groups, 0);
        for (uint32_t e = 0; e < shape.experts; ++e) sums[e / size] += load[e];
        const double largest = *std::max_element(sums.begin(), sums.end());
        const GroupPacking packing(std::move(sums), shape.nodes);
        const double node = packing.finished() ? packing.fullest() : largest;
        fullest = std::max(fullest, node / (gpus / shape.nodes));
        for (uint32_t g = 0; g < shape.groups; ++g)
            fullest = std::max(
                fullest, leastReplica(load.subspan(size_t{g} * size, size), extra / shape.nodes));
    } else {
        fullest = std::max(fullest, leastReplica(load, extra));
    }
    return fullest > 0 ? mean / fullest : 1;
}

}  // namespace bulkhead::planner
