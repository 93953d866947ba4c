// SPDX-License-Identifier: Apache-2.0
// Trains the workload plugin alone, on one shard, on a text whose last tenth it never sees, and
// prints how it learns. Equal arguments give equal losses.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "backend/runtime/collectives/cpu_device.h"
#include "bench/report.h"
#include "bulkhead/workload.h"

namespace {

using Options = std::map<std::string, std::string>;

struct Settings {
    std::string plugin, models, size, text, out, name;
    uint32_t sequence, samples, microBatch;
    uint64_t steps, warmup, every, seed;
    double rate, leastRate, decay, clip, bound;
};

[[noreturn]] void fail(const std::string& why) {
    std::fprintf(stderr, "llama_moe_curve: %s\n", why.c_str());
    std::exit(1);
}

void must(bulkhead_status status, const char* what) {
    if (status != BULKHEAD_OK) fail(std::string(what) + " failed, see above");
}

const bulkhead_host kHost{
    nullptr, [](void*, int32_t, const char* line) { std::fprintf(stderr, "%s\n", line); },
    [](void*, const char* line) { std::fprintf(stderr, "%s\n", line); }};

/// Draws where samples begin; splitmix64, so that every machine draws alike.
class Draw {
  public:
    explicit Draw(uint64_t seed) : state_(seed) {}
    uint64_t below(uint64_t bound) {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (z ^ (z >> 31)) % bound;
    }

  private:
    uint64_t state_;
};

class Curve {
  public:
    explicit Curve(const Settings& settings) : settings_(settings) {
        readText();
        open();
    }
    ~Curve() {
        device_->free(memory_, reduced_);
        api_->destroy(workload_);
        device_->close(memory_);
    }
    Curve(const Curve&) = delete;
    Curve& operator=(const Curve&) = delete;

    int run() {
        bulkhead::bench::Report report(
            settings_.name, {"step", "train nats/byte", "held-out nats/byte",
                             "busiest expert x mean", "idlest expert x mean", "tokens/s"});
        describe(report);
        double trained = 0, best = 1e9;
        uint64_t sinceTokens = 0;
        auto since = std::chrono::steady_clock::now();
        for (uint64_t step = 1; step <= settings_.steps; ++step) {
            trained += trainStep(step);
            sinceTokens += uint64_t{settings_.samples} * settings_.sequence;
            if (step % settings_.every != 0 && step != settings_.steps) continue;
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
            const double heldOut = evaluate();
            best = std::min(best, heldOut);
            using bulkhead::bench::number;
            const std::vector<std::string> cells = {
                std::to_string(step),   number(trained / static_cast<double>(sinceTokens), 4),
                number(heldOut, 4),     number(load(true), 2),
                number(load(false), 2), number(static_cast<double>(sinceTokens) / took.count(), 0)};
            std::fprintf(stderr, "step %s train %s held-out %s load %s to %s tokens/s %s\n",
                         cells[0].c_str(), cells[1].c_str(), cells[2].c_str(), cells[4].c_str(),
                         cells[3].c_str(), cells[5].c_str());
            report.row(cells);
            trained = 0;
            sinceTokens = 0;
            since = std::chrono::steady_clock::now();
        }
        if (settings_.bound > 0) report.atMost("held-out loss", best, settings_.bound, "nats/byte");
        return report.finish(settings_.out);
    }

  private:
    void readText() {
        std::ifstream file(settings_.text, std::ios::binary);
        if (!file) fail("cannot read " + settings_.text + "; give a text file with --text");
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
        for (const char c : bytes) text_.push_back(static_cast<unsigned char>(c));
        trainBytes_ = text_.size() / 10 * 9;
        if (text_.size() - trainBytes_ < settings_.sequence + 1)
            fail("a tenth of " + settings_.text + " must hold one sequence of " +
                 std::to_string(settings_.sequence) + " bytes");
    }

