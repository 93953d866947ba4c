// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/failover/faults.h"

/// The programs of examples/gpt as what is measured: four replicas of one process each.
namespace bulkhead::bench {

constexpr uint32_t kGptReplicas = 4;

struct GptOptions : Settings {
    uint64_t steps = 30;
    std::vector<uint32_t> millions = {10};
    std::string python = "/usr/bin/python3";   ///< interpreter with torch
    std::string text;                          ///< that the loss is of
    std::string peer;                          ///< "torchft", or empty
    std::string whyNoPeer;                     ///< where it could not be installed
    std::optional<uint32_t> parityEverySteps;  ///< none: as the job chooses
    std::string folder(const std::string& name) const { return out + "/torch-" + name; }
};

struct GptShape {
    uint32_t layers = 0;
    uint32_t width = 0;
    uint32_t batch = 0;          ///< samples of a replica in one step
    uint64_t seed = 1;           ///< of parameters and the order of samples
    bool constantBatch = false;  ///< the others take over a lost replica's samples
};
/// 0.9 million parameters, a step of some tens of milliseconds: what is killed.
constexpr GptShape kKilledGpt = {4, 128, 8};

/// The arguments of one of the examples' programs behind its name.
std::vector<std::string> gptArguments(const GptShape& shape, const std::string& text);
/// The interpreter, that program (train_ddp.py, say) and its arguments.
std::vector<std::string> gptProgram(const GptOptions& o, const GptShape& shape,
                                    const std::string& script, const std::string& text);

/// Drawn text for so many steps of all replicas, as a file in the out folder, which is made.
std::string drawnText(const GptOptions& o, const GptShape& shape, uint64_t steps);

/// train_bulkhead.py on `text` as a job of `steps` steps (0: without end).
std::unique_ptr<DemoJob> startGpt(const GptOptions& o, const GptShape& shape,
                                  const std::string& name, const std::string& text, uint64_t steps);

}  // namespace bulkhead::bench
