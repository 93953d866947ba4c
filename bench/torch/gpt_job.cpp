// SPDX-License-Identifier: Apache-2.0
#include "bench/torch/gpt_job.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace bulkhead::bench {

std::vector<std::string> gptArguments(const GptShape& shape, const std::string& text) {
    return {"--text",   text,
            "--layers", absl::StrCat(shape.layers),
            "--width",  absl::StrCat(shape.width),
            "--batch",  absl::StrCat(shape.batch),
            "--seed",   absl::StrCat(shape.seed)};
}

std::vector<std::string> gptProgram(const GptOptions& o, const GptShape& shape,
                                    const std::string& script, const std::string& text) {
    std::vector<std::string> words = {
        std::filesystem::absolute(o.python),
        std::filesystem::absolute(o.root + "/examples/gpt/" + script)};
    const auto arguments = gptArguments(shape, text);
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
}

std::string drawnText(const GptOptions& o, const GptShape& shape, uint64_t steps) {
    const std::string path = std::filesystem::absolute(o.out + "/torch-text");
    std::filesystem::create_directories(o.out);
    std::ofstream text(path, std::ios::binary);
    std::mt19937 draw(1);
    for (uint64_t i = 0; i < 64 * shape.batch * kGptReplicas * steps + 1; ++i)
        text.put(static_cast<char>('a' + (draw() % 16 & draw() % 16)));
    if (!text.flush()) die(absl::UnavailableError(path + ": cannot be written"));
    return path;
}

std::unique_ptr<DemoJob> startGpt(const GptOptions& o, const GptShape& shape,
                                  const std::string& name, const std::string& text,
                                  uint64_t steps) {
    const std::string folder = std::filesystem::absolute(o.folder(name));
    return value(DemoJob::start(o.root, folder, [&](model::JobSpec& spec) {
        spec = {};
        spec.name = name;
        spec.replicas = kGptReplicas;
        spec.shards = 1;
        spec.steps = steps;
        spec.samplesPerReplica = shape.batch;
        spec.sequenceLength = 64;
        spec.command = gptProgram(o, shape, "train_bulkhead.py", text);
        spec.env = {absl::StrCat("PYTHONPATH=", PYTHON_PACKAGE), "OMP_NUM_THREADS=1"};
        spec.directory = folder;
        spec.domains = {{"data", {}}};
        spec.allowFaults = true;
        spec.timeouts.joinMs = spec.timeouts.startMs = spec.timeouts.progressFloorMs = 100'000;
        spec.timeouts.chunkFloorMs = 60'000;
        spec.policies.lr = model::LrPolicy::kNone;
        if (shape.constantBatch) spec.policies.batch = model::BatchPolicy::kConstant;
        spec.policies.parityEverySteps = o.parityEverySteps;
        spec.policies.minReplicas = 2;
        spec.policies.checkpointEverySteps = 0;
        spec.policies.restartLimit = 0;
        spec.checkpointDir = folder + "/checkpoints";
    }));
}

}  // namespace bulkhead::bench