    void open() {
        void* library = dlopen(settings_.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) fail(dlerror());
        const auto get = reinterpret_cast<bulkhead_workload_get_api_fn>(
            dlsym(library, BULKHEAD_WORKLOAD_GET_API));
        api_ = get == nullptr ? nullptr : get(BULKHEAD_WORKLOAD_ABI);
        if (api_ == nullptr) fail(settings_.plugin + " is no workload of this ABI version");
        device_ = bulkhead::runtime::cpuDeviceApi(BULKHEAD_DEVICE_ABI);
        must(device_->open(&kHost, 0, &memory_), "opening the device");
        const std::string model = "size = \"" + settings_.size + "\"";
        bulkhead_workload_config config{};
        config.struct_size = sizeof(config);
        config.host = &kHost;
        config.device_api = device_;
        config.device = memory_;
        config.shards = 1;
        config.model_toml = model.c_str();
        config.model_dir = settings_.models.c_str();
        config.sequence_length = settings_.sequence;
        config.micro_batch = settings_.microBatch;
        config.domains = 1;
        config.beta1 = 0.9f;
        config.beta2 = 0.95f;
        config.epsilon = 1e-8f;
        config.weight_decay = static_cast<float>(settings_.decay);
        must(api_->create(&config, &workload_), "creating the model");
        must(api_->initialise(workload_, settings_.seed), "initialising the model");
        info_.struct_size = sizeof(info_);
        must(api_->describe(workload_, &info_), "describing the model");
        counts_.resize(size_t{info_.moe_layers} * info_.experts);
        tokens_.resize(size_t{settings_.microBatch} * (settings_.sequence + 1));
        domains_.resize(settings_.microBatch);
        void* reduced = nullptr;
        must(device_->alloc(memory_, BULKHEAD_MEMORY_DEVICE, info_.gradient_count * sizeof(float),
                            &reduced),
             "allocating");
        reduced_ = static_cast<float*>(reduced);
    }

    void describe(bulkhead::bench::Report& report) const {
        report.note(std::string(info_.name) + ": " + std::to_string(info_.parameters) +
                    " parameters, " + std::to_string(info_.active_parameters) + " active");
        report.note(std::to_string(settings_.samples) + " x " + std::to_string(settings_.sequence) +
                    " tokens a step, seed " + std::to_string(settings_.seed) + ", text " +
                    settings_.text + ", its last tenth held out");
    }

    bulkhead_batch batchAt(const std::vector<size_t>& begins) {
        for (size_t s = 0; s < begins.size(); ++s)
            std::copy_n(text_.begin() + static_cast<ptrdiff_t>(begins[s]), settings_.sequence + 1,
                        tokens_.begin() + static_cast<ptrdiff_t>(s * (settings_.sequence + 1)));
        return {sizeof(bulkhead_batch),
                static_cast<uint32_t>(begins.size()),
                tokens_.data(),
                domains_.data(),
                0,
                0};
    }

    /// Cosine from the rate to the least, after a linear warm-up.
    double rateAt(uint64_t step) const {
        if (step <= settings_.warmup)
            return settings_.rate * static_cast<double>(step) /
                   static_cast<double>(settings_.warmup);
        const double done = static_cast<double>(step - settings_.warmup) /
                            static_cast<double>(settings_.steps - settings_.warmup);
        return settings_.leastRate + (settings_.rate - settings_.leastRate) * 0.5 *
                                         (1 + std::cos(std::numbers::pi * done));
    }

    /// Returns the loss summed over the step's tokens.
    double trainStep(uint64_t step) {
        Draw draw(settings_.seed * 1000003 + step);
        for (uint32_t done = 0; done < settings_.samples;) {
            const uint32_t now = std::min(settings_.microBatch, settings_.samples - done);
            std::vector<size_t> begins(now);
            for (size_t& begin : begins) begin = draw.below(trainBytes_ - settings_.sequence);
            bulkhead_batch batch = batchAt(begins);
            batch.first = done == 0;
            done += now;
            batch.last = done == settings_.samples;
            must(api_->forward_backward(workload_, &batch, nullptr, nullptr), "a micro-batch");
        }
        bulkhead_metrics metrics{};
        metrics.struct_size = sizeof(metrics);
        metrics.expert_counts = counts_.data();
        must(api_->metrics(workload_, &metrics), "metrics");
        update(step, metrics.tokens);
        return metrics.loss_sum;
    }

    /// Rows of the busiest (or idlest) expert of any layer in the last step, by the mean.
    double load(bool busiest) const {
        if (counts_.empty()) return 1;
        const auto [least, most] = std::minmax_element(counts_.begin(), counts_.end());
        const double mean = static_cast<double>(settings_.samples) * settings_.sequence *
                            info_.top_k / info_.experts;
        return static_cast<double>(busiest ? *most : *least) / mean;
    }

    void update(uint64_t step, uint64_t tokens) {
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        must(api_->gradient(workload_, &gradient, &count, &kind), "the gradient");
        must(device_->copy(memory_, reduced_, gradient, count * sizeof(float), nullptr), "copying");
        double squares = 0;
        must(api_->sum_of_squares(workload_, reduced_, &squares), "the norm");
        const double norm = std::sqrt(squares) / static_cast<double>(tokens);
        const double clip = settings_.clip > 0 && norm > settings_.clip ? settings_.clip / norm : 1;
        const auto power = static_cast<double>(step);
        const bulkhead_update rule{sizeof(bulkhead_update),
                                   step,
                                   static_cast<float>(rateAt(step)),
                                   static_cast<float>(clip / static_cast<double>(tokens)),
                                   static_cast<float>(1 - std::pow(0.9, power)),
                                   static_cast<float>(1 - std::pow(0.95, power))};
        must(api_->apply(workload_, reduced_, &rule), "the update");
    }

    double evaluate() {
        bulkhead_metrics metrics{};
        metrics.struct_size = sizeof(metrics);
        std::vector<size_t> begins;
        for (size_t at = trainBytes_; at + settings_.sequence < text_.size();
             at += settings_.sequence) {
            begins.push_back(at);
            if (begins.size() < settings_.microBatch &&
                at + size_t{2} * settings_.sequence < text_.size())
                continue;
            const bulkhead_batch batch = batchAt(begins);
            must(api_->evaluate(workload_, &batch, &metrics), "evaluating");
            begins.clear();
        }
        return metrics.loss_sum / static_cast<double>(metrics.tokens);
    }

    Settings settings_;
    std::vector<int32_t> text_;
    size_t trainBytes_ = 0;
    const bulkhead_device_api* device_ = nullptr;
    bulkhead_device* memory_ = nullptr;
    const bulkhead_workload_api* api_ = nullptr;
    bulkhead_workload* workload_ = nullptr;
    bulkhead_model_info info_{};
    float* reduced_ = nullptr;
    std::vector<uint64_t> counts_;  ///< [mixture layer][expert], of the last step
    std::vector<int32_t> tokens_;
    std::vector<uint32_t> domains_;
};

[[noreturn]] void failUnknown(const std::string& key, const Options& options) {
    std::string line = "cannot take " + key + "; options and their defaults are";
    for (const auto& [name, value] : options)
        line.append(" --").append(name).append(" (").append(value).append(")");
    fail(line);
}

Options parse(int argc, char** argv, Options options) {
    for (int i = 1; i < argc; i += 2) {
        const std::string key = argv[i];
        if (key.rfind("--", 0) != 0 || !options.contains(key.substr(2)) || i + 1 == argc) {
            failUnknown(key, options);
        }
        options[key.substr(2)] = argv[i + 1];
    }
    return options;
}

double real(const Options& options, const std::string& key) {
    try {
        return std::stod(options.at(key));
    } catch (const std::exception&) {
        fail("--" + key + " must be a number, not " + options.at(key));
    }
}

uint32_t whole(const Options& options, const std::string& key) {
    const double value = real(options, key);
    if (!(value >= 0 && value < 4e9) || value != std::floor(value))
        fail("--" + key + " must be a whole number, not " + options.at(key));
    return static_cast<uint32_t>(value);
}

}  // namespace

int main(int argc, char** argv) {
    const Options o = parse(argc, argv,
                            {{"plugin", BULKHEAD_PLUGIN},
                             {"models", BULKHEAD_MODELS},
                             {"size", "small"},
                             {"text", ""},
                             {"out", "."},
                             {"name", "llama_moe"},
                             {"sequence", "256"},
                             {"samples", "16"},
                             {"micro", "8"},
                             {"steps", "3000"},
                             {"warmup", "100"},
                             {"every", "250"},
                             {"seed", "1"},
                             {"rate", "3e-3"},
                             {"least-rate", "1e-4"},
                             {"decay", "0.1"},
                             {"clip", "1"},
                             {"bound", "0"}});
    Settings s{o.at("plugin"),    o.at("models"),    o.at("size"),          o.at("text"),
               o.at("out"),       o.at("name"),      whole(o, "sequence"),  whole(o, "samples"),
               whole(o, "micro"), whole(o, "steps"), whole(o, "warmup"),    whole(o, "every"),
               whole(o, "seed"),  real(o, "rate"),   real(o, "least-rate"), real(o, "decay"),
               real(o, "clip"),   real(o, "bound")};
    if (s.sequence == 0 || s.samples == 0 || s.microBatch == 0 || s.every == 0)
        fail("--sequence, --samples, --micro and --every must be above 0");
    return Curve(s).run();
}
